# %% [markdown]
# # 06 · Matrix multiplication
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - why a matrix product can be bound by arithmetic, when everything so far was bound by memory
# - how the threads of a block load just once what they all need
# - what a barrier protects, and what happens when not every thread reaches it
# - how the order of the blocks decides what the L2 cache can hold
#
# ## The problem
#
# Every element of `out` is the dot product of a row of `a` and a column of `b`. For row $r$ and column $c$:
#
# $$\text{out}_{r,c} = \sum_{k} a_{r,k} \, b_{k,c}$$
#
# `a` has M rows and K columns, `b` has K rows and N columns. That makes M times N dot products, each of K
# multiplications and K additions.
#
# An addition uses each element once, and memory is the limit. Here each element of `a` is used N times and each element
# of `b` M times. The *arithmetic intensity* tells the two cases apart: the flops (multiplications and additions) per
# byte that has to move. For M = N = K = 4,096, how many flops are there per byte, if each matrix moves once?

# %%
from labkit import roofline
from labkit.kernels.ops.matmul import MATMUL

roofline.predict(MATMUL, M=4096, N=4096, K=4096)

# %% [markdown]
# The H200 does between {{ intensity // 1:.0f }} and {{ intensity // 1 + 1:.0f }} flops in the time it needs to move one
# byte. An operation with fewer flops per byte waits for memory. The additions of the last lessons, with a
# quarter{{ if near(2 / 8, 1 / 4) }} of a flop per byte or less, are far below that, and the product is far above,
# provided that each matrix moves only once. That does not happen by itself.
#
# ## One thread, one element

# %%
from labkit import show_source
from labkit.kernels.matmul.float32 import matmul_naive_kernel

show_source(matmul_naive_kernel)

# %% [markdown]
# Two details are for the compiler. `float32(0.0)` keeps the sum in float32; a plain `0.0` is a float64, and the sum
# would become one, too. `u32.grid` and `u32.range` give unsigned 32-bit integers, whose sums stay at 32 bits as in CUDA
# C++. Numba's own indices have 64. For this kernel, which waits for memory, the two are equally fast{{ if same_time }};
# of {{ first_kernels }} first kernels of this course, {{ longer }} are slower with 64 bits, the worst by a factor of
# {{ worst_factor:.1f }}.
#
# One detail is a mistake. Blocks are 16 × 16, a warp is 32 threads with `threadIdx.x` running fastest, and
# `row, col = cuda.grid(2)` gives that fastest index to the row. So 16 neighbouring threads read 16 different rows of
# `a`, each 16 KB ({{ 16 * 1024 // 4:, }} floats) from the next. The cure is to swap two names:
# `col, row = cuda.grid(2)`, the rung *coalesced*.
#
# The next cell draws what one warp touches in one step of the loop over k, and in the store at the end. How many
# sectors of 32 bytes does each of the two kernels need in one step?

# %%
import numpy as np

from labkit import plots, table
from labkit.course.drawings import matmul as pictures

lane = np.arange(32)
fast, slow = lane % 16, lane // 16  # threadIdx.x and threadIdx.y in a block of 16 x 16
n, k = 4096, 0

touched = {}
for kernel, row, col in (("naive", fast, slow), ("coalesced", slow, fast)):
    touched[f"{kernel}: a[row, k]"] = row * n + k
    touched[f"{kernel}: b[k, col]"] = k * n + col
    touched[f"{kernel}: out[row, col]"] = row * n + col

plots.warp_addresses(touched, "The naive kernel touches 17 sectors in a step, the coalesced one 4")

# %% tags=["hide-input"]
of = {name: plots.sectors(places) for name, places in touched.items()}
lines = {name: len(set(places * 4 // 128)) for name, places in touched.items()}
table([(kernel, *(f"{of[name]} and {lines[name]}" for name in touched if name.startswith(kernel)))
       for kernel in ("naive", "coalesced")],
      ["sectors of 32 bytes and lines of 128", "a", "b", "out"])

# %% [markdown]
# A box shows which lanes load its element: `0, 16` are two of them, `0–15` sixteen. The element is read once and handed
# to all of them. The naive kernel needs 16 + 1 sectors in a step, the coalesced one 2 + 2. Both do the same arithmetic
# in the same order. If sectors decide, how many times as fast is the coalesced kernel?

# %%
from labkit import measure
from labkit.measure.plots.matmul import climb

H100 = "NVIDIA H100 80GB HBM3"
recorded = measure.recorded_ladder("matmul", gpu=H100)
climb(recorded, "coalesced")

# %% [markdown]
# 17 sectors against 4 are a factor of {{ 17 / 4:.2f }}. The L1 cache looks up whole lines of 128 bytes, and of those
# the kernels touch 17 and 3, a factor of {{ 17 / 3:.2f }}. On the H100 of this recording the swap makes the kernel
# {{ swap:.2f }} times as fast, between the two{{ if 17 / 4 < swap < 17 / 3 }}. Counting what a warp touches came close
# before anything was timed.
#
# ## Tiles
#
# Coalesced or not, each thread loads two elements, 8 bytes, for two flops. But the 16 threads of a row of the block all
# need the same row of `a`, and the 16 of a column the same column of `b`. The block loads each element 16
# times{{ example }}.
#
# *Shared memory* is made for this. It is memory on the SM that all threads of a block can read and write, and its
# contents are gone when the block ends. The block moves along its rows of `a` and down its columns of `b` in square
# *tiles*. It loads each tile once, and every thread reads what it needs from there. In a kernel, `cuda.shared.array`
# reserves such memory.

# %%
pictures.tile_walk(M=7, N=11, K=10, tile=4, block=(2, 1))

# %% [markdown]
# The sizes in the picture are awkward on purpose: the block hangs over every edge. Where a tile reaches beyond its
# matrix it is filled with zeros. A zero adds nothing to a dot product, so no step is a special case.

# %%
from labkit.kernels.matmul.float32 import make_matmul_tiled

show_source(make_matmul_tiled, "a_tile = cuda.shared.array", "out[row, col] = total")

# %% [markdown]
# A function makes the kernel, because the size of shared memory must be known when the kernel is compiled. The bound of
# `range(tile)` is then known as well, so the compiler can unroll that loop. Two tiles of 16 × 16 floats occupy
# {{ 2 * 16 * 16 * 4 // 1024 }} KB, a small part of what an SM has. The branch with `grouped` is explained at the end of
# this lesson.
#
# The guard is no longer at the top. A thread whose element is outside `out` still has to load for the others. So all
# threads stay to the end, and only the store is guarded.
#
# ## Two barriers
#
# `cuda.syncthreads()` is a *barrier*: no thread of the block passes it before all of them have reached it. Each step
# has two, and they protect different things. The first comes between writing the tiles and reading them. Without it a
# thread reads elements that its neighbours have not loaded yet. The second comes between reading the tiles and writing
# the next ones. Without it a fast thread overwrites what a slow one still needs.
#
# Here is a single step without its first barrier. The CPU device runs the threads of a block one after another, each as
# far as the next barrier. How many of the 256 elements are right without the first barrier?

# %%
from numba import float32

from labkit import cuda, device


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


a, b = (np.random.default_rng(seed).random((16, 16), dtype=np.float32) for seed in (1, 2))
d_a, d_b, d_out = cuda.to_device(a), cuda.to_device(b), cuda.device_array((16, 16), np.float32)

no_barrier_kernel[1, (16, 16)](d_a, d_b, d_out)
right = np.isclose(d_out.copy_to_host(), a @ b, rtol=1e-4).sum()
print(f"{right} of 256 elements are right ({device.name()})")

# %% [markdown]
# On the CPU device it is one: only the last thread finds its row of `a_tile` and its column of `b_tile` complete. A
# result that depends on the order of the threads is a *race*. On a GPU the warps of a block run in an order that you
# cannot choose, and the count may be anything up to 256. So a kernel with a race can pass every test that you have.
#
# To find a race, look at which thread touches what: `observe` (lesson 02) records every access of a small launch. Here
# is the tiled kernel without its second barrier, one block, two steps. On the CPU device its result is right even so,
# because of the order in which that device runs the threads.

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
# Two reports, one per tile: which thread still reads, which one already writes, where the barrier belongs, and how many
# accesses collide. `syncwarp` is a barrier for the threads of one warp, and the second report shows that it would not
# be enough here. `observe` gives the same answer with a GPU or without, because it does not wait for a race to go
# wrong: it checks whether anything keeps two accesses apart.
#
# There is a third way to get this wrong: put the guard at the top, as in earlier kernels, and let the threads without
# an element return.

# %%
@cuda.jit
def early_return_kernel(a, out):
    tile = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    if y >= out.shape[0] or x >= out.shape[1]:
        return  # right in earlier lessons
    tile[y, x] = a[y, x]
    cuda.syncthreads()
    out[y, x] = tile[y, 15 - x]


report = observe(early_return_kernel[1, (16, 16)], a, np.zeros((16, 13), np.float32))
print(*report.divergent_barriers)

# %% [markdown]
# CUDA promises nothing for such a kernel: it may work, compute garbage, or hang. On many GPUs a barrier waits only for
# the threads that are left. Even there this kernel would be wrong, because three columns of `tile` were never loaded.
#
# Step through the right kernel, for matrices of 32 × 32: four blocks of 16 × 16 threads, and two tiles of each matrix
# for every block. When does a warp wait at a barrier, and for which of the others?

# %%
from labkit.kernels.matmul.float32 import matmul_tiled_kernel

left, right = np.random.default_rng(0).random((2, 32, 32), np.float32)
observe(matmul_tiled_kernel[(2, 2), (16, 16)], left, right, np.zeros((32, 32), np.float32)).play()

# %% [markdown]
# The first warps to finish their loads, or their products, wait until the last of the block's eight has finished, too:
# each tile is complete before any warp reads it, and has been read before any warp replaces it.
#
# ## What tiles save
#
# Every rung is right, at sizes that no tile divides:

# %%
from labkit import agree

rungs = ["matmul_naive", "matmul_coalesced", "matmul_tiled", "matmul_tiled_grouped", "matmul_tiled_32"]
agree(MATMUL, rungs)

# %% [markdown]
# With a tile of 16 a thread loads a sixteenth{{ if 1 / 16 == (4096 / 16) / 4096 }} as much from *global memory*, the
# GPU's large memory that all blocks share, with a tile of 32 a thirty-second{{ if 1 / 32 == (4096 / 32) / 4096 }}. How
# many times as fast do the two tiled kernels run?

# %% tags=["hide-input"]
table([(name, row.timing.p50, row.tflops) for name in ("coalesced", "tiled", "tiled_32")
       for row in [recorded.row(f"matmul_{name}")]],
      {"": "", "ms": ".1f", "TFLOP/s": ".2f"}, "A sixteenth of the loads, and not even twice as fast",
      note=f"M = N = K = 4,096, {recorded.where}.")

# %% [markdown]
# Tiling should have brought far more than a factor of {{ tiling:.1f }}, and a tile of 32 adds only {{ tile_32:.0% }} to
# that. To see why, count what the hardware does: Nsight Compute (lesson 12) reads the GPU's own counters. The last
# column divides the busy time of L1 by the multiply-adds of its SM.

# %% tags=["hide-input"]
from labkit.measure import ncu

counted = ncu.recorded(measure.slug(H100))
profiled = {row["name"].removeprefix("matmul_"): row for row in counted["ops"]["matmul"]["rows"]}
multiply_adds = 4096**3 / 32 / 132  # instructions of warps, on each of 132 SMs
table([(name, row["instructions"] / 1e9, row["l2_bytes"] / 1e9, row["dram_read"] / 1e9, row["dram_percent"] / 100,
        row["l1_percent"] / 100, row["time_us"] * 1980 * row["l1_percent"] / 100 / multiply_adds)  # at 1.98 GHz
       for name in ("coalesced", "tiled") for row in [profiled[name]]],
      {"": "", "instructions, bn": ".1f", "from L2, GB": ".1f", "from memory, GB": ".1f", "memory busy": ".0%",
       "L1 busy": ".0%", "clocks of L1 a multiply-add": ".1f"})

# %% [markdown]
# *L1 busy.* The L1 cache of an SM and its shared memory are one unit, and in both kernels that unit is busy nearly all
# the time{{ if l1_busy }}. The cache was doing the work of the tiles already: the threads of the coalesced kernel load
# {{ 8 * 4096**3 / 1e9:.0f }} GB, and only {{ from_l2_gb:.0f }} GB come from L2. Tiles move those loads from the cache
# to shared memory, within the same unit. They save some of that unit's time for each multiply-add, as the last column
# shows. A larger tile saves loads from global memory, but none from shared memory: every product still reads two
# elements there. Lesson 07 changes that.
#
# *From memory.* Tiling saves no bytes here{{ if saves_none }}. On the contrary, {{ words(more_from_memory) }} times as
# many come from memory for the tiled kernel. Memory is idle most of the time in both kernels{{ if memory_idles }}, so
# this is not what limits them. But where do {{ tiled_gb:.1f }} GB come from, when the two matrices together are
# {{ 2 * 4 * 4096**2 / 1e6:.0f }} MB?
#
# ## Blocks in groups
#
# Look at which blocks run at the same time. Blocks of 256 threads fit eight to an SM, so {{ together:, }} of them run
# together, and the GPU starts them in the order of `blockIdx`: row by row. A row has 4,096 / 16 = {{ 4096 // 16 }}
# blocks, so that is four rows of blocks. Together they need four strips of `a`, and every strip of `b`: all of its
# {{ 4 * 4096**2 / 1e6:.0f }} MB, more than the {{ machine_of(H100).l2_mb }} MB of the H100's L2 cache. If the four rows
# of blocks move down `b` in step, they share each tile of it. If not, a tile has left the cache before the next row
# needs it. How many gigabytes of `b` come from memory if the rows keep in step, and how many if each of them fetches
# all of `b`?

# %% tags=["hide-input"]
matrix_gb, rows_of_blocks = 4 * 4096**2 / 1e9, 4096 // 16
table([("b once for all blocks that run together", rows_of_blocks**2 / (8 * 132) * matrix_gb, "coalesced",
        profiled["coalesced"]["dram_read"] / 1e9),
       ("b once for each row of blocks", rows_of_blocks * matrix_gb, "tiled", profiled["tiled"]["dram_read"] / 1e9)],
      {"": "", "GB predicted": ".1f", "kernel": "", "GB from memory": ".1f"}, note="Counted by Nsight Compute.")

# %% [markdown]
# Each prediction comes within a few percent of a count{{ if two_predictions }}. The blocks of the coalesced kernel keep
# in step, and those of the tiled kernel do not.
#
# The same number of blocks can need far less. If they form a rectangle, they share rows of `a` and columns of `b`.

# %%
pictures.block_orders()

# %% [markdown]
# This is the *grouped order* of Triton's tutorial on matrix multiplication (lesson 17): blocks go down the rows of a
# group, then to the next column, and to the next group when a group is finished. Only the kernel's first lines change,
# which compute a block's position in `out` from its index.

# %%
from labkit.kernels.matmul.float32 import place_in_groups

show_source(place_in_groups)

# %% [markdown]
# With groups of 32 rows, {{ together:, }} blocks are 32 rows by 33 columns of blocks. The strips that they read are
# {{ working_set:.0f }} MB, so the cache can hold them whether or not the blocks keep in step. So `a` should come from
# memory once, and `b` once for each of {{ 4096 // 16 // 32 }} groups. How many gigabytes come from memory in the
# grouped order, and how much faster is the kernel?

# %% tags=["hide-input"]
groups = rows_of_blocks // 32
table([(name, predicted * matrix_gb, row["dram_read"] / 1e9, row["l2_hit_percent"], row["time_us"] / 1000)
       for name, predicted in (("tiled", rows_of_blocks), ("tiled_grouped", 1 + groups)) for row in [profiled[name]]],
      {"": "", "GB predicted": ".1f", "GB from memory": ".1f", "L2 hits, %": ".0f", "ms": ".1f"},
      note=f"Nsight Compute on {counted['machine']['device']}.")

# %%
climb(recorded, "tiled_grouped", against="tiled")

# %% [markdown]
# The prediction is right to a tenth of a percent{{ if grouped_predicted }}: {{ grouped.dram_read / 1e9:.2f }} GB
# instead of {{ tiled_gb:.1f }}, and {{ grouped.l2_hit_percent / 100:.0% }} of what is requested from L2 is found there.
# And the kernel is only {{ grouped_faster:.0% }} faster. Fewer of its warps wait for global memory,
# {{ waits_memory[1]:.1f }} instead of {{ waits_memory[0]:.1f }} for each that issues, but more wait for the
# shared-memory queue, {{ waits_queue[1]:.1f }} instead of {{ waits_queue[0]:.1f }}: the unit of shared memory and L1 is
# as busy as before{{ if as_busy }}. The order of the blocks pays off where memory is close to being the limit. Kernels
# that use up their tiles faster come closer: those at the end of lessons 09 and 10 are more than fifty times as
# fast{{ if half_ahead > 50 }}, and go through `out` in this order.
#
# ## The roofline
#
# Here is the roofline as a picture. Across: flops per byte that has to move. Up: flops per second. On its slope the
# memory's bandwidth is the limit, on its flat part the peak of the arithmetic.

# %%
plots.roofline([measure.recorded_ladder(name, gpu="NVIDIA H200") for name in ("broadcast_add", "matmul")])

# %% [markdown]
# The additions of lesson 05 are under the slope, where the roof is low for any kernel. The product is far to the right,
# under the flat roof, and well below it. The best of these five rungs reaches
# {{ row('matmul', 'tiled_32', H100).fraction:.0% }} of the peak. *cuBLAS*, NVIDIA's own library, reaches
# {{ row('matmul', 'PyTorch', H100).fraction:.0% }}: {{ words(cublas_ahead) }} times as much. If you have a GPU, this
# cell times the rungs on it:

# %%
from labkit import ladder

plots.ladder(ladder(MATMUL, rungs=rungs) if device.on_gpu() else recorded.only(*rungs), None)

# %% [markdown]
# The next lesson closes the gap to cuBLAS, one cause at a time.
#
# ## What I learned
#
# - I count what a warp touches before I measure. For the swap the measured factor is between the ratio of sectors and
#   that of lines.
# - In a kernel with barriers the guard moves down to the store. No thread returns early.
# - A kernel can be right by luck. For each barrier I say which write it separates from which read.
# - Bytes that threads load, bytes from L2 and bytes from memory are three counts. A cache had already saved most of
#   what my tiles were meant to save.
# - Which blocks run together decides what they can share in L2. A rectangle of blocks needs less than a row of them.
# - When memory is not the limit, look for the unit that is busy. Here it is the one that holds shared memory and the L1
#   cache.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Shared
#   Memory](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#shared-memory)
# - [CUDA C++ Programming Guide: Synchronization
#   Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#synchronization-functions)
# - [Triton's tutorial on matrix
#   multiplication](https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html), with the
#   grouped order under "L2 Cache Optimizations"
# - [Williams, Waterman, Patterson: Roofline, an insightful visual performance model
#   (2009)](https://doi.org/10.1145/1498765.1498785)
#
# ## Try it
#
# - In the cell with the warp's addresses, make the block 32 × 8: `fast, slow = lane, 0 * lane`. Predict the sectors of
#   both kernels. Which of the two gets worse, and what does the square block save the other?
# - Put the missing barrier into `no_barrier_kernel`, then move it up between the two loads. On the CPU device, how many
#   elements are right now? Draw the order in which the threads run.
# - `pictures.block_orders(side=24, together=36, group=3)`: which group needs the fewest strips for 36 blocks, and which
#   for 72?
# - Without a GPU, import `simt` from `labkit` and run `no_barrier_kernel` inside `with simt.thread_order("reverse"):`.
#   Which element is right now? `print(simt.show(no_barrier_kernel, d_a, d_b, d_out))` shows the loop that runs.
#
# Next: **to the limit of the CUDA cores**. Each thread computes a small tile of `out`, and of the factor of
# {{ words(cublas_ahead) }} only a few percent remain.

# %% [numbers]
# intensity = 1000 * limits.fp32_tflops / limits.bandwidth_gbs
# swap = row('matmul', 'naive', H100).ms / row('matmul', 'coalesced', H100).ms
# tiling = row('matmul', 'coalesced', H100).ms / row('matmul', 'tiled', H100).ms
# tile_32 = row('matmul', 'tiled_32', H100).tflops / row('matmul', 'tiled', H100).tflops - 1
# coalesced = ncu('matmul', 'coalesced', H100)
# tiled = ncu('matmul', 'tiled', H100)
# grouped = ncu('matmul', 'tiled_grouped', H100)
# l1_busy = min(coalesced.l1_percent, tiled.l1_percent) > 85
# as_busy = near(tiled.l1_percent, grouped.l1_percent, 0.03)
# from_l2_gb = coalesced.l2_bytes / 1e9
# saves_none = tiled.l2_bytes > coalesced.l2_bytes
# tiled_gb = tiled.dram_read / 1e9
# more_from_memory = tiled.dram_read / coalesced.dram_read
# memory_idles = max(coalesced.dram_percent, tiled.dram_percent) < 40
# together = 8 * machine_of(H100).sms
# working_set = (32 + 33) * 16 * 4096 * 4 / 1e6
# two_predictions = (near(coalesced.dram_read / 1e9, 256**2 / (8 * 132) * 4 * 4096**2 / 1e9, 0.05) and
#                    near(tiled.dram_read / 1e9, 256 * 4 * 4096**2 / 1e9, 0.05))
# grouped_predicted = near(grouped.dram_read, 9 * 4 * 4096**2, 0.001)
# grouped_faster = row('matmul', 'tiled_grouped', H100).tflops / row('matmul', 'tiled', H100).tflops - 1
# both = ('tiled', 'tiled_grouped')
# waits_memory = [stall('matmul', name, 'long_scoreboard', H100) for name in both]
# waits_queue = [stall('matmul', name, 'mio_throttle', H100) for name in both]
# half_ahead = row('matmul_half', 'pipelined', H100).tflops / row('matmul', 'tiled_grouped', H100).tflops
# cublas_ahead = row('matmul', 'PyTorch', H100).tflops / row('matmul', 'tiled_32', H100).tflops
# index_types = series_of('index_types', H100).rows
# factors_64 = [sorted(r.numba_us)[1] / sorted(r.us)[1] for r in index_types]
# of_naive = [sorted(r.numba_us)[1] / sorted(r.us)[1] for r in index_types if r.rung == 'matmul_naive']
# same_time = 0.97 < of_naive[0] < 1.03
# longer = sum(factor >= 1.03 for factor in factors_64)
# first_kernels = len(factors_64)
# worst_factor = max(factors_64)
