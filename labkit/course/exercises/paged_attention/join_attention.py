r"""Parts of a softmax, joined

Attention was computed in parts, and row r has `counts[r]` of them. Each has a record in `parts` (R, P, D + 2) float32:
first the D elements of `acc`, the sum of the weighted values, then `row_max`, the part's largest score $m$, then
`row_sum`, the sum of its weights $e^{s - m}$. The weights in `acc` are the same. Records after the last part hold NaN.

Join the parts of each row, and write `acc` / `row_sum` of all its keys to `out` (R, D); zeros for a row without parts.

An example with D = 1: the records [4, 0, 1] and [6, 0, 2] have the same `row_max`, so the result is (4 + 6) / (1 + 2).
If the second had a `row_max` of $\ln 2$ instead, the first would be halved, and the result would be
(2 + 6) / (0.5 + 2).

The grid has one block of 32 threads per row, and D may be any size.
"""

HINTS = ("Two parts have the largest scores 3 and 5. By which factor must row_sum and acc of the first be multiplied "
         "before they can be added to those of the second?",
         "First find the largest row_max of the row's parts, then the sum of row_sum * exp(row_max - largest), then "
         "the same sum for each element of acc. A lane computes the columns lane, lane + 32 and so on.",
         "acc += parts[r, p, i] * math.exp(parts[r, p, D] - largest) for p in range(counts[r]), and out[r, i] = acc / "
         "row_sum where counts[r] is above 0, otherwise 0.")
POINTS = 2
NEEDS = ("join_parts",)

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def join_attention(parts, counts, out):
    r, lane = cuda.blockIdx.x, cuda.threadIdx.x
    ### BEGIN SOLUTION
    D = out.shape[1]
    row_max, row_sum = float32(-math.inf), float32(0.0)
    for p in range(counts[r]):
        row_max = max(row_max, parts[r, p, D])
    for p in range(counts[r]):
        row_sum += parts[r, p, D + 1] * math.exp(parts[r, p, D] - row_max)
    for i in range(lane, D, 32):
        acc = float32(0.0)
        for p in range(counts[r]):
            acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)
        out[r, i] = acc / row_sum if counts[r] > 0 else float32(0.0)
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, asks, uniform

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


@asks("Each element of `acc` is loaded once.")
def _acc_once(report) -> str | None:
    R, P, D = JOINED.values()
    allowed = R * P * D + R * P * 32 * 4 * (D // 32) + R * 32 * 8
    loads = report.counts["global_loads"]
    if loads <= allowed:
        return None
    return (f"For {R} rows of {P} parts with {D} elements your kernel makes {loads:,} loads, and {allowed:,} are "
            f"enough. Each element of acc belongs to one column of out: only the thread that writes it loads it.")


EXERCISE = KernelExercise(
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
        "all records are read, even those after the row's last part": Edit(
            "for p in range(counts[r]):\n    acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)",
            "for p in range(parts.shape[1]):\n    acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)"),
        "a row without parts becomes 0 / 0": Edit(" if counts[r] > 0 else float32(0.0)", ""),
        "row_max and row_sum are swapped": Edit(
            "row_max = max(row_max, parts[r, p, D])", "row_max = max(row_max, parts[r, p, D + 1])",
            "row_sum += parts[r, p, D + 1] * math.exp(parts[r, p, D] - row_max)",
            "row_sum += parts[r, p, D] * math.exp(parts[r, p, D + 1] - row_max)",
            "acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)",
            "acc += parts[r, p, i] * math.exp(parts[r, p, D + 1] - row_max)"),
        "only the first 32 elements": Edit("range(lane, D, 32)", "range(lane, min(D, 32), 32)"),
        "the division by the sum of the weights is missing": Edit("acc / row_sum", "acc"),
        "every lane goes through all elements": Edit("range(lane, D, 32)", "range(D)", "out[r, i] =",
                                                     "if i % 32 == lane: out[r, i] ="),
    },
)
