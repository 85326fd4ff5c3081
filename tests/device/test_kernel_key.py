"""The key of a compiled kernel changes with all that the kernel refers to, and with nothing else. Read on any device:
no kernel is compiled."""

import contextlib
import enum
import importlib.util
import io
import json
import os
import subprocess
import sys
from collections import namedtuple

import numba
import numpy as np
import pytest
from numba import float32, uint32

from labkit import cuda
from labkit.device import ptx
from labkit.device.kernel_key import Fingerprint, Uncacheable, key_of, type_text


def fingerprint(value) -> str:
    return Fingerprint().of(value)


# --- Values -----------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1
    BLUE = 2


Point = namedtuple("Point", "x y")

DIFFERENT = [
    None, ..., True, 1, 1.0, -1.0, 0.0, -0.0, 1j, "1", b"1", (1,), (1, 2), ((1,), 2), (1, (2,)), frozenset({1}),
    slice(1), Point(1, 2), np.float32(1), np.float64(1), np.int32(1), np.uint32(1), np.bool_(True),
    np.dtype(np.float32), np.float32, np.float16, float, int, float32, uint32, numba.types.Array(float32, 1, "C"),
    numba.types.Array(float32, 1, "A"), Color.RED, Color.BLUE, np.sqrt, np.exp, min, max, range, np.ones(3),
    np.ones(3, np.float32), np.ones((3, 1)), np.ones((1, 3)), np.zeros(3), np.zeros(3, "i4,f4"), numba, np,
    ptx.load_nc4, ptx.load_global4,
]  # fmt: skip


def test_different_values_have_different_fingerprints():
    found = [fingerprint(value) for value in DIFFERENT]
    assert len(set(found)) == len(found)
    assert found == [fingerprint(value) for value in DIFFERENT]


@pytest.mark.parametrize("value", [object(), [1], {1: 2}, Color, np.array([None]), lambda: 1,
                                   np.random.default_rng(0)], ids=lambda value: type(value).__name__)
def test_what_cannot_be_compared_is_refused(value):
    with pytest.raises(Uncacheable):
        fingerprint(value)


def test_a_device_array_is_refused():
    """It is an address: the same numbers lie elsewhere in the next process."""
    array = cuda.to_device(np.ones(3))

    @cuda.jit
    def kernel(out):
        out[0] = array[0]

    with pytest.raises(Uncacheable, match="kernel refers to"):
        fingerprint(kernel)


def test_a_type_that_names_an_object_of_this_process_is_refused():
    with pytest.raises(Uncacheable, match="the type"):
        type_text(numba.typeof(numba.njit(lambda x: x)))


# --- Kernels ----------------------------------------------------------------------------------------------------------

BELOW = """
from labkit import cuda
from labkit.device import ptx
FACTOR = 2.0
TABLE = (1, 2, 3)
UNUSED = 1

@cuda.jit(device=True)
def scaled(x):
    return x * FACTOR
"""
BETWEEN = """
from labkit import cuda
import below

@cuda.jit(device=True)
def shifted(x):
    return below.scaled(x) + below.TABLE[0]
"""
ABOVE = """
from labkit import cuda
from between import shifted
SIZE = 4

def make(constant, options={}):
    @cuda.jit(**options)
    def kernel(x):
        i = cuda.grid(1)
        if i < SIZE:
            x[i] = shifted(x[i]) + constant
    return kernel
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """write(below=("old", "new"), ...): the three modules, with pieces replaced, imported afresh; returns `above`."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sources = {"below": BELOW, "between": BETWEEN, "above": ABOVE}

    def write(**replaced):
        for name, source in sources.items():
            old, new = replaced.get(name, ("", ""))
            assert old in source
            path = tmp_path / f"{name}.py"
            path.write_text(source.replace(old, new) if old else source)
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        return sys.modules["above"]

    return write


def test_the_same_source_has_the_same_key(modules):
    assert fingerprint(modules().make(1)) == fingerprint(modules().make(1))


@pytest.mark.parametrize("changed", [
    {"below": ("FACTOR = 2.0", "FACTOR = 3.0")},
    {"below": ("FACTOR = 2.0", "FACTOR = 2")},
    {"below": ("return x * FACTOR", "return x / FACTOR")},
    {"below": ("return x * FACTOR", "return FACTOR * x")},
    {"below": ("(1, 2, 3)", "(1, 2, 4)")},
    {"between": ("below.TABLE[0]", "below.TABLE[1]")},
    {"between": ("below.TABLE[0]", "below.FACTOR")},
    {"above": ("SIZE = 4", "SIZE = 5")},
    {"above": ("i < SIZE", "i <= SIZE")},
    {"above": ("def kernel(x)", "def kernel(x, y=1)")},
], ids=lambda changed: " ".join(next(iter(changed.values()))))
def test_a_change_anywhere_below_gives_another_key(modules, changed):
    before = fingerprint(modules().make(1))
    assert fingerprint(modules(**changed).make(1)) != before


@pytest.mark.parametrize("changed", [
    {"below": ("UNUSED = 1", "UNUSED = 2")},
    {"below": ("FACTOR = 2.0", "# a comment\n\nFACTOR = 2.0")},
    {"above": ("SIZE = 4", "SIZE = 4\nx = object()")},  # `x` is an argument there, no global
], ids=lambda changed: " ".join(next(iter(changed.values()))))
def test_what_a_kernel_does_not_read_does_not_matter(modules, changed):
    assert fingerprint(modules().make(1)) == fingerprint(modules(**changed).make(1))


def test_the_defaults_of_a_device_function_count():
    def make(default):
        @cuda.jit(device=True)
        def shifted(x, by=default, *, twice=default):
            return x + by + twice

        return shifted

    assert len({fingerprint(make(default)) for default in (1, 2, 2.0, None)}) == 4
    assert fingerprint(make(1)) == fingerprint(make(1))
    one, other = make(1), make(1)
    other.py_func.__defaults__ = (2,)  # of the two kinds of defaults this one alone
    assert fingerprint(one) != fingerprint(other)


def test_an_option_counts_by_its_value():
    def body(x):
        x[0] = 1

    def key(**options):
        return fingerprint(cuda.jit(**options)(body))

    assert len({key(fastmath=True), key(fastmath=False), key(launch_bounds=256), key(launch_bounds=512)}) == 4
    assert key(launch_bounds=256) == key(launch_bounds=256)


def test_constants_and_options_are_part_of_the_key(modules):
    above = modules()
    kernels = [above.make(1), above.make(2), above.make(1.0), above.make(np.float32(1)),
               above.make(1, {"fastmath": True}), above.make(1, {"launch_bounds": (256, 2)}),
               above.make(1, {"max_registers": 32})]
    assert len({fingerprint(kernel) for kernel in kernels}) == len(kernels)


def test_types_and_capability_are_part_of_the_key(modules):
    kernel = modules().make(1)
    vector, matrix = numba.types.Array(float32, 1, "C"), numba.types.Array(float32, 2, "C")
    keys = {key_of(kernel, types, capability) for types in ((vector,), (matrix,), (vector, uint32))
            for capability in ((9, 0), (8, 9))}
    assert len(keys) == 6


def test_an_attribute_is_not_taken_for_a_global_of_its_name():
    """In a notebook x is often an array of the device; a kernel that reads cuda.threadIdx.x does not read that x."""
    @cuda.jit
    def kernel(a):
        if cuda.threadIdx.x < a.shape[0]:
            a[cuda.threadIdx.x] = 1

    before = fingerprint(kernel)
    kernel.py_func.__globals__.update(x=object(), shape=object())
    try:
        assert fingerprint(kernel) == before
    finally:
        del kernel.py_func.__globals__["x"], kernel.py_func.__globals__["shape"]


def test_a_function_that_calls_itself():
    @cuda.jit(device=True)
    def factorial(n):
        return n * factorial(n - 1) if n > 1 else 1

    @cuda.jit
    def kernel(out):
        out[0] = factorial(3)

    assert fingerprint(kernel) == fingerprint(kernel)


@pytest.mark.cpu_device
def test_kernels_that_are_linked_or_traced_are_refused():
    @cuda.jit(lineinfo=True)
    def traced(a):
        a[0] = 1

    with pytest.raises(Uncacheable, match="traced is compiled for a debugger or a profiler"):
        fingerprint(traced)


def test_the_names_of_globals_are_read_as_the_disassembler_reads_them():
    from labkit.device import kernel_key
    from labkit.kernels import op as module

    many = "def many():\n" + "".join(f"    name_{i}(attribute.name_{i + 1})\n" for i in range(700))
    scope = {}
    exec(many, scope)  # more names than a byte can count
    functions = [value for value in vars(module).values() if hasattr(value, "__code__")]
    for function in [scope["many"], *functions]:
        found = kernel_key._disassembled_names(function.__code__)
        assert set(kernel_key._global_names(function.__code__)) >= found
        if sys.version_info < (3, 14):
            assert kernel_key._read_names(function.__code__) == found
    assert len(kernel_key._global_names(scope["many"].__code__)) == 701


# --- Every kernel of labkit -------------------------------------------------------------------------------------------

EVERY = """
import json
from labkit.device.kernel_key import Fingerprint
from labkit.device.launches import kernels_of
from labkit.measure.ops import all_ops

kernels = {}
for op in all_ops():
    for launcher in op.rungs:
        for number, kernel in enumerate(kernels_of(launcher)):
            kernels[f"{op.name} {launcher.__name__} {number}"] = kernel
print(json.dumps({name: Fingerprint().of(kernel) for name, kernel in kernels.items()}))
"""


@pytest.mark.sweep
def test_every_kernel_of_labkit_has_a_key_which_is_the_same_in_another_process():
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"  # not that of this process
    run = subprocess.run([sys.executable, "-c", EVERY], capture_output=True, text=True, timeout=240,
                         env={**os.environ, "PYTHONHASHSEED": seed})
    assert run.returncode == 0, run.stderr
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(EVERY, {})
    first = json.loads(here.getvalue())
    assert first == json.loads(run.stdout)
    assert len(set(first.values())) > 80
