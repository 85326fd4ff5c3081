"""The next token of each row of logits, drawn at random; every row with parameters of its own.

Shapes  logits (R, V) float32; temperature, top_p, min_p (R,) float32; top_k, steps (R,) int32; seeds (R, 2) uint32, low
        word first; tokens (R,) int32, logprobs (R,) float32; C-contiguous; V up to 2**19
Work    a row is read three to five times, mostly from the L2 cache: 4*R*V bytes from memory; nothing is sorted
Source  vLLM, `vllm/v1/sample`, for the parameters and their order; J. Salmon et al., "Parallel Random Numbers: As Easy
        as 1, 2, 3" (2011); D. Merrill and A. Grimshaw, "High Performance and Scalable Radix Sorting" (2011), for digits

temperature  logits are divided by it; 0 takes the most likely token, of equally likely ones the first
min_p        keeps the tokens at least min_p times as likely as the most likely one; 0 keeps all
top_k        of these keeps the k most likely; 0, or V and more, keeps all
top_p        of these keeps as many of the most likely as together reach p of what these weigh; 1 keeps all
"Most likely" means by logit, of equal logits the lower index: exactly k are kept, and no more than reach p. (vLLM keeps
all that equal the k-th, and leaves the order of equal ones open.) The host's Sampler keeps the same.

The draw is a function of the row's logits, parameters, seed and step: of nothing else in the batch, and of no device,
for all sums are of integers (see token_weights). A row with a NaN gives NAN_ROW in place of a token, one without a
single token that is allowed (all -inf) EMPTY_ROW; +inf are equally likely, and leave nothing for the others.
"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
from numba import float32, int32, int64, uint32

from labkit import cuda
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, key_of
from labkit.kernels.arguments import MAX_GRID_YZ, check_array
from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, rung
from labkit.kernels.reduce import ALL_LANES, NOTHING, ZERO
from labkit.kernels.sampling_reference import sample_reference
from labkit.kernels.sampling_rows import (
    PARAMETER_DTYPES,
    check_sampling,
    make_histogram_pass,
    sample_bisection,
    sample_histogram,
)
from labkit.kernels.sampling_search import (
    BINS,
    BY_COUNT,
    BY_MASS,
    CANDIDATES,
    CERTAIN,
    CHUNK,
    HELD,
    NO_LOGPROB,
    THREADS,
    WARPS,
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
    through,
    value_of,
)
from labkit.kernels.token_weights import (
    LOG2_E,
    LONGEST,
    ONE,
    distance,
)

ENOUGH_BLOCKS = 264  # two for each SM of an H200


# --- A row split over blocks -----------------------------------------------------------------------------------------
# Three kernels. In each the last block of a row to arrive goes on with what all of the row's blocks have found.
# stats: (rows, 4) float32, of which 0 to 3 are as numbered here; bounds: (rows, 3) int64.

ROW_MAX, LOG_SUM, SCALE, PER_UNIT = uint32(0), uint32(1), uint32(2), uint32(3)
LEAST_WEIGHT, FLOOR, THRESHOLD = uint32(0), uint32(1), uint32(2)


@cuda.jit(device=True)
def is_last(arrived, row, kernel, blocks, last):
    """Whether this block is the last of the row's: then it sees what the others wrote. `arrived` is 0 again after."""
    cuda.threadfence()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        before = cuda.atomic.add(arrived, (row, kernel), uint32(1))
        last[0] = uint32(before)
        if before == blocks - uint32(1):
            arrived[row, kernel] = uint32(0)
    cuda.syncthreads()
    cuda.threadfence()
    return last[0] == blocks - uint32(1)


@cuda.jit(device=True)
def exponential(below, scale):
    return float32(1.0) if below == ZERO else ptx.exp2_approx(-below * scale)  # a scale may be infinite


@cuda.jit(device=True)
def block_sums(plain, warm, lowest, of_warps):
    """The sums of the first two, in one order whatever the batch, and the least of the third. of_warps: shared, WARPS
    rows of three; otherwise as the reductions of sampling_search."""
    warp = uint32(cuda.threadIdx.x) >> uint32(5)
    for apart in (16, 8, 4, 2, 1):
        plain += cuda.shfl_xor_sync(ALL_LANES, plain, apart)
        warm += cuda.shfl_xor_sync(ALL_LANES, warm, apart)
        lowest = min(lowest, cuda.shfl_xor_sync(ALL_LANES, lowest, apart))
    if uint32(cuda.threadIdx.x) & uint32(31) == uint32(0):
        of_warps[warp, 0], of_warps[warp, 1], of_warps[warp, 2] = plain, warm, lowest
    cuda.syncthreads()
    plain, warm = ZERO, ZERO
    for each in range(WARPS):
        plain, warm, lowest = plain + of_warps[each, 0], warm + of_warps[each, 1], min(lowest, of_warps[each, 2])
    return plain, warm, lowest


@kernel_factory
def make_split(load):
    histogram, threshold_of = make_histogram_pass(load), make_threshold(load)

    @cuda.jit(launch_bounds=THREADS)
    def sample_max_kernel(logits, temperature, top_k, top_p, min_p, chunk_keys, chunk_sums, arrived, stats, bounds,
                          filters, tokens, logprobs):
        of_warps, sums_of_warps = cuda.shared.array(WARPS, int64), cuda.shared.array((WARPS, 3), float32)
        last = cuda.shared.array(1, uint32)
        values = cuda.local.array(HELD, float32)
        chunk, row, thread = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y), uint32(cuda.threadIdx.x)
        cols, chunks, warmth = uint32(logits.shape[1]), uint32(cuda.gridDim.x), temperature[row]
        scale, wanted = scale_of(warmth), filters_of(top_k[row], top_p[row], cols)
        # Without the other two choices top_p needs no token whose like could all be left out.
        pruned = wanted & (BY_COUNT | BY_MASS) == BY_MASS and not min_p[row] > ZERO

        key, lowest = LEAST, -NOTHING
        for v in range(HELD // 4):
            col = uint32(chunk * uint32(CHUNK) + uint32(4 * THREADS * v) + uint32(4) * thread)
            a, b, c, d = load(logits, row, col, cols)
            values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        for i in range(HELD):
            col = uint32(chunk * uint32(CHUNK) + uint32(4 * THREADS * (i // 4) + i % 4) + uint32(4) * thread)
            key = max(key, key_of(values[i], col))
            if values[i] > NOTHING:
                lowest = min(lowest, values[i])
        key = block_largest_key(key, of_warps)
        chunk_max = value_of(key)
        plain, warm = ZERO, ZERO  # sums of exponentials, at a temperature of 1 and at the row's
        for i in range(HELD):
            below = distance(chunk_max, values[i])
            plain += ptx.exp2_approx(-below * LOG2_E)
            if pruned:
                warm += exponential(below, scale)
        plain, warm, lowest = block_sums(plain, warm, lowest, sums_of_warps)
        if thread == uint32(0):
            chunk_keys[row, chunk] = key
            chunk_sums[row, chunk, 0], chunk_sums[row, chunk, 1], chunk_sums[row, chunk, 2] = plain, warm, lowest
        if not is_last(arrived, row, uint32(0), chunks, last):
            return

        key, plain, warm, lowest = LEAST, ZERO, ZERO, -NOTHING
        if thread < chunks:
            key = chunk_keys[row, thread]
        chunk_max = value_of(key)
        key = block_largest_key(key, of_warps)
        row_max = value_of(key)
        if thread < chunks:
            below = distance(row_max, chunk_max)
            plain = chunk_sums[row, thread, 0] * ptx.exp2_approx(-below * LOG2_E)
            warm = chunk_sums[row, thread, 1] * exponential(below, scale)
            lowest = chunk_sums[row, thread, 2]
        plain, warm, lowest = block_sums(plain, warm, lowest, sums_of_warps)
        if thread == uint32(0):
            log_sum = math.log(plain)
            token, known = known_token(key, warmth)
            if known:
                tokens[row] = token
                logprobs[row] = -log_sum if token >= int32(0) else NO_LOGPROB
            least = least_weight(min_p[row])
            floor = least
            if pruned:
                share = (float32(1.0) - top_p[row]) * CERTAIN * warm / float32(cols)
                floor = max(floor, int64(min(share, float32(1.0)) * float32(2**ONE)))
            filters[row] = uint32(0) if known else wanted
            stats[row, ROW_MAX], stats[row, LOG_SUM], stats[row, SCALE] = row_max, log_sum, scale
            stats[row, PER_UNIT] = bins_per_unit(row_max, lowest, scale)
            bounds[row, LEAST_WEIGHT], bounds[row, FLOOR], bounds[row, THRESHOLD] = least, floor, LEAST

    @cuda.jit(launch_bounds=THREADS)
    def sample_threshold_kernel(logits, top_k, top_p, filters, stats, bounds, row_counts, row_masses, row_mass,
                                arrived, span):
        of_warps, also_of_warps = cuda.shared.array(WARPS, int64), cuda.shared.array(WARPS, int64)
        found = cuda.shared.array(5, int64)
        count, low, high = (cuda.shared.array(BINS, uint32), cuda.shared.array(BINS, uint32),
                            cuda.shared.array(BINS, uint32))
        indices, waiting = cuda.shared.array(CANDIDATES, uint32), cuda.shared.array(1, uint32)
        part, row, thread = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y), uint32(cuda.threadIdx.x)
        cols, wanted = uint32(logits.shape[1]), filters[row]
        if wanted & (BY_COUNT | BY_MASS) == uint32(0):
            return
        row_max, scale, per_unit = stats[row, ROW_MAX], stats[row, SCALE], stats[row, PER_UNIT]
        least, floor = bounds[row, LEAST_WEIGHT], bounds[row, FLOOR]
        begin = uint32(part * span)
        own = histogram(logits, row, begin, min(uint32(begin + span), cols), row_max, scale, per_unit, least, floor,
                        wanted, count, low, high)
        if count[thread] != uint32(0):
            cuda.atomic.add(row_counts, (row, thread), count[thread])
        mass = mass_at(low, high, thread)
        if mass != int64(0):
            cuda.atomic.add(row_masses, (row, thread), mass)
        own = block_total(own, of_warps)
        if thread == uint32(0):
            cuda.atomic.add(row_mass, row, own)
        if not is_last(arrived, row, uint32(1), uint32(cuda.gridDim.x), waiting):
            return

        bin_count, bin_mass, available = int64(row_counts[row, thread]), row_masses[row, thread], row_mass[row]
        cuda.syncthreads()  # all have read: the next batch finds zeros
        row_counts[row, thread], row_masses[row, thread] = uint32(0), int64(0)
        if thread == uint32(0):
            row_mass[row] = int64(0)
        threshold = threshold_of(logits, row, row_max, scale, per_unit, floor, wanted, top_k[row], top_p[row],
                                 bin_count, bin_mass, available, indices, waiting, count, low, high, of_warps,
                                 also_of_warps, found)
        if thread == uint32(0):
            bounds[row, THRESHOLD] = threshold

    @cuda.jit(launch_bounds=THREADS)
    def sample_draw_kernel(logits, seeds, steps, filters, stats, bounds, chunk_masses, arrived, tokens, logprobs):
        of_warps, found = cuda.shared.array(WARPS, int64), cuda.shared.array(2, int64)
        last = cuda.shared.array(1, uint32)
        chunk, row, thread = uint32(cuda.blockIdx.x), uint32(cuda.blockIdx.y), uint32(cuda.threadIdx.x)
        cols, chunks = uint32(logits.shape[1]), uint32(cuda.gridDim.x)
        if filters[row] == uint32(0):
            return
        row_max, scale = stats[row, ROW_MAX], stats[row, SCALE]
        least, threshold = bounds[row, LEAST_WEIGHT], bounds[row, THRESHOLD]
        values = cuda.local.array(HELD, float32)
        own = int64(0)
        for v in range(HELD // 4):
            col = uint32(chunk * uint32(CHUNK) + uint32(4 * THREADS * v) + uint32(4) * thread)
            a, b, c, d = load(logits, row, col, cols)
            values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        for i in range(HELD):
            col = uint32(chunk * uint32(CHUNK) + uint32(4 * THREADS * (i // 4) + i % 4) + uint32(4) * thread)
            own += kept_weight(values[i], col, row_max, scale, least, threshold)
        mass = block_total(own, of_warps)
        if thread == uint32(0):
            chunk_masses[row, chunk] = mass
        if not is_last(arrived, row, uint32(2), chunks, last):
            return

        mass = chunk_masses[row, thread] if thread < chunks else int64(0)
        before, total = through(mass, of_warps)
        before -= mass
        at = share_drawn(seeds, steps, row, total)
        if before <= at and at < before + mass:
            found[0], found[1] = int64(thread), before
        cuda.syncthreads()
        draw_in(logits, row, uint32(uint32(found[0]) * uint32(CHUNK)), at - found[1], row_max, scale, least, threshold,
                tokens, of_warps)
        cuda.syncthreads()
        if thread == uint32(0):
            logprobs[row] = -distance(row_max, logits[row, uint32(tokens[row])]) - stats[row, LOG_SUM]

    return sample_max_kernel, sample_threshold_kernel, sample_draw_kernel


@dataclass(frozen=True, eq=False)
class Scratch:
    """What the three kernels hand from one to the next, for up to `rows` rows of `cols` logits; of use for one stream
    at a time. After a launch stats[:, 0] is each row's maximum and stats[:, 1] the logarithm of the sum of
    exp(x - maximum), so that x - stats[row, 0] - stats[row, 1] is a token's logprob."""

    rows: int
    cols: int
    chunk_keys: object
    chunk_sums: object
    chunk_masses: object
    row_counts: object
    row_masses: object
    row_mass: object
    arrived: object
    stats: object
    bounds: object
    filters: object

    @classmethod
    def allocate(cls, rows: int, cols: int) -> "Scratch":
        """About 6.2 KB and a byte for each 146 logits, for each row."""
        if not 1 <= cols <= LONGEST:
            raise ValueError(f"cols is {cols:,}; a row may have 1 to {LONGEST:,} logits")
        if not 1 <= rows <= MAX_GRID_YZ:
            raise ValueError(f"rows is {rows:,}; it must be 1 to {MAX_GRID_YZ:,}")
        chunks = -(-cols // CHUNK)

        def zeros(*shape, dtype):
            return cuda.to_device(np.zeros(shape, dtype))

        return cls(rows, cols, zeros(rows, chunks, dtype=np.int64), zeros(rows, chunks, 3, dtype=np.float32),
                   zeros(rows, chunks, dtype=np.int64), zeros(rows, BINS, dtype=np.uint32),
                   zeros(rows, BINS, dtype=np.int64), zeros(rows, dtype=np.int64), zeros(rows, 3, dtype=np.uint32),
                   zeros(rows, 4, dtype=np.float32), zeros(rows, 3, dtype=np.int64), zeros(rows, dtype=np.uint32))


@dataclass(frozen=True, eq=False)
class Parameters:
    """What each row asks for, in device arrays: one captured graph reads whatever is in them then."""

    temperature: object
    top_k: object
    top_p: object
    min_p: object
    seeds: object
    steps: object

    @classmethod
    def allocate(cls, rows: int) -> "Parameters":
        """For `rows` rows, all of them greedy."""
        return cls.to_device(np.zeros(rows), np.zeros(rows), np.ones(rows), np.zeros(rows), np.zeros((rows, 2)),
                             np.zeros(rows))

    @classmethod
    def to_device(cls, temperature, top_k, top_p, min_p, seeds, steps) -> "Parameters":
        """From arrays or lists on the host; seeds (rows, 2), as philox.seed_words makes them."""
        given = zip((temperature, top_k, top_p, min_p, seeds, steps), PARAMETER_DTYPES, strict=True)
        return cls(*(cuda.to_device(np.ascontiguousarray(values, dtype)) for values, dtype in given))

    @property
    def arrays(self) -> tuple:
        return self.temperature, self.top_k, self.top_p, self.min_p, self.seeds, self.steps

    def first(self, rows: int) -> "Parameters":
        """Views of the first rows: for a smaller batch, or a graph of one."""
        return Parameters(*(array[:rows] for array in self.arrays))


def sample(logits, parameters: Parameters, tokens, logprobs, scratch: Scratch, stream=0):
    """A token for each row into tokens, and its logprob into logprobs: that of these logits, at a temperature of 1.

    Three launches, whatever the parameters are. scratch: for at least as many rows, of this length.
    """
    _launch_split(logits, parameters.arrays, tokens, logprobs, scratch, stream)


def _launch_split(logits, parameters, tokens, logprobs, scratch, stream, parts=None) -> None:
    rows, load = check_sampling(logits, parameters, tokens)
    check_array("logprobs", logprobs, shape=(rows,))
    if scratch.rows < rows or scratch.cols != logits.shape[1]:
        raise ValueError(f"scratch is for {scratch.rows:,} rows of {scratch.cols:,} logits; these are {rows:,} of "
                         f"{logits.shape[1]:,}")
    temperature, top_k, top_p, min_p, seeds, steps = parameters
    s, chunks = scratch, -(-scratch.cols // CHUNK)
    find_max, find_threshold, draw = make_split(load)
    find_max[(chunks, rows), THREADS, stream](logits, temperature, top_k, top_p, min_p, s.chunk_keys, s.chunk_sums,
                                              s.arrived, s.stats, s.bounds, s.filters, tokens, logprobs)
    # Longer parts than chunks where rows are many: a part adds its histogram to the row's.
    span = CHUNK * -(-chunks // min(chunks, parts or max(1, ENOUGH_BLOCKS // rows)))
    find_threshold[(-(-scratch.cols // span), rows), THREADS, stream](
        logits, top_k, top_p, s.filters, s.stats, s.bounds, s.row_counts, s.row_masses, s.row_mass, s.arrived,
        np.uint32(span))
    draw[(chunks, rows), THREADS, stream](logits, seeds, steps, s.filters, s.stats, s.bounds, s.chunk_masses, s.arrived,
                                          tokens, logprobs)


@functools.cache
def _kept_scratch(rows: int, cols: int):
    return Scratch.allocate(rows, cols), cuda.device_array(rows, np.float32)


@rung(kernel=(*make_split(load_wide), *make_split(load_narrow)), idea="a row split over blocks: three kernels")
def sample_split(logits, temperature, top_k, top_p, min_p, seeds, steps, out, stream=0):
    """As histogram, but each pass over whole rows is a kernel in which many blocks share a row, and the last of them to
    arrive does what is left. With top_p alone, tokens that are too unlikely to matter enter no histogram. `sample` is
    this rung with its own memory; here one is kept for each size, which two streams must not share."""
    scratch, logprobs = _kept_scratch(*logits.shape)
    _launch_split(logits, (temperature, top_k, top_p, min_p, seeds, steps), out, logprobs, scratch, stream)


# --- The operations --------------------------------------------------------------------------------------------------


def any_requests(rng, R, V):
    """Rows of every kind: each choice on and off, ties, rows that are flat, steep, forbidden in part."""
    logits = (rng.standard_normal((R, V)) * rng.choice([0.1, 1, 3, 10], (R, 1))).astype(np.float32)
    kind = np.arange(R) % 6
    logits[kind == 1] = np.round(logits[kind == 1])
    logits[kind == 2] = 0.25
    logits[(kind == 3)[:, None] & (rng.random((R, V)) < 0.7)] = -np.inf
    return (logits, rng.choice([0, 0.5, 1, 1.7], R, p=[0.1, 0.3, 0.3, 0.3]).astype(np.float32),
            rng.choice([0, 1, 2, 40, V], R).astype(np.int32), rng.choice([0.05, 0.5, 0.9, 1], R).astype(np.float32),
            rng.choice([0, 0.02, 0.3], R).astype(np.float32), rng.integers(0, 2**32, (R, 2), np.uint32),
            rng.integers(0, 5000, R).astype(np.int32))


def top_p_requests(rng, R, V):
    """Logits as spread as a language model's, and top_p alone."""
    logits = np.float32(2.5) * rng.standard_normal((R, V), np.float32)
    return (logits, rng.uniform(0.7, 1.2, R).astype(np.float32), np.zeros(R, np.int32), np.full(R, 0.9, np.float32),
            np.zeros(R, np.float32), rng.integers(0, 2**32, (R, 2), np.uint32), np.arange(R, dtype=np.int32))


def _torch_top_p(torch, logits, temperature, top_k, top_p, min_p, seeds, steps, out):
    ordered, index = (logits / temperature[:, None]).sort(dim=-1)
    left_out = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p[:, None]
    left_out[:, -1] = False
    shares = ordered.masked_fill_(left_out, -torch.inf).softmax(dim=-1)
    drawn = (shares / torch.empty_like(shares).exponential_()).argmax(dim=-1, keepdim=True)
    return index.gather(-1, drawn)[:, 0].int()


SIZES = tuple({"R": R, "V": V} for R, V in ((12, 1), (12, 2), (12, 31), (24, 32), (24, 33), (18, 257), (12, 4099)))

SAMPLE = Op(
    "sample",
    title="Draw a token from each row of logits",
    formula="temperature, min_p, top_k, top_p, then a draw by the row's own seed and step",
    reference=sample_reference,
    rungs=(sample_bisection, sample_histogram, sample_split),
    inputs=any_requests,
    shape=lambda R, V: (R,),
    awkward=SIZES,
    tolerance=lambda logits, *parameters: np.zeros(len(logits)),  # integers: there is one right token
    by_row=tuple(range(7)),
    dtype=np.int32,
    work=Work(
        flops=lambda R, V: 20 * R * V,
        bytes=lambda R, V: 4 * R * V + 4 * R,
        timed_gpu={"R": 32, "V": 128_256},
        timed_cpu={"R": 4, "V": 4096},
        also_gpu=({"R": 1, "V": 128_256}, {"R": 256, "V": 128_256}),
    ),
)

SAMPLE_TOP_P = replace(
    SAMPLE, name="sample_top_p", title="Draw a token from each row of logits, top-p alone", inputs=top_p_requests,
    awkward=SIZES[-3:],
    # Its draws are other draws: they cannot be compared.
    baselines=(Baseline("PyTorch", "torch", _torch_top_p, "sort, softmax, cumulative sum",
                        tolerance=lambda logits, *parameters: np.full(len(logits), float(logits.shape[1]))),),
)
