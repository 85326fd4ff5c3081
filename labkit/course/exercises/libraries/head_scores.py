"""The scores of one head, in place

In GPT-2 the queries, keys and values of all heads come out of one product, side by side in one matrix `qkv`. Here it
is small: 3 heads of width 4, so a row has 36 elements. Columns 0 to 11 are the queries of heads 0, 1 and 2; columns
12 to 23 are their keys; the rest are values.

Compute the scores of head 1: its queries against its keys, divided by the square root of the width,

    out = 0.5 * q @ k.T          # (T, T)

without copying `q` or `k` out of `qkv`. `at(qkv, i)` is the memory from element i on; use alpha for the factor.
"""

HINTS = ("At which column do the queries of head 1 begin, and at which its keys? How far apart are one token's "
         "queries and the next token's?",
         "out.T = 0.5 * k @ q.T. In the memory of k cuBLAS sees k.T, which has to be transposed; in that of q it sees "
         "q.T. Both leading dimensions are the length of a row of qkv.",
         "q = at(qkv, 4) and k = at(qkv, 16); gemm(OP_T, OP_N, T, T, 4, 0.5, k, row, q, row, ...).")
POINTS = 3
NEEDS = ("predict_call",)

from labkit.kernels.libraries.blas import OP_N, OP_T, at, gemm


# %%
def head_scores(qkv, out):
    T, row = qkv.shape
    ### BEGIN SOLUTION
    q, k = at(qkv, 4), at(qkv, 12 + 4)
    gemm(OP_T, OP_N, T, T, 4, 0.5, k, row, q, row, 0.0, out, T)  # out.T = k @ q.T
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit import cuda
from labkit.course.exercises import SUMMED, Edit, FunctionExercise, asks, dot_products, of, on_the_device, uniform


@asks("The product comes from cuBLAS, which reads the data where it is on the device.")
def _by_cublas(run) -> str | None:
    if not run.calls:
        return "cuBLAS is not called, but the product should come from it."
    if run.copies_to_host:
        return (f"Arrays are copied to the host {run.copies_to_host} times. The call should read the "
                "queries and the keys where they are: pass `at(qkv, i)`, the address at which they begin.")
    return on_the_device(run)


HEADS, WIDTH = 3, 4


def scores_of_copies(qkv, out):
    T, host = qkv.shape[0], qkv.copy_to_host()
    q, k = (cuda.to_device(np.ascontiguousarray(host[:, i : i + WIDTH])) for i in (WIDTH, (HEADS + 1) * WIDTH))
    gemm(OP_T, OP_N, T, T, WIDTH, 0.5, k, WIDTH, q, WIDTH, 0.0, out, T)


def scores_on_the_host(qkv, out):
    host = qkv.copy_to_host()
    q, k = host[:, WIDTH : 2 * WIDTH], host[:, (HEADS + 1) * WIDTH : (HEADS + 2) * WIDTH]
    out.copy_to_device(np.float32(0.5) * q @ k.T)


def _scores_reference(qkv):
    qkv = qkv.astype(np.float64)
    q, k = qkv[:, WIDTH : 2 * WIDTH], qkv[:, (HEADS + 1) * WIDTH : (HEADS + 2) * WIDTH]
    return 0.5 * q @ k.T


EXERCISE = FunctionExercise(
    name="head_scores",
    reference=_scores_reference,
    inputs=lambda rng, T: (uniform(rng, T, 3 * HEADS * WIDTH),),
    shape=lambda T: (T, T),
    sizes=tuple({"T": T} for T in (1, 2, 5, 16, 33)),
    tolerance=dot_products(lambda qkv: _scores_reference(np.abs(qkv)), length=lambda qkv: WIDTH),
    domain=of(0, *SUMMED),
    demand=_by_cublas,
    wrong={"the leading dimension of a head stored in a matrix of its own": Edit("k, row, q, row", "k, 4, q, 4"),
           "head 0 instead of head 1": Edit("at(qkv, 4), at(qkv, 12 + 4)", "at(qkv, 0), at(qkv, 12)"),
           "queries against queries": Edit("at(qkv, 12 + 4)", "at(qkv, 4)"),
           "keys against queries: the scores are transposed": Edit("k, row, q, row", "q, row, k, row"),
           "the factor 0.5 is missing": Edit("0.5", "1.0"),
           "queries and keys are copied out of qkv, which the call should avoid": scores_of_copies,
           "NumPy computes the scores, on the host": scores_on_the_host},
)
