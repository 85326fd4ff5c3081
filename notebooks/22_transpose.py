# %% [markdown]
# # 22 · The transpose
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a tile in shared memory makes the loads and the stores of a transpose coalesced
# - what a bank conflict costs, and two ways to get rid of it
# - how close to a copy a transpose can come
#
# ## The problem
#
# $$\text{out}_{c,r} = a_{r,c}$$
#
# There is no arithmetic in a transpose. Each element is read once and written once, just as in a copy, so a transpose
# should be as fast as a copy. Programs transpose all the time: a matrix for a product, a picture for a filter along its
# columns. And yet the obvious kernel is several times slower than a copy. This whole lesson is about the order in which
# the elements are moved.
#
# ## Prediction
#
# Take a matrix of 8,192 × 8,192 in float32. How many megabytes does a transpose have to move, and how long does that
# take on a GPU with {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s?

# %%
from labkit import roofline
from labkit.kernels.ops.transpose import TRANSPOSE

roofline.predict(TRANSPOSE, R=8192, C=8192)

# %% [markdown]
# An eighth of a millisecond{{ if near(bound_ms, 1 / 8) }}, all of it for memory: there is no arithmetic that could take
# longer.
#
# ## One side is always strided
#
# In the first kernel a thread moves one element.

# %%
import numpy as np

from labkit import agree, ladder, observe, plots, show_source, table
from labkit.kernels.transpose import (
    make_transpose_tiled,
    transpose_naive_kernel,
    transpose_padded_kernel,
    transpose_swizzled_kernel,
    transpose_tiled_kernel,
    transpose_vectorized_kernel,
)

show_source(transpose_naive_kernel)

# %% [markdown]
# The lanes of a warp have neighbouring values of `col`. They read 32 neighbours from a row of `a`, and write them to 32
# different rows of `out`. Swap the two indices, and the stores become coalesced and the loads strided: one of the two
# always runs down a column. How many sectors of 32 bytes does a warp load, and how many does it store to (lesson 04)?

# %%
lanes = np.arange(32)
plots.warp_addresses({"load a[0, lane]": lanes, "store out[lane, 0]": 64 * lanes},
                     "A warp of the naive kernel, on a matrix of 64 columns")

# %% [markdown]
# The load needs four sectors, and uses every byte of them. The store touches 32, one per lane, and uses four bytes of
# each.
#
# ## Turned in a tile
#
# In global memory both sides should go along rows, so the turning has to happen somewhere else: in shared memory. A
# block loads a tile of 32 × 32 along the rows of `a`, waits, and writes it along the rows of `out`. One row of `out`
# comes from one column of the tile.

# %%
show_source(make_transpose_tiled)

# %% [markdown]
# A function makes this kernel, because the *pitch*, the distance between two rows of the tile in shared memory, will
# change in a moment; for now it is 32. A block of 32 × 8 threads walks through its tile in four steps, and a single
# barrier separates the loads from the stores. How many sectors do the two kernels move for a matrix of 64 × 64, where
# {{ 2 * 64 * 64 * 4 // 32:, }} would be enough?

# %%
square = np.random.default_rng(0).random((64, 64), np.float32)


def counts(kernel, grid):
    out = np.zeros_like(square)
    report = observe(kernel[grid, (32, 8)], square, out)
    assert np.array_equal(out, square.T)
    return report.counts


naive, tiled = counts(transpose_naive_kernel, (2, 8)), counts(transpose_tiled_kernel, (2, 2))
table([("naive", naive["sectors"], naive["shared_requests"]), ("tiled", tiled["sectors"], tiled["shared_requests"])],
      ["kernel", "sectors in global memory", "requests to shared memory"])

# %% [markdown]
# The tile moves no sector that is not needed. In exchange every element makes a detour through shared memory. Is that
# detour free?
#
# ## Banks
#
# Shared memory consists of 32 *banks*, each four bytes wide: element i of a float32 array is in bank i % 32. Every bank
# delivers one element per step. If the lanes of a warp need 32 different banks, they are served in one step. If they
# need 32 different elements of the same bank, they queue for 32 steps. That is a *bank conflict* (lesson 07 met it in a
# matrix product). Here is a small shared memory of 8 banks, with a tile of 8 × 8 stored in three different ways.

# %% tags=["hide-input"]
plots.banks({"rows of 8": lambda row, col: 8 * row + col, "rows of 9": lambda row, col: 9 * row + col,
             "col ^ row": lambda row, col: 8 * row + (col ^ row)})

# %% [markdown]
# On the left a row is exactly as long as there are banks, so a whole column is in one bank. In the middle each row has
# one extra element, which is never used. Every row now begins one bank further along, and a column is spread over all
# the banks. On the right no memory is wasted: element c of row r is kept in column c ^ r, the exclusive or of the two,
# and is read there, as `tile[r, c ^ r]`. This is a *swizzle*.
#
# In the kernel above, a block writes 32 rows of `out`, and for each of them a warp reads a column of the tile. How many
# extra steps does a block spend in the queue, with a pitch of 32, with a pitch of 33, and with the swizzle?

# %%
tile = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
kernels = {"pitch 32": transpose_tiled_kernel, "pitch 33": transpose_padded_kernel,
           "col ^ row": transpose_swizzled_kernel}
table([(name, observe(kernel[1, (32, 8)], tile, np.zeros_like(tile)).counts["bank_conflicts"])
       for name, kernel in kernels.items()], ["tile", "extra steps"])

# %% [markdown]
# A column takes 32 steps instead of one, and there are 32 columns: 32 × 31 = {{ 32 * 31 }} extra steps. Both cures
# remove all of them. You can watch a warp queue. Its stores into the tile spread over all 32 banks; then, after the
# barrier, its loads all go to the same one.

# %%
observe(transpose_tiled_kernel[1, (32, 8)], tile, np.zeros_like(tile)).play()

# %% [markdown]
# Every load of a column takes 32 steps, and a block makes 32 of them.
#
# ## Four elements at a time
#
# The last rung changes one more thing. It moves 128 bits per instruction, four neighbouring elements, both in and out.

# %%
show_source(transpose_vectorized_kernel)

# %% [markdown]
# Its tile is 64 × 64, with a pitch of 65. Eight lanes load 32 neighbours of a row, so a warp covers four rows at a
# time, and each thread has four such loads in flight before it reaches the barrier: 64 bytes instead of 16. A thread
# then collects four elements from a column of the tile and stores them as one quad. Sizes that are not multiples of
# four go to the padded kernel.

# %%
agree(TRANSPOSE)

# %% [markdown]
# All rungs are right, even at sizes that end inside a tile.
#
# ## The ladder
#
# On a GPU, how many times as fast as the plain tile is the one with the unused column, and which of the five rungs
# comes close to a copy?

# %%
plots.ladder(ladder(TRANSPOSE))

# %% [markdown]
# On the H200 the naive kernel reaches {{ naive_of_copy:.0% }} of the speed of a copy. The tile triples
# that{{ if near(tile_gain, 3.2) }}, and one unused column doubles it again{{ if near(pitch_gain, 2) }}: the queues took
# half of the time. With four elements at a time the transpose runs at nine tenths{{ if near(of_copy, 0.9) }} of a copy.
#
# The swizzle has no conflicts either, and yet it is {{ swizzle_slower:.0% }} slower than the padding. Look at the
# addresses. With a pitch of 33, the four elements that a thread reads from the tile are eight elements apart, whatever
# the thread: the compiler computes one address, and each load instruction adds a constant to it. An exclusive or has to
# be computed separately for each of the four. In PTX the padded kernel has 128{{ compiled }} instructions, and the
# swizzled one 169{{ compiled }}. A swizzle is for tiles that cannot be padded, such as those that Hopper's TMA unit
# writes (lesson 10).
#
# PyTorch's `a.T.contiguous()` takes {{ words(torch_slower) }} times as long as the last rung. It runs the general copy
# kernel, which handles any *strides*, the distances in memory from one row and from one column to the next, and uses no
# tile. `torch.compile` generates a tiled kernel, as fast as the last
# rung{{ if compiled_as_fast }}.
#
# ## What was implemented
#
# - a transpose in five rungs: naive, tiled, padded, swizzled, and 128 bits at a time
#
# ## What I learned
#
# - If loads and stores cannot both be coalesced, turn the data in shared memory.
# - A column of a tile is in a single bank when a row is as long as there are banks. One unused element per row spreads
#   it over all of them.
# - Zero conflicts is not the whole story: the arithmetic of an address counts as well.
#
# ## Resources
#
# - [M. Harris: An Efficient Matrix Transpose in CUDA C/C++
#   (2013)](https://developer.nvidia.com/blog/efficient-matrix-transpose-cuda-cc/)
#
# ## Try it
#
# - In the cell with the banks, add `"rows of 10": lambda row, col: 10 * row + col`. In how many steps is a column
#   delivered, and why not in one?
# - `make_transpose_tiled(34)` makes another kernel. Predict its extra steps, then run it in the cell that counts them.
# - Launch the padded kernel on a matrix of 33 × 33, with a grid of (2, 2). How many of its four blocks do useful work,
#   and how many threads are idle?
#
# Next: **fusion**, where the fastest kernel is the one that is never launched.

# %% [numbers]
# bound_ms = row('transpose', 'naive').bound_ms
# naive_of_copy = row('transpose', 'naive').fraction
# tile_gain = row('transpose', 'naive').ms / row('transpose', 'tiled').ms
# pitch_gain = row('transpose', 'tiled').ms / row('transpose', 'padded').ms
# swizzle_slower = row('transpose', 'swizzled').ms / row('transpose', 'padded').ms - 1
# of_copy = row('transpose', 'vectorized').fraction
# torch_slower = row('transpose', 'PyTorch').ms / row('transpose', 'vectorized').ms
# compiled_as_fast = abs(row('transpose', 'PyTorch, compiled').ms / row('transpose', 'vectorized').ms - 1) < 0.03
