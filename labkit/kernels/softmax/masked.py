"""Softmax of attention scores, scaled and masked: out = softmax(scale * scores + mask). One rung for each idea.

Shapes  scores, out (B, S, S), a matrix for each sequence and head; float32, C-contiguous; any B, any S (single_read: at
        most 16,384). lengths (N,) int32, where N divides B: how many keys each sequence has, for B / N heads each
Work    8*B*S*S bytes, scores read once and out written once; under a causal mask 6*B*S*S, since half is not read
Source  CUDA C++ Programming Guide; M. Shoeybi et al., "Megatron-LM" (2019), whose kernel fuses the same three steps

Masks   none: each query sees all keys.  causal: query q sees the keys 0 to q.  padding: it sees the sequence's
        `lengths` first keys.  All leave the first columns of a row, so a kernel needs one number: how many are visible.
A row that sees no key comes out as zeros. (PyTorch gives NaN there, and so does the unfused chain.)
"""

import functools
import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import MAX_GRID_YZ, check_array, unsigned
from labkit.kernels.op import rung
from labkit.kernels.reduce import NEG_INF, ZERO, block_max, block_sum, warp_max, warp_sum
from labkit.kernels.softmax.rows import ONE, block_max_once, block_sum_once, softmax_block_tree_kernel

BLOCK = 256
SCALE = 0.125  # 1 / sqrt(64), for heads of 64 elements
CAUSAL, PADDING = 1, 2  # bits of `mask`
WARP_ROW = 1024  # the longest row that one warp holds: 32 elements a lane
LONGEST_ROW = 16_384  # the longest that 512 threads hold
ROWS = 4  # rows, and warps, per block


def masked_softmax_reference(scores, lengths=None, *, causal=False, scale=SCALE):
    num_matrices, size, _ = scores.shape
    query, key = np.arange(size)[:, None], np.arange(size)
    visible = np.broadcast_to(key <= query if causal else key < size, scores.shape)
    if lengths is not None:
        matrix_lengths = np.repeat(lengths, num_matrices // len(lengths))
        visible = visible & (key < matrix_lengths[:, None, None])
    x = np.where(visible, scores.astype(np.float64) * scale, -np.inf)
    row_max = x.max(axis=-1, keepdims=True)
    exponentials = np.exp(x - np.where(np.isinf(row_max), 0.0, row_max))
    row_sum = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(row_sum == 0.0, 1.0, row_sum)


# --- Unfused: a kernel for each step ---------------------------------------------------------------------------------
# The grid: x over columns, y over queries, z over matrices.


@cuda.jit
def scale_kernel(scores, out, scale):
    col, row, matrix = u32.grid(3)
    if col < scores.shape[2]:
        out[matrix, row, col] = scores[matrix, row, col] * scale


@cuda.jit(device=True)
def num_visible(row, size, lengths, sequence, mask):
    """Return how many of the first columns a query sees."""
    visible = size
    if mask & CAUSAL:
        visible = row + 1
    if mask & PADDING:
        visible = min(visible, uint32(lengths[sequence]))
    return visible


@cuda.jit
def mask_kernel(x, lengths, heads, mask):
    col, row, matrix = u32.grid(3)
    size = u32.shape(x)[2]
    if col < size and col >= num_visible(row, size, lengths, matrix // heads, mask):
        x[matrix, row, col] = NEG_INF


@rung(kernel=(scale_kernel, mask_kernel, softmax_block_tree_kernel), idea="three kernels: scale, mask, softmax")
def masked_softmax_unfused(scores, out, lengths=None, *, causal=False, scale=SCALE, stream=0):
    """Each step goes through the whole array: scale from scores to out, -inf into out, softmax of out in place."""
    grid, lengths, mask = _check(scores, out, lengths, causal)
    num_matrices, size, _ = scores.shape
    columns = (-(-size // BLOCK), size, num_matrices)
    if max(columns[1:]) > MAX_GRID_YZ:
        raise ValueError(f"scores has shape {tuple(scores.shape)}; unfused takes at most {MAX_GRID_YZ:,} on each axis")
    scale_kernel[columns, BLOCK, stream](scores, out, np.float32(scale))
    if mask:
        mask_kernel[columns, BLOCK, stream](out, lengths, *unsigned(grid[0]), mask)
    rows = out.reshape((num_matrices * size, size))
    softmax_block_tree_kernel[num_matrices * size, BLOCK, stream, 4 * BLOCK](rows, rows)


# --- Fused, one block a row ------------------------------------------------------------------------------------------
# The grid: x over queries, y over the heads of a sequence, z over sequences.


@cuda.jit
def masked_softmax_three_read_kernel(scores, lengths, out, scale, mask):
    partial = cuda.shared.array(32, float32)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    matrix = u32.blockIdx.z * u32.gridDim.y + u32.blockIdx.y
    size, threads = u32.shape(scores)[2], u32.blockDim.x
    visible = num_visible(row, size, lengths, u32.blockIdx.z, mask)

    row_max = NEG_INF
    for col in u32.range(thread, size, threads):
        value = scores[matrix, row, col] * scale
        if col >= visible:
            value = NEG_INF
        row_max = max(row_max, value)
    row_max = block_max(row_max, partial)

    row_sum = ZERO
    for col in u32.range(thread, size, threads):
        value = scores[matrix, row, col] * scale
        if col >= visible:
            value = NEG_INF
        row_sum += math.exp(value - row_max)
    row_sum = block_sum(row_sum, partial)

    for col in u32.range(thread, size, threads):
        value = scores[matrix, row, col] * scale
        out[matrix, row, col] = math.exp(value - row_max) / row_sum if col < visible else ZERO


@rung(kernel=masked_softmax_three_read_kernel, idea="one kernel, one block a row: it reads the row three times")
def masked_softmax_three_read(scores, out, lengths=None, *, causal=False, scale=SCALE, stream=0, block=BLOCK):
    """As unfused, but in one kernel: scale and mask are recomputed in each of three loops, and never stored."""
    grid, lengths, mask = _check(scores, out, lengths, causal)
    kernel = masked_softmax_three_read_kernel[(scores.shape[1], *grid), block, stream]
    kernel(scores, lengths, out, np.float32(scale), mask)


@cuda.jit
def masked_softmax_bounded_kernel(scores, lengths, out, scale, mask):
    partial = cuda.shared.array(32, float32)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    matrix = u32.blockIdx.z * u32.gridDim.y + u32.blockIdx.y
    size, threads = u32.shape(scores)[2], u32.blockDim.x
    visible = num_visible(row, size, lengths, u32.blockIdx.z, mask)

    row_max = NEG_INF
    for col in u32.range(thread, visible, threads):  # not size: masked scores are never loaded
        row_max = max(row_max, scores[matrix, row, col] * scale)
    row_max = block_max(row_max, partial)

    row_sum = ZERO
    for col in u32.range(thread, visible, threads):
        row_sum += math.exp(scores[matrix, row, col] * scale - row_max)
    row_sum = block_sum(row_sum, partial)

    col = thread
    while col < visible:
        out[matrix, row, col] = math.exp(scores[matrix, row, col] * scale - row_max) / row_sum
        col += threads
    while col < size:
        out[matrix, row, col] = ZERO
        col += threads


@rung(kernel=masked_softmax_bounded_kernel, idea="the loops end where the mask begins")
def masked_softmax_bounded(scores, out, lengths=None, *, causal=False, scale=SCALE, stream=0, block=BLOCK):
    """As three_read, but the loops end at the row's last visible column: half of the work, under a causal mask."""
    grid, lengths, mask = _check(scores, out, lengths, causal)
    kernel = masked_softmax_bounded_kernel[(scores.shape[1], *grid), block, stream]
    kernel(scores, lengths, out, np.float32(scale), mask)


# --- Fused, a single read --------------------------------------------------------------------------------------------
# factor is scale * log2(e): the exponential is then 2 ** (factor * x - row_max).


def make_row(elements: int, vec4: bool):
    """Three device functions for a row that `threads` threads share, each with `elements` of it in registers. vec4: in
    groups of four neighbours, moved at once: every row begins at a multiple of 16 bytes."""

    @cuda.jit(device=True)
    def load_scaled(values, scores, matrix, row, size, thread, threads, visible, factor):
        """Load factor * scores, -inf where masked, and return the thread's maximum."""
        row_offset = (matrix * size + row) * size
        if vec4:
            for v in u32.range(elements // 4):  # all loads are issued before the first use
                col = 4 * (v * threads + thread)
                if col < visible:
                    a, b, c, d = ptx.load_nc4(scores, row_offset + col)
                    values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        row_max = NEG_INF
        for i in u32.range(elements):
            if vec4:
                col = 4 * (i // 4 * threads + thread) + i % 4
                values[i] = values[i] * factor if col < visible else NEG_INF
            else:
                col = i * threads + thread
                values[i] = scores[matrix, row, col] * factor if col < visible else NEG_INF
            row_max = max(row_max, values[i])
        return row_max

    @cuda.jit(device=True)
    def exponentials(values, row_max):
        """Replace the values by their exponentials, and return the thread's sum."""
        row_sum = ZERO
        for i in u32.range(elements):
            values[i] = ptx.exp2_approx(values[i] - row_max)
            row_sum += values[i]
        return row_sum

    @cuda.jit(device=True)
    def store(values, inv_row_sum, out, matrix, row, size, thread, threads, visible):
        row_offset = (matrix * size + row) * size
        if vec4:
            for v in u32.range(elements // 4):
                col = 4 * (v * threads + thread)
                if col < visible:
                    ptx.store_global4(out, row_offset + col,
                                      values[4 * v] * inv_row_sum, values[4 * v + 1] * inv_row_sum,
                                      values[4 * v + 2] * inv_row_sum, values[4 * v + 3] * inv_row_sum)
                elif col < size:
                    ptx.store_global4(out, row_offset + col, ZERO, ZERO, ZERO, ZERO)
        else:
            for i in u32.range(elements):
                col = i * threads + thread
                if col < size:
                    out[matrix, row, col] = values[i] * inv_row_sum if col < visible else ZERO

    return load_scaled, exponentials, store


@kernel_factory
def make_warp_row(elements: int, vec4: bool):
    """One warp per row, rows of up to 32 * elements."""
    load_scaled, exponentials, store = make_row(elements, vec4)

    @cuda.jit
    def masked_softmax_warp_row_kernel(scores, lengths, out, factor, mask):
        values = cuda.local.array(elements, float32)
        lane = u32.threadIdx.x & 31
        row = u32.blockIdx.x * ROWS + (u32.threadIdx.x >> 5)
        size = u32.shape(scores)[2]
        if row < size:  # the same for all lanes of a warp
            matrix = u32.blockIdx.z * u32.gridDim.y + u32.blockIdx.y
            visible = num_visible(row, size, lengths, u32.blockIdx.z, mask)
            row_max = warp_max(load_scaled(values, scores, matrix, row, size, lane, 32, visible, factor))
            inv_row_sum = ONE / warp_sum(exponentials(values, row_max))
            store(values, inv_row_sum, out, matrix, row, size, lane, 32, visible)

    return masked_softmax_warp_row_kernel


@kernel_factory
def make_block_row(elements: int, vec4: bool):
    """As make_warp_row, but a block holds a row; the warps exchange their results through shared memory."""
    load_scaled, exponentials, store = make_row(elements, vec4)

    @cuda.jit(launch_bounds=512)  # so that ptxas stays within the registers that 512 threads can have
    def masked_softmax_block_row_kernel(scores, lengths, out, factor, mask):
        partial_max, partial_sum = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
        values = cuda.local.array(elements, float32)
        row, thread, threads = u32.blockIdx.x, u32.threadIdx.x, u32.blockDim.x
        size = u32.shape(scores)[2]
        matrix = u32.blockIdx.z * u32.gridDim.y + u32.blockIdx.y
        visible = num_visible(row, size, lengths, u32.blockIdx.z, mask)
        row_max = load_scaled(values, scores, matrix, row, size, thread, threads, visible, factor)
        row_max = block_max_once(row_max, partial_max)
        inv_row_sum = ONE / block_sum_once(exponentials(values, row_max), partial_sum)
        store(values, inv_row_sum, out, matrix, row, size, thread, threads, visible)

    return masked_softmax_block_row_kernel


# In this order: rows of up to 512, up to 1,024, and longer ones
ALIGNED, UNALIGNED = ((make_warp_row(16, vec4), make_warp_row(32, vec4), make_block_row(32, vec4))
                      for vec4 in (True, False))


@rung(kernel=(*ALIGNED, *UNALIGNED), idea="the row in registers: what the row sees is read once, 128 bits at a time")
def masked_softmax_single_read(scores, out, lengths=None, *, causal=False, scale=SCALE, stream=0):
    """As bounded, but the row is read once and stays in registers: of a warp up to 1,024 columns, of a block above.

    Loads and stores move four elements at a time, if S is a multiple of four.
    """
    grid, lengths, mask = _check(scores, out, lengths, causal)
    size = scores.shape[1]
    if size > LONGEST_ROW:
        raise ValueError(f"scores has rows of {size:,}; single_read keeps a row in registers, at most {LONGEST_ROW:,}")
    kernels = UNALIGNED if size % 4 else ALIGNED
    factor = np.float32(scale * math.log2(math.e))
    if size <= WARP_ROW:
        kernel, rows, threads = kernels[0 if size <= WARP_ROW // 2 else 1], -(-size // ROWS), 32 * ROWS
    else:
        kernel, rows, threads = kernels[2], size, next(t for t in (64, 128, 256, 512) if 32 * t >= size)
    kernel[(rows, *grid), threads, stream](scores, lengths, out, factor, mask)


# --- What the launchers share ----------------------------------------------------------------------------------------


def _check(scores, out, lengths, causal):
    """Return the grid's y and z (heads, sequences), an array of lengths, and the mask's bits."""
    check_array("scores", scores, ndim=3)
    num_matrices, size, columns = scores.shape
    if size != columns:
        raise ValueError(f"scores has shape {tuple(scores.shape)}; its last two axes, queries and keys, must be equal")
    check_array("out", out, shape=scores.shape)
    mask = CAUSAL if causal else 0
    sequences = num_matrices
    if lengths is not None:
        check_array("lengths", lengths, ndim=1, dtype=np.int32)
        sequences = lengths.size
        if num_matrices % sequences:
            raise ValueError(f"lengths has {sequences} elements and scores {num_matrices} matrices; the matrices must "
                             f"be a multiple of the lengths")
        mask |= PADDING
    heads = num_matrices // sequences
    if max(heads, sequences) > MAX_GRID_YZ:
        raise ValueError(f"scores has {sequences:,} sequences of {heads:,} heads; at most {MAX_GRID_YZ:,} are allowed")
    return (heads, sequences), _no_lengths() if lengths is None else lengths, np.uint32(mask)


@functools.cache
def _no_lengths():
    """Return a placeholder for the lengths where there is no padding; no kernel reads it."""
    return cuda.to_device(np.zeros(1, np.int32))


def unfused_by_library(causal: bool):
    """Scale, mask, softmax as a library does them, each into a new array; masks(causal) makes the mask."""
    def call(xp, scores, mask, out):
        x = scores * SCALE
        if mask is not None:
            x = x + mask
        if xp.__name__ == "torch":
            xp.softmax(x, dim=-1, out=out)
            return
        xp.exp(x - x.max(axis=-1, keepdims=True), out=out)
        xp.divide(out, out.sum(axis=-1, keepdims=True), out=out)

    return call


def masks(causal: bool):
    """Prepare (scores, mask, out) for a library's addition: 0 where a score is visible and -inf where it is masked; the
    mask is None if all are visible."""
    def prepare(xp, scores, *rest):
        *lengths, out = rest
        if not causal and not lengths:
            return scores, None, out
        masked = _masked(xp, scores, causal, *lengths)
        mask = xp.zeros_like(masked, dtype=xp.float32)
        mask[masked] = -math.inf
        return scores, mask, out

    return prepare


def _masked(xp, scores, causal: bool, lengths=None):
    """Return which scores are masked, in the smallest shape that broadcasts: (S, S) causal, (B, 1, S) for padding."""
    keys = xp.arange(scores.shape[-1], **({"device": scores.device} if xp.__name__ == "torch" else {}))
    return keys > keys[:, None] if causal else keys >= lengths[:, None, None]
