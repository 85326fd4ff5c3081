"""What the generated code calls: checked loads and stores, atomics, bit operations, warp collectives, faults.

All are Numba CPU functions. Those that touch memory take `err, t, b, site` last: the fault record, the index of the
thread in its block, the index of the block in the grid, and the index of the source line in the module's SITES.

The fault record `err` is an int64 array of RECORD_SIZE: err[ABORT] is set from outside to stop the kernel, err[ASYNC]
says where the queues of cp.async are (ptx_compiled.py); the rest is written by the first fault. A fault raises Stop,
which the launcher turns into an error that a person can read.
"""

import contextlib
import functools
import hashlib
import operator
from pathlib import Path

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, overload, register_jitable
from numba.np.arrayobj import load_item, populate_array, store_item

ABORT, CODE, SITE, THREAD, BLOCK, COUNT, INDEX, SHAPE, DONE, ASYNC = 0, 1, 2, 3, 4, 5, 6, 10, 14, 15
RECORD_SIZE = 16
MAX_RECORDED_AXES = SHAPE - INDEX

OUT_OF_BOUNDS, BARRIER, WARP_MASK, WARP_SOURCE, WARP_SELF, ASSERTION, ABORTED = range(1, 8)
WIDE_BOUNDS, MISALIGNED, COPY_SIZE, WARP_PART = range(8, 12)


def shared_function(function):
    """A Numba function that kernels share: compiled once, and cached beside this file where that is possible."""
    options = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    try:
        made = njit(**options, cache=True)(function)
        with contextlib.suppress(AttributeError):  # what they call stands in these files, not in one alone
            made._cache._cache_file._source_stamp = _own_files()
    except RuntimeError:  # no place for Numba's cache
        made = njit(**options)(function)
    return without_literals(made)


@functools.cache
def _own_files():
    """A digest of the files that shared functions are made from."""
    here = Path(__file__).parent
    sources = [(here / f"{name}.py").read_bytes() for name in ("half", "lowlevel", "ptx_compiled")]
    return hashlib.sha256(b"".join(sources)).hexdigest()


def without_literals(dispatcher):
    """Compiled code calls the function with the types of its arguments: not once more for each constant."""
    template = dispatcher.get_call_template

    def get_call_template(args, kws):
        return template(tuple(map(types.unliteral, args)), {name: types.unliteral(ty) for name, ty in kws.items()})

    dispatcher.get_call_template = get_call_template
    return dispatcher


class Stop(Exception):
    """Raised by compiled code after it has written the fault record."""


_I64 = ir.IntType(64)


def _fail(context, builder, err_type, err, code, where, numbers=()):
    """Emit: write the fault record, raise Stop. `where` is (t, b, site); `numbers` fill the record from COUNT on."""
    name = "labkit_simt_fail"
    argument_types = [_I64.as_pointer()] + [_I64] * (4 + SHAPE + MAX_RECORDED_AXES - COUNT)
    function = builder.module.globals.get(name)
    if function is None:  # one cold function per module keeps the checks small
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), argument_types), name)
        function.linkage = "internal"
        for attribute in ("noinline", "cold", "nounwind"):
            function.attributes.add(attribute)
        inner = ir.IRBuilder(function.append_basic_block())
        slots = [CODE, SITE, THREAD, BLOCK, *range(COUNT, SHAPE + MAX_RECORDED_AXES)]
        for slot, value in zip(slots, function.args[1:], strict=True):
            inner.store(value, inner.gep(function.args[0], [ir.Constant(_I64, slot)]))
        inner.ret_void()
    t, b, site = where
    data = context.make_array(err_type)(context, builder, err).data
    padded = [ir.Constant(_I64, 0)] * (SHAPE + MAX_RECORDED_AXES - COUNT)
    padded[: len(numbers)] = numbers
    builder.call(function, [data, ir.Constant(_I64, code), site, t, b, *padded])
    context.call_conv.return_user_exc(builder, Stop, ())


def _where(context, builder, argument_types, arguments):
    """The last three arguments (t, b, site) as 64-bit integers."""
    pairs = zip(argument_types[-3:], arguments[-3:], strict=True)
    return [context.cast(builder, value, ty, types.int64) for ty, value in pairs]


def _parts(index_type):
    return tuple(index_type.types) if isinstance(index_type, types.BaseTuple) else (index_type,)


def _are_integers(parts):
    return all(isinstance(part, types.Integer) for part in parts)


def _unpack_index(builder, index_type, index):
    if isinstance(index_type, types.BaseTuple):
        return [builder.extract_value(index, k) for k in range(len(index_type.types))]
    return [index]


def _checked(context, builder, dims, parts, values, err_type, err, where):
    """Emit the bounds check of integer indices; return them as non-negative intp values.

    As on a GPU under Numba, a signed index below zero counts from the end.
    """
    raw, wrapped = [], []
    for part, value, dim in zip(parts, values, dims, strict=False):
        value = context.cast(builder, value, part, types.int64 if part.signed else types.uint64)
        raw.append(value)
        if part.signed:
            negative = builder.icmp_signed("<", value, ir.Constant(_I64, 0))
            value = builder.select(negative, builder.add(value, dim), value)
        wrapped.append(value)
    inside = cgutils.true_bit
    for value, dim in zip(wrapped, dims, strict=False):
        inside = builder.and_(inside, builder.icmp_unsigned("<", value, dim))
    with builder.if_then(builder.not_(inside), likely=False):
        axes = min(len(raw), MAX_RECORDED_AXES)
        zeros = [ir.Constant(_I64, 0)] * (MAX_RECORDED_AXES - axes)
        shape = list(dims[:MAX_RECORDED_AXES])
        numbers = [ir.Constant(_I64, len(shape) * 16 + axes), *raw[:axes], *zeros, *shape]
        _fail(context, builder, err_type, err, OUT_OF_BOUNDS, where, numbers)
    return wrapped


def _element_pointer(context, builder, array_type, array, index_type, index, err_type, err, where):
    values = _unpack_index(builder, index_type, index)
    dims = cgutils.unpack_tuple(builder, array.shape, array_type.ndim)
    strides = cgutils.unpack_tuple(builder, array.strides, array_type.ndim)
    values = _checked(context, builder, dims, _parts(index_type), values, err_type, err, where)
    return cgutils.get_item_pointer2(context, builder, array.data, dims, strides, array_type.layout, values)


def _check_index(index_type):
    for part in _parts(index_type):
        if not isinstance(part, (types.Integer, types.SliceType, types.EllipsisType, types.NoneType)):
            raise NumbaTypeError(f"an index must be an integer or a slice, not {part}")


def _is_element(array_type, index_type):
    parts = _parts(index_type)
    return _are_integers(parts) and len(parts) == array_type.ndim and not isinstance(array_type.dtype, types.Record)


@intrinsic(prefer_literal=True)
def load(typing_context, array, index, err, t, b, site):
    """array[index], checked. Also tuples, and views (fewer indices than axes)."""
    if isinstance(array, types.Array) and _is_element(array, index):

        def element(context, builder, signature, arguments):
            struct = context.make_array(array)(context, builder, arguments[0])
            where = _where(context, builder, signature.args, arguments)
            pointer = _element_pointer(context, builder, array, struct, index, arguments[1], err, arguments[2], where)
            return load_item(context, builder, array, pointer)

        return array.dtype(array, index, err, t, b, site), element

    if isinstance(array, types.Array):
        _check_index(index)

    if isinstance(array, types.BaseTuple) and isinstance(index, types.IntegerLiteral):
        position = index.literal_value
        if not -len(array.types) <= position < len(array.types):
            raise NumbaTypeError(f"tuple index {position} is out of range for a tuple of {len(array.types)}")
        position %= len(array.types)

        def item(context, builder, signature, arguments):
            value = builder.extract_value(arguments[0], position)
            context.nrt and context.nrt.incref(builder, array.types[position], value)
            return value

        return array.types[position](array, index, err, t, b, site), item

    if isinstance(array, (types.Number, types.Boolean)):
        raise NumbaTypeError(f"a number ({array}) has no elements to index: are the parameters in the right order")
    function = typing_context.resolve_value_type(operator.getitem)
    resolved = function.get_call_type(typing_context, (array, types.unliteral(index)), {})
    parts = _parts(index)

    def general(context, builder, signature, arguments):
        if isinstance(array, types.Array) and _are_integers(parts):
            struct = context.make_array(array)(context, builder, arguments[0])
            dims = cgutils.unpack_tuple(builder, struct.shape, array.ndim)
            where = _where(context, builder, signature.args, arguments)
            values = _unpack_index(builder, index, arguments[1])
            _checked(context, builder, dims, parts, values, err, arguments[2], where)
        cast_index = context.cast(builder, arguments[1], index, resolved.args[1])
        return context.get_function(function, resolved)(builder, (arguments[0], cast_index))

    return resolved.return_type(array, index, err, t, b, site), general


@intrinsic
def view_parts(typing_context, array):
    """(address, shape..., strides...) of an array: what a thread keeps of a view across a barrier."""
    count = 1 + 2 * array.ndim

    def codegen(context, builder, signature, arguments):
        struct = context.make_array(array)(context, builder, arguments[0])
        shape = cgutils.unpack_tuple(builder, struct.shape, array.ndim)
        strides = cgutils.unpack_tuple(builder, struct.strides, array.ndim)
        return cgutils.pack_array(builder, [builder.ptrtoint(struct.data, _I64), *shape, *strides])

    return types.UniTuple(types.int64, count)(array), codegen


@intrinsic(prefer_literal=True)
def view_of(typing_context, parts, dtype, layout, mutable):
    """The array with these parts. It owns nothing."""
    ndim = (parts.count - 1) // 2
    array = types.Array(dtype.dtype, ndim, layout.literal_value, readonly=not mutable.literal_value)

    def codegen(context, builder, signature, arguments):
        values = cgutils.unpack_tuple(builder, arguments[0], parts.count)
        result = context.make_array(array)(context, builder)
        data = builder.inttoptr(values[0], result.data.type)
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        populate_array(result, data, values[1 : 1 + ndim], values[1 + ndim :], itemsize, meminfo=None)
        return result._getvalue()

    return array(parts, dtype, layout, mutable), codegen


@intrinsic(prefer_literal=True)
def store(typing_context, array, index, value, err, t, b, site):
    """array[index] = value, checked; the value is cast to the array's dtype."""
    if not isinstance(array, types.Array):
        raise NumbaTypeError(f"{array} has no elements to assign to: are the parameters in the right order")
    if not array.mutable:
        raise NumbaTypeError("cannot store into a read-only array")
    _check_index(index)
    value = types.unliteral(value)
    if _is_element(array, index):
        if typing_context.can_convert(value, array.dtype) is None:
            raise NumbaTypeError(f"cannot store a value of type {value} into an array of {array.dtype}")

        def element(context, builder, signature, arguments):
            struct = context.make_array(array)(context, builder, arguments[0])
            where = _where(context, builder, signature.args, arguments)
            pointer = _element_pointer(context, builder, array, struct, index, arguments[1], err, arguments[3], where)
            store_item(context, builder, array, context.cast(builder, arguments[2], value, array.dtype), pointer)
            return context.get_dummy_value()

        return types.void(array, index, value, err, t, b, site), element

    function = typing_context.resolve_value_type(operator.setitem)
    resolved = function.get_call_type(typing_context, (array, types.unliteral(index), value), {})
    parts = _parts(index)

    def general(context, builder, signature, arguments):
        if _are_integers(parts):
            struct = context.make_array(array)(context, builder, arguments[0])
            dims = cgutils.unpack_tuple(builder, struct.shape, array.ndim)
            where = _where(context, builder, signature.args, arguments)
            values = _unpack_index(builder, index, arguments[1])
            _checked(context, builder, dims, parts, values, err, arguments[3], where)
        cast_index = context.cast(builder, arguments[1], index, resolved.args[1])
        cast_value = context.cast(builder, arguments[2], value, resolved.args[2])
        context.get_function(function, resolved)(builder, (arguments[0], cast_index, cast_value))
        return context.get_dummy_value()

    return types.void(array, index, value, err, t, b, site), general


@intrinsic
def axis(typing_context, array, k, index, err, t, b, site):
    """index, checked against axis k of array: for the integers beside a slice, a[i, 2:5]."""

    def codegen(context, builder, signature, arguments):
        if isinstance(index, types.Integer) and isinstance(array, types.Array):
            struct = context.make_array(array)(context, builder, arguments[0])
            stack = cgutils.alloca_once_value(builder, struct.shape)
            position = context.cast(builder, arguments[1], k, types.int64)
            dim = builder.load(builder.gep(stack, [ir.Constant(ir.IntType(32), 0), position]))
            where = _where(context, builder, signature.args, arguments)
            _checked(context, builder, [dim], [index], [arguments[2]], err, arguments[3], where)
        return arguments[2]

    return index(array, k, index, err, t, b, site), codegen


@intrinsic
def fail(typing_context, code, err, t, b, site, n0, n1, n2):
    """Stop the kernel with this fault code and three numbers."""

    def codegen(context, builder, signature, arguments):
        values = [
            value if ty == err else context.cast(builder, value, ty, types.int64)
            for ty, value in zip(signature.args, arguments, strict=True)
        ]
        code, record, t, b, site, *numbers = values
        data = context.make_array(err)(context, builder, record).data
        # the code after a return needs a block of its own, reachable as far as the builder can tell
        with builder.if_then(cgutils.true_bit):
            slots = (CODE, SITE, THREAD, BLOCK, COUNT, INDEX, INDEX + 1)
            for slot, value in zip(slots, (code, site, t, b, *numbers), strict=True):
                builder.store(value, builder.gep(data, [ir.Constant(_I64, slot)]))
            context.call_conv.return_user_exc(builder, Stop, ())
        return context.get_dummy_value()

    return types.void(code, err, t, b, site, n0, n1, n2), codegen


@intrinsic
def poll(typing_context, err, t, b, site):
    """Stop here if the launcher asks for it. In every loop, so that no kernel runs for ever."""

    def codegen(context, builder, signature, arguments):
        data = context.make_array(err)(context, builder, arguments[0]).data
        flag = builder.load_atomic(data, "monotonic", 8)
        with builder.if_then(builder.icmp_unsigned("!=", flag, ir.Constant(_I64, 0)), likely=False):
            _fail(context, builder, err, arguments[0], ABORTED, _where(context, builder, signature.args, arguments))
        return context.get_dummy_value()

    return types.void(err, t, b, site), codegen


@intrinsic
def carve(typing_context, scratch, offset, shape, dtype):
    """An array of this shape and dtype in the bytes of scratch from offset on. Owns nothing."""
    ndim = len(shape.types) if isinstance(shape, types.BaseTuple) else 1
    array = types.Array(dtype.dtype, ndim, "C")

    def codegen(context, builder, signature, arguments):
        base = context.make_array(scratch)(context, builder, arguments[0]).data
        start = context.cast(builder, arguments[1], signature.args[1], types.int64)
        result = context.make_array(array)(context, builder)
        data = builder.bitcast(builder.gep(base, [start]), result.data.type)
        parts = zip(_parts(signature.args[2]), _unpack_index(builder, signature.args[2], arguments[2]), strict=True)
        dims = [context.cast(builder, value, ty, types.int64) for ty, value in parts]
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array.dtype)))
        strides = [itemsize]
        for dim in reversed(dims[1:]):
            strides.insert(0, builder.mul(strides[0], dim))
        populate_array(result, data, dims, strides, itemsize, meminfo=None)
        return result._getvalue()

    return array(scratch, offset, shape, dtype), codegen


@intrinsic
def row(typing_context, array, t):
    """array[t] as a view, unchecked and without a reference count: one thread's part of a local array."""
    view = types.Array(array.dtype, array.ndim - 1, "C")

    def codegen(context, builder, signature, arguments):
        source = context.make_array(array)(context, builder, arguments[0])
        dims = cgutils.unpack_tuple(builder, source.shape, array.ndim)
        strides = cgutils.unpack_tuple(builder, source.strides, array.ndim)
        index = context.cast(builder, arguments[1], signature.args[1], types.int64)
        offset = builder.mul(index, strides[0])
        bytes_pointer = builder.bitcast(source.data, ir.IntType(8).as_pointer())
        result = context.make_array(view)(context, builder)
        data = builder.bitcast(builder.gep(bytes_pointer, [offset]), result.data.type)
        populate_array(result, data, dims[1:], strides[1:], source.itemsize, meminfo=None)
        return result._getvalue()

    return view(array, t), codegen


@intrinsic
def poison(typing_context, array):
    """Fill the array's memory with 0xFF: NaN for floats, -1 for integers. Memory that nothing wrote is not zero."""

    def codegen(context, builder, signature, arguments):
        struct = context.make_array(array)(context, builder, arguments[0])
        size = builder.mul(struct.nitems, struct.itemsize)
        data = builder.bitcast(struct.data, ir.IntType(8).as_pointer())
        cgutils.memset(builder, data, size, 0xFF)
        return context.get_dummy_value()

    return types.void(array), codegen


# ---------------------------------------------------------------- atomics


_ATOMIC_32_64 = (types.int32, types.uint32, types.int64, types.uint64)
_ATOMIC_ALL = (*_ATOMIC_32_64, types.float32, types.float64)
_ATOMIC_UNSIGNED = (types.uint32, types.uint64)


def _atomic(name, dtypes, compute):
    """An atomic read-modify-write that returns the old value.

    Blocks of a kernel with atomics run one after another, so that results repeat; plain loads and stores suffice.
    `compute(builder, old, value, dtype)` emits the new value.
    """

    @intrinsic(prefer_literal=True)
    def operation(typing_context, array, index, value, err, t, b, site):
        _check_atomic(typing_context, name, dtypes, array, index, value)

        def codegen(context, builder, signature, arguments):
            struct = context.make_array(array)(context, builder, arguments[0])
            where = _where(context, builder, signature.args, arguments)
            pointer = _element_pointer(context, builder, array, struct, index, arguments[1], err, arguments[3], where)
            old = load_item(context, builder, array, pointer)
            new = compute(builder, old, context.cast(builder, arguments[2], value, array.dtype), array.dtype)
            store_item(context, builder, array, new, pointer)
            return old

        return array.dtype(array, index, value, err, t, b, site), codegen

    return operation


def _check_atomic(typing_context, name, dtypes, array, index, *values):
    if not isinstance(array, types.Array):
        raise NumbaTypeError(f"cuda.atomic.{name}: the first argument must be an array, not {array}")
    if array.dtype not in dtypes:
        allowed = ", ".join(map(str, dtypes))
        raise NumbaTypeError(f"cuda.atomic.{name}: an array of {array.dtype} is not supported; allowed: {allowed}")
    if not array.mutable:
        raise NumbaTypeError(f"cuda.atomic.{name}: the array is read-only")
    if not _is_element(array, index):
        raise NumbaTypeError(f"cuda.atomic.{name}: the index must be {array.ndim} integer(s), one for each axis")
    for value in values:
        if typing_context.can_convert(types.unliteral(value), array.dtype) is None:
            raise NumbaTypeError(f"cuda.atomic.{name}: cannot convert {value} to {array.dtype}")


def _compare(builder, relation, a, b, dtype):
    if isinstance(dtype, types.Float):
        return builder.fcmp_ordered(relation, a, b)
    return (builder.icmp_signed if dtype.signed else builder.icmp_unsigned)(relation, a, b)


def _arithmetic(float_op, int_op):
    def compute(builder, old, value, dtype):
        return getattr(builder, float_op if isinstance(dtype, types.Float) else int_op)(old, value)

    return compute


def _extremum(relation, ignore_nan):
    """max ('>') or min ('<'). Without ignore_nan a NaN on either side wins, with it the other side does."""

    def compute(builder, old, value, dtype):
        chosen = builder.select(_compare(builder, relation, value, old, dtype), value, old)
        if not isinstance(dtype, types.Float):
            return chosen
        nan_old = builder.fcmp_unordered("uno", old, old)
        nan_value = builder.fcmp_unordered("uno", value, value)
        if ignore_nan:
            return builder.select(nan_old, value, chosen)
        return builder.select(nan_value, value, chosen)

    return compute


def _increment(builder, old, value, dtype):
    zero, one = ir.Constant(old.type, 0), ir.Constant(old.type, 1)
    return builder.select(builder.icmp_unsigned(">=", old, value), zero, builder.add(old, one))


def _decrement(builder, old, value, dtype):
    zero, one = ir.Constant(old.type, 0), ir.Constant(old.type, 1)
    wraps = builder.or_(builder.icmp_unsigned("==", old, zero), builder.icmp_unsigned(">", old, value))
    return builder.select(wraps, value, builder.sub(old, one))


atomic_add = _atomic("add", _ATOMIC_ALL, _arithmetic("fadd", "add"))
atomic_sub = _atomic("sub", _ATOMIC_ALL, _arithmetic("fsub", "sub"))
atomic_max = _atomic("max", _ATOMIC_ALL, _extremum(">", ignore_nan=False))
atomic_min = _atomic("min", _ATOMIC_ALL, _extremum("<", ignore_nan=False))
atomic_nanmax = _atomic("nanmax", _ATOMIC_ALL, _extremum(">", ignore_nan=True))
atomic_nanmin = _atomic("nanmin", _ATOMIC_ALL, _extremum("<", ignore_nan=True))
atomic_and_ = _atomic("and_", _ATOMIC_32_64, lambda builder, old, value, dtype: builder.and_(old, value))
atomic_or_ = _atomic("or_", _ATOMIC_32_64, lambda builder, old, value, dtype: builder.or_(old, value))
atomic_xor = _atomic("xor", _ATOMIC_32_64, lambda builder, old, value, dtype: builder.xor(old, value))
atomic_exch = _atomic("exch", _ATOMIC_32_64, lambda builder, old, value, dtype: value)
atomic_inc = _atomic("inc", _ATOMIC_UNSIGNED, _increment)
atomic_dec = _atomic("dec", _ATOMIC_UNSIGNED, _decrement)


@intrinsic(prefer_literal=True)
def atomic_cas(typing_context, array, index, old, value, err, t, b, site):
    """array[index] = value if it equals old; returns what was there."""
    _check_atomic(typing_context, "cas", _ATOMIC_32_64, array, index, old, value)

    def codegen(context, builder, signature, arguments):
        struct = context.make_array(array)(context, builder, arguments[0])
        where = _where(context, builder, signature.args, arguments)
        pointer = _element_pointer(context, builder, array, struct, index, arguments[1], err, arguments[4], where)
        found = load_item(context, builder, array, pointer)
        expected = context.cast(builder, arguments[2], old, array.dtype)
        new = context.cast(builder, arguments[3], value, array.dtype)
        equal = builder.icmp_unsigned("==", found, expected)
        store_item(context, builder, array, builder.select(equal, new, found), pointer)
        return found

    return array.dtype(array, index, old, value, err, t, b, site), codegen


# ---------------------------------------------------------------- bits and numbers


def _bits(result, emit):
    @intrinsic
    def operation(typing_context, x):
        if not isinstance(x, types.Integer):
            raise NumbaTypeError(f"expected an integer, got {x}")
        x = types.unliteral(x)
        returned = result(x)

        def codegen(context, builder, signature, arguments):
            value = emit(builder, arguments[0])
            unsigned = types.Integer.from_bitwidth(x.bitwidth, False)
            return context.cast(builder, value, unsigned, returned)

        return returned(x), codegen

    return operation


def _find_first_set(builder, value):
    zero = ir.Constant(value.type, 0)
    position = builder.add(builder.cttz(value, ir.Constant(ir.IntType(1), 0)), ir.Constant(value.type, 1))
    return builder.select(builder.icmp_unsigned("==", value, zero), zero, position)


popc = _bits(lambda x: x, lambda builder, value: builder.ctpop(value))
clz = _bits(lambda x: x, lambda builder, value: builder.ctlz(value, ir.Constant(ir.IntType(1), 0)))
ffs = _bits(lambda x: types.uint32, _find_first_set)
brev = _bits(
    lambda x: types.uint64 if x.bitwidth == 64 else types.uint32, lambda builder, value: builder.bitreverse(value)
)


@intrinsic
def fma(typing_context, a, b, c):
    """a * b + c with one rounding, in float32 if all three are, else in float64."""
    single = all(x == types.float32 for x in (a, b, c))
    result = types.float32 if single else types.float64

    def codegen(context, builder, signature, arguments):
        pairs = zip(signature.args, arguments, strict=True)
        return builder.fma(*(context.cast(builder, value, ty, result) for ty, value in pairs))

    return result(a, b, c), codegen


@register_jitable
def cbrt(x):
    return np.cbrt(x)


@register_jitable
def rsqrt(x):
    return type_one(x) / np.sqrt(x)


@intrinsic
def type_one(typing_context, x):
    """1 in the type of x."""
    result = x if isinstance(x, types.Float) else types.float64
    return result(x), lambda context, builder, signature, arguments: context.get_constant(result, 1)


@register_jitable
def remainder(x, y):
    """x - n*y for the integer n nearest to x/y, ties to even: math.remainder, which Numba's CPU target lacks."""
    divisor = abs(y)
    rest = abs(np.fmod(x, divisor + divisor))  # exact, and keeps the parity of n
    if rest + rest > divisor:
        rest -= divisor
        if rest + rest >= divisor:
            rest -= divisor
    return -rest if x < 0 else rest


@register_jitable
def modf(x):
    """(fraction, whole part) of x, both with its sign."""
    whole = np.trunc(x)
    fraction = x - whole
    if np.isinf(x):
        fraction = type_one(x) - type_one(x)
    return np.copysign(fraction, x), whole


def selp(test, a, b):
    """a if test else b; a and b of one type, as on a GPU."""


@overload(selp)
def _selp(test, a, b):
    if types.unliteral(a) != types.unliteral(b):
        raise NumbaTypeError(f"cuda.selp needs two values of one type, not {a} and {b}")
    return lambda test, a, b: a if test else b


@intrinsic
def never_inline(typing_context):
    """Keeps LLVM from copying the function that calls this into its callers."""

    def codegen(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), codegen


# ---------------------------------------------------------------- barriers and warp collectives
#
# live[t], mask[t]: 1 for the threads that have not returned; that are executing this. Threads of a block are padded
# to whole warps: thread t of block b stands at b * padded + t. alive[w], active[w]: the same, a bit for each lane of
# warp w. None is inlined: a kernel with many collectives would take LLVM a minute.


@shared_function
def barrier(mask, live, threads, padded, blocks, b, err, site):
    """Fault unless all the threads of each block are here, or none."""
    never_inline()
    for k in range(blocks):
        start = k * padded
        here = 0
        for t in range(start, start + threads):
            here += mask[t]
        if here != 0 and here != threads:
            missing = start
            while mask[missing]:
                missing += 1
            fail(BARRIER, err, missing - start, b + k, site, here, threads, live[missing])


@shared_function
def grid_barrier(mask, live, threads, padded, blocks, b, err, site):
    """Fault unless all the threads of the grid are here, or none."""
    never_inline()
    here = 0
    for k in range(blocks):
        for t in range(k * padded, k * padded + threads):
            here += mask[t]
    if here != 0 and here != threads * blocks:
        for k in range(blocks):
            for t in range(k * padded, k * padded + threads):
                if not mask[t]:
                    fail(BARRIER, err, t - k * padded, b + k, site, here, threads * blocks, live[t])


@shared_function
def lanes(mask, active):
    """active[w] = a bit for each lane of warp w whose mask is set."""
    never_inline()
    for w in range(active.size):
        bits = np.uint32(0)
        for lane in range(32):
            bits |= np.uint32(mask[w * 32 + lane]) << np.uint32(lane)
        active[w] = bits


@shared_function
def warps(mask, live, active, alive):
    """The lanes that are here and those that have not returned, of every warp."""
    never_inline()
    lanes(mask, active)
    lanes(live, alive)


@shared_function
def check_mask(member, t, active, alive, err, tb, b, site):
    """The lanes that a collective acts on. Fault if the mask leaves out the caller or names an absent lane."""
    never_inline()
    bits = np.uint32(member)
    w = t >> 5
    if (bits >> np.uint32(t & 31)) & np.uint32(1) == 0:
        fail(WARP_SELF, err, tb, b, site, bits, active[w], 0)
    absent = bits & alive[w] & ~active[w]
    if absent != 0:
        fail(WARP_MASK, err, tb, b, site, bits, active[w], absent)
    return bits & active[w]


@shared_function
def shuffle(values, member, source, t, active, alive, err, tb, b, site):
    """The value of lane `source` of this warp; the thread's own where source is outside the warp."""
    never_inline()
    present = check_mask(member, t, active, alive, err, tb, b, site)
    lane = t & 31
    if source < 0 or source > 31:
        return values[t]
    if (present >> np.uint32(source)) & np.uint32(1) == 0:
        fail(WARP_SOURCE, err, tb, b, site, source, present, 0)
    return values[t - lane + source]


@shared_function
def match_any(values, t, present):
    never_inline()
    bits = np.uint32(0)
    start = t - (t & 31)
    for lane in range(32):
        here = (present >> np.uint32(lane)) & np.uint32(1)
        if here != 0 and values[start + lane] == values[t]:
            bits |= np.uint32(1) << np.uint32(lane)
    return np.int32(bits)


@shared_function
def match_all(values, t, present):
    never_inline()
    if np.uint32(match_any(values, t, present)) == present:
        return np.int32(present), True
    return np.int32(0), False


@shared_function
def fill(array, value):
    never_inline()
    for k in range(array.size):
        array[k] = value


@shared_function
def copy(target, source):
    never_inline()
    for k in range(target.size):
        target[k] = source[k]


@shared_function
def clear_padding(mask, threads, padded, blocks):
    """Masks have an entry for each lane of whole warps; the lanes that do not exist stay 0."""
    never_inline()
    for k in range(blocks):
        for t in range(threads, padded):
            mask[k * padded + t] = 0


@shared_function
def any_set(mask):
    never_inline()
    for k in range(mask.size):  # noqa: SIM110 (compiled)
        if mask[k]:
            return True
    return False


@shared_function
def count_set(values, mask, start, threads):
    """How many of a block's threads that are here have a value that is not 0."""
    never_inline()
    count = 0
    for t in range(start, start + threads):
        if mask[t] and values[t]:
            count += 1
    return count


@shared_function
def value_bits(values, mask, bits):
    """bits[w] = a bit for each lane of warp w that is here and whose value is not 0."""
    never_inline()
    for w in range(bits.size):
        word = np.uint32(0)
        for lane in range(32):
            t = w * 32 + lane
            if mask[t] and values[t]:
                word |= np.uint32(1) << np.uint32(lane)
        bits[w] = word


@shared_function
def coprime(n):
    """A step that visits 0 to n - 1 in a scattered order: no common divisor with n, near n times the golden ratio."""
    never_inline()
    step = max(1, int(n * 0.618))
    while True:
        a, b = step, n
        while b:
            a, b = b, a % b
        if a == 1:
            return step
        step += 1
