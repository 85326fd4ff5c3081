"""Inputs of any size that take neither time nor memory: arrays of zeros that nothing writes.

    a, b, out = unfilled.arguments(MATMUL, {"M": 4096, "N": 4096, "K": 4096})    # for launches.planned only

Launchers choose kernels by shapes, types and small arrays, and these are what they would be. A large array is memory
that the system does not provide until it is written, and arithmetic on it returns another one.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from labkit import cuda, device

SMALL = 1 << 16  # elements: smaller arrays hold what they would


class Unfilled(np.ndarray):
    """Zeros. NumPy's functions on it return zeros of the right shape and type, and assigning to it does nothing."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if method != "__call__":
            return NotImplemented
        if out is not None:
            return out[0]
        shape = np.broadcast_shapes(*(np.shape(value) for value in inputs))
        first = [value.view(np.ndarray).reshape(-1)[:1] if isinstance(value, np.ndarray) else value
                 for value in inputs]
        with np.errstate(all="ignore"):
            return zeros(shape, ufunc(*first, **kwargs).dtype)

    def __array_function__(self, function, types, args, kwargs):
        if function is np.where:
            return zeros(np.broadcast_shapes(*map(np.shape, args)), np.result_type(*args[1:]))
        return super().__array_function__(function, types, args, kwargs)

    def __setitem__(self, index, value) -> None:
        pass

    def astype(self, dtype, *args, **kwargs):
        return zeros(self.shape, dtype)

    def copy(self, order="C"):
        return self


def zeros(shape, dtype) -> Unfilled:
    return np.zeros(shape, dtype).view(Unfilled)


# Methods of a generator -> where `size` stands among their arguments.
SIZED = {"random": 0, "standard_normal": 0, "choice": 1, "integers": 2, "uniform": 2}


class Generator:
    """Draws small arrays as numpy.random.default_rng(0) does, and returns zeros for large ones."""

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def __getattr__(self, name: str):
        draw = getattr(self._rng, name)
        return functools.partial(self._drawn, draw, SIZED[name]) if name in SIZED else draw

    def _drawn(self, draw, position: int, *args, **kwargs):
        args = list(args)
        place, size = (args, position) if len(args) > position else (kwargs, "size")
        shape = place[size] if place is args else kwargs.get("size", ())
        shape = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        if math.prod(shape) <= SMALL:
            return draw(*args, **kwargs)
        place[size] = 1
        return zeros(shape, draw(*args, **kwargs).dtype)

    def zeros(self, shape) -> np.ndarray:
        """What labkit.kernels.op.uniform returns."""
        return zeros(shape, np.float32)


def _on_device(array: np.ndarray):
    """A device array of this shape and type. On the CPU device it is this memory; on a GPU it holds anything, unless it
    is small."""
    if device.on_gpu():
        return cuda.to_device(array) if array.size <= SMALL else cuda.device_array(array.shape, array.dtype)
    from labkit.simt.arrays import on_device

    return on_device(np.ascontiguousarray(array).view(np.ndarray))


def arguments(op, size: dict) -> tuple:
    """What a rung of the operation is called with at this size: its inputs, then its output."""
    inputs = op.inputs(Generator(), **size)
    return (*(_on_device(value) if isinstance(value, np.ndarray) else value for value in inputs),
            _on_device(zeros(op.shape(**size), op.dtype)))
