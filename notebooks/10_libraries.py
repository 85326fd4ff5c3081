# %% [markdown]
# # 10 · Libraries
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how to hand row-major matrices to a library that reads columns, without moving an element
# - what a library says when a call is wrong, and what it does not say
# - what a softmax made of library calls costs, and which row of numbers breaks it
#
# ## The problem
#
# The products of most neural networks are computed by one library. It is called cuBLAS; PyTorch and CuPy call it, and
# so can you. Its most used function does this:
#
# $$C = \alpha \, \text{op}(A) \, \text{op}(B) + \beta \, C$$
#
# op is nothing, or a transpose. With α = 1 and β = 0 it is a plain product. After the kernels of lesson 05 that sounds
# like the end of the work. But the interface is that of BLAS, a Fortran library of 1979 and the years after. Fortran
# stores matrices column by column and counts from 1, and both habits are in cuBLAS to this day. C, NumPy and everything
# in this course store row by row and count from 0.
#
# Two things can go wrong, then, and this lesson makes them go wrong. It needs no GPU. Where there is one, and CuPy, the
# calls go to cuBLAS. Elsewhere they go to a model of cuBLAS in NumPy, which reads and writes the same memory.

# %%
from labkit.kernels.libraries import blas

blas.source()

# %% [markdown]
# ## Prediction
#
# A matrix of 2 × 3 lies in memory as NumPy stores it: `a b c d e f`. Someone reads that memory and takes it for columns
# of three elements each. Before you run the next cell, write down the matrix that this reader sees.

# %%
from labkit.measure.plots import libraries as pictures

pictures.two_readings(2, 3)

# %% [markdown]
# It is the transpose. Nothing was computed and nothing was moved; the same six numbers were read in the other order.
# That one sentence carries the first half of this lesson: **what you store row by row, cuBLAS sees transposed.**
#
# The reader needs one number beside the memory: how far it is from the beginning of one column to the beginning of the
# next. It is called the *leading dimension*. Here it is 3. It can be larger than the column, and then the matrix is a
# part of a larger one.
#
# ## What the function does
#
# This is the whole of the model. `_matrix` makes the view of the picture: element (row, col) is
# `memory[row + col * ld]`.

# %%
from labkit import show_source
from labkit.kernels.libraries.column_major import gemm_column_major

show_source(gemm_column_major)

# %% [markdown]
# Thirteen arguments. Three of them say how large the product is: `C` is m × n, and the dot products have length k.
# Three are leading dimensions. There is no shape and no size: cuBLAS gets an address, and believes you.
#
# ## The wrong way
#
# `a` is M × K and `b` is K × N, row by row. The obvious call passes `a`, then `b`, and the length of a row as each
# leading dimension. First with square matrices.

# %%
import textwrap

import numpy as np

from labkit import cuda
from labkit.kernels.libraries.blas import OP_N, BlasError, gemm
from labkit.kernels.op import uniform

rng = np.random.default_rng(0)
a, b = uniform(rng, 4, 4), uniform(rng, 4, 4)
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((4, 4), np.float32)

gemm(OP_N, OP_N, 4, 4, 4, 1.0, d_a, 4, d_b, 4, 0.0, d_out, 4)
out = d_out.copy_to_host()
print("out is a @ b:", np.allclose(out, a @ b, atol=1e-5))
print("out is b @ a:", np.allclose(out, b @ a, atol=1e-5))

# %% [markdown]
# The product came out, of the wrong pair. cuBLAS saw $A^T$ and $B^T$ and computed $A^T B^T$, which is $(BA)^T$. It
# wrote that column by column, and we read it row by row: $BA$. No error, no warning, plausible numbers of plausible
# size. With matrices that commute, such as a matrix and the identity, or a matrix and itself, a test would even pass.
#
# With matrices that are not square the same call has no meaning.

# %%
a, b = uniform(rng, 5, 3), uniform(rng, 3, 4)
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((5, 4), np.float32)

try:
    gemm(OP_N, OP_N, 5, 4, 3, 1.0, d_a, 3, d_b, 4, 0.0, d_out, 4)
except BlasError as error:
    print(textwrap.fill(str(error), 90))

# %% [markdown]
# The tempting repair is to change the leading dimensions until the call is accepted.

# %%
gemm(OP_N, OP_N, 5, 4, 3, 1.0, d_a, 5, d_b, 3, 0.0, d_out, 5)
right = np.isclose(d_out.copy_to_host(), a @ b, atol=1e-5).sum()
print(f"accepted; {right} of 20 elements are right")

# %% [markdown]
# Every argument is valid, and so cuBLAS reads the 15 numbers of `a` as three columns of five that were never stored.
#
# ## The trick
#
# The way out takes four steps, and each is short.
#
# 1. cuBLAS writes columns. We shall read what it writes as rows. So let it compute the transpose of what we want:
#    $\text{out}^T$, of N × M.
# 2. $\text{out}^T = (AB)^T = B^T A^T$. The order of the two is reversed.
# 3. In the memory of `b`, cuBLAS sees $B^T$ already: N × K, columns of length N. In the memory of `a` it sees $A^T$: K
#    × M, columns of length K. Nothing has to be transposed.
# 4. So: `b` first, then `a`; the product is N × M with dot products of length K; the leading dimensions are N, K and N,
#    the lengths of the rows of `b`, `a` and `out`.

# %%
show_source(blas.matmul)

# %%
for M, N, K in ((5, 4, 3), (1, 1, 1), (1, 33, 17), (37, 23, 19), (64, 1, 100)):
    a, b = uniform(rng, M, K), uniform(rng, K, N)
    d_out = cuda.to_device(np.full((M, N), np.nan, np.float32))
    blas.matmul(cuda.to_device(a), cuda.to_device(b), d_out)
    error = np.abs(d_out.copy_to_host() - a.astype(np.float64) @ b).max()
    print(f"{M:3} x {K:3} times {K:3} x {N:3}: largest error {error:.1e}")

# %% [markdown]
# ## A layer's weights
#
# A layer of a language model keeps its weights as (outputs, inputs) and computes `x @ w.T`. Llama 3.2 1B has a
# projection of (512, 2048), and a prompt of five tokens is a matrix `x` of (5, 2048). The result is (5, 512). Which
# flags, which numbers? Try it on paper before you read on: what do you want cuBLAS to compute, and what does it see?
#
# We want $\text{out}^T = (X W^T)^T = W X^T$. In the memory of `w` it sees $W^T$, the wrong way round: that one needs
# `OP_T`. In the memory of `x` it sees $X^T$, as wanted: `OP_N`. Both have rows of length K, and that is their leading
# dimension, whatever the flag says. A flag says how to use a matrix; the leading dimension says how it lies in memory.

# %%
show_source(blas.linear)

# %% [markdown]
# Such models store their weights in *bfloat16*: the upper half of a float32, with 8 bits for the exponent and 7 for the
# fraction. NumPy does not have it, so we keep the bits in uint16 and tell cuBLAS what they are. That is `cublasGemmEx`,
# which takes a type for each matrix and one for the accumulators. The accumulators are float32; a sum of 2,048 products
# that is rounded to 8 bits at each step would be worth little.

# %%
from labkit import measure
from labkit.measure.series import libraries as series

here = series.projection()
print(f"({here['M']}, {here['K']}) x ({here['N']}, {here['K']})^T in bfloat16, {here['source']}")
print(f"relative error {here['relative_error']:.4f}, and half a step of bfloat16 is {2**-9:.4f}")

h200 = measure.recorded_series("bf16_projection", gpu="NVIDIA H200")
print(f"recorded on {h200['where']}, {h200['source']}: relative error {h200['relative_error']:.4f}")
print(f"{h200['torch_equal']:.1%} of the elements are equal to PyTorch's bit for bit")

# %% [markdown]
# The relative error is that of rounding the result once, to bfloat16. The 2,048 products under it do not show.
#
# ## The status
#
# A function of cuBLAS returns a number. 0 is success; 7 is `CUBLAS_STATUS_INVALID_VALUE`. In C that is all that
# happens: nothing stops, nothing is printed by your program, and `out` still holds what it held. Here is the refused
# call once more, as C sees it.

# %%
a, b = uniform(rng, 5, 3), uniform(rng, 3, 4)
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.to_device(np.full((5, 4), -1.0, np.float32))

status = blas.sgemm_status(OP_N, OP_N, 5, 4, 3, 1.0, d_a, 3, d_b, 4, 0.0, d_out, 4)
print("status", status, "  out", d_out.copy_to_host()[0])

# %% [markdown]
# A program that does not look goes on with old numbers. That is why C code wraps each call in a macro that looks at the
# status, and why CuPy raises `CUBLASError` wherever it is not 0. labkit's wrapper turns that into a `BlasError` and
# adds which argument was wrong, since the status alone does not say.

# %%
show_source(blas._checked)

# %% [markdown]
# The status covers what can be seen from the numbers. It cannot cover the square case above, where every number was
# right and the order was not. Nor can it cover an address: ask for more columns than there are, and cuBLAS reads
# whatever lies behind. labkit's arrays know their sizes, so here the call is stopped before it leaves.

# %%
try:
    gemm(OP_N, OP_N, 4, 6, 3, 1.0, d_b, 4, d_a, 3, 0.0, d_out, 4)
except IndexError as error:
    print(textwrap.fill(f"IndexError: {error}", 90))

# %% [markdown]
# ## Half the bits
#
# A float16 has 11 significant bits, so a number is off by at most 1 in 2,048, or 0.00049 of its value; on average by
# less than half of that. Each product has two rounded factors, and the result is rounded once more. Write down: what
# relative error of a product of 4,096 × 4,096 do you expect? Does it grow with the length of the dot products? And how
# much faster will it be on tensor cores?

# %%
from labkit import device

here = series.products()
h200 = measure.recorded_series("library_products", gpu="NVIDIA H200")


def print_products(found):
    print(f"{found['where']}, M = N = K = {found['size']:,}")
    for row in found["rows"]:
        rate = "" if row["tflops"] is None else f"{row['tflops']:8.1f} TFLOP/s"
        print(f"  {row['name']:30} {row['ms']:9.3f} ms {rate:18} relative error {row['relative_error']:.1e}")


print_products(here)
if not device.on_gpu():
    print_products(h200)

# %%
def row_of(name):
    return next(row for row in h200["rows"] if name in row["name"])


single, half, converted = row_of("SGEMM"), row_of("GEMM f16, sums f32"), row_of("conversions")
print(f"float16 against float32 on {h200['where']}: {single['ms'] / half['ms']:.1f} times as fast")
print(f"with the conversions there and back: {single['ms'] / converted['ms']:.1f} times")
worse = row_of("sums f16")["relative_error"] / half["relative_error"]
gain = half["ms"] / row_of("sums f16")["ms"] - 1
print(f"sums in float16 cost a factor of {worse:.1f} in accuracy and save {gain:.0%} of the time")

# %% [markdown]
# The error of float16 with accumulators in float32 is near 0.0004, here with short dot products as there with long
# ones. The roundings of the factors are independent, so their sum grows like the result itself, and the relative error
# stays. bfloat16 has three bits less, so its error is eight times as large. What does grow with the length are the
# roundings of the accumulators: that is the row with sums in float16.
#
# The conversion is a kernel like that of lesson 01, and it is bound by memory. For a product of this size it pays off.
# For a product of a few rows it would not: convert weights once, and keep them.
#
# ## Softmax from library calls
#
# Softmax turns a row of numbers into positive ones that add up to 1:
#
# $$\text{out}_c = \frac{e^{x_c - m}}{\sum_j e^{x_j - m}} \qquad m = \max_j x_j$$
#
# Mathematically m cancels. Numerically it keeps $e^x$ in range: in float32, exp of 89 is infinite. Lesson 12 writes a
# kernel for this. Here is an idea that looks economical: let the library do the reductions, and write only the two
# steps between. BLAS has `asum`, the sum of absolute values, and the exponentials are positive. And it has `isamax`,
# which says where the largest element is.

# %%
from labkit.kernels.libraries.blas_softmax import softmax_by_isamax

show_source(softmax_by_isamax)

# %% [markdown]
# Mind the `index - 1`. Fortran counts from 1, and so does isamax.

# %%
x = cuda.to_device(np.array([1, -7, 3], np.float32))
blas.isamax(3, x), blas.asum(3, x)

# %% [markdown]
# Element number 2 is −7. Keep that in mind.
#
# The test of the notebook that this course follows fills 128 × 128 numbers from −10 to 10, compares each element with a
# CPU's within 1e-5, and prints the sum of the first row. Its output was: results match, sum of the first row 1.000000.
# The same test here, for three forms of which the second and third come below:

# %%
from labkit.kernels.libraries import blas_softmax

check = series.softmax_check()
for row in check["found"]:
    print(f"{row['name']:20} largest difference {row['max_difference']:.1e}", end="   ")
    print(f"sum of the first row {row['first_row_sum']:.6f}")
print(f"({check['rows']} x {check['cols']}, {check['source']})")

# %% [markdown]
# All three match. Now a row that the test does not have: −200 and 100. Before you run it, go through the code above
# with a pencil. What is `index`, what is `biggest`, and what is exp of the difference?

# %%
row = cuda.to_device(np.array([[-200.0, 100.0]], np.float32))
out = cuda.device_array((1, 2), np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    softmax_by_isamax(row, out)
print(out.copy_to_host())

# %% [markdown]
# isamax looks at absolute values, so −200 is its largest. 100 minus −200 is 300, exp of 300 is infinite in float32, and
# infinity divided by infinity is not a number. The true answer is 0 and 1.
#
# The test could not see it. With numbers from −10 to 10 the wrong maximum is wrong by at most 20, and exp of 20 is a
# number like any other. The m cancels, as it does on paper. A test finds what its inputs contain.
#
# It does cost something even there. $x - m$ is rounded, and the further m is from x, the coarser: an error of the
# exponent is a relative error of the result. In the table above, compare the differences of the first form and the
# other two.
#
# BLAS has no maximum. So the second form takes a reduction kernel for it, which lesson 12 builds, and one launch finds
# the maxima of all rows.

# %%
from labkit.kernels.libraries.blas_softmax import softmax_by_row_max, softmax_on_device

for softmax in (softmax_by_row_max, softmax_on_device):
    softmax(row, out)
    print(f"{softmax.__name__:20} {out.copy_to_host()}")

# %%
from labkit import agree

agree(blas_softmax.BLAS_SOFTMAX, sizes=({"R": 3, "C": 5}, {"R": 9, "C": 32}, {"R": 7, "C": 1000}))

# %% [markdown]
# ## A loop on the host
#
# Each row takes its own calls, one after another, from Python. In the first form the host waits three times for each
# row: for the index, for one element of `x`, and for the sum. The third form leaves both numbers in device memory,
# where the kernels read them, and never waits.

# %%
show_source(softmax_on_device)

# %% [markdown]
# Predict the curve of time against the number of rows: for the loops, and for one kernel that takes all rows in a
# launch (`softmax_warp` of lesson 12, a warp for each row). From where on does each grow?

# %%
found = series.softmax_rows()
pictures.over_rows(found)

# %%
def last(recorded, name):
    return next(line for line in recorded["lines"] if line["name"] == name)["ms"][-1]


h200 = measure.recorded_series("softmax_rows", gpu="NVIDIA H200")
rows = h200["rows"][-1]
for name in ("softmax_by_isamax", "softmax_by_row_max", "softmax_on_device", "softmax_warp"):
    ms = last(h200, name)
    print(f"{name:20} {ms:9.3f} ms for {rows:,} rows of {h200['cols']:,}: {1000 * ms / rows:8.2f} us a row")
print(f"measured on {h200['where']}; one launch is worth a factor of "
      f"{last(h200, 'softmax_on_device') / last(h200, 'softmax_warp'):,.0f} over the best loop")

# %% [markdown]
# The loops grow from the second row on, in a straight line: twice the rows, twice the time. On the H200 one launch
# costs the same for one row as for a thousand, so the loops do not spend their time on softmax. It is spent between the
# calls: on Python, the launches, and in two of the three on waiting for a number. Leaving the numbers on the device
# removes the waiting, but not the launches.
#
# The notebook with the idea said that a loop over rows might become a bottleneck for large batches. It is one from the
# second row on. The library's reductions are good, but they take one vector at a time, and a softmax needs one for each
# row. A library is fast at the job it was written for; the shape of the call decides whether yours is that job.
#
# ## What was implemented
#
# - a model of cuBLAS's memory in NumPy, with the refusals of the real one
# - row-major products and `x @ w.T` through cuBLAS in float32, float16 and bfloat16, and strided batches
# - a wrapper that turns a status into an exception and names the argument
# - softmax from BLAS reductions, in the form that breaks and in two that do not
#
# ## What I learned
#
# - I no longer remember which operand goes first. I remember that cuBLAS sees transposes, and derive it in four steps.
# - A flag says how to use a matrix, a leading dimension how it lies in memory. All of my errors came from mixing up the
#   two.
# - The worst mistake is a call that the library accepts. Square test matrices hide it; 37 × 23 × 19 does not.
# - isamax is not a maximum. The name says so, and I read over it.
# - A test with numbers from −10 to 10 says nothing about −200.
#
# ## Resources
#
# - [cuBLAS: Data Layout](https://docs.nvidia.com/cuda/cublas/index.html#data-layout)
# - [cuBLAS: cublas<t>gemm](https://docs.nvidia.com/cuda/cublas/index.html#cublas-t-gemm)
# - [Lawson, Hanson, Kincaid, Krogh: Basic Linear Algebra Subprograms for Fortran Usage
#   (1979)](https://doi.org/10.1145/355841.355847)
# - [CuPy: Interoperability](https://docs.cupy.dev/en/stable/user_guide/interoperability.html)
#
# ## Try it
#
# - In the wrong way with square matrices, take `b = np.eye(4, dtype=np.float32)`, and then `b = a`. Which of the two
#   questions is answered with True, and why? Which matrices would you test with?
# - Write down the call of `blas.linear` with the two flags exchanged. For which M, N and K would it be accepted? What
#   does it compute when all three are equal?
# - Find by trial the smallest x for which a row [−x, x] breaks `softmax_by_isamax`. Then explain the number.
#
# Next: **other ways to write a kernel**. The same jobs in Triton and cuTile, and what each language takes off your
# hands.
