r"""A linear layer, four by four

$$\text{out}_{m,n} = \sum_k x_{m,k} \, w_{n,k}$$

That is `x @ w.T`, the form of a linear layer: `x` is (M, K), `w` is (N, K). A thread computes the tile of 4 × 4
elements that begins at `row0` and `col0`. No shared memory this time: in each step of k load four elements of `x` into
`x_part` and four of `w` into `w_part`, with zeros beyond the edges, and multiply each of `x_part` by each of `w_part`.
Blocks are 8 × 8 threads.
"""

HINTS = ("In one step of k, which elements does the whole thread tile need? Which of them are beyond an edge for the "
         "last thread tile?",
         "Three parts: load 4 + 4 elements with a guard each, multiply each by each and add to sums, and after the "
         "loop over k store what is inside.",
         "x_part[i] = x[row0 + i, k] if row0 + i < rows else float32(0.0), w_part[i] likewise from w[col0 + i, k]; "
         "then sums[i, j] += x_part[i] * w_part[j].")
POINTS = 3
NEEDS = ("predict_patch",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def linear_patch(x, w, out):
    col0, row0 = cuda.grid(2)
    row0, col0 = row0 * 4, col0 * 4
    rows, cols = out.shape
    sums = cuda.local.array((4, 4), float32)
    x_part = cuda.local.array(4, float32)
    w_part = cuda.local.array(4, float32)
    for i in range(4):
        for j in range(4):
            sums[i, j] = float32(0.0)
    ### BEGIN SOLUTION
    for k in range(x.shape[1]):
        for i in range(4):
            x_part[i] = x[row0 + i, k] if row0 + i < rows else float32(0.0)
            w_part[i] = w[col0 + i, k] if col0 + i < cols else float32(0.0)
        for i in range(4):
            for j in range(4):
                sums[i, j] += x_part[i] * w_part[j]
    for i in range(4):
        for j in range(4):
            if row0 + i < rows and col0 + j < cols:
                out[row0 + i, col0 + j] = sums[i, j]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, KernelExercise, asks, dot_products, of, uniform
from labkit.course.exercises.matmul_to_the_limit import ZERO


def _make_linear_patch(transposed=True, guard_loads=True, guard_stores=True, apart=4, reset=True):
    """The exercise's kernel, or with one thing wrong about it."""

    @cuda.jit
    def linear_patch(x, w, out):
        col0, row0 = cuda.grid(2)
        row0, col0 = row0 * apart, col0 * apart
        rows, cols = out.shape
        sums = cuda.local.array((4, 4), float32)
        x_part = cuda.local.array(4, float32)
        w_part = cuda.local.array(4, float32)
        if reset:
            for i in range(4):
                for j in range(4):
                    sums[i, j] = ZERO
        for k in range(x.shape[1]):
            for i in range(4):
                x_part[i] = x[row0 + i, k] if not guard_loads or row0 + i < rows else ZERO
                if transposed:
                    w_part[i] = w[col0 + i, k] if not guard_loads or col0 + i < cols else ZERO
                else:
                    w_part[i] = w[k, col0 + i] if col0 + i < cols and k < w.shape[0] else ZERO
            for i in range(4):
                for j in range(4):
                    sums[i, j] += x_part[i] * w_part[j]
        for i in range(4):
            for j in range(4):
                if not guard_stores or (row0 + i < rows and col0 + j < cols):
                    out[row0 + i, col0 + j] = sums[i, j]

    return linear_patch


@cuda.jit
def linear_one_element(x, w, out):
    col0, row0 = cuda.grid(2)
    rows, cols = out.shape
    for i in range(4):
        for j in range(4):
            row, col = row0 * 4 + i, col0 * 4 + j
            if row < rows and col < cols:
                total = ZERO
                for k in range(x.shape[1]):
                    total += x[row, k] * w[col, k]
                out[row, col] = total


@asks("In each step of k a thread loads eight elements.")
def _loads_once(report):
    """At 32 x 32 x 2: 64 thread tiles load 8 elements per step, 1,024 in all; element by element it is 4,096."""
    loads = report.counts["global_loads"]
    if loads <= 2048:
        return None
    return (f"At M = 32, N = 32, K = 2 the threads load {loads:,} elements from global memory. 8 per step and thread "
            f"tile make 1,024: load an element once, into `x_part` or `w_part`, and use it four times.")


EXERCISE = KernelExercise(
    name="linear_patch",
    reference=lambda x, w: x.astype(np.float64) @ w.astype(np.float64).T,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, N, K)),
    shape=lambda M, N, K: (M, N),
    sizes=tuple({"M": M, "N": N, "K": K} for M, N, K in
                ((1, 1, 1), (5, 3, 4), (3, 5, 2), (32, 32, 2), (33, 34, 7), (64, 31, 16))),
    observe_sizes=({"M": 5, "N": 3, "K": 4}, {"M": 32, "N": 32, "K": 2}),
    launch=lambda M, N, K: ((-(-N // 32), -(-M // 32)), (8, 8)),
    tolerance=dot_products(lambda x, w: np.abs(x) @ np.abs(w).T, length=lambda x, w: x.shape[1]),
    demand=_loads_once,
    domain=of((0, 1), *SUMMED),
    wrong={"`w[k, col]`: it multiplies by `w`, not by its transpose": _make_linear_patch(transposed=False),
           "the loads have no guard": _make_linear_patch(guard_loads=False),
           "the stores have no guard": _make_linear_patch(guard_stores=False),
           "neighbouring patches overlap: they begin one element apart, not four": _make_linear_patch(apart=1),
           "the sums do not begin at 0": _make_linear_patch(reset=False),
           "it loads each element again for each product": linear_one_element},
)
