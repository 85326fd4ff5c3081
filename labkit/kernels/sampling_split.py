"""Sampling with every row of logits split over blocks: the kernels of labkit.kernels.sampling, which defines the task.

Four kernels, three of which read the row. There is no synchronisation between blocks and no counter of finished ones:
the results of a row's blocks are in memory when the next kernel starts, and each of its blocks combines them again.

    sample_max_kernel     per chunk: the maximum, its index, and the sum of exponentials
    sample_weigh_kernel   per row: a histogram of the tokens' weights; rows whose token is already known end here
    sample_gather_kernel  the histogram narrows the search to one bin: gathers its tokens, adds up those before it
    sample_draw_kernel    finds the last gathered token that is kept, then draws. One block a row
"""

import math

from numba import float32, int32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, NO_INDEX, key_of
from labkit.kernels.reduce import NEG_INF, ZERO, warp_max
from labkit.kernels.sampling_search import (
    BINS,
    BY_COUNT,
    BY_MASS,
    CANDIDATES,
    CHUNK,
    ITEMS,
    LAST_BIN,
    NO_LOGPROB,
    THREADS,
    TINY,
    WARPS,
    add_mass,
    bin_of,
    bins_per_unit,
    block_largest_keys,
    block_scan,
    block_total,
    block_totals,
    filters_of,
    index_of,
    kept_weight,
    key_at,
    load_wide,
    mass_at,
    min_weight_of,
    random_u64,
    scale_of,
    search,
    value_of,
    warp_total,
)
from labkit.kernels.sampling_stats import (
    BOUND_CHUNKS,
    HALF,
    exponential,
    known_token_from_stats,
    merge_chunk_stats,
    merge_warp_stats,
    pick_bins,
    reduce_warp_stats,
    top_k_lower_bound,
)
from labkit.kernels.token_weights import LOG2_E, MAX_VOCAB, ONE, distance, high_half, reaching, weight_at

# In memory between the kernels: chunk_stats (rows, chunks, 4) float32: maximum, sum of exponentials at a temperature of
# 1 and at the row's, smallest finite logit; histogram (rows, BINS) uint32; section_masses (rows, sections, 2) int64:
# the mass of tokens that are certainly kept, and of all; stats (rows, 4) float32 and plan (rows, 3) uint32; columns:
ROW_MAX, LOG_SUM, SCALE, PER_UNIT = uint32(0), uint32(1), uint32(2), uint32(3)
FIRST_BIN, END_BIN, PREFIX_AMOUNT = uint32(0), uint32(1), uint32(2)
HISTOGRAM_TOTAL = float32(2**31)  # the mass of all tokens in a histogram of float32 weights
UNIT_WEIGHT = float32(2.0**-ONE)
BIN_FRACTION = float32(1 - 4 / BINS)  # the last bin is for tokens out of range, which may be many
WARP_STEP = 32 * ITEMS  # neighbouring tokens that a warp loads at once
SECTION = 4 * THREADS  # neighbouring tokens whose masses are added up: a draw finds the section, then the token
MASSES = 2 * MAX_VOCAB // SECTION  # two for each section
BLOCKS_PER_SM = 2  # of all kernels but the first: each thread has 64 registers
PRUNE_FRACTION = float32(0.75)  # of the mass that top_p drops


@kernel_factory
def make_split(load):
    @cuda.jit(device=True)
    def load_step(values, logits, row, begin, cols):
        """Load the 16 values of each lane from a warp's WARP_STEP."""
        lane = u32.threadIdx.x & 31
        for v in u32.range(ITEMS // 4):
            a, b, c, d = load(logits, row, begin + (128 * v + 4 * lane), cols)
            values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d

    # Of an SM: with more, a thread's 16 logits are spilled.
    MAX_BLOCKS = min(3, gpus.target().threads // THREADS) if load is load_wide else BLOCKS_PER_SM

    @cuda.jit(launch_bounds=(THREADS, MAX_BLOCKS))
    def sample_max_kernel(logits, temperature, top_k, top_p, min_p, chunk_stats, chunk_argmax, warp_maxima, histogram,
                          gathered):
        partials, partial_index = cuda.shared.array((WARPS, 4), float32), cuda.shared.array(WARPS, int32)
        values = cuda.local.array(ITEMS, float32)
        chunk, row, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        cols, chunks, temp = u32.shape(logits)[1], u32.gridDim.x, temperature[row]
        for v in u32.range(ITEMS // 4):
            col = chunk * CHUNK + 4 * THREADS * v + 4 * thread
            a, b, c, d = load(logits, row, col, cols)
            values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        row_filters = filters_of(top_k[row], top_p[row], cols) if temp > ZERO else uint32(0)
        if chunk == 0:  # the next kernels accumulate into these
            histogram[row, thread] = 0
            if thread == 0:
                gathered[row] = 0

        largest = NEG_INF
        for i in range(ITEMS):
            largest = max(largest, values[i])
        lane_largest, pos = largest, NO_INDEX
        largest = warp_max(largest)
        if lane_largest == largest:
            for i in range(ITEMS - 1, -1, -1):
                if values[i] == largest:
                    pos = int32(chunk * CHUNK + (4 * THREADS * (i // 4) + i % 4) + 4 * thread)
        exp_sum, scaled_sum, lowest, scale = ZERO, ZERO, -NEG_INF, scale_of(temp)
        if row_filters & (BY_COUNT | BY_MASS):
            for i in range(ITEMS):
                if values[i] > NEG_INF:
                    lowest = min(lowest, values[i])
        for i in range(ITEMS):
            values[i] = distance(largest, values[i])
            exp_sum += exponential(values[i], LOG2_E)
        if row_filters & (BY_COUNT | BY_MASS):
            for i in range(ITEMS):
                scaled_sum += exponential(values[i], scale)
        pos, exp_sum, scaled_sum, lowest = reduce_warp_stats(pos, exp_sum, scaled_sum, lowest)
        if lane == 0:
            partials[warp, 0], partials[warp, 1], partials[warp, 2], partials[warp, 3] = (largest, exp_sum, scaled_sum,
                                                                                          lowest)
            partial_index[warp] = pos
            if row_filters & BY_COUNT and chunk < BOUND_CHUNKS:
                warp_maxima[row, chunk * WARPS + warp] = largest
        cuda.syncthreads()
        if warp != 0:
            return
        largest, exp_sum, scaled_sum, lowest, pos = NEG_INF, ZERO, ZERO, -NEG_INF, NO_INDEX
        if lane < WARPS:
            largest, exp_sum, scaled_sum, lowest = (partials[lane, 0], partials[lane, 1], partials[lane, 2],
                                                    partials[lane, 3])
            pos = partial_index[lane]
        largest, pos, exp_sum, scaled_sum, lowest = merge_warp_stats(largest, pos, exp_sum, scaled_sum, lowest, scale)
        if lane == 0:
            ptx.store_global4(chunk_stats, 4 * (row * chunks + chunk), largest, exp_sum, scaled_sum, lowest)
            chunk_argmax[row, chunk] = pos

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def sample_weigh_kernel(logits, temperature, top_k, top_p, min_p, chunk_stats, chunk_argmax, warp_maxima, histogram,
                            stats, least_weights, filters, tokens, logprobs, span):
        block_histogram = cuda.shared.array(BINS, uint32)
        values = cuda.local.array(ITEMS, float32)
        split, row, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        cols, temp = u32.shape(logits)[1], temperature[row]
        begin = split * span + (thread >> 5) * (span // WARPS)
        end = min(begin + span // WARPS, cols)
        load_step(values, logits, row, begin, cols)
        row_filters, scale, min_weight = (filters_of(top_k[row], top_p[row], cols), scale_of(temp),
                                          min_weight_of(min_p[row]))
        row_max, pos, exp_sum, scaled_sum, lowest = merge_chunk_stats(chunk_stats, chunk_argmax, row, scale)
        token, known = known_token_from_stats(row_max, pos, exp_sum, temp)
        needs_search = not known and row_filters & (BY_COUNT | BY_MASS) != 0
        by_mass, exact = row_filters & BY_COUNT == 0, row_filters & BY_COUNT != 0 or min_p[row] > ZERO
        bound, floor = NEG_INF, ZERO
        if needs_search:
            if not by_mass:
                bound = top_k_lower_bound(warp_maxima, row, top_k[row])
                lowest = max(lowest, bound)
            elif not exact:
                # All tokens below this weight can be dropped: top_p needs none of them.
                floor = (float32(1.0) - top_p[row]) * PRUNE_FRACTION * scaled_sum / float32(cols)
                lowest = max(lowest, row_max + math.log(max(floor, TINY)) * temp)
        per_unit, unit = bins_per_unit(row_max, lowest, scale) * BIN_FRACTION, HISTOGRAM_TOTAL / scaled_sum
        if split == 0 and thread == 0:
            log_sum = math.log(exp_sum)
            if known:
                tokens[row] = token
                logprobs[row] = -log_sum if token >= int32(0) else NO_LOGPROB
            filters[row] = uint32(0) if known else row_filters
            stats[row, ROW_MAX], stats[row, LOG_SUM] = row_max, log_sum
            stats[row, SCALE], stats[row, PER_UNIT] = scale, per_unit
            least_weights[row] = min_weight
        if not needs_search:
            return

        block_histogram[thread] = 0
        cuda.syncthreads()
        while begin < end:
            if exact:
                for i in range(ITEMS):
                    if values[i] >= bound:
                        delta = distance(row_max, values[i])
                        weight = weight_at(delta, scale)
                        if weight >= min_weight:
                            amount = uint32(float32(weight) * UNIT_WEIGHT * unit) if by_mass else 1
                            cuda.atomic.add(block_histogram, bin_of(delta, per_unit), amount)
            else:
                for i in range(ITEMS):
                    delta = distance(row_max, values[i])
                    exp_weight = exponential(delta, scale)
                    if exp_weight >= floor:
                        cuda.atomic.add(block_histogram, bin_of(delta, per_unit), uint32(exp_weight * unit + HALF))
            begin += WARP_STEP
            if begin < end:
                load_step(values, logits, row, begin, cols)
        cuda.syncthreads()
        if block_histogram[thread] != 0:
            cuda.atomic.add(histogram, (row, thread), block_histogram[thread])

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def sample_gather_kernel(logits, top_k, top_p, min_p, filters, stats, least_weights, histogram, plan,
                             section_masses, gathered, candidates, span):
        mass_low, mass_high = cuda.shared.array(MASSES, uint32), cuda.shared.array(MASSES, uint32)
        keys, counter = cuda.shared.array(CANDIDATES, int64), cuda.shared.array(2, uint32)
        values, positions = cuda.local.array(ITEMS, float32), cuda.local.array(4, float32)
        weights = cuda.local.array(4, int64)
        split, row, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        cols, row_filters = u32.shape(logits)[1], filters[row]
        row_max, scale, per_unit, min_weight = (stats[row, ROW_MAX], stats[row, SCALE], stats[row, PER_UNIT],
                                                least_weights[row])
        amount = histogram[row, thread]
        if row_filters == 0:
            return
        # Each warp has a part of the span, a multiple of WARP_STEP: its sums need no barrier.
        begin = split * span + warp * (span // WARPS)
        end, first_section = min(begin + span // WARPS, cols), split * span // SECTION
        load_step(values, logits, row, begin, cols)
        # Tokens before the first bin are kept, those in the bins from first to end_bin may be.
        first, end_bin, prefix = BINS, BINS, 0
        if row_filters & (BY_COUNT | BY_MASS):
            expected_total = ZERO if min_p[row] > ZERO else HISTOGRAM_TOTAL
            first, end_bin, prefix = pick_bins(amount, row_filters & BY_COUNT == 0, uint32(top_k[row]), top_p[row],
                                               expected_total)
            if row_filters & BY_COUNT and row_filters & BY_MASS:  # their mass, and so top_p's target, is not known yet
                first, prefix = 0, 0
        if split == 0 and thread == 0:
            plan[row, FIRST_BIN], plan[row, END_BIN], plan[row, PREFIX_AMOUNT] = first, end_bin, prefix
        first_edge, end_edge = float32(first), float32(end_bin)
        weigh_edge = end_edge if row_filters & BY_COUNT else float32(BINS)  # top_p needs the mass of all tokens
        if thread < MASSES:
            mass_low[thread], mass_high[thread] = 0, 0
        if thread == 0:
            counter[0] = 0
        cuda.syncthreads()
        while begin < end:
            section, certain, total = begin // SECTION, int64(0), int64(0)
            section_end = min(section * SECTION + SECTION, end)
            while begin < section_end:
                for v in u32.range(ITEMS // 4):
                    nearest, undecided = LAST_BIN, False
                    for i in range(4):
                        positions[i] = min(distance(row_max, values[4 * v + i]) * per_unit, LAST_BIN)
                        nearest = min(nearest, positions[i])
                    if nearest < weigh_edge:
                        for i in range(4):
                            weights[i] = weight_at(distance(row_max, values[4 * v + i]), scale)
                        if min_weight > int64(1):
                            for i in range(4):
                                weights[i] = weights[i] if weights[i] >= min_weight else int64(0)
                        for i in range(4):
                            total += weights[i]
                            is_certain = positions[i] < first_edge
                            certain += weights[i] if is_certain else int64(0)
                            undecided |= not is_certain and positions[i] < end_edge
                    if undecided:
                        for i in u32.range(4):
                            if not positions[i] < first_edge and positions[i] < end_edge and weights[i] != int64(0):
                                slot = cuda.atomic.add(counter, 0, uint32(1))
                                if slot < CANDIDATES:
                                    keys[slot] = key_of(values[4 * v + i], begin + (128 * v + 4 * lane + i))
                begin += WARP_STEP
                if begin < end:
                    load_step(values, logits, row, begin, cols)
            certain, total = warp_total(certain), warp_total(total)
            if lane < 2:
                add_mass(mass_low, mass_high, 2 * (section - first_section) + lane, total if lane == 1 else certain)
        cuda.syncthreads()
        section = first_section + thread // 2
        if thread < 2 * (span // SECTION) and section < section_masses.shape[1]:
            section_masses[row, section, thread & 1] = mass_at(mass_low, mass_high, thread)
        n = counter[0]
        if n != 0:
            if thread == 0:
                counter[1] = cuda.atomic.add(gathered, row, n)
            cuda.syncthreads()
            first_slot = counter[1]
            for j in u32.range(thread, n, THREADS):
                if first_slot + j < CANDIDATES:  # if more, the next kernel reads the row again
                    candidates[row, first_slot + j] = keys[j]

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def sample_draw_kernel(logits, top_k, top_p, seeds, steps, filters, stats, least_weights, plan, section_masses,
                           gathered, candidates, thresholds, tokens, logprobs):
        bins = _, mass_low, mass_high = (cuda.shared.array(BINS, uint32), cuda.shared.array(BINS, uint32),
                                         cuda.shared.array(BINS, uint32))
        partials, partials2, result = scratch = (cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64),
                                                 cuda.shared.array(5, int64))
        keys = cuda.shared.array(CANDIDATES, int64)
        values, weights = cuda.local.array(4, float32), cuda.local.array(4, int64)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        cols, row_filters, n = u32.shape(logits)[1], filters[row], gathered[row]
        row_max, log_sum, scale, per_unit = (stats[row, ROW_MAX], stats[row, LOG_SUM], stats[row, SCALE],
                                             stats[row, PER_UNIT])
        min_weight, begin_bin, end_bin, plan_count = (least_weights[row], plan[row, FIRST_BIN], plan[row, END_BIN],
                                                      plan[row, PREFIX_AMOUNT])
        scaling = row_max, scale, min_weight
        thread_key = candidates[row, thread]
        mass, all_mass = int64(0), int64(0)
        if thread < section_masses.shape[1]:
            mass, all_mass = section_masses[row, thread, 0], section_masses[row, thread, 1]
        if row_filters == 0:
            return
        random_bits = random_u64(seeds, steps, row)
        threshold = LEAST
        if n != 0 or row_filters & (BY_COUNT | BY_MASS) == BY_MASS:
            prefix, available = block_totals(mass, all_mass, partials, partials2)
            num_keys, num_entries = 0, cols
            if n <= CANDIDATES:
                num_keys = num_entries = n
                keys[thread] = thread_key
                for j in u32.range(thread + THREADS, n, THREADS):
                    keys[j] = candidates[row, j]
            retry, first, last, mass_sum = True, LEAST, LEAST, int64(0)
            target = int64(top_k[row]) - int64(plan_count)
            while retry:
                first, last, mass_sum = LEAST, LEAST, int64(0)
                for j in u32.range(thread, num_entries, THREADS):
                    key = key_at(logits, row, keys, num_keys, j)
                    delta = distance(row_max, value_of(key))
                    pos = bin_of(delta, per_unit)
                    if begin_bin <= pos and pos < end_bin:
                        weight = weight_at(delta, scale)
                        if weight >= min_weight:
                            first, last = max(first, key), max(last, ~key)
                            mass_sum += weight
                cuda.syncthreads()
                first, last = block_largest_keys(first, last, partials, partials2)
                last = ~last  # the complement of the smallest key
                cuda.syncthreads()
                mass_sum = block_total(mass_sum, partials)
                retry = False
                if row_filters & BY_COUNT == 0:
                    target = reaching(top_p[row], available) - prefix
                    if target < int64(1) or mass_sum < target:
                        # The histogram was too inexact to pick the bins: search the whole row.
                        retry, begin_bin, end_bin, prefix, mass = True, 0, BINS, int64(0), int64(0)
                        num_keys, num_entries = 0, cols
            by_mass, more = row_filters & BY_COUNT == 0, True
            while more:
                threshold, kept_mass = search((logits, row, keys, num_keys, num_entries), first, last, scaling,
                                              by_mass, target, bins, scratch)
                more = not by_mass and row_filters & BY_MASS != 0
                if more:
                    if threshold == LEAST:  # fewer tokens than top_k: all are kept
                        kept_mass = mass_sum
                    by_mass, target = True, reaching(top_p[row], prefix + kept_mass)

            # The mass of the candidates that are kept, section by section
            mass_low[thread], mass_high[thread] = 0, 0
            cuda.syncthreads()
            last = max(last, threshold)
            for j in u32.range(thread, num_entries, THREADS):
                key = key_at(logits, row, keys, num_keys, j)
                if last <= key and key <= first:
                    weight = weight_at(distance(row_max, value_of(key)), scale)
                    if weight >= min_weight:
                        add_mass(mass_low, mass_high, uint32(index_of(key)) // SECTION, weight)
            cuda.syncthreads()
            mass += mass_at(mass_low, mass_high, thread)
        if thread == 0:
            thresholds[row] = threshold

        prefix, total = block_scan(mass, partials)
        prefix -= mass
        pos = int64(high_half(random_bits, uint64(total)))
        if prefix <= pos and pos < prefix + mass:
            result[0], result[1] = int64(thread), prefix
        cuda.syncthreads()
        pos -= result[1]
        col, mass_sum = uint32(result[0]) * SECTION + 4 * thread, int64(0)
        values[0], values[1], values[2], values[3] = load(logits, row, col, cols)
        for i in range(4):
            weights[i] = kept_weight(values[i], col + i, scaling, threshold)
            mass_sum += weights[i]
        prefix = block_scan(mass_sum, partials2)[0] - mass_sum
        for i in range(4):
            if prefix <= pos and pos < prefix + weights[i]:
                tokens[row] = int32(col + i)
                logprobs[row] = -distance(row_max, values[i]) - log_sum
            prefix += weights[i]

    return sample_max_kernel, sample_weigh_kernel, sample_gather_kernel, sample_draw_kernel
