# %% [markdown]
# # 02 · The machine: exercises
#
# A prediction about warps, a calculation that you will repeat for every kernel of the course, and a kernel from a blank
# page whose warps must not split. Write your answer, run its cell, then run the `check` under it.
# `hint("predict_branches")` gives a hint, and a better one when you ask again.

# %%
import numpy as np

from labkit import check, cuda, hint, observe

# %% [markdown]
# ## 1 · Predict: which warps split?
#
# A kernel for 250 elements runs in four blocks of 64 threads, which makes eight warps. Each thread computes
# `i = cuda.grid(1)`. First comes the guard, `if i < 250:`, and inside it a second condition, one of three: `i % 2 == 0`,
# `i // 32 % 2 == 0` and `i < 48`.
#
# For each of the four conditions, how many warps have lanes on both sides? Threads that the guard stops never reach the
# second condition. Then answer the same question for `i // 32 % 2 == 0` in six blocks of 48 threads.

# %%
guard = None  # warps that `i < 250` splits
by_lane = None  # warps that `i % 2 == 0` splits
by_warp = None  # warps that `i // 32 % 2 == 0` splits
first_48 = None  # warps that `i < 48` splits
blocks_of_48 = None  # warps that `i // 32 % 2 == 0` splits, in blocks of 48
### BEGIN SOLUTION
guard = 1  # the last warp holds i = 224 to 255
by_lane = 8  # each holds even and odd numbers
by_warp = 0  # i // 32 is the number of the warp
first_48 = 1  # the warp with i = 32 to 63
blocks_of_48 = 2  # i = 48 to 79, and i = 144 to 175
### END SOLUTION

# %%
check("predict_branches", guard=guard, by_lane=by_lane, by_warp=by_warp, first_48=first_48, blocks_of_48=blocks_of_48)

# %% [markdown]
# Now count. `observe` runs a kernel and records every branch: here is the last of the five cases. Change the condition
# and the size of the blocks, and compare with your prediction.


# %%
@cuda.jit
def branching(out):
    i = cuda.grid(1)
    if i < out.size:
        if i // 32 % 2 == 0:
            out[i] = 1
        else:
            out[i] = 2


observe(branching[6, 48], cuda.to_device(np.zeros(250, np.int32)))

# %% [markdown]
# ## 2 · Enough loads
#
# By Little's law, memory is kept busy if the bytes in flight are its bandwidth times its latency. Write a function that
# returns how many loads each thread must have in flight for that, rounded up.
#
# `gbs` is the bandwidth in GB/s and `ns` the latency in nanoseconds. Each of `sms` SMs runs `threads` threads, and one
# load brings `each` bytes. All five are integers, and so is the result. A GB is 10^9 bytes here, so GB/s times ns gives
# bytes.


# %%
def loads_a_thread(gbs, ns, sms, threads, each):
    ### BEGIN SOLUTION
    needed = gbs * ns  # bytes
    one_load_each = sms * threads * each
    return -(-needed // one_load_each)
    ### END SOLUTION


# %%
check("loads_a_thread", loads_a_thread)

# %% [markdown]
# ## 3 · From a blank page: a warp that stays together
#
# Evaluate two polynomials: `even` at elements 0, 2, 4, ... of `x`, and `odd` at elements 1, 3, 5, ... Each is given by
# its coefficients, with the constant first.
#
# $$\text{out}_i = \sum_k c_k \, x_i^k, \qquad c = \text{even or odd}$$
#
# For `even` = (1, 2), `odd` = (5, 0, 1) and `x` = (3, 3, 4, 4) the result is (7, 14, 9, 21). The two may have different
# lengths. The kernel is launched with blocks of 64 threads, and block b computes elements 64 b to 64 b + 63. If each
# thread computes the element with its own index, every warp splits. Which 32 elements of the block can the first warp
# compute instead, so that all of its lanes agree?
#
# Horner's rule needs the fewest operations: start with 0, and for each coefficient from the last to the first, multiply
# by x and add the coefficient.

# %%
two_polynomials = None  # write the kernel here: @cuda.jit, then def two_polynomials(x, even, odd, out)
### BEGIN SOLUTION
@cuda.jit
def two_polynomials(x, even, odd, out):
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    i = cuda.blockIdx.x * 64 + 2 * lane + warp  # warp 0 has the even elements, warp 1 the odd ones
    if i < x.size:
        mine = x[i]
        value = np.float32(0.0)
        if warp == 0:
            for k in range(even.size):
                value = value * mine + even[even.size - 1 - k]
        else:
            for k in range(odd.size):
                value = value * mine + odd[odd.size - 1 - k]
        out[i] = value


### END SOLUTION

# %%
check("two_polynomials", two_polynomials)

# %% [markdown]
# There is a price. The lanes of a warp now load every second element of `x`, and you know from lesson 01 what that costs:
# each load moves twice as many bytes as it needs. The other warp of the block soon needs the rest of those bytes, which
# are then likely to be in a cache. Whether the rearrangement pays off depends on the length of the branches: for two
# short ones it does not, for a polynomial with hundreds of coefficients it does.
