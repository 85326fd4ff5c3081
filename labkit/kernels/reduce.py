"""Reduce each row of a matrix to its sum. One rung for each idea, slowest first.

Shapes  x (R, C), out (R,); float32, C-contiguous; any sizes
Work    R*C operations; 4*R*C + 4*R bytes: the limit is memory
Source  CUDA C++ Programming Guide, "Warp Shuffle Functions"; M. Harris, "Optimizing Parallel Reduction in CUDA"

The device functions at the top are used by softmax and LayerNorm, too. Each gives its result to every thread.
"""

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import check_array
from labkit.kernels.op import rung

BLOCK = 256
WARPS = BLOCK // 32
ALL_LANES = 0xFFFFFFFF
XOR_OFFSETS = (16, 8, 4, 2, 1)
ZERO = float32(0.0)
NEG_INF = float32(-np.inf)  # the identity of max


def reduce_sum_reference(x):
    return x.astype(np.float64).sum(axis=1)


# --- Device functions ----------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(value):
    """The sum over the 32 lanes of a warp in five steps: with the lane 16 away, then 8, 4, 2, 1. No shared memory."""
    for offset in XOR_OFFSETS:
        value += cuda.shfl_xor_sync(ALL_LANES, value, offset)
    return value


@cuda.jit(device=True)
def warp_max(value):
    """As warp_sum: the largest."""
    for offset in XOR_OFFSETS:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, offset))
    return value


@cuda.jit(device=True)
def block_reduce_sum(value, shared):
    """The sum over a block of 2^n threads by a tree in shared memory, one element per thread."""
    thread = u32.threadIdx.x
    shared[thread] = value
    cuda.syncthreads()
    stride = u32.blockDim.x >> 1
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride >>= 1
    total = shared[0]
    cuda.syncthreads()  # all have read: the next reduction may overwrite shared[0]
    return total


@cuda.jit(device=True)
def block_reduce_max(value, shared):
    """As block_reduce_sum: the largest."""
    thread = u32.threadIdx.x
    shared[thread] = value
    cuda.syncthreads()
    stride = u32.blockDim.x >> 1
    while stride > 0:
        if thread < stride:
            shared[thread] = max(shared[thread], shared[thread + stride])
        cuda.syncthreads()
        stride >>= 1
    largest = shared[0]
    cuda.syncthreads()
    return largest


@cuda.jit(device=True)
def block_sum(value, partial):
    """The sum over a block of full warps in two levels: each warp by shuffles, then the warps' sums by shuffles.

    partial: shared, 32 elements. Every warp computes the second level, so that sharing it needs no further barrier.
    """
    thread = u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    value = warp_sum(value)
    if lane == 0:
        partial[warp] = value
    cuda.syncthreads()
    total = warp_sum(partial[lane] if lane < u32.blockDim.x >> 5 else ZERO)
    cuda.syncthreads()  # all have read: partial is free to overwrite
    return total


@cuda.jit(device=True)
def block_max(value, partial):
    """As block_sum: the largest."""
    thread = u32.threadIdx.x
    lane, warp = thread & 31, thread >> 5
    value = warp_max(value)
    if lane == 0:
        partial[warp] = value
    cuda.syncthreads()
    largest = warp_max(partial[lane] if lane < u32.blockDim.x >> 5 else NEG_INF)
    cuda.syncthreads()
    return largest


# --- The ladder: the sum of each row -------------------------------------------------------------------------------


@cuda.jit
def reduce_sequential_kernel(x, out):
    row = u32.grid(1)
    if row < x.shape[0]:
        cols = u32.shape(x)[1]
        total = ZERO
        for col in u32.range(cols):
            total += x[row, col]
        out[row] = total


@rung(kernel=reduce_sequential_kernel, idea="one thread a row, one element after another")
def reduce_sum_sequential(x, out, stream=0):
    """One thread reduces a row: C steps, one after another. Neighbouring threads read from neighbouring rows."""
    rows, _ = _check(x, out)
    reduce_sequential_kernel[-(-rows // 32), 32, stream](x, out)  # one warp a block: few rows still reach many SMs


@cuda.jit
def reduce_tree_kernel(x, out):
    shared = cuda.shared.array(0, float32)  # one element per thread: the size is set at launch
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    cols = u32.shape(x)[1]
    total = ZERO
    for col in u32.range(thread, cols, u32.blockDim.x):
        total += x[row, col]
    total = block_reduce_sum(total, shared)
    if thread == 0:
        out[row] = total


@rung(kernel=reduce_tree_kernel, idea="one block a row, a tree in shared memory")
def reduce_sum_tree(x, out, stream=0, block=BLOCK):
    """As sequential, but a block of 2^n threads shares a row; a tree combines their results in n steps, with a
    barrier each."""
    rows, _ = _check(x, out)
    check_tree_block(block)
    reduce_tree_kernel[rows, block, stream, 4 * block](x, out)


@cuda.jit
def reduce_warp_kernel(x, out):
    thread = u32.threadIdx.x
    row = u32.blockIdx.x * WARPS + (thread >> 5)
    if row < x.shape[0]:  # the same for all lanes of a warp: no shuffle misses one
        cols = u32.shape(x)[1]
        total = ZERO
        for col in u32.range(thread & 31, cols, 32):
            total += x[row, col]
        total = warp_sum(total)
        if thread & 31 == 0:
            out[row] = total


@rung(kernel=reduce_warp_kernel, idea="one warp a row, five shuffles")
def reduce_sum_warp(x, out, stream=0):
    """As tree, but a warp shares a row: its lanes exchange values by shuffles, without shared memory or barrier."""
    rows, _ = _check(x, out)
    reduce_warp_kernel[-(-rows // WARPS), BLOCK, stream](x, out)


@cuda.jit
def reduce_two_level_kernel(x, out):
    partial = cuda.shared.array(32, float32)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    cols = u32.shape(x)[1]
    total = ZERO
    for col in u32.range(thread, cols, u32.blockDim.x):
        total += x[row, col]
    total = block_sum(total, partial)
    if thread == 0:
        out[row] = total


@rung(kernel=reduce_two_level_kernel, idea="one block a row: shuffles within warps, then across warps")
def reduce_sum_two_level(x, out, stream=0, block=BLOCK):
    """As warp, but several warps share a row. Their results pass through shared memory, and every warp combines them
    by shuffles."""
    rows, _ = _check(x, out)
    check_warp_block(block)
    reduce_two_level_kernel[rows, block, stream](x, out)


@cuda.jit
def reduce_vectorized_kernel(x, out):
    partial = cuda.shared.array(32, float32)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    cols = u32.shape(x)[1]
    base = row * cols
    stride = 4 * u32.blockDim.x
    col = 4 * thread
    total = ZERO
    while col + 3 * stride < cols:  # four loads before the first use: 64 bytes a thread in flight
        a, b, c, d = ptx.load_nc4(x, base + col)
        e, f, g, h = ptx.load_nc4(x, base + col + stride)
        i, j, k, m = ptx.load_nc4(x, base + col + 2 * stride)
        n, o, p, q = ptx.load_nc4(x, base + col + 3 * stride)
        left = ((a + b) + (c + d)) + ((e + f) + (g + h))
        total += left + (((i + j) + (k + m)) + ((n + o) + (p + q)))
        col += 4 * stride
    while col < cols:
        a, b, c, d = ptx.load_nc4(x, base + col)
        total += (a + b) + (c + d)
        col += stride
    total = block_sum(total, partial)
    if thread == 0:
        out[row] = total


@rung(kernel=(reduce_vectorized_kernel, reduce_two_level_kernel), idea="four loads of 128 bits in flight")
def reduce_sum_vectorized(x, out, stream=0, block=BLOCK):
    """As two_level, but a thread loads four neighbours at once, and four times before it combines them. Rows whose
    length is not a multiple of four are not aligned: two_level takes those."""
    rows, cols = _check(x, out)
    check_warp_block(block)
    (reduce_two_level_kernel if cols % 4 else reduce_vectorized_kernel)[rows, block, stream](x, out)


# --- The largest of each row, for a softmax by library calls -------------------------------------------------------


@cuda.jit
def row_max_kernel(x, out):
    thread = u32.threadIdx.x
    row = u32.blockIdx.x * WARPS + (thread >> 5)
    if row < x.shape[0]:
        cols = u32.shape(x)[1]
        largest = NEG_INF
        for col in u32.range(thread & 31, cols, 32):
            largest = max(largest, x[row, col])
        largest = warp_max(largest)
        if thread & 31 == 0:
            out[row] = largest


def row_max(x, out, stream=0):
    """The largest element of each row, by a warp each."""
    rows, _ = _check(x, out)
    row_max_kernel[-(-rows // WARPS), BLOCK, stream](x, out)


def check_tree_block(block: int) -> None:
    """A tree halves the threads until one is left."""
    if block not in (32, 64, 128, 256, 512, 1024):
        raise ValueError(f"block is {block}; a tree needs 32, 64, 128, 256, 512 or 1024 threads")


def check_warp_block(block: int) -> None:
    """Two levels need full warps: at most 32 of them."""
    if block % 32 or not 32 <= block <= 1024:
        raise ValueError(f"block is {block}; two levels need a multiple of 32 threads, 32 to 1024")


def _check(x, out):
    check_array("x", x, ndim=2)
    check_array("out", out, shape=x.shape[:1])
    return x.shape


# --- The race ------------------------------------------------------------------------------------------------------
# Two reductions in a row, as softmax and LayerNorm need them. Not a rung: its result may be wrong.


@cuda.jit(device=True)
def block_reduce_sum_racy(value, shared):
    """As block_reduce_sum, without its last barrier, as it is often printed. Right only when called once."""
    thread = u32.threadIdx.x
    shared[thread] = value
    cuda.syncthreads()
    stride = u32.blockDim.x >> 1
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride >>= 1
    return shared[0]


def make_mean_and_variance(block_reduce):
    """Mean and variance of each row, out (R, 2), by two reductions through the same shared memory."""

    @cuda.jit
    def mean_and_variance_kernel(x, out):
        shared = cuda.shared.array(BLOCK, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        cols = u32.shape(x)[1]
        total = ZERO
        for col in u32.range(thread, cols, u32.blockDim.x):
            total += x[row, col]
        mean = block_reduce(total, shared) / float32(cols)

        total = ZERO
        for col in u32.range(thread, cols, u32.blockDim.x):
            total += (x[row, col] - mean) * (x[row, col] - mean)
        variance = block_reduce(total, shared) / float32(cols)
        if thread == 0:
            out[row, 0] = mean
            out[row, 1] = variance

    return mean_and_variance_kernel


mean_and_variance_kernel = make_mean_and_variance(block_reduce_sum)
mean_and_variance_racy_kernel = make_mean_and_variance(block_reduce_sum_racy)
