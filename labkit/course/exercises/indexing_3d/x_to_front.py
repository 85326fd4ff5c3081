r"""From a blank page: x comes first

A camera stores its pictures with the colours running fastest, `(nz, ny, nx)` with x for the colour; a neural network
wants them slowest. Move the last axis to the front and keep the other two in order:

$$\text{out}_{x,z,y} = v_{z,y,x}$$

In NumPy this is `np.moveaxis(v, 2, 0)`: a `v` of shape (2, 3, 5) becomes an `out` of shape (5, 2, 3), and `v[1, 2, 4]`
becomes `out[4, 1, 2]`. The parameters are `v` and `out`, both with three axes. The grid covers `v`, with its x along
v's last axis, in blocks of 32 × 4 × 2. Each element of `out` has one owner; which thread is it?
"""

HINTS = ("Where does v[z, y, x] go, in terms of z, y and x?",
         "Let thread (x, y, z) read v[z, y, x] and store it where it belongs. The guards are those of v's axes: nz, "
         "ny, nx = v.shape.",
         "Under if x < nx and y < ny and z < nz: out[x, z, y] = v[z, y, x].")
POINTS = 3
NEEDS = ("flip_y",)

from labkit import cuda

# %%
x_to_front = None  # write the kernel here: def x_to_front(v, out)
### BEGIN SOLUTION
@cuda.jit
def x_to_front(v, out):
    x, y, z = cuda.grid(3)
    nz, ny, nx = v.shape
    if x < nx and y < ny and z < nz:
        out[x, z, y] = v[z, y, x]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import MOVED, Edit, KernelExercise, of
from labkit.course.exercises.indexing_3d import VOLUMES, launch, random_volume


def _front_baseline(xp, v, out):
    out[:] = xp.moveaxis(v, 2, 0)


EXERCISE = KernelExercise(
    name="x_to_front",
    reference=lambda v: np.moveaxis(v, 2, 0),
    inputs=random_volume,
    shape=lambda nx, ny, nz: (nx, nz, ny),
    sizes=VOLUMES,
    launch=launch,
    timed_gpu={"nx": 512, "ny": 512, "nz": 512},
    baseline=_front_baseline,
    domain=of(0, MOVED),
    wrong={
        "y and z are swapped as well: all three axes are reversed":
            Edit("out[x, z, y] = v[z, y, x]", "out[x, y, z] = v[z, y, x]"),
        "the elements keep their order in memory: a reshape, but the axes should move":
            Edit("out[x, z, y] = v[z, y, x]",
                 "i = x + y * nx + z * nx * ny\n"
                 "out[i // (nz * ny), i // ny % nz, i % ny] = v[z, y, x]"),
        "z goes to the end, which brings y to the front, not x":
            Edit("out[x, z, y] = v[z, y, x]", "out[y, x, z] = v[z, y, x]"),
        "the guard uses the axes of out as if they were x, y and z":
            Edit("if x < nx and y < ny and z < nz:", "if x < out.shape[2] and y < out.shape[1] and z < out.shape[0]:"),
    },
)

AFTER = """
One question to think about: a warp runs along x, so it reads neighbours, but where does it write? Count the sectors of
its store. Lesson 06 introduces the memory that cures this.

Next: the exercises of **05 · Broadcasting**.
"""
