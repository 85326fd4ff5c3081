"""Linear layers, out = x @ weights.T + bias, with an optional epilogue: GELU, or a residual.

Shapes  x (M, K), weights (N, K), bias (N,), residual (M, N), out (M, N); float16 with accumulators in float32, or
        all float32
Sizes   any for naive, tiled and tensor_core; K and N multiples of 8 for the others, which move 16 bytes at a time
Work    2*M*N*K flop; at least 2*(M*K + N*K + M*N) bytes and the bias
Source  PTX ISA, "Matrix Fragments for mma.m16n8k16"; torch.nn.functional.linear

PyTorch stores weights as (out features, in features). A row of them is a column of the product's right factor, in the
layout that mma.sync needs: nothing has to be transposed. See matmul_half for what lanes hold.
"""

import numpy as np
from numba import float32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.kernels.arguments import blocks_for
from labkit.kernels.gelu import gelu_erf, gelu_erf_reference, gelu_sigmoid, gelu_tanh, gelu_tanh_reference
from labkit.kernels.matmul.half import SIZES, load_row_pair, tolerance_f16_accumulators
from labkit.kernels.matmul.mma import (
    Tile,
    add_product,
    check_product,
    launch,
    make_pipelined,
    make_staged,
    usable,
)
from labkit.kernels.matmul.wgmma import (
    multiply_specialised,
    specialised_kernels,
)
from labkit.kernels.op import rung
from labkit.kernels.tolerance import EPS16

BLOCK = (16, 16)
TILE = 16
PITCH = TILE + 1


def linear_reference(x, weights, bias):
    return x.astype(np.float64) @ weights.astype(np.float64).T + bias.astype(np.float64)


def linear_gelu_reference(x, weights, bias):
    return gelu_erf_reference(linear_reference(x, weights, bias))


def linear_gelu_tanh_reference(x, weights, bias):
    return gelu_tanh_reference(linear_reference(x, weights, bias))


def linear_residual_reference(x, weights, bias, residual):
    return linear_reference(x, weights, bias) + residual.astype(np.float64)


def f16_accumulators_error(x, weights, bias):
    """As for matmul's float16 accumulators, and the rounding of the bias' addition."""
    return tolerance_f16_accumulators(x, weights.T) + EPS16 * (np.abs(x @ weights.T + bias) + np.abs(bias))


def check_linear(x, weights, bias, residual, out, multiple: int = 8, dtype=np.float16) -> tuple:
    return check_product(x, weights, bias, residual, out, weights=True, names=("x", "weights"), multiple=multiple,
                         dtype=dtype, out_dtype=dtype)


# --- Without tensor cores, for float16 and for float32 ----------------------------------------------------------------


@cuda.jit
def linear_naive_kernel(x, weights, bias, out):
    col, row = u32.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        depth = u32.shape(x)[1]
        total = float32(bias[col])
        for k in u32.range(depth):
            total += float32(x[row, k]) * float32(weights[col, k])
        out[row, col] = total


@cuda.jit
def linear_tiled_kernel(x, weights, bias, out):
    x_tile = cuda.shared.array((TILE, TILE), float32)
    w_tile = cuda.shared.array((TILE, PITCH), float32)  # read along columns, each thread from another bank
    tx, ty = u32.threadIdx.x, u32.threadIdx.y
    col0 = u32.blockIdx.x * TILE
    row, col = u32.blockIdx.y * TILE + ty, col0 + tx
    rows, depth, cols = u32.shape(x)[0], u32.shape(x)[1], u32.shape(weights)[0]
    total = float32(0.0)
    for start in u32.range(0, depth, TILE):
        k = start + tx  # neighbours read neighbours along K, in x and in the weights
        x_tile[ty, tx] = float32(x[row, k]) if row < rows and k < depth else float32(0.0)
        w_tile[ty, tx] = float32(weights[col0 + ty, k]) if col0 + ty < cols and k < depth else float32(0.0)
        cuda.syncthreads()  # both tiles are complete
        for step in range(TILE):
            total += x_tile[ty, step] * w_tile[tx, step]
        cuda.syncthreads()  # both tiles are free to overwrite
    if row < rows and col < cols:
        out[row, col] = total + float32(bias[col])


@rung(kernel=linear_naive_kernel, idea="one thread an element, neighbours read different rows of weights")
def linear_naive(x, weights, bias, out, stream=0):
    """One thread computes one element of out, and adds the bias."""
    rows, cols, _ = check_linear(x, weights, bias, None, out, multiple=1)
    linear_naive_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](x, weights, bias, out)


@rung(kernel=linear_tiled_kernel, idea="16 x 16 tiles in shared memory")
def linear_tiled(x, weights, bias, out, stream=0):
    """As naive, but a block stages tiles of x and weights in shared memory, and reads both along their rows."""
    rows, cols, _ = check_linear(x, weights, bias, None, out, multiple=1)
    linear_tiled_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](x, weights, bias, out)


@rung(kernel=linear_naive_kernel, idea="one thread an element, neighbours read different rows of weights")
def linear_f32_naive(x, weights, bias, out, stream=0):
    """linear_naive in float32: the same kernel, compiled for other arrays."""
    rows, cols, _ = check_linear(x, weights, bias, None, out, multiple=1, dtype=np.float32)
    linear_naive_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](x, weights, bias, out)


@rung(kernel=linear_tiled_kernel, idea="16 x 16 tiles in shared memory")
def linear_f32_tiled(x, weights, bias, out, stream=0):
    """linear_tiled in float32."""
    rows, cols, _ = check_linear(x, weights, bias, None, out, multiple=1, dtype=np.float32)
    linear_tiled_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](x, weights, bias, out)


# --- Tensor cores -----------------------------------------------------------------------------------------------------


@cuda.jit
def linear_tensor_core_kernel(x, weights, bias, out):
    thread = u32.threadIdx.x
    lane, warp = thread % 32, thread // 32
    row = u32.blockIdx.y * 32 + warp // 2 * 16  # of this warp's 16 x 16 tile
    col = u32.blockIdx.x * 32 + warp % 2 * 16
    group_id, pair = lane // 4, lane % 4 * 2
    rows, depth, cols = u32.shape(x)[0], u32.shape(x)[1], u32.shape(weights)[0]
    acc = cuda.local.array(8, float32)
    for i in range(8):
        acc[i] = float32(0.0)
    for k in u32.range(0, depth, 16):
        a0 = load_row_pair(x, row + group_id, k + pair)
        a1 = load_row_pair(x, row + group_id + 8, k + pair)
        a2 = load_row_pair(x, row + group_id, k + pair + 8)
        a3 = load_row_pair(x, row + group_id + 8, k + pair + 8)
        for j in u32.range(2):  # column n of the right factor is row n of the weights
            b0 = load_row_pair(weights, col + group_id + 8 * j, k + pair)
            b1 = load_row_pair(weights, col + group_id + 8 * j, k + pair + 8)
            add_product(acc, 4 * j, a0, a1, a2, a3, b0, b1)
    for j in u32.range(2):
        for row_half in u32.range(2):
            for odd in u32.range(2):
                r, c = row + group_id + 8 * row_half, col + (8 * j + odd) + pair
                if r < rows and c < cols:
                    out[r, c] = acc[4 * j + 2 * row_half + odd] + float32(bias[c])


@rung(kernel=linear_tensor_core_kernel,
      idea="mma.sync: a 16 x 16 tile a warp, straight from global memory")
def linear_tensor_core(x, weights, bias, out, stream=0):
    """As naive, but a warp computes a 16 x 16 tile with the tensor cores: 16 steps of K in two instructions."""
    rows, cols, _ = check_linear(x, weights, bias, None, out, multiple=1)
    linear_tensor_core_kernel[blocks_for((cols, rows), (32, 32)), 128, stream](x, weights, bias, out)


TWO_STAGES = Tile(rows=128, cols=128, depth=32, warp_rows=64, warp_cols=32, stages=2, blocks=2)
DOUBLE_BUFFERED = make_staged(TWO_STAGES, weights=True, bias=True)


@rung(kernel=DOUBLE_BUFFERED, sizes=SIZES,
      idea="cp.async fills one buffer while ldmatrix reads the other; 64 x 32 a warp")
def linear_double_buffered(x, weights, bias, out, stream=0):
    """As tensor_core, but cp.async copies 16 bytes past the registers while the other buffer is multiplied, ldmatrix
    loads four 8 x 8 fragments at once, and a warp's tile is 64 x 32."""
    check_linear(x, weights, bias, None, out)
    launch(DOUBLE_BUFFERED, x, weights, bias, None, out, stream)


F16_ACCUMULATORS = make_staged(TWO_STAGES, weights=True, bias=True, f16_accumulators=True)


@rung(kernel=F16_ACCUMULATORS, tolerance=f16_accumulators_error,
      idea="as double_buffered, but the accumulators are float16", sizes=SIZES)
def linear_f16_accumulators(x, weights, bias, out, stream=0):
    """As double_buffered, which is its control, with float16 accumulators: half the registers, and sums that are
    rounded at every step of 16 along K. For GPUs that multiply twice as fast this way, such as GeForce's."""
    check_linear(x, weights, bias, None, out)
    launch(F16_ACCUMULATORS, x, weights, bias, None, out, stream)


# The tiles of the pipelined kernel, and how fast each multiplies, relative to the first. Measured on an H200: at
# 8192 x 384 -> 384 the narrow ones win, with enough blocks for all SMs; at 1152 and 1536 the second.
PIPELINED_TILES = {
    Tile(rows=128, cols=256, depth=32, warp_rows=64, warp_cols=64, stages=4): 1.0,
    Tile(rows=128, cols=128, depth=32, warp_rows=64, warp_cols=64, stages=3, blocks=2): 0.93,
    Tile(rows=128, cols=96, depth=32, warp_rows=64, warp_cols=48, stages=3, blocks=2): 0.89,
}
OVERHEAD = 256  # what a tile costs besides its products, in steps of K; blocks that share an SM hide it


def linear_tile(rows: int, cols: int, depth: int) -> Tile:
    """Return the tile with which the busiest SM finishes first. On the CPU device it is always the same one."""
    if not gpus.chosen_on_gpu():
        return list(PIPELINED_TILES)[-1]

    def cost(tile):
        rounds = -(-tile.count(rows, cols) // gpus.sm_count())
        return rounds * tile.rows * tile.cols * (depth + OVERHEAD / tile.blocks) / PIPELINED_TILES[tile]

    return min(usable(PIPELINED_TILES), key=cost)


def pipelined(x, weights, bias, residual, out, stream, **epilogue) -> None:
    """Launch the pipelined kernel with this epilogue, with the tile that suits the sizes."""
    rows, cols, depth = check_linear(x, weights, bias, residual, out)
    kernel = make_pipelined(linear_tile(rows, cols, depth), weights=True, bias=True, residual=residual is not None,
                            **epilogue)
    launch(kernel, x, weights, bias, residual, out, stream)


def kernels_with(**epilogue) -> tuple:
    return tuple(make_pipelined(tile, weights=True, bias=True, **epilogue) for tile in PIPELINED_TILES)


PIPELINED = kernels_with()


@rung(kernel=PIPELINED,
      idea="swizzled stages, fragments loaded ahead, rows stored whole; the tile suits the sizes",
      sizes=SIZES)
def linear_pipelined(x, weights, bias, out, stream=0):
    """As double_buffered, but a warp's tile is up to 64 x 64, its next fragments are loaded while the current ones are
    multiplied, pieces of a row are permuted instead of padded, and rows of out are stored 16 bytes a lane."""
    pipelined(x, weights, bias, None, out, stream)


# --- Epilogues, fused or in a launch of their own ---------------------------------------------------------------------


def make_gelu_float16(gelu):
    @cuda.jit
    def gelu_float16_kernel(values):
        i = u32.grid(1) * 8  # a thread's eight float16 values, 16 bytes
        if i < values.size:
            a, b, c, d = ptx.load_global4(values, i)
            a0, a1 = ptx.unpack_half2(a)
            b0, b1 = ptx.unpack_half2(b)
            c0, c1 = ptx.unpack_half2(c)
            d0, d1 = ptx.unpack_half2(d)
            ptx.store_global4(values, i, ptx.pack_half2(gelu(a0), gelu(a1)), ptx.pack_half2(gelu(b0), gelu(b1)),
                              ptx.pack_half2(gelu(c0), gelu(c1)), ptx.pack_half2(gelu(d0), gelu(d1)))

    return gelu_float16_kernel


GELU_ERF, GELU_TANH = make_gelu_float16(gelu_erf), make_gelu_float16(gelu_tanh)


@cuda.jit(device=True)
def add_words(x, y):
    """Add two pairs of float16 values, in float32, and round."""
    x0, x1 = ptx.unpack_half2(x)
    y0, y1 = ptx.unpack_half2(y)
    return ptx.pack_half2(x0 + y0, x1 + y1)


@cuda.jit
def add_float16_kernel(values, residual):
    i = u32.grid(1) * 8
    if i < values.size:
        a, b, c, d = ptx.load_global4(values, i)
        e, f, g, h = ptx.load_global4(residual, i)
        ptx.store_global4(values, i, add_words(a, e), add_words(b, f), add_words(c, g), add_words(d, h))


def after(kernel, out, *others, stream) -> None:
    """Launch one more kernel, over out in place."""
    kernel[blocks_for((out.size // 8,), (256,)), 256, stream](out, *others)


@rung(kernel=(*PIPELINED, GELU_ERF),
      idea="two launches: the layer, then GELU over what it wrote", sizes=SIZES)
def linear_gelu_unfused(x, weights, bias, out, stream=0):
    """linear_pipelined, and then a kernel that reads out, applies GELU and writes it again."""
    pipelined(x, weights, bias, None, out, stream)
    after(GELU_ERF, out, stream=stream)


GELU_DOUBLE_BUFFERED = make_staged(TWO_STAGES, weights=True, bias=True, activation=gelu_erf)
GELU_F16_ACCUMULATORS = make_staged(TWO_STAGES, weights=True, bias=True, f16_accumulators=True, activation=gelu_erf)


def linear_gelu_double_buffered(x, weights, bias, out, stream=0):
    """linear_double_buffered, with GELU applied to the accumulators: a step of MiniLM's ladder."""
    check_linear(x, weights, bias, None, out)
    launch(GELU_DOUBLE_BUFFERED, x, weights, bias, None, out, stream)


def linear_gelu_f16_accumulators(x, weights, bias, out, stream=0):
    """linear_f16_accumulators, with GELU applied to them: a step of MiniLM's ladder."""
    check_linear(x, weights, bias, None, out)
    launch(GELU_F16_ACCUMULATORS, x, weights, bias, None, out, stream)


@rung(kernel=kernels_with(activation=gelu_erf),
      idea="one launch: GELU on the way out of the block", sizes=SIZES)
def linear_gelu_fused(x, weights, bias, out, stream=0):
    """As unfused, but GELU is applied before the output leaves the block: 4*M*N bytes less, one launch less."""
    pipelined(x, weights, bias, None, out, stream, activation=gelu_erf)


@rung(kernel=specialised_kernels(weights=True, bias=True, activation=gelu_erf),
      sizes=SIZES, idea="the same on wgmma: GELU while the next tile is copied")
def linear_gelu_wgmma(x, weights, bias, out, stream=0):
    """As fused, on Hopper's tensor cores (wgmma.py)."""
    multiply_specialised(x, weights, bias, out, weights=True, activation=gelu_erf, stream=stream)


@rung(kernel=(*PIPELINED, GELU_TANH),
      idea="two launches: the layer, then GELU over what it wrote", sizes=SIZES)
def linear_gelu_tanh_unfused(x, weights, bias, out, stream=0):
    """As linear_gelu_unfused, with GELU in its tanh form."""
    pipelined(x, weights, bias, None, out, stream)
    after(GELU_TANH, out, stream=stream)


@rung(kernel=kernels_with(activation=gelu_tanh),
      idea="one launch: GELU on the way out of the block", sizes=SIZES)
def linear_gelu_tanh_fused(x, weights, bias, out, stream=0):
    """As unfused, but GELU is applied before the output leaves the block."""
    pipelined(x, weights, bias, None, out, stream, activation=gelu_tanh)


@rung(kernel=specialised_kernels(weights=True, bias=True, activation=gelu_sigmoid),
      sizes=SIZES, idea="the same on wgmma: GELU while the next tile is copied")
def linear_gelu_tanh_wgmma(x, weights, bias, out, stream=0):
    """As fused, on Hopper's tensor cores (wgmma.py), and with GELU in its short form: one exponential and one
    reciprocal."""
    multiply_specialised(x, weights, bias, out, weights=True, activation=gelu_sigmoid, stream=stream)


@rung(kernel=(*PIPELINED, add_float16_kernel),
      idea="two launches: the layer, then the residual added to what it wrote",
      sizes=SIZES)
def linear_residual_unfused(x, weights, bias, residual, out, stream=0):
    """linear_pipelined, and then a kernel that adds the residual to out in place."""
    check_linear(x, weights, bias, residual, out)
    pipelined(x, weights, bias, None, out, stream)
    after(add_float16_kernel, out, residual, stream=stream)


@rung(kernel=kernels_with(residual=True),
      idea="one launch: the residual is added to the accumulators", sizes=SIZES)
def linear_residual_fused(x, weights, bias, residual, out, stream=0):
    """As unfused, but a warp copies its part of the residual to shared memory and adds it before it stores."""
    pipelined(x, weights, bias, residual, out, stream)
