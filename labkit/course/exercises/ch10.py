"""The exercises of lesson 10: which operand first, which flag, which leading dimension; and what the reductions hide.

The calls go to cuBLAS on a GPU with CuPy, and to its NumPy model elsewhere. No call here leaves the memory of an array.
"""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, PredictionExercise
from labkit.course.exercises.demands import asks, on_the_device
from labkit.course.exercises.domains import (
    EQUAL,
    EXPONENTIALS,
    NEGATIVE,
    ONE_FAR_ABOVE,
    ONE_FAR_BELOW,
    POSITIVE,
    SUMMED,
    ZEROS,
    of,
)
from labkit.kernels.libraries.blas import OP_N, OP_T, at, gemm
from labkit.kernels.libraries.column_major import isamax, sasum
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32, dot_products


def _wide(*arrays):
    return (array.astype(np.float64) for array in arrays)


def _products(*sizes):
    return tuple({"M": M, "N": N, "K": K} for M, N, K in sizes)


AWKWARD = _products((1, 1, 1), (3, 5, 2), (5, 3, 4), (16, 16, 16), (1, 33, 17), (33, 1, 31), (17, 18, 1), (37, 23, 19))

# --- Predict: the numbers of a call ----------------------------------------------------------------------------------

PREDICT_CALL = PredictionExercise(
    name="predict_call",
    truth=lambda: {"m": 10, "n": 20, "k": 32, "lda": 32, "ldb": 64, "ldc": 10},
    how={"m": "cuBLAS computes the transpose of `out`: how many rows does that have?",
         "n": "the columns of the transpose of `out`",
         "k": "the length of a dot product",
         "lda": "how far it is in memory from one row of `w` to the next",
         "ldb": "how far it is in memory from one row of `x` to the next: the part does not change where the rows lie",
         "ldc": "how far it is in memory from one row of `out` to the next"},
    wrong={"m and n exchanged": {"m": 20, "n": 10, "k": 32, "lda": 32, "ldb": 64, "ldc": 10},
           "the leading dimension of a part, as if the part lay alone": {
               "m": 10, "n": 20, "k": 32, "lda": 32, "ldb": 32, "ldc": 10},
           "k of the whole row": {"m": 10, "n": 20, "k": 64, "lda": 32, "ldb": 64, "ldc": 10},
           "leading dimensions of columns, as if the arrays lay column by column": {
               "m": 10, "n": 20, "k": 32, "lda": 10, "ldb": 20, "ldc": 10}},
)


# --- a.T @ b ---------------------------------------------------------------------------------------------------------


def _at_reference(a, b):
    a, b = _wide(a, b)
    return a.T @ b


@asks("The product comes from cuBLAS, which reads the data where it lies on the device.")
def _by_cublas(run) -> str | None:
    if not run.calls:
        return "cuBLAS is not called, and asked for is a product of cuBLAS."
    if run.copies_to_host:
        return (f"Arrays are copied {run.copies_to_host} times to the host, and asked for is a call that reads the "
                "queries and the keys where they lie: `at(qkv, i)` is where they begin.")
    return on_the_device(run)


def _one_call(*allowed: str):
    """A single call of cuBLAS, of one of these functions, that computes the result."""
    asked = " or ".join(f"`{name}`" for name in allowed)

    @asks(f"A single call of {asked} computes the result.")
    def demand(run) -> str | None:
        if run.calls and (len(run.calls) > 1 or run.calls[0] not in allowed):
            made = " and ".join(f"{run.calls.count(name)} of `{name}`" for name in dict.fromkeys(run.calls))
            return f"The calls of cuBLAS are {made}, and asked for is a single call, of {asked}."
        if not run.calls:
            return f"cuBLAS is not called, and asked for is one call of {asked}."
        return on_the_device(run)

    return demand


def at_on_the_host(a, b, out):
    out.copy_to_device(a.copy_to_host().T @ b.copy_to_host())


AT_BY_BLAS = FunctionExercise(
    name="at_by_blas",
    reference=_at_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, K, M), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    tolerance=dot_products(lambda a, b: np.abs(a).T @ np.abs(b), length=lambda a, b: a.shape[0]),
    domain=of((0, 1), *SUMMED),
    demand=_one_call("gemm"),
    wrong={
        "the flags are exchanged": Edit("OP_N, OP_T", "OP_T, OP_N"),
        "`a` goes first, so that the transpose of the result is written":
            Edit("N, M, K, 1.0, b, N, a, M, 0.0, out, N", "M, N, K, 1.0, a, M, b, N, 0.0, out, M"),
        "`a` is taken as (M, K)": Edit("OP_T, N, M, K, 1.0, b, N, a, M", "OP_N, N, M, K, 1.0, b, N, a, K"),
        "m and n are exchanged": Edit("OP_T, N, M", "OP_T, M, N"),
        "beta is 1, so that the product is added to what lay in `out`": Edit("0.0, out, N", "1.0, out, N"),
        "NumPy computes the product, on the host": at_on_the_host,
    },
)


# --- A head's scores in a packed matrix ------------------------------------------------------------------------------

HEADS, WIDTH = 3, 4


def scores_leading_dimension_of_a_head(qkv, out):
    T = qkv.shape[0]
    gemm(OP_T, OP_N, T, T, WIDTH, 1.0, at(qkv, HEADS * WIDTH + WIDTH), WIDTH, at(qkv, WIDTH), WIDTH, 0.0, out, T)


def scores_of_head_zero(qkv, out):
    T, row = qkv.shape
    gemm(OP_T, OP_N, T, T, WIDTH, 1.0, at(qkv, HEADS * WIDTH), row, at(qkv, 0), row, 0.0, out, T)


def scores_q_against_q(qkv, out):
    T, row = qkv.shape
    gemm(OP_T, OP_N, T, T, WIDTH, 1.0, at(qkv, WIDTH), row, at(qkv, WIDTH), row, 0.0, out, T)


def scores_transposed(qkv, out):
    T, row = qkv.shape
    gemm(OP_T, OP_N, T, T, WIDTH, 1.0, at(qkv, WIDTH), row, at(qkv, HEADS * WIDTH + WIDTH), row, 0.0, out, T)


def scores_not_scaled(qkv, out):
    T, row = qkv.shape
    gemm(OP_T, OP_N, T, T, WIDTH, 1.0, at(qkv, HEADS * WIDTH + WIDTH), row, at(qkv, WIDTH), row, 0.0, out, T)


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


HEAD_SCORES = FunctionExercise(
    name="head_scores",
    reference=_scores_reference,
    inputs=lambda rng, T: (uniform(rng, T, 3 * HEADS * WIDTH),),
    shape=lambda T: (T, T),
    sizes=tuple({"T": T} for T in (1, 2, 5, 16, 33)),
    tolerance=dot_products(lambda qkv: _scores_reference(np.abs(qkv)), length=lambda qkv: WIDTH),
    domain=of(0, *SUMMED),
    demand=_by_cublas,
    wrong={"the leading dimension of a head that lies alone": scores_leading_dimension_of_a_head,
           "head 0 in place of head 1": scores_of_head_zero, "queries against queries": scores_q_against_q,
           "keys against queries: the scores are transposed": scores_transposed,
           "the factor 0.5 is missing": scores_not_scaled,
           "queries and keys are copied out of qkv, and the call was to save that": scores_of_copies,
           "NumPy computes the scores, on the host": scores_on_the_host},
)


# --- A batch that shares a matrix ------------------------------------------------------------------------------------


def batch_first_only(a, b, out):
    (count, M, K), N = a.shape, b.shape[1]
    for _ in range(count):
        gemm(OP_N, OP_N, N, M, K, 1.0, b, N, a, K, 0.0, out, N)


def _batch_reference(a, b):
    a, b = _wide(a, b)
    return a @ b


def batch_by_a_loop(a, b, out):
    (count, M, K), N = a.shape, b.shape[1]
    for i in range(count):
        gemm(OP_N, OP_N, N, M, K, 1.0, b, N, at(a, i * M * K), K, 0.0, at(out, i * M * N), N)


def batch_on_the_host(a, b, out):
    out.copy_to_device(a.copy_to_host() @ b.copy_to_host())


BATCH_BY_BLAS = FunctionExercise(
    name="batch_by_blas",
    reference=_batch_reference,
    inputs=lambda rng, B, M, N, K: (uniform(rng, B, M, K), uniform(rng, K, N)),
    shape=lambda B, M, N, K: (B, M, N),
    sizes=tuple({"B": B, "M": M, "N": N, "K": K} for B, M, N, K in
                ((1, 1, 1, 1), (2, 3, 5, 2), (5, 1, 4, 3), (3, 16, 16, 16), (7, 5, 9, 1), (4, 9, 6, 13))),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: b.shape[0]),
    domain=of((0, 1), *SUMMED),
    demand=_one_call("gemm_strided_batched", "gemm"),
    wrong={
        "only the first product is computed, again and again": batch_first_only,
        "every product reads the first matrix of `a`": Edit("M * K, 0.0", "0, 0.0"),
        "`b` moves on from product to product, though there is only one": Edit("0, a, K, M", "K * N, a, K, M"),
        "the stride of `a` is one row, not one matrix": Edit("M * K, 0.0", "K, 0.0"),
        "a call for each product, in a loop of Python": batch_by_a_loop,
        "NumPy computes the products, on the host": batch_on_the_host,
    },
)


# --- Find the bug: counted from 1 ------------------------------------------------------------------------------------


def peaks_counted_from_zero(x):
    rows, cols = x.shape
    return np.array([x[row, min(isamax(cols, x[row]), cols - 1)] for row in range(rows)], np.float32)


def peaks_without_sign(x):
    rows, cols = x.shape
    return np.array([abs(x[row, isamax(cols, x[row]) - 1]) for row in range(rows)], np.float32)


def peaks_of_largest_value(x):
    return x.max(axis=1)


def peaks_off_by_one_wrapped(x):
    rows, cols = x.shape
    return np.array([x[row, isamax(cols, x[row]) % cols] for row in range(rows)], np.float32)


def _peaks_reference(x):
    return np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]


def _rows(rng, R, C):
    x = uniform(rng, R, C)
    x[:, 0] *= 3 if C == 1 else 1
    x[0, -1] = -1.75  # the largest in its row, and the last: counted from 1, its number is C
    return (x,)


PEAKS = FunctionExercise(
    name="peaks",
    reference=_peaks_reference,
    inputs=_rows,
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 2), (2, 3), (5, 7), (4, 33), (16, 100))),
    domain=of(0, NEGATIVE, POSITIVE, EQUAL, ONE_FAR_ABOVE, ONE_FAR_BELOW, ZEROS),
    wrong={"isamax counts from 1, and the index is used as if it counted from 0": peaks_counted_from_zero,
           "the sign is lost": peaks_without_sign, "the largest value, not the largest absolute value":
           peaks_of_largest_value, "the element after the largest": peaks_off_by_one_wrapped},
)


# --- Find the bug: |max| ---------------------------------------------------------------------------------------------


@np.errstate(over="ignore", invalid="ignore")
def _softmax_shifted_by(x, shift):
    e = np.exp(x - shift)
    return e / np.float32(sasum(e.size, e))


def softmax_by_absolute_maximum(x):
    return _softmax_shifted_by(x, x[isamax(x.size, x) - 1])


def softmax_unshifted(x):
    return _softmax_shifted_by(x, np.float32(0.0))


@np.errstate(over="ignore", invalid="ignore")
def softmax_unshifted_in_float64(x):
    e = np.exp(x.astype(np.float64))
    return e / e.sum()


def softmax_by_magnitude(x):
    return _softmax_shifted_by(x, np.abs(x).max())


def softmax_sum_of_x(x):
    return np.exp(x - x.max()) / np.float32(sasum(x.size, x))


def _softmax_reference(x):
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def _softmax_row(rng, n):
    x = 20 * uniform(rng, n)  # from -30 to 30
    if n > 1:
        x[rng.integers(n - 1)] = 110.0
        x[-1] = -220.0  # the largest absolute value by far
    return (x,)


def _softmax_tolerance(x):
    below = x.max() - x
    return EPS32 * (10 + below + np.sqrt(x.size) + 2 * np.abs(x).max()) * _softmax_reference(x) + 1e-37


SAFE_SOFTMAX = FunctionExercise(
    name="safe_softmax",
    reference=_softmax_reference,
    inputs=_softmax_row,
    sizes=tuple({"n": n} for n in (1, 2, 3, 31, 257)),
    tolerance=_softmax_tolerance,
    domain=of(0, *EXPONENTIALS, ZEROS),
    wrong={"the value with the largest absolute value is subtracted": softmax_by_absolute_maximum,
           "nothing is subtracted": softmax_unshifted,
           "nothing is subtracted, and float64 puts the overflow off: exp(1000) is infinite there, too":
           softmax_unshifted_in_float64,
           "the largest absolute value is subtracted: all exponentials may vanish": softmax_by_magnitude,
           "the sum is taken over `x`, not over the exponentials": softmax_sum_of_x},
)

EXERCISES = (PREDICT_CALL, AT_BY_BLAS, HEAD_SCORES, BATCH_BY_BLAS, PEAKS, SAFE_SOFTMAX)
