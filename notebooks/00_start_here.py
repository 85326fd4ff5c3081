# %% [markdown]
# # 00 · Start here
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - what a kernel launch is: one function, run by thousands of threads, each of which knows its place
# - which device your kernels run on, and what its times mean
# - how data gets to the device and back, and what a refused launch tells you
#
# ## The question
#
# A CPU runs one thread per core, as fast as it can. A GPU runs thousands of slow threads and lets them wait for memory
# in turns. So a GPU program answers a question that a CPU program never asks: *which thread does which part of the
# work?* This notebook is about that question. Every later one is about asking it well.
#
# ## The device on your bench
#
# Everything in this course goes through one import.

# %%
from labkit import cuda, device

print(device.name())
print(device.choice().reason)

# %% [markdown]
# On a machine with an NVIDIA GPU, `cuda` is `numba.cuda`, and kernels are compiled for that GPU. On any other machine
# it is labkit's *CPU device*, which compiles the very same kernels for the processor you have. It gives the GPU's
# answers and enforces the GPU's limits, and it is the better place to make mistakes, because it can say what went
# wrong. What it cannot give is the GPU's speed. A time taken on the CPU device says how much work a kernel does here,
# and nothing about a GPU. Every time in this notebook says where it was taken.
#
# These are the facts a launch depends on.

# %%
here = cuda.get_current_device()
free, total = cuda.current_context().get_memory_info()

print(f"compute capability     {here.compute_capability[0]}.{here.compute_capability[1]}")
print(f"multiprocessors        {here.MULTIPROCESSOR_COUNT}")
print(f"threads in a block     {here.MAX_THREADS_PER_BLOCK:,} at most")
print(f"threads in a warp      {here.WARP_SIZE}")
print(f"shared memory a block  {here.MAX_SHARED_MEMORY_PER_BLOCK // 1024} KiB")
print(f"memory                 {total / 2**30:,.1f} GiB, {free / 2**30:,.1f} GiB of it free")

# %% [markdown]
# On a GPU, a *multiprocessor* is the part that runs blocks of threads; it has its own registers and its own fast
# memory. A *warp* is 32 threads that execute the same instruction together. On the CPU device a multiprocessor is a
# core of your processor, and the limits are those of a GPU of compute capability 9.0.
#
# ## A launch
#
# A *kernel* is a function that every thread runs. This one writes down who ran it.

# %%
from labkit import show_source
from labkit.kernels.positions import positions, positions_kernel

show_source(positions_kernel)

# %% [markdown]
# The kernel has no loop. It handles one element, and it is run once for each. Three numbers tell a thread which element
# is its own: the number of its block, the number of threads in a block, and its own number within the block.
#
# Before you run the next cell, write down: with ten elements and blocks of four threads, how many blocks are needed?
# How many threads are started? How many of them have nothing to do?

# %%
import numpy as np

n, threads_per_block = 10, 4
block = cuda.to_device(np.full(n, -1, dtype=np.int32))
thread = cuda.to_device(np.full(n, -1, dtype=np.int32))

positions(block, thread, threads_per_block)

print("element", *(f"{i:2d}" for i in range(n)))
print("block  ", *(f"{b:2d}" for b in block.copy_to_host()))
print("thread ", *(f"{t:2d}" for t in thread.copy_to_host()))

# %%
from labkit.measure.plots import drawings as pictures

pictures.launch_map(n, threads_per_block)

# %% [markdown]
# Three blocks, twelve threads. A launch starts whole blocks, so the last one hangs over the end, and two threads find
# no element. The line `if i < block.size` sends them home. It is called the *guard*, and leaving it out is the most
# common mistake in all of GPU programming: those two threads would write to memory that belongs to something else.
#
# The launch itself is one line, hidden in `positions`. It is worth seeing.

# %%
show_source(positions)

# %% [markdown]
# `kernel[grid, block, stream](arguments)`: how many blocks, how many threads in each, and, if you like, the stream to
# queue it on. The launch returns before the kernel has run. `copy_to_host` waits for it.
#
# Blocks may run in any order, and all at once. That is the bargain: you promise that no block needs another's result,
# and the same program runs on 2 multiprocessors or on 132.
#
# ## There and back
#
# A GPU has its own memory. Work goes there, is computed on, and comes back. An engine that generates text does this for
# every token: a short Python list of the sequences that are still running becomes a small array of integers on the
# device. Here is that trip without any computing. It has to be exact.

# %%
active_tokens = [128000, 791, 6864, 315, 9822]

on_host = np.array(active_tokens, dtype=np.int32)
on_device = cuda.to_device(on_host)  # host to device
back = on_device.copy_to_host()  # device to host

print(type(on_device).__name__, on_device.dtype, on_device.shape)
print("came back unchanged:", back.tolist() == active_tokens)

# %% [markdown]
# Memory that nothing has written holds whatever was there before. On a GPU that is often zeros, sometimes the last
# program's data, and code that relies on it works until the day it does not. The CPU device fills fresh memory with
# NaN, so that the mistake shows on the first day.

# %%
untouched = cuda.device_array(4, dtype=np.float32)
print(untouched.copy_to_host() if not device.on_gpu() else "on a GPU: whatever was there")

# %% [markdown]
# ## When a launch is refused
#
# A device says no before it does harm. Here are three launches that no GPU accepts. Read what comes back: an error
# message is the cheapest teacher there is.

# %%
def attempt(what, launch):
    try:
        launch()
        cuda.synchronize()
    except Exception as error:
        print(f"{what}\n    {type(error).__name__}: {error}\n")


attempt("2,048 threads in a block:", lambda: positions_kernel[1, 2048](block, thread))
attempt("a grid of no blocks:", lambda: positions_kernel[0, 128](block, thread))
attempt("one argument too few:", lambda: positions_kernel[1, 128](block))

# %% [markdown]
# The wording differs between devices. A GPU answers with the driver's error code; the CPU device names the kernel, the
# value and the limit. After a refused launch everything still works.
#
# `labkit doctor` in a terminal does the same for the machine itself: it lists what is installed, says why a device was
# chosen, and gives the command that mends what it finds broken.
#
# ## Trust, then speed
#
# No kernel in this course is believed before it has agreed with NumPy. Not on a pretty size, either: on 1, on 31, on
# 257, on sizes one past a block and sizes larger than the grid; with the output full of NaN beforehand, so that an
# element nobody wrote cannot pass; against a reference computed in float64. Here is the check for the kernel of the
# next lesson.

# %%
from labkit import agree
from labkit.kernels.elementwise import VECTOR_ADD

agree(VECTOR_ADD, ["vector_add_per_thread"])

# %% [markdown]
# The last column is the error as a fraction of what rounding allows. A sum of two float32 numbers is rounded once, so
# half of the allowance is the most that a right answer can show.
#
# ## What a launch costs
#
# A kernel does not start by itself. Python looks up the compiled code, packs the arguments, and asks the driver; then
# the GPU runs. For a small kernel that is most of the time.

# %%
from labkit import measure

cost = measure.recorded_series("launch_overhead")
print(f"an addition of {cost['n']:,} numbers on the {cost['where']}, recorded {cost['date']}")
print(f"    launched from Python       {cost['bound_us']:6.1f} us")
print(f"    by PyTorch                 {cost['torch_us']:6.1f} us")
print(f"    replayed from a CUDA graph {cost['graph_us']:6.1f} us")

# %% [markdown]
# The graph shows what the GPU itself needs. Everything above it is the host, talking. A later lesson records a whole
# model as one graph for exactly this reason. Until then we give each launch enough work to make the talking cheap.
#
# ## How this notebook is kept
#
# Each entry has a date and one subject. It begins with a prediction, because a number is worth more when you had to
# commit to one before. It shows the kernel's source, checks it, times it, and plots it beside what the hardware allows
# and beside a series recorded on an NVIDIA H200. It ends with what was implemented and what was learned, including
# what did not work. Keep your own in the same way: the cells are yours to change, and `labkit build` sets a copy aside
# before it ever overwrites one.
#
# ## What was implemented
#
# - a first kernel, `positions_kernel`, and its launcher
# - one import, `from labkit import cuda`, that finds a GPU or stands in for one
# - a check against NumPy that every kernel has to pass, at sizes chosen to hurt
#
# ## What I learned
#
# - A launch is a grid of blocks of threads. The only thing that tells threads apart is their place in it.
# - Threads come in whole blocks, so there are nearly always too many, and the guard is not optional.
# - Host and device have separate memories. Copies are explicit, and so is their cost.
# - Reading the refusals first saved me an evening later.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Thread Hierarchy](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy)
# - [Numba CUDA: Writing CUDA Kernels](https://nvidia.github.io/numba-cuda/user/kernels.html)
# - [Lindholm, Nickolls, Oberman, Montrym: NVIDIA Tesla, a unified graphics and computing architecture (2008)](https://doi.org/10.1109/MM.2008.31)
#
# ## Try it
#
# - Set `threads_per_block` to 3, then to 32. Predict the number of idle threads each time, then look at the picture.
# - Ask for one element more than 2,048 in blocks of 256. How many blocks? Check it with `-(-n // 256)`.
# - Launch `positions_kernel[5, 4](block, thread)` on ten elements. Eight threads too many: what happens, and why is
#   that all right?
#
# Next: **01 · Vector addition**, where ten million numbers meet the memory bus.
