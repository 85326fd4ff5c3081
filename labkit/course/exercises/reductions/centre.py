"""Find the bug: one array, two reductions

The kernel subtracts from each row its mean and divides by the largest distance from that mean. Two reductions use the
same shared memory, a sum and a maximum.

It is right on some GPUs, most of the time.
"""

HINTS = ("Thread 0 has computed the mean and runs ahead, through its part of the row. What does it then do to "
         "shared memory?",
         "All threads read shared[0], and thread 0 writes shared[0] a little later. Nothing ensures that all have read "
         "before it writes.",
         "One cuda.syncthreads() between the line with mean and the line that stores far.")
POINTS = 2
NEEDS = ("row_range",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def centre(x, out):
    shared = cuda.shared.array(64, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        total += x[row, col]
    shared[thread] = total
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride //= 2
    mean = shared[0] / float32(x.shape[1])

    far = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        far = max(far, abs(x[row, col] - mean))
    shared[thread] = far
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] = max(shared[thread], shared[thread + stride])
        cuda.syncthreads()
        stride //= 2
    for col in range(thread, x.shape[1], 64):
        out[row, col] = (x[row, col] - mean) / shared[0]


### BEGIN SOLUTION
@cuda.jit
def centre(x, out):
    shared = cuda.shared.array(64, float32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        total += x[row, col]
    shared[thread] = total
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride //= 2
    mean = shared[0] / float32(x.shape[1])
    cuda.syncthreads()  # all have read the sum: shared is free to overwrite

    far = float32(0.0)
    for col in range(thread, x.shape[1], 64):
        far = max(far, abs(x[row, col] - mean))
    shared[thread] = far
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if thread < stride:
            shared[thread] = max(shared[thread], shared[thread + stride])
        cuda.syncthreads()
        stride //= 2
    for col in range(thread, x.shape[1], 64):
        out[row, col] = (x[row, col] - mean) / shared[0]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, uniform
from labkit.course.exercises.domains import (
    FAR_ABOVE_ZERO,
    FAR_BELOW_ZERO,
    HUGE_AND_TINY,
    ONE_FAR_ABOVE,
    ONE_FAR_BELOW,
    of,
)
from labkit.course.exercises.reductions import rows


def _centre_reference(x):
    x = x.astype(np.float64)
    from_mean = x - x.mean(axis=1, keepdims=True)
    return from_mean / np.abs(from_mean).max(axis=1, keepdims=True)


EXERCISE = KernelExercise(
    name="centre",
    reference=_centre_reference,
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (R, C),
    sizes=rows((1, 2), (2, 5), (3, 64), (2, 65), (5, 200)),
    launch=lambda R, C: (R, 64),
    # The mean of C numbers, a difference and a quotient; what is divided by may be small.
    tolerance=lambda x: 2.0**-22 * (4 + np.sqrt(x.shape[1])) * np.abs(x).max(axis=1, keepdims=True)
    / np.abs(x - x.mean(axis=1, keepdims=True)).max(axis=1, keepdims=True) * np.ones_like(x),
    domain=of(0, ONE_FAR_ABOVE, ONE_FAR_BELOW, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY),
    wrong={
        "no barrier between the last read of the sum and the next store into `shared`":
            Edit("cuda.syncthreads()\n"
                 "far = float32(0.0)",
                 "far = float32(0.0)"),
        "only thread 0 reaches the new barrier":
            Edit("cuda.syncthreads()\n"
                 "far = float32(0.0)",
                 "if thread == 0:\n"
                 "    cuda.syncthreads()\n"
                 "far = float32(0.0)"),
        "`abs` is gone: distances below the mean do not count":
            Edit("far = max(far, abs(x[row, col] - mean))", "far = max(far, x[row, col] - mean)"),
    },
)

EQUIVALENT = {
    "barrier moved: centre -> cuda.syncthreads() behind far = float32(0.0)":
        "far is private to a thread: nothing shared is used between the two places.",
    "type: float32(x.shape[1]) -> int32(x.shape[1])":
        "Dividing by an int32 gives a float64 in Numba: the quotient is right, and slower to compute.",
}
