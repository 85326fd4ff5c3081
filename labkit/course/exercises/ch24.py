"""The exercises of lesson 24: the mean of a sentence, what reaches an embedding, padding that takes part in attention,
and a search by cosine.

Sizes are B sentences of at most S tokens and C columns; N passages, of which k are wanted.
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.domains import HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, SUMMED, ZEROS, of
from labkit.kernels.op import uniform
from labkit.kernels.ops.pooling import mean_tolerance
from labkit.kernels.pooling import l2_normalize_reference, mean_pool_reference
from labkit.kernels.tolerance import EPS32

# --- The mean of a sentence ------------------------------------------------------------------------------------------


def _lengths(rng, B, S):
    """One of them is S; the others may be 0."""
    lengths = rng.integers(0, S + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = S
    return lengths


GAP = 3  # rows of no sentence after each, at most


def _laid_out(rng, rows, lengths, C, gaps):
    """Sentences of these lengths in any order, with `gaps` rows after each. In rows of no sentence there is NaN."""
    begins, end = np.zeros(len(lengths), np.int32), 0
    x = np.full((rows, C), np.nan, np.float32)
    for sentence, gap in zip(rng.permutation(len(lengths)), gaps, strict=True):
        begins[sentence], length = end, int(lengths[sentence])
        x[end : end + length] = uniform(rng, length, C)
        end += length + int(gap)
    return x, begins, lengths


def _pool_inputs(rng, B, S, C):
    return _laid_out(rng, B * (S + GAP), _lengths(rng, B, S), C, rng.integers(0, GAP + 1, B))


def _pooled_with(words, lengths, gap=None):
    """Sentences of the lengths that `lengths` makes of theirs."""
    def turn(rng, x, begins, old):
        new = lengths(old).astype(np.int32)
        gaps = rng.integers(0, GAP + 1, len(new)) if gap is None else np.full(len(new), gap)
        return _laid_out(rng, len(x), new, x.shape[1], gaps)

    return Reach(words, turn, {"B": 4, "S": 9, "C": 33})


@cuda.jit
def mean_pool_by_thread_0(x, begins, lengths, out):
    b = cuda.blockIdx.y
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
        for col in range(x.shape[1]):
            total = float32(0.0)
            for row in range(begins[b], begins[b] + lengths[b]):
                total += x[row, col]
            out[b, col] = total / float32(max(lengths[b], 1))


MEAN_POOL = KernelExercise(
    name="mean_pool",
    reference=mean_pool_reference,
    inputs=_pool_inputs,
    shape=lambda B, S, C: (B, C),
    sizes=tuple({"B": B, "S": S, "C": C} for B, S, C in ((1, 1, 3), (2, 3, 5), (3, 4, 64), (5, 9, 65), (4, 40, 130))),
    launch=lambda B, S, C: ((-(-C // 64), B), 64),
    tolerance=mean_tolerance,
    benign_races=False,  # each mean is computed by one thread
    domain=(_pooled_with("all sentences are empty", lambda old: 0 * old),
            _pooled_with("every sentence has a single token", lambda old: 0 * old + 1),
            _pooled_with("the first sentence is empty", lambda old: np.where(np.arange(len(old)) == 0, 0, 5)),
            _pooled_with("the last sentence is empty", lambda old: np.where(np.arange(len(old)) == len(old) - 1, 0, 5)),
            _pooled_with("sentences lie end to end, with no row between them", lambda old: old, gap=0),
            _pooled_with("every sentence is followed by rows of padding", lambda old: old, gap=GAP),
            _pooled_with("the last row of x is a token", lambda old: 0 * old + 9 + GAP, gap=0),
            *of(0, *SUMMED)),
    wrong={
        "an empty sentence is divided by 0, or left unwritten; its mean is to be 0":
            Edit("float32(max(lengths[b], 1))", "float32(lengths[b])"),
        "the sum is not divided": Edit("total / float32(max(lengths[b], 1))", "total"),
        "the sum is divided by one number for all sentences, the rows of the batch over their count":
            Edit("float32(max(lengths[b], 1))", "float32(max(x.shape[0] // lengths.size, 1))"),
        "every sentence is read from the first row on": Edit("range(begins[b], begins[b] + lengths[b])",
                                                            "range(lengths[b])"),
        "the length is taken for the end": Edit("begins[b] + lengths[b]", "lengths[b]"),
        "the last token is left out": Edit("begins[b] + lengths[b]", "begins[b] + lengths[b] - 1"),
        "no guard: the last block of columns is not full": Edit("if col < x.shape[1]:", "if True:"),
        "columns are counted within a block: those after 64 are never written":
            Edit("cuda.blockIdx.x * 64 + cuda.threadIdx.x", "cuda.threadIdx.x"),
        "the first thread of each block does the work of all 64": mean_pool_by_thread_0,
    },
)

# --- Predict: what reaches an embedding -------------------------------------------------------------------------------

TOKENS = np.array([[3.0, 0.0], [0.0, 4.0]])  # the rows of a sentence
BEHIND = np.array([[1.0, -1.0]])  # the first row of its padding
ROWS, COLUMNS = 16, 384  # of a padded sentence
COUNTS = np.array([16, 9, 16, 4, 16, 16, 7, 11, 16, 2, 5, 13])  # tokens


def _pooled() -> dict:
    mean, query = TOKENS.mean(axis=0), np.array([0.0, 1.0])
    right, diluted, longer = l2_normalize_reference(
        np.array([mean, TOKENS.sum(axis=0) / ROWS, np.concatenate([TOKENS, BEHIND]).mean(axis=0)]))
    x = np.ones((COUNTS.size, ROWS, COLUMNS))
    mask = np.arange(ROWS) < COUNTS[:, None]
    x[~mask, 0] = np.nan
    masked = l2_normalize_reference((x * mask[..., None]).sum(axis=1) / COUNTS[:, None])
    return {"length_of_mean": float(np.linalg.norm(mean)), "with_query": round(float(right @ query), 9),
            "divided_by_16": round(float(right @ diluted), 9), "one_row_more": round(float(right @ longer), 9),
            "nan_numbers": int(np.isnan(masked).sum())}


PREDICT_POOLED = PredictionExercise(
    name="predict_pooled",
    truth=_pooled,
    how={"length_of_mean": "The mean is (1.5, 2), and the root of 2.25 + 4 is 2.5.",
         "with_query": "The mean divided by its length is (0.6, 0.8), and the query takes its second number.",
         "divided_by_16": "Divided by 2 or by 16, the sum has the same direction, and scaling to length 1 removes the "
                          "rest.",
         "one_row_more": "The sum is (4, 3) in place of (3, 4): (4 * 3 + 3 * 4) / (5 * 5).",
         "nan_numbers": "A mean with one NaN has the length NaN, and all 384 numbers are divided by it. Seven of the "
                        "sentences have padding."},
    wrong={"the sum in place of the mean": {"length_of_mean": 5},
           "the product of the query and the mean, which was not scaled to length 1": {"with_query": 2},
           "a wrong divisor changes the length of the mean, but not its direction": {"divided_by_16": 0.125},
           "the row of padding alone, and not added to the others": {"one_row_more": -0.141421},
           "the NaN does not stay in its column: all numbers are divided by the length": {"nan_numbers": 7},
           "sentences without padding are counted, too": {"nan_numbers": 4608},
           "the sentences without padding, in place of those with it": {"nan_numbers": 1920}},
)

# --- Find the bug: padding that takes part ----------------------------------------------------------------------------

WIDE = 32


def _weights(queries, keys):
    scores = queries @ keys.T / math.sqrt(WIDE)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _of_sentences(compute, queries, keys, values, lengths):
    """compute(queries, keys, values) of each sentence; 0 in the rows of padding."""
    out = np.zeros(queries.shape)
    padded = len(queries) // len(lengths)
    for sentence, length in enumerate(lengths):
        rows = slice(sentence * padded, sentence * padded + length)
        if length:
            out[rows] = compute(*(part[rows].astype(np.float64) for part in (queries, keys, values)))
    return out


def _attended(queries, keys, values, lengths):
    return _of_sentences(lambda q, k, v: _weights(q, k) @ v, queries, keys, values, lengths)


def _attended_tolerance(queries, keys, values, lengths):
    def of_one(q, k, v):
        sizes = np.abs(q) @ np.abs(k).T / math.sqrt(WIDE)
        each = 16 + 4 * np.sqrt(len(k)) + 4 * sizes.max(axis=1, keepdims=True)
        return EPS32 * (_weights(q, k) * each) @ np.abs(v)

    return _of_sentences(of_one, queries, keys, values, lengths)


def _attend_inputs(rng, B, S):
    return *(uniform(rng, B * S, WIDE) for _ in range(3)), _lengths(rng, B, S)


def _padding_holds(value, *which):
    """Sentences that all have padding; there these of the three arrays hold this number."""
    def turn(rng, *inputs):
        *parts, lengths = inputs
        S = len(parts[0]) // len(lengths)
        lengths = (S - 1 - np.arange(len(lengths)) % S).astype(np.int32)
        return *_with_padding(parts, lengths, value, which), lengths

    return turn


def _with_padding(parts, lengths, value, which):
    is_padding = (np.arange(len(parts[0]) // len(lengths)) >= lengths[:, None]).reshape(-1, 1)
    return (np.where(is_padding, np.float32(value), part) if number in which else part
            for number, part in enumerate(parts))


def _attended_with(words, lengths):
    """NaN in all padding, and the lengths that `lengths` makes of those that were drawn and S."""
    def turn(rng, *inputs):
        *parts, old = inputs
        new = lengths(old, len(parts[0]) // len(old)).astype(np.int32)
        return *_with_padding(parts, new, np.nan, (0, 1, 2)), new

    return Reach(words, turn, PADDED)


def _far_below(rng, queries, keys, values, lengths):
    return _padding_holds(0, 0, 1)(rng, -np.abs(queries) - 9, np.abs(keys) + 9, values, lengths)


PADDED = {"B": 3, "S": 5}
SCALED = "score *= float32(0.17677669)"


def _padding_scored(score: str) -> Edit:
    """All S rows are read, and those of padding have this score."""
    return Edit("for j in range(seen):", "for j in range(S):",
                SCALED, f"{SCALED}\nif j >= seen:\n    score = {score}")


ATTEND_PADDED = KernelExercise(
    name="attend_padded",
    reference=_attended,
    inputs=_attend_inputs,
    shape=lambda B, S: (B * S, WIDE),
    sizes=tuple({"B": B, "S": S} for B, S in ((1, 1), (2, 3), (3, 5), (2, 16), (1, 40))),
    launch=lambda B, S: (B * S, WIDE),
    tolerance=_attended_tolerance,
    observe_sizes=(PADDED,),
    domain=(Reach("keys of padding are far above the others", _padding_holds(100, 1), PADDED),
            Reach("values of padding are NaN", _padding_holds(np.nan, 2), PADDED),
            Reach("all scores are far below 0, except those of padding", _far_below, PADDED),
            Reach("all that padding holds is NaN", _padding_holds(np.nan, 0, 1, 2), PADDED),
            _attended_with("no sentence has padding", lambda old, S: 0 * old + S),
            _attended_with("every sentence has a single token", lambda old, S: 0 * old + 1),
            _attended_with("all sentences are empty", lambda old, S: 0 * old),
            _attended_with("the first sentence is empty", lambda old, S: np.minimum(np.arange(len(old)) * S, S - 1)),
            Reach("scores are thousands apart", lambda rng, queries, *others: (200 * queries, *others)),
            *of(2, HUGE_AND_TINY), *of((0, 1), ZEROS)),
    wrong={
        "the score of padding is 0, and the exponential of 0 is not": _padding_scored("float32(0.0)"),
        "the score of padding is -10000: its weight is 0, but 0 times NaN is NaN": _padding_scored("float32(-10000.0)"),
        "padding is left out of the sum of the weights, but its values are added":
            Edit("for j in range(seen):", "for j in range(S):",
                 "row_sum = row_sum * factor + weight",
                 "row_sum = row_sum * factor + (weight if j < seen else float32(0.0))"),
        "all rows of the batch are keys of every token":
            Edit("for j in range(seen):", "for j in range(-first, queries.shape[0] - first):"),
        "the keys are those of the first sentence, for all of them":
            Edit("queries[t, lane] * keys[first + j, lane]", "queries[t, lane] * keys[j, lane]"),
        "the values are those of the first sentence, for all of them":
            Edit("weight * values[first + j, lane]", "weight * values[j, lane]"),
        "a token sees no later ones, as in a GPT": Edit("for j in range(seen):", "for j in range(t - first + 1):"),
        "the last token is left out": Edit("for j in range(seen):", "for j in range(seen - 1):"),
        "rows of padding get a result, too: they are to be 0":
            Edit("acc / row_sum if t - first < seen else float32(0.0)", "acc / row_sum"),
        "the scores are not divided by the root of 32": Edit(SCALED, ""),
    },
)

# --- A search by cosine -----------------------------------------------------------------------------------------------


def _cosines(query, passages):
    query, passages = query.astype(np.float64), passages.astype(np.float64)
    lengths = np.linalg.norm(passages, axis=1) * np.linalg.norm(query)
    return passages @ query / np.where(lengths > 0, lengths, 1.0)


def _nearest(query, passages, k):
    return np.argsort(-_cosines(query, passages), kind="stable")[:k]


def _cosines_of(places, query, passages, k):
    """The cosines of the places that were returned; numbers that are none where a place is there twice or is none."""
    places = np.asarray(places)
    right = places.dtype.kind in "iu" and len(set(places.tolist())) == k
    if not right or places.min() < 0 or places.max() >= len(passages):
        return np.full(k, 9.0)
    return _cosines(query, passages)[places]


def _passages(rng, N, C, k):
    """Rows of very different lengths."""
    return uniform(rng, C), uniform(rng, N, C) * (10.0 ** rng.uniform(-2, 2, (N, 1))).astype(np.float32), k


def _one_empty_among_opposites(rng, query, passages, k):
    """Two have a cosine above 0, one is zeros, and the others are below 0."""
    signs = np.where(np.arange(len(passages)) < 2, 1, -1)[:, None]
    passages = signs * np.sign(query) * np.abs(passages)
    passages[2] = 0
    return query, rng.permutation(passages).astype(np.float32), k


def nearest_not_sorted(query, passages, k):
    return np.sort(_nearest(query, passages, k))


def nearest_by_distance(query, passages, k):
    return np.argsort(((passages - query) ** 2).sum(axis=1))[:k]


def nearest_divides_by_nothing(query, passages, k):
    with np.errstate(all="ignore"):
        return np.argsort(-(passages @ query) / np.linalg.norm(passages, axis=1))[:k]


NEAREST = FunctionExercise(
    name="nearest",
    reference=_nearest,
    inputs=_passages,
    sizes=tuple({"N": N, "C": C, "k": k} for N, C, k in  # np.argpartition happens to sort up to 256 of them
                ((1, 1, 1), (5, 3, 2), (9, 8, 9), (60, 17, 5), (300, 64, 10), (1500, 8, 700))),
    random_size=lambda rng: {"N": int(rng.integers(20, 90)), "C": int(rng.integers(4, 40)),
                             "k": int(rng.integers(2, 15))},
    tolerance=lambda query, passages, k: np.full(k, 4 * EPS32 * (np.sqrt(query.size) + 4)),
    alike=_cosines_of,
    domain=(Reach("one passage is all zeros, and some point the other way", _one_empty_among_opposites,
                  {"N": 8, "C": 6, "k": 5}),
            Reach("some passages are the same", lambda rng, query, passages, k: (
                query, passages[rng.integers(0, 3, len(passages))], k), {"N": 9, "C": 8, "k": 6}),
            Reach("all passages point the other way", lambda rng, query, passages, k: (
                query, -np.sign(query) * np.abs(passages), k), {"N": 9, "C": 8, "k": 4}),
            *of(1, HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, at={"N": 60, "C": 17, "k": 5})),
    wrong={
        "the products are compared, and longer passages win":
            Edit("(passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)", "passages @ query"),
        "the products are divided by the squares of the lengths":
            Edit("np.maximum(np.linalg.norm(passages, axis=1), 1e-12)",
                 "np.maximum(np.linalg.norm(passages, axis=1) ** 2, 1e-12)"),
        "the columns are divided by their lengths, not the rows by theirs":
            Edit("(passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)",
                 "(passages / np.maximum(np.linalg.norm(passages, axis=0), 1e-12)) @ query"),
        "the farthest come first": Edit("np.argsort(-cosines", "np.argsort(cosines"),
        "the sign is lost: what points the other way counts as near":
            Edit("np.argsort(-cosines", "np.argsort(-np.abs(cosines)"),
        "one too many is returned": Edit("[:k]", "[: k + 1]"),
        "the cosines are returned, not the places": Edit('np.argsort(-cosines, kind="stable")[:k]',
                                                         "np.sort(cosines)[::-1][:k]"),
        "the right k, in the order of the passages": nearest_not_sorted,
        "the distance is compared, which depends on the lengths": nearest_by_distance,
        "a passage of zeros has the cosine NaN, which is sorted behind all others": nearest_divides_by_nothing,
    },
)

EXERCISES = (MEAN_POOL, PREDICT_POOLED, ATTEND_PADDED, NEAREST)
