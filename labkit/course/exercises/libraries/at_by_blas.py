"""Columns against columns, in one call

    out = a.T @ b

`a` is (K, M), `b` is (K, N), `out` is (M, N), all row by row and on the device. The gradient of a layer's weights is
such a product.
"""

HINTS = ("What is the transpose of a.T @ b? Write it down with the two factors in the right order.",
         "It is b.T @ a. In b's memory cuBLAS sees b.T, and in a's memory a.T. Which of the two has to be transposed?",
         "gemm(OP_N, OP_T, N, M, K, 1.0, b, N, a, ..., 0.0, out, N), where the rows of a are M long.")
POINTS = 2
NEEDS = ("predict_call",)

from labkit.kernels.libraries.blas import OP_N, OP_T, gemm


# %%
def at_by_blas(a, b, out):
    K, M = a.shape
    N = b.shape[1]
    ### BEGIN SOLUTION
    # out.T = b.T @ a. cuBLAS sees b.T in b's memory, as wanted, and a.T in a's: that one is transposed.
    gemm(OP_N, OP_T, N, M, K, 1.0, b, N, a, M, 0.0, out, N)
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, FunctionExercise, dot_products, of, uniform
from labkit.course.exercises.libraries import one_call, wide


def _products(*sizes):
    return tuple({"M": M, "N": N, "K": K} for M, N, K in sizes)


AWKWARD = _products((1, 1, 1), (3, 5, 2), (5, 3, 4), (16, 16, 16), (1, 33, 17), (33, 1, 31), (17, 18, 1), (37, 23, 19))


def _at_reference(a, b):
    a, b = wide(a, b)
    return a.T @ b


def at_on_the_host(a, b, out):
    out.copy_to_device(a.copy_to_host().T @ b.copy_to_host())


EXERCISE = FunctionExercise(
    name="at_by_blas",
    reference=_at_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, K, M), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    tolerance=dot_products(lambda a, b: np.abs(a).T @ np.abs(b), length=lambda a, b: a.shape[0]),
    domain=of((0, 1), *SUMMED),
    demand=one_call("gemm"),
    wrong={
        "the flags are swapped": Edit("OP_N, OP_T", "OP_T, OP_N"),
        "`a` comes first, so the transpose of the result is written":
            Edit("N, M, K, 1.0, b, N, a, M, 0.0, out, N", "M, N, K, 1.0, a, M, b, N, 0.0, out, M"),
        "`a` is read as (M, K)": Edit("OP_T, N, M, K, 1.0, b, N, a, M", "OP_N, N, M, K, 1.0, b, N, a, K"),
        "m and n are swapped": Edit("OP_T, N, M", "OP_T, M, N"),
        "beta is 1, so the product is added to what was in `out`": Edit("0.0, out, N", "1.0, out, N"),
        "NumPy computes the product, on the host": at_on_the_host,
    },
)
