# %% [markdown]
# # 04 · Indexing in three dimensions
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how three coordinates become one address, and why it matters which of them runs along a warp
# - why a volume needs three guards, and why a guard on the address is not enough
# - how to count the memory accesses of a block's shape before measuring what they cost
#
# ## The problem
#
# The addition of lesson 01, with the vectors folded into volumes of $n_x \times n_y \times n_z$ elements:
#
# $$\text{out}_{z,y,x} = a_{z,y,x} + b_{z,y,x}$$
#
# The result is nothing new, and that is why I chose it: all that is left to understand is the indexing. In memory
# nothing is three-dimensional. A volume is one long row of elements, and the place of an element in it, its flat index
# or *address*, is
#
# $$\text{idx} = x + y\,n_x + z\,n_x n_y$$
#
# Here is a small volume that holds its own addresses. Before you run the cell: which element is at address 17?

# %%
import numpy as np

from labkit import agree, cuda, ladder, measure, plots, roofline, show_source
from labkit.kernels import elementwise
from labkit.kernels.ops.elementwise import VOLUME_ADD
from labkit.measure.series import vector

nx, ny, nz = 5, 3, 2
z, y, x = np.indices((nz, ny, nx))
print(x + y * nx + z * nx * ny)

# %% [markdown]
# One step along $x$ is the next address. One step along $y$ jumps over a row, one step along $z$ over a whole layer.
# The 17 lies in the second layer, first row: $z = 1$, $y = 0$, $x = 2$.
#
# NumPy names the slowest axis first, so the array's shape is `(nz, ny, nx)`. CUDA names the fastest first, so a thread
# is `(x, y, z)`. The two conventions meet in every launcher. If you mix them up in the same way everywhere, the answers
# stay right, and only the speed is lost; lesson 05 shows how much.
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
# Twelve bytes for one flop, as before. The bound is the same for both kernels: it counts the bytes that have to move,
# and not which thread moves them.
#
# ## Two ways to number threads

# %%
show_source(elementwise.volume_add_1d)

# %%
show_source(elementwise.volume_add_3d_kernel)

# %% [markdown]
# The first is a launcher: `flat` is a view of each array as a vector, without a copy, and the kernel is that of lesson
# 01, in blocks of 1,024. (`@rung` enters the launcher in the ladder, with its kernel and a line of description.)
#
# The second is a kernel that computes its address. `cuda.grid(3)` is the index formula of lesson 01 three times over,
# once for each axis. Then come multiplications and additions where the first kernel has none, and three comparisons in
# place of one. $16 \cdot 8 \cdot 8$ is 1,024 again, the most threads that a block may have.
#
# ## Three guards
#
# A block of this kind is a box, and it can hang over the volume on three sides. Are three comparisons needed for that?
# The address is what we use in the end, and `idx < n` keeps it inside the array. To find out, each thread that passes
# such a guard adds one to its element.

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
# Why `cuda.atomic.add`, and not `visits[i] += 1`? That would be a load, an addition and a store, and if two threads
# load the same number before either stores, one of the two additions is lost. An *atomic* addition cannot be
# interrupted. The volume is 17 × 9 × 11, of which no side is a multiple of the block's. Before you run the cell: how
# often is an element visited?

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
# A thread one step beyond the end of its row is not outside the volume. It is at the beginning of the next row, on an
# element that already has an owner. Every address is inside the array, so neither the sanitizer nor the bounds check of
# the CPU device can find anything wrong. For `out[i] = a[i] + b[i]` the answer is even right, only computed up to four
# times. For `out[i] += 1` it would be wrong. A guard belongs on the coordinates, one for each axis, because only they
# say what is outside.
#
# ## Agreement

# %%
agree(VOLUME_ADD)

# %% [markdown]
# The sizes behind that table are 17 × 9 × 11 and similar ones: a single element, a volume one element thick, a volume
# that is long in $z$ and thin elsewhere.
#
# ## The ladder

# %%
found = ladder(VOLUME_ADD)
found

# %%
h200 = measure.recorded_ladder("volume_add", gpu="NVIDIA H200")

plots.ladder(found, recorded=h200)

# %% [markdown]
# The flat kernel wins on the H200, and both stay far from the limit that PyTorch's addition reaches. They move the same
# bytes, do the same flops, and have equally many threads in a block. (On the CPU device the order has other reasons: it
# has no warps.) What a warp does can be counted without a GPU.
#
# ## The sectors of a warp
#
# The threads of a block are numbered by their coordinates: $x$ runs fastest, then $y$, then $z$. Each 32 in that order
# are a warp, whose lanes load together. The pieces of 32 bytes that memory delivers are called *sectors*; four
# neighbouring sectors make a *line* of the cache. So what a load costs depends on how many sectors the 32 addresses
# fall into. For 32 floats the least is four.
#
# The threads of the first warp can write down their addresses themselves.

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
# The warp of the long block loads 128 bytes in one piece. That of the 16 × 8 × 8 block loads two pieces, 2,048 bytes
# apart, because its second sixteen lanes are in the next row. But each piece is two whole sectors. I had expected waste
# here, and there is none.
#
# In the 4 × 4 × 64 block the rows are four threads long. Four floats are half a sector, and the other half travels
# along unused: eight sectors bring what fits into four. In a volume of this size all other warps of these blocks do the
# same, at other addresses.
#
# ## The sweep
#
# Now one kernel and one volume under 17 different blocks. Before you look: which property of a block will make it slow
# on the H200?

# %%
sweep = measure.recorded_series("volume_add_block_shapes", gpu="NVIDIA H200")

plots.block_shapes(vector.volume_add_block_shapes(), recorded=sweep)

# %% [markdown]
# Read the bars beside a count. Here it is for the blocks of 1,024 threads: sectors and lines of the first warp, and how
# many threads are started for each element.

# %%
print("block         sectors  lines  started  H200 GB/s")
for block, rate in zip(sweep["blocks"], sweep["gbs"], strict=True):
    if np.prod(block) == 1024:
        touched = first_warp(tuple(block))
        sectors, lines = (len(np.unique(touched * 4 // size)) for size in (32, 128))
        started = np.prod([-(-512 // width) * width / 512 for width in block])
        print(f"{title(block):13} {sectors:7} {lines:6} {started:8.0f} {rate:10,.0f}")

# %% [markdown]
# The table shows three effects.
#
# *Sectors.* From eight sectors on, each doubling nearly halves the rate{{ if rate_halves }}. That is what coalesced
# access is worth. The additions are the same, the bytes that they need are the same, and the last rows take several
# times as long as the rest because each of the 32 numbers comes in a sector of its own.
#
# *Idle threads.* The first row has the fewest sectors and lines, and is slow. Its block is 1,024 long and the volume
# 512, so the guard stops every second thread. Idle threads move no bytes, but they take up places on the SM. The best
# shape depends on the volume.
#
# *Short rows.* Among the shapes with four sectors the rate falls gently as the rows of the block get shorter. Two or
# four lines for one load cost a little more than one.
#
# Is occupancy (lesson 02) a fourth? Our kernel needs {{ registers }} registers a thread, by NVIDIA's assembler, so
# registers are not scarce. Two blocks of 1,024 threads fill all places for warps of an SM, and so do eight of 256, or
# 32 of 64. Every shape in the sweep allows full occupancy, so it cannot explain the differences.
#
# ## Why the flat kernel wins
#
# Back to the ladder. One shape of the sweep lies between the flat kernel and the 16 × 8 × 8 block: 256 × 4 × 1 has
# three coordinates, but each of its warps loads one line, as a flat warp does.

# %%
gbs = {tuple(shape): rate for shape, rate in zip(sweep["blocks"], sweep["gbs"], strict=True)}
flat, box = h200.row("volume_add_1d").gbs, h200.row("volume_add_3d").gbs
row = gbs[256, 4, 1]

print(f"on the H200 we recorded, {sweep['date']}")
print(f"    flat, 1,024 threads        {flat:6,.0f} GB/s")
print(f"    256 × 4 × 1                {row:6,.0f} GB/s   flat is {flat / row:.2f} times as fast")
print(f"    16 × 8 × 8                 {box:6,.0f} GB/s   flat is {flat / box:.2f} times as fast")
print("\nrows equally long: 1,024 threads and 256")
for big, small in (((256, 4, 1), (256, 1, 1)), ((64, 16, 1), (64, 4, 1)),
                   ((32, 32, 1), (32, 8, 1)), ((8, 8, 16), (8, 8, 4))):
    print(f"    {title(big):12}{gbs[big]:6,.0f}   {title(small):12}{gbs[small]:6,.0f} GB/s   "
          f"{gbs[small] / gbs[big]:.2f} times as fast")

# %% [markdown]
# So the lead of the flat kernel has two parts of about the same size. One comes with the three coordinates: more
# arithmetic stands before the first load. The other comes with the box: short rows, and two lines for each load.
#
# The last lines are the ones that I did not see coming. In four pairs of blocks the rows are equally long, and the
# block has 1,024 threads or 256. The smaller one is about a quarter{{ if near(min(pairs) - 1, 1 / 4) }} faster each
# time. So how many threads a block has matters more here than how they are numbered. The flat kernel says the same: in
# lesson 01, with 256 threads and on the larger vector, it came closer to the bound than
# here{{ if addition_came_closer }}.
#
# Both sizes allow full occupancy, and with hundreds of waves the tail is negligible. What differs is how soon places
# are filled again. A block starts when all of its threads have a place, so the places of warps that are done stay empty
# until a whole block fits: with 1,024 threads that is {{ words(1024 / 2048) }} of an SM, with 256 an eighth. If that is
# the reason, the occupancy that Nsight Compute counts while the kernel runs is lower for the large blocks. The
# recording does not have that count.
#
# What are three coordinates good for, then? For kernels in which a thread has to know where its element lies: a filter
# over an image, a simulation on a grid, anything with neighbours above and below. For elementwise work, flatten.
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
# - The fastest axis in memory belongs on $x$, because $x$ runs along the warp.
# - A guard on the flat index is not a guard. The threads that it lets through have another thread's element.
# - 16 × 8 × 8 wastes no sector. I had blamed it for that.
# - Occupancy explains nothing here. All 17 shapes can have it in full, and the best is
#   {{ words(max(shapes) / min(shapes)) }} times as fast as the worst.
# - 1,024 threads a block was my habit, and a bad one. I now start at 256 and measure.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Thread
#   Hierarchy](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy)
# - [CUDA C++ Best Practices Guide: Coalesced Access to Global
#   Memory](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#coalesced-access-to-global-memory)
# - [Numba CUDA: Writing CUDA Kernels](https://nvidia.github.io/numba-cuda/user/kernels.html)
#
# ## Try it
#
# - Draw `first_warp((16, 8, 8), nx=500)`. A row of 500 floats is not a whole number of sectors. Predict how many the
#   warp touches now, then look.
# - In `touched_kernel`, write `z, y, x = cuda.grid(3)` and draw the three blocks again. How many sectors does this one
#   line cost?
# - Count the visits with `nx = 16`, so that nothing hangs over along $x$. Which counts are left? Predict them first.
#
# Next: **04 · Broadcasting**, where three arrays of different shapes are added, and most reads are of an element that
# another thread has read before.

# %% [numbers]
# shapes = series.volume_add_block_shapes.gbs
# pairs = (shapes[12] / shapes[1], shapes[13] / shapes[3], shapes[14] / shapes[4], shapes[15] / shapes[7])
# rate_halves = max(shapes[11] / shapes[9], shapes[10] / shapes[9], shapes[9] / shapes[8]) < 0.6
# registers = row('volume_add', 'volume_add_3d').registers
# addition_came_closer = row('vector_add', 'per_thread', n=2**28).fraction > row('volume_add', 'volume_add_1d').fraction
