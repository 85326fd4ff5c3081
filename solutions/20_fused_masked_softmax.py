# %% [markdown]
# # 20 · Fused masked softmax: exercises
#
# Five exercises: another mask, a bug, two predictions, and the derivative of softmax from a blank page.
# `hint("left_padding")` gives a hint, and a second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Padding on the left
#
# When a model writes, the sequences of a batch must end together, so that the next token has the same place in all of
# them. The padding then stands at the front: of sequence b, the keys from `size - lengths[b]` on are seen, and those
# before are hidden. Hidden keys get the probability 0.
#
# `scores` and `out` are (B, S, S). One thread takes one row, the query q of sequence b. What is missing are three
# loops: the largest score that is seen, the sum of exponentials, and the quotients.


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
# A causal softmax, one thread a row. It is right for every matrix of random numbers that I tried. In a trained model
# the first rows came out as NaN.


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
        for k in range(q + 1):  # what is hidden has no say: next to it the others may vanish
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
# One matrix of 32 × 32 with a causal mask: row q sees q + 1 numbers. How many numbers do all threads together load in
# the three fused kernels of the lesson? `single_read` loads pieces of four neighbours, a piece as soon as its first
# number is seen.

# %%
three_read = None  # numbers loaded
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
# - `few`: with 32 registers a thread and no shared memory,
# - `many`: with 64 registers a thread and no shared memory,
# - `shared`: with 32 registers a thread and 33 KB of shared memory? (The system takes 1 KB for each block besides.)

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
# When a model learns, it asks how the loss changes with each score. `p` holds the probabilities of a row, `g` the
# derivative of the loss by each of them. Then
#
# $$\text{out}_{r,c} = \text{scale} \cdot p_{r,c} \, \left(g_{r,c} - \sum_k p_{r,k} \, g_{r,k}\right)$$
#
# Write `softmax_backward(p, g, scale, out)` from the decorator down. One warp takes a row, in blocks of two warps; all
# arrays are (R, C). Where the mask was, p is 0, and so is the result: the mask need not be known.

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
