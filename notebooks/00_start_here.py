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
# ## The course
#
# In this course you write kernels, the functions that a GPU runs, in Python: from `c[i] = a[i] + b[i]` to those of a
# language model, and an engine that serves it to many users. A lesson asks a question, lets you predict the answer, and
# then shows what was measured. Beside each result stands what NumPy computes, which says whether the kernel is right,
# and beside each time the limit of the hardware, which says how fast it could be. The exercises of a lesson are checked
# on your machine. A GPU is welcome but not needed.
#
# To follow the course you need to know Python and NumPy. No knowledge of GPUs is assumed.
#
# ## The question
#
# A CPU has a few cores, and each runs one thread as fast as it can. A GPU keeps thousands of threads at hand. Each of
# them is slow, but while some wait for memory, others compute. So a program for a GPU has to answer a question that a
# program for a CPU need not: *which thread does which part of the work?* This notebook is about that question. The
# later ones are about good answers to it.
#
# ## A kernel
#
# A *kernel* is a function that every thread runs. It is written in Python, and `@cuda.jit` marks it to be compiled for
# the device when it is first called. This one writes down who ran it.

# %%
from labkit import show_source
from labkit.kernels.positions import positions, positions_kernel

show_source(positions_kernel)

# %% [markdown]
# The kernel has no loop over the elements. It handles one element, and it is run once for each. Threads are started in
# groups of equal size, called *blocks*. Three numbers tell a thread which element is its own: the number of its block,
# `blockIdx.x`, the number of threads in a block, `blockDim.x`, and its own number within the block, `threadIdx.x`. (The
# `.x` is there because blocks can also be counted along a second and a third axis. Lesson 04 does that.) A kernel
# returns nothing. It stores its results in arrays that it is given, and `block.size` is the number of elements, as in
# NumPy.
#
# ## The device on your bench
#
# Everything in this course goes through one import.

# %%
from labkit import cuda, device, table

print(f"{device.name()}. {device.choice().reason}")

# %% [markdown]
# On a machine with an NVIDIA GPU, `cuda` is `numba.cuda`, and kernels are compiled for that GPU. On any other machine
# it is labkit's *CPU device*, which compiles the very same kernels for the CPU you have. It gives the GPU's answers and
# enforces the GPU's limits, and it is the better place to make mistakes, because it can say what went wrong. What it
# cannot give is the GPU's speed. A time taken on the CPU device says how much work a kernel does here, and nothing
# about a GPU. Every time in this notebook says where it was taken; those of an H200, a large GPU for data centres, were
# recorded beforehand.
#
# These are the facts a launch depends on.

# %%
here = cuda.get_current_device()
free, total = cuda.current_context().get_memory_info()

table([("compute capability", "{}.{}".format(*here.compute_capability)),
       ("multiprocessors", here.MULTIPROCESSOR_COUNT),
       ("threads in a block, at most", here.MAX_THREADS_PER_BLOCK),
       ("threads in a warp", here.WARP_SIZE),
       ("memory, GiB", total / 2**30),
       ("free memory, GiB", free / 2**30)], ["", device.name()])

# %% [markdown]
# The *compute capability* is the version of the GPU's design: it says which instructions and which limits the GPU has.
# A *multiprocessor* is a part of the GPU that runs blocks. A *warp* is 32 threads of a block that execute the same
# instruction together; lesson 02 shows what that means for speed. On the CPU device a multiprocessor is a core of your
# CPU, and the limits are those of a GPU of compute capability 9.0{{ hardware }}.
#
# ## A launch
#
# `positions` is a *launcher*: a function that starts the kernel for arrays of any length.
#
# With ten elements and blocks of four threads, how many blocks are needed? How many threads are started? How many of
# them have nothing to do?

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
# no element. For them the test `if i < block.size` is false, and they do nothing. It is called the *guard*, and leaving
# it out is one of the most common mistakes in GPU programming: those two threads would write to memory that belongs to
# something else.
#
# The arrays were filled with -1 beforehand, so an element that no thread wrote would show.

# %%
from labkit import observe

block, thread = np.full((2, 10), -1, np.int32)
observe(positions_kernel[3, 4], block, thread).play(block=2)

# %% [markdown]
# This is the last block of three, step by step: press play, or use the arrow keys. Two of its threads have no element.
# Watch what the guard does to them. The launch itself is one line of `positions`, after two checks of the arguments.

# %%
show_source(positions)

# %% [markdown]
# `kernel[grid, block](arguments)`: how many blocks, how many threads in each, and then the arguments as in any call.
# `blocks_for` divides and rounds up. The third number in the brackets may be left out; lesson 13 needs it. A launch
# does not wait: it goes into a queue, and Python goes on at once. `copy_to_host` waits until the kernel has run.
#
# There may be far more blocks than the GPU can run at one time. The rest wait for their turn. Blocks may run in any
# order, many at once or one after another, so no block may need the result of another block of the same launch. In
# return the same program runs on 2 multiprocessors or on 132.
#
# ## There and back
#
# A GPU has its own memory. Data goes there, is computed on, and comes back. The machine that holds the GPU, with its
# CPU and the memory that NumPy uses, is called the *host*.
#
# Here is the trip without any computing, with data of the kind that the last part of this course is about. A language
# model reads text as *tokens*: numbers, each of which stands for a word or a part of one. A program that generates text
# sends a short list of them to the device at every step. They have to arrive exactly as they were.

# %%
active_tokens = [128000, 791, 6864, 315, 9822]

on_host = np.array(active_tokens, dtype=np.int32)
on_device = cuda.to_device(on_host)  # host to device
back = on_device.copy_to_host()  # device to host

print(type(on_device).__name__, on_device.dtype, on_device.shape)
print("came back unchanged:", back.tolist() == active_tokens)

# %% [markdown]
# Memory that nothing has written to holds whatever was there before. On a GPU that is often zeros and sometimes the
# data of another array, so a program that relies on zeros may work for months before it fails. The CPU device fills
# fresh memory with NaN, so that the mistake shows on the first day.

# %%
untouched = cuda.device_array(4, dtype=np.float32)
print(untouched.copy_to_host() if not device.on_gpu() else "on a GPU: whatever was there")

# %% [markdown]
# ## When a launch is refused
#
# A device checks a launch before it runs anything. Here are three launches that no GPU accepts. Read each message, and
# look for what it names. Which of the facts at the top does the first one violate?

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
# The wording differs between devices. A GPU answers with an error code of its *driver*, the program that controls it;
# the CPU device names the kernel, the value and the limit. After a refused launch everything still works.
#
# `labkit doctor` in a terminal checks the machine in the same spirit: it lists what is installed, says why a device was
# chosen, and gives the command that repairs what it finds broken.
#
# ## Trust, then speed
#
# In this course each kernel is compared with NumPy before its time is taken. One convenient size would not do: the
# sizes are 1, 31, 257, one more than a block, and more than a whole grid. The output is full of NaN beforehand, so that
# an element that no thread wrote cannot pass. And the reference is computed in float64. Here is the check for the
# kernel of the next lesson.

# %%
from labkit import agree
from labkit.kernels.ops.elementwise import VECTOR_ADD

agree(VECTOR_ADD, ["vector_add_per_thread"])

# %% [markdown]
# A *rung* is one of several kernels for the same operation; lesson 01 has three. The column *of the allowed* has the
# largest error as a fraction of what the check allows, which here is twice{{ if near(1 / 0.5, 2) }} the largest error
# of a single rounding. A sum of two float32 numbers is rounded once, so half of the allowance is the most that a right
# answer can show.
#
# ## What a launch costs
#
# A kernel does not start by itself. Python looks up the compiled code, packs the arguments, and calls the driver; then
# the GPU runs. Here is an addition of two short vectors. Before you run the cell, guess: of the time that it takes when
# it is called from Python, how much does the GPU itself need?

# %%
from labkit import measure

cost = measure.recorded_series("launch_overhead")
print(f"an addition of {cost['n']:,} numbers on the {cost['where']}, recorded {cost['date']}")
print(f"    called from Python         {cost['bound_us']:6.1f} us")
print(f"    called through PyTorch     {cost['torch_us']:6.1f} us")
print(f"    the GPU alone              {cost['graph_us']:6.1f} us")

# %% [markdown]
# The last line is what is left when Python takes no part (lesson 13 shows how that is done). So for a small kernel most
# of the time is the launch. We shall give each launch enough work to make that cost small beside it.
#
# ## How this notebook is kept
#
# Each lesson has a date and one subject. It asks for a prediction before it shows a result, because you learn more from
# a number that you have guessed first. It shows the kernel's source, checks it, times it, and plots the time beside
# what the hardware allows and beside times recorded on an NVIDIA H200. It ends with what I learned, including what did
# not work. Keep your own notes in the same way: the cells are yours to change, and `labkit build` sets a copy aside
# before it overwrites one.
#
# ## What was implemented
#
# - a first kernel, `positions_kernel`, and its launcher
# - one import, `from labkit import cuda`, that finds a GPU or uses the CPU in its place
# - a check against NumPy that every kernel has to pass, at sizes where mistakes show
#
# ## What I learned
#
# - A launch is a grid of blocks of threads. The only thing that tells threads apart is their place in it.
# - Threads come in whole blocks, so there are nearly always too many, and the guard is not optional.
# - Host and device have separate memories. Copies are explicit, and so is their cost.
# - An error message names the value and the limit. Reading it first is quicker than guessing.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Thread
#   Hierarchy](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy)
# - [Numba CUDA: Writing CUDA Kernels](https://nvidia.github.io/numba-cuda/user/kernels.html)
# - [Lindholm, Nickolls, Oberman, Montrym: NVIDIA Tesla, a unified graphics and computing architecture
#   (2008)](https://doi.org/10.1109/MM.2008.31)
#
# ## Try it
#
# - Set `threads_per_block` to 3, then to 32. Predict the number of idle threads each time, then look at the picture.
# - How many blocks of 256 threads do 2,049 elements need? And 2,048? Check it with `-(-n // 256)`.
# - Launch `positions_kernel[5, 4](block, thread)` on ten elements. There are more threads too many than before: how
#   many, and why is that all right?
#
# Next: **01 · Vector addition**, where ten million numbers are added, and the memory sets the pace.
