"""attention_sentences and attention_sentences_half: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.attention.sentences."""

import functools
import math

import numpy as np

from labkit.kernels.attention.sentences import _of_each_sentence, attention_sentences_reference
from labkit.kernels.attention.sentences_flash import attention_sentences_flash, attention_sentences_flash_half
from labkit.kernels.attention.sentences_unfused import (
    attention_sentences_three_launches,
    attention_sentences_three_launches_half,
)
from labkit.kernels.attention.three_pass import attention_weights, split_heads
from labkit.kernels.attention.whole_matrix import attention_sentences_whole_matrix
from labkit.kernels.baselines import Baseline, numpy_cupy_torch, sdpa, unfused_attention
from labkit.kernels.op import Op, Work, sizes, uniform
from labkit.kernels.ops.attention import tolerance_of
from labkit.kernels.ops.attention_half import tolerance_half
from labkit.kernels.tolerance import EPS16


def begins_of(lengths) -> np.ndarray:
    """The first row of each sentence when they are packed end to end."""
    lengths = np.asarray(lengths, np.int32)
    return np.cumsum(lengths, dtype=np.int32) - lengths


def tolerance_sentences(qkv, heads, begins, lengths, longest):
    return _of_each_sentence(tolerance_of, qkv, heads, begins, lengths)


def tolerance_sentences_half(qkv, heads, begins, lengths, longest):
    return _of_each_sentence(tolerance_half, qkv, heads, begins, lengths)


def tolerance_stored_scores(qkv, heads, begins, lengths, longest):
    """Beyond that of float16: each score is rounded to float16, an absolute error that gives its weight the same
    relative error; the same goes for the sum of the weights. Twice these errors are allowed."""
    def extra(rows, heads):
        queries, keys, values = (split_heads(part, heads) for part in np.split(rows, 3, axis=1))
        weights, scores = attention_weights(queries, keys, 0, False)
        magnitudes = np.abs(scores)
        weight_error = EPS16 * (magnitudes + (weights * magnitudes).sum(axis=2, keepdims=True))
        return np.moveaxis((weights * weight_error) @ np.abs(values), 0, 1).reshape(len(rows), -1)

    return (tolerance_sentences_half(qkv, heads, begins, lengths, longest)
            + _of_each_sentence(extra, qkv, heads, begins, lengths))


def _bound(launch, op: str, **overrides):
    def bound(qkv, heads, begins, lengths, longest, out, stream=0):
        launch(qkv, heads, begins, lengths, longest, out, stream=stream)

    return launch.called(op + launch.__name__.removesuffix("_half").removeprefix("attention_sentences"), bound,
                         **overrides)


def falling_lengths(B: int, S: int, shortest: int) -> np.ndarray:
    """From S down to `shortest`, in equal steps."""
    return np.linspace(S, shortest, B).round().astype(np.int32)


def _inputs(rng, B, S, shortest, H, D, dtype=np.float32):
    lengths = falling_lengths(B, S, shortest)
    return (2 * uniform(rng, int(lengths.sum()), 3 * H * D)).astype(dtype), H, begins_of(lengths), lengths, S


def unfused_by_library(xp, qkv, heads, begins, lengths, longest, out):
    """Two products and a softmax, each with its own output, for sentences of one length."""
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


_sizes = functools.partial(sizes, "B S shortest H D")


def _pairs(B, S, shortest) -> int:
    """Pairs of tokens of one sentence."""
    return int((falling_lengths(B, S, shortest).astype(np.int64) ** 2).sum())


def _op(name: str, title: str, rungs, awkward, **fields) -> Op:
    dtype = fields.get("dtype", np.float32)
    gpu = _sizes((64, 128, 128, 12, 32), (64, 16, 16, 12, 32), (512, 16, 16, 12, 32), (1, 128, 128, 12, 32),
                 (1, 16, 16, 12, 32))
    return Op(
        name, title=title, rungs=rungs, reference=attention_sentences_reference,
        formula="out[t, h] = sum over the tokens j of t's sentence of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h]",
        inputs=functools.partial(_inputs, dtype=dtype),
        shape=lambda B, S, shortest, H, D: (int(falling_lengths(B, S, shortest).sum()), H * D),
        awkward=_sizes(*awkward),
        by_row=(),
        work=Work(
            flops=lambda B, S, shortest, H, D: 4 * _pairs(B, S, shortest) * H * D,
            bytes=lambda B, S, shortest, H, D: (
                4 * np.dtype(dtype).itemsize * int(falling_lengths(B, S, shortest).sum()) * H * D),
            timed_gpu=gpu[0], also_gpu=gpu[1:], timed_cpu=_sizes((2, 17, 17, 2, 32))[0], unit="TFLOP/s",
            peak="f16" if dtype == np.float16 else "fp32",
        ),
        **fields,
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
