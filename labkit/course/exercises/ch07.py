"""The exercises of lesson 07: who holds what on a tensor core, products by mma.sync, a swizzled tile, and the stages
of wgmma.

In kernels T, C and K count tiles: 16 rows of the output, 8 of its columns, 16 steps along the dot products.
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


# --- Predict: lanes --------------------------------------------------------------------------------------------------

LANES = {"a_lane": 15, "a_register": 1, "b_lane": 10, "b_register": 1, "sum_lane": 11, "sum_register": 1}

PREDICT_LANES = PredictionExercise(
    name="predict_lanes",
    truth=lambda: LANES,
    how={"a_lane": "the row modulo 8 is g; two neighbouring columns belong to one q; the lane is 4 * g + q",
         "a_register": "a0 top left, a1 below it, a2 to the right of a0, a3 below a2",
         "b_lane": "here the column is g, and two neighbouring rows belong to one q",
         "b_register": "b0 holds the upper 8 rows, b1 the lower",
         "sum_lane": "as for a",
         "sum_register": "c0 and c1 are neighbours in row g, c2 and c3 in row g + 8"},
    wrong={"b is read as a is": {**LANES, "b_lane": 21},
           "a1 and a2 exchanged": {**LANES, "a_register": 2},
           "the sum's column does not count": {**LANES, "sum_register": 0}},
)


# --- One product on the tensor cores ---------------------------------------------------------------------------------


def _make_one_mma(a1_down=8, a1_right=0, b_transposed=False, swapped=False, c1_down=0, c1_right=1):
    a2_down, a2_right, c2_down, c2_right = a1_right, a1_down, c1_right * 8, c1_down // 8

    @cuda.jit
    def one_mma(a, b, out):
        lane = cuda.threadIdx.x
        g, q = lane // 4, lane % 4
        if swapped:
            g, q = lane % 8, lane // 8
        top = cuda.blockIdx.x * 16
        row, col = top + g, 2 * q
        one = 1
        r, c = row + a1_down, col + a1_right
        a0 = ptx.pack_half2(float32(a[row, col]), float32(a[row, col + one]))
        a1 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        r, c = row + a2_down, col + a2_right
        a2 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        r, c = row + 8, col + 8
        a3 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        k = 2 * q
        if b_transposed:
            b0 = ptx.pack_half2(float32(b[g, k]), float32(b[g, k + one]))
            b1 = ptx.pack_half2(float32(b[g + 8, k]), float32(b[g + 8, k + one]))
        else:
            b0 = ptx.pack_half2(float32(b[k, g]), float32(b[k + one, g]))
            b1 = ptx.pack_half2(float32(b[k + 8, g]), float32(b[k + 9, g]))
        c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, ZERO, ZERO, ZERO, ZERO)
        out[row, col] = c0
        out[row + c1_down, col + c1_right] = c1
        out[row + c2_down, col + c2_right] = c2
        out[row + 8, col + one] = c3

    return one_mma


def _float16(rng, *shape):
    return uniform(rng, *shape).astype(np.float16)


def _products_in_float16(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def _products_of_warps(steps: int):
    """mma.sync `steps` times in each warp, of numbers that are loaded once, or twice, for it."""
    @asks("The tensor cores compute the product, and a lane loads only what it passes to them.")
    def demand(report) -> str | None:
        warps = int(np.prod(report.grid))
        found, asked = times_used(report, "ptx.mma_") // 32, steps * warps
        loads, enough = report.counts["global_loads"], asked * (16 * 16 + 16 * 8)
        if found >= asked and loads > 2 * enough:
            return (f"It makes {loads:,} loads, and {enough:,} are enough for all products on the tensor cores: is "
                    "something computed beside them?")
        if found >= asked:
            return None
        return (f"{warps} warps make {found} products on the tensor cores, and {asked} are asked for: each 16 x 8 x 16 "
                "of the product is one `ptx.mma_m16n8k16_f32_f16`.")

    return demand


@cuda.jit
def one_mma_by_a_loop(a, b, out):
    top, lane = cuda.blockIdx.x * 16, cuda.threadIdx.x
    for place in range(lane, 128, 32):
        row, col = top + place // 8, place % 8
        total = ZERO
        for k in range(16):
            total += float32(a[row, k]) * float32(b[k, col])
        out[row, col] = total


ONE_MMA = KernelExercise(
    name="one_mma",
    reference=_products_in_float16,
    inputs=lambda rng, T: (_float16(rng, 16 * T, 16), _float16(rng, 16, 8)),
    shape=lambda T: (16 * T, 8),
    sizes=({"T": 1}, {"T": 3}),
    launch=lambda T: (T, 32),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    demand=_products_of_warps(1),
    wrong={"a1 and a2 exchanged: a1 lies below a0, not beside it": _make_one_mma(a1_down=0, a1_right=8),
           "b is read along a row, as a is": _make_one_mma(b_transposed=True),
           "g and q are taken from the lane the other way round": _make_one_mma(swapped=True),
           "c1 and c2 exchanged: c1 lies beside c0, not below it": _make_one_mma(c1_down=8, c1_right=0),
           "no tensor cores: each lane walks through its dot products": one_mma_by_a_loop},
)


# --- x @ w.T on the tensor cores -------------------------------------------------------------------------------------


def _make_linear_mma(backwards=False, keeps=True, whole=True):
    step = 16 if whole else 8

    @cuda.jit
    def linear_mma(x, w, out):
        lane = cuda.threadIdx.x
        g, q = lane // 4, lane % 4
        row = cuda.blockIdx.y * 16 + g
        col = cuda.blockIdx.x * 8
        depth, one, eight = x.shape[1], 1, 8
        c0, c1, c2, c3 = ZERO, ZERO, ZERO, ZERO
        start = 0
        while start + 16 <= depth:
            k = start + 2 * q
            a0 = ptx.pack_half2(float32(x[row, k]), float32(x[row, k + one]))
            a1 = ptx.pack_half2(float32(x[row + eight, k]), float32(x[row + eight, k + one]))
            a2 = ptx.pack_half2(float32(x[row, k + eight]), float32(x[row, k + eight + one]))
            a3 = ptx.pack_half2(float32(x[row + eight, k + eight]), float32(x[row + eight, k + eight + one]))
            n = col + g
            if backwards:
                n = col + eight - one - g
            b0 = ptx.pack_half2(float32(w[n, k]), float32(w[n, k + one]))
            b1 = ptx.pack_half2(float32(w[n, k + eight]), float32(w[n, k + eight + one]))
            if keeps:
                c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
            else:
                c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, ZERO, ZERO, ZERO, ZERO)
            start += step
        left = col + 2 * q
        out[row, left], out[row, left + one] = c0, c1
        out[row + eight, left], out[row + eight, left + one] = c2, c3

    return linear_mma


@cuda.jit
def linear_mma_by_a_loop(x, w, out):
    top, left, lane = cuda.blockIdx.y * 16, cuda.blockIdx.x * 8, cuda.threadIdx.x
    for place in range(lane, 128, 32):
        row, col = top + place // 8, left + place % 8
        total = ZERO
        for k in range(x.shape[1]):
            total += float32(x[row, k]) * float32(w[col, k])
        out[row, col] = total


MMA_OBSERVED = {"T": 1, "C": 2, "K": 3}

LINEAR_MMA = KernelExercise(
    name="linear_mma",
    reference=lambda x, w: _products_in_float16(x, w.T),
    inputs=lambda rng, T, C, K: (_float16(rng, 16 * T, 16 * K), _float16(rng, 8 * C, 16 * K)),
    shape=lambda T, C, K: (16 * T, 8 * C),
    sizes=({"T": 1, "C": 1, "K": 1}, MMA_OBSERVED, {"T": 3, "C": 1, "K": 2}),
    observe_sizes=(MMA_OBSERVED,),
    demand=_products_of_warps(MMA_OBSERVED["K"]),
    random_size=lambda rng: {"T": int(rng.integers(1, 4)), "C": int(rng.integers(1, 4)), "K": int(rng.integers(1, 5))},
    launch=lambda T, C, K: ((C, T), 32),
    tolerance=dot_products(lambda x, w: np.abs(x) @ np.abs(w).T, length=lambda x, w: x.shape[1]),
    domain=of((0, 1), *SUMMED),
    wrong={"the columns of a tile come out in reverse": _make_linear_mma(backwards=True),
           "every step begins with zeros: only the last 16 products are left": _make_linear_mma(keeps=False),
           "k moves on by 8, and 8 products are added twice": _make_linear_mma(whole=False),
           "no tensor cores: each lane walks through its dot products": linear_mma_by_a_loop},
)


# --- A swizzled tile -------------------------------------------------------------------------------------------------

WRITE = "tile[row * 32 + (lane ^ row)] = a[left + row, lane]"
READ = "out[col, left + lane] = tile[lane * 32 + (col ^ lane)]"


@cuda.jit
def transpose_in_order(a, out):
    tile = cuda.shared.array((32, 32), float32)
    lane, left = cuda.threadIdx.x, 32 * cuda.blockIdx.x
    for row in range(32):
        tile[row, lane] = a[left + row, lane]
    cuda.syncwarp()
    for col in range(32):
        out[col, left + lane] = tile[lane, col]


@cuda.jit
def transpose_padded(a, out):
    tile = cuda.shared.array((32, 33), float32)
    lane, left = cuda.threadIdx.x, 32 * cuda.blockIdx.x
    for row in range(32):
        tile[row, lane] = a[left + row, lane]
    cuda.syncwarp()
    for col in range(32):
        out[col, left + lane] = tile[lane, col]


@asks("The tile has no bank conflicts, and no padding: all 1,024 numbers go through its 1,024 places.")
def _no_conflicts(report) -> str | None:
    conflicts = report.counts["bank_conflicts"]
    if conflicts:
        return (f"Lanes of a warp wait for one another at the banks of `tile` {conflicts:,} times, and 0 are asked "
                "for: store number `col` of row `row` at place `col ^ row` of its line, and look for it there.")
    stored = len({address for (_, space), cells in report.touched.items() if space == "shared"
                  for (thread, address), kinds in cells.items() if thread < 32 and "store" in kinds})
    if stored < 32 * 32:
        return (f"There are no bank conflicts, but {stored:,} numbers are stored in shared memory, and all 1,024 of a "
                "block have to go through `tile`: rows into it, columns out of it.")
    places = [address for (_, space), cells in report.touched.items() if space == "shared" for _, address in cells]
    if places and max(places) - min(places) > 4 * (32 * 32 - 1):
        return "There are no bank conflicts, by padding: `tile` has 32 numbers in a line, and 1,024 in all."
    return None


SWIZZLED_TRANSPOSE = KernelExercise(
    name="swizzled_transpose",
    reference=lambda a: a.T,
    inputs=lambda rng, T: (uniform(rng, 32 * T, 32),),
    shape=lambda T: (32, 32 * T),
    sizes=({"T": 1}, {"T": 3}),
    observe_sizes=({"T": 1},),
    demand=_no_conflicts,
    launch=lambda T: (T, 32),
    domain=of(0, *SUMMED),
    wrong={
        "written in order and read swizzled": Edit(WRITE, WRITE.replace("(lane ^ row)", "lane")),
        "written swizzled and read in order": Edit(READ, READ.replace("(col ^ lane)", "col")),
        "not swizzled at all: a column lies in one bank": transpose_in_order,
        "a place of padding instead": transpose_padded,
        "no barrier between the writes and the reads": Edit("cuda.syncwarp()", ""),
        "it reads rows, and so copies":
            Edit(READ, "out[col, left + lane] = tile[col * 32 + (col ^ lane)]"),
    },
)


# --- Predict: stages -------------------------------------------------------------------------------------------------

STAGES = {"stage_bytes": (128 + 256) * 64 * 2, "stages": 3, "accumulators": 128, "products": 8, "place": 6 ^ 3}

PREDICT_STAGES = PredictionExercise(
    name="predict_stages",
    truth=lambda: STAGES,
    how={"stage_bytes": "128 rows of a and 256 columns of b, 64 steps of k, 2 bytes",
         "stages": "(232,448 - 2 * 128 * 256) / stage_bytes, rounded down",
         "accumulators": "128 * 256 elements over the 256 threads of two warpgroups",
         "products": "each consumer needs one for every 16 of the 64 steps of k",
         "place": "6 XOR (11 modulo 8)"},
    wrong={"numbers, not bytes": {"stage_bytes": 24576, "stages": 6},
           "the finished output takes no memory": {"stages": 4},
           "all 384 threads hold accumulators": {"accumulators": 85},
           "the row is not taken modulo 8": {"place": 6 ^ 11},
           "both consumers together, not each": {"products": 4}},
)

EXERCISES = (PREDICT_LANES, ONE_MMA, LINEAR_MMA, SWIZZLED_TRANSPOSE, PREDICT_STAGES)
