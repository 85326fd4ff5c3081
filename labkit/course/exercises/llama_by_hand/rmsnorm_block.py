"""RMSNorm by a block

Row t of `out` (T, C) is row t of `x`, divided by the root of the mean of its squares plus `epsilon`, times `weight`
(C,). Everything is float32, and C may be any size. In lesson 21 one warp computed a row. When a model writes a single
text, there is only one row, and one warp would need long for it. So here a block of 128 threads, four warps, computes a
row, and the grid is `(T,)`. Add up within a warp by `cuda.shfl_xor_sync`, and across the four warps through `partial`.
`out` may be the same array as `x`.

For example, with an epsilon of 0 the row (3, 4) has a mean square of 12.5, and with weights of 1 it becomes
(0.849, 1.131).
"""

HINTS = ("Which columns belong to thread 5 of 128? How many sums are left after the shuffles, and which threads hold "
         "them?",
         "Four steps: each thread's squares; shuffles, after which every lane has the sum of its warp; lane 0 of each "
         "warp stores that into partial, and a barrier; each thread adds up the four, takes the root, and writes its "
         "columns.",
         "if thread % 32 == 0: partial[thread // 32] = squares, then cuda.syncthreads(), and cuda.rsqrt((partial[0] + "
         "partial[1] + partial[2] + partial[3]) / float32(columns) + epsilon).")
POINTS = 2
NEEDS = ("rmsnorm_warp",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def rmsnorm_block(x, weight, epsilon, out):
    partial = cuda.shared.array(4, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    ### BEGIN SOLUTION
    squares = float32(0.0)
    for col in range(thread, columns, 128):
        squares += x[row, col] * x[row, col]
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32] = squares
    cuda.syncthreads()
    total = partial[0] + partial[1] + partial[2] + partial[3]
    scale = cuda.rsqrt(total / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, asks, shuffles, uniform
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_ABOVE_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    ZEROS,
    at,
    in_place,
    of,
    parameter,
)
from labkit.course.exercises.llama_by_hand import ALL_LANES, normed

THREADS = 128
NORMED = {"T": 2, "C": 130}


def _norm_inputs(rng, T, C):
    """Every second row is small, so that epsilon counts there; epsilon differs from case to case."""
    scale = np.where(np.arange(T) % 2, 1e-3, 1.0).astype(np.float32)[:, None]
    return uniform(rng, T, C) * scale, 1 + uniform(rng, C) / 4, np.float32(rng.choice([1e-6, 1e-5, 1e-4]))


@asks("A row takes at most two barriers and is read at most twice.", shuffles)
def _one_barrier(report) -> str | None:
    """The four warps meet once or twice, and the row is read twice."""
    warps, loads = report.counts["barriers"], report.counts["global_loads"]
    rows, columns = NORMED["T"], NORMED["C"]
    if warps > 2 * THREADS * rows:
        return (f"Each row takes {warps // (THREADS * rows)} barriers, and two are enough: the lanes of a warp add up "
                f"their squares with shuffles, without a barrier, and the four warps have to meet only once.")
    enough = 4 * rows * columns  # x * x may be written with two loads
    if loads > enough:
        return (f"At {rows} x {columns} it loads {loads:,} elements from global memory, more than {enough:,}: each "
                f"thread needs only its own columns of x, twice, and of the weight.")
    return None


@cuda.jit
def rmsnorm_block_by_a_tree(x, weight, epsilon, out):
    partial = cuda.shared.array(128, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    squares = float32(0.0)
    for col in range(thread, columns, 128):
        squares += x[row, col] * x[row, col]
    partial[thread] = squares
    cuda.syncthreads()
    distance = 64
    while distance > 0:
        if thread < distance:
            partial[thread] += partial[thread + distance]
        cuda.syncthreads()
        distance //= 2
    scale = cuda.rsqrt(partial[0] / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]


@cuda.jit
def rmsnorm_block_each_thread_alone(x, weight, epsilon, out):
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    squares = float32(0.0)
    for col in range(columns):
        squares += x[row, col] * x[row, col]
    cuda.syncthreads()
    scale = cuda.rsqrt(squares / float32(columns) + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = x[row, col] * scale * weight[col]


@cuda.jit
def rmsnorm_block_subtracts_the_mean(x, weight, epsilon, out):
    partial = cuda.shared.array(8, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    total, squares = float32(0.0), float32(0.0)
    for col in range(thread, columns, 128):
        total += x[row, col]
        squares += x[row, col] * x[row, col]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
    if thread % 32 == 0:
        partial[thread // 32], partial[4 + thread // 32] = total, squares
    cuda.syncthreads()
    mean = (partial[0] + partial[1] + partial[2] + partial[3]) / float32(columns)
    square = (partial[4] + partial[5] + partial[6] + partial[7]) / float32(columns)
    scale = cuda.rsqrt(square - mean * mean + epsilon)
    for col in range(thread, columns, 128):
        out[row, col] = (x[row, col] - mean) * scale * weight[col]


EXERCISE = KernelExercise(
    name="rmsnorm_block",
    reference=normed,
    inputs=_norm_inputs,
    shape=lambda T, C: (T, C),
    sizes=tuple({"T": T, "C": C} for T, C in ((1, 1), (3, 5), (2, 32), (3, 127), (2, 130), (2, 300))),
    random_size=lambda rng: {"T": int(rng.integers(2, 5)), "C": int(rng.integers(33, 280))},
    launch=lambda T, C: (T, THREADS),
    tolerance=lambda x, weight, epsilon: EPS32 * (np.sqrt(x.shape[1]) + 6) * np.abs(normed(x, weight, epsilon)),
    observe_sizes=(NORMED,),
    demand=_one_barrier,
    domain=(in_place(0), at("a row has fewer columns than a warp has lanes", T=2, C=7),
            at("a row has several columns per thread", T=2, C=513),
            *parameter(2, "epsilon", 0, 0.5),
            *of(0, ZEROS, HUGE_AND_TINY, EQUAL, FAR_ABOVE_ZERO, ONE_FAR_ABOVE, at={"T": 4, "C": 100}),
            *of(1, NEGATIVE)),
    wrong={
        "the mean is subtracted, as in LayerNorm": rmsnorm_block_subtracts_the_mean,
        "the sum of the squares, not their mean": Edit("total / float32(columns)", "total"),
        "epsilon is left out: a row of zeros is divided by 0": Edit(" + epsilon", ""),
        "epsilon is added after the root": Edit("cuda.rsqrt(total / float32(columns) + epsilon)",
                                                "float32(1.0) / (math.sqrt(total / float32(columns)) + epsilon)"),
        "each warp uses only the squares of its own columns": Edit(
            "total = partial[0] + partial[1] + partial[2] + partial[3]", "total = squares"),
        "the partial sum of the last warp is left out": Edit(" + partial[3]", ""),
        "the warps' sums are read before they are written: the barrier is missing": Edit("cuda.syncthreads()", ""),
        "the last lane stores the sum of a warp that only the first lane has": Edit(
            "shfl_xor_sync", "shfl_down_sync", "thread % 32 == 0", "thread % 32 == 31"),
        "every thread adds up the whole row, and nothing is exchanged": rmsnorm_block_each_thread_alone,
        "the weight is left out": Edit(" * weight[col]", ""),
        "a tree in shared memory, with one barrier per level": rmsnorm_block_by_a_tree,
    },
)

EQUIVALENT = {
    "call: cuda.shfl_xor_sync(4294967295, squares, distance) -> cuda.shfl_down_sync(4294967295, squares, distance)":
        "Only lane 0 stores the sum of its warp, and that lane has the whole sum either way.",
    "number: 4 -> 5":
        "With distances 16, 8, 5, 2 and 1 every lane also gets the sum of all 32; and a fifth partial sum is never "
        "used.",
    "type: float32(columns) -> int32(columns)":
        "Dividing by an int32 gives a float64 in Numba: the quotient is right, but slower to compute.",
}
