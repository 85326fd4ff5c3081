# %% [markdown]
# # 07 · To the limit of the CUDA cores
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - why each thread should compute a small tile of the product, and how large a tile it can afford
# - how four elements move in one instruction, and what that saves
# - how to keep copies and reads going while the multiply-adds run
#
# ## The problem
#
# The product is that of lesson 06, and so is the reference. The best rung there reached
# {{ row('matmul', 'tiled_32', H100).fraction:.0% }} of the peak of the H100 on which this lesson was recorded. In the
# tiled kernel the L1 and shared memory unit was busy nearly all the time, and the multiply-add units were not. cuBLAS
# shows how much is left.

# %%
from labkit import measure, plots, show_source, table
from labkit.course.drawings import matmul_to_the_limit as pictures
from labkit.kernels.ops.matmul import MATMUL
from labkit.measure.plots.matmul import climb, overlap

H100 = "NVIDIA H100 80GB HBM3"
recorded = measure.recorded_ladder("matmul", gpu=H100)
table([(name, row.tflops, row.fraction) for name in ("matmul_tiled_32", "PyTorch (cuBLAS)")
       for row in [recorded.row(name)]], {"": "", "TFLOP/s": ".1f", "of the peak": ".0%"}, note=recorded.where)

# %% [markdown]
# cuBLAS is {{ words(rate['PyTorch'] / rate['tiled_32']) }} times as fast. In this lesson seven changes close all but a
# few percent of that gap.
#
# ## A tile for each thread
#
# An SM can do the multiply-adds of four warps in one clock. Its shared memory consists of 32 *banks*: neighbouring
# elements are in neighbouring banks, and each bank delivers one element per clock, to all lanes that load it. Lanes
# that need different elements from one bank have to queue: a *bank conflict*. So shared memory serves at most one load
# of a warp per clock. In the time of L such loads, the units could do 4 L products of whole warps. A warp with P
# products for its L loads keeps at most P / (4 L) of the units busy.
#
# A thread that computes one element of `out` loads two elements per product. Now let it compute a *thread tile* of p ×
# p elements. In one step of k it loads p elements of `a` and p of `b` into registers, and multiplies each of the first
# by each of the second.

# %%
pictures.thread_tile(threads=4, size=4)

# %% [markdown]
# With 2 p loads for p × p products, which p could keep all multiply-add units busy?

# %%
table([(f"{p} x {p}", 2 * p, p * p, min(1.0, p * p / (4 * 2 * p))) for p in (1, 2, 4, 8, 16)],
      {"thread tile": "", "loads": "d", "products": "d", "units busy, at most": ".0%"})

# %% [markdown]
# By this count 8 × 8 is enough, and with 16 × 16 shared memory is idle half of the time. Here is the kernel:

# %%
from labkit.kernels.matmul.float32 import make_matmul_register_blocked

show_source(make_matmul_register_blocked, "acc = cuda.local.array", "# both tiles are free")

# %% [markdown]
# The p × p running totals are the thread's *accumulators*. `cuda.local.array` makes an array that belongs to one
# thread. If every index into it is a constant when the kernel is compiled, each element gets a register. These loops
# have constant bounds, because variables that a kernel closes over are compile-time constants. So the compiler
# *unrolls* them, that is, writes them out round by round, without a `#pragma unroll`, and every index becomes a
# constant.
#
# A thread's elements are 16 apart, so the 16 threads of a row of the block read 16 neighbours in `b_tile`, from 16
# different banks. A thread on this GPU can have at most 255 registers{{ hardware }}. Which of 4 × 4, 8 × 8 and 16 × 16
# will be the fastest?

# %% tags=["hide-input"]
table([(f"{size} x {size}", row.tflops, used["registers"], used["local_bytes"])
       for size, name in ((4, "_4"), (8, ""), (16, "_16")) for row in [recorded.row(f"matmul_register_blocked{name}")]
       for used in [row.resources[0]]],
      {"thread tile": "", "TFLOP/s": ".1f", "registers": "d", "bytes of local memory": ",d"})

# %%
climb(recorded, "register_blocked", against="tiled_32")

# %% [markdown]
# 4 × 4 doubles the speed of *tiled_32*, or nearly so{{ if doubles }}, and 8 × 8 more than triples it{{ if triples }}.
# 16 × 16, with the fewest loads of all, is slower than 4 × 4{{ if sixteen_slower }}: its 256 accumulators do not fit in
# a thread's registers. The rest are spilled to local memory (lesson 03), and are written and read again in every step.
# I keep the rung, marked as failed. The formula that recommended it is right about loads but leaves out registers.
#
# ## 128 bits at a time
#
# One instruction can load 4, 8 or 16 bytes per lane; 16 bytes are four floats. Such a load needs an address that is a
# multiple of 16, and Numba cannot know that it is one, so it never loads four on its own. `labkit.ptx` offers the
# instruction under its own name. *PTX* is NVIDIA's assembly language, which the driver translates into the machine code
# of the GPU at hand.

# %%
from labkit.kernels.matmul.float32_tiles import load_four

show_source(load_four)

# %% [markdown]
# `nc` in `load_nc4` means *non-coherent*: nothing writes this data while the kernel runs, so the load may use a cache
# that is not kept coherent with writes. In C++ the compiler infers that from `const` and `__restrict__`. Numba has no
# such keywords, so the kernel calls the instruction.
#
# To be read four at a time, elements have to be neighbours in shared memory as well. For `b` they are: a row of the
# tile is a row of the matrix. But a thread tile needs four *rows* of `a` at the same k. So the tile of `a` is
# transposed as it is written, and its rows are four elements longer than they need to be. The picture has eight banks
# instead of 32. How many of them does a column of eight rows touch, with eight elements in a row and with nine?

# %%
plots.banks({"8 in a line": lambda k, row: 8 * k + row, "9 in a line": lambda k, row: 9 * k + row})

# %% [markdown]
# A warp that writes a row of `a` as a column of the tile hits one bank again and again, unless each row begins a few
# banks further on. In the kernel, one store of a warp writes 16 elements in each of two rows, four rows apart. With
# four more elements in each row the second 16 fall into the other 16 banks.
#
# How much faster is the kernel when four loads feed 64 products instead of 16?

# %%
climb(recorded, "vectorized")

# %% [markdown]
# No byte is saved: a thread still reads 16 elements for its 64 products. The saving is in instructions. Each of an SM's
# four schedulers issues one instruction per clock (lesson 02), and one that is not a multiply-add delays one that is.
# So what share of a kernel's instructions are multiply-adds? At 4,096 every kernel executes
# {{ 4096**3 / 32 / 1e9:.2f }} billion multiply-adds of whole warps.

# %% tags=["hide-input"]
from labkit.measure import ncu

counted = ncu.recorded(measure.slug(H100))["ops"]["matmul"]["rows"]
profiled = {row["name"].split(" (")[0].removeprefix("matmul_"): row for row in counted}


def counters(*names, waits=()):
    """A row for each rung: instructions, the share of multiply-adds among them, and warps that wait, by reason."""
    return table([(name, row["instructions"] / 1e9, 4096**3 / 32 / row["instructions"], row["fma_percent"] / 100,
                   *(row["stalls"].get(reason, 0.0) for reason in waits))
                  for name in names for row in [profiled[name]]],
                 {"": "", "instructions, bn": ".2f", "multiply-adds": ".0%", "units busy": ".0%"}
                 | dict.fromkeys(waits, ".2f"))


counters("register_blocked", "vectorized")

# %% [markdown]
# The share of multiply-adds rises by {{ more_of_them:.0% }}, and the speed by {{ faster_by:.0% }}. *Units busy* is the
# share of the time in which the multiply-add units work. It is well below the share of multiply-adds in
# *vectorized*{{ if units_below_theirs }}, so its schedulers are often idle: its warps wait.
#
# ## Two pairs of tiles
#
# In every kernel so far a block loads, waits, multiplies, waits. While it loads, its multiply-add units have nothing to
# do, unless another block on the same SM happens to be multiplying. With a second pair of tiles the loads of the next
# step can be in flight during the products of this one. That is *double buffering*, the simplest *pipeline*: several
# stages of the work are under way at the same time, each on its own pair of tiles.

# %%
overlap()

# %%
from labkit.kernels.matmul.float32 import make_matmul_double_buffered

show_source(make_matmul_double_buffered, "fill, start =", "fill = TILES_SIZE - fill")

# %% [markdown]
# Follow the loop. The values that were loaded during the last round are stored to shared memory. After a barrier, the
# loads of the next round start. Then come the products, which do not need those loads, so no warp waits for them. One
# barrier per round is enough: after it this pair is complete, and the other pair is free, because every warp has
# finished the last round's products by then. How much faster is the kernel when no warp waits for global memory?

# %%
climb(recorded, "double_buffered")

# %%
counters("vectorized", "double_buffered",
         waits=("long_scoreboard", "short_scoreboard", "dispatch_stall", "barrier", "not_selected"))

# %% [markdown]
# Very little. The new columns say how many of a scheduler's warps, on average, were waiting for something whenever it
# issued an instruction. *long_scoreboard*, the wait for global memory, is gone{{ if waiting_gone }}. But two blocks
# share an SM, and each had already covered most of the other's waits: there is little point in hiding a wait twice. Two
# waits are larger than the others{{ if two_waits }}: for values from shared memory (*short_scoreboard*), and for the
# dispatcher, which holds back an instruction that is ready (*dispatch_stall*). The last column counts warps that waited
# for nothing but their turn, because others were ready as well. There are about two of them{{ if near(ready, 2) }}, so
# most of the time a scheduler does have something to issue. The instructions must become better: a larger share of
# multiply-adds, and fewer stalls on the way. The next rungs work on that, with one change each.
#
# ## Copies past the registers
#
# In *double_buffered* eight registers hold the next pair of tiles until shared memory is free. `cp.async` copies from
# global to shared memory without going through registers; a kernel calls it as `ptx.cp_async_4`, where 4 is the number
# of bytes. A thread starts a copy and goes on; the hardware writes the element when it arrives. No register is occupied
# meanwhile, so copies can run further ahead: three pairs of tiles, each of 16 steps of k, form a ring.

# %%
from labkit.kernels.matmul.float32_tiles import copy_pair

show_source(copy_pair)

# %% [markdown]
# A copy that runs on its own can go wrong in a new way. `cp_async_commit` closes a group of copies, `cp_async_wait(n)`
# waits until at most n groups are still in flight, and other threads may read the data only after a barrier that
# follows this wait. In this small kernel the wait is missing. What does `observe` say about a read that does not wait
# for its copy?

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
# *double_buffered* no longer waits for global memory. How much faster is the kernel with copies further ahead, and half
# as many barriers?

# %%
climb(recorded, "async_copies")

# %% [markdown]
# {{ factor['async_copies'] - 1:.0% }} more. No wait for global memory was left to hide. But the tiles no longer pass
# through registers, which saves the stores to shared memory: {{ fewer['async_copies']:.0% }} fewer instructions. And
# with half as many barriers, fewer warps wait at one: {{ barrier['async_copies']:.2f }} instead of
# {{ barrier['double_buffered']:.2f }}.
#
# ## A tile for each warp
#
# Lanes that read the same address share one read, so what counts for shared memory is how many *different* elements a
# warp needs. So far its 32 thread tiles form two rows of 16. How many elements does a warp read in one step of k, and
# how many if its thread tiles form a square, or nearly one?

# %%
pictures.warp_tile()

# %% [markdown]
# Two rows of 16 thread tiles need 16 elements of `a` and 128 of `b`; 8 rows of 4 need 64 and 32, a
# third{{ if near(1 - 96 / 144, 1 / 3) }} fewer. Only the lines that compute where the parts of a thread's tile are have
# to change. How much faster is the kernel when a warp reads a third fewer elements?

# %%
climb(recorded, "warp_tiles")

# %% [markdown]
# {{ factor['warp_tiles'] - 1:.0% }} faster, with {{ fewer['warp_tiles']:.0% }} fewer instructions. But the waits for
# shared memory did not shrink: {{ short['warp_tiles']:.2f }} warps instead of {{ short['async_copies']:.2f }}. Shared
# memory was busy about half of the time{{ if near(l1_busy, 0.5) }} before and after, so its bandwidth was not the
# limit. The warps wait for its *latency*.
#
# ## Reading one step ahead
#
# Each step of k begins with four reads from shared memory, and its products wait for them. With a second set of
# {{ 2 * 8 }} registers, the reads of the next step run during the products of this one.

# %%
pictures.reading_ahead()

# %%
from labkit.kernels.matmul.float32_tiles import make_two_steps

show_source(make_two_steps)

# %% [markdown]
# The kernel calls `two_steps` seven times in a row, with the steps 0, 2, 4 and so on, rather than in a loop. The
# compiler does not unroll a loop of this size, and it would not move a read into the iteration before. `two_steps` is a
# *device function*, which kernels can call and Python cannot. It is inlined, so the calls cost nothing. Which wait does
# reading one step ahead shorten, and how much faster is the kernel?

# %%
climb(recorded, "reads_ahead")

# %%
counters("double_buffered", "async_copies", "warp_tiles", "reads_ahead",
         waits=("short_scoreboard", "dispatch_stall", "barrier"))

# %% [markdown]
# {{ factor['reads_ahead'] - 1:.0% }}: more than the other three changes together{{ if most }}. *short_scoreboard* falls
# from {{ short['warp_tiles']:.2f }} to {{ short['reads_ahead']:.2f }}: the values are there when a product needs them.
# And because the steps are written out, {{ fewer['reads_ahead']:.0% }} of the instructions are gone: those that counted
# steps and computed addresses. Some of the waiting has moved to the barrier.
#
# ## The order of the products
#
# A multiply-add reads three registers, and the register file cannot always deliver all three in one clock: that is one
# cause of a *dispatch stall*. A register that two neighbouring instructions both read is fetched once. The rung
# *pipelined* only changes the order of the 64 products, so that each shares a factor with the previous one.

# %%
pictures.product_order()

# %% [markdown]
# That changes only seven of the 63 steps from one product to the next. How much faster is the kernel in the new order?

# %%
climb(recorded, "pipelined")

# %% [markdown]
# {{ factor['pipelined'] - 1:.0% }}, just for a different order. The number of instructions is the
# same{{ if same_count }}; dispatch stalls fall from {{ dispatch['reads_ahead']:.2f }} to
# {{ dispatch['pipelined']:.2f }}, waits for shared memory rise from {{ short['reads_ahead']:.2f }} to
# {{ short['pipelined']:.2f }}, and the units are busy for {{ busy[1]:.0f }}% of the time, not {{ busy[0]:.0f }}%.
#
# ## Right at every size

# %%
from labkit import agree, device

odd = ({"M": 1, "N": 1, "K": 1}, {"M": 37, "N": 23, "K": 19}, {"M": 129, "N": 131, "K": 35})
rungs = device.pick(gpu=[rung.__name__ for rung in MATMUL.rungs], cpu=["matmul_register_blocked", "matmul_pipelined"])
agree(MATMUL, rungs, sizes=device.pick(gpu=MATMUL.awkward, cpu=odd))

# %% [markdown]
# A tile of 128 × 128 for a product of 37 × 23 is wasteful, but right. Rows that do not begin at multiples of 16 bytes
# cannot be loaded four at a time. The fast kernels have a slower form for those, and the launcher chooses. On the CPU
# device each kernel takes a few seconds to compile, so the lesson tries two there. `agree(MATMUL)` tries all of them.
#
# ## Against cuBLAS

# %%
from labkit import ladder

plots.ladder(ladder(MATMUL, MATMUL.work.timed_gpu) if device.on_gpu() else recorded, None)

# %%
counters("pipelined", "PyTorch", waits=("short_scoreboard", "dispatch_stall", "barrier"))

# %% [markdown]
# From the naive kernel to the pipeline it is a factor of {{ words(rate['pipelined'] / rate['naive']) }}, and
# *pipelined* runs at {{ of_cublas:.2f }} of the speed of cuBLAS, which PyTorch calls. The counters say what separates
# them. The numbers of instructions are nearly the same, but cuBLAS keeps the units busy for a little more of the
# time{{ if alike }}, with fewer dispatch stalls{{ if more_dispatch }}.
#
# That is at 4,096. At 1,024 `out` has 64 tiles of 128 × 128, for 132 SMs. What share of cuBLAS's speed does *pipelined*
# reach there?

# %% tags=["hide-input"]
sizes = measure.recorded_series("matmul_sizes", gpu=H100)
rates = {line["name"]: line["rate"] for line in sizes["lines"]}
ours, theirs = rates["matmul_pipelined"], rates["PyTorch (cuBLAS)"]
table([(n, (n // 128) ** 2, ours[at], theirs[at], ours[at] / theirs[at]) for at, n in enumerate(sizes["x"])],
      {"M = N = K": ",d", "blocks": ",d", "pipelined, TFLOP/s": ".1f", "cuBLAS, TFLOP/s": ".1f", "ratio": ".2f"},
      note=f"Recorded on an {H100}.")

# %% [markdown]
# With 64 blocks more than half of the SMs get no work{{ if 64 < 132 / 2 }}. cuBLAS has many kernels: it can choose one
# with smaller tiles, or divide the steps of k among several blocks. The last rung, *split*, does the latter. At 1,024
# two blocks compute each tile, each over half of k, and a second kernel adds their sums. From 2,048 on it is the same
# as *pipelined*.
#
# ## What I learned
#
# - Count instructions. One that is not a multiply-add delays one that is.
# - A model of one limit leads straight into the next. By the count of loads, 16 × 16 was best; registers ruled it out.
# - There is little point in hiding a wait twice. A profiler's list of waits (lesson 12) would have told me first.
# - Change one thing at a time. Of four ideas that I had built together, one does more than the other three.
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
#   elements of a tile, 96 × 8, does each of 256 threads copy? Why would 5 not work?
# - In `no_wait_kernel` put the wait after the barrier instead of before it. What does `observe` say now, and why is it
#   right?
#
# Next: **tensor cores**, a unit with {{ words(unit_speed) }} times the peak, and the same climb again.

# %% [numbers]
# names = ('naive', 'tiled_32', 'register_blocked_4', 'register_blocked', 'register_blocked_16', 'vectorized',
#          'double_buffered', 'async_copies', 'warp_tiles', 'reads_ahead', 'pipelined', 'PyTorch')
# rate = rates_of('matmul', names, H100)
# doubles = 1.9 < rate['register_blocked_4'] / rate['tiled_32'] < 2.1
# triples = rate['register_blocked'] / rate['tiled_32'] > 3
# sixteen_slower = rate['register_blocked_16'] < rate['register_blocked_4']
# counts = {name: ncu('matmul', name, H100) for name in names[3:] if name != 'tiled_32'}
# units_below_theirs = counts['vectorized'].fma_percent / 100 < 0.9 * 4096**3 / 32 / counts['vectorized'].instructions
# more_of_them = counts['register_blocked'].instructions / counts['vectorized'].instructions - 1
# faster_by = rate['vectorized'] / rate['register_blocked'] - 1
# pipeline = ('double_buffered', 'async_copies', 'warp_tiles', 'reads_ahead', 'pipelined')
# short = {name: stall('matmul', name, 'short_scoreboard', H100) for name in pipeline}
# dispatch = {name: stall('matmul', name, 'dispatch_stall', H100) for name in pipeline}
# barrier = {name: stall('matmul', name, 'barrier', H100) for name in pipeline}
# waiting_gone = (stall('matmul', 'double_buffered', 'long_scoreboard', H100) < 0.1 * stall('matmul', 'vectorized',
#                 'long_scoreboard', H100))
# two_waits = min(short['double_buffered'], dispatch['double_buffered']) > 1.5 * max(barrier['double_buffered'],
#             stall('matmul', 'double_buffered', 'wait', H100))
# ready = stall('matmul', 'double_buffered', 'not_selected', H100)
# after = {'async_copies': 'double_buffered', 'warp_tiles': 'async_copies', 'reads_ahead': 'warp_tiles',
#          'pipelined': 'reads_ahead'}
# factor = {name: rate[name] / rate[after[name]] for name in after}
# fewer = {name: 1 - counts[name].instructions / counts[after[name]].instructions for name in after}
# most = factor['reads_ahead'] > factor['async_copies'] * factor['warp_tiles'] * factor['pipelined']
# same_count = near(counts['pipelined'].instructions, counts['reads_ahead'].instructions, 0.005)
# busy = [counts[name].fma_percent for name in ('reads_ahead', 'pipelined')]
# l1_busy = (counts['async_copies'].l1_percent + counts['warp_tiles'].l1_percent) / 200
# of_cublas = rate['pipelined'] / rate['PyTorch']
# alike = (abs(counts['pipelined'].instructions / counts['PyTorch'].instructions - 1) < 0.03 and 0 <
#          counts['PyTorch'].fma_percent - counts['pipelined'].fma_percent < 5)
# more_dispatch = dispatch['pipelined'] > stall('matmul', 'PyTorch', 'dispatch_stall', H100)
# unit_speed = limits.mma_f16_tflops / limits.fp32_tflops
