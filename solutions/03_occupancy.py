# %% [markdown]
# # 03 · Occupancy: exercises
#
# A prediction, the calculation behind every occupancy in this course, a kernel that takes up too much of an SM, and one
# from a blank page that needs only as many blocks as fit. Write your answer, run its cell, then run the `check` under it.
# `hint("predict_waves")` gives a hint, and a better one when you ask again.

# %%
import numpy as np
from numba import float32, float64

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: waves
#
# A GPU has 132 SMs, and each can hold 4 blocks of a kernel at a time. Every block takes 10 µs, however many others run
# at the same time. The launch has 1,000 blocks. Fill in the five values.

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
# This is the arithmetic behind every occupancy in the course, for compute capability 9.0. A block has `threads` threads,
# each with `registers` registers, and `shared` bytes of shared memory. An SM holds as many blocks as its scarcest
# resource allows:
#
# - 64 warps. A block consists of whole warps, so 33 threads count as two warps.
# - 32 blocks.
# - 65,536 registers. A warp needs 32 times `registers`, rounded up to a multiple of 256. Each scheduler has a quarter of
#   the registers, and a warp cannot use those of another scheduler, so the number of warps that fit is a multiple of
#   four.
# - 233,472 bytes of shared memory. A block uses `shared` bytes and another 1,024, rounded up to a multiple of 128.
#
# For 256 threads with 33 registers and no shared memory, a warp needs 1,280 registers; 51 fit, so 48 count, which is 6
# blocks. If not even one block fits, the answer is 0.


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
# Occupancy is the number of resident warps divided by the 64 that an SM can hold: `resident_blocks(...) * warps / 64`.
#
# ## 3 · Room for two
#
# This kernel reverses a vector piece by piece. A block copies its piece of 5,000 elements into shared memory, waits until
# all of it is there, and stores it backwards. It works, but on a T4 it is slow. An SM of a T4 has 64 KB of shared memory,
# so only one of these blocks fits, and while it waits at the barrier the SM has nothing else to do.
#
# Predict how many blocks of 256 threads fit into an SM of a T4, an RTX 3060 and an H100. Then look at the table:
#
#     from labkit import fits
#     fits(room_for_two, gpu="t4,rtx3060,h100", types="float32[::1], float32[::1]", block=256)
#
# and change one line so that at least two fit on the T4. Pieces must stay 5,000 elements long, and go through shared
# memory.


# %%
@cuda.jit
def room_for_two(x, out):
    piece = cuda.shared.array(5000, float64)
    begin = cuda.blockIdx.x * 5000
    count = min(5000, x.size - begin)
    i = cuda.threadIdx.x
    while i < count:
        piece[i] = x[begin + i]
        i += cuda.blockDim.x
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < count:
        out[begin + i] = piece[count - 1 - i]
        i += cuda.blockDim.x


### BEGIN SOLUTION
@cuda.jit
def room_for_two(x, out):
    piece = cuda.shared.array(5000, float32)  # half the bytes: three blocks fit
    begin = cuda.blockIdx.x * 5000
    count = min(5000, x.size - begin)
    i = cuda.threadIdx.x
    while i < count:
        piece[i] = x[begin + i]
        i += cuda.blockDim.x
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < count:
        out[begin + i] = piece[count - 1 - i]
        i += cuda.blockDim.x


### END SOLUTION

# %%
check("room_for_two", room_for_two)

# %% [markdown]
# On an RTX 3060 two blocks fitted from the beginning, and on an H100 five; with float32 it is four and eight. A type that
# is wider than its values costs resident warps on all three GPUs, and the table shows how many before anybody has to own
# one.
#
# ## 4 · From a blank page: pieces in turn
#
# A vector `x` is cut into pieces of 64 elements, and each piece has its own factor, which multiplies all of its elements:
#
# $$\text{out}_i = \text{factors}_p \, x_i, \qquad p = \lfloor i / 64 \rfloor$$
#
# For an `x` of 130 ones and `factors` = (2, 5, 3), `out` is 64 twos, 64 fives and 2 threes. The last piece may be short,
# as it is here.
#
# One block per piece would be easy, but then the blocks run in waves, and the last wave may be nearly empty. Use the
# second remedy of the lesson: the launch has three blocks of 64 threads, however many pieces there are, and every block
# works through one piece after another. Block 0 computes pieces 0, 3, 6, ..., block 1 pieces 1, 4, 7, ... The parameters
# are `x`, `factors` and `out`, all float32.

# %%
pieces_in_turn = None  # write the kernel here: @cuda.jit, then def pieces_in_turn(x, factors, out)
### BEGIN SOLUTION
@cuda.jit
def pieces_in_turn(x, factors, out):
    piece = cuda.blockIdx.x
    while piece < factors.size:
        i = piece * 64 + cuda.threadIdx.x
        if i < out.size:
            out[i] = factors[piece] * x[i]
        piece += cuda.gridDim.x


### END SOLUTION

# %%
check("pieces_in_turn", pieces_in_turn)

# %% [markdown]
# On a GPU one would launch as many blocks as fit on all SMs: `occupancy.blocks(...)` times the number of SMs. Such a
# kernel has hardly any tail as long as the pieces far outnumber the blocks, and work that each block does only once, such
# as computing an address or loading a table, serves many pieces.
