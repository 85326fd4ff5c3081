# %% [markdown]
# # 11 · Where the time goes
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how to name the parts of a program and find out which of them is slow
# - what the first call of a program pays for, and what a copy costs
# - how to read a timeline, and how not to misread one
#
# ## The problem
#
# So far I have timed kernels. But a program does more than run a kernel: it starts, allocates, copies, launches, and
# copies back. This lesson times all of that, from NumPy to NumPy, for one product of two matrices with 256 rows and 256
# columns. The kernel in the middle is the simplest one of lesson 06.

# %%
from labkit import agree, device, measure, roofline, show_source, table
from labkit.course.drawings import where_time_goes as pictures
from labkit.kernels.matmul.float32 import matmul_naive_kernel
from labkit.kernels.ops.matmul import MATMUL
from labkit.measure import nvtx as ranges
from labkit.measure.series import overheads

show_source(matmul_naive_kernel)

# %%
roofline.predict(MATMUL, M=256, N=256, K=256)

# %% [markdown]
# By the roofline, an H200 needs half a microsecond for the arithmetic and less for the bytes.
#
# ## Naming the parts
#
# A *range* is a part of a program that has a name, a beginning and an end. Ranges may be nested. Here is the program
# with a range around each part.

# %%
show_source(overheads.product_trip)

# %% [markdown]
# `ranges` can be anything that marks a range. Here it is labkit's `Ranges`, a stopwatch that waits for the device at
# the end of each range and adds up the time. How long does the program take when it is called for the first time, and
# which part takes longest?

# %%
first = ranges.Ranges("The first time")
overheads.product_trip(first)
first

# %% [markdown]
# Now call the same function again, in the same process. Which parts of the program take less time the second time?

# %%
second = ranges.Ranges("The second time")
overheads.product_trip(second)
second

# %% [markdown]
# Both trips did the same work, and the kernel is right:

# %%
agree(MATMUL, ["matmul_naive"])

# %% [markdown]
# The extra time of the first trip is *cold start*.
#
# ## Cold and warm
#
# The notebook that this course follows, *learning cuda (and now triton) from scratch* (2025), did the same in CUDA C++,
# in a fresh process, and read the ranges with NVIDIA's profiler. Its figures are in the first column. Next to them are
# this course's H200, in a fresh process and then warm, and your own two trips.

# %%
pictures.trips_table(first.to_json(), second.to_json())

# %% [markdown]
# In that notebook the allocation takes 125 ms{{ quoted }}, thirty-four thousand times as long as its kernel. Allocating
# is not slow in itself. The first call that needs the GPU creates a *context*: the driver sets up memory and queues for
# this process, and that time counts for the range that is open. On the H200 it was a
# fifth{{ if near(cold['allocate'] / 124.9 - 1, 1 / 5, 0.2) }} more.
#
# In Python, more things happen only once:
#
# - Modules are imported, before the first range begins.
# - The first launch of a kernel compiles it, from Python to machine code. In the H200's cold column that is three
#   quarters{{ if near(compiling_share, 3 / 4) }} of the total. The CPU device compiles as well, unless the compiled
#   kernel is still in its cache on disk.
# - The operating system provides a page of memory only when it is first touched.
#
# How long does a new process take to produce its first result, and how much of that passes before the first range
# begins?

# %%
fresh = overheads.cold_start()

print(f"import labkit, Numba and NumPy: {fresh['import_ms']:,.0f} ms ({measure.where()})")
ranges.RecordedRanges(fresh["trips"][0], "Then the first product of a fresh process", fresh["where"])

# %% [markdown]
# On the H200's host the imports take {{ series.cold_start.import_ms:.0f }} ms, and the first product as long
# again{{ if near(cold['matrix product'] / series.cold_start.import_ms, 1, 0.2) }}. For a program that runs for hours
# this does not matter. A test that runs for a second, a cloud function that starts for each request, a loop that starts
# a process for each file: these are cold start and little else. The cure is always to keep something: the process and
# with it the context, the compiled kernel (`cache=True` in `cuda.jit` keeps it on disk), or the buffers.
#
# ## The same, as a picture
#
# A *timeline* shows the ranges along a time axis, the inner ones under the outer one. On your GPU, or else the H200, a
# *profiler* was running as well, a program that records what another program does. It adds two rows: the calls that
# Python made to the driver, and what the GPU did. For what share of the time is the GPU busy?

# %%
here = {"title": f"Here, the second time. {measure.where()}", "events": second.events()}
watched = pictures.trace_panel()
pictures.timeline(*([here] if device.on_gpu() else []), watched)

# %%
events = watched["events"]
busy = sum(event["us"] for event in events if event["row"] == "GPU")
print(f"under the profiler the GPU is at work for {busy:.0f} of {events[0]['us']:.0f} us")

# %% [markdown]
# A tenth{{ if near(gpu_share, 0.1) }} on the H200. Wherever the GPU's row is empty, the GPU is waiting for the host to
# launch something. The CPU device has no such gaps: there the host itself computes, and the kernel takes nearly all of
# the time.
#
# ## Ranges that do not wait
#
# These ranges wait for the device at their end. Ranges in a profiler do not: they end when the host's code reaches the
# end, and a launch only puts the kernel into a queue and returns. On a GPU, which range gets shorter without the
# waiting, and which gets longer?

# %%
loose = ranges.Ranges("Without waiting", wait=False)
overheads.product_trip(loose)

table([(part, 1000 * second.ms(part), 1000 * loose.ms(part)) for part in ("copy to the device", "kernel",
                                                                         "copy to the host")],
      {"range": "", "waiting, us": ",.1f", "not waiting, us": ",.1f"}, note=measure.where())

# %% [markdown]
# On a GPU the kernel's range shrinks to the launch. The kernel's time turns up under "copy to the host", which has to
# wait for the result. On the CPU device a launch returns only when the kernel has ended. There both columns time the
# same work, and differ only because of what else the machine is doing.
#
# This is the most common misreading of a profile: a copy that looks slow because it waits for a kernel. The notebook
# mentioned above calls `cudaDeviceSynchronize` after its kernel, so its 3.652 µs{{ quoted }} are the kernel's. But its
# copies of 3.330 and 0.110 µs{{ quoted }} do not show the speed of the bus: those ranges show the time of the host's
# code, and nothing else.
#
# ## NVTX and Nsight Systems
#
# *NVTX* is NVIDIA's interface for such ranges. In CUDA C++ a program pushes a name at the beginning and pops it at the
# end. In Python the package `nvtx` (`pip install nvtx`) does so, and where it is installed, each of labkit's ranges is
# also an NVTX range. *Nsight Systems* shows them on a timeline:
#
# ```
# nsys profile --trace=cuda,nvtx --stats=true python my_program.py
# ```
#
# Here is what `nsys` printed in that notebook, rearranged. It attributes half of the time to the product and half to
# the allocation. What is wrong with these percentages?

# %% tags=["hide-input"]
total_us = sum(pictures.SOURCE_US.values())
table([(us / total_us, 1000 * us, part) for part, us in pictures.SOURCE_US.items()],
      {"share": ".1%", "ns": ",.0f", "range": ""}, note="CUDA C++, as that notebook printed it.")

# %% [markdown]
# `nsys` divides by the sum of all ranges, and the outer range contains the others, so the 125 ms{{ quoted }} are
# counted twice. Always ask what a percentage is a percentage of. The next table divides by the outermost range.

# %% tags=["hide-input"]
outer = "matrix product"
source = [{"path": [outer] if part == outer else [outer, part], "ms": us / 1000, "count": 1}
          for part, us in pictures.SOURCE_US.items()]
ranges.RecordedRanges(source, "The same ranges", "CUDA C++, as that notebook printed it")

# %% [markdown]
# Now the allocation takes nearly all of the time, as it did in the program.
#
# *Nsight Compute* (lesson 12) knows the ranges too: with `--nvtx` it names, for each kernel, the ranges in which it was
# launched. Here is its output for a program with the product above and two softmaxes (lesson 16), each in a range of
# its own.

# %%
from labkit.measure import ncu_ranges

ncu_ranges.table()

# %% [markdown]
# When a kernel is launched from twenty places in a program, the ranges say which of the launches is the slow one.
#
# The GPU's rows in the picture above come from PyTorch's profiler, `torch.profiler.profile`, which needs no separate
# program. It gets the same records from the driver (through a library called CUPTI), uses `record_function` for the
# ranges, and sees Numba's kernels as well as PyTorch's own:
#
# ```python
# with torch.profiler.profile() as watched:
#     product_trip(torch.profiler.record_function)
# watched.export_chrome_trace("trace.json")      # open it in ui.perfetto.dev
# ```
#
# ## What a copy costs
#
# The next figure shows copies from 4 bytes upwards, in both directions. Ordinary host memory is *pageable*: the
# operating system may move it, so a copy needs the CPU's help. *Pinned* memory stays where it is, and the GPU can read
# it directly. What shape does the curve have, and how much longer does a copy of 4,096 bytes take than one of 4?

# %%
pictures.copy_cost(overheads.copy_sizes())

# %% [markdown]
# The curve is flat at first, so the two take the same time{{ if flat_start }}; then twice the bytes take twice the
# time. A copy has a cost to start, and a cost per byte:
#
# $$t = t_0 + \frac{n}{B}$$
#
# As long as $n$ is small compared with $t_0 B$, the last column of the next table, the bytes are nearly free. So many
# small copies are the worst way to move data, and programs pack small arrays into one.

# %% tags=["hide-input"]
copies, sizes = (measure.recorded_series(name, gpu="NVIDIA H200") for name in ("copies", "copy_sizes"))
ways = {"h2d_pageable": "to the device, pageable", "h2d_pinned": "to the device, pinned",
        "d2h_pageable": "to the host, pageable", "d2h_pinned": "to the host, pinned"}
table([(name, sizes[f"{way}_us"][0], copies[way]["gbs"], sizes[f"{way}_us"][0] * copies[way]["gbs"])
       for way, name in ways.items()],
      {"copy": "", "4 bytes, us": ".0f", "256 MB, GB/s": ".1f", "starting costs as much as, KB": ",.0f"},
      note=f"{sizes['where']}, {sizes['date']}.")

# %% [markdown]
# To the device, pinned memory is {{ copies.h2d_pinned.gbs / copies.h2d_pageable.gbs:.1f }} times as fast for large
# copies, and no cheaper to start{{ if pinned_starts_alike }}. A copy to the device costs {{ words(start_ratio) }} times
# as much to start as a copy back. The bus is not the reason. Look at the timeline again: in the GPU's row a copy takes
# {{ gpu_copy_us:.0f }} µs in either direction{{ if alike }}, and the range around the two copies to the device takes
# {{ to_device_us:.0f }} µs. The rest is the host's: Python and the driver prepare a copy, and preparing one to the
# device takes longer.
#
# ## What I learned
#
# - The first call of any kind pays for the context. Make one on purpose before you time anything.
# - A range that does not wait shows when the host launched the work, and nothing about when the GPU did it.
# - Percentages of nested ranges count time twice. In that notebook's table, 50% and 50%{{ quoted }} are one and the
#   same 125 ms{{ quoted }}.
# - A small product spends a tenth of its time on the GPU. A faster kernel would hardly help.
# - Many small copies pay the cost of starting many times.
#
# ## Resources
#
# - [NVTX: the Python package and its documentation](https://nvidia.github.io/NVTX/)
# - [Nsight Systems: User Guide](https://docs.nvidia.com/nsight-systems/UserGuide/index.html)
# - [PyTorch: torch.profiler](https://pytorch.org/docs/stable/profiler.html)
#
# ## Try it
#
# - Give `product_trip` matrices of 1,024 rows: `large = ranges.Ranges("1,024")`, then
#   `overheads.product_trip(large, n=1024)`, and show `large`. Predict: which parts grow by sixteen, which by
#   sixty-four, which not at all?
# - Put ten copies of 4 KB into one range, and one copy of 40 KB into another. Predict the ratio from the curve above.
# - Nest the ranges of `product_trip` in another one and call it twice inside. What do *times* and *ms each* say?
#
# Next: **inside a kernel**: Nsight Compute, for when it is the kernel that takes the time.

# %% [numbers]
# cold = {part['path'][-1]: part['ms'] for part in series.cold_start.trips._value[0]}
# copy = series.copy_sizes
# copies = series.copies
# compiling_share = cold['kernel'] / cold['matrix product']
# start_ratio = copy.h2d_pageable_us[0] / copy.d2h_pageable_us[0]
# flat_start = near(copy.h2d_pageable_us[3] / copy.h2d_pageable_us[0], 1)
# pinned_starts_alike = (near(copy.h2d_pinned_us[0] / copy.h2d_pageable_us[0], 1) and
#                        near(copy.d2h_pinned_us[0] / copy.d2h_pageable_us[0], 1))
# watched = series.trace.events._value
# on_gpu = [event for event in watched if event['row'] == 'GPU']
# gpu_share = sum([event['us'] for event in on_gpu]) / watched[0]['us']
# copy_us = [event['us'] for event in on_gpu if 'Memcpy' in event['name']]
# gpu_copy_us = max(copy_us)
# alike = near(max(copy_us) / min(copy_us), 1)
# to_device_us = [event['us'] for event in watched if event['name'] == 'copy to the device'][0]
