"""The exercises of lesson 14: masks, the maximum of what is seen, traffic and occupancy on paper, the derivative.

Sizes are B (sequences) and S (queries and keys); R and C for plain rows.
"""

import functools
import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, elements_of_argument, shuffles
from labkit.course.exercises.domains import (
    EXPONENTIALS,
    FAR,
    FAR_ABOVE_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ZEROS,
    of,
    parameter,
)
from labkit.kernels.op import uniform


def _matrices(*sizes):
    return tuple({"B": B, "S": S} for B, S in sizes)


def _probabilities(x, seen):
    x = np.where(seen, x.astype(np.float64), -np.inf)
    largest = x.max(axis=-1, keepdims=True)
    exponentials = np.exp(x - np.where(np.isinf(largest), 0.0, largest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0.0, 1.0, total)


def _few_roundings(x, seen):
    """For rows of a hundred elements or so; a score far from 0 may be rounded before the largest is subtracted."""
    x, seen = np.broadcast_arrays(x, seen)
    far = np.where(seen, np.abs(x), 0.0).max(axis=-1, keepdims=True)
    return 2.0**-23 * (60 + 4 * far * _probabilities(x, seen))


# --- Padding on the left -------------------------------------------------------------------------------------------


@cuda.jit
def left_as_right(scores, lengths, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = float32(-math.inf)
        for k in range(lengths[b]):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(lengths[b]):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k < lengths[b] else float32(0.0)


def _left_seen(scores, lengths):
    return np.arange(scores.shape[-1]) >= (scores.shape[-1] - lengths)[:, None, None]


def _left_reference(scores, lengths):
    return _probabilities(scores, _left_seen(scores, lengths))


def _hidden_above(seen_of):
    """What the mask hides lies far above what it leaves."""
    def turn(rng, scores, *others):
        hidden = np.broadcast_to(~seen_of(scores, *others), scores.shape)
        return (np.where(hidden, np.float32(FAR), scores), *others)

    return Reach("hidden scores are far above those that are seen", turn)


def _left_inputs(rng, B, S):
    lengths = rng.integers(1, S + 1, B).astype(np.int32)
    lengths[0] = (S + 1) // 2  # at least one sequence is padded, unless a row is one element
    return 5 * uniform(rng, B, S, S), lengths


LEFT_PADDING = KernelExercise(
    name="left_padding",
    reference=_left_reference,
    inputs=_left_inputs,
    shape=lambda B, S: (B, S, S),
    sizes=_matrices((1, 4), (2, 3), (1, 1), (3, 8), (4, 33), (2, 70)),
    launch=lambda B, S: ((-(-S // 64), B), (64, 1)),
    domain=(*of(0, *EXPONENTIALS), _hidden_above(_left_seen),
            Reach("each sequence has one key", lambda rng, scores, lengths: (scores, np.ones_like(lengths))),
            Reach("no sequence is padded", lambda rng, scores, lengths: (scores, lengths * 0 + scores.shape[-1]))),
    tolerance=lambda scores, lengths: _few_roundings(scores, _left_seen(scores, lengths)),
    wrong={
        "the last keys are hidden, not the first": left_as_right,
        "what is hidden is never written (check fills `out` with NaN)":
            Edit("for k in range(size):", "for k in range(first, size):",
                 "total if k >= first else float32(0.0)", "total"),
        "one key too many is seen": Edit("first = size - lengths[b]", "first = max(size - lengths[b] - 1, 0)"),
        "the length is taken from the query's number, not from the sequence":
            Edit("first = size - lengths[b]", "first = size - lengths[q % lengths.size]"),
        "nothing is subtracted, and exp of a large score is infinite":
            Edit("largest = max(largest, scores[b, q, k])", "largest = float32(0.0)"),
        "the largest begins at 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the score of the query's own key stands in for the largest":
            Edit("for k in range(first, size):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "largest = scores[b, q, q]"),
    },
)


# --- Find the bug: the largest of what is masked out ---------------------------------------------------------------


@cuda.jit
def largest_without_the_diagonal(scores, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = scores[b, q, 0]
        for k in range(q):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(q):
            total += math.exp(scores[b, q, k] - largest)
        total = total if q > 0 else float32(1.0)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k <= q else float32(0.0)


def _causal_seen(scores):
    return np.tril(np.ones(scores.shape[-2:], bool))


def _causal_inputs(rng, B, S):
    """What the mask hides is larger by 200 than what it leaves, as scores of the future may well be."""
    scores = 5 * uniform(rng, B, S, S)
    scores[:, np.triu(np.ones((S, S), bool), 1)] += np.float32(200.0)
    return (scores,)


LARGEST_SEEN = KernelExercise(
    name="largest_seen",
    reference=lambda scores: _probabilities(scores, _causal_seen(scores)),
    inputs=_causal_inputs,
    shape=lambda B, S: (B, S, S),
    sizes=_matrices((1, 3), (1, 1), (2, 8), (3, 33), (1, 70)),
    launch=lambda B, S: ((-(-S // 64), B), (64, 1)),
    domain=(*of(0, *EXPONENTIALS), _hidden_above(_causal_seen)),
    tolerance=lambda scores: _few_roundings(scores, _causal_seen(scores)),
    wrong={
        "the largest is looked for among hidden scores, too: next to it all others vanish":
            Edit("for k in range(q + 1):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "for k in range(size):\n"
                 "    largest = max(largest, scores[b, q, k])"),
        "the diagonal is left out: a query sees its own key": largest_without_the_diagonal,
        "hidden scores count in the sum":
            Edit("for k in range(q + 1):\n"
                 "    total += math.exp(scores[b, q, k] - largest)",
                 "for k in range(size):\n"
                 "    total += math.exp(scores[b, q, k] - largest)"),
        "nothing is subtracted, and exp of a large score is infinite":
            Edit("for k in range(q + 1):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "largest = float32(0.0)"),
        "the largest begins at 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the score of the query's own key stands in for the largest":
            Edit("for k in range(q + 1):\n"
                 "    largest = max(largest, scores[b, q, k])",
                 "largest = scores[b, q, q]"),
    },
)


# --- Predict: what is loaded ---------------------------------------------------------------------------------------


@functools.cache
def _loads():
    from labkit import observe
    from labkit.kernels.softmax import masked as ms

    size = 32
    scores, out, lengths = (np.zeros((1, size, size), np.float32), np.zeros((1, size, size), np.float32),
                            np.zeros(1, np.int32))
    arguments = (scores, lengths, out, np.float32(0.125), np.uint32(1))
    launches = {"three_read": ms.masked_softmax_three_read_kernel[size, 32],
                "bounded": ms.masked_softmax_bounded_kernel[size, 32], "single_read": ms.ALIGNED[0][size // 4, 128]}
    return {name: observe(launch, *arguments).counts["bytes_loaded"] // 4 for name, launch in launches.items()}


PREDICT_LOADS_MASKED = PredictionExercise(
    name="predict_masked_loads",
    truth=_loads,
    how={"three_read": "Each of its three loops loads all 32 x 32 numbers, hidden or not.",
         "bounded": "Row q is loaded up to its own number: q + 1 numbers, three times. Sum over q from 0 to 31.",
         "single_read": "A row is loaded in pieces of four: the next multiple of four from q + 1 on. Four rows, one "
                        "after the other, load the same."},
    wrong={"one loop each": {"three_read": 1024, "bounded": 528, "single_read": 576},
           "pieces of four forgotten": {"three_read": 3072, "bounded": 1584, "single_read": 528},
           "half of the square, without the diagonal": {"three_read": 3072, "bounded": 1488, "single_read": 576}},
)


# --- Predict: blocks on a multiprocessor ---------------------------------------------------------------------------


def _blocks():
    from labkit.device.occupancy import H200, blocks

    return {"few": blocks(H200, 256, 32), "many": blocks(H200, 256, 64), "shared": blocks(H200, 256, 32, 33 * 1024)}


PREDICT_BLOCKS = PredictionExercise(
    name="predict_blocks",
    truth=_blocks,
    how={"few": "2,048 threads fit, and 65,536 registers are enough for as many threads with 32 each.",
         "many": "256 threads with 64 registers each take 16,384 of 65,536.",
         "shared": "228 KB, and each block takes 33 KB and 1 KB for the system."},
    wrong={"registers do not count": {"few": 8, "many": 8, "shared": 6},
           "shared memory does not count": {"few": 8, "many": 4, "shared": 8},
           "one block too many": {"few": 8, "many": 4, "shared": 7}},
)


# --- The derivative ------------------------------------------------------------------------------------------------


def _backward_reference(p, g, scale):
    p, g = p.astype(np.float64), g.astype(np.float64)
    return float(scale) * p * (g - (p * g).sum(axis=1, keepdims=True))


def _backward_inputs(rng, R, C):
    p = _probabilities(3 * uniform(rng, R, C), True).astype(np.float32)
    return p, uniform(rng, R, C), np.float32(rng.uniform(0.1, 0.4))


@asks("Each number is loaded twice at most.", shuffles)
def _shared_by_the_lanes(report) -> str | None:
    """p and g, each for the sum and for the result: four loads an element."""
    loads, enough = report.counts["global_loads"], 4 * elements_of_argument(report, 0)
    if loads <= 2 * enough:  # with room for those who read a number again
        return None
    return (f"It loads {loads:,} numbers, and {enough:,} are enough: p and g, each for the sum and for the result. A "
            "warp takes a row, so let each lane take every 32nd column, and join the lanes' sums with shuffles.")


def _one_is_certain(rng, p, g, scale):
    return (np.arange(p.shape[1]) == rng.integers(0, p.shape[1], (len(p), 1))).astype(np.float32), g, scale


def _half_is_hidden(rng, p, g, scale):
    return np.where(np.arange(p.shape[1]) < p.shape[1] // 2, p, np.float32(0)), g, scale


SOFTMAX_BACKWARD = KernelExercise(
    name="softmax_backward",
    reference=_backward_reference,
    inputs=_backward_inputs,
    shape=lambda R, C: (R, C),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 40), (3, 1), (2, 31), (5, 64), (7, 200))),
    launch=lambda R, C: (-(-R // 2), 64),
    tolerance=lambda p, g, scale: 2.0**-23 * (6 + 2 * np.sqrt(p.shape[1])) * scale * p
    * (np.abs(g) + (p * np.abs(g)).sum(axis=1, keepdims=True)),
    domain=(Reach("one probability of each row is 1 and the others 0", _one_is_certain),
            Reach("the first half of each row is hidden, with the probability 0", _half_is_hidden),
            *of(1, FAR_ABOVE_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS), *parameter(2, "scale", 1, 0.02)),
    demand=_shared_by_the_lanes,
    wrong={
        "the sum of `g` alone: each has to be weighed by its `p`":
            Edit("total += p[row, col] * g[row, col]", "total += g[row, col]"),
        "`scale` is left out": Edit("scale * p[row, col]", "p[row, col]"),
        "each lane subtracts its own sum, not that of all lanes":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 ""),
        "every lane adds up the whole row, and nothing is exchanged":
            Edit("for col in range(lane, p.shape[1], 32):\n"
                 "    total += p[row, col] * g[row, col]\n"
                 "for distance in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 "for col in range(p.shape[1]):\n"
                 "    total += p[row, col] * g[row, col]"),
        "the sum is subtracted without its factor `p`":
            Edit("p[row, col] * (g[row, col] - total)", "(p[row, col] * g[row, col] - total)"),
    },
)

EXERCISES = (LEFT_PADDING, LARGEST_SEEN, PREDICT_LOADS_MASKED, PREDICT_BLOCKS, SOFTMAX_BACKWARD)
