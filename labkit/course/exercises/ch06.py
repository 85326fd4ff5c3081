"""The exercises of lesson 06: thread tiles, four numbers at a time, and copies that are in flight.

Sizes are M (rows of the output), N (its columns) and K (the length of the dot products), as in
labkit.kernels.matmul.float32.
"""

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import asks, times_used
from labkit.course.exercises.domains import SUMMED, of
from labkit.device import ptx
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import dot_products

ZERO = float32(0.0)


# --- Predict: a thread tile ------------------------------------------------------------------------------------------

THREAD_TILE = {"loads": 6 + 4, "products": 6 * 4, "busy": 60, "tile_bytes": (96 + 64) * 8 * 4}

PREDICT_PATCH = PredictionExercise(
    name="predict_patch",
    truth=lambda: THREAD_TILE,
    how={"loads": "a number for each row of the patch, and one for each of its columns",
         "products": "each of the one kind meets each of the other",
         "busy": "100 * products / (4 * loads)",
         "tile_bytes": "16 threads times 6 rows, 16 threads times 4 columns, 8 steps of k, 4 bytes"},
    wrong={"a load for each factor of each product": {**THREAD_TILE, "loads": 48, "busy": 12},
           "shared memory serves four warps, too": {**THREAD_TILE, "busy": 100},
           "one tile, not two": {**THREAD_TILE, "tile_bytes": 96 * 8 * 4}},
)


# --- x @ w.T, four by four -------------------------------------------------------------------------------------------


def _make_linear_patch(transposed=True, guard_loads=True, guard_stores=True, apart=4, reset=True):
    """The exercise's kernel, or with one thing wrong about it."""

    @cuda.jit
    def linear_patch(x, w, out):
        col0, row0 = cuda.grid(2)
        row0, col0 = row0 * apart, col0 * apart
        rows, cols = out.shape
        sums = cuda.local.array((4, 4), float32)
        x_part = cuda.local.array(4, float32)
        w_part = cuda.local.array(4, float32)
        if reset:
            for i in range(4):
                for j in range(4):
                    sums[i, j] = ZERO
        for k in range(x.shape[1]):
            for i in range(4):
                x_part[i] = x[row0 + i, k] if not guard_loads or row0 + i < rows else ZERO
                if transposed:
                    w_part[i] = w[col0 + i, k] if not guard_loads or col0 + i < cols else ZERO
                else:
                    w_part[i] = w[k, col0 + i] if col0 + i < cols and k < w.shape[0] else ZERO
            for i in range(4):
                for j in range(4):
                    sums[i, j] += x_part[i] * w_part[j]
        for i in range(4):
            for j in range(4):
                if not guard_stores or (row0 + i < rows and col0 + j < cols):
                    out[row0 + i, col0 + j] = sums[i, j]

    return linear_patch


@cuda.jit
def linear_one_element(x, w, out):
    col0, row0 = cuda.grid(2)
    rows, cols = out.shape
    for i in range(4):
        for j in range(4):
            row, col = row0 * 4 + i, col0 * 4 + j
            if row < rows and col < cols:
                total = ZERO
                for k in range(x.shape[1]):
                    total += x[row, k] * w[col, k]
                out[row, col] = total


@asks("In each step of k a thread loads eight numbers.")
def _loads_once(report):
    """At 32 x 32 x 2: the 64 thread tiles load 8 numbers a step each, 1,024 in all; element by element it is 4,096."""
    loads = report.counts["global_loads"]
    if loads <= 2048:
        return None
    return (f"At M = 32, N = 32, K = 2 the threads load {loads:,} numbers from global memory. 8 for each step and "
            f"thread tile make 1,024: load a number once, into `x_part` or `w_part`, and use it four times.")


LINEAR_PATCH = KernelExercise(
    name="linear_patch",
    reference=lambda x, w: x.astype(np.float64) @ w.astype(np.float64).T,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, N, K)),
    shape=lambda M, N, K: (M, N),
    sizes=tuple({"M": M, "N": N, "K": K} for M, N, K in
                ((1, 1, 1), (5, 3, 4), (3, 5, 2), (32, 32, 2), (33, 34, 7), (64, 31, 16))),
    observe_sizes=({"M": 5, "N": 3, "K": 4}, {"M": 32, "N": 32, "K": 2}),
    launch=lambda M, N, K: ((-(-N // 32), -(-M // 32)), (8, 8)),
    tolerance=dot_products(lambda x, w: np.abs(x) @ np.abs(w).T, length=lambda x, w: x.shape[1]),
    demand=_loads_once,
    domain=of((0, 1), *SUMMED),
    wrong={"`w[k, col]`: it multiplies by `w`, not by its transpose": _make_linear_patch(transposed=False),
           "the loads have no guard": _make_linear_patch(guard_loads=False),
           "the stores have no guard": _make_linear_patch(guard_stores=False),
           "neighbouring patches overlap: they begin one element apart, not four": _make_linear_patch(apart=1),
           "the sums do not begin at 0": _make_linear_patch(reset=False),
           "it loads each number again for each product": linear_one_element},
)


# --- An outer product, four by four ----------------------------------------------------------------------------------


def _make_outer_tiles(swapped=False, guarded=True, apart=4, rows=4):
    @cuda.jit
    def outer_tiles(x, y, out):
        col, row = cuda.grid(2)
        row, col = row * apart, col * apart
        if not guarded or (row < out.shape[0] and col < out.shape[1]):
            a = ptx.load_nc4(x, row)
            b = ptx.load_nc4(y, col)
            for i in range(rows):
                at = (row + i) * out.shape[1] + col
                if swapped:
                    ptx.store_global4(out, at, a[0] * b[i], a[1] * b[i], a[2] * b[i], a[3] * b[i])
                else:
                    ptx.store_global4(out, at, a[i] * b[0], a[i] * b[1], a[i] * b[2], a[i] * b[3])

    return outer_tiles


@cuda.jit
def outer_by_elements(x, y, out):
    col, row = cuda.grid(2)
    for i in range(4):
        for j in range(4):
            if row * 4 + i < out.shape[0] and col * 4 + j < out.shape[1]:
                out[row * 4 + i, col * 4 + j] = x[row * 4 + i] * y[col * 4 + j]


OUTER_OBSERVED = {"M": 8, "N": 12}


@asks("A thread makes two loads and four stores, of 128 bits each, and no others.")
def _four_at_a_time(report):
    """8 x 12 elements are 6 thread tiles: two loads of 128 bits each, and four stores."""
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= 12 and stores <= 24:
        return None
    return (f"At M = 8, N = 12 the threads make {loads} loads and {stores} stores. With 128 bits at a time, the 6 "
            "thread tiles need 2 loads and 4 stores each: 12 and 24.")


OUTER_TILES = KernelExercise(
    name="outer_tiles",
    reference=lambda x, y: np.outer(x.astype(np.float64), y.astype(np.float64)),
    inputs=lambda rng, M, N: (uniform(rng, M), uniform(rng, N)),
    shape=lambda M, N: (M, N),
    sizes=({"M": 4, "N": 4}, OUTER_OBSERVED, {"M": 36, "N": 20}, {"M": 32, "N": 64}),
    random_size=lambda rng: {"M": 4 * int(rng.integers(1, 20)), "N": 4 * int(rng.integers(1, 20))},
    observe_sizes=(OUTER_OBSERVED,),
    demand=_four_at_a_time,
    launch=lambda M, N: ((-(-N // 32), -(-M // 32)), (8, 8)),
    tolerance=dot_products(lambda x, y: np.abs(np.outer(x, y)), length=lambda x, y: 1),
    domain=of((0, 1), *SUMMED),
    wrong={"rows and columns of a thread tile exchanged": _make_outer_tiles(swapped=True),
           "no guard: threads beyond the edges load and store": _make_outer_tiles(guarded=False),
           "thread tiles begin one element apart": _make_outer_tiles(apart=1),
           "only three of four rows are stored": _make_outer_tiles(rows=3),
           "one element at a time": outer_by_elements},
)


# --- Find the bug: the last copy -------------------------------------------------------------------------------------


@asks("The rows of `a` come by asynchronous copies, and by nothing else.")
def _by_asynchronous_copies(report) -> str | None:
    copies, loads = times_used(report, "ptx.cp_async_4", "ptx.cp_async_16"), report.counts["global_loads"]
    if copies and copies >= loads:
        return None
    return (f"Of {loads:,} loads from global memory {copies:,} are asynchronous copies, and all are asked for: the "
            "next row must be in flight while this one is added, by `ptx.cp_async_4`.")


@cuda.jit
def mirrored_sums_by_loads(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    total = ZERO
    for row in range(a.shape[0]):
        tile[i] = a[row, i]
        cuda.syncthreads()
        total += tile[63 - i]
        cuda.syncthreads()
    out[i] = total


MIRRORED_SUMS = KernelExercise(
    name="mirrored_sums",
    reference=lambda a: a.astype(np.float64).sum(axis=0)[::-1],
    inputs=lambda rng, R: (uniform(rng, R, 64),),
    shape=lambda R: (64,),
    sizes=tuple({"R": R} for R in (1, 2, 3, 6)),
    launch=lambda R: (1, 64),
    tolerance=dot_products(lambda a: np.abs(a).sum(axis=0)[::-1], length=lambda a: a.shape[0]),
    domain=of(0, *SUMMED),
    demand=_by_asynchronous_copies,
    wrong={
        "in the last round there is one group only, and the wait lets it pass":
            Edit("ptx.cp_async_commit()\n"
                 "ptx.cp_async_wait(1)",
                 "    ptx.cp_async_commit()\n"
                 "ptx.cp_async_wait(1)"),
        "nothing waits for the copies": Edit("ptx.cp_async_wait(1)", ""),
        "no barrier between the wait and the reads":
            Edit("cuda.syncthreads()\n"
                 "total += tile[row % 2 * 64 + 63 - i]",
                 "total += tile[row % 2 * 64 + 63 - i]"),
        "no barrier between the reads and the next copy into the same place":
            Edit("cuda.syncthreads()\n"
                 "row = after",
                 "row = after"),
        "no asynchronous copies: every row is waited for": mirrored_sums_by_loads,
    },
)


# --- Predict: traffic ------------------------------------------------------------------------------------------------

TRAFFIC = {"loaded": 2 * 128 * 4096, "flop_per_byte": 32, "rounds": 4, "ring_bytes": 3 * 16 * (132 + 128) * 4}

PREDICT_TRAFFIC = PredictionExercise(
    name="predict_traffic",
    truth=lambda: TRAFFIC,
    how={"loaded": "128 rows of a and 128 columns of b, each 4,096 long",
         "flop_per_byte": "2 * 128 * 128 * 4,096 flops for 4 * `loaded` bytes",
         "rounds": "32 * 32 blocks, 2 * 132 at a time, rounded up",
         "ring_bytes": "three pairs of tiles of 16 lines, each 132 + 128 numbers of 4 bytes"},
    wrong={"each element of the tile loads a row and a column of its own":
           {**TRAFFIC, "loaded": 2 * 128 * 128 * 4096, "flop_per_byte": 0.25},
           "numbers, not bytes": {**TRAFFIC, "flop_per_byte": 128},
           "one block on a multiprocessor": {**TRAFFIC, "rounds": 8},
           "without the four numbers at the end of a line": {**TRAFFIC, "ring_bytes": 3 * 16 * 256 * 4}},
)

EXERCISES = (PREDICT_PATCH, LINEAR_PATCH, OUTER_TILES, MIRRORED_SUMS, PREDICT_TRAFFIC)
