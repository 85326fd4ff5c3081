"""Predict: when an update vanishes

On paper: a weight of 1 in bfloat16 gets an update of -0.0005 in each step, and is rounded to nearest after every step,
ties to even. What is it after 100 steps? With a float32 master, after which step does the bfloat16 copy first differ
from 1? Now take updates of +1/1024: what is the smallest power of two that such an update does not change, if it is a
bfloat16 weight?

A model of 7 billion parameters is trained with bfloat16 copies, float32 gradients, float32 masters, m and v. How many
GB (1e9 bytes) do these need? How many bytes per parameter does a step of AdamW move, if it reads what it needs once and
writes what it changes once?
"""

HINTS = ("How far apart are the bfloat16 numbers just below 1, and what is half of that? Bfloat16 has 8 significant "
         "bits. And how far above a power of two is the next number?",
         "Just below 1 neighbours are 1/256 apart, and numbers above 1 - 1/512 are rounded to 1. From 2**k upwards "
         "they are 2**(k - 7) apart; an update of exactly half of that is a tie, and a power of two is even. AdamW "
         "reads master, m, v and gradient, and writes master, m, v and copy.",
         "0.0005 * 3 is less than 1/512, and 0.0005 * 4 is more; 2**(k - 8) = 2**-10; 2 + 4 * 4 bytes for each of 7 "
         "billion; and 4 * 4 + 3 * 4 + 2.")
POINTS = 1

# %%
after_100 = None  # the weight in bfloat16 alone
first_change = None  # the step, counted from 1, with a float32 master
smallest_stuck = None  # the smallest power of two that +1/1024 does not change
state_gb = None  # copies, gradients, masters, m and v of 7 billion parameters
step_bytes = None  # that a step of AdamW moves per parameter
### BEGIN SOLUTION
after_100 = 1
first_change = 4
smallest_stuck = 0.25
state_gb = 126
step_bytes = 30
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.kernels.dtypes import bfloat16_of, float32_of


def _rounded(x: float) -> float:
    return float(float32_of(bfloat16_of([x]))[0])


def _after(steps: int) -> float:
    weight = 1.0
    for _ in range(steps):
        weight = _rounded(weight - 0.0005)
    return weight


def _truth() -> dict:
    return {"after_100": _after(100),
            "first_change": next(step for step in range(1, 100) if _rounded(1 - 0.0005 * step) != 1),
            "smallest_stuck": next(2.0**k for k in range(-20, 10) if _rounded(2.0**k + 2.0**-10) == 2.0**k),
            "state_gb": 7 * (2 + 4 * 4), "step_bytes": 4 * 4 + 3 * 4 + 2}


EXERCISE = PredictionExercise(
    name="predict_vanished",
    truth=_truth,
    how={"after_100": "0.9995 is closer to 1 than to 1 - 1/256, so each step ends at 1 again.",
         "first_change": "Numbers above 1 - 1/512 = 0.99805 are rounded to 1. The master is 0.9985 after three steps.",
         "smallest_stuck": "From 2**k on neighbours are 2**(k - 7) apart. At 2**-2 half of that is 2**-10: a tie, "
                           "which is rounded back to the even number.",
         "state_gb": "2 bytes for the copy, and 4 each for gradient, master, m and v, times 7.",
         "step_bytes": "It reads master, m, v and gradient, 16 bytes; it writes master, m, v and copy, 14 bytes."},
    wrong={
        "every update was taken to count": {"after_100": 0.95},
        "the lost updates were taken to add up in the end": {"after_100": 0.94921875},
        "1/256 was taken to be half the distance just below 1, but it is all of it": {"first_change": 8},
        "a tie was taken to be rounded up": {"smallest_stuck": 0.5},
        "an update of the whole distance was taken to be lost": {"smallest_stuck": 0.125},
        "the copies were left out, or the gradients counted in bfloat16": {"state_gb": 112, "step_bytes": 28},
        "the gradient was counted as written as well": {"step_bytes": 34},
        "only reads were counted": {"step_bytes": 16},
    },
)
