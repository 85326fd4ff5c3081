"""matmul_tf32: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.matmul.tf32
and wgmma_tf32."""

import contextlib

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.matmul.tf32 import matmul_tf32_pipelined, matmul_tf32_reference, matmul_tf32_tensor_core
from labkit.kernels.matmul.wgmma_tf32 import matmul_tf32_wgmma
from labkit.kernels.op import Op, Work, uniform
from labkit.kernels.tolerance import EPS32

EPS_TF32 = 2.0**-10


def tolerance(a, b):
    """Return eight times the expected error, plus the tolerance of float32 sums. Each factor is rounded once, by at
    most eps/2 of it: the errors of K products add up like a random walk, to some eps/2 * sqrt(a**2 @ b**2)."""
    return 4 * EPS_TF32 * np.sqrt(a**2 @ b**2) + 2 * EPS32 * np.sqrt(a.shape[1]) * (np.abs(a) @ np.abs(b))


@contextlib.contextmanager
def tf32_allowed(torch):
    """Let PyTorch round float32 to TF32, which is off by default."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


MATMUL_TF32 = Op(
    "matmul_tf32",
    title="Matrix multiplication in TF32",
    formula="out[row, col] = sum over k of a[row, k] * b[k, col], each rounded to TF32, accumulators in float32",
    reference=matmul_tf32_reference,
    rungs=(matmul_tf32_tensor_core, matmul_tf32_pipelined, matmul_tf32_wgmma),
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    awkward=tuple({"M": M, "N": N, "K": K} for M, N, K in
                  ((1, 1, 1), (16, 16, 16), (37, 23, 19), (33, 17, 1), (1, 4, 4), (37, 28, 36), (65, 132, 76),
                   (130, 264, 200))),
    tolerance=tolerance,
    by_row=(0,),
    work=Work(
        flops=lambda M, N, K: 2 * M * N * K,
        bytes=lambda M, N, K: 4 * (M * K + K * N + M * N),
        timed_gpu={"M": 4096, "N": 4096, "K": 4096},
        timed_cpu={"M": 128, "N": 128, "K": 128},
        unit="TFLOP/s",
        peak="tf32",
    ),
    baselines=(Baseline("PyTorch", "torch", lambda torch, a, b, out: torch.matmul(a, b, out=out),
                        note="cuBLAS, TF32 allowed", within=tf32_allowed, autotune=True),),
)
