# %% [markdown]
# # 00 · Start here: exercises
#
# Six exercises about one question: which thread does which part of the work? Each goes one small step beyond what the
# lesson showed.
#
# Write your answer, run its cell, then run the `check` below it. It uses fresh inputs every time and blocks of many
# sizes, and if something is wrong, it says what. A wrong answer costs nothing, and is the quickest way to learn what a
# launch does. If you are stuck, `hint("count_down")` gives a first hint, and a better one when you ask again.

# %%
import numpy as np

from labkit import check, cuda, hint
from labkit.kernels.positions import positions
from labkit.measure.plots import drawings as pictures

# %% [markdown]
# ## 1 · Counted from the end
#
# The index formula counts elements from the front. Let each thread write the index of its element *counted from the end*:
# 0 for the last element, 1 for the one before it, and `out.size - 1` for the first. For five elements that is
# 4, 3, 2, 1, 0.
#
# The index and the guard are there. One line is missing.


# %%
@cuda.jit
def count_down(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        ### BEGIN SOLUTION
        out[i] = out.size - 1 - i
        ### END SOLUTION


# %%
check("count_down", count_down)

# %% [markdown]
# ## 2 · How many blocks?
#
# In the lesson every thread had one element. A thread may just as well have several: in lesson 01, four elements per
# thread turn out to be faster on a GPU than one. How many blocks of `threads` threads do `n` elements need if each thread
# handles up to `each` of them? Do not start a block that would have nothing to do.
#
# This is an ordinary function on the host; no kernel is needed.


# %%
def blocks_needed(n, each, threads):
    ### BEGIN SOLUTION
    in_a_block = each * threads
    return -(-n // in_a_block)
    ### END SOLUTION


# %%
check("blocks_needed", blocks_needed)

# %% [markdown]
# ## 3 · Predict: the last block
#
# A thousand elements, blocks of 96 threads, one thread per element. Without running anything: how many blocks are
# started? How many threads find no element? And which thread has the last element, the one with index 999? Give the index
# of its block and its own index within that block.

# %%
blocks = None  # how many blocks are started
idle = None  # how many threads have no element
last_block = None  # the number of the block that has element 999
last_thread = None  # the number, in its block, of the thread that has element 999
### BEGIN SOLUTION
blocks = 11  # ten cover 960 elements
idle = 11 * 96 - 1000  # 56
last_block = 10  # the eleventh
last_thread = 999 - 10 * 96  # 39
### END SOLUTION

# %%
check("predict_last_block", blocks=blocks, idle=idle, last_block=last_block, last_thread=last_thread)

# %% [markdown]
# Now observe. The lesson's kernel records which thread handled which element; look at the last one. The picture shows the
# same at a size that fits on a page. Where are the idle threads, and could they ever be in any block but the last?

# %%
block, thread = (cuda.to_device(np.full(1000, -1, dtype=np.int32)) for _ in range(2))
positions(block, thread, 96)
print(f"element 999: block {block.copy_to_host()[-1]}, thread {thread.copy_to_host()[-1]}")

pictures.launch_map(21, 6)

# %% [markdown]
# ## 4 · Find the bug: a guard that guards nothing
#
# A warp is 32 threads, and a thread's position within its warp is its *lane*. The first 32 threads of a block are its
# first warp, the next 32 its second. Each thread should write its lane: 0 to 31, then 0 to 31 again, starting from 0 in
# every block.
#
# The kernel below has a guard, and it works for vectors that fit into one block. Run the check, read what it says, and
# correct one line.


# %%
@cuda.jit
def lane_numbers(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if cuda.threadIdx.x < out.size:
        out[i] = cuda.threadIdx.x % 32


### BEGIN SOLUTION
@cuda.jit
def lane_numbers(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:  # the guard belongs on what is used as an index
        out[i] = cuda.threadIdx.x % 32


### END SOLUTION

# %%
check("lane_numbers", lane_numbers)

# %% [markdown]
# ## 5 · From a blank page: stripes
#
# Now write a whole kernel. It paints `out`, an int32 array, in stripes as wide as a block: the elements of blocks 0, 2,
# 4, ... become 0, those of blocks 1, 3, 5, ... become 1. For blocks of three threads and eight elements that is
# 0 0 0 1 1 1 0 0.
#
# You need the decorator, the index, the guard and one store. Its only parameter is `out`.

# %%
stripes = None  # write the kernel here: @cuda.jit, then def stripes(out)
### BEGIN SOLUTION
@cuda.jit
def stripes(out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = cuda.blockIdx.x % 2


### END SOLUTION

# %%
check("stripes", stripes)

# %% [markdown]
# ## 6 · There and back, with something done in between
#
# The lesson sent a list of tokens to the device and fetched it back unchanged. This time a kernel works on it in between.
# Suppose that a language model keeps eight values per token in one long table, so that the values of token 5 begin at
# index 40. The kernel turns each token into the index at which its values begin: (5, 0, 7) becomes (40, 0, 56).
#
# Write the host code. `tokens` is a Python list of one or more integers. Turn it into an int32 array, send it to the
# device, allocate room for the result there, launch the kernel in blocks of 64 threads, and return the result as a NumPy
# array.


# %%
@cuda.jit
def row_starts_kernel(tokens, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = tokens[i] * 8


# %%
def row_starts(tokens):
    ### BEGIN SOLUTION
    on_device = cuda.to_device(np.array(tokens, dtype=np.int32))
    out = cuda.device_array(len(tokens), dtype=np.int32)
    row_starts_kernel[-(-len(tokens) // 64), 64](on_device, out)
    return out.copy_to_host()
    ### END SOLUTION


# %%
check("row_starts", row_starts)

# %% [markdown]
# Why does nothing in this function wait for the kernel? Because `copy_to_host` does.
#
# `labkit progress` in a terminal shows how far you are. Next: the exercises of **01 · Vector addition**.
