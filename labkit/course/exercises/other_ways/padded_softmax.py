"""Find the bug: what is in the padding

Softmax of rows with up to 64 columns. A block of 64 threads handles a row, as a program would: a vector of 64, with
padding where there is no element. The barriers are right.
"""

HINTS = ("Take the row [-150, -151] and follow it by hand. What is largest?",
         "The padding takes part in the maximum and in the sum. Which value is never the largest, and has an "
         "exponential of 0?",
         "float32(-np.inf) instead of float32(0.0), where there is no element.")
POINTS = 2

import math

import numpy as np
from numba import float32

from labkit import cuda


# %%
@cuda.jit
def padded_softmax(x, out):
    tile = cuda.shared.array(64, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    value = x[row, t] if t < x.shape[1] else float32(0.0)
    tile[t] = value
    cuda.syncthreads()
    largest = tile[0]
    for i in range(1, 64):
        largest = max(largest, tile[i])
    cuda.syncthreads()
    tile[t] = math.exp(value - largest)
    cuda.syncthreads()
    total = float32(0.0)
    for i in range(64):
        total += tile[i]
    if t < x.shape[1]:
        out[row, t] = tile[t] / total


### BEGIN SOLUTION
@cuda.jit
def padded_softmax(x, out):
    tile = cuda.shared.array(64, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    value = x[row, t] if t < x.shape[1] else float32(-np.inf)  # never the maximum, and its exponential is 0
    tile[t] = value
    cuda.syncthreads()
    largest = tile[0]
    for i in range(1, 64):
        largest = max(largest, tile[i])
    cuda.syncthreads()
    tile[t] = math.exp(value - largest)
    cuda.syncthreads()
    total = float32(0.0)
    for i in range(64):
        total += tile[i]
    if t < x.shape[1]:
        out[row, t] = tile[t] / total


### END SOLUTION

# %% [check]
from labkit.course.exercises import EPS32, EXPONENTIALS, ZEROS, Edit, KernelExercise, largest_at, of, uniform


def _softmax_reference(x):
    x = x.astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _softmax_rows(rng, R, C):
    x = 4 * uniform(rng, R, C)
    x[::2] -= 150  # far below 0, where exp(x) without a shift is 0
    return (x,)


def _softmax_tolerance(x):
    below, far = x.max(axis=1, keepdims=True) - x, np.abs(x).max(axis=1, keepdims=True)
    return EPS32 * (16 + below + 2 * far) * _softmax_reference(x) + 1e-37


EXERCISE = KernelExercise(
    name="padded_softmax",
    reference=_softmax_reference,
    inputs=_softmax_rows,
    shape=lambda R, C: (R, C),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 3), (3, 31), (4, 63), (5, 64), (7, 50))),
    random_size=lambda rng: {"R": int(rng.integers(1, 9)), "C": int(rng.integers(1, 65))},
    launch=lambda R, C: (R, 64),
    tolerance=_softmax_tolerance,
    domain=(*of(0, *EXPONENTIALS, ZEROS), *of(0, largest_at(63), at={"R": 2, "C": 64})),
    wrong={
        "the padding is 0, and takes part in the maximum and in the sum":
            Edit("float32(-np.inf)", "float32(0.0)"),
        "the padding is 0, and takes part in the maximum":
            Edit("float32(-np.inf)", "float32(0.0)",
                 "math.exp(value - largest)", "math.exp(value - largest) if t < x.shape[1] else float32(0.0)"),
        "each padded element adds 1 to the sum":
            Edit("math.exp(value - largest)", "math.exp(value - largest) if t < x.shape[1] else float32(1.0)"),
        "no barrier between the search for the maximum and the exponentials":
            Edit("cuda.syncthreads()\n"
                 "tile[t] = math.exp(value - largest)",
                 "tile[t] = math.exp(value - largest)"),
        "the padding is stored, too": Edit("if t < x.shape[1]:", "if True:"),
        "the padding is -1000, and rows may be below that":
            Edit("float32(-np.inf)", "float32(-1000.0)"),
    },
)

EQUIVALENT = {
    "barrier moved: padded_softmax -> cuda.syncthreads() behind total = float32(0.0)":
        "total is private to a thread: nothing shared is used between the two places.",
}
