"""Softmax of each row, out = exp(x - max) / sum of exp(x - max). One rung for each idea, slowest first.

Shapes  x, out (R, C); float32, C-contiguous; any sizes (vectorized: at most 16,384 columns)
Work    about 4*R*C operations and R*C exponentials; 8*R*C bytes, x read once and out written once
Source  M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax" (2018); CUDA C++ Programming Guide

The maximum is subtracted so that no exponential is larger than 1: exp(89) is beyond float32. A row of nothing
but -inf has no softmax and comes out as NaN, as it does in PyTorch.
"""

import math

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import check_array
from labkit.kernels.op import rung
from labkit.kernels.reduce import (
    ALL_LANES,
    NEG_INF,
    ZERO,
    block_reduce_max,
    block_reduce_sum,
    check_tree_block,
    warp_max,
    warp_sum,
)

BLOCK = 256
WARPS = BLOCK // 32
ONE = float32(1.0)
LOG2_E = float32(math.log2(math.e))
LEAST_FINITE = float32(np.finfo(np.float32).min)  # -inf minus itself would be NaN
LONGEST_ROW = 16_384  # 512 threads with 32 elements each


def softmax_reference(x):
    x = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


# --- One thread, one block, one warp per row -------------------------------------------------------------------------


@cuda.jit
def softmax_naive_kernel(x, out):
    row = u32.grid(1)
    if row < x.shape[0]:
        cols = u32.shape(x)[1]
        row_max = NEG_INF
        for col in u32.range(cols):
            row_max = max(row_max, x[row, col])
        row_sum = ZERO
        for col in u32.range(cols):
            exponential = math.exp(x[row, col] - row_max)
            out[row, col] = exponential
            row_sum += exponential
        for col in u32.range(cols):
            out[row, col] /= row_sum


@rung(kernel=softmax_naive_kernel, idea="one thread a row: three loops")
def softmax_naive(x, out, stream=0, block=BLOCK):
    """One thread takes a row: the maximum, then the exponentials and their sum, then the quotients."""
    rows, _ = _check(x, out)
    softmax_naive_kernel[-(-rows // block), block, stream](x, out)


@cuda.jit
def softmax_block_tree_kernel(x, out):
    shared = cuda.shared.array(0, float32)  # one element per thread; the launch sets the size
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    threads, cols = u32.blockDim.x, u32.shape(x)[1]

    row_max = NEG_INF
    for col in u32.range(thread, cols, threads):
        row_max = max(row_max, x[row, col])
    row_max = block_reduce_max(row_max, shared)

    row_sum = ZERO
    for col in u32.range(thread, cols, threads):
        exponential = math.exp(x[row, col] - row_max)
        out[row, col] = exponential
        row_sum += exponential
    row_sum = block_reduce_sum(row_sum, shared)

    for col in u32.range(thread, cols, threads):
        out[row, col] /= row_sum


@rung(kernel=softmax_block_tree_kernel, idea="one block a row: two trees in shared memory")
def softmax_block_tree(x, out, stream=0, block=BLOCK):
    """As naive, but a block shares a row: neighbours read neighbours, and two trees combine the threads' results."""
    rows, _ = _check(x, out)
    check_tree_block(block)
    softmax_block_tree_kernel[rows, block, stream, 4 * block](x, out)


@cuda.jit
def softmax_warp_kernel(x, out):
    thread = u32.threadIdx.x
    row = u32.blockIdx.x * WARPS + (thread >> 5)
    if row < x.shape[0]:  # the same for all lanes of a warp
        cols, lane = u32.shape(x)[1], thread & 31

        row_max = NEG_INF
        for col in u32.range(lane, cols, 32):
            row_max = max(row_max, x[row, col])
        row_max = warp_max(row_max)

        row_sum = ZERO
        for col in u32.range(lane, cols, 32):
            row_sum += math.exp(x[row, col] - row_max)
        row_sum = warp_sum(row_sum)

        inv_row_sum = ONE / row_sum
        for col in u32.range(lane, cols, 32):
            out[row, col] = math.exp(x[row, col] - row_max) * inv_row_sum


@rung(kernel=softmax_warp_kernel, idea="one warp a row: ten shuffles")
def softmax_warp(x, out, stream=0):
    """As block_tree, but a warp shares a row and its lanes exchange values by shuffles: no shared memory, no barrier.

    It computes each exponential twice and does not keep it in out: arithmetic is cheaper than writing and reading.
    """
    rows, _ = _check(x, out)
    softmax_warp_kernel[-(-rows // WARPS), BLOCK, stream](x, out)


# --- Online: the maximum and the sum in one pass ---------------------------------------------------------------------


@cuda.jit(device=True)
def merge(row_max, row_sum, other_max, other_sum):
    """Merge two parts of a row, each with its row_max and its sum of exp(x - row_max).

    The part with the smaller maximum is rescaled to the larger one: exp(x - M) = exp(x - m) * exp(m - M).
    """
    new_max = max(row_max, other_max)
    return new_max, row_sum * math.exp(row_max - new_max) + other_sum * math.exp(other_max - new_max)


@cuda.jit(device=True)
def warp_merge(row_max, row_sum):
    """Return maximum and sum over the lanes of a warp, in every lane: five times two shuffles."""
    for distance in (16, 8, 4, 2, 1):
        other_max = cuda.shfl_xor_sync(ALL_LANES, row_max, distance)
        other_sum = cuda.shfl_xor_sync(ALL_LANES, row_sum, distance)
        row_max, row_sum = merge(row_max, row_sum, other_max, other_sum)
    return row_max, row_sum


@cuda.jit
def softmax_online_kernel(x, out):
    partial_max, partial_sum = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
    row, thread = u32.blockIdx.x, u32.threadIdx.x
    threads, cols = u32.blockDim.x, u32.shape(x)[1]
    lane, warp = thread & 31, thread >> 5

    row_max, row_sum = LEAST_FINITE, ZERO  # finite, so that -inf in a row is 0 and not NaN
    for col in u32.range(thread, cols, threads):
        value = x[row, col]
        if value > row_max:
            row_sum *= math.exp(row_max - value)  # rescale the sum so far to the new maximum
            row_max = value
        row_sum += math.exp(value - row_max)

    row_max, row_sum = warp_merge(row_max, row_sum)
    if lane == 0:
        partial_max[warp], partial_sum[warp] = row_max, row_sum
    cuda.syncthreads()
    valid = lane < threads >> 5
    row_max, row_sum = warp_merge(partial_max[lane] if valid else LEAST_FINITE, partial_sum[lane] if valid else ZERO)

    inv_row_sum = ONE / row_sum
    for col in u32.range(thread, cols, threads):
        out[row, col] = math.exp(x[row, col] - row_max) * inv_row_sum


@rung(kernel=softmax_online_kernel, idea="one block a row: the maximum and the sum in one pass")
def softmax_online(x, out, stream=0):
    """As warp, but in two passes instead of three: a running maximum, and a running sum that is corrected with it.

    A block shares a row again, since a thread now has to hold more rows' worth of bytes in flight.
    """
    rows, _ = _check(x, out)
    softmax_online_kernel[rows, BLOCK, stream](x, out)


# --- Vectorized: the row stays in registers --------------------------------------------------------------------------


def make_block_once(warp_reduce, identity):
    """As reduce's block_max and block_sum, with a single barrier: `partial` must not be written again before another
    one."""
    @cuda.jit(device=True)
    def block_once(value, partial):
        lane, warp = u32.threadIdx.x & 31, u32.threadIdx.x >> 5
        value = warp_reduce(value)
        if lane == 0:
            partial[warp] = value
        cuda.syncthreads()
        return warp_reduce(partial[lane] if lane < u32.blockDim.x >> 5 else identity)

    return block_once


block_max_once, block_sum_once = make_block_once(warp_max, NEG_INF), make_block_once(warp_sum, ZERO)


def make_softmax_vectorized(elements: int, vec4: bool = True):
    """Make a kernel whose threads hold `elements` of a row each: registers are sized at compile time. vec4: in groups
    of four neighbours; without it one by one, for rows that do not begin at a multiple of 16 bytes."""

    @cuda.jit(launch_bounds=512)  # so that ptxas stays within the registers that 512 threads can have
    def softmax_vectorized_kernel(x, out):
        partial_max, partial_sum = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
        values = cuda.local.array(elements, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        threads, cols = u32.blockDim.x, u32.shape(x)[1]
        row_offset = row * cols

        if vec4:
            for v in u32.range(elements // 4):  # all loads are issued before the first use
                col = 4 * (v * threads + thread)
                if col < cols:
                    a, b, c, d = ptx.load_nc4(x, row_offset + col)
                else:
                    a = b = c = d = NEG_INF
                values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        else:
            for i in u32.range(elements):
                col = i * threads + thread
                values[i] = x[row, col] if col < cols else NEG_INF

        row_max = NEG_INF
        for i in range(elements):
            row_max = max(row_max, values[i])
        row_max = block_max_once(row_max, partial_max)

        row_sum = ZERO
        for i in range(elements):
            values[i] = ptx.exp2_approx((values[i] - row_max) * LOG2_E)  # exp(x) = 2 ** (x * log2(e))
            row_sum += values[i]
        inv_row_sum = ONE / block_sum_once(row_sum, partial_sum)  # an array of its own, so that one barrier is enough

        if vec4:
            for v in u32.range(elements // 4):
                col = 4 * (v * threads + thread)
                if col < cols:
                    ptx.store_global4(out, row_offset + col,
                                      values[4 * v] * inv_row_sum, values[4 * v + 1] * inv_row_sum,
                                      values[4 * v + 2] * inv_row_sum, values[4 * v + 3] * inv_row_sum)
        else:
            for i in u32.range(elements):
                col = i * threads + thread
                if col < cols:
                    out[row, col] = values[i] * inv_row_sum

    return softmax_vectorized_kernel


ELEMENTS = 32  # that a thread holds at most, in as many registers
softmax_vectorized_kernel = make_softmax_vectorized(ELEMENTS)
softmax_any_kernel = make_softmax_vectorized(ELEMENTS, vec4=False)


@rung(kernel=(softmax_vectorized_kernel, softmax_any_kernel), idea="the row in registers: read once, 128 bits")
def softmax_vectorized(x, out, stream=0):
    """As online, but the row is read once, four elements at a time, and stays in the registers of its block.

    The exponential is ex2.approx, the hardware's, of the argument times log2(e). Rows whose length is not a multiple of
    four are read element by element.
    """
    rows, cols = _check(x, out)
    if cols > LONGEST_ROW:
        raise ValueError(f"x has {cols:,} columns; vectorized keeps a row in registers: {LONGEST_ROW:,} at most")
    threads = next(t for t in (32, 64, 128, 256, 512) if ELEMENTS * t >= cols)
    kernel = softmax_any_kernel if cols % 4 else softmax_vectorized_kernel
    kernel[rows, threads, stream](x, out)


def _check(x, out):
    check_array("x", x, ndim=2)
    check_array("out", out, shape=x.shape)
    return x.shape
