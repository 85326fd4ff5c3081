r"""A row for every row

$$\text{out}_{r,c} = a_{r,c} + v_c$$

`a` and `out` have R rows and C columns, `v` has C elements. In NumPy this is `a + v`, with no `None` anywhere: the
shapes line up on the right. It is how a layer of a neural network adds its bias. With rows (1, 2) and (3, 4) and
`v` = (10, 20), `out` has the rows (11, 22) and (13, 24).

The grid's x runs along the columns, in blocks of 32 × 8. Everything is there except the line that does the work.
"""

HINTS = ("Take the element in row 4 and column 2. Which element of v does it need? And the one below it, in row 5?",
         "v has one element per column, and all rows share it. So its index is one of the two that the thread has.",
         "out[row, col] = a[row, col] + v[...], with the name that does not change as you go down a column.")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def add_row(a, v, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        ### BEGIN SOLUTION
        out[row, col] = a[row, col] + v[col]
        ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, relative_to, uniform
from labkit.course.exercises.broadcast import GRID_TRANSPOSED, matrices, over_matrix

EXERCISE = KernelExercise(
    name="add_row",
    reference=lambda a, v: a.astype(np.float64) + v.astype(np.float64)[None, :],
    inputs=lambda rng, R, C: (uniform(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=matrices((1, 1), (1, 7), (5, 3), (3, 5), (8, 32), (37, 23), (19, 70)),
    launch=over_matrix,
    tolerance=relative_to(lambda a, v: np.abs(a) + np.abs(v)[None, :], roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "`v` is indexed by the row, not by the column":
            Edit("out[row, col] = a[row, col] + v[col]", "out[row, col] = a[row, col] + v[row]"),
        "every element adds the same `v[0]`":
            Edit("out[row, col] = a[row, col] + v[col]", "out[row, col] = a[row, col] + v[0]"),
        "`v` is never added": Edit("out[row, col] = a[row, col] + v[col]", "out[row, col] = a[row, col]"),
        GRID_TRANSPOSED: Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
    },
)
