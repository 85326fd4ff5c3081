"""The element above

Each thread writes the address of the element one layer above its own: same x, same y, the next z. Kernels that smooth
an image, simulate heat or look for edges do this all the time. In the top layer there is nothing above, and the answer
is -1. In the little volume of the lesson, the element at address 7 gets 22, and the one at 22 gets -1.

`out` is a flat int32 array. The index and the guards are given.
"""

HINTS = ("In the little volume at the top of the lesson, 5 × 3 × 2: which address is above 0, and which above 14?",
         "A step along z jumps over a whole layer. How many elements does a layer have? And for which z is there no "
         "layer above?",
         "Where z + 1 < nz, store i + nx * ny; otherwise store -1.")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def layer_above(out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        i = x + y * nx + z * nx * ny
        ### BEGIN SOLUTION
        if z + 1 < nz:
            out[i] = i + nx * ny
        else:
            out[i] = -1
        ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise
from labkit.course.exercises.indexing_3d import VOLUMES, flat, launch


def _layer_above(nx, ny, nz):
    above = np.arange(nx * ny, nx * ny * (nz + 1)).reshape(nz, ny, nx)
    above[-1] = -1
    return above


EXERCISE = KernelExercise(
    name="layer_above",
    reference=_layer_above,
    inputs=lambda rng, nx, ny, nz: (nx, ny, nz),
    shape=lambda nx, ny, nz: (nz, ny, nx),
    dtype=np.int32,
    sizes=VOLUMES,
    launch=launch,
    arguments=lambda inputs, out, size: (flat(out), *inputs),
    domain="Its inputs are the lengths of the axes, and `sizes` has the awkward ones.",
    wrong={
        "the step is one row, nx, which leads to the next y": Edit("i + nx * ny", "i + nx"),
        "the step is one element, which leads to the next x": Edit("i + nx * ny", "i + 1"),
        "a layer is taken to have nx * nz elements": Edit("i + nx * ny", "i + nx * nz"),
        "the top layer has nothing above it, but gets an address outside the volume":
            Edit("if z + 1 < nz:", "if True:"),
    },
)
