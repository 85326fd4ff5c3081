"""Causal attention for training: beside its output, the log-sum-exp of each row of scores, from which backward.py
computes the weights again.

Shapes  q, out (T, H, D), k, v (T, KV, D), H a multiple of KV; float32, float16 or bfloat16 (uint16); D 32, 64 or 128.
        q, k and v may be views of one (T, H + 2*KV, D), as a product leaves them: only their rows must be contiguous.
        lse (H, T) float32. cu_seqlens (B + 1,) int32 in device memory: sequence b is the tokens cu_seqlens[b] to
        cu_seqlens[b + 1] - 1. longest: the length of the longest sequence, which sets the grid; the rows of a sequence
        that is longer are NaN
Work    4*H*D flop for each pair of a query and a key that it attends to; T*(2*H + 2*KV)*D elements and T*H float32
Source  T. Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691; its flash_attn_varlen_func
"""

import math

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import (
    MAX_GRID_YZ,
    aligned,
    check_array,
    flat_rows,
    launch_tiled,
    resident,
    row_stride,
    unsigned,
)
from labkit.kernels.attention.flash import make_copy_strided_rows, scale_for_powers_of_two
from labkit.kernels.attention.flash_mma import MmaTile, make_copy_elements, make_mma_loop, mma_form, rows_in_shared
from labkit.kernels.attention.heads import NOT_A_NUMBER
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32, Element, element_of
from labkit.kernels.op import rung
from labkit.kernels.reduce import ALL_LANES, NEG_INF, ZERO

LN_2, LOG2_E = float32(math.log(2)), float32(math.log2(math.e))
HEAD_SIZES = (32, 64, 128)
SIXTEEN_BITS = (BFLOAT16, FLOAT16)


# --- Reference --------------------------------------------------------------------------------------------------------


def sequences_of(cu_seqlens):
    """Return a slice of the tokens for each sequence that has any."""
    return [slice(begin, end) for begin, end in zip(cu_seqlens, cu_seqlens[1:], strict=False) if end > begin]


def causal_weights(q, k) -> tuple:
    """Return the weights of a sequence's keys and the log-sum-exp of its scores, (S, S) and (S,), of q and k (S, D) of
    one head in float64."""
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T / math.sqrt(q.shape[1]), -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    exponentials = np.exp(scores - largest)
    row_sums = exponentials.sum(axis=1, keepdims=True)
    return exponentials / row_sums, (largest + np.log(row_sums))[:, 0]


def by_head(rows, heads: int):
    """(S, KV, D) -> (H, S, D) in float64; each key-value head serves H / KV query heads."""
    return np.repeat(float64_of(rows).swapaxes(0, 1), heads // rows.shape[1], axis=0)


def attention_training_reference(q, k, v, cu_seqlens, longest=None):
    """Return out (T, H, D) and lse (H, T); NaN in tokens of no sequence."""
    heads = q.shape[1]
    out, lse = np.full(q.shape, np.nan), np.full((heads, len(q)), np.nan)
    for tokens in sequences_of(cu_seqlens):
        for head, (queries, keys, values) in enumerate(zip(*(by_head(array[tokens], heads) for array in (q, k, v)),
                                                           strict=True)):
            weights, lse[head, tokens] = causal_weights(queries, keys)
            out[tokens, head] = weights @ values
    return out, lse


# --- What forward and backward share ----------------------------------------------------------------------------------


@cuda.jit(device=True)
def find_sequence(cu_seqlens, sequence, rows, longest, scale):
    """Return (first row, tokens, scale of the scores) of a sequence. One that is longer than `longest`, or has rows out
    of range, could be computed only in part: its scale is NaN, and so are the rows written for it."""
    begin = min(uint32(cu_seqlens[sequence]), rows)
    tokens = uint32(cu_seqlens[sequence + 1]) - uint32(cu_seqlens[sequence])
    limit = min(rows - begin, longest)
    if tokens > limit:
        tokens, scale = limit, NOT_A_NUMBER
    return begin, tokens, scale


def check_training(q, k, v, cu_seqlens, longest, *, by_row: dict, by_key: dict, by_stat: dict, allowed=()) -> Element:
    """Return the element, or raise an error that names the argument. by_row: arrays like q; by_key: like k; by_stat:
    float32 for each head and token. allowed: the elements that a form takes, all where it is empty.

    q, k, v and the gradients of these may be views of longer rows; q's have one stride, those of k and v another."""
    element = element_of("q", q)
    if allowed and element not in allowed:
        names = " and ".join(one.dtype.name for one in allowed)
        raise TypeError(f"q has dtype {q.dtype}; this form allows {names} only (uint16 holds bfloat16)")
    check_array("q", q, ndim=3, dtype=element.dtype, strided=True)
    check_array("k", k, ndim=3, dtype=element.dtype, strided=True)
    (tokens, heads, size), kv_heads = q.shape, k.shape[1]
    if size not in HEAD_SIZES:
        raise ValueError(f"q has heads of {size} elements; {', '.join(map(str, HEAD_SIZES))} are allowed")
    if heads % kv_heads or heads > MAX_GRID_YZ:
        raise ValueError(f"q has {heads} heads and k {kv_heads}; the heads of q must be a multiple of those of k, at "
                         f"most {MAX_GRID_YZ:,}")
    for name, array in {"k": k, "v": v, **by_key}.items():
        check_array(name, array, shape=(tokens, kv_heads, size), dtype=element.dtype, strided=True)
        _check_stride(name, array, "k", k)
    for name, array in by_row.items():
        check_array(name, array, shape=q.shape, dtype=element.dtype, strided=name == "grad_q")
    if "grad_q" in by_row:
        _check_stride("grad_q", by_row["grad_q"], "q", q)
    for name, array in by_stat.items():
        check_array(name, array, shape=(heads, tokens), dtype=np.float32)
    check_array("cu_seqlens", cu_seqlens, ndim=1, dtype=np.int32)
    if not 2 <= cu_seqlens.size <= MAX_GRID_YZ:
        raise ValueError(f"cu_seqlens has {cu_seqlens.size} elements; it must have one more than there are sequences, "
                         f"2 to {MAX_GRID_YZ:,}")
    if not isinstance(longest, (int, np.integer)) or not 1 <= longest <= tokens:
        raise ValueError(f"longest is {longest!r}; it must be a whole number from 1 to the {tokens:,} tokens of q, and "
                         f"no sequence may be longer")
    for name, array in {"q": q, "k": k, "v": v, **by_row, **by_key}.items():
        if not aligned(array):
            raise ValueError(f"{name} must begin at a multiple of 16 bytes; it is a view that does not")
    return element


def _check_stride(name: str, array, other_name: str, other) -> None:
    if row_stride(array) != row_stride(other):
        raise ValueError(f"{name} has rows {row_stride(array)} elements apart; they must be {row_stride(other)} apart, "
                         f"as those of {other_name}")


def in_rows(*arrays) -> tuple:
    """Return (T, H, D) arrays as matrices (T, H*D)."""
    return tuple(array.reshape(array.shape[0], -1) for array in arrays)


# --- A thread or a few for each query ---------------------------------------------------------------------------------

THREADS, TILE = 128, 32  # of a block; rows of the tile of keys, or of queries, that all its threads use
EACH = 32  # elements of a head that a thread has: two threads share a row of 64, four one of 128


def make_plain_steps(size: int, element: Element):
    """Make the device functions of the plain forms, forward and backward: load_tile, load_part and dot."""
    SIZE, LANES, to_float = size, size // EACH, element.number

    @cuda.jit(device=True)
    def load_tile(tile, array, stride, begin, row0, rows, head_column, thread):
        """Copy TILE rows of a head to shared memory as float32, zeros from row `rows` on. stride: elements from a row
        of the array to the next."""
        for index in u32.range(thread, TILE * SIZE, THREADS):
            row, col = index // SIZE, index % SIZE
            inside = row0 + row < rows
            tile[row, col] = to_float(array[(begin + row0 + row) * stride + head_column + col]) if inside else ZERO

    @cuda.jit(device=True)
    def load_part(part, array, offset, lane):
        """Load this thread's elements of a head's row: every LANES-th, so that neighbours read neighbouring banks."""
        for i in u32.range(EACH):
            part[i] = to_float(array[offset + i * LANES + lane])

    @cuda.jit(device=True)
    def dot(part, tile, row, lane):
        """Return the product of the row that this thread has a part of and a row of the tile."""
        total = ZERO
        for i in u32.range(EACH):
            total += part[i] * tile[row, i * LANES + lane]
        if LANES > 1:
            total += cuda.shfl_xor_sync(ALL_LANES, total, 1)
        if LANES > 2:
            total += cuda.shfl_xor_sync(ALL_LANES, total, 2)
        return total

    return load_tile, load_part, dot


@kernel_factory
def make_training_plain(size: int, element: Element):
    SIZE, LANES, ROWS, to_element = size, size // EACH, THREADS * EACH // size, element.element
    load_tile, load_part, dot = make_plain_steps(size, element)

    @cuda.jit
    def attention_training_plain_kernel(q, k, v, cu_seqlens, out, lse, longest, scale, group, q_stride, kv_stride):
        keys, values = cuda.shared.array((TILE, SIZE), float32), cuda.shared.array((TILE, SIZE), float32)
        query, acc = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        thread, head = u32.threadIdx.x, u32.blockIdx.x
        lane, row0 = thread % LANES, u32.blockIdx.y * ROWS
        head_column, kv_column = head * SIZE, head // group * SIZE
        begin, tokens, scale = find_sequence(cu_seqlens, u32.blockIdx.z, u32.shape(lse)[1], longest, scale)
        if row0 >= tokens:
            return
        row = row0 + thread // LANES
        load_part(query, q, (begin + min(row, tokens - 1)) * q_stride + head_column, lane)
        for i in u32.range(EACH):
            acc[i] = ZERO
        row_max, row_sum = NEG_INF, ZERO
        end = min(row0 + ROWS, tokens)  # no query here sees more
        for key0 in u32.range(0, end, TILE):
            load_tile(keys, k, kv_stride, begin, key0, end, kv_column, thread)
            load_tile(values, v, kv_stride, begin, key0, end, kv_column, thread)
            cuda.syncthreads()  # the tile is complete
            for j in u32.range(TILE):
                score = dot(query, keys, j, lane) * scale
                if key0 + j > row:
                    score = NEG_INF
                new_max = max(row_max, score)
                correction = ptx.exp2_approx(row_max - new_max)  # 0 for the first key
                exponential = ptx.exp2_approx(score - new_max)
                row_max, row_sum = new_max, row_sum * correction + exponential
                for i in u32.range(EACH):
                    acc[i] = acc[i] * correction + exponential * values[j, i * LANES + lane]
            cuda.syncthreads()  # the tile is free to overwrite
        if row < tokens:
            inv_row_sum = float32(1.0) / row_sum
            for i in u32.range(EACH):
                out[begin + row, head_column + i * LANES + lane] = to_element(acc[i] * inv_row_sum)
            if lane == 0:
                lse[head, begin + row] = row_max * LN_2 + math.log(row_sum)

    attention_training_plain_kernel.rows = ROWS
    return attention_training_plain_kernel


@rung(kernel=make_training_plain(64, FLOAT32), idea="tiles of keys and values serve all queries of a block")
def attention_training_plain(q, k, v, cu_seqlens, longest, out, lse, *, stream=0):
    """A thread has a query of 32 elements; two or four share a longer one. Any element, any GPU."""
    element = check_training(q, k, v, cu_seqlens, longest, by_row={"out": out}, by_key={}, by_stat={"lse": lse})
    _, heads, size = q.shape
    kernel = make_training_plain(size, element)
    grid = heads, -(-longest // kernel.rows), cu_seqlens.size - 1
    kernel[grid, THREADS, stream](*map(flat_rows, (q, k, v)), cu_seqlens, *in_rows(out), lse, *unsigned(longest),
                                  scale_for_powers_of_two(size),
                                  *unsigned(heads // k.shape[1], row_stride(q), row_stride(k)))


# --- Tensor cores -----------------------------------------------------------------------------------------------------


@kernel_factory
def make_training_mma(size: int, warps: int, m_tiles: int, keys: int, element: Element):
    """Attention for heads of `size` elements of 16 bits, by the loop of flash_mma.py."""
    TILE = MmaTile(size, warps, m_tiles, keys, element=element)
    SIZE, ROWS, WARP_ROWS, ELEMENT = size, TILE.rows, 16 * m_tiles, element.dtype.type
    ACCUMULATORS, LANE_ROWS, VALUES = TILE.accumulators, TILE.lane_rows, keys * rows_in_shared(size)[1]
    copy_queries, copy_rows = (make_copy_elements(TILE, num_rows, make_copy_strided_rows) for num_rows in (ROWS, keys))

    @cuda.jit(device=True)
    def copy_tile(shared, offset, source, key0, end, thread):
        keys, values, stride, begin, kv_column = source
        copy_rows(shared, offset, keys, stride, begin + key0, begin + end, kv_column, thread)
        copy_rows(shared, offset + VALUES, values, stride, begin + key0, begin + end, kv_column, thread)

    attend, store_rows = make_mma_loop(TILE, copy_tile)
    blocks = max(1, 65_536 // (TILE.registers * TILE.threads))

    @cuda.jit(launch_bounds=(TILE.threads, resident(blocks, TILE.threads, TILE.shared_bytes)))
    def attention_training_mma_kernel(q, k, v, cu_seqlens, out, lse, longest, scale, group, q_stride, kv_stride):
        shared = cuda.shared.array(0, ELEMENT)
        acc = cuda.local.array(ACCUMULATORS, float32)
        row_sum = cuda.local.array(LANE_ROWS, float32)
        row_max = cuda.local.array(LANE_ROWS, float32)
        thread, head = u32.threadIdx.x, u32.blockIdx.x
        head_column = head * SIZE
        begin, tokens, scale = find_sequence(cu_seqlens, u32.blockIdx.z, u32.shape(lse)[1], longest, scale)
        row0 = (u32.gridDim.y - 1 - u32.blockIdx.y) * ROWS  # the tiles with the most work first
        if row0 >= tokens:
            return
        warp_row0 = row0 + thread // 32 * WARP_ROWS
        max_visible = min(warp_row0 + WARP_ROWS, tokens) if warp_row0 < tokens else 0
        lane_row = warp_row0 + thread % 32 // 4  # the lane's row 0
        copy_queries(shared, 0, q, q_stride, begin + row0, begin + tokens, head_column, thread)
        attend(shared, 0, acc, row_sum, row_max, (k, v, kv_stride, begin, head // group * SIZE),
               (min(row0 + ROWS, tokens), warp_row0 + 1, max_visible, lane_row + 1, tokens), scale, thread)
        store_rows(shared, 0, acc, row_sum, out, (begin, row0, tokens), head_column, thread)
        for r in u32.range(LANE_ROWS):  # store_rows has inverted row_sum
            row = lane_row + 8 * r
            if thread % 4 == 0 and row < tokens:
                lse[head, begin + row] = row_max[r] * scale * LN_2 - math.log(row_sum[r])

    kernel = attention_training_mma_kernel
    kernel.rows, kernel.threads, kernel.shared_bytes = ROWS, TILE.threads, TILE.shared_bytes
    return kernel


@rung(kernel=make_training_mma(64, 4, 1, 64, BFLOAT16), idea="tensor cores: weights stay in registers")
def attention_training_mma(q, k, v, cu_seqlens, longest, out, lse, *, stream=0):
    """As attention_flash_half: a block takes 16 to 128 queries of a head, and the keys in tiles that cp.async copies
    ahead. Elements of 16 bits."""
    element = check_training(q, k, v, cu_seqlens, longest, by_row={"out": out}, by_key={}, by_stat={"lse": lse},
                             allowed=SIXTEEN_BITS)
    _, heads, size = q.shape
    sequences = cu_seqlens.size - 1
    kernel = make_training_mma(size, *mma_form(size, heads * sequences, longest), element)
    grid = heads, -(-longest // kernel.rows), sequences
    launch_tiled(kernel, grid, stream, *map(flat_rows, (q, k, v)), cu_seqlens, *in_rows(out), lse, *unsigned(longest),
                 scale_for_powers_of_two(size), *unsigned(heads // k.shape[1], row_stride(q), row_stride(k)))


def attention_training(q, k, v, cu_seqlens, longest, out, lse, *, stream=0):
    """The rung to use: on a GPU with tensor cores for 16 bits the second."""
    tensor_cores = element_of("q", q) is not FLOAT32 and gpus.chosen_on_gpu() and not attention_training_mma.missing
    pick = attention_training_mma if tensor_cores else attention_training_plain
    pick(q, k, v, cu_seqlens, longest, out, lse, stream=stream)
