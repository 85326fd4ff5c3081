# %% [markdown]
# # 13 · Graphs and streams: exercises
#
# Two predictions, a bug, a kernel, and a function from a blank page. Write your answer, run its cell, then run the
# `check` under it. `hint("predict_launches")` gives a hint, and more when you ask again.

# %%
import numpy as np
from numba import float32

from labkit import check, cuda, graphs, hint

# %% [markdown]
# ## 1 · Predict: a queue of launches
#
# A launch costs the host 30 µs. The GPU starts a kernel as soon as its launch is done and the previous kernel has
# finished. While the GPU computes, the host goes on launching. A program makes 1,000 launches. How many microseconds pass
# from the first launch to the end of the last kernel,
#
# - if a kernel takes 4 µs,
# - if a kernel takes 100 µs,
# - if a kernel takes 4 µs and the program waits for each before it launches the next?
#
# Then put the 1,000 kernels of 4 µs into a graph. Launching the graph costs 20 µs, once, and each kernel inside it 1 µs
# on top of its 4. Finally: in the first case, for what percentage of the time does the GPU compute? Round to whole
# numbers.

# %%
short_us = None  # 1,000 kernels of 4 us
long_us = None  # 1,000 kernels of 100 us
waiting_us = None  # 4 us, and a synchronize after each
graph_us = None  # 4 us, in one graph
busy_percent = None  # of the first case
### BEGIN SOLUTION
short_us = 1000 * 30 + 4  # the last kernel starts when the last launch is done
long_us = 30 + 1000 * 100  # from the second launch on they hide behind the kernels
waiting_us = 1000 * (30 + 4)  # nothing overlaps
graph_us = 20 + 1000 * (4 + 1)
busy_percent = round(100 * 4 / 30)  # 13
### END SOLUTION

# %%
check("predict_launches", short_us=short_us, long_us=long_us, waiting_us=waiting_us, graph_us=graph_us,
      busy_percent=busy_percent)


# %% [markdown]
# For a kernel shorter than its launch the host sets the pace. Making such a kernel faster changes nothing.
#
# ## 2 · Find the bug: one step too many
#
# A state `y` goes through the same small step many times, $y \leftarrow y/2 + x$. The launcher records one step as a
# graph and replays it. When called for three steps it returns the result of four.
#
# Before you run the check: when does `graphs.capture` run the function it is given, and why? Its docstring says how to
# prevent that. But what compiles the kernel then? (Here it has already been compiled, by the two lines under the kernel.)


# %%
@cuda.jit
def step_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = float32(0.5) * y[i] + x[i]


one = cuda.to_device(np.zeros(1, np.float32))
step_kernel[1, 32](one, one)


# %%
def run_steps(x, y, steps):
    blocks = -(-y.size // 128)
    graph = graphs.capture(lambda stream: step_kernel[blocks, 128, stream](x, y))
    for _ in range(steps):
        graph.launch()


### BEGIN SOLUTION
def run_steps(x, y, steps):
    blocks = -(-y.size // 128)
    graph = graphs.capture(lambda stream: step_kernel[blocks, 128, stream](x, y), warm_up=False)
    for _ in range(steps):
        graph.launch()


### END SOLUTION

# %%
check("run_steps", run_steps)

# %% [markdown]
# There are at least three fixes, and `check` accepts each. Large programs warm up on a copy of the data, since a step
# that changes its input must not be run an extra time.
#
# ## 3 · Three kernels made one
#
# $$\text{out} = \max(x + b,\, 0) + r$$
#
# A layer's bias, its activation, and the residual. Three kernels take three launches, and the intermediate results go to
# memory and back twice. Write one kernel that does it all, with one thread per element, in blocks of 128. `x`, `r` and
# `out` are matrices stored row by row and passed as flat arrays. `bias` has one element per column, so a row is as long
# as `bias`.

# %%
fused_tail = None  # write the kernel here: def fused_tail(x, bias, residual, out)
### BEGIN SOLUTION
@cuda.jit
def fused_tail(x, bias, residual, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i] + bias[i % bias.size], float32(0.0)) + residual[i]


### END SOLUTION

# %%
check("fused_tail", fused_tail)

# %% [markdown]
# The three kernels read and write 7 arrays (the bias, which is small, not counted): the first reads one and writes one,
# and so does the second; the third reads two and writes one. The fused kernel reads two and writes one.
#
# ## 4 · Predict: three engines
#
# Copying an array to the device takes 8 ms, the kernel 12 ms, the copy back 4 ms. The array is cut into four equal
# chunks. The GPU's three engines (copies to the device, kernels, copies back) work at the same time, each on one chunk
# after another. How many milliseconds does it all take
#
# - if all chunks are on one stream,
# - if they are on three streams, used in turn,
# - at best, with as many chunks and streams as you like, if starting a copy or a kernel costs nothing,
# - again in four chunks on three streams, once the kernel has been improved to 4 ms for the whole array?

# %%
one_stream_ms = None
four_chunks_ms = None
at_best_ms = None  # the limit for many chunks
faster_kernel_ms = None  # four chunks, three streams, a kernel of 4 ms
### BEGIN SOLUTION
one_stream_ms = 8 + 12 + 4
four_chunks_ms = 2 + 12 + 1  # the first chunk's copy, then kernels without a gap, then the last chunk's copy back
at_best_ms = 12  # the longest of the three
faster_kernel_ms = 8 + 1 + 1  # now the copies there have no gap
### END SOLUTION

# %%
check("predict_overlap", one_stream_ms=one_stream_ms, four_chunks_ms=four_chunks_ms, at_best_ms=at_best_ms,
      faster_kernel_ms=faster_kernel_ms)


# %% [markdown]
# A kernel three times as fast made the whole program 1.5 times as fast. Which part would you improve next?
#
# ## 5 · From a blank page: an array in chunks
#
# Write `waves_in_chunks(x, chunks)`. It runs `wave_kernel` over the host's array `x` in `chunks` equal chunks and returns
# the result as a NumPy array. The last chunk may be shorter, and if there are more chunks than elements, some are empty:
# 10 elements in 4 chunks are 3, 3, 3 and 1, and 3 elements in 5 chunks are 1, 1 and 1.
#
# Each chunk needs a copy to the device, a launch in blocks of 128, and a copy back, all three on the chunk's stream. Use
# three streams in turn.
#
# `cuda.device_array` allocates on the device and `cuda.pinned_array` on the host, `array[a:b]` is a part of either,
# `there.copy_to_device(part, stream)` and `back.copy_to_host(part, stream)` copy.


# %%
@cuda.jit
def wave_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(8):
            value = float32(0.5) * value + x[i]
        out[i] = value


# %%
waves_in_chunks = None  # write the function here: def waves_in_chunks(x, chunks)
### BEGIN SOLUTION
def waves_in_chunks(x, chunks):
    streams = [cuda.stream() for _ in range(3)]
    on_device = [cuda.device_array(x.size, dtype=np.float32) for _ in range(2)]
    out = cuda.pinned_array(x.size, dtype=np.float32)
    size = -(-x.size // chunks)
    for chunk in range(-(-x.size // size)):
        part, stream = slice(chunk * size, (chunk + 1) * size), streams[chunk % 3]
        there, back = on_device[0][part], on_device[1][part]
        there.copy_to_device(x[part], stream)
        wave_kernel[-(-there.size // 128), 128, stream](there, back)
        back.copy_to_host(out[part], stream)
    cuda.synchronize()
    return out


### END SOLUTION

# %%
check("waves_in_chunks", waves_in_chunks)

# %% [markdown]
# On a GPU the copy to the device overlaps with nothing if `x` is in pageable memory, and that is up to the caller. Which
# of the two copies can overlap in any case?
#
# Next: the exercises of **14 · Libraries**.
