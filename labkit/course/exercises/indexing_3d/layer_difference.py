"""Find the bug: right on a cube

This kernel computes the difference between each layer and the next, `v[z + 1, y, x] - v[z, y, x]`. `v` and `out` are
flat. `out` has one layer fewer than `v`, hence the third guard. On a volume of 64 × 64 × 64 the kernel is right to the
last bit.

Check it, and repair it. What would a test on cubes alone have shown you?
"""

HINTS = ("Work out i for x = 0, y = 1, z = 0 in a volume with nx = 5 and ny = 3. Which element should it be?",
         "One step along y has to jump over one row. How long is a row?",
         "In the line with the address, y is multiplied by ny. It should be multiplied by nx.")
POINTS = 2
NEEDS = ("layer_above",)

from labkit import cuda


# %%
@cuda.jit
def layer_difference(v, out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz - 1:
        i = x + y * ny + z * nx * ny
        out[i] = v[i + nx * ny] - v[i]


### BEGIN SOLUTION
@cuda.jit
def layer_difference(v, out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz - 1:
        i = x + y * nx + z * nx * ny  # a row has nx elements, and one step along y jumps over it
        out[i] = v[i + nx * ny] - v[i]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, relative_to
from labkit.course.exercises.indexing_3d import VOLUMES, flat, launch, random_volume

EXERCISE = KernelExercise(
    name="layer_difference",
    reference=lambda v: np.diff(v.astype(np.float64), axis=0),
    inputs=random_volume,
    shape=lambda nx, ny, nz: (nz - 1, ny, nx),
    sizes=tuple(size for size in VOLUMES if size["nz"] > 1),
    launch=launch,
    arguments=lambda inputs, out, size: (flat(inputs[0]), flat(out), size["nx"], size["ny"], size["nz"]),
    tolerance=relative_to(lambda v: np.abs(v[1:]) + np.abs(v[:-1]), roundings=1),
    domain=of(0, *SUMMED),
    wrong={
        "a step along y jumps over ny elements, but a row has nx":
            Edit("i = x + y * nx + z * nx * ny", "i = x + y * ny + z * nx * ny"),
        "nx and ny are swapped in the guard":
            Edit("if x < nx and y < ny and z < nz - 1:", "if x < ny and y < nx and z < nz - 1:"),
        "the guard lets the top layer through, but there is no layer above it":
            Edit("if x < nx and y < ny and z < nz - 1:", "if x < nx and y < ny and z < nz:"),
        "it uses the next row, nx further on, instead of the next layer":
            Edit("out[i] = v[i + nx * ny] - v[i]", "out[i] = v[i + nx] - v[i]"),
    },
)
