# %% [markdown]
# # 22 · The transpose: exercises
#
# Two exercises: a prediction about banks, and from a blank page a transpose of many matrices. `hint("predict_banks")`
# gives a hint, and a second call a better one.

# %%
from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: the banks of a padded tile
#
# The 32 lanes of a warp read a column of a tile in shared memory: lane L reads `tile[L, 5]`. The rows of the tile are
# `pitch` elements long, of which 32 hold data. Shared memory has 32 banks, and the element at place i lies in bank
# i % 32. In how many steps does the warp get its column?

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
# ## 2 · From a blank page: transpose each matrix of a batch
#
# `a` holds B matrices of R × C, one after the other: its shape is (B, R, C). `out` has the shape (B, C, R) and gets the
# transpose of each. Write `transpose_each(a, out)`. A block has 32 × 32 threads, x along the columns of `a`, and the
# grid covers `a`; `cuda.blockIdx.z` is the number of the matrix.

# %%
transpose_each = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def transpose_each(a, out):
    tile = cuda.shared.array((32, 33), float32)  # rows of 33: a column lies in 32 different banks
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
    left, top = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    if top + y < a.shape[1] and left + x < a.shape[2]:
        tile[y, x] = a[z, top + y, left + x]
    cuda.syncthreads()  # the tile is complete
    if left + y < out.shape[1] and top + x < out.shape[2]:
        out[z, left + y, top + x] = tile[x, y]


### END SOLUTION

# %%
check("transpose_each", transpose_each)
