"""The exercises of lesson 11: programs over blocks, masks, padding, tiles. All of them run without a GPU.

Two are in Numba and take a program's shape by hand; one is a tile program, which runs on the model of cuTile.
"""


import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import on_the_device, shuffles
from labkit.course.exercises.domains import EXPONENTIALS, SUMMED, ZEROS, largest_at, of, parameter
from labkit.kernels.libraries import cutile_model as ct
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32, dot_products, relative_to

BLOCK, THREADS = 256, 64


def _wide(*arrays):
    return (array.astype(np.float64) for array in arrays)


# --- Predict: masks --------------------------------------------------------------------------------------------------

PREDICT_MASKS = PredictionExercise(
    name="predict_masks",
    truth=lambda: {"programs": 98, "masked": 352, "length": 1024, "wasted": 243},
    how={"programs": "100,000 elements, 1,024 a program, and a last program that is only partly full",
         "masked": "all programs together have `programs` times 1,024 places",
         "length": "the smallest power of two that a row of 781 fits into",
         "wasted": "places of that vector without an element"},
    wrong={"the last, partly full program is missing": {"programs": 97},
           "the places that are used in the last program, not those that are masked": {"masked": 672},
           "the row's own length: 781 is no power of two": {"length": 781},
           "the last program's places are counted as if the row ended at a multiple of 32": {"wasted": 19}},
)


# --- A program by hand -----------------------------------------------------------------------------------------------


@cuda.jit
def axpy_first_part_only(s, x, y, out):
    i = cuda.blockIdx.x * BLOCK + cuda.threadIdx.x
    if i < out.size:
        out[i] = s * x[i] + y[i]


@cuda.jit
def axpy_mask_of_the_first(s, x, y, out):
    start = cuda.blockIdx.x * BLOCK
    if start + BLOCK - THREADS + cuda.threadIdx.x < out.size:
        for step in range(0, BLOCK, THREADS):
            i = start + step + cuda.threadIdx.x
            out[i] = s * x[i] + y[i]


@cuda.jit
def axpy_by_thread_0(s, x, y, out):
    if cuda.threadIdx.x == 0:
        for i in range(cuda.blockIdx.x * BLOCK, min(cuda.blockIdx.x * BLOCK + BLOCK, out.size)):
            out[i] = s * x[i] + y[i]


def _axpy_reference(s, x, y):
    x, y = _wide(x, y)
    return np.float64(s) * x + y


AXPY_PROGRAM = KernelExercise(
    name="axpy_program",
    reference=_axpy_reference,
    inputs=lambda rng, n: (np.float32(rng.uniform(1.5, 3)), uniform(rng, n), uniform(rng, n)),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 63, 64, 65, 255, 256, 257, 1000)),
    launch=lambda n: (-(-n // BLOCK), THREADS),
    tolerance=relative_to(lambda s, x, y: np.abs(s * x) + np.abs(y), roundings=2),
    benign_races=False,  # each element is computed by one thread
    domain=(*of((1, 2), *SUMMED), *parameter(0, "s", 1, 0, -2.5)),
    wrong={
        "the blocks begin 64 elements apart, not 256: they compute the same elements, and the end is never reached":
            Edit("start = cuda.blockIdx.x * 256", "start = cuda.blockIdx.x * 64"),
        "only the first 64 elements of each block are computed": axpy_first_part_only,
        "no mask": Edit("if i < out.size:", "if True:"),
        "one mask for all four elements of a thread, that of the last": axpy_mask_of_the_first,
        "the steps are 128 apart: every other 64 elements are left out":
            Edit("range(0, 256, 64)", "range(0, 256, 128)"),
        "the first thread of each block does the work of all 64": axpy_by_thread_0,
    },
)


# --- Find the bug: the padding of a maximum --------------------------------------------------------------------------


def _softmax_reference(x):
    x = x.astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _softmax_rows(rng, R, C):
    x = 4 * uniform(rng, R, C)
    x[::2] -= 150  # far below 0, where exp(x) without a shift is 0
    return (x,)


def _softmax_tolerance(x):
    below, far = x.max(axis=1, keepdims=True) - x, np.abs(x).max(axis=1, keepdims=True)
    return EPS32 * (16 + below + 2 * far) * _softmax_reference(x) + 1e-37


PADDED_SOFTMAX = KernelExercise(
    name="padded_softmax",
    reference=_softmax_reference,
    inputs=_softmax_rows,
    shape=lambda R, C: (R, C),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 3), (3, 31), (4, 63), (5, 64), (7, 50))),
    random_size=lambda rng: {"R": int(rng.integers(1, 9)), "C": int(rng.integers(1, 65))},
    launch=lambda R, C: (R, 64),
    tolerance=_softmax_tolerance,
    domain=(*of(0, *EXPONENTIALS, ZEROS), *of(0, largest_at(63), at={"R": 2, "C": 64})),
    wrong={
        "the places without an element hold 0, and take part in the maximum and in the sum":
            Edit("float32(-np.inf)", "float32(0.0)"),
        "the places without an element hold 0, and take part in the maximum":
            Edit("float32(-np.inf)", "float32(0.0)",
                 "math.exp(value - largest)", "math.exp(value - largest) if t < x.shape[1] else float32(0.0)"),
        "each place without an element adds 1 to the sum":
            Edit("math.exp(value - largest)", "math.exp(value - largest) if t < x.shape[1] else float32(1.0)"),
        "no barrier between the search for the maximum and the exponentials":
            Edit("cuda.syncthreads()\n"
                 "tile[t] = math.exp(value - largest)",
                 "tile[t] = math.exp(value - largest)"),
        "places without an element are stored, too": Edit("if t < x.shape[1]:", "if True:"),
        "the places without an element hold -1000, and rows may lie below that":
            Edit("float32(-np.inf)", "float32(-1000.0)"),
    },
)


# --- A product in tiles ----------------------------------------------------------------------------------------------


def _over_tiles(program):
    """The launcher that the learner has, around another program."""
    def launcher(a, b, out):
        steps = ct.cdiv(a.shape[1], 16)
        ct.launch(None, (ct.cdiv(out.shape[0], 16), ct.cdiv(out.shape[1], 16), 1), program, (a, b, out, steps))

    return launcher


def _product_without_padding(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        total = ct.mma(ct.load(a, (row, k), (16, 16)), ct.load(b, (k, col), (16, 16)), total)
    ct.store(out, (row, col), total)


def _product_last_step_only(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, k), (16, 16), padding_mode=zero)
        right = ct.load(b, (k, col), (16, 16), padding_mode=zero)
        total = ct.mma(left, right, ct.full((16, 16), 0, ct.float32))
    ct.store(out, (row, col), total)


def _product_first_tiles(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for _ in range(steps):
        left = ct.load(a, (row, 0), (16, 16), padding_mode=zero)
        right = ct.load(b, (0, col), (16, 16), padding_mode=zero)
        total = ct.mma(left, right, total)
    ct.store(out, (row, col), total)


def _product_counts_elements(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, 16 * k), (16, 16), padding_mode=zero)
        total = ct.mma(left, ct.load(b, (16 * k, col), (16, 16), padding_mode=zero), total)
    ct.store(out, (row, col), total)


def _product_tile_not_moved(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, k), (16, 16), padding_mode=zero)
        total = ct.mma(left, ct.load(b, (k, 0), (16, 16), padding_mode=zero), total)
    ct.store(out, (row, col), total)


def _product_reference(a, b):
    a, b = _wide(a, b)
    return a @ b


def product_on_the_host(a, b, out):
    out.copy_to_device(a.copy_to_host() @ b.copy_to_host())


TILE_PRODUCT = FunctionExercise(
    name="tile_product",
    reference=_product_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=tuple({"M": M, "N": N, "K": K} for M, N, K in ((1, 1, 1), (3, 5, 2), (16, 16, 16), (17, 18, 1), (1, 33, 17),
                                                         (33, 1, 31), (37, 23, 19), (20, 35, 50))),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    demand=on_the_device,
    wrong={"beyond the edges of `a` and `b` the tiles hold whatever a load puts there: padding_mode is left out":
           _over_tiles(_product_without_padding),
           "the sum begins again at every step: only the last one is left": _over_tiles(_product_last_step_only),
           "every step multiplies the first tiles again": _over_tiles(_product_first_tiles),
           "the index counts elements, where a load counts tiles": _over_tiles(_product_counts_elements),
           "the column of tiles of `b` is always the first": _over_tiles(_product_tile_not_moved),
           "NumPy computes the whole product, on the host": product_on_the_host},
)

# --- From a blank page: row sums -------------------------------------------------------------------------------------


@cuda.jit
def row_sums_by_lane_0(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    if lane == 0:
        total = np.float32(0)
        for col in range(x.shape[1]):
            total += x[row, col]
        out[row] = total


ROW_SUMS = KernelExercise(
    name="row_sums",
    reference=lambda x: x.astype(np.float64).sum(axis=1),
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (R,),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 31), (3, 32), (4, 33), (5, 100), (2, 781))),
    launch=lambda R, C: (R, 32),
    tolerance=dot_products(lambda x: np.abs(x).sum(axis=1), length=lambda x: x.shape[1]),
    domain=of(0, *SUMMED),
    demand=shuffles,
    wrong={
        "only the first 32 elements of a row are added":
            Edit("total = float32(0.0)\n"
                 "for col in range(lane, x.shape[1], 32):\n"
                 "    total += x[row, col]",
                 "total = x[row, lane] if lane < x.shape[1] else float32(0.0)"),
        "the lanes never join their sums":
            Edit("for offset in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)",
                 ""),
        "the last element stands in for those that are missing":
            Edit("total = float32(0.0)",
                 "last = x.shape[1] - 1\n"
                 "total = float32(0.0)",
                 "for col in range(lane, x.shape[1], 32):", "for start in range(0, x.shape[1], 32):",
                 "total += x[row, col]", "total += x[row, min(start + lane, last)]"),
        "lane 31 stores, and the sum is in lane 0": Edit("if lane == 0:", "if lane == 31:"),
        "lane 0 adds up the whole row, and 31 lanes wait": row_sums_by_lane_0,
    },
)

EXERCISES = (PREDICT_MASKS, AXPY_PROGRAM, PADDED_SOFTMAX, TILE_PRODUCT, ROW_SUMS)
