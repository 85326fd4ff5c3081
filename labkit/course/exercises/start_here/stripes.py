"""From a blank page: stripes

Now write a whole kernel. It paints `out`, an int32 array, in stripes as wide as a block: the elements of blocks 0, 2,
4, ... become 0, those of blocks 1, 3, 5, ... become 1. For blocks of three threads and eight elements that is
0 0 0 1 1 1 0 0.

You need the decorator, the index, the guard and one store. Its only parameter is `out`.
"""

HINTS = ("Which of a thread's three values decides the colour, and which ones decide where it is stored?",
         "The index formula, with its guard, decides where, as in the lesson. The colour depends on whether the index "
         "of the block is odd.",
         "Below @cuda.jit and def stripes(out): the formula gives i, the guard is if i < out.size, and the store is "
         "out[i] = cuda.blockIdx.x % 2.")
POINTS = 2
NEEDS = ("count_down", "lane_numbers")

from labkit import cuda

# %%
stripes = None  # write the kernel here: @cuda.jit, then def stripes(out)
### BEGIN SOLUTION
@cuda.jit
def stripes(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = cuda.blockIdx.x % 2


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise
from labkit.course.exercises.start_here import BLOCKS, SIZES, launch

EXERCISE = KernelExercise(
    name="stripes",
    reference=lambda n, threads: np.arange(n) // threads % 2,
    inputs=lambda rng, n, threads: (n, threads),
    shape=lambda n, threads: (n,),
    dtype=np.int32,
    sizes=(*SIZES, {"n": 333, "threads": 7}),
    launch=launch,
    arguments=lambda inputs, out, size: (out,),
    domain=BLOCKS,
    wrong={
        "the stripes alternate with the threads, not with the blocks":
            Edit("out[i] = cuda.blockIdx.x % 2", "out[i] = cuda.threadIdx.x % 2"),
        "the stripes are the other way round: block 0 should write 0":
            Edit("out[i] = cuda.blockIdx.x % 2", "out[i] = 1 - cuda.blockIdx.x % 2"),
        "there is no guard": Edit("if i < out.size:", "if True:"),
        "the stripes are 32 elements wide, whatever the size of a block":
            Edit("out[i] = cuda.blockIdx.x % 2", "out[i] = i // 32 % 2"),
    },
)
