"""Sampling by one block for each row of logits: two rungs below labkit.kernels.sampling, which defines the task."""

import numpy as np
from numba import float32, int32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, key_of
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF
from labkit.kernels.sampling_search import (
    BINS,
    BY_COUNT,
    BY_MASS,
    CANDIDATES,
    CHUNK,
    ITEMS,
    NO_BIN,
    THREADS,
    WARPS,
    bin_of,
    bins_per_unit,
    block_largest_key,
    block_largest_keys,
    block_scan,
    block_total,
    check_logits,
    filters_of,
    kept_weight,
    known_token,
    load_narrow,
    load_wide,
    mass_at,
    min_weight_of,
    pick_bin,
    random_below,
    scale_of,
    search,
    tally,
    value_of,
)
from labkit.kernels.token_weights import distance, reaching, weight_at

LOADS = 4  # 128-bit loads that a thread has in flight where a block gathers tokens
BATCH = 4 * LOADS
PARAMETER_DTYPES = (np.float32, np.int32, np.float32, np.float32, np.uint32, np.int32)


def check_sampling(logits, parameters, tokens, scratch=None) -> tuple:
    """Return (rows, the function that loads four logits)."""
    rows, cols = check_logits(logits, scratch)
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "steps")
    for name, array, dtype in zip(names, parameters, PARAMETER_DTYPES, strict=True):
        check_array(name, array, shape=(rows, 2) if name == "seeds" else (rows,), dtype=dtype)
    check_array("tokens", tokens, shape=(rows,), dtype=np.int32)
    return rows, load_wide if cols % 4 == 0 and aligned(logits) else load_narrow


# --- Bisection -------------------------------------------------------------------------------------------------------


def make_row_passes(load):
    """Passes of one block over a row, or over a part of it."""

    @cuda.jit(device=True)
    def largest_key_of(logits, row):
        values, partials = cuda.local.array(4, float32), cuda.shared.array(WARPS, int64)
        key, cols = LEAST, u32.shape(logits)[1]
        for col in u32.range(4 * u32.threadIdx.x, cols, 4 * THREADS):
            values[0], values[1], values[2], values[3] = load(logits, row, col, cols)
            for i in u32.range(4):
                key = max(key, key_of(values[i], col + i))
        return block_largest_key(key, partials)

    @cuda.jit(device=True)
    def kept_total(logits, row, begin, end, scaling, threshold, by_count, partials):
        """The mass, or the count, of the tokens from begin to end whose key is at least the threshold."""
        values = cuda.local.array(4, float32)
        thread_total, cols = int64(0), u32.shape(logits)[1]
        for col in u32.range(begin + 4 * u32.threadIdx.x, end, 4 * THREADS):
            values[0], values[1], values[2], values[3] = load(logits, row, col, cols)
            for i in u32.range(4):
                weight = kept_weight(values[i], col + i, scaling, threshold)
                thread_total += min(weight, int64(1)) if by_count else weight
        cuda.syncthreads()  # all have read the partials of the previous pass
        return block_total(thread_total, partials)

    @cuda.jit(device=True)
    def draw(logits, row, seeds, steps, scaling, threshold, tokens):
        """Draw the token with which the sum of kept weights exceeds a random target: find the chunk, then the token."""
        partials, partials2 = cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64)
        begin, end, cols = 0, u32.shape(logits)[1], u32.shape(logits)[1]
        target, done, first_pass = int64(0), False, True
        while not done:
            mass = kept_total(logits, row, begin, end, scaling, threshold, False, partials)
            if first_pass:  # of the whole row
                target, first_pass = random_below(seeds, steps, row, mass), False
            elif target < mass:
                done = True
            else:
                target -= mass
                begin = end
            if not done:
                end = min(begin + CHUNK, cols)
        base = begin + ITEMS * u32.threadIdx.x
        thread_mass = int64(0)
        for i in u32.range(ITEMS):
            if base + i < cols:
                thread_mass += kept_weight(logits[row, base + i], base + i, scaling, threshold)
        prefix = block_scan(thread_mass, partials2)[0] - thread_mass
        if prefix <= target and target < prefix + thread_mass:
            for i in u32.range(ITEMS):
                if base + i < cols:
                    weight = kept_weight(logits[row, base + i], base + i, scaling, threshold)
                    if prefix <= target and target < prefix + weight:
                        tokens[row] = int32(base + i)
                    prefix += weight

    return largest_key_of, kept_total, draw


@kernel_factory
def make_bisection(load):
    largest_key_of, kept_total, draw = make_row_passes(load)
    @cuda.jit(launch_bounds=(THREADS, 2))  # without a number of blocks ptxas takes 40 registers, and spills
    def sample_bisection_kernel(logits, temperature, top_k, top_p, min_p, seeds, steps, tokens):
        partials = cuda.shared.array(WARPS, int64)
        row, cols = u32.blockIdx.x, u32.shape(logits)[1]
        key = largest_key_of(logits, row)
        token, known = known_token(key, temperature[row])
        if known:
            if cuda.threadIdx.x == 0:
                tokens[row] = token
            return
        scaling = value_of(key), scale_of(temperature[row]), min_weight_of(min_p[row])
        filters, threshold = filters_of(top_k[row], top_p[row], cols), LEAST
        by_count, more = filters & BY_COUNT != 0, filters & (BY_COUNT | BY_MASS) != 0
        while more:
            # Bit by bit from the highest: is a threshold with this bit set still low enough? Before that, one pass
            # over all tokens finds the mass that top_p is a fraction of.
            target, lower_bound, bit = int64(top_k[row]), threshold, uint64(64)
            threshold = LEAST
            while True:
                trial = lower_bound if bit == uint64(64) else threshold + int64(uint64(1) << bit)
                total = kept_total(logits, row, 0, cols, scaling, trial, by_count, partials)
                if bit == uint64(64):
                    if not by_count:
                        target = reaching(top_p[row], total)
                elif total >= target:
                    threshold = trial
                if bit == uint64(0):
                    break
                bit -= uint64(1)
            more = by_count and filters & BY_MASS != 0
            by_count = False
        draw(logits, row, seeds, steps, scaling, threshold, tokens)

    return sample_bisection_kernel


@rung(kernel=(make_bisection(load_wide), make_bisection(load_narrow)),
      idea="one block a row; thresholds by bisection, a pass for each bit")
def sample_bisection(logits, temperature, top_k, top_p, min_p, seeds, steps, out, stream=0):
    """Sample by bisection: a threshold has 64 bits, and each pass over the row decides one: do the tokens above reach
    the target? With top-k and top-p that is 128 passes."""
    rows, load = check_sampling(logits, (temperature, top_k, top_p, min_p, seeds, steps), out)
    make_bisection(load)[rows, THREADS, stream](logits, temperature, top_k, top_p, min_p, seeds, steps, out)


# --- Histograms ------------------------------------------------------------------------------------------------------


def make_threshold(load):
    """threshold_of(...) for rows that `load` reads."""

    @cuda.jit(device=True)
    def histogram(logits, row, scaling, per_unit, filters, bins):
        """Put the row's tokens that min_p keeps into bins. Return the mass of the thread's."""
        row_max, scale, min_weight = scaling
        counts, mass_low, mass_high = bins
        thread, cols = u32.threadIdx.x, u32.shape(logits)[1]
        counts[thread], mass_low[thread], mass_high[thread] = 0, 0, 0
        cuda.syncthreads()
        values = cuda.local.array(ITEMS, float32)
        thread_mass = int64(0)
        for col in u32.range(4 * thread, cols, CHUNK):
            for v in u32.range(ITEMS // 4):
                a, b, c, d = load(logits, row, col + 4 * THREADS * v, cols)
                values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
            for i in range(ITEMS):
                delta = distance(row_max, values[i])
                weight = weight_at(delta, scale)
                if weight >= min_weight:
                    tally(weight, bin_of(delta, per_unit), filters, bins)
                    thread_mass += weight
        cuda.syncthreads()
        return thread_mass

    @cuda.jit(device=True)
    def threshold_of(logits, row, scaling, filters, top_k, top_p):
        """Return the smallest key that is kept: of the token that completes the count top_k; then, if requested, of the
        token that completes the fraction top_p of the remaining mass.

        A histogram of the row narrows the search to one bin, whose tokens are gathered: few unless many logits are
        alike.
        """
        bins = counts, mass_low, mass_high = (cuda.shared.array(BINS, uint32), cuda.shared.array(BINS, uint32),
                                              cuda.shared.array(BINS, uint32))
        partials, partials2 = cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64)
        scratch = partials, partials2, cuda.shared.array(5, int64)
        keys, counter = cuda.shared.array(CANDIDATES, int64), cuda.shared.array(1, uint32)
        values = cuda.local.array(BATCH, float32)
        thread, cols = u32.threadIdx.x, u32.shape(logits)[1]
        row_max, scale, min_weight = scaling
        per_unit = bins_per_unit(row_max, NEG_INF, scale)
        available = block_total(histogram(logits, row, scaling, per_unit, filters, bins), partials)
        row_count, row_mass = int64(counts[thread]), mass_at(mass_low, mass_high, thread)
        threshold, by_mass, more = LEAST, filters & BY_COUNT == 0, True
        while more:
            target = reaching(top_p, available) if by_mass else int64(top_k)
            if thread == 0:
                counter[0] = 0
            cuda.syncthreads()
            bin_index, prefix_count, prefix_mass, _, _ = pick_bin(row_count, row_mass, by_mass, target, scratch)
            if bin_index != NO_BIN:  # else fewer tokens than top_k: all are kept
                first, last = LEAST, LEAST
                for col in u32.range(4 * thread, cols, 4 * THREADS * LOADS):
                    for v in u32.range(LOADS):  # all loads are issued before the first use
                        a, b, c, d = load(logits, row, col + 4 * THREADS * v, cols)
                        values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
                    for i in u32.range(BATCH):
                        delta = distance(row_max, values[i])
                        if (values[i] != NEG_INF and bin_of(delta, per_unit) == bin_index
                                and weight_at(delta, scale) >= min_weight):
                            key = key_of(values[i], col + (4 * THREADS * (i // 4) + i % 4))
                            first, last = max(first, key), max(last, ~key)
                            slot = cuda.atomic.add(counter, 0, uint32(1))
                            if slot < CANDIDATES:
                                keys[slot] = key
                first, last = block_largest_keys(first, last, partials, partials2)
                num_keys = num_entries = counter[0]
                if num_keys > CANDIDATES:
                    num_keys, num_entries = 0, cols
                target -= prefix_mass if by_mass else prefix_count
                # ~last: the complement of the largest complement is the smallest key
                threshold, kept_mass = search((logits, row, keys, num_keys, num_entries), first, ~last, scaling,
                                              by_mass, target, bins, scratch)
                available = prefix_mass + kept_mass
            more = not by_mass and filters & BY_MASS != 0
            by_mass = True
        return threshold

    return threshold_of


@kernel_factory
def make_histogram(load):
    largest_key_of, kept_total, draw = make_row_passes(load)
    threshold_of = make_threshold(load)

    @cuda.jit(launch_bounds=(THREADS, 1))  # with as many registers as one block can have: otherwise it spills two
    def sample_histogram_kernel(logits, temperature, top_k, top_p, min_p, seeds, steps, tokens):
        row, cols = u32.blockIdx.x, u32.shape(logits)[1]
        key = largest_key_of(logits, row)
        token, known = known_token(key, temperature[row])
        if known:
            if cuda.threadIdx.x == 0:
                tokens[row] = token
            return
        scaling = value_of(key), scale_of(temperature[row]), min_weight_of(min_p[row])
        filters, threshold = filters_of(top_k[row], top_p[row], cols), LEAST
        if filters & (BY_COUNT | BY_MASS):
            threshold = threshold_of(logits, row, scaling, filters, top_k[row], top_p[row])
        draw(logits, row, seeds, steps, scaling, threshold, tokens)

    return sample_histogram_kernel


@rung(kernel=(make_histogram(load_wide), make_histogram(load_narrow)),
      idea="one block a row; a histogram of counts and weights, then of the one bin that matters")
def sample_histogram(logits, temperature, top_k, top_p, min_p, seeds, steps, out, stream=0):
    """As bisection, but a pass decides nine bits: it counts and weighs the tokens in 512 bins. The first leaves
    one bin, whose few tokens fit into shared memory, where the other passes are short."""
    rows, load = check_sampling(logits, (temperature, top_k, top_p, min_p, seeds, steps), out)
    make_histogram(load)[rows, THREADS, stream](logits, temperature, top_k, top_p, min_p, seeds, steps, out)
