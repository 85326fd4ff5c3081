"""Find the bug: the second lap

`a` has R rows of 64 float32 elements, and the kernel adds up each column: `[[1, 2], [10, 20]]` would give `[11, 22]`.
One block of 64 threads has a ring of two stages, each with its mbarrier in `loaded`. Thread 0 requests a row by TMA,
256 bytes, as soon as its stage is free; all threads wait at the stage's mbarrier before reading.

For one and two rows the sums are right. From the third row on they are not. What is different in the second lap?
"""

HINTS = ("Rows 0 and 2 share a stage and an mbarrier. How does a thread that waits for row 2 tell it from row 0?",
         "`mbarrier_wait(loaded, stage, parity)` returns immediately if the lap of this parity is over. What is "
         "the parity of lap 0, and of lap 1, and what does the kernel pass?",
         "Where the ring wraps, the lap changes, and with it the parity: if stage == 2: stage, parity = 0, 1 - parity.")
POINTS = 3

from numba import float32, uint64

from labkit import cuda, ptx


# %%
@cuda.jit
def second_lap(a_map, rows, out):
    tiles = cuda.shared.array(128, float32, alignment=128)  # two rows
    loaded = cuda.shared.array(2, uint64)
    i = cuda.threadIdx.x
    if i == 0:
        for stage in range(2):
            ptx.mbarrier_init(loaded, stage, 1)
        ptx.fence_mbarrier_init()
        for row in range(min(rows, 2)):
            ptx.mbarrier_expect_tx(loaded, row, 256)
            ptx.tma_load_2d(tiles, row * 64, a_map, 0, row, loaded, row)
    cuda.syncthreads()
    total = float32(0.0)
    stage, parity = 0, 0
    for row in range(rows):
        ptx.mbarrier_wait(loaded, stage, parity)
        total += tiles[stage * 64 + i]
        cuda.syncthreads()  # everybody has read this row: its stage is free
        if i == 0 and row + 2 < rows:
            ptx.mbarrier_expect_tx(loaded, stage, 256)
            ptx.tma_load_2d(tiles, stage * 64, a_map, 0, row + 2, loaded, stage)
        stage = stage + 1
        if stage == 2:
            stage = 0
    out[i] = total


### BEGIN SOLUTION
@cuda.jit
def second_lap(a_map, rows, out):
    tiles = cuda.shared.array(128, float32, alignment=128)  # two rows
    loaded = cuda.shared.array(2, uint64)
    i = cuda.threadIdx.x
    if i == 0:
        for stage in range(2):
            ptx.mbarrier_init(loaded, stage, 1)
        ptx.fence_mbarrier_init()
        for row in range(min(rows, 2)):
            ptx.mbarrier_expect_tx(loaded, row, 256)
            ptx.tma_load_2d(tiles, row * 64, a_map, 0, row, loaded, row)
    cuda.syncthreads()
    total = float32(0.0)
    stage, parity = 0, 0
    for row in range(rows):
        ptx.mbarrier_wait(loaded, stage, parity)
        total += tiles[stage * 64 + i]
        cuda.syncthreads()  # everybody has read this row: its stage is free
        if i == 0 and row + 2 < rows:
            ptx.mbarrier_expect_tx(loaded, stage, 256)
            ptx.tma_load_2d(tiles, stage * 64, a_map, 0, row + 2, loaded, stage)
        stage = stage + 1
        if stage == 2:
            stage, parity = 0, 1 - parity  # the next lap of the same mbarriers
    out[i] = total


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, dot_products, of, times_used, uniform


@asks("The rows of `a` are loaded by TMA, and by nothing else.")
def _by_tma(report) -> str | None:
    if times_used(report, "ptx.tma_load_2d"):
        return None
    return "No row is requested by `ptx.tma_load_2d`, and all of them should be."


def _rows_of(a):
    """The tensor map of a matrix whose boxes are its rows; observe passes arrays of the host."""
    return ptx.tensor_map_2d(cuda.to_device(a) if isinstance(a, np.ndarray) else a, 1, 64, swizzle=0)


EXERCISE = KernelExercise(
    name="second_lap",
    reference=lambda a: a.astype(np.float64).sum(axis=0),
    inputs=lambda rng, R: (uniform(rng, R, 64),),
    shape=lambda R: (64,),
    sizes=tuple({"R": R} for R in (1, 2, 3, 4, 7)),
    arguments=lambda inputs, out, size: (_rows_of(inputs[0]), size["R"], out),
    launch=lambda R: (1, 64),
    tolerance=dot_products(lambda a: np.abs(a).sum(axis=0), length=lambda a: a.shape[0]),
    domain=of(0, *SUMMED),
    demand=_by_tma,
    wrong={
        "the parity never changes: from the second lap on no thread waits":
            Edit("stage, parity = 0, 1 - parity", "stage = 0"),
        "the parity changes after every step, not after every lap":
            Edit("if stage == 2:\n"
                 "    stage, parity = 0, 1 - parity",
                 "if stage == 2:\n"
                 "    stage = 0\n"
                 "parity = 1 - parity"),
        "no barrier between the reads and the next request for the same stage":
            Edit("cuda.syncthreads()\n"
                 "if i == 0 and row + 2 < rows:",
                 "if i == 0 and row + 2 < rows:"),
        "half of the bytes are expected: the wait ends too early, or never":
            Edit("    ptx.mbarrier_expect_tx(loaded, stage, 256)", "    ptx.mbarrier_expect_tx(loaded, stage, 128)"),
    },
)

AFTER = """
One bit is enough because no thread can be two laps behind: before a stage is filled again, a barrier makes sure that
all threads have read it.
"""
