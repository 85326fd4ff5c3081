"""How MiniLM became fast: the model in forms that each change one thing, slowest first, all in float16.

    for step in STEPS:
        model.with_kernels(step.kernels).embed(sentences, form=step.form)

The first eight are those of a write-up of a BERT in CUDA C++ for one consumer GPU, rebuilt from its description; those
after it are ours. Every form has the same parameters and, up to roundings, the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from labkit.kernels.attention.head_layout import merge_heads, split_heads
from labkit.kernels.attention.sentences_unfused import attention_sentences_three_launches_half, scores_shape
from labkit.kernels.attention.whole_matrix import attention_sentences_whole_matrix
from labkit.kernels.embedding_sum import embedding_sum
from labkit.kernels.linear import layers
from labkit.kernels.norm.half import add_layernorm_half_warp, layernorm_half_block, layernorm_half_warp
from labkit.models.configs import PARTS
from labkit.models.minilm import HALF, Config, Kernels, Shape, attention_of_one_product, linear_half

# --- Pieces of the first steps ---------------------------------------------------------------------------------------


def then_gelu(linear: Callable) -> Callable:
    """A linear layer, and GELU as a launch of its own."""
    def in_two_launches(x, weights, bias, out, *, gelu=False, parts=None, stream=0):
        linear(x, weights, bias, out, stream=stream)
        if gelu:
            layers.after(layers.GELU_ERF, out, stream=stream)

    return in_two_launches


def with_gelu(linear: Callable, linear_gelu: Callable) -> Callable:
    """A linear layer, with GELU in its epilogue."""
    def in_one_launch(x, weights, bias, out, *, gelu=False, parts=None, stream=0):
        (linear_gelu if gelu else linear)(x, weights, bias, out, stream=stream)

    return in_one_launch


def add_then_layernorm(layernorm: Callable) -> Callable:
    """The residual as a launch of its own, into x, and LayerNorm."""
    def in_two_launches(x, residual, weight, bias, out, *, epsilon, stream=0):
        layers.after(layers.add_float16_kernel, x, residual, stream=stream)
        layernorm(x, weight, bias, out, epsilon=epsilon, stream=stream)

    return in_two_launches


def sum_then_layernorm(layernorm: Callable) -> Callable:
    """The three embeddings added, and LayerNorm as a launch of its own."""
    def in_two_launches(ids, types, positions, words, places, kinds, weight, bias, out, *, epsilon, stream=0):
        embedding_sum(ids, types, positions, words, places, kinds, out, stream=stream)
        layernorm(out, weight, bias, out, epsilon=epsilon, stream=stream)

    return in_two_launches


def attention_of_three_products(x, w, b, kernels, heads, stream, report) -> None:
    """As in textbooks: queries, keys and values as three products, each split into its heads; attention for each
    head; and the heads merged. Only for padded batches."""
    T, C = x.shape
    B, scratch = b.begins.size, b.scratch
    if B * b.longest != T:
        raise ValueError(f"the batch has {T} rows; {B} sentences padded to {b.longest} are needed here")
    products = b.qkv.reshape(3, T, C)  # the memory of one product holds three
    begins, lengths = scratch["head_begins"][: B * heads], scratch["head_lengths"][: B * heads]
    per_head = scratch["apart"][: 3 * T * C].reshape(T * heads, 3 * C // heads)
    context = scratch["context"][: T * C].reshape(T * heads, C // heads)
    for i, part in enumerate(PARTS):
        rows = slice(i * C, (i + 1) * C)
        kernels.linear(x, w["attention.self.qkv.weight"][rows], w["attention.self.qkv.bias"][rows], products[i],
                       stream=stream)  # (T, C)
        report(part, products[i])
    for i in range(len(PARTS)):
        split_heads(products[i], i, b.lengths, heads, per_head, begins, lengths, stream=stream)  # (T*H, 3D)
    kernels.attention(per_head, 1, begins, lengths, b.longest, context,
                      **b.attention_scratch, stream=stream)
    merge_heads(context, B, heads, b.attended, stream=stream)  # (T, C)
    report("attended", b.attended)


def memory_apart(config: Config, shape: Shape, dtype) -> dict:
    """The scratch memory of attention_of_three_products."""
    heads, elements = shape.sentences * config.num_attention_heads, shape.rows * config.hidden_size
    return {"apart": (3 * elements, dtype), "context": (elements, dtype), "head_begins": (heads, np.int32),
            "head_lengths": (heads, np.int32)}


def three_launches(tile: int | None = None) -> Callable:
    """Scores, softmax and context as three launches. tile: queries and keys of a block of the scores; 16 is a warp's
    single tile of 16 x 16, the default has up to four of them side by side in registers."""
    def attention(qkv, heads, begins, lengths, longest, out, *, scores, stream=0):
        shape = scores_shape(heads, lengths.size, longest)
        attention_sentences_three_launches_half(qkv, heads, begins, lengths, longest, out, stream=stream,
                                                scores=scores[: math.prod(shape)].reshape(shape), scores_tile=tile)

    return attention


def memory_for_scores(config: Config, shape: Shape, dtype) -> dict:
    """The matrices of scores between the three launches."""
    return {"scores": (math.prod(scores_shape(config.num_attention_heads, shape.sentences, shape.longest)), dtype)}


# --- The steps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A version of the model. changes: the differences from the step above."""

    name: str
    changes: str
    kernels: Kernels
    form: str = "padded_to_128"


SIMPLE = Kernels(
    linear=then_gelu(layers.linear_tensor_core), attention=three_launches(16),
    add_layernorm=add_then_layernorm(layernorm_half_block), embed=sum_then_layernorm(layernorm_half_block),
    self_attention=attention_of_three_products, scratch=(memory_apart, memory_for_scores), attention_takes=("scores",),
)  # fmt: skip
COPIES = replace(SIMPLE, linear=then_gelu(layers.linear_double_buffered))
ONE_PRODUCT = replace(COPIES, self_attention=attention_of_one_product, scratch=(memory_for_scores,))
WARP_NORM = replace(ONE_PRODUCT, add_layernorm=add_layernorm_half_warp, embed=sum_then_layernorm(layernorm_half_warp))
EPILOGUE = replace(WARP_NORM, linear=with_gelu(layers.linear_double_buffered, layers.linear_gelu_double_buffered))
BLOCKED_SCORES = replace(EPILOGUE, attention=three_launches())
F16_ACCUMULATORS = replace(BLOCKED_SCORES, linear=with_gelu(layers.linear_f16_accumulators,
                                                            layers.linear_gelu_f16_accumulators))
WGMMA = replace(BLOCKED_SCORES, linear=linear_half, embed=HALF.embed)

STEPS = (
    Step("simple", "products on tensor cores, a 16 x 16 tile a warp; queries, keys and values as three products, "
         "copied to heads and back; LayerNorm by a block a row; GELU and residuals as launches of their own", SIMPLE),
    Step("cp.async", "products from two buffers in shared memory, filled past the registers; 64 x 32 a warp", COPIES),
    Step("one product", "queries, keys and values as one product; heads read by strides, no copies", ONE_PRODUCT),
    Step("warp LayerNorm", "a warp for each row, by shuffles; the residual is added in it", WARP_NORM),
    Step("GELU fused", "GELU in the epilogue of the product before it", EPILOGUE),
    Step("scores in registers", "a warp of the scores has 16 x 64 of them, not 16 x 16", BLOCKED_SCORES),
    Step("float16 accumulators", "products are summed in float16", F16_ACCUMULATORS),
    Step("no padding to 128", "sentences padded to the longest of the batch, rounded up to 16", F16_ACCUMULATORS,
         "padded"),
    Step("wgmma", "float32 accumulators again; Hopper's own instructions for the products, GELU in their epilogue; "
         "embedding and LayerNorm in one launch", WGMMA, "padded"),
    Step("tiled attention", "attention as one launch: scores and weights stay in registers", HALF, "padded"),
    Step("packed", "no padding at all: sentences end to end", HALF, "packed"),
)  # fmt: skip
# Before the first step: all linear layers by the plain kernels of lesson 06. The last one is that step.
PRODUCTS = {"naive": replace(SIMPLE, linear=then_gelu(layers.linear_naive)),
            "tiled": replace(SIMPLE, linear=then_gelu(layers.linear_tiled)), "tensor cores": SIMPLE}
# What the step "scores in registers" is to "float16 accumulators": the same with float32 ones.
CONTROL = {"float16 accumulators": "scores in registers"}
# Attention in each form, beside the same kernels.
ATTENTIONS = {
    "three launches": WGMMA,
    "whole matrix": replace(HALF, attention=attention_sentences_whole_matrix),
    "tiles": HALF,
}


def step(name: str) -> Step:
    """The step of this name. Raises ValueError if there is none."""
    for one in STEPS:
        if one.name == name:
            return one
    raise ValueError(f"no step is called {name!r}; there are {', '.join(repr(one.name) for one in STEPS)}")
