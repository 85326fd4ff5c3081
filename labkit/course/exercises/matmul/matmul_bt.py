r"""Rows against rows: A @ B.T

$$\text{out}_{r,c} = \sum_k a_{r,k} \, b_{c,k}$$

That is `a @ b.T`. `a` is (M, K), `b` is (N, K), `out` is (M, N), and nothing is transposed in memory: only the index
changes. Attention compares every query with every key in this way. Blocks are 16 × 16, and the grid's x runs along the
columns of `out`.
"""

HINTS = ("Which axis do a of shape (M, K) and b of shape (N, K) have in common? That is the one that the loop runs "
         "over.",
         "It is the lesson's coalesced kernel with one index changed: b.T[k, col] is b[col, k]. Guard, total, loop "
         "over a.shape[1], store.",
         "In the loop: total += a[row, k] * b[col, k]; after it, and inside the guard: out[row, col] = total.")
POINTS = 2
NEEDS = ("matvec",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def matmul_bt(a, b, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[col, k]
        out[row, col] = total
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, dot_products, of, uniform
from labkit.course.exercises.matmul import AWKWARD, over, wide


def _bt_reference(a, b):
    a, b = wide(a, b)
    return a @ b.T


EXERCISE = KernelExercise(
    name="matmul_bt",
    reference=_bt_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, N, K)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: over(N, M),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b).T, length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    in_float32=True,
    wrong={
        "`b[k, col]`: it multiplies by `b`, not by its transpose":
            Edit("total += a[row, k] * b[col, k]", "total += a[row, k] * b[k, col]"),
        "the loop runs over the rows of `b` (N of them), not over K":
            Edit("for k in range(a.shape[1]):", "for k in range(b.shape[0]):"),
        "the rows of `a` and of `b` are swapped":
            Edit("total += a[row, k] * b[col, k]", "total += a[col, k] * b[row, k]"),
        "no guard": Edit("if row < out.shape[0] and col < out.shape[1]:", "if True:"),
        "`row, col = cuda.grid(2)`, but the grid's x runs along the columns":
            Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
    },
)
