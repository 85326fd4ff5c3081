"""Sampling with every row of logits split over blocks: the kernels of labkit.kernels.sampling, which says what.

Four kernels, three of which read the row. There is no synchronisation between blocks and no counter of finished ones:
the results of a row's blocks are in memory when the next kernel starts, and each block of that one combines them anew.

    sample_max_kernel     of each chunk: its maximum and where it is, and the sum of exponentials
    sample_weigh_kernel   of each row: a histogram of the tokens' weights; a row whose token is known ends here
    sample_gather_kernel  the histogram leaves one bin: its tokens are gathered, and those before it are added up
    sample_draw_kernel    of the gathered tokens the last that is kept; then the draw. One block a row

chunk_stats: (rows, chunks, 4) float32: maximum, sum of exponentials at a temperature of 1 and at the row's, least
finite logit. stats: (rows, 4) float32, plan: (rows, 3) uint32, as numbered here. amounts: (rows, BINS) uint32, the
histogram. chunk_masses: (rows, chunks, 2) int64: of the tokens that are kept for certain, and of all.
"""

import math

from numba import float32, int32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, NO_INDEX, key_of
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO, warp_max
from labkit.kernels.sampling_search import (
    BINS,
    BY_COUNT,
    BY_MASS,
    CANDIDATES,
    CHUNK,
    EMPTY_ROW,
    HELD,
    LAST_BIN,
    NAN_ROW,
    NO_LOGPROB,
    NONE_LEFT,
    SMALLEST,
    THREADS,
    WARPS,
    add_mass,
    bin_of,
    bins_per_unit,
    block_largest_keys,
    block_total,
    draw_words,
    filters_of,
    index_of,
    kept_weight,
    least_weight,
    mass_at,
    pick_bin,
    scale_of,
    tally,
    through,
    value_of,
)
from labkit.kernels.token_weights import LOG2_E, ONE, distance, high_half, reaching, weight_at

ROW_MAX, LOG_SUM, SCALE, PER_UNIT = uint32(0), uint32(1), uint32(2), uint32(3)  # of stats
FIRST_BIN, END_BIN, BEFORE = uint32(0), uint32(1), uint32(2)  # of plan
BOUNDING = 16  # chunks whose warps' maxima bound the k-th largest logit
HALVINGS = 10
BIN_BITS = BINS.bit_length() - 1
BOUNDING_HELD = BOUNDING * WARPS // 32  # of their maxima, those of a lane
HALF = float32(0.5)
WHOLE = float32(2**31)  # what all tokens weigh in a histogram of float32 weights
UNSURE = 2**17  # of it, more than roundings make
UNIT_WEIGHT = float32(2.0**-ONE)
MOST_BINS = float32(1 - 4 / BINS)  # the last bin is left to tokens beyond the reach, which may be many
PRUNED = float32(0.75)  # of the share that top_p leaves out


@cuda.jit(device=True)
def exponential(below, scale):
    return float32(1.0) if below == ZERO else ptx.exp2_approx(-below * scale)  # a scale may be infinite


# --- What chunks have found ------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sums(at, plain, warm, lowest):
    """The least of the first and of the last, and sums of the others, in one order whatever the batch."""
    for apart in (16, 8, 4, 2, 1):
        at = min(at, cuda.shfl_xor_sync(ALL_LANES, at, apart))
        plain += cuda.shfl_xor_sync(ALL_LANES, plain, apart)
        warm += cuda.shfl_xor_sync(ALL_LANES, warm, apart)
        lowest = min(lowest, cuda.shfl_xor_sync(ALL_LANES, lowest, apart))
    return at, plain, warm, lowest


@cuda.jit(device=True)
def warp_joined(largest, at, plain, warm, lowest, scale):
    """Of each lane's tokens the maximum, its first index, sums of exponentials below it and the least finite logit:
    returns those of all lanes together."""
    top = warp_max(largest)
    below = distance(top, largest)
    if below != ZERO:
        at = NO_INDEX
        plain *= ptx.exp2_approx(-below * LOG2_E)
        warm *= exponential(below, scale)
    at, plain, warm, lowest = warp_sums(at, plain, warm, lowest)
    return top, at, plain, warm, lowest


@cuda.jit(device=True)
def joined_chunks(chunk_stats, chunk_first, row, scale):
    """The same of a whole row, for every warp of a block. Two chunks a lane: a row has at most 64."""
    lane, chunks = u32.threadIdx.x & 31, u32.shape(chunk_stats)[1]
    largest, plain, warm, lowest, at = NEG_INF, ZERO, ZERO, -NEG_INF, NO_INDEX
    if lane < chunks:
        largest, plain, warm, lowest = ptx.load_global4(chunk_stats, 4 * (row * chunks + lane))
        at = chunk_first[row, lane]
    chunk = lane + 32
    if chunk < chunks:
        other, other_plain, other_warm, other_lowest = ptx.load_global4(chunk_stats, 4 * (row * chunks + chunk))
        if other > largest:
            below = other - largest
            plain, warm = plain * ptx.exp2_approx(-below * LOG2_E), warm * exponential(below, scale)
            largest, at = other, chunk_first[row, chunk]
        else:
            below = distance(largest, other)
            other_plain *= ptx.exp2_approx(-below * LOG2_E)
            other_warm *= exponential(below, scale)
        plain, warm, lowest = plain + other_plain, warm + other_warm, min(lowest, other_lowest)
    return warp_joined(largest, at, plain, warm, lowest, scale)


@cuda.jit(device=True)
def known_of_sum(row_max, at, plain, temperature):
    """(token, True) where nothing has to be drawn. A sum with a NaN in it is one."""
    if plain != plain:
        return NAN_ROW, True
    if row_max == NEG_INF:
        return EMPTY_ROW, True
    return at, not temperature > ZERO


@cuda.jit(device=True)
def count_bound(warp_maxima, row, top_k):
    """A logit, not above the row's top_k-th: at least top_k warps have a maximum as large. For every warp of a block;
    -inf where there are too few warps to say."""
    lane = u32.threadIdx.x & 31
    values = cuda.local.array(BOUNDING_HELD, float32)
    low, high = -NEG_INF, NEG_INF
    for i in u32.range(BOUNDING_HELD):
        at = lane + 32 * i
        x = warp_maxima[row, at] if at < warp_maxima.shape[1] else NEG_INF
        values[i], high = x, max(high, x)
        if x > NEG_INF:
            low = min(low, x)
    for apart in (16, 8, 4, 2, 1):
        low = min(low, cuda.shfl_xor_sync(ALL_LANES, low, apart))
        high = max(high, cuda.shfl_xor_sync(ALL_LANES, high, apart))
    bound, trial = NEG_INF, low
    for _ in range(HALVINGS):
        count = 0
        for i in u32.range(BOUNDING_HELD):
            count += cuda.popc(cuda.ballot_sync(ALL_LANES, values[i] >= trial))
        if count >= uint32(top_k):
            bound = low = trial
        else:
            high = trial
        trial = low + (high - low) * HALF
    return bound


@cuda.jit(device=True)
def pick_bins(amount, by_mass, top_k, top_p, whole, amounts_of_warps, found):
    """Return (bin, end, the amount before bin): the tokens before `bin` do not reach the target, those before `end`
    do; BINS where that is not so. Each thread passes the contents of its bin of the histogram."""
    thread = u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    if thread == 0:
        found[0], found[1], found[2] = BINS, BINS, 0
    reached, total = amount, 0
    for apart in (1, 2, 4, 8, 16):
        other = uint32(cuda.shfl_up_sync(ALL_LANES, int32(reached), apart))
        if lane >= apart:
            reached += other
    if lane == 31:
        amounts_of_warps[warp] = reached
    cuda.syncthreads()
    for each in u32.range(WARPS):
        if each < warp:
            reached += amounts_of_warps[each]
        total += amounts_of_warps[each]
    need, unsure = top_k, 0
    if by_mass:
        need, unsure = uint32(top_p * (whole if whole > ZERO else float32(total))), UNSURE
    before = reached - amount
    if need <= reached + unsure and (thread == 0 or before + unsure < need):
        found[0], found[2] = thread, before
    if need + unsure <= reached and before < need + unsure:
        found[1] = thread + 1
    cuda.syncthreads()
    return found[0], found[1], found[2]


@cuda.jit(device=True)
def block_totals(first, second, of_warps, also_of_warps):
    """The sums of two int64 over a block."""
    warp = u32.threadIdx.x >> 5
    for apart in (16, 8, 4, 2, 1):
        first += cuda.shfl_xor_sync(ALL_LANES, first, apart)
        second += cuda.shfl_xor_sync(ALL_LANES, second, apart)
    if u32.threadIdx.x & 31 == 0:
        of_warps[warp], also_of_warps[warp] = first, second
    cuda.syncthreads()
    first, second = int64(0), int64(0)
    for each in range(WARPS):
        first += of_warps[each]
        second += also_of_warps[each]
    return first, second


@kernel_factory
def make_split(load):
    @cuda.jit(launch_bounds=(THREADS, 4))
    def sample_max_kernel(logits, temperature, top_k, top_p, min_p, chunk_stats, chunk_first, warp_maxima, amounts,
                          gathered):
        of_warps, first_of_warps = cuda.shared.array((WARPS, 4), float32), cuda.shared.array(WARPS, int32)
        values = cuda.local.array(HELD, float32)
        chunk, row, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        cols, chunks, warmth = u32.shape(logits)[1], u32.gridDim.x, temperature[row]
        for v in u32.range(HELD // 4):
            col = chunk * CHUNK + 4 * THREADS * v + 4 * thread
            a, b, c, d = load(logits, row, col, cols)
            values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        wanted = filters_of(top_k[row], top_p[row], cols) if warmth > ZERO else uint32(0)
        if chunk == 0:  # what the next kernels add to
            amounts[row, thread] = 0
            if thread == 0:
                gathered[row] = 0

        largest = NEG_INF
        for i in range(HELD):
            largest = max(largest, values[i])
        of_lane, at = largest, NO_INDEX
        largest = warp_max(largest)
        if of_lane == largest:
            for i in range(HELD - 1, -1, -1):
                if values[i] == largest:
                    at = int32(chunk * CHUNK + (4 * THREADS * (i // 4) + i % 4) + 4 * thread)
        plain, warm, lowest, scale = ZERO, ZERO, -NEG_INF, scale_of(warmth)
        for i in range(HELD):
            plain += ptx.exp2_approx(-distance(largest, values[i]) * LOG2_E)
        if wanted & (BY_COUNT | BY_MASS):
            for i in range(HELD):
                warm += exponential(distance(largest, values[i]), scale)
                if values[i] > NEG_INF:
                    lowest = min(lowest, values[i])
        at, plain, warm, lowest = warp_sums(at, plain, warm, lowest)
        if lane == 0:
            of_warps[warp, 0], of_warps[warp, 1], of_warps[warp, 2], of_warps[warp, 3] = largest, plain, warm, lowest
            first_of_warps[warp] = at
            if wanted & BY_COUNT and chunk < BOUNDING:
                warp_maxima[row, chunk * WARPS + warp] = largest
        cuda.syncthreads()
        if warp != 0:
            return
        largest, plain, warm, lowest, at = NEG_INF, ZERO, ZERO, -NEG_INF, NO_INDEX
        if lane < WARPS:
            largest, plain, warm, lowest = of_warps[lane, 0], of_warps[lane, 1], of_warps[lane, 2], of_warps[lane, 3]
            at = first_of_warps[lane]
        largest, at, plain, warm, lowest = warp_joined(largest, at, plain, warm, lowest, scale)
        if lane == 0:
            ptx.store_global4(chunk_stats, 4 * (row * chunks + chunk), largest, plain, warm, lowest)
            chunk_first[row, chunk] = at

    @cuda.jit(launch_bounds=THREADS)
    def sample_weigh_kernel(logits, temperature, top_k, top_p, min_p, chunk_stats, chunk_first, warp_maxima, amounts,
                            stats, least_weights, filters, tokens, logprobs, span):
        entered = cuda.shared.array(BINS, uint32)
        values = cuda.local.array(4, float32)
        part, row, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        cols, warmth = u32.shape(logits)[1], temperature[row]
        col, end = part * span + 4 * thread, min(part * span + span, cols)
        a, b, c, d = load(logits, row, col, cols)
        wanted, scale, least = filters_of(top_k[row], top_p[row], cols), scale_of(warmth), least_weight(min_p[row])
        row_max, at, plain, warm, lowest = joined_chunks(chunk_stats, chunk_first, row, scale)
        token, known = known_of_sum(row_max, at, plain, warmth)
        searched = not known and wanted & (BY_COUNT | BY_MASS) != 0
        by_mass, exact = wanted & BY_COUNT == 0, wanted & BY_COUNT != 0 or min_p[row] > ZERO
        bound, floor = NEG_INF, ZERO
        if searched:
            if not by_mass:
                bound = count_bound(warp_maxima, row, top_k[row])
                lowest = max(lowest, bound)
            elif not exact:
                # All the tokens below it could be left out: top_p needs none of them.
                floor = (float32(1.0) - top_p[row]) * PRUNED * warm / float32(cols)
                lowest = max(lowest, row_max + math.log(max(floor, SMALLEST)) * warmth)
        per_unit, unit = bins_per_unit(row_max, lowest, scale) * MOST_BINS, WHOLE / warm
        if part == 0 and thread == 0:
            log_sum = math.log(plain)
            if known:
                tokens[row] = token
                logprobs[row] = -log_sum if token >= int32(0) else NO_LOGPROB
            filters[row] = uint32(0) if known else wanted
            stats[row, ROW_MAX], stats[row, LOG_SUM] = row_max, log_sum
            stats[row, SCALE], stats[row, PER_UNIT] = scale, per_unit
            least_weights[row] = least
        if not searched:
            return

        entered[thread] = 0
        cuda.syncthreads()
        while col < end:
            values[0], values[1], values[2], values[3] = a, b, c, d
            col += 4 * THREADS
            if col < end:  # the next ones are in flight meanwhile
                a, b, c, d = load(logits, row, col, cols)
            if exact:
                for i in range(4):
                    if values[i] >= bound:
                        below = distance(row_max, values[i])
                        weight = weight_at(below, scale)
                        if weight >= least:
                            amount = uint32(float32(weight) * UNIT_WEIGHT * unit) if by_mass else 1
                            cuda.atomic.add(entered, bin_of(below, per_unit), amount)
            else:
                for i in range(4):
                    below = distance(row_max, values[i])
                    share = exponential(below, scale)
                    if share >= floor:
                        cuda.atomic.add(entered, bin_of(below, per_unit), uint32(share * unit + HALF))
        cuda.syncthreads()
        if entered[thread] != 0:
            cuda.atomic.add(amounts, (row, thread), entered[thread])

    @cuda.jit(launch_bounds=(THREADS, 3))
    def sample_gather_kernel(logits, top_k, top_p, min_p, filters, stats, least_weights, amounts, plan, chunk_masses,
                             gathered, candidates, span):
        of_warps, also_of_warps = cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64)
        amounts_of_warps, found = cuda.shared.array(WARPS, uint32), cuda.shared.array(3, uint32)
        keys, waiting = cuda.shared.array(CANDIDATES, int64), cuda.shared.array(2, uint32)
        values = cuda.local.array(4, float32)
        part, row, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        cols, wanted = u32.shape(logits)[1], filters[row]
        row_max, scale, per_unit, least = (stats[row, ROW_MAX], stats[row, SCALE], stats[row, PER_UNIT],
                                           least_weights[row])
        amount = amounts[row, thread]
        if wanted == 0:
            return
        begin = part * span
        end = min(begin + span, cols)
        col = begin + 4 * thread
        a, b, c, d = load(logits, row, col, cols)
        # Tokens before the first bin are kept; those from it on may be, as far as the end.
        first, end_bin, before = BINS, BINS, 0
        if wanted & (BY_COUNT | BY_MASS):
            whole = ZERO if min_p[row] > ZERO else WHOLE
            first, end_bin, before = pick_bins(amount, wanted & BY_COUNT == 0, uint32(top_k[row]), top_p[row],
                                               whole, amounts_of_warps, found)
            if wanted & BY_COUNT and wanted & BY_MASS:  # what these weigh, and so the mass to reach, is not known yet
                first, before = 0, 0
        if part == 0 and thread == 0:
            plan[row, FIRST_BIN], plan[row, END_BIN], plan[row, BEFORE] = first, end_bin, before
        below_first, below_end, all_weigh = float32(first), float32(end_bin), wanted & BY_COUNT == 0
        if thread == 0:
            waiting[0] = 0
        cuda.syncthreads()
        while begin < end:
            chunk, kept, total = begin // CHUNK, int64(0), int64(0)
            begin = min(begin + CHUNK, end)
            while col < begin:
                values[0], values[1], values[2], values[3] = a, b, c, d
                first_col = col
                col += 4 * THREADS
                if col < end:  # the next ones are in flight meanwhile
                    a, b, c, d = load(logits, row, col, cols)
                for i in u32.range(4):
                    below = distance(row_max, values[i])
                    at = min(below * per_unit, LAST_BIN)
                    if all_weigh or at < below_end:
                        weight = weight_at(below, scale)
                        weight = weight if weight >= least else int64(0)
                        total += weight
                        kept += weight if at < below_first else int64(0)
                        if at >= below_first and at < below_end and weight != int64(0):
                            place = cuda.atomic.add(waiting, 0, uint32(1))
                            if place < CANDIDATES:
                                keys[place] = key_of(values[i], first_col + i)
            kept, total = block_totals(kept, total, of_warps, also_of_warps)
            if thread == 0:
                chunk_masses[row, chunk, 0], chunk_masses[row, chunk, 1] = kept, total
            cuda.syncthreads()
        n = waiting[0]
        if n != 0:
            if thread == 0:
                waiting[1] = cuda.atomic.add(gathered, row, n)
            cuda.syncthreads()
            place, j = waiting[1], thread
            while j < n and place + j < CANDIDATES:  # more than fit: the next kernel reads the row again
                candidates[row, place + j] = keys[j]
                j += THREADS

    @cuda.jit(device=True)
    def candidate(few, keys, logits, row, j, row_max, scale, per_unit, least, first, end):
        """The key of a candidate: one of those gathered, or of the row's tokens where they did not fit. LEAST stands
        for a token that is none."""
        if few:
            return keys[j]
        x = logits[row, j]
        below = distance(row_max, x)
        at = bin_of(below, per_unit)
        if first <= at and at < end and weight_at(below, scale) >= least:
            return key_of(x, j)
        return LEAST

    @cuda.jit(launch_bounds=THREADS)
    def sample_draw_kernel(logits, top_k, top_p, seeds, steps, filters, stats, least_weights, plan, chunk_masses,
                           gathered, candidates, thresholds, tokens, logprobs):
        of_warps, also_of_warps = cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64)
        found = cuda.shared.array(5, int64)
        count, low, high = (cuda.shared.array(BINS, uint32), cuda.shared.array(BINS, uint32),
                            cuda.shared.array(BINS, uint32))
        keys, values = cuda.shared.array(CANDIDATES, int64), cuda.local.array(4, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        cols, wanted, n = u32.shape(logits)[1], filters[row], gathered[row]
        row_max, log_sum, scale, per_unit = (stats[row, ROW_MAX], stats[row, LOG_SUM], stats[row, SCALE],
                                             stats[row, PER_UNIT])
        least, begin_bin, end_bin, before_count = (least_weights[row], plan[row, FIRST_BIN], plan[row, END_BIN],
                                                   plan[row, BEFORE])
        own_key = candidates[row, thread]
        mass, all_mass = int64(0), int64(0)
        if thread < chunk_masses.shape[1]:
            mass, all_mass = chunk_masses[row, thread, 0], chunk_masses[row, thread, 1]
        if wanted == 0:
            return
        random = draw_words(seeds, steps, row)
        threshold = LEAST
        if n != 0 or wanted & (BY_COUNT | BY_MASS) == BY_MASS:
            before, available = block_totals(mass, all_mass, of_warps, also_of_warps)
            few = n <= CANDIDATES
            entries = cols
            if few:
                entries = n
                keys[thread] = own_key
                for j in u32.range(thread + THREADS, entries, THREADS):
                    keys[j] = candidates[row, j]
            again, first, last = True, LEAST, LEAST
            need = int64(top_k[row]) - int64(before_count)
            while again:
                first, last, own = LEAST, LEAST, int64(0)
                for j in u32.range(thread, entries, THREADS):
                    key = candidate(few, keys, logits, row, j, row_max, scale, per_unit, least, begin_bin, end_bin)
                    if key != LEAST:
                        first, last = max(first, key), max(last, ~key)
                        own += weight_at(distance(row_max, value_of(key)), scale)
                cuda.syncthreads()
                first, last = block_largest_keys(first, last, of_warps, also_of_warps)
                last = ~last  # the complement of the least key
                cuda.syncthreads()
                own = block_total(own, of_warps)
                again = False
                if wanted & BY_COUNT == 0:
                    need = reaching(top_p[row], available) - before
                    if need < int64(1) or own < need:
                        # The histogram was not exact enough to name the bins: the whole row is searched.
                        few, again, begin_bin, end_bin, before, mass, entries = (
                            False, True, 0, BINS, int64(0), int64(0), cols)
            all_first, all_last = first, last
            by_mass, more = wanted & BY_COUNT == 0, True
            while more:
                kept_mass, searching = before, True
                first, last = all_first, all_last
                while searching:
                    shift = uint64(max(int32(64 - BIN_BITS) - int32(cuda.clz(uint64(first - last))), int32(0)))
                    cuda.syncthreads()
                    count[thread], low[thread], high[thread] = 0, 0, 0
                    cuda.syncthreads()
                    for j in u32.range(thread, entries, THREADS):
                        key = candidate(few, keys, logits, row, j, row_max, scale, per_unit, least, begin_bin, end_bin)
                        if last <= key and key <= first:
                            tally(distance(row_max, value_of(key)), scale, least, uint32(uint64(first - key) >> shift),
                                  BY_COUNT | BY_MASS, count, low, high)
                    cuda.syncthreads()
                    at, count_before, mass_before, bin_count, bin_mass = pick_bin(
                        int64(count[thread]), mass_at(low, high, thread), by_mass, need, of_warps, also_of_warps, found)
                    if at == NONE_LEFT:  # fewer tokens than top_k: all are kept
                        searching, kept_mass = False, before + own
                    else:
                        kept_mass += mass_before
                        need -= mass_before if by_mass else count_before
                        first -= int64(uint64(at) << shift)
                        width = uint64(uint64(1) << shift)
                        if uint64(first - last) >= width:
                            last = first - int64(width) + int64(1)
                        if (shift == uint64(0) or bin_count == int64(1)
                                or need == (bin_mass if by_mass else bin_count)):
                            threshold, searching = last, False
                            kept_mass += bin_mass
                more = not by_mass and wanted & BY_MASS != 0
                if more:
                    by_mass, need = True, reaching(top_p[row], kept_mass)

            # What those of them that are kept weigh, chunk by chunk
            cuda.syncthreads()
            low[thread], high[thread] = 0, 0
            cuda.syncthreads()
            for j in u32.range(thread, entries, THREADS):
                key = candidate(few, keys, logits, row, j, row_max, scale, per_unit, least, begin_bin, end_bin)
                if key != LEAST and key >= threshold:
                    add_mass(low, high, uint32(index_of(key)) // CHUNK,
                             weight_at(distance(row_max, value_of(key)), scale))
            cuda.syncthreads()
            mass += mass_at(low, high, thread)
        if thread == 0:
            thresholds[row] = threshold

        before, total = through(mass, of_warps)
        before -= mass
        at = int64(high_half(random, uint64(total)))
        if before <= at and at < before + mass:
            found[0], found[1] = int64(thread), before
        cuda.syncthreads()
        at -= found[1]
        begin = uint32(found[0]) * CHUNK + HELD * thread
        own, end = int64(0), min(begin + HELD, cols)
        for col in u32.range(begin, end, 4):
            values[0], values[1], values[2], values[3] = load(logits, row, col, cols)
            for i in u32.range(4):
                own += kept_weight(values[i], col + i, row_max, scale, least, threshold)
        before = through(own, also_of_warps)[0] - own
        if before <= at and at < before + own:
            for col in u32.range(begin, end, 4):
                values[0], values[1], values[2], values[3] = load(logits, row, col, cols)
                for i in u32.range(4):
                    weight = kept_weight(values[i], col + i, row_max, scale, least, threshold)
                    if before <= at and at < before + weight:
                        tokens[row] = int32(col + i)
                        logprobs[row] = -distance(row_max, values[i]) - log_sum
                    before += weight

    return sample_max_kernel, sample_weigh_kernel, sample_gather_kernel, sample_draw_kernel
