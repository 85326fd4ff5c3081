"""A cut through the volume

A scanner delivers a volume in layers, and the doctor wants to see it cut the other way: all elements with a given `y`,
as an image with rows along z. In NumPy this is `v[:, y, :]`.

`v` is flat here and `out` has the shape `(nz, nx)`. The grid has two axes, x along the columns of `out` and z along
its rows, in blocks of 32 × 4. You need both coordinates, their guards, and one address.
"""

HINTS = ("Which of x, y, z come from the thread, and which is the same for all threads?",
         "cuda.grid(2) gives the column first and the row second: here x and z. The guards compare with out.shape[1] "
         "and out.shape[0]. The address is the lesson's formula, with the y that was passed in.",
         "x, z = cuda.grid(2); under the guards, out[z, x] = v[x + y * nx + z * nx * ny].")
POINTS = 2
NEEDS = ("layer_above",)

from labkit import cuda


# %%
@cuda.jit
def cut_plane(v, y, out, nx, ny):
    ### BEGIN SOLUTION
    x, z = cuda.grid(2)
    if z < out.shape[0] and x < out.shape[1]:
        out[z, x] = v[x + y * nx + z * nx * ny]
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import MOVED, Edit, KernelExercise, Reach, of
from labkit.course.exercises.indexing_3d import VOLUMES, flat, grid_of, random_volume

EXERCISE = KernelExercise(
    name="cut_plane",
    reference=lambda v, y: v[:, y],
    inputs=lambda rng, nx, ny, nz: (*random_volume(rng, nx, ny, nz), int(rng.integers(ny))),
    shape=lambda nx, ny, nz: (nz, nx),
    sizes=VOLUMES,
    launch=lambda nx, ny, nz: (grid_of((nx, nz), (32, 4)), (32, 4)),
    arguments=lambda inputs, out, size: (flat(inputs[0]), inputs[1], out, size["nx"], size["ny"]),
    domain=(*of(0, MOVED), Reach("the plane is the first", lambda rng, v, y: (v, 0)),
            Reach("the plane is the last", lambda rng, v, y: (v, v.shape[1] - 1))),
    wrong={
        "y and z are swapped in the address: it cuts at a fixed z":
            Edit("out[z, x] = v[x + y * nx + z * nx * ny]", "out[z, x] = v[x + z * nx + y * nx * ny]"),
        "a step along z jumps over a row, nx, instead of a layer, nx * ny":
            Edit("out[z, x] = v[x + y * nx + z * nx * ny]", "out[z, x] = v[x + y * nx + z * nx]"),
        "there is no guard along z": Edit("if z < out.shape[0] and x < out.shape[1]:", "if x < out.shape[1]:"),
        "cuda.grid(2) gives x first, but here its first value is called z":
            Edit("x, z = cuda.grid(2)", "z, x = cuda.grid(2)"),
    },
)
