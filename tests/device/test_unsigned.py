"""The rule of labkit.simt.unsigned in numba-cuda: what it types, and the PTX that comes of it."""

import importlib.util
import itertools
import re
import sys

import numpy as np
import pytest

from labkit import cuda as on_the_cpu
from labkit import device, observe
from labkit.device import compile_target, compiling
from labkit.simt import unsigned

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
cuda = device.numba_cuda()

from numba.cuda import types  # noqa: E402

SYMBOLS = {"Add": "+", "Sub": "-", "Mult": "*", "FloorDiv": "//", "Mod": "%", "LShift": "<<", "RShift": ">>",
           "BitAnd": "&", "BitOr": "|", "BitXor": "^"}  # fmt: skip
KINDS = ("uint32", "uint8", "uint16", "uint64", "int8", "int32", "int64", "float32")
HEAD = "from numba import float32, uint32\nfrom numba import cuda\nfrom labkit.device import u32_gpu as u32\n\n\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setattr(unsigned, "HOMES", {*unsigned.HOMES, "home_of_the_rule"})
    numbers = itertools.count()

    def load(text, narrow=True):
        name = f"{'home_of_the_rule' if narrow else 'elsewhere'}.gpu_{next(numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def returned(function, *kinds):
    """The type that a device function gives."""
    signature = tuple(getattr(types, kind) for kind in kinds)
    try:
        with compile_target.as_if_on((9, 0)):
            return types.unliteral(cuda.compile_ptx(function, signature, device=True, cc=(9, 0))[1])
    except Exception as error:
        if "NVVM" in str(error) or "libnvvm" in str(error) or type(error).__name__ == "DynamicLibNotFoundError":
            pytest.skip("the CUDA toolkit's compiler is not installed")
        raise


OF_TWO = "".join(f"def {name}(a, b):\n    return a {symbol} b\n\n\n" for name, symbol in SYMBOLS.items())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SYMBOLS)
def test_types_of_two_numbers(load, name):
    ours, numbas = getattr(load(OF_TWO), name), getattr(load(OF_TWO, narrow=False), name)
    assert returned(ours, "uint32", "uint32") == types.uint32
    assert returned(numbas, "uint32", "uint32") == types.uint64
    others = [kind for kind in KINDS[1:] if kind != "float32" or name in ("Add", "Sub", "Mult")]
    for kind in others:
        for pair in (("uint32", kind), (kind, "uint32"), (kind, kind)):
            assert returned(ours, *pair) == returned(numbas, *pair)


def test_types_of_a_number_and_a_constant(load):
    text = "FIVE, WIDER = 5, 1 << 32\n\n\n"
    cases = {"a + 5": "uint32", "7 - a": "uint32", "a * FIVE": "uint32", "a // (FIVE * 4 + 1)": "uint32",
             "a + WIDER": "int64", "a + -1": "int64", "a - 0xFFFFFFFF": "uint32", "a * FIVE * WIDER": "int64",
             "1 << a": "uint32"}  # fmt: skip
    for number, case in enumerate(cases):
        text += f"def case_{number}(a):\n    return {case}\n\n\n"
    text += "def local(a):\n    n = FIVE * 2\n    a += n\n    return a\n\n\n"
    text += "def twice(a):\n    n = 2\n    if a > 3:\n        n = 4\n    return a + n\n\n\n"
    text += "def wider(a):\n    n = 2\n    if a > 3:\n        n = WIDER\n    return a + n\n"
    module = load(text)
    for number, (case, wanted) in enumerate(cases.items()):
        assert returned(getattr(module, f"case_{number}"), "uint32") == getattr(types, wanted), case
    assert returned(module.local, "uint32") == types.uint32
    assert returned(module.twice, "uint32") == types.uint32
    assert returned(module.wider, "uint32") == types.int64


MERGED = """
@cuda.jit(device=True)
def same(x):
    return x


@cuda.jit(device=True)
def pair(a):
    if a > 3:
        return a, 0
    return 1, a


def chosen(a):
    return a if a > 3 else 0


def chosen_first(a):
    n = a * 2 if a > 3 else FIVE
    return n + a


def one_of_two(a):
    if a > 3:
        return 7
    return a


def two_at_once(a):
    n, m = pair(a)
    return n + m


def handed_over(a):
    return same(FIVE) + a


@cuda.jit(device=True)
def sum_of_three(pair, inner):
    return pair[0] + pair[1] + inner[0][1]


def in_tuples(a):
    return sum_of_three((a, FIVE), inner=((a, 0), a))


def smallest(a):
    return min(a, FIVE) + max(3, a)


def negative(a):
    return a if a > 3 else -1


def set_with_others(a):
    n, m, k, i = 0, 1, 2, 3
    if a > 3:
        n, k = a, a + m + i
    return n + k


def only_a_constant(a):
    n, m, k, i = 0, 1, 2, 3
    return a + n + m + k + i


def through_real(a):
    return a * float32(0.5) if a > 3 else 0
"""


def test_a_constant_that_is_one_of_several_values(load):
    ours, numbas = (load("FIVE = 5\n\n\n" + MERGED, narrow=narrow) for narrow in (True, False))
    narrow = ("chosen", "chosen_first", "one_of_two", "two_at_once", "handed_over", "in_tuples", "smallest",
              "set_with_others", "only_a_constant")
    for name in narrow:
        assert returned(getattr(ours, name), "uint32") == types.uint32, name
        assert returned(getattr(numbas, name), "uint32") in (types.int64, types.uint64), name
    for name in ("negative", "through_real"):
        assert returned(getattr(ours, name), "uint32") == returned(getattr(numbas, name), "uint32"), name


def test_a_function_keeps_the_rule_of_its_own_module(load):
    text = "@cuda.jit(device=True)\ndef one_less(x):\n    return x - 1\n"
    call = "from {} import one_less\n\n\ndef call(x):\n    return one_less(x)\n"
    for narrow in (True, False):
        other = load(text, narrow=narrow).__name__
        found = returned(load(call.format(other), narrow=not narrow).call, "uint32")
        assert found == (types.uint32 if narrow else types.int64)


ROWS = """
def cast_by_hand(x, out):
    thread = uint32(cuda.threadIdx.x)
    row = uint32(uint32(cuda.blockIdx.x) * uint32(8) + (thread >> uint32(5)))
    if row < x.shape[0]:
        cols, lane = uint32(x.shape[1]), thread & uint32(31)
        largest, col = float32(-3e38), lane
        while col < cols:
            largest = max(largest, x[row, col])
            col += uint32(32)
        out[row, lane] = largest


def plain(x, out):
    row, lane = u32.blockIdx.x * 8 + u32.threadIdx.x // 32, u32.threadIdx.x % 32
    rows, cols = u32.shape(x)
    if row < rows:
        largest = float32(-3e38)
        for col in u32.range(lane, cols, 32):
            largest = max(largest, x[row, col])
        out[row, lane] = largest
"""


def test_what_a_gpu_launches_can_be_observed(load):
    """On a GPU `u32` has that device's registers, and observe() reads the same source."""
    kernel = on_the_cpu.jit(load(ROWS).plain)
    x, out = np.random.default_rng(0).random((3, 40), np.float32), np.zeros((3, 32), np.float32)
    report = observe(kernel[1, 256], x, out)
    found = [max(row[lane::32]) for row in x for lane in range(32)]
    assert out.ravel().tolist() == [float(one) for one in found] and not report.races


def test_plain_source_compiles_to_what_casts_compile_to(load):
    matrix = types.float32[:, ::1]
    kernels = load(ROWS, narrow=False).cast_by_hand, load(ROWS).plain
    try:
        texts = [compiling.ptx(kernel, types.void(matrix, matrix)) for kernel in kernels]
    except compiling.NoCompiler as error:
        pytest.skip(str(error))
    by_hand, plain = (re.findall(r"^\s+(?:@!?%p\d+ )?(\w[\w.]*)\b.*;", text, re.MULTILINE) for text in texts)
    jumps = plain.count("bra.uni")  # blocks may be laid out otherwise
    assert len(plain) - jumps <= len(by_hand) + 2, (len(plain), jumps, len(by_hand))
    assert not [one for one in plain if one.startswith(("div", "rem", "shr.s64", "selp"))]
