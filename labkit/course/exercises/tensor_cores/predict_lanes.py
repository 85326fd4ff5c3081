"""Predict: who holds it?

`mma.sync` m16n8k16, as in the lesson's picture. Without looking at it: which lane holds

- `a[11, 6]`, and in which of its registers a0 to a3?
- `b[13, 2]`, and in which of b0 and b1?
- the accumulator at row 2, column 7, and in which of c0 to c3?
"""

HINTS = ("A lane is 4 * g + q. For a and for the accumulators, which of the two gives the row, and which the column?",
         "a: g is the row modulo 8, q is the column modulo 8, halved. b: g is the column, q is the row modulo 8, "
         "halved. The half, upper or lower, left or right, selects the register.",
         "a[11, 6]: g = 3, q = 3, lower left. b[13, 2]: g = 2, q = 2, lower. The accumulator: g = 2, q = 3, an odd "
         "column.")
POINTS = 2

# %%
a_lane, a_register = None, None
b_lane, b_register = None, None
sum_lane, sum_register = None, None
### BEGIN SOLUTION
a_lane, a_register = 4 * (11 % 8) + 6 // 2, 1  # g = 3, q = 3; the lower half, the left one
b_lane, b_register = 4 * 2 + (13 - 8) // 2, 1  # g is the column; the lower half
sum_lane, sum_register = 4 * 2 + 7 // 2, 1  # an odd column: the second of the two neighbours
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

LANES = {"a_lane": 15, "a_register": 1, "b_lane": 10, "b_register": 1, "sum_lane": 11, "sum_register": 1}

EXERCISE = PredictionExercise(
    name="predict_lanes",
    truth=lambda: LANES,
    how={"a_lane": "the row modulo 8 is g; two neighbouring columns share a q; the lane is 4 * g + q",
         "a_register": "a0 top left, a1 below it, a2 to the right of a0, a3 below a2",
         "b_lane": "here the column is g, and two neighbouring rows share a q",
         "b_register": "b0 holds the upper 8 rows, b1 the lower",
         "sum_lane": "as for a",
         "sum_register": "c0 and c1 are neighbours in row g, c2 and c3 in row g + 8"},
    wrong={"b was taken to have the layout of a": {**LANES, "b_lane": 21},
           "a1 and a2 were swapped": {**LANES, "a_register": 2},
           "the accumulator's column was ignored": {**LANES, "sum_register": 0}},
)
