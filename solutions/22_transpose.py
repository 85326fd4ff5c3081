# %% [markdown]
# # 22 · The transpose: exercises
#
# Two exercises: a prediction about the banks of a padded tile, and from a blank page a quarter turn of a picture,
# coalesced on both sides and without bank conflicts. `hint("predict_banks")` gives a hint, and a second call a better
# one.

# %%
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: the banks of a padded tile
#
# The 32 lanes of a warp read a column of a tile in shared memory: lane L reads `tile[L, 5]`. Each row of the tile is
# `pitch` elements long, of which it uses 32. Shared memory has 32 banks, and element i is in bank i % 32. How many steps
# does the warp need to read its column?

# %%
pitch_32 = None  # steps, with rows of 32
pitch_33 = None
pitch_34 = None
pitch_40 = None
pitch_47 = None
### BEGIN SOLUTION
pitch_32 = 32  # every lane in bank 5
pitch_33 = 1  # bank L + 5: all different
pitch_34 = 2  # bank 2 L + 5: 16 banks, two lanes each
pitch_40 = 8  # bank 8 L + 5: four banks, eight lanes each
pitch_47 = 1  # 15 L + 5: 15 and 32 have no common factor
### END SOLUTION

# %%
check("predict_banks", pitch_32=pitch_32, pitch_33=pitch_33, pitch_34=pitch_34, pitch_40=pitch_40, pitch_47=pitch_47)

# %% [markdown]
# ## 2 · From a blank page: a quarter turn
#
# Turn a picture by 90 degrees, clockwise: its left column, read from the bottom up, becomes the first row. The picture
# `a` has the shape (R, C), and `out` the shape (C, R):
#
# $$\text{out}_{c,\;R-1-r} = a_{r,c}$$
#
# For example,
#
# ```
# a = 1 2 3    out = 4 1
#     4 5 6          5 2
#                    6 3
# ```
#
# Write `quarter_turn(a, out)` from the decorator down. Blocks have 32 × 8 threads, and the grid has one block per tile
# of 32 × 32 of `a`, its x along the columns. So a thread moves four elements. As in a transpose, warps should load along
# the rows of `a` and store along the rows of `out`, and the tile should have no bank conflicts.

# %%
quarter_turn = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def quarter_turn(a, out):
    tile = cuda.shared.array((32, 33), float32)  # 33: a column of the tile visits all banks
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    col0, row0 = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for i in range(y, 32, 8):
        if row0 + i < a.shape[0] and col0 + x < a.shape[1]:
            tile[i, x] = a[row0 + i, col0 + x]
    cuda.syncthreads()
    for i in range(y, 32, 8):
        if col0 + i < a.shape[1] and row0 + x < a.shape[0]:
            out[col0 + i, a.shape[0] - 1 - (row0 + x)] = tile[x, i]


### END SOLUTION

# %%
check("quarter_turn", quarter_turn)
