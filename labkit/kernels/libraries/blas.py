"""cuBLAS, called as in C: pointers, dimensions and leading dimensions, and a status that is checked each time.

    gemm(OP_N, OP_N, N, M, K, 1.0, b, N, a, K, 0.0, out, N)        # out = a @ b for row-major arrays

On a GPU with CuPy the calls go to cuBLAS. Anywhere else they go to the NumPy model in column_major.py, which reads the
same memory in the same way. source() says which it is. Arrays are device arrays, of which only the memory matters;
at(array, i) is the memory from element i on, as array + i is in C.

A refused call raises BlasError. C code gets a status instead, and an unchanged result where it does not check it. A
call that would leave the memory of an array raises IndexError: cuBLAS itself has no sizes and would read on.
"""

import ctypes
import functools
from dataclasses import dataclass

import numpy as np

from labkit import device
from labkit.kernels.libraries import column_major as model
from labkit.kernels.libraries.column_major import OP_N, OP_T, BlasError

__all__ = ["OP_N", "OP_T", "At", "BlasError", "asum", "at", "gemm", "gemm_strided_batched", "isamax", "linear",
           "matmul", "sgemm_status", "source"]


@dataclass(frozen=True)
class At:
    """The memory of an array, starting at an element."""

    array: object
    offset: int

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.array.dtype)


def at(array, offset: int) -> At:
    """The memory of `array` starting at the element `offset`: array + offset in C."""
    if not 0 <= offset < array.size:
        raise IndexError(f"offset is {offset}; the array has elements 0 to {array.size - 1}")
    return At(array, int(offset))


def source() -> str:
    """Name the implementation: cuBLAS, with its version, or the NumPy model."""
    library = _cublas()
    if library is None:
        return "the NumPy model of cuBLAS"
    major, remainder = divmod(library.getVersion(_handle()), 10_000)
    return f"cuBLAS {major}.{remainder // 100} through CuPy"


# --- Products --------------------------------------------------------------------------------------------------------


def gemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *, accumulate="f32") -> None:
    """c = alpha * op(a) @ op(b) + beta * c, column-major: op(a) is m x k, op(b) is k x n, c is m x n.

    float32 goes to cublasSgemm; float16 and uint16 (the bits of bfloat16) go to cublasGemmEx, with accumulators in
    float32. accumulate="f16" keeps the accumulators of float16 in half precision, as cublasHgemm does.
    """
    dtype = _one_dtype(a, b, c)
    library = _cublas()
    if library is None:
        _on_host(model.gemm_column_major, (transa, transb, m, n, k, alpha), ((a, lda), (b, ldb)), beta, (c, ldc),
                 accumulate=accumulate)
        return
    problem = model.gemm_problem(transa, transb, m, n, k, lda, ldb, ldc)
    if not problem:
        _check_extents(transa, transb, m, n, k, (a, lda), (b, ldb), (c, ldc))
    if dtype == np.float32:
        alpha, beta = np.array(alpha, np.float32), np.array(beta, np.float32)
        _checked(problem, library.sgemm, _handle(), transa, transb, m, n, k, _address(alpha), _pointer(a), lda,
                 _pointer(b), ldb, _address(beta), _pointer(c), ldc)
        return
    kind, compute, scalar = _extended(library, dtype, accumulate)
    alpha, beta = np.array(alpha, scalar), np.array(beta, scalar)
    _checked(problem, library.gemmEx, _handle(), transa, transb, m, n, k, _address(alpha), _pointer(a), kind, lda,
             _pointer(b), kind, ldb, _address(beta), _pointer(c), kind, ldc, compute, library.CUBLAS_GEMM_DEFAULT)


def gemm_strided_batched(transa, transb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c,
                         count) -> None:
    """`count` products in one call, float32. The next matrix begins its stride further; a stride of 0 shares one."""
    if _one_dtype(a, b, c) != np.float32:
        raise TypeError("gemm_strided_batched takes float32 here")
    library = _cublas()
    if library is None:
        _on_host(model.gemm_strided_batched, (transa, transb, m, n, k, alpha), ((a, lda, stride_a), (b, ldb, stride_b)),
                 beta, (c, ldc, stride_c, count))
        return
    problem = model.batch_problem(transa, transb, m, n, k, lda, ldb, ldc, count)
    if not problem:
        model.check_batch(m, n, ldc, stride_c, count)
    for i in range(0 if problem else count):
        _check_extents(transa, transb, m, n, k, (a, lda, i * stride_a), (b, ldb, i * stride_b), (c, ldc, i * stride_c))
    alpha, beta = np.array(alpha, np.float32), np.array(beta, np.float32)
    _checked(problem, library.sgemmStridedBatched, _handle(), transa, transb, m, n, k, _address(alpha), _pointer(a),
             lda, stride_a, _pointer(b), ldb, stride_b, _address(beta), _pointer(c), ldc, stride_c, count)


def matmul(a, b, out, *, accumulate="f32") -> None:
    """out = a @ b for row-major arrays. cuBLAS sees the transpose of each, and (a @ b).T is b.T @ a.T: b goes first."""
    (M, K), N = a.shape, b.shape[1]
    gemm(OP_N, OP_N, N, M, K, 1.0, b, N, a, K, 0.0, out, N, accumulate=accumulate)


def linear(x, w, out, *, accumulate="f32") -> None:
    """out = x @ w.T for row-major arrays: x (M, K), w (N, K), out (M, N). cuBLAS sees w.T and transposes it back:
    OP_T."""
    (M, K), N = x.shape, w.shape[0]
    gemm(OP_T, OP_N, N, M, K, 1.0, w, K, x, K, 0.0, out, N, accumulate=accumulate)


# --- Reductions ------------------------------------------------------------------------------------------------------


def isamax(n, x, incx=1, result=None) -> int | None:
    """Index of the largest |x|, counted from 1. The host waits for it, unless `result` is given: a device array of
    int32, in which the index is then stored; nothing is returned.
    """
    return _reduced("isamax", n, x, incx, result, np.int32, int)


def asum(n, x, incx=1, result=None) -> float | None:
    """The sum of |x|. The host waits for it, unless `result` is given: a device array of float32."""
    return _reduced("sasum", n, x, incx, result, np.float32, float)


def _reduced(name, n, x, incx, result, dtype, as_python):
    library = _cublas()
    if result is not None and np.dtype(result.dtype) != dtype:
        raise TypeError(f"result has dtype {result.dtype}; {name} writes {np.dtype(dtype).name}")
    if library is None:
        value = dtype(getattr(model, name)(n, _host(x, (n - 1) * incx + 1), incx))
        if result is None:
            return as_python(value)
        result[0] = value
        return None
    model.check_vector(n, _size(x), incx)
    call, handle = getattr(library, name), _handle()
    if result is None:
        value = np.zeros(1, dtype)
        _checked(None, call, handle, n, _pointer(x), incx, value.ctypes.data)
        return as_python(value[0])
    library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_DEVICE)  # the result is a device address
    try:
        _checked(None, call, handle, n, _pointer(x), incx, _pointer(result))
    finally:
        library.setPointerMode(handle, library.CUBLAS_POINTER_MODE_HOST)
    return None


# --- The status ------------------------------------------------------------------------------------------------------


def sgemm_status(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) -> int:
    """Return the status of cublasSgemm as C gets it: 0 or an error code. A refused call leaves c unchanged."""
    if _cublas() is None:
        try:
            gemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
        except BlasError as error:
            return 7 if error.status == model.INVALID_VALUE else 14
        return 0
    from cupy.cuda import runtime

    function = ctypes.CDLL(f"libcublas.so.{runtime.runtimeGetVersion() // 1000}").cublasSgemm_v2
    c_int, c_void_p = ctypes.c_int, ctypes.c_void_p
    function.argtypes = [c_void_p, *[c_int] * 5, c_void_p, c_void_p, c_int, c_void_p, c_int, c_void_p, c_void_p, c_int]
    alpha, beta = np.array(alpha, np.float32), np.array(beta, np.float32)
    return function(_handle(), transa, transb, m, n, k, _address(alpha), _pointer(a), lda, _pointer(b), ldb,
                    _address(beta), _pointer(c), ldc)


def _checked(problem: str | None, call, *args) -> None:
    """Make the call; raise its error as a BlasError that names the wrong argument if it is known."""
    try:
        call(*args)
    except RuntimeError as error:
        if type(error).__name__ != "CUBLASError":
            raise
        raise BlasError(str(error), problem or "") from error


# --- Arrays, pointers, CuPy ------------------------------------------------------------------------------------------


@functools.cache
def _cublas():
    """CuPy's cublas module; None where there is no GPU or no CuPy."""
    if not device.on_gpu():
        return None
    try:
        from cupy_backends.cuda.libs import cublas

        return cublas
    except ImportError:
        return None


def _handle() -> int:
    from cupy.cuda import device as cupy_device

    return cupy_device.get_cublas_handle()


def _extended(library, dtype, accumulate: str):
    """cublasGemmEx's names for a dtype and its accumulators: the elements, the compute type, the type of alpha and
    beta."""
    from cupy.cuda import runtime

    if accumulate == "f16" and dtype == np.float16:
        return runtime.CUDA_R_16F, library.CUBLAS_COMPUTE_16F, np.float16
    if accumulate != "f32":
        raise ValueError(f"accumulate is {accumulate!r} for {dtype}; 'f32' is allowed, and 'f16' for float16")
    kind = runtime.CUDA_R_16F if dtype == np.float16 else runtime.CUDA_R_16BF
    return kind, library.CUBLAS_COMPUTE_32F, np.float32


def _one_dtype(*arrays) -> np.dtype:
    kinds = {np.dtype(array.dtype) for array in arrays}
    if len(kinds) != 1 or not kinds <= {np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16)}:
        raise TypeError(f"the arrays have {', '.join(sorted(map(str, kinds)))}; all must be float32, float16 or uint16 "
                        f"(the bits of bfloat16)")
    return kinds.pop()


def _address(scalar: np.ndarray) -> int:
    """The host address of an array of one element, which the caller must keep alive."""
    return scalar.ctypes.data


def _pointer(memory) -> int:
    array, offset = (memory.array, memory.offset) if isinstance(memory, At) else (memory, 0)
    if not hasattr(array, "__cuda_array_interface__"):
        raise TypeError(f"{type(array).__name__} is not in device memory; cuda.to_device(...) copies it there")
    return array.__cuda_array_interface__["data"][0] + offset * np.dtype(array.dtype).itemsize


def _size(memory) -> int:
    """The number of elements from the start of the memory."""
    return memory.array.size - memory.offset if isinstance(memory, At) else memory.size


def _check_extents(transa, transb, m, n, k, *matrices) -> None:
    shapes = ((m, k) if transa == OP_N else (k, m), (k, n) if transb == OP_N else (n, k), (m, n))
    for name, (memory, ld, *offsets), (rows, cols) in zip("ABC", matrices, shapes, strict=True):
        model.check_matrix(name, _size(memory) - sum(offsets), rows, cols, ld)


def _host(memory, count: int | None = None) -> np.ndarray:
    """Copy the memory to the host, flat: `count` elements from its start, or all."""
    array, offset = (memory.array, memory.offset) if isinstance(memory, At) else (memory, 0)
    if isinstance(array, np.ndarray):
        raise TypeError("the array is on the host; cuda.to_device(...) copies it to the device")
    end = array.size if count is None else min(array.size, offset + max(0, count))
    return array.reshape(array.size)[offset:end].copy_to_host()


def _on_host(call, leading, inputs, beta, output, **options) -> None:
    """Run the model's product on host copies and copy the output back."""
    (c, *trailing) = output
    array = c.array if isinstance(c, At) else c
    offset = c.offset if isinstance(c, At) else 0
    host = array.copy_to_host()
    flat_inputs = [arg for memory, *dims in inputs for arg in (_host(memory), *dims)]
    call(*leading, *flat_inputs, beta, host.reshape(-1)[offset:], *trailing, **options)
    array.copy_to_device(host)
