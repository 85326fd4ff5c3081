r"""From a blank page: the gradient of rows of length 1

Sentence embeddings are often scaled to length 1 (lesson 31): each row is divided by its length,

$$y_{r,c} = x_{r,c} \, s_r, \qquad s_r = \frac{1}{\sqrt{\sum_k x_{r,k}^2 + 10^{-5}}}$$

Derive its backward pass, as for RMSNorm in the lesson; this one has no mean and no weight. Then write
`unit_rows_backward(x, dout, dx)` from the decorator down. It is given `x` and the gradient of `y`, and writes the
gradient of `x`; all are (R, C) and float32. A block has 32 x 4 threads, and each of its four warps computes one row:
`threadIdx.x` is the lane, and `threadIdx.y` selects the row. A row may have any number of columns.
"""

HINTS = ("Each x changes its own y and, through s, all others. The derivative of s with respect to x[r, i] is "
         "-x[r, i] * s**3.",
         "dx = s * (dout - y * sum of dout * y over the row). Two sums are needed, of x * x and of dout * x; both can "
         "be added up in one loop, since y is x * s.",
         "After the shuffles: s = cuda.rsqrt(squares + float32(1e-5)); along = products * s * s; and then "
         "dx[row, col] = s * (dout[row, col] - x[row, col] * along).")
POINTS = 3
NEEDS = ("predict_kept",)

from numba import float32

from labkit import cuda

# %%
unit_rows_backward = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def unit_rows_backward(x, dout, dx):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares, products = float32(0.0), float32(0.0)
        for col in range(lane, x.shape[1], 32):
            squares += x[row, col] * x[row, col]
            products += dout[row, col] * x[row, col]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
            products += cuda.shfl_xor_sync(0xFFFFFFFF, products, distance)
        s = cuda.rsqrt(squares + float32(1e-5))
        along = products * s * s
        for col in range(lane, x.shape[1], 32):
            dx[row, col] = s * (dout[row, col] - x[row, col] * along)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, ZEROS, of
from labkit.course.exercises.layernorm import four_rows, rows_and_columns, some_rows_small, wide


def _scales(x):
    return 1 / np.sqrt((x**2).sum(axis=1, keepdims=True) + 1e-5)


def _gradient(x, dout):
    x, dout = wide(x, dout)
    s = _scales(x)
    y = x * s
    return s * (dout - y * (dout * y).sum(axis=1, keepdims=True))


def _tolerance(x, dout):
    x, dout = wide(x, dout)
    s = _scales(x)
    y = np.abs(x * s)
    terms = np.abs(dout) + y * (np.abs(dout) * y).sum(axis=1, keepdims=True)
    return EPS32 * (8 + 2 * np.sqrt(x.shape[1])) * s * terms + 1e-30


def _along_x(rng, x, dout):
    """dx is 0, but for the small constant."""
    return x, x.copy()


EXERCISE = KernelExercise(
    name="unit_rows_backward",
    reference=_gradient,
    inputs=lambda rng, R, C: (some_rows_small(rng, R, C), uniform(rng, R, C)),
    shape=lambda R, C: (R, C),
    sizes=rows_and_columns((1, 1), (2, 3), (4, 32), (5, 31), (3, 33), (7, 100)),
    launch=four_rows,
    tolerance=_tolerance,
    domain=(*of(0, ZEROS, EQUAL, ONE_FAR_ABOVE), *of(1, HUGE_AND_TINY, NEGATIVE),
            Reach("`dout` is equal to `x`", _along_x)),
    demand=shuffles,
    wrong={
        "s is taken to be a constant: the second term is left out":
            Edit("s * (dout[row, col] - x[row, col] * along)", "s * dout[row, col]"),
        "the second term is added": Edit("- x[row, col] * along", "+ x[row, col] * along"),
        "the sum has one factor s too few": Edit("along = products * s * s", "along = products * s"),
        "the result lacks the factor s in front": Edit("s * (dout", "(dout"),
        "means instead of sums, as in RMSNorm":
            Edit("cuda.rsqrt(squares + float32(1e-5))", "cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))",
                 "along = products * s * s", "along = products / float32(x.shape[1]) * s * s"),
        "no small constant under the root": Edit("squares + float32(1e-5)", "squares"),
        "only `dout` is summed":
            Edit("products += dout[row, col] * x[row, col]", "products += dout[row, col]"),
        "the sum of products is not added up across the warp":
            Edit("products += cuda.shfl_xor_sync(0xFFFFFFFF, products, distance)", ""),
        "the last shuffle, with the neighbour, is missing": Edit("(16, 8, 4, 2, 1)", "(16, 8, 4, 2)"),
        "one element per lane: rows longer than 32 are left unfinished":
            Edit("for col in range(lane, x.shape[1], 32):\n"
                 "    dx[row, col] = s * (dout[row, col] - x[row, col] * along)",
                 "if lane < x.shape[1]:\n"
                 "    dx[row, lane] = s * (dout[row, lane] - x[row, lane] * along)"),
        "the forward pass: x times s": Edit("s * (dout[row, col] - x[row, col] * along)", "s * x[row, col]"),
    },
)
