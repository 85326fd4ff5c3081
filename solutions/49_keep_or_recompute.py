# %% [markdown]
# # 49 · Keep or recompute: exercises
#
# Three exercises. Predict what attention keeps for its backward pass, compute the gradients of scores from the
# log-sum-exp, and write the gradient of rows of length 1 from a blank page. `hint("predict_kept")` gives a hint, and a
# second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: what attention keeps
#
# On paper: one sequence has 4,096 tokens, and a layer has 8 heads. How many bytes are its attention weights in bfloat16,
# if the whole matrix of each head is kept, hidden weights included? How many bytes is the log-sum-exp, in float32? If the
# sequence is twice as long, by what factor does each of them grow? And how many matrix products does the backward pass
# have per head if the weights were kept, and how many if they are recomputed? Count every product once, as if a single
# launch computed all gradients.

# %%
weights_bytes = None  # of all heads
lse_bytes = None  # of all heads
weights_factor = None  # for twice the tokens
lse_factor = None  # for twice the tokens
products_kept = None  # of the backward pass, with the weights kept
products_recomputed = None  # and with the weights recomputed
### BEGIN SOLUTION
weights_bytes = 268_435_456
lse_bytes = 131_072
weights_factor = 4
lse_factor = 2
products_kept = 4
products_recomputed = 5
### END SOLUTION

# %%
check("predict_kept", weights_bytes=weights_bytes, lse_bytes=lse_bytes, weights_factor=weights_factor,
      lse_factor=lse_factor, products_kept=products_kept, products_recomputed=products_recomputed)


# %% [markdown]
# ## 2 · The gradients of scores
#
# This is the middle of attention's backward pass, for one head of S tokens with a causal mask. `scores` (S, S) holds
# $q_r \cdot k_c$, not yet scaled; `lse` (S,) is the log-sum-exp of each row of the visible scores times `scale`.
# `grad_weights` (S, S) holds $dP$ and `delta` (S,) the sum that the softmax's gradient subtracts. For a key $c$ that
# query $r$ sees, $c \le r$:
#
# $$\text{out}_{r,c} = \text{scale} \cdot P_{r,c} \, (dP_{r,c} - \delta_r), \qquad
# P_{r,c} = e^{\text{scale} \cdot \text{scores}_{r,c} - \text{lse}_r}$$
#
# All other elements of `out` are 0, and the scores there may be anything. All arrays are float32. Blocks have 32 x 8
# threads, and the grid's x runs along the keys.


# %%
@cuda.jit
def score_gradients(scores, lse, grad_weights, delta, scale, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < out.shape[0] and col < out.shape[1]:
        gradient = float32(0.0)
        if col <= row:
            weight = math.exp(scale * scores[row, col] - lse[row])
            gradient = scale * weight * (grad_weights[row, col] - delta[row])
        out[row, col] = gradient
    ### END SOLUTION


# %%
check("score_gradients", score_gradients)

# %% [markdown]
# You can train with this kernel. In `labkit train data/minute.toml --out build/mine --yours` it computes the gradients of
# the scores, one head of one sequence at a time, between products of whole matrices.
#
# ## 3 · From a blank page: the gradient of rows of length 1
#
# Sentence embeddings are often scaled to length 1 (lesson 31): each row is divided by its length,
#
# $$y_{r,c} = x_{r,c} \, s_r, \qquad s_r = \frac{1}{\sqrt{\sum_k x_{r,k}^2 + 10^{-5}}}$$
#
# Derive its backward pass, as for RMSNorm in the lesson; this one has no mean and no weight. Then write
# `unit_rows_backward(x, dout, dx)` from the decorator down. It is given `x` and the gradient of `y`, and writes the
# gradient of `x`; all are (R, C) and float32. A block has 32 x 4 threads, and each of its four warps computes one row:
# `threadIdx.x` is the lane, and `threadIdx.y` selects the row. A row may have any number of columns.

# %%
unit_rows_backward = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def unit_rows_backward(x, dout, dx):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if row < x.shape[0]:
        squares, products = float32(0.0), float32(0.0)
        for col in range(lane, x.shape[1], 32):
            squares += x[row, col] * x[row, col]
            products += dout[row, col] * x[row, col]
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
            products += cuda.shfl_xor_sync(0xFFFFFFFF, products, distance)
        s = cuda.rsqrt(squares + float32(1e-5))
        along = products * s * s
        for col in range(lane, x.shape[1], 32):
            dx[row, col] = s * (dout[row, col] - x[row, col] * along)


### END SOLUTION

# %%
check("unit_rows_backward", unit_rows_backward)
