"""What the launchers of attention share: the checks of their arguments, and where in a row a head's elements lie."""

import functools

import numpy as np
from numba import float32, uint32

from labkit import cuda
from labkit.device import gpus, ptx
from labkit.kernels.arguments import MAX_GRID_YZ, aligned, check_array

NOT_A_NUMBER = float32(np.nan)
STEP = 16  # of the kernels that move 16 bytes at a time: heads are a multiple of so many elements


def multiprocessors() -> int:
    """Return how many blocks keep the whole GPU busy; on the CPU device, 1."""
    return gpus.sm_count() if gpus.chosen_on_gpu() else 1


def check_heads(qkv, heads, out, cache, start, dtype=np.float32) -> tuple[int, int]:
    """Return the size of a head and the capacity for keys; or raise an error that names the argument."""
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


def check_chunks(size: int, widest: int, **arrays) -> None:
    """Raise an error unless kernels that move 16 bytes at a time take heads of `size` elements and these arrays."""
    if size % STEP or size > widest:
        raise ValueError(f"a head has {size} numbers; it must be a multiple of {STEP}, at most {widest}")
    if not aligned(*arrays.values()):
        raise ValueError(f"{', '.join(arrays)} must begin at a multiple of 16 bytes; one is a view that does not")


@functools.cache
def zero_start():
    """Return `start` for launches without a cache: 0, in device memory. Made once."""
    return cuda.to_device(np.zeros(1, np.int32))


def keys_and_values(qkv, out, cache, start) -> tuple:
    """Return (keys_values, start, kv_offset): a head's key j is at keys_values[j, kv_offset + head*D], its value
    `width` columns further."""
    if cache is None:
        return qkv, zero_start(), np.uint32(out.shape[1])
    return cache, start, np.uint32(0)


def check_sentences(qkv, heads, begins, lengths, longest, out, dtype=np.float32) -> int:
    """Return the size of a head, or raise an error that names the argument. begins and lengths lie in device memory, so
    that a captured graph serves the next batch: their values are checked by find_sentence."""
    size, _ = check_heads(qkv, heads, out, None, None, dtype)
    check_array("lengths", lengths, ndim=1, dtype=np.int32)
    check_array("begins", begins, shape=lengths.shape, dtype=np.int32)
    check_longest(longest, "qkv", qkv, lengths)
    return size


def check_longest(longest, name: str, array, lengths) -> None:
    if not isinstance(longest, (int, np.integer)) or not 1 <= longest <= array.shape[0]:
        raise ValueError(f"longest is {longest!r}; it must be a whole number from 1 to the {array.shape[0]:,} rows of "
                         f"{name}, and no length may be larger")
    if lengths.size > MAX_GRID_YZ:
        raise ValueError(f"lengths has {lengths.size:,} elements; at most {MAX_GRID_YZ:,} are allowed")


@cuda.jit(device=True)
def find_sentence(begins, lengths, sentence, rows, longest, scale):
    """Return (first row, tokens, scale of the scores) of a sentence. One that is longer than `longest`, or has rows
    out of range, could be computed only in part: its scale is NaN, and so are the rows written for it."""
    begin = min(uint32(begins[sentence]), rows)  # a start out of range leaves no rows
    tokens = uint32(lengths[sentence])
    limit = min(rows - begin, longest)
    if tokens > limit:
        tokens, scale = limit, NOT_A_NUMBER
    return begin, tokens, scale


def make_load_chunk(packed: bool, unpack=ptx.unpack_half2):
    """Make a device function that loads 16 bytes of an array as float32. packed: the array has 16-bit elements, and
    `unpack` takes two of them from a word."""
    @cuda.jit(device=True)
    def load_chunk(elements, dst, array, offset):
        """elements[dst], ... = the elements in 16 bytes of an array."""
        vec = ptx.load_global4(array, offset)
        for n in range(4):
            if packed:
                elements[dst + 2 * n], elements[dst + 2 * n + 1] = unpack(vec[n])
            else:
                elements[dst + n] = vec[n]

    return load_chunk
