"""attention_half, attention_half_causal and attention_half_cached: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.attention.half."""

import functools
from dataclasses import replace

import numpy as np

from labkit.kernels.attention.half import attention_decode_half, attention_flash_half
from labkit.kernels.attention.three_pass import attention_weights, split_heads
from labkit.kernels.attention.wgmma import attention_flash_wgmma
from labkit.kernels.baselines import sdpa
from labkit.kernels.op import sizes, uniform
from labkit.kernels.ops.attention import (
    ATTENTION_CACHED,
    CACHED_UNFUSED,
    cached_by_torch,
    fused_by_torch,
    make_op,
    tolerance_of,
    work_of,
)
from labkit.kernels.tolerance import EPS16, SMALLEST16


def tolerance_half(qkv, heads, cache=None, start=None, *, causal=False):
    """Beyond that of float32: each exponential and each result is rounded to float16; twice these errors are
    allowed."""
    width = qkv.shape[1] // 3
    keys_values = qkv[:, width:] if cache is None else cache
    queries, keys, values = (split_heads(part, heads) for part in
                             (qkv[:, :width], keys_values[:, :width], keys_values[:, width:]))
    weights, _ = attention_weights(queries, keys, 0 if start is None else int(start[0]), causal)
    rounding = EPS16 * (weights @ np.abs(values) + np.abs(weights @ values))
    underflow = SMALLEST16 * (1 + np.abs(values).sum(axis=1, keepdims=True))
    return (tolerance_of(qkv, heads, cache, start, causal=causal)
            + np.moveaxis(rounding + underflow, 0, 1).reshape(len(qkv), width))


def _inputs(rng, S, H, D):
    return (2 * uniform(rng, S, 3 * H * D)).astype(np.float16), H


def _inputs_with_cache(rng, S, H, D, before):
    """The inputs of ATTENTION_CACHED, in float16."""
    return tuple(value.astype(np.float16) if getattr(value, "dtype", None) == np.float32 else value
                 for value in ATTENTION_CACHED.inputs(rng, S, H, D, before))


SDPA_BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")


def _half(causal: bool) -> dict:
    return {
        "launchers": (attention_flash_half, attention_flash_wgmma),
        "inputs": _inputs,
        "tolerance": functools.partial(tolerance_half, causal=causal),
        "work": replace(work_of(causal), bytes=lambda S, H, D: 8 * S * H * D, peak="f16"),
        "baselines": sdpa(fused_by_torch(causal), SDPA_BACKENDS),
        "dtype": np.float16,
        "awkward": sizes("S H D", (1, 1, 64), (17, 3, 64), (65, 1, 64), (130, 1, 64), (33, 2, 48)),
    }


ATTENTION_HALF = make_op("attention_half", "Multi-head attention in float16", False, **_half(False))
ATTENTION_HALF_CAUSAL = make_op("attention_half_causal", "Multi-head attention in float16, causal", True, **_half(True))

ATTENTION_HALF_CACHED = make_op(
    "attention_half_cached", "Multi-head attention in float16 with a KV cache, causal", True, **_half(True) | {
        "launchers": (attention_flash_half, attention_decode_half),
        "inputs": _inputs_with_cache,
        "shape": ATTENTION_CACHED.shape,
        "awkward": sizes("S H D before", (1, 1, 64, 0), (1, 3, 64, 5), (4, 2, 64, 254), (5, 1, 48, 130)),
        "work": replace(ATTENTION_CACHED.work, bytes=lambda S, H, D, before: 4 * (before + S) * H * D, peak="f16"),
        "baselines": (replace(CACHED_UNFUSED, tolerance=lambda *inputs: 4 * tolerance_half(*inputs, causal=True)),
                      *sdpa(cached_by_torch, SDPA_BACKENDS)),
    })
