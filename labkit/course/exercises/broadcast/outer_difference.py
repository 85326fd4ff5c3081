r"""Each against each

Two vectors make a matrix: `a[:, None] - b[None, :]` holds the difference of every pair.

$$\text{out}_{r,c} = a_r - b_c$$

The grid is as before, with its x along the columns. This time the whole body of the kernel is yours: the names, the
guard and the store.
"""

HINTS = ("cuda.grid(2) gives two indices, the one along x first. The grid's x runs along the columns: which name comes "
         "first?",
         "The grid covers more than the matrix at both edges, so the guard tests both indices. Then a is indexed by "
         "one of them and b by the other.",
         "col, row = cuda.grid(2); then, if row < out.shape[0] and col < out.shape[1]: out[row, col] = a[row] - "
         "b[...].")
POINTS = 2
NEEDS = ("add_row",)

from labkit import cuda


# %%
@cuda.jit
def outer_difference(a, b, out):
    ### BEGIN SOLUTION
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = a[row] - b[col]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, relative_to, uniform
from labkit.course.exercises.broadcast import GRID_TRANSPOSED, matrices, over_matrix

EXERCISE = KernelExercise(
    name="outer_difference",
    reference=lambda a, b: a.astype(np.float64)[:, None] - b.astype(np.float64)[None, :],
    inputs=lambda rng, R, C: (uniform(rng, R), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=matrices((1, 1), (1, 7), (5, 3), (3, 5), (8, 32), (37, 23), (19, 70)),
    launch=over_matrix,
    tolerance=relative_to(lambda a, b: np.abs(a)[:, None] + np.abs(b)[None, :], roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "`a` is indexed by the column and `b` by the row":
            Edit("out[row, col] = a[row] - b[col]", "out[row, col] = a[col] - b[row]"),
        "`b - a` instead of `a - b`": Edit("out[row, col] = a[row] - b[col]", "out[row, col] = b[col] - a[row]"),
        GRID_TRANSPOSED: Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
        "no guard": Edit("if row < out.shape[0] and col < out.shape[1]:", "if True:"),
        "a guard for the rows, but none for the columns":
            Edit("if row < out.shape[0] and col < out.shape[1]:", "if row < out.shape[0]:"),
    },
)
