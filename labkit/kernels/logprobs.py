"""Logprobs of each row of logits: of a given token, with its rank, and of the k most likely tokens.

Shapes  logits (R, V) float32; tokens, wanted (R,) int32; out (R, COLUMNS) float32; C-contiguous; V up to 2**19. wanted
        is k, from 0 to MOST; below 0, for a row without logprobs. A row of out: the token's logprob x - log(sum of
        exp(x)); its rank, 1 + the number of larger logits; MOST logprobs, the largest first, of equal logits the lower
        token first, -inf beyond k or V; their tokens, -1 beyond. Logprob and rank are 0 for a token below 0, and where
        nothing is wanted. float32 holds ranks and tokens exactly, so that one copy brings all to the host
Work    R*V exponentials; a row is read once: 4*R*V bytes, and nothing of rows for which nothing is wanted
Source  vLLM, `gather_logprobs` in `vllm/v1/sample/sampler.py`, for the returned values
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import float32, int32, int64, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, key_of, warp_largest_key
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF, ZERO, warp_max, warp_sum
from labkit.kernels.sampling_search import (
    CHUNK,
    ITEMS,
    THREADS,
    WARPS,
    block_largest_key,
    check_logits,
    check_rows,
    index_of,
    load_narrow,
    load_wide,
    value_of,
)
from labkit.kernels.token_weights import LOG2_E, distance

MOST = 20  # the maximum of k
LOGPROB, RANK, TOP, TOKENS = 0, 1, 2, 2 + MOST  # columns of out
COLUMNS = 2 + 2 * MOST
SLOTS = WARPS * MOST  # keys of a block: MOST per warp
NO_TOKEN, INF = float32(-1.0), float32(np.inf)


def logprobs_reference(logits, tokens, wanted):
    out = np.zeros((len(logits), COLUMNS))
    out[:, TOP:TOKENS], out[:, TOKENS:] = -np.inf, -1
    for row, (x, token, count) in enumerate(zip(logits.astype(np.float64), tokens, wanted, strict=True)):
        if count < 0:
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            shifted = np.where(x == x.max(), 0, x - x.max())  # +inf minus itself is no number
            row_logprobs = shifted - (np.log(np.exp(shifted).sum()) if x.max() > -np.inf else np.inf)
        best = np.argsort(-x, kind="stable")[:count]
        out[row, TOP : TOP + best.size], out[row, TOKENS : TOKENS + best.size] = row_logprobs[best], best
        out[row, :TOP] = (row_logprobs[token], 1 + (x > x[token]).sum()) if token >= 0 else 0
    return out


# --- One block a row, a pass for each token ---------------------------------------------------------------------------


@cuda.jit(device=True)
def exponential(row_max, x):
    """exp(x - row_max)"""
    return ptx.exp2_approx(-distance(row_max, x) * LOG2_E)


@cuda.jit(device=True)
def logprob_of(x, row_max, log_sum):
    return -distance(row_max, x) - log_sum


@cuda.jit(device=True)
def block_sum(value, partials):
    """One barrier; another is needed before partials is used again."""
    value = warp_sum(value)
    if u32.threadIdx.x & 31 == 0:
        partials[u32.threadIdx.x >> 5] = value
    cuda.syncthreads()
    total = partials[0]
    for warp in range(1, WARPS):
        total += partials[warp]
    return total


@cuda.jit(launch_bounds=THREADS)
def logprobs_passes_kernel(logits, tokens, wanted, out):
    partials, warp_above = cuda.shared.array(WARPS, float32), cuda.shared.array(WARPS, int32)
    warp_keys = cuda.shared.array(WARPS, int64)
    row, thread, cols = u32.blockIdx.x, u32.threadIdx.x, u32.shape(logits)[1]
    token, count = tokens[row], wanted[row]
    if thread < MOST:
        out[row, TOP + thread], out[row, TOKENS + thread] = NEG_INF, NO_TOKEN
    if thread < TOP:
        out[row, thread] = ZERO
    if count < int32(0):
        return
    token_logit = logits[row, uint32(max(token, int32(0)))]
    key, above = LEAST, int32(0)
    for col in u32.range(thread, cols, THREADS):
        x = logits[row, col]
        key = max(key, key_of(x, col))
        if x > token_logit:
            above += int32(1)
    largest = block_largest_key(key, warp_keys)
    row_max, row_sum = value_of(largest), ZERO
    for col in u32.range(thread, cols, THREADS):
        row_sum += exponential(row_max, logits[row, col])
    log_sum, above = math.log(block_sum(row_sum, partials)), block_sum(above, warp_above)
    if row_max == NEG_INF:
        log_sum = INF
    if thread == 0:
        out[row, 0] = logprob_of(token_logit, row_max, log_sum) if token >= int32(0) else ZERO
        out[row, 1] = float32(int32(1) + above) if token >= int32(0) else ZERO
    for i in u32.range(min(count, int32(MOST))):
        if largest != LEAST and thread == 0:
            out[row, TOP + i] = logprob_of(value_of(largest), row_max, log_sum)
            out[row, TOKENS + i] = float32(index_of(largest))
        previous, key = largest, LEAST
        for col in u32.range(thread, cols, THREADS):
            candidate = key_of(logits[row, col], col)
            if candidate < previous:
                key = max(key, candidate)
        cuda.syncthreads()
        largest = block_largest_key(key, warp_keys)


@rung(kernel=logprobs_passes_kernel, idea="one block a row; a pass for each of the k tokens")
def logprobs_passes(logits, tokens, wanted, out, stream=0):
    """The maximum and the rank in one pass, the sum in a second; then each pass finds the next largest logit."""
    rows, _ = _check(logits, tokens, wanted, out)
    logprobs_passes_kernel[rows, THREADS, stream](logits, tokens, wanted, out)


# --- A row split over blocks -----------------------------------------------------------------------------------------


@cuda.jit(device=True)
def best_remaining(values, taken, base):
    """(key, slot) of the largest of a thread's logits whose bit in `taken` is not set; LEAST if there is none. Slots
    ascend with columns, so of equal logits the first is the lower token."""
    best, slot = NEG_INF, ITEMS
    for i in u32.range(ITEMS):
        if taken & 1 << i == 0 and (slot == ITEMS or values[i] > best):
            best, slot = values[i], i
    if slot == ITEMS:
        return LEAST, slot
    return key_of(best, base + 4 * THREADS * (slot >> 2) + (slot & 3)), slot


@cuda.jit(device=True)
def merge_sorted(keys, base, lists, count, out, out_offset):
    """Merge sorted lists of `count` keys, MOST apart from index `base` on, by one warp: the `count` largest to out from
    index `out_offset` on, the largest first. Up to 64 lists: a lane holds the heads of two."""
    lane = u32.threadIdx.x & 31
    i, j = base + lane * MOST, base + (lane + 32) * MOST
    i_end = i + count if lane < lists else i
    j_end = j + count if lane + 32 < lists else j
    head, other_head = LEAST, LEAST
    if i < i_end:
        head = keys[i]
    if j < j_end:
        other_head = keys[j]
    for n in u32.range(count):
        largest = warp_largest_key(max(head, other_head))
        if lane == 0:
            out[out_offset + n] = largest
        if head == largest and i < i_end:  # no two keys are equal, except LEAST at a list's end
            i += 1
            head = keys[i] if i < i_end else LEAST
        elif other_head == largest and j < j_end:
            j += 1
            other_head = keys[j] if j < j_end else LEAST


@kernel_factory
def make_logprobs_chunk(load):
    @cuda.jit(launch_bounds=(THREADS, 2))
    def logprobs_chunk_kernel(logits, tokens, wanted, chunk_stats, chunk_above, chunk_keys):
        keys = cuda.shared.array(SLOTS, int64)
        partials, warp_above = cuda.shared.array((WARPS, 2), float32), cuda.shared.array(WARPS, int32)
        values = cuda.local.array(ITEMS, float32)
        chunk, row, thread = u32.blockIdx.x, u32.blockIdx.y, u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        cols, chunks = u32.shape(logits)[1], u32.gridDim.x
        if wanted[row] < int32(0):
            return
        count, token_logit = uint32(min(wanted[row], int32(MOST))), logits[row, uint32(max(tokens[row], int32(0)))]
        base = chunk * CHUNK + 4 * thread
        for v in u32.range(ITEMS // 4):
            a, b, c, d = load(logits, row, base + 4 * THREADS * v, cols)
            values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        taken, above, largest = 0, int32(0), NEG_INF
        for i in u32.range(ITEMS):
            if base + (4 * THREADS * (i // 4) + i % 4) >= cols:
                taken |= 1 << i
            largest = max(largest, values[i])
            if values[i] > token_logit:
                above += int32(1)
        largest, exp_sum = warp_max(largest), ZERO
        for i in u32.range(ITEMS):
            exp_sum += exponential(largest, values[i])
        exp_sum, above = warp_sum(exp_sum), warp_sum(above)
        if lane == 0:
            partials[warp, 0], partials[warp, 1], warp_above[warp] = largest, exp_sum, above

        # The warp's `count` largest, one after the other: the lane that had the largest finds its next.
        key, slot = LEAST, 0
        if count != 0:
            key, slot = best_remaining(values, taken, base)
        for n in u32.range(count):
            largest_key = warp_largest_key(key)
            if lane == 0:
                keys[warp * MOST + n] = largest_key
            if key == largest_key and key != LEAST:
                taken |= uint32(1) << slot
                key, slot = best_remaining(values, taken, base)
        cuda.syncthreads()
        if warp != 0:
            return
        largest, exp_sum, above = NEG_INF, ZERO, int32(0)
        if lane < WARPS:
            largest, exp_sum, above = partials[lane, 0], partials[lane, 1], warp_above[lane]
        row_max = warp_max(largest)
        exp_sum, above = warp_sum(exp_sum * exponential(row_max, largest)), warp_sum(above)
        index = row * chunks + chunk
        if lane == 0:
            chunk_stats[row, chunk, 0], chunk_stats[row, chunk, 1], chunk_above[row, chunk] = row_max, exp_sum, above
        merge_sorted(keys, 0, WARPS, count, chunk_keys, index * MOST)

    return logprobs_chunk_kernel


@cuda.jit(launch_bounds=32)
def logprobs_merge_kernel(tokens, wanted, logits, chunk_stats, chunk_above, chunk_keys, out):
    keys = cuda.shared.array(MOST, int64)
    row, lane, chunks = u32.blockIdx.x, u32.threadIdx.x, u32.shape(chunk_stats)[1]
    token, count, above = tokens[row], uint32(max(min(wanted[row], int32(MOST)), int32(0))), int32(0)
    token_logit, log_sum, row_max = ZERO, ZERO, NEG_INF
    if wanted[row] >= int32(0):
        token_logit = logits[row, uint32(max(token, int32(0)))]
        chunk_max, exp_sum, other_max, other_exp_sum = NEG_INF, ZERO, NEG_INF, ZERO
        if lane < chunks:
            chunk_max, exp_sum, above = chunk_stats[row, lane, 0], chunk_stats[row, lane, 1], chunk_above[row, lane]
        chunk = lane + 32
        if chunk < chunks:
            other_max, other_exp_sum = chunk_stats[row, chunk, 0], chunk_stats[row, chunk, 1]
            above += chunk_above[row, chunk]
        row_max = warp_max(max(chunk_max, other_max))
        exp_sum = exp_sum * exponential(row_max, chunk_max) + other_exp_sum * exponential(row_max, other_max)
        log_sum, above = math.log(warp_sum(exp_sum)), warp_sum(above)
        if row_max == NEG_INF:
            log_sum = INF
        merge_sorted(chunk_keys, row * chunks * MOST, chunks, count, keys, 0)
    cuda.syncwarp()
    if lane < MOST:
        key = keys[lane] if lane < count else LEAST
        valid = key != LEAST
        out[row, TOP + lane] = logprob_of(value_of(key), row_max, log_sum) if valid else NEG_INF
        out[row, TOKENS + lane] = float32(index_of(key)) if valid else NO_TOKEN
    if lane == 0:
        logprob, rank = ZERO, ZERO
        if wanted[row] >= int32(0) and token >= int32(0):
            logprob, rank = logprob_of(token_logit, row_max, log_sum), float32(int32(1) + above)
        out[row, 0], out[row, 1] = logprob, rank


@dataclass(frozen=True, eq=False)
class Scratch:
    """The results of the first kernel for the second, for up to `rows` rows of `cols` logits; one stream at a time."""

    rows: int
    cols: int
    chunk_stats: object  # (rows, chunks, 2) float32: a chunk's maximum, and its sum of exp(x - maximum)
    chunk_above: object  # (rows, chunks) int32: logits larger than the token's
    chunk_keys: object  # (rows * chunks * MOST,) int64: its most likely tokens, the largest first

    @classmethod
    def allocate(cls, rows: int, cols: int) -> "Scratch":
        """About 3 KB for each row of 128,256 logits."""
        check_rows(rows, cols)
        chunks = -(-cols // CHUNK)
        return cls(rows, cols, cuda.device_array((rows, chunks, 2), np.float32),
                   cuda.device_array((rows, chunks), np.int32), cuda.device_array(rows * chunks * MOST, np.int64))


def logprobs(logits, tokens, wanted, out, scratch: Scratch, stream=0):
    """The rung to use, with the caller's scratch: for at least as many rows, of this length. Two launches."""
    rows, cols = _check(logits, tokens, wanted, out, scratch)
    s, wide = scratch, cols % 4 == 0 and aligned(logits)
    make_logprobs_chunk(load_wide if wide else load_narrow)[(-(-cols // CHUNK), rows), THREADS, stream](
        logits, tokens, wanted, s.chunk_stats, s.chunk_above, s.chunk_keys)
    logprobs_merge_kernel[rows, 32, stream](tokens, wanted, logits, s.chunk_stats, s.chunk_above, s.chunk_keys, out)


@rung(kernel=(make_logprobs_chunk(load_wide), make_logprobs_chunk(load_narrow), logprobs_merge_kernel),
      idea="a row split over blocks and read once; each warp's most likely tokens, merged twice")
def logprobs_split(logits, tokens, wanted, out, stream=0):
    """As passes, but a thread keeps its sixteen logits in registers, so the row is read once. Each warp finds the k
    largest of its 512 logits, one warp of the block merges sixteen sorted lists, and a second kernel those of the row's
    chunks. Its time does not depend on the logits: equal or sorted ones cost what others do."""
    logprobs(logits, tokens, wanted, out, Scratch.allocate(*logits.shape), stream=stream)


def _check(logits, tokens, wanted, out, scratch=None) -> tuple[int, int]:
    rows, cols = check_logits(logits, scratch)
    check_array("tokens", tokens, shape=(rows,), dtype=np.int32)
    check_array("wanted", wanted, shape=(rows,), dtype=np.int32)
    check_array("out", out, shape=(rows, COLUMNS))
    return rows, cols
