"""attention, attention_causal and attention_cached: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.attention.three_pass."""

import functools
import math

import numpy as np

from labkit.kernels.attention.decode import attention_decode
from labkit.kernels.attention.flash import attention_flash
from labkit.kernels.attention.flash_plain import attention_flash_plain
from labkit.kernels.attention.three_pass import (
    attention_all_threads,
    attention_reference,
    attention_three_pass,
    attention_weights,
    split_heads,
)
from labkit.kernels.attention.whole_matrix import attention_whole_matrix
from labkit.kernels.baselines import Baseline, numpy_cupy_torch, sdpa
from labkit.kernels.op import Op, Work, sizes, uniform
from labkit.kernels.tolerance import EPS32


def tolerance_of(qkv, heads, cache=None, start=None, *, causal=False):
    """A score is a sum of D products; its absolute error gives its weight the same relative error. Added to that are
    the roundings of the difference from row_max, of the exponential and of the sums."""
    width = qkv.shape[1] // 3
    keys_values = qkv[:, width:] if cache is None else cache
    queries, keys, values = (split_heads(part, heads) for part in
                             (qkv[:, :width], keys_values[:, :width], keys_values[:, width:]))
    weights, scores = attention_weights(queries, keys, 0 if start is None else int(start[0]), causal)
    head_dim = queries.shape[2]
    magnitudes = np.abs(queries) @ np.abs(np.swapaxes(keys, 1, 2)) / math.sqrt(head_dim)
    exponents = np.abs(scores).max(axis=2, keepdims=True) + np.abs(scores)
    relative = (4 * math.sqrt(head_dim) * magnitudes.max(axis=2, keepdims=True) + exponents + 8
                + 3 * math.sqrt(keys.shape[1]))
    return EPS32 * np.moveaxis((weights * relative) @ np.abs(values), 0, 1).reshape(len(qkv), width)


def _bound(launch, prefix: str, causal: bool):
    def bound(qkv, heads, *args, stream=0):
        *cached, out = args
        options = {"cache": cached[0], "start": cached[1]} if cached else {}
        launch(qkv, heads, out, causal=causal, stream=stream, **options)

    return launch.called(launch.__name__.removesuffix("_half").replace("attention", prefix, 1), bound)


LAUNCHERS = (attention_three_pass, attention_all_threads, attention_whole_matrix, attention_flash)
WITHOUT_A_CACHE = (*LAUNCHERS[:-1], attention_flash_plain, LAUNCHERS[-1])


def _inputs(rng, S, H, D):
    return 2 * uniform(rng, S, 3 * H * D), H


def _inputs_with_cache(rng, S, H, D, before):
    qkv, _ = _inputs(rng, S, H, D)
    cache = 2 * uniform(rng, before + S + UNUSED, 2 * H * D)
    cache[before : before + S] = qkv[:, H * D :]
    return qkv, H, cache, np.array([before], np.int32)


def unfused_by_library(causal: bool):
    """Two products and a softmax, each with its own output."""
    def call(xp, qkv, heads, out):
        rows, width = out.shape
        q, k, v = (qkv[:, n * width : (n + 1) * width].reshape(rows, heads, -1).swapaxes(0, 1) for n in range(3))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(width // heads)
        if causal:
            options = {"device": qkv.device} if xp.__name__ == "torch" else {}
            key = xp.arange(rows, **options)
            scores[:, key > key[:, None]] = -math.inf
        if xp.__name__ == "torch":
            weights = xp.softmax(scores, dim=2)
        else:
            weights = xp.exp(scores - scores.max(axis=2, keepdims=True))
            weights = weights / weights.sum(axis=2, keepdims=True)
        out[:] = (weights @ v).swapaxes(0, 1).reshape(rows, width)

    return call


def fused_by_torch(causal: bool):
    """A call(torch, qkv, heads, out) of PyTorch's scaled_dot_product_attention, SDPA."""
    def call(torch, qkv, heads, out):
        rows, width = out.shape
        q, k, v = qkv.view(1, rows, 3, heads, width // heads).permute(2, 0, 3, 1, 4)  # (1, H, S, D) each
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return attended.transpose(1, 2).reshape(rows, width)

    return call


def cached_by_torch(torch, qkv, heads, cache, start, out):
    """SDPA of one query over the used rows of the cache; reading start would synchronize."""
    width, visible = out.shape[1], len(cache) - UNUSED
    q, k, v = (part.view(1, -1, heads, width // heads).transpose(1, 2) for part in
               (qkv[:, :width], cache[:visible, :width], cache[:visible, width:]))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(out.shape)


def cached_unfused(torch, qkv, heads, cache, start, out):
    """The same by two products and a softmax."""
    width, visible = out.shape[1], len(cache) - UNUSED
    q, k, v = (part.view(-1, heads, width // heads).transpose(0, 1) for part in
               (qkv[:, :width], cache[:visible, :width], cache[:visible, width:]))
    weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(width // heads), dim=-1)
    return (weights @ v).transpose(0, 1).reshape(out.shape)


CACHED_UNFUSED = Baseline("PyTorch", "torch", cached_unfused, "two products and a softmax")
UNUSED = 3  # rows of the cache beyond those in use

SIZES = ((1, 1, 1), (5, 2, 3), (16, 3, 16), (33, 2, 64), (70, 1, 80), (40, 1, 255), (3, 1, 300), (300, 1, 64),
         (17, 3, 64), (65, 1, 64), (1, 1, 64))


def work_of(causal: bool) -> Work:
    return Work(
        flops=lambda S, H, D: 4 * S * S * H * D // (2 if causal else 1),
        bytes=lambda S, H, D: 16 * S * H * D,
        timed_gpu={"S": 1024, "H": 12, "D": 64},
        timed_cpu={"S": 64, "H": 2, "D": 64},
        also_gpu=tuple({"S": S, "H": 12, "D": 64} for S in (16, 128, 4096)),
        unit="TFLOP/s",
    )


def make_op(name: str, title: str, causal: bool, **overrides):
    fields = {
        "inputs": _inputs,
        "shape": lambda S, H, D: (S, H * D),
        "awkward": sizes("S H D", *SIZES),
        "work": work_of(causal),
        "baselines": (*numpy_cupy_torch(unfused_by_library(causal), note="two products and a softmax"),
                      *sdpa(fused_by_torch(causal), ("EFFICIENT_ATTENTION",))),
        "launchers": WITHOUT_A_CACHE,
        "tolerance": functools.partial(tolerance_of, causal=causal),
    }
    fields |= overrides
    return Op(name, title=title, reference=functools.partial(attention_reference, causal=causal),
              rungs=tuple(_bound(launch, name, causal) for launch in fields.pop("launchers")),
              formula="out[t, h] = sum over j of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h]" +
                      (", j <= t" if causal else ""),
              by_row=(), **fields)


ATTENTION = make_op("attention", "Multi-head attention", False)
ATTENTION_CAUSAL = make_op("attention_causal", "Multi-head attention, causal", True)

ATTENTION_CACHED = make_op(
    "attention_cached", "Multi-head attention with a KV cache, causal", True,
    inputs=_inputs_with_cache,
    shape=lambda S, H, D, before: (S, H * D),
    awkward=sizes("S H D before", (1, 1, 1, 0), (1, 3, 16, 5), (4, 2, 64, 31), (1, 2, 64, 299), (3, 1, 300, 2),
                  (7, 2, 5, 0), (5, 1, 80, 130)),
    work=Work(
        flops=lambda S, H, D, before: 4 * S * (before + S) * H * D,
        bytes=lambda S, H, D, before: 8 * (before + S) * H * D,
        timed_gpu={"S": 1, "H": 12, "D": 64, "before": 1023},
        timed_cpu={"S": 1, "H": 2, "D": 64, "before": 127},
        unit="TFLOP/s",
    ),
    baselines=(CACHED_UNFUSED, *sdpa(cached_by_torch, ("EFFICIENT_ATTENTION",))),
    launchers=(*LAUNCHERS, attention_decode),
)
