"""paged_prefill and paged_prefill_bf16: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.attention.paged_prefill."""

import functools
import math

import numpy as np

from labkit.kernels.attention.paged_prefill import (
    paged_prefill_flash,
    paged_prefill_mma,
    paged_prefill_naive,
    paged_prefill_reference,
)
from labkit.kernels.dtypes import of_dtype
from labkit.kernels.elements import ELEMENTS, Element
from labkit.kernels.op import Op, Work, sizes, uniform
from labkit.kernels.ops.attention_sentences import begins_of, falling_lengths
from labkit.kernels.ops.pages import contiguous_by_torch, on_contiguous, paged_inputs, rounding_errors


def _inputs(rng, B, S, shortest, before, H, KV, D, dtype=np.float32):
    lengths = falling_lengths(B, S, shortest)
    contexts = (lengths + before).astype(np.int32)
    keys, values, page_table = paged_inputs(rng, contexts, KV, D, dtype)
    q = 2 * uniform(rng, int(lengths.sum()), H, D)
    q = of_dtype(q, dtype)
    return q, keys, values, page_table, begins_of(lengths), lengths, contexts, 1 / math.sqrt(D), S


def tolerance_prefill(q, keys, values, page_table, begins, lengths, contexts, scale, longest, *, element: Element):
    return paged_prefill_reference(q, keys, values, page_table, begins, lengths, contexts, scale, longest,
                                   rounding_errors(element, q.shape[2]))


def contiguous(torch, q, keys, values, page_table, begins, lengths, contexts, scale, longest, out):
    """SDPA's arguments, for prompts of one length without earlier tokens: keys and values are contiguous.

    No kernel of SDPA for float32 lets query heads share keys. So each head of keys becomes a sequence of its own, whose
    heads are the query heads of the group; a stride of 0 gives all of them the same keys, without a copy.
    """
    keys, values = contiguous_by_torch(keys, values, page_table, contexts)
    queries = q.view(len(keys), -1, *q.shape[1:]).transpose(1, 2)  # (B, H, S, D)
    if q.dtype == torch.float32:
        queries = queries.unflatten(1, (keys.shape[1], -1)).flatten(0, 1)  # (B * K, H / K, S, D)
        keys, values = (each.flatten(0, 1)[:, None].expand(-1, queries.shape[1], -1, -1) for each in (keys, values))
    return queries, keys, values, scale, out


def sdpa_on_contiguous(torch, queries, keys, values, scale, out):
    attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, scale=scale, is_causal=True,
                                                                enable_gqa=keys.shape[1] != queries.shape[1])
    groups = out.shape[1] // queries.shape[1]
    return attended.unflatten(0, (-1, groups)).permute(0, 3, 1, 2, 4)  # the rows of out, without a copy


def _bound(launch, op: str):
    def bound(q, keys, values, page_table, begins, lengths, contexts, scale, longest, out, stream=0):
        launch(q, keys, values, page_table, begins, lengths, contexts, out, scale, longest, stream=stream)

    return launch.called(launch.__name__.replace("paged_prefill", op), bound)


_sizes = functools.partial(sizes, "B S shortest before H KV D")


def _pairs(B: int, S: int, shortest: int, before: int) -> int:
    """Number of pairs of a query and a visible key."""
    lengths = falling_lengths(B, S, shortest).astype(np.int64)
    return int((lengths * before + lengths * (lengths + 1) // 2).sum())


def _op(name: str, title: str, launchers, awkward, dtype) -> Op:
    bf16 = dtype == np.uint16
    gpu = _sizes((1, 4096, 4096, 0, 32, 8, 64), (1, 1024, 1024, 0, 32, 8, 64), (16, 512, 512, 0, 32, 8, 64))
    return Op(
        name, title=title, reference=paged_prefill_reference, rungs=tuple(_bound(launch, name) for launch in launchers),
        formula="out[t, h] = sum over the tokens j <= t of t's sequence of softmax_j(q[t, h] . k[j, h // (H // K)] * "
                "scale) * v[j, h // (H // K)]",
        inputs=functools.partial(_inputs, dtype=dtype),
        shape=lambda B, S, shortest, before, H, KV, D: (int(falling_lengths(B, S, shortest).sum()), H, D),
        awkward=_sizes(*awkward),
        tolerance=functools.partial(tolerance_prefill, element=ELEMENTS[np.dtype(dtype)]),
        by_row=(), dtype=dtype,
        work=Work(
            flops=lambda B, S, shortest, before, H, KV, D: 4 * _pairs(B, S, shortest, before) * H * D,
            bytes=lambda B, S, shortest, before, H, KV, D: 2 * np.dtype(dtype).itemsize * D * (
                int(falling_lengths(B, S, shortest).sum()) * (H + KV) + B * before * KV),
            timed_gpu=gpu[0], also_gpu=gpu[1:], timed_cpu=_sizes((2, 17, 17, 0, 4, 2, 32))[0], unit="TFLOP/s",
            peak="f16" if bf16 else "fp32",
        ),
        baselines=on_contiguous(sdpa_on_contiguous, contiguous, bf16, "contiguous" if bf16 else "contiguous, grouped"),
    )


PAGED_PREFILL = _op("paged_prefill", "Causal attention over a paged cache", (paged_prefill_naive, paged_prefill_flash),
                    ((1, 1, 1, 0, 1, 1, 32), (3, 33, 0, 17, 6, 2, 80), (2, 70, 15, 40, 4, 4, 64)), np.float32)

PAGED_PREFILL_BF16 = _op("paged_prefill_bf16", "Causal attention over a paged cache, in bfloat16",
                         (paged_prefill_naive, paged_prefill_mma),
                         ((1, 1, 1, 0, 1, 1, 32), (3, 33, 0, 17, 6, 2, 80), (2, 70, 15, 40, 4, 4, 64)), np.uint16)
