# %% [markdown]
# # 45 · Linear attention: exercises
#
# Three exercises: a prediction about states and caches, a token added to the states of all heads, and from a blank page a
# kernel that reads from the states. `hint("predict_state")` gives a hint, and a second call a better one.

# %%
import math

from numba import float32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · Predict: a state and a cache
#
# A head has 64 elements. How many elements does linear attention keep for it, S and z together, and how many does a cache
# of keys and values hold after 1,000 tokens? What is the smallest number of tokens with which the cache is the larger of
# the two?
#
# Causal softmax attention computes n(n + 1) / 2 pairs, with 2 × 64 flops per score and as many per weighted value. For 2
# tokens that is 3 pairs and 768 flops. Per token, linear attention with a running state spends 2 × 64² flops on adding to
# S and as many on reading from it. At how many tokens do both need the same number of flops? Leave out the exponentials,
# z and the divisions.

# %%
state_numbers = None
cache_numbers = None
cache_larger_from = None  # tokens
equal_flops_at = None  # tokens
### BEGIN SOLUTION
state_numbers = 64 * 64 + 64
cache_numbers = 2 * 1000 * 64
cache_larger_from = 33  # 2 * 64 * 32 is 4,096, and 2 * 64 * 33 is 4,224
equal_flops_at = 127  # 4 * 64 * n * (n + 1) / 2 = 4 * 64 * 64 * n: n + 1 is 128
### END SOLUTION

# %%
check("predict_state", state_numbers=state_numbers, cache_numbers=cache_numbers, cache_larger_from=cache_larger_from,
      equal_flops_at=equal_flops_at)


# %% [markdown]
# ## 2 · A token more
#
# `state` (H, D + 1, D) holds, for each of H heads, the matrix S in its first D rows and z in the last one. `k` and `v`
# (H, D) are the keys and values of a new token. Write the new states to `out`, which has the shape of `state`:
#
# $$S_{r,c} + \varphi(k_r)\, v_c \qquad z_c + \varphi(k_c)$$
#
# φ(x) is x + 1 where x is above 0, and exp(x) elsewhere. An example with D = 1: a key of 1 has φ = 2, so with a value of
# 3, S grows by 6 and z by 2.
#
# Blocks are 32 × 8 × 1, with the grid's x along the columns, y along the rows and z along the heads. All arrays are
# float32.


# %%
@cuda.jit(device=True)
def phi(x):
    return x + float32(1.0) if x > float32(0.0) else math.exp(x)


@cuda.jit
def add_token(state, k, v, out):
    col, row, head = cuda.grid(3)
    ### BEGIN SOLUTION
    size = k.shape[1]
    if row <= size and col < size:
        if row < size:
            out[head, row, col] = state[head, row, col] + phi(k[head, row]) * v[head, col]
        else:
            out[head, row, col] = state[head, row, col] + phi(k[head, col])
    ### END SOLUTION


# %%
check("add_token", add_token)

# %% [markdown]
# ## 3 · From a blank page: read from the state
#
# Write the kernel `read_state(q, state, out)`. `q` (H, D) holds one query per head, `state` is as above, and `out` (H, D)
# should hold the output of linear attention:
#
# $$\text{out}_c = \frac{\sum_r \varphi(q_r)\, S_{r,c}}{\sum_r \varphi(q_r)\, z_r}$$
#
# z is positive. An example with D = 1: S = 6 and z = 2 give 3, whatever the query is.
#
# The grid has one block of 32 threads per head; D may be more than 32, or less. Let neighbouring threads read
# neighbouring elements of the state.

# %%
read_state = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def read_state(q, state, out):
    head, size = cuda.blockIdx.x, q.shape[1]
    for col in range(cuda.threadIdx.x, size, 32):
        above, below = float32(0.0), float32(0.0)
        for row in range(size):
            weight = phi(q[head, row])
            above += weight * state[head, row, col]
            below += weight * state[head, size, row]
        out[head, col] = above / below


### END SOLUTION

# %%
check("read_state", read_state)
