"""What the sampling kernels share: the search for the last token that is kept, and the draw among the kept ones.

A token's key is argmax's: an int64 that orders as the pair of logit and index does, so that no two of a row are equal.
The kept tokens are those whose key is at least a threshold. Each device function below is for a whole block of THREADS.
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
CHUNK = 8192  # neighbouring tokens that a block looks at; a constant, so that no sum depends on the batch
HELD = CHUNK // THREADS  # of them, those of a thread
BINS = 512  # of a histogram: one for each thread
CANDIDATES = 4096  # tokens of one bin whose indices fit into shared memory; more are searched for again in each pass
LOADS = 4  # of 128 bits, that a thread has under way where one block goes through a whole row
FETCHED = 4 * LOADS
LAST_BIN = float32(BINS - 1)
NONE_LEFT = uint32(BINS)
SMALLEST, GREATEST = float32(1e-35), float32(1e38)
DRAW, BY_COUNT, BY_MASS = uint32(1), uint32(2), uint32(4)  # bits of what a row still needs; 0: its token is known
NAN_ROW, EMPTY_ROW = int32(-1), int32(-2)  # in place of a token: a logit is NaN; all are -inf
NO_LOGPROB = float32(np.nan)


# --- Loads -----------------------------------------------------------------------------------------------------------
# Four neighbours of a row; -inf, which weighs nothing, beyond its end.


@cuda.jit(device=True)
def load_wide(logits, row, col, cols):
    """In one load of 128 bits, where every row begins at a multiple of 16 bytes."""
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
# Warps by shuffles; then every thread adds up what the 16 warps found. One barrier each: before the same shared array
# is used again, there has to be another. of_warps: shared, WARPS int64.


@cuda.jit(device=True)
def block_largest_keys(first, second, of_warps, also_of_warps):
    """The largest of each of two keys."""
    warp = u32.threadIdx.x >> 5
    for apart in (16, 8, 4, 2, 1):
        first = max(first, cuda.shfl_xor_sync(ALL_LANES, first, apart))
        second = max(second, cuda.shfl_xor_sync(ALL_LANES, second, apart))
    if u32.threadIdx.x & 31 == 0:
        of_warps[warp], also_of_warps[warp] = first, second
    cuda.syncthreads()
    for each in range(WARPS):
        first, second = max(first, of_warps[each]), max(second, also_of_warps[each])
    return first, second


@cuda.jit(device=True)
def block_largest_key(key, of_warps):
    for apart in (16, 8, 4, 2, 1):
        key = max(key, cuda.shfl_xor_sync(ALL_LANES, key, apart))
    if u32.threadIdx.x & 31 == 0:
        of_warps[u32.threadIdx.x >> 5] = key
    cuda.syncthreads()
    for each in range(WARPS):
        key = max(key, of_warps[each])
    return key


@cuda.jit(device=True)
def block_total(value, of_warps):
    for apart in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL_LANES, value, apart)
    if u32.threadIdx.x & 31 == 0:
        of_warps[u32.threadIdx.x >> 5] = value
    cuda.syncthreads()
    value = int64(0)
    for each in range(WARPS):
        value += of_warps[each]
    return value


@cuda.jit(device=True)
def through(value, of_warps):
    """(the sum of an int64 over this thread and all before it, the sum over all threads)."""
    lane, warp = u32.threadIdx.x & 31, u32.threadIdx.x >> 5
    for apart in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(ALL_LANES, value, apart)
        if lane >= apart:
            value += other
    if lane == 31:
        of_warps[warp] = value
    cuda.syncthreads()
    total = int64(0)
    for each in u32.range(WARPS):
        if each < warp:
            value += of_warps[each]
        total += of_warps[each]
    return value, total


# --- What a row asks for ---------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def value_of(key):
    """The logit in a key."""
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
def least_weight(min_p):
    """The weight below which min_p keeps no token; a token of weight 0 is never drawn."""
    exact = min_p * float32(2**ONE)
    whole = int64(exact)
    if float32(whole) < exact:
        whole += int64(1)
    return max(whole, int64(1))


@cuda.jit(device=True)
def bins_per_unit(row_max, row_min, scale):
    """Bins of a histogram over the logits from the maximum down to where weights vanish, or to the least one."""
    reach = min(float32(ONE + 1) / scale, row_max - row_min)
    return float32(BINS) / min(max(reach, SMALLEST), GREATEST)


@cuda.jit(device=True)
def bin_of(below, per_unit):
    return uint32(min(below * per_unit, LAST_BIN))


# --- The search ------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def add_mass(low, high, at, weight):
    """To the 64-bit number whose two words are low[at] and high[at]: shared memory adds only 32 bits at once. In any
    order the carries, and so both words, come out the same."""
    word = uint32(weight)
    old = cuda.atomic.add(low, at, word)
    above = uint32(uint64(weight) >> uint64(32))
    if wrapping_add(old, word) < word:  # the sum has wrapped round
        above += 1
    if above != 0:
        cuda.atomic.add(high, at, above)


@cuda.jit(device=True)
def tally(below, scale, floor, at, filters, count, low, high):
    """Enters a token into bin `at`, if it weighs at least `floor`. Returns its weight."""
    weight = weight_at(below, scale)
    if weight >= floor:
        if filters & BY_COUNT:
            cuda.atomic.add(count, at, uint32(1))
        if filters & BY_MASS:
            add_mass(low, high, at, weight)
    return weight


@cuda.jit(device=True)
def mass_at(low, high, at):
    return int64((uint64(high[at]) << uint64(32)) | uint64(low[at]))


@cuda.jit(device=True)
def pick_bin(count, mass, by_mass, need, counts_of_warps, masses_of_warps, found):
    """Each thread brings the count and the mass of its bin: the first bin through which `need` is reached.

    Returns (bin, count before it, mass before it, its count, its mass); bin is NONE_LEFT if all do not reach it.
    """
    thread = u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    if thread == 0:
        found[0] = int64(NONE_LEFT)
    counts, masses = count, mass
    for apart in (1, 2, 4, 8, 16):
        other_count = cuda.shfl_up_sync(ALL_LANES, counts, apart)
        other_mass = cuda.shfl_up_sync(ALL_LANES, masses, apart)
        if lane >= apart:
            counts += other_count
            masses += other_mass
    if lane == 31:
        counts_of_warps[warp], masses_of_warps[warp] = counts, masses
    cuda.syncthreads()
    for each in u32.range(WARPS):
        if each < warp:
            counts += counts_of_warps[each]
            masses += masses_of_warps[each]
    own, reached = count, counts
    if by_mass:
        own, reached = mass, masses
    if reached - own < need and need <= reached:
        found[0], found[1], found[2], found[3], found[4] = int64(thread), counts - count, masses - mass, count, mass
    cuda.syncthreads()
    return uint32(found[0]), found[1], found[2], found[3], found[4]


@cuda.jit(device=True)
def candidate(x, col, row_max, scale, per_unit, floor, at, indices, waiting):
    """The token's key if it belongs to bin `at`, and LEAST otherwise. Its index is kept, as long as there is space."""
    below = distance(row_max, x)
    if x == NEG_INF or bin_of(below, per_unit) != at or weight_at(below, scale) < floor:
        return LEAST
    place = cuda.atomic.add(waiting, 0, uint32(1))
    if place < CANDIDATES:
        indices[place] = col
    return key_of(x, col)


def make_threshold(load):
    """threshold_of(...) for rows that are loaded so."""

    @cuda.jit(device=True)
    def threshold_of(logits, row, row_max, scale, per_unit, floor, filters, top_k, top_p, row_count, row_mass,
                     available, indices, waiting, count, low, high, of_warps, also_of_warps, found):
        """Return the smallest key that is kept: of the token with which the count top_k is reached; and then, if
        requested, of the token with which a mass is reached, the share top_p of the remaining mass.

        row_count and row_mass: of the thread's bin in the histogram of the row. available: the mass of all tokens that
        min_p keeps. The row's histogram leaves one bin. Its tokens are gathered, of which there are few unless many
        logits are alike; then come histograms of a range of keys that shrinks by a factor of BINS each time, until the
        last bin is one token, or is needed whole.
        """
        values = cuda.local.array(FETCHED, float32)
        thread, cols = u32.threadIdx.x, u32.shape(logits)[1]
        threshold, by_mass = LEAST, filters & BY_COUNT == 0
        more = filters & (BY_COUNT | BY_MASS) != 0
        while more:
            need = reaching(top_p, available) if by_mass else int64(top_k)
            if thread == 0:
                waiting[0] = 0
            cuda.syncthreads()
            at, count_before, mass_before, bin_count, bin_mass = pick_bin(
                row_count, row_mass, by_mass, need, of_warps, also_of_warps, found)
            kept_mass = mass_before
            searching = at != NONE_LEFT  # fewer tokens than top_k: all are kept
            need -= mass_before if by_mass else count_before
            first, last, entries, few = LEAST, LEAST, cols, False
            if searching:
                for col in u32.range(4 * thread, cols, 4 * THREADS * LOADS):
                    for v in u32.range(LOADS):  # all of them stand before the first use
                        a, b, c, d = load(logits, row, col + 4 * THREADS * v, cols)
                        values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
                    for i in u32.range(FETCHED):
                        key = candidate(values[i], col + (4 * THREADS * (i // 4) + i % 4), row_max, scale,
                                        per_unit, floor, at, indices, waiting)
                        if key != LEAST:
                            first, last = max(first, key), max(last, ~key)
                first, last = block_largest_keys(first, last, of_warps, also_of_warps)
                last = ~last  # the complement of the least key
                if waiting[0] <= CANDIDATES:
                    few, entries = True, waiting[0]
            while searching:
                shift = uint64(0)
                while (uint64(first - last) >> shift) >= uint64(BINS):
                    shift += uint64(1)
                count[thread], low[thread], high[thread] = 0, 0, 0
                cuda.syncthreads()
                for j in u32.range(thread, entries, THREADS):
                    col = indices[j] if few else j
                    x = logits[row, col]
                    key = key_of(x, col)
                    if last <= key and key <= first:
                        tally(distance(row_max, x), scale, floor, uint32(uint64(first - key) >> shift),
                              BY_COUNT | BY_MASS, count, low, high)
                cuda.syncthreads()
                at, count_before, mass_before, bin_count, bin_mass = pick_bin(
                    int64(count[thread]), mass_at(low, high, thread), by_mass, need, of_warps, also_of_warps, found)
                kept_mass += mass_before
                need -= mass_before if by_mass else count_before
                first -= int64(uint64(at) << shift)
                width = uint64(uint64(1) << shift)
                if uint64(first - last) >= width:
                    last = first - int64(width) + int64(1)
                # NONE_LEFT cannot come: the bin before was picked because its tokens reach the target.
                if (shift == uint64(0) or bin_count == int64(1) or need == (bin_mass if by_mass else bin_count)
                        or at == NONE_LEFT):
                    threshold, available = last, kept_mass + bin_mass
                    searching = False
            more = not by_mass and filters & BY_MASS != 0
            by_mass = True
        return threshold

    return threshold_of


# --- The draw --------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def kept_weight(x, col, row_max, scale, least, threshold):
    """A token's weight if it is kept, and 0 otherwise."""
    weight = weight_at(distance(row_max, x), scale)
    return weight if weight >= least and key_of(x, col) >= threshold else int64(0)


@cuda.jit(device=True)
def draw_words(seeds, steps, row):
    """A uint64 at random, by the row's seed and step alone."""
    a, b, _, _ = philox(uint32(steps[row]), 0, 0, 0, seeds[row, 0], seeds[row, 1])
    return uint64(a) | (uint64(b) << uint64(32))


@cuda.jit(device=True)
def share_drawn(seeds, steps, row, mass):
    """A whole number from 0 to mass - 1."""
    return int64(high_half(draw_words(seeds, steps, row), uint64(mass)))


@cuda.jit(device=True)
def draw_in(logits, row, begin, at, row_max, scale, least, threshold, tokens, of_warps):
    """Writes the token: of the chunk's kept ones, added up in their order, that with which the sum exceeds `at`."""
    cols = u32.shape(logits)[1]
    first = begin + HELD * u32.threadIdx.x
    own = int64(0)
    for i in u32.range(HELD):
        col = first + i
        if col < cols:
            own += kept_weight(logits[row, col], col, row_max, scale, least, threshold)
    before = through(own, of_warps)[0] - own
    if before <= at and at < before + own:
        for i in u32.range(HELD):
            col = first + i
            if col < cols:
                weight = kept_weight(logits[row, col], col, row_max, scale, least, threshold)
                if before <= at and at < before + weight:
                    tokens[row] = int32(col)
                before += weight
