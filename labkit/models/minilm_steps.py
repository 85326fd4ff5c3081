"""How MiniLM became fast: the model in forms that each change one thing, slowest first, all in float16.

    for step in STEPS:
        model.with_kernels(step.kernels).embed(sentences, form=step.form)

The first eight are those of a write-up of a BERT in CUDA C++ for one consumer GPU, rebuilt from its description; those
after it are ours. Every form has the same parameters and, up to roundings, the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from labkit.kernels.attention.sentences import attention_sentences_flash_half, attention_sentences_three_launches
from labkit.kernels.attention.split_heads import merge_heads, split_heads
from labkit.kernels.embedding_sum import embedding_sum
from labkit.kernels.linear.layers import (
    GELU_ERF,
    add_float16_kernel,
    after,
    linear_double_buffered,
    linear_f16_accumulators,
    linear_gelu_double_buffered,
    linear_gelu_f16_accumulators,
    linear_tensor_core,
)
from labkit.kernels.norm.half import add_layernorm_half_warp, layernorm_half_warp
from labkit.kernels.norm.half_block import layernorm_half_block
from labkit.models.minilm import PARTS, Config, Kernels, Shape, attention_of_one_product, linear_half

# --- Pieces of the first steps ---------------------------------------------------------------------------------------


def then_gelu(linear: Callable) -> Callable:
    """A linear layer, and GELU as a launch of its own."""
    def in_two_launches(x, weights, bias, out, *, gelu=False, parts=None, stream=0):
        linear(x, weights, bias, out, stream=stream)
        if gelu:
            after(GELU_ERF, out, stream=stream)

    return in_two_launches


def with_gelu(linear: Callable, linear_gelu: Callable) -> Callable:
    """A linear layer, with GELU in its epilogue."""
    def in_one_launch(x, weights, bias, out, *, gelu=False, parts=None, stream=0):
        (linear_gelu if gelu else linear)(x, weights, bias, out, stream=stream)

    return in_one_launch


def add_then_layernorm(layernorm: Callable) -> Callable:
    """The residual as a launch of its own, into x, and LayerNorm."""
    def in_two_launches(x, residual, weight, bias, out, *, epsilon, stream=0):
        after(add_float16_kernel, x, residual, stream=stream)
        layernorm(x, weight, bias, out, epsilon=epsilon, stream=stream)

    return in_two_launches


def sum_then_layernorm(layernorm: Callable) -> Callable:
    """The three embeddings added, and LayerNorm as a launch of its own."""
    def in_two_launches(ids, types, positions, words, places, kinds, weight, bias, out, *, epsilon, stream=0):
        embedding_sum(ids, types, positions, words, places, kinds, out, stream=stream)
        layernorm(out, weight, bias, out, epsilon=epsilon, stream=stream)

    return in_two_launches


def attention_of_three_products(x, w, b, kernels, heads, stream, seen) -> None:
    """As textbooks have it: queries, keys and values as three products, each split into its heads; attention for each
    head; and the heads merged. Only for padded batches."""
    T, C = x.shape
    B, scratch = b.begins.size, b.scratch
    if T != B * b.longest:
        raise ValueError(f"the batch has {T} rows; {B} sentences padded to {b.longest} are needed here, not packed ones")
    products = b.qkv.reshape(3, T, C)  # the memory of one product holds three
    begins, lengths = scratch["head_begins"][: B * heads], scratch["head_lengths"][: B * heads]
    apart = scratch["apart"][: 3 * T * C].reshape(T * heads, 3 * C // heads)
    context = scratch["context"][: T * C].reshape(T * heads, C // heads)
    for which, part in enumerate(PARTS):
        rows = slice(which * C, (which + 1) * C)
        kernels.linear(x, w["attention.self.qkv.weight"][rows], w["attention.self.qkv.bias"][rows], products[which],
                       stream=stream)  # (T, C)
        seen(part, products[which])
    for which in range(len(PARTS)):
        split_heads(products[which], which, b.lengths, heads, apart, begins, lengths, stream=stream)  # (T*H, 3D)
    kernels.attention(apart, 1, begins, lengths, b.longest, context, **b.given(kernels.attention_takes), stream=stream)
    merge_heads(context, B, heads, b.attended, stream=stream)  # (T, C)
    seen("attended", b.attended)


def memory_apart(config: Config, shape: Shape, dtype) -> dict:
    """What attention_of_three_products needs besides."""
    heads, numbers = shape.sentences * config.num_attention_heads, shape.rows * config.hidden_size
    return {"apart": (3 * numbers, dtype), "context": (numbers, dtype), "head_begins": (heads, np.int32),
            "head_lengths": (heads, np.int32)}
