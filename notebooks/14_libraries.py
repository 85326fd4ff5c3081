# %% [markdown]
# # 14 · Libraries
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how to hand row-major matrices to a library that reads columns, without moving an element
# - which mistakes a library reports, and which it cannot
# - what half the bits cost in accuracy, and what they save in time
#
# ## The problem
#
# Most neural networks leave their matrix products to one library, NVIDIA's *cuBLAS*. PyTorch and CuPy call it, and so
# can you. Its most-used function computes
#
# $$C = \alpha \, \text{op}(A) \, \text{op}(B) + \beta \, C$$
#
# where op is nothing, or a transpose. With α = 1 and β = 0 it is a plain product. After the kernels of lesson 06 that
# sounds like the end of the work. But the interface is that of BLAS, a Fortran library of 1979. Fortran stores matrices
# column by column and counts from 1, and cuBLAS still does. C, NumPy and everything in this course are *row-major*:
# they store row by row, and count from 0. So two things can go wrong, and this lesson makes the first go wrong; lesson
# 17 meets the second.
#
# On a GPU with CuPy the calls go to cuBLAS. Elsewhere they go to a model of cuBLAS in NumPy, which reads and writes the
# same memory and refuses the same arguments.

# %%
import textwrap

import numpy as np

from labkit import agree, cuda, measure, show_source, table
from labkit.course.drawings import libraries as pictures
from labkit.kernels.libraries import blas
from labkit.kernels.libraries.blas import OP_N, OP_T, BlasError, gemm
from labkit.kernels.libraries.column_major import gemm_column_major
from labkit.kernels.op import rung, uniform
from labkit.kernels.ops.matmul import MATMUL
from labkit.measure.series import libraries as series

blas.source()

# %% [markdown]
# That is where the calls of this lesson go on your machine.
#
# ## What the library sees
#
# NumPy stores a matrix of 2 × 3 as `a b c d e f`. A program reads the same memory as columns of three elements each.
# Which matrix does that program see?

# %%
pictures.two_readings(2, 3)

# %% [markdown]
# It sees the transpose. Nothing was computed and nothing was moved; the same six elements were read in a different
# order. The rest of this lesson follows from that one sentence: **what you store row by row, cuBLAS sees transposed.**
#
# To read columns, a program needs one more value, the distance in memory from the beginning of one column to the
# beginning of the next. It is called the *leading dimension*. Here it is 3. If it is larger than the column, the matrix
# is part of a larger one.
#
# This is the product in the model of cuBLAS. `_matrix` makes the view in the picture: element (row, col) is
# `memory[row + col * ld]`.

# %%
show_source(gemm_column_major)

# %% [markdown]
# It has thirteen arguments. Three of them are sizes: `C` is m × n, and the dot products have length k. Three are
# leading dimensions. cuBLAS is given addresses, not arrays with shapes, and has to trust these numbers.
#
# ## The wrong way
#
# `a` is M × K and `b` is K × N, row by row. The obvious call passes `a`, then `b`, and the length of a row as each
# leading dimension. Let both matrices be square, so that no size can be wrong. What does `gemm` compute from two square
# matrices in the obvious order?

# %%
rng = np.random.default_rng(0)
a, b = uniform(rng, 4, 4), uniform(rng, 4, 4)
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((4, 4), np.float32)

gemm(OP_N, OP_N, 4, 4, 4, 1.0, d_a, 4, d_b, 4, 0.0, d_out, 4)
out = d_out.copy_to_host()
print("out is a @ b:", np.allclose(out, a @ b, atol=1e-5), "  out is b @ a:", np.allclose(out, b @ a, atol=1e-5))

# %% [markdown]
# It computes the product in the wrong order. cuBLAS saw $A^T$ and $B^T$ and computed $A^T B^T$, which is $(BA)^T$. It
# wrote that column by column, and we read it row by row: $BA$. There is no error and no warning, and the values look
# plausible. If the two matrices commute, for example because one is the identity, a test even passes.
#
# With an `a` of 5 × 3 and a `b` of 3 × 4 the same call has no meaning, and cuBLAS refuses it. It is tempting to change
# the leading dimensions until the call is accepted. How many of the 20 elements are right then?

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
# Hardly any. Every argument is valid now, so cuBLAS reads the 15 elements of `a` as three columns of five that were
# never stored.
#
# ## The trick
#
# The right call follows in four short steps.
#
# 1. cuBLAS writes columns, and we read what it writes as rows. So let it compute the transpose of what we want,
#    $\text{out}^T$, which is N × M.
# 2. $\text{out}^T = (AB)^T = B^T A^T$. The order of the factors is reversed.
# 3. In the memory of `b`, cuBLAS sees $B^T$ already, N × K, in columns of length N. In the memory of `a` it sees $A^T$,
#    K × M, in columns of length K. Nothing has to be transposed.
# 4. So pass `b` first, then `a`. The product is N × M with dot products of length K, and the leading dimensions are N,
#    K and N, the lengths of the rows of `b`, `a` and `out`.

# %%
show_source(blas.matmul)

# %%
agree(MATMUL.with_rungs(rung(kernel=(), idea="one call of cuBLAS")(blas.matmul)))

# %% [markdown]
# To `agree`, a library call is one more rung, and it is right at sizes that would expose a wrong order. There is no
# need to remember the call: write down the transpose of what you want, and under each operand what cuBLAS sees in its
# memory.
#
# ## A layer's weights
#
# Where the two do not match, a flag is needed. A layer of a language model keeps its weights as (outputs, inputs) and
# computes `x @ w.T`. Llama 3.2 1B has a projection of (512, 2048), and a prompt of five tokens is a matrix `x` of (5,
# 2048). The result is (5, 512). Try the four steps on paper: which flags and which numbers does the call need?

# %%
x, w = uniform(rng, 5, 2048), uniform(rng, 512, 2048)
d_out = cuda.to_device(np.full((5, 512), np.nan, np.float32))
gemm(OP_T, OP_N, 512, 5, 2048, 1.0, cuda.to_device(w), 2048, cuda.to_device(x), 2048, 0.0, d_out, 512)
print("out is x @ w.T:", np.allclose(d_out.copy_to_host(), x.astype(np.float64) @ w.T, atol=1e-3))

# %% [markdown]
# We want $\text{out}^T = (X W^T)^T = W X^T$. In the memory of `w` cuBLAS sees $W^T$, which has to be transposed:
# `OP_T`. In the memory of `x` it sees $X^T$, as wanted: `OP_N`. Both have rows of length K, and that is their leading
# dimension with either flag. A flag says how to use a matrix; the leading dimension says how it is stored.

# %%
show_source(blas.linear)

# %% [markdown]
# Such models store their weights in *bfloat16*, the upper half of a float32, with 8 bits for the exponent and 7 for the
# fraction (lesson 33). NumPy does not have it, so we keep the bits in uint16 and call `cublasGemmEx`, which accepts a
# type for each matrix and one for the accumulators. The accumulators are float32. How far is the result from the exact
# product of the same inputs, if half a step of bfloat16 is {{ 2**-9:.4f }} to {{ 2**-8:.4f }} of a value?

# %%
here, h200 = series.bf16_projection(), measure.recorded_series("bf16_projection", gpu="NVIDIA H200")
table([(found["where"], found["source"], f"{found['relative_error']:.4f}", found.get("torch_equal"))
       for found in (here, h200)],
      {"on": "", "by": "", "relative error": "", "equal to PyTorch's, bit for bit": ".1%"},
      f"({here['M']}, {here['K']}) x ({here['N']}, {here['K']})^T in bfloat16")

# %% [markdown]
# The error is less than half a step{{ if within_half_a_step }}, that of rounding the result once to bfloat16. The
# roundings of the 2,048 additions behind each element are too small to show, because the accumulators are float32. If
# the sum were rounded to 8 significant bits after each addition, little of it would be left.
#
# ## The status
#
# A function of cuBLAS returns a status. 0 is success; 7 is `CUBLAS_STATUS_INVALID_VALUE`. C raises no exception, so
# nothing else happens: the program goes on. Here is the refused call again, as a C program would make it, with an `out`
# full of −1, and then a call for more columns than there are. What does `out` hold after the refused call?

# %%
d_out = cuda.to_device(np.full((5, 4), -1.0, np.float32))
d_a, d_b = cuda.to_device(uniform(rng, 5, 3)), cuda.to_device(uniform(rng, 3, 4))
status = blas.sgemm_status(OP_N, OP_N, 5, 4, 3, 1.0, d_a, 3, d_b, 4, 0.0, d_out, 4)
print("status", status, "  out", d_out.copy_to_host()[0])
try:
    gemm(OP_N, OP_N, 4, 6, 3, 1.0, d_b, 4, d_a, 3, 0.0, d_out, 4)
except IndexError as error:
    print(textwrap.fill(f"IndexError: {error}", 90))

# %% [markdown]
# It holds what it held before, and a program that ignores the status continues with old values. So C code wraps each
# call in a macro that checks it, and CuPy raises `CUBLASError`. labkit turns that into a `BlasError` that names the
# wrong argument, since the status does not.
#
# The status covers only what can be seen from the arguments. It cannot cover the square case above, where every
# argument was valid and the order was wrong. Nor can it cover the size of the memory: asked for six columns out of
# four, cuBLAS would read past the end of the array. labkit's arrays know their sizes, so labkit stops such a call
# before it reaches cuBLAS.
#
# ## Half the bits
#
# A float16 has 11 significant bits, so rounding to it is off by at most 1 in 2,048, or {{ 1 / 2048:.5f }} of the value,
# and on average by less than half of that. Each product has two rounded factors, and the result is rounded once more.
# For matrices of 4,096 × 4,096, what relative error do you expect, does it grow with the length of the dot products,
# and how much faster than float32 is the product on tensor cores?

# %%
here, h200 = series.library_products(), measure.recorded_series("library_products", gpu="NVIDIA H200")
errors = {row["name"].replace("model", "cuBLAS"): row["relative_error"] for row in here["rows"]}
sgemm_ms = h200["rows"][0]["ms"]
table([(row["name"], row["ms"], row["tflops"], sgemm_ms / row["ms"], f"{row['relative_error']:.1e}",
        f"{errors[row['name']]:.1e}" if row["name"] in errors else None) for row in h200["rows"]],
      {"product": "", "ms": ".3f", "TFLOP/s": ".1f", "times SGEMM's speed": ".1f", "relative error": "",
       f"the same, size {here['size']:,}": ""},
      f"Products of {h200['size']:,} × {h200['size']:,} on tensor cores, and SGEMM, which is in float32",
      note=f"{h200['where']}, {h200['date']}; the last column: {here['source']}.")

# %% [markdown]
# The error of float16 with accumulators in float32 is near {{ f16_error:.4f }}, for short dot products and for long
# ones. The roundings of the factors are independent, so their sum grows only as fast as the result itself, and the
# relative error stays the same. bfloat16 has three bits fewer, so its error is {{ words(bf16_over_f16) }} times as
# large. What grows with the length is the error of the accumulators: float16 accumulators save almost no
# time{{ if no_time_saved }} and make the result {{ words(f16_accumulators) }} times less accurate.
#
# On tensor cores the product is {{ f16_speed:.0f }} times as fast. If the inputs have to be converted first and the
# result converted back, {{ converted_speed:.0f }} times are left. The conversion is a kernel like that of lesson 01,
# bound by memory: it handles each element once, and the product uses each element thousands of times. For a product
# with few rows the conversion would not pay off. Convert weights once, and keep them.
#
# ## What I learned
#
# - I no longer remember which operand goes first. I remember that cuBLAS sees transposes, and derive it in four steps.
# - A flag says how to use a matrix, a leading dimension how it is stored. All my errors came from mixing them up.
# - The worst mistake is a call that the library accepts. Square test matrices hide it; 37 × 23 × 19 does not.
# - A status that nobody reads reports nothing.
#
# ## Resources
#
# - [cuBLAS: Data Layout](https://docs.nvidia.com/cuda/cublas/index.html#data-layout)
# - [cuBLAS: cublas<t>gemm](https://docs.nvidia.com/cuda/cublas/index.html#cublas-t-gemm)
# - [Lawson, Hanson, Kincaid, Krogh: Basic Linear Algebra Subprograms for Fortran Usage
#   (1979)](https://doi.org/10.1145/355841.355847)
#
# ## Try it
#
# - In the wrong call with square matrices, let `b = np.eye(4, dtype=np.float32)`, and then `b = a`. Which of the two
#   comparisons prints True, and why? Which matrices would you test with?
# - Write the call of `blas.linear` with the two flags swapped. For which M, N and K would it be accepted? What does it
#   compute when all three are equal?
# - `series.library_products(48)` and `series.library_products(384)`: which of the errors change with the size?
#
# Next: **reductions**, and how threads combine their values into one.

# %% [numbers]
# product = series.library_products.rows
# f16_error = product['cuBLAS GEMM f16, sums f32'].relative_error
# bf16_over_f16 = product['cuBLAS GEMM bf16, sums f32'].relative_error / f16_error
# f16_accumulators = product['cuBLAS GEMM f16, sums f16'].relative_error / f16_error
# no_time_saved = near(product['cuBLAS GEMM f16, sums f16'].ms / product['cuBLAS GEMM f16, sums f32'].ms, 1)
# f16_speed = product['cuBLAS SGEMM'].ms / product['cuBLAS GEMM f16, sums f32'].ms
# converted_speed = product['cuBLAS SGEMM'].ms / product['the same, and the conversions'].ms
# within_half_a_step = series.bf16_projection.relative_error < 2**-9
