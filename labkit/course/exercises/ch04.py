"""The exercises of lesson 04: which element of a small array belongs to which thread.

Matrices have the shape (R, C) and volumes (X, Y, Z), as NumPy writes them: C and Z run fastest in memory.
"""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.domains import SUMMED, of
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to

WIDE = (32, 8)  # threads along the columns and the rows of a matrix
LONG = (32, 4, 2)  # threads along z, y, x of a volume: a grid of them overhangs every axis
GRID_TRANSPOSED = "`row, col = cuda.grid(2)`, where the grid is laid with its x along the columns"


def _over_matrix(R, C):
    return (-(-C // WIDE[0]), -(-R // WIDE[1])), WIDE


def _over_volume(X, Y, Z, **_):
    return (-(-Z // LONG[0]), -(-Y // LONG[1]), -(-X // LONG[2])), LONG


def _flat(array):
    return array.reshape(array.size)


def _matrices(*sizes):
    return tuple({"R": R, "C": C} for R, C in sizes)


def _volumes(*sizes):
    return tuple({"X": X, "Y": Y, "Z": Z} for X, Y, Z in sizes)


# --- A row vector added to each row --------------------------------------------------------------------------------


ADD_ROW = KernelExercise(
    name="add_row",
    reference=lambda a, v: a.astype(np.float64) + v.astype(np.float64)[None, :],
    inputs=lambda rng, R, C: (uniform(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=_matrices((1, 1), (1, 7), (5, 3), (3, 5), (8, 32), (37, 23), (19, 70)),
    launch=_over_matrix,
    tolerance=relative_to(lambda a, v: np.abs(a) + np.abs(v)[None, :], roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "`v` is read at the row, and not at the column":
            Edit("out[row, col] = a[row, col] + v[col]", "out[row, col] = a[row, col] + v[row]"),
        "every element adds the same `v[0]`":
            Edit("out[row, col] = a[row, col] + v[col]", "out[row, col] = a[row, col] + v[0]"),
        "`v` is never added": Edit("out[row, col] = a[row, col] + v[col]", "out[row, col] = a[row, col]"),
        GRID_TRANSPOSED: Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
    },
)


# --- The difference of each pair -----------------------------------------------------------------------------------


OUTER_DIFFERENCE = KernelExercise(
    name="outer_difference",
    reference=lambda a, b: a.astype(np.float64)[:, None] - b.astype(np.float64)[None, :],
    inputs=lambda rng, R, C: (uniform(rng, R), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=_matrices((1, 1), (1, 7), (5, 3), (3, 5), (8, 32), (37, 23), (19, 70)),
    launch=_over_matrix,
    tolerance=relative_to(lambda a, b: np.abs(a)[:, None] + np.abs(b)[None, :], roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "`a` is read at the column and `b` at the row":
            Edit("out[row, col] = a[row] - b[col]", "out[row, col] = a[col] - b[row]"),
        "`b - a` in place of `a - b`": Edit("out[row, col] = a[row] - b[col]", "out[row, col] = b[col] - a[row]"),
        GRID_TRANSPOSED: Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
        "no guard": Edit("if row < out.shape[0] and col < out.shape[1]:", "if True:"),
        "a guard for the rows, and none for the columns":
            Edit("if row < out.shape[0] and col < out.shape[1]:", "if row < out.shape[0]:"),
    },
)


# --- From a flat index back to a coordinate ------------------------------------------------------------------------


@cuda.jit
def middle_one_too_far(a, g, out, ny, nz):
    i = cuda.grid(1)
    if i <= out.size:
        out[i] = a[i] * g[i // nz % ny]


SCALE_MIDDLE = KernelExercise(
    name="scale_middle",
    reference=lambda a, g: a.astype(np.float64) * g.astype(np.float64)[None, :, None],
    inputs=lambda rng, X, Y, Z: (uniform(rng, X, Y, Z), uniform(rng, Y)),
    shape=lambda X, Y, Z: (X, Y, Z),
    sizes=_volumes((1, 1, 1), (1, 5, 1), (3, 1, 4), (4, 4, 4), (2, 3, 5), (5, 3, 2), (13, 11, 17)),
    launch=lambda X, Y, Z: (-(-X * Y * Z // 128), 128),
    arguments=lambda inputs, out, size: (_flat(inputs[0]), inputs[1], _flat(out), size["Y"], size["Z"]),
    tolerance=relative_to(lambda a, g: np.abs(a) * np.abs(g)[None, :, None], roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "`i // nz` goes on counting through every x: `% ny` is missing":
            Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i // nz]"),
        "`i % ny`, as if y ran fastest": Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i % ny]"),
        "`i // (ny * nz)`, which is x": Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i // (ny * nz)]"),
        "`ny` and `nz` exchanged": Edit("out[i] = a[i] * g[y]", "out[i] = a[i] * g[i // ny % nz]"),
        "`<=` in place of `<` in the guard": middle_one_too_far,
    },
)


# --- Find the bug: it agrees with NumPy on every cube --------------------------------------------------------------


ADD_ALIGNED = KernelExercise(
    name="add_aligned",
    reference=lambda a, b, c: a.astype(np.float64) + b.astype(np.float64) + c.astype(np.float64),
    inputs=lambda rng, X, Y, Z: (uniform(rng, X, Y, Z), uniform(rng, Y, Z), uniform(rng, Z)),
    shape=lambda X, Y, Z: (X, Y, Z),
    sizes=_volumes((1, 1, 1), (4, 4, 4), (2, 3, 5), (5, 3, 2), (3, 7, 1), (1, 2, 40), (13, 11, 17)),
    launch=_over_volume,
    arguments=lambda inputs, out, size: (*map(_flat, inputs), _flat(out), size["X"], size["Y"], size["Z"]),
    tolerance=relative_to(lambda a, b, c: np.abs(a) + np.abs(b) + np.abs(c), roundings=2),
    domain=of((0, 1, 2), *SUMMED),
    wrong={
        "one step in y is taken to be `ny` elements of `b`": Edit("pair = y * nz + z", "pair = y * ny + z"),
        "`c` is read at x": Edit("out[i] = a[i] + b[pair] + c[z]", "out[i] = a[i] + b[pair] + c[x]"),
        "`b` is read at x and y, as in the lesson": Edit("pair = y * nz + z", "pair = x * ny + y"),
    },
)


# --- Predict: how often, and in how many sectors -------------------------------------------------------------------

COUNTED = {"X": 6, "Y": 10, "Z": 8}


def _reads_counted() -> dict:
    """By listing what each thread of out = a + b + c reads, with b (Y, Z) and c (Z,)."""
    X, Y, Z = COUNTED.values()
    x, y, z = np.indices((X, Y, Z))
    lane = np.arange(32)
    lane_z, lane_y, lane_x = lane % 8, lane // 8 % 2, lane // 16
    return {"reads_b": int(np.bincount((y * Z + z).ravel()).max()), "reads_c": int(np.bincount(z.ravel()).max()),
            "sectors_a": len(np.unique(((lane_x * Y + lane_y) * Z + lane_z) // 8)),
            "sectors_b": len(np.unique((lane_y * Z + lane_z) // 8))}


PREDICT_READS = PredictionExercise(
    name="predict_reads",
    truth=_reads_counted,
    how={"reads_b": "One element of `b` belongs to one pair (y, z). How many elements of `out` have that y and that z?",
         "reads_c": "One element of `c` belongs to one z. Along which axes can you walk without changing z?",
         "sectors_a": "Write down x, y and z of lanes 0, 8, 16 and 24, and the index of each in `a`. Eight elements "
                      "make a sector.",
         "sectors_b": "Lanes 0 and 16 differ in x only. Do they want different elements of `b`?"},
    wrong={"the elements of `b` were counted, not the readers of one": {"reads_b": 80},
           "only one of the two axes that `c` lacks was counted": {"reads_c": 10},
           "the lanes that differ in x were given sectors of their own": {"sectors_b": 4},
           "elements were counted, not sectors": {"sectors_b": 16}},
)


# --- One kernel for every broadcast --------------------------------------------------------------------------------


def steps_of(bX: int, bY: int, bZ: int, **_) -> tuple[int, int, int]:
    """Elements from one x, y, z to the next in a C-contiguous (bX, bY, bZ); 0 along an axis of length 1."""
    return (bY * bZ if bX > 1 else 0, bZ if bY > 1 else 0, 1 if bZ > 1 else 0)


def _with_operand(X, Y, Z, bX, bY, bZ):
    return {"X": X, "Y": Y, "Z": Z, "bX": bX, "bY": bY, "bZ": bZ}


def _random_operand(rng):
    volume = [int(rng.integers(2, high)) for high in (7, 12, 40)]
    return _with_operand(*volume, *(length if rng.random() < 0.5 else 1 for length in volume))


ADD_BROADCAST = KernelExercise(
    name="add_broadcast",
    reference=lambda a, b: a.astype(np.float64) + b.astype(np.float64),
    inputs=lambda rng, X, Y, Z, bX, bY, bZ: (uniform(rng, X, Y, Z), uniform(rng, bX, bY, bZ)),
    shape=lambda X, Y, Z, **_: (X, Y, Z),
    sizes=tuple(_with_operand(*size) for size in (
        (1, 1, 1, 1, 1, 1), (2, 3, 5, 2, 3, 5), (2, 3, 5, 1, 3, 5), (5, 3, 2, 5, 3, 1), (5, 3, 7, 5, 1, 7),
        (4, 4, 4, 1, 4, 1), (2, 9, 65, 1, 1, 65), (13, 11, 17, 13, 1, 1), (13, 11, 17, 1, 1, 1))),
    random_size=_random_operand,
    launch=_over_volume,
    arguments=lambda inputs, out, size: (inputs[0], _flat(inputs[1]), out, *steps_of(**size)),
    tolerance=relative_to(lambda a, b: np.abs(a) + np.abs(b), roundings=1),
    domain=of((0, 1), *SUMMED),
    wrong={
        "the steps of x and z are exchanged":
            Edit("x_step + y * y_step + z * z_step", "z_step + y * y_step + z * x_step"),
        "the index into `b` wraps around with `%`: right only for axes that are missing on the left":
            Edit("out[x, y, z] = a[x, y, z] + b[x * x_step + y * y_step + z * z_step]",
                 "i = (x * out.shape[1] + y) * out.shape[2] + z\n"
                 "out[x, y, z] = a[x, y, z] + b[i % b.size]"),
        "the steps are not used: `b` is read as if it were as large as `a`":
            Edit("x * x_step + y * y_step + z * z_step", "(x * out.shape[1] + y) * out.shape[2] + z"),
        "no guard": Edit("if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:", "if True:"),
        "`x, y, z = cuda.grid(3)`, where the grid is laid with its x along z":
            Edit("z, y, x = cuda.grid(3)", "x, y, z = cuda.grid(3)"),
    },
)

EXERCISES = (ADD_ROW, OUTER_DIFFERENCE, SCALE_MIDDLE, ADD_ALIGNED, PREDICT_READS, ADD_BROADCAST)
