"""Find the bug: softmax of a row

It is right for values from −10 to 10, and returns NaN for the row [−200, 100]. `x` is a row of float32 on the host.

Repair it for every row of finite values. You may find the maximum without BLAS. Or stay with BLAS: what does a second
`isamax` find, if you first subtract what the first one found?
"""

HINTS = ("Follow the row [-220, 110] by hand. What is subtracted from what?",
         "What has to be subtracted is the largest value, and isamax finds the largest absolute value. If it found "
         "a positive value, the two are the same. If it found a negative one, nothing in the row is further from 0.",
         "biggest = x.max() is the short way. With BLAS: if biggest < 0, then isamax of x - biggest, which has no "
         "negative element, points at the maximum.")
POINTS = 2
NEEDS = ("peaks",)

import numpy as np

from labkit.kernels.libraries.column_major import isamax, sasum


# %%
def safe_softmax(x):
    biggest = x[isamax(x.size, x) - 1]
    e = np.exp(x - biggest)
    return e / np.float32(sasum(e.size, e))


### BEGIN SOLUTION
def safe_softmax(x):
    biggest = x[isamax(x.size, x) - 1]
    if biggest < 0:  # then nothing is further from 0: no difference is negative, and the largest is the maximum's
        biggest = x[isamax(x.size, x - biggest) - 1]
    e = np.exp(x - biggest)
    return e / np.float32(sasum(e.size, e))


### END SOLUTION

# %% [check]
from labkit.course.exercises import EPS32, EXPONENTIALS, ZEROS, FunctionExercise, of, uniform


@np.errstate(over="ignore", invalid="ignore")
def _softmax_shifted_by(x, shift):
    e = np.exp(x - shift)
    return e / np.float32(sasum(e.size, e))


def softmax_by_absolute_maximum(x):
    return _softmax_shifted_by(x, x[isamax(x.size, x) - 1])


def softmax_unshifted(x):
    return _softmax_shifted_by(x, np.float32(0.0))


@np.errstate(over="ignore", invalid="ignore")
def softmax_unshifted_in_float64(x):
    e = np.exp(x.astype(np.float64))
    return e / e.sum()


def softmax_by_magnitude(x):
    return _softmax_shifted_by(x, np.abs(x).max())


def softmax_sum_of_x(x):
    return np.exp(x - x.max()) / np.float32(sasum(x.size, x))


def _softmax_reference(x):
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def _softmax_row(rng, n):
    x = 20 * uniform(rng, n)  # from -30 to 30
    if n > 1:
        x[rng.integers(n - 1)] = 110.0
        x[-1] = -220.0  # the largest absolute value by far
    return (x,)


def _softmax_tolerance(x):
    below = x.max() - x
    return EPS32 * (10 + below + np.sqrt(x.size) + 2 * np.abs(x).max()) * _softmax_reference(x) + 1e-37


EXERCISE = FunctionExercise(
    name="safe_softmax",
    reference=_softmax_reference,
    inputs=_softmax_row,
    sizes=tuple({"n": n} for n in (1, 2, 3, 31, 257)),
    tolerance=_softmax_tolerance,
    domain=of(0, *EXPONENTIALS, ZEROS),
    wrong={"the value with the largest absolute value is subtracted": softmax_by_absolute_maximum,
           "nothing is subtracted": softmax_unshifted,
           "nothing is subtracted, and float64 only postpones the overflow: exp(1000) is infinite there, too":
           softmax_unshifted_in_float64,
           "the largest absolute value is subtracted: all exponentials may vanish": softmax_by_magnitude,
           "the sum is taken over `x`, not over the exponentials": softmax_sum_of_x},
)

EQUIVALENT = {
    "guard: biggest < 0 -> biggest < -1":
        "Which of the two largest is subtracted does not matter within a distance of 1: exp does not overflow.",
    "guard: biggest < 0 -> biggest < 1":
        "Which of the two largest is subtracted does not matter within a distance of 1: exp does not overflow.",
    "guard: biggest < 0 -> biggest <= 0": "Where it is 0 the two branches agree.",
}
