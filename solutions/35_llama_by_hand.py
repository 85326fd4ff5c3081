# %% [markdown]
# # 35 · Llama by hand: exercises
#
# Four exercises: an RMSNorm by a whole block, the rotation, a prediction about launches and llama3 scaling, and both
# kernels in one from a blank page. The first two will run in a Llama. `hint("rmsnorm_block")` gives a hint, and a
# second call a better one.

# %%
import math

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit.course import yours

# %% [markdown]
# ## 1 · RMSNorm by a block
#
# Row t of `out` (T, C) is row t of `x`, divided by the root of the mean of its squares plus `epsilon`, times `weight`
# (C,). Everything is float32, and C may be any size. In lesson 21 one warp computed a row. When a model writes a single
# text, there is only one row, and one warp would need long for it. So here a block of 128 threads, four warps, computes a
# row, and the grid is `(T,)`. Add up within a warp by `cuda.shfl_xor_sync`, and across the four warps through `partial`.
# `out` may be the same array as `x`.
#
# For example, with an epsilon of 0 the row (3, 4) has a mean square of 12.5, and with weights of 1 it becomes
# (0.849, 1.131).


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


# %%
check("rmsnorm_block", rmsnorm_block)

# %% [markdown]
# ## 2 · Rotated by position
#
# `x` (T, heads, D) float32 holds the heads of T tokens, and `positions` (T,) int32 their positions. Row p of `table`
# (P, D) belongs to position p: first the cosines of the D / 2 angles, then their sines. Pair d of a head is
# (d, d + D / 2). Rotate (a, b) to (a cos − b sin, b cos + a sin), and write it to the same elements of `out`.
#
# For example, with D = 4 the head (1, 2, 3, 4) has the pairs (1, 3) and (2, 4). At a position where both angles are 90°,
# it becomes (−3, −4, 1, 2).
#
# There is one thread per pair of each head of each token, in a one-dimensional grid with some threads to spare. `out` may
# be `x`.


# %%
@cuda.jit
def rope_heads(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        p = positions[t]
        cos, sin = table[p, d], table[p, d + half]
        a, b = x[t, head, d], x[t, head, d + half]
        out[t, head, d] = a * cos - b * sin
        out[t, head, d + half] = b * cos + a * sin
    ### END SOLUTION


# %%
check("rope_heads", rope_heads)

# %% [markdown]
# Both can run in a Llama: your norm before attention and before the MLP, your rotation on queries and keys. The model
# below computes in float32, as your kernels do.

# %%
llama = yours.small_llama()
prompts = [[3, 1, 4, 1, 5], [9, 2]]
yours.one_by_one(yours.answers(rmsnorm_block=rmsnorm_block, rope_heads=rope_heads), llama, prompts)

# %% [markdown]
# ## 3 · Predict: launches and rotations
#
# Llama 3.1 8B has 32 layers, a width of 4,096, 32 query heads, 8 heads of keys and values, heads of 128 values, and θ =
# 500,000. Its llama3 scaling starts from 8,192 positions: pairs that complete at least four turns in these are kept,
# pairs that complete less than one are slowed down by a factor of 8, and the rest are in between.
#
# How many launches does this model make for a prompt, if it is computed as in the lesson? How many rows does the stacked
# matrix for queries, keys and values have, one per output? How many of the 64 pairs are kept, and how many are slowed
# down by the whole factor?

# %%
launches = None
qkv_rows = None
pairs_kept = None
pairs_slowed = None  # by the whole factor
### BEGIN SOLUTION
launches = 8 * 32 + 4
qkv_rows = (32 + 8 + 8) * 128
pairs_kept = 29  # those for which 8,192 / (2 * pi * 500,000**(pair / 64)) is 4 or more
pairs_slowed = 29  # and 1 or less
### END SOLUTION

# %%
check("predict_rotations", launches=launches, qkv_rows=qkv_rows, pairs_kept=pairs_kept, pairs_slowed=pairs_slowed)

# %% [markdown]
# ## 4 · From a blank page: normalised and rotated
#
# Qwen3 is built like Llama, but normalises each head of queries and keys before it rotates it. `x` (T, heads, 64) holds
# the heads of T tokens. Divide each head by the root of the mean of its squares plus `epsilon`, multiply it by `weight`
# (64,), which all heads share, and then rotate it as in exercise 2: a row of `table` (P, 64) holds the cosines of a
# position and then its sines, `positions` (T,) int32 holds the position of each token, and pair d is (d, d + 32). The
# result goes to `out` (T, heads, 64), which may be `x`. Everything but the positions is float32.
#
# The grid is `(heads, T)`, with 32 threads in a block, so one warp computes a head. The lanes add up the squares by
# shuffles.
#
# Write `rotate_normed(x, weight, epsilon, table, positions, out)` from the decorator down.

# %%
rotate_normed = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def rotate_normed(x, weight, epsilon, table, positions, out):
    head, t, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    a, b = x[t, head, lane], x[t, head, lane + 32]
    squares = a * a + b * b
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    scale = cuda.rsqrt(squares / float32(64.0) + epsilon)
    a, b = a * scale * weight[lane], b * scale * weight[lane + 32]
    p = positions[t]
    cos, sin = table[p, lane], table[p, lane + 32]
    out[t, head, lane] = a * cos - b * sin
    out[t, head, lane + 32] = b * cos + a * sin


### END SOLUTION

# %%
check("rotate_normed", rotate_normed)

# %% [markdown]
# Last, the model of the lesson with your norm and your rotation, and the beginning of its answer. (The engine
# that later lessons build takes such a model, too.)

# %%
from labkit.models.llama import SingleSequence
from labkit.models.load import load

loaded = load("tiny-llama", dtype="float32")
mine = yours.answers(rmsnorm_block=rmsnorm_block, rope_heads=rope_heads)
alone = SingleSequence(yours.with_kernels(loaded.model, mine), context=64)
tokens, step = [], loaded.tokenizer.chat([{"role": "user", "content": "What is a hacker?"}])
for _ in range(20):
    tokens.append(int(alone(step).copy_to_host()[0].argmax()))
    step = tokens[-1:]
print(loaded.tokenizer.decode(tokens))
