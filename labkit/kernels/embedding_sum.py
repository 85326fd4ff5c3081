"""The first layer of BERT: out[t] = layernorm(words[ids[t]] + kinds[types[t]] + places[positions[t]]).

Shapes  ids, types, positions (T,) int32, words (V, C), places (P, C), kinds (K, C), weight and bias (C,), out (T, C);
        all float32, or all float16 with float32 arithmetic; C-contiguous; up to 4,096 columns (float16: 2,048)
Work    about 10 flops an element; 8*T*C bytes (float16: 4*T*C): the few rows of positions and types stay in the cache
Source  Devlin, Chang, Lee, Toutanova: BERT (2019), https://arxiv.org/abs/1810.04805

Positions are an input: in a packed batch each sentence starts at 0 again. An index that is out of range gives a row of
NaN: a launcher cannot read device memory without a synchronisation.
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.elements import FLOAT16
from labkit.kernels.norm import half
from labkit.kernels.norm.layernorm import (
    ONE,
    WARP_QUADS,
    WARPS,
    layernorm,
    layernorm_reference,
)
from labkit.kernels.norm.rows import EPSILON, FOUR, QUADS, SINGLES, fitting, flat, kind_of, make_row, put_four, small
from labkit.kernels.reduce import warp_sum

BLOCK = 128
ZERO, NAN = float32(0.0), float32(np.nan)


def embedding_sum_reference(ids, types, positions, words, places, kinds):
    valid = np.ones(len(ids), bool)
    total = np.zeros((len(ids), words.shape[1]))
    for indices, table in ((ids, words), (types, kinds), (positions, places)):
        in_range = (indices >= 0) & (indices < len(table))
        valid &= in_range
        total += table[np.where(in_range, indices, 0)].astype(np.float64)
    return np.where(valid[:, None], total, np.nan)


def embedding_layernorm_reference(ids, types, positions, words, places, kinds, weight, bias, epsilon=EPSILON):
    return layernorm_reference(embedding_sum_reference(ids, types, positions, words, places, kinds), weight, bias,
                               epsilon)


# --- The sum alone ----------------------------------------------------------------------------------------------------


@cuda.jit
def embedding_sum_kernel(ids, types, positions, words, places, kinds, out):
    t = u32.blockIdx.x
    word, kind, place = uint32(ids[t]), uint32(types[t]), uint32(positions[t])  # negatives become huge
    valid = (word < u32.shape(words)[0] and kind < u32.shape(kinds)[0] and place < u32.shape(places)[0])
    columns = u32.shape(out)[1]
    for col in u32.range(u32.threadIdx.x, columns, BLOCK):
        total = NAN
        if valid:
            total = float32(words[word, col]) + float32(kinds[kind, col]) + float32(places[place, col])
        out[t, col] = total


def embedding_sum(ids, types, positions, words, places, kinds, out, stream=0):
    """One block gathers and adds one row; the sum is made in float32 and rounded once. Any width."""
    rows, _, _ = _check(ids, types, positions, words, places, kinds, out)
    embedding_sum_kernel[rows, BLOCK, stream](ids, types, positions, words, places, kinds, out)


def embedding_then_layernorm(ids, types, positions, words, places, kinds, weight, bias, out, epsilon=EPSILON, stream=0):
    """Two launches: the sum is written into out, and normalised there, in place."""
    _, _, dtype = _check(ids, types, positions, words, places, kinds, out, norm=(weight, bias))
    embedding_sum(ids, types, positions, words, places, kinds, out, stream=stream)
    normalise = half.layernorm_half_warp if dtype == np.float16 else layernorm
    normalise(out, weight, bias, out, epsilon=epsilon, stream=stream)


# --- The sum normalised in registers ----------------------------------------------------------------------------------


@cuda.jit(device=True)
def sum_of_four(a, b, c):
    return a[0] + b[0] + c[0], a[1] + b[1] + c[1], a[2] + b[2] + c[2], a[3] + b[3] + c[3]


@cuda.jit(device=True)
def sum_of_eight(a, b, c):
    return (a[0] + b[0] + c[0], a[1] + b[1] + c[1], a[2] + b[2] + c[2], a[3] + b[3] + c[3],
            a[4] + b[4] + c[4], a[5] + b[5] + c[5], a[6] + b[6] + c[6], a[7] + b[7] + c[7])


@kernel_factory
def make_embedding_layernorm(pieces: int, access: str, is_half: bool, epsilon: float):
    """Return a kernel for rows of up to 128 * pieces columns, float16: 256 * pieces. access: WHOLE, QUADS or SINGLES,
    which of a lane's four neighbours are in range (norm/rows.py)."""
    if is_half:
        vectorized = access != SINGLES
        load, store = half.EIGHT[FLOAT16][0 if vectorized else 1]
        put, add, VEC = half.put_eight, sum_of_eight, 8
    else:
        load, store = FOUR[access]
        put, add, VEC = put_four, sum_of_four, 4
    ITEMS, STEP, EPS = VEC * pieces, 32 * VEC, small(epsilon)
    centre, store_normalised = make_row(pieces, STEP, load, store, vec=VEC)

    @cuda.jit(launch_bounds=(32 * WARPS, 4))  # a bound lets ptxas load all pieces of a row before it adds the first
    def embedding_layernorm_kernel(ids, types, positions, words, places, kinds, weight, bias, out):  # tables flat
        lane = u32.threadIdx.x
        row = u32.blockIdx.x * WARPS + u32.threadIdx.y
        if row < u32.size(ids):  # the same for the whole warp
            columns = u32.size(weight)
            inv_cols = ONE / float32(columns)
            word, kind, place = uint32(ids[row]), uint32(types[row]), uint32(positions[row])
            in_range = (word < u32.size(words) // columns and kind < u32.size(kinds) // columns
                        and place < u32.size(places) // columns)
            if not in_range:
                word, kind, place = 0, 0, 0
            lane_offset, remaining = VEC * lane, int32(columns) - int32(VEC) * int32(lane)
            word, kind = word * columns + lane_offset, kind * columns + lane_offset
            place = place * columns + lane_offset
            v = cuda.local.array(ITEMS, float32)
            for p in u32.range(pieces):
                valid = remaining - int32(STEP * p)
                put(v, VEC * p, add(load(words, word + STEP * p, valid),
                                    load(kinds, kind + STEP * p, valid),
                                    load(places, place + STEP * p, valid)))
            total = ZERO
            for e in range(ITEMS):
                total += v[e]
            mean = warp_sum(total) * inv_cols if in_range else NAN
            scale = cuda.rsqrt(warp_sum(centre(v, mean, remaining)) * inv_cols + EPS)
            store_normalised(v, scale, weight, bias, out, row * columns + lane_offset, lane_offset, remaining)

    return embedding_layernorm_kernel


def embedding_layernorm(ids, types, positions, words, places, kinds, weight, bias, out, epsilon=EPSILON, stream=0):
    """One launch: a warp gathers a row, and normalises the sum in registers."""
    rows, columns, dtype = _check(ids, types, positions, words, places, kinds, out, norm=(weight, bias))
    if dtype == np.float16:
        _, pieces = fitting(columns, half.OCTETS, "a warp")
        access = SINGLES if columns % 8 or not aligned(words, places, kinds, weight, bias, out) else QUADS
    else:
        capacity, pieces = fitting(columns, WARP_QUADS, "a warp")
        access = kind_of(columns, capacity, words, places, kinds, weight, bias, out)
    kernel = make_embedding_layernorm(pieces, access, dtype == np.float16, epsilon)
    tables = flat(words), flat(places), flat(kinds)
    kernel[-(-rows // WARPS), (32, WARPS), stream](ids, types, positions, *tables, weight, bias, flat(out))


def _check(ids, types, positions, words, places, kinds, out, norm=()) -> tuple:
    """(rows, columns, dtype), or an error that names the argument."""
    dtype = np.dtype(getattr(words, "dtype", np.float32))
    if dtype not in (np.float32, np.float16):
        raise TypeError(f"words has dtype {dtype}; float32 and float16 are allowed")
    check_array("ids", ids, ndim=1, dtype=np.int32)
    check_array("types", types, shape=ids.shape, dtype=np.int32)
    check_array("positions", positions, shape=ids.shape, dtype=np.int32)
    check_array("words", words, ndim=2, dtype=dtype)
    for name, table in (("places", places), ("kinds", kinds)):
        check_array(name, table, ndim=2, dtype=dtype)
        if table.shape[1] != words.shape[1]:
            raise ValueError(f"{name} has shape {tuple(table.shape)} and words {tuple(words.shape)}; "
                             f"they must have as many columns")
    for name, vector in zip(("weight", "bias"), norm, strict=False):
        check_array(name, vector, shape=words.shape[1:], dtype=dtype)
    check_array("out", out, shape=(ids.shape[0], words.shape[1]), dtype=dtype)
    return (*out.shape, dtype)
