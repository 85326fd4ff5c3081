"""The exercises of lesson 12: shuffles, the barrier after a reduction, parts of a row that are joined."""

import math

import numpy as np
from numba import float32, float64

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, shuffles
from labkit.course.exercises.domains import (
    EQUAL,
    EXPONENTIALS,
    FAR_ABOVE_ZERO,
    FAR_BELOW_ZERO,
    HUGE_AND_TINY,
    ONE_FAR_ABOVE,
    ONE_FAR_BELOW,
    POSITIVE,
    ZEROS,
    largest_at,
    of,
)
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to


def _rows(*sizes):
    return tuple({"R": R, "C": C} for R, C in sizes)


# --- Largest less smallest, one warp a row -------------------------------------------------------------------------


@cuda.jit
def range_of_one_lane(x, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < x.shape[0]:
        largest, smallest = float32(-math.inf), float32(math.inf)
        for col in range(lane, x.shape[1], 32):
            largest, smallest = max(largest, x[row, col]), min(smallest, x[row, col])
        if lane == 0:
            out[row] = largest - smallest


@cuda.jit
def range_without_shuffles(x, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < x.shape[0]:
        largest, smallest = float32(-math.inf), float32(math.inf)
        for col in range(x.shape[1]):
            largest, smallest = max(largest, x[row, col]), min(smallest, x[row, col])
        if lane == 0:
            out[row] = largest - smallest


ROW_RANGE = KernelExercise(
    name="row_range",
    reference=lambda x: x.astype(np.float64).max(axis=1) - x.astype(np.float64).min(axis=1),
    inputs=lambda rng, R, C: (uniform(rng, R, C) - np.float32(2.0),),  # all negative: a start of 0 shows
    shape=lambda R, C: (R,),
    sizes=_rows((1, 70), (1, 33), (2, 31), (3, 1), (3, 32), (4, 100), (7, 257)),
    launch=lambda R, C: (-(-R // 2), 64),
    tolerance=relative_to(lambda x: np.abs(x).max(axis=1), roundings=2),
    domain=(*of(0, POSITIVE, EQUAL, ONE_FAR_ABOVE, ONE_FAR_BELOW, HUGE_AND_TINY),
            *of(0, largest_at(32), at={"R": 3, "C": 70})),
    demand=shuffles,
    wrong={
        "the step with distance 1 is missing: lanes 0 and 1 never meet":
            Edit("for distance in (16, 8, 4, 2, 1):", "for distance in (16, 8, 4, 2):"),
        "lane 0 stores what it found by itself, without the other lanes' values": range_of_one_lane,
        "the largest of the lanes' smallest numbers":
            Edit("min(smallest, cuda.shfl_xor_sync", "max(smallest, cuda.shfl_xor_sync"),
        "`shfl_down` gathers in lane 0, and another lane stores":
            Edit("largest, cuda.shfl_xor_sync", "largest, cuda.shfl_down_sync",
                 "smallest, cuda.shfl_xor_sync", "smallest, cuda.shfl_down_sync",
                 "if lane == 0:", "if lane == 31:"),
        "every lane goes through the whole row, and nothing is exchanged": range_without_shuffles,
    },
)


# --- Predict -------------------------------------------------------------------------------------------------------


def _steps():
    """From the kernels of the lesson, run by observe on 512 threads."""
    from labkit import observe
    from labkit.kernels.reduce import sum_tree_kernel, sum_two_level_kernel

    ones, out = np.ones((1, 512), np.float32), np.zeros(1, np.float32)
    tree = observe(sum_tree_kernel[1, 512, 0, 4 * 512], ones, out).counts
    levels = observe(sum_two_level_kernel[1, 512], ones, out).counts
    return {"steps": tree["barriers"] - 2, "shuffles": 2 * 5, "stored": levels["shared_stores"]}


PREDICT_STEPS = PredictionExercise(
    name="predict_steps",
    truth=_steps,
    how={"steps": "Each step halves the number of sums. How often can 512 be halved until 1 is left?",
         "shuffles": "Five within the thread's own warp. Then every warp adds the warps' sums, in another five.",
         "stored": "One number for each warp, and a warp has 32 threads."},
    wrong={"steps as in a sum one after another": {"steps": 511, "shuffles": 10, "stored": 16},
           "the second level is forgotten": {"steps": 9, "shuffles": 5, "stored": 16},
           "every thread stores its number": {"steps": 9, "shuffles": 10, "stored": 512}},
)


# --- Find the bug: used twice --------------------------------------------------------------------------------------


def _centre_reference(x):
    x = x.astype(np.float64)
    from_mean = x - x.mean(axis=1, keepdims=True)
    return from_mean / np.abs(from_mean).max(axis=1, keepdims=True)


CENTRE = KernelExercise(
    name="centre",
    reference=_centre_reference,
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (R, C),
    sizes=_rows((1, 2), (2, 5), (3, 64), (2, 65), (5, 200)),
    launch=lambda R, C: (R, 64),
    # The mean of C numbers, a difference and a quotient; what is divided by may be small.
    tolerance=lambda x: 2.0**-22 * (4 + np.sqrt(x.shape[1])) * np.abs(x).max(axis=1, keepdims=True)
    / np.abs(x - x.mean(axis=1, keepdims=True)).max(axis=1, keepdims=True) * np.ones_like(x),
    domain=of(0, ONE_FAR_ABOVE, ONE_FAR_BELOW, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY),
    wrong={
        "no barrier between the last read of the sum and the next store into `shared`":
            Edit("cuda.syncthreads()\n"
                 "far = float32(0.0)",
                 "far = float32(0.0)"),
        "only thread 0 comes to the new barrier":
            Edit("cuda.syncthreads()\n"
                 "far = float32(0.0)",
                 "if thread == 0:\n"
                 "    cuda.syncthreads()\n"
                 "far = float32(0.0)"),
        "`abs` is gone: distances below the mean do not count":
            Edit("far = max(far, abs(x[row, col] - mean))", "far = max(far, x[row, col] - mean)"),
    },
)


# --- Parts of a row, joined ----------------------------------------------------------------------------------------


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


JOIN_PARTS = FunctionExercise(
    name="join_parts",
    reference=_join_reference,
    inputs=_parts,
    sizes=({"n": 1}, {"n": 2}, {"n": 3}, {"n": 7}, {"n": 64}),
    domain=(Reach("the first two parts are empty", _empty(2), {"n": 7}),
            Reach("all parts but the last are empty", _empty(-1), {"n": 7}),
            Reach("the first part is empty, and no other", _empty(1), {"n": 7}),
            *(Reach(f"of the largest elements of the parts {each.words}", _maxima(each)) for each in EXPONENTIALS)),
    tolerance=lambda largest, totals: 1e-12 * (1 + np.abs(_join_reference(largest, totals))) * _far(largest),
    wrong={"the sums are added as they are, each measured against another maximum": join_not_corrected,
           "`exp(M - m)` in place of `exp(m - M)`": join_wrong_way_round,
           "only the sum so far is corrected, not the one that comes in": join_only_what_was_there,
           "an empty part gives NaN: -inf less -inf is not a number": join_not_a_number,
           "an empty part is expected in the first place alone": join_only_the_first_may_be_empty,
           "exp of the maxima themselves: beyond 709 it is infinite in float64, too": join_raw_exponentials},
)


# --- Log of the sum of exponentials --------------------------------------------------------------------------------


@cuda.jit
def lse_overflows(x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = float32(0.0)
        for col in range(x.shape[1]):
            total += math.exp(x[row, col])
        out[row] = math.log(total)


@cuda.jit
def lse_two_passes(x, out):
    row = cuda.grid(1)
    if row < out.size:
        largest = x[row, 0]
        for col in range(x.shape[1]):
            largest = max(largest, x[row, col])
        total = float32(0.0)
        for col in range(x.shape[1]):
            total += math.exp(x[row, col] - largest)
        out[row] = largest + math.log(total)


@cuda.jit
def lse_overflows_in_float64(x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = 0.0
        for col in range(x.shape[1]):
            total += math.exp(float64(x[row, col]))
        out[row] = math.log(total)


def _lse_reference(x):
    x = x.astype(np.float64)
    m = x.max(axis=1)
    return m + np.log(np.exp(x - m[:, None]).sum(axis=1))


@asks("Each element is loaded once.")
def _one_pass(report) -> str | None:
    loads = report.counts["global_loads"]
    if loads <= 3 * 20:
        return None
    return (f"It loads {loads} numbers for 3 rows of 20. One reading is enough: keep a running maximum and a running "
            f"sum, and correct the sum when the maximum changes.")


LOGSUMEXP = KernelExercise(
    name="logsumexp",
    reference=_lse_reference,
    inputs=lambda rng, R, C: (80 * uniform(rng, R, C),),  # up to 120: exp of it is beyond float32
    shape=lambda R, C: (R,),
    sizes=_rows((1, 1), (2, 2), (3, 20), (65, 7), (4, 300)),
    launch=lambda R, C: (-(-R // 64), 64),
    tolerance=lambda x: 2.0**-23 * (8 + 4 * np.sqrt(x.shape[1]) + 2 * np.abs(_lse_reference(x))),
    demand=_one_pass,
    observe_sizes=_rows((1, 1), (3, 20)),
    domain=of(0, *EXPONENTIALS, ZEROS),
    wrong={
        "nothing is subtracted, and exp of 120 is infinite": lse_overflows,
        "nothing is subtracted, and float64 puts the overflow off: exp(1000) is infinite there, too":
            lse_overflows_in_float64,
        "it reads every row twice": lse_two_passes,
        "the sum is not corrected when the maximum changes":
            Edit("if value > largest:\n"
                 "    total *= math.exp(largest - value)\n"
                 "    largest = value",
                 "largest = max(largest, value)"),
        "the maximum is left out of the result":
            Edit("out[row] = largest + math.log(total)", "out[row] = math.log(total)"),
    },
)

EXERCISES = (ROW_RANGE, PREDICT_STEPS, CENTRE, JOIN_PARTS, LOGSUMEXP)
