# %% [markdown]
# # 03 · Occupancy: exercises
#
# Two predictions, two calculations that you will make again for every kernel of the course, and one kernel from a blank
# page, whose warps must not split. Write your answer, run its cell, then run the `check` under it.
# `hint("predict_branches")` gives a hint, and more when you ask again.

# %%
import numpy as np

from labkit import check, cuda, hint, observe

# %% [markdown]
# ## 1 · Predict: waves
#
# A GPU has 132 SMs, and each can hold 4 blocks of a kernel at a time. Every block takes 10 µs, however many others run
# beside it. The launch has 1,000 blocks.

# %%
per_wave = None  # blocks that run at the same time
waves = None  # waves that 1,000 blocks need
last = None  # blocks of the last wave
microseconds = None  # how long 1,000 blocks take
one_more = None  # how many microseconds 1,057 blocks take
### BEGIN SOLUTION
per_wave = 132 * 4  # 528
waves = -(-1000 // 528)  # 2
last = 1000 - 528  # 472
microseconds = 2 * 10
one_more = 3 * 10  # 1,056 are two full waves, and one block makes a third
### END SOLUTION

# %%
check("predict_waves", per_wave=per_wave, waves=waves, last=last, microseconds=microseconds, one_more=one_more)

# %% [markdown]
# ## 2 · How many blocks fit?
#
# The arithmetic behind every occupancy in this course, with the numbers of compute capability 9.0. A block has
# `threads` threads, each with `registers` registers, and `shared` bytes of shared memory. An SM holds as many blocks as
# its scarcest resource allows:
#
# - 64 warps; a block takes whole warps, so 33 threads take two
# - 32 blocks
# - 65,536 registers. A warp takes 32 times `registers`, rounded up to a multiple of 256. The registers are divided into
#   four equal parts, one for each scheduler, and a warp's registers all lie in one part; so the number of warps that
#   fit is a multiple of four
# - 233,472 bytes of shared memory; a block takes what it asks for and 1,024 bytes more, rounded up to a multiple of 128
#
# If not even one block fits, the answer is 0.


# %%
def resident_blocks(threads, registers, shared):
    warps = -(-threads // 32)
    ### BEGIN SOLUTION
    per_warp = -(-32 * registers // 256) * 256
    by_registers = 65_536 // per_warp // 4 * 4 // warps
    by_shared = 233_472 // (-(-(shared + 1024) // 128) * 128)
    return min(64 // warps, 32, by_registers, by_shared)
    ### END SOLUTION


# %%
check("resident_blocks", resident_blocks)

# %% [markdown]
# Occupancy is the number of resident warps over the 64 that there are places for: `resident_blocks(...) * warps / 64`.
