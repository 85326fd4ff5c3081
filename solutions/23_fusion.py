# %% [markdown]
# # 23 · Fusion: exercises
#
# Three exercises: the bytes of a chain of small kernels, a bias and a GELU in one kernel, and from a blank page a
# residual and a norm that read everything once. `hint("predict_fused")` gives a hint, and a second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: a chain of small kernels
#
# Three kernels run one after the other on arrays of n float32 elements, as in the first half of a feed-forward layer
# whose input is added at its end:
#
# 1. `biased = x + bias`, where `bias` is so short that its bytes do not count
# 2. `active = gelu(biased)`
# 3. `out = active + residual`
#
# How many bytes per element of `out` does each of these programs move to and from memory?
#
# - `separate`: the three kernels
# - `bias_gelu`: the first two fused into one kernel, then the third
# - `one`: all three in one kernel
# - `one_kept`: all three in one kernel, which also stores `active`, since another layer needs it
#
# And if the kernels run at the speed of memory:
#
# - `times_faster`: how many times as fast as `separate` is `one`? Two decimals are enough.

# %%
separate = None
bias_gelu = None
one = None
one_kept = None
times_faster = None
### BEGIN SOLUTION
separate = 4 * (2 + 2 + 3)
bias_gelu = 4 * (2 + 3)  # biased stays in a register
one = 4 * 3  # x and the residual in, out out
one_kept = 4 * 4
times_faster = 28 / 12
### END SOLUTION

# %%
check("predict_fused", separate=separate, bias_gelu=bias_gelu, one=one, one_kept=one_kept, times_faster=times_faster)

# %% [markdown]
# From seven arrays to three: no single kernel became faster. The next step is to compute even this last kernel in the
# epilogue of the product that makes `x`. Then reading `x` disappears as well.
#
# ## 2 · A bias and a GELU in one kernel
#
# The end of the first half of a feed-forward layer, in one kernel. With $v = x_{r,c} + \text{bias}_c$:
#
# $$\text{out}_{r,c} = \frac{v}{2} \left(1 + \text{erf}\left(\frac{v}{\sqrt{2}}\right)\right)$$
#
# This is the exact form. `math.erf` works in a kernel, and `ROOT_HALF` is one over the root of 2, in float32. Blocks
# are 32 × 8, with the grid's x along the columns.

# %%
ROOT_HALF = float32(math.sqrt(0.5))


@cuda.jit
def bias_gelu(x, bias, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < x.shape[0] and col < x.shape[1]:
        v = x[row, col] + bias[col]
        out[row, col] = float32(0.5) * v * (float32(1.0) + math.erf(v * ROOT_HALF))
    ### END SOLUTION


# %%
check("bias_gelu", bias_gelu)

# %% [markdown]
# ## 3 · From a blank page: a residual and a norm
#
# `out = rmsnorm(x + residual)`, with the RMSNorm from lesson 21's exercises, its blocks of 32 × 4 threads and its epsilon
# of 1e-5. A row has at most 128 columns, so a lane has at most four elements. The sums stay in registers:
# `kept = cuda.local.array(4, float32)`.
#
# Write `add_rmsnorm(x, residual, weight, out)` from the decorator down.

# %%
add_rmsnorm = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def add_rmsnorm(x, residual, weight, out):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        kept = cuda.local.array(4, float32)
        squares = float32(0.0)
        for k in range(4):
            col = lane + 32 * k
            kept[k] = x[row, col] + residual[row, col] if col < x.shape[1] else float32(0.0)
            squares += kept[k] * kept[k]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
        scale = cuda.rsqrt(squares / float32(x.shape[1]) + float32(1e-5))
        for k in range(4):
            col = lane + 32 * k
            if col < x.shape[1]:
                out[row, col] = kept[k] * scale * weight[col]


### END SOLUTION

# %%
check("add_rmsnorm", add_rmsnorm)
