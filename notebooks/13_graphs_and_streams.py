# %% [markdown]
# # 13 · Graphs and streams
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what a launch costs, and below which size nothing else counts
# - how a CUDA graph replaces many launches with one, and what it remembers
# - what a fair baseline is when launches dominate
# - how streams let copies run while kernels compute, and what prevents it
#
# ## The problem
#
# Lesson 11 found a GPU that was idle most of the time, waiting for its host. The host was busy: launching, copying, and
# waiting for the GPU in turn. This lesson removes both waits. A *graph* launches many kernels for the price of one, and
# *streams* let the GPU copy and compute at the same time.
#
# ## What a launch costs
#
# Before a launch from Python calls the driver, there is work to do: look up the kernel that was compiled for arguments
# of these types, and describe each array by its address and shape. numba-cuda on its own does all of this for every
# launch, which costs tens of microseconds. labkit leaves only a kernel's first launch to Numba. After that it remembers
# the kernel and the types, packs the arguments itself and calls the driver (`labkit/device/quick_launch.py`). Without
# labkit you pay Numba's price.
#
# The next cell times one launch among many, for an addition of 1,024 elements, which is next to no work. The *launcher*
# is the Python function that checks shapes and types and then launches; the second row skips its checks. For how many
# additions could an H200's memory deliver the data in the time of one launch?

# %%
import numpy as np

from labkit import agree, cuda, graphs, ladder, measure, plots, show_source, table
from labkit.course.drawings import graphs_and_streams as pictures
from labkit.measure.series import overheads

here, h200 = overheads.launch_overhead(), measure.recorded_series("launch_overhead", gpu="NVIDIA H200")
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
names = {"launcher_us": "through the launcher, with its checks", "bound_us": "the kernel, bound to grid and block once",
         "torch_us": "torch.add", "graph_us": "inside a graph"}
table([(name, here[key] or None, h200[key], h200[key] * bandwidth / 12e3) for key, name in names.items()],
      {"one launch": "", "here, us": ".1f", "H200, us": ".1f", "millions of additions in that time": ".1f"},
      note=measure.where())

# %% [markdown]
# Millions, for a launch from Python. On the H200's host, a launch without checks costs about as much as
# PyTorch{{ if bound_as_torch }}'s, and the launcher's checks add more than half of that{{ if checks_add_half }}. In a
# graph it costs a fifth{{ if near(graph_share, 1 / 5) }}. The host does the launching, so the price depends on the
# host: the same GPU in another machine gives other figures. Compare times of calls only if they come from the same run.
#
# The next figure plots the cost against the size of the addition. Each point is one addition among many in a row.
# Predict the size at which the cost begins to grow.

# %%
pictures.launch_cost(overheads.launch_sizes())

# %% [markdown]
# The flat part is where *launch overhead* dominates: the GPU waits for Python, and a kernel twice as fast changes
# nothing. The slope is memory. From Python, the two meet near {{ words(break_even) }} million additions. Below that,
# think about launches; above it, think about bytes. Few things explain benchmark results as often: a library that wins
# for short rows and ties for long ones probably has a cheaper launch and an equally fast kernel.
#
# ## Graphs
#
# A *CUDA graph* is a list of launches that the driver keeps. Python records it once, and then launches all of it with
# one call. Recording needs a *stream*, a queue of work for the GPU. A launch names its stream in the brackets after the
# block. The next cell captures ten additions of 1 to an array of 2s, and launches nothing. What is `y[0]` after the
# capture?

# %%
x, y = (cuda.to_device(np.full(1000, value, np.float32)) for value in (1, 2))


@cuda.jit
def add_to_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] += x[i]


graph = graphs.capture(lambda stream: [add_to_kernel[8, 128, stream](x, y) for _ in range(10)])
print(f"{graph.nodes} launches recorded; y[0] is {y.copy_to_host()[0]:.0f}")

# %% [markdown]
# It is 12. `capture` passes a stream to the function, and everything launched on that stream is recorded. But first it
# runs the work once, so that every kernel is compiled, and that run adds like any other. (`warm_up=False` skips it.)
#
# The arguments are recorded with each launch. Now launch the graph three times: as it is, after other values have been
# copied into `x`, and after `x` has become the name of another array. What is `y[0]` after each of the three launches?

# %%
graph.launch()
cuda.synchronize()
print(f"after one launch of the graph: y[0] is {y.copy_to_host()[0]:.0f}")

x.copy_to_device(np.full(1000, 100, np.float32))  # new values in the array that the graph knows
graph.launch()
cuda.synchronize()
print(f"after 100s were put into x:    y[0] is {y.copy_to_host()[0]:.0f}")

x, kept = cuda.to_device(np.zeros(1000, np.float32)), x  # x is the name of another array now
graph.launch()
cuda.synchronize()
print(f"after x names another array:   y[0] is {y.copy_to_host()[0]:.0f}")

# %%
pictures.remembered()

# %% [markdown]
# A graph contains addresses. Each launch adds ten times what is at the address of the array that x named *when the
# graph was captured*. New values in that array are used, but a new array under the old name is not. So the old array
# has to live as long as the graph, and `kept` keeps it alive. If nothing did, Python would free the memory, and the
# graph would add whatever is stored there next.
#
# On the CPU device a graph is a recorded list of launches. It computes the same results, and is no faster.
#
# ## A fair baseline
#
# Here are three small steps from a layer of a neural network, in PyTorch: add a bias to each column, apply the
# activation function GELU (lesson 23), and add the *residual*, an array of the same shape.
#
# ```python
# y = x + bias
# y = gelu(y, approximate="tanh")
# y = y + residual
# ```
#
# It is easy to beat three lines with one kernel and to call the kernel fast. But what would someone write who wanted
# these lines to be fast? They would put them into a graph, or let `torch.compile` turn them into one kernel. So there
# are two questions, whether the steps are fused and how they are launched, and a fair comparison answers both.

# %%
from labkit.kernels import bias_gelu_add
from labkit.kernels.ops.bias_gelu_add import BIAS_GELU_ADD

show_source(bias_gelu_add.bias_gelu_add_fused_kernel)

# %%
agree(BIAS_GELU_ADD)

# %% [markdown]
# The next table is for 512 rows of 384 elements on a GPU, and 64 rows on the CPU device. It compares three kernels from
# Python, one kernel from Python, PyTorch's three calls, three kernels in a graph, and one kernel in a graph. What is
# their order on a GPU, from slowest to fastest?

# %%
pictures.baseline_table(overheads.fair_baseline(times=20))

# %% [markdown]
# On the H200, PyTorch's three calls from Python cost twice{{ if near(torch_over_fused, 2) }} as much as my one kernel,
# and as much as my three{{ if as_three }}: you pay for the launches. `torch.compile` launches one kernel and still
# costs three{{ if near(compiled_over_torch, 3) }} times as much as the calls that it replaces, since each call runs
# Python code such as *guards*, which check that the compiled code still fits the arguments. In a graph all of this is
# gone, and one kernel beats three, in labkit and in PyTorch{{ if one_beats_three }}. Comparing a fused kernel with
# three calls from Python mostly measures Python.
#
# The ladder of the same operation, on the same arrays, times the kernels alone. Does one kernel beat three here as
# well, and by what factor?

# %%
plots.ladder(ladder(BIAS_GELU_ADD))

# %% [markdown]
# It is {{ fused_faster:.1f }} times as fast on the H200, for a different reason. The table counts what a program pays
# for a call, one in a row of many. The figure shows the kernels' time alone, by the GPU's clock and with cold caches.
# Fusing removes two launches of three from the first. From the second it removes the start and end of two kernels,
# which count most for arrays this small, and more than half{{ if 3 < 7 / 2 }} of the traffic: seven arrays moved become
# three. A graph removes Python from the first and changes nothing in the second. Say which of the two you mean when you
# say "faster".
#
# ## Streams
#
# A GPU has an engine for copies to the device, one for copies to the host, and its SMs. All three can work at the same
# time, but so far they have worked in turn, because everything went to one stream. Operations in one stream run in
# order. Operations in different streams may overlap.
#
# So cut an array into chunks and give each chunk a stream. Its copy, its kernel and its copy back stay in order, while
# other chunks are at a different stage. The kernel in this program repeats a multiplication and an addition, so that
# its time can be made as long as a copy's.

# %%
from labkit.measure.series import streams

show_source(streams.in_chunks)

# %% [markdown]
# Any number of chunks and streams must give the same result:

# %%
x, out = (cuda.pinned_array(10_007, np.float32) for _ in range(2))
x[:] = np.linspace(-1, 1, x.size)
on_device = [cuda.device_array(x.size, np.float32) for _ in range(2)]
rows = []
for chunks, count in ((1, 1), (4, 3), (7, 2)):
    out[:] = np.nan
    streams.in_chunks(x, out, on_device, chunks, 20, [cuda.stream() for _ in range(count)])
    cuda.synchronize()
    rows.append((chunks, count, f"{np.abs(out - streams.settled(x, 20)).max():.1e}"))
table(rows, {"chunks": "", "streams": "", "largest error": ""})

# %% [markdown]
# How much time can this save? Suppose that the copy to the device, the kernel and the copy back take 6 ms{{ example }}
# each, and cut the array into six chunks. Draw the three engines as rows and fill in the chunks. When does the last
# copy end on three streams?

# %%
parts = dict.fromkeys(streams.ENGINES, 6.0)
pictures.engines({"title": "One stream: a calculation", "events": streams.schedule(parts, 6, 1)},
                 {"title": "Three streams: a calculation", "events": streams.schedule(parts, 6, 3)})

# %% [markdown]
# The first chunk takes a sixth of all three parts, and after that one more chunk is finished in each sixth of the
# longest part. With $k$ chunks and parts of equal length $t$ that is $(k + 2)\,t/k$ instead of $3t$. For large $k$ a
# third{{ if near(1002 / 1000 / 3, 1 / 3) }} is left. If one part takes longer than the others, it sets the pace, and
# the other two are hidden behind it.
#
# So why not a thousand chunks? Each chunk is three calls from Python, and a copy of a few bytes pays the price of its
# start (lesson 11). At how many chunks does the curve turn up again, and what happens with memory that is not pinned?

# %%
pictures.chunks(measure.recorded_series("streams", gpu="NVIDIA H200"))

# %% [markdown]
# With three streams, 32 chunks take {{ chunks_32:.0% }} of the time of one, and up to there the measured times stay
# close to the schedule{{ if near_schedule }}. With 64 most of the saving is lost{{ if gain_lost }}: the host takes
# longer for its {{ 3 * 64 }} calls than the GPU for the work.
#
# With pageable memory streams are of no use{{ if no_gain_pageable }}, and everything is {{ words(pageable_slowdown) }}
# times as slow. A copy from or to *pageable* memory is made in two steps, through a pinned buffer of the driver, since
# the operating system could move the memory during the copy. The host has to do part of the work. So such a copy is not
# asynchronous for the host, which can launch nothing meanwhile.
#
# A profiler recorded the three engines at work on four chunks of pinned memory. Do the bars follow the calculation, or
# is one of the parts slower when others run at the same time?

# %%
trace = measure.recorded_series("streams_trace", gpu="NVIDIA H200")
names = {1: "One stream", 3: "Three streams"}
pictures.engines(*({"title": f"{names[panel['streams']]}. Measured on {trace['where']}, {trace['date']}",
                    "events": panel["events"]} for panel in trace["panels"]))

# %% [markdown]
# The order is that of the calculation. The bars of the copies are a little wider with three
# streams{{ if copies_slow_each_other }}: copies in opposite directions slow each other down.
#
# ## What stops an overlap
#
# - *Pageable memory*, as above.
# - *The default stream.* A launch or a copy without a stream goes to the default stream, which waits for all others, as
#   they wait for it. With a single `kernel[grid, block](...)` between two chunks, nothing after it overlaps with
#   anything before it. (CUDA also has streams that ignore the default stream; `cuda.stream()` does not create them.)
# - *The host.* `copy_to_host()` without a stream returns an array, so it has to wait. So do `synchronize` and, the
#   first time, every launch that compiles.
# - *A full GPU.* Kernels of several streams run at the same time only if the first leaves SMs free. Two large kernels
#   are no faster on two streams than on one.
# - *Events.* There is no order between streams. If one stream needs what another computes, it waits for an *event* that
#   was recorded there: `event.record(first)`, then `event.wait(second)`. Such a wait costs overlap; without it the
#   program has a race, and on a lucky day it passes its tests.
#
# ## What I learned
#
# - Below about {{ words(break_even) }} million additions, called from Python, I pay for the launch.
# - A graph remembers arrays and forgets names, and its warm-up is a run.
# - A baseline is fair when its author would have agreed to it.
# - The longest of copy, kernel and copy back is the limit. The other two can be hidden behind it.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: CUDA
#   Graphs](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-graphs)
# - [CUDA C++ Programming Guide: Asynchronous Concurrent
#   Execution](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#asynchronous-concurrent-execution)
# - [M. Harris: How to Overlap Data Transfers in CUDA
#   C/C++](https://developer.nvidia.com/blog/how-overlap-data-transfers-cuda-cc/)
#
# ## Try it
#
# - Wrap the ten launches of the graph in a second `graphs.capture` that calls `graph.launch()`. Predict whether it can
#   be captured. It launches on a stream: is it the one that is being captured?
# - Draw `streams.schedule` for a kernel that takes as long as both copies together, with one to four streams. How many
#   streams are enough?
# - With a GPU: `labkit bench streams` repeats these measurements on it.
#
# Next: **libraries**, whose kernels someone else wrote.

# %% [numbers]
# fair = series.fair_baseline.rows
# chunks = {(run.memory, run.streams, run.chunks): run.ms.p50 for run in series.streams.runs}
# bound_as_torch = abs(series.launch_overhead.bound_us / series.launch_overhead.torch_us - 1) < 0.1
# checks_add_half = series.launch_overhead.launcher_us / series.launch_overhead.bound_us > 1.5
# graph_share = series.launch_overhead.graph_us / series.launch_overhead.bound_us
# torch_over_fused = fair['PyTorch, three calls'].call_us / fair['fused'].call_us
# as_three = abs(fair['PyTorch, three calls'].call_us / fair['three kernels'].call_us - 1) < 0.1
# compiled_over_torch = fair['PyTorch, torch.compile'].call_us / fair['PyTorch, three calls'].call_us
# one_beats_three = (fair['fused'].graph_us < fair['three kernels'].graph_us and fair['PyTorch, torch.compile'].graph_us
#                    < fair['PyTorch, three calls'].graph_us)
# chunks_32 = chunks['pinned', 3, 32] / chunks['pinned', 1, 1]
# near_schedule = all([chunks['pinned', 3, k] < 1.15 * (k + 2) / k * max(series.streams.parts._value.values()) for k in
#                     (4, 8, 16, 32)])
# gain_lost = chunks['pinned', 3, 64] > 0.8 * chunks['pinned', 1, 1]
# no_gain_pageable = min(chunks['pageable', 3, k] for k in (2, 4, 8)) > chunks['pageable', 1, 1]
# pageable_slowdown = chunks['pageable', 1, 1] / chunks['pinned', 1, 1]
# break_even = series.launch_overhead.launcher_us * limits.bandwidth_gbs / 12 / 1000
# panels = {panel.streams: panel for panel in series.streams_trace.panels}
# copied = {count: sum([event.ms for event in panel.events if event.engine != 'kernel'])
#           for count, panel in panels.items()}
# copies_slow_each_other = 1.01 < copied[3] / copied[1] < 1.2
# fused_faster = row('bias_gelu_add', 'three_kernels').ms / row('bias_gelu_add', 'fused').ms
