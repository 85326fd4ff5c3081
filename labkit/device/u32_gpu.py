"""The GPU's half of labkit.u32: special registers, shapes and a range, as uint32.

Importing this needs numba-cuda but no GPU. labkit.simt.u32 documents each name.
"""

from __future__ import annotations

from llvmlite import ir

from labkit import device
from labkit.simt import u32 as cpu_u32

device.numba_cuda()  # the fixes that numba-cuda needs come before its first import

from numba.cuda import cgutils, nvvmutils, types  # noqa: E402
from numba.cuda.core.errors import RequireLiteralValue, TypingError  # noqa: E402
from numba.cuda.core.imputils import RefType, iternext_impl  # noqa: E402
from numba.cuda.cudadecl import registry as typing  # noqa: E402
from numba.cuda.cudaimpl import registry as lowering  # noqa: E402
from numba.cuda.extending import intrinsic, models, register_model  # noqa: E402
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature  # noqa: E402

U32, I32, I64 = types.uint32, ir.IntType(32), ir.IntType(64)


def _named(name, obj):
    obj.__doc__ = getattr(cpu_u32, name).__doc__
    obj.cpu_device = getattr(cpu_u32, name)
    return obj


# --- Special registers ------------------------------------------------------------------------------------------------


class _Registers(types.Dummy):
    """The type of threadIdx and its like: three special registers."""

    def __init__(self, register):
        self.register = register
        super().__init__(f"u32({register})")


class _Dim3:
    def __init__(self, register):
        self.register = register


@typing.register_attr
class _Axes(AttributeTemplate):
    key = _Registers

    def generic_resolve(self, registers, axis):
        return U32 if axis in ("x", "y", "z") else None


@lowering.lower_getattr_generic(_Registers)
def _read_axis(context, builder, registers, value, axis):
    return nvvmutils.call_sreg(builder, f"{registers.register}.{axis}")


def _dim3(name, register):
    dim3 = _named(name, _Dim3(register))
    typing.register_global(dim3, _Registers(register))
    return dim3


threadIdx, blockIdx = _dim3("threadIdx", "tid"), _dim3("blockIdx", "ctaid")
blockDim, gridDim = _dim3("blockDim", "ntid"), _dim3("gridDim", "nctaid")


def _along_axes(name, read):
    """An intrinsic whose argument says how many axes its result has. along(builder, axis): the value along one."""

    def typed(typingctx, ndim):
        if not isinstance(ndim, types.IntegerLiteral):
            raise RequireLiteralValue(ndim)
        count = ndim.literal_value
        if count not in (1, 2, 3):
            raise TypingError(f"u32.{name} takes 1, 2 or 3, not {count}")

        def codegen(context, builder, sig, args):
            values = [read(builder, axis) for axis in "xyz"[:count]]
            return values[0] if count == 1 else context.make_tuple(builder, sig.return_type, values)

        return (U32 if count == 1 else types.UniTuple(U32, count))(ndim), codegen

    typed.__name__ = typed.__qualname__ = name
    return _named(name, intrinsic(typed))


def _position(builder, axis):
    block, size, thread = (nvvmutils.call_sreg(builder, f"{register}.{axis}") for register in ("ctaid", "ntid", "tid"))
    return builder.add(builder.mul(block, size), thread)


def _extent(builder, axis):
    return builder.mul(*(nvvmutils.call_sreg(builder, f"{register}.{axis}") for register in ("ntid", "nctaid")))


grid, gridsize = _along_axes("grid", _position), _along_axes("gridsize", _extent)


# --- Arrays -----------------------------------------------------------------------------------------------------------


def _of_array(name, returned, compute):
    """An intrinsic of one array. returned(array): the type of its result."""

    def typed(typingctx, array):
        if not isinstance(array, types.Array):
            raise TypingError(f"u32.{name}: array is {array}; it must be an array")

        def codegen(context, builder, sig, args):
            struct = context.make_array(sig.args[0])(context, builder, args[0])
            return compute(context, builder, sig.return_type, struct)

        return returned(array)(array), codegen

    typed.__name__ = typed.__qualname__ = name
    return _named(name, intrinsic(typed))


def _shape(context, builder, returned, array):
    extents = cgutils.unpack_tuple(builder, array.shape, returned.count)
    return context.make_tuple(builder, returned, [builder.trunc(extent, I32) for extent in extents])


shape = _of_array("shape", lambda array: types.UniTuple(U32, array.ndim), _shape)
size = _of_array("size", lambda array: U32, lambda context, builder, returned, array: builder.trunc(array.nitems, I32))


# --- range ------------------------------------------------------------------------------------------------------------


class _Iterator(types.SimpleIteratorType):
    def __init__(self):
        super().__init__("u32.range_iterator", U32)


class _Range(types.SimpleIterableType):
    def __init__(self):
        super().__init__("u32.range", _Iterator())


@register_model(_Range)
class _RangeModel(models.StructModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, [(name, U32) for name in ("start", "stop", "step")])


@register_model(_Iterator)
class _IteratorModel(models.StructModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, [("current", types.EphemeralPointer(U32)), ("stop", U32), ("step", U32)])


def range(*args):
    raise TypeError("u32.range() can be called only inside a kernel or a device function")


class _RangeTyping(AbstractTemplate):
    """Count in 32 bits, as `for (unsigned k = ...)` does: LLVM unrolls no loop in steps whose end it does not know.
    In 64 bits it did, and registers for addresses cost occupancy (paged_decode_split: 137, and 1.23 times the time with
    128). Where unrolling pays, a kernel says `range`, which counts in 64 bits."""

    key = range

    def generic(self, args, kws):
        if not 1 <= len(args) <= 3 or not all(isinstance(types.unliteral(arg), types.Integer) for arg in args):
            return None
        return signature(_Range(), *[U32] * len(args))


typing.register_global(_named("range", range), types.Function(_RangeTyping))


@lowering.lower(range, U32)
@lowering.lower(range, U32, U32)
@lowering.lower(range, U32, U32, U32)
def _make_range(context, builder, sig, args):
    struct = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    struct.start = args[0] if len(args) > 1 else I32(0)
    struct.stop = args[min(1, len(args) - 1)]
    struct.step = args[2] if len(args) > 2 else I32(1)
    return struct._getvalue()


@lowering.lower("getiter", _Range)
def _iterate(context, builder, sig, args):
    source = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
    iterator = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    iterator.current = cgutils.alloca_once_value(builder, source.start)
    iterator.stop, iterator.step = source.stop, source.step
    return iterator._getvalue()


@lowering.lower("iternext", _Iterator)
@iternext_impl(RefType.UNTRACKED)
def _next(context, builder, sig, args, result):
    iterator = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
    current = builder.load(iterator.current)
    result.set_valid(builder.icmp_unsigned("<", current, iterator.stop))
    result.yield_(current)
    # Also after the last round: a branch would stay in every round, and keep LLVM from counting them.
    builder.store(builder.add(current, iterator.step), iterator.current)


missing = set(cpu_u32.NAMES) - set(globals())
assert not missing, f"labkit.simt.u32 names what is not here: {sorted(missing)}"
