"""From a blank page: many products, one shared matrix

`a` is (B, M, K), `b` is (K, N), `out` is (B, M, N), and every matrix of `a` is multiplied by the same `b`:

    out[i] = a[i] @ b

`gemm_strided_batched` has a stride after each leading dimension, the distance from one matrix to the next. Its order
is transa, transb, m, n, k, alpha, A, lda, stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, count.

Write `batch_by_blas(a, b, out)`, an ordinary function that calls it once.
"""

HINTS = ("Write down the call of gemm for a single product first. How far apart are a[0] and a[1], and b and the next "
         "b?",
         "The single product is gemm(OP_N, OP_N, N, M, K, 1.0, b, N, a, K, 0.0, out, N). There is no next b: by how "
         "much must cuBLAS move to find the same one again?",
         "The strides are 0 for b, M * K for a and M * N for out; the count is a.shape[0].")
POINTS = 3
NEEDS = ("at_by_blas",)

from labkit.kernels.libraries.blas import OP_N, gemm_strided_batched

# %%
batch_by_blas = None  # write the function


### BEGIN SOLUTION
def batch_by_blas(a, b, out):
    (count, M, K), N = a.shape, b.shape[1]
    gemm_strided_batched(OP_N, OP_N, N, M, K, 1.0, b, N, 0, a, K, M * K, 0.0, out, N, M * N, count)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, FunctionExercise, dot_products, of, uniform
from labkit.course.exercises.libraries import one_call, wide


def _batch_reference(a, b):
    a, b = wide(a, b)
    return a @ b


def batch_on_the_host(a, b, out):
    out.copy_to_device(a.copy_to_host() @ b.copy_to_host())


EXERCISE = FunctionExercise(
    name="batch_by_blas",
    reference=_batch_reference,
    inputs=lambda rng, B, M, N, K: (uniform(rng, B, M, K), uniform(rng, K, N)),
    shape=lambda B, M, N, K: (B, M, N),
    sizes=tuple({"B": B, "M": M, "N": N, "K": K} for B, M, N, K in
                ((1, 1, 1, 1), (2, 3, 5, 2), (5, 1, 4, 3), (3, 16, 16, 16), (7, 5, 9, 1), (4, 9, 6, 13))),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: b.shape[0]),
    domain=of((0, 1), *SUMMED),
    demand=one_call("gemm_strided_batched", "gemm"),
    wrong={
        "only the first product is computed, again and again":
            Edit("gemm_strided_batched(OP_N, OP_N, N, M, K, 1.0, b, N, 0, a, K, M * K, 0.0, out, N, M * N, count)",
                 "for _ in range(count):\n"
                 "    gemm(OP_N, OP_N, N, M, K, 1.0, b, N, a, K, 0.0, out, N)"),
        "every product reads the first matrix of `a`": Edit("M * K, 0.0", "0, 0.0"),
        "`b` advances from product to product, though there is only one": Edit("0, a, K, M", "K * N, a, K, M"),
        "the stride of `a` is one row, not one matrix": Edit("M * K, 0.0", "K, 0.0"),
        "one call per product, in a Python loop":
            Edit("gemm_strided_batched(OP_N, OP_N, N, M, K, 1.0, b, N, 0, a, K, M * K, 0.0, out, N, M * N, count)",
                 "for i in range(count):\n"
                 "    gemm(OP_N, OP_N, N, M, K, 1.0, b, N, at(a, i * M * K), K, 0.0, at(out, i * M * N), N)"),
        "NumPy computes the products, on the host": batch_on_the_host,
    },
)

AFTER = """
A second way needs no batch. The B matrices of `a` follow each other in memory, so they are one matrix of (B·M, K),
and one plain product is enough. Try it.
"""
