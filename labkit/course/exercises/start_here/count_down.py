"""Counted from the end

The index formula counts elements from the front. Let each thread write the index of its element *counted from the end*:
0 for the last element, 1 for the one before it, and `out.size - 1` for the first. For five elements that is
4, 3, 2, 1, 0.

The index and the guard are there. One line is missing.
"""

HINTS = ("What has to be written for the last element, and what for the first? Write both down for out.size = 5, next "
         "to their i.",
         "The two indices of an element, from the front and from the end, have the same sum everywhere. What is it?",
         "i counts from 0 to out.size - 1. Store out.size - 1 minus i at out[i].")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def count_down(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        ### BEGIN SOLUTION
        out[i] = out.size - 1 - i
        ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise
from labkit.course.exercises.start_here import BLOCKS, SIZES, launch

EXERCISE = KernelExercise(
    name="count_down",
    reference=lambda n: np.arange(n - 1, -1, -1),
    inputs=lambda rng, n, threads: (n,),
    shape=lambda n, threads: (n,),
    dtype=np.int32,
    sizes=SIZES,
    launch=launch,
    arguments=lambda inputs, out, size: (out,),
    domain=BLOCKS,
    wrong={
        "it counts down to 1, and the last element should get 0":
            Edit("out[i] = out.size - 1 - i", "out[i] = out.size - i"),
        "it counts from the beginning": Edit("out[i] = out.size - 1 - i", "out[i] = i"),
        "it counts down within each block, not over all elements":
            Edit("out[i] = out.size - 1 - i", "out[i] = cuda.blockDim.x - 1 - cuda.threadIdx.x"),
        "it counts down from the number of threads, and some threads have no element":
            Edit("out[i] = out.size - 1 - i", "out[i] = cuda.gridDim.x * cuda.blockDim.x - 1 - i"),
    },
)
