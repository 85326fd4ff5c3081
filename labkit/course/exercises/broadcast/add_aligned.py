r"""Find the bug: it agrees on every cube

Here the shapes line up on the right, as NumPy likes them: `a + b + c` with (X, Y, Z), (Y, Z) and (Z,), all flattened.

$$\text{out}_{xyz} = a_{xyz} + b_{yz} + c_z$$

I adapted the lesson's kernel one evening and tried it on 64 × 64 × 64. It agreed with NumPy to the last bit. Run
`check` on it, read what it says, and repair the kernel.
"""

HINTS = ("Which of the three indices would be right for 64 x 64 x 64 and wrong for 2 x 3 x 5? Work them out for x = 0, "
         "y = 1, z = 0.",
         "b has the shape (Y, Z). How many elements is b[1, 0] away from b[0, 0] in memory: Y or Z?",
         "pair = y * (the length of a row of b) + z")
POINTS = 2
NEEDS = ("outer_difference",)

from labkit import cuda


# %%
@cuda.jit
def add_aligned(a, b, c, out, nx, ny, nz):
    z, y, x = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        pair = y * ny + z
        i = (x * ny + y) * nz + z
        out[i] = a[i] + b[pair] + c[z]


### BEGIN SOLUTION
@cuda.jit
def add_aligned(a, b, c, out, nx, ny, nz):
    z, y, x = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        pair = y * nz + z  # a row of b is nz long
        i = (x * ny + y) * nz + z
        out[i] = a[i] + b[pair] + c[z]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, relative_to, uniform
from labkit.course.exercises.broadcast import flat, over_volume, volumes

EXERCISE = KernelExercise(
    name="add_aligned",
    reference=lambda a, b, c: a.astype(np.float64) + b.astype(np.float64) + c.astype(np.float64),
    inputs=lambda rng, X, Y, Z: (uniform(rng, X, Y, Z), uniform(rng, Y, Z), uniform(rng, Z)),
    shape=lambda X, Y, Z: (X, Y, Z),
    sizes=volumes((1, 1, 1), (4, 4, 4), (2, 3, 5), (5, 3, 2), (3, 7, 1), (1, 2, 40), (13, 11, 17)),
    launch=over_volume,
    arguments=lambda inputs, out, size: (*map(flat, inputs), flat(out), size["X"], size["Y"], size["Z"]),
    tolerance=relative_to(lambda a, b, c: np.abs(a) + np.abs(b) + np.abs(c), roundings=2),
    domain=of((0, 1, 2), *SUMMED),
    wrong={
        "one step in y is taken to be `ny` elements of `b`": Edit("pair = y * nz + z", "pair = y * ny + z"),
        "`c` is read at x": Edit("out[i] = a[i] + b[pair] + c[z]", "out[i] = a[i] + b[pair] + c[x]"),
        "`b` is read at x and y, as in the lesson": Edit("pair = y * nz + z", "pair = x * ny + y"),
    },
)
