"""Find the bug: one round short

This grid-stride loop scales a vector, with 3 blocks of 32 threads however long `x` is. For a vector of 1,000 elements,
some of the output is never written; for a single element, none of it is.

Which elements are missing, and which threads should have written them? Work it out before you run the check, then
repair the loop.
"""

HINTS = ("Follow one thread: with 96 threads and 1,000 elements, which elements does thread 0 write, and which is the "
         "last one that it should write?",
         "The condition is tested before each element. It should ask whether the current element exists, but it asks "
         "about a different one.",
         "Compare i itself with out.size, without the stride.")
POINTS = 2
NEEDS = ("saxpy",)

from labkit import cuda


# %%
@cuda.jit
def scale_grid_stride(s, x, out):
    i = cuda.grid(1)
    stride = cuda.gridsize(1)
    while i + stride < out.size:
        out[i] = s * x[i]
        i += stride


### BEGIN SOLUTION
@cuda.jit
def scale_grid_stride(s, x, out):
    i = cuda.grid(1)
    stride = cuda.gridsize(1)
    while i < out.size:  # the element at hand, not the one after it
        out[i] = s * x[i]
        i += stride


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, parameter, relative_to, uniform, whole_grid

EXERCISE = KernelExercise(
    name="scale_grid_stride",
    reference=lambda s, x: np.float64(s) * x,
    inputs=lambda rng, n: (np.float32(rng.uniform(1.5, 3)), uniform(rng, n)),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 95, 96, 97, 193, 1000, 9_999)),
    launch=lambda n: (3, 32),
    tolerance=relative_to(lambda s, x: np.abs(s * x), roundings=1),
    domain=(*of(1, *SUMMED), *parameter(0, "s", 1, 0, -2.5)),
    demand=whole_grid,
    wrong={
        "half of the blocks do the work of all":
            Edit("i = cuda.grid(1)", "i = cuda.grid(1) if cuda.blockIdx.x < 2 else out.size",
                 "stride = cuda.gridsize(1)", "stride = 2 * cuda.blockDim.x"),
        "a thread stops one round early, and never writes its last element":
            Edit("while i < out.size:", "while i + stride < out.size:"),
        "the loop uses `<=`, which lets a thread go one element too far":
            Edit("while i < out.size:", "while i <= out.size:"),
        "there is no loop: each thread does its first element and stops":
            Edit("while i < out.size:", "if i < out.size:"),
        "the stride is one more than the number of threads in the grid":
            Edit("stride = cuda.gridsize(1)", "stride = cuda.gridsize(1) + 1"),
    },
)

EQUIVALENT = {
    "type: i += stride -> i += int32(stride)": "It is an integer already.",
}
