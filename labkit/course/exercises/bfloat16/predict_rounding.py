"""Predict: what survives rounding

On paper: bfloat16 has 8 significant bits and float16 has 11, the leading 1 included. Which whole number does 1,006
become in bfloat16? If 0.5 is added to 0 again and again in bfloat16, rounded to nearest after each addition, where does
the sum stop growing? Where does it stop if 3 is added each time, in bfloat16 and in float16? And how many load
requests, each for a whole warp, does it take to read a row of 4,096 bfloat16 numbers with eight per load?
"""

HINTS = ("How far apart are neighbours from 512 to 1,024, if a number has 8 significant bits? And where does a sum "
         "stop: where the term is less than the distance, or where it is less than half of it?",
         "From 2**k to 2**(k + 1) bfloat16 numbers are 2**(k - 7) apart, float16 numbers 2**(k - 10). A term of more "
         "than half the distance is rounded up to all of it; one of exactly half is a tie and goes to the even "
         "neighbour. A request of a warp loads for 32 lanes.",
         "1,006 is a tie between 1,004 and 1,008, and 1,008 is 252 times 4; 0.5 is half of the distance from 128 on; 3 "
         "is less than half of the distance where that is 8; and 4,096 / (32 * 8) requests.")
POINTS = 1
NEEDS = ("pack_bfloat16",)

# %%
nearest = None  # 1,006 in bfloat16
by_half = None  # 0.5 + 0.5 + ... in bfloat16
by_three = None  # 3 + 3 + ... in bfloat16
float16_by_three = None  # 3 + 3 + ... in float16
requests = None  # for 4,096 numbers, eight per load
### BEGIN SOLUTION
nearest = 1008
by_half = 128
by_three = 1024
float16_by_three = 8192
requests = 16
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise
from labkit.kernels.dtypes import bfloat16_of, float32_of


def _as_bfloat16(x):
    return float(float32_of(bfloat16_of([x]))[0])


def _as_float16(x):
    return float(np.float16(x))


def _last_sum(rounded, term: float) -> int:
    """Where 0 + term + term + ... stops growing, rounded after each addition."""
    total = 0.0
    while rounded(total + term) > total:
        total = rounded(total + term)
    return round(total)


EXERCISE = PredictionExercise(
    name="predict_rounding",
    truth=lambda: {"nearest": round(_as_bfloat16(1006)), "by_half": _last_sum(_as_bfloat16, 0.5),
                   "by_three": _last_sum(_as_bfloat16, 3), "float16_by_three": _last_sum(_as_float16, 3),
                   "requests": 4096 // (8 * 32)},
    how={"nearest": "From 512 to 1,024 neighbours are 4 apart. 1,006 is a tie between 251 times 4 and 252 times 4, and "
                    "goes to the even one.",
         "by_half": "From 128 on neighbours are 1 apart, and 128.5 is a tie that goes back to 128.",
         "by_three": "From 512 on neighbours are 4 apart, and adding 3 adds 4. From 1,024 on they are 8 apart, and 3 "
                     "is less than half of that.",
         "float16_by_three": "float16 has 3 more significant bits, so everything happens at numbers 8 times as large.",
         "requests": "A load of a warp moves 32 times 8 numbers."},
    wrong={
        "the tie went to the odd neighbour": {"nearest": 1004},
        "the leading 1, which is not stored, was not counted as a bit": {
            "by_half": 64, "by_three": 512, "float16_by_three": 4096},
        "the sum was taken to stop where neighbours are further apart than the term, but more than half rounds up": {
            "by_three": 512, "float16_by_three": 4096},
        "float16 was given the 8 significant bits of bfloat16": {"float16_by_three": 1024},
        "one number per lane was counted, not eight": {"requests": 128},
        "the loads of each lane were counted: a request is the load of a whole warp": {"requests": 512},
    },
)
