"""Attention of a single query against the cache of a sequence, and the linear layer after it: two launches.

Shapes  q (1, H*D), cache (C, 2*H*D), keys then values of a row; start (1,) int32: rows 0 to start are visible; weights
        (H*D, N), bias (N,), residual and out (1, N). q, cache and parameters are all float32 or all float16, the rest
        float32. D a multiple of 8 up to 128 (float16: 256); H*D and N as linear/one_row.py has them
Work    4*(start + 1)*H*D + 2*H*D*N flop; keys, values and weights are read once. A block has a head and a split of the
        keys: of 1,024 keys and 12 heads in 11 splits, one round of 12 loads of 16 bytes a thread. Every block of the
        next launch merges the partial results again, from L2: no block waits for another
Source  T. Dao et al., "Flash-Decoding" (2023)
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array
from labkit.kernels.attention.flash import scale_for_powers_of_two
from labkit.kernels.attention.heads import make_load_chunk
from labkit.kernels.attention.three_pass import attention_reference
from labkit.kernels.linear.one_row import (
    JOIN,
    LEAST_FINITE,
    RESIDUAL,
    check_one_row,
    fetch_ahead,
    fetches_ahead,
    launch,
    residual_reference,
    what_is_ahead,
)
from labkit.kernels.pdl import uses_pdl
from labkit.kernels.reduce import ALL_LANES, ZERO

THREADS, WARPS = 256, 8
SIZES = "heads of a multiple of 8 numbers, up to 128 in float32 and 256 in float16"
MAX_SPLITS = 32  # of the keys: a lane each, when they are merged


def splits_of(heads: int) -> int:
    """Return the number of splits of the keys, so that there are as many blocks as SMs: one for each head and split."""
    return max(1, min(MAX_SPLITS, gpus.sm_count() // heads))


@kernel_factory
def make_one_query(half: bool, size: int, splits: int, ahead: bool, early: bool = False):
    """Make the kernel. LANES neighbours share a key, 16 bytes each; the groups of lanes of all warps take keys in turn,
    and each has its own row_max, row_sum and acc until the end. early: as in kernels/pdl.py."""
    VEC = 8 if half else 4  # elements in 16 bytes
    SIZE, CHUNKS = size, size // VEC
    LANES = 1 << (CHUNKS - 1).bit_length()
    FULL_GROUPS = LANES == CHUNKS  # otherwise some lanes of a group have no chunk
    KEYS = THREADS // LANES  # of the block at once
    ROUND = max(1, min(8, 96 // KEYS))  # keys of a group whose loads are in flight at once
    KV_ELEMENTS = ROUND * VEC
    SHUFFLES, GROUP_SHUFFLES = LANES.bit_length() - 1, (32 // LANES).bit_length() - 1
    PARTIAL_ELEMENTS, PARTIAL_STRIDE = WARPS * (size + 2), size + 2
    EARLY = early
    load_chunk = make_load_chunk(half)

    @cuda.jit(device=True)
    def add_round(query, acc, row_max, row_sum, cache, key0, end, column):
        """Process the group's next ROUND keys, key0, key0 + KEYS, ..., of which those from `end` on are masked."""
        keys = cuda.local.array(KV_ELEMENTS, float32)
        values = cuda.local.array(KV_ELEMENTS, float32)
        scores = cuda.local.array(ROUND, float32)
        columns = u32.shape(cache)[1]
        # No branches, so that all loads can be in flight at once.
        for n in u32.range(ROUND):
            row = min(key0 + n * KEYS, end - 1)
            load_chunk(keys, n * VEC, cache, row * columns + column)
        for n in u32.range(ROUND):
            row = min(key0 + n * KEYS, end - 1)
            load_chunk(values, n * VEC, cache, row * columns + column + (columns >> 1))
        new_max = row_max
        for n in u32.range(ROUND):
            score = ZERO
            for i in range(VEC):
                score += query[i] * keys[n * VEC + i]
            for i in range(SHUFFLES):
                score += cuda.shfl_xor_sync(ALL_LANES, score, 1 << i)
            scores[n] = score if key0 + n * KEYS < end else LEAST_FINITE
            new_max = max(new_max, scores[n])
        correction = ptx.exp2_approx(row_max - new_max)
        row_sum *= correction
        for i in range(VEC):
            acc[i] *= correction
        for n in u32.range(ROUND):
            exponential = ptx.exp2_approx(scores[n] - new_max)
            exponential = exponential if key0 + n * KEYS < end else ZERO
            row_sum += exponential
            for i in range(VEC):
                acc[i] += exponential * values[n * VEC + i]
        return new_max, row_sum

    @cuda.jit(launch_bounds=(THREADS, 2))
    def one_query_kernel(q, cache, start, partial_out, partial_stats, scale, next_weights, next_count):
        """partial_out: for each head and split, `size` weighted values; partial_stats: the maxima, then the sums."""
        warp_partials = cuda.shared.array(PARTIAL_ELEMENTS, float32)
        query = cuda.local.array(VEC, float32)
        acc = cuda.local.array(VEC, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        # One axis: neighbouring blocks, and so the SMs that start first, have splits of different heads.
        block = u32.blockIdx.x
        head, split = block // splits, block % splits
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            if ahead and thread == 0:
                fetch_ahead(next_weights, next_count)
            ptx.griddepcontrol_wait()
        num_visible = min(uint32(start[0]) + 1, u32.shape(cache)[0])
        keys_per_split = (num_visible + (splits - 1)) // splits
        key0 = split * keys_per_split
        end = min(key0 + keys_per_split, num_visible)
        chunk, key = lane % LANES, thread // LANES
        chunk_offset = (chunk if FULL_GROUPS else min(chunk, CHUNKS - 1)) * VEC
        column = head * SIZE + chunk_offset
        load_chunk(query, 0, q, column)
        for i in u32.range(VEC):
            query[i] *= scale if FULL_GROUPS or chunk < CHUNKS else ZERO
            acc[i] = ZERO
        if ahead and not EARLY and thread == 0:
            fetch_ahead(next_weights, next_count)
        row_max, row_sum = LEAST_FINITE, ZERO
        while key0 < end:  # the same for all threads
            row_max, row_sum = add_round(query, acc, row_max, row_sum, cache, key0 + key, end, column)
            key0 += ROUND * KEYS

        # Merge the groups of a warp, then the warps.
        new_max = row_max
        for n in range(GROUP_SHUFFLES):
            new_max = max(new_max, cuda.shfl_xor_sync(ALL_LANES, new_max, LANES << n))
        weight = ptx.exp2_approx(row_max - new_max)
        row_sum *= weight
        for n in range(GROUP_SHUFFLES):
            row_sum += cuda.shfl_xor_sync(ALL_LANES, row_sum, LANES << n)
        for i in u32.range(VEC):
            value = acc[i] * weight
            for n in range(GROUP_SHUFFLES):
                value += cuda.shfl_xor_sync(ALL_LANES, value, LANES << n)
            acc[i] = value
        warp_offset = warp * PARTIAL_STRIDE
        if lane < CHUNKS:
            for i in u32.range(VEC):
                warp_partials[warp_offset + chunk_offset + i] = acc[i]
        if lane == 0:
            warp_partials[warp_offset + SIZE] = row_sum
            warp_partials[warp_offset + (SIZE + 1)] = new_max
        cuda.syncthreads()  # the partial results of all warps are complete
        for i in u32.range(thread, SIZE, THREADS):
            row_max = LEAST_FINITE
            for w in u32.range(WARPS):
                row_max = max(row_max, warp_partials[w * PARTIAL_STRIDE + SIZE + 1])
            row_sum, value = ZERO, ZERO
            for w in u32.range(WARPS):
                weight = ptx.exp2_approx(warp_partials[w * PARTIAL_STRIDE + SIZE + 1] - row_max)
                row_sum += weight * warp_partials[w * PARTIAL_STRIDE + SIZE]
                value += weight * warp_partials[w * PARTIAL_STRIDE + i]
            partial_out[block * SIZE + i] = value
            if i == 0:
                partial_stats[block] = row_max
                partial_stats[block + u32.gridDim.x] = row_sum

    one_query_kernel.uses_pdl = early
    return one_query_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------


class Parts:
    """The partial results between the two launches, allocated once for a model's shape."""

    def __init__(self, heads: int, size: int):
        self.splits = splits_of(heads)
        self.found = cuda.device_array(heads * self.splits * size, np.float32)
        self.statistics = cuda.device_array(2 * heads * self.splits, np.float32)

    @property
    def nbytes(self) -> int:
        return self.found.nbytes + self.statistics.nbytes


def takes_head(size: int, half: bool) -> bool:
    return size % 8 == 0 and size <= (256 if half else 128)


def one_query(q, cache, start, heads: int, parts: Parts, *, ahead=None, stream=0):
    """Attention of q to rows 0 to start[0] of the cache, as partial results."""
    dtype = np.dtype(getattr(q, "dtype", np.float32))
    if dtype not in (np.float32, np.float16):
        raise TypeError(f"q has dtype {dtype}; float32 and float16 are allowed")
    check_array("q", q, ndim=2, dtype=dtype)
    check_array("cache", cache, ndim=2, dtype=dtype)
    check_array("start", start, shape=(1,), dtype=np.int32)
    width = q.shape[1]
    if not isinstance(heads, (int, np.integer)) or heads < 1 or width % heads:
        raise ValueError(f"heads is {heads!r}; it must be a whole number that divides q's {width} columns")
    size, half = width // heads, dtype == np.float16
    if q.shape[0] != 1 or not takes_head(size, half):
        raise ValueError(f"q has shape {tuple(q.shape)}, heads of {size}; allowed are one row, and {SIZES}")
    if cache.shape[1] != 2 * width:
        raise ValueError(f"cache has {cache.shape[1]} columns; keys and values of {width} numbers need {2 * width}")
    check_array("parts.found", parts.found, shape=(heads * parts.splits * size,))
    kernel = make_one_query(half, size, parts.splits, ahead is not None and fetches_ahead(), uses_pdl(1))
    kernel[heads * parts.splits, THREADS, stream](q, cache, start, parts.found, parts.statistics,
                                                  scale_for_powers_of_two(size), *what_is_ahead(ahead, cache))


def one_row_attended(parts: Parts, heads: int, weights, bias, residual, out, *, ahead=None, stream=0):
    """out = attended @ weights + bias + residual; attended is merged from the parts."""
    shape = check_one_row(None, weights, bias, out, residual)
    size = shape[0] // heads
    check_array("parts.found", parts.found, shape=(heads * parts.splits * size,))
    launch(JOIN, RESIDUAL, parts.found, weights, bias, out, shape, norm=(parts.statistics, parts.statistics),
           residual=residual, heads=heads, splits=parts.splits, ahead=ahead, stream=stream)


# --- References -------------------------------------------------------------------------------------------------------


def _attended(q, heads, cache, start):
    return attention_reference(np.tile(q, 3), heads, cache, start, causal=True)


def _reference(q, cache, start, heads, weights, bias, residual):
    return residual_reference(_attended(q, heads, cache, start), weights, bias, residual)
