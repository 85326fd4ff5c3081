"""What the launchers of attention share: the checks of their arguments, and where in a row a head's numbers lie."""

import functools

import numpy as np

from labkit import cuda
from labkit.kernels.arguments import MAX_GRID_YZ, check_array


def check_heads(qkv, heads, out, cache, start, dtype=np.float32) -> tuple[int, int]:
    """The size of a head, and how many keys there may be; or an error that names the argument."""
    check_array("qkv", qkv, ndim=2, dtype=dtype)
    rows, columns = qkv.shape
    if not isinstance(heads, (int, np.integer)) or not 1 <= heads <= MAX_GRID_YZ:
        raise ValueError(f"heads is {heads!r}; it must be a whole number from 1 to {MAX_GRID_YZ:,}")
    if columns % (3 * heads):
        raise ValueError(f"qkv has {columns} columns; with {heads} heads it must be a multiple of 3 * {heads}: "
                         f"queries, keys and values of each head")
    check_array("out", out, shape=(rows, columns // 3), dtype=dtype)
    if (cache is None) != (start is None):
        raise ValueError("cache and start belong together: pass both, or neither")
    if cache is None:
        return columns // 3 // heads, rows
    check_array("cache", cache, ndim=2, dtype=dtype)
    check_array("start", start, shape=(1,), dtype=np.int32)
    if cache.shape[1] != 2 * columns // 3 or cache.shape[0] < rows:
        raise ValueError(f"cache has shape {tuple(cache.shape)}; it must have {2 * columns // 3} columns, keys and "
                         f"values, and at least the {rows} rows of qkv")
    return columns // 3 // heads, cache.shape[0]


@functools.cache
def nothing_before():
    """`start` where there is no cache: 0, in device memory. Made once."""
    return cuda.to_device(np.zeros(1, np.int32))


def keys_and_values(qkv, out, cache, start) -> tuple:
    """(keys_values, start, first): a head has key j at keys_values[j, first + head*D], value j `width` further."""
    if cache is None:
        return qkv, nothing_before(), np.uint32(out.shape[1])
    return cache, start, np.uint32(0)
