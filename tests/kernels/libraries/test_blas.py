"""cuBLAS and its model: the same calls, memory and refusals. With a GPU and CuPy the calls are those of cuBLAS."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.libraries import blas, column_major
from labkit.kernels.libraries.blas import OP_N, OP_T, BlasError, at, gemm, gemm_strided_batched
from labkit.kernels.libraries.column_major import gemm_column_major, read_column_major
from labkit.kernels.op import uniform

SIZES = ((1, 1, 1), (3, 4, 5), (5, 512, 64), (37, 23, 19), (1, 33, 17), (33, 1, 2))


def numbers(*shapes):
    rng = np.random.default_rng(0)
    return [uniform(rng, *shape) for shape in shapes]


def on_device(*arrays):
    return [cuda.to_device(array) for array in arrays]


def poisoned(shape, dtype=np.float32):
    return cuda.to_device(np.full(shape, 0x7FC0 if dtype == np.uint16 else np.nan, dtype))


# --- The model against a definition that shares nothing with it ------------------------------------------------------


def by_definition(transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc):
    """The BLAS reference, element by element: C[i + j*ldc] = alpha * sum of op(A) * op(B) + beta * C[i + j*ldc]."""
    C = C.astype(np.float64)
    for i in range(m):
        for j in range(n):
            total = sum(float(A[i + p * lda] if transa == OP_N else A[p + i * lda])
                        * float(B[p + j * ldb] if transb == OP_N else B[j + p * ldb]) for p in range(k))
            C[i + j * ldc] = alpha * total + (beta * C[i + j * ldc] if beta else 0)
    return C


@pytest.mark.parametrize("transa", (OP_N, OP_T))
@pytest.mark.parametrize("transb", (OP_N, OP_T))
@pytest.mark.parametrize("padding", (0, 3))
def test_the_model_reads_and_writes_what_the_definition_says(transa, transb, padding):
    m, n, k, alpha, beta = 3, 4, 5, 1.5, -0.5
    lda, ldb, ldc = (m if transa == OP_N else k) + padding, (k if transb == OP_N else n) + padding, m + padding
    A, B, C = numbers((lda * 5,), (ldb * 5,), (ldc * n,))
    expected = by_definition(transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc)
    gemm_column_major(transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc)
    np.testing.assert_allclose(C, expected, rtol=1e-5, atol=1e-6)


def test_the_device_call_agrees_with_the_definition_too():
    m, n, k, lda, ldb, ldc = 3, 4, 5, 6, 7, 5
    A, B, C = numbers((lda * k,), (ldb * k,), (ldc * n,))
    expected = by_definition(OP_N, OP_T, m, n, k, 2.0, A, lda, B, ldb, 1.0, C, ldc)
    d_A, d_B, d_C = on_device(A, B, C)
    gemm(OP_N, OP_T, m, n, k, 2.0, d_A, lda, d_B, ldb, 1.0, d_C, ldc)
    np.testing.assert_allclose(d_C.copy_to_host(), expected, rtol=1e-5, atol=1e-6)


def test_a_row_major_matrix_read_column_major_is_its_transpose():
    (a,) = numbers((3, 5))
    assert np.array_equal(read_column_major(a, 5, 3), a.T)


# --- The row-major trick ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("M, N, K", SIZES)
def test_matmul_by_swapped_operands(M, N, K):
    a, b = numbers((M, K), (K, N))
    out = poisoned((M, N))
    blas.matmul(*on_device(a, b), out)
    truth = a.astype(np.float64) @ b
    np.testing.assert_allclose(out.copy_to_host(), truth, atol=2e-7 * np.sqrt(K) * np.abs(truth).max() + 1e-5)


@pytest.mark.parametrize("M, N, K", SIZES)
def test_linear_by_op_t(M, N, K):
    x, w = numbers((M, K), (N, K))
    out = poisoned((M, N))
    blas.linear(*on_device(x, w), out)
    np.testing.assert_allclose(out.copy_to_host(), x.astype(np.float64) @ w.T, rtol=1e-5, atol=1e-4)


def test_operands_in_their_own_order_give_the_other_product_when_square():
    a, b = numbers((8, 8), (8, 8))
    out = poisoned((8, 8))
    d_a, d_b = on_device(a, b)
    gemm(OP_N, OP_N, 8, 8, 8, 1.0, d_a, 8, d_b, 8, 0.0, out, 8)
    assert np.allclose(out.copy_to_host(), b @ a, atol=1e-5)
    assert not np.allclose(out.copy_to_host(), a @ b, atol=1e-2)


def test_operands_in_their_own_order_are_refused_when_not_square():
    a, b = on_device(*numbers((5, 3), (3, 4)))
    with pytest.raises(BlasError, match=r"CUBLAS_STATUS_INVALID_VALUE: lda is 3; .* m = 5") as caught:
        gemm(OP_N, OP_N, 5, 4, 3, 1.0, a, 3, b, 4, 0.0, poisoned((5, 4)), 4)
    assert caught.value.status == "CUBLAS_STATUS_INVALID_VALUE"


def test_a_refused_call_is_a_number_in_c_and_leaves_the_result_alone():
    a, b, out = on_device(*numbers((5, 3), (3, 4), (5, 4)))
    before = out.copy_to_host()
    assert blas.sgemm_status(OP_N, OP_N, 5, 4, 3, 1.0, a, 3, b, 4, 0.0, out, 4) == 7
    assert np.array_equal(out.copy_to_host(), before)
    assert blas.sgemm_status(OP_N, OP_N, 4, 5, 3, 1.0, b, 4, a, 3, 0.0, out, 4) == 0
    assert np.allclose(out.copy_to_host(), a.copy_to_host() @ b.copy_to_host(), atol=1e-5)


@pytest.mark.parametrize("change, sentence", [
    ({"transa": 7}, "transa is 7"), ({"m": -1}, "m is -1"), ({"lda": 2}, "lda is 2"), ({"ldb": 1}, "ldb is 1"),
    ({"ldc": 0}, "ldc is 0")])
def test_each_refusal_names_its_argument(change, sentence):
    given = {"transa": OP_N, "transb": OP_N, "m": 3, "n": 4, "k": 5, "lda": 3, "ldb": 5, "ldc": 3} | change
    A, B, C = on_device(*numbers((15,), (20,), (12,)))
    with pytest.raises(BlasError, match=sentence):
        gemm(given["transa"], given["transb"], given["m"], given["n"], given["k"], 1.0, A, given["lda"], B,
             given["ldb"], 0.0, C, given["ldc"])


def test_the_call_says_where_cublas_would_read_foreign_memory():
    A, B, C = on_device(*numbers((14,), (20,), (12,)))
    with pytest.raises(IndexError, match="ends at element 14 of the 14 that its memory has"):
        gemm(OP_N, OP_N, 3, 4, 5, 1.0, A, 3, B, 5, 0.0, C, 3)


def test_a_batch_that_leaves_its_memory_is_refused_too():
    a, b = on_device(*numbers((2, 3, 5), (5, 4)))
    with pytest.raises(IndexError, match="A as a matrix of 4 x 5"):
        gemm_strided_batched(OP_N, OP_N, 4, 3, 5, 1.0, b, 4, 20, a, 5, 15, 0.0, poisoned((2, 3, 4)), 4, 12, 2)


def test_what_lay_in_c_does_not_count_when_beta_is_zero():
    a, b = on_device(*numbers((4, 4), (4, 4)))
    out = poisoned((4, 4))
    blas.matmul(a, b, out)
    assert np.isfinite(out.copy_to_host()).all()


# --- float16 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate, allowed", (("f32", 6e-4), ("f16", 5e-3)))
def test_float16(accumulate, allowed):
    a, b = numbers((64, 128), (128, 96))
    out = poisoned((64, 96), np.float16)
    blas.matmul(*on_device(a.astype(np.float16), b.astype(np.float16)), out, accumulate=accumulate)
    truth = a.astype(np.float64) @ b
    error = np.linalg.norm(out.copy_to_host() - truth) / np.linalg.norm(truth)
    assert 1e-5 < error < allowed


def test_bfloat16_projection_by_op_t_and_op_n():
    x, w = (bfloat16_of(values) for values in numbers((5, 2048), (512, 2048)))
    out = poisoned((5, 512), np.uint16)
    blas.linear(*on_device(x, w), out)
    truth = float32_of(x).astype(np.float64) @ float32_of(w).astype(np.float64).T
    got = float32_of(out.copy_to_host())
    np.testing.assert_allclose(got, truth, rtol=2**-8, atol=1e-3)  # half a unit in the last place of bfloat16


def test_mixed_types_are_refused():
    a, b = on_device(*numbers((4, 4), (4, 4)))
    with pytest.raises(TypeError, match="float16, float32"):
        blas.matmul(a, b, poisoned((4, 4), np.float16))


# --- Batches, offsets, reductions ------------------------------------------------------------------------------------


def test_a_batch_with_one_shared_matrix():
    a, b = numbers((6, 3, 5), (5, 4))
    out = poisoned((6, 3, 4))
    d_a, d_b = on_device(a, b)
    gemm_strided_batched(OP_N, OP_N, 4, 3, 5, 1.0, d_b, 4, 0, d_a, 5, 15, 0.0, out, 4, 12, 6)
    np.testing.assert_allclose(out.copy_to_host(), a @ b, atol=1e-5)


def test_batches_may_not_overlap():
    a, b = on_device(*numbers((6, 3, 5), (5, 4)))
    with pytest.raises(ValueError, match="stride_c is 11: the results would overlap"):
        gemm_strided_batched(OP_N, OP_N, 4, 3, 5, 1.0, b, 4, 0, a, 5, 15, 0.0, poisoned((6, 3, 4)), 4, 11, 6)


def test_a_negative_count_is_refused_by_cublas_itself():
    a, b = on_device(*numbers((6, 3, 5), (5, 4)))
    with pytest.raises(BlasError, match="the number of products is -1"):
        gemm_strided_batched(OP_N, OP_N, 4, 3, 5, 1.0, b, 4, 0, a, 5, 15, 0.0, poisoned((6, 3, 4)), 4, 12, -1)


def test_an_offset_and_a_leading_dimension_take_a_part_of_a_matrix():
    (packed,) = numbers((7, 3 * 8))
    out = poisoned((7, 7))
    (d,) = on_device(packed)
    gemm(OP_T, OP_N, 7, 7, 8, 1.0, at(d, 8), 24, d, 24, 0.0, out, 7)  # columns 0 to 7 against columns 8 to 15
    np.testing.assert_allclose(out.copy_to_host(), packed[:, :8] @ packed[:, 8:16].T, atol=1e-5)


def test_a_result_may_be_written_into_the_middle():
    a, b = on_device(*numbers((2, 3), (3, 2)))
    out = cuda.to_device(np.full(8, 9.0, np.float32))
    gemm(OP_N, OP_N, 2, 2, 3, 1.0, b, 2, a, 3, 0.0, at(out, 2), 2)
    got = out.copy_to_host()
    assert list(got[[0, 1, 6, 7]]) == [9.0] * 4
    np.testing.assert_allclose(got[2:6].reshape(2, 2), a.copy_to_host() @ b.copy_to_host(), atol=1e-5)


def test_isamax_counts_from_one_and_looks_at_absolute_values():
    (x,) = on_device(np.array([1, -7, 3, 7], np.float32))
    assert blas.isamax(4, x) == 2
    assert blas.isamax(2, at(x, 2)) == 2
    assert blas.isamax(2, x, 2) == 2  # elements 0 and 2
    assert blas.isamax(0, x) == 0


def test_asum_adds_absolute_values():
    (x,) = on_device(np.array([1, -7, 3, 7], np.float32))
    assert blas.asum(4, x) == 18.0
    assert blas.asum(2, x, 3) == 8.0


def test_results_can_stay_on_the_device():
    (x,) = on_device(np.array([1, -7, 3], np.float32))
    index, total = cuda.device_array(1, np.int32), cuda.device_array(1, np.float32)
    assert blas.isamax(3, x, result=index) is None
    assert blas.asum(3, x, result=total) is None
    assert (index.copy_to_host()[0], total.copy_to_host()[0]) == (2, 11.0)
    assert blas.asum(3, x) == 11.0  # and the next call's result comes to the host again


def test_host_arrays_and_wild_offsets_are_refused():
    x = np.zeros(4, np.float32)
    with pytest.raises(TypeError, match="cuda.to_device"):
        blas.asum(4, x)
    with pytest.raises(IndexError, match="offset is 4"):
        at(cuda.to_device(x), 4)
    with pytest.raises(IndexError, match="ends at element 3"):
        column_major.sasum(4, x[:2])
