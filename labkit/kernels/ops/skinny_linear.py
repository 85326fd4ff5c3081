"""skinny_linear and skinny_linear_half: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.linear.few_rows."""

from dataclasses import replace

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.linear.few_rows import make_skinny, make_skinny_half, skinny, skinny_half
from labkit.kernels.linear.fused import fused_reference, fused_tiled, make_add_parts, make_fused_tiled
from labkit.kernels.op import Op, Work, sizes
from labkit.kernels.ops.fused_linear import as_rung, layer, sum_error, torch_addmm
from labkit.kernels.tolerance import EPS16, SMALLEST16

SHARED = {
    "shape": lambda M, N, K: (M, N),
    "reference": fused_reference,
    "formula": "out = x @ weights + bias",
    "by_row": (0,),
}  # fmt: skip

WORK = Work(
    flops=lambda M, N, K: 2 * M * N * K,
    bytes=lambda M, N, K: 4 * (M * K + N * K + N + M * N),
    timed_gpu={"M": 16, "N": 2304, "K": 768},
    timed_cpu={"M": 4, "N": 64, "K": 64},
    also_gpu=({"M": 1, "N": 3072, "K": 768}, {"M": 16, "N": 768, "K": 3072}),
)


def _half_tolerance(x, weights, bias):
    """As for float32, and twice the error of one rounding to float16."""
    return sum_error(x, weights, bias) + EPS16 * np.abs(fused_reference(x, weights, bias)) + SMALLEST16


BY_TORCH = (Baseline("PyTorch", "torch", torch_addmm, note="cuBLAS, bias fused", autotune=True),)

# cuBLAS has no good float32 kernel for every shape with its bias fused.
UNFUSED = Baseline("PyTorch, a product and a sum", "torch",
                   lambda torch, x, weights, bias, out: torch.mm(x, weights) + bias)

SKINNY_LINEAR = Op(
    "skinny_linear",
    title="A linear layer of few rows",
    rungs=(as_rung(fused_tiled, "skinny_linear_tiled", make_fused_tiled(False, False),
                   "16 x 16 tiles, nearly empty"),
           as_rung(skinny, "skinny_linear_shared_depth",
                   (make_skinny(16, True, False, False, False), make_add_parts(4, False, False)),
                   "16 columns a block, 64 groups of four lanes share K")),
    inputs=layer,
    awkward=sizes("M N K", (1, 1, 1), (3, 20, 70), (7, 33, 257), (33, 16, 64), (1, 16, 768)),
    tolerance=sum_error,
    work=WORK,
    baselines=(*BY_TORCH, UNFUSED),
    **SHARED,
)

SKINNY_LINEAR_HALF = Op(
    "skinny_linear_half",
    title="A float16 linear layer of few rows",
    rungs=(as_rung(fused_tiled, "skinny_linear_half_tiled", make_fused_tiled(False, False),
                   "16 x 16 tiles, nearly empty"),
           as_rung(skinny_half, "skinny_linear_half_tensor_core",
                   (make_skinny_half(1, False, False, False), make_add_parts(4, False, False)),
                   "16 columns a block, eight warps share K, mma.sync", sizes="K and N multiples of 8")),
    inputs=lambda rng, M, N, K: tuple(array.astype(np.float16) for array in layer(rng, M, N, K)),
    awkward=sizes("M N K", (1, 1, 1), (3, 24, 72), (7, 40, 264), (17, 16, 64), (33, 16, 64), (1, 16, 768)),
    tolerance=_half_tolerance,
    dtype=np.float16,
    work=replace(WORK, bytes=lambda M, N, K: 2 * (M * K + N * K + N + M * N), peak="f16"),
    baselines=BY_TORCH,
    **SHARED,
)
