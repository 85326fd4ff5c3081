"""Attention over sentences, as an encoder has it: every token of a sentence sees all of its tokens, and no others.

    out[t, h] = sum over the tokens j of t's sentence of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h]

Shapes  qkv (T, 3*H*D): in each row the queries of all heads, then their keys, then their values; out (T, H*D); float32
        or float16. begins, lengths (B,) int32 in device memory: a sentence is the rows begins[b] to begins[b] +
        lengths[b] - 1; a length may be 0. longest: no length is larger; it sets the grid
Work    4*H*D flop and H exponentials for each pair of tokens of a sentence; 16*H*D bytes a token, in float16 8*H*D
Source  A. Vaswani et al., "Attention Is All You Need" (2017), https://arxiv.org/abs/1706.03762; J. Devlin et al.,
        "BERT" (2018), https://arxiv.org/abs/1810.04805

A padded batch and a packed one differ in `begins` alone: padded to S, begins = S * arange(B); packed, the sum of the
lengths before. Rows of no sentence may hold anything, NaN too: none is read, and their rows of out are not written. A
sentence longer than `longest`, or beyond the last row, comes out as NaN: the host does not see the lengths.

A sentence's result depends on its own rows alone, and so do its bits.

What it should cost
    On an H200, in float16, 12 heads of 32 numbers, by count and not measured. An SM's share of 64 sentences of 128
    tokens is 5.8 pairs of a sentence and a head, and a pair takes, in clocks of an SM

        exponentials                128 x 128, 16 a clock                                       1,024
        the rest of the softmax     scale, maximum, sum, rounding, and issuing the products:      900
                                    about 3,600 instructions of a warp, four a clock
        tensor cores                two products of 128 x 128 x 32, 4,096 operations a clock      512
        memory                      32 KB once, from L2 at about 64 bytes a clock                 512

    Exponentials alone are 3.4 us; with nothing overlapped it is 9.8; several blocks of an SM overlap some of it: 5 to 8
    are expected. The 25 MB are 5 us of DRAM, but the layer before has just written qkv, most of which L2 still has.
    64 sentences of 16 tokens move 3 MB and are a chain of latencies: the launch, then begins and lengths, then rows,
    then a few hundred clocks of arithmetic: 2 to 3 us, of which the launch is the larger part. Three launches have
    the chain three times; and at 128 tokens they move another 100 MB of scores and weights through L2.
"""

import functools
import math
from dataclasses import replace

import numpy as np

from labkit.kernels.attention.half import tolerance_half
from labkit.kernels.attention.sentences_flash import attention_sentences_flash, attention_sentences_flash_half
from labkit.kernels.attention.sentences_unfused import (
    attention_sentences_three_launches,
    attention_sentences_three_launches_half,
    attention_sentences_whole_matrix,
    scores_shape,
)
from labkit.kernels.attention.three_pass import attention_reference, attention_weights, split_heads, tolerance_of
from labkit.kernels.baselines import Baseline, numpy_cupy_torch, sdpa, unfused_attention
from labkit.kernels.op import Op, Work, uniform
from labkit.kernels.tolerance import EPS16

__all__ = ["ATTENTION_SENTENCES", "ATTENTION_SENTENCES_HALF", "attention_sentences", "attention_sentences_flash",
           "attention_sentences_flash_half", "attention_sentences_reference", "attention_sentences_three_launches",
           "attention_sentences_three_launches_half", "attention_sentences_whole_matrix", "begins_of", "scores_shape"]


def begins_of(lengths) -> np.ndarray:
    """Where sentences of these lengths begin when they are packed: end to end, with nothing between them."""
    lengths = np.asarray(lengths, np.int32)
    return np.cumsum(lengths, dtype=np.int32) - lengths


def _of_each_sentence(compute, qkv, heads, begins, lengths):
    """compute(rows of qkv, heads) of each sentence, in the rows of the output that are its own; the others are NaN."""
    out = np.full((len(qkv), qkv.shape[1] // 3), np.nan)
    for begin, length in zip(begins.astype(int), lengths.astype(int), strict=True):
        if length:
            out[begin : begin + length] = compute(qkv[begin : begin + length], heads)
    return out


def attention_sentences_reference(qkv, heads, begins, lengths, longest):
    return _of_each_sentence(attention_reference, qkv, heads, begins, lengths)


def attention_sentences(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """The rung to use, for float16 or float32. On the CPU device too: there the tiled kernels are the quickest."""
    launch = attention_sentences_flash_half if np.dtype(qkv.dtype) == np.float16 else attention_sentences_flash
    launch(qkv, heads, begins, lengths, longest, out, stream=stream)


# --- The operations --------------------------------------------------------------------------------------------------


def tolerance_sentences(qkv, heads, begins, lengths, longest):
    return _of_each_sentence(tolerance_of, qkv, heads, begins, lengths)


def tolerance_sentences_half(qkv, heads, begins, lengths, longest):
    return _of_each_sentence(tolerance_half, qkv, heads, begins, lengths)


def tolerance_stored_scores(qkv, heads, begins, lengths, longest):
    """Beyond that of float16: each score is rounded to float16, an absolute error that gives its weight the same
    relative one; and so are those of the sum of the weights. Twice these errors are allowed."""
    def more(rows, heads):
        queries, keys, values = (split_heads(part, heads) for part in np.split(rows, 3, axis=1))
        weights, scores = attention_weights(queries, keys, 0, False)
        sizes = np.abs(scores)
        each = EPS16 * (sizes + (weights * sizes).sum(axis=2, keepdims=True))
        return np.moveaxis((weights * each) @ np.abs(values), 0, 1).reshape(len(rows), -1)

    return (tolerance_sentences_half(qkv, heads, begins, lengths, longest)
            + _of_each_sentence(more, qkv, heads, begins, lengths))


def _bound(launch, op: str, **more):
    """The launcher as an Op calls it: inputs, then out."""
    def bound(qkv, heads, begins, lengths, longest, out, stream=0):
        launch(qkv, heads, begins, lengths, longest, out, stream=stream)

    form = launch.__name__.removesuffix("_half").removeprefix("attention_sentences")
    bound.__name__ = bound.__qualname__ = op + form
    bound.__doc__ = launch.__doc__
    return replace(launch, launcher=bound, **more)


def _lengths(B: int, S: int, shortest: int) -> np.ndarray:
    """From S down to `shortest`, in equal steps."""
    return np.linspace(S, shortest, B).round().astype(np.int32)


def _inputs(rng, B, S, shortest, H, D, dtype=np.float32):
    lengths = _lengths(B, S, shortest)
    return (2 * uniform(rng, int(lengths.sum()), 3 * H * D)).astype(dtype), H, begins_of(lengths), lengths, S


def unfused_by_library(xp, qkv, heads, begins, lengths, longest, out):
    """Two products and a softmax, each with a result of its own, for sentences of one length."""
    count, (rows, width) = len(lengths), out.shape
    q, k, v = (qkv[:, n * width : (n + 1) * width].reshape(count, rows // count, heads, -1).swapaxes(1, 2)
               for n in range(3))
    scores = q @ k.swapaxes(2, 3) / math.sqrt(width // heads)
    if xp.__name__ == "torch":
        weights = xp.softmax(scores, dim=3)
    else:
        weights = xp.exp(scores - scores.max(axis=3, keepdims=True))
        weights = weights / weights.sum(axis=3, keepdims=True)
    out[:] = (weights @ v).swapaxes(1, 2).reshape(rows, width)


def heads_by_torch(qkv, heads, lengths, out):
    """(B, H, S, D) queries, keys and values of sentences of one length."""
    count, (rows, width) = len(lengths), out.shape
    return qkv.view(count, rows // count, 3, heads, width // heads).permute(2, 0, 3, 1, 4)


def fused_by_torch(torch, qkv, heads, begins, lengths, longest, out):
    """SDPA, for sentences of one length."""
    attended = torch.nn.functional.scaled_dot_product_attention(*heads_by_torch(qkv, heads, lengths, out))
    return attended.transpose(1, 2).reshape(out.shape)


def unfused_by_torch(torch, qkv, heads, begins, lengths, longest, out):
    """Two products and a softmax that stay so when they are compiled, for sentences of one length."""
    scale = math.sqrt(heads / out.shape[1])
    attended = unfused_attention(torch, *heads_by_torch(qkv, heads, lengths, out), scale)
    return attended.transpose(1, 2).reshape(out.shape)


def _sizes(*sizes) -> tuple[dict, ...]:
    return tuple(dict(zip(("B", "S", "shortest", "H", "D"), size, strict=True)) for size in sizes)


def _pairs(B, S, shortest) -> int:
    """Pairs of tokens of one sentence."""
    return int((_lengths(B, S, shortest).astype(np.int64) ** 2).sum())


def _op(name: str, title: str, rungs, awkward, **more) -> Op:
    dtype = more.get("dtype", np.float32)
    gpu = _sizes((64, 128, 128, 12, 32), (64, 16, 16, 12, 32), (512, 16, 16, 12, 32), (1, 128, 128, 12, 32),
                 (1, 16, 16, 12, 32))
    return Op(
        name, title=title, rungs=rungs, reference=attention_sentences_reference,
        formula="out[t, h] = sum over the tokens j of t's sentence of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h]",
        inputs=functools.partial(_inputs, dtype=dtype),
        shape=lambda B, S, shortest, H, D: (int(_lengths(B, S, shortest).sum()), H * D),
        awkward=_sizes(*awkward),
        by_row=(),
        work=Work(
            flops=lambda B, S, shortest, H, D: 4 * _pairs(B, S, shortest) * H * D,
            bytes=lambda B, S, shortest, H, D: (
                4 * np.dtype(dtype).itemsize * int(_lengths(B, S, shortest).sum()) * H * D),
            timed_gpu=gpu[0], also_gpu=gpu[1:], timed_cpu=_sizes((2, 17, 17, 2, 32))[0], unit="TFLOP/s",
            peak="f16" if dtype == np.float16 else "fp32",
        ),
        **more,
    )


ATTENTION_SENTENCES = _op(
    "attention_sentences", "Attention over sentences",
    tuple(_bound(one, "attention_sentences") for one in
          (attention_sentences_three_launches, attention_sentences_flash)),
    ((1, 5, 5, 2, 3), (3, 17, 15, 1, 32), (5, 128, 0, 2, 32)),
    tolerance=tolerance_sentences,
    baselines=(*numpy_cupy_torch(unfused_by_library, note="two products and a softmax"),
               *sdpa(fused_by_torch, ("EFFICIENT_ATTENTION",))),
)
ATTENTION_SENTENCES_HALF = _op(
    "attention_sentences_half", "Attention over sentences in float16",
    (_bound(attention_sentences_three_launches_half, "attention_sentences_half", tolerance=tolerance_stored_scores),
     _bound(attention_sentences_whole_matrix, "attention_sentences_half", tolerance=tolerance_stored_scores),
     _bound(attention_sentences_flash_half, "attention_sentences_half")),
    ((3, 16, 0, 4, 32), (5, 128, 0, 2, 32)),
    tolerance=tolerance_sentences_half, dtype=np.float16,
    # torch.compile replaces the first one by SDPA; the second one stays unfused.
    baselines=(Baseline("PyTorch", "torch", unfused_by_library, "two products and a softmax",
                        tolerance_stored_scores),
               Baseline("PyTorch, unfused", "torch", unfused_by_torch, tolerance=tolerance_stored_scores, eager=False,
                        autotune=True),
               *sdpa(fused_by_torch, ("FLASH_ATTENTION", "CUDNN_ATTENTION"))),
)
