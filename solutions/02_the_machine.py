# %% [markdown]
# # 02 · The machine: exercises
#
# Two predictions, two calculations that you will make again for every kernel of the course, and one kernel from a blank
# page, whose warps must not split. Write your answer, run its cell, then run the `check` under it.
# `hint("predict_branches")` gives a hint, and more when you ask again.

# %%
import numpy as np

from labkit import check, cuda, hint, observe

# %% [markdown]
# ## 1 · Predict: which warps split?
#
# A kernel for 250 elements runs in blocks of 64 threads, so four blocks and eight warps. Each thread has
# `i = cuda.grid(1)`. First comes the guard, `if i < 250:`. Inside it stands one more condition, and there are three
# candidates for it: `i % 2 == 0`, `i // 32 % 2 == 0` and `i < 48`.
#
# For each of the four conditions: how many warps have lanes on both sides of it? Threads that the guard keeps out do
# not come to the second condition. Then the same for `i // 32 % 2 == 0` in blocks of 48 threads, six of them.

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
# Now count. `observe` runs a kernel and keeps an account of every branch: here is the last of the five. Change the
# condition and the size of the blocks, and compare.


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
# Little's law: to keep a memory busy, bandwidth times latency bytes must be on their way. Write a function that says
# how many loads each thread must have in flight for that, rounded up to a whole number.
#
# `gbs` is the bandwidth in GB/s and `ns` the latency in nanoseconds. Each of `sms` SMs runs `threads` threads, and one
# load brings `each` bytes. All five are whole numbers. A GB is 10^9 bytes here, so GB/s times ns are bytes.


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
# Two polynomials, given by their coefficients, the constant first: elements 0, 2, 4, ... of `x` go into the polynomial
# `even`, elements 1, 3, 5, ... into `odd`.
#
# $$\text{out}_i = \sum_k c_k \, x_i^k, \qquad c = \text{even or odd}$$
#
# The two may have different lengths. The kernel is launched with blocks of 64 threads, and block number b computes
# elements 64 b to 64 b + 63. A thread that takes the element of its own number splits every warp. So let it take
# another one: which 32 elements of the block can the first warp take so that its lanes agree?
#
# Horner's rule is the short way: start with 0, and for each coefficient from the last to the first multiply by x and
# add the coefficient.

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
# It has a price. The lanes of a warp now load every second element of `x`, and you know from lesson 01 what that costs:
# twice as many sectors for each load. Here the other warp of the block soon asks for the same sectors, which are then
# likely to be in a cache. Whether the exchange is worth it depends on how long the branches are. For two short branches
# it is not; for a polynomial with hundreds of coefficients it is.
