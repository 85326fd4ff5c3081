"""From a blank page: a search

`passages` (N, C) float32 holds one row per passage, and `query` (C,) is the vector of a question. None of them is
scaled to length 1. Return the indices of the `k` passages whose cosines with the query are largest, the largest first,
as k integers. If two are equal, either may come first. A passage of zeros has the cosine 0: it comes after those that
point the query's way and before those that point the other way.

Write the function `nearest(query, passages, k)`. NumPy is enough.
"""

HINTS = ("A cosine divides a product by two lengths. Which of the two changes the order of the passages?",
         "passages @ query gives all products. Divide each by the length of its passage, or by a tiny value where "
         "that is 0. np.argsort sorts in ascending order: sort the negative cosines.",
         "cosines = (passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12); return "
         "np.argsort(-cosines)[:k].")
POINTS = 2

import numpy as np

# %%
nearest = None  # write the function


### BEGIN SOLUTION
def nearest(query, passages, k):
    cosines = (passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)  # times the query's length
    return np.argsort(-cosines, kind="stable")[:k]


### END SOLUTION

# %% [check]
from labkit.course.exercises import EPS32, Edit, FunctionExercise, Reach, uniform
from labkit.course.exercises.domains import HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, of


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


def nearest_by_distance(query, passages, k):
    return np.argsort(((passages - query) ** 2).sum(axis=1))[:k]


def nearest_divides_by_nothing(query, passages, k):
    with np.errstate(all="ignore"):
        return np.argsort(-(passages @ query) / np.linalg.norm(passages, axis=1))[:k]


EXERCISE = FunctionExercise(
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
        "the columns are divided by their lengths, not the rows":
            Edit("(passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)",
                 "(passages / np.maximum(np.linalg.norm(passages, axis=0), 1e-12)) @ query"),
        "the farthest come first": Edit("np.argsort(-cosines", "np.argsort(cosines"),
        "the sign is lost: what points the other way counts as near":
            Edit("np.argsort(-cosines", "np.argsort(-np.abs(cosines)"),
        "one too many is returned": Edit("[:k]", "[: k + 1]"),
        "the cosines are returned, not the indices": Edit('np.argsort(-cosines, kind="stable")[:k]',
                                                          "np.sort(cosines)[::-1][:k]"),
        "the right k, but in the order of the passages":
            Edit('np.argsort(-cosines, kind="stable")[:k]', 'np.sort(np.argsort(-cosines, kind="stable")[:k])'),
        "the distance is compared, which depends on the lengths": nearest_by_distance,
        "a passage of zeros has the cosine NaN, which is sorted last": nearest_divides_by_nothing,
    },
)

EQUIVALENT = {
    "call: np.maximum(np.linalg.norm(passages, axis=1), 1e-12) -> np.maximum(1e-12, np.linalg.norm(passages, axis=1))":
        "The larger of two numbers does not depend on their order.",
    "number: 1e-12 -> 2e-12": "It divides only rows of zeros, whose products are 0.",
    "number: 1e-12 -> 5e-13": "It divides only rows of zeros, whose products are 0.",
}
