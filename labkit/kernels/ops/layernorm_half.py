"""layernorm_half, add_layernorm_half and layernorm_bf16: inputs, sizes, tolerances, work and baselines of the rungs in
labkit.kernels.norm.half."""

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16
from labkit.kernels.norm import half
from labkit.kernels.norm import layernorm as full
from labkit.kernels.norm.layernorm import EPSILON
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.ops.layernorm import torch_add_layernorm, torch_layernorm
from labkit.kernels.tolerance import EPS16


def _half(array):
    return array.astype(np.float16)


def tolerance(x, weight, bias, epsilon=EPSILON):
    """The result is rounded to float16, a relative error of 2^-11; allowed is twice that, and what float32 is
    allowed."""
    size = np.abs(full.layernorm_reference(x, weight, bias, epsilon))
    return EPS16 * size + layernorm_tolerance(x, weight, bias, epsilon) + 6e-8


SIZES = {
    "shape": lambda R, C: (R, C),
    "awkward": sizes("R C", (1, 1), (3, 13), (5, 384), (6, 768)),
    "dtype": np.float16,
}  # fmt: skip

TIMED = {
    "timed_gpu": {"R": 65536, "C": 768},
    "timed_cpu": {"R": 64, "C": 768},
    "also_gpu": ({"R": 8192, "C": 384},),  # MiniLM, 64 sentences of 128 tokens
}  # fmt: skip

LAYERNORM_HALF = Op(
    "layernorm_half",
    title="Layer normalisation in float16",
    formula="out = (x - mean) / sqrt(variance + 1e-5) * weight + bias, for each row",
    reference=half.layernorm_half_reference,
    rungs=rungs_of(half, "layernorm_half"),
    inputs=lambda rng, R, C: (_half(uniform(rng, R, C) + np.float32(0.75)), _half(uniform(rng, C)),
                              _half(uniform(rng, C))),
    tolerance=tolerance,
    by_row=(0,),
    work=Work(flops=lambda R, C: 8 * R * C, bytes=lambda R, C: 4 * R * C, **TIMED),
    baselines=(Baseline("PyTorch", "torch", torch_layernorm),),
    **SIZES,
)

ADD_LAYERNORM_HALF = Op(
    "add_layernorm_half",
    title="Residual addition and layer normalisation in float16",
    formula="out = layernorm(x + residual)",
    reference=half.add_layernorm_half_reference,
    rungs=rungs_of(half, "add_layernorm_half"),
    inputs=lambda rng, R, C: (_half(uniform(rng, R, C) + np.float32(0.75)), _half(uniform(rng, R, C)),
                              _half(uniform(rng, C)), _half(uniform(rng, C))),
    tolerance=lambda x, residual, weight, bias: tolerance(x + residual, weight, bias),
    by_row=(0, 1),
    work=Work(flops=lambda R, C: 9 * R * C, bytes=lambda R, C: 6 * R * C, **TIMED),
    baselines=(Baseline("PyTorch", "torch", torch_add_layernorm, note="add, then layer_norm", tolerance=lambda x,
                        residual, weight, bias: 4 * tolerance(x + residual, weight, bias) + 2e-3),),
    **SIZES,
)

LAYERNORM_BF16 = Op(
    "layernorm_bf16",
    title="Layer normalisation in bfloat16",
    formula=LAYERNORM_HALF.formula,
    reference=half.layernorm_half_reference,
    rungs=(half.layernorm_half_singles, half.layernorm_half_warp),
    inputs=lambda rng, R, C: tuple(map(BFLOAT16.array_of, (uniform(rng, R, C) + np.float32(0.75), uniform(rng, C),
                                                           uniform(rng, C)))),
    tolerance=lambda x, weight, bias: layernorm_tolerance(x, weight, bias) + BFLOAT16.rounding_error(
        full.layernorm_reference(x, weight, bias)),
    by_row=(0,),
    work=Work(flops=lambda R, C: 8 * R * C, bytes=lambda R, C: 4 * R * C, timed_gpu={"R": 16384, "C": 768},
              timed_cpu={"R": 64, "C": 768}),
    baselines=(Baseline("PyTorch", "torch", torch_layernorm),),
    **SIZES | {"dtype": np.uint16},
)
