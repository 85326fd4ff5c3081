# %% [markdown]
# # 10 · Hopper's tensor cores: exercises
#
# Two exercises: a prediction about what fits on an SM, and a bug in the second lap of a ring that TMA fills.
# `hint("predict_stages")` gives a hint, and a second call a better one.
#
# They run without a GPU: the CPU device has mbarriers and TMA, and delivers the bytes of a box when a thread waits for
# them.

# %%
from numba import float32, uint64

from labkit import check, cuda, hint, ptx

# %% [markdown]
# ## 1 · Predict: what fits
#
# *wgmma_specialised* has tiles of 128 × 256 in float16. A stage holds 64 steps of k: 128 rows of `a` and 256 columns of
# `b`. A block has 232,448 bytes of shared memory. Besides the stages, these have to hold the block's finished tile of
# `out`, in float16. Two warpgroups multiply, 64 rows each.
#
# For *wgmma_cp_async*, with tiles of 128 × 128, a stage would take (128 + 128) · 64 · 2 = 32,768 bytes, and a thread
# would have 64 accumulators.
#
# - `stage_bytes`: how many bytes does a stage take?
# - `stages`: how many whole stages fit?
# - `accumulators`: how many float32 accumulators does a thread of a consumer hold?
# - `products`: how many `wgmma` m64n256k16 does a block execute per stage?
# - `place`: at which position of its row does TMA store piece 6 of row 11 of a tile, if a row has eight pieces?

# %%
stage_bytes = None
stages = None
accumulators = None
products = None
place = None
### BEGIN SOLUTION
stage_bytes = (128 + 256) * 64 * 2
stages = (232448 - 128 * 256 * 2) // stage_bytes  # 3
accumulators = 64 * 256 // 128
products = 2 * (64 // 16)
place = 5  # 6 ^ 3: row 11 is the row 3 of its group of eight
### END SOLUTION

# %%
check("predict_stages", stage_bytes=stage_bytes, stages=stages, accumulators=accumulators, products=products,
      place=place)


# %% [markdown]
# Shared memory limits how many stages there are, and registers limit how large a tile can be. With 128 accumulators in
# each thread of a consumer, it makes sense that the producer gives up registers.
#
# ## 2 · Find the bug: the second lap
#
# `a` has R rows of 64 float32 elements, and the kernel adds up each column: `[[1, 2], [10, 20]]` would give `[11, 22]`.
# One block of 64 threads has a ring of two stages, each with its mbarrier in `loaded`. Thread 0 requests a row by TMA,
# 256 bytes, as soon as its stage is free; all threads wait at the stage's mbarrier before reading.
#
# For one and two rows the sums are right. From the third row on they are not. What is different in the second lap?


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

# %%
check("second_lap", second_lap)

# %% [markdown]
# One bit is enough because no thread can be two laps behind: before a stage is filled again, a barrier makes sure that
# all threads have read it.
