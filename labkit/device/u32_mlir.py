"""labkit.u32 for numba-cuda-mlir: special registers, shapes and a range, as uint32.

Importing this needs numba-cuda-mlir but no GPU. labkit.simt.u32 documents each name.
"""

from __future__ import annotations

from numba_cuda_mlir._mlir import ir as mlir
from numba_cuda_mlir._mlir.dialects import arith, gpu, memref
from numba_cuda_mlir.extending import intrinsic, lower_builtin, lowering_registry, refresh_registries, typing_registry
from numba_cuda_mlir.lowering_utilities import IterResult, RangeObject, convert, index_of
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.core.errors import RequireLiteralValue, TypingError
from numba_cuda_mlir.numba_cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from labkit.simt import u32 as cpu_u32

U32 = types.uint32
AXES = {"x": gpu.Dimension.x, "y": gpu.Dimension.y, "z": gpu.Dimension.z}


def _named(name, obj):
    obj.__doc__ = getattr(cpu_u32, name).__doc__
    obj.cpu_device = getattr(cpu_u32, name)
    return obj


def _i32():
    return mlir.IntegerType.get_signless(32)


# --- Special registers ------------------------------------------------------------------------------------------------


class _Registers(types.Dummy):
    """The type of threadIdx and its like: three special registers, which `read` gives for an axis."""

    def __init__(self, name, read):
        self.read = read
        super().__init__(f"u32.{name}")


class _Dim3:
    def __init__(self, name, read):
        self._numba_type_ = _Registers(name, read)


@typing_registry.register_attr
class _Axes(AttributeTemplate):
    key = _Registers

    def generic_resolve(self, registers, axis):
        return U32 if axis in AXES else None


@lowering_registry.lower_getattr_generic(_Registers)
def _read_axis(context, builder, target, value, axis):
    read = builder.get_numba_type(value.name).read
    builder.store_var(target, convert(read(AXES[axis]), _i32()))


threadIdx, blockIdx = (_named(name, _Dim3(name, read))
                       for name, read in (("threadIdx", gpu.thread_id), ("blockIdx", gpu.block_id)))
blockDim, gridDim = (_named(name, _Dim3(name, read))
                     for name, read in (("blockDim", gpu.block_dim), ("gridDim", gpu.grid_dim)))


def _along_axes(name, read):
    """An intrinsic whose argument says how many axes its result has. read(axis): the value along one, as uint32."""

    def typed(typingctx, ndim):
        if not isinstance(ndim, types.IntegerLiteral):
            raise RequireLiteralValue(ndim)
        count = ndim.literal_value
        if count not in (1, 2, 3):
            raise TypingError(f"u32.{name} takes 1, 2 or 3, not {count}")

        def codegen(builder, target, args, kwargs):
            values = tuple(read(AXES[axis]) for axis in "xyz"[:count])
            builder.store_var(target, values[0] if count == 1 else values)

        return (U32 if count == 1 else types.UniTuple(U32, count))(ndim), codegen

    typed.__name__ = typed.__qualname__ = name
    return _named(name, intrinsic(typed))


def _product(axis, *registers):
    return arith.muli(*(convert(register(axis), _i32()) for register in registers))


grid = _along_axes("grid", lambda axis: arith.addi(_product(axis, gpu.block_id, gpu.block_dim),
                                                   convert(gpu.thread_id(axis), _i32())))
gridsize = _along_axes("gridsize", lambda axis: _product(axis, gpu.block_dim, gpu.grid_dim))


# --- Arrays -----------------------------------------------------------------------------------------------------------


def _of_array(name, returned, compute):
    """An intrinsic of one array. returned(array): the type of its result. compute: from its extents as uint32."""

    def typed(typingctx, array):
        if not isinstance(array, types.Array):
            raise TypingError(f"u32.{name}: array is {array}; it must be an array")

        def codegen(builder, target, args, kwargs):
            value = builder.load_var(args[0])
            extents = tuple(convert(memref.dim(value, index_of(axis)), _i32()) for axis in iter_axes(array.ndim))
            builder.store_var(target, compute(extents))

        return returned(array)(array), codegen

    typed.__name__ = typed.__qualname__ = name
    return _named(name, intrinsic(typed))


iter_axes = range  # below, `range` is u32's


def _size(extents):
    result = arith.constant(_i32(), 1)
    for extent in extents:
        result = arith.muli(result, extent)
    return result


shape = _of_array("shape", lambda array: types.UniTuple(U32, array.ndim), lambda extents: extents)
size = _of_array("size", lambda array: U32, _size)


# --- range ------------------------------------------------------------------------------------------------------------


class _Counter(RangeObject):
    """Count as `for (k = start; k < stop; k += step)` does. As it comes, the compiler counts how often first, with a
    division, and asks in each round whether it is over before it adds, in a way that no loop optimisation sees through.

    rises: whether the step is known to be above 0 (True) or below (False); None: neither.
    """

    def __init__(self, builder, kind, start, stop, step, rises):
        self._stop, self._step, self._rises, self._signed = stop, step, rises, kind.signed
        with builder.alloca_insertion_point():
            self._current = memref.alloca(mlir.MemRefType.get([1], start.type), [], [])
        memref.store(start, self._current, [index_of(0)])

    def next(self):
        current = memref.load(self._current, [index_of(0)])
        # Also after the last round: a branch would stay in every round, and keep LLVM from counting them.
        memref.store(arith.addi(current, self._step), self._current, [index_of(0)])
        before, after = self._compared(current, "lt"), self._compared(current, "gt")
        if self._rises is None:
            rises = arith.cmpi(arith.CmpIPredicate.sgt, self._step, arith.constant(self._step.type, 0))
            return IterResult(current, arith.select(rises, before, after))
        return IterResult(current, before if self._rises else after)

    def _compared(self, current, how):
        predicate = getattr(arith.CmpIPredicate, f"{'s' if self._signed else 'u'}{how}")
        return arith.cmpi(predicate, current, self._stop)


def _lower_range(builder, target, args, kwargs):
    """range, and u32.range, by a _Counter of the type that they yield."""
    kind = builder.get_numba_type(target.name).dtype
    given = [builder.get_numba_type(arg.name) for arg in args]
    values = [builder.lower_cast(types.unliteral(of), kind, builder.load_var(arg))
              for of, arg in zip(given, args, strict=True)]
    integer = mlir.IntegerType.get_signless(kind.bitwidth)
    start = values[0] if len(values) > 1 else arith.constant(integer, 0)
    step = values[2] if len(values) > 2 else arith.constant(integer, 1)
    rises = True
    if len(values) > 2 and kind.signed:
        rises = given[2].literal_value > 0 if isinstance(given[2], types.IntegerLiteral) else None
    builder.store_var(target, _Counter(builder, kind, start, values[min(1, len(values) - 1)], step, rises))


_counts = (types.Integer,), (types.Integer,) * 2, (types.Integer,) * 3
for _arguments in _counts:
    lower_builtin(range, *_arguments)(_lower_range)


def range(*args):
    raise TypeError("u32.range() can be called only inside a kernel or a device function")


class _RangeTyping(AbstractTemplate):
    key = range

    def generic(self, args, kws):
        if not 1 <= len(args) <= 3 or not all(isinstance(types.unliteral(arg), types.Integer) for arg in args):
            return None
        return signature(types.RangeType(U32), *[U32] * len(args))


typing_registry.register_global(_named("range", range), types.Function(_RangeTyping))


for _arguments in _counts:
    lower_builtin(range, *_arguments)(_lower_range)
refresh_registries(include_uninitialized_cuda=False)  # the compiler may have read them already

missing = set(cpu_u32.NAMES) - set(globals())
assert not missing, f"labkit.simt.u32 names what is not here: {sorted(missing)}"
