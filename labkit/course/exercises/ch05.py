"""The exercises of lesson 05: thread tiles, copies that are on their way, and who holds what on a tensor core.

Sizes are M (rows of the output), N (its columns) and K (the length of the dot products), as in
labkit.kernels.matmul.float32.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import times_used
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


# --- Find the bug: the last copy -------------------------------------------------------------------------------------


def _by_asynchronous_copies(report) -> str | None:
    copies, loads = times_used(report, "ptx.cp_async_4", "ptx.cp_async_16"), report.counts["global_loads"]
    if copies and copies >= loads:
        return None
    return (f"Of {loads:,} loads from global memory {copies:,} are asynchronous copies, and all are asked for: the "
            "next row must be on its way while this one is added, by `ptx.cp_async_4`.")


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
                 "total += tile[row % uint32(2) * uint32(64) + uint32(63) - i]",
                 "total += tile[row % uint32(2) * uint32(64) + uint32(63) - i]"),
        "no barrier between the reads and the next copy into the same place":
            Edit("cuda.syncthreads()\n"
                 "row = after",
                 "row = after"),
        "no asynchronous copies: every row is waited for": mirrored_sums_by_loads,
    },
)


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
        lane = uint32(cuda.threadIdx.x)
        g, q = uint32(lane // uint32(4)), uint32(lane % uint32(4))
        if swapped:
            g, q = uint32(lane % uint32(8)), uint32(lane // uint32(8))
        top = uint32(uint32(cuda.blockIdx.x) * uint32(16))
        row, col = uint32(top + g), uint32(uint32(2) * q)
        one = uint32(1)
        r, c = uint32(row + uint32(a1_down)), uint32(col + uint32(a1_right))
        a0 = ptx.pack_half2(float32(a[row, col]), float32(a[row, col + one]))
        a1 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        r, c = uint32(row + uint32(a2_down)), uint32(col + uint32(a2_right))
        a2 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        r, c = uint32(row + uint32(8)), uint32(col + uint32(8))
        a3 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        k = uint32(uint32(2) * q)
        if b_transposed:
            b0 = ptx.pack_half2(float32(b[g, k]), float32(b[g, k + one]))
            b1 = ptx.pack_half2(float32(b[g + uint32(8), k]), float32(b[g + uint32(8), k + one]))
        else:
            b0 = ptx.pack_half2(float32(b[k, g]), float32(b[k + one, g]))
            b1 = ptx.pack_half2(float32(b[k + uint32(8), g]), float32(b[k + uint32(9), g]))
        c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, ZERO, ZERO, ZERO, ZERO)
        out[row, col] = c0
        out[row + uint32(c1_down), col + uint32(c1_right)] = c1
        out[row + uint32(c2_down), col + uint32(c2_right)] = c2
        out[row + uint32(8), col + one] = c3

    return one_mma


def _float16(rng, *shape):
    return uniform(rng, *shape).astype(np.float16)


def _products_in_float16(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def _products_of_warps(report, steps: int) -> str | None:
    """mma.sync `steps` times in each warp."""
    warps = int(np.prod(report.grid))
    found, asked = times_used(report, "ptx.mma_") // 32, steps * warps
    if found >= asked:
        return None
    return (f"{warps} warps make {found} products on the tensor cores, and {asked} are asked for: each 16 x 8 x 16 of "
            "the product is one `ptx.mma_m16n8k16_f32_f16`.")


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
    demand=lambda report: _products_of_warps(report, 1),
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
        lane = uint32(cuda.threadIdx.x)
        g, q = uint32(lane // uint32(4)), uint32(lane % uint32(4))
        row = uint32(uint32(cuda.blockIdx.y) * uint32(16) + g)
        col = uint32(uint32(cuda.blockIdx.x) * uint32(8))
        depth, one, eight = uint32(x.shape[1]), uint32(1), uint32(8)
        c0, c1, c2, c3 = ZERO, ZERO, ZERO, ZERO
        start = uint32(0)
        while start + uint32(16) <= depth:
            k = uint32(start + uint32(2) * q)
            a0 = ptx.pack_half2(float32(x[row, k]), float32(x[row, k + one]))
            a1 = ptx.pack_half2(float32(x[row + eight, k]), float32(x[row + eight, k + one]))
            a2 = ptx.pack_half2(float32(x[row, k + eight]), float32(x[row, k + eight + one]))
            a3 = ptx.pack_half2(float32(x[row + eight, k + eight]), float32(x[row + eight, k + eight + one]))
            n = uint32(col + g)
            if backwards:
                n = uint32(col + eight - one - g)
            b0 = ptx.pack_half2(float32(w[n, k]), float32(w[n, k + one]))
            b1 = ptx.pack_half2(float32(w[n, k + eight]), float32(w[n, k + eight + one]))
            if keeps:
                c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
            else:
                c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, ZERO, ZERO, ZERO, ZERO)
            start = uint32(start + uint32(step))
        left = uint32(col + uint32(2) * q)
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
    demand=lambda report: _products_of_warps(report, MMA_OBSERVED["K"]),
    random_size=lambda rng: {"T": int(rng.integers(1, 4)), "C": int(rng.integers(1, 4)), "K": int(rng.integers(1, 5))},
    launch=lambda T, C, K: ((C, T), 32),
    tolerance=dot_products(lambda x, w: np.abs(x) @ np.abs(w).T, length=lambda x, w: x.shape[1]),
    domain=of((0, 1), *SUMMED),
    wrong={"the columns of a tile come out in reverse": _make_linear_mma(backwards=True),
           "every step begins with zeros: only the last 16 products are left": _make_linear_mma(keeps=False),
           "k moves on by 8, and 8 products are added twice": _make_linear_mma(whole=False),
           "no tensor cores: each lane walks through its dot products": linear_mma_by_a_loop},
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

EXERCISES = (PREDICT_PATCH, LINEAR_PATCH, MIRRORED_SUMS, PREDICT_LANES, ONE_MMA, LINEAR_MMA, PREDICT_TRAFFIC)
