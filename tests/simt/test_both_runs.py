"""A kernel compiled and the same kernel observed: one result, one fault, and never a raw exception of Python.

Each section is a kind of code; `both` runs it twice and compares.
"""

import math
import operator
import os
import pickle
import subprocess
import sys
from collections import namedtuple

import numba
import numpy as np
import pytest
from numba import float32, int8, int32, uint8, uint32

from labkit import cuda
from labkit.simt import observe
from labkit.simt.errors import (
    ArgumentError,
    DeviceFault,
    KernelAssertionError,
    KernelError,
    KernelTypeError,
    KernelValueError,
    LaunchError,
    OutOfBoundsError,
    UnsupportedError,
)
from tests.simt.helpers import WAYS, both, kernel_of, run

pytestmark = pytest.mark.cpu_device


def result(launch, *args):
    """The last array, from both runs."""
    return both(launch, *args)[-1]


def faults(kind, launch, *args):
    """The error of a launch that names kernel, line and thread; an observation finds the same, or raises it too."""
    with pytest.raises(kind) as caught:
        launch(*[np.array(a) if isinstance(a, np.ndarray) else a for a in args])
    error = caught.value
    assert isinstance(error, DeviceFault) and f"{error.kernel}, line {error.line}: " in str(error)
    try:
        report = observe(launch, *args)
    except KernelError as other:
        assert type(other) is type(error) and other.line == error.line
    else:
        assert [f.lines for f in report.findings] == [[error.line]]
    return error


def ramp(rows, columns):
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


def out(n):
    return np.zeros(n, np.float32)


# ---------------------------------------------------------------- views


VIEWS = [  # what each thread does with a part of x
    "row = x[i]; y[i] = row[1]",
    "row = x[i, :]; y[i] = row[1]",
    "column = x[..., i]; y[i] = column[1]",
    "own = cuda.local.array((3, 4), float32)\nfor j in range(3): own[j, 1] = x[0, 1]\nrow = own[i]; y[i] = row[1]",
    "for value in x[i]: y[i] += value",
    "row = x[i]; row[0] = row[1]",
    "x[i] = float32(7)",
    "x[i, 1:3] = float32(7)",
    "x[..., i] = float32(7)",
    "cuda.atomic.add(x[i], 1, float32(2))",
    "y[i] = x[i].sum()",
    "x[i].fill(float32(3))",
]
ATTRIBUTES = ("row = x[i]\n"
              "y[i] = row.size + len(row) + row.ndim + row.shape[0] + row.strides[0] + row.nbytes + row.itemsize")


def kernel_of_threads(body, arguments="x, y", **names):
    return kernel_of(f"i = cuda.grid(1)\n{body}", arguments, float32=float32, **names)


@pytest.mark.parametrize("source", [*VIEWS, ATTRIBUTES])
def test_a_view_is_the_same_in_both_runs(source):
    both(kernel_of_threads(source)[1, 3], ramp(3, 4), out(3))


@pytest.mark.parametrize("source", VIEWS)
def test_a_view_past_the_end_is_one_fault(source):
    past = 4 if "..." in source else 3
    error = faults(OutOfBoundsError, kernel_of_threads(source)[1, past + 1], ramp(3, 4), out(5))
    assert (error.index, error.thread, error.shape) == ((past,), (past, 0, 0), (3, 4))


def test_a_shared_row_past_the_end_is_one_fault():
    @cuda.jit
    def read_a_shared_row(x, y):
        tile = cuda.shared.array((3, 4), float32)
        i = cuda.grid(1)
        for j in range(4):
            tile[i % 3, j] = x[0, j]
        cuda.syncwarp()
        row = tile[i]
        y[i] = row[1]

    report = observe(read_a_shared_row[1, 4], ramp(3, 4), out(4))
    assert [f.index for f in report.out_of_bounds] == [(3,)]


def test_what_is_written_through_a_view_that_does_not_exist_goes_nowhere():
    x = ramp(3, 4)
    report = observe(kernel_of_threads("row = x[i]; row[0] = row[1]")[1, 4], x, out(4))
    assert not report.races and x[:, 0].tolist() == [1, 5, 9]


def test_a_finding_names_the_row_through_which_an_element_was_used():
    @cuda.jit
    def past_the_row(x, y):
        row = x[2, 1:]
        y[0] = row[3]

    report = observe(past_the_row[1, 1], ramp(3, 4), out(1))
    assert "x[2, 1:][3], outside its shape (3,)" in str(report.findings[0])


# ---------------------------------------------------------------- a negative index


def test_an_index_that_wraps_is_a_warning_and_no_error():
    report = observe(kernel_of_threads("y[i] = x[i - 1]")[1, 4], np.arange(4, dtype=np.float32), out(4))
    assert report.ok and not report.findings
    (warning,) = report.warnings
    assert (warning.kind, warning.threads, warning.index) == ("warning", [(0, 0, 0)], (-1,))
    assert f"line {warning.lines[0]}: thread 0 uses x[-1]" in str(warning)
    assert str(warning) in repr(report) and "Nothing wrong was seen" in repr(report)
    assert report.to_json()["warnings"][0]["index"] == (-1,)
    assert "warning" in report._repr_html_()


def test_a_minus_one_in_the_source_is_meant():
    assert not observe(kernel_of_threads("y[i] = x[-1]")[1, 4], np.arange(4, dtype=np.float32), out(4)).warnings


# ---------------------------------------------------------------- global arrays in device functions

TABLE = np.array([1, 10, 100], np.float32)


@cuda.jit(device=True)
def looked_up(i):
    return TABLE[i]


@cuda.jit(device=True)
def looked_up_in_constant_memory(i):
    table = cuda.const.array_like(TABLE)
    return table[i] + len(TABLE) + TABLE.shape[0]


@cuda.jit(device=True)
def through_others(i):
    return looked_up(i) + looked_up_in_constant_memory(i)


@cuda.jit
def calls_for_globals(y):
    i = cuda.grid(1)
    y[i] = through_others(i) + len(TABLE)


@cuda.jit
def looks_up_past_the_end(y):
    i = cuda.grid(1)
    y[i] = looked_up(i)


def test_a_device_function_uses_global_arrays():
    assert result(calls_for_globals[1, 3], out(3)).tolist() == [11, 29, 209]


def test_a_fault_in_a_global_array_has_its_name():
    error = faults(OutOfBoundsError, looks_up_past_the_end[4, 1], out(4))
    assert error.array == "TABLE" and error.block == (3, 0, 0)


# ---------------------------------------------------------------- signatures


@cuda.jit(["void(int32, float32[:])", "void(float64, float32[:])"])
def of_two_overloads(value, y):
    y[0] = value


@cuda.jit("void(int32, UniTuple(int32, 2), float16, float32[:])")
def of_one_signature(n, pair, half, y):
    y[0], y[1], y[2], y[3] = n, pair[0], pair[1], half


@cuda.jit("int32(int32)", device=True)
def half_of(x):
    return x / 2


@cuda.jit("int32(int32)", device=True)
def half_of_and_waits(x):
    cuda.syncwarp()
    return x / 2


@cuda.jit
def calls_with_a_signature(y):
    y[0] = half_of(5)
    y[1] = half_of(5.9)
    y[2] = half_of_and_waits(7.9)


def test_a_scalar_chooses_the_overload_that_holds_it():
    assert result(of_two_overloads[1, 1], 2.75, out(1)).tolist() == [2.75]
    assert result(of_two_overloads[1, 1], np.int32(2), out(1)).tolist() == [2]


def test_scalars_are_converted_as_a_gpu_launch_converts_them():
    y = result(of_one_signature[1, 1], 0xFFFFFFFF, (3, -1), np.float16(0.1), out(4))
    assert y.tolist() == [-1, 3, -1, np.float32(np.float16(0.1))]


UNFIT = [(2.5, (1, 2), 1.0), (1j, (1, 2), 1.0), (1, 7, 1.0), (1, (1, 2, 3), 1.0), (1, (1, 2.5), 1.0),
         (1, (1, 2), (1,)), (math.nan, (1, 2), 1.0)]  # fmt: skip


@WAYS
@pytest.mark.parametrize("scalars", UNFIT, ids=str)
def test_a_scalar_that_a_signature_cannot_hold_is_refused(scalars, way):
    with pytest.raises(ArgumentError, match="is compiled for"):
        run(way, of_one_signature[1, 1], *scalars, out(4))


def test_a_device_functions_signature_converts_arguments_and_result():
    assert result(calls_with_a_signature[1, 1], out(3)).tolist() == [2, 2, 3]


def test_several_signatures_of_a_device_function_are_refused():
    with pytest.raises(UnsupportedError, match="several signatures"):
        cuda.jit(["int32(int32)", "float32(float32)"], device=True)


# ---------------------------------------------------------------- numbers: what a GPU gives where Python raises


@cuda.jit
def atomic_extrema(x, y):
    cuda.atomic.max(y, 0, x[0])
    cuda.atomic.min(y, 1, x[0])
    cuda.atomic.nanmax(y, 2, x[0])
    cuda.atomic.nanmin(y, 3, x[0])


@pytest.mark.parametrize(("old", "given", "plain", "ignoring"), [(44, math.nan, 44, 44), (math.nan, 44, math.nan, 44)])
def test_atomic_extrema_of_nan(old, given, plain, ignoring):
    y = result(atomic_extrema[1, 1], np.array([given]), np.full(4, old, np.float64))
    np.testing.assert_array_equal(y, [plain, plain, ignoring, ignoring])


Part = namedtuple("Part", "numbers by")
Whole = namedtuple("Whole", "part shift")


@cuda.jit
def named_parts(whole, y):
    y[0] = whole.part.numbers[1] * whole.part.by + whole.shift
    y[1] = whole[0][1]


@pytest.mark.parametrize("numbers", [np.arange(3.0), cuda.to_device(np.arange(3.0)), (np.float16(0), np.float16(1))])
def test_a_named_tuple_keeps_its_names(numbers):
    assert result(named_parts[1, 1], Whole(Part(numbers, 5), 0.5), np.zeros(2)).tolist() == [5.5, 5]


@cuda.jit
def raised(x, n, y):
    y[0] = x[0] ** -1
    y[1] = x[0] ** -2
    y[2] = math.pow(x[0], -1)
    y[3] = pow(x[0], n[0])
    y[4] = x[1]
    y[4] **= n[0]
    y[5] = x[1] ** 2
    y[6] = x[1] ** -2
    y[7] = n[1] ** n[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_negative_power_of_zero_is_infinite(dtype):
    y = result(raised[1, 1], np.array([0, 3], dtype), np.array([-3, 2]), np.zeros(8))
    assert np.isposinf(y[:4]).all()
    np.testing.assert_allclose(y[4:], [3.0**-3, 9, 1 / 9, 0], rtol=1e-6)


@cuda.jit
def quotient(x, y):
    y[0] = x[0] / x[1]


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("top", [0, 1 + 2j, -3 + 4j])
def test_complex_division_by_zero(dtype, top):
    y = result(quotient[1, 1], np.array([top, 0], dtype), np.zeros(1, dtype))[0]
    with np.errstate(all="ignore"):
        assert str(y.real) == str(np.float64(top.real) / 0.0) and str(y.imag) == str(np.float64(top.imag) / 0.0)


# ---------------------------------------------------------------- integers


@cuda.jit
def operators_of_integers(x, y):
    a, b = x[0], x[1]
    y[0] = ~a
    y[1] = -a
    y[2] = cuda.popc(~a)
    y[3] = a << 3
    y[4] = (a << 40) >> 2
    y[5] = a - b
    y[6] = a * b * b * b
    y[7] = a // b + a % b
    y[8] = a & -b | 3 ^ b
    y[9] = a - 10
    y[10] = cuda.clz(a) + cuda.ffs(a)
    y[11] = cuda.brev(a)
    y[12] = min(a, b) + max(a, b) + abs(a)
    y[13] = (a << 62) // 3
    y[14] = cuda.popc(a)


@cuda.jit
def xorshift(x, y):
    state = x[0]
    for i in range(len(y)):
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
        y[i] = state


@cuda.jit
def shift_by(x, y):
    y[0] = x[0] << x[1]
    y[1] = x[0] >> x[1]
    y[2] = 1 >> x[1]


INTEGERS = [np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 32, 64)]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_operators_of_integers_have_numbas_types(dtype):
    info = np.iinfo(dtype)
    for pair in ((5, 7), (info.max, 3), (info.min, 2)):
        result(operators_of_integers[1, 1], np.array(pair, dtype), np.zeros(15, np.int64))


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.uint64])
def test_a_random_number_generator_overflows_alike(dtype):
    result(xorshift[1, 1], np.array([88172645], dtype), np.zeros(9, np.uint64))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("amount", [-1, 0, 63, 64, 1000])
def test_a_shift_by_more_bits_than_there_are_leaves_none(dtype, amount):
    x = np.array([-5, amount]).astype(dtype)
    y = result(shift_by[1, 1], x, np.zeros(3, dtype))
    if not 0 <= amount < 64:
        assert y.tolist() == [0, -1 if dtype is np.int64 else 0, 0]


# ---------------------------------------------------------------- floats


@cuda.jit
def mixed_precision(x, n, y):
    y[0] = x[0] * 0.1
    y[1] = x[0] + 1
    y[2] = n[0] * x[0]
    y[3] = x[0] * x[1] + x[0]
    y[4] = max(x[0], 0.0) * x[1]
    y[5] = int(x[0] == 0.1)
    y[6] = x[0] / 3
    y[7] = math.floor(x[0]) + math.ceil(x[1]) + math.trunc(x[1])
    y[8] = math.sqrt(n[0]) * x[1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_float_keeps_the_precision_that_numba_gives_it(dtype):
    result(mixed_precision[1, 1], np.array([0.1, 0.7], dtype), np.array([3], np.int32), np.zeros(9))


@cuda.jit
def rounding(x, y):
    for i in range(len(x)):
        y[i, 0] = round(x[i])
        y[i, 1] = round(x[i], 3)
        y[i, 2] = round(x[i], -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_is_computed_in_float64(dtype):
    rng = np.random.default_rng(5)
    x = np.concatenate([[2.5, -0.5, 2.3455, 1e9, np.inf, -np.inf, np.nan], rng.normal(size=40)]).astype(dtype)
    y = result(rounding[1, 1], x, np.zeros((len(x), 3)))
    assert y[2, 1] == dtype(2.345 if dtype is np.float32 else 2.346)  # float32(2.3455) is below the half


@cuda.jit
def remainders(x, y):
    for i in range(len(x)):
        y[i, 0], y[i, 1] = math.remainder(x[i, 0], x[i, 1]), math.fmod(x[i, 0], x[i, 1])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint8, np.int64, np.float32, np.float64])
def test_remainder_and_fmod_which_has_the_sign_of_its_first_argument(dtype):
    signs = (1,) if np.dtype(dtype).kind == "u" else (1, -1)
    pairs = [(s * a, t * b) for a, b in ((5, 3), (7, 2), (7, 3), (3, 2), (1, 2), (9, 4), (0, 5)) for s in signs
             for t in signs]
    y = result(remainders[1, 1], np.array([(0, 0), (5, 0), *pairs], dtype), np.zeros((len(pairs) + 2, 2)))
    assert np.isnan(y[:2, 0]).all()
    np.testing.assert_array_equal(y[2:], [(math.remainder(a, b), math.fmod(a, b)) for a, b in pairs])


# ---------------------------------------------------------------- what has no result

RAISES = 'if i == 2: raise ValueError("a bad value", 7)'
ASSERTS = 'assert i < 2, "i must be small"'
FAULTS = {  # what a thread does: the error; n has 3, 3, 5, 5, or as the step of a range 2, 2, 0, 0
    "y[i] = T[i]": OutOfBoundsError,
    "y[i] = y.shape[i]": OutOfBoundsError,
    "for k in range(0, 5, n[i]): y[k] = 1": KernelValueError,
    "for k in range(0, 5, n[i]):\n    cuda.syncthreads()\n    y[k] = 1": KernelValueError,
    "parts = y.reshape(n[i], 2); parts[0, 0] = 1": KernelValueError,
    RAISES: ValueError,
    ASSERTS: KernelAssertionError,
}


def faulty(source):
    return kernel_of_threads(source, "n, y", T=(1.0, 2.0))[1, 4]


@pytest.mark.parametrize("source", FAULTS)
def test_a_fault_names_kernel_line_and_thread(source):
    n = np.array([2, 2, 0, 0] if "range" in source else [3, 3, 5, 5])
    error = faults(FAULTS[source], faulty(source), n, np.zeros(6))
    assert error.thread == ((1, 0, 0) if "y.shape" in source else (2, 0, 0)), error


def test_what_a_kernel_raises_keeps_its_class_and_text():
    error = faults(KernelAssertionError, faulty(RAISES), np.zeros(1), out(4))
    assert isinstance(error, ValueError) and "thread 2 raised ValueError: a bad value, 7" in str(error)
    assert "thread 2: i must be small" in str(faults(AssertionError, faulty(ASSERTS), np.zeros(1), out(4)))


def test_an_exception_of_numbas_own_code_names_the_kernel():
    with pytest.raises(KernelValueError, match="unpacks.*observe"):
        kernel_of("a, b = x\ny[0] = a + b", name="unpacks")[1, 1](out(3), out(1))


# ---------------------------------------------------------------- what a GPU refuses


ON_TWO_PATHS = "c = x[0]; y[0] = c\nc = float32(1.5)\nif y[0] > 1: c = x\ny[0] = c[0]"
REFUSED = ["y[0] = x[1.0]", "y[0] = 1 if x == y else 0", "y[0] = 1j", "y[0] = x[0] & 1", "y[0] = x.shape", ON_TWO_PATHS]


@WAYS
@pytest.mark.parametrize("source", REFUSED)
def test_code_of_the_wrong_type_is_refused_in_both_runs(source, way):
    with pytest.raises(KernelTypeError, match=r"kernel, line \d+: "):
        run(way, kernel_of(source, float32=float32)[1, 1], out(2), out(2))


def test_a_type_error_calls_a_variable_what_the_source_calls_it():
    with pytest.raises(KernelTypeError, match=": c is .* on one path and .* on another"):
        kernel_of(ON_TWO_PATHS, float32=float32)[1, 1](out(2), out(2))


def test_launch_bounds_and_carveout_are_held():
    @cuda.jit(launch_bounds=(32, 2), shared_memory_carveout="maxL1")
    def bounded(y):
        y[cuda.grid(1)] = 1

    bounded[2, 32](out(64))
    with pytest.raises(LaunchError, match="launch_bounds allow at most 32"):
        bounded[1, 33]
    for options in ({"launch_bounds": "many"}, {"launch_bounds": 0}, {"shared_memory_carveout": 150},
                    {"shared_memory_carveout": "most"}):  # fmt: skip
        with pytest.raises(ValueError, match="it must be"):
            cuda.jit(**options)


def test_packed_records_are_refused():
    fields = [("a", np.int8), ("b", np.float32)]

    @cuda.jit
    def field(x, y):
        y[0] = x[0].b

    assert result(field[1, 1], np.ones(2, np.dtype(fields, align=True)), out(1)) == [1]
    with pytest.raises(ArgumentError, match="field 'b', byte 1 .* type float32 is not aligned to 4 bytes"):
        cuda.jit([(numba.from_dtype(np.dtype([("a", "i1"), ("b", "f4")]))[:],)])(field.py_func)
    with pytest.raises(ArgumentError, match="field 'b', .* align=True"):
        field[1, 1](np.ones(2, np.dtype(fields)), out(1))


@WAYS
def test_local_memory_has_cudas_limit(way):
    @cuda.jit
    def large(y):
        one = cuda.local.array(70_000, float32)
        two = cuda.local.array(70_000, int32)
        one[0] = two[0] = 1
        y[0] = one[0] + two[0]

    with pytest.raises(UnsupportedError, match="560,000 bytes; CUDA gives it 524,288"):
        run(way, large[1, 1], out(1))


# ---------------------------------------------------------------- print, pickle, Numba's own settings


@cuda.jit
def prints(y):
    i = cuda.grid(1)
    print(i, y[0], "hello", i * 2)


def test_lines_that_threads_print_stay_whole(capfd):
    prints[40, 32](out(1))
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(f"{i} 0.0 hello {2 * i}" for i in range(40 * 32))


def scaled_by(factor):
    @cuda.jit(device=True)
    def scaled(x):
        return x * factor

    @cuda.jit
    def scale(y):
        y[cuda.grid(1)] = scaled(cuda.grid(1))

    return scale


def test_kernels_are_pickled_by_name_or_by_value():
    assert pickle.loads(pickle.dumps(prints)) is prints and pickle.loads(pickle.dumps(looked_up)) is looked_up
    assert result(pickle.loads(pickle.dumps(scaled_by(3)))[1, 4], out(4)).tolist() == [0, 3, 6, 9]


def test_numba_set_not_to_compile_is_a_setting_that_is_named():
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "LABKIT_DEVICE": "cpu"}
    command = [sys.executable, "-c", "from labkit import cuda"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode and "SettingError: NUMBA_DISABLE_JIT is set" in done.stderr


# ---------------------------------------------------------------- types: of variables where paths meet, of records


@cuda.jit
def paths_that_meet(x, flag, y):
    i = cuda.grid(1)
    tenth = x[i] if flag[i] else 0.1  # float64 on both paths
    y[i, 0] = tenth * x[i] * x[i]
    total = float32(0.1)
    for _k in range(3):
        y[i, 1] = total * x[i]  # float64 from the first round on
        total = total * 0.5
    other = int32(7)
    if flag[i]:
        other = 2.5
    y[i, 2] = other * x[i] * float32(0.3)
    y[i, 3] = either(x[i], 0.1, flag[i]) * x[i]
    for _k in range(4):
        total += x[i]
        if total > 0.5:
            continue
        total *= x[i]
    y[i, 4] = total
    rounds = i
    for _k in range(rounds & 3):  # of an integer, and a float from here on
        rounds = 0.5
    y[i, 5] = rounds / 2


@cuda.jit(device=True)
def either(a, b, first):
    if first:
        return a
    return b


def test_a_variable_has_one_type_where_paths_meet():
    x = np.float32(1) / np.arange(3, 11, dtype=np.float32)
    flag = np.arange(8) % 2 == 0
    y = result(paths_that_meet[1, 8], x, flag, np.zeros((8, 6)))
    wide = np.where(flag, x.astype(np.float64), 0.1)
    np.testing.assert_array_equal(y[:, 0], wide * x * x)
    np.testing.assert_array_equal(y[:, 1], np.float64(np.float32(0.1)) * 0.25 * x)
    np.testing.assert_array_equal(y[:, 3], wide * x)
    np.testing.assert_array_equal(y[:, 5], np.where(np.arange(8) & 3, 0.25, np.arange(8) / 2))


@cuda.jit
def kept_before_paths_meet(x, whole, parts, limit):
    t = cuda.threadIdx.x
    number, other = x[t], x[t]
    cuda.syncthreads()
    whole[t, 0], whole[t, 1] = number, limit // 3
    while number > 1e18:
        number *= 0.5
        cuda.syncthreads()
    parts[t, 0] = number
    whole[t, 2] = other
    other /= 4
    cuda.syncthreads()
    parts[t, 1] = other
    if t & 1:
        limit = 0.5 + t
    cuda.syncthreads()
    parts[t, 2] = limit
    for k in range(6):
        cuda.syncthreads()
        whole[t, 3] = k // 2
        if t > 3:
            k = k / 2
        cuda.syncthreads()
        parts[t, 3] = k
    copy = t
    if cuda.syncthreads_or(int32(copy > 6)):
        copy = copy + 0.25
    cuda.syncthreads()
    parts[t, 4] = copy


def test_a_value_kept_across_a_barrier_is_an_integer_up_to_where_paths_meet():
    """Whole numbers of 61 bits, which a float64 does not hold."""
    x, t, limit = 2**60 + 1 + 6 * np.arange(8), np.arange(8), 2**60 + 5
    _, whole, parts, _ = both(kept_before_paths_meet[1, 8], x, np.zeros((8, 4), np.int64), np.zeros((8, 5)), limit)
    np.testing.assert_array_equal(whole, np.stack([x, np.full(8, limit // 3), x, np.full(8, 2)], axis=1))
    np.testing.assert_array_equal(parts, np.stack([
        x / 2, x / 4, np.where(t & 1, 0.5 + t, float(limit)), np.where(t > 3, 2.5, 5), t + 0.25], axis=1))


@cuda.jit
def functions_of_operators(out):
    out[0] = (1 << 63) >> 63  # folded by Python, to a uint64
    out[1] = operator.add(uint8(200), uint8(100))
    out[2] = operator.neg(int8(-128))
    out[3] = ~abs(uint8(3))
    out[4] = operator.lt(float32(0.1), 0.1)
    out[5] = 18446744073709551615 > 1
    for k in range(uint32(2)):
        out[6] += k - 1  # of an unsigned counter a float


def test_constants_and_functions_of_operators_have_the_types_of_their_operators():
    out = result(functions_of_operators[1, 1], np.zeros(7))
    assert out.tolist()[:3] == [1, 300, -128] and out[5] == 1


RECORD = np.dtype([("a", np.int32), ("x", np.float32)], align=True)


@cuda.jit(device=True)
def total_of(record):
    return record.a + record["x"]


@cuda.jit
def use_records(records, one, out):
    i = cuda.grid(1)
    mine = records[i]
    out[i] = records[i]["a"] + mine.x + total_of(records[i]) + one.a * 2 + one["x"]
    mine.a = int32(i)
    records[i + 4] = records[i]


def test_records_by_themselves_and_as_a_whole():
    records = np.array([(k, k / 2) for k in range(8)], RECORD)
    records, _, out = both(use_records[1, 4], records, records[3], np.zeros(4))
    assert out.tolist() == [7.5 + 3 * k for k in range(4)]
    assert records["x"][4:].tolist() == [0, 0.5, 1, 1.5] and records["a"].tolist() == [0, 1, 2, 3] * 2


FLAG = True


@cuda.jit
def inverted_truths_and_named_fields(records, out):
    field = "a"
    records[0][field] = 7
    out[0] = ~True  # folded by Python
    out[1] = ~FLAG  # by Numba
    out[2] = ~(True & True) + 1
    out[3] = ~(out[0] == 0)
    out[4] = records[0][field]


def test_a_local_that_is_set_once_to_a_text_names_a_field_and_a_truth_is_inverted_by_python_or_numba():
    records, out = both(inverted_truths_and_named_fields[1, 1], np.zeros(1, RECORD), np.zeros(5))
    assert records["a"][0] == 7 and out.tolist() == [-2, 0, -1, 1, 7]
