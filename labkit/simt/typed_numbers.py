"""Numbers of interpreted kernels, with Numba's types: what an operator gives there, it gives here.

An int64 is Python's int. Other integers are subclasses of it, which say how wide they are and whether they have a sign;
their own arithmetic is that of int, so every operator of a kernel goes through the functions below. Floats are scalars
of NumPy. For two int64, and two floats of one type, an operator costs one more call; for other pairs the types of its
result are asked of Numba, once.
"""

import math
import operator

import numpy as np
from numba.core import types
from numba.np import numpy_support

from labkit.simt import unsigned
from labkit.simt.runtime.operators import narrows
from labkit.simt.runtime.signatures import signature_of, unified

_SMALLEST, _BEYOND, _MASK = -(1 << 63), 1 << 63, (1 << 64) - 1


class Integer(int):
    """An integer of another type than int64. bits: its width."""

    __slots__ = ()


class Unsigned(Integer):
    __slots__ = ()


def _integer_class(base, bits):
    name = f"{'U' if base is Unsigned else ''}int{bits}".capitalize()
    return type(name, (base,), {"bits": bits, "__slots__": ()})


Int8, Int16, Int32 = (_integer_class(Integer, bits) for bits in (8, 16, 32))
Uint8, Uint16, Uint32, Uint64 = (_integer_class(Unsigned, bits) for bits in (8, 16, 32, 64))
_CLASSES = {"int8": Int8, "int16": Int16, "int32": Int32, "uint8": Uint8, "uint16": Uint16, "uint32": Uint32,
            "uint64": Uint64, "int64": int}  # fmt: skip
_FLOATS = (np.float16, np.float32, np.float64, np.complex64, np.complex128)
_NUMBA = {
    **{cls: getattr(types, name) for name, cls in _CLASSES.items()},
    **{cls: getattr(types, cls.__name__) for cls in _FLOATS},
    float: types.float64, complex: types.complex128, bool: types.boolean, np.bool_: types.boolean,
}  # fmt: skip

# NaNs that no operation makes, and every operation propagates: all bits set, in float64 too when converted.
UNDEFINED = {np.float32: np.uint32(2**32 - 1).view(np.float32), np.float64: np.uint64(2**64 - 2**29).view(np.float64)}


# Undefined integers and bools have classes of their own; operators propagate the mark.
_PLAIN = {type(f"Undefined{cls.__name__.title()}", (int if cls is bool else cls,), {"__slots__": ()}): cls
          for cls in (bool, *_CLASSES.values())}  # fmt: skip
_MARKED = {**{plain: cls for cls, plain in _PLAIN.items()}, np.bool_: next(iter(_PLAIN))}


def is_undefined(x):
    """True for what came from an undefined value, perhaps through a sum or a product."""
    if type(x) in _PLAIN:
        return True
    return type(x) in UNDEFINED and x != x and np.float32(x).view(np.uint32) | 2**31 == 2**32 - 1  # either sign


def undefined_of(x):
    """Mark a number as undefined; return other values unchanged."""
    kind = type(x)
    return UNDEFINED[kind] if kind in UNDEFINED else _MARKED[kind](x) if kind in _MARKED else x


def defined(x):
    """An integer or a truth without the mark."""
    plain = _PLAIN.get(type(x))
    return x if plain is None else plain(x)


def _propagating(apply):
    """Wrap a function so that its result is marked as undefined; used where an argument is."""
    return lambda *args: undefined_of(apply(*map(defined, args)))


def numba_type(kind):
    """The type of numbers of this class; None if it is none."""
    return _NUMBA.get(kind)


def width(x):
    """Bits of an integer's type."""
    return getattr(x, "bits", 64)


def as_integer(value=0):
    """int() as a kernel has it: NaN and infinity become some integer."""
    try:
        return int(value)
    except (ValueError, OverflowError):
        return undefined_of(_SMALLEST) if is_undefined(value) else _SMALLEST


def converter(dtype):
    """The type as a function of the kernel: `uint32(x)`."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        made = _integer_converter(_CLASSES[dtype.name], 8 * dtype.itemsize, dtype.kind == "i")
    else:

        def made(value):
            return undefined_of(dtype.type(value)) if type(value) in _PLAIN else dtype.type(value)

    made.dtype = dtype
    return made


def as_numpy(value):
    """A number as a scalar of NumPy of exactly its type."""
    ty = _NUMBA.get(type(value))
    return value if ty is None else (np.bool_ if ty == types.boolean else numpy_support.as_dtype(ty).type)(value)


def _integer_converter(cls, bits, signed):
    mask, half = (1 << bits) - 1, 1 << (bits - 1)
    low, beyond = (-half, half) if signed else (0, mask + 1)

    def convert(value):
        kind = type(value)
        if kind is cls:
            if kind is not int or low <= value < beyond:
                return value
        elif kind in _PLAIN:
            return undefined_of(convert(defined(value)))
        elif not isinstance(value, int):
            return convert(as_integer(value))
        if not low <= value < beyond:
            value &= mask
            if signed and value >= half:
                value -= mask + 1
        return int(value) if cls is int else cls(value)

    return convert


# ---------------------------------------------------------------- operators of two numbers


def _wrapped(value):
    """An integer as an int64."""
    return ((value - _SMALLEST) & _MASK) + _SMALLEST


def _binary(function, compute=None):
    """An operator with Numba's types. compute: for integers of one type, where that is not `function` itself."""
    of_integers, known = compute or function, {}

    def apply(a, b):
        kinds = type(a), type(b)
        if kinds == (int, int) and compute is None:
            result = function(a, b)
            return result if _SMALLEST <= result < _BEYOND else _wrapped(result)
        typed = known.get(kinds)
        if typed is None:
            typed = known[kinds] = _typed(function, of_integers, *kinds)
        return typed(a, b)

    return apply


def _typed(function, of_integers, kind_a, kind_b):
    """The operator for two kinds of numbers: both converted as Numba converts them, and the result too."""
    if kind_a in _PLAIN or kind_b in _PLAIN:
        return _propagating(_typed(function, of_integers, *(_PLAIN.get(kind, kind) for kind in (kind_a, kind_b))))
    if kind_a not in _NUMBA or kind_b not in _NUMBA:
        return function
    signature = signature_of(function, _NUMBA[kind_a], _NUMBA[kind_b])
    if signature is None:
        return _refused(function, *(_NUMBA[kind] for kind in (kind_a, kind_b)))
    returned, (of_a, of_b) = _of(signature.return_type), map(_of, signature.args)
    computing = function if isinstance(signature.args[0], (types.Float, types.Complex)) else of_integers
    if (kind_a is kind_b in _FLOATS and signature.args == (_NUMBA[kind_a],) * 2
            and signature.return_type == _NUMBA[kind_a]):
        return _of_zero(function) if isinstance(signature.return_type, types.Complex) else function
    if isinstance(signature.return_type, types.Integer) and function not in (operator.lshift, operator.rshift):
        of_a = of_b = returned  # whatever the operands are, integers are computed in the result's type
    if isinstance(signature.return_type, types.Complex):
        computing = _of_zero(function)
    return lambda a, b: returned(computing(of_a(a), of_b(b)))


def _refused(function, *operands):
    def refuse(*_):
        raise TypeError(f"{function.__name__} does not take the types ({', '.join(map(str, operands))})")

    return refuse


def _of(ty):
    """The conversion to a type of Numba."""
    return bool if ty == types.boolean else converter(numpy_support.as_dtype(ty))


def _of_zero(function):
    """Complex division by zero divides the parts."""
    if function is not operator.truediv:
        return function

    def divide(a, b):
        if b == 0:
            return complex(np.float64(a.real) / np.float64(b.real), np.float64(a.imag) / np.float64(b.real))
        return a / b

    return divide


def _shift(function, right):
    """A shift by more than 63 bits, or by a negative number: all bits leave, as a GPU has it."""

    def shift(a, amount):
        if 0 <= amount < 64:
            return function(a, amount)
        return -1 if right and a < 0 else 0

    return shift


def _integer_power(a, n):
    if n >= 0:
        return pow(a, n) if n < 64 or a in (-1, 0, 1) else pow(a, n, 1 << 64)
    if a == 0:
        return _SMALLEST
    return a ** (-n % 2) if a in (-1, 1) else 0


add, subtract, multiply = _binary(operator.add), _binary(operator.sub), _binary(operator.mul)
true_divide = _binary(operator.truediv, lambda a, b: np.float64(a) / np.float64(b))
floor_divide = _binary(operator.floordiv, lambda a, b: a // b if b else 0)
modulo = _binary(operator.mod, lambda a, b: a % b if b else 0)
shift_left = _binary(operator.lshift, _shift(operator.lshift, False))
shift_right = _binary(operator.rshift, _shift(operator.rshift, True))
bit_and, bit_or, bit_xor = _binary(operator.and_), _binary(operator.or_), _binary(operator.xor)
_power = _binary(operator.pow, _integer_power)


def _narrow(plain, with_constant):
    """An operator by the rule of unsigned.py."""

    def apply(a, b):
        if narrows(type(a) is Uint32, type(b) is Uint32, with_constant):
            return Uint32(int(plain(Uint64(a), Uint64(b))) & unsigned.LARGEST)
        return plain(a, b)

    return apply


NARROW = {f"_narrow_{name}{'_constant' if with_constant else ''}": _narrow(plain, with_constant)
          for name, plain in zip(unsigned.OPERATORS, (add, subtract, multiply, floor_divide, modulo, shift_left,
                                                      shift_right, bit_and, bit_or, bit_xor), strict=True)
          for with_constant in (False, True)}  # fmt: skip


def power(a, n):
    """a ** n. With an integer exponent a product; below zero 1 / a ** -n, which is infinite at 0."""
    if not isinstance(n, int) or isinstance(a, int):
        return _power(a, n)
    kind = type(a)
    wide = kind if kind in (np.complex64, np.complex128) else np.float64
    return product(wide(a), n)


def constant_power(a, n):
    """Return a ** n for an integer literal n: the result has the type of a."""
    return _power(a, n) if isinstance(a, int) else product(a, n)


def product(a, n):
    """a ** n for an integer n, by multiplication."""
    result, square, exponent = type(a)(1), a, abs(n)
    while exponent:
        if exponent & 1:
            result *= square
        square, exponent = square * square, exponent >> 1
    return true_divide(type(a)(1), result) if n < 0 else result


# ---------------------------------------------------------------- operators of one number


def _unary(function, compute=None):
    """An operator or a function of one number, with Numba's types. compute: where that is not `function` itself."""
    known, compute = {}, compute or function

    def apply(x):
        kind = type(x)
        typed = known.get(kind)
        if typed is None:
            typed = known[kind] = _typed_unary(function, compute, kind)
        return typed(x)

    return apply


def _typed_unary(function, compute, kind):
    if kind in _PLAIN:
        return _propagating(_typed_unary(function, compute, _PLAIN[kind]))
    if kind not in _NUMBA:
        return compute
    signature = signature_of(function, _NUMBA[kind])
    if signature is None:
        return _refused(function, _NUMBA[kind])
    to_arg, returned = _of(signature.args[0]), _of(signature.return_type)
    if signature.args[0] == types.boolean:
        return lambda x: returned(compute(bool(x)))
    if isinstance(signature.args[0], types.Integer) and isinstance(signature.return_type, types.Integer):
        return lambda x: returned(to_arg(compute(int(to_arg(x)))))  # in the width of what it takes, then widened
    if isinstance(signature.args[0], types.Complex):
        return lambda x: compute(to_arg(x))
    return lambda x: returned(compute(to_arg(x)))


negate, positive = _unary(operator.neg), _unary(operator.pos)
invert = _unary(operator.invert, lambda x: not x if isinstance(x, bool) else ~x)
absolute, as_bool = _unary(abs), _unary(bool)
to_integer, to_float = _unary(int, as_integer), _unary(float)


def with_types_of(function, compute):
    """A function of numbers that are converted to the types of `function`, as signature_of has them."""
    known = {}

    def apply(*args):
        kinds = tuple(map(type, args))
        typed = known.get(kinds)
        if typed is None and not _PLAIN.keys().isdisjoint(kinds):
            typed = known[kinds] = _propagating(apply)
        if typed is None:
            signature = signature_of(function, *(_NUMBA.get(kind, types.none) for kind in kinds))
            if signature is None:
                typed = _refused(function, *(_NUMBA.get(kind, kind) for kind in kinds))
            else:
                converters = [_of(ty) for ty in signature.args]
                pair = isinstance(signature.return_type, types.BaseTuple)
                returned = [_of(ty) for ty in signature.return_type.types] if pair else _of(signature.return_type)

                def typed(*args):
                    result = compute(*(fn(x) for fn, x in zip(converters, args, strict=True)))
                    return tuple(fn(x) for fn, x in zip(returned, result, strict=True)) if pair else returned(result)

            known[kinds] = typed
        return typed(*args)

    return apply


# ---------------------------------------------------------------- functions that Python has


def _chosen(choose):
    """min or max: the result has the type that holds both."""
    known = {}

    def apply(*args):
        args = args[0] if len(args) == 1 else args
        result = choose(args)
        kinds = tuple(map(type, args))
        convert = known.get(kinds)
        if convert is None and not _PLAIN.keys().isdisjoint(kinds):
            return _propagating(apply)(*args)
        if convert is None:
            same = len(set(kinds)) == 1 or not all(kind in _NUMBA for kind in kinds)
            common = None if same else unified(*(_NUMBA[kind] for kind in kinds))
            convert = known[kinds] = _of(common) if common is not None else lambda x: x
        return convert(result)

    return apply


minimum, maximum = _chosen(min), _chosen(max)


_round_integer = _unary(round)


def rounded(x, digits=None):
    """round(): to an integer, half to even; or to digits, computed as numba.cuda does, in float64."""
    if isinstance(x, int):
        return round(int(x), digits) if digits is not None else _round_integer(x)
    if digits is None:
        return as_integer(np.rint(np.float64(x)))
    kind, value = np.float32 if isinstance(x, np.float16) else type(x), np.float64(x)
    if not math.isfinite(value):
        return x
    pow1, pow2 = (10.0 ** min(digits, 22), 10.0 ** max(digits - 22, 0)) if digits >= 0 else (10.0**-digits, 1.0)
    scaled = value * pow1 * pow2 if digits >= 0 else value / pow1
    if not math.isfinite(scaled):
        return x
    nearest = np.rint(scaled)
    return kind(nearest / pow2 / pow1 if digits >= 0 else nearest * pow1)


# ---------------------------------------------------------------- bits


def _bits(x):
    return int(x) & ((1 << width(x)) - 1)


def popc(x):
    return type(x)(_bits(x).bit_count())


def clz(x):
    return type(x)(width(x) - _bits(x).bit_length())


def ffs(x):
    bits = _bits(x)
    return Uint32((bits & -bits).bit_length())


def brev(x):
    result = int(f"{_bits(x):0{width(x)}b}"[::-1], 2)
    return Uint64(result) if width(x) == 64 else Uint32(result)


OPERATORS = {
    "Add": add, "Sub": subtract, "Mult": multiply, "Div": true_divide, "FloorDiv": floor_divide, "Mod": modulo,
    "LShift": shift_left, "RShift": shift_right, "BitAnd": bit_and, "BitOr": bit_or, "BitXor": bit_xor, "Pow": power,
    "USub": negate, "Invert": invert, "UAdd": positive,
}  # fmt: skip
