# %% [markdown]
# # 06 · Matrix multiplication
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - why a matrix product can be bound by arithmetic, when everything so far was bound by memory
# - how the threads of a block load once what they all need
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
# An addition uses each element once, and memory is the limit. Here each element of `a` is used N times and each element
# of `b` M times. The number that tells the two cases apart is the *arithmetic intensity*: the flops (multiplications
# and additions) for each byte that has to move at least. Before you run the next cell, write down for M = N = K =
# 4,096: the flops, the bytes if each matrix moves once, and the ratio of the two.

# %%
from labkit import roofline
from labkit.kernels.ops.matmul import MATMUL

roofline.predict(MATMUL, M=4096, N=4096, K=4096)

# %% [markdown]
# The H200 does between {{ intensity // 1:.0f }} and {{ intensity // 1 + 1:.0f }} flops in the time it needs to move one
# byte. An operation with fewer flops a byte waits for memory. The additions of the last lessons, with a
# quarter{{ if near(2 / 8, 1 / 4) }} of a flop for a byte or less, are far below that, and the product is far above,
# provided that each matrix moves only once. That does not happen by itself.
#
# ## One thread, one element

# %%
from labkit import show_source
from labkit.kernels.matmul.float32 import matmul_naive_kernel

show_source(matmul_naive_kernel)

# %% [markdown]
# Two details are for the compiler. `float32(0.0)` keeps the sum in float32; a plain `0.0` is a float64, and the sum
# would become one, too. `u32.grid` and `u32.range` give unsigned 32-bit integers. With `cuda.grid` and `range` this
# kernel would take the same time, since it waits for memory. The next one would take several times as long.
#
# Numba makes 64 bits of two such integers as soon as they are added. In this course's library the sum stays at 32, as
# in CUDA C++. Predict what that is worth for this kernel, and for the first kernel of the other ladders.

# %%
from statistics import median

from labkit import measure
from labkit._common.tables import PlainTable, number

rows = measure.recorded_series("index_types", gpu="NVIDIA H100 80GB HBM3")["rows"]
factors = sorted((median(row["numba_us"]) / median(row["us"]), row["rung"], median(row["us"])) for row in rows)
chosen = [each for each in factors if each[1] == "matmul_naive"], factors[:4], factors[-8:]
PlainTable("First kernels: 64-bit sums over 32-bit sums", ("kernel", "us", "factor"),
           tuple((name, number(us), f"{factor:.2f}") for factor, name, us in sum(chosen, [])),
           ("Recorded on an NVIDIA H100, medians of three places in memory.",))

# %% [markdown]
# {{ same_time }} of {{ first_kernels }} take the same time to 3%{{ example }}, this one among them: they wait for
# memory, and their indices are computed meanwhile. {{ longer }} take longer with 64 bits, the worst
# {{ worst_factor:.1f }} times as long. {{ shorter }} take less; why is a question for their machine code.
#
# One detail is a mistake. Blocks are 16 × 16, a warp is 32 threads with `threadIdx.x` running fastest, and
# `row, col = cuda.grid(2)` gives that fastest index to the row. So 16 neighbouring threads read 16 different rows of
# `a`, each 16 KB ({{ 16 * 1024 // 4:, }} floats) from the next. The cure is to swap two names:
# `col, row = cuda.grid(2)`, the rung *coalesced*.
#
# The next cell draws what one warp touches in one step of the loop over k, and in the store at the end. Before you run
# it: how many sectors of 32 bytes does each kernel need in one step?

# %%
import numpy as np

from labkit import plots
from labkit.course.drawings import matmul as pictures

lane = np.arange(32)
fast, slow = lane % 16, lane // 16  # threadIdx.x and threadIdx.y in a block of 16 x 16
n, k = 4096, 0

touched = {}
for kernel, row, col in (("naive", fast, slow), ("coalesced", slow, fast)):
    touched[f"{kernel}: a[row, k]"] = row * n + k
    touched[f"{kernel}: b[k, col]"] = k * n + col
    touched[f"{kernel}: out[row, col]"] = row * n + col

for kernel in ("naive", "coalesced"):
    of_a = plots.sectors(touched[f"{kernel}: a[row, k]"])
    of_b = plots.sectors(touched[f"{kernel}: b[k, col]"])
    print(f"{kernel:10} {of_a:2d} + {of_b} = {of_a + of_b:2d} sectors for 32 multiply-adds")

plots.warp_addresses(touched, "What one warp touches")

# %% [markdown]
# The numbers in a box are the lanes that load this element: `0, 16` are two of them, `0–15` sixteen. The element is
# read once and handed to all of them. Both kernels do the same arithmetic in the same order. If sectors decide, the
# swap is worth a factor of about {{ words(17 / 4) }}. Keep that number.
#
# ## Tiles
#
# Coalesced or not, each thread loads two numbers, 8 bytes, for two flops. But the 16 threads of a row of the block all
# need the same row of `a`, and the 16 of a column the same column of `b`. The block loads each number 16
# times{{ example }}.
#
# *Shared memory* is made for this. It lies on the SM, all threads of a block can read and write it, and its contents
# are gone when the block ends. The block goes along its rows of `a` and down its columns of `b` in square *tiles*. It
# loads each tile once, and every thread takes what it needs from there.

# %%
pictures.tile_walk(M=7, N=11, K=10, tile=4, block=(2, 1))

# %% [markdown]
# The sizes in the picture are awkward on purpose: the block hangs over every edge. Where a tile reaches beyond its
# matrix it is filled with zeros. A zero adds nothing to a dot product, so no step is a special case.

# %%
from labkit.kernels.matmul.float32 import make_matmul_tiled

show_source(make_matmul_tiled)

# %% [markdown]
# A function makes the kernel, because the size of shared memory must be known when the kernel is compiled. The bound of
# `range(tile)` is then known as well, so the compiler can write that loop out. Two tiles of 16 × 16 floats take
# {{ 2 * 16 * 16 * 4 // 1024 }} KB, a small part of what an SM has.
#
# The guard is no longer at the top. A thread whose element lies outside of `out` still has to load for the others. So
# all threads stay to the end, and only the store is guarded.
#
# ## Two barriers
#
# `cuda.syncthreads()` is a *barrier*: no thread of the block goes on before all of them have reached it. Each step has
# two, and they protect different things. The first stands between writing the tiles and reading them. Without it a
# thread reads what its neighbours have not loaded yet. The second stands between reading the tiles and writing the next
# ones. Without it a fast thread overwrites what a slow one still needs.
#
# Here is a single step without its first barrier. The CPU device runs the threads of a block one after another, each as
# far as the next barrier. How many of the 256 elements will it get right?

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
# cannot choose, and the count may be anything up to 256. So a kernel with a race can pass every test you have.
#
# To find a race, look at which thread touches what: `observe` (lesson 02) records every access of a small launch. Here
# is the tiled kernel without its second barrier, one block, two steps. On the CPU device its numbers are right all the
# same, because of the order in which that device runs the threads.

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
# Two reports, one for each tile: which thread still reads, which one already writes, where the barrier belongs, and how
# many accesses collide. (`syncwarp` is a barrier for the threads of one warp. The second report shows that it would not
# be enough here.) `observe` gives the same answer with a GPU or without, because it does not wait for a race to go
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
# For such a kernel CUDA promises nothing: it may work, give wrong numbers, or hang. On many GPUs a barrier waits only
# for the threads that are left. Even there this kernel would be wrong, because three columns of `tile` were never
# loaded.
#
# Step through the right kernel, for matrices of 32 × 32: four blocks of 16 × 16 threads, and two tiles of each matrix
# for every block. When does a warp wait at a barrier, and for which of the others?

# %%
from labkit.kernels.matmul.float32 import matmul_tiled_kernel

left, right = np.random.default_rng(0).random((2, 32, 32), np.float32)
observe(matmul_tiled_kernel[(2, 2), (16, 16)], left, right, np.zeros((32, 32), np.float32)).play()

# %% [markdown]
# ## Right at every size

# %%
from labkit import agree

rungs = ["matmul_naive", "matmul_coalesced", "matmul_tiled", "matmul_tiled_32"]
agree(MATMUL, rungs)

# %% [markdown]
# ## The ladder
#
# Before you look, write down the factors between the rungs on a GPU. For the swap of two names you have 17 sectors
# against 4. A tile of 16 makes a thread load a sixteenth{{ if 1 / 16 == (4096 / 16) / 4096 }} of the numbers from
# global memory, and a tile of 32 a thirty-second{{ if 1 / 32 == (4096 / 32) / 4096 }}.

# %%
from labkit import ladder

h200 = measure.recorded_ladder("matmul", gpu="NVIDIA H200").only(*rungs)
naive_ms, coalesced_ms = (h200.row(f"matmul_{name}").timing.p50 for name in ("naive", "coalesced"))
print(f"measured on {h200.where}: the swap is worth a factor of {naive_ms / coalesced_ms:.1f}")
print(f"by sectors: {17 / 4}")

plots.ladder(ladder(MATMUL, rungs=rungs) if device.on_gpu() else h200, None)

# %% [markdown]
# The count came close for the swap. Tiling was to save far more, and is worth a factor of {{ tiling:.1f }}; a tile of
# 32 is worth only {{ tile_32:.0% }} more. What did I leave out? The profiler of lesson 11 counted this on the H200.

# %%
from labkit.measure import ncu

profiled = {row["name"]: row for row in ncu.recorded()["ops"]["matmul"]["rows"]}
multiply_adds = 4096**3 / 32 / 132  # instructions of warps, on each of 132 SMs
print("           instructions   from L2   from memory   memory busy   L1 busy   clocks a multiply-add")
for name in ("coalesced", "tiled"):
    row = profiled[f"matmul_{name}"]
    l1, clocks = row["l1_percent"] / 100, row["time_us"] * 1980  # the clock ran at 1.98 GHz
    print(f"{name:10} {row['instructions'] / 1e9:9.1f} bn {row['l2_bytes'] / 1e9:6.1f} GB "
          f"{row['dram_read'] / 1e9:10.1f} GB {row['dram_percent'] / 100:13.0%} {l1:9.0%} "
          f"{clocks * l1 / multiply_adds:23.1f}")

# %% [markdown]
# *L1 busy.* The L1 cache of an SM and its shared memory are one unit, and in both kernels that unit is busy nearly all
# the time{{ if l1_busy }}. The cache was doing the work of the tiles already: the threads of the coalesced kernel load
# {{ 8 * 4096**3 / 1e9:.0f }} GB, and only {{ from_l2_gb:.0f }} GB come from L2. Tiles move those loads from the cache
# to shared memory, within the same unit. What they save is that unit's time: the last column has its clocks for each
# multiply-add of a warp. A larger tile saves loads from global memory, and none from shared memory.
#
# *From L2, from memory.* Tiling saves no bytes here{{ if saves_none }}. On the contrary, {{ words(more_from_memory) }}
# times as many come from memory for the tiled kernel (lesson 11 says why). That hardly matters: memory idles for most
# of the time in both kernels{{ if memory_idles }}.
#
# ## The roofline
#
# Here is the roofline as a picture. Across: flops for each byte that has to move. Up: flops in a second. On its slope
# the memory's bandwidth is the limit, on its flat part the peak of the arithmetic.

# %%
plots.roofline([measure.recorded_ladder("broadcast_add"), h200])

# %% [markdown]
# The additions of lesson 05 stand under the slope, where the roof is low for any kernel. The product stands far to the
# right, under the flat roof, and well below it.
#
# On the H200 we recorded, the best of these four rungs reaches {{ row('matmul', 'tiled_32').fraction:.0% }} of the
# peak. cuBLAS, NVIDIA's own library, reaches {{ row('matmul', 'PyTorch').fraction:.0% }}: {{ words(cublas_ahead) }}
# times as much. The next lesson closes that gap, one cause at a time.
#
# ## What I learned
#
# - I count what a warp requests before I measure. For the swap the count came within {{ count_error:.0% }} of the
#   measured factor.
# - In a kernel with barriers the guard moves down to the store. No thread returns early.
# - A kernel can be right by luck. For each barrier I say which write it keeps from which read.
# - Bytes that threads load, bytes from L2 and bytes from memory are three counts. A cache had already saved most of
#   what my tiles were meant to save.
# - When memory is not the limit, look for the unit that is busy. Here it is that of shared memory and the L1 cache.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Shared
#   Memory](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#shared-memory)
# - [CUDA C++ Programming Guide: Synchronization
#   Functions](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#synchronization-functions)
# - [Williams, Waterman, Patterson: Roofline, an insightful visual performance model
#   (2009)](https://doi.org/10.1145/1498765.1498785)
#
# ## Try it
#
# - In the cell with the warp's addresses, lay the block out as 32 × 8: `fast, slow = lane, 0 * lane`. Predict the
#   sectors of both kernels. Which of the two gets worse, and what does the square block save the other?
# - Put the missing barrier into `no_barrier_kernel`, then move it up between the two loads. On the CPU device, how many
#   elements are right now? Draw the order in which the threads run.
# - Without a GPU, import `simt` from `labkit` and run `no_barrier_kernel` inside `with simt.thread_order("reverse"):`.
#   Which element is right now? `print(simt.show(no_barrier_kernel, d_a, d_b, d_out))` shows the loop that is run.
#
# Next: **to the limit of the CUDA cores**. Each thread computes a small tile of `out`, and of the factor of
# {{ words(cublas_ahead) }} only a few percent remain.

# %% [numbers]
# intensity = 1000 * limits.fp32_tflops / limits.bandwidth_gbs
# tiling = row('matmul', 'coalesced').ms / row('matmul', 'tiled').ms
# tile_32 = row('matmul', 'tiled_32').tflops / row('matmul', 'tiled').tflops - 1
# l1_busy = min(ncu('matmul', 'coalesced').l1_percent, ncu('matmul', 'tiled').l1_percent) > 85
# from_l2_gb = ncu('matmul', 'coalesced').l2_bytes / 1e9
# saves_none = ncu('matmul', 'tiled').l2_bytes > ncu('matmul', 'coalesced').l2_bytes
# more_from_memory = ncu('matmul', 'tiled').dram_read / ncu('matmul', 'coalesced').dram_read
# memory_idles = max(ncu('matmul', 'coalesced').dram_percent, ncu('matmul', 'tiled').dram_percent) < 30
# cublas_ahead = row('matmul', 'PyTorch').tflops / row('matmul', 'tiled_32').tflops
# factors_64 = [sorted(r.numba_us)[1] / sorted(r.us)[1] for r in series_of('index_types', 'NVIDIA H100 80GB HBM3').rows]
# same_time = sum(0.97 < factor < 1.03 for factor in factors_64)
# longer = sum(factor >= 1.03 for factor in factors_64)
# shorter = sum(factor <= 0.97 for factor in factors_64)
# first_kernels = len(factors_64)
# worst_factor = max(factors_64)
# count_error = abs(row('matmul', 'naive').ms / row('matmul', 'coalesced').ms / (17 / 4) - 1)
