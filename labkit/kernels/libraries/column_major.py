"""cuBLAS's view of memory, in NumPy: matrices lie column after column, and indices count from 1.

The functions take flat memory, as the C functions take pointers: any contiguous NumPy array, of which only the order of
its elements in memory counts. Element (row, col) of a matrix is memory[row + col * ld]; ld is its leading dimension.

Elements  float32; float16; uint16 that hold the bits of bfloat16, which NumPy does not have
Source    cuBLAS documentation, "cublas<t>gemm", "cublasGemmEx", "cublasI<t>amax", "cublas<t>asum"
"""

import numpy as np

from labkit.kernels.dtypes import bfloat16_of, float32_of

OP_N, OP_T = 0, 1  # as in cublas_api.h: take the matrix as it is, or transposed
INVALID_VALUE = "CUBLAS_STATUS_INVALID_VALUE"


class BlasError(RuntimeError):
    """A call that cuBLAS refuses. `status` is the name of the status code that C code has to check."""

    def __init__(self, status: str, reason: str = ""):
        super().__init__(f"{status}: {reason}" if reason else status)
        self.status = status


def gemm_column_major(transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc, *, accumulate="f32"):
    """C = alpha * op(A) @ op(B) + beta * C. op(A) is m x k, op(B) is k x n, C is m x n and written in place.

    accumulate: "f32", or "f16" for the accumulators that cublasHgemm keeps in half precision.
    """
    problem = gemm_problem(transa, transb, m, n, k, lda, ldb, ldc)
    if problem:
        raise BlasError(INVALID_VALUE, problem)
    a = _matrix("A", A, *((m, k) if transa == OP_N else (k, m)), lda)
    b = _matrix("B", B, *((k, n) if transb == OP_N else (n, k)), ldb)
    c = _matrix("C", C, m, n, ldc)
    product = _product(a if transa == OP_N else a.T, b if transb == OP_N else b.T, accumulate)
    total = np.float32(alpha) * product
    if beta != 0:  # with beta 0 C is not read, so that NaN there is harmless
        total += np.float32(beta) * widened(c)
    c[...] = rounded(total, c.dtype)


def gemm_strided_batched(transa, transb, m, n, k, alpha, A, lda, stride_a, B, ldb, stride_b, beta, C, ldc, stride_c,
                         count, *, accumulate="f32"):
    """`count` products. The next matrix of each kind begins its stride further in memory; a stride of 0 shares one."""
    problem = batch_problem(transa, transb, m, n, k, lda, ldb, ldc, count)
    if problem:
        raise BlasError(INVALID_VALUE, problem)
    check_batch(m, n, ldc, stride_c, count)
    A, B, C = flat("A", A), flat("B", B), flat("C", C)
    for i in range(count):
        gemm_column_major(transa, transb, m, n, k, alpha, A[i * stride_a :], lda, B[i * stride_b :], ldb, beta,
                          C[i * stride_c :], ldc, accumulate=accumulate)


def gemm_problem(transa, transb, m, n, k, lda, ldb, ldc) -> str | None:
    """Describe the argument that cuBLAS would refuse; None if it accepts all."""
    for name, op in (("transa", transa), ("transb", transb)):
        if op not in (OP_N, OP_T):
            return f"{name} is {op!r}; OP_N (0) and OP_T (1) are allowed"
    for name, extent in (("m", m), ("n", n), ("k", k)):
        if extent < 0:
            return f"{name} is {extent}, and must not be negative"
    for name, ld, rows, dim in (("lda", lda, m if transa == OP_N else k, "m" if transa == OP_N else "k"),
                                ("ldb", ldb, k if transb == OP_N else n, "k" if transb == OP_N else "n"),
                                ("ldc", ldc, m, "m")):
        if ld < max(1, rows):
            return (f"{name} is {ld}; the matrix has {dim} = {rows} rows in memory, so the next column begins "
                    f"{max(1, rows)} elements further, or more")
    return None


def batch_problem(transa, transb, m, n, k, lda, ldb, ldc, count) -> str | None:
    if count < 0:
        return f"the number of products is {count}, and must not be negative"
    return gemm_problem(transa, transb, m, n, k, lda, ldb, ldc)


def check_batch(m, n, ldc, stride_c, count) -> None:
    """Raise ValueError if the products overlap, which cuBLAS does not check."""
    if count > 1 and abs(stride_c) < ldc * (n - 1) + m:
        raise ValueError(f"stride_c is {stride_c}: the results would overlap, since one takes {ldc * (n - 1) + m} "
                         f"elements. cuBLAS would not notice, and what came out would depend on the order")


def isamax(n, x, incx=1) -> int:
    """Index of the first largest |x|, counted from 1. 0 if n or incx is not positive."""
    return 0 if n <= 0 or incx <= 0 else int(np.argmax(np.abs(_vector(n, x, incx)))) + 1


def sasum(n, x, incx=1) -> float:
    """The sum of |x|, in float32."""
    return 0.0 if n <= 0 or incx <= 0 else float(np.abs(_vector(n, x, incx)).sum(dtype=np.float32))


# --- Memory ----------------------------------------------------------------------------------------------------------


def flat(name: str, memory: np.ndarray) -> np.ndarray:
    """The elements in the order in which they lie in memory. No copy."""
    if not isinstance(memory, np.ndarray) or not memory.flags.c_contiguous:
        raise ValueError(f"{name} must be a C-contiguous NumPy array: only its memory counts here")
    return memory.reshape(-1)


def read_column_major(memory: np.ndarray, rows: int, cols: int, ld: int | None = None) -> np.ndarray:
    """The matrix that cuBLAS sees in this memory: a view of rows x cols. ld: rows, if left out."""
    return _matrix("memory", memory, rows, cols, rows if ld is None else ld)


UNNOTICED = "cuBLAS would not notice: it has a pointer and no size"


def check_matrix(name: str, size: int, rows: int, cols: int, ld: int) -> None:
    """Raise IndexError if a matrix exceeds a memory of `size` elements, which cuBLAS cannot check."""
    last = (rows - 1) + (cols - 1) * ld
    if rows and cols and last >= size:
        raise IndexError(f"{name} as a matrix of {rows} x {cols} with leading dimension {ld} ends at element {last} of "
                         f"the {size} that its memory has. {UNNOTICED}")


def check_vector(n: int, size: int, incx: int) -> None:
    if n > 0 and (n - 1) * incx >= size:
        raise IndexError(f"x with n = {n} and incx = {incx} ends at element {(n - 1) * incx} of the {size} that its "
                         f"memory has. {UNNOTICED}")


def _matrix(name: str, memory: np.ndarray, rows: int, cols: int, ld: int) -> np.ndarray:
    memory = flat(name, memory)
    check_matrix(name, memory.size, rows, cols, ld)
    step = memory.itemsize
    return np.lib.stride_tricks.as_strided(memory, (rows, cols), (step, ld * step))


def _vector(n: int, x: np.ndarray, incx: int) -> np.ndarray:
    x = flat("x", x)
    check_vector(n, x.size, incx)
    return x[: (n - 1) * incx + 1 : incx]


# --- float16 ---------------------------------------------------------------------------------------------------------


def widened(values: np.ndarray) -> np.ndarray:
    return float32_of(values) if values.dtype == np.uint16 else values.astype(np.float32)


def rounded(values: np.ndarray, dtype) -> np.ndarray:
    if np.dtype(dtype) == np.uint16:
        return bfloat16_of(values)
    with np.errstate(over="ignore"):  # float16 ends at 65504; beyond it is inf, as on the GPU
        return values.astype(dtype)


def _product(a: np.ndarray, b: np.ndarray, accumulate: str) -> np.ndarray:
    a, b = widened(a), widened(b)
    if accumulate == "f32":
        return a @ b
    if accumulate != "f16":
        raise ValueError(f"accumulate is {accumulate!r}; 'f32' and 'f16' are allowed")
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for i in range(a.shape[1]):
        total = rounded(total.astype(np.float32) + np.outer(a[:, i], b[i]), np.float16)
    return total.astype(np.float32)
