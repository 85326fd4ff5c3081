"""attention_training and attention_backward, in float32 and bfloat16: inputs, sizes, tolerances, work and baselines of
the rungs in labkit.kernels.attention.training and backward."""

import functools
import math
from dataclasses import replace

import numpy as np

from labkit import cuda
from labkit.kernels import op
from labkit.kernels.attention.backward import (
    attention_backward_mma,
    attention_backward_plain,
    attention_backward_reference,
)
from labkit.kernels.attention.training import (
    attention_training_mma,
    attention_training_plain,
    attention_training_reference,
    by_head,
    causal_weights,
    sequences_of,
)
from labkit.kernels.baselines import sdpa
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element
from labkit.kernels.op import Op, Work, uniform
from labkit.kernels.ops.attention_sentences import falling_lengths
from labkit.kernels.tolerance import EPS32

sizes = functools.partial(op.sizes, "B S shortest H KV D")


def tokens_of(B, S, shortest) -> int:
    return int(falling_lengths(B, S, shortest).sum())


def pairs_of(B, S, shortest) -> int:
    """Return the pairs of a query and a key that it sees."""
    lengths = falling_lengths(B, S, shortest).astype(np.int64)
    return int((lengths * (lengths + 1) // 2).sum())


def inputs_forward(rng, B, S, shortest, H, KV, D, element: Element):
    lengths = falling_lengths(B, S, shortest)
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    q, k, v = (element.array_of(2 * uniform(rng, tokens_of(B, S, shortest), heads, D)) for heads in (H, KV, KV))
    return q, k, v, cu_seqlens, S


def inputs_backward(rng, B, S, shortest, H, KV, D, element: Element):
    """Those of the forward pass, its results in float64, rounded, and a gradient."""
    q, k, v, cu_seqlens, longest = inputs_forward(rng, B, S, shortest, H, KV, D, element)
    grad_out = element.array_of(uniform(rng, *q.shape))
    if hasattr(rng, "zeros"):  # launches are only planned
        return q, k, v, np.zeros_like(q), np.zeros((H, len(q)), np.float32), grad_out, cu_seqlens, longest
    out, lse = attention_training_reference(q, k, v, cu_seqlens)
    return q, k, v, element.array_of(out), lse.astype(np.float32), grad_out, cu_seqlens, longest


def score_errors(queries, keys):
    """Return the error allowed for scores, whose exponentials have it as a relative one."""
    size = queries.shape[1]
    return EPS32 * (2 * (np.abs(queries) @ np.abs(keys).T) / math.sqrt(size) + 4)


def tolerance_forward(q, k, v, cu_seqlens, longest, *, element: Element):
    """A score's error is relative to its weight; weights are rounded to elements, and so is the output."""
    heads, allowed = q.shape[1], np.full(q.shape, np.nan)
    for tokens in sequences_of(cu_seqlens):
        rows = [by_head(array[tokens], heads) for array in (q, k, v)]
        for head, (queries, keys, values) in enumerate(zip(*rows, strict=True)):
            weights, _ = causal_weights(queries, keys)
            errors = weights * (score_errors(queries, keys) + EPS32 * np.sqrt(len(keys)) + element.eps)
            allowed[tokens, head] = (2 * errors @ np.abs(values) + element.rounding_error(weights @ values)
                                     + element.smallest * (1 + np.abs(values).sum(axis=0)))
    return allowed


def backward_errors(q, k, v, out, lse, grad_out, cu_seqlens, longest, *, element: Element):
    """Return the errors allowed for the three gradients: those of weights and of gradients of scores, both rounded to
    elements, carried through the last products. delta has that of the output, which was rounded, too."""
    heads, size = q.shape[1:]
    group, allowed = heads // k.shape[1], [np.full(array.shape, np.nan) for array in (q, k, v)]
    for tokens in sequences_of(cu_seqlens):
        for errors in allowed:
            errors[tokens] = 0
        rows = [by_head(array[tokens], heads) for array in (q, k, v, grad_out)]
        for head, (queries, keys, values, grad) in enumerate(zip(*rows, strict=True)):
            weights, _ = causal_weights(queries, keys)
            sums = EPS32 * np.sqrt(len(queries))
            relative = score_errors(queries, keys) + sums + EPS32 * 4 + element.eps
            magnitudes = np.abs(grad) @ np.abs(values).T
            delta_magnitudes = (weights * magnitudes).sum(axis=1, keepdims=True)
            score_grads = np.abs(grad @ values.T) + delta_magnitudes
            errors = weights * (relative * score_grads + EPS32 * np.sqrt(size) * magnitudes
                                + (EPS32 * np.sqrt(size) + element.eps) * delta_magnitudes) / math.sqrt(size)
            allowed[0][tokens, head] = errors @ np.abs(keys)
            allowed[1][tokens, head // group] += errors.T @ np.abs(queries)
            allowed[2][tokens, head // group] += (weights * relative).T @ np.abs(grad)
    exact = attention_backward_reference(q, k, v, grad_out, cu_seqlens)
    return [2 * part + element.rounding_error(value) + 4 * element.smallest * longest
            for part, value in zip(allowed, exact, strict=True)]


def flat(gradients) -> np.ndarray:
    """The gradients of queries, keys and values, one after the other, as the operation's one output."""
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


@functools.lru_cache(maxsize=4)
def scratch(heads: int, tokens: int):
    """lse of the forward pass, delta of the backward pass: not part of what an operation is timed to allocate."""
    return cuda.device_array((heads, tokens), np.float32)


def _forward(launch):
    def bound(q, k, v, cu_seqlens, longest, out, stream=0):
        launch(q, k, v, cu_seqlens, longest, out, scratch(q.shape[1], q.shape[0]), stream=stream)

    return launch.called(launch.__name__, bound)


def _backward(launch):
    def bound(q, k, v, out, lse, grad_out, cu_seqlens, longest, gradients, stream=0):
        parts, begin = [], 0
        for array in (q, k, v):
            parts.append(gradients[begin : begin + array.size].reshape(array.shape))
            begin += array.size
        launch(q, k, v, out, lse, grad_out, cu_seqlens, longest, *parts, delta=scratch(q.shape[1], q.shape[0]),
               stream=stream)

    return launch.called(launch.__name__, bound)


def heads_first(array, sequences: int):
    """(T, H, D) of sequences of one length -> (B, H, S, D)."""
    return array.view(sequences, -1, *array.shape[1:]).transpose(1, 2)


def attend_by_torch(torch, q, k, v, cu_seqlens, longest, out):
    """SDPA, for sequences of one length."""
    q, k, v = (heads_first(array, len(cu_seqlens) - 1) for array in (q, k, v))
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape != k.shape)
    return attended.transpose(1, 2).reshape(out.shape)


def leaves_by_torch(torch, q, k, v, out, lse, grad_out, cu_seqlens, longest, gradients):
    """Return what backward_by_torch takes. Its forward pass runs when it is first called, by the kernel that is to be
    timed."""
    leaves = [array.detach().clone() for array in (q, k, v)]
    return leaves, {}, (cu_seqlens, longest, out), grad_out


def backward_by_torch(torch, leaves, attended, arguments, grad_out):
    """The backward pass alone. It runs on the stream of its forward pass and of its leaves' first use, so each stream
    has its own of both."""
    stream = torch.cuda.current_stream() if grad_out.is_cuda else None
    if stream not in attended:
        own = [leaf.detach().requires_grad_() for leaf in leaves]
        with torch.enable_grad():
            attended[stream] = own, attend_by_torch(torch, *own, *arguments)
    own, out = attended[stream]
    return torch.autograd.grad(out, own, grad_out, retain_graph=True)


BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
GPU = sizes((8, 1024, 1024, 12, 12, 64), (1, 4096, 4096, 32, 32, 64), (2, 1024, 1024, 32, 8, 128),
            (32, 256, 256, 4, 4, 32))
AWKWARD = sizes((1, 1, 1, 1, 1, 32), (2, 70, 33, 2, 2, 32), (1, 131, 131, 4, 2, 64), (3, 40, 1, 2, 1, 128))


def _work(element: Element, products: int, arrays: int) -> Work:
    """products: 2 or 5 of 2*D flop for each pair; arrays: how many like q are moved, and as many like k and v."""
    return Work(
        flops=lambda B, S, shortest, H, KV, D: 2 * products * pairs_of(B, S, shortest) * H * D,
        bytes=lambda B, S, shortest, H, KV, D: (
            arrays * element.dtype.itemsize * tokens_of(B, S, shortest) * (H + KV) * D),
        timed_gpu=GPU[0], also_gpu=GPU[1:] if element is BFLOAT16 else GPU[3:4],
        timed_cpu=sizes((2, 33, 33, 2, 2, 32))[0], unit="TFLOP/s", peak="fp32" if element is FLOAT32 else "f16")


def _forward_op(element: Element, rungs) -> Op:
    return Op(
        "attention_training" + "_bf16" * (element is BFLOAT16),
        title="Causal attention for training" + ", bfloat16" * (element is BFLOAT16),
        formula="out[t, h] = sum over the tokens j <= t of t's sequence of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * "
                "v[j, h]",
        rungs=tuple(map(_forward, rungs)),
        reference=lambda *inputs: attention_training_reference(*inputs)[0],
        inputs=functools.partial(inputs_forward, element=element),
        shape=lambda B, S, shortest, H, KV, D: (tokens_of(B, S, shortest), H, D),
        awkward=AWKWARD,
        tolerance=functools.partial(tolerance_forward, element=element),
        by_row=(),
        work=_work(element, 2, 2),
        dtype=element.dtype,
        baselines=sdpa(attend_by_torch, BACKENDS if element is BFLOAT16 else ()),
    )


def _backward_op(element: Element, rungs) -> Op:
    def reference(q, k, v, out, lse, grad_out, cu_seqlens, longest):
        return flat(attention_backward_reference(q, k, v, grad_out, cu_seqlens))

    return Op(
        "attention_backward" + "_bf16" * (element is BFLOAT16),
        title="The gradients of causal attention" + ", bfloat16" * (element is BFLOAT16),
        formula="the derivatives of sum(grad_out * out) with respect to q, k and v",
        rungs=tuple(map(_backward, rungs)),
        reference=reference,
        inputs=functools.partial(inputs_backward, element=element),
        shape=lambda B, S, shortest, H, KV, D: (tokens_of(B, S, shortest) * (H + 2 * KV) * D,),
        awkward=AWKWARD,
        tolerance=lambda *inputs: flat(backward_errors(*inputs, element=element)),
        by_row=(),
        work=_work(element, 5, 4),
        dtype=element.dtype,
        baselines=tuple(replace(one, compile=False) for one in sdpa(
            backward_by_torch, BACKENDS if element is BFLOAT16 else (), prepare=leaves_by_torch)),
    )


ATTENTION_TRAINING = _forward_op(FLOAT32, (attention_training_plain,))
ATTENTION_TRAINING_BF16 = _forward_op(BFLOAT16, (attention_training_plain, attention_training_mma))
ATTENTION_BACKWARD = _backward_op(FLOAT32, (attention_backward_plain,))
ATTENTION_BACKWARD_BF16 = _backward_op(BFLOAT16, (attention_backward_plain, attention_backward_mma))
