"""Statistics of a row of logits for the kernels of sampling_split: of chunks, merged, and bounds that they imply."""

from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.argmax import NO_INDEX
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO, warp_max
from labkit.kernels.sampling_search import BINS, EMPTY_ROW, NAN_ROW, WARPS
from labkit.kernels.token_weights import LOG2_E, distance

HALF = float32(0.5)
BOUND_CHUNKS = 16  # chunks whose warps' maxima bound the k-th largest logit from below
BISECTION_STEPS = 10
MAXIMA_PER_LANE = BOUND_CHUNKS * WARPS // 32  # of these chunks
ROUNDING_SLACK = 2**17  # more of this mass than roundings amount to


@cuda.jit(device=True)
def exponential(delta, scale):
    return ptx.exp2_approx(-delta * scale)


# --- Statistics of chunks --------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def reduce_warp_stats(index, exp_sum, scaled_sum, lowest):
    """Minimum of index and lowest, sums of the others over a warp, in one order whatever the batch."""
    for offset in (16, 8, 4, 2, 1):
        index = min(index, cuda.shfl_xor_sync(ALL_LANES, index, offset))
        exp_sum += cuda.shfl_xor_sync(ALL_LANES, exp_sum, offset)
        scaled_sum += cuda.shfl_xor_sync(ALL_LANES, scaled_sum, offset)
        lowest = min(lowest, cuda.shfl_xor_sync(ALL_LANES, lowest, offset))
    return index, exp_sum, scaled_sum, lowest


@cuda.jit(device=True)
def merge_warp_stats(largest, index, exp_sum, scaled_sum, lowest, scale):
    """Merge the lanes' statistics: maximum, its first index, sums of exponentials relative to it, smallest finite
    logit."""
    warp_largest = warp_max(largest)
    delta = distance(warp_largest, largest)
    if delta != ZERO:
        index = NO_INDEX
        exp_sum *= ptx.exp2_approx(-delta * LOG2_E)
        scaled_sum *= exponential(delta, scale)
    index, exp_sum, scaled_sum, lowest = reduce_warp_stats(index, exp_sum, scaled_sum, lowest)
    return warp_largest, index, exp_sum, scaled_sum, lowest


@cuda.jit(device=True)
def merge_chunk_stats(chunk_stats, chunk_argmax, row, scale):
    """Merge the statistics of a row's chunks, in every warp of a block. Two chunks a lane: a row has at most 64."""
    lane, chunks = u32.threadIdx.x & 31, u32.shape(chunk_stats)[1]
    largest, exp_sum, scaled_sum, lowest, index = NEG_INF, ZERO, ZERO, -NEG_INF, NO_INDEX
    if lane < chunks:
        largest, exp_sum, scaled_sum, lowest = ptx.load_global4(chunk_stats, 4 * (row * chunks + lane))
        index = chunk_argmax[row, lane]
    chunk = lane + 32
    if chunk < chunks:
        other, other_exp_sum, other_scaled_sum, other_lowest = ptx.load_global4(chunk_stats, 4 * (row * chunks + chunk))
        if other > largest:
            delta = other - largest
            exp_sum, scaled_sum = exp_sum * ptx.exp2_approx(-delta * LOG2_E), scaled_sum * exponential(delta, scale)
            largest, index = other, chunk_argmax[row, chunk]
        else:
            delta = distance(largest, other)
            other_exp_sum *= ptx.exp2_approx(-delta * LOG2_E)
            other_scaled_sum *= exponential(delta, scale)
        exp_sum, scaled_sum, lowest = exp_sum + other_exp_sum, scaled_sum + other_scaled_sum, min(lowest, other_lowest)
    return merge_warp_stats(largest, index, exp_sum, scaled_sum, lowest, scale)


@cuda.jit(device=True)
def known_token_from_stats(row_max, index, exp_sum, temperature):
    """(token, True) where nothing has to be drawn. A NaN among the logits makes the sum NaN."""
    if exp_sum != exp_sum:
        return NAN_ROW, True
    if row_max == NEG_INF:
        return EMPTY_ROW, True
    return index, not temperature > ZERO


@cuda.jit(device=True)
def top_k_lower_bound(warp_maxima, row, top_k):
    """Return a lower bound of the row's k-th largest logit: at least top_k warps have a maximum as large. Every warp of
    a block computes it; -inf if there are too few warps."""
    lane = u32.threadIdx.x & 31
    values = cuda.local.array(MAXIMA_PER_LANE, float32)
    low, high = -NEG_INF, NEG_INF
    for j in u32.range(MAXIMA_PER_LANE):
        i = lane + 32 * j
        x = warp_maxima[row, i] if i < warp_maxima.shape[1] else NEG_INF
        values[j], high = x, max(high, x)
        if x > NEG_INF:
            low = min(low, x)
    for offset in (16, 8, 4, 2, 1):
        low = min(low, cuda.shfl_xor_sync(ALL_LANES, low, offset))
        high = max(high, cuda.shfl_xor_sync(ALL_LANES, high, offset))
    bound, trial = NEG_INF, low
    for _ in range(BISECTION_STEPS):
        count = 0
        for j in u32.range(MAXIMA_PER_LANE):
            count += cuda.popc(cuda.ballot_sync(ALL_LANES, values[j] >= trial))
        if count >= uint32(top_k):
            bound = low = trial
        else:
            high = trial
        trial = low + (high - low) * HALF
    return bound


@cuda.jit(device=True)
def pick_bins(amount, by_mass, top_k, top_p, expected_total):
    """Return (bin, end, the amount before bin): the tokens before `bin` do not reach the target, those before `end`
    do; BINS if there is no such bin. Each thread passes the contents of its bin of the histogram."""
    warp_amounts, result = cuda.shared.array(WARPS, uint32), cuda.shared.array(3, uint32)
    thread = u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    if thread == 0:
        result[0], result[1], result[2] = BINS, BINS, 0
    inclusive, total = amount, 0
    for offset in (1, 2, 4, 8, 16):
        other = uint32(cuda.shfl_up_sync(ALL_LANES, int32(inclusive), offset))
        if lane >= offset:
            inclusive += other
    if lane == 31:
        warp_amounts[warp] = inclusive
    cuda.syncthreads()
    for w in u32.range(WARPS):
        if w < warp:
            inclusive += warp_amounts[w]
        total += warp_amounts[w]
    target, slack = top_k, 0
    if by_mass:
        target, slack = uint32(top_p * (expected_total if expected_total > ZERO else float32(total))), ROUNDING_SLACK
    exclusive = inclusive - amount
    if target <= inclusive + slack and (thread == 0 or exclusive + slack < target):
        result[0], result[2] = thread, exclusive
    if target + slack <= inclusive and exclusive < target + slack:
        result[1] = thread + 1
    cuda.syncthreads()
    return result[0], result[1], result[2]
