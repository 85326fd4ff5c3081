# %% [markdown]
# # 07 · To the limit of the CUDA cores
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - why each thread should compute a small tile of the product, and how large a tile it can afford
# - how four numbers move in one instruction, and what that saves
# - how copies stay on their way while the multiply-adds run
#
# ## The problem
#
# The product is that of lesson 06, and so is the reference. The best rung there reached
# {{ row('matmul', 'tiled_32').fraction:.0% }} of the H200's peak. In the tiled kernel the unit that holds shared memory
# and the L1 cache was busy nearly all the time, and the multiply-add units were not.

# %%
from labkit import measure, plots, show_source
from labkit.course.drawings import matmul_to_the_limit as pictures
from labkit.kernels.ops.matmul import MATMUL
from labkit.measure.plots.matmul import climb, overlap

h200 = measure.recorded_ladder("matmul", gpu="NVIDIA H200")
for name in ("matmul_tiled_32", "PyTorch (cuBLAS)"):
    print(f"{name:17} {h200.row(name).tflops:5.1f} TFLOP/s, {h200.row(name).fraction:.0%} of the peak on the H200")

# %% [markdown]
# ## A tile for each thread
#
# An SM can do the multiply-adds of four warps in one clock. Its shared memory is built of 32 *banks*: neighbouring
# numbers lie in neighbouring banks, and each bank delivers one number in a clock, to all lanes that load it. Lanes that
# need different numbers from one bank have to queue: a *bank conflict*. So at best one load of one warp is served in a
# clock. While L loads of a warp are served, the units could do 4 L of its products; if it has P, at most P / (4 L) of
# them are busy.
#
# A thread with one element of `out` loads two numbers for each product. Now let it compute a *thread tile* of p × p
# elements. In one step of k it loads p numbers of `a` and p of `b` into registers, and multiplies every one of the
# first with every one of the second.

# %%
pictures.thread_tile(threads=4, size=4)

# %% [markdown]
# Predict: which p would keep all units busy? And what might stop you from taking p = 16 at once?

# %%
for p in (1, 2, 4, 8, 16):
    loads, products = 2 * p, p * p
    busy = min(1.0, products / (4 * loads))
    print(f"{p:2d} x {p:<2d}  {loads:2d} loads, {products:3d} products: at most {busy:4.0%} of the units busy")

# %%
from labkit.kernels.matmul.float32 import make_matmul_register_blocked

show_source(make_matmul_register_blocked, "acc = cuda.local.array", "# both tiles are free")

# %% [markdown]
# The p × p running totals are the thread's *accumulators*. `cuda.local.array` makes an array that belongs to one
# thread. If every index into it is a constant when the kernel is compiled, each element gets a register. These loops
# have constant bounds, so the compiler *unrolls* them, that is, writes them out round by round, and every index becomes
# a constant. What a function that makes a kernel closes over is a constant inside, so Numba needs no `#pragma unroll`.
#
# A thread's elements lie 16 apart, so the 16 threads of a row of the block read 16 neighbours in `b_tile`, from 16
# different banks. Three sizes ran on the H200; the compiler reported registers and local memory.

# %%
for size in ("_4", "", "_16"):
    name = "matmul_register_blocked" + size
    row, used = h200.row(name), h200.row(name).resources[0]
    print(f"{name:26}  {row.tflops:5.1f} TFLOP/s   {used['registers']:3d} registers, "
          f"{used['local_bytes']:4d} bytes of local memory a thread")

# %%
climb(h200, "register_blocked", against="tiled_32")

# %% [markdown]
# 4 × 4 doubles the speed of the tiles, or nearly so{{ if doubles }}, and 8 × 8 more than triples it{{ if triples }}. 16
# × 16, which needs the fewest loads of all, is slower than 4 × 4{{ if sixteen_slower }}: a thread of this GPU has 255
# registers{{ hardware }} at most, and 256 accumulators do not fit. What does not fit is spilled to local memory (lesson
# 02), written and read again in every step. I keep the rung, marked as failed. The formula that recommended it is right
# about loads and leaves out registers.
#
# ## 128 bits at a time
#
# One instruction can load 4, 8 or 16 bytes for each lane; 16 bytes are four floats. Such a load needs an address that
# is a multiple of 16, and Numba cannot know that, so it never loads four by itself. `labkit.ptx` offers the instruction
# under its own name. (*PTX* is NVIDIA's assembly language; the driver translates it into the machine code of the GPU at
# hand.)

# %%
from labkit.kernels.matmul.float32_tiles import load_four

show_source(load_four)

# %% [markdown]
# `nc` in `load_nc4` stands for *non-coherent*: nothing writes these data while the kernel runs, so the load may use a
# path that does not watch for writes. In C++ the compiler infers that from `const` and `__restrict__`. Numba has no
# such keyword, so the kernel calls the instruction.
#
# To be read four at a time, the numbers have to be neighbours in shared memory, too. For `b` they are: a row of the
# tile is a row of the matrix. But a thread tile needs four *rows* of `a` at the same k. So the tile of `a` is
# transposed as it is written, and its lines are four longer than they need to be. The picture shows why, with eight
# banks in place of 32.

# %%
plots.banks({"8 in a line": lambda k, row: 8 * k + row, "9 in a line": lambda k, row: 9 * k + row})

# %% [markdown]
# A warp that writes a row of `a` as a column of the tile hits one bank again and again, unless each line begins a
# little further on. (In the kernel, one store of a warp fills 16 places in each of two lines, four lines apart. With
# four places more in each line the second 16 fall into the other 16 banks.)
#
# Four loads now feed 64 products, where 16 did before. Predict: is that worth a factor of {{ words(16 / 4) }}?

# %%
climb(h200, "vectorized")

# %% [markdown]
# It is not, and it could not be. As many numbers move as before, and shared memory, with 128 bytes in a clock, still
# takes {{ words(512 / 128) }} clocks for the 512 bytes of one such load. What is saved is instructions. Each of an SM's
# four schedulers issues one instruction in a clock (lesson 02), and one that is not a multiply-add takes the place of
# one that is.
#
# So what share of a kernel's instructions are multiply-adds? The product of 4,096 takes {{ 4096**3 / 32 / 1e9:.2f }}
# billion multiply-adds of whole warps in every kernel. Lesson 11 introduces the profiler that counted these.

# %%
from labkit.measure import ncu

rows = {row["name"].split(" (")[0].removeprefix("matmul_"): row for row in ncu.recorded()["ops"]["matmul"]["rows"]}
print("                   instructions  multiply-adds  units busy  wait for memory")
for name in ("register_blocked", "vectorized", "double_buffered", "pipelined", "PyTorch"):
    row = rows[name]
    print(f"{name:18} {row['instructions'] / 1e9:9.2f} bn {4096**3 / 32 / row['instructions']:14.0%} "
          f"{row['fma_percent'] / 100:11.0%} {row['stalls'].get('long_scoreboard', 0.0):16.2f}")

# %% [markdown]
# (*Units busy*: the multiply-add units. The last column: how many warps of a scheduler, on average, were waiting for
# global memory whenever it issued an instruction. PyTorch's product is cuBLAS's.) The units cannot be busy for a larger
# share of the time than the share of multiply-adds, and the units of *vectorized* stay well below
# theirs{{ if units_below_theirs }}. The rest is waiting.
#
# ## Two pairs of tiles
#
# In every kernel so far a block loads, waits, multiplies, waits. While it loads, its multiply-add units have nothing to
# do, unless another block on the same SM happens to be multiplying. With a second pair of tiles the loads of the next
# step can be under way during the products of this one. That is *double buffering*.

# %%
overlap()

# %%
from labkit.kernels.matmul.float32 import make_matmul_double_buffered

show_source(make_matmul_double_buffered, "fill, start =", "fill = TILES_SIZE - fill")

# %% [markdown]
# Follow the loop. The numbers that were loaded during the last round go to shared memory. Barrier. The loads of the
# next round start. Then come the products, which do not need those loads, so no warp waits for them. One barrier a
# round is enough. After it this pair is complete; and the other pair is free, because every warp has finished the last
# round's products by then.
#
# On the H200 the waiting for global memory disappeared{{ if waiting_gone }}: compare *vectorized* with
# *double_buffered* in the last column of the table. What do you expect of the speed?

# %%
climb(h200, "double_buffered")

# %% [markdown]
# Very little. Two blocks share an SM, and each had already covered most of the other's waits. Warps now wait mostly for
# shared memory{{ if shared_memory_leads }}: each step begins with four loads and needs their results at once.
#
# ## A pipeline
#
# The last rung of this ladder changes four things.
#
# - `cp.async` copies from global to shared memory past the registers. A thread starts a copy and goes on. No registers
#   are held meanwhile, so copies can run further ahead: three pairs of tiles form a ring.
# - During the products of one step of k the numbers of the next are read from shared memory, into a second set of
#   {{ 2 * 8 }} registers.
# - The 32 thread tiles of a warp lie together, in a tile of 64 × 32. Before, they made a strip of 16 × 128, which needs
#   more different numbers for as many products.
# - The 64 products zigzag, so that each shares a factor with the one before it. A register that is read twice in a row
#   is fetched once.

# %%
from labkit.kernels.matmul.float32_tiles import add_products_serpentine, copy_pair, two_steps

show_source(copy_pair)

# %%
show_source(add_products_serpentine)

# %%
show_source(two_steps)

# %% [markdown]
# The kernel calls `two_steps` seven times in a row, with the steps 0, 2, 4 and so on, and not in a loop. The compiler
# does not unroll a loop of this size, and where a round of a loop ends, the reading ahead ends, too. Device functions
# are inlined, so the calls cost nothing.
#
# Which of the four do you expect to matter most? The recording can only say what they gain together.

# %%
climb(h200, "pipelined")

# %% [markdown]
# A copy that runs on its own is a new way to be wrong. `cp_async_commit` closes a group of copies, `cp_async_wait(n)`
# waits until at most n groups are still on their way, and other threads may read the numbers only after a barrier
# behind that wait. Here the wait is missing.

# %%
import textwrap

import numpy as np
from numba import float32

from labkit import cuda, observe, ptx


@cuda.jit
def no_wait_kernel(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    # ptx.cp_async_wait(0) belongs here
    cuda.syncthreads()
    out[i] = tile[63 - i]


numbers = np.arange(64, dtype=np.float32)
report = observe(no_wait_kernel[1, 64], numbers, np.zeros_like(numbers))
print(textwrap.fill(str(report.races[0]), 90))

# %% [markdown]
# On a GPU the result is right whenever the copy happens to be fast enough, so a test may never find this.
#
# ## Right at every size

# %%
from labkit import agree, device

odd = ({"M": 1, "N": 1, "K": 1}, {"M": 37, "N": 23, "K": 19}, {"M": 129, "N": 131, "K": 35})
rungs = device.pick(gpu=[rung.__name__ for rung in MATMUL.rungs], cpu=["matmul_register_blocked", "matmul_pipelined"])
agree(MATMUL, rungs, sizes=device.pick(gpu=MATMUL.awkward, cpu=odd))

# %% [markdown]
# A tile of 128 × 128 for a product of 37 × 23 is wasteful, and right. Rows that do not begin at multiples of 16 bytes
# cannot be loaded four at a time. The fast kernels have a slower form for those, and the launcher chooses. (On the CPU
# device each kernel takes some seconds to compile, so the lesson tries two there. `agree(MATMUL)` tries all ten.)
#
# ## Against cuBLAS

# %%
from labkit import ladder

plots.ladder(ladder(MATMUL, MATMUL.work.timed_gpu) if device.on_gpu() else h200, None)

# %% [markdown]
# From the naive kernel to the pipeline it is a factor of {{ words(rate['pipelined'] / rate['naive']) }}, and the last
# rung runs at {{ of_cublas:.2f }} of the speed of cuBLAS. The table of counts says what separates them: nearly the same
# number of instructions, and units that cuBLAS keeps busy for a little more of the time{{ if alike }}. Neither keeps
# them busy all the time, because not every instruction is a multiply-add, and because a multiply-add reads three
# registers, which the register file cannot always deliver in one clock. The profiler calls that a *dispatch stall*, and
# counts more of it in my kernel{{ if more_dispatch }}.
#
# That is at 4,096. Predict what becomes of it at 1,024, where `out` has 64 tiles of 128 × 128.

# %%
sizes = measure.recorded_series("matmul_sizes", gpu="NVIDIA H200")
rates = {line["name"]: line["rate"] for line in sizes["lines"]}
for at, n in enumerate(sizes["x"]):
    ours, theirs = rates["matmul_pipelined"][at], rates["PyTorch (cuBLAS)"][at]
    print(f"{n:5,}  {(n // 128) ** 2:5,} blocks  {ours:5.1f} of {theirs:4.1f} TFLOP/s: {ours / theirs:.2f}")

# %% [markdown]
# The H200 has 132 SMs, and with 64 blocks more than half of them get nothing{{ if 64 < 132 / 2 }}. cuBLAS has many
# kernels: it can take one with smaller tiles, or let several blocks share the steps of k. This ladder has one.
#
# ## What I learned
#
# - Count instructions. One that is not a multiply-add takes the place of one that is.
# - A model of one limit leads straight into the next. By the loads, 16 × 16 was best; the registers ruled it out.
# - Hiding a wait that another block hides already gains little. The profiler's list of waits would have told me first.
# - Near the limit the order of instructions counts: what is read ahead, and which register comes next.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Asynchronous Data
#   Copies](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#asynchronous-data-copies)
# - [NVIDIA CUTLASS: Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html)
# - [S. Boehm: How to Optimize a CUDA Matmul Kernel for cuBLAS-like
#   Performance](https://siboehm.com/articles/22/CUDA-MMM)
#
# ## Try it
#
# - Make a kernel with `make_matmul_register_blocked(6)` and predict its ceiling from the formula at the top. How many
#   numbers of a tile, 96 × 8, does each of 256 threads copy? Why would 5 not work?
# - In `no_wait_kernel` put the wait behind the barrier and not before it. What does `observe` say now, and why is it
#   right?
#
# Next: **tensor cores**, a unit with {{ words(unit_speed) }} times the peak, and the same climb once more.

# %% [numbers]
# names = ('naive', 'tiled', 'tiled_32', 'register_blocked_4', 'register_blocked', 'register_blocked_16', 'vectorized',
#          'pipelined', 'PyTorch')
# rate = rates_of('matmul', names)
# doubles = 1.9 < rate['register_blocked_4'] / rate['tiled_32'] < 2.1
# triples = rate['register_blocked'] / rate['tiled_32'] > 3
# sixteen_slower = rate['register_blocked_16'] < rate['register_blocked_4']
# units_below_theirs = (ncu('matmul', 'vectorized').fma_percent / 100 < 0.9 * 4096**3 / 32 / ncu('matmul',
#                       'vectorized').instructions)
# waiting_gone = (stall('matmul', 'double_buffered', 'long_scoreboard') < 0.1 * stall('matmul', 'vectorized',
#                 'long_scoreboard'))
# shared_memory_leads = (stall('matmul', 'double_buffered', 'short_scoreboard') >= max(stall('matmul',
#                        'double_buffered', 'barrier'), stall('matmul', 'double_buffered', 'wait'), stall('matmul',
#                        'double_buffered', 'dispatch_stall')))
# of_cublas = rate['pipelined'] / rate['PyTorch']
# alike = (abs(ncu('matmul', 'pipelined').instructions / ncu('matmul', 'PyTorch').instructions - 1) < 0.03 and 0 <
#          ncu('matmul', 'PyTorch').fma_percent - ncu('matmul', 'pipelined').fma_percent < 5)
# more_dispatch = stall('matmul', 'pipelined', 'dispatch_stall') > stall('matmul', 'PyTorch', 'dispatch_stall')
# unit_speed = limits.mma_f16_tflops / limits.fp32_tflops
