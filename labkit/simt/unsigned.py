"""Unsigned integers of interpreted kernels."""

_UINT64 = (1 << 64) - 1


def _keeping(operation):
    """An operation of two integers; of two unsigned ones the result is a uint64."""

    def method(self, other):
        result = operation(self, other)
        return Unsigned(result & _UINT64) if type(other) is Unsigned else result

    return method


class Unsigned(int):
    """An unsigned number. With another one it makes a uint64, as Numba's types have it: 0 - 1 is then 2**64 - 1."""

    __add__, __sub__, __mul__ = _keeping(int.__add__), _keeping(int.__sub__), _keeping(int.__mul__)
    __floordiv__, __mod__ = _keeping(int.__floordiv__), _keeping(int.__mod__)
    __and__, __or__, __xor__ = _keeping(int.__and__), _keeping(int.__or__), _keeping(int.__xor__)
    __lshift__, __rshift__ = _keeping(int.__lshift__), _keeping(int.__rshift__)
