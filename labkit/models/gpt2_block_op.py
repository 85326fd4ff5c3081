"""The block of GPT-2 as an operation: its rungs, PyTorch and CUDA C++ beside it, so that `labkit bench` times them.

Shapes  x (S, 768), weights (7087872,), out (S, 768); float32, or float16 with float32 accumulators; no causal
        mask, as in the CUDA C++
Work    2 * S * (7,077,888 + 2 * 768 * S) flop; the bytes are those that a block has to read and write as a whole: the
        weights, x and out
Source  ten_kernels.cu: a plain CUDA C++ block of ten launches, written for this comparison
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit.device import gpus
from labkit.kernels.baselines import Baseline
from labkit.kernels.libraries import nvcc
from labkit.kernels.op import Op, Work, rung, uniform
from labkit.models import gpt2_block as block
from labkit.models.gpt2_block import GPT2_SMALL, Workspace

SIZES = ({"S": 16}, {"S": 128}, {"S": 1024}, {"S": 4096})
LAUNCHES = 10  # of the longest form: what their roundings add up to is allowed


@gpus.cached_by_target
def workspace_for(tokens: int, dtype) -> Workspace:
    return Workspace(GPT2_SMALL, tokens, dtype)


def _solve(x, weights, out, kernels, stream) -> None:
    workspace = workspace_for(x.shape[0], np.dtype(x.dtype))
    block.solve(x, out, weights, x.shape[0], workspace=workspace, kernels=kernels, stream=stream)


@rung(kernel=(), idea="a kernel for each of ten steps: tiles of 16 x 16, three passes of attention")
def block_ten_kernels(x, weights, out, stream=0):
    """Ten launches, none of them tuned."""
    _solve(x, weights, out, block.KERNEL_FOR_EACH_STEP, stream)


@rung(kernel=(), idea="seven launches: bias, GELU and residual in the products, attention in tiles")
def block_fused(x, weights, out, stream=0):
    """The fastest kernels for each length."""
    _solve(x, weights, out, block.FUSED, stream)


@rung(kernel=(), idea="seven launches on tensor cores, accumulators in float32")
def block_half(x, weights, out, stream=0):
    """As block_fused, in float16."""
    _solve(x, weights, out, block.HALF, stream)


# --- Reference -------------------------------------------------------------------------------------------------------


def block_reference(x, weights):
    return block.block_steps(x, GPT2_SMALL.split(weights.astype(np.float64)), GPT2_SMALL.heads)["out"]


def _inputs(rng, S, dtype=np.float32):
    return (2 * uniform(rng, S, GPT2_SMALL.width)).astype(dtype), GPT2_SMALL.random(rng, dtype)


def _tolerance(x, weights, dtype=np.float32):
    expected = block_reference(x, weights)
    return np.full(expected.shape, block.allowed_error(GPT2_SMALL, expected, LAUNCHES, dtype))


# --- Beside it -------------------------------------------------------------------------------------------------------


def _torch_weights(torch, x, weights, out):
    """The weights by name, those of a linear layer (out, in) as torch.nn holds them."""
    named = {}
    for name, shape in GPT2_SMALL.parameters.items():
        values = weights[GPT2_SMALL.offsets[name] :][: math.prod(shape)].reshape(shape)
        named[name] = (values.t() if len(shape) == 2 else values).contiguous()
    return x, named, out


def torch_block(torch, x, weights, out):
    """PyTorch's functions with the same weights: LayerNorm, linear layers, SDPA, GELU's tanh form."""
    F, (rows, C), heads = torch.nn.functional, x.shape, GPT2_SMALL.heads

    def norm(x, name):
        return F.layer_norm(x, (C,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    parts = linear(norm(x, "ln_1"), "attn.c_attn").view(1, rows, 3, heads, -1).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(*parts)[0].transpose(0, 1).reshape(rows, -1)
    y = x + linear(attended, "attn.c_proj")
    return y + linear(F.gelu(linear(norm(y, "ln_2"), "mlp.c_fc"), approximate="tanh"), "mlp.c_proj")


TEN_KERNELS = Path(__file__).with_name("ten_kernels.cu")
BUFFERS = (768, 2304, 768, 768, 768, 768, 3072, 768)  # elements per token of the eight arrays between the ten kernels


@functools.cache
def _cuda_cpp_memory(torch, rows: int):
    return [torch.empty(rows, elements, device="cuda") for elements in BUFFERS]


def cuda_cpp_block(torch, x, weights, out) -> None:
    """Ten launches of CUDA C++, on PyTorch's current stream."""
    memory = (ctypes.c_void_p * 8)(*(tensor.data_ptr() for tensor in _cuda_cpp_memory(torch, x.shape[0])))
    nvcc.library(TEN_KERNELS).block(nvcc.pointer(x), nvcc.pointer(out), nvcc.pointer(weights), x.shape[0], memory,
                                    nvcc.current_stream(torch))


def cuda_cpp_allocating(torch, x, weights, out) -> None:
    """The same, and its eight arrays are allocated and freed in each call: it cannot be captured in a graph."""
    error = nvcc.library(TEN_KERNELS).solve(nvcc.pointer(x), nvcc.pointer(out), nvcc.pointer(weights), x.shape[0],
                                            nvcc.current_stream(torch))
    if error:
        raise RuntimeError(f"the CUDA C++ block could not allocate its eight arrays: CUDA error {error}")


# --- The operations --------------------------------------------------------------------------------------------------

SHARED = {
    "formula": "y = x + attention(layernorm(x)); out = y + mlp(layernorm(y))",
    "reference": block_reference,
    "shape": lambda S: (S, GPT2_SMALL.width),
    "awkward": ({"S": 1}, {"S": 17}),
    "by_row": (),
}
WORK = Work(
    flops=lambda S: 2 * S * (12 * GPT2_SMALL.width**2 + 2 * GPT2_SMALL.width * S),
    bytes=lambda S: 4 * (GPT2_SMALL.size + 2 * S * GPT2_SMALL.width),
    timed_gpu={"S": 1024},
    timed_cpu={"S": 16},
    also_gpu=tuple(size for size in SIZES if size != {"S": 1024}),
    unit="TFLOP/s",
    many_launches=True,
)

GPT2_BLOCK = Op(
    "gpt2_block",
    title="A block of GPT-2",
    rungs=(block_ten_kernels, block_fused),
    inputs=_inputs,
    tolerance=_tolerance,
    work=WORK,
    baselines=(Baseline("PyTorch", "torch", torch_block, note="torch.nn", prepare=_torch_weights),
               Baseline("CUDA C++", "torch", cuda_cpp_block, note="ten kernels", compile=False),
               Baseline("CUDA C++", "torch", cuda_cpp_allocating, note="ten kernels, eight allocations",
                        compile=False)),
    **SHARED,
)

GPT2_BLOCK_HALF = Op(
    "gpt2_block_half",
    title="A block of GPT-2 in float16",
    rungs=(block_half,),
    inputs=functools.partial(_inputs, dtype=np.float16),
    tolerance=functools.partial(_tolerance, dtype=np.float16),
    dtype=np.float16,
    work=replace(WORK, bytes=lambda S: 2 * (GPT2_SMALL.size + 2 * S * GPT2_SMALL.width), peak="f16"),
    baselines=(Baseline("PyTorch", "torch", torch_block, note="torch.nn", prepare=_torch_weights, autotune=True),),
    **SHARED,
)
