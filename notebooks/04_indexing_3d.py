# %% [markdown]
# # 04 · Indexing in three dimensions
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how three coordinates become one address, and why it matters which of them runs along a warp
# - why a volume needs three guards, and why a guard on the address is not enough
# - how to count the memory accesses that a block's shape causes before measuring what they cost
#
# ## The problem
#
# This is the addition of lesson 01 again, with the vectors reshaped into volumes of $n_x \times n_y \times n_z$
# elements:
#
# $$\text{out}_{z,y,x} = a_{z,y,x} + b_{z,y,x}$$
#
# The result is nothing new, which is why I chose it: all that is left to understand is the indexing. Memory knows
# nothing of three dimensions. A volume is one long row of elements, and the position of an element in it, its flat
# index or *address*, is
#
# $$\text{idx} = x + y\,n_x + z\,n_x n_y$$
#
# Here is a small volume of five by three by two that holds its own addresses. At which $x$, $y$ and $z$ is the element
# with address 17?

# %%
import numpy as np

from labkit import agree, cuda, ladder, measure, plots, roofline, show_source, table
from labkit.kernels import elementwise
from labkit.kernels.ops.elementwise import VOLUME_ADD
from labkit.measure.series import vector

nx, ny, nz = 5, 3, 2
z, y, x = np.indices((nz, ny, nx))
print(x + y * nx + z * nx * ny)

# %% [markdown]
# It is in the second layer and the first row: $z = 1$, $y = 0$, $x = 2$. One step along $x$ is the next address. One
# step along $y$ jumps over a row, and one step along $z$ over a whole layer.
#
# NumPy names the slowest axis first, so the array's shape is `(nz, ny, nx)`. CUDA names the fastest first, so a thread
# is `(x, y, z)`. The two conventions meet in every launcher. If you mix them up consistently, the answers stay right
# and only the speed is lost; lesson 05 shows how much.
#
# ## A prediction
#
# Two kernels will do the same additions, with 1,024 threads per block. One treats the volume as the vector that it is
# in memory. The other gives each thread three coordinates, in blocks of 16 × 8 × 8. How many bytes move for a volume of
# 512 × 512 × 512, and is the bound the same for both kernels?

# %%
roofline.predict(VOLUME_ADD, nx=512, ny=512, nz=512)

# %% [markdown]
# Twelve bytes for one flop, as before, and the same bound for both. It counts the bytes that have to move; it does not
# care which thread moves them.
#
# ## Two ways to count threads

# %%
show_source(elementwise.volume_add_1d)

# %%
show_source(elementwise.volume_add_3d_kernel)

# %% [markdown]
# The first is a *launcher*, the function on the host that checks the arguments and launches a kernel. `flat` is a view
# of each array as a vector, without a copy, and the kernel is that of lesson 01. `@rung` enters the launcher in the
# ladder, together with its kernel and a one-line description.
#
# The second is a kernel that computes its own address. `cuda.grid(3)` is the index formula of lesson 01 three times
# over, once per axis. Then come multiplications and additions where the first kernel has none, and three comparisons
# instead of one. $16 \cdot 8 \cdot 8$ is 1,024 again, the most threads that a block may have.
#
# ## Three guards
#
# A block of this kind is a box, and it can hang over the volume on three sides. Does that really need three
# comparisons? In the end we only use the address, and `idx < n` keeps it inside the array. To find out, let each thread
# that passes a guard add one to its element: first with the guard on the address, then with the guard on the
# coordinates.

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
# Why `cuda.atomic.add`, and not `visits[i] += 1`? The latter is a load, an addition and a store, and if two threads
# load the same value before either of them stores, one of the two additions is lost. An *atomic* addition cannot be
# interrupted.
#
# The volume is 17 × 9 × 11, and no side is a multiple of the block's. How often does each kernel visit an element?

# %%
nx, ny, nz = 17, 9, 11
block = (16, 8, 8)
grid = tuple(-(-size // width) for size, width in zip((nx, ny, nz), block, strict=True))

counted = []
for kernel in (visit_kernel, visit_guarded_kernel):
    visits = cuda.to_device(np.zeros(nx * ny * nz, np.int32))
    kernel[grid, block](visits, nx, ny, nz)
    for times, elements in zip(*np.unique(visits.copy_to_host(), return_counts=True), strict=True):
        counted.append((kernel.__name__, int(times), int(elements)))
table(counted, ["kernel", "visits", "elements with so many"])

# %% [markdown]
# With the guard on the address, most elements are visited twice or more. A thread one step beyond the end of its row is
# not outside the volume: it is at the beginning of the next row, on an element that already has an owner. Every address
# is inside the array, so neither the sanitizer nor the bounds check of the CPU device can find anything wrong. For
# `out[i] = a[i] + b[i]` even the answer is right, just computed up to four times. For `out[i] += 1` it would be wrong.
#
# So a guard belongs on the coordinates, one per axis, because only they say what is outside.
#
# ## Agreement

# %%
agree(VOLUME_ADD)

# %% [markdown]
# Both kernels pass. The sizes behind that table are 17 × 9 × 11 and similar ones: a single element, a volume one
# element thick, a volume that is long in $z$ and thin elsewhere.
#
# ## The ladder
#
# Which of the two is faster on an H200, the flat kernel or the one with three coordinates?

# %%
found = ladder(VOLUME_ADD)
found

# %% tags=["hide-input"]
h200 = measure.recorded_ladder("volume_add", gpu="NVIDIA H200")

plots.ladder(found, recorded=h200)

# %% [markdown]
# The flat kernel wins, by a factor of {{ box / flat:.2f }}, and both stay far from the limit that PyTorch's addition
# reaches. They move the same bytes, do the same flops, and have equally many threads per block. On the CPU device the
# order has other causes, since it has no warps. The kernels differ in the elements that the 32 threads of a warp load
# together, and that can be counted without a GPU.
#
# ## The sectors of a warp
#
# The threads of a block are counted with $x$ running fastest, then $y$, then $z$. In that order every 32 threads are a
# warp, whose lanes load together. The pieces of 32 bytes that memory delivers are called *sectors*; four neighbouring
# sectors make up a *line* of the cache. So the cost of a load depends on how many sectors the 32 addresses fall into.
# For 32 floats four is the least possible.
#
# The threads of the first warp can record their addresses themselves.

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
# How many sectors does the first warp touch in a block of 1024 × 1 × 1, of 16 × 8 × 8, and of 4 × 4 × 64?

# %%
def title(block):
    return " × ".join(str(width) for width in block)


plots.warp_addresses({title(block): first_warp(block) for block in [(1024, 1, 1), (16, 8, 8), (4, 4, 64)]})

# %% [markdown]
# The warp of the long block loads 128 bytes in one piece: four sectors. That of the 16 × 8 × 8 block loads two pieces,
# 2,048 bytes apart, because its upper sixteen lanes are in the next row. But each piece is exactly two sectors, so the
# total is four again. I had expected waste here, and there is none.
#
# In the 4 × 4 × 64 block the rows are four threads long. Four floats are half a sector, and this warp does not use the
# other half: eight sectors deliver what fits into four. In a volume of this size, all other warps of these blocks do
# the same at other addresses.
#
# ## The sweep
#
# Now one kernel and one volume with 17 different block shapes, all with full occupancy (lesson 03): the kernel needs
# only {{ registers }} registers per thread. Which property of a block will make it slow on the H200?

# %% tags=["hide-input"]
sweep = measure.recorded_series("volume_add_block_shapes", gpu="NVIDIA H200")

plots.block_shapes(vector.volume_add_block_shapes(), recorded=sweep)

# %%
rows = []
for block, rate in zip(sweep["blocks"], sweep["gbs"], strict=True):
    touched = first_warp(tuple(block))
    sectors, lines = (len(np.unique(touched * 4 // size)) for size in (32, 128))
    started = np.prod([-(-512 // width) * width / 512 for width in block])
    rows.append((title(block), int(np.prod(block)), sectors, lines, started, rate))
table(rows, {"block": "", "threads": "", "sectors": "", "lines": "", "threads per element": ".0f", "GB/s": ",.0f"},
      note="sectors and lines of the first warp; GB/s recorded on an NVIDIA H200")

# %% [markdown]
# With the counts next to the rates, the bars explain themselves. Look at the blocks of 1,024 threads first. There are
# three effects.
#
# *Sectors.* From eight sectors on, each doubling nearly halves the rate{{ if rate_halves }}. That is what coalesced
# access buys. The slowest blocks do the same additions on the same elements, and need several times as long because
# each of the 32 floats arrives in a sector of its own.
#
# *Idle threads.* The first row has the fewest sectors and lines, and yet it is slow. Its block is 1,024 long and the
# volume 512, so the guard stops half of the threads. Idle threads move no bytes, but they take up room on the SM. The
# best shape depends on the volume.
#
# *Short rows.* Among the shapes with four sectors the rate falls gently as the rows of the block get shorter. A load
# that touches two or four lines costs a little more than one that touches a single line.
#
# ## How many threads in a block?
#
# The last rows of the table have smaller blocks. In four pairs the two blocks have rows of the same length, and so the
# same number of sectors, but one block has 1,024 threads and the other 256. In a fifth pair, it is 1,024 threads
# against 64. Is the block with fewer threads the faster one in all five pairs?

# %%
gbs = {tuple(shape): rate for shape, rate in zip(sweep["blocks"], sweep["gbs"], strict=True)}
pairs = [((256, 4, 1), (256, 1, 1)), ((64, 16, 1), (64, 4, 1)), ((32, 32, 1), (32, 8, 1)), ((8, 8, 16), (8, 8, 4)),
         ((4, 16, 16), (4, 4, 4))]
table([(title(large), gbs[large], title(small), gbs[small], gbs[small] / gbs[large]) for large, small in pairs],
      {"large block": "", "GB/s": ",.0f", "small block": "", "GB/s, small": ",.0f", "small / large": ".2f"},
      note="recorded on an NVIDIA H200")

# %% [markdown]
# In four of them. Blocks of 256 threads are about a quarter{{ if near(min(pairs) - 1, 1 / 4) }} faster than blocks of
# 1,024, although both allow full occupancy, and with hundreds of waves the tail is negligible. These recordings do not
# show why. Lesson 12 counts how many warps are really resident while a kernel runs; the tool used there can tell.
#
# But smaller is not always better. Blocks of 64 are slower than blocks of 1,024{{ if small_loses }}, with eight sectors
# in both cases. Here the recordings do say something about the reason. The volume needs {{ 512**3 // 64 / 1e6:.1f }}
# million blocks of 64, and the H200 starts {{ round(starts, -1):,.0f }} of them per microsecond, a little less than one
# per clock. No other shape needs half as many. And lesson 05 has a kernel in the same blocks that moves a third fewer
# bytes and takes just as long{{ if same_time }}. So with 64 threads it is the rate of starting blocks that sets the
# pace.
#
# ## Why the flat kernel wins
#
# Back to the ladder. One shape of the sweep is halfway between the flat kernel and the 16 × 8 × 8 block: 256 × 4 × 1
# has three coordinates, but each of its warps loads a single line, as a flat warp does. How much of the flat kernel's
# lead comes from the coordinates, and how much from the box?

# %%
flat, box, row = h200.row("volume_add_1d").gbs, h200.row("volume_add_3d").gbs, gbs[256, 4, 1]
table([("flat, 1,024 threads", flat, 1), ("256 × 4 × 1", row, flat / row), ("16 × 8 × 8", box, flat / box)],
      {"": "", "GB/s": ",.0f", "flat is faster by": ".2f"}, note="recorded on an NVIDIA H200")

# %% [markdown]
# The two parts are about equal{{ if parts_equal }}. One comes with the three coordinates: there is more arithmetic
# before the first load. The other comes with the box: short rows, and two lines per load.
#
# Neither matters as much as the size of the block. In lesson 01 the flat kernel itself came closer to the bound, with
# 256 threads and on the larger vector, than it does here with 1,024{{ if addition_came_closer }}.
#
# What are three coordinates good for, then? For kernels in which a thread has to know where its element is: a filter
# over an image, a simulation on a grid, anything with neighbours above and below. For elementwise work, flatten.
#
# ## What I learned
#
# - The fastest axis in memory belongs on $x$, because $x$ runs along the warp.
# - A guard on the flat index is not a guard. It lets through threads that then work on another thread's element.
# - 16 × 8 × 8 wastes no sectors. I had thought it did.
# - Occupancy explains nothing here. All 17 shapes allow full occupancy, and the best is
#   {{ words(max(shapes) / min(shapes)) }} times as fast as the worst.
# - 1,024 threads per block was my habit, and a bad one; 64 is worse. I now start at 256 and measure.
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
# Next: **05 · Broadcasting**, where three arrays of different shapes are added, and most reads are of elements that
# another thread has already read.

# %% [numbers]
# shapes = series.volume_add_block_shapes.gbs
# pairs = (shapes[12] / shapes[1], shapes[13] / shapes[3], shapes[14] / shapes[4], shapes[15] / shapes[7])
# small_loses = shapes[16] < 0.9 * shapes[8]
# starts = 512**3 / 64 / (1000 * series.volume_add_block_shapes.ms[16])
# same_time = abs(row('broadcast_add', 'coalesced').ms / series.volume_add_block_shapes.ms[16] - 1) < 0.01
# rate_halves = max(shapes[11] / shapes[9], shapes[10] / shapes[9], shapes[9] / shapes[8]) < 0.6
# registers = row('volume_add', 'volume_add_3d').registers
# flat = row('volume_add', 'volume_add_1d').ms
# box = row('volume_add', 'volume_add_3d').ms
# parts_equal = abs(row('volume_add', 'volume_add_1d').gbs / shapes[1] - shapes[1] /
#                   row('volume_add', 'volume_add_3d').gbs) < 0.05
# addition_came_closer = row('vector_add', 'per_thread', n=2**28).fraction > row('volume_add', 'volume_add_1d').fraction
