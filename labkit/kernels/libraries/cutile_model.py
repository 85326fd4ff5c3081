"""A model in NumPy of the few names of cuda.tile that the course uses, for machines that cannot run cuTile.

    def twice(x, out, tile: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(out, index=(i,), tile=ct.load(x, index=(i,), shape=(tile,)) * 2)

    ct.launch(None, (ct.cdiv(x.size, 16), 1, 1), ct.kernel(twice), (x, out, 16))

The blocks run one after another, on NumPy arrays or device arrays. As in cuTile, the axes of a tile are powers of two,
an index counts tiles and not elements, a tile cannot be written to, and a store drops what lies beyond the array.
A load reads undetermined values there; here NaN, so that it shows, unless padding_mode says otherwise.

Source  cuTile Python documentation, "Data Model" and "Load/Store"
"""

import contextvars
import inspect
import itertools
import sys
import types
from enum import Enum

import numpy as np

float32 = np.float32
_BLOCK = contextvars.ContextVar("block")


class TileError(Exception):
    """An invalid tile program. cuTile raises it at compile time, as a TileTypeError or TileValueError."""


class PaddingMode(Enum):
    """What a load puts where the tile reaches beyond the array."""

    UNDETERMINED = "undetermined"
    ZERO = "zero"
    NAN = "nan"
    NEG_INF = "neg_inf"


_PADDING = {PaddingMode.UNDETERMINED: np.nan, PaddingMode.ZERO: 0.0, PaddingMode.NAN: np.nan,
            PaddingMode.NEG_INF: -np.inf}


class Constant:
    """Constant[int] marks a parameter that is known when the kernel is compiled."""

    def __class_getitem__(cls, kind):
        return kind


def kernel(function):
    """Mark a tile kernel. It is launched, not called."""
    if not inspect.isfunction(function):
        raise TypeError("kernel decorates a Python function")
    return function


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def launch(stream, grid, function, args) -> None:
    """Run `function` for each block of the grid. `ct` in its source is bound to this module.

    Device arrays are copied to the host before and, if they were written to, back after.
    """
    hosts = [arg.copy_to_host() if hasattr(arg, "copy_to_host") else arg for arg in args]
    snapshots = [host.tobytes() if host is not arg else None for host, arg in zip(hosts, args, strict=True)]
    program = types.FunctionType(function.__code__, {**function.__globals__, "ct": sys.modules[__name__]},
                                 function.__name__, function.__defaults__, function.__closure__)
    extents = (*(int(extent) for extent in grid), 1, 1, 1)[:3]
    for z, y, x in itertools.product(*(range(extent) for extent in reversed(extents))):
        token = _BLOCK.set(((x, y, z), extents))
        try:
            program(*hosts)
        finally:
            _BLOCK.reset(token)
    for arg, host, snapshot in zip(args, hosts, snapshots, strict=True):
        if snapshot is not None and host.tobytes() != snapshot:
            arg.copy_to_device(host)


def bid(axis: int) -> int:
    """The index of this block along an axis of the grid."""
    return _block()[0][axis]


def num_blocks(axis: int) -> int:
    """How many blocks the grid has along an axis."""
    return _block()[1][axis]


def load(array, index, shape, *, padding_mode=PaddingMode.UNDETERMINED) -> np.ndarray:
    """Load the tile at `index` of an array that is divided into tiles of `shape`."""
    shape = _tile_shape(shape)
    index = index if isinstance(index, tuple) else (index,)
    if not len(index) == len(shape) == len(array.shape):
        raise TileError(f"load: index has {len(index)} axes, shape {len(shape)}, the array {len(array.shape)}")
    region = _region(array, index, shape)
    part = array[region]
    tile = np.full(shape, _PADDING[padding_mode] if part.dtype.kind == "f" else 0, part.dtype)
    tile[tuple(slice(extent) for extent in part.shape)] = part
    tile.flags.writeable = False  # a tile is a value, as a number is
    return tile


def store(array, index, tile) -> None:
    """Store a tile at `index`; elements beyond the array are dropped."""
    tile = np.asarray(tile)
    index = index if isinstance(index, tuple) else (index,)
    shape = _tile_shape(tile.shape)
    if not len(index) == len(shape) == len(array.shape):
        raise TileError(f"store: index has {len(index)} axes, the tile {len(shape)}, the array {len(array.shape)}")
    region = _region(array, index, shape)
    extents = [part.stop - part.start for part in region]
    array[region] = tile[tuple(slice(extent) for extent in extents)].astype(array.dtype)


def full(shape, value, dtype) -> np.ndarray:
    """A tile of one value."""
    return np.full(_tile_shape(shape), value, dtype)


def exp(tile):
    return np.exp(tile)


def max(tile, axis=None, *, keepdims=False):
    return np.max(tile, axis=axis, keepdims=keepdims)


def sum(tile, axis=None, *, keepdims=False):
    return np.sum(tile, axis=axis, keepdims=keepdims)


def mma(a, b, total):
    """a @ b + total, in the type of total: the tensor cores' operation."""
    return (a.astype(total.dtype) @ b.astype(total.dtype)) + total


def _block():
    try:
        return _BLOCK.get()
    except LookupError:
        raise TileError("this can be called only in a tile kernel that launch has started") from None


def _tile_shape(shape) -> tuple[int, ...]:
    shape = shape if isinstance(shape, tuple) else (shape,)
    for axis, extent in enumerate(shape):
        if extent < 1 or extent & (extent - 1):
            raise TileError(f"dimension {axis} of the tile's shape {shape} is not a power of two")
    return shape


def _region(array, index, shape) -> tuple[slice, ...]:
    starts = [i * extent for i, extent in zip(index, shape, strict=True)]
    if any(not 0 <= start < length for start, length in zip(starts, array.shape, strict=True)):
        raise TileError(f"tile {tuple(index)} of shape {shape} lies outside of the array of shape {tuple(array.shape)}")
    return tuple(slice(start, min(start + extent, length))
                 for start, extent, length in zip(starts, shape, array.shape, strict=True))
