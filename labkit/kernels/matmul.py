"""Matrix multiply, out = a @ b. One rung for each idea, slowest first.

Shapes  a (M, K), b (K, N), out (M, N); float32, C-contiguous; any sizes
Work    2*M*N*K flop; at least 4*(M*K + K*N + M*N) bytes, each matrix moved once
Source  CUDA C++ Programming Guide, "Shared Memory"

The loops over K are `while` loops over uint32: in the PTX they cost 21 instructions for four multiply-adds, where
`range` over uint32 costs 67 and `range` with Numba's default int64 indices 87.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda
from labkit.kernels.launching import blocks_for, check_array
from labkit.op import Op, dot_products, rung, uniform

BLOCK = (16, 16)
TILE = 16


def matmul_reference(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


@cuda.jit
def matmul_naive_kernel(a, b, out):
    row, col = cuda.grid(2)  # neighbouring threads differ in row
    row, col = uint32(row), uint32(col)
    if row < out.shape[0] and col < out.shape[1]:
        depth = uint32(a.shape[1])
        total = float32(0.0)  # 0.0 alone would be a float64, and so would the sum
        k = uint32(0)
        while k < depth:
            total += a[row, k] * b[k, col]
            k += uint32(1)
        out[row, col] = total


@rung(kernel=matmul_naive_kernel, idea="one thread an element, neighbours run down a column")
def matmul_naive(a, b, out, stream=0):
    """One thread computes one element of out; threadIdx.x walks the rows, so a warp touches 16 rows of a and of out."""
    rows, cols = _check(a, b, out)
    matmul_naive_kernel[blocks_for((rows, cols), BLOCK), BLOCK, stream](a, b, out)


@cuda.jit
def matmul_coalesced_kernel(a, b, out):
    col, row = cuda.grid(2)  # neighbouring threads differ in column: the only change
    row, col = uint32(row), uint32(col)
    if row < out.shape[0] and col < out.shape[1]:
        depth = uint32(a.shape[1])
        total = float32(0.0)
        k = uint32(0)
        while k < depth:
            total += a[row, k] * b[k, col]
            k += uint32(1)
        out[row, col] = total


@rung(kernel=matmul_coalesced_kernel, idea="neighbours run along a row: coalesced")
def matmul_coalesced(a, b, out, stream=0):
    """As naive, but threadIdx.x walks the columns: neighbours read neighbours in b, write neighbours in out."""
    rows, cols = _check(a, b, out)
    matmul_coalesced_kernel[blocks_for((cols, rows), BLOCK), BLOCK, stream](a, b, out)


def make_matmul_tiled(tile: int):
    """A kernel for this tile size: shared memory is sized when the kernel is compiled."""

    @cuda.jit
    def matmul_tiled_kernel(a, b, out):
        a_tile = cuda.shared.array((tile, tile), float32)
        b_tile = cuda.shared.array((tile, tile), float32)
        x, y = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y)
        col = uint32(cuda.blockIdx.x) * uint32(tile) + x
        row = uint32(cuda.blockIdx.y) * uint32(tile) + y
        rows, depth, cols = uint32(a.shape[0]), uint32(a.shape[1]), uint32(b.shape[1])

        total = float32(0.0)
        start = uint32(0)
        while start < depth:
            # Beyond an edge a tile holds zeros, which add nothing. No thread may leave early: it still has to load.
            a_tile[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0)
            b_tile[y, x] = b[start + y, col] if start + y < depth and col < cols else float32(0.0)
            cuda.syncthreads()  # both tiles are complete
            for k in range(tile):
                total += a_tile[y, k] * b_tile[k, x]
            cuda.syncthreads()  # both tiles are free to overwrite
            start += uint32(tile)

        if row < rows and col < cols:
            out[row, col] = total

    return matmul_tiled_kernel


matmul_tiled_kernel = make_matmul_tiled(TILE)
matmul_tiled_32_kernel = make_matmul_tiled(32)


@rung(kernel=matmul_tiled_kernel, idea="16 x 16 tiles in shared memory")
def matmul_tiled(a, b, out, stream=0):
    """As coalesced, but each block stages TILE x TILE tiles in shared memory: a value is fetched once for 16 uses."""
    rows, cols = _check(a, b, out)
    matmul_tiled_kernel[blocks_for((cols, rows), (TILE, TILE)), (TILE, TILE), stream](a, b, out)


@rung(kernel=matmul_tiled_32_kernel, idea="32 x 32 tiles in shared memory")
def matmul_tiled_32(a, b, out, stream=0):
    """As tiled, but 32 x 32: a value is fetched once for 32 uses, by a block of 1,024 threads, the limit."""
    rows, cols = _check(a, b, out)
    matmul_tiled_32_kernel[blocks_for((cols, rows), (32, 32)), (32, 32), stream](a, b, out)


def _check(a, b, out):
    check_array("a", a, ndim=2)
    check_array("b", b, ndim=2)
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; "
                         f"the columns of a ({a.shape[1]}) must equal the rows of b ({b.shape[0]})")
    check_array("out", out, shape=(a.shape[0], b.shape[1]))
    return out.shape


MATMUL = Op(
    "matmul",
    title="Matrix multiplication",
    formula="out[row, col] = sum over k of a[row, k] * b[k, col]",
    reference=matmul_reference,
    rungs=(matmul_naive, matmul_coalesced, matmul_tiled, matmul_tiled_32),
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    awkward=tuple({"M": M, "N": N, "K": K} for M, N, K in
                  ((1, 1, 1), (16, 16, 16), (37, 23, 19), (1, 65, 33), (65, 1, 31), (33, 17, 1), (50, 70, 130))),
    timed_gpu={"M": 4096, "N": 4096, "K": 4096},
    timed_cpu={"M": 128, "N": 128, "K": 128},
    flops=lambda M, N, K: 2 * M * N * K,
    bytes=lambda M, N, K: 4 * (M * K + K * N + M * N),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    unit="TFLOP/s",
    by_row=(0,),
    rival=lambda xp, a, b, out: xp.matmul(a, b, out=out),
    rival_note="cuBLAS",
)
