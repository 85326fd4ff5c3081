"""paged_decode and paged_decode_bf16: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.attention.paged."""

import functools
import math

import numpy as np

from labkit.kernels.attention import paged
from labkit.kernels.attention.paged import paged_decode_reference
from labkit.kernels.baselines import unfused_attention
from labkit.kernels.dtypes import of_dtype
from labkit.kernels.elements import ELEMENTS, Element
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.ops.attention_sentences import falling_lengths
from labkit.kernels.ops.pages import contiguous_by_torch, on_contiguous, paged_inputs, rounding_errors


def _inputs(rng, B, S, shortest, H, KV, D, dtype=np.float32):
    lengths = falling_lengths(B, S, shortest)
    keys, values, page_table = paged_inputs(rng, lengths, KV, D, dtype)
    q = 2 * uniform(rng, B, H, D)
    return of_dtype(q, dtype), keys, values, page_table, lengths, 1 / math.sqrt(D)


def tolerance_decode(q, keys, values, page_table, lengths, scale, *, element: Element):
    return paged_decode_reference(q, keys, values, page_table, lengths, scale, rounding_errors(element, q.shape[2]))


def contiguous(torch, q, keys, values, page_table, lengths, scale, out):
    """SDPA's arguments, for sequences of one length: it has no paging, so keys and values are contiguous."""
    return q, *contiguous_by_torch(keys, values, page_table, lengths), scale, out


def sdpa_on_contiguous(torch, q, keys, values, scale, out):
    F, gqa = torch.nn.functional, q.dtype == torch.bfloat16
    # With enable_gqa float32 runs in SDPA's math kernel, which copies keys and values for each query head. As queries
    # of one head, the query heads that share keys need no copy.
    queries = q[:, :, None] if gqa else grouped(q, keys)
    return F.scaled_dot_product_attention(queries, keys, values, scale=scale, enable_gqa=gqa).reshape(q.shape)


def unfused_on_contiguous(torch, q, keys, values, scale, out):
    return unfused_attention(torch, grouped(q, keys), keys, values, scale).reshape(q.shape)


def grouped(q, keys):
    """(B, K, H / K, D): the query heads that share a head of keys, as queries of one head."""
    return q.view(len(q), keys.shape[1], -1, q.shape[2])


def _bound(launch, op: str):
    def bound(q, keys, values, page_table, lengths, scale, out, stream=0):
        launch(q, keys, values, page_table, lengths, out, scale, stream=stream)

    return launch.called(launch.__name__.replace("paged_decode", op), bound)


_sizes = functools.partial(sizes, "B S shortest H KV D")


def _op(name: str, title: str, launchers, awkward, dtype) -> Op:
    bf16 = dtype == np.uint16
    gpu = _sizes((64, 4096, 4096, 32, 8, 64), (1, 1024, 1024, 32, 8, 64), (32, 1024, 1024, 32, 8, 64),
                 (256, 1024, 1024, 32, 8, 64))
    return Op(
        name, title=title, reference=paged_decode_reference,
        rungs=tuple(_bound(launch, name) for launch in launchers),
        formula="out[s, h] = sum over the tokens j of sequence s of softmax_j(q[s, h] . k[j, h // (H // K)] * scale) "
                "* v[j, h // (H // K)]",
        inputs=functools.partial(_inputs, dtype=dtype),
        shape=lambda B, S, shortest, H, KV, D: (B, H, D),
        awkward=_sizes(*awkward),
        tolerance=functools.partial(tolerance_decode, element=ELEMENTS[np.dtype(dtype)]),
        by_row=(0, 3, 4), dtype=dtype,
        work=Work(
            flops=lambda B, S, shortest, H, KV, D: 4 * int(falling_lengths(B, S, shortest).sum()) * H * D,
            bytes=lambda B, S, shortest, H, KV, D: 2 * np.dtype(dtype).itemsize * D * (
                int(falling_lengths(B, S, shortest).sum()) * KV + B * H),
            timed_gpu=gpu[0], also_gpu=gpu[1:], timed_cpu=_sizes((2, 100, 100, 4, 2, 32))[0],
            peak="f16" if bf16 else "fp32",
        ),
        # SDPA in float32 runs one block for each head of keys, too few for a few sequences: hence the unfused form.
        baselines=on_contiguous(sdpa_on_contiguous, contiguous, bf16, unfused=None if bf16 else unfused_on_contiguous),
    )


PAGED_DECODE = _op(
    "paged_decode", "Attention of one token over a paged cache",
    rungs_of(paged)[:3],  # the fourth is of bfloat16 alone
    ((1, 1, 1, 1, 1, 32), (3, 33, 0, 6, 2, 80), (4, 300, 15, 4, 4, 64)), np.float32)

PAGED_DECODE_BF16 = _op(
    "paged_decode_bf16", "Attention of one token over a paged cache, in bfloat16",
    rungs_of(paged),
    ((1, 1, 1, 1, 1, 32), (3, 33, 0, 14, 2, 64), (4, 300, 15, 4, 4, 64)), np.uint16)
