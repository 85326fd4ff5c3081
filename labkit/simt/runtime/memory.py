"""Loads and stores with their bounds checked, views of arrays, and the memory of a block."""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic, register_jitable
from numba.np import numpy_support
from numba.np.arrayobj import load_item, populate_array, store_item

from labkit.simt.runtime.fault_record import (
    ASSERTION,
    MAX_RECORDED_AXES,
    NO_STEP,
    OUT_OF_BOUNDS,
    RESHAPE,
    emit_fail,
    emit_location,
    fail,
    field,
)
from labkit.simt.runtime.shared_function import called_function, overloaded
from labkit.simt.runtime.vector_types import is_vector

_I64 = ir.IntType(64)


def _parts(index_type):
    return tuple(index_type.types) if isinstance(index_type, types.BaseTuple) else (index_type,)


def _are_integers(parts):
    return all(isinstance(part, types.Integer) for part in parts)


def _unpack_index(builder, index_type, index):
    if isinstance(index_type, types.BaseTuple):
        return [builder.extract_value(index, k) for k in range(len(index_type.types))]
    return [index]


def _checked(context, builder, dims, parts, values, err_type, err, location, shape=None):
    """Emit the bounds check of integer indices; return them as non-negative intp values.

    shape: what an error shows, where that is more than the axes that are indexed.

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
        shape = list((shape or dims)[:MAX_RECORDED_AXES])
        details = [ir.Constant(_I64, len(shape) * 16 + axes), *raw[:axes], *zeros, *shape]
        emit_fail(context, builder, err_type, err, OUT_OF_BOUNDS, location, details)
    return wrapped


def _dims(context, builder, array_type, array):
    return cgutils.unpack_tuple(builder, field(context, builder, array_type, array, "shape"), array_type.ndim)


def emit_element_pointer(context, builder, array_type, array, index_type, index, err_type, err, location):
    values = _unpack_index(builder, index_type, index)
    dims = _dims(context, builder, array_type, array)
    strides = cgutils.unpack_tuple(builder, field(context, builder, array_type, array, "strides"), array_type.ndim)
    values = _checked(context, builder, dims, _parts(index_type), values, err_type, err, location)
    data = field(context, builder, array_type, array, "data")
    return cgutils.get_item_pointer2(context, builder, data, dims, strides, array_type.layout, values)


def _check_index(index_type):
    for part in _parts(index_type):
        if not isinstance(part, (types.Integer, types.SliceType, types.EllipsisType, types.NoneType)):
            raise NumbaTypeError(f"an index must be an integer or a slice, not {part}")


def is_element(array_type, index_type):
    parts = _parts(index_type)
    return _are_integers(parts) and len(parts) == array_type.ndim and not isinstance(array_type.dtype, types.Record)


@intrinsic(prefer_literal=True)
def load(typing_context, array, index, err, t, b, site):
    """array[index], checked. Also tuples, and views (fewer indices than axes)."""
    if isinstance(array, types.Array) and is_element(array, index):

        def element(context, builder, signature, arguments):
            location = emit_location(context, builder, signature.args, arguments)
            operands = array, arguments[0], index, arguments[1]
            pointer = emit_element_pointer(context, builder, *operands, err, arguments[2], location)
            return load_item(context, builder, array, pointer)

        return array.dtype(array, index, err, t, b, site), element

    if isinstance(array, types.Array):
        _check_index(index)

    if is_vector(array):
        raise NumbaTypeError("a vector has no index: use its parts, .x, .y, .z, .w")
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

    if isinstance(array, types.Record) and isinstance(index, types.IntegerLiteral):  # a field by its position
        name = list(array.fields)[index.literal_value]
        getter = array.typeof(name)(array, types.literal(name))

        def record_field(context, builder, signature, arguments):
            return context.get_function("static_getitem", getter)(builder, (arguments[0], name))

        return getter.return_type(array, index, err, t, b, site), record_field

    if isinstance(array, (types.Number, types.Boolean)):
        raise NumbaTypeError(f"a number ({array}) has no elements to index: are the parameters in the right order")
    function = typing_context.resolve_value_type(operator.getitem)
    resolved = function.get_call_type(typing_context, (array, types.unliteral(index)), {})
    parts = _parts(index)

    def general(context, builder, signature, arguments):
        if isinstance(array, (types.Array, types.BaseTuple)) and _are_integers(parts):
            if isinstance(array, types.Array):
                dims = _dims(context, builder, array, arguments[0])
            else:
                dims = [ir.Constant(_I64, len(array.types))]
            location = emit_location(context, builder, signature.args, arguments)
            values = _unpack_index(builder, index, arguments[1])
            _checked(context, builder, dims, parts, values, err, arguments[2], location)
        cast_index = context.cast(builder, arguments[1], index, resolved.args[1])
        return context.get_function(function, resolved)(builder, (arguments[0], cast_index))

    return resolved.return_type(array, index, err, t, b, site), general


@intrinsic(prefer_literal=True)
def store(typing_context, array, index, value, err, t, b, site):
    """array[index] = value, checked; the value is cast to the array's dtype."""
    if not isinstance(array, types.Array):
        raise NumbaTypeError(f"{array} has no elements to assign to: are the parameters in the right order")
    if not array.mutable:
        raise NumbaTypeError("cannot store into a read-only array")
    _check_index(index)
    value = types.unliteral(value)
    if is_element(array, index):
        if typing_context.can_convert(value, array.dtype) is None:
            raise NumbaTypeError(f"cannot store a value of type {value} into an array of {array.dtype}")

        def element(context, builder, signature, arguments):
            location = emit_location(context, builder, signature.args, arguments)
            operands = array, arguments[0], index, arguments[1]
            pointer = emit_element_pointer(context, builder, *operands, err, arguments[3], location)
            store_item(context, builder, array, context.cast(builder, arguments[2], value, array.dtype), pointer)
            return context.get_dummy_value()

        return types.void(array, index, value, err, t, b, site), element

    if isinstance(value, types.Array):
        raise NumbaTypeError("whole arrays cannot be computed with or copied in device code: write it for one element")
    function = typing_context.resolve_value_type(operator.setitem)
    resolved = function.get_call_type(typing_context, (array, types.unliteral(index), value), {})
    parts = _parts(index)

    def general(context, builder, signature, arguments):
        if _are_integers(parts):
            dims = _dims(context, builder, array, arguments[0])
            location = emit_location(context, builder, signature.args, arguments)
            values = _unpack_index(builder, index, arguments[1])
            _checked(context, builder, dims, parts, values, err, arguments[3], location)
        cast_index = context.cast(builder, arguments[1], index, resolved.args[1])
        cast_value = context.cast(builder, arguments[2], value, resolved.args[2])
        context.get_function(function, resolved)(builder, (arguments[0], cast_index, cast_value))
        return context.get_dummy_value()

    return types.void(array, index, value, err, t, b, site), general


@intrinsic
def axis(typing_context, array, k, index, err, t, b, site):
    """index, checked against axis k of array, from the end if k < 0: for the integers in a[i, 2:5] and a[..., i]."""

    def codegen(context, builder, signature, arguments):
        if isinstance(index, types.Integer) and isinstance(array, types.Array):
            struct = context.make_array(array)(context, builder, arguments[0])
            stack = cgutils.alloca_once_value(builder, struct.shape)
            position = context.cast(builder, arguments[1], k, types.int64)
            from_end = builder.icmp_signed("<", position, ir.Constant(_I64, 0))
            position = builder.select(from_end, builder.add(position, ir.Constant(_I64, array.ndim)), position)
            dim = builder.load(builder.gep(stack, [ir.Constant(ir.IntType(32), 0), position]))
            location = emit_location(context, builder, signature.args, arguments)
            dims = cgutils.unpack_tuple(builder, struct.shape, array.ndim)
            _checked(context, builder, [dim], [index], [arguments[2]], err, arguments[3], location, dims)
        return arguments[2]

    return index(array, k, index, err, t, b, site), codegen


@intrinsic
def divisor(typing_context, value, err, t, b, site):
    """Return the divisor; a fault if it is 0."""

    def codegen(context, builder, signature, arguments):
        zero = ir.Constant(arguments[0].type, 0)
        compare = builder.fcmp_ordered if isinstance(value, types.Float) else builder.icmp_unsigned
        is_zero = compare("==", arguments[0], zero)
        with builder.if_then(is_zero, likely=False):
            location = emit_location(context, builder, signature.args, arguments)
            emit_fail(context, builder, err, arguments[1], ASSERTION, location)
        return arguments[0]

    if not isinstance(value, (types.Integer, types.Float)):
        return value(value, err, t, b, site), lambda context, builder, signature, arguments: arguments[0]
    return value(value, err, t, b, site), codegen


@intrinsic
def step(typing_context, value, err, t, b, site):
    """The step of a range: faults where it is 0."""

    def codegen(context, builder, signature, arguments):
        is_zero = builder.icmp_unsigned("==", arguments[0], ir.Constant(arguments[0].type, 0))
        with builder.if_then(is_zero, likely=False):
            location = emit_location(context, builder, signature.args, arguments)
            emit_fail(context, builder, err, arguments[1], NO_STEP, location)
        return arguments[0]

    if not isinstance(value, types.Integer):
        raise NumbaTypeError(f"the step of a range must be an integer, not {value}")
    return value(value, err, t, b, site), codegen


# ---------------------------------------------------------------- views


@overloaded
def view(value, dtype):
    """value.view(dtype), of an array or of a number."""
    if isinstance(value, types.Array):
        return lambda value, dtype: value.view(dtype)
    if not isinstance(value, types.Number):
        raise NumbaTypeError(f"{value} has no bits to view as another type")
    kind = numpy_support.as_dtype(value).type
    return lambda value, dtype: kind(value).view(dtype)


@overloaded
def reshape(array, shape, err, t, b, site):
    """array.reshape(shape): faults where the number of elements is another."""
    if not isinstance(array, types.Array):
        raise NumbaTypeError(f"{array} has no shape to change")
    if array.layout != "C":
        raise NumbaTypeError("only a C-contiguous array can be reshaped in device code")
    if isinstance(shape, types.Integer):
        return lambda array, shape, err, t, b, site: _reshape_to(array, (shape,), err, t, b, site)
    return lambda array, shape, err, t, b, site: _reshape_to(array, shape, err, t, b, site)


@register_jitable
def _reshape_to(array, shape, err, t, b, site):
    total, free = 1, 0
    for length in shape:
        if length == -1:
            free += 1
        else:
            total *= length
    if free == 0 and total != array.size or free and (free > 1 or total < 1 or array.size % total):
        fail(RESHAPE, err, t, b, site, array.size, total, 0)
    return array.reshape(shape)


@intrinsic
def view_parts(typing_context, array):
    """(address, shape..., strides...) of an array: what a thread keeps of a view across a barrier; of a record, its
    address."""
    count = 1 + 2 * getattr(array, "ndim", 0)

    def codegen(context, builder, signature, arguments):
        if isinstance(array, types.Record):
            return cgutils.pack_array(builder, [builder.ptrtoint(arguments[0], _I64)])
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


@intrinsic
def record_of(typing_context, parts, dtype):
    """The record at this address."""

    def codegen(context, builder, signature, arguments):
        address = builder.extract_value(arguments[0], 0)
        return builder.inttoptr(address, context.get_value_type(signature.return_type))

    return dtype.dtype(parts, dtype), codegen


@intrinsic
def row(typing_context, array, t):
    """array[t] as a view, unchecked and without a reference count: one thread's part of a local array."""
    view = types.Array(array.dtype, array.ndim - 1, "C")

    def codegen(context, builder, signature, arguments):
        source = arguments[0]
        dims = _dims(context, builder, array, source)
        strides = cgutils.unpack_tuple(builder, field(context, builder, array, source, "strides"), array.ndim)
        index = context.cast(builder, arguments[1], signature.args[1], types.int64)
        offset = builder.mul(index, strides[0])
        bytes_pointer = builder.bitcast(field(context, builder, array, source, "data"), ir.IntType(8).as_pointer())
        result = context.make_array(view)(context, builder)
        data = builder.bitcast(builder.gep(bytes_pointer, [offset]), result.data.type)
        itemsize = field(context, builder, array, source, "itemsize")
        populate_array(result, data, dims[1:], strides[1:], itemsize, meminfo=None)
        return result._getvalue()

    return view(array, t), codegen


# ---------------------------------------------------------------- the memory of a block


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
def poison(typing_context, array):
    """Fill the array's memory with 0xFF: NaN for floats, -1 for integers. Memory that nothing wrote is not zero."""

    def codegen(context, builder, signature, arguments):
        struct = context.make_array(array)(context, builder, arguments[0])
        size = builder.mul(struct.nitems, struct.itemsize)
        data = builder.bitcast(struct.data, ir.IntType(8).as_pointer())
        cgutils.memset(builder, data, size, 0xFF)
        return context.get_dummy_value()

    return types.void(array), codegen


@called_function
def fill(array, value):
    for k in range(array.size):
        array[k] = value


@called_function
def copy(target, source):
    for k in range(target.size):
        target[k] = source[k]
