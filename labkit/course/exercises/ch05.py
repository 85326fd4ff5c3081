"""The exercises of lesson 05: dot products, tiles in shared memory, and what barriers are for.

Sizes are M (rows of the output), N (its columns) and K (the length of the dot products), as in
labkit.kernels.matmul.float32.

The compiled CPU device takes all threads of a block through a loop together, round by round. A barrier that is missing
between two rounds leaves its numbers right: only observe sees it.
"""

from collections.abc import Callable

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import Demand, asks, elements_of_argument, elements_of_warps
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, FAR_BELOW_ZERO, MOVED, SUMMED, of
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import dot_products

TILE = (16, 16)


def _over(cols, rows):
    return (-(-cols // 16), -(-rows // 16)), TILE


def _products(*sizes):
    return tuple({"M": M, "N": N, "K": K} for M, N, K in sizes)


AWKWARD = _products((1, 1, 1), (3, 5, 2), (5, 3, 4), (16, 16, 16), (1, 33, 17), (33, 1, 31), (17, 18, 1), (37, 23, 19),
                    (20, 35, 50))


def _through_tiles(loads: Callable, staged: Callable) -> Demand:
    """loads(shape of the first array, blocks): so many loads are enough if the threads of a block share them.
    staged(shape): so many places of shared memory the data needs in the first block."""

    @asks("The data goes through shared memory: what several threads of a block need is loaded by one of them.")
    def demand(report) -> str | None:
        if not report.counts["shared_loads"]:
            return ("Nothing is read from shared memory, and this exercise is about that way: stage the data in "
                    "`cuda.shared.array((16, 16), float32)`.")
        _, shape, _ = next(iter(report.arrays.values()))
        enough, made = loads(shape, int(np.prod(report.grid))), report.counts["global_loads"]
        if made > enough:
            return (f"It makes {made:,} loads from global memory, and with tiles of 16 x 16 {enough:,} are enough: a "
                    "thread loads one element of each tile, and takes the others from shared memory.")
        first = elements_of_warps(report, "store", "shared").values()
        stored = len(set().union(*(elements for lanes in first for elements in lanes.values())))
        if stored < staged(shape):
            return (f"{stored:,} numbers are stored in shared memory at the same time, and the tile of a block has "
                    f"{staged(shape):,}: stage the data there, for all threads of the block.")
        return None

    return demand


def _two_tiles_a_step(depth: int) -> Demand:
    """For a product, whose length is axis `depth` of the first array. Two tiles for each 16 numbers of it, and two
    more, where they are loaded ahead."""
    return _through_tiles(lambda shape, blocks: blocks * (-(-shape[depth] // 16) + 1) * 2 * 16 * 16,
                          lambda shape: min(shape[0], 16) * min(shape[1], 16))


@asks("Neighbouring threads load neighbours and store neighbours.",
      _through_tiles(lambda shape, blocks: int(np.prod(shape)), lambda shape: min(shape[0], 16) * min(shape[1], 16)))
def _rows_both_ways(report) -> str | None:
    """Strided accesses on one side move four times as many sectors; sizes are at least a tile."""
    if report.coalescing > 0.5:
        return None
    return (f"Of the bytes in the {report.counts['sectors']:,} sectors that the warps move, {report.coalescing:.0%} "
            "are asked for. Loads along the rows of `a` and stores along the rows of `out` ask for more than half: let "
            "neighbouring threads, `x` and `x + 1`, load neighbours and store neighbours.")


def _wide(*arrays):
    return (array.astype(np.float64) for array in arrays)


# --- Matrix times vector -------------------------------------------------------------------------------------------


@cuda.jit
def matvec_adds_to_out(a, x, out):
    row = cuda.grid(1)
    if row < out.size:
        for k in range(x.size):
            out[row] += a[row, k] * x[k]


MATVEC = KernelExercise(
    name="matvec",
    reference=lambda a, x: a.astype(np.float64) @ x.astype(np.float64),
    inputs=lambda rng, M, K: (uniform(rng, M, K), uniform(rng, K)),
    shape=lambda M, K: (M,),
    sizes=tuple({"M": M, "K": K} for M, K in ((1, 1), (1, 6), (6, 1), (5, 3), (16, 16), (37, 19), (129, 65))),
    launch=lambda M, K: (-(-M // 64), 64),
    tolerance=dot_products(lambda a, x: np.abs(a) @ np.abs(x), length=lambda a, x: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    in_float32=True,
    wrong={
        "`a[k, row]`: it walks down a column of `a`": Edit("total += a[row, k] * x[k]", "total += a[k, row] * x[k]"),
        "`=` in place of `+=`: only the last product is left":
            Edit("total += a[row, k] * x[k]", "total = a[row, k] * x[k]"),
        "`x` is read at the row": Edit("total += a[row, k] * x[k]", "total += a[row, k] * x[row]"),
        "the last product is left out": Edit("for k in range(x.size):", "for k in range(x.size - 1):"),
        "the products are added to `out`, which nothing has set to 0 (check fills it with NaN)": matvec_adds_to_out,
    },
)


# --- A @ B.T: rows against rows ------------------------------------------------------------------------------------


def _bt_reference(a, b):
    a, b = _wide(a, b)
    return a @ b.T


MATMUL_BT = KernelExercise(
    name="matmul_bt",
    reference=_bt_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, N, K)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: _over(N, M),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b).T, length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    in_float32=True,
    wrong={
        "`b[k, col]`: it multiplies by `b`, not by its transpose":
            Edit("total += a[row, k] * b[col, k]", "total += a[row, k] * b[k, col]"),
        "the loop runs over the rows of `b` (N of them), not over K":
            Edit("for k in range(a.shape[1]):", "for k in range(b.shape[0]):"),
        "the row of `b` and the row of `a` exchanged":
            Edit("total += a[row, k] * b[col, k]", "total += a[col, k] * b[row, k]"),
        "no guard": Edit("if row < out.shape[0] and col < out.shape[1]:", "if True:"),
        "`row, col = cuda.grid(2)`, where the grid is laid with its x along the columns":
            Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
    },
)


# --- A layer in one kernel: relu(A @ B + bias) ---------------------------------------------------------------------


def _layer_reference(a, b, bias):
    a, b, bias = _wide(a, b, bias)
    return np.maximum(a @ b + bias, 0)


@asks("Each element of `out` is stored once.")
def _stays_in_registers(report) -> str | None:
    elements, stores = elements_of_argument(report, 3), report.counts["global_stores"]
    if stores <= elements:
        return None
    return (f"It stores {stores:,} numbers for {elements:,} elements of `out`. Asked for is one store each: keep the "
            "sum in a variable until bias and maximum are done.")


DENSE_LAYER = KernelExercise(
    name="dense_layer",
    reference=_layer_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N), uniform(rng, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: _over(N, M),
    tolerance=dot_products(lambda a, b, bias: np.abs(a) @ np.abs(b) + np.abs(bias),
                           length=lambda a, b, bias: a.shape[1] + 1),
    domain=(*of((0, 1, 2), *SUMMED), *of(2, FAR_ABOVE_ZERO, FAR_BELOW_ZERO)),
    observe_sizes=_products((5, 3, 4), (1, 33, 17)),
    demand=_stays_in_registers,
    in_float32=True,
    wrong={
        "the bias is added at every step of the loop":
            Edit("total = bias[col]", "total = float32(0.0)",
                 "total += a[row, k] * b[k, col]", "total += a[row, k] * b[k, col] + bias[col]"),
        "the bias is read at the row": Edit("total = bias[col]", "total = bias[row]"),
        "the bias is added after negative values have become 0":
            Edit("total = bias[col]", "total = float32(0.0)",
                 "max(total, float32(0.0))", "max(total, float32(0.0)) + bias[col]"),
        "the maximum is taken at every step of the loop":
            Edit("total += a[row, k] * b[k, col]", "total = max(total + a[row, k] * b[k, col], float32(0.0))",
                 "out[row, col] = max(total, float32(0.0))", "out[row, col] = total"),
        "negative values stay": Edit("out[row, col] = max(total, float32(0.0))", "out[row, col] = total"),
        "the bias is never added": Edit("total = bias[col]", "total = float32(0.0)"),
        "no guard": Edit("if row < out.shape[0] and col < out.shape[1]:", "if True:"),
        "the sum so far is kept in `out`, and goes to memory and back at each step":
            Edit("out[row, col] = max(total, float32(0.0))", "out[row, col] = max(out[row, col], float32(0.0))",
                 "total = bias[col]", "out[row, col] = bias[col]",
                 "total += a[row, k] * b[k, col]", "out[row, col] += a[row, k] * b[k, col]"),
    },
)


# --- Transpose through shared memory -------------------------------------------------------------------------------


@cuda.jit
def transpose_without_tile(a, out):
    col, row = cuda.grid(2)
    if row < a.shape[0] and col < a.shape[1]:
        out[col, row] = a[row, col]


TRANSPOSE_TILED = KernelExercise(
    name="transpose_tiled",
    reference=lambda a: a.T,
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (C, R),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (1, 7), (5, 3), (16, 16), (17, 16), (19, 37), (50, 33))),
    launch=lambda R, C: _over(C, R),
    observe_sizes=({"R": 17, "C": 16}, {"R": 19, "C": 37}),
    demand=_rows_both_ways,
    domain=of(0, MOVED),
    wrong={
        "no barrier between writing the tile and reading it": Edit("cuda.syncthreads()", ""),
        "each tile is transposed, and stays where it was":
            Edit("left + y < out.shape[0] and top", "top + y < out.shape[0] and left",
                 "out[left + y, top + x] = tile[x, y]", "out[top + y, left + x] = tile[x, y]"),
        "each tile goes to its new place, and is not transposed":
            Edit("out[left + y, top + x] = tile[x, y]", "out[left + y, top + x] = tile[y, x]"),
        "the store has the guard of the load":
            Edit("if left + y < out.shape[0] and top + x < out.shape[1]:",
                 "if top + y < a.shape[0] and left + x < a.shape[1]:"),
        "the barrier stands inside the guard":
            Edit("cuda.syncthreads()\n"
                 "if left + y < out.shape[0] and top + x < out.shape[1]:",
                 "    cuda.syncthreads()\n"
                 "if left + y < out.shape[0] and top + x < out.shape[1]:"),
        "no shared memory: a warp writes down a column": transpose_without_tile,
        "the tile is filled and read along its rows, and a warp writes down a column of `out`":
            Edit("if left + y < out.shape[0] and top + x < out.shape[1]:",
                 "if left + x < out.shape[0] and top + y < out.shape[1]:",
                 "out[left + y, top + x] = tile[x, y]", "out[left + x, top + y] = tile[y, x]"),
    },
)


# --- Find the bug: the tail of a tile ------------------------------------------------------------------------------


def _gram_reference(a):
    (a,) = _wide(a)
    return a @ a.T


@cuda.jit
def gram_without_tiles(a, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * a[col, k]
        out[row, col] = total


GRAM = KernelExercise(
    name="gram",
    reference=_gram_reference,
    inputs=lambda rng, M, K: (uniform(rng, M, K),),
    shape=lambda M, K: (M, M),
    sizes=tuple({"M": M, "K": K} for M, K in ((1, 1), (16, 16), (5, 3), (16, 35), (33, 16), (37, 19), (23, 50))),
    launch=lambda M, K: _over(M, M),
    observe_sizes=({"M": 5, "K": 3}, {"M": 16, "K": 35}),
    tolerance=dot_products(lambda a: np.abs(a) @ np.abs(a).T, length=lambda a: a.shape[1]),
    domain=of(0, *SUMMED),
    demand=_two_tiles_a_step(depth=1),
    in_float32=True,
    wrong={
        "where a tile reaches beyond `a`, it keeps what stood there before, and not zeros":
            Edit("mine[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0)\n"
                 "theirs[y, x] = a[other, start + x] if other < rows and start + x < depth else float32(0.0)",
                 "if row < rows and start + x < depth:\n"
                 "    mine[y, x] = a[row, start + x]\n"
                 "if other < rows and start + x < depth:\n"
                 "    theirs[y, x] = a[other, start + x]"),
        "one tile has zeros beyond the edge, and the other keeps what stood there before":
            Edit("mine[y, x] = a[row, start + x] if row < rows and start + x < depth else float32(0.0)",
                 "if row < rows and start + x < depth:\n"
                 "    mine[y, x] = a[row, start + x]"),
        "the last tile is left out where K is no multiple of 16":
            Edit("for start in range(0, depth, 16):", "for start in range(0, depth // 16 * 16, 16):",
                 "row < rows and start + x < depth else", "row < rows else",
                 "other < rows and start + x < depth else", "other < rows else"),
        "threads without an element go home before the barriers":
            Edit("rows, depth = a.shape",
                 "rows, depth = a.shape\n"
                 "if row >= rows or col >= rows:\n"
                 "    return"),
        "no tiles: every thread walks through global memory": gram_without_tiles,
    },
)


# --- Find the bug: the next tiles are loaded at the end of a round -------------------------------------------------


def _product_reference(a, b):
    a, b = _wide(a, b)
    return a @ b


@cuda.jit
def ahead_without_tiles(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        out[row, col] = total


MATMUL_AHEAD = KernelExercise(
    name="matmul_ahead",
    reference=_product_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: _over(N, M),
    observe_sizes=_products((5, 3, 4), (1, 33, 17), (16, 16, 16)),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    demand=_two_tiles_a_step(depth=1),
    in_float32=True,
    wrong={
        "no barrier between reading the tiles and writing the next ones":
            Edit("cuda.syncthreads()\n"
                 "a_tile[y, x] = a[row, ahead + x] if row < rows and ahead + x < depth else float32(0.0)",
                 "a_tile[y, x] = a[row, ahead + x] if row < rows and ahead + x < depth else float32(0.0)"),
        "the last tiles are loaded and never multiplied":
            Edit("for ahead in range(16, depth + 16, 16):", "for ahead in range(16, depth, 16):"),
        "no barrier between writing the tiles and reading them":
            Edit("cuda.syncthreads()\n"
                 "total = float32(0.0)",
                 "total = float32(0.0)",
                 "    cuda.syncthreads()\n"
                 "if row < rows and col < cols:",
                 "if row < rows and col < cols:"),
        "no tiles: every thread walks through global memory": ahead_without_tiles,
    },
)


# --- Predict: what is loaded from global memory --------------------------------------------------------------------

COUNTED = {"M": 40, "N": 24, "K": 50}


def _loads_counted() -> dict:
    """Thread by thread, for the naive kernel and for tiles of 16; each thread's barriers."""
    M, N, K = COUNTED.values()
    naive = tiled = barriers = 0
    for row in range(-(-M // 16) * 16):
        for col in range(-(-N // 16) * 16):
            x, y, barriers = col % 16, row % 16, 0
            naive += 2 * K if row < M and col < N else 0
            for start in range(0, K, 16):
                tiled += (row < M and start + x < K) + (start + y < K and col < N)
                barriers += 2
    return {"naive": naive, "tiled": tiled, "barriers": barriers}


PREDICT_LOADS = PredictionExercise(
    name="predict_loads",
    truth=_loads_counted,
    how={"naive": "Each thread with an element walks through a row of `a` and a column of `b`. How many numbers is "
                  "that, and how many threads have an element?",
         "tiled": "A block loads its rows of `a` once. How many blocks lie side by side and want the same rows? And "
                  "how many lie one below the other and want the same columns of `b`? Zeros are not loaded.",
         "barriers": "How many steps of 16 does it take to get through K = 50, the last one included? And how many "
                     "barriers does a step have?"},
    wrong={"only one of the two matrices was counted": {"naive": 48_000},
           "each matrix was counted once, and several blocks load the same part": {"tiled": 3_200},
           "zeros beyond the edges were counted as loads": {"tiled": 12_288},
           "the last step, which is not full, was left out": {"barriers": 6},
           "one barrier a step was counted, and there are two": {"barriers": 4}},
)


# --- From a blank page: A.T @ B in tiles ---------------------------------------------------------------------------


@cuda.jit
def at_without_tiles(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[0]):
            total += a[k, row] * b[k, col]
        out[row, col] = total


def _at_reference(a, b):
    a, b = _wide(a, b)
    return a.T @ b


@asks("Both matrices are loaded along their rows.", _two_tiles_a_step(depth=0))
def _loaded_along_rows(report) -> str | None:
    """Loads along columns on one side move eight times as many sectors, in whole tiles."""
    if min(length for _, shape, _ in list(report.arrays.values())[:2] for length in shape) < 16:
        return None
    if report.coalescing > 0.5:
        return None
    return (f"Of the bytes in the {report.counts['sectors']:,} sectors that the warps move, {report.coalescing:.0%} "
            "are asked for. Load both tiles along rows: neighbouring threads, `x` and `x + 1`, load neighbours. Then "
            "one of the tiles is read the other way.")


MATMUL_AT = KernelExercise(
    name="matmul_at",
    reference=_at_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, K, M), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=AWKWARD,
    launch=lambda M, N, K: _over(N, M),
    observe_sizes=_products((5, 3, 4), (1, 33, 17), (16, 16, 16)),
    demand=_loaded_along_rows,
    tolerance=dot_products(lambda a, b: np.abs(a).T @ np.abs(b), length=lambda a, b: a.shape[0]),
    domain=of((0, 1), *SUMMED),
    in_float32=True,
    wrong={
        "the tile of `a` is read along a row, as for `a @ b`":
            Edit("total += a_tile[i, y] * b_tile[i, x]", "total += a_tile[y, i] * b_tile[i, x]"),
        "no barrier between writing the tiles and reading them":
            Edit("cuda.syncthreads()\n"
                 "for i in range(16):",
                 "for i in range(16):"),
        "where a tile reaches beyond its matrix, it keeps what stood there before, and not zeros":
            Edit("a_tile[y, x] = a[k, top + x] if k < depth and top + x < rows else float32(0.0)\n"
                 "b_tile[y, x] = b[k, left + x] if k < depth and left + x < cols else float32(0.0)",
                 "if k < depth and top + x < rows:\n"
                 "    a_tile[y, x] = a[k, top + x]\n"
                 "if k < depth and left + x < cols:\n"
                 "    b_tile[y, x] = b[k, left + x]"),
        "threads without an element go home before the barriers":
            Edit("depth, rows, cols = a.shape[0], a.shape[1], b.shape[1]",
                 "depth, rows, cols = a.shape[0], a.shape[1], b.shape[1]\n"
                 "if top + y >= rows or left + x >= cols:\n"
                 "    return"),
        "the loads have no guard":
            Edit(" if k < depth and top + x < rows else float32(0.0)", "",
                 " if k < depth and left + x < cols else float32(0.0)", ""),
        "every step loads the first tiles again": Edit("k = start + y", "k = y"),
        "no barrier between reading the tiles and writing the next ones":
            Edit("    cuda.syncthreads()\n"
                 "if top + y < rows and left + x < cols:",
                 "if top + y < rows and left + x < cols:"),
        "no tiles: every thread walks through global memory": at_without_tiles,
        "the tile of `a` is loaded along columns: neighbouring threads load what lies a row apart":
            Edit("a_tile[y, x] = a[k, top + x] if k < depth and top + x < rows else float32(0.0)",
                 "a_tile[x, y] = a[start + x, top + y] if start + x < depth and top + y < rows else float32(0.0)"),
    },
)

EXERCISES = (MATVEC, MATMUL_BT, DENSE_LAYER, TRANSPOSE_TILED, GRAM, MATMUL_AHEAD, PREDICT_LOADS, MATMUL_AT)
