"""linear_f32, linear, linear_gelu, linear_gelu_tanh and linear_residual: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.linear.layers."""

import numpy as np

from labkit.kernels.baselines import Baseline, gelu_by_cublas, numpy_cupy_torch
from labkit.kernels.linear import layers
from labkit.kernels.matmul.half import random_float16
from labkit.kernels.matmul.wgmma import linear_wgmma, linear_wgmma_specialised
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import EPS16, EPS32, SMALLEST16


def sum_error(x, weights, bias):
    """The error allowed for sums of K products and the bias in float32."""
    return 2 * EPS32 * np.sqrt(x.shape[1] + 1) * (np.abs(x) @ np.abs(weights).T + np.abs(bias))


AWKWARD = sizes("M N K", (1, 1, 1), (37, 23, 19), (33, 17, 1), (1, 8, 8), (37, 24, 40), (65, 136, 72), (130, 264, 200))

WIDE = tuple({"M": 8192, "N": N, "K": K} for K, N in ((384, 1152), (384, 384), (384, 1536), (1536, 384)))  # MiniLM's


def layer(rng, M, N, K):
    """x, weights and bias, the weights scaled so that sums have the magnitude of x."""
    weights = (uniform(rng, N, K) / np.float32(np.sqrt(K))).astype(np.float16)
    return random_float16(rng, M, K), weights, random_float16(rng, N)


def layer_f32(rng, M, N, K):
    return uniform(rng, M, K), uniform(rng, N, K), uniform(rng, N)


def layer_and_residual(rng, M, N, K):
    return *layer(rng, M, N, K), random_float16(rng, M, N)


def _op(name, *, timed_gpu, also_gpu=(), inputs=layer, awkward=AWKWARD, dtype=np.float16, by_row=(0,), peak="f16",
        **fields):
    residual, itemsize = inputs is layer_and_residual, np.dtype(dtype).itemsize
    work = Work(flops=lambda M, N, K: 2 * M * N * K + residual * M * N,
                bytes=lambda M, N, K: itemsize * (M * K + N * K + N + (1 + residual) * M * N),
                timed_gpu=timed_gpu, timed_cpu={"M": 128, "N": 96, "K": 64}, also_gpu=also_gpu, unit="TFLOP/s",
                peak=peak)
    return Op(name, inputs=inputs, shape=lambda M, N, K: (M, N), awkward=awkward, dtype=dtype, by_row=by_row,
              work=work, **fields)


def torch_gelu(approximate: str) -> Baseline:
    def call(torch, x, weights, bias, out):
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, weights, bias), approximate=approximate)

    return Baseline("PyTorch", "torch", call, "unfused: cuBLAS with the bias, then GELU", autotune=True)


def gelu_tolerance(x, weights, bias):
    """GELU is nowhere steeper than 1.13; its result is rounded, and unfused its argument is, too."""
    value = x @ weights.T + bias
    return 1.13 * sum_error(x, weights, bias) + 1.6 * EPS16 * np.abs(value) + 8 * EPS32 + SMALLEST16


LINEAR = _op(
    "linear",
    title="A float16 linear layer",
    formula="out = x @ weights.T + bias",
    reference=layers.linear_reference,
    rungs=(layers.linear_naive, layers.linear_tiled, layers.linear_tensor_core, layers.linear_double_buffered,
           layers.linear_f16_accumulators, layers.linear_pipelined, linear_wgmma, linear_wgmma_specialised),
    tolerance=lambda x, weights, bias: (
        sum_error(x, weights, bias) + EPS16 * np.abs(x @ weights.T + bias) + SMALLEST16),
    timed_gpu=WIDE[0],
    also_gpu=WIDE[1:],
    baselines=(Baseline("PyTorch", "torch", lambda torch, x, weights, bias, out: torch.addmm(
        bias, x, weights.T, out=out), "cuBLAS, bias fused", autotune=True),),
)

LINEAR_GELU = _op(
    "linear_gelu",
    title="A float16 linear layer and exact GELU",
    formula="out = gelu(x @ weights.T + bias), with erf",
    reference=layers.linear_gelu_reference,
    rungs=(layers.linear_gelu_unfused, layers.linear_gelu_fused, layers.linear_gelu_wgmma),
    tolerance=gelu_tolerance,
    timed_gpu=WIDE[2],
    baselines=(torch_gelu("none"),),
)

LINEAR_GELU_TANH = _op(
    "linear_gelu_tanh",
    title="A float16 linear layer and GELU in its tanh form",
    formula="out = gelu(x @ weights.T + bias), with tanh",
    reference=layers.linear_gelu_tanh_reference,
    rungs=rungs_of(layers, "linear_gelu_tanh"),
    tolerance=gelu_tolerance,
    timed_gpu=WIDE[2],
    baselines=(torch_gelu("tanh"), gelu_by_cublas(lambda weights: weights.T)),
)

LINEAR_RESIDUAL = _op(
    "linear_residual",
    title="A float16 linear layer and a residual",
    formula="out = x @ weights.T + bias + residual",
    reference=layers.linear_residual_reference,
    rungs=rungs_of(layers, "linear_residual"),
    inputs=layer_and_residual,
    tolerance=lambda x, weights, bias, residual: (
        sum_error(x, weights, bias) + EPS16 * (np.abs(x @ weights.T + bias) + np.abs(residual)) + SMALLEST16),
    by_row=(0, 3),
    timed_gpu=WIDE[3],
    baselines=(Baseline("PyTorch", "torch", lambda torch, x, weights, bias, residual, out: torch.add(
        torch.nn.functional.linear(x, weights, bias), residual, out=out),
                        note="unfused: cuBLAS with the bias, then add", autotune=True),),
)

LINEAR_F32 = _op(
    "linear_f32",
    title="A linear layer of float32",
    formula="out = x @ weights.T + bias",
    reference=layers.linear_reference,
    rungs=rungs_of(layers, "linear_f32"),
    inputs=layer_f32,
    awkward=sizes("M N K", (1, 1, 1), (1, 48, 65), (30, 48, 65), (100, 33, 64), (37, 23, 19), (33, 17, 1)),
    tolerance=sum_error,
    dtype=np.float32,
    timed_gpu={"M": 8192, "N": 1152, "K": 384},
    peak="fp32",
    baselines=numpy_cupy_torch(lambda xp, x, weights, bias, out: xp.add(xp.matmul(x, weights.T), bias, out=out),
                               note="cuBLAS, then the bias"),
)
