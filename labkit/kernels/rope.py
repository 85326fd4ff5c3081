"""Rotary position embedding, fused with its neighbours: QKV is split, queries and keys are rotated, and keys and
values are written into the pages of the cache.

Shapes  qkv (T, (H + 2K) * D): the H query heads of a token, its K key heads, its K value heads
        table (P, D) float32 from rope_table; positions, slots (T,) int32; q (T, H, D)
        keys, values (pages, K, page, D), where `page` tokens fill a page; q_norm, k_norm (D,) or both None
        qkv, q, keys, values and the norms: all float32, or all uint16, which holds bfloat16. D is even, 512 at most
Work    6 flops for each pair that is rotated; each number of qkv is read once and written once, and a row of table
        for each token
Source  Su et al.: RoFormer (2021), https://arxiv.org/abs/2104.09864; the pairs (d, d + D/2) are those of GPT-NeoX and
        transformers, not the paper's (2d, 2d + 1)

Pair d of a head at position p is rotated by the angle p * theta^(-2d/D), so that the product of a query and a key
depends on how far apart they are, not on where. With q_norm and k_norm each head of Qwen3 is normalised before that, as
rows are in kernels/norm/rmsnorm.py.

slots[t] = page number * page + place in the page. A slot outside the cache, such as -1, marks a row of padding:
nothing is written for it. A position outside the table gives NaN: a launcher cannot look at device memory without a
synchronisation. Arithmetic is float32; in bfloat16 the result is rounded once.
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit._common.chunks import in_chunks
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for, check_array
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights, rounded_as
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rmsnorm import rmsnorm_reference
from labkit.kernels.norm.rows import flat, small
from labkit.kernels.op import rung
from labkit.kernels.pdl import uses_pdl

EPS = 1e-6  # Qwen3's, for q_norm and k_norm
BLOCK = 256
MOST_DIM = 512
ALL_LANES = 0xFFFFFFFF
ZERO, ONE, NAN = float32(0.0), float32(1.0), float32(np.nan)
SCALINGS = ("default", "linear", "llama3")


# --- The angles, on the host ------------------------------------------------------------------------------------------


def rope_table(max_positions: int, head_dim: int, theta: float, scaling: dict | None = None) -> np.ndarray:
    """float32 (max_positions, head_dim): in row p the cosines of the head_dim / 2 angles of position p, then their
    sines. Computed in float64: in float32 an angle of 8,000 radians is off by up to 0.0005.

    scaling: config.json's rope_scaling, or rope_parameters, of type "default", "linear" or "llama3". Raises ValueError,
    which names the argument or the key, for what would be computed wrongly.
    """
    if not (isinstance(max_positions, int) and max_positions >= 1):
        raise ValueError(f"max_positions is {max_positions!r}; it must be an integer of at least 1")
    check_head_dim(head_dim)
    if not 0 < theta < np.inf:
        raise ValueError(f"theta is {theta!r}; it must be above 0 and finite")
    table, steps = np.empty((max_positions, head_dim), np.float32), frequencies(head_dim, theta, scaling)

    def fill(begin: int, end: int) -> None:
        angles = np.arange(begin, end)[:, None] * steps
        np.cos(angles, out=table[begin:end, : steps.size], casting="same_kind")
        np.sin(angles, out=table[begin:end, steps.size :], casting="same_kind")

    in_chunks(max_positions, fill, chunk=4096)
    return table


def check_head_dim(head_dim: int) -> None:
    if head_dim < 2 or head_dim % 2 or head_dim > MOST_DIM:
        raise ValueError(f"the head dimension is {head_dim}; it must be even, 2 to {MOST_DIM}")


def frequencies(head_dim: int, theta: float, scaling: dict | None = None) -> np.ndarray:
    """float64 (head_dim / 2,): radians from one position to the next."""
    found = float(theta) ** (-np.arange(0, head_dim, 2) / head_dim)
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SCALINGS:
        raise ValueError(f"rope_type is {kind!r}; {', '.join(map(repr, SCALINGS))} are known")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor is {scaling['partial_rotary_factor']!r}; only 1.0, whole heads, is "
                         f"known")
    if kind == "linear":
        found = found / _number(scaling, "factor")
    elif kind == "llama3":
        found = _llama3(found, _number(scaling, "factor"), _number(scaling, "low_freq_factor"),
                        _number(scaling, "high_freq_factor"), _number(scaling, "original_max_position_embeddings"))
    return found


def _llama3(found, factor, low, high, context):
    """Llama 3.1's: waves that are short beside the context it was first trained for stay as they are, long ones are
    stretched by `factor`, and those between are a mixture of both."""
    if not low < high:
        raise ValueError(f"low_freq_factor is {low} and high_freq_factor {high}; the first must be below the second")
    turns = context * found / (2 * np.pi)  # of each wave within that context
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return kept * found + (1 - kept) * found / factor


def _number(scaling: dict, key: str) -> float:
    value = scaling.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < np.inf:
        given = f"has no {key!r}" if key not in scaling else f"has {key} {value!r}"
        raise ValueError(f"the rope scaling {given}; it must be a number above 0")
    return float(value)


# --- The reference ----------------------------------------------------------------------------------------------------


def rotated_reference(heads, table, positions, weight=None, eps=EPS):
    """float64 of heads (T, heads, D), each token's rotated to its position, after RMSNorm where there is a weight. NaN
    where the table has no such position."""
    rounded, half = rounded_as(heads), heads.shape[2] // 2
    if weight is not None:
        heads = rmsnorm_reference(heads.reshape(-1, heads.shape[2]), weight, eps).reshape(heads.shape)
    heads = float64_of(heads)
    known = (positions >= 0) & (positions < len(table))
    rows = np.where(known[:, None], float64_of(table)[np.where(known, positions, 0)], np.nan)[:, None]
    first, second, cos, sin = heads[..., :half], heads[..., half:], rows[..., :half], rows[..., half:]
    return rounded(np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2))


def in_pages(rows, slots, cache_shape) -> np.ndarray:
    """float64 of a cache (pages, K, page, D) to which rows (T, K, D) were written: NaN elsewhere."""
    cache, page = np.full(cache_shape, np.nan), cache_shape[2]
    real = (slots >= 0) & (slots < cache_shape[0] * page)
    cache[slots[real] // page, :, slots[real] % page] = rows[real]
    return cache


def rope_split_cache_reference(qkv, table, positions, slots, heads, cache_shape, q_norm=None, k_norm=None, eps=EPS):
    """(q, keys, values) in float64, NaN where nothing is written. heads: of the queries; cache_shape: of keys."""
    pages, shared, page, dim = cache_shape
    rows = qkv.reshape(len(slots), heads + 2 * shared, dim)
    q = rotated_reference(rows[:, :heads], table, positions, q_norm, eps)
    q[(slots < 0) | (slots >= pages * page)] = np.nan
    keys = rotated_reference(rows[:, heads : heads + shared], table, positions, k_norm, eps)
    return q, in_pages(keys, slots, cache_shape), in_pages(float64_of(rows[:, heads + shared :]), slots, cache_shape)


# --- Three launches ---------------------------------------------------------------------------------------------------


@cuda.jit
def split_kernel(qkv, slots, q, keys, values):
    """One thread moves one number of qkv, as it is. A block's numbers belong to one token."""
    t, i = u32.blockIdx.x, u32.blockIdx.y * BLOCK + u32.threadIdx.x
    heads, dim, shared, page = u32.shape(q)[1], u32.shape(q)[2], u32.shape(keys)[1], u32.shape(keys)[2]
    head, d, slot = i // dim, i % dim, uint32(slots[t])  # negatives become huge
    if head < heads + 2 * shared and slot < u32.shape(keys)[0] * page:
        value = qkv[t, i]
        if head < heads:
            q[t, head, d] = value
        elif head < heads + shared:
            keys[slot // page, head - heads, slot % page, d] = value
        else:
            values[slot // page, head - heads - shared, slot % page, d] = value


@kernel_factory
def make_rotate(element: Element, in_cache: bool, normalised: bool, eps: float):
    """Rotates heads where they are, one thread a head: of q, or of the tokens' keys in the cache."""
    (load, store, rounded, _, _), SMALL = ACCESS[element], small(eps)

    @cuda.jit
    def rotate_kernel(rows, table, positions, slots, weight, heads, dim, page, places):  # rows as one long vector
        t, head = u32.blockIdx.x, u32.blockIdx.y * 32 + u32.threadIdx.x
        slot = uint32(slots[t])
        if head < heads and slot < places:
            start = (t * heads + head) * dim
            if in_cache:
                start = ((slot // page * heads + head) * page + slot % page) * dim
            if normalised:
                squares = ZERO
                for d in u32.range(dim):
                    value = load(rows, start + d)
                    squares += value * value
                scale = cuda.rsqrt(squares / float32(dim) + SMALL)
                for d in u32.range(dim):
                    store(rows, start + d, rounded(load(rows, start + d) * scale) * load(weight, d))
            position, half = uint32(positions[t]), dim >> 1
            for d in u32.range(half):
                cos, sin = NAN, NAN
                if position < u32.shape(table)[0]:
                    cos, sin = table[position, d], table[position, d + half]
                first, second = load(rows, start + d), load(rows, start + d + half)
                store(rows, start + d, first * cos - second * sin)
                store(rows, start + d + half, second * cos + first * sin)

    return rotate_kernel


def rope_split_cache_three_launches(qkv, table, positions, slots, q, keys, values, q_norm=None, k_norm=None, eps=EPS,
                                    stream=0):
    """Split QKV in one launch, rotate the queries in q in another, and the keys in the cache in a third: rotated rows
    pass through memory twice."""
    element = _check(qkv, table, positions, slots, q, keys, values, q_norm, k_norm)
    (count, heads, dim), (pages, shared, page, _) = q.shape, keys.shape
    split_kernel[blocks_for((count, qkv.shape[1]), (1, BLOCK)), BLOCK, stream](qkv, slots, q, keys, values)
    for rows, number, weight, in_cache in ((q, heads, q_norm, False), (keys, shared, k_norm, True)):
        kernel = make_rotate(element, in_cache, weight is not None, eps)
        kernel[blocks_for((count, number), (1, 32)), 32, stream](
            flat(rows), table, positions, slots, flat(qkv) if weight is None else weight,
            *map(np.uint32, (number, dim, page, pages * page)))


# --- One launch -------------------------------------------------------------------------------------------------------


def lanes_of(dim: int) -> int:
    """Threads that share a head, each with eight of its pairs: a power of two, so that shuffles join them."""
    return 1 << (-(-dim // 16) - 1).bit_length()


@kernel_factory
def make_rope_split_cache(element: Element, together: bool, normalised: bool, eps: float, early: bool = False):
    """together: both parts of a head come in eights, at multiples of 16 bytes. early: as in kernels/pdl.py, with
    the slots, the positions and the table's rows first, which no kernel of a step writes."""
    (load, store), rounded = ACCESS[element].neighbours(together), ACCESS[element].rounded
    load_row = ACCESS[FLOAT32].neighbours(together)[0]
    SMALL, EARLY = small(eps), early

    @cuda.jit(device=True)
    def load_angles(cos, sin, table, position, dim, d, left):
        if position < u32.size(table) // dim:
            row = position * dim
            load_row(cos, 0, table, row + d, left)
            load_row(sin, 0, table, row + d + (dim >> 1), left)
        else:
            for e in range(8):
                cos[e], sin[e] = NAN, NAN

    @cuda.jit
    def rope_split_cache_kernel(qkv, table, positions, slots, q_norm, k_norm, q, keys, values, heads, shared, dim,
                                lanes, page, places):  # all but positions and slots as one long vector
        t = u32.blockIdx.x
        thread = u32.blockIdx.y * u32.blockDim.x + u32.threadIdx.x
        head = thread // lanes
        slot, position = uint32(slots[t]), uint32(positions[t])  # negatives become huge
        rotated, every, half = heads + shared, heads + shared + shared, dim >> 1
        d = 8 * (thread % lanes)
        left = int32(half) - int32(d) if head < every else int32(0)
        start = (t * every + head) * dim + d
        cos, sin = cuda.local.array(8, float32), cuda.local.array(8, float32)
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            load_angles(cos, sin, table, position, dim, d, left if head < rotated else int32(0))
            ptx.griddepcontrol_wait()
        a, b = cuda.local.array(8, float32), cuda.local.array(8, float32)  # eight pairs, which travel beside slot
        load(a, 0, qkv, start, left)
        load(b, 0, qkv, start + half, left)
        if slot < places:  # the same for the whole block
            if normalised:  # values come along: a shuffle needs all lanes of its warp
                share, squares = ONE / float32(dim), ZERO
                for e in range(8):
                    squares += a[e] * a[e] + b[e] * b[e]
                distance = lanes >> 1
                while distance > 0:
                    squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
                    distance >>= 1
                scale = cuda.rsqrt(squares * share + SMALL)
                if head < rotated:
                    v, w = cuda.local.array(8, float32), cuda.local.array(8, float32)
                    if head < heads:
                        load(v, 0, q_norm, d, left)
                        load(w, 0, q_norm, d + half, left)
                    else:
                        load(v, 0, k_norm, d, left)
                        load(w, 0, k_norm, d + half, left)
                    for e in range(8):
                        a[e] = rounded(rounded(a[e] * scale) * v[e])
                        b[e] = rounded(rounded(b[e] * scale) * w[e])
            if head < rotated:
                if not EARLY:
                    load_angles(cos, sin, table, position, dim, d, left)
                for e in range(8):
                    first = a[e]
                    a[e] = first * cos[e] - b[e] * sin[e]
                    b[e] = b[e] * cos[e] + first * sin[e]
            if head < heads:
                to = (t * heads + head) * dim + d
                store(q, to, left, a, 0)
                store(q, to + half, left, b, 0)
            elif head < every:
                number = head - heads if head < rotated else head - rotated
                to = ((slot // page * shared + number) * page + slot % page) * dim + d
                if head < rotated:
                    store(keys, to, left, a, 0)
                    store(keys, to + half, left, b, 0)
                else:
                    store(values, to, left, a, 0)
                    store(values, to + half, left, b, 0)

    rope_split_cache_kernel.uses_pdl = early
    return rope_split_cache_kernel


def rope_split_cache(qkv, table, positions, slots, q, keys, values, q_norm=None, k_norm=None, eps=EPS, stream=0,
                     together=True):
    """The launcher to use: one launch, in which a thread has eight pairs of a head, 128 bits of bfloat16 from each of
    its parts, and writes them where they belong. together=False: it loads and stores one number after the other."""
    element = _check(qkv, table, positions, slots, q, keys, values, q_norm, k_norm)
    (count, heads, dim), (pages, shared, page, _) = q.shape, keys.shape
    normalised = q_norm is not None
    norms = (q_norm, k_norm) if normalised else (qkv, qkv)
    together = together and in_eights(dim // 2, qkv, table, *norms, q, keys, values)
    lanes = lanes_of(dim)
    threads = (heads + 2 * shared) * lanes
    block = min(BLOCK, -(-threads // 32) * 32)
    kernel = make_rope_split_cache(element, together, normalised, eps, uses_pdl(count))
    kernel[blocks_for((count, threads), (1, block)), block, stream](
        flat(qkv), flat(table), positions, slots, *map(flat, (*norms, q, keys, values)),
        *map(np.uint32, (heads, shared, dim, lanes, page, pages * page)))


def _check(qkv, table, positions, slots, q, keys, values, q_norm, k_norm) -> Element:
    element = element_of("qkv", qkv)
    held = element.dtype
    check_array("q", q, ndim=3, dtype=held)
    check_array("keys", keys, ndim=4, dtype=held)
    (count, heads, dim), shared = q.shape, keys.shape[1]
    check_head_dim(dim)
    if keys.shape[3] != dim:
        raise ValueError(f"keys has shape {tuple(keys.shape)}, heads of {keys.shape[3]}; those of q have {dim}")
    check_array("values", values, shape=keys.shape, dtype=held)
    check_array("qkv", qkv, shape=(count, (heads + 2 * shared) * dim), dtype=held)
    check_array("table", table, ndim=2)
    if table.shape[1] != dim:
        raise ValueError(f"table has shape {tuple(table.shape)}; a row must have {dim} numbers, as a head has")
    check_array("positions", positions, shape=(count,), dtype=np.int32)
    check_array("slots", slots, shape=(count,), dtype=np.int32)
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm must both be given, or neither")
    if q_norm is not None:
        check_array("q_norm", q_norm, shape=(dim,), dtype=held)
        check_array("k_norm", k_norm, shape=(dim,), dtype=held)
    return element


# --- The operations: out is q, then the keys and the values of pages that T tokens fill -------------------------------

PAGE = 16


def _cache_shape(qkv, table, heads) -> tuple:
    dim = table.shape[1]
    return qkv.shape[0] // PAGE, (qkv.shape[1] // dim - heads) // 2, PAGE, dim


def _parts(qkv, table, heads, out):
    """q, keys and values as views of out."""
    shape = _cache_shape(qkv, table, heads)
    if qkv.shape[0] % PAGE:
        raise ValueError(f"qkv has {qkv.shape[0]} rows; they must fill pages of {PAGE}")
    count, cached = qkv.shape[0] * heads * shape[3], int(np.prod(shape))
    return (out[:count].reshape(qkv.shape[0], heads, shape[3]), out[count : count + cached].reshape(shape),
            out[count + cached :].reshape(shape))


@rung(kernel=(split_kernel, make_rotate(BFLOAT16, False, False, EPS)),
      idea="three launches: split, rotate the queries, rotate the keys in the cache")
def rope_three_launches(qkv, table, positions, slots, heads, q_norm, k_norm, out, stream=0):
    """One launch splits QKV, one rotates the queries, one the keys where they lie in the cache, a thread a head: what
    is rotated passes through memory twice."""
    rope_split_cache_three_launches(qkv, table, positions, slots, *_parts(qkv, table, heads, out), q_norm, k_norm,
                                    stream=stream)


@rung(kernel=make_rope_split_cache(BFLOAT16, False, False, EPS), idea="one launch: rotated on its way to the cache")
def rope_one_launch(qkv, table, positions, slots, heads, q_norm, k_norm, out, stream=0):
    """As three_launches, but a thread reads eight pairs of a head, rotates them in registers and writes them to where
    they belong; with norms, the threads of a head meet by shuffles. Numbers are loaded one after the other."""
    rope_split_cache(qkv, table, positions, slots, *_parts(qkv, table, heads, out), q_norm, k_norm, stream=stream,
                     together=False)


@rung(kernel=make_rope_split_cache(BFLOAT16, True, False, EPS), idea="eight neighbours in one load")
def rope_vectorized(qkv, table, positions, slots, heads, q_norm, k_norm, out, stream=0):
    """As one_launch, but eight neighbours are one access of 128 bits, in float32 two, where both parts of a head come
    in eights."""
    rope_split_cache(qkv, table, positions, slots, *_parts(qkv, table, heads, out), q_norm, k_norm, stream=stream)


def _reference(qkv, table, positions, slots, heads, q_norm, k_norm):
    shape = _cache_shape(qkv, table, heads)
    parts = rope_split_cache_reference(qkv, table, positions, slots, heads, shape, q_norm, k_norm)
    return np.concatenate([part.reshape(-1) for part in parts])
