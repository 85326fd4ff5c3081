"""The exercises of lesson 24: RMSNorm by a block, the rotation of heads, a gated product in one pass, the sizes of a
cache and of llama3 scaling, and grouped-query attention of one token.

Sizes are T tokens, C columns, H heads of queries, K of keys and values, D numbers in a head, and N keys. Of the gated
product x is (T, K) and the weights are (N, K).
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import shuffles
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_ABOVE_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    SUMMED,
    ZEROS,
    at,
    in_place,
    of,
)
from labkit.kernels.attention.pages import attend_reference, rounding_errors
from labkit.kernels.elements import FLOAT32
from labkit.kernels.op import uniform
from labkit.kernels.rope import frequencies, head_tolerance, rope_table, rotated_reference
from labkit.kernels.tolerance import EPS32
from labkit.models.llama import Config

ALL_LANES = 0xFFFFFFFF

# --- RMSNorm by a block -----------------------------------------------------------------------------------------------

THREADS = 128
NORMED = {"T": 2, "C": 130}


def _normed(x, weight, epsilon):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + epsilon) * weight


def _norm_inputs(rng, T, C):
    """Every second row is small, so that epsilon counts there; epsilon differs from case to case."""
    scale = np.where(np.arange(T) % 2, 1e-3, 1.0).astype(np.float32)[:, None]
    return uniform(rng, T, C) * scale, 1 + uniform(rng, C) / 4, np.float32(rng.choice([1e-6, 1e-5, 1e-4]))


def _one_barrier(report) -> str | None:
    """The four warps meet once or twice, and the row is read twice."""
    warps, loads = report.counts["barriers"], report.counts["global_loads"]
    rows, columns = NORMED["T"], NORMED["C"]
    if warps > 2 * THREADS * rows:
        return (f"Each row takes {warps // (THREADS * rows)} barriers, and two are enough: the lanes of a warp add up "
                f"their squares by shuffles without a barrier, and the four warps have to meet only once.")
    enough = 4 * rows * columns  # x * x may be written with two loads
    if loads > enough:
        return (f"At {rows} x {columns} it loads {loads:,} numbers from global memory, more than {enough:,}: each "
                f"thread needs its own columns of x, twice, and of the weight.")
    return shuffles(report)


@cuda.jit
def rmsnorm_block_by_a_tree(x, weight, epsilon, out):
    partial = cuda.shared.array(128, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    squares = float32(0.0)
    for col in range(thread, columns, 128):
        squares += x[row, col] * x[row, col]
    partial[thread] = squares
    cuda.syncthreads()
    distance = 64
    while distance > 0:
        if thread < distance:
            partial[thread] += partial[thread + distance]
        cuda.syncthreads()
        distance //= 2
    scale = cuda.rsqrt(partial[0] / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]


@cuda.jit
def rmsnorm_block_each_thread_alone(x, weight, epsilon, out):
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    squares = float32(0.0)
    for col in range(columns):
        squares += x[row, col] * x[row, col]
    cuda.syncthreads()
    scale = cuda.rsqrt(squares / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]


@cuda.jit
def rmsnorm_block_subtracts_the_mean(x, weight, epsilon, out):
    partial = cuda.shared.array(8, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    total, squares = float32(0.0), float32(0.0)
    for col in range(thread, columns, 128):
        total += x[row, col]
        squares += x[row, col] * x[row, col]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32], partial[4 + thread // 32] = total, squares
    cuda.syncthreads()
    mean = (partial[0] + partial[1] + partial[2] + partial[3]) / float32(columns)
    square = (partial[4] + partial[5] + partial[6] + partial[7]) / float32(columns)
    scale = cuda.rsqrt(square - mean * mean + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = (x[row, col] - mean) * scale * weight[col]


RMSNORM_BLOCK = KernelExercise(
    name="rmsnorm_block",
    reference=_normed,
    inputs=_norm_inputs,
    shape=lambda T, C: (T, C),
    sizes=tuple({"T": T, "C": C} for T, C in ((1, 1), (3, 5), (2, 32), (3, 127), (2, 130), (2, 300))),
    random_size=lambda rng: {"T": int(rng.integers(2, 5)), "C": int(rng.integers(33, 280))},
    launch=lambda T, C: (T, THREADS),
    tolerance=lambda x, weight, epsilon: EPS32 * (np.sqrt(x.shape[1]) + 6) * np.abs(_normed(x, weight, epsilon)),
    observe_sizes=(NORMED,),
    demand=_one_barrier,
    domain=(in_place(0), at("a row has fewer columns than a warp has lanes", T=2, C=7),
            at("a row has several columns for each thread", T=2, C=513),
            *of(0, ZEROS, HUGE_AND_TINY, EQUAL, FAR_ABOVE_ZERO, ONE_FAR_ABOVE, at={"T": 4, "C": 100}),
            *of(1, NEGATIVE)),
    wrong={
        "the mean is subtracted, as in LayerNorm": rmsnorm_block_subtracts_the_mean,
        "the sum of the squares, not their mean": Edit("total / float32(columns)", "total"),
        "epsilon is left out: a row of zeros is divided by 0": Edit(" + epsilon", ""),
        "epsilon is added after the root": Edit("cuda.rsqrt(total / float32(columns) + epsilon)",
                                                "float32(1.0) / (math.sqrt(total / float32(columns)) + epsilon)"),
        "each warp takes the squares of its own columns alone": Edit(
            "total = partial[0] + partial[1] + partial[2] + partial[3]", "total = squares"),
        "the partial sum of the last warp is left out": Edit(" + partial[3]", ""),
        "the warps' sums are read before they are written: the barrier is missing": Edit("cuda.syncthreads()", ""),
        "the last lane stores the sum of a warp that only the first lane has": Edit(
            "shfl_xor_sync", "shfl_down_sync", "thread % 32 == 0", "thread % 32 == 31"),
        "every thread adds up the whole row, and nothing is exchanged": rmsnorm_block_each_thread_alone,
        "the weight is left out": Edit(" * weight[col]", ""),
        "a tree in shared memory, with a barrier for each of its levels": rmsnorm_block_by_a_tree,
    },
)

# --- The rotation of heads --------------------------------------------------------------------------------------------

POSITIONS = 40
ROTATED = {"T": 3, "H": 2, "D": 6}


def _rope_inputs(rng, T, H, D):
    return (uniform(rng, T, H, D), rope_table(POSITIONS, D, 10_000.0), rng.integers(0, POSITIONS, T).astype(np.int32))


def _rope_tolerance(x, table, positions):
    return head_tolerance(x, None, FLOAT32)


def _pairs_once(report) -> str | None:
    tokens, heads, size = ROTATED["T"], ROTATED["H"], ROTATED["D"]
    numbers = tokens * heads * size
    enough = 2 * numbers + numbers // 2  # x; cosines and sines of each pair; a position for each thread
    loads = report.counts["global_loads"]
    if loads > enough:
        return (f"At {tokens} tokens of {heads} heads of {size} it loads {loads:,} numbers, and {enough:,} are enough: "
                f"a thread loads both numbers of its pair, their cosine and sine, and a position, each once.")
    return None


def _at_positions(words, choose):
    return Reach(words, lambda rng, x, table, positions: (x, table, choose(positions).astype(np.int32)),
                 {"T": 4, "H": 3, "D": 8})


@cuda.jit
def rope_heads_second_from_first(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        p = positions[t]
        cos, sin = table[p, d], table[p, d + half]
        b = x[t, head, d + half]
        out[t, head, d] = x[t, head, d] * cos - b * sin
        out[t, head, d + half] = b * cos + x[t, head, d] * sin


@cuda.jit
def rope_heads_number_by_number(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        a, b = x[t, head, d], x[t, head, d + half]
        first = a * table[positions[t], d] - b * table[positions[t], d + half]
        out[t, head, d + half] = b * table[positions[t], d] + a * table[positions[t], d + half]
        out[t, head, d] = first


ROPE_HEADS = KernelExercise(
    name="rope_heads",
    reference=rotated_reference,
    inputs=_rope_inputs,
    shape=lambda T, H, D: (T, H, D),
    sizes=tuple({"T": T, "H": H, "D": D} for T, H, D in ((1, 1, 2), (3, 2, 6), (4, 3, 8), (2, 5, 34), (7, 3, 64))),
    random_size=lambda rng: {"T": int(rng.integers(2, 6)), "H": int(rng.integers(2, 6)),
                             "D": 2 * int(rng.integers(2, 20))},
    launch=lambda T, H, D: (-(-T * H * D // 128), 64),
    tolerance=_rope_tolerance,
    observe_sizes=(ROTATED,),
    demand=_pairs_once,
    domain=(in_place(0),
            _at_positions("all tokens stand at position 0", lambda positions: 0 * positions),
            _at_positions("all tokens stand at the last position of the table",
                          lambda positions: 0 * positions + POSITIONS - 1),
            _at_positions("the tokens stand in reverse order", lambda positions: 17 - np.arange(len(positions))),
            _at_positions("the tokens stand far apart", lambda positions: 13 * np.arange(len(positions))),
            *of(0, *SUMMED, EQUAL)),
    wrong={
        "neighbours are taken as pairs": Edit("a, b = x[t, head, d], x[t, head, d + half]",
                                              "a, b = x[t, head, 2 * d], x[t, head, 2 * d + 1]",
                                              "out[t, head, d] =", "out[t, head, 2 * d] =",
                                              "out[t, head, d + half] =", "out[t, head, 2 * d + 1] ="),
        "rotated the other way": Edit("a * cos - b * sin", "a * cos + b * sin", "b * cos + a * sin",
                                      "b * cos - a * sin"),
        "both signs are plus": Edit("a * cos - b * sin", "a * cos + b * sin"),
        "the token's number is taken for its position": Edit("p = positions[t]", "p = t"),
        "cosines and sines are taken to stand side by side": Edit("table[p, d], table[p, d + half]",
                                                                 "table[p, 2 * d], table[p, 2 * d + 1]"),
        "the sine is that of the first angle, for all pairs": Edit("table[p, d + half]", "table[p, half]"),
        "every head gets the angles of another token: heads and tokens are exchanged": Edit(
            "d, head, t = i % half, i // half % heads, i // half // heads",
            "d, t, head = i % half, i // half % tokens, i // half // tokens", "p = positions[t]",
            "p = positions[i // half // heads]"),
        "no guard: the last block has threads without a pair": Edit("if i < tokens * heads * half:", "if True:"),
        "in place, the second number is computed from the rotated first one": rope_heads_second_from_first,
        "the position is loaded again for each use": rope_heads_number_by_number,
    },
)

# --- A gated product --------------------------------------------------------------------------------------------------

GATED = {"T": 3, "N": 5, "K": 7}


def _silu(v):
    with np.errstate(over="ignore"):
        return v / (1 + np.exp(-v))


def _gated(x, gate, up):
    x, gate, up = (np.asarray(each, np.float64) for each in (x, gate, up))
    return _silu(x @ gate.T) * (x @ up.T)


def _gated_tolerance(x, gate, up):
    """The errors of both sums, each times what the other factor may be: silu's slope is at most 1.1."""
    length = 2 * EPS32 * np.sqrt(x.shape[1])
    g, u = x @ gate.T, x @ up.T
    of_gate, of_up = (length * np.abs(x) @ np.abs(each).T for each in (gate, up))
    roundings = EPS32 * (6 + np.minimum(np.abs(g), 90)) * np.abs(_silu(g) * u)
    return 1.1 * of_gate * (np.abs(u) + of_up) + of_up * np.abs(_silu(g)) + roundings + 2e-36 * (1 + np.abs(u))


def _in_one_loop(report) -> str | None:
    T, N, K = (GATED[axis] for axis in "TNK")
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= 3 * T * N * K and stores <= T * N:
        return None
    return (f"At {T} x {K} and {N} outputs it makes {loads:,} loads and {stores:,} stores; {3 * T * N * K:,} and "
            f"{T * N} suffice. In one loop each number of x serves both products, and both sums stay in registers.")


def _products_near(gate_sum, up_sum):
    """All products near these numbers."""
    def choose(rng, x, gate, up):
        x = np.ones_like(x)
        return x, *(np.float32(wanted / each.shape[1]) * (1 + np.abs(each) / 8) for each, wanted in
                    ((gate, gate_sum), (up, up_sum)))

    return choose


@cuda.jit
def gated_product_two_loops(x, gate, up, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        g, u = float32(0.0), float32(0.0)
        for k in range(x.shape[1]):
            g += x[row, k] * gate[col, k]
        for k in range(x.shape[1]):
            u += x[row, k] * up[col, k]
        out[row, col] = g / (float32(1.0) + math.exp(-g)) * u


@cuda.jit
def gated_product_through_out(x, gate, up, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        g, u = float32(0.0), float32(0.0)
        for k in range(x.shape[1]):
            value = x[row, k]
            g += value * gate[col, k]
            u += value * up[col, k]
        out[row, col] = g / (float32(1.0) + math.exp(-g))
        out[row, col] *= u


GATED_PRODUCT = KernelExercise(
    name="gated_product",
    reference=_gated,
    inputs=lambda rng, T, N, K: (uniform(rng, T, K), uniform(rng, N, K), uniform(rng, N, K)),
    shape=lambda T, N, K: (T, N),
    sizes=tuple({"T": T, "N": N, "K": K} for T, N, K in ((1, 1, 1), (3, 5, 7), (2, 33, 9), (9, 4, 16), (5, 70, 3))),
    launch=lambda T, N, K: ((-(-N // 32), -(-T // 4)), (32, 4)),
    tolerance=_gated_tolerance,
    observe_sizes=(GATED,),
    demand=_in_one_loop,
    domain=(Reach("the products of the gate are near 400", _products_near(400, 3)),
            Reach("the products of the gate are near -400", _products_near(-400, 3)),
            Reach("the products of the gate are near -1, where silu is negative", _products_near(-1, 2)),
            Reach("the products of up are near -50", _products_near(2, -50)),
            *of((0, 1, 2), ZEROS), *of(0, HUGE_AND_TINY, EQUAL)),
    wrong={
        "silu is taken of up, and not of the gate": Edit("g / (float32(1.0) + math.exp(-g)) * u",
                                                         "u / (float32(1.0) + math.exp(-u)) * g"),
        "the logistic function alone, without its argument as a factor": Edit("= g / (", "= float32(1.0) / ("),
        "exp of the gate, not of its negative": Edit("math.exp(-g)", "math.exp(g)"),
        "gelu by a logistic function, with 1.702": Edit("math.exp(-g)", "math.exp(float32(-1.702) * g)"),
        "exp(g) / (1 + exp(g)): beyond 88 it is infinity divided by infinity": Edit(
            "g / (float32(1.0) + math.exp(-g))", "g * math.exp(g) / (float32(1.0) + math.exp(g))"),
        "silu of both": Edit("math.exp(-g)) * u", "math.exp(-g)) * u / (float32(1.0) + math.exp(-u))"),
        "the weights are read as (K, N)": Edit("gate[col, k]", "gate[k % gate.shape[0], col % gate.shape[1]]",
                                               "up[col, k]", "up[k % up.shape[0], col % up.shape[1]]"),
        "the guard looks at the columns alone": Edit("row < out.shape[0] and col < out.shape[1]",
                                                     "col < out.shape[1]"),
        "a loop for each product: x is loaded twice": gated_product_two_loops,
        "the gate is kept in `out`, in global memory": gated_product_through_out,
    },
)

# --- Predict: a cache and its positions -------------------------------------------------------------------------------

LLAMA_3_1_8B = Config(
    vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=131_072, rms_norm_eps=1e-5, rope_theta=500_000.0,
    rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192})


def _cache_and_positions() -> dict:
    c = LLAMA_3_1_8B
    a_token = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 2
    plain = frequencies(c.head_dim, c.rope_theta)
    factor = plain / frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
    return {"token_bytes": a_token, "tokens_grouped": 16_000_000_000 // a_token,
            "tokens_ungrouped": 16_000_000_000 // (a_token * c.num_attention_heads // c.num_key_value_heads),
            "pairs_kept": int(np.isclose(factor, 1).sum()), "pairs_slowed": int(np.isclose(factor, 8).sum()),
            "launches": 8 * c.num_hidden_layers + 4}


PREDICT_CACHE = PredictionExercise(
    name="predict_cache",
    truth=_cache_and_positions,
    how={"token_bytes": "Keys and values, 32 layers, 8 heads of 128 numbers, 2 bytes each.",
         "tokens_grouped": "16,000,000,000 divided by 131,072, rounded down.",
         "tokens_ungrouped": "With 32 heads of keys and values a token takes four times the bytes.",
         "pairs_kept": "Pair d turns once in 2 pi 500,000^(d / 64) tokens; that must be at most 8,192 / 4. The last "
                       "such d is 28, and pair 0 counts as well.",
         "pairs_slowed": "At least 8,192 tokens for a turn: from d = 35 on.",
         "launches": "Eight in each layer; around them the embedding, the last norm, the gathering of the last rows, "
                     "and the head."},
    wrong={"the values are forgotten: a token leaves keys and values": {
               "token_bytes": 65536, "tokens_grouped": 244140, "tokens_ungrouped": 61035},
           "float32: four bytes a number": {"token_bytes": 262144, "tokens_grouped": 61035, "tokens_ungrouped": 15258},
           "the cache has a head for each head of queries": {
               "token_bytes": 524288, "tokens_grouped": 30517, "tokens_ungrouped": 7629},
           "the cache of one layer": {"token_bytes": 4096, "tokens_grouped": 3906250, "tokens_ungrouped": 976562},
           "pairs are counted from 1: the fastest one is forgotten": {"pairs_kept": 28},
           "the wavelength is the inverse of the frequency: 2 pi is forgotten": {"pairs_kept": 38, "pairs_slowed": 20},
           "those between count as slowed by the whole factor": {"pairs_slowed": 35},
           "the launches of the layers alone": {"launches": 256}},
)

# --- From a blank page: grouped-query attention of one token ----------------------------------------------------------

SIZE, MOST = 32, 8
ATTENDED = {"H": 4, "K": 2, "N": 5}


def _attended(q, keys, values, tolerance=None):
    return attend_reference(q[None], keys, values, len(keys) - 1, SIZE**-0.5, tolerance)[0]


def _loads_shared(report) -> str | None:
    H, K, N = (ATTENDED[axis] for axis in "HKN")
    loads, enough = report.counts["global_loads"], 3 * N * K * SIZE + H * SIZE
    if loads > enough:
        return (f"With {H} heads of queries, {K} of keys and {N} tokens it loads {loads:,} numbers, more than "
                f"{enough:,}. The {H // K} query heads of a group share their keys and values: load a key and a value "
                f"once, use it for all of them, and keep the queries in registers.")
    return shuffles(report)


def _times(queries, keys_by, values_by):
    return lambda rng, q, keys, values: (np.float32(queries) * q, np.float32(keys_by) * keys,
                                         np.float32(values_by) * values)


def _scores_below(rng, q, keys, values):
    return np.abs(q) - np.float32(9), np.abs(keys) + np.float32(9), values


def _equal_keys(rng, q, keys, values):
    return q, np.broadcast_to(keys[:1], keys.shape).copy(), values


def _largest_last(rng, q, keys, values):
    """The last key has by far the largest score in each head."""
    keys = keys.copy()
    for head in range(keys.shape[1]):
        keys[-1, head] = 50 * q[head * (len(q) // keys.shape[1])]
    return q, keys, values


@cuda.jit
def attend_grouped_head_by_head(q, keys, values, out):
    head, lane = cuda.blockIdx.x, cuda.threadIdx.x
    group = q.shape[0] // keys.shape[1]
    for r in range(group):
        h = head * group + r
        query = q[h, lane]
        row_max, row_sum, acc = float32(-math.inf), float32(0.0), float32(0.0)
        for n in range(keys.shape[0]):
            score = query * keys[n, head, lane]
            for distance in (16, 8, 4, 2, 1):
                score += cuda.shfl_xor_sync(ALL_LANES, score, distance)
            score *= float32(0.17677669)
            new = max(row_max, score)
            factor, weight = math.exp(row_max - new), math.exp(score - new)
            row_sum = row_sum * factor + weight
            acc = acc * factor + weight * values[n, head, lane]
            row_max = new
        out[h, lane] = acc / row_sum


SCALED = "score *= float32(0.17677669)"

ATTEND_GROUPED = KernelExercise(
    name="attend_grouped",
    reference=_attended,
    inputs=lambda rng, H, K, N: (uniform(rng, H, SIZE), uniform(rng, N, K, SIZE), uniform(rng, N, K, SIZE)),
    shape=lambda H, K, N: (H, SIZE),
    sizes=tuple({"H": H, "K": K, "N": N} for H, K, N in ((1, 1, 1), (4, 2, 5), (3, 3, 4), (6, 2, 9), (8, 1, 33))),
    random_size=lambda rng: {"H": 6, "K": 3, "N": int(rng.integers(10, 30))},
    launch=lambda H, K, N: (K, SIZE),
    tolerance=lambda q, keys, values: 2 * _attended(q, keys, values, rounding_errors(False, SIZE)),
    observe_sizes=(ATTENDED,),
    demand=_loads_shared,
    domain=(at("each head of queries has keys of its own", H=2, K=2, N=6),
            at("eight heads of queries share their keys", H=16, K=2, N=6),
            at("there is a single token", H=4, K=2, N=1),
            Reach("scores are thousands apart", _times(100, 100, 1), {"H": 4, "K": 2, "N": 7}),
            Reach("values are large", _times(1, 1, 10_000), {"H": 4, "K": 2, "N": 7}),
            Reach("all scores are far below 0", _scores_below, {"H": 4, "K": 2, "N": 7}),
            Reach("all scores are equal", _equal_keys, {"H": 4, "K": 2, "N": 7}),
            Reach("the last token has by far the largest score", _largest_last, {"H": 4, "K": 2, "N": 7}),
            Reach("all scores and values are 0", _times(0, 0, 0), {"H": 4, "K": 2, "N": 7})),
    wrong={
        "query head h reads head h % K, as if groups were interleaved": Edit(
            "first = head * group", "first = head", "= q[first + r, lane]", "= q[first + r * keys.shape[1], lane]",
            "out[first + r, lane]", "out[first + r * keys.shape[1], lane]"),
        "all groups read the first head of keys and values": Edit(
            "key, value = keys[n, head, lane], values[n, head, lane]",
            "key, value = keys[n, 0, lane], values[n, 0, lane]"),
        "every head of a group has the query of the first": Edit("= q[first + r, lane]", "= q[first, lane]"),
        "the values are the keys": Edit("values[n, head, lane]", "keys[n, head, lane]"),
        "the scores are not divided by the root of 32": Edit(SCALED, ""),
        "divided by 32, not by its root": Edit("float32(0.17677669)", "float32(0.03125)"),
        "the last token is left out": Edit("range(keys.shape[0])", "range(max(1, keys.shape[0] - 1))"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "what was added before is not corrected when the maximum grows": Edit(
            "row_sum[r] = row_sum[r] * factor + weight", "row_sum[r] += weight",
            "acc[r] = acc[r] * factor + weight * value", "acc[r] += weight * value"),
        "the division by the sum of the weights is missing": Edit("acc[r] / row_sum[r]", "acc[r]"),
        "only the first head of each group is written": Edit(
            "for r in range(group):\n    out[first + r, lane] = acc[r] / row_sum[r]",
            "out[first, lane] = acc[0] / row_sum[0]"),
        "one query head after the other: keys and values are loaded for each": attend_grouped_head_by_head,
    },
)

EXERCISES = (RMSNORM_BLOCK, ROPE_HEADS, GATED_PRODUCT, PREDICT_CACHE, ATTEND_GROUPED)
