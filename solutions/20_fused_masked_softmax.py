# %% [markdown]
# # 20 · Fused masked softmax: exercises
#
# Five exercises: another mask, a bug, two predictions, and from a blank page the derivative of softmax.
# `hint("left_padding")` gives a hint, and a second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Padding on the left
#
# When a model generates text, all sequences of a batch have to end in the same column, where the next token goes. So the
# padding comes first: in sequence b the keys from `size - lengths[b]` on are visible, and those before are hidden and get
# the probability 0. A row of five scores with the length 2, for example, has three zeros and then two probabilities.
#
# `scores` and `out` are (B, S, S), and each thread handles one row, query q of sequence b. Write the three loops: the
# largest visible score, the sum of exponentials, and the quotients.


# %%
@cuda.jit
def left_padding(scores, lengths, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        first = size - lengths[b]
        ### BEGIN SOLUTION
        largest = float32(-math.inf)
        for k in range(first, size):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(first, size):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k >= first else float32(0.0)
        ### END SOLUTION


# %%
check("left_padding", left_padding)

# %% [markdown]
# ## 2 · Find the bug: NaN in the first rows
#
# This is a causal softmax with one thread per row. It is right for every random matrix that I tried. In a trained model
# its first rows came out as NaN.


# %%
@cuda.jit
def largest_seen(scores, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = float32(-math.inf)
        for k in range(size):
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(q + 1):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k <= q else float32(0.0)


### BEGIN SOLUTION
@cuda.jit
def largest_seen(scores, out):
    q, b = cuda.grid(2)
    size = scores.shape[2]
    if q < size:
        largest = float32(-math.inf)
        for k in range(q + 1):  # without what is hidden, next to which the others may vanish
            largest = max(largest, scores[b, q, k])
        total = float32(0.0)
        for k in range(q + 1):
            total += math.exp(scores[b, q, k] - largest)
        for k in range(size):
            out[b, q, k] = math.exp(scores[b, q, k] - largest) / total if k <= q else float32(0.0)


### END SOLUTION

# %%
check("largest_seen", largest_seen)

# %% [markdown]
# ## 3 · Predict: what is loaded
#
# In a matrix of 32 × 32 with a causal mask, q + 1 scores of row q are visible. How many scores do all threads together
# load in the three fused kernels of the lesson? `single_read` loads groups of four neighbours, and only those whose first
# score is visible.

# %%
three_read = None  # scores loaded
bounded = None
single_read = None
### BEGIN SOLUTION
three_read = 3 * 32 * 32
bounded = 3 * sum(q + 1 for q in range(32))
single_read = sum(4 * -(-(q + 1) // 4) for q in range(32))
### END SOLUTION

# %%
check("predict_masked_loads", three_read=three_read, bounded=bounded, single_read=single_read)

# %% [markdown]
# ## 4 · Predict: blocks on a multiprocessor
#
# A multiprocessor of the H200 holds 2,048 threads, 32 blocks, 65,536 registers and 228 KB of shared memory. How many
# blocks of 256 threads fit
#
# - `few`: with 32 registers per thread and no shared memory,
# - `many`: with 64 registers per thread and no shared memory,
# - `shared`: with 32 registers per thread and 33 KB of shared memory, to which the system adds 1 KB per block?

# %%
few = None
many = None
shared = None
### BEGIN SOLUTION
few = min(2048 // 256, 65_536 // (32 * 256))
many = min(2048 // 256, 65_536 // (64 * 256))
shared = min(2048 // 256, 228 // (33 + 1))
### END SOLUTION

# %%
check("predict_blocks", few=few, many=many, shared=shared)

# %% [markdown]
# ## 5 · From a blank page: the way back
#
# Training a model requires the derivative of the loss with respect to each score. `p` holds the probabilities of a row
# and `g` the derivatives with respect to those. Then
#
# $$\text{out}_{r,c} = \text{scale} \cdot p_{r,c} \, \left(g_{r,c} - \sum_k p_{r,k} \, g_{r,k}\right)$$
#
# Write `softmax_backward(p, g, scale, out)` from the decorator down. `p`, `g` and `out` are (R, C), a warp computes a
# row, and a block has two warps. Where the mask was, p is 0, and so is the result: the kernel need not know the mask.

# %%
softmax_backward = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def softmax_backward(p, g, scale, out):
    row, lane = cuda.grid(1) // 32, cuda.threadIdx.x % 32
    if row < p.shape[0]:
        total = float32(0.0)
        for col in range(lane, p.shape[1], 32):
            total += p[row, col] * g[row, col]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
        for col in range(lane, p.shape[1], 32):
            out[row, col] = scale * p[row, col] * (g[row, col] - total)


### END SOLUTION

# %%
check("softmax_backward", softmax_backward)
