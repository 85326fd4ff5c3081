"""layernorm, add_layernorm and residual_layernorm: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.norm.layernorm."""

from dataclasses import replace

import numpy as np

from labkit.kernels.baselines import Baseline
from labkit.kernels.norm import layernorm
from labkit.kernels.norm.layernorm import layernorm_reference, residual_layernorm_reference
from labkit.kernels.norm.rows import EPSILON, tolerance
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS32


def _inputs(rng, R, C):
    return uniform(rng, R, C) + np.float32(0.75), uniform(rng, C), uniform(rng, C)


def torch_layernorm(torch, x, weight, bias, out):
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, EPSILON)


LAYERNORM = Op(
    "layernorm",
    title="Layer normalisation",
    formula="out = (x - mean) / sqrt(variance + 1e-5) * weight + bias, for each row",
    reference=layernorm_reference,
    rungs=rungs_of(layernorm, "layernorm"),
    inputs=_inputs,
    shape=lambda R, C: (R, C),
    awkward=sizes("R C", (1, 1), (3, 5), (9, 260), (6, 768), (5, 769), (2, 4096)),
    tolerance=tolerance,
    by_row=(0,),
    work=Work(
        flops=lambda R, C: 8 * R * C,
        bytes=lambda R, C: 8 * R * C,
        timed_gpu={"R": 65536, "C": 4096},
        timed_cpu={"R": 64, "C": 768},
        also_gpu=({"R": 8192, "C": 384}, {"R": 8192, "C": 768}),  # MiniLM, 64 sentences of 128 tokens; GPT-2 small
    ),
    baselines=(Baseline("PyTorch", "torch", torch_layernorm),),
)

RESIDUAL = {
    "inputs": lambda rng, R, C: (uniform(rng, R, C) + np.float32(0.75), uniform(rng, R, C), uniform(rng, C),
                                 uniform(rng, C)),
    "awkward": sizes("R C", (1, 1), (3, 5), (9, 260), (6, 768), (5, 769), (2, 4096)),
}  # fmt: skip

WORK = Work(
    flops=lambda R, C: 9 * R * C,
    bytes=lambda R, C: 12 * R * C,
    timed_gpu={"R": 16384, "C": 768},
    timed_cpu={"R": 64, "C": 768},
)


def _residual_tolerance(x, residual, weight, bias):
    """As for layernorm, for a sum that is rounded once: to half a unit of itself."""
    total = x + residual
    return np.stack([tolerance(total, weight, bias), EPS32 * np.abs(total)])


def torch_add_layernorm(torch, x, residual, weight, bias, out):
    return torch.nn.functional.layer_norm(x + residual, weight.shape, weight, bias, EPSILON)


def torch_residual_layernorm(torch, x, residual, weight, bias, out):
    """(normed, sum), each in memory of its own: into one array torch.compile would copy them."""
    total = x + residual
    return torch.nn.functional.layer_norm(total, weight.shape, weight, bias, EPSILON), total


RESIDUAL_LAYERNORM = Op(
    "residual_layernorm",
    title="Residual addition and layer normalisation, the sum kept",
    formula="out[1] = x + residual; out[0] = layernorm(out[1])",
    reference=residual_layernorm_reference,
    rungs=rungs_of(layernorm, "residual_layernorm"),
    shape=lambda R, C: (2, R, C),
    tolerance=_residual_tolerance,
    by_row=(),
    work=replace(WORK, bytes=lambda R, C: 16 * R * C),
    baselines=(Baseline("PyTorch", "torch", torch_residual_layernorm, note="add, then layer_norm",
                        compile=torch_residual_layernorm),),
    **RESIDUAL,
)

ADD_LAYERNORM = Op(
    "add_layernorm",
    title="Residual addition and layer normalisation",
    formula="out = layernorm(x + residual)",
    reference=lambda x, residual, weight, bias: layernorm_reference(x.astype(np.float64) + residual, weight, bias),
    rungs=rungs_of(layernorm, "add_layernorm"),
    shape=lambda R, C: (R, C),
    tolerance=lambda x, residual, weight, bias: tolerance(x + residual, weight, bias),
    by_row=(0, 1),
    work=WORK,
    baselines=(Baseline("PyTorch", "torch", torch_add_layernorm, note="add, then layer_norm"),),
    **RESIDUAL,
)
