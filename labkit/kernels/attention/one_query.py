"""Attention of a single query against the cache of a sequence, and the linear layer after it: two launches.

    found, statistics = parts of softmax(q . keys / sqrt(D)) @ values, for each head and each share of the keys
    out = attended @ weights + bias + residual, where attended is joined from these parts

Shapes  q (1, H*D), cache (N, 2*H*D), keys then values of a row; start (1,) int32: rows 0 to start are seen; weights
        (H*D, N), bias (N,), residual and out (1, N). q, cache and parameters are all float32 or all float16, the rest
        float32
Sizes   D a multiple of 8 up to 128 (float16: 256); H*D and N as linear/one_row.py has them
Work    4*(start + 1)*H*D + 2*H*D*N flop; keys, values and weights are read once
Source  T. Dao et al., "Flash-Decoding" (2023)

A block takes a head and a share of the keys, and asks for all of them and their values at once: with 1,024 keys, 12
heads and 11 shares that is one round of 12 loads of 16 bytes a thread. The parts are joined by every block of the next
launch again, from L2: no block waits for another, and no launch is needed in between.
"""


import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array
from labkit.kernels.attention.flash import scale_for_powers_of_two
from labkit.kernels.attention.three_pass import attention_reference
from labkit.kernels.linear.one_row import (
    JOIN,
    LOWEST,
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
MOST_SPLITS = 32  # shares of the keys: a lane each, when they are joined


def splits_of(heads: int) -> int:
    """Shares of the keys, so that heads and shares together are as many blocks as there are SMs."""
    return max(1, min(MOST_SPLITS, device.sm_count() // heads))


@kernel_factory
def make_one_query(half: bool, size: int, splits: int, ahead: bool, early: bool = False):
    """LANES neighbours share a key, 16 bytes each; the groups of lanes of all warps take keys in turn, and each has a
    row_max, a row_sum and an acc of its own until the end. early: as in kernels/pdl.py."""
    COUNT = 8 if half else 4  # numbers in 16 bytes
    SIZE, PIECES = size, size // COUNT
    LANES = 1 << (PIECES - 1).bit_length()
    WHOLE = LANES == PIECES  # or else some lanes of a group have no piece
    KEYS = THREADS // LANES  # that the block takes at once
    ROUND = max(1, min(8, 96 // KEYS))  # keys of a group whose loads are under way at once
    NUMBERS = ROUND * COUNT
    EXCHANGES, ACROSS = LANES.bit_length() - 1, (32 // LANES).bit_length() - 1
    RECORDS, HEAD_RECORD = WARPS * (size + 2), size + 2
    EARLY = early

    @cuda.jit(device=True)
    def read(numbers, to, array, at):
        """numbers[to], ... = the numbers in 16 bytes of an array."""
        four = ptx.load_global4(array, at)
        for n in range(4):
            if half:
                numbers[to + 2 * n], numbers[to + 2 * n + 1] = ptx.unpack_half2(four[n])
            else:
                numbers[to + n] = four[n]

    @cuda.jit(device=True)
    def add_round(query, acc, row_max, row_sum, cache, first, end, column):
        """The group's next ROUND keys, first, first + KEYS, ..., of which those from `end` on do not count."""
        keys = cuda.local.array(NUMBERS, float32)
        values = cuda.local.array(NUMBERS, float32)
        scores = cuda.local.array(ROUND, float32)
        columns = u32.shape(cache)[1]
        # No branches, so that all loads can be under way at once.
        for n in u32.range(ROUND):
            row = min(first + n * KEYS, end - 1)
            read(keys, n * COUNT, cache, row * columns + column)
        for n in u32.range(ROUND):
            row = min(first + n * KEYS, end - 1)
            read(values, n * COUNT, cache, row * columns + column + (columns >> 1))
        new = row_max
        for n in u32.range(ROUND):
            score = ZERO
            for i in range(COUNT):
                score += query[i] * keys[n * COUNT + i]
            for i in range(EXCHANGES):
                score += cuda.shfl_xor_sync(ALL_LANES, score, 1 << i)
            scores[n] = score if first + n * KEYS < end else LOWEST
            new = max(new, scores[n])
        correction = ptx.exp2_approx(row_max - new)
        row_sum *= correction
        for i in range(COUNT):
            acc[i] *= correction
        for n in u32.range(ROUND):
            exponential = ptx.exp2_approx(scores[n] - new)
            exponential = exponential if first + n * KEYS < end else ZERO
            row_sum += exponential
            for i in range(COUNT):
                acc[i] += exponential * values[n * COUNT + i]
        return new, row_sum

    @cuda.jit(launch_bounds=(THREADS, 2))
    def one_query_kernel(q, cache, start, found, statistics, scale, next_weights, next_count):
        """found: for each head and share, `size` weighted values; statistics: the maxima of all, then the sums."""
        records = cuda.shared.array(RECORDS, float32)
        query = cuda.local.array(COUNT, float32)
        acc = cuda.local.array(COUNT, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        # One axis: neighbouring blocks, and so the SMs that start first, have shares of different heads.
        block = u32.blockIdx.x
        head, split = block // splits, block % splits
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            if ahead and thread == 0:
                fetch_ahead(next_weights, next_count)
            ptx.griddepcontrol_wait()
        seen = min(uint32(start[0]) + 1, u32.shape(cache)[0])
        share = (seen + (splits - 1)) // splits
        first = split * share
        end = min(first + share, seen)
        piece, key = lane % LANES, thread // LANES
        own = (piece if WHOLE else min(piece, PIECES - 1)) * COUNT
        column = head * SIZE + own
        read(query, 0, q, column)
        for i in u32.range(COUNT):
            query[i] *= scale if WHOLE or piece < PIECES else ZERO
            acc[i] = ZERO
        if ahead and not EARLY and thread == 0:
            fetch_ahead(next_weights, next_count)
        row_max, row_sum = LOWEST, ZERO
        while first < end:  # the same for all threads
            row_max, row_sum = add_round(query, acc, row_max, row_sum, cache, first + key, end, column)
            first += ROUND * KEYS

        # The groups of a warp become one, then the warps.
        new = row_max
        for n in range(ACROSS):
            new = max(new, cuda.shfl_xor_sync(ALL_LANES, new, LANES << n))
        weight = ptx.exp2_approx(row_max - new)
        row_sum *= weight
        for n in range(ACROSS):
            row_sum += cuda.shfl_xor_sync(ALL_LANES, row_sum, LANES << n)
        for i in u32.range(COUNT):
            value = acc[i] * weight
            for n in range(ACROSS):
                value += cuda.shfl_xor_sync(ALL_LANES, value, LANES << n)
            acc[i] = value
        record = warp * HEAD_RECORD
        if lane < PIECES:
            for i in u32.range(COUNT):
                records[record + own + i] = acc[i]
        if lane == 0:
            records[record + SIZE] = row_sum
            records[record + (SIZE + 1)] = new
        cuda.syncthreads()  # every warp's record is complete
        for i in u32.range(thread, SIZE, THREADS):
            row_max = LOWEST
            for other in u32.range(WARPS):
                row_max = max(row_max, records[other * HEAD_RECORD + SIZE + 1])
            row_sum, value = ZERO, ZERO
            for other in u32.range(WARPS):
                weight = ptx.exp2_approx(records[other * HEAD_RECORD + SIZE + 1] - row_max)
                row_sum += weight * records[other * HEAD_RECORD + SIZE]
                value += weight * records[other * HEAD_RECORD + i]
            found[block * SIZE + i] = value
            if i == 0:
                statistics[block] = row_max
                statistics[block + u32.gridDim.x] = row_sum

    one_query_kernel.uses_pdl = early
    return one_query_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------


class Parts:
    """What lies between the two launches, allocated once for a model's shape."""

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
    """Attention of q to rows 0 to start[0] of the cache, in parts."""
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
    """out = attended @ weights + bias + residual; attended is what the parts say."""
    shape = check_one_row(None, weights, bias, out, residual)
    size = shape[0] // heads
    check_array("parts.found", parts.found, shape=(heads * parts.splits * size,))
    launch(JOIN, RESIDUAL, parts.found, (parts.statistics, parts.statistics), weights, bias, residual, out, weights,
           bias, shape, heads=heads, splits=parts.splits, ahead=ahead, stream=stream)


# --- References -------------------------------------------------------------------------------------------------------


def _attended(q, heads, cache, start):
    return attention_reference(np.tile(q, 3), heads, cache, start, causal=True)


def _reference(q, cache, start, heads, weights, bias, residual):
    return residual_reference(_attended(q, heads, cache, start), weights, bias, residual)
