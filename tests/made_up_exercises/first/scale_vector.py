"""Scale a vector"""

HINTS = ("Which element is this thread's?", "The last block hangs over the end.", "if i < out.size: ...")
POINTS = 2

from labkit import cuda


# %%
@cuda.jit
def scale_vector(a, s, out):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < out.size:
        out[i] = a[i] * s
    ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import KernelExercise
from labkit.course.exercises.domains import SUMMED, of, parameter
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to


@cuda.jit
def no_guard(a, s, out):
    i = cuda.grid(1)
    out[i] = a[i] * s


@cuda.jit
def one_too_far(a, s, out):
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = a[i] * s


@cuda.jit
def one_short(a, s, out):
    i = cuda.grid(1)
    if i < out.size - 1:
        out[i] = a[i] * s


@cuda.jit
def adds(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + s


EXERCISE = KernelExercise(
    name="scale_vector",
    reference=lambda a, s: a.astype(np.float64) * s,
    inputs=lambda rng, n: (uniform(rng, n), np.float32(1.7)),
    shape=lambda n: (n,),
    sizes=({"n": 1}, {"n": 33}, {"n": 257}, {"n": 1000}),
    domain=(*of(0, *SUMMED), *parameter(1, "s", 1)),
    launch=lambda n: ((n + 127) // 128, 128),
    tolerance=relative_to(lambda a, s: np.abs(a) * s, roundings=1),
    wrong={"no guard at the tail": no_guard, "`<=` in place of `<` in the guard": one_too_far,
           "the last element left out": one_short, "`+` in place of `*`": adds},
)
