"""The exercises of lesson 30: a gated product in one pass, the sizes of a cache and of wide rows, and grouped-query
attention of one token.

Sizes are T tokens, H heads of queries, K of keys and values, and N keys. Of the gated product x is (T, K) and the
weights are (N, K).
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.ch29 import ALL_LANES, LLAMA_3_1_8B
from labkit.course.exercises.demands import asks, shuffles
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, ZEROS, at, of
from labkit.kernels.attention.pages import attend_reference
from labkit.kernels.op import uniform
from labkit.kernels.ops.pages import rounding_errors
from labkit.kernels.tolerance import EPS32

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


@asks("Each number of `x` is loaded once for both products, and nothing but the result is stored.")
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

# --- Predict: a cache and a wide row ----------------------------------------------------------------------------------


def _cache_and_row() -> dict:
    c = LLAMA_3_1_8B
    a_token = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 2
    wide = c.intermediate_size * 2  # bytes of gate, and of up
    return {"token_bytes": a_token, "tokens_grouped": 16_000_000_000 // a_token,
            "tokens_ungrouped": 16_000_000_000 // (a_token * c.num_attention_heads // c.num_key_value_heads),
            "saved_bytes": 2 * wide + 2 * wide}


PREDICT_CACHE = PredictionExercise(
    name="predict_cache",
    truth=_cache_and_row,
    how={"token_bytes": "Keys and values, 32 layers, 8 heads of 128 numbers, 2 bytes each.",
         "tokens_grouped": "16,000,000,000 divided by 131,072, rounded down.",
         "tokens_ungrouped": "With 32 heads of keys and values a token takes four times the bytes.",
         "saved_bytes": "Two rows of 14,336 numbers, 2 bytes each, which are written once and read once."},
    wrong={"the values are forgotten: a token leaves keys and values": {
               "token_bytes": 65536, "tokens_grouped": 244140, "tokens_ungrouped": 61035},
           "float32: four bytes a number": {"token_bytes": 262144, "tokens_grouped": 61035, "tokens_ungrouped": 15258,
                                            "saved_bytes": 229376},
           "the cache has a head for each head of queries": {
               "token_bytes": 524288, "tokens_grouped": 30517, "tokens_ungrouped": 7629},
           "the cache of one layer": {"token_bytes": 4096, "tokens_grouped": 3906250, "tokens_ungrouped": 976562},
           "the rows are written, but the next launch does not read them": {"saved_bytes": 57344},
           "the result is counted as well, which both ways write": {"saved_bytes": 143360}},
)

# --- From a blank page: grouped-query attention of one token ----------------------------------------------------------

SIZE, MOST = 32, 8
ATTENDED = {"H": 4, "K": 2, "N": 5}


def _attended(q, keys, values, tolerance=None):
    return attend_reference(q[None], keys, values, len(keys) - 1, SIZE**-0.5, tolerance)[0]


@asks("A group's keys and values are loaded once for all of its query heads, in two passes at most, and a query "
      "once.", shuffles)
def _loads_shared(report) -> str | None:
    H, K, N = (ATTENDED[axis] for axis in "HKN")
    loads, enough = report.counts["global_loads"], 3 * N * K * SIZE + H * SIZE
    if loads > enough:
        return (f"With {H} heads of queries, {K} of keys and {N} tokens it loads {loads:,} numbers, more than "
                f"{enough:,}. The {H // K} query heads of a group share their keys and values: load a key and a value "
                f"once, use it for all of them, and keep the queries in registers.")
    return None


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

EXERCISES = (GATED_PRODUCT, PREDICT_CACHE, ATTEND_GROUPED)
