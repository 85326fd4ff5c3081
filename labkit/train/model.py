"""GPT-2 and Llama for training: a forward pass that keeps what the backward pass needs, and the backward pass.

    model = Model(config, buffer, batch=8, length=128, dtype="float32")
    model.forward(ids)                                     # logits of all tokens in model.logits
    model.backward(ids, targets, scale, accumulate=False)  # gradients in buffer.gradients, losses in model.losses

Both models are the same launches, with other norms, activations and names. Llama's queries and keys are rotated between
their product and attention, and split; attention reads GPT-2's where the product leaves them.

Shapes at the ends of lines: T = batch * length tokens, C the width, H heads of queries and K of keys and values, D
elements in each, I the width of the MLP, G that of its first product (2I with gates), V the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from labkit import cuda
from labkit.kernels.attention.backward import attention_backward
from labkit.kernels.attention.training import attention_training
from labkit.kernels.embedding import token_embedding
from labkit.kernels.embedding_backward import position_embedding_backward, token_embedding_backward
from labkit.kernels.gelu import gelu
from labkit.kernels.gelu_backward import gelu_backward
from labkit.kernels.linear.backward import (
    linear_backward_bias,
    linear_backward_input,
    linear_backward_weight,
    linear_backward_workspace,
)
from labkit.kernels.linear.bf16 import linear, linear_residual
from labkit.kernels.loss.cross_entropy import cross_entropy
from labkit.kernels.norm.backward import layernorm_backward, rmsnorm_backward
from labkit.kernels.norm.half import layernorm_half_warp
from labkit.kernels.norm.layernorm import EPSILON, layernorm
from labkit.kernels.norm.rmsnorm import residual_sum, rmsnorm
from labkit.kernels.rope import rope_split_cache, rope_table
from labkit.kernels.rope_backward import rope_split_backward
from labkit.kernels.swiglu import swiglu
from labkit.kernels.swiglu_backward import swiglu_backward
from labkit.models.configs import EMBEDDING, HEAD, GPT2Config, LlamaConfig
from labkit.train.parameters import DTYPES, Buffer

# Our names of a layer's parameters -> the files'.
OF_GPT2 = {"norm1": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "norm2": "ln_2", "up": "mlp.c_fc",
           "down": "mlp.c_proj"}
OF_LLAMA = {"norm1": "input_layernorm", "qkv": "self_attn.qkv_proj", "out": "self_attn.o_proj",
            "norm2": "post_attention_layernorm", "up": "mlp.gate_up_proj", "down": "mlp.down_proj"}


class Shape:
    """The sizes of either model under one set of names."""

    def __init__(self, config: GPT2Config | LlamaConfig):
        self.gpt2 = isinstance(config, GPT2Config)
        if self.gpt2:
            self.layers, self.width, self.inner = config.n_layer, config.n_embd, config.inner
            self.heads = self.kv_heads = config.n_head
            self.dim, self.first = config.n_embd // config.n_head, config.inner
            self.epsilon = EPSILON
        else:
            self.layers, self.width = config.num_hidden_layers, config.hidden_size
            self.heads, self.kv_heads, self.dim = (config.num_attention_heads, config.num_key_value_heads,
                                                   config.head_dim)
            self.inner, self.first = config.intermediate_size, 2 * config.intermediate_size
            self.epsilon = config.rms_norm_eps
        self.vocabulary = config.vocab_size


def buffers(shape: Shape, tokens: int) -> tuple[dict, dict]:
    """The shapes of what a layer keeps for the backward pass, and of what is used again by every layer. Names that end
    in _f32 are float32 in every run."""
    T, C, H, K, D = tokens, shape.width, shape.heads, shape.kv_heads, shape.dim
    qkv, split = (T, (H + 2 * K) * D), {"q": (T, H, D), "k": (T, K, D), "v": (T, K, D)}
    kept = {"x": (T, C), "normed1": (T, C), **({"qkv": qkv} if shape.gpt2 else split), "attended": (T, H, D),
            "lse_f32": (H, T), "mid": (T, C), "normed2": (T, C), "first": (T, shape.first), "gated": (T, shape.inner)}
    products = (((H + 2 * K) * D, C), (C, H * D), (shape.first, C), (C, shape.inner), (shape.vocabulary, C))
    shared = {"x": (T, C), "final": (T, C), "logits": (T, shape.vocabulary), "losses_f32": (T,),
              "qkv": qkv, "dx": (T, C), "dnormed": (T, C), "dgated": (T, shape.inner),
              "dfirst": (T, shape.first), "dattended": (T, H, D), "delta_f32": (H, T),
              "workspace_f32": (max(linear_backward_workspace(T, *product) for product in products),),
              **({} if shape.gpt2 else {f"d{name}": size for name, size in split.items()})}
    return kept, shared


def activation_bytes(config, tokens: int, dtype: str) -> int:
    """What a model of this shape allocates for a pass over so many tokens."""
    def nbytes(sizes: dict) -> int:
        return sum(math.prod(size) * (4 if name.endswith("_f32") else DTYPES[dtype].itemsize)
                   for name, size in sizes.items())

    shape = Shape(config)
    kept, shared = buffers(shape, tokens)
    return shape.layers * nbytes(kept) + nbytes(shared)


def normalise(x, weight, bias, out, stream=0) -> None:
    """LayerNorm, of float32 or of 16 bits."""
    (layernorm if x.dtype == np.float32 else layernorm_half_warp)(x, weight, bias, out, stream=stream)


@dataclass(frozen=True)
class Kernels:
    """The launchers of both passes, each called as the one that it replaces:

    Trainer(settings, texts, kernels=Kernels(swiglu=mine))
    """

    token_embedding: Callable = token_embedding
    layernorm: Callable = normalise
    rmsnorm: Callable = rmsnorm
    linear: Callable = linear
    linear_residual: Callable = linear_residual  # with another linear or add: those two, one after the other
    rope_split_cache: Callable = rope_split_cache
    attention: Callable = attention_training
    gelu: Callable = gelu
    swiglu: Callable = swiglu
    add: Callable = residual_sum
    cross_entropy: Callable = cross_entropy
    token_embedding_backward: Callable = token_embedding_backward
    position_embedding_backward: Callable = position_embedding_backward
    layernorm_backward: Callable = layernorm_backward
    rmsnorm_backward: Callable = rmsnorm_backward
    linear_backward_weight: Callable = linear_backward_weight
    linear_backward_bias: Callable = linear_backward_bias
    linear_backward_input: Callable = linear_backward_input
    rope_split_backward: Callable = rope_split_backward
    attention_backward: Callable = attention_backward
    gelu_backward: Callable = gelu_backward
    swiglu_backward: Callable = swiglu_backward

    def __post_init__(self):
        if self.linear_residual is linear_residual and (self.linear is not linear or self.add is not residual_sum):
            object.__setattr__(self, "linear_residual", self._linear_then_add)

    def _linear_then_add(self, x, weight, residual, out, bias=None, stream=0) -> None:
        self.linear(x, weight, out, bias, stream=stream)
        self.add(out, residual, out, stream)


class Model:
    def __init__(self, config: GPT2Config | LlamaConfig, buffer: Buffer, *, batch: int, length: int, dtype: str,
                 kernels: Kernels | None = None):
        self.config, self.shape, self.length = config, Shape(config), length
        self.weights, self.gradients = buffer.weights, buffer.gradients
        shape, tokens = self.shape, batch * length
        kept, shared = buffers(shape, tokens)

        def allocated(sizes: dict) -> SimpleNamespace:
            return SimpleNamespace(**{name.removesuffix("_f32"): cuda.device_array(
                size, np.float32 if name.endswith("_f32") else DTYPES[dtype]) for name, size in sizes.items()})

        self.layers = [allocated(kept) for _ in range(shape.layers)]
        self.shared = allocated(shared)
        self.logits, self.losses = self.shared.logits, self.shared.losses
        self.residuals = [*(layer.x for layer in self.layers), self.shared.x]
        self.cu_seqlens = cuda.to_device(np.arange(0, tokens + 1, length, dtype=np.int32))
        self.positions = cuda.to_device(np.tile(np.arange(length, dtype=np.int32), batch))
        if shape.gpt2:
            self.split = [split_heads(shape, layer.qkv) for layer in self.layers]
            self.split_gradients = split_heads(shape, self.shared.qkv)
        else:
            self.split = [(layer.q, layer.k, layer.v) for layer in self.layers]
            self.split_gradients = self.shared.dq, self.shared.dk, self.shared.dv
            self.rows = cuda.to_device(np.arange(tokens, dtype=np.int32))
            self.table = cuda.to_device(rope_table(length, shape.dim, config.rope_theta, config.rope_scaling))
        self.names = OF_GPT2 if shape.gpt2 else OF_LLAMA
        self.kernels = kernels or Kernels()

    # --- Its parts ---------------------------------------------------------------------------------------------------

    def name(self, layer: int, part: str) -> str:
        return f"{'h' if self.shape.gpt2 else 'layers'}.{layer}.{self.names[part]}"

    def norm(self, name: str, x, out, stream) -> None:
        if self.shape.gpt2:
            self.kernels.layernorm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], out, stream=stream)
        else:
            self.kernels.rmsnorm(x, self.weights[f"{name}.weight"], out, self.shape.epsilon, stream=stream)

    def norm_backward(self, name: str, x, dout, dx, accumulate: bool, stream, residual=None) -> None:
        """dx: the gradient of x, and of the residual that goes past the norm; it may be dout or residual."""
        weight, gradient = self.weights[f"{name}.weight"], self.gradients[f"{name}.weight"]
        if self.shape.gpt2:
            self.kernels.layernorm_backward(x, weight, dout, dx, gradient, self.gradients[f"{name}.bias"], accumulate,
                                            self.shape.epsilon, stream=stream, residual=residual)
        else:
            self.kernels.rmsnorm_backward(x, weight, dout, dx, gradient, accumulate, self.shape.epsilon, stream=stream,
                                          residual=residual)

    def product(self, name: str, x, out, stream, residual=None) -> None:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if residual is None:
            self.kernels.linear(rows_of(x), weight, out, bias, stream=stream)
        else:
            self.kernels.linear_residual(rows_of(x), weight, residual, out, bias, stream=stream)

    def product_backward(self, name: str, x, dout, dx, accumulate: bool, stream) -> None:
        workspace, bias = self.shared.workspace, self.gradients.get(f"{name}.bias")
        self.kernels.linear_backward_weight(dout, rows_of(x), self.gradients[f"{name}.weight"], accumulate=accumulate,
                                            workspace=workspace, stream=stream)
        if bias is not None:
            self.kernels.linear_backward_bias(dout, bias, accumulate=accumulate, workspace=workspace, stream=stream)
        self.kernels.linear_backward_input(dout, self.weights[f"{name}.weight"], rows_of(dx), stream=stream)

    # --- Forward -----------------------------------------------------------------------------------------------------

    def forward(self, ids, stream=0) -> None:
        """ids (T,) int32 on the device; the logits of all tokens are in self.logits."""
        s, x = self.shared, self.residuals[0]
        if self.shape.gpt2:
            self.kernels.token_embedding(ids, self.weights["wte.weight"], s.final, stream=stream)  # (T, C)
            self.kernels.token_embedding(self.positions, self.weights["wpe.weight"], x, stream=stream)
            self.kernels.add(s.final, x, x, stream)
        else:
            self.kernels.token_embedding(ids, self.weights[EMBEDDING], x, stream=stream)
        for layer in range(self.shape.layers):
            self.layer(layer, stream)
        self.norm("ln_f" if self.shape.gpt2 else "norm", self.residuals[-1], s.final, stream)
        self.kernels.linear(s.final, self.weights[HEAD], self.logits, stream=stream)  # (T, V)

    def layer(self, index: int, stream) -> None:
        a, s = self.layers[index], self.shared
        self.norm(self.name(index, "norm1"), a.x, a.normed1, stream)
        qkv = a.qkv if self.shape.gpt2 else s.qkv
        self.product(self.name(index, "qkv"), a.normed1, qkv, stream)  # (T, (H + 2K) * D)
        if not self.shape.gpt2:
            cache = (len(self.positions), self.shape.kv_heads, 1, self.shape.dim)  # pages of one token: (T, K, D)
            self.kernels.rope_split_cache(qkv, self.table, self.positions, self.rows, a.q, a.k.reshape(cache),
                                          a.v.reshape(cache), stream=stream)
        self.kernels.attention(*self.split[index], self.cu_seqlens, self.length, a.attended, a.lse, stream=stream)
        self.product(self.name(index, "out"), a.attended, a.mid, stream, residual=a.x)  # (T, C)
        self.norm(self.name(index, "norm2"), a.mid, a.normed2, stream)
        self.product(self.name(index, "up"), a.normed2, a.first, stream)  # (T, G)
        (self.kernels.gelu if self.shape.gpt2 else self.kernels.swiglu)(a.first, a.gated, stream=stream)  # (T, I)
        self.product(self.name(index, "down"), a.gated, self.residuals[index + 1], stream, residual=a.mid)  # (T, C)

    # --- Backward ----------------------------------------------------------------------------------------------------

    def loss(self, targets, scale, stream=0) -> None:
        """The losses of all tokens are in self.losses, and the logits become their gradients, times scale[0]."""
        self.kernels.cross_entropy(self.logits, targets, scale, self.losses, self.logits, stream=stream)

    def backward(self, ids, targets, scale, accumulate: bool, stream=0) -> None:
        """After forward: the gradients of scale[0] times the sum of all losses."""
        s, tokens = self.shared, self.gradients["wte.weight" if self.shape.gpt2 else EMBEDDING]
        tied = tokens is self.gradients[HEAD]
        self.loss(targets, scale, stream)
        self.kernels.linear_backward_weight(self.logits, s.final, self.gradients[HEAD], accumulate=accumulate,
                                            workspace=s.workspace, stream=stream)
        self.kernels.linear_backward_input(self.logits, self.weights[HEAD], s.dx, stream=stream)
        self.norm_backward("ln_f" if self.shape.gpt2 else "norm", self.residuals[-1], s.dx, s.dx, accumulate, stream)
        for layer in reversed(range(self.shape.layers)):
            self.layer_backward(layer, accumulate, stream)
        self.kernels.token_embedding_backward(ids, s.dx, tokens, accumulate or tied, stream=stream)
        if self.shape.gpt2:
            self.kernels.position_embedding_backward(s.dx, self.gradients["wpe.weight"][: self.length], accumulate,
                                                     stream=stream)

    def layer_backward(self, index: int, accumulate: bool, stream) -> None:
        """s.dx: the gradient of what follows the layer; it becomes that of its input."""
        a, s = self.layers[index], self.shared
        self.product_backward(self.name(index, "down"), a.gated, s.dx, s.dgated, accumulate, stream)
        activation_backward = self.kernels.gelu_backward if self.shape.gpt2 else self.kernels.swiglu_backward
        activation_backward(a.first, s.dgated, s.dfirst, stream=stream)
        self.product_backward(self.name(index, "up"), a.normed2, s.dfirst, s.dnormed, accumulate, stream)
        self.norm_backward(self.name(index, "norm2"), a.mid, s.dnormed, s.dx, accumulate, stream, residual=s.dx)
        self.product_backward(self.name(index, "out"), a.attended, s.dx, s.dattended, accumulate, stream)
        self.kernels.attention_backward(*self.split[index], a.attended, a.lse, s.dattended, self.cu_seqlens,
                                        self.length, *self.split_gradients, delta=s.delta, stream=stream)
        if not self.shape.gpt2:
            self.kernels.rope_split_backward(*self.split_gradients, self.table, self.positions, s.qkv, stream=stream)
        self.product_backward(self.name(index, "qkv"), a.normed1, s.qkv, s.dnormed, accumulate, stream)
        self.norm_backward(self.name(index, "norm1"), a.x, s.dnormed, s.dx, accumulate, stream, residual=s.dx)

    def first_not_finite(self) -> str | None:
        """The first activation of the last forward pass with an element that is not finite, by its layer."""
        for index, layer in enumerate(self.layers):
            for name, array in vars(layer).items():
                if not is_finite(array):
                    return f"{name} of layer {index}"
        return None if is_finite(self.residuals[-1]) else "the output of the last layer"


def is_finite(array) -> bool:
    values = array.copy_to_host()
    return bool(((values & 0x7F80) != 0x7F80).all() if values.dtype == np.uint16 else np.isfinite(values).all())


def split_heads(shape: Shape, qkv) -> tuple:
    """Return views of the queries, keys and values (T, heads, D) of a product (T, (H + 2K) * D)."""
    H, K, D, memory, itemsize = shape.heads, shape.kv_heads, shape.dim, qkv.reshape(qkv.size), qkv.dtype.itemsize
    # A slice of heads is the same view, but Numba takes a fifth of a second for one of 16,384 tokens.
    return tuple(type(qkv)((qkv.shape[0], heads, D), (qkv.shape[1] * itemsize, D * itemsize, itemsize), qkv.dtype,
                           gpu_data=memory[first * D :].gpu_data)
                 for first, heads in ((0, H), (H, K), (H + K, K)))


def rows_of(array):
    """(T, H, D) as (T, H * D)."""
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))
