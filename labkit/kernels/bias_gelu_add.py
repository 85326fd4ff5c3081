"""Bias, GELU, residual: out = gelu(x + bias) + residual, the end of a transformer's feed-forward layer.

Shapes  x, residual, out (R, C), bias (C,); float32, C-contiguous; any sizes
Work    12*R*C flop; at least 4*(3*R*C + C) bytes, each array moved once
Source  Radford et al.: Language Models are Unsupervised Multitask Learners (2019): GPT-2, whose layers end so

At the timed size the work is negligible: the launches take all the time.
"""

import numpy as np

from labkit import cuda, u32
from labkit.kernels.arguments import check_array
from labkit.kernels.gelu import gelu_tanh, gelu_tanh_reference
from labkit.kernels.op import rung

BLOCK = 256


def bias_gelu_add_reference(x, bias, residual):
    return gelu_tanh_reference(x.astype(np.float64) + bias) + residual


@cuda.jit
def add_bias_kernel(x, bias, out):
    i = u32.grid(1)
    if i < out.size:
        out[i] = x[i] + bias[i % u32.size(bias)]


@cuda.jit
def apply_gelu_kernel(out):
    i = u32.grid(1)
    if i < out.size:
        out[i] = gelu_tanh(out[i])


@cuda.jit
def add_residual_kernel(residual, out):
    i = u32.grid(1)
    if i < out.size:
        out[i] += residual[i]


@rung(kernel=(add_bias_kernel, apply_gelu_kernel, add_residual_kernel),
      idea="three kernels, one for each step")
def bias_gelu_add_three_kernels(x, bias, residual, out, stream=0):
    """A kernel for each step. Between them the intermediate result goes to memory and back."""
    blocks = _check(x, bias, residual, out)
    x, residual, out = (array.reshape(array.size) for array in (x, residual, out))
    add_bias_kernel[blocks, BLOCK, stream](x, bias, out)
    apply_gelu_kernel[blocks, BLOCK, stream](out)
    add_residual_kernel[blocks, BLOCK, stream](residual, out)


@cuda.jit
def bias_gelu_add_fused_kernel(x, bias, residual, out):
    i = u32.grid(1)
    if i < out.size:
        out[i] = gelu_tanh(x[i] + bias[i % u32.size(bias)]) + residual[i]


@rung(kernel=bias_gelu_add_fused_kernel, idea="one kernel for all three steps")
def bias_gelu_add_fused(x, bias, residual, out, stream=0):
    """As three kernels, but the intermediate results stay in a register: one launch, and each array moves once."""
    blocks = _check(x, bias, residual, out)
    x, residual, out = (array.reshape(array.size) for array in (x, residual, out))
    bias_gelu_add_fused_kernel[blocks, BLOCK, stream](x, bias, residual, out)


def _check(x, bias, residual, out) -> int:
    check_array("x", x, ndim=2)
    check_array("bias", bias, shape=x.shape[1:])
    check_array("residual", residual, shape=x.shape)
    check_array("out", out, shape=x.shape)
    return -(-out.size // BLOCK)
