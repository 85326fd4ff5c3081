# %% [markdown]
# # 14 · Libraries
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how to hand row-major matrices to a library that reads columns, without moving an element
# - which mistakes a library reports, and which it does not
# - what a softmax made of library calls costs, and which row of numbers breaks it

# %% [markdown]
# ## The problem
#
# Most neural networks leave their matrix products to one library, cuBLAS. PyTorch and CuPy call it, and so can you. Its
# most used function does this:
#
# $$C = \alpha \, \text{op}(A) \, \text{op}(B) + \beta \, C$$
#
# op is nothing, or a transpose. With α = 1 and β = 0 it is a plain product. After the kernels of lesson 06 that sounds
# like the end of the work. But the interface is that of BLAS, a Fortran library of 1979. Fortran stores matrices column
# by column and counts from 1, and so does cuBLAS to this day. C, NumPy and everything in this course store row by row
# and count from 0. So two things can go wrong, and this lesson makes them go wrong. On a GPU with CuPy the calls go to
# cuBLAS. Elsewhere they go to a model of cuBLAS in NumPy, which reads and writes the same memory.

# %%
import textwrap

import numpy as np

from labkit import cuda, measure, show_source
from labkit.course.drawings import libraries as pictures
from labkit.kernels.libraries import blas
from labkit.kernels.libraries.blas import OP_N, BlasError, gemm
from labkit.kernels.libraries.column_major import gemm_column_major
from labkit.kernels.op import uniform
from labkit.measure.series import libraries as series

blas.source()

# %% [markdown]
# ## Prediction
#
# A matrix of 2 × 3 lies in memory as NumPy stores it: `a b c d e f`. A program reads that memory as columns of three
# elements each. Before you run the next cell, write down the matrix that it sees.

# %%
pictures.two_readings(2, 3)

# %% [markdown]
# It is the transpose. Nothing was computed and nothing was moved; the same six numbers were read in the other order.
# The first half of this lesson follows from that one sentence: **what you store row by row, cuBLAS sees transposed.**
#
# Such a reader needs one more number, the distance from the beginning of one column to that of the next. It is called
# the *leading dimension*. Here it is 3. Where it is larger than the column, the matrix is part of a larger one.

# %% [markdown]
# ## What the function does
#
# This is the model's product. `_matrix` makes the view of the picture: element (row, col) is `memory[row + col * ld]`.

# %%
show_source(gemm_column_major)

# %% [markdown]
# Thirteen arguments. Three of them are sizes: `C` is m × n, and the dot products have length k. Three are leading
# dimensions. cuBLAS gets no arrays with shapes, only addresses, and has to trust these numbers.

# %% [markdown]
# ## The wrong way
#
# `a` is M × K and `b` is K × N, row by row. The obvious call passes `a`, then `b`, and the length of a row as each
# leading dimension. First with square matrices.

# %%
rng = np.random.default_rng(0)
a, b = uniform(rng, 4, 4), uniform(rng, 4, 4)
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((4, 4), np.float32)

gemm(OP_N, OP_N, 4, 4, 4, 1.0, d_a, 4, d_b, 4, 0.0, d_out, 4)
out = d_out.copy_to_host()
print("out is a @ b:", np.allclose(out, a @ b, atol=1e-5), "  out is b @ a:", np.allclose(out, b @ a, atol=1e-5))

# %% [markdown]
# It is the product in the wrong order. cuBLAS saw $A^T$ and $B^T$ and computed $A^T B^T$, which is $(BA)^T$. It wrote
# that column by column, and we read it row by row: $BA$. No error, no warning, plausible numbers of plausible size. If
# the two matrices commute, for example if one is the identity, a test even passes.
#
# With matrices that are not square the same call has no meaning. The tempting repair is to change the leading
# dimensions until the call is accepted.

# %%
a, b = uniform(rng, 5, 3), uniform(rng, 3, 4)
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((5, 4), np.float32)

try:
    gemm(OP_N, OP_N, 5, 4, 3, 1.0, d_a, 3, d_b, 4, 0.0, d_out, 4)
except BlasError as error:
    print(textwrap.fill(str(error), 90))
gemm(OP_N, OP_N, 5, 4, 3, 1.0, d_a, 5, d_b, 3, 0.0, d_out, 5)
right = np.isclose(d_out.copy_to_host(), a @ b, atol=1e-5).sum()
print(f"with 5, 3 and 5 accepted; {right} of 20 elements are right")

# %% [markdown]
# Every argument is valid, so cuBLAS reads the 15 numbers of `a` as three columns of five that were never stored.

# %% [markdown]
# ## The trick
#
# The way out takes four short steps.
#
# 1. cuBLAS writes columns, and we read what it writes as rows. So let it compute the transpose of what we want:
#    $\text{out}^T$, which is N × M.
# 2. $\text{out}^T = (AB)^T = B^T A^T$. The order of the two is reversed.
# 3. In the memory of `b`, cuBLAS sees $B^T$ already: N × K, columns of length N. In the memory of `a` it sees $A^T$: K
#    × M, columns of length K. Nothing has to be transposed.
# 4. So: `b` first, then `a`; the product is N × M with dot products of length K; the leading dimensions are N, K and N,
#    the lengths of the rows of `b`, `a` and `out`.

# %%
for M, N, K in ((5, 4, 3), (1, 33, 17), (37, 23, 19), (64, 1, 100)):
    a, b = uniform(rng, M, K), uniform(rng, K, N)
    d_out = cuda.to_device(np.full((M, N), np.nan, np.float32))
    blas.matmul(cuda.to_device(a), cuda.to_device(b), d_out)
    error = np.abs(d_out.copy_to_host() - a.astype(np.float64) @ b).max()
    print(f"{M:3} x {K:3} times {K:3} x {N:3}: largest error {error:.1e}")
show_source(blas.matmul)

# %% [markdown]
# ## A layer's weights
#
# A layer of a language model keeps its weights as (outputs, inputs) and computes `x @ w.T`. Llama 3.2 1B has a
# projection of (512, 2048), and a prompt of five tokens is a matrix `x` of (5, 2048). The result is (5, 512). Which
# flags and which numbers does the call need? Try it on paper before you read on.
#
# We want $\text{out}^T = (X W^T)^T = W X^T$. In the memory of `w` cuBLAS sees $W^T$, which has to be transposed:
# `OP_T`. In the memory of `x` it sees $X^T$, as wanted: `OP_N`. Both have rows of length K, and that is their leading
# dimension, whatever the flag is. A flag says how to use a matrix; the leading dimension says how it lies in memory.
#
# Such models store their weights in *bfloat16*: the upper half of a float32, with 8 bits for the exponent and 7 for the
# fraction. NumPy does not have it, so we keep the bits in uint16 and call `cublasGemmEx`, which takes a type for each
# matrix and one for the accumulators. The accumulators are float32; a sum of 2,048 products that is rounded to 8 bits
# at each step would be worth little.

# %%
here = series.bf16_projection()
print(f"({here['M']}, {here['K']}) x ({here['N']}, {here['K']})^T in bfloat16, {here['source']}")
print(f"relative error {here['relative_error']:.4f}, and half a step of bfloat16 is {2**-9:.4f}")

h200 = measure.recorded_series("bf16_projection", gpu="NVIDIA H200")
print(f"recorded on {h200['where']}, {h200['source']}: relative error {h200['relative_error']:.4f}")
print(f"{h200['torch_equal']:.1%} of the elements are equal to PyTorch's bit for bit")
show_source(blas.linear)

# %% [markdown]
# The relative error is that of rounding the result once, to bfloat16. The errors of the 2,048 products behind each
# element are too small to show.

# %% [markdown]
# ## The status
#
# A function of cuBLAS returns a number. 0 is success; 7 is `CUBLAS_STATUS_INVALID_VALUE`. In C nothing else happens:
# the program goes on, and `out` still holds what it held. Here is the refused call again, as a C program would see it,
# and after it a call that asks for more columns than there are.

# %%
d_out = cuda.to_device(np.full((5, 4), -1.0, np.float32))
status = blas.sgemm_status(OP_N, OP_N, 5, 4, 3, 1.0, d_a, 3, d_b, 4, 0.0, d_out, 4)
print("status", status, "  out", d_out.copy_to_host()[0])
try:
    gemm(OP_N, OP_N, 4, 6, 3, 1.0, d_b, 4, d_a, 3, 0.0, d_out, 4)
except IndexError as error:
    print(textwrap.fill(f"IndexError: {error}", 90))

# %% [markdown]
# A program that ignores the status goes on with old numbers. So C code wraps each call in a macro that checks it, and
# CuPy raises `CUBLASError`. labkit turns that into a `BlasError` that names the wrong argument, which the status does
# not.
#
# The status covers what can be seen from the numbers. It cannot cover the square case above, where every number was
# right and the order was not. Nor can it cover the size of the memory: cuBLAS would read whatever lies behind it.
# labkit's arrays know their sizes, so labkit stops such a call before it reaches cuBLAS.

# %% [markdown]
# ## Half the bits
#
# A float16 has 11 significant bits, so a number is off by at most 1 in 2,048, or {{ 1 / 2048:.5f }} of its value; on
# average by less than half of that. Each product has two rounded factors, and the result is rounded once more. Write
# down: which relative error do you expect of a product of two matrices of 4,096 × 4,096? Does it grow with the length
# of the dot products? And how much faster than float32 will it be on tensor cores?

# %%
h200 = measure.recorded_series("library_products", gpu="NVIDIA H200")
for found in (series.library_products(), h200):
    print(f"{found['where']}, M = N = K = {found['size']:,}")
    for row in found["rows"]:
        speed = row["tflops"] and f"{row['tflops']:.1f} TFLOP/s, {found['rows'][0]['ms'] / row['ms']:4.1f} x SGEMM's"
        print(f"  {row['name']:30}{row['ms']:8.3f} ms {speed or '':>36}   relative error {row['relative_error']:.1e}")

# %% [markdown]
# The error of float16 with accumulators in float32 is near {{ f16_error:.4f }}, for short dot products and for long
# ones. The roundings of the factors are independent, so their sum grows like the result itself, and the relative error
# stays. bfloat16 has three bits less, so its error is {{ words(bf16_over_f16) }} times as large. What does grow with
# the length is the error of the accumulators: float16 accumulators save next to no time here, and make the result
# several times less accurate.
#
# The conversion is a kernel like that of lesson 01, bound by memory. It pays off for a product of this size, and would
# not for a product of a few rows. Convert weights once, and keep them.

# %% [markdown]
# ## What was implemented
#
# - a model of cuBLAS in NumPy, with its memory and its refusals, and a wrapper that names the wrong argument
# - row-major products and `x @ w.T` through cuBLAS in float32, float16 and bfloat16, and strided batches
# - softmax from BLAS reductions, in the form that breaks and in two that do not

# %% [markdown]
# ## What I learned
#
# - I no longer remember which operand goes first. I remember that cuBLAS sees transposes, and derive it in four steps.
# - A flag says how to use a matrix, a leading dimension how it lies in memory. All my errors came from mixing them up.
# - The worst mistake is a call that the library accepts. Square test matrices hide it; 37 × 23 × 19 does not.
# - `isamax` is not a maximum, and a test with numbers from −10 to 10 says nothing about −200.

# %% [markdown]
# ## Resources
#
# - [cuBLAS: Data Layout](https://docs.nvidia.com/cuda/cublas/index.html#data-layout)
# - [cuBLAS: cublas<t>gemm](https://docs.nvidia.com/cuda/cublas/index.html#cublas-t-gemm)
# - [Lawson, Hanson, Kincaid, Krogh: Basic Linear Algebra Subprograms for Fortran Usage
#   (1979)](https://doi.org/10.1145/355841.355847)

# %% [markdown]
# ## Try it
#
# - In the wrong way with square matrices, take `b = np.eye(4, dtype=np.float32)`, and then `b = a`. Which of the two
#   questions is answered with True, and why? Which matrices would you test with?
# - Write down the call of `blas.linear` with the two flags exchanged. For which M, N and K would it be accepted? What
#   does it compute when all three are equal?
# - Find by trial the smallest x for which a row [−x, x] breaks `softmax_by_isamax`. Then explain the number.
#
# Next: **other ways to write a kernel**, Triton and cuTile, and what each of them does for you.

# %% [numbers]
# product = series.library_products.rows
# lines = series.softmax_rows.lines
# loop = lines['softmax_on_device'].ms
# f16_error = product['cuBLAS GEMM f16, sums f32'].relative_error
# bf16_over_f16 = (product['cuBLAS GEMM bf16, sums f32'].relative_error /
#                  product['cuBLAS GEMM f16, sums f32'].relative_error)
# linear = 3.7 < loop[5] / loop[4] < 4.1 and 3.7 < loop[4] / loop[3] < 4.1
# flat = lines['softmax_warp'].ms[-1] / lines['softmax_warp'].ms[0] < 1.1
