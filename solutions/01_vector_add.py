# %% [markdown]
# # 01 · Vector addition: exercises
#
# Five kernels and one calculation, all related to the addition: the same index, the same guard, the same loop, and in
# each something that the lesson did not have. Write your answer, run its cell, then run the `check` below it.
# `hint("saxpy")` gives a hint, and a better one when you ask again.

# %%
import numpy as np

from labkit import check, cuda, hint, plots

# %% [markdown]
# ## 1 · Scale and add, in place
#
# $$y_i \leftarrow s\,x_i + y_i$$
#
# This is `saxpy`, the best-known routine of linear algebra: *single precision, a times x plus y*. The result overwrites
# `y`, so there is no third array. `s` is a scalar, `x` and `y` are vectors of float32.
#
# Write the guard and the store. Could another thread change the element of y that this thread still has to read?


# %%
@cuda.jit
def saxpy(s, x, y):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < y.size:
        y[i] = s * x[i] + y[i]
    ### END SOLUTION


# %%
check("saxpy", saxpy)

# %% [markdown]
# No, it could not: each element has one owner, and no other thread reads or writes it.
#
# ## 2 · Every second element
#
# $$\text{out}_i = x_{2i}$$
#
# In NumPy this is `x[::2]`. The two arrays now have different lengths, and that of `x`, n, may be odd. `out` has
# `(n + 1) // 2` elements, and one thread is started per element of `out`, rounded up to whole blocks. Which of the two
# lengths belongs in the guard?


# %%
@cuda.jit
def every_second(x, out):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < out.size:
        out[i] = x[2 * i]
    ### END SOLUTION


# %%
check("every_second", every_second)

# %% [markdown]
# ## 3 · Predict: what every second element costs
#
# Run the kernel above on an `x` of a million floats: 500,000 threads have an element, in blocks of 256. The 32 threads
# of a warp load together, and memory delivers pieces of 32 bytes, eight floats each. Both arrays begin where a piece
# begins.
#
# Predict the four values below. A vector addition moves exactly the bytes that it needs. Does this kernel?

# %%
idle = None  # threads without an element
deliveries = None  # pieces of 32 bytes that the load of the first warp needs; 32 floats in a row need 4
bytes_used = None  # bytes that the kernel reads from x and writes to out
bytes_moved = None  # bytes that travel in whole pieces, from x and to out
### BEGIN SOLUTION
idle = 1954 * 256 - 500_000  # 224
deliveries = 64 * 4 // 32  # the warp's elements span 64 floats: 8 pieces
bytes_used = 4 * 500_000 + 4 * 500_000  # 4 MB
bytes_moved = 4 * 1_000_000 + 4 * 500_000  # all of x travels: 6 MB
### END SOLUTION

# %%
check("predict_every_second", idle=idle, deliveries=deliveries, bytes_used=bytes_used, bytes_moved=bytes_moved)

# %% [markdown]
# Now observe. The first warp's threads write down which element of `x` they load, once with a step of one and once with
# a step of two. The picture says *sector* for a piece of 32 bytes, as lesson 04 will.


# %%
@cuda.jit
def touched_kernel(touched, step):
    i = cuda.grid(1)
    if i < touched.size:
        touched[i] = step * i


def first_warp(step):
    touched = cuda.to_device(np.zeros(32, np.int64))
    touched_kernel[1, 32](touched, step)
    return touched.copy_to_host()


plots.warp_addresses({"x[i]": first_warp(1), "x[2 * i]": first_warp(2)})

# %% [markdown]
# The output is half as long as that of a copy, but every byte of `x` still had to be moved. In a kernel that waits for
# memory, skipping every second element saves nothing on the reads.
#
# ## 4 · Find the bug: one round short
#
# This grid-stride loop scales a vector, with 3 blocks of 32 threads however long `x` is. For a vector of 1,000 elements,
# some of the output is never written; for a single element, none of it is.
#
# Which elements are missing, and which threads should have written them? Work it out before you run the check, then
# repair the loop.


# %%
@cuda.jit
def scale_grid_stride(s, x, out):
    i = cuda.grid(1)
    stride = cuda.gridsize(1)
    while i + stride < out.size:
        out[i] = s * x[i]
        i += stride


### BEGIN SOLUTION
@cuda.jit
def scale_grid_stride(s, x, out):
    i = cuda.grid(1)
    stride = cuda.gridsize(1)
    while i < out.size:  # the element at hand, not the one after it
        out[i] = s * x[i]
        i += stride


### END SOLUTION

# %%
check("scale_grid_stride", scale_grid_stride)

# %% [markdown]
# ## 5 · A sum for each thread
#
# A grid-stride loop does not have to write an element in every step. Here each thread of the grid adds up, in a variable,
# the elements that it visits, and writes the total at the end:
#
# $$\text{out}_t = x_t + x_{t+T} + x_{t+2T} + \dots$$
#
# $T$ is the number of threads in the whole grid, `cuda.gridsize(1)`, and `out` has one element per thread. With four
# threads and `x` = (1, 2, 3, 4, 5, 6), `out` is (6, 8, 3, 4). Threads without any element of `x` write 0. This is the
# first half of a sum over millions of elements; lesson 15 writes the second.
#
# `np.float32(0)` starts the total as float32. A plain `0.0` would make it float64, which is slow on many GPUs.


# %%
@cuda.jit
def partial_sums(x, out):
    me = cuda.grid(1)
    total = np.float32(0)
    ### BEGIN SOLUTION
    i = me
    while i < x.size:
        total += x[i]
        i += cuda.gridsize(1)
    out[me] = total
    ### END SOLUTION


# %%
check("partial_sums", partial_sums)

# %% [markdown]
# ## 6 · From a blank page: reversed, in place
#
# Reverse a vector without a second vector, so that its first element becomes its last: (1, 2, 3, 4, 5) becomes
# (5, 4, 3, 2, 1). The only parameter is `x`. One thread is started per element, in blocks of 128, plus the usual few
# extra.
#
# In the lesson every element had one owner. Here elements trade positions in pairs, and a thread that moves one element
# of a pair also overwrites the other. First decide which threads do the work and what each of them owns.

# %%
reverse_in_place = None  # write the kernel here: def reverse_in_place(x)
### BEGIN SOLUTION
@cuda.jit
def reverse_in_place(x):
    i = cuda.grid(1)
    if i < x.size // 2:  # one thread for each pair; a middle element stays where it is
        partner = x.size - 1 - i
        mine = x[i]
        x[i] = x[partner]
        x[partner] = mine


### END SOLUTION

# %%
check("reverse_in_place", reverse_in_place)

# %% [markdown]
# If your kernel was wrong in one order of the threads and right in another, you have met a *race*. Two threads that swap
# the same pair undo each other's work, or half of it, and which half is up to the hardware.
#
# Next: the exercises of **02 · The machine**.
