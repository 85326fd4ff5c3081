"""Multi-head attention. Each query is compared with the keys, softmax turns the scores into weights, and the weights
average the values:

    out[t, h] = sum over j of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h]

Shapes  qkv (S, 3*H*D): in each row the queries of all heads, then their keys, then their values, as one linear layer
        leaves them; out (S, H*D); float32, C-contiguous; any S, H, D that the rung says it takes
        With a cache: keys and values of earlier tokens too, cache (N, 2*H*D), and start (1,) int32 in device memory:
        how many tokens came before row 0 of qkv. The rows start to start + S - 1 of the cache are those of qkv
Work    4*S*S*H*D flop, causal half of it; 16*S*H*D bytes at least
Source  A. Vaswani et al., "Attention Is All You Need" (2017), https://arxiv.org/abs/1706.03762

Non-causal, a query sees every key; causal, those of its own token and of the tokens before.
The matrix of scores, S x S for each head, is never written to global memory.
"""

import functools
import math
from dataclasses import replace

import numpy as np
from numba import float32, uint32

from labkit import cuda, device, u32
from labkit.kernels.arguments import MAX_SHARED, check_array, dynamic_shared
from labkit.kernels.attention.flash import attention_decode, attention_flash, attention_whole_matrix, takes_flash
from labkit.kernels.attention.flash_plain import attention_flash_plain
from labkit.kernels.attention.heads import check_heads, keys_and_values
from labkit.kernels.baselines import Baseline, numpy_cupy_torch, sdpa
from labkit.kernels.op import Op, Work, rung, uniform
from labkit.kernels.reduce import NEG_INF, ZERO, block_max, block_sum
from labkit.kernels.tolerance import EPS32

BLOCK = 256
SHARED_UNASKED = 48 * 1024  # bytes a block gets without asking; block_max and block_sum take some of them
PARTIAL = 4 * 32  # bytes that these two take


def split_heads(rows, heads: int):
    """(S, H*D) -> (H, S, D), in float64."""
    return np.moveaxis(rows.astype(np.float64).reshape(len(rows), heads, -1), 1, 0)


def attention_weights(queries, keys, start: int, causal: bool):
    """(H, S, D), (H, N, D) -> the weights (H, S, N) of the keys for each query, and the scores."""
    scores = queries @ np.swapaxes(keys, 1, 2) / math.sqrt(queries.shape[2])
    query, key = start + np.arange(queries.shape[1])[:, None], np.arange(keys.shape[1])
    seen = key <= query if causal else key < start + queries.shape[1]
    masked = np.where(seen, scores, -np.inf)
    exponentials = np.exp(masked - masked.max(axis=2, keepdims=True))
    return exponentials / exponentials.sum(axis=2, keepdims=True), scores


def attention_reference(qkv, heads, cache=None, start=None, *, causal=False):
    width = qkv.shape[1] // 3
    keys_values = qkv[:, width:] if cache is None else cache
    queries, keys, values = (split_heads(part, heads) for part in
                             (qkv[:, :width], keys_values[:, :width], keys_values[:, width:]))
    weights, _ = attention_weights(queries, keys, 0 if start is None else int(start[0]), causal)
    return np.moveaxis(weights @ values, 0, 1).reshape(len(qkv), width)


# --- Three passes over the keys --------------------------------------------------------------------------------------
# The grid: x over queries, y over heads. Element i of a head's key j is keys_values[j, first + head*D + i], and of its
# value keys_values[j, first + width + head*D + i]: first is width in qkv, 0 in a cache.


@cuda.jit(device=True)
def weigh_keys(qkv, keys_values, first, head_column, size, seen, scale, scores, partial):
    """Passes 1 and 2: scores[j] becomes exp(score of key j - row_max); returns their sum."""
    t, thread = u32.blockIdx.x, u32.threadIdx.x
    row_max = NEG_INF
    for j in u32.range(thread, seen, BLOCK):
        score = ZERO
        for i in u32.range(size):
            score += qkv[t, head_column + i] * keys_values[j, first + head_column + i]
        score *= scale
        scores[j] = score
        row_max = max(row_max, score)
    row_max = block_max(row_max, partial)

    row_sum = ZERO
    for j in u32.range(thread, seen, BLOCK):
        exponential = math.exp(scores[j] - row_max)
        scores[j] = exponential
        row_sum += exponential
    return block_sum(row_sum, partial)  # its barriers also make the scores visible to all


@cuda.jit
def attention_three_pass_kernel(qkv, keys_values, start, out, first, size, scale, causal):
    scores = cuda.shared.array(0, float32)  # one for each key of the cache's capacity, which the launch passes
    partial = cuda.shared.array(32, float32)
    t, thread = u32.blockIdx.x, u32.threadIdx.x
    head_column, width = u32.blockIdx.y * size, u32.shape(out)[1]
    seen = uint32(start[0]) + (t + 1 if causal else u32.shape(out)[0])
    seen = min(seen, u32.shape(keys_values)[0])  # never beyond the last key
    row_sum = weigh_keys(qkv, keys_values, first, head_column, size, seen, scale, scores, partial)

    share = float32(1.0) / row_sum
    for i in u32.range(thread, size, BLOCK):  # 64 of the 256 threads, for heads of 64
        column = first + width + head_column + i
        acc = ZERO
        for j in u32.range(seen):
            acc += scores[j] * keys_values[j, column]
        out[t, head_column + i] = acc * share


@cuda.jit
def attention_all_threads_kernel(qkv, keys_values, start, out, first, size, scale, causal):
    scores = cuda.shared.array(0, float32)
    partial = cuda.shared.array(32, float32)
    sums = cuda.shared.array(BLOCK, float32)
    t, thread = u32.blockIdx.x, u32.threadIdx.x
    head_column, width = u32.blockIdx.y * size, u32.shape(out)[1]
    seen = uint32(start[0]) + (t + 1 if causal else u32.shape(out)[0])
    seen = min(seen, u32.shape(keys_values)[0])
    row_sum = weigh_keys(qkv, keys_values, first, head_column, size, seen, scale, scores, partial)

    share = float32(1.0) / row_sum
    groups = BLOCK // size  # each takes every groups-th key
    i, group = thread % size, thread // size
    column = first + width + head_column + i
    acc = ZERO
    if group < groups:  # where size does not divide 256, some threads are left over
        for j in u32.range(group, seen, groups):
            acc += scores[j] * keys_values[j, column]
    sums[thread] = acc
    cuda.syncthreads()
    if group == 0:
        for other in u32.range(1, groups):
            acc += sums[other * size + i]
        out[t, head_column + i] = acc * share


@rung(kernel=attention_three_pass_kernel, idea="one block a query and head: scores, exponentials, weighted values",
      sizes="as many keys as there is shared memory for: 58,080 on an H200")
def attention_three_pass(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """One block takes one query of one head, and keeps its scores in shared memory. First pass: a thread takes every
    256th key, a whole dot product each. Second: the exponentials and their sum. Third: a thread takes a column of the
    values, so that only D of the 256 threads have work; neighbours read neighbours."""
    _launch(attention_three_pass_kernel, qkv, heads, out, cache, start, causal, stream)


@rung(kernel=attention_all_threads_kernel, idea="the third pass with all threads: groups share the keys",
      sizes="heads of at most 256 numbers, and as many keys as there is shared memory for")
def attention_all_threads(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """As three_pass, but in the third pass 256 / D groups of threads share the keys, and their sums are added up in
    shared memory."""
    size, _ = check_heads(qkv, heads, out, cache, start)
    if size > BLOCK:
        raise ValueError(f"heads of {size} numbers are too large for all_threads; at most {BLOCK} are allowed")
    _launch(attention_all_threads_kernel, qkv, heads, out, cache, start, causal, stream)


def _launch(kernel, qkv, heads, out, cache, start, causal, stream):
    size, capacity = check_heads(qkv, heads, out, cache, start)
    fixed = PARTIAL + (4 * BLOCK if kernel is attention_all_threads_kernel else 0)
    nbytes = 16 * -(-capacity // 4)  # the compiler reads four scores at a time, beyond the last one, too
    if fixed + nbytes > MAX_SHARED:
        raise ValueError(f"the scores of {capacity:,} keys take {nbytes:,} bytes of shared memory; a block can have "
                         f"{MAX_SHARED - fixed:,} bytes for them, {(MAX_SHARED - fixed) // 4:,} keys. Tiled attention "
                         f"has no such limit")
    keys_values, start, first = keys_and_values(qkv, out, cache, start)
    arguments = (qkv, keys_values, start, out, first, np.uint32(size), np.float32(1 / math.sqrt(size)),
                 np.uint32(causal))
    if fixed + nbytes > SHARED_UNASKED:
        dynamic_shared(kernel, nbytes, *arguments)
    kernel[(out.shape[0], heads), BLOCK, stream, nbytes](*arguments)


# --- The cache -------------------------------------------------------------------------------------------------------


@cuda.jit
def append_to_cache_kernel(qkv, start, cache):
    t = u32.blockIdx.x
    row = uint32(start[0]) + t
    columns = u32.shape(cache)[1]
    if row < u32.shape(cache)[0]:  # a cache that is full stays as it is
        for col in u32.range(u32.threadIdx.x, columns, BLOCK):
            cache[row, col] = qkv[t, (columns >> 1) + col]


def append_to_cache(qkv, start, cache, stream=0):
    """cache[start + t] = the keys and values of qkv[t]."""
    check_array("qkv", qkv, ndim=2)
    check_array("cache", cache, ndim=2)
    check_array("start", start, shape=(1,), dtype=np.int32)
    if 2 * qkv.shape[1] != 3 * cache.shape[1]:
        raise ValueError(f"qkv has {qkv.shape[1]} columns and cache {cache.shape[1]}; they must be as 3 to 2")
    append_to_cache_kernel[qkv.shape[0], BLOCK, stream](qkv, start, cache)


FEW = 4  # queries: more of them share a tile of keys to advantage


def attention(qkv, heads, out, *, cache=None, start=None, causal=False, stream=0):
    """The rung to use. On the CPU device, where threads run one after the other, the simple ones are the quickest."""
    size, _ = check_heads(qkv, heads, out, cache, start)
    if device.on_gpu() and takes_flash(size, qkv, out, cache):
        pick = attention_decode if cache is not None and out.shape[0] <= FEW else attention_flash
    else:
        pick = attention_all_threads if size <= BLOCK else attention_three_pass
    pick(qkv, heads, out, cache=cache, start=start, causal=causal, stream=stream)


# --- The operations --------------------------------------------------------------------------------------------------



def tolerance_of(qkv, heads, cache=None, start=None, *, causal=False):
    """A score is a sum of D products; its absolute error gives its weight the same relative error. To that come the
    roundings of the difference from row_max, of the exponential and of the sums."""
    width = qkv.shape[1] // 3
    keys_values = qkv[:, width:] if cache is None else cache
    queries, keys, values = (split_heads(part, heads) for part in
                             (qkv[:, :width], keys_values[:, :width], keys_values[:, width:]))
    weights, scores = attention_weights(queries, keys, 0 if start is None else int(start[0]), causal)
    size = queries.shape[2]
    sizes = np.abs(queries) @ np.abs(np.swapaxes(keys, 1, 2)) / math.sqrt(size)
    below = np.abs(scores).max(axis=2, keepdims=True) + np.abs(scores)
    each = 4 * math.sqrt(size) * sizes.max(axis=2, keepdims=True) + below + 8 + 3 * math.sqrt(keys.shape[1])
    return EPS32 * np.moveaxis((weights * each) @ np.abs(values), 0, 1).reshape(len(qkv), width)


def _bound(launch, prefix: str, causal: bool):
    """The launcher as an Op calls it: inputs, then out."""
    def bound(qkv, heads, *rest, stream=0):
        *cached, out = rest
        given = {"cache": cached[0], "start": cached[1]} if cached else {}
        launch(qkv, heads, out, causal=causal, stream=stream, **given)

    bound.__name__ = bound.__qualname__ = launch.__name__.removesuffix("_half").replace("attention", prefix, 1)
    bound.__doc__ = launch.__doc__
    return replace(launch, launcher=bound)


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
    """Two products and a softmax, each with a result of its own."""
    def call(xp, qkv, heads, out):
        rows, width = out.shape
        q, k, v = (qkv[:, n * width : (n + 1) * width].reshape(rows, heads, -1).swapaxes(0, 1) for n in range(3))
        scores = q @ k.swapaxes(1, 2) / math.sqrt(width // heads)
        if causal:
            where = {"device": qkv.device} if xp.__name__ == "torch" else {}
            key = xp.arange(rows, **where)
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
    """SDPA of one query on the rows of the cache that are in use; to read start would be to wait for it."""
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


def make_op(name: str, title: str, causal: bool, **more):
    given = {
        "inputs": _inputs,
        "shape": lambda S, H, D: (S, H * D),
        "awkward": tuple({"S": S, "H": H, "D": D} for S, H, D in SIZES),
        "work": work_of(causal),
        "baselines": (*numpy_cupy_torch(unfused_by_library(causal), note="two products and a softmax"),
                      *sdpa(fused_by_torch(causal), ("EFFICIENT_ATTENTION",))),
        "launchers": WITHOUT_A_CACHE,
        "tolerance": functools.partial(tolerance_of, causal=causal),
    }
    given |= more
    return Op(name, title=title, reference=functools.partial(attention_reference, causal=causal),
              rungs=tuple(_bound(launch, name, causal) for launch in given.pop("launchers")),
              formula="out[t, h] = sum over j of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h]" +
                      (", j <= t" if causal else ""),
              by_row=(), **given)


ATTENTION = make_op("attention", "Multi-head attention", False)
ATTENTION_CAUSAL = make_op("attention_causal", "Multi-head attention, causal", True)
ATTENTION_CACHED = make_op(
    "attention_cached", "Multi-head attention with a KV cache, causal", True,
    inputs=_inputs_with_cache,
    shape=lambda S, H, D, before: (S, H * D),
    awkward=tuple({"S": S, "H": H, "D": D, "before": before} for S, H, D, before in
                  ((1, 1, 1, 0), (1, 3, 16, 5), (4, 2, 64, 31), (1, 2, 64, 299), (3, 1, 300, 2), (7, 2, 5, 0),
                   (5, 1, 80, 130))),
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
