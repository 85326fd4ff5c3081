"""Sampling by one block for each row of logits: two rungs below labkit.kernels.sampling, which says what."""

import numpy as np
from numba import float32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, key_of
from labkit.kernels.arguments import MAX_GRID_YZ, aligned, check_array
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF
from labkit.kernels.sampling_search import (
    BINS,
    BY_COUNT,
    BY_MASS,
    CANDIDATES,
    CHUNK,
    HELD,
    THREADS,
    WARPS,
    bin_of,
    bins_per_unit,
    block_largest_key,
    block_total,
    draw_in,
    filters_of,
    kept_weight,
    known_token,
    least_weight,
    load_narrow,
    load_wide,
    make_threshold,
    mass_at,
    scale_of,
    share_drawn,
    tally,
    value_of,
)
from labkit.kernels.token_weights import LONGEST, distance, reaching

PARAMETER_DTYPES = (np.float32, np.int32, np.float32, np.float32, np.uint32, np.int32)


def check_sampling(logits, parameters, tokens) -> tuple:
    """(rows, the function that loads four logits)."""
    check_array("logits", logits, ndim=2)
    rows, cols = logits.shape
    if cols > LONGEST or rows > MAX_GRID_YZ:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; at most {MAX_GRID_YZ:,} rows of {LONGEST:,} are "
                         f"allowed")
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "steps")
    for name, array, dtype in zip(names, parameters, PARAMETER_DTYPES, strict=True):
        check_array(name, array, shape=(rows, 2) if name == "seeds" else (rows,), dtype=dtype)
    check_array("tokens", tokens, shape=(rows,), dtype=np.int32)
    return rows, load_wide if cols % 4 == 0 and aligned(logits) else load_narrow


# --- Bisection -------------------------------------------------------------------------------------------------------


def make_row_passes(load):
    """Passes of one block over a row, or over a part of it."""

    @cuda.jit(device=True)
    def largest_key_of(logits, row, of_warps):
        four = cuda.local.array(4, float32)
        key, cols = LEAST, u32.shape(logits)[1]
        for col in u32.range(4 * u32.threadIdx.x, cols, 4 * THREADS):
            four[0], four[1], four[2], four[3] = load(logits, row, col, cols)
            for i in u32.range(4):
                key = max(key, key_of(four[i], col + i))
        return block_largest_key(key, of_warps)

    @cuda.jit(device=True)
    def kept(logits, row, begin, end, row_max, scale, least, threshold, by_count, of_warps):
        """What the tokens from begin to end weigh whose key is at least the threshold; or how many they are."""
        four = cuda.local.array(4, float32)
        own, cols = int64(0), u32.shape(logits)[1]
        for col in u32.range(begin + 4 * u32.threadIdx.x, end, 4 * THREADS):
            four[0], four[1], four[2], four[3] = load(logits, row, col, cols)
            for i in u32.range(4):
                weight = kept_weight(four[i], col + i, row_max, scale, least, threshold)
                own += min(weight, int64(1)) if by_count else weight
        cuda.syncthreads()  # all have read what the pass before found
        return block_total(own, of_warps)

    @cuda.jit(device=True)
    def draw(logits, row, seeds, steps, row_max, scale, least, threshold, tokens, of_warps, also_of_warps):
        """The token at which the sum of kept weights exceeds the share drawn: chunk after chunk, then within one."""
        begin, end, cols = 0, u32.shape(logits)[1], u32.shape(logits)[1]
        at, drawn, first = int64(0), False, True
        while not drawn:
            mass = kept(logits, row, begin, end, row_max, scale, least, threshold, False, of_warps)
            if first:  # of the whole row
                at, first = share_drawn(seeds, steps, row, mass), False
            elif at < mass:
                drawn = True
            else:
                at -= mass
                begin = end
            if not drawn:
                end = min(begin + CHUNK, cols)
        draw_in(logits, row, begin, at, row_max, scale, least, threshold, tokens, also_of_warps)

    return largest_key_of, kept, draw


@kernel_factory
def make_bisection(load):
    largest_key_of, kept, draw = make_row_passes(load)

    @cuda.jit(launch_bounds=THREADS)
    def sample_bisection_kernel(logits, temperature, top_k, top_p, min_p, seeds, steps, tokens):
        of_warps, also_of_warps = cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64)
        row, cols = u32.blockIdx.x, u32.shape(logits)[1]
        key = largest_key_of(logits, row, also_of_warps)
        token, known = known_token(key, temperature[row])
        if known:
            if cuda.threadIdx.x == 0:
                tokens[row] = token
            return
        row_max, scale, least = value_of(key), scale_of(temperature[row]), least_weight(min_p[row])
        filters, threshold = filters_of(top_k[row], top_p[row], cols), LEAST
        by_count, more = filters & BY_COUNT != 0, filters & (BY_COUNT | BY_MASS) != 0
        while more:
            # Its bits from the highest on: is a threshold with this bit set still low enough? Before all of them one
            # pass without any, to see what there is a share of.
            need, lowest, bit = int64(top_k[row]), threshold, uint64(64)
            threshold = LEAST
            while True:
                trial = lowest if bit == uint64(64) else threshold + int64(uint64(1) << bit)
                reached = kept(logits, row, 0, cols, row_max, scale, least, trial, by_count, of_warps)
                if bit == uint64(64):
                    if not by_count:
                        need = reaching(top_p[row], reached)
                elif reached >= need:
                    threshold = trial
                if bit == uint64(0):
                    break
                bit -= uint64(1)
            more = by_count and filters & BY_MASS != 0
            by_count = False
        draw(logits, row, seeds, steps, row_max, scale, least, threshold, tokens, of_warps, also_of_warps)

    return sample_bisection_kernel


@rung(kernel=(make_bisection(load_wide), make_bisection(load_narrow)),
      idea="one block a row; thresholds by bisection, a pass for each bit")
def sample_bisection(logits, temperature, top_k, top_p, min_p, seeds, steps, out, stream=0):
    """Sample by bisection: a threshold has 64 bits, and each pass over the row decides one: do the tokens above reach
    the target? With top-k and top-p that is 128 passes."""
    rows, wide = check_sampling(logits, (temperature, top_k, top_p, min_p, seeds, steps), out)
    make_bisection(wide)[rows, THREADS, stream](logits, temperature, top_k, top_p, min_p, seeds, steps, out)


# --- Histograms ------------------------------------------------------------------------------------------------------


def make_histogram_pass(load):
    @cuda.jit(device=True)
    def histogram(logits, row, begin, end, row_max, scale, per_unit, least, floor, filters, count, low, high):
        """Enters the tokens from begin to end, whole chunks but for the row's last, into the block's histogram. Returns
        what this thread's weigh that min_p keeps, those below the floor included."""
        thread, cols = u32.threadIdx.x, u32.shape(logits)[1]
        count[thread], low[thread], high[thread] = 0, 0, 0
        cuda.syncthreads()
        values = cuda.local.array(HELD, float32)
        own = int64(0)
        for col in u32.range(begin + 4 * thread, end, CHUNK):
            for v in u32.range(HELD // 4):
                a, b, c, d = load(logits, row, col + 4 * THREADS * v, cols)
                values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
            for i in range(HELD):
                below = distance(row_max, values[i])
                weight = tally(below, scale, floor, bin_of(below, per_unit), filters, count, low, high)
                if weight >= least:
                    own += weight
        cuda.syncthreads()
        return own

    return histogram


@kernel_factory
def make_histogram(load):
    largest_key_of, kept, draw = make_row_passes(load)
    histogram, threshold_of = make_histogram_pass(load), make_threshold(load)

    @cuda.jit(launch_bounds=(THREADS, 1))  # with as many registers as one block can have: otherwise it spills two
    def sample_histogram_kernel(logits, temperature, top_k, top_p, min_p, seeds, steps, tokens):
        of_warps, also_of_warps = cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64)
        count, low, high = (cuda.shared.array(BINS, uint32), cuda.shared.array(BINS, uint32),
                            cuda.shared.array(BINS, uint32))
        indices, waiting = cuda.shared.array(CANDIDATES, uint32), cuda.shared.array(1, uint32)
        found = cuda.shared.array(5, int64)
        row, thread, cols = u32.blockIdx.x, u32.threadIdx.x, u32.shape(logits)[1]
        key = largest_key_of(logits, row, also_of_warps)
        token, known = known_token(key, temperature[row])
        if known:
            if thread == 0:
                tokens[row] = token
            return
        row_max, scale, least = value_of(key), scale_of(temperature[row]), least_weight(min_p[row])
        filters, threshold = filters_of(top_k[row], top_p[row], cols), LEAST
        if filters & (BY_COUNT | BY_MASS):
            per_unit = bins_per_unit(row_max, NEG_INF, scale)
            own = histogram(logits, row, 0, cols, row_max, scale, per_unit, least, least, filters, count, low,
                            high)
            threshold = threshold_of(logits, row, row_max, scale, per_unit, least, filters, top_k[row], top_p[row],
                                     int64(count[thread]), mass_at(low, high, thread), block_total(own, of_warps),
                                     indices, waiting, count, low, high, of_warps, also_of_warps, found)
        draw(logits, row, seeds, steps, row_max, scale, least, threshold, tokens, of_warps, also_of_warps)

    return sample_histogram_kernel


@rung(kernel=(make_histogram(load_wide), make_histogram(load_narrow)),
      idea="one block a row; a histogram of counts and weights, then of the one bin that matters")
def sample_histogram(logits, temperature, top_k, top_p, min_p, seeds, steps, out, stream=0):
    """As bisection, but a pass decides nine bits: it counts and weighs the tokens in 512 bins. The first leaves
    one bin, whose few tokens fit into shared memory, where the other passes are short."""
    rows, wide = check_sampling(logits, (temperature, top_k, top_p, min_p, seeds, steps), out)
    make_histogram(wide)[rows, THREADS, stream](logits, temperature, top_k, top_p, min_p, seeds, steps, out)
