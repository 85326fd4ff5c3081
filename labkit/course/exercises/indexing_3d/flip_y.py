"""Upside down

Each layer of a volume is an image with its rows along y. Turn every image upside down: the first row becomes the
last. Nothing moves along x or z. In NumPy this is `v[:, ::-1, :]`.

This time `v` and `out` have three axes, so `v[z, y, x]` works out the address for you. Write the guards and the
store. Blocks are 32 × 4 × 2 and hang over on all sides.
"""

HINTS = ("With ny = 4: for y = 0, 1, 2, 3, which row of v goes there? What do the two indices add up to?",
         "The opposite of row y is row ny - 1 - y. x and z stay. A block can hang over on three sides, so there are "
         "three comparisons.",
         "if x < nx and y < ny and z < nz: out[z, y, x] becomes v[z, ny - 1 - y, x].")
POINTS = 2

from labkit import cuda


# %%
@cuda.jit
def flip_y(v, out):
    x, y, z = cuda.grid(3)
    nz, ny, nx = out.shape
    ### BEGIN SOLUTION
    if x < nx and y < ny and z < nz:
        out[z, y, x] = v[z, ny - 1 - y, x]
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import MOVED, Edit, KernelExercise, of
from labkit.course.exercises.indexing_3d import VOLUMES, launch, random_volume


def _flip_baseline(xp, v, out):
    out[:] = xp.flip(v, (1,))


EXERCISE = KernelExercise(
    name="flip_y",
    reference=lambda v: v[:, ::-1],
    inputs=random_volume,
    shape=lambda nx, ny, nz: (nz, ny, nx),
    sizes=VOLUMES,
    launch=launch,
    timed_gpu={"nx": 512, "ny": 512, "nz": 512},
    baseline=_flip_baseline,
    domain=of(0, MOVED),
    wrong={
        "x is flipped, not y": Edit("out[z, y, x] = v[z, ny - 1 - y, x]", "out[z, y, x] = v[z, y, nx - 1 - x]"),
        "z is flipped, not y": Edit("out[z, y, x] = v[z, ny - 1 - y, x]", "out[z, y, x] = v[nz - 1 - z, y, x]"),
        "the row opposite to y is taken to be ny - y, which is one too far":
            Edit("out[z, y, x] = v[z, ny - 1 - y, x]", "out[z, y, x] = v[z, ny - y, x]"),
        "there is no guard along z": Edit("if x < nx and y < ny and z < nz:", "if x < nx and y < ny:"),
        "there is no guard along x": Edit("if x < nx and y < ny and z < nz:", "if y < ny and z < nz:"),
    },
)
