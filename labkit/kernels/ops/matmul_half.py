"""matmul_half and matmul_bf16: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.matmul.half."""

from dataclasses import replace

import numpy as np

from labkit.kernels.baselines import Baseline, numpy_cupy_torch
from labkit.kernels.dtypes import bfloat16_of, float64_of
from labkit.kernels.matmul.half import (
    matmul_bf16_naive,
    matmul_bf16_pipelined,
    matmul_half_double_buffered,
    matmul_half_f16_accumulators,
    matmul_half_hand_blocked,
    matmul_half_large_tiles,
    matmul_half_ldmatrix,
    matmul_half_naive,
    matmul_half_pipelined,
    matmul_half_reference,
    matmul_half_tensor_core,
    matmul_half_three_stage,
    matmul_half_tiled,
    matmul_half_wide_copies,
    random_float16,
)
from labkit.kernels.matmul.turing import matmul_half_turing
from labkit.kernels.matmul.wgmma import (
    matmul_bf16_wgmma_specialised,
    matmul_half_wgmma,
    matmul_half_wgmma_persistent,
    matmul_half_wgmma_roles,
    matmul_half_wgmma_specialised,
)
from labkit.kernels.matmul.wgmma_cp_async import matmul_half_wgmma_cp_async
from labkit.kernels.op import Op, Work, uniform
from labkit.kernels.tolerance import EPS16, EPS32, SMALLEST16


def tolerance(a, b):
    """As dot_products allows for sums of K products in float32, and twice the error of one rounding to float16."""
    return (2 * EPS32 * np.sqrt(a.shape[1]) * (np.abs(a) @ np.abs(b)) + EPS16 * np.abs(a @ b) + SMALLEST16)


MATMUL_HALF = Op(
    "matmul_half",
    title="Matrix multiplication in float16",
    formula="out[row, col] = sum over k of a[row, k] * b[k, col], in float16 with accumulators in float32",
    reference=matmul_half_reference,
    rungs=(matmul_half_naive, matmul_half_tiled, matmul_half_tensor_core, matmul_half_hand_blocked,
           matmul_half_wide_copies, matmul_half_ldmatrix, matmul_half_turing, matmul_half_large_tiles,
           matmul_half_double_buffered, matmul_half_three_stage, matmul_half_f16_accumulators, matmul_half_pipelined,
           matmul_half_wgmma_cp_async, matmul_half_wgmma, matmul_half_wgmma_roles, matmul_half_wgmma_persistent,
           matmul_half_wgmma_specialised),
    inputs=lambda rng, M, N, K: (random_float16(rng, M, K), random_float16(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    awkward=tuple({"M": M, "N": N, "K": K} for M, N, K in
                  ((1, 1, 1), (16, 16, 16), (37, 23, 19), (1, 65, 33), (33, 17, 1), (1, 8, 8), (37, 24, 40),
                   (65, 136, 72), (130, 264, 200))),
    tolerance=tolerance,
    dtype=np.float16,
    by_row=(0,),
    work=Work(
        flops=lambda M, N, K: 2 * M * N * K,
        bytes=lambda M, N, K: 2 * (M * K + K * N + M * N),
        timed_gpu={"M": 4096, "N": 4096, "K": 4096},
        timed_cpu={"M": 128, "N": 128, "K": 128},
        also_gpu=({"M": 8192, "N": 1152, "K": 384}, {"M": 8192, "N": 384, "K": 1536}),  # short K: layers of MiniLM
        unit="TFLOP/s",
        peak="f16",
    ),
    # Without NumPy's, which multiplies float16 numbers one by one.
    baselines=numpy_cupy_torch(lambda xp, a, b, out: xp.matmul(a, b, out=out), note="cuBLAS", autotune=True)[1:],
)


def bfloat16s(rng, *shape):
    return bfloat16_of(uniform(rng, *shape))


def bf16_tolerance(a, b):
    """Products of bfloat16 numbers are exact in float32: only the sums are rounded."""
    return 2 * EPS32 * np.sqrt(a.shape[1]) * (np.abs(a) @ np.abs(b))


MATMUL_BF16 = Op(
    "matmul_bf16",
    title="Matrix multiplication of bfloat16 numbers",
    formula="out[row, col] = sum over k of a[row, k] * b[k, col], bfloat16 in, float32 out",
    reference=lambda a, b: float64_of(a) @ float64_of(b),
    rungs=(matmul_bf16_naive, matmul_bf16_pipelined, matmul_bf16_wgmma_specialised),
    inputs=lambda rng, M, N, K: (bfloat16s(rng, M, K), bfloat16s(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    awkward=MATMUL_HALF.awkward,
    tolerance=bf16_tolerance,
    by_row=(0,),
    work=replace(MATMUL_HALF.work, bytes=lambda M, N, K: 2 * (M * K + K * N) + 4 * M * N, also_gpu=()),
    baselines=(Baseline("PyTorch", "torch", lambda torch, a, b, out: torch.mm(a, b, out_dtype=torch.float32),
                        note="cuBLAS"),),
)
