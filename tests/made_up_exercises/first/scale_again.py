"""Find the bug"""

HINTS = ("Which thread is wrong?", "The last ones.", "A guard.")
POINTS = 3
NEEDS = ("scale_vector",)

from labkit import cuda


# %%
@cuda.jit
def scale_again(a, s, out):
    i = cuda.grid(1)
    out[i] = a[i] * s


### BEGIN SOLUTION
@cuda.jit
def scale_again(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * s


### END SOLUTION

# %% [check]
from dataclasses import replace

from .scale_vector import EXERCISE as SCALE_VECTOR

EXERCISE = replace(SCALE_VECTOR, name="scale_again")
