"""Predict: a maximum that grows

On paper, and in float32, where e^x is infinite from x = 89 on and 0 from x = -104 on:

- `infinite`: the row is 100, 90, 50, -60. If nothing is subtracted, how many of its exponentials are infinite?
- `zeros`: how many are 0 once the maximum of that row is subtracted?
- `corrections`: one thread of the online kernel reads 3, 1, 4, 1, 5, 9, 2, 6, in this order. How many times does it
  multiply its sum by a factor? It begins with the lowest float32 as the maximum and 0 as the sum.
- `exponentials`: how many exponentials does it compute on the way?
"""

HINTS = ("How large is each element once 100 is subtracted? And which elements of the second row are larger than all "
         "those before them?",
         "A correction is needed whenever the maximum grows, also for the first element. Look at the loop of the "
         "kernel: how often does it call `math.exp`, and which of the two calls is made for every element?",
         "The maximum grows at 3, 4, 5 and 9. Each element costs one exponential, and each correction one more.")
POINTS = 1

# %%
infinite = None  # of the row 100, 90, 50, -60, with nothing subtracted
zeros = None  # of the same row, with its maximum subtracted
corrections = None  # along 3, 1, 4, 1, 5, 9, 2, 6
exponentials = None  # computed along the same elements
### BEGIN SOLUTION
infinite = 2  # of 100 and 90
zeros = 1  # of -60 - 100
corrections = 4  # at 3, 4, 5 and 9
exponentials = 12  # one for each element, and one for each correction
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise

ROW = np.array([100, 90, 50, -60], np.float32)
ALONG = np.array([3, 1, 4, 1, 5, 9, 2, 6])


def _counts():
    with np.errstate(over="ignore", under="ignore"):
        infinite = int(np.isinf(np.exp(ROW)).sum())
        zeros = int((np.exp(ROW - ROW.max()) == 0).sum())
    corrections = len(np.unique(np.maximum.accumulate(ALONG)))
    return {"infinite": infinite, "zeros": zeros, "corrections": corrections,
            "exponentials": len(ALONG) + corrections}


EXERCISE = PredictionExercise(
    name="predict_running",
    truth=_counts,
    how={"infinite": "An exponential is infinite in float32 where the element itself is 89 or more.",
         "zeros": "Subtract 100 from each element: which differences are below -104?",
         "corrections": "The sum is corrected wherever an element is larger than all before it. The first one is.",
         "exponentials": "One for each of the eight elements, and one per correction."},
    wrong={"the first element is not counted as a new maximum":
               {"infinite": 2, "zeros": 1, "corrections": 3, "exponentials": 11},
           "the factors of the corrections are not counted as exponentials":
               {"infinite": 2, "zeros": 1, "corrections": 4, "exponentials": 8},
           "a correction for every element": {"infinite": 2, "zeros": 1, "corrections": 8, "exponentials": 16},
           "a small exponential is counted as 0": {"infinite": 2, "zeros": 2, "corrections": 4, "exponentials": 12}},
)
