# %% [markdown]
# # 05 · Broadcasting
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - what NumPy's broadcasting rule says about addresses, and why it never copies anything
# - how one kernel adds arrays of three ranks, with three index formulas
# - how to count the sectors that a warp loads, before you run anything
#
# ## The problem
#
# Three arrays of different rank are to be added: a volume, a matrix and a vector.
#
# $$out_{xyz} = a_{xyz} + b_{xy} + c_x$$
#
# The shapes are `(X, Y, Z)`, `(X, Y)` and `(X,)`. A neural network does this all the time: a large array of
# activations, and small arrays that are added to it along some of its axes. Writing the index of each rank by hand
# shows what NumPy does when it broadcasts.
#
# One warning. In lesson 04 the fastest axis in memory was called x. Here the axes are named in the order in which NumPy
# writes the shape, so the fastest one is the last: z.
#
# ## NumPy's rule, and its trap
#
# NumPy lines shapes up at their *right* ends. Two axes go together if they are equal or if one of them is 1; an axis
# that is missing on the left counts as 1. So the obvious sum is refused.

# %%
import numpy as np

X, Y, Z = 2, 3, 4
a = np.arange(X * Y * Z, dtype=np.float32).reshape(X, Y, Z)
b = np.arange(X * Y, dtype=np.float32).reshape(X, Y)
c = np.arange(X, dtype=np.float32)

try:
    a + b
except ValueError as error:
    print("a + b:", error)

print("with new axes:", (a + b[:, :, None] + c[:, None, None]).shape)

# %% [markdown]
# `None` inserts an axis of length 1. `b[:, :, None]` has the shape `(X, Y, 1)` and now lines up with `(X, Y, Z)`. The
# axis of length 1 is *stretched* along z. Stretched is a figure of speech: nothing is copied. NumPy describes an array
# by an address and one step for each axis. Here are the steps of all three, counted in elements.

# %%
views = {"a": a, "b[:, :, None]": b[:, :, None], "c[:, None, None]": c[:, None, None]}

for name, view in views.items():
    steps = [stride // 4 for stride in np.broadcast_to(view, a.shape).strides]
    print(f"{name:17} along x {steps[0]:2d}, along y {steps[1]}, along z {steps[2]}")

# %% [markdown]
# Broadcasting is a step of 0: along z, the address in `b` stays where it is. Multiply the coordinates by the steps
# and add up, and you have the three formulas that the kernel will need: `x*(Y*Z) + y*Z + z`, `x*Y + y`, and `x`.

# %%
from labkit import plots
from labkit.course.drawings import broadcast as pictures

pictures.broadcast_reads((X, Y, Z), mark=(1, 2, 3))

# %% [markdown]
# Each number is a flat index: the place of an element in its array's memory. Follow the frames. Element 23 of the sum
# reads element 23 of `a`, element 5 of `b` and element 1 of `c`.
#
# Now the trap. The first sum was refused because the lengths of the axes differ. If they are equal and you forget the
# `None`, NumPy does not complain.

# %%
cube, face = np.zeros((4, 4, 4)), np.arange(16.0).reshape(4, 4)
forgotten, meant = cube + face, cube + face[:, :, None]

print("same shape:", forgotten.shape == meant.shape)
print("same numbers:", np.array_equal(forgotten, meant))

# %% [markdown]
# Lined up on the right, `face` met the axes y and z instead of x and y. In a kernel, too, swapped axes do not show in
# a cube. That is why the check further down has sizes such as 13 × 11 × 17.
#
# ## Prediction
#
# Before you run the next cell, write down three guesses for X = Y = Z = 512: how many megabytes must move? What share
# of them is `b` and `c`? And how long will that take an H200, which copies about
# {{ round(limits.bandwidth_gbs, -2):,.0f }} GB in a second?

# %%
from labkit import roofline
from labkit.kernels.ops.broadcast import BROADCAST_ADD

roofline.predict(BROADCAST_ADD, X=512, Y=512, Z=512)

# %%
n = 512
print(f"a and out   {8 * n**3 / 1e6:9,.3f} MB   each element touched once")
print(f"b           {4 * n**2 / 1e6:9,.3f} MB   each element read {n:,} times")
print(f"c           {4 * n / 1e6:9,.3f} MB   each element read {n**2:,} times")

# %% [markdown]
# The prediction counts `b` and `c` once, although the kernel will read them as often as `a`. The picture shows why: the
# 512 threads that need the same element of `b` are neighbours along z. The first of them fetches it from memory, and
# the others find it in the cache. All of `b` is a thousandth{{ if near(4 * 512**2 / (8 * 512**3), 1 / 1000) }} of the
# traffic. So by the prediction the sum takes as long as a copy of `a`, and the broadcast costs nothing.
#
# ## The first kernel

# %%
from labkit import show_source
from labkit.kernels.broadcast import broadcast_add_strided, broadcast_add_strided_kernel

show_source(broadcast_add_strided_kernel)

# %%
show_source(broadcast_add_strided)

# %% [markdown]
# The launcher checks the shapes, lays the arrays flat and covers the volume with blocks of 4 × 4 × 4, 64 threads each.
# In the kernel the three formulas stand in an order that saves multiplications: `pair` is the index into `b`, and
# `pair * nz + z` is $x \cdot YZ + y \cdot Z + z$ with Z taken out.
#
# `x, y, z = cuda.grid(3)` names the axes in the order of the formula, and the block is a small cube. The kernel is
# right, and it is slow. To see why, find out which threads are neighbours.
#
# ## Which threads are neighbours
#
# As in lesson 04, the first 32 threads of a block, counted with `threadIdx.x` running fastest, are its first warp, and
# a load costs as many sectors of 32 bytes as their addresses fall into. Eight float32 side by side are one sector.
# Eight that lie apart are eight sectors, and in each of them 28 bytes are loaded for nothing. In the kernel above
# `threadIdx.x` became x, the axis with the longest step of all. The second kernel changes one line.

# %%
from labkit.kernels.broadcast import broadcast_add_coalesced_kernel

show_source(broadcast_add_coalesced_kernel)

# %% [markdown]
# `z, y, x = cuda.grid(3)`: the fastest thread index now walks the fastest axis. The third rung is this same kernel in
# blocks of 64 × 4 × 1, which are long along z. The sectors of the first warp follow from the index formula alone.
# Before you run the next cell, guess the number of sectors for each of the three rungs.

# %%
def thread_index(block):
    """threadIdx.x, .y and .z of the 32 threads of a block's first warp."""
    lane = np.arange(32)
    return lane % block[0], lane // block[0] % block[1], lane // (block[0] * block[1])


asked = {}
x, y, z = thread_index((4, 4, 4))
asked["strided, 4 × 4 × 4"] = (x * n + y) * n + z
z, y, x = thread_index((4, 4, 4))
asked["coalesced, 4 × 4 × 4"] = (x * n + y) * n + z
z, y, x = thread_index((64, 4, 1))
asked["long rows, 64 × 4 × 1"] = (x * n + y) * n + z

plots.warp_addresses(asked, "What one warp reads of a")

# %% [markdown]
# The 32 threads need 128 bytes each time, and 512, 256 and 128 bytes travel. The second rung is only half coalesced:
# rows of four threads fill {{ words(4 * 4 / 32) }} of a sector.
#
# That makes a second prediction. If sectors were all that counts, the strided rung would take
# twice{{ if near(512 / 256, 2) }} as long as the coalesced one, and {{ words(512 / 128) }} times as long as the one
# with long rows.
#
# ## Right first

# %%
from labkit import agree

agree(BROADCAST_ADD)

# %% [markdown]
# ## The ladder

# %%
from labkit import ladder

found = ladder(BROADCAST_ADD)
found

# %%
plots.ladder(found)

# %% [markdown]
# In the CPU device's table the rungs may well come in the same order, for another reason: it has no warps and no
# sectors, but in the strided order each step of a core lands on another line of its cache. The figure shows the H200's
# speeds.

# %%
from labkit import measure

h200 = measure.recorded_ladder("broadcast_add", gpu="NVIDIA H200")
ms = {row.name.removeprefix("broadcast_add_"): row.timing.p50 for row in h200.rows}

print(f"measured on {h200.where}")
print(f"    strided / coalesced   {ms['strided'] / ms['coalesced']:.1f}   by sectors: 2")
print(f"    strided / long rows   {ms['strided'] / ms['long_rows']:.1f}   by sectors: 4")

# %% [markdown]
# The count predicted the first step well and underestimated the second. Long rows also put {{ words(64 * 4 / 4**3) }}
# times as many threads into a block, and lesson 04 has shown that this matters by itself. So a count tells you which
# rung is better, and only a measurement how much better.
#
# ## One kernel or two calls
#
# With NumPy, CuPy or PyTorch, called in the ordinary way, the sum of three is two sums. The first writes `a + b` out in
# full. The second reads that back, adds `c` and writes it again. That makes 16 bytes an element where one kernel moves
# 8.

# %%
for name, bytes_moved in (("long_rows", 8), ("PyTorch (two calls)", 16), ("PyTorch, compiled", 8)):
    rate = bytes_moved * 512**3 / ms[name] / 1e6
    print(f"{name:20} {ms[name]:.3f} ms, {bytes_moved:2d} bytes an element: {rate:,.0f} GB/s")

# %% [markdown]
# On the H200 we recorded, PyTorch's kernels are the better ones: they move more bytes in a second than mine. They lose
# all the same, by a factor of {{ torch / rows:.1f }}, because they have twice as many to move. Doing several operations
# in one kernel, so that what lies between them never goes to memory, is called *fusion*. A compiler can do it, too:
# `torch.compile` makes one kernel of PyTorch's two calls, and that one moves its bytes at the speed of a
# copy{{ if compiled_as_copy }}.
#
# ## What surprised me
#
# My best rung reaches {{ fraction:.0% }} of the copy bandwidth, and so takes {{ over_compiled:.1f }} times as long as
# the compiled kernel. I had expected it near the limit: every sector it asks for is used, and `b` and `c` are free. Are
# they? The recording has a kernel to compare with, the addition of two volumes from lesson 04, in blocks of the same 64
# × 4 × 1 and at the same 512 × 512 × 512.

# %%
shapes = measure.recorded_series("volume_add_block_shapes", gpu="NVIDIA H200")
volume_ms = shapes["ms"][shapes["blocks"].index([64, 4, 1])]

print(f"volume addition      {volume_ms:.3f} ms for 12 bytes an element")
print(f"broadcast addition   {ms['long_rows']:.3f} ms for  8 bytes an element")

# %% [markdown]
# A third fewer bytes, and {{ 1 - rows / volume:.0% }} less time. So bytes are not what this rung waits for. Both
# kernels start a thread for each element, which computes an address and ends after one store. That costs the same
# however few bytes there are, and a load that the cache answers is still a load. I suspect that each thread has too
# little in flight (lesson 02). Lesson 01 had the cure on its large vector: threads with four elements each. Here it
# would help twice, since the four could share their elements of `b` and `c`. The last question of "Try it" is about
# such a kernel.
#
# The bound is the least time that is possible. A kernel need not reach it.
#
# ## What I learned
#
# - Broadcasting is a step of zero. Once I had written the steps down, I could read the index formulas off them.
# - The order of names in `x, y, z = cuda.grid(3)` decides which axis a warp walks. The order that read well to me was
#   {{ words(strided_slowdown) }} times slower than the best on the H200.
# - A cube is the worst size for a test. Swapped axes pass it.
# - A small array that is read often costs next to nothing in bytes. It still costs loads, and I had left those out of
#   my prediction.
# - One mediocre kernel was faster than two better ones, one after the other.
#
# ## Resources
#
# - [NumPy: Broadcasting](https://numpy.org/doc/stable/user/basics.broadcasting.html)
# - [CUDA C++ Best Practices Guide: Coalesced Access to Global
#   Memory](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#coalesced-access-to-global-memory)
# - [CUDA C++ Programming Guide: Thread
#   Hierarchy](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy)
#
# ## Try it
#
# - In the cell that draws the warps, replace `(64, 4, 1)` by `(8, 8, 1)`. How many sectors do you expect? If sectors
#   were everything, which of the two blocks would be faster? The cell below times any block.
# - Draw `pictures.broadcast_reads((3, 2, 4), mark=(2, 0, 1))`. Work out the three indices on paper first.
# - Let `b` have the shape `(Y, Z)`, so that it enters as `b[None, :, :]`. What are its three steps? Which threads need
#   the same element now, and would you still count on the cache?
# - Let each thread add four elements along z, each a block's width after the last, as `four_loads` does in lesson 01.
#   How many loads does a thread make now for its four sums? On a GPU, time it beside `long_rows`.

# %%
from labkit import cuda
from labkit.kernels.broadcast import broadcast_add_coalesced

block = (8, 8, 1)  # threads along z, y, x: change me

inputs = BROADCAST_ADD.inputs(np.random.default_rng(0), **found.size)
arrays = [cuda.to_device(array) for array in inputs]
out = cuda.device_array(BROADCAST_ADD.shape(**found.size), np.float32)
print(block, measure.time_kernel(lambda: broadcast_add_coalesced(*arrays, out, block=block)))

# %% [markdown]
# Next: **05 · Matrix multiplication**, where every element is read thousands of times and the cache is not enough.

# %% [numbers]
# rows = row('broadcast_add', 'long_rows').ms
# torch = row('broadcast_add', 'PyTorch').ms
# volume = series.volume_add_block_shapes.ms[13]  # 64 x 4 x 1
# compiled_as_copy = row('broadcast_add', 'PyTorch, compiled').fraction > 0.97
# fraction = row('broadcast_add', 'long_rows').fraction
# over_compiled = rows / row('broadcast_add', 'PyTorch, compiled').ms
# strided_slowdown = row('broadcast_add', 'strided').ms / rows
