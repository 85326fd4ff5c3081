"""The linear layers of GPT-2 in float32: out = x @ weights + bias, with weights (K, N) as GPT-2's files hold them.
And its last one, logits = x @ table.T, where the table is the embedding's.

Shapes  x (M, K), weights (K, N), bias (N,), out (M, N); table (V, K), logits (M, V); float32, C-contiguous; any sizes
Work    2*M*N*K flop; 4*(M*K + K*N + N + M*N) bytes
Source  torch.nn.functional.linear; its weights would be (N, K)

With one token at a time M is 1: each weight is read for a single product, and only memory counts.
"""

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import gpus
from labkit.kernels.arguments import MAX_GRID_YZ, blocks_for, check_array, product_sizes
from labkit.kernels.matmul.float32 import (
    matmul_pipelined,
    matmul_pipelined_any_kernel,
    matmul_pipelined_kernel,
    matmul_tiled,
)
from labkit.kernels.op import rung
from labkit.kernels.reduce import warp_sum

BLOCK = 256
ZERO = float32(0.0)


def projection_reference(x, weights, bias):
    return x.astype(np.float64) @ weights.astype(np.float64) + bias.astype(np.float64)


def logits_reference(x, table):
    return x.astype(np.float64) @ table.astype(np.float64).T


@cuda.jit
def projection_naive_kernel(x, weights, bias, out):
    col, row = u32.grid(2)
    if col < u32.shape(out)[1]:
        depth = u32.shape(x)[1]
        total = float32(bias[col])
        for k in u32.range(depth):
            total += x[row, k] * weights[k, col]
        out[row, col] = total


@rung(kernel=projection_naive_kernel, idea="one thread an element", sizes="at most 65,535 rows")
def projection_naive(x, weights, bias, out, stream=0):
    """One thread computes one element: a whole dot product that starts from the bias."""
    rows, cols = _check_projection(x, weights, bias, out)
    projection_naive_kernel[blocks_for((cols, rows), (BLOCK, 1)), (BLOCK, 1), stream](x, weights, bias, out)


SLICES = 16  # of K: each warp of a block takes one


@cuda.jit
def projection_few_rows_kernel(x, weights, bias, out):
    partials = cuda.shared.array((SLICES, 32), float32)
    lane, warp = u32.threadIdx.x, u32.threadIdx.y
    row, col = u32.blockIdx.y, u32.blockIdx.x * 32 + lane
    depth, cols = u32.shape(x)[1], u32.shape(out)[1]
    total = ZERO
    if col < cols:
        for k in u32.range(warp, depth, SLICES):
            total += x[row, k] * weights[k, col]  # neighbours read neighbours; x[row, k] is the same for all
    partials[warp, lane] = total
    cuda.syncthreads()
    if warp == 0 and col < cols:
        total = bias[col]
        for i in range(SLICES):
            total += partials[i, lane]
        out[row, col] = total


@rung(kernel=projection_few_rows_kernel, idea="for few rows: 16 warps share the K of 32 columns",
      sizes="at most 65,535 rows")
def projection_few_rows(x, weights, bias, out, stream=0):
    """For one row or a few, where tiles would be nearly empty: a block computes 32 elements of a row, its 16 warps
    take every 16th step of K each, and their sums are added in shared memory, with the bias."""
    rows, cols = _check_projection(x, weights, bias, out)
    projection_few_rows_kernel[blocks_for((cols, rows), (32, 1)), (32, SLICES), stream](x, weights, bias, out)


@cuda.jit
def add_bias_kernel(bias, out):
    col = u32.blockIdx.x * u32.blockDim.x + u32.threadIdx.x
    row = u32.blockIdx.y
    rows = u32.shape(out)[0]
    if col < u32.shape(out)[1]:
        while row < rows:
            out[row, col] += bias[col]
            row += u32.gridDim.y


@rung(kernel=(matmul_pipelined_kernel, matmul_pipelined_any_kernel, add_bias_kernel),
      idea="two launches: the product, then the bias")
def projection_unfused(x, weights, bias, out, stream=0):
    """The fastest product of the ladder, then a kernel that reads its output and adds the bias."""
    _check_projection(x, weights, bias, out)
    matmul_pipelined(x, weights, out, stream=stream)
    _add_bias(bias, out, stream)


def _add_bias(bias, out, stream):
    rows, cols = out.shape
    add_bias_kernel[(-(-cols // BLOCK), min(rows, MAX_GRID_YZ)), BLOCK, stream](bias, out)


FEW = 8  # rows from which on tiles are faster


def projection(x, weights, bias, out, stream=0):
    """The rung to use for these sizes on this device. On the CPU device, where threads run one after the other, few
    rows are fastest with one thread an element, and many with the plain tiles."""
    if out.shape[0] < FEW:
        (projection_few_rows if gpus.chosen_on_gpu() else projection_naive)(x, weights, bias, out, stream=stream)
    elif gpus.chosen_on_gpu():
        projection_unfused(x, weights, bias, out, stream=stream)
    else:
        _check_projection(x, weights, bias, out)
        matmul_tiled(x, weights, out, stream=stream)
        _add_bias(bias, out, stream)


def _check_projection(x, weights, bias, out) -> tuple:
    rows, cols, _ = product_sizes(x, weights, names=("x", "weights"))
    check_array("bias", bias, shape=(cols,))
    check_array("out", out, shape=(rows, cols))
    return rows, cols


# --- Logits ----------------------------------------------------------------------------------------------------------


@cuda.jit
def logits_naive_kernel(x, table, out):
    col, row = u32.grid(2)
    if col < u32.shape(out)[1]:
        depth = u32.shape(x)[1]
        total = ZERO
        for k in u32.range(depth):
            total += x[row, k] * table[col, k]
        out[row, col] = total


@rung(kernel=logits_naive_kernel, idea="one thread a logit: neighbours read a row apart", sizes="at most 65,535 rows")
def logits_naive(x, table, out, stream=0):
    """One thread computes one logit."""
    rows, cols = _check_logits(x, table, out)
    logits_naive_kernel[blocks_for((cols, rows), (BLOCK, 1)), (BLOCK, 1), stream](x, table, out)


WARPS = 8


@cuda.jit
def logits_warp_kernel(x, table, out):
    lane, row = u32.threadIdx.x, u32.blockIdx.y
    col = u32.blockIdx.x * WARPS + u32.threadIdx.y
    if col < u32.shape(out)[1]:  # the same for all lanes of a warp
        depth = u32.shape(x)[1]
        total = ZERO
        for k in u32.range(lane, depth, 32):
            total += x[row, k] * table[col, k]
        total = warp_sum(total)
        if lane == 0:
            out[row, col] = total


@rung(kernel=logits_warp_kernel, idea="one warp a logit, along the row of the table", sizes="at most 65,535 rows")
def logits_warp(x, table, out, stream=0):
    """As naive, but a warp shares a row of the table, so that neighbours read neighbours."""
    rows, cols = _check_logits(x, table, out)
    logits_warp_kernel[blocks_for((cols, rows), (WARPS, 1)), (32, WARPS), stream](x, table, out)


def logits(x, table, out, stream=0):
    """The rung to use on this device."""
    (logits_warp if gpus.chosen_on_gpu() else logits_naive)(x, table, out, stream=stream)


def _check_logits(x, table, out) -> tuple:
    rows, cols, _ = product_sizes(x, table, weights=True, names=("x", "table"))
    check_array("out", out, shape=(rows, cols))
    return rows, cols
