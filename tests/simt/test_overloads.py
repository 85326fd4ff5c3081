"""Functions, methods and types that a program adds to kernels through numba.extending and numba.cuda.extending."""

import numba.extending
import numpy as np
import pytest
from llvmlite import ir
from numba import float64, types
from numba.core import cgutils

from labkit import cuda
from labkit.simt import extending, observe
from labkit.simt.errors import UnsupportedError
from tests.simt.helpers import both

pytestmark = pytest.mark.cpu_device


def scaled(x):
    pass


@extending.overload(scaled)
def _scaled(x):
    if isinstance(x, types.Integer):
        return lambda x: 2 * x
    if isinstance(x, types.Float):
        return lambda x: 3 * x
    if isinstance(x, types.Array):
        ndim = x.ndim
        return lambda x: x[0] + ndim
    return None


def test_an_overload_is_chosen_by_the_types():
    @cuda.jit
    def kernel(a, out):
        i = cuda.grid(1)
        out[0], out[1], out[2] = scaled(3), scaled(2.5), scaled(a)
        out[3] = scaled(a[1:]) + scaled(i)
        s = 0
        for k in range(3):
            s += scaled(a[k])
        out[4] = s

    assert both(kernel[1, 1], np.arange(4.0), np.zeros(5))[-1].tolist() == [6, 7.5, 1, 2, 9]


def test_a_type_without_an_overload_is_named_with_the_line():
    @cuda.jit
    def kernel(out):
        out[0] = scaled(1j)

    with pytest.raises(UnsupportedError, match=r"kernel, line \d+: scaled has no overload for \(complex128\)"):
        kernel[1, 1](np.zeros(1))


def exchanged(x):
    pass


@numba.extending.overload(exchanged, target="cuda")
def _exchanged(x):
    def exchange(x):
        tile = cuda.shared.array(32, float64)
        t = cuda.threadIdx.x
        tile[t] = scaled(x)  # by an overload itself
        cuda.syncthreads()
        return tile[31 - t]

    return exchange


def test_an_overload_that_waits():
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        out[t] = exchanged(t)

    assert both(kernel[1, 32], np.zeros(32))[0].tolist() == list(range(62, -1, -2))


def for_each_target():
    pass


numba.extending.overload(for_each_target, target="generic")(lambda: lambda: 1)
numba.extending.overload(for_each_target, target="cuda")(lambda: lambda: 2)


def doubled(x):
    pass


@extending.overload(doubled, prefer_literal=True)
def _doubled(x):
    if isinstance(x, types.Literal):
        value = 2 * x.literal_value
        return lambda x: value
    return lambda x: -x


@extending.register_jitable
def plus(x, y=3):
    return x + y


def test_targets_literals_and_keywords():
    @cuda.jit
    def kernel(out):
        out[0] = for_each_target()
        out[1], out[2] = doubled(4), doubled(out[0])
        out[3] = plus(1) + plus(2, y=5)

    assert both(kernel[1, 1], np.zeros(4))[0].tolist() == [2, 8, -2, 11]


@extending.overload_method(types.Array, "first_plus")
def _first_plus(array, more=10):
    def first_plus(array, more=10):
        return array[0] + more

    return first_plus


@extending.overload_attribute(types.Array, "outer_sum")
def _outer_sum(array):
    return lambda array: array[0] + array[-1]


def test_methods_and_attributes():
    @cuda.jit
    def kernel(a, out):
        out[0], out[1], out[2] = a.first_plus(), a.first_plus(3), a.first_plus(more=4)
        out[3] = a.outer_sum + a.shape[0]

    assert both(kernel[1, 1], np.arange(1.0, 4.0), np.zeros(4))[-1].tolist() == [11, 4, 5, 7]


# ---------------------------------------------------------------- intrinsics


@extending.intrinsic
def bits_of(typing_context, x):
    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@extending.intrinsic
def clock(typing_context):
    def codegen(context, builder, signature, args):
        function = ir.FunctionType(ir.IntType(64), [])
        return builder.call(ir.InlineAsm(function, "mov.u64 $0, %clock64;", "=l", True), [])

    return types.int64(), codegen


def test_an_intrinsic():
    @cuda.jit
    def kernel(a, out):
        i = cuda.grid(1)
        out[i] = bits_of(a[i])

    a = np.arange(4.0)
    assert (both(kernel[1, 4], a, np.zeros(4, np.int64))[-1] == a.view(np.int64)).all()


def test_an_intrinsic_of_ptx_is_refused():
    @cuda.jit
    def kernel(out):
        out[0] = clock()

    with pytest.raises(UnsupportedError, match=r"kernel, line \d+: an intrinsic with inline PTX needs a GPU"):
        kernel[1, 1](np.zeros(1))


# ---------------------------------------------------------------- a type of the program's own


class Interval:
    def __init__(self, lo, hi):
        self.lo, self.hi = lo, hi

    @property
    def width(self):
        return self.hi - self.lo


class IntervalType(types.Type):
    def __init__(self):
        super().__init__(name="Interval")


INTERVAL = IntervalType()
numba.extending.typeof_impl.register(Interval)(lambda value, context: INTERVAL)


@extending.type_callable(Interval)
def _typed(context):
    return lambda lo, hi: INTERVAL if isinstance(lo, types.Float) else None


@extending.register_model(IntervalType)
class IntervalModel(extending.models.StructModel):
    def __init__(self, manager, ty):
        super().__init__(manager, ty, [("lo", types.float64), ("hi", types.float64)])


extending.make_attribute_wrapper(IntervalType, "lo", "lo")
extending.make_attribute_wrapper(IntervalType, "hi", "hi")


@numba.extending.overload_attribute(IntervalType, "width")
def _width(interval):
    return lambda interval: interval.hi - interval.lo


@extending.lower_builtin(Interval, types.Float, types.Float)
def _made(context, builder, signature, args):
    made = cgutils.create_struct_proxy(signature.return_type)(context, builder)
    made.lo, made.hi = args
    return made._getvalue()


def test_a_type_of_the_programs_own():
    @cuda.jit(device=True)
    def width(interval):
        return interval.width

    @cuda.jit
    def kernel(x, out):
        interval = Interval(x[0], x[1])
        out[0], out[1] = interval.lo + interval.hi, width(interval)

    assert both(kernel[1, 1], np.array([1.5, 4.0]), np.zeros(2))[-1].tolist() == [5.5, 2.5]


class Unlucky(Exception):
    pass


def test_an_exception_of_the_programs_own():
    @cuda.jit(debug=True, opt=False)
    def kernel(out):
        if out[0] == 0:
            raise Unlucky("number", 13)

    for launch in (kernel[1, 1], lambda out: observe(kernel[1, 1], out)):
        with pytest.raises(Unlucky, match=r"kernel, line \d+: block 0, thread 0 raised Unlucky: number, 13"):
            launch(np.zeros(1))
