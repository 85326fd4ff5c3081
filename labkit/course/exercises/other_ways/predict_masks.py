"""Predict: programs and masks

100,000 elements are added by programs of 1,024. Rows of 781 elements go through softmax, one row per program, in a
vector whose length is a power of two.

- `programs`: how many programs does the addition launch?
- `masked`: how many slots of the last program are masked?
- `length`: how long is the vector of the softmax?
- `wasted`: how many of its slots hold no element?
"""

HINTS = ("How many times does 1,024 go into 100,000, and what is left?",
         "What is left needs a program of its own, which is masked beyond the end of the data. A vector's "
         "length is a power of two: which is the smallest one that 781 fits into?",
         "98 programs have 98 * 1024 slots. The vector is 1,024 long.")
POINTS = 1

# %%
programs, masked = None, None  # of the addition
length, wasted = None, None  # of the softmax
### BEGIN SOLUTION
programs, masked = 98, 352  # 98 * 1024 = 100,352
length, wasted = 1024, 243
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

EXERCISE = PredictionExercise(
    name="predict_masks",
    truth=lambda: {"programs": 98, "masked": 352, "length": 1024, "wasted": 243},
    how={"programs": "100,000 elements, 1,024 per program, and a last program that is only partly full",
         "masked": "all programs together have `programs` times 1,024 slots",
         "length": "the smallest power of two that a row of 781 fits into",
         "wasted": "slots of that vector without an element"},
    wrong={"the last, partly full program is missing": {"programs": 97},
           "the slots used in the last program, not those that are masked": {"masked": 672},
           "the row's own length: 781 is no power of two": {"length": 781},
           "the vector is taken to end at the next multiple of 32": {"wasted": 19}},
)
