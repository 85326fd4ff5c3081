"""Find the bug: the way down

This kernel scans each row exclusively by Blelloch's algorithm: `x` and `out` are (R, 128) int32, and a block of 64
threads works on a row. On some GPUs it is wrong now and then.
"""

HINTS = ("Compare the two loops. What does the first have that the second lacks?",
         "On the way down, what a thread reads as shared[right] was written by another thread in the previous step.",
         "One cuda.syncthreads() in the second loop, where all threads reach it: before the if, not in it.")
POINTS = 2
NEEDS = ("sums_since",)

from numba import int32

from labkit import cuda


# %%
@cuda.jit
def tree_scan(x, out):
    shared = cuda.shared.array(128, int32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    shared[thread], shared[thread + 64] = x[row, thread], x[row, thread + 64]
    distance = 1
    while distance < 128:  # up
        cuda.syncthreads()
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            shared[right] += shared[right - distance]
        distance *= 2
    cuda.syncthreads()
    if thread == 0:
        shared[127] = 0
    cuda.syncthreads()
    while distance > 1:  # down
        distance //= 2
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            before = shared[right]
            shared[right] += shared[right - distance]
            shared[right - distance] = before
    cuda.syncthreads()
    out[row, thread], out[row, thread + 64] = shared[thread], shared[thread + 64]


### BEGIN SOLUTION
@cuda.jit
def tree_scan(x, out):
    shared = cuda.shared.array(128, int32)
    row, thread = cuda.blockIdx.x, cuda.threadIdx.x
    shared[thread], shared[thread + 64] = x[row, thread], x[row, thread + 64]
    distance = 1
    while distance < 128:  # up
        cuda.syncthreads()
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            shared[right] += shared[right - distance]
        distance *= 2
    cuda.syncthreads()
    if thread == 0:
        shared[127] = 0
    while distance > 1:  # down
        distance //= 2
        cuda.syncthreads()  # the step above has written what this one reads
        right = 2 * distance * (thread + 1) - 1
        if right < 128:
            before = shared[right]
            shared[right] += shared[right - distance]
            shared[right - distance] = before
    cuda.syncthreads()
    out[row, thread], out[row, thread + 64] = shared[thread], shared[thread + 64]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach
from labkit.course.exercises.scan import SCANNED

EXERCISE = KernelExercise(
    name="tree_scan",
    reference=lambda x: (np.cumsum(x, axis=1) - x).astype(np.int32),
    inputs=lambda rng, R: (rng.integers(-99, 100, (R, SCANNED)).astype(np.int32),),
    shape=lambda R: (R, SCANNED),
    dtype=np.int32,
    sizes=tuple({"R": R} for R in (1, 2, 5)),
    observe_sizes=({"R": 1},),
    launch=lambda R: (R, 64),
    domain=(Reach("all elements are 1", lambda rng, x: (np.ones_like(x),)),
            Reach("all elements but one are 0", lambda rng, x: ((np.arange(SCANNED) == 77).astype(np.int32) + 0 * x,)),
            Reach("sums are beyond a million", lambda rng, x: (1_000_000 + x,))),
    wrong={
        "no barrier between two steps on the way down":
            Edit("distance //= 2\ncuda.syncthreads()", "distance //= 2"),
        "the barrier is in a branch that not all threads take":
            Edit("cuda.syncthreads()\n"
                 "right = 2 * distance * (thread + 1) - 1\n"
                 "if right < 128:\n"
                 "    before = shared[right]",
                 "right = 2 * distance * (thread + 1) - 1\n"
                 "if right < 128:\n"
                 "    cuda.syncthreads()\n"
                 "    before = shared[right]"),
        "the total is not replaced by 0 before the way down": Edit("if thread == 0:\n    shared[127] = 0", ""),
        "the left half gets the sum, and the right half keeps its old value":
            Edit("shared[right] += shared[right - distance]\nshared[right - distance] = before",
                 "shared[right - distance] += before"),
    },
)

EQUIVALENT = {
    "barrier moved: tree_scan -> cuda.syncthreads() before while distance < 128: ...":
        "Thread 0 adds the last pair itself, so it needs no barrier before it overwrites element 127.",
    "barrier moved: tree_scan -> cuda.syncthreads() behind if thread == 0: ...":
        "Thread 0 adds the last pair itself, so it needs no barrier before it overwrites element 127.",
    "barrier moved: while distance > 1: ... -> cuda.syncthreads() behind right = 2 * distance * (thread + 1) - 1":
        "right is private to a thread: the barrier still separates two steps.",
    "barrier: cuda.syncthreads() -> left out (2)":
        "Thread 0 adds the last pair itself, so it needs no barrier before it overwrites element 127.",
    "guard: distance < 128 -> distance < 129":
        "A further step with distance 128 begins at element 255, which no thread has, on the way up and down alike.",
    "type: shared[right] += shared[right - distance] -> shared[right] += int32(shared[right - distance])":
        "All values here are int32, or are stored as int32: the conversion changes nothing.",
    "type: shared[right] += shared[right - distance] -> shared[right] += int32(shared[right - distance]) (2)":
        "All values here are int32, or are stored as int32: the conversion changes nothing.",
}
