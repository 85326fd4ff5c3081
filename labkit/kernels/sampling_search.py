"""What the sampling kernels share: the search for the last token that is kept, and the draw among the kept ones.

A token's key is argmax's: an int64 that orders as the pair of logit and index does, so that no two of a row are equal.
The kept tokens are those whose key is at least a threshold. All THREADS of a block call the device functions below.
"""

import numpy as np
from numba import float32, int32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.argmax import LEAST, key_of
from labkit.kernels.philox import philox
from labkit.kernels.reduce import ALL_LANES, NEG_INF
from labkit.kernels.token_weights import LOG2_E, ONE, ZERO, distance, high_half, reaching, weight_at
from labkit.kernels.wrapping import wrapping_add

THREADS = 512
WARPS = THREADS // 32
CHUNK = 8192  # neighbouring tokens of a block; a constant, so that no sum depends on the batch
ITEMS = CHUNK // THREADS  # tokens of a chunk per thread
BINS = 512  # of a histogram: one per thread
CANDIDATES = 4096  # tokens of one bin whose indices fit into shared memory; more are searched for again in each pass
LOADS = 4  # 128-bit loads that a thread has in flight where one block reads a whole row
BATCH = 4 * LOADS
LAST_BIN = float32(BINS - 1)
NO_BIN = uint32(BINS)
TINY, HUGE = float32(1e-35), float32(1e38)
DRAW, BY_COUNT, BY_MASS = uint32(1), uint32(2), uint32(4)  # bits: what is left to do for a row; 0: its token is known
NAN_ROW, EMPTY_ROW = int32(-1), int32(-2)  # in place of a token: a logit is NaN; all are -inf
NO_LOGPROB = float32(np.nan)


# --- Loads -----------------------------------------------------------------------------------------------------------
# Four neighbours of a row; beyond its end -inf, whose weight is 0.


@cuda.jit(device=True)
def load_wide(logits, row, col, cols):
    """One load of 128 bits, for rows that begin at multiples of 16 bytes."""
    a, b, c, d = NEG_INF, NEG_INF, NEG_INF, NEG_INF
    if col < cols:
        a, b, c, d = ptx.load_nc4(logits, row * cols + col)
    return a, b, c, d


@cuda.jit(device=True)
def load_narrow(logits, row, col, cols):
    a = logits[row, col] if col < cols else NEG_INF
    b = logits[row, col + 1] if col + 1 < cols else NEG_INF
    c = logits[row, col + 2] if col + 2 < cols else NEG_INF
    d = logits[row, col + 3] if col + 3 < cols else NEG_INF
    return a, b, c, d


# --- Reductions of a block -------------------------------------------------------------------------------------------
# Warps reduce by shuffles; then every thread combines the 16 warps' partials. One barrier each: another is needed
# before the same shared array is used again. partials: shared, WARPS int64.


@cuda.jit(device=True)
def block_largest_keys(a, b, partials, partials2):
    """The largest of each of two keys."""
    warp = u32.threadIdx.x >> 5
    for offset in (16, 8, 4, 2, 1):
        a = max(a, cuda.shfl_xor_sync(ALL_LANES, a, offset))
        b = max(b, cuda.shfl_xor_sync(ALL_LANES, b, offset))
    if u32.threadIdx.x & 31 == 0:
        partials[warp], partials2[warp] = a, b
    cuda.syncthreads()
    for w in range(WARPS):
        a, b = max(a, partials[w]), max(b, partials2[w])
    return a, b


@cuda.jit(device=True)
def block_largest_key(key, partials):
    for offset in (16, 8, 4, 2, 1):
        key = max(key, cuda.shfl_xor_sync(ALL_LANES, key, offset))
    if u32.threadIdx.x & 31 == 0:
        partials[u32.threadIdx.x >> 5] = key
    cuda.syncthreads()
    for w in range(WARPS):
        key = max(key, partials[w])
    return key


@cuda.jit(device=True)
def block_total(value, partials):
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL_LANES, value, offset)
    if u32.threadIdx.x & 31 == 0:
        partials[u32.threadIdx.x >> 5] = value
    cuda.syncthreads()
    value = int64(0)
    for w in range(WARPS):
        value += partials[w]
    return value


@cuda.jit(device=True)
def block_scan(value, partials):
    """(the sum of an int64 over this thread and all before it, the sum over all threads)."""
    lane, warp = u32.threadIdx.x & 31, u32.threadIdx.x >> 5
    for offset in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(ALL_LANES, value, offset)
        if lane >= offset:
            value += other
    if lane == 31:
        partials[warp] = value
    cuda.syncthreads()
    total = int64(0)
    for w in u32.range(WARPS):
        if w < warp:
            value += partials[w]
        total += partials[w]
    return value, total


# --- Keys and parameters of a row ------------------------------------------------------------------------------------


@cuda.jit(device=True)
def value_of(key):
    """The logit of a key."""
    bits = int32(key >> int64(32))
    if bits < int32(0):
        bits = int32(bits ^ int32(0x7FFFFFFF))
    return ptx.bits_float(uint32(bits))


@cuda.jit(device=True)
def index_of(key):
    return int32(~uint32(key))


@cuda.jit(device=True)
def known_token(key, temperature):
    """(token, True) where nothing has to be drawn."""
    row_max = value_of(key)
    if row_max != row_max:
        return NAN_ROW, True
    if row_max == NEG_INF:
        return EMPTY_ROW, True
    return index_of(key), not temperature > ZERO


@cuda.jit(device=True)
def filters_of(top_k, top_p, cols):
    filters = DRAW
    if int32(0) < top_k and uint32(top_k) < cols:
        filters |= BY_COUNT
    if top_p < float32(1.0):
        filters |= BY_MASS
    return filters


@cuda.jit(device=True)
def scale_of(temperature):
    return LOG2_E / temperature if temperature > ZERO else ZERO


@cuda.jit(device=True)
def min_weight_of(min_p):
    """The weight below which min_p keeps no token; a token of weight 0 is never drawn."""
    scaled = min_p * float32(2**ONE)
    weight = int64(scaled)
    if float32(weight) < scaled:
        weight += int64(1)
    return max(weight, int64(1))


@cuda.jit(device=True)
def bins_per_unit(row_max, row_min, scale):
    """Bins per unit of logit, from the maximum down to where weights vanish, or to the smallest logit."""
    reach = min(float32(ONE + 1) / scale, row_max - row_min)
    return float32(BINS) / min(max(reach, TINY), HUGE)


@cuda.jit(device=True)
def bin_of(delta, per_unit):
    return uint32(min(delta * per_unit, LAST_BIN))


# --- The search ------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def add_mass(mass_low, mass_high, i, weight):
    """Add to the 64-bit integer in mass_low[i] and mass_high[i]: atomics on shared memory add 32 bits at once. In any
    order of the additions both words come out the same."""
    low_word = uint32(weight)
    old = cuda.atomic.add(mass_low, i, low_word)
    high_word = uint32(uint64(weight) >> uint64(32))
    if wrapping_add(old, low_word) < low_word:  # the sum has wrapped around: carry
        high_word += 1
    if high_word != 0:
        cuda.atomic.add(mass_high, i, high_word)


@cuda.jit(device=True)
def tally(delta, scale, floor, bin_index, filters, counts, mass_low, mass_high):
    """Add a token to its bin if its weight is at least `floor`. Return the weight."""
    weight = weight_at(delta, scale)
    if weight >= floor:
        if filters & BY_COUNT:
            cuda.atomic.add(counts, bin_index, uint32(1))
        if filters & BY_MASS:
            add_mass(mass_low, mass_high, bin_index, weight)
    return weight


@cuda.jit(device=True)
def mass_at(mass_low, mass_high, i):
    return int64((uint64(mass_high[i]) << uint64(32)) | uint64(mass_low[i]))


@cuda.jit(device=True)
def pick_bin(count, mass, by_mass, target, warp_counts, warp_masses, result):
    """Find the first bin with which the running count, or mass, reaches `target`. Each thread passes its own bin's.

    Return (bin, count before it, mass before it, its count, its mass); bin is NO_BIN if the total is below the target.
    """
    thread = u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    if thread == 0:
        result[0] = int64(NO_BIN)
    count_scan, mass_scan = count, mass
    for offset in (1, 2, 4, 8, 16):
        other_count = cuda.shfl_up_sync(ALL_LANES, count_scan, offset)
        other_mass = cuda.shfl_up_sync(ALL_LANES, mass_scan, offset)
        if lane >= offset:
            count_scan += other_count
            mass_scan += other_mass
    if lane == 31:
        warp_counts[warp], warp_masses[warp] = count_scan, mass_scan
    cuda.syncthreads()
    for w in u32.range(WARPS):
        if w < warp:
            count_scan += warp_counts[w]
            mass_scan += warp_masses[w]
    amount, inclusive = count, count_scan
    if by_mass:
        amount, inclusive = mass, mass_scan
    if inclusive - amount < target and target <= inclusive:
        result[0], result[1], result[2], result[3], result[4] = (int64(thread), count_scan - count, mass_scan - mass,
                                                                 count, mass)
    cuda.syncthreads()
    return uint32(result[0]), result[1], result[2], result[3], result[4]


@cuda.jit(device=True)
def candidate(x, col, row_max, scale, per_unit, floor, bin_index, indices, counter):
    """The token's key if it is in this bin, and LEAST otherwise. Its index is stored while there is space."""
    delta = distance(row_max, x)
    if x == NEG_INF or bin_of(delta, per_unit) != bin_index or weight_at(delta, scale) < floor:
        return LEAST
    slot = cuda.atomic.add(counter, 0, uint32(1))
    if slot < CANDIDATES:
        indices[slot] = col
    return key_of(x, col)


def make_threshold(load):
    """threshold_of(...) for rows that `load` reads."""

    @cuda.jit(device=True)
    def threshold_of(logits, row, row_max, scale, per_unit, floor, filters, top_k, top_p, row_count, row_mass,
                     available, indices, counter, counts, mass_low, mass_high, partials, partials2, result):
        """Return the smallest key that is kept: of the token that completes the count top_k; then, if requested, of the
        token that completes the fraction top_p of the remaining mass.

        row_count and row_mass: the thread's bin in the histogram of the row. available: the mass of all tokens that
        min_p keeps. The row's histogram narrows the search to one bin. Its tokens are gathered, few unless many logits
        are alike; then come histograms of a range of keys that shrinks by a factor of BINS each time, until the last
        bin holds one token, or is kept entirely.
        """
        values = cuda.local.array(BATCH, float32)
        thread, cols = u32.threadIdx.x, u32.shape(logits)[1]
        threshold, by_mass = LEAST, filters & BY_COUNT == 0
        more = filters & (BY_COUNT | BY_MASS) != 0
        while more:
            target = reaching(top_p, available) if by_mass else int64(top_k)
            if thread == 0:
                counter[0] = 0
            cuda.syncthreads()
            bin_index, prefix_count, prefix_mass, bin_count, bin_mass = pick_bin(
                row_count, row_mass, by_mass, target, partials, partials2, result)
            kept_mass = prefix_mass
            searching = bin_index != NO_BIN  # fewer tokens than top_k: all are kept
            target -= prefix_mass if by_mass else prefix_count
            first, last, num_entries, fits = LEAST, LEAST, cols, False
            if searching:
                for col in u32.range(4 * thread, cols, 4 * THREADS * LOADS):
                    for v in u32.range(LOADS):  # all loads are issued before the first use
                        a, b, c, d = load(logits, row, col + 4 * THREADS * v, cols)
                        values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
                    for i in u32.range(BATCH):
                        key = candidate(values[i], col + (4 * THREADS * (i // 4) + i % 4), row_max, scale,
                                        per_unit, floor, bin_index, indices, counter)
                        if key != LEAST:
                            first, last = max(first, key), max(last, ~key)
                first, last = block_largest_keys(first, last, partials, partials2)
                last = ~last  # the complement of the smallest key
                if counter[0] <= CANDIDATES:
                    fits, num_entries = True, counter[0]
            while searching:
                shift = uint64(0)
                while (uint64(first - last) >> shift) >= uint64(BINS):
                    shift += uint64(1)
                counts[thread], mass_low[thread], mass_high[thread] = 0, 0, 0
                cuda.syncthreads()
                for j in u32.range(thread, num_entries, THREADS):
                    col = indices[j] if fits else j
                    x = logits[row, col]
                    key = key_of(x, col)
                    if last <= key and key <= first:
                        tally(distance(row_max, x), scale, floor, uint32(uint64(first - key) >> shift),
                              BY_COUNT | BY_MASS, counts, mass_low, mass_high)
                cuda.syncthreads()
                bin_index, prefix_count, prefix_mass, bin_count, bin_mass = pick_bin(
                    int64(counts[thread]), mass_at(mass_low, mass_high, thread), by_mass, target, partials, partials2,
                    result)
                kept_mass += prefix_mass
                target -= prefix_mass if by_mass else prefix_count
                first -= int64(uint64(bin_index) << shift)
                width = uint64(uint64(1) << shift)
                if uint64(first - last) >= width:
                    last = first - int64(width) + int64(1)
                # NO_BIN is impossible: the previous bin was picked because its tokens reach the target.
                if (shift == uint64(0) or bin_count == int64(1) or target == (bin_mass if by_mass else bin_count)
                        or bin_index == NO_BIN):
                    threshold, available = last, kept_mass + bin_mass
                    searching = False
            more = not by_mass and filters & BY_MASS != 0
            by_mass = True
        return threshold

    return threshold_of


# --- The draw --------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def kept_weight(x, col, row_max, scale, min_weight, threshold):
    """A token's weight if it is kept, and 0 otherwise."""
    weight = weight_at(distance(row_max, x), scale)
    return weight if weight >= min_weight and key_of(x, col) >= threshold else int64(0)


@cuda.jit(device=True)
def random_u64(seeds, steps, row):
    """A random uint64, a function of the row's seed and step alone."""
    a, b, _, _ = philox(uint32(steps[row]), 0, 0, 0, seeds[row, 0], seeds[row, 1])
    return uint64(a) | (uint64(b) << uint64(32))


@cuda.jit(device=True)
def random_below(seeds, steps, row, mass):
    """A random integer from 0 to mass - 1."""
    return int64(high_half(random_u64(seeds, steps, row), uint64(mass)))


@cuda.jit(device=True)
def draw_from_chunk(logits, row, begin, target, row_max, scale, min_weight, threshold, tokens, partials):
    """Write the token of the chunk with which the running sum of kept weights exceeds `target`."""
    cols = u32.shape(logits)[1]
    base = begin + ITEMS * u32.threadIdx.x
    thread_mass = int64(0)
    for i in u32.range(ITEMS):
        col = base + i
        if col < cols:
            thread_mass += kept_weight(logits[row, col], col, row_max, scale, min_weight, threshold)
    prefix = block_scan(thread_mass, partials)[0] - thread_mass
    if prefix <= target and target < prefix + thread_mass:
        for i in u32.range(ITEMS):
            col = base + i
            if col < cols:
                weight = kept_weight(logits[row, col], col, row_max, scale, min_weight, threshold)
                if prefix <= target and target < prefix + weight:
                    tokens[row] = int32(col)
                prefix += weight
