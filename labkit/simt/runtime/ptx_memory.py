"""Addresses that PTX intrinsics use, checked for bounds and alignment; 128-bit loads and stores, stores of pairs."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic

from labkit.simt.runtime.fault_record import MISALIGNED, WIDE_BOUNDS, emit_fail, emit_location
from labkit.simt.runtime.float16 import float_to_half
from labkit.simt.runtime.ptx_values import emit_pair, float_to_bf16

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


def _i64(value):
    return ir.Constant(_I64, value)


def _check_array(array, itemsizes, allowed):
    if not isinstance(array, types.Array):
        raise NumbaTypeError(f"an array is needed, not {array}")
    if array.layout != "C":
        raise NumbaTypeError(f"{array} is not C-contiguous: pass the whole array, and a flat index")
    if isinstance(array.dtype, types.Record) or array.dtype.bitwidth // 8 not in itemsizes:
        raise NumbaTypeError(f"an array of {array.dtype} cannot be used here; allowed are {allowed}")


def _check_index(index):
    if not isinstance(index, types.Integer):
        raise NumbaTypeError(f"a flat index must be an integer, not {index}")


def _itemsize(array):
    return array.dtype.bitwidth // 8


def _address(context, builder, array_type, array, index_type, index, size, alignment, err_type, err, location):
    """Emit: the address (i64) of element `index`, from which `size` (i64) bytes are used, after both checks."""
    struct = context.make_array(array_type)(context, builder, array)
    index = context.cast(builder, index, index_type, types.int64 if index_type.signed else types.uint64)
    itemsize = _i64(_itemsize(array_type))
    count = builder.udiv(builder.add(size, builder.sub(itemsize, _i64(1))), itemsize)
    enough = builder.icmp_signed(">=", struct.nitems, count)
    inside = builder.and_(enough, builder.icmp_unsigned("<=", index, builder.sub(struct.nitems, count)))
    dims = cgutils.unpack_tuple(builder, struct.shape, array_type.ndim)[:4]
    details = [builder.add(count, _i64(256 * len(dims))), index, _i64(0), _i64(0), _i64(0), *dims]
    with builder.if_then(builder.not_(inside), likely=False):
        emit_fail(context, builder, err_type, err, WIDE_BOUNDS, location, details)
    address = builder.add(builder.ptrtoint(struct.data, _I64), builder.mul(index, itemsize))
    misalignment = builder.and_(address, _i64(alignment - 1))
    with builder.if_then(builder.icmp_unsigned("!=", misalignment, _i64(0)), likely=False):
        emit_fail(context, builder, err_type, err, MISALIGNED, location, [_i64(alignment), index, misalignment])
    return address


def _address_of(context, builder, signature, arguments, size, alignment):
    """`_address` for an intrinsic whose arguments are (array, index, ..., err, t, b, site)."""
    location = emit_location(context, builder, signature.args, arguments)
    element = signature.args[0], arguments[0], signature.args[1], arguments[1]
    err = signature.args[-4], arguments[-4]
    return _address(context, builder, *element, _i64(size), alignment, *err, location)


@intrinsic(prefer_literal=True)
def checked_address(typing_context, array, index, size, alignment, err, t, b, site):
    """The address of an element from which `size` bytes are used."""
    _check_array(array, (1, 2, 4, 8), "elements of 1 to 8 bytes")
    _check_index(index)

    def codegen(context, builder, signature, arguments):
        location = emit_location(context, builder, signature.args, arguments)
        nbytes = context.cast(builder, arguments[2], signature.args[2], types.int64)
        return _address(context, builder, array, arguments[0], index, arguments[1], nbytes,
                        alignment.literal_value, err, arguments[4], location)  # fmt: skip

    return types.int64(array, index, size, alignment, err, t, b, site), codegen


@intrinsic(prefer_literal=True)
def row_address(typing_context, array, index, matrices, err, t, b, site):
    """The address that a lane passes to ldmatrix; 0, and unchecked, for lanes beyond the last matrix."""
    _check_array(array, (2, 4), "2-byte types (4-byte types: each half of an element counts as one)")
    _check_index(index)

    def codegen(context, builder, signature, arguments):
        result = cgutils.alloca_once_value(builder, _i64(0))
        lane = builder.and_(context.cast(builder, arguments[4], signature.args[4], types.int64), _i64(31))
        with builder.if_then(builder.icmp_unsigned("<", lane, _i64(8 * matrices.literal_value))):
            builder.store(_address_of(context, builder, signature, arguments, 16, 16), result)
        return builder.load(result)

    return types.int64(array, index, matrices, err, t, b, site), codegen


@intrinsic
def address_in(typing_context, scratch, offset):
    """The address of a byte of the scratch memory."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(scratch)(context, builder, arguments[0]).data
        return builder.add(builder.ptrtoint(data, _I64), arguments[1])

    return types.int64(scratch, types.int64), codegen


# ---------------------------------------------------------------- bytes at an address


def _pointer(builder, address, ty, offset=0):
    return builder.inttoptr(builder.add(address, _i64(offset)), ty.as_pointer())


def _peek(ty, result):
    @intrinsic
    def peek(typing_context, address):
        def codegen(context, builder, signature, arguments):
            value = builder.load(_pointer(builder, arguments[0], ty))
            return builder.zext(value, _I32) if ty == _I16 else value

        return result(types.int64), codegen

    return peek


peek16, peek32, peek64 = _peek(_I16, types.uint32), _peek(_I32, types.uint32), _peek(_I64, types.int64)


@intrinsic
def poke64(typing_context, address, value):
    def codegen(context, builder, signature, arguments):
        builder.store(arguments[1], _pointer(builder, arguments[0], _I64))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def move_bytes(typing_context, target, source, size):
    def codegen(context, builder, signature, arguments):
        target, source = (builder.inttoptr(a, ir.IntType(8).as_pointer()) for a in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def clear_bytes(typing_context, target, size):
    def codegen(context, builder, signature, arguments):
        cgutils.memset(builder, builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()), arguments[1], 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


# ---------------------------------------------------------------- 128 bits at once, and pairs


def _word(array):
    return array.dtype if array.dtype in (types.float32, types.int32, types.uint32) else types.uint32


_FOUR = ((2, 4), "4-byte types, and 2-byte types, which travel as four uint32 words")


@intrinsic
def load_global4(typing_context, array, i, err, t, b, site):
    _check_array(array, *_FOUR)
    _check_index(i)
    word = _word(array)

    def codegen(context, builder, signature, arguments):
        address = _address_of(context, builder, signature, arguments, 16, 16)
        ty = context.get_value_type(word)
        return cgutils.pack_array(builder, [builder.load(_pointer(builder, address, ty, 4 * k)) for k in range(4)])

    return types.UniTuple(word, 4)(array, i, err, t, b, site), codegen


def _store_words(array, i, count, allowed, *where):
    """The signature and the code of a store of `count` words at once."""
    _check_array(array, *allowed)
    _check_index(i)
    _check_mutable(array)
    word = _word(array)

    def codegen(context, builder, signature, arguments):
        address = _address_of(context, builder, signature, arguments, 4 * count, 4 * count)
        ty = context.get_value_type(word)
        for k, value in enumerate(arguments[2 : 2 + count]):
            builder.store(value, _pointer(builder, address, ty, 4 * k))
        return context.get_dummy_value()

    return types.void(array, i, *[word] * count, *where), codegen


@intrinsic
def store_global4(typing_context, array, i, x, y, z, w, err, t, b, site):
    return _store_words(array, i, 4, _FOUR, err, t, b, site)


@intrinsic
def store_global2(typing_context, array, i, x, y, err, t, b, site):
    return _store_words(array, i, 2, ((4,), "4-byte types"), err, t, b, site)


def _store_pair(convert, dtype):
    @intrinsic
    def store(typing_context, array, i, x, y, err, t, b, site):
        _check_array(array, (2,), "2-byte types")
        _check_index(i)
        _check_mutable(array)

        def codegen(context, builder, signature, arguments):
            address = _address_of(context, builder, signature, arguments, 4, 4)
            builder.store(emit_pair(builder, convert, arguments[2], arguments[3]), _pointer(builder, address, _I32))
            return context.get_dummy_value()

        return types.void(array, i, types.float32, types.float32, err, t, b, site), codegen

    return store


def _check_mutable(array):
    if not array.mutable:
        raise NumbaTypeError("cannot store into a read-only array")


load_nc4 = load_shared4 = load_global4
store_shared4 = store_global4
store_global_half2, store_global_bf162 = _store_pair(float_to_half, "float16"), _store_pair(float_to_bf16, "uint16")
