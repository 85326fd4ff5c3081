"""A program, by hand

This is a program in Triton:

    offsets = tl.program_id(0) * 256 + tl.arange(0, 256)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, s * x + y, mask=mask)

Play the compiler. A block of 64 threads does the work of one program of 256 elements, so each thread handles four.
Which four is up to you; a compiler would let neighbouring threads load neighbouring elements.
"""

HINTS = ("Thread 0 handles element `start`. If neighbouring threads handle neighbouring elements, which is its "
         "next one?",
         "Four rounds, 64 elements apart. In each round a thread's element is start, plus 64 per earlier round, plus "
         "its own index; and each element needs its own mask.",
         "for step in range(0, 256, 64): i = start + step + cuda.threadIdx.x, and then if i < out.size: store.")
POINTS = 2
NEEDS = ("predict_masks",)

from labkit import cuda


# %%
@cuda.jit
def axpy_program(s, x, y, out):
    start = cuda.blockIdx.x * 256
    ### BEGIN SOLUTION
    for step in range(0, 256, 64):
        i = start + step + cuda.threadIdx.x
        if i < out.size:  # the mask, for each element its own
            out[i] = s * x[i] + y[i]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, parameter, relative_to, uniform
from labkit.course.exercises.other_ways import wide

BLOCK, THREADS = 256, 64


@cuda.jit
def axpy_by_thread_0(s, x, y, out):
    if cuda.threadIdx.x == 0:
        for i in range(cuda.blockIdx.x * BLOCK, min(cuda.blockIdx.x * BLOCK + BLOCK, out.size)):
            out[i] = s * x[i] + y[i]


def _axpy_reference(s, x, y):
    x, y = wide(x, y)
    return np.float64(s) * x + y


EXERCISE = KernelExercise(
    name="axpy_program",
    reference=_axpy_reference,
    inputs=lambda rng, n: (np.float32(rng.uniform(1.5, 3)), uniform(rng, n), uniform(rng, n)),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 63, 64, 65, 255, 256, 257, 1000)),
    launch=lambda n: (-(-n // BLOCK), THREADS),
    tolerance=relative_to(lambda s, x, y: np.abs(s * x) + np.abs(y), roundings=2),
    benign_races=False,  # each element is computed by one thread
    domain=(*of((1, 2), *SUMMED), *parameter(0, "s", 1, 0, -2.5)),
    wrong={
        "the blocks begin 64 elements apart, not 256: they compute some elements repeatedly and never reach the end":
            Edit("start = cuda.blockIdx.x * 256", "start = cuda.blockIdx.x * 64"),
        "only the first 64 elements of each block are computed": Edit("range(0, 256, 64)", "range(0, 64, 64)"),
        "no mask": Edit("if i < out.size:", "if True:"),
        "one mask for all four elements of a thread, that of the last":
            Edit("if i < out.size:", "if start + 192 + cuda.threadIdx.x < out.size:"),
        "the steps are 128 apart: every other 64 elements are left out":
            Edit("range(0, 256, 64)", "range(0, 256, 128)"),
        "the first thread of each block does the work of all 64": axpy_by_thread_0,
    },
)

EQUIVALENT = {
    "loop: for step in range(0, 256, 64): ... -> for step in range(0, 255, 64)": "The same steps: 0, 64, 128, 192.",
}
