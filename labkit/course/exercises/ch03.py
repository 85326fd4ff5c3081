"""The exercises of lesson 03: addresses and neighbours in a volume, planes and axes, and what a block's shape asks for.

Volumes have the shape (nz, ny, nx); a thread's coordinates are (x, y, z). No two axes of a size are equal unless they
are 1, so that exchanged axes show.
"""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.domains import MOVED, SUMMED, of
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to

BLOCK = (32, 4, 2)
VOLUMES = tuple({"nx": nx, "ny": ny, "nz": nz} for nx, ny, nz in
                ((1, 1, 1), (5, 3, 2), (2, 7, 3), (9, 5, 4), (33, 1, 5), (1, 37, 3), (6, 4, 31), (41, 17, 9)))


def _grid(extent: tuple, block: tuple) -> tuple:
    return tuple(-(-size // width) for size, width in zip(extent, block, strict=True))


def _launch(nx, ny, nz):
    return _grid((nx, ny, nz), BLOCK), BLOCK


def _volume(rng, nx, ny, nz):
    return (uniform(rng, nz, ny, nx),)


def _flat(array):
    return array.reshape(array.size)


# --- layer_above ---------------------------------------------------------------------------------------------------


def _layer_above(nx, ny, nz):
    above = np.arange(nx * ny, nx * ny * (nz + 1)).reshape(nz, ny, nx)
    above[-1] = -1
    return above


@cuda.jit
def above_next_row(out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        i = x + y * nx + z * nx * ny
        out[i] = i + nx if z + 1 < nz else -1


@cuda.jit
def above_next_element(out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        i = x + y * nx + z * nx * ny
        out[i] = i + 1 if z + 1 < nz else -1


@cuda.jit
def above_layer_nx_nz(out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        i = x + y * nx + z * nx * ny
        out[i] = i + nx * nz if z + 1 < nz else -1


@cuda.jit
def above_no_top(out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        i = x + y * nx + z * nx * ny
        out[i] = i + nx * ny


LAYER_ABOVE = KernelExercise(
    name="layer_above",
    reference=_layer_above,
    inputs=lambda rng, nx, ny, nz: (nx, ny, nz),
    shape=lambda nx, ny, nz: (nz, ny, nx),
    dtype=np.int32,
    sizes=VOLUMES,
    launch=_launch,
    arguments=lambda inputs, out, size: (_flat(out), *inputs),
    domain="Its inputs are the lengths of the axes, and `sizes` has the awkward ones.",
    wrong={
        "the step is one row, nx, which leads to the next y": above_next_row,
        "the step is one element, which leads to the next x": above_next_element,
        "a layer is taken to have nx * nz elements": above_layer_nx_nz,
        "the top layer has nothing above it, and gets an address outside the volume": above_no_top,
    },
)


# --- flip_y --------------------------------------------------------------------------------------------------------


def _flip_baseline(xp, v, out):
    out[:] = xp.flip(v, (1,))


FLIP_Y = KernelExercise(
    name="flip_y",
    reference=lambda v: v[:, ::-1],
    inputs=_volume,
    shape=lambda nx, ny, nz: (nz, ny, nx),
    sizes=VOLUMES,
    launch=_launch,
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


# --- cut_plane -----------------------------------------------------------------------------------------------------


CUT_PLANE = KernelExercise(
    name="cut_plane",
    reference=lambda v, y: v[:, y],
    inputs=lambda rng, nx, ny, nz: (*_volume(rng, nx, ny, nz), int(rng.integers(ny))),
    shape=lambda nx, ny, nz: (nz, nx),
    sizes=VOLUMES,
    launch=lambda nx, ny, nz: (_grid((nx, nz), (32, 4)), (32, 4)),
    arguments=lambda inputs, out, size: (_flat(inputs[0]), inputs[1], out, size["nx"], size["ny"]),
    domain=(*of(0, MOVED), Reach("the plane is the first", lambda rng, v, y: (v, 0)),
            Reach("the plane is the last", lambda rng, v, y: (v, v.shape[1] - 1))),
    wrong={
        "y and z have changed places in the address: it cuts at a fixed z":
            Edit("out[z, x] = v[x + y * nx + z * nx * ny]", "out[z, x] = v[x + z * nx + y * nx * ny]"),
        "a step along z jumps over a row, nx, where it has to jump over a layer, nx * ny":
            Edit("out[z, x] = v[x + y * nx + z * nx * ny]", "out[z, x] = v[x + y * nx + z * nx]"),
        "there is no guard along z": Edit("if z < out.shape[0] and x < out.shape[1]:", "if x < out.shape[1]:"),
        "cuda.grid(2) gives x first, and here z is taken from it first":
            Edit("x, z = cuda.grid(2)", "z, x = cuda.grid(2)"),
    },
)


# --- predict_sectors -----------------------------------------------------------------------------------------------


@cuda.jit
def touched_kernel(touched, warp, nx, ny):
    x, y, z = cuda.grid(3)
    row = cuda.threadIdx.y + cuda.threadIdx.z * cuda.blockDim.y
    lane = cuda.threadIdx.x + row * cuda.blockDim.x - 32 * warp
    if 0 <= lane < 32:
        touched[lane] = x + y * nx + z * nx * ny


def _sectors(block: tuple, warp: int = 0, nx: int = 512, ny: int = 512) -> int:
    touched = cuda.to_device(np.full(32, -1, np.int64))
    touched_kernel[1, block](touched, warp, nx, ny)
    return len(np.unique(touched.copy_to_host() * 4 // 32))


PREDICT_SECTORS = PredictionExercise(
    name="predict_sectors",
    truth=lambda: {"rows_of_8": _sectors((8, 32, 4)), "rows_of_2": _sectors((2, 128, 4)),
                   "second_warp": _sectors((32, 8, 4), warp=1, nx=513)},
    how={
        "rows_of_8": "a warp takes four rows of this block. How many bytes is a row of the block, and does it fill the "
                     "sectors that it touches?",
        "rows_of_2": "a warp takes sixteen rows of this block, each in another place of memory. A sector is the least "
                     "that can be delivered for each.",
        "second_warp": "write down the first and the last address of the warp, in floats: it stands at y = 1, and a "
                       "row of the volume has 513. Divide both by eight.",
    },
    wrong={
        "each row of the block is counted as two sectors, and eight floats fill exactly one": {"rows_of_8": 8},
        "these are the bytes in use divided by 32, and each row of the block needs a sector of its own":
            {"rows_of_2": 4},
        "these are the sectors if each number came in one of its own, and two lanes share one here": {"rows_of_2": 32},
        "this holds for a row that begins where a sector begins, and a row of 513 moves all that follow":
            {"second_warp": 4},
    },
)


# --- layer_difference ----------------------------------------------------------------------------------------------


LAYER_DIFFERENCE = KernelExercise(
    name="layer_difference",
    reference=lambda v: np.diff(v.astype(np.float64), axis=0),
    inputs=_volume,
    shape=lambda nx, ny, nz: (nz - 1, ny, nx),
    sizes=tuple(size for size in VOLUMES if size["nz"] > 1),
    launch=_launch,
    arguments=lambda inputs, out, size: (_flat(inputs[0]), _flat(out), size["nx"], size["ny"], size["nz"]),
    tolerance=relative_to(lambda v: np.abs(v[1:]) + np.abs(v[:-1]), roundings=1),
    domain=of(0, *SUMMED),
    wrong={
        "a step along y jumps over ny elements, and a row has nx":
            Edit("i = x + y * nx + z * nx * ny", "i = x + y * ny + z * nx * ny"),
        "nx and ny have changed places in the guard":
            Edit("if x < nx and y < ny and z < nz - 1:", "if x < ny and y < nx and z < nz - 1:"),
        "the guard lets the top layer through, and there is no layer above it":
            Edit("if x < nx and y < ny and z < nz - 1:", "if x < nx and y < ny and z < nz:"),
        "it takes the next row, nx further, in place of the next layer":
            Edit("out[i] = v[i + nx * ny] - v[i]", "out[i] = v[i + nx] - v[i]"),
    },
)


# --- x_to_front ----------------------------------------------------------------------------------------------------


def _front_baseline(xp, v, out):
    out[:] = xp.moveaxis(v, 2, 0)


X_TO_FRONT = KernelExercise(
    name="x_to_front",
    reference=lambda v: np.moveaxis(v, 2, 0),
    inputs=_volume,
    shape=lambda nx, ny, nz: (nx, nz, ny),
    sizes=VOLUMES,
    launch=_launch,
    timed_gpu={"nx": 512, "ny": 512, "nz": 512},
    baseline=_front_baseline,
    domain=of(0, MOVED),
    wrong={
        "y and z have changed places as well: these are all three axes backwards":
            Edit("out[x, z, y] = v[z, y, x]", "out[x, y, z] = v[z, y, x]"),
        "the elements stay in the order of memory: a reshape, where the axes should change places":
            Edit("out[x, z, y] = v[z, y, x]",
                 "i = x + y * nx + z * nx * ny\n"
                 "out[i // (nz * ny), i // ny % nz, i % ny] = v[z, y, x]"),
        "z goes to the end, which brings y to the front, not x":
            Edit("out[x, z, y] = v[z, y, x]", "out[y, x, z] = v[z, y, x]"),
        "the guard uses the axes of out as if they were x, y and z":
            Edit("if x < nx and y < ny and z < nz:", "if x < out.shape[2] and y < out.shape[1] and z < out.shape[0]:"),
    },
)

EXERCISES = (LAYER_ABOVE, FLIP_Y, CUT_PLANE, PREDICT_SECTORS, LAYER_DIFFERENCE, X_TO_FRONT)
