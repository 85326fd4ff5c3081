r"""The copying warp

`out` (n,) should be the product of `a` (n, 64) and `x` (64,), float32. A launch has three blocks, and block b computes
rows b, b + 3, b + 6 and so on. A block has two warps and a ring of two stages of one row each. Warp 0 is given: it
keeps `x` in registers, and for each row it waits until the next stage is full, multiplies, and arrives at `empty`.

Write the copying warp, warp 1. Thread 32 alone is enough. For each row of this block, in the same order, it should wait
until the stage is empty, announce 256 bytes at `full`, and start the copy with `ptx.bulk_load(ring, start of the stage,
a, start of the row, bytes, full, stage)`. Both starts are in elements, counted in `a` as if it were flat. Row number
`count` of the block, counted from 0, uses stage `count % 2`, in lap `count // 2`.
"""

HINTS = ("Take the loop of warp 0 as a model. What does the copying thread wait for, and with which parity, if a stage "
         "has never been used?",
         "`full` ends lap 0 with parity 0. `empty` ends lap 0 when warp 0 has read the stage; before that, in lap 0 "
         "itself, a wait for parity 1 passes at once. So it waits for the opposite of warp 0's parity.",
         "ptx.mbarrier_wait(empty, stage, parity ^ 1), ptx.mbarrier_expect_tx(full, stage, 256), "
         "ptx.bulk_load(ring, stage * 64, a, row * 64, 256, full, stage), count += 1.")
POINTS = 3
NEEDS = ("predict_joins",)

from numba import float32, uint64

from labkit import cuda, ptx


# %%
@cuda.jit
def copying_warp(a, x, out):
    ring = cuda.shared.array(128, float32, alignment=16)  # two rows
    full, empty = cuda.shared.array(2, uint64), cuda.shared.array(2, uint64)
    thread = cuda.threadIdx.x
    if thread == 0:
        for stage in range(2):
            ptx.mbarrier_init(full, stage, 1)
            ptx.mbarrier_init(empty, stage, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    count = 0
    if thread < 32:
        x_low, x_high = x[thread], x[thread + 32]
        for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
            stage, parity = count % 2, count // 2 % 2
            ptx.mbarrier_wait(full, stage, parity)
            total = ring[stage * 64 + thread] * x_low + ring[stage * 64 + thread + 32] * x_high
            for distance in (16, 8, 4, 2, 1):
                total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
            if thread == 0:
                out[row] = total
                ptx.mbarrier_arrive(empty, stage)
            count += 1
    elif thread == 32:
        ### BEGIN SOLUTION
        for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):
            stage, parity = count % 2, count // 2 % 2
            ptx.mbarrier_wait(empty, stage, parity ^ 1)
            ptx.mbarrier_expect_tx(full, stage, 256)
            ptx.bulk_load(ring, stage * 64, a, row * 64, 256, full, stage)
            count += 1
        ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, dot_products, of, times_used, uniform


@asks("Each row is copied once, by `ptx.bulk_load`, and a stage is not filled before it is empty.")
def _each_row_once(report) -> str | None:
    made, rows = times_used(report, "ptx.bulk_load"), list(report.arrays.values())[0][1][0]
    if made != rows:
        return f"`ptx.bulk_load` is called {made:,} times for {rows:,} rows: each row needs one copy."
    return None


EXERCISE = KernelExercise(
    name="copying_warp",
    reference=lambda a, x: a.astype(np.float64) @ x.astype(np.float64),
    inputs=lambda rng, n: (uniform(rng, n, 64), uniform(rng, 64)),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 3, 7, 12, 16)),
    random_size=lambda rng: {"n": int(rng.integers(1, 20))},
    launch=lambda n: (3, 64),
    tolerance=dot_products(lambda a, x: np.abs(a) @ np.abs(x), length=lambda a, x: 64),
    demand=_each_row_once,
    domain=of(0, *SUMMED),
    wrong={
        "the parity is the same as warp 0's: the first wait never ends":
            Edit("ptx.mbarrier_wait(empty, stage, parity ^ 1)", "ptx.mbarrier_wait(empty, stage, parity)"),
        "there is no wait for an empty stage: rows are overwritten before they are read":
            Edit("ptx.mbarrier_wait(empty, stage, parity ^ 1)", "pass"),
        "the wait is for `full`, not for `empty`":
            Edit("ptx.mbarrier_wait(empty, stage, parity ^ 1)", "ptx.mbarrier_wait(full, stage, parity ^ 1)"),
        "64 bytes are announced, not 256": Edit("expect_tx(full, stage, 256)", "expect_tx(full, stage, 64)"),
        "64 bytes are copied, not 256": Edit("row * 64, 256, full", "row * 64, 64, full"),
        "all rows go to the first stage": Edit("bulk_load(ring, stage * 64,", "bulk_load(ring, 0,"),
        "the start of a row is not counted in elements": Edit("a, row * 64, 256", "a, row * 4, 256"),
        "a block copies every row, not every third":
            Edit("for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):\n"
                 "    stage, parity = count % 2, count // 2 % 2\n"
                 "    ptx.mbarrier_wait(empty, stage, parity ^ 1)",
                 "for row in range(cuda.blockIdx.x, a.shape[0]):\n"
                 "    stage, parity = count % 2, count // 2 % 2\n"
                 "    ptx.mbarrier_wait(empty, stage, parity ^ 1)"),
        "the stage never changes": Edit("ptx.bulk_load(ring, stage * 64, a, row * 64, 256, full, stage)\ncount += 1",
                                           "ptx.bulk_load(ring, stage * 64, a, row * 64, 256, full, stage)"),
        "only the first two rows of a block are copied":
            Edit("for row in range(cuda.blockIdx.x, a.shape[0], cuda.gridDim.x):\n"
                 "    stage, parity = count % 2, count // 2 % 2\n"
                 "    ptx.mbarrier_wait(empty, stage, parity ^ 1)",
                 "for row in range(cuda.blockIdx.x, min(a.shape[0], 6), cuda.gridDim.x):\n"
                 "    stage, parity = count % 2, count // 2 % 2\n"
                 "    ptx.mbarrier_wait(empty, stage, parity ^ 1)"),
    },
)

GIVEN = "In the lines that are given. On the CPU device thread 0 initialises the mbarriers before another thread waits."
EQUIVALENT = {
    "barrier moved: if thread == 0: ... -> ptx.fence_mbarrier_init() before for stage in range(2): ...": GIVEN,
    "barrier: ptx.fence_mbarrier_init() -> left out": GIVEN,
    "barrier: cuda.syncthreads() -> left out": GIVEN,
    "barrier moved: copying_warp -> cuda.syncthreads() before if thread == 0: ...": GIVEN,
    "barrier moved: copying_warp -> cuda.syncthreads() behind count = 0":
        "The threads meet one line later, before any of them waits at an mbarrier.",
    "guard: thread == 32 -> thread == 33": "Another thread of the same warp copies.",
}
