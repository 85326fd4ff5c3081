"""The launchers of a model with some of them replaced: learners' kernels in their parts, the rest the model's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.yours.places import PARTS
from labkit.kernels.attention.three_pass import attention as models_attention
from labkit.kernels.gelu import gelu_sigmoid_form
from labkit.kernels.linear.projection import add_bias_kernel
from labkit.kernels.pooling import l2_normalize
from labkit.kernels.residual_add import residual_add_vectorized
from labkit.kernels.rope import rope_table
from labkit.models import llama, minilm
from labkit.models.gpt2 import Kernels
from labkit.models.gpt2_block import FUSED


def kernels(parts: Mapping[str, Callable]) -> Kernels:
    """The launchers of a model with these in their places, called as PARTS says; the rest is the model's own."""
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"{part!r} is no part of the model; the parts are {', '.join(PARTS)}")
    direct = ("embedding", "layernorm", "attention", "append_to_cache", "logits", "argmax")
    overrides = {part: parts[part] for part in direct if part in parts}
    if "one_head" in parts and "attention" not in parts:
        overrides["attention"] = attention_of_heads(parts["one_head"])
    elif "softmax" in parts and "attention" not in parts:
        overrides["attention"] = attention_around(parts["softmax"])
    if parts.keys() & {"product", "bias", "bias_gelu", "gelu", "add"}:
        overrides["linear"] = linear_of(parts)
    return Kernels(**overrides)


def encoder_kernels(parts: Mapping[str, Callable], base: minilm.Kernels) -> minilm.Kernels:
    """The launchers of a sentence encoder with these in their places; the rest is `base`. epsilon is not passed on: the
    exercises' kernels have BERT's built in."""
    overrides = {}
    if embed := parts.get("encoder_embedding"):
        overrides["embed"] = lambda *arrays, epsilon, stream=0: embed(*arrays, stream=stream)
    if pool := parts.get("pool"):

        def pool_normalized(x, begins, lengths, out, stream=0):
            pool(x, begins, lengths, out, stream=stream)
            l2_normalize(out, out, stream=stream)

        overrides |= {"pool": pool, "pool_normalized": pool_normalized}
    if attention := parts.get("encoder_attention"):
        overrides["attention"] = attention
    if add_layernorm := parts.get("add_layernorm"):
        overrides["add_layernorm"] = lambda *arrays, epsilon, stream=0: add_layernorm(*arrays, stream=stream)
    return replace(base, **overrides)


def llama_kernels(parts: Mapping[str, Callable], base: llama.Kernels) -> llama.Kernels:
    """The launchers of a Llama in float32 with these in their places; the rest is `base`."""
    overrides = {}
    if norm := parts.get("rmsnorm"):

        def rmsnorm(x, weight, out, eps, stream=0):
            norm(x, weight, np.float32(eps), out, stream=stream)

        def add_rmsnorm(x, residual, weight, out, eps, stream=0):
            residual_add_vectorized(x, residual, residual, stream=stream)
            norm(residual, weight, np.float32(eps), out, stream=stream)

        overrides |= {"rmsnorm": rmsnorm, "add_rmsnorm": add_rmsnorm}
    if rope := parts.get("rope"):
        overrides["rope_split_cache"] = rope_in_place(rope, base.rope_split_cache)
    if attention := parts.get("paged_attention"):

        def paged_decode(q, keys, values, page_table, contexts, out, scale, parts, stream=0):
            attention(q, keys, values, page_table, contexts, np.float32(scale), out, stream=stream)

        overrides["paged_decode"] = paged_decode
    return replace(base, **overrides)


def rope_in_place(rope: Callable, split: Callable) -> Callable:
    """Rotate in place in qkv, then split by the model's own launch, which rotates by angles of 0."""

    def rope_split_cache(qkv, table, positions, slots, q, keys, values, q_norm=None, k_norm=None, stream=0, **options):
        if q_norm is not None:  # a Qwen3 has norms before the rotation, which no exercise computes
            split(qkv, table, positions, slots, q, keys, values, q_norm, k_norm, stream=stream, **options)
            return
        tokens, heads, size = q.shape
        kv_heads = keys.shape[1]
        rotated = qkv.reshape(tokens, heads + 2 * kv_heads, size)[:, : heads + kv_heads]
        rope(rotated, table, positions, rotated, stream=stream)
        split(qkv, *_unrotated(tokens, size), slots, q, keys, values, stream=stream, **options)

    return rope_split_cache


@functools.cache
def _unrotated(tokens: int, size: int) -> tuple:
    """A table of one position, whose angles are 0, and that position for each token."""
    return cuda.to_device(rope_table(1, size, 10_000.0)), cuda.to_device(np.zeros(tokens, np.int32))


def linear_of(parts: Mapping[str, Callable]) -> Callable:
    """A linear layer and what follows it, a launch for each where one of these parts is in it, else the model's own."""

    def linear(x, weights, bias, out, *, residual=None, gelu=False, parts=None, stream=0):
        fused = gelu and "bias_gelu" in overrides
        relevant = {"product", "bias", *(["bias_gelu", "gelu"] if gelu else []),
                    *(["add"] if residual is not None else [])}
        if not relevant & overrides.keys():
            FUSED.linear(x, weights, bias, out, residual=residual, gelu=gelu, parts=parts, stream=stream)
            return
        if "product" in overrides:
            overrides["product"](x, weights, out, stream=stream)
        else:
            FUSED.linear(x, weights, zeros(out.shape[1]), out, parts=parts, stream=stream)
        if fused:
            overrides["bias_gelu"](out, bias, out, stream=stream)
        else:
            overrides.get("bias", add_bias)(out, bias, out, stream=stream)
        if gelu and not fused:
            overrides.get("gelu", gelu_sigmoid_form)(out, out, stream=stream)
        if residual is not None:
            overrides.get("add", residual_add_vectorized)(out, residual, out, stream=stream)

    overrides = dict(parts)
    return linear


@functools.cache
def zeros(count: int):
    return cuda.to_device(np.zeros(count, np.float32))


def add_bias(x, bias, out, stream=0):
    rows, cols = out.shape
    add_bias_kernel[(-(-cols // 256), min(rows, 65_535)), 256, stream](bias, out)


@cuda.jit
def scores_kernel(qkv, scores, scale):
    key, query, head = cuda.grid(3)
    if key < scores.shape[2] and query < scores.shape[1]:
        width = qkv.shape[1] // 3
        size = width // scores.shape[0]
        total = float32(0.0)
        for i in range(size):
            total += qkv[query, head * size + i] * qkv[key, width + head * size + i]
        scores[head, query, key] = total * scale


@cuda.jit
def mix_kernel(weights, qkv, out):
    col, query = cuda.grid(2)
    if col < out.shape[1] and query < out.shape[0]:
        head = col // (out.shape[1] // weights.shape[0])
        total = float32(0.0)
        for key in range(weights.shape[2]):
            total += weights[head, query, key] * qkv[key, 2 * out.shape[1] + col]
        out[query, col] = total


def _has_earlier_keys(out, cache, start) -> bool:
    """Whether the cache may hold keys of earlier tokens. One row with a cache is a decode step, which may be being
    captured in a graph, where the host cannot read start."""
    return cache is not None and (out.shape[0] == 1 or int(start.copy_to_host()[0]) > 0)


def attention_of_heads(one_head: Callable) -> Callable:
    """Attention from a kernel for one head without a mask: with a mask, there is one launch per query, over its
    visible keys. It uses the rows of qkv only; with keys of earlier tokens the model's own attention is used."""

    def attention(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
        if _has_earlier_keys(out, cache, start):
            models_attention(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
            return
        tokens, width = out.shape
        size = width // heads
        rows = [(t, t + 1, t + 1) for t in range(tokens)] if causal else [(0, tokens, tokens)]
        for col in range(0, width, size):
            queries, keys, values = (qkv[:, part + col : part + col + size] for part in (0, width, 2 * width))
            for begin, end, visible in rows:
                one_head(queries[begin:end], keys[:visible], values[:visible], out[begin:end, col : col + size],
                         stream=stream)

    return attention


def attention_around(softmax: Callable) -> Callable:
    """Attention in three launches, the causal softmax of (heads, S, S) scores between two products. It, too, uses the
    rows of qkv only."""

    @functools.cache
    def matrices(heads, tokens):
        return tuple(cuda.device_array((heads, tokens, tokens), np.float32) for _ in range(2))

    def attention(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
        tokens, width = out.shape
        if not causal or _has_earlier_keys(out, cache, start):
            models_attention(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)
            return
        scores, weights = matrices(heads, tokens)
        blocks = -(-tokens // 32)
        scores_kernel[(blocks, -(-tokens // 8), heads), (32, 8, 1), stream](
            qkv, scores, np.float32((width // heads) ** -0.5))
        softmax(scores, weights, stream=stream)
        mix_kernel[(-(-width // 32), -(-tokens // 8)), (32, 8), stream](weights, qkv, out)

    return attention
