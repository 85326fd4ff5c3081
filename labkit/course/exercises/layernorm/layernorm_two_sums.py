"""Find the bug: two sums

A LayerNorm with one block per row, of 64 threads or two warps. Each warp adds up its part with shuffles, lane 0 stores
the result in `partial`, and after the barrier every thread adds the two. Both sums use the same two elements. The
results are right, at least here, but the kernel is wrong nevertheless.
"""

HINTS = ("Suppose that warp 0 is fast and warp 1 slow. Which element can warp 0 overwrite before warp 1 has read it?",
         "Both sums use the same two elements. Between reading the first sum and storing the second, nothing keeps a "
         "fast warp from a slow one.",
         "A cuda.syncthreads() right after the line of the mean, at the level of the function; or a second shared "
         "array for the second sum.")
POINTS = 2

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def layernorm_two_sums(x, weight, bias, out):
    partial = cuda.shared.array(2, float32)
    thread, row, columns = cuda.threadIdx.x, cuda.blockIdx.x, x.shape[1]

    total = float32(0.0)
    for col in range(thread, columns, 64):
        total += x[row, col]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cuda.syncthreads()
    mean = (partial[0] + partial[1]) / float32(columns)

    squares = float32(0.0)
    for col in range(thread, columns, 64):
        squares += (x[row, col] - mean) * (x[row, col] - mean)
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32] = squares
    cuda.syncthreads()
    variance = (partial[0] + partial[1]) / float32(columns)

    scale = cuda.rsqrt(variance + float32(1e-5))
    for col in range(thread, columns, 64):
        out[row, col] = (x[row, col] - mean) * scale * weight[col] + bias[col]


### BEGIN SOLUTION
@cuda.jit
def layernorm_two_sums(x, weight, bias, out):
    partial = cuda.shared.array(2, float32)
    thread, row, columns = cuda.threadIdx.x, cuda.blockIdx.x, x.shape[1]

    total = float32(0.0)
    for col in range(thread, columns, 64):
        total += x[row, col]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cuda.syncthreads()
    mean = (partial[0] + partial[1]) / float32(columns)
    cuda.syncthreads()  # all have read the first sum: partial is free for the second

    squares = float32(0.0)
    for col in range(thread, columns, 64):
        squares += (x[row, col] - mean) * (x[row, col] - mean)
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32] = squares
    cuda.syncthreads()
    variance = (partial[0] + partial[1]) / float32(columns)

    scale = cuda.rsqrt(variance + float32(1e-5))
    for col in range(thread, columns, 64):
        out[row, col] = (x[row, col] - mean) * scale * weight[col] + bias[col]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, uniform
from labkit.course.exercises.domains import EQUAL, FAR_BELOW_ZERO, HUGE_AND_TINY, ONE_FAR_ABOVE, ZEROS, of
from labkit.course.exercises.layernorm import rows_and_columns
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rows import tolerance as layernorm_tolerance

EXERCISE = KernelExercise(
    name="layernorm_two_sums",
    reference=layernorm_reference,
    inputs=lambda rng, R, C: (uniform(rng, R, C) + np.float32(0.5), uniform(rng, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=rows_and_columns((1, 1), (2, 5), (3, 64), (2, 131), (3, 300)),
    launch=lambda R, C: (R, 64),
    tolerance=layernorm_tolerance,
    domain=of(0, ZEROS, EQUAL, ONE_FAR_ABOVE, FAR_BELOW_ZERO, HUGE_AND_TINY),
    wrong={
        "the second sum is stored while a slow warp may still read the first":
            Edit("cuda.syncthreads()\n"
                 "squares = float32(0.0)",
                 "squares = float32(0.0)"),
        "the squares are those of the values, and the mean is not subtracted":
            Edit("squares += (x[row, col] - mean) * (x[row, col] - mean)", "squares += x[row, col] * x[row, col]"),
        "the new barrier is inside an `if` that one lane of each warp enters":
            Edit("cuda.syncthreads()\n"
                 "squares = float32(0.0)",
                 "squares = float32(0.0)",
                 "partial[thread // 32] = squares",
                 "cuda.syncthreads()\n"
                 "partial[thread // 32] = squares"),
    },
)

EQUIVALENT = {
    "call: cuda.shfl_xor_sync(4294967295, squares, distance) -> cuda.shfl_down_sync(4294967295, squares, distance)":
        "Only lane 0 stores, and it gets the same from shfl_down as from shfl_xor; the other lanes' values are not "
        "used.",
    "number: 32 -> 16 (3)": "After the butterfly all lanes of a warp hold the same sum; two of them store it.",
    "type: float32(columns) -> int32(columns) (2)":
        "An int32 that is divided by becomes a float64 in Numba: the quotient is right, and slower to compute.",
}

AFTER = """
There are two cures. One costs a barrier, the other eight bytes of shared memory. Did you find both?
"""
