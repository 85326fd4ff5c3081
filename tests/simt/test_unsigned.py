"""32-bit unsigned arithmetic in the packages that ask for it, and Numba's types everywhere else: one table for the
compiled run, the observed run and a GPU's compiler."""

import importlib.util
import itertools
import sys

import numpy as np
import pytest
from numba.core import types

from labkit import cuda, observe
from labkit.simt import unsigned
from labkit.simt.runtime.signatures import signature_of
from tests.simt.helpers import WAYS, run

pytestmark = pytest.mark.cpu_device
SYMBOLS = {"Add": "+", "Sub": "-", "Mult": "*", "FloorDiv": "//", "Mod": "%", "LShift": "<<", "RShift": ">>",
           "BitAnd": "&", "BitOr": "|", "BitXor": "^"}  # fmt: skip
KINDS = ("uint32", "uint8", "uint16", "uint64", "int8", "int32", "int64")
CONSTANTS = (5, 0xFFFF_FFFF, 1 << 32, -3)
HEAD = """
from numba import int64, uint32
from labkit import cuda, u32

FIVE, HUGE, WIDER, NEGATIVE = 5, 0xFFFF_FFFF, 1 << 32, -3

"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import text as a module, with the rule or without it."""
    monkeypatch.setattr(unsigned, "HOMES", {*unsigned.HOMES, "home_of_the_rule"})
    numbers = itertools.count()

    def load(text, narrow=True):
        name = f"{'home_of_the_rule' if narrow else 'elsewhere'}.number_{next(numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


def results(kernel, *arrays, count, dtype=np.uint64):
    """What a kernel of one thread stores: compiled, and observed."""
    found = []
    for way in ("compiled", "observed"):
        out = np.zeros(count, dtype)
        run(way, kernel[1, 1], *arrays, out)
        found.append(out.tolist())
    assert found[0] == found[1]
    return found[0]


def wrapped(value, ty):
    value &= (1 << ty.bitwidth) - 1
    return value - (1 << ty.bitwidth) if ty.signed and value >> (ty.bitwidth - 1) else value


def expected(name, a, kind_a, b, kind_b, constant=False):
    """The result as an int64's bits. kind_b is int64 for a constant, as Numba has it."""
    of_a, of_b = getattr(types, kind_a), getattr(types, kind_b)
    is_narrow = kind_a == "uint32" and (0 <= b < 1 << 32 if constant else kind_b == "uint32")
    ty = types.uint32 if is_narrow else signature_of(unsigned.OPERATORS[name], of_a, of_b).return_type
    if not is_narrow:
        a, b = wrapped(a, ty), b if name in ("LShift", "RShift") else wrapped(b, ty)
    by_zero = name in ("FloorDiv", "Mod") and b == 0
    return wrapped(0 if by_zero else unsigned.OPERATORS[name](a, b), ty) & (1 << 64) - 1


BOTH = "@cuda.jit\ndef both(a, b, out):\n" + "".join(
    f"    out[{k}] = int64(a[0] {symbol} b[0])\n" for k, symbol in enumerate(SYMBOLS.values()))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_two_numbers(load, kind, swapped):
    kernel = load(BOTH).both
    for a, b in ((0xFFFF_FFFF, 7), (3, 5), (0x8000_0001, 31), (0, 1)):
        left, right = (("uint32", a), (kind, b)) if not swapped else ((kind, b), ("uint32", a))
        if swapped and a > 63:  # as the amount of a shift
            right = ("uint32", a % 64 or 1)
        arrays = [np.array([value], of) for of, value in (left, right)]
        found = results(kernel, *arrays, count=len(SYMBOLS))
        assert found == [expected(name, left[1], left[0], right[1], right[0]) for name in SYMBOLS]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_number_and_a_constant(load, constant):
    """A literal, a global and a local that is set once are the same constant."""
    names = {5: "FIVE", 0xFFFF_FFFF: "HUGE", 1 << 32: "WIDER", -3: "NEGATIVE"}
    taken = [name for name in SYMBOLS if not (name.endswith("Shift") and not 0 <= constant < 64)]
    lines, count = [f"    here = {constant}\n"], 0
    for name in taken:
        for operand in (f"({constant})", names[constant], "here"):
            lines.append(f"    out[{count}] = int64(a[0] {SYMBOLS[name]} {operand})\n")
            count += 1
    kernel = load("@cuda.jit\ndef constants(a, out):\n" + "".join(lines)).constants
    for a in (0xFFFF_FFFF, 7, 1):
        found = results(kernel, np.array([a], np.uint32), count=count)
        wanted = [expected(name, a, "uint32", constant, "int64", constant=True) for name in taken]
        assert found == [one for one in wanted for _ in range(3)]


def test_constants_are_folded_and_updates_follow_the_rule(load):
    kernel = load("""
TILE, STAGES = 8, 3


@cuda.jit
def folded(a, out):
    width = TILE * STAGES - 1
    x = a[0]
    x += width * 2
    x -= 47
    out[0] = int64(x)
    out[1] = int64(a[0] * (TILE << STAGES) + width)
    out[2] = int64(2 ** 33 + a[0])
""").folded
    assert results(kernel, np.array([0xFFFF_FFFF], np.uint32), count=3) == [
        0xFFFF_FFFE, (0xFFFF_FFFF * 64 + 23) % 2**32, 2**33 + 0xFFFF_FFFF]


MERGED = """
@cuda.jit(device=True)
def one_of_two(x):
    if x > 3:
        return 7
    return x


@cuda.jit(device=True)
def less(x, y):
    return x - y


@cuda.jit(device=True)
def difference_of(pair, inner):
    return pair[0] - pair[1] + inner[0][0]


@cuda.jit
def merged(a, out):
    n, m = 0, 1
    k = 0
    while k < 3:
        n, k = n - a[0], k + 1
    out[0] = int64(n)
    out[1] = int64((a[0] if m > 3 else 0) - a[0])
    out[2] = int64(one_of_two(a[0]) - 8)
    out[3] = int64(less(FIVE, y=6))
    i = j = 0
    if a[0] > 3:
        i, j = a[0], -1
    out[4] = int64(i - 2 * a[0])
    out[5] = int64(j - 2 * a[0])
    out[6] = int64(min(a[0], FIVE) - max(6, a[0]))
    out[7] = int64(difference_of((4, a[0]), inner=((0, a), 0)))
"""


def test_a_constant_that_is_one_of_several_values(load):
    a, narrow = np.array([5], np.uint32), 2**32
    assert results(load(MERGED).merged, a, count=8) == [narrow - 15, narrow - 5, narrow - 1, narrow - 1, narrow - 5,
                                                        2**64 - 11, narrow - 1, narrow - 1]
    assert results(load(MERGED, narrow=False).merged, a, count=8) == [
        2**64 - 15, 2**64 - 5, 2**64 - 1, 2**64 - 1, 2**64 - 5, 2**64 - 11, 2**64 - 1, 2**64 - 1]


DEVICE = """
@cuda.jit(device=True)
def one_less(x):
    return x - 1
"""
CALLS = """
from {other} import one_less

@cuda.jit
def calls(a, out):
    out[0] = int64(one_less(a[0]))
    out[1] = int64(a[0] - 1)
    cuda.syncthreads()
    out[2] = int64(u32.threadIdx.x - 1)
    out[3] = int64(cuda.threadIdx.x - 1)
"""
MINUS_ONE = 2**64 - 1


def test_a_function_keeps_the_rule_of_its_own_module(load):
    for narrow in (True, False):
        other = load(DEVICE, narrow=not narrow).__name__
        kernel = load(CALLS.format(other=other), narrow=narrow).calls
        here, there = (0xFFFF_FFFF, MINUS_ONE) if narrow else (MINUS_ONE, 0xFFFF_FFFF)
        found = results(kernel, np.array([0], np.uint32), count=4)
        assert found == [there, here, here, MINUS_ONE]  # cuda.threadIdx.x has Numba's type in both


def test_a_cell_of_a_lesson_has_numbas_types():
    @cuda.jit
    def beside(a, out):
        out[0] = np.int64(a[0] - 1)
        out[1] = np.int64(a[0] + a[1])

    assert results(beside, np.array([0, 2**32 - 1], np.uint32), count=2) == [MINUS_ONE, 2**32 - 1]
    assert not unsigned.follows(test_a_cell_of_a_lesson_has_numbas_types)


WALK = """
@cuda.jit
def walk(x, out):
    n = u32.size(x)
    for i in u32.range(n):
        out[0] += x[i]
    for i in u32.range(2, n):
        out[1] += x[i]
    for i in u32.range(u32.threadIdx.x, u32.shape(x)[0], u32.blockDim.x * 3):
        out[2] += x[i]
        last = i - 1
    out[3] = last
    for i in u32.range(5, 2):
        out[4] = 1


@cuda.jit
def across(x, out):
    row, col = u32.blockIdx.y * u32.blockDim.y + u32.threadIdx.y, u32.grid(2)[0]
    rows, cols = u32.shape(x)
    for k in u32.range(0, rows, u32.blockDim.y):
        cuda.syncthreads()
        if row + k < rows and col < cols:
            out[row + k, col] = x[row + k, col] + u32.gridsize(1)
"""


def test_the_range_ends_before_its_end(load):
    x = np.arange(1, 8, dtype=np.int64)
    assert results(load(WALK).walk, x, count=5, dtype=np.int64) == [28, 25, 1 + 4 + 7, 5, 0]


@WAYS
def test_a_range_with_barriers_and_the_shape_of_two_axes(load, way):
    x = np.arange(35, dtype=np.int64).reshape(7, 5)
    out = np.zeros_like(x)
    run(way, load(WALK).across[2, (4, 2)], x, out)
    assert (out == x + 8).all()


def test_a_range_that_would_wrap_is_an_error_when_observed(load):
    kernel = load("@cuda.jit\ndef far(ends, out):\n    for i in u32.range(0, ends[0], 1 << 31):\n"
                  "        out[0] += i\n").far
    observe(kernel[1, 1], np.array([1 << 30], np.uint32), np.zeros(1, np.int64))
    with pytest.raises(Exception, match=r"the next number, 4,294,967,296, must be less than 2\*\*32"):
        observe(kernel[1, 1], np.array([(1 << 31) + 5], np.uint32), np.zeros(1, np.int64))


def test_a_value_computed_once_for_a_block_keeps_the_rule(load):
    kernel = load("@cuda.jit\ndef once(a, out):\n    split = u32.blockIdx.x\n    begin = split - 1\n"
                  "    cuda.syncthreads()\n    out[0] = int64(begin)\n").once
    assert results(kernel, np.zeros(1, np.uint32), count=1) == [2**32 - 1]


def test_what_may_not_be_called_says_so(load):
    module = load("@cuda.jit\ndef alone(out):\n    out[0] = u32.range(3)\n\n\n"
                  "@cuda.jit\ndef empty(out):\n    for i in u32.range():\n        out[0] = i\n")
    out = np.zeros(1)
    with pytest.raises(Exception, match=r"u32\.range\(\) is something to loop over"):
        module.alone[1, 1](out)
    with pytest.raises(Exception, match=r"u32\.range takes 1 to 3 arguments, 0 given"):
        module.empty[1, 1](out)
