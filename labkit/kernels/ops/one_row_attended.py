"""one_row_attended and one_row_attended_half: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.attention.one_query."""

import functools
import math

import numpy as np

from labkit.kernels.attention import one_query
from labkit.kernels.attention.three_pass import attention_weights, split_heads
from labkit.kernels.linear.one_row import JOIN, RESIDUAL, make_one_row, plan
from labkit.kernels.op import Op, Work, rung, sizes, uniform
from labkit.kernels.ops.one_row import layer, sum_error, torch_baseline
from labkit.kernels.tolerance import EPS32


def attended_error(q, heads, cache, start):
    """An error of a score changes the weight of its key, and so matters as far as its value differs from the weighted
    mean; added to that are the roundings of the sum over the keys."""
    width = q.shape[1]
    queries, keys, values = (split_heads(part, heads) for part in (q, cache[:, :width], cache[:, width:]))
    weights, scores = attention_weights(queries, keys, int(start[0]), True)  # (H, 1, N) each
    head_dim = width // heads
    magnitudes = np.abs(queries) @ np.abs(np.swapaxes(keys, 1, 2)) / math.sqrt(head_dim)
    weight_error = 2 * math.sqrt(head_dim) * magnitudes + np.abs(scores) + 8
    error = (weights * weight_error) @ np.abs(values - weights @ values)
    error += (2 * math.sqrt(int(start[0]) + 1) + 4) * (weights @ np.abs(values))
    return EPS32 * np.moveaxis(error, 0, 1).reshape(1, width)


def _tolerance(q, cache, start, heads, weights, bias, residual):
    attended, error = one_query._attended(q, heads, cache, start), attended_error(q, heads, cache, start)
    return sum_error(attended, weights, bias) + np.sqrt(error**2 @ weights**2) + 2 * EPS32 * np.abs(residual)


def _torch(torch, q, cache, start, heads, weights, bias, residual, out):
    width, visible = q.shape[1], len(cache) - UNUSED  # reading start would synchronize
    queries, keys, values = (part.view(1, -1, heads, width // heads).transpose(1, 2)
                             for part in (q, cache[:visible, :width], cache[:visible, width:]))
    probabilities = torch.softmax(queries @ keys.transpose(2, 3) / math.sqrt(width // heads), dim=-1)
    attended = probabilities @ values  # SDPA is slower for one float32 query: it runs one block per head
    torch.add(torch.addmm(bias, attended.transpose(1, 2).reshape(1, width), weights), residual, out=out)


UNUSED = 2  # rows of the cache that are not in use
parts_for = functools.cache(one_query.Parts)


def _op(half: bool):
    stored = np.float16 if half else np.float32
    size = stored().itemsize

    def inputs(rng, H, D, before):
        cache = 2 * uniform(rng, before + 1 + UNUSED, 2 * H * D)
        return ((2 * uniform(rng, 1, H * D)).astype(stored), cache.astype(stored), np.array([before], np.int32), H,
                *layer(rng, H * D, H * D, stored), uniform(rng, 1, H * D))

    @rung(kernel=(one_query.make_one_query(half, 64, one_query.splits_of(12), False),
                  make_one_row(half, JOIN, RESIDUAL, 768, *plan(768, 768, half), False, heads=12,
                               splits=one_query.splits_of(12))),
          idea="two launches: heads and shares of the keys; the product, which joins them", sizes=one_query.SIZES)
    def row_attended(q, cache, start, heads, weights, bias, residual, out, stream=0):
        """Every block of the product merges the splits of each head again, while its weights are in flight."""
        parts = parts_for(heads, q.shape[1] // heads)
        one_query.one_query(q, cache, start, heads, parts, stream=stream)
        one_query.one_row_attended(parts, heads, weights, bias, residual, out, stream=stream)

    return Op(
        "one_row_attended" + "_half" * half,
        title="One row: attention, linear layer and residual" + ", float16 parameters" * half,
        formula="out = attention(q, cache) @ weights + bias + residual",
        reference=one_query._reference,
        rungs=(row_attended,),
        inputs=inputs,
        shape=lambda H, D, before: (1, H * D),
        awkward=sizes("H D before", (3, 16, 0), (2, 64, 1030), (12, 8, 300)),
        tolerance=_tolerance,
        by_row=(),
        work=Work(flops=lambda H, D, before: 4 * (before + 1) * H * D + 2 * H * D * H * D,
                  bytes=lambda H, D, before: size * (2 * (before + 1) * H * D + H * D * H * D),
                  timed_gpu={"H": 12, "D": 64, "before": 1023}, timed_cpu={"H": 8, "D": 32, "before": 127}),
        baselines=torch_baseline(_torch, half),
    )


ONE_ROW_ATTENDED, ONE_ROW_ATTENDED_HALF = _op(False), _op(True)
