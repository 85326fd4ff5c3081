# %% [markdown]
# # 02 · Indexing in three dimensions
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how three coordinates become one address, and why it matters which of them runs along a warp
# - why a volume needs three guards, and why one guard on the address is none
# - how to count what the shape of a block asks of memory, before measuring what it costs
#
# ## The problem
#
# The addition of lesson 01, with the vectors folded into volumes of $n_x \times n_y \times n_z$ elements:
#
# $$\text{out}_{z,y,x} = a_{z,y,x} + b_{z,y,x}$$
#
# I did not come here for speed. I had used three-dimensional grids without being sure that I understood them, and an
# operation that I know inside out is the place to make sure. In memory nothing is three-dimensional. A volume is one
# long row of elements, and the place of an element in it, its flat index or *address*, is
#
# $$\text{idx} = x + y\,n_x + z\,n_x n_y$$
#
# Here is a small volume that holds its own addresses. Before you run the cell: which element is at address 17?

# %%
import numpy as np

from labkit import agree, cuda, ladder, measure, plots, roofline, show_source
from labkit.kernels import elementwise
from labkit.kernels.elementwise import VOLUME_ADD
from labkit.measure import bench

nx, ny, nz = 5, 3, 2
z, y, x = np.indices((nz, ny, nx))
print(x + y * nx + z * nx * ny)

# %% [markdown]
# One step along $x$ is the next address. One step along $y$ jumps over a row, one step along $z$ over a whole layer.
# The 17 lies in the second layer, first row: $z = 1$, $y = 0$, $x = 2$.
#
# NumPy names the slowest axis first, so the array's shape is `(nz, ny, nx)`. CUDA names the fastest first, so a thread
# is `(x, y, z)`. The two conventions meet in every launcher. Mix them up consistently and the answers stay right. Only
# the speed is gone, as we shall see.
#
# ## A prediction
#
# Two kernels will do the same additions on the same bytes, with 1,024 threads a block. One treats the volume as the
# vector that it is. The other gives each thread three coordinates, in blocks of 16 × 8 × 8. Before you run the next
# cell, write down how many bytes move for a volume of 512 × 512 × 512, and a guess: which kernel is faster, and by how
# much?

# %%
roofline.predict(VOLUME_ADD, nx=512, ny=512, nz=512)

# %% [markdown]
# Twelve bytes for one flop, as before. The roofline sees no difference between the two kernels. It counts the bytes
# that have to move and does not ask who asks for them.
#
# ## Two ways to number threads

# %%
show_source(elementwise.volume_add_1d)

# %%
show_source(elementwise.volume_add_3d_kernel)

# %% [markdown]
# The first is a launcher. It flattens its arrays and hands them to the kernel of lesson 01, in blocks of 1,024.
#
# The second is a kernel that works out its address. `cuda.grid(3)` is the index formula of lesson 01 three times over,
# once for each axis. Then come multiplications and additions where the first kernel has none, and three comparisons in
# place of one. $16 \cdot 8 \cdot 8$ is 1,024 again, the most that a block may hold.
#
# ## Three guards
#
# A block of this kind is a box, and it can hang over the volume on three sides. Does it take three comparisons to catch
# that? The address is what we use in the end, and `idx < n` keeps it inside the array. To find out, let every thread
# that passes such a guard leave a mark on its element.

# %%
@cuda.jit
def visit_kernel(visits, nx, ny, nz):
    x, y, z = cuda.grid(3)
    i = x + y * nx + z * nx * ny
    if i < visits.size:  # looks like a guard
        cuda.atomic.add(visits, i, 1)


@cuda.jit
def visit_guarded_kernel(visits, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        cuda.atomic.add(visits, x + y * nx + z * nx * ny, 1)


# %% [markdown]
# `cuda.atomic.add` is an addition that many threads can do to the same element and none gets lost. The volume is
# 17 × 9 × 11, which the block divides on no side. Before you run the cell: how often is an element visited?

# %%
nx, ny, nz = 17, 9, 11
block = (16, 8, 8)
grid = tuple(-(-size // width) for size, width in zip((nx, ny, nz), block, strict=True))

for kernel in (visit_kernel, visit_guarded_kernel):
    visits = cuda.to_device(np.zeros(nx * ny * nz, np.int32))
    kernel[grid, block](visits, nx, ny, nz)
    print(kernel.__name__)
    for times, elements in zip(*np.unique(visits.copy_to_host(), return_counts=True), strict=True):
        print(f"    {elements:5,} elements with {times} visits")

# %% [markdown]
# A thread one step beyond the end of its row does not stand outside the volume. It stands at the beginning of the next
# row, on an element that already has an owner. Every address is inside the array, so nothing can object, neither the
# sanitizer nor the bounds check of the CPU device. For `out[i] = a[i] + b[i]` the answer is even right, only worked out
# up to four times. For `out[i] += 1` it would be wrong. A guard belongs on the coordinates, one for each axis, because
# only there does "outside" mean anything.
#
# ## Agreement

# %%
agree(VOLUME_ADD)

# %% [markdown]
# The sizes behind that table are 17 × 9 × 11 and its like: a single element, a sheet one element thick, a volume that
# is long in $z$ and thin elsewhere.
#
# ## The ladder

# %%
found = ladder(VOLUME_ADD)
found

# %%
h200 = measure.recorded_ladder("volume_add", gpu="NVIDIA H200")

plots.ladder(found, recorded=h200)

# %% [markdown]
# The flat kernel wins on the H200, and both stay far from the limit that PyTorch's addition reaches. Same bytes, same
# flops, same number of threads in a block. The CPU device has an opinion as well, but it has neither warps nor a memory
# that delivers to them, so its opinion is about something else. What a warp does can be counted without a GPU.
#
# ## What a warp asks for
#
# The hardware numbers the threads of a block by their coordinates: $x$ runs fastest, then $y$, then $z$. Each 32 in
# that order are a warp, its *lanes* 0 to 31, and a warp loads together. Memory does not deliver single elements. It
# delivers *sectors* of 32 bytes, eight floats each, and four neighbouring sectors make a *line* of the cache. So what a
# load costs depends on how many sectors the 32 addresses fall into. For 32 floats the least is four.
#
# I do not trust myself to work out addresses in my head, so the threads of the first warp shall write them down.

# %%
@cuda.jit
def touched_kernel(touched, nx, ny):
    x, y, z = cuda.grid(3)
    row = cuda.threadIdx.y + cuda.threadIdx.z * cuda.blockDim.y
    place = cuda.threadIdx.x + row * cuda.blockDim.x  # in the block, x fastest
    if place < 32:
        touched[place] = x + y * nx + z * nx * ny


def first_warp(block, nx=512, ny=512):
    touched = cuda.to_device(np.full(32, -1, np.int64))
    touched_kernel[1, block](touched, nx, ny)
    return touched.copy_to_host()


# %% [markdown]
# Before you look: how many sectors does the first warp of a 16 × 8 × 8 block touch? And that of a 4 × 4 × 64 block?

# %%
def title(block):
    return " × ".join(str(width) for width in block)


plots.warp_addresses({title(block): first_warp(block) for block in [(1024, 1, 1), (16, 8, 8), (4, 4, 64)]})

# %% [markdown]
# The long block asks for 128 bytes in one piece. The 16 × 8 × 8 block asks for two pieces, 2,048 bytes apart, because
# its second sixteen lanes stand in the next row. But each piece is two whole sectors. I had expected waste here, and
# there is none.
#
# The 4 × 4 × 64 block is another matter. Its rows are four threads long, four floats are half a sector, and the other
# half travels along unused. It takes eight sectors to bring what fits into four. In a volume of this size all other
# warps of these blocks do the same, at other addresses.
#
# ## The sweep
#
# Now many shapes. One kernel and one volume under 17 different blocks, here and on the H200.

# %%
sweep = measure.recorded_series("volume_add_block_shapes", gpu="NVIDIA H200")

plots.block_shapes(bench.volume_add_block_shapes(), recorded=sweep)

# %% [markdown]
# On the CPU device the two longest bars are the blocks that hang far over a volume of 64 × 64 × 64. Threads without an
# element cost time there, and the rest says little. The H200's bars need the count beside them. Here it is for the
# blocks of 1,024 threads: sectors and lines of the first warp, and how many threads are started for each element.

# %%
print("block         sectors  lines  started  H200 GB/s")
for block, rate in zip(sweep["blocks"], sweep["gbs"], strict=True):
    if np.prod(block) == 1024:
        touched = first_warp(tuple(block))
        sectors, lines = (len(np.unique(touched * 4 // size)) for size in (32, 128))
        started = np.prod([-(-512 // width) * width / 512 for width in block])
        print(f"{title(block):13} {sectors:7} {lines:6} {started:8.0f} {rate:10,.0f}")

# %% [markdown]
# The table has three stories in it.
#
# *Sectors.* From eight sectors on, each doubling nearly halves the rate. This is coalescing, in one column. The
# additions are the same, the bytes that they need are the same, and the last rows take several times as long as the
# rest because each of the 32 numbers comes in a sector of its own.
#
# *Idle threads.* The first row asks for memory as well as one can, and is slow. Its block is 1,024 long and the volume
# 512, so the guard sends every second thread home. Idle threads move no bytes, but they take up places. A good shape
# for one volume is a bad one for the next.
#
# *Short rows.* Among the shapes with four sectors the rate falls gently as the rows of the block get shorter. Two lines
# for one request, or four, cost something, but little.
#
# ## Occupancy
#
# A multiprocessor of the H200 has places for 2,048 threads, and 65,536 registers to share out among them. *Occupancy*
# is the share of the places that are taken. It matters because a warp that waits for memory must be covered by others
# that run. Our kernel needs 12 registers a thread, says NVIDIA's assembler (on a GPU, its `get_regs_per_thread()`
# tells you yours), so registers stop nobody. Two blocks of 1,024 threads fill all places, and so do eight of 256, or
# 32 of 64, which is the most blocks there may be. So every shape in the sweep allows full occupancy, and whatever
# makes them differ, it is not that. I note this because "the shape of a block affects occupancy" is the first thing
# one reads about shapes. It can. Here it does not.
#
# ## Why the flat kernel wins
#
# Back to the ladder. Between the flat kernel and the 16 × 8 × 8 block I can place one more measurement from the sweep:
# 256 × 4 × 1 has three coordinates, but each of its warps asks for one line, as a flat warp does.

# %%
gbs = {tuple(shape): rate for shape, rate in zip(sweep["blocks"], sweep["gbs"], strict=True)}
flat, box = h200.row("volume_add_1d").gbs, h200.row("volume_add_3d").gbs
row = gbs[256, 4, 1]

print(f"on the H200 we recorded, {sweep['date']}")
print(f"    flat, 1,024 threads        {flat:6,.0f} GB/s")
print(f"    256 × 4 × 1                {row:6,.0f} GB/s   flat is {flat / row:.2f} times as fast")
print(f"    16 × 8 × 8                 {box:6,.0f} GB/s   flat is {flat / box:.2f} times as fast")
print(f"    256 × 1 × 1                {gbs[256, 1, 1]:6,.0f} GB/s")

# %% [markdown]
# So the lead of the flat kernel has two parts of about the same size. One goes with the three coordinates: more
# arithmetic stands before the first load. The other goes with the box: short rows, and two lines for each request.
#
# The last line is the one that I did not see coming. Blocks of 256 threads with three coordinates beat blocks of 1,024
# with one. How many threads a block has matters more here than how they are numbered. I think it is this: a block
# starts when there is room for all of it, so the places of a warp that is done stay empty until there are enough for a
# whole block. Small blocks fill the gaps sooner. The recording shows the effect and does not prove the cause; that
# takes a profiler.
#
# What are three coordinates good for, then? For kernels in which a thread has to know where it stands: a filter over an
# image, a simulation on a grid, anything with neighbours above and below. There they are worth their arithmetic. For
# elementwise work, flatten.
#
# ## What was implemented
#
# - the addition of volumes, flat and with three coordinates, both with 1,024 threads a block
# - a count of visits that shows what a guard on the address lets through
# - a count of sectors and lines for any shape of block, taken from the threads themselves
# - a sweep over 17 shapes of a block
#
# ## What I learned
#
# - The fastest axis in memory belongs on $x$, because $x$ runs along the warp. The rest is bookkeeping.
# - A guard on the flat index is not a guard. The stray threads land on somebody else's element.
# - 16 × 8 × 8 wastes no sector. I had blamed it for that.
# - Occupancy explains nothing here. All 17 shapes can have it in full, and the best is seven times as fast as the
#   worst.
# - 1,024 threads a block was my habit, and a bad one. I now start at 256 and measure.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Thread Hierarchy](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy)
# - [CUDA C++ Best Practices Guide: Coalesced Access to Global Memory](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#coalesced-access-to-global-memory)
# - [Numba CUDA: Writing CUDA Kernels](https://nvidia.github.io/numba-cuda/user/kernels.html)
#
# ## Try it
#
# - Draw `first_warp((16, 8, 8), nx=500)`. A row of 500 floats is no whole number of sectors. Predict how many the warp
#   touches now, then look.
# - In `touched_kernel`, write `z, y, x = cuda.grid(3)` and draw the three blocks again. One line, and how many sectors?
# - Count the visits with `nx = 16`, so that nothing hangs over along $x$. Which counts are left? Predict them first.
#
# Next: **03 · Broadcasting**, where three arrays of different shapes are added and most of the reads are of something
# that was read before.
