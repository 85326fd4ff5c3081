"""Find the bug: the largest of each row

`peaks(x)` returns, for each row, the element with the largest absolute value, with its sign. `x` is a NumPy array
here, and `isamax` is the model's. What is wrong?
"""

HINTS = ("What does isamax return for the row [7, 1, 1]?",
         "isamax counts from 1, as Fortran does. Which element is x[row, 1] in NumPy?"
         "",
         "x[row, isamax(cols, x[row]) - 1].")
POINTS = 1

import numpy as np

from labkit.kernels.libraries.column_major import isamax


# %%
def peaks(x):
    rows, cols = x.shape
    found = np.empty(rows, np.float32)
    for row in range(rows):
        found[row] = x[row, isamax(cols, x[row])]
    return found


### BEGIN SOLUTION
def peaks(x):
    rows, cols = x.shape
    found = np.empty(rows, np.float32)
    for row in range(rows):
        found[row] = x[row, isamax(cols, x[row]) - 1]  # BLAS counts from 1
    return found


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, uniform
from labkit.course.exercises.domains import EQUAL, NEGATIVE, ONE_FAR_ABOVE, ONE_FAR_BELOW, POSITIVE, ZEROS, of


def peaks_of_largest_value(x):
    return x.max(axis=1)


def _peaks_reference(x):
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]


def _rows(rng, R, C):
    x = uniform(rng, R, C)
    x[:, 0] *= 3 if C == 1 else 1
    x[0, -1] = -1.75  # the largest in its row, and the last: counted from 1, its number is C
    return (x,)


EXERCISE = FunctionExercise(
    name="peaks",
    reference=_peaks_reference,
    inputs=_rows,
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 2), (2, 3), (5, 7), (4, 33), (16, 100))),
    domain=of(0, NEGATIVE, POSITIVE, EQUAL, ONE_FAR_ABOVE, ONE_FAR_BELOW, ZEROS),
    wrong={"isamax counts from 1, and the index is used as if it counted from 0":
        Edit("isamax(cols, x[row]) - 1", "min(isamax(cols, x[row]), cols - 1)"),
           "the sign is lost":
               Edit("x[row, isamax(cols, x[row]) - 1]",
                    "abs(x[row, isamax(cols, x[row]) - 1])"), "the largest value, not the largest absolute value":
           peaks_of_largest_value, "the element after the largest":
               Edit("isamax(cols, x[row]) - 1", "isamax(cols, x[row]) % cols")},
)

EQUIVALENT = {
    "call: np.empty(rows, np.float32) -> np.ones(rows, np.float32)": "Every element is overwritten.",
}
