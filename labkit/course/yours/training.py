"""The launchers of training with some of them replaced: learners' kernels, in float32, the rest the trainer's own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.yours.launchers import add_bias, rope_in_place, zeros
from labkit.kernels.attention.backward import compute_delta
from labkit.kernels.elements import FLOAT32
from labkit.train.model import Kernels

THREADS, TILE = 128, (32, 8)
OWN = Kernels()


def training_kernels(parts: Mapping[str, Callable]) -> Kernels:
    """The launchers of both passes with these in their places, called as PARTS says; the rest is the trainer's own."""
    overrides = {}
    if layernorm := parts.get("layernorm"):
        overrides["layernorm"] = layernorm
    if norm := parts.get("rmsnorm"):
        overrides["rmsnorm"] = lambda x, weight, out, eps, stream=0: norm(x, weight, np.float32(eps), out,
                                                                          stream=stream)
    if parts.keys() & {"logits", "bias"}:
        overrides["linear"] = linear_of(parts.get("logits", OWN.linear), parts.get("bias", add_bias))
    if rope := parts.get("rope"):
        overrides["rope_split_cache"] = rope_in_place(rope, OWN.rope_split_cache)
    if gelu := parts.get("gelu"):
        overrides["gelu"] = gelu
    elif bias_gelu := parts.get("bias_gelu"):
        overrides["gelu"] = lambda x, out, stream=0: bias_gelu(x, zeros(x.shape[1]), out, stream=stream)
    if add := parts.get("add"):
        overrides["add"] = add_in_place(add)
    if gather := parts.get("gather_backward"):
        overrides["token_embedding_backward"] = embedding_backward_of(gather)
    if gradients := parts.get("score_gradients"):
        overrides["attention_backward"] = attention_backward_around(gradients)
    return Kernels(**overrides)


def linear_of(product: Callable, plus_bias: Callable) -> Callable:
    def linear(x, weights, out, bias=None, stream=0):
        product(x, weights, out, stream=stream)
        if bias is not None:
            plus_bias(out, bias, out, stream=stream)

    return linear


@cuda.jit
def copy_kernel(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i]


def _copy(x, out, stream) -> None:
    copy_kernel[-(-x.size // THREADS), THREADS, stream](x.reshape(x.size), out.reshape(out.size))


def add_in_place(part: Callable) -> Callable:
    """part(x, y, out) may need x in out already, as a saxpy does."""

    def add(x, y, out, stream=0):
        if out is y:
            x, y = y, x
        elif out is not x:
            _copy(x, out, stream)
        part(out, y, out, stream=stream)

    return add


# --- The gradient of the embedding ------------------------------------------------------------------------------------


@cuda.jit
def sort_by_id_kernel(ids, order, starts):
    """order: the positions of id 0, then those of id 1, and so on; those of id v begin at starts[v]. One thread for
    each position and each id counts what comes before it: T * (T + V) comparisons."""
    i = cuda.grid(1)
    if i < ids.size:
        rank = 0
        for t in range(ids.size):
            if ids[t] < ids[i] or (ids[t] == ids[i] and t < i):
                rank += 1
        order[rank] = i
    elif i - ids.size < starts.size:
        count = 0
        for t in range(ids.size):
            if ids[t] < i - ids.size:
                count += 1
        starts[i - ids.size] = count


def embedding_backward_of(gather: Callable) -> Callable:
    """Sort the positions, gather into a table of its own where the gradient is to be added, and add that."""

    @functools.cache
    def arrays(tokens, vocabulary, width):
        return (cuda.device_array(tokens, np.int32), cuda.device_array(vocabulary + 1, np.int32),
                cuda.device_array((vocabulary, width), np.float32))

    def embedding_backward(ids, dout, dtokens, accumulate=False, stream=0):
        order, starts, gathered = arrays(ids.size, *dtokens.shape)
        sort_by_id_kernel[-(-(ids.size + starts.size) // THREADS), THREADS, stream](ids, order, starts)
        gather(order, starts, dout, gathered if accumulate else dtokens, stream=stream)
        if accumulate:
            OWN.add(gathered, dtokens, dtokens, stream)

    return embedding_backward


# --- The backward pass of attention -----------------------------------------------------------------------------------


@cuda.jit
def weights_kernel(scores, lse, scale):
    """In place: the weights of each query, 0 for later keys."""
    key, query = cuda.grid(2)
    if query < scores.shape[0] and key < scores.shape[1]:
        weight = float32(0.0)
        if key <= query:
            weight = math.exp(scale * scores[query, key] - lse[query])
        scores[query, key] = weight


@cuda.jit
def product_kernel(a, b, out, transpose_a, transpose_b, accumulate):
    """out = a @ b, of views of any strides; a flag transposes a, or b, or adds to out."""
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = out[row, col] if accumulate else float32(0.0)
        for k in range(a.shape[0] if transpose_a else a.shape[1]):
            total += (a[k, row] if transpose_a else a[row, k]) * (b[col, k] if transpose_b else b[k, col])
        out[row, col] = total


def attention_backward_around(score_gradients: Callable) -> Callable:
    """The gradients of attention, one head of one sequence at a time: around the gradients of its scores, products of
    whole matrices. All sequences have the same length."""

    @functools.cache
    def matrices(length):
        return tuple(cuda.device_array((length, length), np.float32) for _ in range(3))

    def attention_backward(q, k, v, out, lse, grad_out, cu_seqlens, longest, grad_q, grad_k, grad_v, *, delta,
                           stream=0):
        def product(a, b, out, transpose_a=False, transpose_b=False, accumulate=False):
            rows, cols = out.shape
            grid = -(-cols // TILE[0]), -(-rows // TILE[1])
            product_kernel[grid, TILE, stream](a, b, out, transpose_a, transpose_b, accumulate)

        compute_delta(out, grad_out, delta, FLOAT32, stream)
        tokens, heads, size = q.shape
        group, scale = heads // k.shape[1], np.float32(1 / math.sqrt(size))
        scores, grad_weights, grad_scores = matrices(longest)
        blocks = -(-longest // TILE[0]), -(-longest // TILE[1])
        for begin in range(0, tokens, longest):
            rows = slice(begin, begin + longest)
            for head in range(heads):
                other, later = head // group, head % group > 0  # its head of keys, to which an earlier one has added
                keys, values = k[rows, other], v[rows, other]
                product(q[rows, head], keys, scores, transpose_b=True)
                product(grad_out[rows, head], values, grad_weights, transpose_b=True)
                score_gradients(scores, lse[head, rows], grad_weights, delta[head, rows], scale, grad_scores,
                                stream=stream)
                weights_kernel[blocks, TILE, stream](scores, lse[head, rows], scale)
                product(grad_scores, keys, grad_q[rows, head])
                product(grad_scores, q[rows, head], grad_k[rows, other], transpose_a=True, accumulate=later)
                product(scores, grad_out[rows, head], grad_v[rows, other], transpose_a=True, accumulate=later)

    return attention_backward
