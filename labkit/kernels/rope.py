"""Rotary position embedding, fused with its neighbours: QKV is split, queries and keys are rotated, and keys and
values are written into the pages of the cache. With q_norm and k_norm each head is normalised first (Qwen3).

Shapes  qkv (T, (H + 2K) * D): the H query heads of a token, its K key heads, its K value heads; all float32, float16 or
        bfloat16 (uint16), as q (T, H, D), keys and values (pages, K, page, D), q_norm and k_norm (D,). D even
        table (P, D) float32 from rope_table; positions, slots (T,) int32: page index * page + offset in the page
Work    6 flops for each pair that is rotated; each element of qkv is read once and written once
Source  Su et al.: RoFormer (2021), https://arxiv.org/abs/2104.09864; the pairs (d, d + D/2) are those of transformers
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit._common.chunks import in_chunks
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for, check_array, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights, rounded_as
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rmsnorm import rmsnorm_reference
from labkit.kernels.norm.rows import flat, small
from labkit.kernels.op import rung
from labkit.kernels.pdl import uses_pdl

EPS = 1e-6  # Qwen3's, for q_norm and k_norm
BLOCK = 256
MAX_DIM = 512
ALL_LANES = 0xFFFFFFFF
ZERO, ONE, NAN = float32(0.0), float32(1.0), float32(np.nan)
SCALINGS = ("default", "linear", "llama3")


# Pair d of a head at position p is rotated by the angle p * theta^(-2d/D), so that the product of a query and a key
# depends on their distance alone. A slot outside the cache, such as -1, marks a row of padding: nothing is written for
# it. A position outside the table gives NaN: a launcher cannot read device memory without a synchronisation.


# --- The angles, on the host ------------------------------------------------------------------------------------------


def rope_table(max_positions: int, head_dim: int, theta: float, scaling: dict | None = None) -> np.ndarray:
    """Return float32 (max_positions, head_dim): in row p the cosines of the head_dim / 2 angles of position p, then
    their sines. Computed in float64: in float32 an angle of 8,000 radians is off by up to 0.0005.

    scaling: config.json's rope_scaling, or rope_parameters, of type "default", "linear" or "llama3". Raises ValueError,
    which names the argument or the key, for what would be computed wrongly.
    """
    if not (isinstance(max_positions, int) and max_positions >= 1):
        raise ValueError(f"max_positions is {max_positions!r}; it must be an integer of at least 1")
    check_head_dim(head_dim)
    if not 0 < theta < np.inf:
        raise ValueError(f"theta is {theta!r}; it must be above 0 and finite")
    table, freqs = np.empty((max_positions, head_dim), np.float32), frequencies(head_dim, theta, scaling)

    def fill(begin: int, end: int) -> None:
        angles = np.arange(begin, end)[:, None] * freqs
        np.cos(angles, out=table[begin:end, : freqs.size], casting="same_kind")
        np.sin(angles, out=table[begin:end, freqs.size :], casting="same_kind")

    in_chunks(max_positions, fill, chunk=4096)
    return table


def check_head_dim(head_dim: int) -> None:
    if head_dim < 2 or head_dim % 2 or head_dim > MAX_DIM:
        raise ValueError(f"the head dimension is {head_dim}; it must be even, 2 to {MAX_DIM}")


def frequencies(head_dim: int, theta: float, scaling: dict | None = None) -> np.ndarray:
    """Return float64 (head_dim / 2,): radians from one position to the next."""
    freqs = float(theta) ** (-np.arange(0, head_dim, 2) / head_dim)
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SCALINGS:
        raise ValueError(f"rope_type is {kind!r}; {', '.join(map(repr, SCALINGS))} are known")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor is {scaling['partial_rotary_factor']!r}; only 1.0, whole heads, is "
                         f"known")
    if kind == "linear":
        freqs = freqs / _positive(scaling, "factor")
    elif kind == "llama3":
        freqs = _llama3(freqs, _positive(scaling, "factor"), _positive(scaling, "low_freq_factor"),
                        _positive(scaling, "high_freq_factor"), _positive(scaling, "original_max_position_embeddings"))
    return freqs


def _llama3(freqs, factor, low, high, context):
    """Scale as Llama 3.1 does: wavelengths much shorter than the original context stay as they are, long ones are
    stretched by `factor`, and those between are a mixture of both."""
    if not low < high:
        raise ValueError(f"low_freq_factor is {low} and high_freq_factor {high}; the first must be below the second")
    turns = context * freqs / (2 * np.pi)  # of each frequency within that context
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return smooth * freqs + (1 - smooth) * freqs / factor


def _positive(scaling: dict, key: str) -> float:
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        given = f"has no {key!r}" if key not in scaling else f"has {key} {value!r}"
        raise ValueError(f"the rope scaling {given}; it must be a number above 0")
    return float(value)


# --- The reference ----------------------------------------------------------------------------------------------------


def rotated_reference(heads, table, positions, weight=None, eps=EPS):
    """Return float64 of heads (T, heads, D), each token's rotated to its position, after RMSNorm if there is a weight;
    NaN where the table has no such position."""
    rounded, half = rounded_as(heads), heads.shape[2] // 2
    if weight is not None:
        heads = rmsnorm_reference(heads.reshape(-1, heads.shape[2]), weight, eps).reshape(heads.shape)
    heads = float64_of(heads)
    valid = (positions >= 0) & (positions < len(table))
    rows = np.where(valid[:, None], float64_of(table)[np.where(valid, positions, 0)], np.nan)[:, None]
    first, second, cos, sin = heads[..., :half], heads[..., half:], rows[..., :half], rows[..., half:]
    return rounded(np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2))


def in_pages(rows, slots, cache_shape) -> np.ndarray:
    """Return float64 of a cache (pages, K, page, D) to which rows (T, K, D) were written: NaN elsewhere."""
    cache, page = np.full(cache_shape, np.nan), cache_shape[2]
    valid = (slots >= 0) & (slots < cache_shape[0] * page)
    cache[slots[valid] // page, :, slots[valid] % page] = rows[valid]
    return cache


def rope_split_cache_reference(qkv, table, positions, slots, heads, cache_shape, q_norm=None, k_norm=None, eps=EPS):
    """Return (q, keys, values) in float64, NaN where nothing is written. heads: of q; cache_shape: of keys."""
    pages, kv_heads, page, dim = cache_shape
    rows = qkv.reshape(len(slots), heads + 2 * kv_heads, dim)
    q = rotated_reference(rows[:, :heads], table, positions, q_norm, eps)
    q[(slots < 0) | (slots >= pages * page)] = np.nan
    keys = rotated_reference(rows[:, heads : heads + kv_heads], table, positions, k_norm, eps)
    return q, in_pages(keys, slots, cache_shape), in_pages(float64_of(rows[:, heads + kv_heads :]), slots, cache_shape)


# --- Three launches ---------------------------------------------------------------------------------------------------


@cuda.jit
def split_kernel(qkv, slots, q, keys, values):
    """Copy one element of qkv per thread. A block's elements belong to one token."""
    t, i = u32.blockIdx.x, u32.blockIdx.y * BLOCK + u32.threadIdx.x
    heads, dim, kv_heads, page = u32.shape(q)[1], u32.shape(q)[2], u32.shape(keys)[1], u32.shape(keys)[2]
    head, d, slot = i // dim, i % dim, uint32(slots[t])  # negatives become huge
    if head < heads + 2 * kv_heads and slot < u32.shape(keys)[0] * page:
        value = qkv[t, i]
        if head < heads:
            q[t, head, d] = value
        elif head < heads + kv_heads:
            keys[slot // page, head - heads, slot % page, d] = value
        else:
            values[slot // page, head - heads - kv_heads, slot % page, d] = value


@kernel_factory
def make_rotate(element: Element, in_cache: bool, normalised: bool, eps: float):
    """Make a kernel that rotates heads in place, one thread per head: of q, or of the tokens' keys in the cache."""
    (load, store, rounded, _, _), EPSILON = ACCESS[element], small(eps)

    @cuda.jit
    def rotate_kernel(rows, table, positions, slots, weight, heads, dim, page, num_slots):  # rows is flat
        t, head = u32.blockIdx.x, u32.blockIdx.y * 32 + u32.threadIdx.x
        slot = uint32(slots[t])
        if head < heads and slot < num_slots:
            offset = (t * heads + head) * dim
            if in_cache:
                offset = ((slot // page * heads + head) * page + slot % page) * dim
            if normalised:
                squares = ZERO
                for d in u32.range(dim):
                    value = load(rows, offset + d)
                    squares += value * value
                rstd = cuda.rsqrt(squares / float32(dim) + EPSILON)
                for d in u32.range(dim):
                    store(rows, offset + d, rounded(load(rows, offset + d) * rstd) * load(weight, d))
            position, half = uint32(positions[t]), dim >> 1
            for d in u32.range(half):
                cos, sin = NAN, NAN
                if position < u32.shape(table)[0]:
                    cos, sin = table[position, d], table[position, d + half]
                first, second = load(rows, offset + d), load(rows, offset + d + half)
                store(rows, offset + d, first * cos - second * sin)
                store(rows, offset + d + half, second * cos + first * sin)

    return rotate_kernel


def rope_split_cache_three_launches(qkv, table, positions, slots, q, keys, values, q_norm=None, k_norm=None, eps=EPS,
                                    stream=0):
    """Split QKV in one launch, rotate the queries in q in another, and the keys in the cache in a third: rotated rows
    pass through memory twice."""
    element = _check(qkv, table, positions, slots, q, keys, values, norms=(q_norm, k_norm))
    (num_tokens, heads, dim), (pages, kv_heads, page, _) = q.shape, keys.shape
    split_kernel[blocks_for((num_tokens, qkv.shape[1]), (1, BLOCK)), BLOCK, stream](qkv, slots, q, keys, values)
    for rows, num_heads, weight, in_cache in ((q, heads, q_norm, False), (keys, kv_heads, k_norm, True)):
        kernel = make_rotate(element, in_cache, weight is not None, eps)
        kernel[blocks_for((num_tokens, num_heads), (1, 32)), 32, stream](
            flat(rows), table, positions, slots, flat(qkv) if weight is None else weight,
            *unsigned(num_heads, dim, page, pages * page))


# --- One launch -------------------------------------------------------------------------------------------------------


def lanes_of(dim: int) -> int:
    """Return how many threads share a head, each with eight of its pairs: a power of two, for shuffles."""
    return 1 << (-(-dim // 16) - 1).bit_length()


@kernel_factory
def make_rope_split_cache(element: Element, together: bool, normalised: bool, eps: float, early: bool = False):
    """together: both halves of a head are whole octets, at multiples of 16 bytes. early: as in kernels/pdl.py, with the
    slots, the positions and the table's rows first, which no kernel of a step writes."""
    (load, store), rounded = ACCESS[element].neighbours(together), ACCESS[element].rounded
    load_row = ACCESS[FLOAT32].neighbours(together)[0]
    EPSILON, EARLY = small(eps), early

    @cuda.jit(device=True)
    def load_angles(cos, sin, table, position, dim, d, remaining):
        if position < u32.size(table) // dim:
            row = position * dim
            load_row(cos, 0, table, row + d, remaining)
            load_row(sin, 0, table, row + d + (dim >> 1), remaining)
        else:
            for e in range(8):
                cos[e], sin[e] = NAN, NAN

    @cuda.jit
    def rope_split_cache_kernel(qkv, table, positions, slots, q_norm, k_norm, q, keys, values, heads, kv_heads, dim,
                                lanes, page, num_slots):  # all but positions and slots are flat
        t = u32.blockIdx.x
        thread = u32.blockIdx.y * u32.blockDim.x + u32.threadIdx.x
        head = thread // lanes
        slot, position = uint32(slots[t]), uint32(positions[t])  # negatives become huge
        rotated_heads, total_heads, half = heads + kv_heads, heads + kv_heads + kv_heads, dim >> 1
        d = 8 * (thread % lanes)
        remaining = int32(half) - int32(d) if head < total_heads else int32(0)
        offset = (t * total_heads + head) * dim + d
        cos, sin = cuda.local.array(8, float32), cuda.local.array(8, float32)
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            load_angles(cos, sin, table, position, dim, d, remaining if head < rotated_heads else int32(0))
            ptx.griddepcontrol_wait()
        a, b = cuda.local.array(8, float32), cuda.local.array(8, float32)  # eight pairs, in flight with slot
        load(a, 0, qkv, offset, remaining)
        load(b, 0, qkv, offset + half, remaining)
        if slot < num_slots:  # the same for the whole block
            if normalised:  # values take part: a shuffle needs all lanes of its warp
                inv_dim, squares = ONE / float32(dim), ZERO
                for e in range(8):
                    squares += a[e] * a[e] + b[e] * b[e]
                distance = lanes >> 1
                while distance > 0:
                    squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
                    distance >>= 1
                rstd = cuda.rsqrt(squares * inv_dim + EPSILON)
                if head < rotated_heads:
                    v, w = cuda.local.array(8, float32), cuda.local.array(8, float32)
                    if head < heads:
                        load(v, 0, q_norm, d, remaining)
                        load(w, 0, q_norm, d + half, remaining)
                    else:
                        load(v, 0, k_norm, d, remaining)
                        load(w, 0, k_norm, d + half, remaining)
                    for e in range(8):
                        a[e] = rounded(rounded(a[e] * rstd) * v[e])
                        b[e] = rounded(rounded(b[e] * rstd) * w[e])
            if head < rotated_heads:
                if not EARLY:
                    load_angles(cos, sin, table, position, dim, d, remaining)
                for e in range(8):
                    first = a[e]
                    a[e] = first * cos[e] - b[e] * sin[e]
                    b[e] = b[e] * cos[e] + first * sin[e]
            if head < heads:
                out_offset = (t * heads + head) * dim + d
                store(q, out_offset, remaining, a, 0)
                store(q, out_offset + half, remaining, b, 0)
            elif head < total_heads:
                kv_head = head - heads if head < rotated_heads else head - rotated_heads
                out_offset = ((slot // page * kv_heads + kv_head) * page + slot % page) * dim + d
                if head < rotated_heads:
                    store(keys, out_offset, remaining, a, 0)
                    store(keys, out_offset + half, remaining, b, 0)
                else:
                    store(values, out_offset, remaining, a, 0)
                    store(values, out_offset + half, remaining, b, 0)

    rope_split_cache_kernel.uses_pdl = early
    return rope_split_cache_kernel


def rope_split_cache(qkv, table, positions, slots, q, keys, values, q_norm=None, k_norm=None, eps=EPS, stream=0,
                     together=True):
    """The launcher to use: one launch, in which a thread has eight pairs of a head, 128 bits from each half, and
    writes them where they belong. together=False: load and store one element at a time."""
    element = _check(qkv, table, positions, slots, q, keys, values, norms=(q_norm, k_norm))
    (num_tokens, heads, dim), (pages, kv_heads, page, _) = q.shape, keys.shape
    normalised = q_norm is not None
    norms = (q_norm, k_norm) if normalised else (qkv, qkv)
    together = together and in_eights(dim // 2, qkv, table, *norms, q, keys, values)
    lanes = lanes_of(dim)
    threads = (heads + 2 * kv_heads) * lanes
    block = min(BLOCK, -(-threads // 32) * 32)
    kernel = make_rope_split_cache(element, together, normalised, eps, uses_pdl(num_tokens))
    kernel[blocks_for((num_tokens, threads), (1, block)), block, stream](
        flat(qkv), flat(table), positions, slots, *map(flat, (*norms, q, keys, values)),
        *map(np.uint32, (heads, kv_heads, dim, lanes, page, pages * page)))


def _check(qkv, table, positions, slots, q, keys, values, norms) -> Element:
    element = element_of("qkv", qkv)
    array_dtype = element.dtype
    check_array("q", q, ndim=3, dtype=array_dtype)
    check_array("keys", keys, ndim=4, dtype=array_dtype)
    (num_tokens, heads, dim), kv_heads = q.shape, keys.shape[1]
    check_head_dim(dim)
    if keys.shape[3] != dim:
        raise ValueError(f"keys has shape {tuple(keys.shape)}, heads of {keys.shape[3]}; those of q have {dim}")
    check_array("values", values, shape=keys.shape, dtype=array_dtype)
    check_array("qkv", qkv, shape=(num_tokens, (heads + 2 * kv_heads) * dim), dtype=array_dtype)
    check_array("table", table, ndim=2)
    if table.shape[1] != dim:
        raise ValueError(f"table has shape {tuple(table.shape)}; a row must have {dim} numbers, as a head has")
    check_array("positions", positions, shape=(num_tokens,), dtype=np.int32)
    check_array("slots", slots, shape=(num_tokens,), dtype=np.int32)
    if norms.count(None) == 1:
        raise ValueError("q_norm and k_norm must both be given, or neither")
    if norms != (None, None):
        for name, norm in zip(("q_norm", "k_norm"), norms, strict=True):
            check_array(name, norm, shape=(dim,), dtype=array_dtype)
    return element


# --- The operations: out is q, then the keys and the values of pages that T tokens fill -------------------------------

PAGE = 16


def _cache_shape(qkv, table, heads) -> tuple:
    dim = table.shape[1]
    return qkv.shape[0] // PAGE, (qkv.shape[1] // dim - heads) // 2, PAGE, dim


def _parts(qkv, table, heads, out):
    """Return q, keys and values as views of out."""
    shape = _cache_shape(qkv, table, heads)
    if qkv.shape[0] % PAGE:
        raise ValueError(f"qkv has {qkv.shape[0]} rows; they must fill pages of {PAGE}")
    q_size, kv_size = qkv.shape[0] * heads * shape[3], int(np.prod(shape))
    return (out[:q_size].reshape(qkv.shape[0], heads, shape[3]), out[q_size : q_size + kv_size].reshape(shape),
            out[q_size + kv_size :].reshape(shape))


@rung(kernel=(split_kernel, make_rotate(BFLOAT16, False, False, EPS)),
      idea="three launches: split, rotate the queries, rotate the keys in the cache")
def rope_three_launches(qkv, table, positions, slots, heads, q_norm, k_norm, out, stream=0):
    """One launch splits QKV, one rotates the queries, one the keys in the cache, one thread per head: what is rotated
    passes through memory twice."""
    rope_split_cache_three_launches(qkv, table, positions, slots, *_parts(qkv, table, heads, out), q_norm, k_norm,
                                    stream=stream)


@rung(kernel=make_rope_split_cache(BFLOAT16, False, False, EPS), idea="one launch: rotated on its way to the cache")
def rope_one_launch(qkv, table, positions, slots, heads, q_norm, k_norm, out, stream=0):
    """As three_launches, but a thread reads eight pairs of a head, rotates them in registers and writes them to where
    they belong; with norms, the threads of a head reduce by shuffles. Elements are loaded one at a time."""
    rope_split_cache(qkv, table, positions, slots, *_parts(qkv, table, heads, out), q_norm, k_norm, stream=stream,
                     together=False)


@rung(kernel=make_rope_split_cache(BFLOAT16, True, False, EPS), idea="eight neighbours in one load")
def rope_vectorized(qkv, table, positions, slots, heads, q_norm, k_norm, out, stream=0):
    """As one_launch, but eight neighbours are one access of 128 bits, in float32 two, if both halves of a head are
    whole octets."""
    rope_split_cache(qkv, table, positions, slots, *_parts(qkv, table, heads, out), q_norm, k_norm, stream=stream)


def _reference(qkv, table, positions, slots, heads, q_norm, k_norm):
    shape = _cache_shape(qkv, table, heads)
    parts = rope_split_cache_reference(qkv, table, positions, slots, heads, shape, q_norm, k_norm)
    return np.concatenate([part.reshape(-1) for part in parts])
