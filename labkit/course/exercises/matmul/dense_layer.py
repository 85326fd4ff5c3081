r"""A layer in one kernel

A layer of a neural network multiplies, adds the bias of the column, and sets negative values to zero:

$$\text{out}_{r,c} = \max\left(0, \; \sum_k a_{r,k} \, b_{k,c} + \text{bias}_c\right)$$

With three calls, two matrices are written and read back. In one kernel they never leave the registers: fusion, as in
lesson 05. `a` is (M, K), `b` is (K, N), `bias` has N elements. Write `dense_layer(a, b, bias, out)` from the decorator
down, for blocks of 16 × 16 with the grid's x along the columns. `max(total, float32(0.0))` works in a kernel.
"""

HINTS = ("How often is the bias added to one element of out: once, or once per k? And which of the two comes first, "
         "the bias or the maximum?",
         "The lesson's coalesced kernel, but total starts with something other than zero, and max is applied before "
         "the store.",
         "total = bias[col] before the loop, total += a[row, k] * b[k, col] inside, out[row, col] = max(total, "
         "float32(0.0)) after it.")
POINTS = 2
NEEDS = ("matmul_bt",)

from numba import float32

from labkit import cuda

# %%
dense_layer = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def dense_layer(a, b, bias, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = bias[col]
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = max(total, float32(0.0))


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, asks, dot_products, elements_of_argument, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, FAR_BELOW_ZERO, SUMMED, of
from labkit.course.exercises.matmul import AWKWARD, over, products, wide


def _layer_reference(a, b, bias):
    a, b, bias = wide(a, b, bias)
    return np.maximum(a @ b + bias, 0)


@asks("Each element of `out` is stored once.")
def _stays_in_registers(report) -> str | None:
    elements, stores = elements_of_argument(report, 3), report.counts["global_stores"]
    if stores <= elements:
        return None
    return (f"It makes {stores:,} stores for {elements:,} elements of `out`. One per element is enough: keep the sum "
            "in a variable until bias and maximum are done.")


EXERCISE = KernelExercise(
    name="dense_layer",
    reference=_layer_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N), uniform(rng, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: over(N, M),
    tolerance=dot_products(lambda a, b, bias: np.abs(a) @ np.abs(b) + np.abs(bias),
                           length=lambda a, b, bias: a.shape[1] + 1),
    domain=(*of((0, 1, 2), *SUMMED), *of(2, FAR_ABOVE_ZERO, FAR_BELOW_ZERO)),
    observe_sizes=products((5, 3, 4), (1, 33, 17)),
    demand=_stays_in_registers,
    in_float32=True,
    wrong={
        "the bias is added at every step of the loop":
            Edit("total = bias[col]", "total = float32(0.0)",
                 "total += a[row, k] * b[k, col]", "total += a[row, k] * b[k, col] + bias[col]"),
        "the bias is indexed by the row": Edit("total = bias[col]", "total = bias[row]"),
        "the bias is added after negative values have become 0":
            Edit("total = bias[col]", "total = float32(0.0)",
                 "max(total, float32(0.0))", "max(total, float32(0.0)) + bias[col]"),
        "the maximum is applied at every step of the loop":
            Edit("total += a[row, k] * b[k, col]", "total = max(total + a[row, k] * b[k, col], float32(0.0))",
                 "out[row, col] = max(total, float32(0.0))", "out[row, col] = total"),
        "negative values stay": Edit("out[row, col] = max(total, float32(0.0))", "out[row, col] = total"),
        "the bias is never added": Edit("total = bias[col]", "total = float32(0.0)"),
        "no guard": Edit("if row < out.shape[0] and col < out.shape[1]:", "if True:"),
        "the sum so far is kept in `out`, and is stored and loaded again in every step":
            Edit("out[row, col] = max(total, float32(0.0))", "out[row, col] = max(out[row, col], float32(0.0))",
                 "total = bias[col]", "out[row, col] = bias[col]",
                 "total += a[row, k] * b[k, col]", "out[row, col] += a[row, k] * b[k, col]"),
    },
)
