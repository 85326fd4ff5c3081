"""What labkit.ptx's intrinsics do in compiled kernels: 128-bit memory, packing, cp.async, ldmatrix and mma.sync.

Functions that touch memory take `err, t, b, site` last, as those of lowlevel.py do. The fault record says in err[ASYNC]
where the queues of cp.async begin: one for each thread, QUEUE_BYTES long, of copies that were started. Copies move at
the cp_async_wait that covers them, not before; a thread with CAPACITY copies under way completes its oldest one when it
starts another.

The products of whole warps are Numba functions of their own, cached beside this file: kernels share them.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, register_jitable

from labkit.simt.half import float_to_half, half_to_float
from labkit.simt.lowlevel import (
    ASYNC,
    COPY_SIZE,
    MISALIGNED,
    WARP_PART,
    WIDE_BOUNDS,
    _fail,
    _where,
    fail,
    shared_function,
)

CAPACITY = 64
_ENTRY = 32  # bytes: target, source, sizes, group
QUEUE_BYTES = 24 + CAPACITY * _ENTRY  # first, end, committed groups; entries
_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_WHOLE = np.uint32(0xFFFFFFFF)


def _i64(value):
    return ir.Constant(_I64, value)


# ---------------------------------------------------------------- addresses


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


def _address(context, builder, array_type, array, index_type, index, size, alignment, err_type, err, where):
    """Emit: the address (i64) of element `index`, from which `size` (i64) bytes are used, after both checks."""
    struct = context.make_array(array_type)(context, builder, array)
    index = context.cast(builder, index, index_type, types.int64 if index_type.signed else types.uint64)
    itemsize = _i64(_itemsize(array_type))
    count = builder.udiv(builder.add(size, builder.sub(itemsize, _i64(1))), itemsize)
    enough = builder.icmp_signed(">=", struct.nitems, count)
    inside = builder.and_(enough, builder.icmp_unsigned("<=", index, builder.sub(struct.nitems, count)))
    dims = cgutils.unpack_tuple(builder, struct.shape, array_type.ndim)[:4]
    numbers = [builder.add(count, _i64(256 * len(dims))), index, _i64(0), _i64(0), _i64(0), *dims]
    with builder.if_then(builder.not_(inside), likely=False):
        _fail(context, builder, err_type, err, WIDE_BOUNDS, where, numbers)
    address = builder.add(builder.ptrtoint(struct.data, _I64), builder.mul(index, itemsize))
    rest = builder.and_(address, _i64(alignment - 1))
    with builder.if_then(builder.icmp_unsigned("!=", rest, _i64(0)), likely=False):
        _fail(context, builder, err_type, err, MISALIGNED, where, [_i64(alignment), index, rest])
    return address


def _address_of(context, builder, signature, arguments, size, alignment):
    """`_address` for an intrinsic whose arguments are (array, index, ..., err, t, b, site)."""
    where = _where(context, builder, signature.args, arguments)
    place = signature.args[0], arguments[0], signature.args[1], arguments[1]
    err = signature.args[-4], arguments[-4]
    return _address(context, builder, *place, _i64(size), alignment, *err, where)


@intrinsic(prefer_literal=True)
def checked_address(typing_context, array, index, size, alignment, err, t, b, site):
    """The address of an element from which `size` bytes are used."""
    _check_array(array, (1, 2, 4, 8), "elements of 1 to 8 bytes")
    _check_index(index)

    def codegen(context, builder, signature, arguments):
        where = _where(context, builder, signature.args, arguments)
        nbytes = context.cast(builder, arguments[2], signature.args[2], types.int64)
        return _address(context, builder, array, arguments[0], index, arguments[1], nbytes,
                        alignment.literal_value, err, arguments[4], where)  # fmt: skip

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


def _at(builder, address, ty, offset=0):
    return builder.inttoptr(builder.add(address, _i64(offset)), ty.as_pointer())


def _peek(ty, result):
    @intrinsic
    def peek(typing_context, address):
        def codegen(context, builder, signature, arguments):
            value = builder.load(_at(builder, arguments[0], ty))
            return builder.zext(value, _I32) if ty == _I16 else value

        return result(types.int64), codegen

    return peek


peek16, peek32, peek64 = _peek(_I16, types.uint32), _peek(_I32, types.uint32), _peek(_I64, types.int64)


@intrinsic
def poke64(typing_context, address, value):
    def codegen(context, builder, signature, arguments):
        builder.store(arguments[1], _at(builder, arguments[0], _I64))
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


@intrinsic
def address_in(typing_context, scratch, offset):
    """The address of a byte of the scratch memory."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(scratch)(context, builder, arguments[0]).data
        return builder.add(builder.ptrtoint(data, _I64), arguments[1])

    return types.int64(scratch, types.int64), codegen


# ---------------------------------------------------------------- 128 bits at once


def _word(array):
    return array.dtype if array.dtype in (types.float32, types.int32, types.uint32) else types.uint32


_FOUR = ((2, 4), "4-byte types, and 2-byte types, which travel as four uint32 words")


def _load4():
    @intrinsic
    def load(typing_context, array, i, err, t, b, site):
        _check_array(array, *_FOUR)
        _check_index(i)
        word = _word(array)

        def codegen(context, builder, signature, arguments):
            address = _address_of(context, builder, signature, arguments, 16, 16)
            ty = context.get_value_type(word)
            return cgutils.pack_array(builder, [builder.load(_at(builder, address, ty, 4 * k)) for k in range(4)])

        return types.UniTuple(word, 4)(array, i, err, t, b, site), codegen

    return load


def _store4():
    @intrinsic
    def store(typing_context, array, i, x, y, z, w, err, t, b, site):
        _check_array(array, *_FOUR)
        _check_index(i)
        _check_mutable(array)
        word = _word(array)

        def codegen(context, builder, signature, arguments):
            address = _address_of(context, builder, signature, arguments, 16, 16)
            ty = context.get_value_type(word)
            for k, value in enumerate(arguments[2:6]):
                builder.store(value, _at(builder, address, ty, 4 * k))
            return context.get_dummy_value()

        return types.void(array, i, *[word] * 4, err, t, b, site), codegen

    return store


def _check_mutable(array):
    if not array.mutable:
        raise NumbaTypeError("cannot store into a read-only array")


load_global4, load_nc4, load_shared4 = _load4(), _load4(), _load4()
store_global4, store_shared4 = _store4(), _store4()


def _store_pair(convert, dtype):
    @intrinsic
    def store(typing_context, array, i, x, y, err, t, b, site):
        _check_array(array, (2,), "2-byte types")
        _check_index(i)
        _check_mutable(array)

        def codegen(context, builder, signature, arguments):
            address = _address_of(context, builder, signature, arguments, 4, 4)
            builder.store(_pair(builder, convert, arguments[2], arguments[3]), _at(builder, address, _I32))
            return context.get_dummy_value()

        return types.void(array, i, types.float32, types.float32, err, t, b, site), codegen

    return store


# ---------------------------------------------------------------- packing, conversions, approximations


def _to_bf16(builder, value):
    """Emit: the bfloat16 (i16) nearest to a float32, ties to even."""
    bits = builder.bitcast(value, _I32)
    odd = builder.and_(builder.lshr(bits, ir.Constant(_I32, 16)), ir.Constant(_I32, 1))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, ir.Constant(_I32, 0x7FFF))), ir.Constant(_I32, 16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, ir.Constant(_I32, 0x7FFF), rounded), _I16)


def _pair(builder, convert, x, y):
    low, high = (builder.zext(convert(builder, value), _I32) for value in (x, y))
    return builder.or_(low, builder.shl(high, ir.Constant(_I32, 16)))


store_global_half2, store_global_bf162 = _store_pair(float_to_half, "float16"), _store_pair(_to_bf16, "uint16")


def _pack(convert):
    @intrinsic
    def pack(typing_context, x, y):
        def codegen(context, builder, signature, arguments):
            return _pair(builder, convert, *arguments)

        return types.uint32(types.float32, types.float32), codegen

    return pack


def _from_bf16(builder, half):
    return builder.bitcast(builder.shl(builder.zext(half, _I32), ir.Constant(_I32, 16)), _F32)


def _unpack(convert):
    @intrinsic
    def unpack(typing_context, word):
        def codegen(context, builder, signature, arguments):
            halves = [builder.trunc(builder.lshr(arguments[0], ir.Constant(_I32, k)), _I16) for k in (0, 16)]
            return cgutils.pack_array(builder, [convert(builder, half) for half in halves])

        return types.UniTuple(types.float32, 2)(types.uint32), codegen

    return unpack


pack_half2, pack_bf162 = _pack(float_to_half), _pack(_to_bf16)
unpack_half2, unpack_bf162 = _unpack(half_to_float), _unpack(_from_bf16)


def _unary(operand, result, emit):
    @intrinsic
    def operation(typing_context, x):
        return result(operand), lambda context, builder, signature, arguments: emit(builder, arguments[0])

    return operation


def _round_to_tf32(builder, value):
    """Emit: the bits of a float32 rounded to 10 bits of mantissa, ties away from zero."""
    bits = builder.bitcast(value, _I32)
    rounded = builder.and_(builder.add(bits, ir.Constant(_I32, 0x1000)), ir.Constant(_I32, 0xFFFFE000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.select(is_nan, ir.Constant(_I32, 0x7FFFFFFF), rounded)


def _flush(builder, value):
    """Emit: the value, or a zero of its sign if it is subnormal."""
    bits = builder.bitcast(value, _I32)
    tiny = builder.icmp_unsigned("==", builder.and_(bits, ir.Constant(_I32, 0x7F800000)), ir.Constant(_I32, 0))
    return builder.bitcast(builder.select(tiny, builder.and_(bits, ir.Constant(_I32, 0x80000000)), bits), _F32)


float_bits = _unary(types.float32, types.uint32, lambda builder, x: builder.bitcast(x, _I32))
bits_float = _unary(types.uint32, types.float32, lambda builder, x: builder.bitcast(x, _F32))
to_tf32 = _unary(types.float32, types.uint32, _round_to_tf32)
flush = _unary(types.float32, types.float32, _flush)
rcp_approx = _unary(types.float32, types.float32, lambda builder, x: _flush(
    builder, builder.fdiv(ir.Constant(_F32, 1), _flush(builder, x))))  # fmt: skip


@register_jitable
def tanh_approx(x):
    return np.float32(math.tanh(np.float32(x)))


@register_jitable
def exp2_approx(x):
    return flush(np.float32(np.exp2(flush(x))))


# ---------------------------------------------------------------- cp.async


@shared_function
def complete_oldest(queue):
    first = peek64(queue)
    entry = queue + 24 + first % CAPACITY * _ENTRY
    target, sizes = peek64(entry), peek64(entry + 16)
    size, valid = sizes >> 8, sizes & 255
    if valid:
        move_bytes(target, peek64(entry + 8), valid)
    if valid < size:
        clear_bytes(target + valid, size - valid)
    poke64(queue, first + 1)


@shared_function
def start_copy(queue, target, source, size, valid):
    end = peek64(queue + 8)
    if end - peek64(queue) == CAPACITY:
        complete_oldest(queue)
    entry = queue + 24 + end % CAPACITY * _ENTRY
    poke64(entry, target)
    poke64(entry + 8, source)
    poke64(entry + 16, size << 8 | valid)
    poke64(entry + 24, peek64(queue + 16))
    poke64(queue + 8, end + 1)


@shared_function
def wait_copies(queue, newest):
    reached = peek64(queue + 16) - newest
    end = peek64(queue + 8)
    while peek64(queue) < end:
        if peek64(queue + 24 + peek64(queue) % CAPACITY * _ENTRY + 24) >= reached:
            break
        complete_oldest(queue)


@shared_function
def clear_queues(err, threads):
    """No copies under way: the state in which a block begins."""
    for t in range(threads):
        queue = err[ASYNC] + t * QUEUE_BYTES
        poke64(queue, 0)
        poke64(queue + 8, 0)
        poke64(queue + 16, 0)


@register_jitable
def cp_async_16(shared, i, array, j, valid, err, t, b, site, other):
    size = np.int64(valid)
    if size < 0 or size > 16:
        fail(COPY_SIZE, err, t, b, other, size, 16, 0)
    target = checked_address(shared, i, 16, 16, err, t, b, site)
    source = np.int64(0)
    if size > 0:
        source = checked_address(array, j, size, 16, err, t, b, other)
    start_copy(err[ASYNC] + t * QUEUE_BYTES, target, source, 16, size)


@register_jitable
def cp_async_4(shared, i, array, j, valid, err, t, b, site, other):
    size = np.int64(valid)
    if size < 0 or size > 4:
        fail(COPY_SIZE, err, t, b, other, size, 4, 0)
    target = checked_address(shared, i, 4, 4, err, t, b, site)
    source = np.int64(0)
    if size > 0:
        source = checked_address(array, j, size, 4, err, t, b, other)
    start_copy(err[ASYNC] + t * QUEUE_BYTES, target, source, 4, size)


@register_jitable
def cp_async_commit(err, t, b, site):
    queue = err[ASYNC] + t * QUEUE_BYTES
    poke64(queue + 16, peek64(queue + 16) + 1)


@register_jitable
def cp_async_wait(n, err, t, b, site):
    wait_copies(err[ASYNC] + t * QUEUE_BYTES, n)


# ---------------------------------------------------------------- ldmatrix and mma.sync: all warps of a block at once
#
# active[w]: a bit for each lane of warp w that is here; arrays hold an entry for each lane of whole warps.


@shared_function
def whole_warps(active, padded, b, err, site):
    """Fault unless all the lanes of a warp are here, or none."""
    for w in range(active.size):
        bits = active[w]
        if bits != 0 and bits != _WHOLE:
            lane = 0
            while (bits >> np.uint32(lane)) & np.uint32(1) == 0:
                lane += 1
            fail(WARP_PART, err, w * 32 % padded + lane, b + w * 32 // padded, site, bits, 0, 0)


@shared_function
def ldmatrix(addresses, active, r0, r1, r2, r3, count, trans):
    for w in range(active.size):
        if active[w] == 0:
            continue
        for m in range(count):
            rows = w * 32 + 8 * m
            for lane in range(32):
                g, q = lane >> 2, lane & 3
                if trans:
                    word = peek16(addresses[rows + 2 * q] + 2 * g)
                    word |= peek16(addresses[rows + 2 * q + 1] + 2 * g) << np.uint32(16)
                else:
                    word = peek32(addresses[rows + g] + 4 * q)
                target = r0 if m == 0 else r1 if m == 1 else r2 if m == 2 else r3
                target[w * 32 + lane] = word


@shared_function
def unpack_word(word, kind):
    """The two numbers in a word of A or B: kind 0 float16, 1 bfloat16."""
    return unpack_half2(word) if kind == 0 else unpack_bf162(word)


@shared_function
def load_operands(kind, start, a0, a1, a2, a3, b0, b1, a, b):
    """The fragments of one warp -> a (16 x k) and b (k x 8), k = 16; for tf32 (kind 2) k = 8."""
    for lane in range(32):
        t = start + lane
        g, q = lane >> 2, lane & 3
        if kind == 2:
            mask = np.uint32(0xFFFFE000)
            a[g, q], a[g + 8, q] = bits_float(a0[t] & mask), bits_float(a1[t] & mask)
            a[g, q + 4], a[g + 8, q + 4] = bits_float(a2[t] & mask), bits_float(a3[t] & mask)
            b[q, g], b[q + 4, g] = bits_float(b0[t] & mask), bits_float(b1[t] & mask)
        else:
            a[g, 2 * q], a[g, 2 * q + 1] = unpack_word(a0[t], kind)
            a[g + 8, 2 * q], a[g + 8, 2 * q + 1] = unpack_word(a1[t], kind)
            a[g, 2 * q + 8], a[g, 2 * q + 9] = unpack_word(a2[t], kind)
            a[g + 8, 2 * q + 8], a[g + 8, 2 * q + 9] = unpack_word(a3[t], kind)
            b[2 * q, g], b[2 * q + 1, g] = unpack_word(b0[t], kind)
            b[2 * q + 8, g], b[2 * q + 9, g] = unpack_word(b1[t], kind)


@shared_function
def multiply(a, b, c, depth):
    for row in range(16):
        for k in range(depth):
            x = a[row, k]
            for col in range(8):
                c[row, col] += x * b[k, col]


@shared_function
def mma_f32(kind, active, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """D = A @ B + C for every warp that is here; D is left in c0 to c3."""
    a, b = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
    c = np.empty((16, 8), np.float32)
    depth = 8 if kind == 2 else 16
    for w in range(active.size):
        if active[w] == 0:
            continue
        load_operands(kind, w * 32, a0, a1, a2, a3, b0, b1, a, b)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c[g, 2 * q], c[g, 2 * q + 1] = c0[t], c1[t]
            c[g + 8, 2 * q], c[g + 8, 2 * q + 1] = c2[t], c3[t]
        multiply(a, b, c, depth)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c0[t], c1[t] = c[g, 2 * q], c[g, 2 * q + 1]
            c2[t], c3[t] = c[g + 8, 2 * q], c[g + 8, 2 * q + 1]


@shared_function
def mma_f16(active, a0, a1, a2, a3, b0, b1, c0, c1):
    """The same with float16 sums: C and D are two words for each lane, D rounded once."""
    a, b = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32)
    c = np.empty((16, 8), np.float32)
    for w in range(active.size):
        if active[w] == 0:
            continue
        load_operands(0, w * 32, a0, a1, a2, a3, b0, b1, a, b)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c[g, 2 * q], c[g, 2 * q + 1] = unpack_half2(c0[t])
            c[g + 8, 2 * q], c[g + 8, 2 * q + 1] = unpack_half2(c1[t])
        multiply(a, b, c, 16)
        for lane in range(32):
            t, g, q = w * 32 + lane, lane >> 2, lane & 3
            c0[t] = pack_half2(c[g, 2 * q], c[g, 2 * q + 1])
            c1[t] = pack_half2(c[g + 8, 2 * q], c[g + 8, 2 * q + 1])


HELPERS = (
    "load_global4", "load_nc4", "load_shared4", "store_global4", "store_shared4", "store_global_half2",
    "store_global_bf162", "pack_half2", "pack_bf162", "unpack_half2", "unpack_bf162", "float_bits", "bits_float",
    "to_tf32", "tanh_approx", "exp2_approx", "rcp_approx", "cp_async_16", "cp_async_4", "cp_async_commit",
    "cp_async_wait", "row_address", "address_in", "clear_queues", "whole_warps", "ldmatrix", "mma_f32", "mma_f16",
)  # fmt: skip
