# %% [markdown]
# # 06 · Where the time goes: exercises
#
# Two calculations, one function, one bug and one kernel. None of them makes a kernel compute faster. All of them are
# about the time around it. Write your answer, run its cell, then run the `check` under it. `hint("own_time")` gives a
# hint, and more when you ask again.

# %%
import numpy as np
from numba import float32

from labkit import check, cuda, graphs, hint

# %% [markdown]
# ## 1 · Whose time is it
#
# A profiler's table counts an outer range with all that lies in it. In the source's table the whole product has 50.0 %
# of the time and the allocation has 50.0 % as well: the same 125 ms, counted twice.
#
# What one wants is each range's *own* time, what is left of it when the ranges directly inside are taken away. Write
# the function. Ranges are numbered in the order in which they begin. `parent[i]` is the number of the range that range
# `i` lies in, or -1 for one that lies in none, and `total[i]` its milliseconds.
#
# For the source's table, `parent = [-1, 0, 0, 0, 0, 0]`: five ranges side by side in one. Yours should manage deeper
# ones, too.

# %%
def own_time(parent, total):
    own = np.array(total, np.float64)
    ### BEGIN SOLUTION
    for child, outer in enumerate(parent):
        if outer >= 0:
            own[outer] -= total[child]  # what lies deeper is part of the child's total
    ### END SOLUTION
    return own


# %%
check("own_time", own_time)

# %% [markdown]
# ## 2 · Predict: a queue of launches
#
# A launch takes the host 30 µs. The GPU starts a kernel as soon as its launch is done and the kernel before it has
# ended. While the GPU computes, the host launches on. A program makes 1,000 launches. How long is it from the first
# launch to the end of the last kernel, in microseconds,
#
# - if a kernel takes 4 µs,
# - if a kernel takes 100 µs,
# - if a kernel takes 4 µs and the program waits for each before it launches the next?
#
# Then put the 1,000 kernels of 4 µs into a graph. Launching the graph costs 20 µs, once, and a kernel inside it 1 µs
# on top of its 4. Last: in the first case, for how many percent of the time does the GPU compute? Round to whole
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
# The host is the slow one for every kernel shorter than its launch. Making such a kernel faster changes nothing.
#
# ## 3 · Find the bug: one step too many
#
# A state `y` goes through the same small step many times, $y \leftarrow y/2 + x$. The launcher records one step as a
# graph and replays it. For three steps the result is that of four.
#
# Before you run the check: when does `graphs.capture` run what it is given, and why does it want to? Its docstring
# says how to tell it not to. But then, who compiles the kernel? (Here it has been compiled before, by the two lines
# under the kernel.)

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
# There are at least three cures, and `check` takes each. Large programs warm up on a copy that is not needed: a step
# that changes its input must not be run for practice.
#
# ## 4 · Three kernels made one
#
# $$\text{out} = \max(x + b,\, 0) + r$$
#
# A layer's bias, its activation, and the residual. As three kernels that is three launches, and the result so far goes
# to memory and back twice. Write one kernel that does it all, one element a thread, in blocks of 128. `x`, `r` and
# `out` are matrices stored row after row, passed as flat arrays. `bias` has one number for each column, so a row is as
# long as `bias`.
#
# `check` looks at the loads and stores as well: each thread loads three numbers and stores one.

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
# Counted in arrays, the three kernels move 7 (two in and out, then one in and out, then two in and out, without the
# bias) where the one kernel moves 3.
#
# ## 5 · Predict: what ncu will read
#
# Nsight Compute's column *sectors per request* is the quickest way to see whether a kernel wastes memory's work. A
# request is one load by one warp, all 32 lanes at once. A sector is 32 bytes, eight floats. How many sectors does one
# request touch, for each of these loads of float32? All arrays begin where a sector begins.

# %%
row = None  # x[i]
third = None  # x[3 * i]
column = None  # x[64 * i], a column of a matrix with 64 columns
one = None  # x[i // 32]
four = None  # load_global4(x, 4 * i): four floats in a row for each lane, in one load
### BEGIN SOLUTION
row = 32 * 4 // 32  # 4
third = -(-(3 * 31 + 1) // 8)  # lanes span 94 floats and leave out no sector: 12
column = 32  # a sector for each lane
one = 1  # the same address for all
four = 32 * 16 // 32  # 16, and four times the work done
### END SOLUTION

# %%
check("predict_requests", row=row, third=third, column=column, one=one, four=four)

# %% [markdown]
# So there is no best number for all kernels: it depends on how many bytes a lane asks for. What counts is the bytes
# wanted over the bytes of the sectors. For which of the five is that quotient 1?
#
# Next: the exercises of **07 · Libraries**.
