# %% [markdown]
# # 05 · Broadcasting
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - what NumPy's broadcasting rule says about addresses, and why it never copies anything
# - how one kernel adds arrays of three ranks, with three index formulas
# - how far a count of sectors predicts the time, and what else holds a kernel back
#
# ## The problem
#
# Three arrays of different rank are to be added: a volume, a matrix and a vector.
#
# $$out_{xyz} = a_{xyz} + b_{xy} + c_x$$
#
# Their shapes are `(X, Y, Z)`, `(X, Y)` and `(X,)`. A neural network does this all the time: it has a large array of
# activations, and adds small arrays to it along some of its axes. Writing the index for each rank by hand shows what
# NumPy does when it broadcasts.
#
# One warning. In lesson 04 the fastest axis in memory was called x. Here the axes are named in NumPy's order for
# shapes, so the fastest one is the last: z.
#
# ## NumPy's rule, and its trap
#
# NumPy lines up shapes at their *right* ends. Two axes are compatible if their lengths are equal or one of them is 1;
# an axis that is missing on the left counts as 1. What does NumPy make of `a + b` and of
# `a + b[:, :, None] + c[:, None, None]` when X, Y and Z are 2, 3 and 4?

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
# It rejects the first, because 4 meets 3 on the right. `None` inserts an axis of length 1, so `b[:, :, None]` has the
# shape `(X, Y, 1)` and lines up with `(X, Y, Z)`. The axis of length 1 is *stretched* along z. Stretched is a figure of
# speech: nothing is copied. NumPy describes an array by an address and one step per axis; these steps are called its
# *strides*. Counted in elements, what is the step of `b[:, :, None]` along z?

# %%
from labkit import table

views = {"a": a, "b[:, :, None]": b[:, :, None], "c[:, None, None]": c[:, None, None]}
table([(name, *(stride // 4 for stride in np.broadcast_to(view, a.shape).strides)) for name, view in views.items()],
      ["steps, in elements", "along x", "along y", "along z"])

# %% [markdown]
# Zero: along z, the address in `b` does not move. Broadcasting is a step of zero. Multiply the coordinates by the
# steps, add them up, and you have the three formulas that the kernel will need: `x*(Y*Z) + y*Z + z`, `x*Y + y`, and
# `x`.

# %%
from labkit import plots
from labkit.course.drawings import broadcast as pictures

pictures.broadcast_reads((X, Y, Z), mark=(1, 2, 3))

# %% [markdown]
# The value in a box is a flat index, the position of the element in its array's memory. Follow the frames. Element 23
# of the sum reads element 23 of `a`, element 5 of `b` and element 1 of `c`.
#
# Now the trap. The first sum was rejected because the lengths of the axes differ. What happens if the lengths are equal
# and you forget the `None`?

# %%
cube, face = np.zeros((4, 4, 4)), np.arange(16.0).reshape(4, 4)
forgotten, meant = cube + face, cube + face[:, :, None]

print("same shape:", forgotten.shape == meant.shape)
print("same values:", np.array_equal(forgotten, meant))

# %% [markdown]
# NumPy does not complain, and the values are wrong. Lined up on the right, `face` met the axes y and z instead of x and
# y. In a kernel, too, swapped axes do not show on a cube. That is why the check below uses sizes such as 13 × 11 × 17.
#
# ## A prediction
#
# Let X = Y = Z = 512. An H200 copies about {{ round(limits.bandwidth_gbs, -2):,.0f }} GB per second. How many megabytes
# have to move, and how long will that take?

# %%
from labkit import roofline
from labkit.kernels.ops.broadcast import BROADCAST_ADD

roofline.predict(BROADCAST_ADD, X=512, Y=512, Z=512)

# %%
n = 512
table([("a and out", 8 * n**3 / 1e6, 1), ("b", 4 * n**2 / 1e6, n), ("c", 4 * n / 1e6, n**2)],
      {"array": "", "MB": ",.3f", "times that an element is used": ""})

# %% [markdown]
# The prediction counts `b` and `c` once, although the kernel will load from them as often as from `a`. The picture
# shows why: the 512 threads that need the same element of `b` are neighbours along z. The first of them fetches it from
# memory, and the others find it in the cache. All of `b` is a
# thousandth{{ if near(4 * 512**2 / (8 * 512**3), 1 / 1000) }} of the traffic. So according to the prediction the sum
# takes as long as a copy of `a`, and the broadcast is free.
#
# ## The first kernel

# %%
from labkit import show_source
from labkit.kernels.broadcast import broadcast_add_strided, broadcast_add_strided_kernel

show_source(broadcast_add_strided_kernel)

# %%
show_source(broadcast_add_strided)

# %% [markdown]
# The launcher checks the shapes, flattens the arrays and covers the volume with blocks of 4 × 4 × 4, 64 threads each.
# In the kernel the three formulas are rearranged to save multiplications: `pair` is the index into `b`, and
# `pair * nz + z` is $x \cdot YZ + y \cdot Z + z$ with Z factored out.
#
# `x, y, z = cuda.grid(3)` names the axes in the order of the formula, and the block is a small cube. The kernel is
# correct, and it is slow. To see why, find out which threads are neighbours.
#
# ## Which threads are neighbours
#
# As in lesson 04, the first 32 threads of a block, with `threadIdx.x` running fastest, are its first warp, and a load
# costs as many sectors of 32 bytes as its addresses fall into. In the kernel above `threadIdx.x` became x, the axis
# with the longest step of all. The second kernel changes one line.

# %%
from labkit.kernels.broadcast import broadcast_add_coalesced_kernel

show_source(broadcast_add_coalesced_kernel)

# %% [markdown]
# `z, y, x = cuda.grid(3)`: now the fastest thread index runs along the fastest axis. The third rung is this same kernel
# in blocks of 64 × 4 × 1, which are long along z. The index formula alone tells us which sectors of `a` the first warp
# of a block loads. How many sectors does it load in each of the three rungs?

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

plots.warp_addresses(asked, "A warp in long rows wastes nothing of what it reads of a")

# %% [markdown]
# Sixteen, eight and four. The 32 threads need 128 bytes in each case, and 512, 256 and 128 bytes are moved. The second
# rung is only half coalesced, because rows of four threads fill {{ words(4 * 4 / 32) }} of a sector.
#
# That is a second prediction. If sectors were all that counts, the strided rung would take
# twice{{ if near(512 / 256, 2) }} as long as the coalesced one, and {{ words(512 / 128) }} times as long as the one
# with long rows.
#
# ## Right first

# %%
from labkit import agree

agree(BROADCAST_ADD)

# %% [markdown]
# All three are right, at sizes where swapped axes would show.
#
# ## The ladder

# %%
from labkit import ladder

found = ladder(BROADCAST_ADD)
found

# %% tags=["hide-input"]
plots.ladder(found)

# %% [markdown]
# On the CPU device the rungs may come in the same order for a different reason: it has no warps and no sectors, but in
# the strided order each step of a core hits a different line of its cache. The figure shows the speeds of an H200.
#
# Was the prediction right that the strided rung takes twice{{ if near(512 / 256, 2) }} as long as the coalesced one,
# and {{ words(512 / 128) }} times as long as the one with long rows?

# %%
from labkit import measure

h200 = measure.recorded_ladder("broadcast_add", gpu="NVIDIA H200")
ms = {row.name.removeprefix("broadcast_add_"): row.timing.p50 for row in h200.rows}

table([("strided / coalesced", 2, ms["strided"] / ms["coalesced"]),
       ("strided / long rows", 4, ms["strided"] / ms["long_rows"])],
      {"": "", "by sectors": "", "measured": ".1f"}, note=h200.where)

# %% [markdown]
# The first half was right; the second was far too low. Long rows change two things: the sectors, and the number of
# threads in a block, from 64 to 256. Lesson 04 found that blocks of 64 threads are limited by the rate at which a GPU
# can start blocks, and here is the other half of the evidence: the addition of two volumes in blocks of 4 × 4 × 4 takes
# {{ cubes_ms:.2f }} ms for 12 bytes per element, and *coalesced* takes {{ coalesced_ms:.2f }} ms for 8. In *long rows*
# that limit is gone. So a count of sectors tells which rung is better, but only a measurement tells by how much.
#
# ## One kernel or two calls
#
# With NumPy, CuPy or PyTorch, called in the ordinary way, a sum of three arrays is two sums. The first writes `a + b`
# out in full; the second reads it back, adds `c` and writes the result. That is 16 bytes per element, against 8 for one
# kernel. Can a library's better kernels make up for twice the bytes?

# %%
table([(name, moved, ms[name], moved * 512**3 / ms[name] / 1e6)
       for name, moved in (("long_rows", 8), ("PyTorch (two calls)", 16), ("PyTorch, compiled", 8))],
      {"": "", "bytes per element": "", "ms": ".3f", "GB/s": ",.0f"}, note=h200.where)

# %% [markdown]
# They cannot. On the H200 PyTorch's kernels move more bytes per second than mine, and still lose by a factor of
# {{ torch / rows:.1f }}, because they have twice as many to move. Doing several operations in one kernel, so that
# intermediate results never go to memory, is called *fusion*. A compiler can do it, too: `torch.compile` turns
# PyTorch's two calls into one kernel, and that one moves its bytes at the speed of a copy{{ if compiled_as_copy }}.
#
# ## What holds the best rung back
#
# My best rung reaches {{ fraction:.0% }} of the copy bandwidth and takes {{ over_compiled:.1f }} times as long as the
# compiled kernel. I had expected it near the limit: every sector that it loads is used, and `b` and `c` are nearly
# free.
#
# Lesson 02 has a rule for this: Little's law. A thread of *long rows* waits for a single value from memory, its element
# of `a`; the other two come from a cache. The additions of lessons 01 and 04 wait for two. To compare them, divide the
# bytes that a full SM has in flight by those that the law requires for the reads to keep up with the bound. Does this
# ratio tell how close a kernel comes to its bound?

# %%
latency = measure.recorded_series("memory_latency", gpu="NVIDIA H200")["places"]["memory"]["ns"]
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
shapes = measure.recorded_series("volume_add_block_shapes", gpu="NVIDIA H200")
vectors = measure.recorded_ladder("vector_add", {"n": 2**28}, gpu="NVIDIA H200")
kernels = [("broadcast, long rows", 1, 1 / 2, h200.row("broadcast_add_long_rows").fraction),
           ("two volumes, 64 × 4 × 1", 2, 2 / 3, shapes["gbs"][shapes["blocks"].index([64, 4, 1])] / bandwidth),
           ("two vectors, one element", 2, 2 / 3, vectors.row("vector_add_per_thread").fraction),
           ("two vectors, four elements", 8, 2 / 3, vectors.row("vector_add_four_loads").fraction)]
table([(name, loads, loads * 4 * 2048 / (read_share * bandwidth * latency / 132), fraction)
       for name, loads, read_share, fraction in kernels],
      {"addition of": "", "loads from memory": "", "in flight / needed": ".1f", "of the bound": ".0%"},
      note="recorded on an NVIDIA H200")

# %% [markdown]
# It puts them in the right order. Little's law alone would be satisfied with a ratio of one, but lesson 02 measured
# that a busy memory needs about three times as much. *Long rows* has the least in flight of the four and is the
# furthest from its bound. So it is not waiting for bandwidth, and moving fewer bytes does not help it: two volumes in
# the same blocks move half as many bytes again and take only {{ volume / rows:.2f }} times as long.
#
# ## Four elements per thread
#
# The cure is the one from lesson 01: let each thread add four elements, each one block width after the previous one,
# and load all four before it stores any. Here it helps twice, since the four have the same `x` and `y` and so share one
# element of `b` and one of `c`.

# %%
from labkit import cuda, observe


@cuda.jit
def four_elements_kernel(a, b, c, out, nx, ny, nz):
    width = cuda.blockDim.x
    z = cuda.blockIdx.x * width * 4 + cuda.threadIdx.x
    y = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    x = cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z
    if x < nx and y < ny:
        pair = x * ny + y
        added = b[pair] + c[x]  # for all four
        i = pair * nz + z
        if z + 3 * width < nz:
            first, second, third, fourth = a[i], a[i + width], a[i + 2 * width], a[i + 3 * width]
            out[i] = first + added
            out[i + width] = second + added
            out[i + 2 * width] = third + added
            out[i + 3 * width] = fourth + added
        else:  # near the end of a row
            while z < nz:
                out[pair * nz + z] = a[pair * nz + z] + added
                z += width


def four_elements(a, b, c, out, block=(64, 4, 1)):
    nx, ny, nz = a.shape
    grid = (-(-nz // (4 * block[0])), -(-ny // block[1]), -(-nx // block[2]))
    four_elements_kernel[grid, block](*(array.reshape(array.size) for array in (a, b, c, out)), nx, ny, nz)


# %% [markdown]
# Is the new kernel also right at the awkward sizes of this operation, and how many of the three loads per element are
# left?

# %%
rng, worst = np.random.default_rng(0), 0.0
for size in (*BROADCAST_ADD.awkward, {"X": 3, "Y": 5, "Z": 300}):
    inputs = BROADCAST_ADD.inputs(rng, **size)
    out = cuda.to_device(np.full(BROADCAST_ADD.shape(**size), np.nan, np.float32))
    four_elements(*(cuda.to_device(array) for array in inputs), out)
    worst = max(worst, np.abs(out.copy_to_host() - BROADCAST_ADD.reference(*inputs)).max())
print(f"largest error: {worst:.1e}")

flat = [np.zeros(size, np.float32) for size in (4 * 256, 4, 1, 4 * 256)]  # 1 x 4 x 256 elements
counts = []
for name, kernel, grid in (("one element", broadcast_add_coalesced_kernel, (4, 1, 1)),
                           ("four elements", four_elements_kernel, (1, 1, 1))):
    report = observe(kernel[grid, (64, 4, 1)], *flat, *np.uint32([1, 4, 256]))
    counts.append((name, report.counts["global_loads"] / 1024, report.counts["global_stores"] / 1024))
table(counts, {"each thread adds": "", "loads per element": ".1f", "stores per element": ".1f"})

# %% [markdown]
# It is right to within float32 rounding, and half of the loads are gone: six for four elements, instead of three for
# one. Each thread now has four loads from memory in flight, so the ratio in the table above rises from
# {{ one_load:.1f }} to {{ 4 * one_load:.1f }}. By that table the kernel should come close to its bound. If you have a
# GPU, the last cell of this lesson puts that to the test.
#
# ## What I learned
#
# - Broadcasting is a step of zero. Once I had written the steps down, I could read the index formulas off them.
# - The order of names in `x, y, z = cuda.grid(3)` decides which axis a warp runs along. The order that read well to me
#   was {{ words(strided_slowdown) }} times slower than the best on the H200.
# - A cube is the worst size for a test. Swapped axes pass it.
# - A small array that is read often costs next to nothing in bytes. It still costs loads, and I had left those out of
#   my prediction.
# - One mediocre kernel was faster than two better ones run one after the other.
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
#   were everything, which of the two blocks would be faster?
# - Draw `pictures.broadcast_reads((3, 2, 4), mark=(2, 0, 1))`. Work out the three indices on paper first.
# - Let `b` have the shape `(Y, Z)`, so that it enters as `b[None, :, :]`. What are its three steps? Which threads need
#   the same element now, and would you still rely on the cache?
# - Change the block in the cell below, which times both kernels. See which block is best for each of them.

# %%
from labkit.kernels.broadcast import broadcast_add_coalesced

block = (64, 4, 1)  # threads along z, y, x: change me

inputs = BROADCAST_ADD.inputs(np.random.default_rng(0), **found.size)
arrays = [cuda.to_device(array) for array in inputs]
out = cuda.device_array(BROADCAST_ADD.shape(**found.size), np.float32)
table([(name, measure.time_kernel(lambda launch=launch: launch(*arrays, out, block=block)).p50)
       for name, launch in (("one element", broadcast_add_coalesced), ("four elements", four_elements))],
      {"each thread adds": "", "ms": ".3f"}, note=measure.where())

# %% [markdown]
# On the CPU device these are times of your CPU, which has no latency to hide in this way.
#
# Next: **06 · Matrix multiplication**, where every element is read thousands of times and the cache is not enough.

# %% [numbers]
# rows = row('broadcast_add', 'long_rows').ms
# torch = row('broadcast_add', 'PyTorch').ms
# volume = series.volume_add_block_shapes.ms[13]  # 64 x 4 x 1
# cubes_ms = series.volume_add_block_shapes.ms[16]
# coalesced_ms = row('broadcast_add', 'coalesced').ms
# compiled_as_copy = row('broadcast_add', 'PyTorch, compiled').fraction > 0.97
# fraction = row('broadcast_add', 'long_rows').fraction
# over_compiled = rows / row('broadcast_add', 'PyTorch, compiled').ms
# one_load = 4 * 2048 / (limits.bandwidth_gbs / 2 * series.memory_latency.places['memory'].ns / 132)
# strided_slowdown = row('broadcast_add', 'strided').ms / rows
