"""Predict: digits and registers

A row has a mean of 4,096 and a variance of about 1. The mean of its squares is about 4,096², and a float32 has 24
bits. How far apart are neighbouring float32 values there? And with a mean of 16,384? Both squares are powers of two, so
paper is enough.

Then take a kernel with a warp per row that keeps the row in registers, as in the lesson. For rows of 1,536, how many
registers does each lane need for its part of the row? And how many shuffles does a lane execute for a whole
LayerNorm, the mean and the variance?
"""

HINTS = ("If the first of 24 bits is worth 2 to the 24, what is the last one worth?",
         "2**23 times less than the first. For the registers: how many lanes share a row? For the shuffles: what are "
         "the five distances?",
         "2**24 / 2**23, 2**28 / 2**23, 1536 / 32, and five shuffles for each of two sums.")
POINTS = 1

# %%
near_4096 = None  # the distance between neighbours near 4,096 squared
near_16384 = None
registers = None  # per lane, for the row
shuffles = None  # per lane
### BEGIN SOLUTION
near_4096 = 2**24 // 2**23  # 2
near_16384 = 2**28 // 2**23  # 32
registers = 1536 // 32  # 48
shuffles = 2 * 5  # distances 16, 8, 4, 2, 1, for two sums
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise


def _variance_truth() -> dict[str, int]:
    return {
        "near_4096": int(np.spacing(np.float32(4096**2))),
        "near_16384": int(np.spacing(np.float32(16384**2))),
        "registers": 1536 // 32,
        "shuffles": 2 * 5,
    }


EXERCISE = PredictionExercise(
    name="predict_variance",
    truth=_variance_truth,
    how={
        "near_4096": "4,096 squared is 2 to the 24. A float32 has 24 bits, and the first of them is worth that much.",
        "near_16384": "16,384 squared is 2 to the 28, and the last of 24 bits is worth 2**23 times less.",
        "registers": "a warp has 32 lanes, and they share the row.",
        "shuffles": "each sum over 32 lanes halves the distance until it is 1. How many sums does LayerNorm need?",
    },
    wrong={
        "the 24 bits are counted after the first one": {"near_4096": 1, "near_16384": 16},
        "this is the spacing near the mean, not near its square": {"near_4096": 0, "near_16384": 0},
        "the four registers of a quad are counted as one": {"registers": 12},
        "the row is divided among 256 threads, but a warp has 32": {"registers": 6},
        "one sum is counted, but there are two": {"shuffles": 5},
    },
)

AFTER = """
With a mean of 16,384, the mean of squares minus the squared mean can be 0 or 32, but not 1.
"""
