"""cuda.atomic: read-modify-write operations with their bounds checked."""

from llvmlite import ir
from numba import types
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, store_item

from labkit.simt.runtime.fault_record import emit_location
from labkit.simt.runtime.memory import emit_element_pointer, is_element

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
            location = emit_location(context, builder, signature.args, arguments)
            element = array, arguments[0], index, arguments[1]
            pointer = emit_element_pointer(context, builder, *element, err, arguments[3], location)
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
    if not is_element(array, index):
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
    """max ('>') or min ('<'), as numba.cuda has them: a NaN that is given is ignored; one that is there stays, but for
    nanmax and nanmin (ignore_nan)."""

    def compute(builder, old, value, dtype):
        chosen = builder.select(_compare(builder, relation, value, old, dtype), value, old)
        if ignore_nan and isinstance(dtype, types.Float):
            return builder.select(builder.fcmp_unordered("uno", old, old), value, chosen)
        return chosen

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
        location = emit_location(context, builder, signature.args, arguments)
        element = array, arguments[0], index, arguments[1]
        pointer = emit_element_pointer(context, builder, *element, err, arguments[4], location)
        current = load_item(context, builder, array, pointer)
        expected = context.cast(builder, arguments[2], old, array.dtype)
        new = context.cast(builder, arguments[3], value, array.dtype)
        equal = builder.icmp_unsigned("==", current, expected)
        store_item(context, builder, array, builder.select(equal, new, current), pointer)
        return current

    return array.dtype(array, index, old, value, err, t, b, site), codegen
