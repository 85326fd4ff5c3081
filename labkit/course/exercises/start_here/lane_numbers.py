"""Find the bug: a guard that guards nothing

A warp is 32 threads, and a thread's position within its warp is its *lane*. The first 32 threads of a block are its
first warp, the next 32 its second. Each thread should write its lane: 0 to 31, then 0 to 31 again, starting from 0 in
every block.

The kernel below has a guard, and it works for vectors that fit into one block. Run the check, read what it says, and
correct one line.
"""

HINTS = ("The check names a thread and an index. What is cuda.threadIdx.x for that thread, and what is i?",
         "The guard has to stop threads whose element does not exist. A thread's index in its block says nothing "
         "about that: thread 1 of block 50 has a small index and a large i.",
         "Test the value that is used as the index: if i < out.size.")
POINTS = 2
NEEDS = ("count_down",)

from labkit import cuda


# %%
@cuda.jit
def lane_numbers(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if cuda.threadIdx.x < out.size:
        out[i] = cuda.threadIdx.x % 32


### BEGIN SOLUTION
@cuda.jit
def lane_numbers(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:  # the guard belongs on what is used as an index
        out[i] = cuda.threadIdx.x % 32


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise
from labkit.course.exercises.start_here import BLOCKS, SIZES, launch

EXERCISE = KernelExercise(
    name="lane_numbers",
    reference=lambda n, threads: np.arange(n) % threads % 32,
    inputs=lambda rng, n, threads: (n, threads),
    shape=lambda n, threads: (n,),
    dtype=np.int32,
    sizes=SIZES,
    launch=launch,
    arguments=lambda inputs, out, size: (out,),
    domain=BLOCKS,
    wrong={
        "the guard tests the thread's index within its block, which says nothing about the element":
            Edit("if i < out.size:", "if cuda.threadIdx.x < out.size:"),
        "there is no guard": Edit("if i < out.size:", "if True:"),
        "the guard uses `<=`, which lets one thread too many through": Edit("if i < out.size:", "if i <= out.size:"),
        "the guard stops one element too early": Edit("if i < out.size:", "if i < out.size - 1:"),
        "lanes are counted from the first element, but each block starts again at lane 0":
            Edit("cuda.threadIdx.x % 32", "i % 32"),
    },
)
