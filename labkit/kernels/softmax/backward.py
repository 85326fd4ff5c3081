"""The gradient of the softmax of each row: dx = y * (dout - sum of dout * y), of the softmax's output y.

Shapes  y, dout, dx (R, C); float32, C-contiguous. `dx` may be `dout` or `y`: in place
Work    4 flops an element; 12*R*C bytes: y and dout read once, dx written
Source  llm.c, `attention_backward`, https://github.com/karpathy/llm.c

The input x is not needed: the forward pass keeps only y.
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import FLOAT32
from labkit.kernels.norm.rows import block_sum_once, flat
from labkit.kernels.op import rung
from labkit.kernels.reduce import block_reduce_sum, warp_sum

THREADS = 256
ROWS = 4  # per block, where each warp has a row
LONGEST_ROW = 16_384
ZERO = float32(0.0)


def softmax_backward_reference(y, dout):
    y, dout = y.astype(np.float64), dout.astype(np.float64)
    return y * (dout - (dout * y).sum(axis=1, keepdims=True))


@kernel_factory
def make_softmax_backward_block_tree():
    @cuda.jit
    def softmax_backward_block_tree_kernel(y, dout, dx):
        shared = cuda.shared.array(THREADS, float32)
        row, thread, columns = u32.blockIdx.x, u32.threadIdx.x, u32.shape(y)[1]
        row_sum = ZERO
        for col in u32.range(thread, columns, THREADS):
            row_sum += dout[row, col] * y[row, col]
        row_sum = block_reduce_sum(row_sum, shared)
        for col in u32.range(thread, columns, THREADS):
            dx[row, col] = y[row, col] * (dout[row, col] - row_sum)

    return softmax_backward_block_tree_kernel


@rung(kernel=make_softmax_backward_block_tree(), idea="one block a row, a tree in shared memory; two passes")
def softmax_backward_block_tree(y, dout, dx, stream=0):
    """256 threads share a row, and read it once for its sum and again for the result."""
    rows, _ = _check(y, dout, dx)
    make_softmax_backward_block_tree()[rows, THREADS, stream](y, dout, dx)


@kernel_factory
def make_softmax_backward(warp_per_row: bool, octets: int, vectorized: bool):
    """Make a kernel for rows of up to 8 * octets columns per thread. warp_per_row: a warp has a row, not a block.
    vectorized: whole octets, at multiples of 16 bytes."""
    (load, store), elements = ACCESS[FLOAT32].neighbours(vectorized), 8 * octets

    @cuda.jit
    def softmax_backward_registers_kernel(y, dout, dx, columns):  # flat
        partial = cuda.shared.array(32, float32)
        row, thread, threads = u32.blockIdx.x, u32.threadIdx.x, u32.blockDim.x
        if warp_per_row:
            row, thread, threads = u32.grid(1) >> 5, thread & 31, 32
        row_offset, step, col = row * columns, 8 * threads, 8 * thread
        remaining = int32(columns) - int32(col)
        v, g = cuda.local.array(elements, float32), cuda.local.array(elements, float32)
        if row_offset < dx.size:  # the same for a whole warp, and for a block with barriers
            offset = row_offset + col
            for o in u32.range(octets):
                load(v, 8 * o, y, offset + o * step, remaining - int32(o * step))
                load(g, 8 * o, dout, offset + o * step, remaining - int32(o * step))
            row_sum = ZERO
            for e in range(elements):
                row_sum += g[e] * v[e]
            if warp_per_row:
                row_sum = warp_sum(row_sum)
            else:
                row_sum = block_sum_once(row_sum, partial, thread & 31, thread >> 5, threads >> 5)
            for e in range(elements):
                v[e] *= g[e] - row_sum
            for o in u32.range(octets):
                store(dx, offset + o * step, remaining - int32(o * step), v, 8 * o)

    return softmax_backward_registers_kernel


@rung(kernel=make_softmax_backward(False, 1, True), idea="the row in registers: one read, 128 bits at a time",
      sizes=f"rows of at most {LONGEST_ROW:,} columns")
def softmax_backward_registers(y, dout, dx, stream=0):
    """As block_tree, but a thread keeps eight or sixteen columns of both rows in registers, so that memory is read
    once; up to 256 columns a warp has a row, and a single barrier is enough for a block."""
    softmax_backward(y, dout, dx, stream=stream)


def softmax_backward(y, dout, dx, stream=0):
    """The launcher to use: softmax_backward_registers."""
    rows, columns = _check(y, dout, dx)
    if columns > LONGEST_ROW:
        raise ValueError(f"y has {columns:,} columns; a block keeps at most {LONGEST_ROW:,} in registers")
    octets = 1 if columns <= 8192 else 2
    warps = -(-columns // (256 * octets))
    rows_per_block = min(ROWS, rows) if warps == 1 else 1
    kernel = make_softmax_backward(warps == 1, octets, in_eights(columns, y, dout, dx))
    kernel[-(-rows // rows_per_block), 32 * warps * rows_per_block, stream](flat(y), flat(dout), flat(dx),
                                                                            np.uint32(columns))


def _check(y, dout, dx):
    check_array("y", y, ndim=2)
    check_array("dout", dout, shape=y.shape)
    check_array("dx", dx, shape=y.shape)
    return y.shape
