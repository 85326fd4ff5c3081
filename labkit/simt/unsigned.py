"""Unsigned integers of interpreted kernels."""

_UINT64 = (1 << 64) - 1


class Unsigned(int):
    """An unsigned number. With another one it makes a uint64, as Numba's types have it: 0 - 1 is then 2**64 - 1."""

    def __add__(self, other):
        total = int.__add__(self, other)
        return Unsigned(total & _UINT64) if type(other) is Unsigned else total

    def __sub__(self, other):
        difference = int.__sub__(self, other)
        return Unsigned(difference & _UINT64) if type(other) is Unsigned else difference

    def __mul__(self, other):
        product = int.__mul__(self, other)
        return Unsigned(product & _UINT64) if type(other) is Unsigned else product
