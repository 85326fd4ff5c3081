r"""Matrix times vector

$$\text{out}_r = \sum_k a_{r,k} \, x_k$$

`a` has M rows and K columns, `x` has K elements, `out` has M. One thread computes one element of `out`, in blocks of
64. Write the loop, and the store after it.
"""

HINTS = ("This thread has a row of a. At step k, which element of that row is multiplied by which element of x?",
         "Each step multiplies one element of a by one of x and adds the product to the total so far.",
         "for k in range(x.size): total += a[row, ...] * x[...]; and after the loop: out[row] = total.")
POINTS = 1

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def matvec(a, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = float32(0.0)
        ### BEGIN SOLUTION
        for k in range(x.size):
            total += a[row, k] * x[k]
        out[row] = total
        ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, dot_products, of, uniform

EXERCISE = KernelExercise(
    name="matvec",
    reference=lambda a, x: a.astype(np.float64) @ x.astype(np.float64),
    inputs=lambda rng, M, K: (uniform(rng, M, K), uniform(rng, K)),
    shape=lambda M, K: (M,),
    sizes=tuple({"M": M, "K": K} for M, K in ((1, 1), (1, 6), (6, 1), (5, 3), (16, 16), (37, 19), (129, 65))),
    launch=lambda M, K: (-(-M // 64), 64),
    tolerance=dot_products(lambda a, x: np.abs(a) @ np.abs(x), length=lambda a, x: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    in_float32=True,
    wrong={
        "`a[k, row]`: it runs down a column of `a`": Edit("total += a[row, k] * x[k]", "total += a[k, row] * x[k]"),
        "`=` instead of `+=`: only the last product is left":
            Edit("total += a[row, k] * x[k]", "total = a[row, k] * x[k]"),
        "`x` is indexed by the row": Edit("total += a[row, k] * x[k]", "total += a[row, k] * x[row]"),
        "the last product is left out": Edit("for k in range(x.size):", "for k in range(x.size - 1):"),
        "the products are added to `out`, which was never set to 0 (check fills it with NaN)":
            Edit("total = float32(0.0)",
                 "",
                 "total += a[row, k] * x[k]",
                 "out[row] += a[row, k] * x[k]",
                 "out[row] = total",
                 ""),
    },
)
