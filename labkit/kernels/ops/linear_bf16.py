"""streamed_linear, linear_bf16, linear_swiglu and lm_head: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.linear.bf16."""

import functools

import numpy as np

from labkit.kernels import op
from labkit.kernels.baselines import Baseline
from labkit.kernels.elements import BFLOAT16, Element
from labkit.kernels.linear import bf16, streamed
from labkit.kernels.linear.bf16 import (
    arrange_gate_up,
    gate_and_up,
    linear_bf16_reference,
    linear_swiglu_reference,
    silu,
)
from labkit.kernels.linear.streamed import GROUP
from labkit.kernels.op import Op, Work, rungs_of, uniform
from labkit.kernels.tolerance import EPS32


def layer(rng, M, N, K, element: Element = BFLOAT16):
    """x and weights, the weights scaled so that sums have the magnitude of x."""
    return element.array_of(uniform(rng, M, K)), element.array_of(uniform(rng, N, K) / np.float32(np.sqrt(K)))


def layer_of_two(rng, M, N, K, element: Element = BFLOAT16):
    """x, and the gate and up of N outputs as linear_swiglu takes them."""
    gate, up = (element.array_of(uniform(rng, N, K) / np.float32(np.sqrt(K))) for _ in range(2))
    return element.array_of(uniform(rng, M, K)), arrange_gate_up(gate, up)


def sum_error(x, weight):
    """The error allowed for sums of K products in float32: those of numbers of 16 bits are exact."""
    return 2 * EPS32 * np.sqrt(x.shape[1]) * (np.abs(x) @ np.abs(weight).T)


def linear_tolerance(x, weight, element: Element = BFLOAT16):
    return sum_error(x, weight) + element.rounding_error(x @ weight.T)


def swiglu_tolerance(x, gate_up, element: Element = BFLOAT16):
    """SiLU is nowhere steeper than 1.1; gate, up, SiLU and the product are rounded, each to an element."""
    gate, up = gate_and_up(x @ gate_up.T)
    gate_error, up_error = (part + element.rounding_error(value) for part, value in
                            zip(gate_and_up(sum_error(x, gate_up)), (gate, up), strict=True))
    silu_error = 1.1 * gate_error + element.rounding_error(silu(gate))
    product = np.abs(silu(gate)) * up_error + (np.abs(up) + up_error) * silu_error
    return product + element.rounding_error(silu(gate) * up)


sizes = functools.partial(op.sizes, "M N K")


def of_llama(M: int) -> tuple:
    """The layers of Llama 3.2 1B: queries, keys and values together; the output of attention; gate and up; down."""
    return sizes((M, 3072, 2048), (M, 2048, 2048), (M, 16384, 2048), (M, 2048, 8192))


FLOPS = {"flops": lambda M, N, K: 2 * M * N * K, "peak": "f16"}


def torch_linear(torch, x, weight, out):
    return torch.matmul(x, weight.T, out=out)


CUBLAS = (Baseline("PyTorch", "torch", torch_linear, note="cuBLAS"),)


def _op(name, *, formula="out = x @ weight.T", reference=linear_bf16_reference, inputs=layer,
        tolerance=linear_tolerance, dtype=np.uint16, baselines=CUBLAS, **fields):
    return Op(name, formula=formula, reference=reference, inputs=inputs, shape=lambda M, N, K: (M, N),
              tolerance=tolerance, dtype=dtype, by_row=(0,), baselines=baselines, **fields)


STREAMED_LINEAR = _op(
    "streamed_linear",
    title="A bfloat16 linear layer of few rows",
    rungs=rungs_of(streamed),
    awkward=sizes((1, 3, 260), (2, 17, 264), (1, 40, 2056), (17, 19, 136), (33, 5, 8)),
    work=Work(bytes=lambda M, N, K: 2 * (M * K + N * K + M * N), timed_gpu={"M": 1, "N": 2048, "K": 8192},
              timed_cpu={"M": 1, "N": 256, "K": 256}, also_gpu=(*of_llama(1)[:3], *of_llama(8), *of_llama(16)),
              **FLOPS),
)

LINEAR_BF16 = _op(
    "linear_bf16",
    title="A bfloat16 linear layer",
    rungs=rungs_of(bf16, "linear_bf16"),
    awkward=sizes((1, 3, 260), (1, 8, 8), (37, 24, 40), (130, 136, 72)),
    work=Work(bytes=lambda M, N, K: 2 * (M * K + N * K + M * N), timed_gpu={"M": 4096, "N": 4096, "K": 4096},
              timed_cpu={"M": 64, "N": 64, "K": 64}, unit="TFLOP/s",
              also_gpu=(*of_llama(32), *of_llama(256), *of_llama(1024), *of_llama(4096)), **FLOPS),
)

LINEAR_SWIGLU = _op(
    "linear_swiglu",
    title="Two bfloat16 linear layers and SwiGLU",
    formula="out = silu(x @ gate.T) * (x @ up.T)",
    reference=linear_swiglu_reference,
    rungs=rungs_of(bf16, "linear_swiglu"),
    inputs=layer_of_two,
    awkward=sizes((1, 8, 260), (1, 8, 8), (17, 24, 264), (130, 136, 72)),
    tolerance=swiglu_tolerance,
    work=Work(flops=lambda M, N, K: 4 * M * N * K, peak="f16", unit="TFLOP/s",
              bytes=lambda M, N, K: 2 * (M * K + 2 * N * K + M * N), timed_gpu={"M": 4096, "N": 8192, "K": 2048},
              timed_cpu={"M": 4, "N": 64, "K": 64}, also_gpu=sizes(*((M, 8192, 2048) for M in (1, 8, 32, 256, 1024)))),
    baselines=(Baseline("PyTorch", "torch", lambda torch, x, gate_up, out: torch_swiglu(torch, x, gate_up),
                        note="unfused: cuBLAS, then SiLU and the product", autotune=True),),
)


def torch_swiglu(torch, x, gate_up):
    """The order of gate and up columns does not affect the time."""
    groups = (x @ gate_up.T).view(x.shape[0], -1, 2, GROUP)
    return (torch.nn.functional.silu(groups[:, :, 0]) * groups[:, :, 1]).reshape(x.shape[0], -1)


LM_HEAD = _op(
    "lm_head",
    title="The last layer of a Llama: a logit for each token of the vocabulary",
    formula="out = x @ weight.T, bfloat16 in, float32 out",
    rungs=rungs_of(bf16, "lm_head"),
    awkward=sizes((1, 3, 260), (1, 8, 8), (17, 40, 264), (130, 72, 136)),
    tolerance=sum_error,
    dtype=np.float32,
    work=Work(bytes=lambda M, N, K: 2 * (M * K + N * K) + 4 * M * N, timed_gpu={"M": 1, "N": 128256, "K": 2048},
              timed_cpu={"M": 1, "N": 512, "K": 128}, also_gpu=sizes((32, 128256, 2048), (256, 128256, 2048)), **FLOPS),
    baselines=(Baseline("PyTorch", "torch", lambda torch, x, weight, out: torch.mm(x, weight.T,
                                                                                   out_dtype=torch.float32),
                        note="cuBLAS"),),
)
