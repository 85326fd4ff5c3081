"""matmul: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.matmul.float32
and float32_split."""

import numpy as np

from labkit.kernels.baselines import numpy_cupy_torch
from labkit.kernels.matmul.float32 import (
    matmul_async_copies,
    matmul_coalesced,
    matmul_double_buffered,
    matmul_naive,
    matmul_pipelined,
    matmul_reads_ahead,
    matmul_reference,
    matmul_register_blocked,
    matmul_register_blocked_4,
    matmul_register_blocked_16,
    matmul_tiled,
    matmul_tiled_32,
    matmul_tiled_grouped,
    matmul_vectorized,
    matmul_warp_tiles,
)
from labkit.kernels.matmul.float32_split import matmul_split
from labkit.kernels.op import Op, Work, uniform
from labkit.kernels.tolerance import dot_products

MATMUL = Op(
    "matmul",
    title="Matrix multiplication",
    formula="out[row, col] = sum over k of a[row, k] * b[k, col]",
    reference=matmul_reference,
    rungs=(matmul_naive, matmul_coalesced, matmul_tiled, matmul_tiled_grouped, matmul_tiled_32,
           matmul_register_blocked_4, matmul_register_blocked, matmul_register_blocked_16, matmul_vectorized,
           matmul_double_buffered, matmul_async_copies, matmul_warp_tiles, matmul_reads_ahead, matmul_pipelined,
           matmul_split),
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    awkward=tuple({"M": M, "N": N, "K": K} for M, N, K in
                  ((1, 1, 1), (16, 16, 16), (37, 23, 19), (1, 65, 33), (65, 1, 31), (33, 17, 1), (50, 70, 130),
                   (129, 132, 20), (128, 256, 80))),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    by_row=(0,),
    work=Work(
        flops=lambda M, N, K: 2 * M * N * K,
        bytes=lambda M, N, K: 4 * (M * K + K * N + M * N),
        timed_gpu={"M": 4096, "N": 4096, "K": 4096},
        timed_cpu={"M": 128, "N": 128, "K": 128},
        also_gpu=({"M": 1024, "N": 1024, "K": 1024},),  # fewer tiles of 128 x 128 than SMs
        unit="TFLOP/s",
    ),
    baselines=numpy_cupy_torch(lambda xp, a, b, out: xp.matmul(a, b, out=out), note="cuBLAS"),
)
