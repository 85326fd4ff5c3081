# %% [markdown]
# # 11 · Where the time goes
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how to name the parts of a program and find out which of them takes the time
# - what the first call of a program pays for, and what a copy costs
# - how to read what NVIDIA's profilers say about a kernel

# %% [markdown]
# ## The problem
#
# So far I have timed kernels. But a program does more than run a kernel: it starts, allocates, copies, launches, and
# copies back. This lesson times all of that, for a product of two matrices with 256 rows and 256 columns, once, from
# NumPy to NumPy.

# %%
from labkit import agree, device, measure, roofline, show_source
from labkit.course.drawings import where_time_goes as pictures
from labkit.kernels.ops.matmul import MATMUL
from labkit.measure import nvtx as ranges
from labkit.measure.series import overheads

roofline.predict(MATMUL, M=256, N=256, K=256)

# %% [markdown]
# By the roofline, an H200 needs half a microsecond for the arithmetic and less for the bytes. Before you go on, guess:
# how many microseconds does the whole program take on a GPU, from its first line to the result? Which part takes the
# most?

# %% [markdown]
# ## Naming the parts
#
# A *range* is a part of a program that has a name, a beginning and an end. Ranges may be nested. Here is the program
# with a range around each part.

# %%
show_source(overheads.product_trip)

# %% [markdown]
# `ranges` can be anything that marks a range. Here it is labkit's `Ranges`, a stopwatch: at the end of each range it
# waits for the device, then adds up the time.

# %%
first = ranges.Ranges("The first time")
overheads.product_trip(first)
first

# %% [markdown]
# The kernel in the middle is the simplest one of lesson 06, and right:

# %%
agree(MATMUL, ["matmul_naive"])

# %% [markdown]
# And once more, the same function, in the same process.

# %%
second = ranges.Ranges("The second time")
overheads.product_trip(second)
second

# %% [markdown]
# Both trips did the same work. What the first one took beyond the second is *cold start*.

# %% [markdown]
# ## Cold and warm
#
# The notebook that this course follows, *learning cuda (and now triton) from scratch, a lab notebook*, did the same in
# CUDA C++, in a fresh process, and read the ranges with NVIDIA's profiler. Its figures are the first column. Beside
# them stand the H200 of this course, in a fresh process and then warm, and your own two trips.

# %%
pictures.trips_table(first.to_json(), second.to_json())

# %% [markdown]
# In that notebook the allocation takes 125 ms{{ quoted }}, thirty-four thousand times its kernel. Allocating is not
# slow in itself. The first call that needs the GPU, whichever it is, creates a *context*: the driver sets up memory,
# queues and page tables for this process. The time goes to whatever range is open. On the H200 it was a
# fifth{{ if near(cold['allocate'] / 124.9 - 1, 1 / 5, 0.2) }} more.
#
# In Python, more happens only once:
#
# - Modules are imported, before the first range begins.
# - The first launch of a kernel compiles it, from Python to machine code. In the H200's cold column that is three
#   quarters{{ if near(compiling_share, 3 / 4) }} of everything. The CPU device compiles as well, unless the compiled
#   kernel is still in its cache on disk.
# - The operating system hands out a page of memory only when it is first touched.
#
# How long does it take until a new process has its first result? The next cell starts one.

# %%
fresh = overheads.cold_start()

print(f"import labkit, Numba and NumPy: {fresh['import_ms']:,.0f} ms ({measure.where()})")
ranges.RecordedRanges(fresh["trips"][0], "Then the first product of a fresh process", fresh["where"])

# %% [markdown]
# For a program that runs for hours this does not matter. A test that runs for a second, a function in the cloud that
# starts for each request, a loop that starts a process for each file: these are cold start and little else. The cure is
# always to keep something: the process and with it the context, the compiled kernel (`cache=True` in `cuda.jit` puts it
# on disk), the buffers.

# %% [markdown]
# ## The same, as a picture
#
# Below are the ranges along time, the inner ones under the outer one. Your GPU, or else the H200, was watched by a
# profiler as well. That adds two rows: the calls that Python made to the driver, and what the GPU did.

# %%
here = {"title": f"Here, the second time. {measure.where()}", "events": second.events()}
watched = pictures.trace_panel()
pictures.timeline(*([here] if device.on_gpu() else []), watched)

# %%
events = watched["events"]
busy = sum(event["us"] for event in events if event["row"] == "GPU")
print(f"under the profiler the GPU is at work for {busy:.0f} of {events[0]['us']:.0f} us")

# %% [markdown]
# Look at the GPU's row. Wherever it is empty, the GPU is waiting for the host to launch something. (The CPU device has
# no such gaps: there the host itself computes, and the kernel is nearly everything.)

# %% [markdown]
# ## Ranges that do not wait
#
# These ranges wait for the device at their end. Ranges in a profiler do not: they end when the host's code gets there,
# and a launch only puts the kernel into a queue and returns. Before you run the cell: on a GPU, which range gets
# shorter without the waiting, and which one gets longer?

# %%
loose = ranges.Ranges("Without waiting", wait=False)
overheads.product_trip(loose)

print(f"{'':20}{'waiting':>12}{'not waiting':>14}   ({measure.where()})")
for part in ("copy to the device", "kernel", "copy to the host"):
    print(f"{part:20}{1000 * second.ms(part):12.1f}{1000 * loose.ms(part):14.1f} us")

# %% [markdown]
# On a GPU the kernel's range shrinks to the launch. The kernel's time turns up under "copy to the host", which has to
# wait for the result. On the CPU device a launch returns only when the kernel has ended. There both columns time the
# same work, and they differ only by what else the machine is doing.
#
# This is the commonest misreading of a profile: a copy that looks slow because it waits for a kernel. The notebook that
# this course follows calls `cudaDeviceSynchronize` after its kernel, so its 3.652 µs{{ quoted }} are the kernel's. But
# its copies of 3.330 and 0.110 µs{{ quoted }} are not the speed of the bus: the ranges show the time of the host's
# code, and nothing else.

# %% [markdown]
# ## NVTX and Nsight Systems
#
# *NVTX* is NVIDIA's interface for such ranges. In CUDA C++ a program pushes a name at the beginning and pops it at the
# end. In Python the package `nvtx` (`pip install nvtx`) does it, and where it is installed, each of labkit's ranges is
# an NVTX range, too. Nsight Systems shows them:
#
# ```
# nsys profile --trace=cuda,nvtx --stats=true python my_program.py
# ```
#
# This is what `nsys` printed in the notebook that this course follows, rearranged:

# %%
total_us = sum(pictures.SOURCE_US.values())

for part, us in pictures.SOURCE_US.items():
    print(f"{us / total_us:7.1%} {1000 * us:15,.0f} ns   {part}")

# %% [markdown]
# Half of the time in the product and half in the allocation? `nsys` divides by the sum of all ranges, and the outer
# range contains the others, so the 125 ms{{ quoted }} are in the sum twice. Always ask what a percentage is a
# percentage of. This table divides by the outermost range:

# %%
outer = "matrix product"
source = [{"path": [outer] if part == outer else [outer, part], "ms": us / 1000, "count": 1}
          for part, us in pictures.SOURCE_US.items()]
ranges.RecordedRanges(source, "The same ranges", "CUDA C++, as that notebook printed it")

# %% [markdown]
# Nsight Compute, of which more below, knows the ranges, too: with `--nvtx` it writes beside each kernel in which ranges
# it was launched, from the outermost to the innermost. Here is its trace of a program with the trip above and two
# softmaxes, each in a range of its own.

# %%
from labkit.measure import ncu_ranges

ncu_ranges.table()

# %% [markdown]
# The GPU's rows in the picture above come from PyTorch's profiler, `torch.profiler.profile`, which needs no other
# program. It reads the same records from the driver (through a library called CUPTI), with `record_function` for the
# ranges, and sees Numba's kernels as well as PyTorch's own:
#
# ```python
# with torch.profiler.profile() as watched:
#     product_trip(torch.profiler.record_function)
# watched.export_chrome_trace("trace.json")      # open it in ui.perfetto.dev
# ```

# %% [markdown]
# ## What a copy costs
#
# The next figure has copies from 4 bytes upwards, in both directions, from ordinary memory and from *pinned* memory,
# which the operating system does not move, so that the GPU can read it without help from the CPU. (Ordinary memory is
# *pageable*.) Predict the shape of the curve before you look. How much longer does a copy of 4,096 bytes take than one
# of 4?

# %%
pictures.copy_cost(overheads.copy_sizes())

# %% [markdown]
# The curve is flat at first; then twice the bytes take twice the time. A copy costs something to start, and something
# for each byte:
#
# $$t = t_0 + \frac{n}{B}$$
#
# As long as $n$ is small against $t_0 B$, the last column of the next table, the bytes are nearly free. So many small
# copies are the worst way to move anything, and programs pack small arrays into one. (*h2d* is from host to device,
# *d2h* the way back.)

# %%
copies, sizes = (measure.recorded_series(name, gpu="NVIDIA H200") for name in ("copies", "copy_sizes"))
print("on the H200     a copy of 4 bytes     256 MB at     starting costs as much as")
for way in ("h2d_pageable", "h2d_pinned", "d2h_pageable", "d2h_pinned"):
    start, gbs = sizes[f"{way}_us"][0], copies[way]["gbs"]
    print(f"{way:13} {start:17.0f} us {gbs:13.1f} GB/s {start * gbs:14,.0f} KB")

# %% [markdown]
# A copy to the device costs {{ words(start_ratio) }} times as much to start as a copy back, from pinned memory as well.
# Both directions share one bus, so that is not the reason. This recording does not show what is; a time line of the
# driver's calls would.

# %% [markdown]
# ## What I learned
#
# - The first call pays for the context, whichever it is. Make one on purpose before you time anything.
# - A range that does not wait shows when the host launched the work, not when the GPU did it.
# - Percentages of nested ranges count things twice. In that notebook's table, 50% and 50%{{ quoted }} are one and the
#   same 125 ms{{ quoted }}.
# - Many small copies pay many times for starting.
# - Fewer loads need not be fewer bytes from memory. That depends on the caches, and on which blocks run together.

# %% [markdown]
# ## Resources
#
# - [NVTX: the Python package and its documentation](https://nvidia.github.io/NVTX/)
# - [Nsight Systems: User Guide](https://docs.nvidia.com/nsight-systems/UserGuide/index.html)
# - [Nsight Compute: Kernel Profiling Guide](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html)

# %% [markdown]
# ## Try it
#
# - Give `product_trip` matrices of 1,024 rows: `large = ranges.Ranges("1,024")`, then `overheads.product_trip(large,
#   n=1024)`, and show `large`. Predict: which parts grow by sixteen, which by sixty-four, which not at all?
# - Put ten copies of 4 KB into a range, and one copy of 40 KB into another. Predict the ratio from the curve above.
#
# Next: **graphs and streams**: the price of a launch, how to pay it once, and copies that run beside kernels.

# %% [numbers]
# cold = {part['path'][-1]: part['ms'] for part in series.cold_start.trips._value[0]}
# copy = series.copy_sizes
# compiling_share = cold['kernel'] / cold['matrix product']
# start_ratio = copy.h2d_pageable_us[0] / copy.d2h_pageable_us[0]
# long_scoreboard_leads = (stall('matmul', 'tiled', 'long_scoreboard') > max(stall('matmul', 'tiled', 'mio_throttle'),
#                          stall('matmul', 'tiled', 'barrier'), stall('matmul', 'tiled', 'short_scoreboard')))
# more_from_memory = ncu('matmul', 'tiled').dram_read / ncu('matmul', 'coalesced').dram_read
# half_the_sectors = (ncu('matmul', 'naive').load_sectors_per_request == 17 / 2 and ncu('matmul',
#                     'coalesced').load_sectors_per_request == 4 / 2)
