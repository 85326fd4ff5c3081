r"""The way back

The lesson went from coordinates to a flat index. Now go the other way. `a` and `out` are volumes of shape (X, Y, Z),
flattened; `g` has Y elements and enters as `g[None, :, None]`, with shape (1, Y, 1).

$$\text{out}_{xyz} = a_{xyz} \, g_y$$

The grid has one axis, in blocks of 128, and all that a thread has is its index `i`. Recover y from it. The kernel is
given `ny` and `nz`, the lengths of the axes y and z. With `ny` = 3 and `nz` = 5, for example, `i` = 22 has y = 1.
"""

HINTS = ("For Y = 3 and Z = 5, write down y for i = 0, 1, 2, ... up to 31. When does y increase by one, and when does "
         "it start again at 0?",
         "i is (x * ny + y) * nz + z. Integer division by nz drops z and leaves x * ny + y. The remainder of a second "
         "division drops x.",
         "Inside the guard if i < out.size: y = i // nz % ...")
POINTS = 2
NEEDS = ("add_row",)

from labkit import cuda


# %%
@cuda.jit
def scale_middle(a, g, out, ny, nz):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < out.size:
        y = i // nz % ny
        out[i] = a[i] * g[y]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, relative_to, uniform
from labkit.course.exercises.broadcast import flat, volumes

EXERCISE = KernelExercise(
    name="scale_middle",
    reference=lambda a, g: a.astype(np.float64) * g.astype(np.float64)[None, :, None],
    inputs=lambda rng, X, Y, Z: (uniform(rng, X, Y, Z), uniform(rng, Y)),
    shape=lambda X, Y, Z: (X, Y, Z),
    sizes=volumes((1, 1, 1), (1, 5, 1), (3, 1, 4), (4, 4, 4), (2, 3, 5), (5, 3, 2), (13, 11, 17)),
    launch=lambda X, Y, Z: (-(-X * Y * Z // 128), 128),
    arguments=lambda inputs, out, size: (flat(inputs[0]), inputs[1], flat(out), size["Y"], size["Z"]),
    tolerance=relative_to(lambda a, g: np.abs(a) * np.abs(g)[None, :, None], roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "`i // nz` keeps counting from one x to the next: `% ny` is missing":
            Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i // nz]"),
        "`i % ny`, as if y ran fastest": Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i % ny]"),
        "`i // (ny * nz)`, which is x": Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i // (ny * nz)]"),
        "`ny` and `nz` swapped": Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i // ny % nz]"),
        "`<=` instead of `<` in the guard": Edit("if i < out.size:", "if i <= out.size:"),
    },
)
