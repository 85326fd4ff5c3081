"""What the sampling kernels share: the search for the last token that is kept, and the draw among the kept ones.

A token's key is argmax's: an int64 that orders as the pair of logit and index does, so that no two of a row are equal.
The kept tokens are those whose key is at least a threshold. All THREADS of a block call the device functions below.
scaling: what a token's weight follows from, (row_max, scale, the least weight that is kept).
"""

import numpy as np
from numba import float32, int32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.argmax import LEAST, key_of, warp_largest_key
from labkit.kernels.arguments import MAX_GRID_YZ, check_array
from labkit.kernels.philox import philox
from labkit.kernels.reduce import ALL_LANES, NEG_INF
from labkit.kernels.token_weights import LARGEST, LOG2_E, MAX_VOCAB, ONE, ZERO, distance, high_half, weight_at
from labkit.kernels.wrapping import wrapping_add

THREADS = 512
WARPS = THREADS // 32
CHUNK = 8192  # neighbouring tokens of a block; a constant, so that no sum depends on the batch
ITEMS = CHUNK // THREADS  # tokens of a chunk per thread
BINS = 512  # of a histogram: one per thread
BIN_BITS = BINS.bit_length() - 1
CANDIDATES = 4096  # tokens of one bin whose keys fit into shared memory; more are searched for again in each pass
LAST_BIN = float32(BINS - 1)
NO_BIN = uint32(BINS)
TINY, HUGE = float32(1e-35), float32(1e38)
DRAW, BY_COUNT, BY_MASS = uint32(1), uint32(2), uint32(4)  # bits: what is left to do for a row; 0: its token is known
NAN_ROW, EMPTY_ROW = int32(-1), int32(-2)  # in place of a token: a logit is NaN; all are -inf
NO_LOGPROB = float32(np.nan)


# --- Arguments -------------------------------------------------------------------------------------------------------


def check_rows(rows: int, cols: int) -> None:
    if not 1 <= cols <= MAX_VOCAB:
        raise ValueError(f"cols is {cols:,}; a row may have 1 to {MAX_VOCAB:,} logits")
    if not 1 <= rows <= MAX_GRID_YZ:
        raise ValueError(f"rows is {rows:,}; it must be 1 to {MAX_GRID_YZ:,}")


def check_logits(logits, scratch=None) -> tuple[int, int]:
    """Return (rows, cols). scratch: of a launch, for at least as many rows, of this length."""
    check_array("logits", logits, ndim=2)
    rows, cols = logits.shape
    check_rows(rows, cols)
    if scratch is not None and (scratch.rows < rows or scratch.cols != cols):
        raise ValueError(f"scratch is for {scratch.rows:,} rows of {scratch.cols:,} logits; these are {rows:,} of "
                         f"{cols:,}")
    return rows, cols


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
# Warps reduce by shuffles; then every warp reduces the 16 warps' partials, one a lane: where every thread reads all of
# them, they take 32 registers. One barrier each: another is needed before the same shared array is used again.
# partials: shared, WARPS int64; declared in the function that calls, as NVVM refuses to link a function that declares
# shared memory if a kernel reaches it by two ways.


@cuda.jit(device=True)
def block_largest_keys(a, b, partials, partials2):
    """The largest of each of two keys."""
    lane, warp = u32.threadIdx.x & 31, u32.threadIdx.x >> 5
    a, b = warp_largest_key(a), warp_largest_key(b)
    if lane == 0:
        partials[warp], partials2[warp] = a, b
    cuda.syncthreads()
    return warp_largest_key(partials[lane % WARPS]), warp_largest_key(partials2[lane % WARPS])


@cuda.jit(device=True)
def block_largest_key(key, partials):
    lane, warp = u32.threadIdx.x & 31, u32.threadIdx.x >> 5
    key = warp_largest_key(key)
    if lane == 0:
        partials[warp] = key
    cuda.syncthreads()
    return warp_largest_key(partials[lane % WARPS])


@cuda.jit(device=True)
def warp_total(value):
    """The sum of an int64 over a warp."""
    for offset in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL_LANES, value, offset)
    return value


@cuda.jit(device=True)
def block_total(value, partials):
    lane, warp = u32.threadIdx.x & 31, u32.threadIdx.x >> 5
    value = warp_total(value)
    if lane == 0:
        partials[warp] = value
    cuda.syncthreads()
    return warp_total(partials[lane] if lane < WARPS else int64(0))


@cuda.jit(device=True)
def block_totals(a, b, partials, partials2):
    """The sum of each of two int64."""
    lane, warp = u32.threadIdx.x & 31, u32.threadIdx.x >> 5
    a, b = warp_total(a), warp_total(b)
    if lane == 0:
        partials[warp], partials2[warp] = a, b
    cuda.syncthreads()
    a, b = int64(0), int64(0)
    if lane < WARPS:
        a, b = partials[lane], partials2[lane]
    return warp_total(a), warp_total(b)


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
    return min(LOG2_E / temperature, LARGEST) if temperature > ZERO else ZERO


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
def tally(weight, bin_index, filters, bins):
    """Add a token to its bin of (counts, low words of masses, high words)."""
    counts, mass_low, mass_high = bins
    if filters & BY_COUNT:
        cuda.atomic.add(counts, bin_index, uint32(1))
    if filters & BY_MASS:
        add_mass(mass_low, mass_high, bin_index, weight)


@cuda.jit(device=True)
def mass_at(mass_low, mass_high, i):
    return int64((uint64(mass_high[i]) << uint64(32)) | uint64(mass_low[i]))


@cuda.jit(device=True)
def pick_bin(count, mass, by_mass, target, scratch):
    """Find the first bin with which the running count, or mass, reaches `target`. Each thread passes its own bin's.

    Return (bin, count before it, mass before it, its count, its mass); bin is NO_BIN if the total is below the target.
    scratch: shared, int64: two arrays of WARPS elements and one of 5.
    """
    warp_counts, warp_masses, found = scratch
    thread = u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    if thread == 0:
        found[0] = int64(NO_BIN)
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
        found[0], found[1], found[2], found[3], found[4] = (int64(thread), count_scan - count, mass_scan - mass,
                                                            count, mass)
    cuda.syncthreads()
    return uint32(found[0]), found[1], found[2], found[3], found[4]


@cuda.jit(device=True)
def key_at(logits, row, keys, num_keys, j):
    """keys[j], or where there are fewer keys that of the row's token j."""
    return keys[j] if j < num_keys else key_of(logits[row, j], j)


@cuda.jit(device=True)
def search(entries, first, last, scaling, by_mass, target, bins, scratch):
    """Return (the key from first to last with which their count, or mass, reaches `target`; the mass down to there); if
    all together are below the target, LEAST.

    entries: (logits, row, keys, num_keys, n): n keys that were gathered, or, if num_keys is 0, the n tokens of the row.
    Each histogram narrows the range by a factor of BINS, until the last bin holds one token or is kept entirely.
    """
    logits, row, keys, num_keys, n = entries
    row_max, scale, min_weight = scaling
    counts, mass_low, mass_high = bins
    thread, threshold, kept_mass, searching = u32.threadIdx.x, LEAST, int64(0), True
    while searching:
        shift = uint64(max(int32(64 - BIN_BITS) - int32(cuda.clz(uint64(first - last))), int32(0)))
        counts[thread], mass_low[thread], mass_high[thread] = 0, 0, 0
        cuda.syncthreads()
        for j in u32.range(thread, n, THREADS):
            key = key_at(logits, row, keys, num_keys, j)
            if last <= key and key <= first:
                weight = weight_at(distance(row_max, value_of(key)), scale)
                if weight >= min_weight:
                    tally(weight, uint32(uint64(first - key) >> shift), BY_COUNT | BY_MASS, bins)
        cuda.syncthreads()
        bin_index, prefix_count, prefix_mass, bin_count, bin_mass = pick_bin(
            int64(counts[thread]), mass_at(mass_low, mass_high, thread), by_mass, target, scratch)
        searching = bin_index != NO_BIN
        if searching:
            kept_mass += prefix_mass
            target -= prefix_mass if by_mass else prefix_count
            first -= int64(uint64(bin_index) << shift)
            width = uint64(uint64(1) << shift)
            if uint64(first - last) >= width:
                last = first - int64(width) + int64(1)
            if shift == uint64(0) or bin_count == int64(1) or target == (bin_mass if by_mass else bin_count):
                threshold, searching = last, False
                kept_mass += bin_mass
    return threshold, kept_mass


# --- The draw --------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def kept_weight(x, col, scaling, threshold):
    """A token's weight if it is kept, and 0 otherwise."""
    row_max, scale, min_weight = scaling
    weight = weight_at(distance(row_max, x), scale)
    weight = weight if weight >= min_weight else int64(0)  # no branch, as in weight_at
    return weight if key_of(x, col) >= threshold else int64(0)


@cuda.jit(device=True)
def random_u64(seeds, steps, row):
    """A random uint64, a function of the row's seed and step alone."""
    a, b, _, _ = philox(uint32(steps[row]), 0, 0, 0, seeds[row, 0], seeds[row, 1])
    return uint64(a) | (uint64(b) << uint64(32))


@cuda.jit(device=True)
def random_below(seeds, steps, row, mass):
    """A random integer from 0 to mass - 1."""
    return int64(high_half(random_u64(seeds, steps, row), uint64(mass)))
