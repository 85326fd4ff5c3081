"""The exercises of lesson 34: a prediction about parts, attention over pages with a warp for each head, parts of a
softmax joined, and attention split over blocks.

Sizes are B sequences of at most S tokens, H query heads and KV heads of keys and values, with D numbers each; R rows of
P parts.
"""

import math

import numpy as np

from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, shuffles
from labkit.course.exercises.domains import parameter
from labkit.kernels.attention.paged import paged_decode_reference
from labkit.kernels.attention.pages import PAGE, gather, pages_for
from labkit.kernels.op import uniform
from labkit.kernels.ops.paged_decode import tolerance_decode
from labkit.kernels.ops.pages import paged_inputs
from labkit.kernels.tolerance import EPS32

UNTOUCHED = -7.0  # where no record is written

# --- Predict: parts and their sums ------------------------------------------------------------------------------------


def _parts_predicted() -> dict:
    factor = 2.0 ** (3 - 5)  # of the first part, which has 3, 6 and 12; the other has 5, 2.5 and 10
    row_sum = 6 * factor + 2.5
    return {"row_sum": row_sum, "result": (12 * factor + 10) / row_sum,
            "parts_of_1000": _parts(1000), "parts_of_2600": _parts(2600)}


def _parts(tokens: int) -> int:
    """As find_parts of labkit.kernels.attention.paged_split counts them; tests compare the two."""
    pages = pages_for(tokens)
    share = max(8, 4 * math.ceil(math.ceil(pages / 16) / 4))
    return math.ceil(pages / share)


PREDICT_PARTS = PredictionExercise(
    name="predict_parts",
    truth=_parts_predicted,
    how={"row_sum": "The larger maximum is 5. The first part's sum is multiplied by 2 ** (3 - 5): 6 / 4 + 2.5.",
         "result": "acc is brought to the same maximum, 12 / 4 + 10, and divided by the sum of all weights, 4.",
         "parts_of_1000": "63 pages: a 16th of them is 4, rounded up, but a part has at least 8. So 7 parts have 8 "
                          "pages, and one has 7.",
         "parts_of_2600": "163 pages: a 16th of them is 11, rounded up, and the next multiple of 4 is 12. So 13 parts "
                          "have 12 pages, and one has 7."},
    wrong={"the sums are added as they are": {"row_sum": 8.5},
           "both parts are brought to the smaller maximum": {"row_sum": 16},
           "the mean of the two parts' results": {"result": 3},
           "always 16 parts": {"parts_of_1000": 16, "parts_of_2600": 16},
           "the share is not rounded to a multiple of 4": {"parts_of_2600": 15}},
)

# --- Attention over pages ---------------------------------------------------------------------------------------------


def _lengths(rng, B, S):
    """One of them is S; the others may be 0."""
    lengths = rng.integers(0, S + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = S
    return lengths


def _attention_inputs(rng, B, S, H, KV, D):
    return _with_pages(rng, uniform(rng, B, H, D), _lengths(rng, B, S), KV, pages_for(S) + 1)


def _with_pages(rng, q, lengths, kv_heads, width):
    """Inputs for sequences of these lengths, of which none fills a row of `width` pages, with as many pages as they may
    need at most. NaN and numbers of no page stand wherever nothing may be read."""
    *used, narrow = paged_inputs(rng, lengths, kv_heads, q.shape[2], np.float32)
    pages = len(lengths) * (width - 1) + 1
    moved = rng.permutation(pages)[: len(used[0])]  # page p is now moved[p]
    caches = [np.full((pages, *each.shape[1:]), np.nan, np.float32) for each in used]
    for cache, each in zip(caches, used, strict=True):
        cache[moved] = each
    table = rng.choice(np.array([-1, -(2**31), 2**31 - 1], np.int32), (len(lengths), width))
    for row, old, tokens in zip(table, narrow, lengths, strict=True):
        row[: pages_for(tokens)] = moved[old[: pages_for(tokens)]]
    return 2 * q, *caches, table, lengths, np.float32(1 / math.sqrt(q.shape[2]))


def _with_lengths(words, choose):
    """choose(lengths, how many tokens a sequence may have at most) -> other lengths."""
    def turn(rng, q, keys, values, table, lengths, scale, *rest):
        most = (table.shape[1] - 1) * PAGE
        new = np.asarray(choose(lengths, most), np.int32)
        return *_with_pages(rng, uniform(rng, *q.shape), new, keys.shape[1], table.shape[1]), *rest

    return Reach(words, turn)


def _scaled(words, queries=1.0, keys=1.0, values=1.0, shift=0.0):
    """Each of the three multiplied; shift: queries at least so far below 0, and keys as far above."""
    def turn(rng, q, k, v, table, lengths, scale, *rest):
        if shift:
            q, k = -np.abs(q) - np.float32(shift), np.abs(k) + np.float32(shift)
        return (*(np.float32(factor) * each for factor, each in ((queries, q), (keys, k), (values, v))), table, lengths,
                scale, *rest)

    return Reach(words, turn)


def _equal_keys(rng, q, keys, values, *rest):
    return q, np.where(np.isnan(keys), keys, np.float32(0.5)), values, *rest


DOMAIN = (
    _with_lengths("every sequence is an empty place", lambda lengths, most: 0 * lengths),
    _with_lengths("every sequence has a single token", lambda lengths, most: 0 * lengths + 1),
    _with_lengths("the last page of each sequence is full", lambda lengths, most: 0 * lengths + most),
    _with_lengths("the last page of each sequence has one token", lambda lengths, most: 0 * lengths + most - 15),
    _with_lengths("only the first place in the batch is taken",
                  lambda lengths, most: np.where(np.arange(len(lengths)) == 0, most, 0)),
    _scaled("scores are thousands apart", queries=100, keys=100),
    _scaled("values are large", values=10_000),
    _scaled("all scores are far below 0", shift=9),
    _scaled("all scores are 0", queries=0),
    Reach("all keys are equal", _equal_keys),
    *parameter(5, "scale", 1, 0.03),
)
ATTENDED = {"B": 1, "S": 32, "H": 2, "KV": 1, "D": 64}  # with one sequence, S is its length
SMALL_ATTENTION = tuple(dict(zip(("B", "S", "H", "KV", "D"), size, strict=True)) for size in (
    (1, 16, 1, 1, 32), (3, 20, 4, 2, 32), (1, 32, 2, 1, 64), (2, 40, 3, 3, 96), (1, 70, 4, 1, 128)))


@asks("Each number of the query, the keys and the values is loaded once.", shuffles)
def _loaded_once(report) -> str | None:
    """Keys, values and query once; each lane may look up the table for each token."""
    _, tokens, heads, _, size = ATTENDED.values()
    loads, allowed = report.counts["global_loads"], heads * (tokens * (2 * size + 32 + 16) + size + 6 * 32)
    if loads <= allowed:
        return None
    return (f"For {tokens} tokens in {heads} heads of {size} your kernel makes {loads:,} loads, and {allowed:,} are "
            f"enough. Load each number of the query, the keys and the values once: keep the query in `query`, and "
            f"instead of a second pass correct `acc` where the maximum grows.")


PAGED_ATTENTION = KernelExercise(
    name="paged_attention",
    reference=paged_decode_reference,
    inputs=_attention_inputs,
    arguments=lambda inputs, out, size: (*inputs[:-1], out, inputs[-1]),
    shape=lambda B, S, H, KV, D: (B, H, D),
    sizes=SMALL_ATTENTION,
    random_size=lambda rng: {"B": int(rng.integers(1, 4)), "S": int(rng.integers(17, 60)), "H": 4, "KV": 2, "D": 32},
    launch=lambda B, S, H, KV, D: ((H, B), 32),
    tolerance=lambda *inputs: 2 * tolerance_decode(*inputs, bf16=False),
    observe_sizes=(ATTENDED,),
    demand=_loaded_once,
    domain=DOMAIN,
    wrong={
        "the pages are taken in the order of memory, not of the table": Edit("page_table[b, j // 16]", "j // 16"),
        "all sequences use the first one's table": Edit("page_table[b, j // 16]", "page_table[0, j // 16]"),
        "the whole table is read, to its last page": Edit("range(lengths[b])", "range(16 * page_table.shape[1])"),
        "the last page is taken for full": Edit("range(lengths[b])", "range((lengths[b] + 15) // 16 * 16)"),
        "the newest token is left out": Edit("range(lengths[b])", "range(lengths[b] - 1)"),
        "every query head has the first head of keys": Edit("head // (q.shape[1] // keys.shape[1])", "0"),
        "head % K: neighbouring query heads read different heads of keys":
            Edit("head // (q.shape[1] // keys.shape[1])", "head % keys.shape[1]"),
        "the scores are not scaled": Edit("* scale", ""),
        "the values are the keys": Edit("weight * values[", "weight * keys["),
        "acc is not corrected when the maximum grows": Edit("acc[i] * factor + weight", "acc[i] + weight"),
        "row_sum is not corrected when the maximum grows": Edit("row_sum * factor + weight", "row_sum + weight"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "an empty place becomes 0 / 0": Edit(" if row_sum > 0 else float32(0.0)", ""),
        "the division by the sum of the weights is missing": Edit("acc[i] / row_sum", "acc[i]"),
        "the query is loaded again for each token": Edit("score += query[i] *",
                                                         "score += scale * q[b, head, lane + 32 * i] *",
                                                         "query[i] = q[b, head, lane + 32 * i] * scale", ""),
        "`shfl_down_sync`: only lane 0 has the score": Edit("cuda.shfl_xor_sync(", "cuda.shfl_down_sync("),
    },
)

# --- Parts of a softmax, joined ---------------------------------------------------------------------------------------

JOINED = {"R": 3, "P": 4, "D": 64}


def _join_inputs(rng, R, P, D, whole=False):
    parts = np.empty((R, P, D + 2), np.float32)
    parts[..., :D] = 4 * uniform(rng, R, P, D)
    parts[..., D] = 5 * uniform(rng, R, P)
    parts[..., D + 1] = rng.uniform(1, 9, (R, P))
    counts = rng.integers(0, P + 1, R).astype(np.int32)
    counts[rng.integers(R)] = P
    return parts if whole else _behind(parts, counts), counts


def _behind(parts, counts):
    """NaN behind the parts of each row."""
    beyond = np.arange(parts.shape[1]) >= counts[:, None]
    return np.where(beyond[..., None], np.float32(np.nan), parts)


def _joined(parts, counts, measure=None):
    """measure: of the weighted values, instead of their sum."""
    R, P, size = parts.shape
    out = np.zeros((R, size - 2))
    for r, count in enumerate(counts):
        if count:
            acc, row_max, row_sum = np.split(parts[r, :count].astype(np.float64), [size - 2, size - 1], axis=1)
            weights = np.exp(row_max - row_max.max())
            out[r] = ((acc * weights).sum(axis=0) / (row_sum * weights).sum() if measure is None
                      else measure(acc, row_max, row_sum, weights))
    return out


def _join_tolerance(parts, counts):
    def errors(acc, row_max, row_sum, weights):
        far = 4 + 2 * len(acc) + np.abs(row_max) + np.abs(row_max).max()  # of a weight, and of sums of so many
        total, sizes = (row_sum * weights).sum(), np.abs(acc) * weights
        moved = (row_sum * weights * far).sum() / total  # of the sum of the weights
        return 2 * EPS32 * ((sizes * far).sum(axis=0) + moved * sizes.sum(axis=0)) / total

    return _joined(parts, counts, errors)


def _records(words, change):
    """change(rng, parts, counts) -> counts, with parts, which are all there, changed in place."""
    def turn(rng, parts, counts):
        R, P, size = parts.shape
        parts, _ = _join_inputs(rng, R, P, size - 2, whole=True)
        counts = np.asarray(change(rng, parts, counts), np.int32)
        return _behind(parts, counts), counts

    return Reach(words, turn, {"R": 4, "P": 5, "D": 40})


def _maxima(values):
    def change(rng, parts, counts):
        parts[..., -2] = values(rng, parts[..., -2])
        return 0 * counts + parts.shape[1]

    return change


@asks("Each number of `acc` is loaded once.")
def _acc_once(report) -> str | None:
    R, P, D = JOINED.values()
    allowed = R * P * D + R * P * 32 * 4 * (D // 32) + R * 32 * 8
    loads = report.counts["global_loads"]
    if loads <= allowed:
        return None
    return (f"For {R} rows of {P} parts with {D} numbers your kernel makes {loads:,} loads, and {allowed:,} are "
            f"enough. Each number of acc belongs to one column of out: only the thread that writes it loads it.")


JOIN_ATTENTION = KernelExercise(
    name="join_attention",
    reference=_joined,
    inputs=_join_inputs,
    shape=lambda R, P, D: (R, D),
    sizes=tuple({"R": R, "P": P, "D": D} for R, P, D in ((1, 1, 1), (2, 3, 5), (4, 5, 40), (3, 4, 64), (2, 16, 100))),
    launch=lambda R, P, D: (R, 32),
    tolerance=_join_tolerance,
    observe_sizes=(JOINED,),
    demand=_acc_once,
    domain=(
        _records("no row has a part", lambda rng, parts, counts: 0 * counts),
        _records("every row has a single part", lambda rng, parts, counts: 0 * counts + 1),
        _records("every row has all its parts", lambda rng, parts, counts: 0 * counts + parts.shape[1]),
        _records("the largest scores are equal", _maxima(lambda rng, m: np.full_like(m, 3.5))),
        _records("the largest score is in the first part", _maxima(lambda rng, m: -np.sort(-m, axis=1))),
        _records("the largest score is in the last part", _maxima(lambda rng, m: np.sort(m, axis=1))),
        _records("the largest scores are near 10,000", _maxima(lambda rng, m: 10_000 + m)),
        _records("the largest scores are near -10,000", _maxima(lambda rng, m: -10_000 + m)),
        _records("one part's largest score is far above the others'",
                 _maxima(lambda rng, m: np.where(np.arange(m.shape[1]) == rng.integers(m.shape[1]), 9_000, m))),
    ),
    wrong={
        "acc is not brought to the larger maximum": Edit(
            "acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)", "acc += parts[r, p, i]"),
        "row_sum is not brought to the larger maximum": Edit(
            "row_sum += parts[r, p, D + 1] * math.exp(parts[r, p, D] - row_max)", "row_sum += parts[r, p, D + 1]"),
        "the mean of the parts' results": Edit(
            "acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)", "acc += parts[r, p, i] / parts[r, p, D + 1]",
            "acc / row_sum", "acc / float32(counts[r])"),
        "exponentials of the maxima themselves, which overflow": Edit(
            "row_max = max(row_max, parts[r, p, D])", "row_max = float32(0.0)"),
        "the maximum begins at 0": Edit("float32(-math.inf)", "float32(0.0)"),
        "the first part's maximum is taken for the largest": Edit("row_max = max(row_max, parts[r, p, D])",
                                                                 "row_max = parts[r, 0, D]"),
        "all records are read, also those behind the row's parts": Edit(
            "for p in range(counts[r]):\n    acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)",
            "for p in range(parts.shape[1]):\n    acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)"),
        "a row without parts becomes 0 / 0": Edit(" if counts[r] > 0 else float32(0.0)", ""),
        "row_max and row_sum are exchanged": Edit(
            "row_max = max(row_max, parts[r, p, D])", "row_max = max(row_max, parts[r, p, D + 1])",
            "row_sum += parts[r, p, D + 1] * math.exp(parts[r, p, D] - row_max)",
            "row_sum += parts[r, p, D] * math.exp(parts[r, p, D + 1] - row_max)",
            "acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)",
            "acc += parts[r, p, i] * math.exp(parts[r, p, D + 1] - row_max)"),
        "only the first 32 numbers": Edit("range(lane, D, 32)", "range(lane, min(D, 32), 32)"),
        "the division by the sum of the weights is missing": Edit("acc / row_sum", "acc"),
        "every lane goes through all numbers": Edit("range(lane, D, 32)", "range(D)", "out[r, i] =",
                                                    "if i % 32 == lane: out[r, i] ="),
    },
)

# --- From a blank page: attention split over blocks -------------------------------------------------------------------

WIDE = 32
SPLIT = {"B": 1, "S": 32, "H": 4, "KV": 1, "share": 1}


def _split_inputs(rng, B, S, H, KV, share):
    return *_attention_inputs(rng, B, S, H, KV, WIDE), share


def _parts_of_table(table, share) -> int:
    return -(-table.shape[1] // share)


def _parts_of_size(S, share) -> int:
    return -(-(pages_for(S) + 1) // share)


def _split(q, keys, values, table, lengths, scale, share, measure=None):
    """The records of all parts; measure: their largest errors instead."""
    B, H, D = q.shape
    out = np.full((B, H, _parts_of_table(table, share), D + 2), UNTOUCHED if measure is None else 0.0)
    group = H // keys.shape[1]
    for b, tokens in enumerate(lengths.astype(int)):
        k, v = (gather(cache, table[b], tokens).astype(np.float64) for cache in (keys, values))
        for first in range(0, tokens, share * PAGE):
            part, seen = first // (share * PAGE), slice(first, first + share * PAGE)
            for head in range(H):
                query, key, value = q[b, head].astype(np.float64), k[seen, head // group], v[seen, head // group]
                scores = key @ query * float(scale)
                weights = np.exp(scores - scores.max())
                out[b, head, part] = (np.r_[weights @ value, scores.max(), weights.sum()] if measure is None
                                      else measure(np.abs(key) @ np.abs(query) * float(scale), scores, weights, value))
    return out


def _split_tolerance(q, keys, values, table, lengths, scale, share):
    def errors(sizes, scores, weights, value):
        score = 2 * math.sqrt(WIDE) * sizes  # of each score, in units of EPS32
        below = np.abs(scores) + np.abs(scores).max()
        weight = weights * (score + score.max() + below + 4 + 2 * math.sqrt(len(scores)))
        return 2 * EPS32 * np.r_[weight @ np.abs(value), score.max(), weight.sum()]

    return _split(q, keys, values, table, lengths, scale, share, errors)


@asks("A block loads each number of its keys and values once, for all of its query heads.", shuffles)
def _group_loads_once(report) -> str | None:
    tokens, group, blocks = SPLIT["S"], SPLIT["H"] // SPLIT["KV"], _parts_of_size(SPLIT["S"], SPLIT["share"])
    loads = report.counts["global_loads"]
    allowed = tokens * (2 * WIDE + 2 * 32) + blocks * (group * WIDE + 6 * 32)
    if loads <= allowed:
        return None
    return (f"For {tokens} tokens your kernel makes {loads:,} loads, and {allowed:,} are enough. The {group} query "
            f"heads of a block read the same keys and values: load a key once, and use it for all of them.")


ATTEND_SPLIT = KernelExercise(
    name="attend_split",
    reference=_split,
    inputs=_split_inputs,
    shape=lambda B, S, H, KV, share: (B, H, _parts_of_size(S, share), WIDE + 2),
    start=lambda q, keys, values, table, lengths, scale, share: np.full(
        (*q.shape[:2], _parts_of_table(table, share), WIDE + 2), UNTOUCHED),
    sizes=tuple(dict(zip(("B", "S", "H", "KV", "share"), size, strict=True)) for size in (
        (1, 1, 1, 1, 1), (3, 40, 4, 2, 1), (1, 32, 4, 1, 1), (2, 70, 3, 3, 3))),
    random_size=lambda rng: {"B": int(rng.integers(1, 4)), "S": int(rng.integers(17, 70)), "H": 4, "KV": 2,
                             "share": int(rng.integers(1, 4))},
    launch=lambda B, S, H, KV, share: ((_parts_of_size(S, share), KV, B), 32),
    tolerance=_split_tolerance,
    observe_sizes=(SPLIT,),
    demand=_group_loads_once,
    domain=DOMAIN,
    wrong={
        "every block goes over the whole sequence": Edit("part * share * 16, min((part + 1) * share * 16, lengths[b])",
                                                         "0, lengths[b]"),
        "the last part goes to the end of its pages, where no token is": Edit(
            "min((part + 1) * share * 16, lengths[b])", "(part + 1) * share * 16", "first < end", "first < lengths[b]"),
        "a share is taken for so many tokens": Edit("part * share * 16, min((part + 1) * share * 16, lengths[b])",
                                                    "part * share, min((part + 1) * share, lengths[b])"),
        "a part without tokens is written": Edit("if first < end:", "if True:"),
        "pages are counted from the part's beginning": Edit("page_table[b, j // 16]",
                                                            "page_table[b, (j - first) // 16]"),
        "row_max and row_sum are exchanged": Edit("out[b, head, part, 32] = row_max[n]",
                                                  "out[b, head, part, 32] = row_sum[n]",
                                                  "out[b, head, part, 33] = row_sum[n]",
                                                  "out[b, head, part, 33] = row_max[n]"),
        "acc is divided by the sum of the weights already": Edit("lane] = acc[n]", "lane] = acc[n] / row_sum[n]"),
        "neighbouring query heads read different heads of keys": Edit(
            "q[b, kv_head * group + n, lane]", "q[b, n * keys.shape[1] + kv_head, lane]",
            "head = kv_head * group + n", "head = n * keys.shape[1] + kv_head"),
        "acc is not corrected when the maximum grows": Edit("acc[n] * factor + weight", "acc[n] + weight"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the scores are not scaled": Edit("* scale", ""),
        "the keys are loaded again for each query head": Edit("score = query[n] * key",
                                                              "score = query[n] * keys[page, kv_head, j % 16, lane]"),
    },
)

EXERCISES = (PREDICT_PARTS, PAGED_ATTENTION, JOIN_ATTENTION, ATTEND_SPLIT)
