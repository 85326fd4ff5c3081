"""What programs write in kernels, compiled and observed: records, tuples, texts, dates, enums, functions, recursion."""

from collections import namedtuple
from enum import Enum, IntEnum

import numba
import numpy as np
import pytest
from numba import float64

from labkit import cuda
from labkit.simt import observe
from labkit.simt.errors import ArgumentError, KernelTypeError, UnsupportedError
from tests.simt.helpers import both, kernel_of

pytestmark = pytest.mark.cpu_device
PARTICLE = np.dtype([("x", np.float32), ("n", np.int32), ("v", np.float32, (3,))], align=True)
Point = namedtuple("Point", "x y")


class Color(Enum):
    RED, GREEN = 1, 2


class Size(IntEnum):
    SMALL, LARGE = 3, 4


class OtherSize(IntEnum):
    THREE = 3


@cuda.jit(device=True)
def area(point):
    return point.x * point.y


@cuda.jit(device=True)
def weighted(x, y, z):
    return 100 * x + 10 * y + z


@cuda.jit(device=True)
def total(array):
    result = 0.0
    for k in range(array.shape[0]):
        result += array[k]
    return result


@cuda.jit(device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@cuda.jit("float64(float64)", device=True)
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


@cuda.jit(device=True)
def is_even(n):
    return True if n == 0 else is_odd(n - 1)


@cuda.jit(device=True)
def is_odd(n):
    return False if n == 0 else is_even(n - 1)


@cuda.jit(device=True)
def endless(n):
    return n if n < 0 else endless(n + 1)


@cuda.jit(device=True)
def gathered(first, *rest):
    result = first
    for each in rest:
        result += each
    return result + len(rest)


NAMES = {name: globals()[name] for name in (
    "PARTICLE", "Point", "Color", "Size", "area", "weighted", "total", "fibonacci", "factorial", "is_even", "endless",
    "gathered", "np", "float64")}  # fmt: skip


def launched(body, *args, threads=1, arguments=None):
    """What a kernel with this body leaves in `out`, its last argument, in both runs."""
    arguments = arguments or ", ".join([*"abc"[: len(args) - 1], "out"])
    return both(kernel_of(f"i = cuda.grid(1)\n{body}", arguments, **NAMES)[1, threads], *args)[-1].tolist()


def out(n=1):
    return np.zeros(n)


def particles(count=4):
    made = np.zeros(count, PARTICLE)
    made["n"], made["v"][:, 2] = 5, 7
    return made


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("body, expected", [
    ("r = cuda.local.array(4, PARTICLE)\nfor k in range(4):\n    r[k].x = k; r[k]['n'] = 2 * k; r[k].v[1] = 3\n"
     "out[0] = r[2].x + r[3].n + r[0].v[1]", 11),
    ("r = cuda.local.array((2, 2), PARTICLE)\nr[1, 0].x = 4\nq = r[1, 0]\nq.x += 1\nout[0] = r[1, 0].x", 5),
    ("out[0] = a[1]['n'] + a[2].v[2] + a['n'][0] + a.x[3]", 17),
    ("out[0] = a[1][1]", 5),
    ("a[0] = a[1]\na[0].n = 9\nout[0] = a[0].n + a[1].n + a[0].v[2]", 21),
    ("a[0].v = a[1].v\na[2]['v'] = a[3].v\nout[0] = a[0].v[2] + a[2].v[2]", 14),
    ("cuda.atomic.add(a['n'], 1, 3)\ncuda.atomic.add(a[2].v, 2, 1.0)\nout[0] = a[1].n + a[2].v[2]", 16),
])
def test_records(body, expected):
    assert launched(body, particles(), out()) == [expected]


@pytest.mark.parametrize("dtype", [PARTICLE, numba.from_dtype(PARTICLE)])
def test_records_in_shared_memory_across_a_barrier(dtype):
    @cuda.jit
    def mirrored(out):
        tile = cuda.shared.array(32, dtype)
        t = cuda.threadIdx.x
        own = tile[t]
        own.x, own.n = t, 1
        cuda.syncthreads()
        out[t] = tile[31 - t].x + own.n

    assert both(mirrored[1, 32], out(32))[0].tolist() == list(range(32, 0, -1))


def test_a_record_that_nothing_wrote_is_found():
    @cuda.jit
    def reads(out):
        r = cuda.local.array(2, PARTICLE)
        r[0].v[1] = 3
        out[0] = r[0].v[1]
        out[1] = r[0].v[0]

    assert len(observe(reads[1, 1], out(2)).findings) == 1


def test_whole_arrays_are_not_copied():
    for body in ("a[0] = a[1]", "a[0, :] = a[1]"):
        kernel = kernel_of(body, "a")
        for launch in (kernel[1, 1], lambda a, kernel=kernel: observe(kernel[1, 1], a)):
            with pytest.raises(KernelTypeError, match="whole arrays cannot be computed with or copied"):
                launch(np.ones((2, 2)))


@pytest.mark.parametrize("body, expected", [
    ("cuda.atomic.add(a.real, 0, 1.5)\ncuda.atomic.add(a.imag, 0, 2.0)\nout[0] = a[0].real + a[0].imag", 3.5),
    ("b = a[None, :]\nout[0] = b[0, 1].real + b.shape[0]", 1),
])
def test_parts_of_complex_arrays_and_new_axes(body, expected):
    assert launched(body, np.zeros(2, complex), out()) == [expected]


# ---------------------------------------------------------------- texts, dates, enums


def test_texts_and_dates():
    texts = [np.zeros(2, "U5"), np.zeros(2, "S4")]
    unicode, ascii_ = both(kernel_of("a[1] = 'XYZ'\nb[1] = b'AB'", "a, b")[1, 1], *texts)
    assert unicode.tolist() == ["", "XYZ"] and ascii_.tolist() == [b"", b"AB"]
    days = np.arange("2005-02-01", "2005-02-05", dtype="M8[D]")
    later = days + np.arange(4)
    kernel = kernel_of("i = cuda.grid(1)\nsame[i] = b[i] == target\nd[i] = b[i] - a[i]", "a, b, target, same, d")
    *_, same, gaps = both(kernel[1, 4], days, later, days[2], np.zeros(4, bool), np.zeros(4, "m8[D]"))
    assert same.tolist() == [False, False, False, False] or same.tolist() == (later == days[2]).tolist()
    assert (gaps == later - days).all()


@pytest.mark.parametrize("body, args, expected", [
    ("out[0] = a == Color.GREEN\nout[1] = a is Color.RED\nout[2] = a is not Color.RED", [Color.GREEN], [1, 0, 1]),
    ("out[0] = a == b\nout[1] = a is b", [Color.RED, Color.RED], [1, 1]),
    ("out[0] = a == b\nout[1] = a is b", [Size.SMALL, OtherSize.THREE], [1, 0]),
    ("out[0] = a + Size.LARGE\nout[1] = Size['SMALL']\nout[2] = Color['RED'] == Color.RED", [Size.SMALL], [7, 3, 1]),
])
def test_enums(body, args, expected):
    assert launched(body, *args, out(len(expected))) == expected


def test_is_compares_numbers():
    assert launched("x = a * 2.5\ny = 5.0\nout[0] = x is y\nout[1] = x is not y", 2, out(2)) == [1, 0]


# ---------------------------------------------------------------- tuples


@pytest.mark.parametrize("body, args, expected", [
    ("out[0] = a[0] + a[1][1] + a[2][2]", [(1, (2.0, 3.0), np.arange(4.0))], 6),
    ("out[0] = area(a) + b.x[0] + b.y[1]", [Point(2.0, 3.0), Point(np.ones(2), np.full(2, 5.0))], 12),
    ("p = Point(1, y=a)\nq = Point(a, 2.0)\nout[0] = p.y + p.x + area(q)", [3.0], 10),
    ("for array in a:\n    out[0] += array[1]", [(np.ones(2), np.arange(2.0))], 2),
    ("t = (2, 3)\nout[0] = weighted(1, *t) + weighted(*(0, 0, 4))", [0], 127),
    ("p = cuda.grid(2)\nq = (p[0], p[1] + 1)\na[p] = 1\na[q] += 3\nout[0] = a[0, 0] + a[0, 1]", [np.zeros((2, 2))], 4),
    ("(c, d), e = (1, 2), 3\nc, d = d, c\nout[0] = weighted(c, d, e)", [0], 213),
    ("for r, c in np.ndindex(a.shape):\n    out[0] += r * a[r, c]", [np.arange(6.0).reshape(2, 3)], 12),
    ("for at, value in np.ndenumerate(a):\n    out[0] += at[1] * value", [np.arange(6.0).reshape(2, 3)], 19),
    ("out[0] = np.iinfo(np.int16).max + np.finfo(np.float32).max * 0", [0], 32767),
    ("out[0] = total(a[0, :]) + total(a[:, 1][::2]) + total(a[1])", [np.arange(6.0).reshape(2, 3)], 16),
])
def test_tuples_and_what_runs_over_arrays(body, args, expected):
    assert launched(body, *args, out()) == [expected]


@pytest.mark.parametrize("made", [True, False])
def test_a_named_tuple_is_kept_across_a_barrier(made):
    @cuda.jit
    def mirrored(given, out):
        t = cuda.threadIdx.x
        point = Point(t, float64(1)) if made else given
        if t == 40:
            point = given
        tile = cuda.shared.array(32, float64)
        tile[t] = point.x
        cuda.syncthreads()
        out[t] = tile[31 - t] + point.y

    expected = [32.0 - t if made else 5.0 for t in range(32)]
    assert both(mirrored[1, 32], Point(2, 3.0), out(32))[-1].tolist() == expected


def test_a_named_tuple_takes_its_fields():
    with pytest.raises(UnsupportedError, match=r"kernel, line 4: Point takes \(x, y\)"):
        launched("p = Point(1, z=2)\nout[0] = p.x", out())


@pytest.mark.parametrize("body, expected", [
    ("out[0] = a[1].view(np.int64)", np.float64(2).view(np.int64)),
    ("out[0] = a[1:].view(np.int64)[0]", np.float64(2).view(np.int64)),
    ("out[0] = a.reshape((1, 2)).transpose()[1, 0]", 2),
    ("global area\nout[0] = area(Point(2, 3))", 6),
])
def test_views_of_numbers_and_what_else_is_seldom_written(body, expected):
    assert launched(body, np.array([1.0, 2.0]), out()) == [expected]


@pytest.mark.parametrize("body", ["out[0] = np.random.rand()", "out[0] = np.sum(out)", "out[0] = np.round(out[0])",
                                  "out[0] = isinstance(out[0], float)", "global area\narea = 3", "out.transpose(0)"])
def test_what_only_numba_on_a_cpu_has_is_refused(body):
    with pytest.raises(UnsupportedError, match=r"kernel, line \d+: "):
        kernel_of(body, "out", **NAMES)[1, 1](out())


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize("body, expected", [
    ("def f(x, y=2):\n    return x * y + out[1]\nout[0] = f(3) + f(1, y=5)", 13),
    ("f = lambda x: x + i\nout[0] = f(3)", 3),
    ("def f(x):\n    return x + 1\ndef g(x):\n    return f(x) * 2\nout[0] = g(3)", 8),
    ("k = 4\ndef f(x):\n    y = x * k\n    return y\nout[0] = f(2) + k", 12),
])
def test_functions_inside_a_kernel(body, expected):
    assert launched(body, np.array([0.0, 1.0]))[0] == expected


def test_a_function_inside_a_kernel_that_waits():
    @cuda.jit
    def mirrored(out):
        tile = cuda.shared.array(32, float64)

        def exchanged(value):
            tile[cuda.threadIdx.x] = value
            cuda.syncthreads()
            return tile[31 - cuda.threadIdx.x]

        out[cuda.threadIdx.x] = exchanged(cuda.threadIdx.x)

    assert both(mirrored[1, 32], out(32))[0].tolist() == list(range(31, -1, -1))


@cuda.jit(device=True)
def twice(function, x):
    return function(function(x))


def test_a_lambda_as_an_argument():
    @cuda.jit
    def kernel(out):
        out[0] = twice(lambda x: x + 2, 3)

    @cuda.jit
    def captures(out):
        k = out[0]
        out[0] = twice(lambda x: x + k, 3)

    assert both(kernel[1, 1], out())[0].tolist() == [7]
    with pytest.raises(UnsupportedError, match="line .*a lambda that is an argument cannot use the variable k"):
        captures[1, 1](out())


def test_recursion():
    body = "out[i] = fibonacci(i) + factorial(i) + 1000 * is_even(i)"
    assert launched(body, out(6), threads=6) == [1001, 2, 1003, 8, 1027, 125]


def test_recursion_that_is_too_deep_is_a_fault_with_the_line():
    kernel = kernel_of("out[0] = endless(out[0])", "out", **NAMES)
    for launch in (kernel[1, 1], lambda out: observe(kernel[1, 1], out)):
        with pytest.raises(RecursionError, match=r"thread 0 raised RecursionError: endless calls itself 300 deep"):
            launch(out())


@pytest.mark.parametrize("body, words", [
    ("out[0] = spread(1, y=2)", r"spread takes \*\*kwargs"),
    ("t = (1, 2)\nout[0] = gathered(1, *t)", r"gathered takes \*args, and the length of t is not known"),
    ("def f(x):\n    return x\ndef f(x):\n    return 2\nout[0] = f(1)", "the function f is defined twice"),
])
def test_what_functions_cannot_do(body, words):
    @cuda.jit(device=True)
    def spread(x, **parts):
        return x

    with pytest.raises(UnsupportedError, match=rf"kernel, line \d+: .*{words}"):
        kernel_of(body, "out", spread=spread, gathered=gathered)[1, 1](out())


def test_the_rest_of_the_arguments_is_a_tuple():
    assert launched("out[0] = gathered(1, 2, 3) + gathered(*(4, 5)) * 100", out()) == [1008]


def test_none_and_objects_are_no_arguments():
    for value in (None, [1], np.zeros(1, object)):
        with pytest.raises(ArgumentError, match="argument 'a' is"):
            launched("out[0] = 1", value, out())


@pytest.mark.parametrize("body", ["out[0] = a / b", "out[0] = 1 // int(b)", "out[0] %= b"])
def test_a_division_by_zero_is_a_fault_where_debugging_asks_for_it(body):
    function = kernel_of(body, "a, b, out").py_func
    debugged = cuda.jit(debug=True, opt=False)(function)
    assert both(debugged[1, 1], 2.0, 4.0, out())
    for launch in (debugged[1, 2], lambda *args: observe(debugged[1, 2], *args)):
        with pytest.raises(ZeroDivisionError, match="line 3: block 0, thread 0 raised ZeroDivisionError"):
            launch(2.0, 0.0, out())
    for options in ({}, {"debug": True, "opt": False, "fastmath": True}):
        both(cuda.jit(**options)(function)[1, 1], 2.0, 0.0, out())
