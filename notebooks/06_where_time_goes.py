# %% [markdown]
# # 06 · Where the time goes
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how to give the parts of a program names and find out which of them takes the time
# - what the first call of a program pays for, what a copy costs, what a launch costs, and how a graph gets rid of it
# - how to read what NVIDIA's profilers say about a kernel
#
# ## The problem
#
# So far I have timed kernels. Nobody runs a kernel. One runs a program: it starts, allocates, copies, launches, copies
# back. This lesson times all of that, for a product of two matrices with 256 rows and 256 columns, once, from NumPy to
# NumPy.

# %%
import numpy as np

from labkit import agree, cuda, ladder, measure, plots, roofline, show_source
from labkit.kernels.matmul.float32 import MATMUL
from labkit.measure import nvtx as ranges
from labkit.measure.series import overheads

roofline.predict(MATMUL, M=256, N=256, K=256)

# %% [markdown]
# By the roofline an H200 needs half a microsecond for the arithmetic and less for the bytes. Before you go on, write
# down your guess for the whole program on a GPU, from its first line to the result. How many microseconds? Which part
# takes the most?
#
# ## Naming the parts
#
# A *range* is a part of a program with a name and a beginning and an end. Ranges may lie in one another. Here is the
# program with a range around each part.

# %%
show_source(overheads.product_trip)

# %% [markdown]
# `ranges("kernel")` is whatever marks a range. Mine is called `Ranges`, and it is a stopwatch: at the end of each range
# it waits for the device and adds up the time.

# %%
first = ranges.Ranges("The first time")
overheads.product_trip(first)
first

# %% [markdown]
# And once more, the same function, in the same process.

# %%
second = ranges.Ranges("The second time")
overheads.product_trip(second)
second

# %% [markdown]
# The work is the same to the last bit. What the first trip paid beyond the second is not work, it is *cold start*.
#
# ## Cold and warm
#
# The notebook that this course follows, *the source* from here on, did the same in CUDA C++, in a process that had done
# nothing before, and read the ranges with NVIDIA's profiler. Its figures are the first column. Beside them stand the
# H200 of this course, in a fresh process and then warm, and your own two trips.

# %%
overheads.trips_table(first.to_json(), second.to_json())

# %% [markdown]
# The source's allocation takes 125 ms, thirty-four thousand times its kernel. Nothing is slow about allocating. The
# first call that needs the GPU, whichever it is, makes a *context*: the driver sets up its memory, its queues and its
# page tables for this process. The bill goes to the range that happens to be open. On the H200 it was a fifth more.
#
# In Python the list of what happens once is longer.
#
# - Importing takes its time before the first range begins.
# - The first call makes the context.
# - The first launch of a kernel compiles it, from Python to machine code. In the H200's cold column that is three
#   quarters of everything. The CPU device compiles as well, unless it finds what it compiled on the day before.
# - Memory that has never been touched is handed out by the operating system only when it is.
#
# How long does it take until a process has its first result? I start a new one.

# %%
fresh = overheads.cold_start()

print(f"import labkit, Numba and NumPy: {fresh['import_ms']:,.0f} ms ({measure.where()})")
ranges.RecordedRanges(fresh["trips"][0], "Then the first product of a fresh process", fresh["where"])

# %% [markdown]
# A program that runs for hours does not care. A test that runs for a second, a function in the cloud that starts for
# each request, a loop that starts a process for each file: they are cold start and little else. The cures are all of
# one kind: keep the process, keep the context, keep the compiled kernel (`cache=True` in `cuda.jit` puts it on disk),
# keep the buffers.
#
# ## The same, as a picture
#
# Ranges on one row, those inside them below. A GPU, yours or else the H200, was watched by a profiler as well. That
# adds two rows: launches, as Python asked the driver for them, and what the GPU did.

# %%
here = {"title": f"Here, the second time. {measure.where()}", "events": second.events()}
watched = overheads.trace_panel()
plots.timeline(here, watched)

# %%
events = watched["events"]
busy = sum(event["us"] for event in events if event["row"] == "GPU")
print(f"in the lower picture the GPU is at work for {busy:.0f} of {events[0]['us']:.0f} us")

# %% [markdown]
# Of such a picture the GPU's row is the one that was paid for. Wherever it is empty, the GPU waits for the host to ask
# for the next thing. A GPU that is idle is not slow. It has not been asked. (The CPU device has no such gaps: there the
# kernel is nearly everything, since the host does its work.)
#
# ## Ranges that do not wait
#
# My ranges wait for the device at their end. Ranges in a profiler do not: they end when the host's code gets there. A
# launch only puts the kernel into a queue and returns. Before you run the cell: on a GPU, which range gets shorter
# without the waiting, and which one gets longer?

# %%
loose = ranges.Ranges("Without waiting", wait=False)
overheads.product_trip(loose)

print(f"{'':20}{'waiting':>12}{'not waiting':>14}   ({measure.where()})")
for part in ("copy to the device", "kernel", "copy to the host"):
    print(f"{part:20}{1000 * second.ms(part):12.1f}{1000 * loose.ms(part):14.1f} us")

# %% [markdown]
# On a GPU the kernel's range shrinks to the launch. What the kernel takes turns up under "copy to the host", since that
# has to wait for the result. On the CPU device a launch returns when the kernel has ended, so nothing moves but noise.
#
# This is the commonest wrong reading of a profile: a copy that looks slow because it waits for a kernel. The source's
# kernel of 3.652 µs is followed by a `cudaDeviceSynchronize` in its own range, and is honest. Its copies of 3.330 and
# 0.110 µs I would not read as the speed of the bus. NVTX ranges take the time of the host's code, and nothing else.
#
# ## NVTX and Nsight Systems
#
# *NVTX* is NVIDIA's interface for such marks. In CUDA C++ one pushes a name and pops it. In Python the package `nvtx`
# (`pip install nvtx`) does it, and where it is installed each of my ranges is an NVTX range, too. Then Nsight Systems
# shows it:
#
# ```
# nsys profile --trace=cuda,nvtx --stats=true python my_program.py
# ```
#
# The source's table, as `nsys` printed it, rearranged:

# %%
total_us = sum(overheads.SOURCE_US.values())

for part, us in overheads.SOURCE_US.items():
    print(f"{us / total_us:7.1%} {1000 * us:15,.0f} ns   {part}")

# %% [markdown]
# Half of the time in the product and half in the allocation? `nsys` divides by the sum of all ranges, and the outer
# range contains the others, so the 125 ms are in the sum twice. A percentage in a profile is only as good as what it is
# a percentage of. My table divides by the outermost range:

# %%
outer = "matrix product"
source = [{"path": [outer] if part == outer else [outer, part], "ms": us / 1000, "count": 1}
          for part, us in overheads.SOURCE_US.items()]
ranges.RecordedRanges(source, "The source's ranges", "CUDA C++, as the source printed it")

# %% [markdown]
# The GPU's rows in the time line above come from PyTorch's profiler, `torch.profiler.profile`, which needs no other
# program. It reads the same records from the driver (through a library called CUPTI), with `record_function` for the
# ranges. It sees Numba's kernels as well as PyTorch's own:
#
# ```python
# with torch.profiler.profile() as watched:
#     product_trip(torch.profiler.record_function)
# watched.export_chrome_trace("trace.json")      # open it in ui.perfetto.dev
# ```
#
# ## What a copy costs
#
# Copies from 4 bytes upwards, there and back, from ordinary memory and from pinned memory, which the GPU may read by
# itself. Predict the shape of the curve before you look. How much more does a copy of 4,096 bytes take than one of 4?

# %%
plots.copy_cost(overheads.copy_sizes())

# %% [markdown]
# Flat, then a slope of one. A copy has a price for the trip and a price for each byte:
#
# $$t = t_0 + \frac{n}{B}$$
#
# As long as $n$ is small against $t_0 B$, the bytes are free. That is why many small copies are the worst way to move
# anything, and why engines pack five little arrays into one.

# %%
copies, sizes = (measure.recorded_series(name, gpu="NVIDIA H200") for name in ("copies", "copy_sizes"))
print("on the H200     a copy of 4 bytes     256 MB at     the trip costs as much as")
for way in ("h2d_pageable", "h2d_pinned", "d2h_pageable", "d2h_pinned"):
    start, gbs = sizes[f"{way}_us"][0], copies[way]["gbs"]
    print(f"{way:13} {start:17.0f} us {gbs:13.1f} GB/s {start * gbs:14,.0f} KB")

# %% [markdown]
# A copy to the device costs three times as much to start as a copy back, from pinned memory as well. So it is not the
# bus. I have not looked for the cause.

# %% [markdown]
# ## What a launch costs
#
# A launch from Python passes through Numba: look up the compiled kernel for these types of arguments, unpack each array
# into pointer, shape and strides, call the driver. This is what one launch costs among many, for an addition of 1,024
# numbers, which is no work at all.

# %%
from labkit.measure import bench

here, h200 = bench.launch_overhead(), measure.recorded_series("launch_overhead", gpu="NVIDIA H200")

print(f"{'':34}{'here':>8}{'H200':>8}   ({measure.where()})")
names = {"launcher_us": "through the launcher, with its checks",
         "bound_us": "launch = kernel[grid, block], kept",
         "torch_us": "torch.add", "graph_us": "inside a graph"}
for key, name in names.items():
    us = [f"{found[key]:7.1f}" if found[key] else "      -" for found in (here, h200)]
    print(f"{name:38}", *us, "us")
print(f"\nH200: {h200['launcher_us'] / h200['torch_us']:.1f} times PyTorch's, "
      f"{h200['launcher_us'] / h200['graph_us']:.0f} times that of a graph")

# %% [markdown]
# Numba's launches are expensive. It is the host that launches, so the price is that of the host: around the same GPU,
# another machine has another one. Times of calls can only be compared if they come from the same run.
#
# Over sizes it looks like this. Each point is one addition among many in a row.

# %%
plots.launch_cost(overheads.launch_sizes())

# %% [markdown]
# The flat part is the *launch-overhead regime*. In it a GPU waits for Python, and a kernel twice as fast gains nothing.
# The slope is memory. Between them lies a size below which one should think about launches and above which one should
# think about bytes. Few things explain benchmark results as often as this: a library that wins at short rows and ties
# at long ones has the cheaper launch, and no better kernel.

# %%
floor = h200["launcher_us"]
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
print(f"{floor:.1f} us of an H200's memory are {floor * bandwidth * 1e3 / 12:,.0f} additions")

# %% [markdown]
# ## Graphs
#
# A *CUDA graph* is a list of launches that the driver keeps. Python writes it down once and then asks for all of it
# with one call.

# %%
from labkit import graphs

x, y = (cuda.to_device(np.full(1000, value, np.float32)) for value in (1, 2))


@cuda.jit
def add_to_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] += x[i]


graph = graphs.capture(lambda stream: [add_to_kernel[8, 128, stream](x, y) for _ in range(10)])
print(f"{graph.nodes} launches written down; y[0] is {y.copy_to_host()[0]:.0f}")

# %% [markdown]
# `capture` gives the work a stream, and every launch has to go there, or it would not be written down. The arguments
# are written down with it. That has two consequences, and both bite. Predict the numbers before you run the cell.

# %%
graph.launch()
cuda.synchronize()
print(f"after one launch of the graph: y[0] is {y.copy_to_host()[0]:.0f}")

x.copy_to_device(np.full(1000, 100, np.float32))  # new numbers in the array that the graph knows
graph.launch()
cuda.synchronize()
print(f"after 100s were put into x:    y[0] is {y.copy_to_host()[0]:.0f}")

x, kept = cuda.to_device(np.zeros(1000, np.float32)), x  # x is the name of another array now
graph.launch()
cuda.synchronize()
print(f"after x names another array:   y[0] is {y.copy_to_host()[0]:.0f}")

# %% [markdown]
# The cell before had a surprise as well: y was 12, and nothing had been launched. `capture` runs the work once so that
# every kernel gets compiled, and that run adds like any other. (`warm_up=False` leaves it out.) Then each launch of the
# graph adds ten times what stands in the array that x named *when it was captured*. What the name x means in Python
# later is nothing to it. On a GPU a graph holds addresses, so the old array has to live as long as the graph does.
# `kept` sees to that.
#
# On the CPU device a graph is a recorded list, and launching it runs the list. The meaning is the same, and the gain is
# not.
#
# ## A fair baseline
#
# Three small steps, as they end a layer of GPT-2: add a bias, apply GELU, add the residual. In PyTorch three lines:
#
# ```python
# y = x + bias
# y = gelu(y, approximate="tanh")
# y = y + residual
# ```
#
# It is easy to beat three lines with one kernel and to call the kernel fast. What would somebody who cares write
# instead? They would put the three lines into a graph, or behind `torch.compile`. So there are two questions, fused or
# not and launched how, and four answers.

# %%
from labkit.kernels import bias_gelu_add
from labkit.kernels.bias_gelu_add import BIAS_GELU_ADD

show_source(bias_gelu_add.bias_gelu_add_three_kernels)

# %%
show_source(bias_gelu_add.bias_gelu_add_fused_kernel)

# %%
agree(BIAS_GELU_ADD)

# %% [markdown]
# 512 rows of 384 numbers on a GPU, 64 on the CPU device. Before you run the cell, put these in order for a GPU: three
# kernels from Python, one kernel from Python, PyTorch's three calls, three kernels in a graph, one kernel in a graph.
# The costs of a launch above are all you need for the order.

# %%
overheads.baseline_table(overheads.fair_baseline(times=20))

# %% [markdown]
# On the H200, PyTorch's three calls from Python cost a quarter of my one. Whoever stops there reports that fusing is
# no use, and has timed Numba's launch. (It costs even more than that of an addition. The launcher checks four arrays
# and flattens three of them each time.) `torch.compile` launches one kernel and costs more than the three calls that
# it replaces: before it launches, it has to make sure that what it compiled still fits. In a graph all of this is
# gone, and one kernel beats three, in both libraries.

# %%
found = ladder(BIAS_GELU_ADD)
found

# %%
plots.ladder(found)

# %% [markdown]
# The two tables count different things, and that is the lesson. The first counts what a program pays for a call, one in
# a row of many. The second is the kernel's own time, on a GPU by the GPU's clock and with cold caches. Say which of the
# two you mean whenever you say "faster". Fusing removes two launches of three from the first, and more than half of the
# traffic from the second: seven arrays moved become three. A graph takes Python out of the first and changes nothing in
# the second. (On the CPU device the two agree. There a launch returns when the work is done, so a call costs the work.)
#
# ## Inside a kernel: Nsight Compute
#
# When it is the kernel that takes the time, the tool is `ncu`. It runs a kernel again and again, each time with other
# counters switched on, and puts the counts together. This is what it says of lesson 04's tiled product, in its own
# words:
#
# ```
# ncu --clock-control none --section SpeedOfLight --section LaunchStats \
#     --section Occupancy python my_program.py
# ```

# %%
from labkit.measure import ncu as counters

print(counters.recorded_report())

# %% [markdown]
# *Throughput* as a percentage is the first thing to read: how close is the kernel to what memory can deliver, how
# close to what the multiprocessors can issue. If one of them is near 100, that is the roof. If neither is, the kernel
# waits. On the H200 we recorded, memory stands above 90%, and the lines below say which memory. It is not DRAM, the
# GPU's memory, with a fifth of what it could deliver. It is L1/TEX, the unit in which shared memory lives. Lesson 04
# suspected it after counting instructions.
#
# *Occupancy* is how many warps a multiprocessor holds at once, of the most it can hold. More of them hide more waiting.
# Here nearly all are there, and it does not help: a queue at a counter gets no shorter when more people join it.
#
# `--clock-control none` leaves the clocks alone. By default `ncu` holds them low to make its counts repeat, and then
# its times are not those of your program.
#
# For what it waits there are counters as well. `python -m labkit.measure.ncu --profile` reads them for the rungs of the
# course. Here is the ladder of products.

# %%
counters.profile("matmul")

# %% [markdown]
# Two columns are worth a look before all others. *load* is how many sectors of 32 bytes one load of a warp touches,
# on average. For 32 lanes that load 32 different numbers of four bytes, 4 is the best there is, and 16 if each loads
# four at once. Fewer than 4 means that lanes share a number. Lesson 04 counted by hand: 17 sectors for the two loads
# of the naive kernel, 4 for those of the coalesced one. Half of that is what stands here. *waits* says what warps
# stand still for when an instruction is issued, and how many of them: `long_scoreboard` is data from global memory,
# out of whichever cache, `mio_throttle` and `short_scoreboard` are shared memory, `barrier` is a `syncthreads`,
# `math_pipe_throttle` is arithmetic, the one thing worth waiting for.
#
# One column contradicts what I believed. The tiled kernel asks for far less than the coalesced one, and four times as
# many bytes come from memory for it. To see why, ask which blocks run at the same time. Blocks of 256 threads fit
# eight to a multiprocessor, so 1,056 of them run at once: four rows of blocks, since a row of them has 4,096 / 16. All
# four rows want the same columns of `b`, which is all of `b`, 67 MB, more than the L2 cache can hold. If the four walk
# down `b` in step, each tile of it is fetched once for all four, and they share it in the cache. If each row of blocks
# is at another place, the next one comes for a tile when it is gone. That gives two predictions.

# %%
b_mb, rows_of_blocks = 4 * 4096**2 / 1e6, 4096 // 16
for how, times in (("b once for all blocks that run together", rows_of_blocks**2 / (8 * 132)),
                   ("b once for each row of blocks", rows_of_blocks)):
    print(f"{how:40} {times:4.0f} x {b_mb:.0f} MB = {times * b_mb:6,.0f} MB")
for row in counters.recorded()["ops"]["matmul"]["rows"]:
    if row["name"] in ("matmul_coalesced", "matmul_tiled"):
        print(f"counted, {row['name']:47} {row['dram_read'] / 1e6:6,.0f} MB")

# %% [markdown]
# Both predictions come within a few percent of a count. So the coalesced kernel's blocks keep in step, and the tiled
# kernel's do not. The counts do not say why. And it costs the tiled kernel little: it is the faster one with four
# times the bytes, because neither kernel waits for the bandwidth of memory. Fewer loads are what tiling promises.
# Fewer bytes from memory it does not.
#
# ## In which order to look
#
# 1. Is the GPU busy? Ranges and a time line. If it has gaps: launches, copies, cold start.
# 2. Is it busy with kernels or with copies? If with copies: move less, move it once, pin it.
# 3. Which kernel takes the most? Only that one is worth improving.
# 4. How far is it from its roof? If near: fuse, or compute something else.
# 5. If far: what do its warps wait for?
#
# Most programs end at the first question. For the fourth there is a picture: kernels of this course as recorded on the
# H200, those of lessons to come among them, under the roofs of memory and arithmetic. Find the products of lesson 04.
# Then find a kernel that no work can make faster.

# %%
names = ("vector_add", "broadcast_add", "reduce_sum", "softmax", "masked_softmax_causal", "layernorm", "gelu",
         "bias_gelu_add", "logits", "attention_cached", "skinny_linear", "attention", "linear", "matmul", "matmul_half")
plots.every_rung([measure.recorded_ladder(name, gpu="NVIDIA H200") for name in names])

# %% [markdown]
# Those that touch the slope move their bytes as fast as the memory can. What they can still do is move fewer.
#
# ## What was implemented
#
# - ranges that nest and add up, with and without waiting, and NVTX ranges under them
# - a program timed cold and warm, from the import to the result
# - copies and launches over sizes; three small steps as three kernels, one kernel, PyTorch's, compiled, in graphs
# - one command that reads a GPU's counters for every rung of a ladder
#
# ## What I learned
#
# - The first call pays for the context, whoever makes it. I now make one on purpose before I time anything.
# - A range that does not wait shows who was asked. It does not show who worked.
# - Percentages of nested ranges count things twice. The source's 50% and 50% are one and the same 125 ms.
# - Below some eight million additions, called from Python, the launch is the price. I had been optimising the rest.
# - A graph remembers arrays, not names, and its warm-up is a run.
# - A baseline is fair when its author would have agreed to it.
#
# ## Resources
#
# - [NVTX: the Python package and its documentation](https://nvidia.github.io/NVTX/)
# - [Nsight Systems: User Guide](https://docs.nvidia.com/nsight-systems/UserGuide/index.html)
# - [Nsight Compute: Kernel Profiling Guide](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html)
# - [CUDA C++ Programming Guide: CUDA Graphs](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-graphs)
#
# ## Try it
#
# - Give `product_trip` matrices of 1,024: `large = ranges.Ranges("1,024")`, then
#   `overheads.product_trip(large, n=1024)`, and show `large`. Predict: which parts grow by sixteen, which by
#   sixty-four, which not at all?
# - Wrap the ten launches of the graph in a second `graphs.capture` that calls `graph.launch()`. Predict whether it can
#   be captured. (It launches on a stream, but on which?)
# - Put ten copies of 4 KB into a range, and one copy of 40 KB into another. Predict the ratio from the curve above.
#
# Next: **07 · Libraries**, where somebody else wrote the kernel.
