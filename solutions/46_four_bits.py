# %% [markdown]
# # 46 · Four bits: exercises
#
# Four exercises: unpack the codes of AWQ's words, find the scale of each group with a warp, multiply by codes without
# unpacking them first, and predict what four bits lose. `hint("unpack_awq")` gives a hint, and a second call a better
# one.

# %%
import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: what four bits keep
#
# On paper: the weight with the largest absolute value in a group is +3.75. The scale is 3.75 divided by 7.5, and a weight
# w gets the code round(w / scale) + 8, with ties to even, clamped to 0 to 15. Which code does 1.3 get? How far off is the
# weight that this code represents? And how far off is 3.75 itself? A layer of 4,096 x 4,096 weights in groups of 128 has
# a 16-bit scale per group: how many bytes does it need, and how many bits is that per weight?

# %%
code = None  # of 1.3
off = None  # of 1.3, the distance to the weight that its code stands for
largest_off = None  # the same of 3.75
layer_bytes = None  # of the layer's codes and scales
bits = None  # for each weight
### BEGIN SOLUTION
code = 11
off = 0.2
largest_off = 0.25
layer_bytes = 8_650_752
bits = 4.125
### END SOLUTION

# %%
check("predict_lost", code=code, off=off, largest_off=largest_off, layer_bytes=layer_bytes, bits=bits)

# %% [markdown]
# ## 2 · Eight codes of a word
#
# Each word of `words` (R, W), uint32, holds eight 4-bit codes, as AWQ packs them: from the lowest bits up, those of
# columns 0, 2, 4, 6, 1, 3, 5 and 7 of its eight. `out` (R, 8 W), float32, should hold every code as a number from 0 to
# 15, with the columns in order. The launch has at least one thread per word, in blocks of `(32, 4)`: threads along x are
# neighbours in a row.


# %%
@cuda.jit
def unpack_awq(words, out):
    ### BEGIN SOLUTION
    col, row = cuda.grid(2)
    if row < words.shape[0] and col < words.shape[1]:
        word = words[row, col]
        for i in range(8):
            column = 2 * i if i < 4 else 2 * i - 7
            out[row, 8 * col + column] = word >> 4 * i & 15
    ### END SOLUTION


# %%
check("unpack_awq", unpack_awq)

# %% [markdown]
# ## 3 · A scale for each group
#
# Every 64 consecutive weights of a row of `weights` (R, 64 G), float32, from the first on, are a group.
# `scales[row, group]` (R, G), float32, should be the largest absolute value of the group divided by 7.5: with it the
# group's weights become codes from -8 to 7. If all weights of a group are 0, the scale should be 1, so that nothing is
# divided by 0. The launch has one warp per group: the grid is `(G, R)`, and blocks have 32 threads.


# %%
@cuda.jit
def group_scales(weights, scales):
    ### BEGIN SOLUTION
    group, row, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    col = 64 * group + lane
    largest = max(abs(weights[row, col]), abs(weights[row, col + 32]))
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))
    if lane == 0:
        scales[row, group] = largest / float32(7.5) if largest > 0 else float32(1.0)
    ### END SOLUTION


# %%
check("group_scales", group_scales)

# %% [markdown]
# ## 4 · A product that reads codes
#
# `out[r]` (R,) float32 should be the dot product of row r of quantised weights with `x` (8 W,), float32. The weights are
# in `words` (R, W), uint32: word w of a row holds the codes of columns 8 w to 8 w + 7, the first one in the lowest 4
# bits. A code c means the weight (c - 8) * `scales[r, group]`, where `scales` (R, W / 8) has one float32 for every 64
# columns, which are eight words. W is a multiple of 8. A warp computes a row: blocks have `(32, 4)` threads, and each
# warp has row `4 * blockIdx.x + threadIdx.y`. Unpack the weights in registers: they must not be written to memory.

# %%
dot_codes = None  # write the kernel here: def dot_codes(words, scales, x, out)
### BEGIN SOLUTION
@cuda.jit
def dot_codes(words, scales, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < words.shape[0]:
        acc = float32(0.0)
        for w in range(lane, words.shape[1], 32):
            word, part = words[r, w], float32(0.0)
            for i in range(8):
                part += float32(int32(word >> 4 * i & 15) - 8) * x[8 * w + i]
            acc += part * scales[r, w // 8]
        for distance in (16, 8, 4, 2, 1):
            acc += cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)
        if lane == 0:
            out[r] = acc


### END SOLUTION

# %%
check("dot_codes", dot_codes)
