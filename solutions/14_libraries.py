# %% [markdown]
# # 14 · Libraries: exercises
#
# Four exercises: the sizes and leading dimensions of a call, and three products, each in a single call of cuBLAS.
# Without a GPU the calls go to the model in NumPy, which accepts and refuses the same arguments.
#
# One method works for all the products. Write down the transpose of what you want. Under each operand, write what
# cuBLAS sees in its memory. Where the two differ, the flag is `OP_T`. The leading dimension is the length of a row of
# the array in memory.

# %%
import numpy as np

from labkit import check, hint
from labkit.kernels.libraries.blas import OP_N, OP_T, at, gemm, gemm_strided_batched

# %% [markdown]
# ## 1 · Predict: the six numbers of a call
#
# `x` is (20, 64), and only its columns 16 to 47 are wanted: 32 of them. `w` is (10, 32), and `out` is (20, 10), all row
# by row:
#
#     out = x[:, 16:48] @ w.T
#
# The call is `gemm(OP_T, OP_N, m, n, k, 1.0, w, lda, at(x, 16), ldb, 0.0, out, ldc)`, where `at(x, 16)` is the memory
# of `x` from element 16 on. What are the six numbers?

# %%
m, n, k = None, None, None
lda, ldb, ldc = None, None, None
### BEGIN SOLUTION
m, n, k = 10, 20, 32  # out.T is 10 x 20; dot products of length 32
lda, ldb, ldc = 32, 64, 10  # the rows of w, of the whole x, and of out
### END SOLUTION

# %%
check("predict_call", m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc)

# %% [markdown]
# ## 2 · Columns against columns, in one call
#
#     out = a.T @ b
#
# `a` is (K, M), `b` is (K, N), `out` is (M, N), all row by row and on the device. The gradient of a layer's weights is
# such a product.


# %%
def at_by_blas(a, b, out):
    K, M = a.shape
    N = b.shape[1]
    ### BEGIN SOLUTION
    # out.T = b.T @ a. cuBLAS sees b.T in b's memory, as wanted, and a.T in a's: that one is transposed.
    gemm(OP_N, OP_T, N, M, K, 1.0, b, N, a, M, 0.0, out, N)
    ### END SOLUTION


# %%
check("at_by_blas", at_by_blas)

# %% [markdown]
# ## 3 · The scores of one head, in place
#
# In GPT-2 the queries, keys and values of all heads come out of one product, side by side in one matrix `qkv`. Here it
# is small: 3 heads of width 4, so a row has 36 elements. Columns 0 to 11 are the queries of heads 0, 1 and 2; columns
# 12 to 23 are their keys; the rest are values.
#
# Compute the scores of head 1: its queries against its keys, divided by the square root of the width,
#
#     out = 0.5 * q @ k.T          # (T, T)
#
# without copying `q` or `k` out of `qkv`. `at(qkv, i)` is the memory from element i on; use alpha for the factor.


# %%
def head_scores(qkv, out):
    T, row = qkv.shape
    ### BEGIN SOLUTION
    q, k = at(qkv, 4), at(qkv, 12 + 4)
    gemm(OP_T, OP_N, T, T, 4, 0.5, k, row, q, row, 0.0, out, T)  # out.T = k @ q.T
    ### END SOLUTION


# %%
check("head_scores", head_scores)

# %% [markdown]
# ## 4 · From a blank page: many products, one shared matrix
#
# `a` is (B, M, K), `b` is (K, N), `out` is (B, M, N), and every matrix of `a` is multiplied by the same `b`:
#
#     out[i] = a[i] @ b
#
# `gemm_strided_batched` has a stride after each leading dimension, the distance from one matrix to the next. Its order
# is transa, transb, m, n, k, alpha, A, lda, stride_a, B, ldb, stride_b, beta, C, ldc, stride_c, count.
#
# Write `batch_by_blas(a, b, out)`, an ordinary function that calls it once.

# %%
batch_by_blas = None  # write the function


### BEGIN SOLUTION
def batch_by_blas(a, b, out):
    (count, M, K), N = a.shape, b.shape[1]
    gemm_strided_batched(OP_N, OP_N, N, M, K, 1.0, b, N, 0, a, K, M * K, 0.0, out, N, M * N, count)


### END SOLUTION

# %%
check("batch_by_blas", batch_by_blas)

# %% [markdown]
# A second way needs no batch. The B matrices of `a` follow each other in memory, so they are one matrix of (B·M, K),
# and one plain product is enough. Try it.
