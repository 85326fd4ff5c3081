"""Join the parts

A row was cut into parts. For part $i$ you know the largest element $m_i$, `largest[i]`, and the sum of $e^{x - m_i}$
over its elements, `totals[i]`. Return both values for the whole row, as an array of two. For example, the parts (1, 3,
2) and (5, 4) have the maxima 3 and 5 and the sums 1.503 and 1.368; the row has 5 and 1.571.

This one is plain Python on the host. A part may be empty: then its maximum is `-inf` and its sum 0. At least
one part is not empty.
"""

HINTS = ("Two parts have the maxima 3 and 5. By what factor is the sum of the first too large, if everything has to "
         "be relative to 5?",
         "The largest element of the row is the maximum of the maxima. Multiply each sum by exp of its own maximum "
         "minus that one, and add them up.",
         "m = largest.max(), and s is the sum over the parts of totals times np.exp(largest - ...). The exponential of "
         "-inf is 0, which takes care of empty parts.")
POINTS = 2

import numpy as np


# %%
def join_parts(largest, totals):
    m, s = -np.inf, 0.0
    ### BEGIN SOLUTION
    m = largest.max()
    s = (totals * np.exp(largest - m)).sum()
    ### END SOLUTION
    return np.array([m, s])

# %% [check]
from labkit.course.exercises import EXPONENTIALS, FunctionExercise, Reach


def _join_reference(largest, totals):
    largest, totals = largest.astype(np.float64), totals.astype(np.float64)
    m = largest.max()
    return np.array([m, (totals * np.exp(largest - m)).sum()])


def join_not_corrected(largest, totals):
    return np.array([largest.max(), totals.sum()])


def join_wrong_way_round(largest, totals):
    there = totals > 0
    m = largest[there].max()
    return np.array([m, (totals[there] * np.exp(m - largest[there])).sum()])


@np.errstate(invalid="ignore")
def join_only_what_was_there(largest, totals):
    m, s = largest[0], totals[0]
    for i in range(1, len(largest)):
        together = max(m, largest[i])
        s = s * np.exp(m - together) + totals[i]
        m = together
    return np.array([m, s])


def join_raw_exponentials(largest, totals):
    with np.errstate(all="ignore"):
        return np.array([largest.max(), (totals * np.exp(largest)).sum() * np.exp(-largest.max())])


def join_only_the_first_may_be_empty(largest, totals):
    m, s = largest[0], totals[0]
    with np.errstate(invalid="ignore"):
        for i in range(1, len(largest)):
            together = max(m, largest[i])
            kept = 0.0 if i == 1 and s == 0.0 else s * np.exp(m - together)
            m, s = together, kept + totals[i] * np.exp(largest[i] - together)
    return np.array([m, s])


def join_not_a_number(largest, totals):
    m, s = -np.inf, 0.0
    with np.errstate(invalid="ignore"):
        for i in range(len(largest)):
            together = max(m, largest[i])
            s = s * np.exp(m - together) + totals[i] * np.exp(largest[i] - together)
            m = together
    return np.array([m, s])


def _parts(rng, n):
    """Maxima and sums of n parts. The first of several is empty, as a thread's is that got no element."""
    largest = rng.uniform(-40, 40, n)
    totals = rng.uniform(1, 50, n)
    if n > 1:
        largest[0], totals[0] = -np.inf, 0.0
    return largest, totals


def _empty(count):
    """The first parts are empty, `count` of them or all but -count."""
    def turn(rng, largest, totals):
        there = np.arange(len(largest)) >= (count if count > 0 else len(largest) + count)
        return np.where(there, largest, -np.inf), np.where(there, totals, 0.0)

    return turn


def _maxima(values):
    """What a Property makes of the maxima; no part is empty."""
    return lambda rng, largest, totals: (values.applied_to(largest, rng), rng.uniform(1, 50, len(totals)))


def _far(largest):
    return 1 + np.abs(largest[np.isfinite(largest)]).max()


EXERCISE = FunctionExercise(
    name="join_parts",
    reference=_join_reference,
    inputs=_parts,
    sizes=({"n": 1}, {"n": 2}, {"n": 3}, {"n": 7}, {"n": 64}),
    domain=(Reach("the first two parts are empty", _empty(2), {"n": 7}),
            Reach("all parts but the last are empty", _empty(-1), {"n": 7}),
            Reach("the first part is empty, and no other", _empty(1), {"n": 7}),
            *(Reach(f"of the largest elements of the parts {each.words}", _maxima(each)) for each in EXPONENTIALS)),
    tolerance=lambda largest, totals: 1e-12 * (1 + np.abs(_join_reference(largest, totals))) * _far(largest),
    wrong={"the sums are added as they are, each relative to a different maximum": join_not_corrected,
           "`exp(M - m)` in place of `exp(m - M)`": join_wrong_way_round,
           "only the sum so far is corrected, not the incoming one": join_only_what_was_there,
           "an empty part gives NaN: -inf minus -inf is not a number": join_not_a_number,
           "an empty part is expected only in first place": join_only_the_first_may_be_empty,
           "exp of the maxima themselves: beyond 709 it is infinite even in float64": join_raw_exponentials},
)

EQUIVALENT = {
    "arithmetic: -np.inf -> np.inf": "The first line of the given function is overwritten by the answer.",
    "name: (m, s) -> (s, m)": "The first line of the given function is overwritten by the answer.",
    "number: 0.0 -> -1.0": "The first line of the given function is overwritten by the answer.",
    "number: 0.0 -> 1.0": "The first line of the given function is overwritten by the answer.",
}
