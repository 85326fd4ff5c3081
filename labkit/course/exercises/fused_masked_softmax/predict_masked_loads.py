"""Predict: what is loaded

In a matrix of 32 × 32 with a causal mask, q + 1 scores of row q are visible. How many scores do all threads together
load in the three fused kernels of the lesson? `single_read` loads groups of four neighbours, and only those whose first
score is visible.
"""

HINTS = ("How many scores of row 9 are visible, and how many groups of four is that?",
         "1 + 2 + ... + 32 is 32 * 33 / 2. For the groups: rows 0 to 3 load 4 scores each, rows 4 to 7 load 8, and so "
         "on to 32.",
         "three_read: three times 32 * 32. bounded: three times 528. single_read: 4 * (4 + 8 + ... + 32).")
POINTS = 2

# %%
three_read = None  # scores loaded
bounded = None
single_read = None
### BEGIN SOLUTION
three_read = 3 * 32 * 32
bounded = 3 * sum(q + 1 for q in range(32))
single_read = sum(4 * -(-(q + 1) // 4) for q in range(32))
### END SOLUTION

# %% [check]
import functools

import numpy as np

from labkit.course.exercises import PredictionExercise


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


EXERCISE = PredictionExercise(
    name="predict_masked_loads",
    truth=_loads,
    how={"three_read": "Each of its three loops loads all 32 x 32 scores, hidden or not.",
         "bounded": "The first q + 1 scores of row q are loaded three times. Sum over q from 0 to 31.",
         "single_read": "A row is loaded in groups of four: the next multiple of four from q + 1 on. Four rows, one "
                        "after the other, load the same."},
    wrong={"one loop each": {"three_read": 1024, "bounded": 528, "single_read": 576},
           "groups of four forgotten": {"three_read": 3072, "bounded": 1584, "single_read": 528},
           "half of the matrix, without the diagonal": {"three_read": 3072, "bounded": 1488, "single_read": 576}},
)
