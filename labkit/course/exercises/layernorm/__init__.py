"""Three exercises: a prediction about digits and registers, a bug between two sums, and a norm by a warp from a blank
page. `hint("predict_variance")` gives a hint, and a second call a better one.
"""

import numpy as np

from labkit.course.exercises import uniform

FIRST_CELL = """from numba import float32

from labkit import check, cuda, hint
"""

# Sizes are R (rows) and C (columns). Kernels with a warp for each row get blocks of 32 x 4 threads: four rows a block.

ALL_LANES = 0xFFFFFFFF
EPSILON = 1e-5


def rows_and_columns(*sizes):
    return tuple({"R": R, "C": C} for R, C in sizes)


def wide(*arrays):
    return (np.asarray(array, np.float64) for array in arrays)


def four_rows(R, C):
    return -(-R // 4), (32, 4)


def some_rows_small(rng, R, C):
    """Every second row is a thousandth of the others: there the epsilon counts."""
    scale = np.where(np.arange(R) % 2, 1e-3, 1.0).astype(np.float32)
    return uniform(rng, R, C) * scale[:, None]


def rmsnorm_reference(x, weight):
    x, weight = wide(x, weight)
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * weight


def rmsnorm_tolerance(x, weight):
    return 1e-6 * (4 + np.sqrt(x.shape[1])) * (np.abs(rmsnorm_reference(x, weight)) + 1e-3 * np.abs(weight))
