# %% [markdown]
# # 04 · Matrix multiplication
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - why a matrix product can be bound by arithmetic, when everything so far was bound by memory
# - what a block gains by loading once what its threads all want
# - what a barrier protects, and what happens when not every thread reaches it
#
# ## The problem
#
# Every element of `out` is the dot product of a row of `a` and a column of `b`. For row $r$ and column $c$:
#
# $$\text{out}_{r,c} = \sum_{k} a_{r,k} \, b_{k,c}$$
#
# `a` has M rows and K columns, `b` has K rows and N columns. That makes M times N dot products, and each takes K
# multiplications and K additions.
#
# ## Prediction
#
# An addition uses each element once, and memory sets the pace. Here each element of `a` is used N times and each
# element of `b` M times. The number that tells the two cases apart is the *arithmetic intensity*: the flops
# (multiplications and additions) for each byte that has to move at least.
#
# Before you run the next cell, write down for M = N = K = 4,096: the flops, the bytes if each matrix moves once, and
# their quotient.

# %%
from labkit import roofline
from labkit.kernels.matmul.float32 import MATMUL

roofline.predict(MATMUL, M=4096, N=4096, K=4096)

# %% [markdown]
# The H200 does between 15 and 16 flops in the time it needs to move one byte. An operation with fewer waits for memory.
# The sums of the last lessons, with a quarter of a flop for a byte or less, are far below that, and the product is far
# above. If a kernel moved each matrix once, the memory would be idle most of the time.
#
# No kernel does so by itself. How close one can come is what this lesson is about.
#
# ## One thread, one element

# %%
from labkit import show_source
from labkit.kernels.matmul.float32 import matmul_naive_kernel

show_source(matmul_naive_kernel)

# %% [markdown]
# Two details are there for the compiler. `float32(0.0)` keeps the sum in float32; a plain `0.0` is a float64, and the
# sum would become one, too. The `uint32` counter keeps the index arithmetic short, as in the kernels before.
#
# One detail is a mistake. Blocks are 16 × 16, a warp is 32 threads with `threadIdx.x` running fastest, and
# `row, col = cuda.grid(2)` gives that fastest index to the row. So 16 neighbours stand in 16 different rows of `a`,
# each 16 KB from the next. The cure is to swap two names.

# %%
from labkit.kernels.matmul.float32 import matmul_coalesced_kernel

show_source(matmul_coalesced_kernel)

# %% [markdown]
# What does the swap change? Here is what one warp touches in one step of the loop over k, and in the store at the end.
# Before you run the cell: how many sectors of 32 bytes for each kernel?

# %%
import numpy as np

from labkit import plots

lane = np.arange(32)
fast, slow = lane % 16, lane // 16  # threadIdx.x and threadIdx.y in a block of 16 x 16
n, k = 4096, 0

touched = {}
for kernel, row, col in (("naive", fast, slow), ("coalesced", slow, fast)):
    touched[f"{kernel}: a[row, k]"] = row * n + k
    touched[f"{kernel}: b[k, col]"] = k * n + col
    touched[f"{kernel}: out[row, col]"] = row * n + col

plots.warp_addresses(touched, "What one warp touches")

# %%
for kernel in ("naive", "coalesced"):
    of_a = plots.sectors(touched[f"{kernel}: a[row, k]"])
    of_b = plots.sectors(touched[f"{kernel}: b[k, col]"])
    print(f"{kernel:10} {of_a:2d} + {of_b} = {of_a + of_b:2d} sectors for 32 multiply-adds")

# %% [markdown]
# Two numbers in a box mean that several lanes want the same element: `0, 16` those two, `0–15` all sixteen. It is read
# once and handed to all of them. So in each step the coalesced kernel asks for 4 sectors where the naive one asks for
# 17. Both do the same arithmetic in the same order. If sectors decide, the swap is worth a factor of about four. Keep
# that number.
#
# ## Asking for less
#
# Coalesced or not, each thread loads two numbers, 8 bytes, for two flops. That is a quarter of a flop for each byte
# asked for, as poor as the sums. But look at what the threads of one block ask for. The 16 threads of one of its rows
# all want the same row of `a`. The 16 of a column want the same column of `b`. Each number is asked for 16 times
# within the block.
#
# A block has memory of its own for this case. *Shared memory* lies next to the cores, all threads of the block can read
# and write it, and it is gone when the block ends. So the block walks along its rows of `a` and down its columns of `b`
# in square *tiles*. It loads each tile once, and every thread takes what it needs from there.

# %%
plots.tile_walk(M=7, N=11, K=10, tile=4, block=(2, 1))

# %% [markdown]
# For a tile of T × T, one step loads $2T^2$ numbers and does $T^3$ multiply-adds. That is $2T^3$ flops for $8T^2$
# bytes, so $T/4$ flops for each byte: 4 with a tile of 16, and 8 with a tile of 32.
#
# The sizes in the picture are awkward on purpose: the block hangs over every edge. Where a tile reaches beyond its
# matrix it is filled with zeros. A zero adds nothing to a dot product, so no step is a special case.

# %%
from labkit.kernels.matmul.float32 import make_matmul_tiled

show_source(make_matmul_tiled)

# %% [markdown]
# A function makes the kernel, because the size of shared memory must be known when the kernel is compiled. Inside it
# `tile` is a constant, and so is the length of the inner loop.
#
# The guard is no longer at the top. Each thread has two jobs now: to load for the others, and to compute its own
# element. A thread whose element lies outside of `out` has nothing to compute and still has to load. So all threads
# stay to the end, and only the store is guarded.
#
# ## Two barriers
#
# `cuda.syncthreads()` is a *barrier*: no thread of the block goes on before all of them have arrived. Each step has
# two, and they protect different things. The first stands between writing the tiles and reading them. Without it a
# thread reads what its neighbours have not loaded yet. The second stands between reading the tiles and writing the
# next ones. Without it a fast thread overwrites what a slow one still needs.
#
# Here is a single step without its first barrier. The CPU device runs the threads of a block one after another, each as
# far as the next barrier. How many of the 256 elements will it get right?

# %%
from numba import float32

from labkit import cuda


@cuda.jit
def no_barrier_kernel(a, b, out):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    a_tile[y, x] = a[y, x]
    b_tile[y, x] = b[y, x]
    # cuda.syncthreads() belongs here
    total = float32(0.0)
    for i in range(16):
        total += a_tile[y, i] * b_tile[i, x]
    out[y, x] = total


# %%
from labkit import device

a, b = (np.random.default_rng(seed).random((16, 16), dtype=np.float32) for seed in (1, 2))
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((16, 16), np.float32)

no_barrier_kernel[1, (16, 16)](d_a, d_b, d_out)
right = np.isclose(d_out.copy_to_host(), a @ b, rtol=1e-4).sum()
print(f"{right} of 256 elements are right ({device.name()})")

# %% [markdown]
# On the CPU device it is one. Only the last thread finds its row of `a_tile` and its column of `b_tile` complete. Who
# is last can be changed there.

# %%
if not device.on_gpu():
    from labkit import simt

    for order in ("forward", "reverse", "scattered"):
        with simt.thread_order(order):
            no_barrier_kernel[1, (16, 16)](d_a, d_b, d_out)
        right = np.argwhere(np.isclose(d_out.copy_to_host(), a @ b, rtol=1e-4))
        print(f"{order:9}   {len(right)} right, the first is out[{right[0, 0]}, {right[0, 1]}]")

# %% [markdown]
# A result that depends on the order of the threads is called a *race*. On a GPU the warps of a block run side by side,
# in no order that you could choose, and the count may be anything up to 256. That is the unpleasant thing about a race:
# it can pass every test you have.
#
# The second barrier is the worse one to forget, because its absence shows even less. I took it out of the tiled kernel,
# and on the CPU device the product stayed right in all three orders: that device takes all threads of a block through a
# loop together, one round at a time. Right numbers do not prove that the barriers are right.
#
# What shows it is to look at who touches what. `observe` runs a launch in plain Python and remembers every access that
# its threads make. That is slow, so it is for small launches. Here is the tiled kernel without its second barrier, one
# block, two tiles.

# %%
from labkit import observe


@cuda.jit
def one_barrier_kernel(a, b, out):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for start in range(0, a.shape[1], 16):
        a_tile[y, x] = a[y, start + x]
        b_tile[y, x] = b[start + y, x]
        cuda.syncthreads()
        for k in range(16):
            total += a_tile[y, k] * b_tile[k, x]
        # cuda.syncthreads() belongs here
    out[y, x] = total


wide = np.ones((16, 32), np.float32)
report = observe(one_barrier_kernel[1, (16, 16)], wide, wide.T.copy(), np.zeros((16, 16), np.float32))
for race in report.races:
    print(race, end="\n\n")

# %% [markdown]
# Two sentences, one for each tile: which thread still reads, which one already writes, and where the barrier belongs.
# With the barrier back in place the list is empty. `observe` gives the same answer on every machine, with a GPU or
# without, because it does not wait for a race to go wrong: it asks whether anything keeps two accesses apart.
#
# ## A barrier that not all threads reach
#
# There is a third way to get this wrong, and it comes from a good habit. Put the guard at the top, as in every kernel
# before this one, and send the threads without an element home.

# %%
@cuda.jit
def early_return_kernel(a, b, out):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    if y >= out.shape[0] or x >= out.shape[1]:
        return  # the good habit
    a_tile[y, x] = a[y, x]
    b_tile[y, x] = b[y, x]
    cuda.syncthreads()
    total = float32(0.0)
    for i in range(16):
        total += a_tile[y, i] * b_tile[i, x]
    out[y, x] = total


# %%
import textwrap

if device.on_gpu():
    print("Not on a GPU: what happens there is undefined. It may work, give wrong numbers, or hang.")
else:
    from labkit.simt.errors import BarrierError

    narrow = cuda.device_array((16, 13), np.float32)
    try:
        early_return_kernel[1, (16, 16)](d_a, d_b, narrow)
    except BarrierError as error:
        print(textwrap.fill(f"BarrierError: {error}", 90))

# %% [markdown]
# The CPU device stops, and says which barrier it is, how many threads stand there, and where one of the others went.
# CUDA promises nothing for such a kernel. Some GPUs forgive it and wait only for the threads that are left, which is
# how such kernels survive. This one would be wrong even so: the threads that went home were to load three columns of
# `a_tile`, and every other thread needs those.
#
# A barrier belongs where every thread of the block comes by.
#
# ## Right at every size

# %%
from labkit import agree

rungs = ["matmul_naive", "matmul_coalesced", "matmul_tiled", "matmul_tiled_32"]
agree(MATMUL, rungs)

# %% [markdown]
# A single product, a single row, a single column, sizes one past a tile: the zeros in the tails serve them all. The
# four rungs are equally exact, as they should be. Each adds the same products in the same order.
#
# ## The ladder
#
# Before you run it, write down the order of the four rungs on a GPU, and the factors between them. You have 17
# against 4 sectors for the first step, 1/4 against 4 flops for a byte for the second, and 4 against 8 for the third.

# %%
from labkit import ladder

found = ladder(MATMUL, rungs=rungs)
found

# %%
from labkit import measure

h200 = measure.recorded_ladder("matmul", gpu="NVIDIA H200").only(*rungs)
plots.ladder(found, None if device.on_gpu() else h200)

# %% [markdown]
# On the CPU device the rungs are close together. A tile is kept in ordinary memory there, and there is no warp
# whose loads could fall together. NumPy calls a library that people have tuned for processors like yours for years. (It
# uses several threads. If your machine is busy, NumPy waits for the slowest of them and its bar can be far too long.)
# For the rest, read the H200's bars.

# %%
naive_ms, coalesced_ms = (h200.row(f"matmul_{name}").timing.p50 for name in ("naive", "coalesced"))

print(f"measured on {h200.where}: the swap is worth a factor of {naive_ms / coalesced_ms:.1f}")
print(f"by sectors: {17 / 4}")

# %% [markdown]
# The count came close. For the other steps, put the flops for each byte asked for into the roofline: what would memory
# allow, if every request went all the way to memory?

# %%
peak, bandwidth = h200.limits["fp32_tflops"], h200.limits["bandwidth_gbs"] / 1000
flop_per_byte = {"naive": 1 / 4, "coalesced": 1 / 4, "tiled": 16 / 4, "tiled_32": 32 / 4}

print("flop per byte asked for     TFLOP/s memory allows     TFLOP/s measured on H200")
for name, asked in flop_per_byte.items():
    allowed = min(peak, asked * bandwidth)
    print(f"{name:10} {asked:12.2f} {allowed:25.1f} {h200.row(f'matmul_{name}').tflops:28.2f}")

# %% [markdown]
# The coalesced rung does more than four times what its requests would allow. So most of them never reach memory. The
# caches answer them, because neighbouring warps and blocks have asked for the same numbers a moment before. Tiling
# takes part of that reuse into the block's own hands: it asks the caches for less. Whether memory itself then has
# less to deliver is another question. Lesson 06 counts it, and the answer is no.
#
# The two tiled rungs surprised me more. A tile of 32 asks for half as much as a tile of 16, and is worth 5%. Both
# stay far below what memory would allow. The bandwidth of memory is not what holds them back.
#
# To find out I read the machine code that NVIDIA's assembler, ptxas 13.0, makes of the tile of 16. In each step a
# thread does 16 multiply-adds, and 20 loads from shared memory feed them: 16 for a column of `b_tile`, and 4 that
# fetch four neighbours in `a_tile` at once. A multiprocessor of the H200 has 128 float32 units, enough for the
# multiply-adds of four warps in one clock. Its shared memory has 32 banks, enough for the load of one warp. So twenty
# clocks of loading, at the least, stand against four of arithmetic. And Nsight Compute, the profiler of lesson 06,
# has counted for how many clocks that unit was really busy.

# %%
import re

from labkit.measure import ncu


def counted(metric):
    """A number from the profiler's report on the tile of 16."""
    return float(re.search(rf"{metric} +[^ ]+ +([\d,.]+)", ncu.recorded()["report"])[1].replace(",", ""))


busy = counted("SM Active Cycles") * counted("L1/TEX Cache Throughput") / 100
steps = 4096**3 / 16 / 32 / 132  # of warps, on each multiprocessor
print(f"at best {4 / 20:.0%} of {peak:.1f} TFLOP/s: {peak * 4 / 20:.0f} TFLOP/s")
print(f"counted: busy for {counted('L1/TEX Cache Throughput'):.0f}% of the time, "
      f"which is {busy / steps:.0f} clocks for each step of a warp")

# %% [markdown]
# My ceiling was too high, and the unit is full. Shared memory and the L1 cache are one unit, and more passes through
# it than I had counted: the two loads from global memory, the two stores into the tiles, and perhaps a second clock
# for each load of four neighbours. I have not measured these apart. But the direction is clear: shared memory has
# become what memory was, and a larger tile asks it for just as much.
#
# ## Over sizes

# %%
from labkit.measure import bench

plots.sizes(bench.matmul_sizes())

# %% [markdown]
# The rung at the top, `matmul_pipelined`, belongs to the next lesson. It shows where the way leads.
#
# On the H200 we recorded, the rungs start close together and fan out. At 256 the tile of 32 makes 8 × 8 = 64 blocks
# for 132 multiprocessors. More than half of the chip has nothing to do, and the larger tile has no advantage. From
# 512 on it has one.
#
# At the right end the coalesced rung loses a tenth of its speed between 2,048 and 4,096. I think that is the cache:
# the three matrices are 50 MB and then 201 MB, and the H200's cache holds 60 MB. The tile of 32 loses half as much,
# the tile of 16 next to nothing. What works by chance depends on the size.
#
# ## The roofline
#
# The roofline as a picture. Across: flops for each byte that must move at least. Up: flops in a second. The slope of
# the roof is the memory's bandwidth, the flat part is the peak of the arithmetic.

# %%
from labkit.kernels.broadcast import BROADCAST_ADD

sums = ladder(BROADCAST_ADD, baselines=False) if device.on_gpu() else measure.recorded_ladder("broadcast_add")
plots.roofline([sums, found if device.on_gpu() else h200])

# %% [markdown]
# The sums of lesson 03 stand under the slope. However good the kernel, the roof above them is low. The product stands
# far to the right, under the flat roof, with nearly all of the way up before it.
#
# On the H200 we recorded, the best of these four rungs reaches 13% of the peak. cuBLAS, NVIDIA's own library, reaches
# 78%: six times as much. The next lesson goes after that distance one cause at a time. With *register blocking* a
# thread computes a small tile of `out` and not a single element, so that a number loaded from shared memory feeds
# several multiply-adds. *Wider loads* move four numbers with one instruction. *Tensor cores* multiply small matrices
# in one go, in other number formats, and under another roof. Write down how far you think each of them goes.
#
# ## How this runs without a GPU
#
# Your processor has a few cores, and a block has 256 threads that must all stop at a barrier and go on together. The
# CPU device does not start 256 threads for that. It rewrites the kernel. This is what it makes of the part between
# the two barriers.

# %%
if not device.on_gpu():
    from labkit.kernels.matmul.float32 import matmul_tiled_kernel

    lines = simt.show(matmul_tiled_kernel, d_a, d_b, d_out).splitlines()
    first, second = (i for i, line in enumerate(lines) if "---- cuda.syncthreads()" in line)
    print(f"lines {first + 1} to {second + 1} of {len(lines)}:\n")
    print(textwrap.dedent("\n".join(lines[first : second + 1])))

# %% [markdown]
# A barrier cuts the kernel in two, and each half becomes a loop over the threads of the block. When the loop before the
# barrier has ended, every thread has arrived, by construction. What a thread must remember across a barrier, here its
# `total`, is kept in an array with a place for each thread; on a GPU it would stay in a register. `_m1` says which
# threads are still in the loop over tiles. The number at the end of a line is the line of the kernel's own source.
#
# The same rewriting is why `no_barrier_kernel` got one element right. With no barrier there is one loop, and thread
# after thread went through it from beginning to end.
#
# ## What was implemented
#
# - a product of matrices of any shape in four rungs: neighbours down a column, neighbours along a row, tiles of 16,
#   tiles of 32
# - tiles in shared memory with zeros in the tails and no early return
# - two wrong kernels, kept for what they show
#
# ## What I learned
#
# - I count what a warp asks for before I measure. For the swapped names the count came within 16% of the clock.
# - In a kernel with barriers the guard moves down to the store. No thread goes home early.
# - A kernel can be right by luck. Of each barrier I want to know which write it keeps from which read.
# - When bandwidth is not the limit, look for what has become scarce next. Here it is the unit that holds shared
#   memory and the L1 cache.
# - Naive, coalesced, tiled: that was the first 13% of the way.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Shared Memory](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#shared-memory)
# - [CUDA C++ Programming Guide: Synchronization Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#synchronization-functions)
# - [Numba CUDA: Examples](https://nvidia.github.io/numba-cuda/user/examples.html)
# - [Williams, Waterman, Patterson: Roofline, an insightful visual performance model (2009)](https://doi.org/10.1145/1498765.1498785)
#
# ## Try it
#
# - In the cell with the warp's addresses, lay the block out as 32 × 8: `fast, slow = lane, 0 * lane`. Predict the
#   sectors of both kernels. Which of the two suffers, and why is the square block a good compromise for the other?
# - Put the missing barrier into `no_barrier_kernel`, then move it up between the two loads. On the CPU device, how many
#   elements are right now? Draw the order in which the threads run.
# - Choose sizes for `plots.tile_walk` such that the last tile of `b` holds a single row. How many of its
#   multiplications are by zero?
#
# Next: **matrix multiplication to the limit**. Each thread computes a small tile of `out`, and of the
# factor of six a few percent are left.
