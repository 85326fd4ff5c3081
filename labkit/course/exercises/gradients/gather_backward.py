r"""The gradient of a gather

A gather copies rows of a table: row t of its output is row `ids[t]` of the table. For the backward pass the host has
sorted the positions t by id: `order` (T,) holds those of id 0 first, then those of id 1, and so on. The positions of id
v begin at `order[starts[v]]` and end before `order[starts[v + 1]]`; `starts` is (V + 1,), and both arrays are int32.
Row v of `dtable` (V, C) should be the sum of the rows of `dout` (T, C) at these positions, both float32, added in this
order, and 0 if the id does not occur. The launch has one block of 64 threads per row of `dtable`. A row can have any
number of columns.
"""

HINTS = ("Which part of `order` belongs to the block? If each thread has its own columns, no two threads add to the "
         "same element.",
         "A loop over the thread's columns, 64 apart; inside, a loop from starts[row] to starts[row + 1] that adds up "
         "one element of each row of dout.",
         "for col in range(cuda.threadIdx.x, dtable.shape[1], 64): total = float32(0.0); for i in range(starts[row], "
         "starts[row + 1]): total += dout[order[i], col]; and after it dtable[row, col] = total.")
POINTS = 2
NEEDS = ("predict_backward",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def gather_backward(order, starts, dout, dtable):
    ### BEGIN SOLUTION
    row = cuda.blockIdx.x
    for col in range(cuda.threadIdx.x, dtable.shape[1], 64):
        total = float32(0.0)
        for i in range(starts[row], starts[row + 1]):
            total += dout[order[i], col]
        dtable[row, col] = total
    ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import (
    EPS32,
    Edit,
    KernelExercise,
    Reach,
    asks,
    elements_of_argument,
    uniform,
)
from labkit.course.exercises.domains import HUGE_AND_TINY, NEGATIVE, ZEROS, of
from labkit.course.exercises.gradients import without_atomics


def _sorted(ids, vocabulary: int):
    """(order, starts)"""
    starts = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=vocabulary))])
    return np.argsort(ids, kind="stable").astype(np.int32), starts.astype(np.int32)


def _sums(order, starts, dout):
    order, starts = order.astype(int), starts.astype(int)
    dtable = np.zeros((len(starts) - 1, dout.shape[1]))
    np.add.at(dtable, np.repeat(np.arange(len(dtable)), np.diff(starts)), dout.astype(np.float64)[order])
    return dtable


def _inputs(rng, T, V, C):
    return *_sorted(rng.integers(0, V, T), V), uniform(rng, T, C)


def _all_are(token: int):
    def turn(rng, order, starts, dout):
        vocabulary = len(starts) - 1
        return *_sorted(np.full(len(order), token % vocabulary), vocabulary), dout

    return turn


@asks("Each element of `dtable` is stored once.", without_atomics)
def _stored_once(report) -> str | None:
    stores, elements = report.counts["global_stores"], elements_of_argument(report, 3)
    if stores <= elements:
        return None
    return (f"It stores {stores:,} times, and `dtable` has {elements:,} elements: several threads store the same one. "
            "A block has 64 threads, so the columns of a thread are 64 apart.")


EXERCISE = KernelExercise(
    name="gather_backward",
    reference=_sums,
    inputs=_inputs,
    shape=lambda T, V, C: (V, C),
    sizes=tuple({"T": T, "V": V, "C": C} for T, V, C in ((1, 1, 1), (5, 3, 7), (40, 9, 64), (12, 20, 65),
                                                                (70, 6, 150))),
    random_size=lambda rng: {"T": int(rng.integers(4, 60)), "V": int(rng.integers(2, 20)),
                             "C": int(rng.integers(2, 140))},
    launch=lambda T, V, C: (V, 64),
    tolerance=lambda order, starts, dout: EPS32 * len(order) * _sums(order, starts, np.abs(dout)) + 1e-30,
    observe_sizes=({"T": 5, "V": 3, "C": 7}, {"T": 12, "V": 20, "C": 65}),
    domain=(Reach("all positions have the first id", _all_are(0)),
            Reach("all positions have the last id", _all_are(-1)),
            *of(2, HUGE_AND_TINY, NEGATIVE, ZEROS)),
    demand=_stored_once,
    wrong={
        "the positions are not looked up in `order`": Edit("dout[order[i], col]", "dout[i, col]"),
        "the last position of each id is left out": Edit("range(starts[row], starts[row + 1])",
                                                         "range(starts[row], starts[row + 1] - 1)"),
        "the sum begins at the first position of all ids": Edit("range(starts[row], starts[row + 1])",
                                                              "range(starts[row + 1])"),
        "only one position of each id counts": Edit("total += dout[order[i], col]", "total = dout[order[i], col]"),
        "the row of an id that does not occur is not written":
            Edit("dtable[row, col] = total", "if starts[row] < starts[row + 1]:\n    dtable[row, col] = total"),
        "columns beyond the first 64 are left out": Edit("range(cuda.threadIdx.x, dtable.shape[1], 64)",
                                                         "range(cuda.threadIdx.x, min(64, dtable.shape[1]), 64)"),
        "the columns of a thread are 32 apart: two threads compute most of them":
            Edit("dtable.shape[1], 64)", "dtable.shape[1], 32)"),
        "the total is not reset for the next column":
            Edit("for col in range(cuda.threadIdx.x, dtable.shape[1], 64):\n    total = float32(0.0)",
                 "total = float32(0.0)\nfor col in range(cuda.threadIdx.x, dtable.shape[1], 64):"),
    },
)

AFTER = """
You can train with this kernel. `labkit train data/minute.toml --out build/mine --yours` sorts the positions on the
device, and computes the gradient of the embedding with it.
"""
