"""One kernel for every broadcast

"Broadcasting is a step of zero", says the lesson. Take that literally, and one kernel serves all shapes. `a` and `out`
have three axes. `b` is flattened and comes with three steps, counted in elements: how far its index moves for one more
x, one more y, one more z.

| shape of `b` for `a` of (5, 3, 7) | x_step | y_step | z_step |
|---|---|---|---|
| (5, 3, 7) | 21 | 7 | 1 |
| (1, 3, 7), one bias for the whole batch | 0 | 7 | 1 |
| (5, 1, 7) | 7 | 0 | 1 |
| (1, 1, 1) | 0 | 0 | 0 |

Write `add_broadcast(a, b, out, x_step, y_step, z_step)` from the decorator down. The grid has three axes, with its x
along z, its y along y and its z along x, in blocks of 32 × 4 × 2.
"""

HINTS = ("Where is element b[x, y, z] if you know how far a step in x, in y and in z takes you? What happens where a "
         "step is 0?",
         "There is no special case to write: the index is each coordinate times its step, added up. a and out are "
         "indexed with three coordinates; guard all three.",
         "z, y, x = cuda.grid(3); in the guard: out[x, y, z] = a[x, y, z] + b[x * x_step + y * ... + z * ...].")
POINTS = 3
NEEDS = ("outer_difference", "scale_middle")

from labkit import cuda

# %%
add_broadcast = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def add_broadcast(a, b, out, x_step, y_step, z_step):
    z, y, x = cuda.grid(3)
    if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:
        out[x, y, z] = a[x, y, z] + b[x * x_step + y * y_step + z * z_step]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, relative_to, uniform
from labkit.course.exercises.broadcast import flat, over_volume


def steps_of(bX: int, bY: int, bZ: int, **_) -> tuple[int, int, int]:
    """Elements from one x, y, z to the next in a C-contiguous (bX, bY, bZ); 0 along an axis of length 1."""
    return (bY * bZ if bX > 1 else 0, bZ if bY > 1 else 0, 1 if bZ > 1 else 0)


def _with_operand(X, Y, Z, bX, bY, bZ):
    return {"X": X, "Y": Y, "Z": Z, "bX": bX, "bY": bY, "bZ": bZ}


def _random_operand(rng):
    volume = [int(rng.integers(2, high)) for high in (7, 12, 40)]
    return _with_operand(*volume, *(length if rng.random() < 0.5 else 1 for length in volume))


EXERCISE = KernelExercise(
    name="add_broadcast",
    reference=lambda a, b: a.astype(np.float64) + b.astype(np.float64),
    inputs=lambda rng, X, Y, Z, bX, bY, bZ: (uniform(rng, X, Y, Z), uniform(rng, bX, bY, bZ)),
    shape=lambda X, Y, Z, **_: (X, Y, Z),
    sizes=tuple(_with_operand(*size) for size in (
        (1, 1, 1, 1, 1, 1), (2, 3, 5, 2, 3, 5), (2, 3, 5, 1, 3, 5), (5, 3, 2, 5, 3, 1), (5, 3, 7, 5, 1, 7),
        (4, 4, 4, 1, 4, 1), (2, 9, 65, 1, 1, 65), (13, 11, 17, 13, 1, 1), (13, 11, 17, 1, 1, 1))),
    random_size=_random_operand,
    launch=over_volume,
    arguments=lambda inputs, out, size: (inputs[0], flat(inputs[1]), out, *steps_of(**size)),
    tolerance=relative_to(lambda a, b: np.abs(a) + np.abs(b), roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "the steps of x and z are swapped":
            Edit("x_step + y * y_step + z * z_step", "z_step + y * y_step + z * x_step"),
        "the index into `b` wraps around with `%`: right only for axes that are missing on the left":
            Edit("out[x, y, z] = a[x, y, z] + b[x * x_step + y * y_step + z * z_step]",
                 "i = (x * out.shape[1] + y) * out.shape[2] + z\n"
                 "out[x, y, z] = a[x, y, z] + b[i % b.size]"),
        "the steps are not used: `b` is read as if it were as large as `a`":
            Edit("x * x_step + y * y_step + z * z_step", "(x * out.shape[1] + y) * out.shape[2] + z"),
        "no guard": Edit("if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:", "if True:"),
        "`x, y, z = cuda.grid(3)`, but the grid's x runs along z":
            Edit("z, y, x = cuda.grid(3)", "x, y, z = cuda.grid(3)"),
    },
)

AFTER = """
This is what NumPy does, too. Its arrays carry their steps with them, in bytes, as `np.broadcast_to(b, a.shape).strides`
shows, and one loop serves all shapes.
"""
