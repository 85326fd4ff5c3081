# %% [markdown]
# # 09 · Copies that run ahead: exercises
#
# Five exercises: two products on the tensor cores, a swizzled tile, and two predictions to be done on paper.
# `hint("one_mma")` gives a hint, and a second call a better one.
#
# They run without a GPU: the CPU device does what the instruction does, lane by lane.

# %%
from numba import float32, uint32

from labkit import check, cuda, hint, ptx

# %% [markdown]
# ## 1 · Predict: what fits
#
# `wgmma_specialised` with tiles of 128 × 256 in float16. A stage holds 64 steps of k: 128 rows of `a` and 256 columns
# of `b`. A block has 232,448 bytes of shared memory, and besides the stages it keeps its finished tile of `out` there,
# in float16. Two warpgroups multiply, 64 rows each.
#
# - `stage_bytes`: how many bytes does a stage take?
# - `stages`: how many whole stages fit?
# - `accumulators`: how many float32 accumulators does a thread of a consumer hold?
# - `products`: how many `wgmma` m64n256k16 does a block do for a stage?
# - `place`: at which place of its line does TMA store piece 6 of row 11 of a tile, if a line has eight pieces?

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
# Shared memory decides how many stages there are, and registers how large a tile can be. With 128 accumulators in each
# thread of a consumer, it makes sense that the producer gives registers up.
