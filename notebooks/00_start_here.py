# %% [markdown]
# # 00 · Start here
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - what a kernel launch is: one function, run by thousands of threads, each of which knows where it is
# - which device your kernels run on, and what its times mean
# - how data gets to the device and back, and what a refused launch tells you
#
# ## What this course is
#
# This course is about *kernels*, the functions that run on a GPU. It starts with `c[i] = a[i] + b[i]` and ends with an
# inference engine that serves a Llama to many users at the same time. Everything in between is written in Python and
# shown in full: matrix products (lesson 06), softmax (lesson 16), attention (lesson 24), and whole language models made
# of them.
#
# Each lesson is a lab notebook with a date and a subject. It asks for a prediction before it shows a result, because
# you learn more from a result if you have guessed it first. It shows a kernel, checks it against NumPy, and compares
# its time with what the hardware allows. At the end it says what I learned, including what did not work. The cells are
# yours to change, and the exercises yours to solve.
#
# You need to know Python and NumPy. You need neither a GPU nor any knowledge of one.
#
# ## The question
#
# A CPU has a few cores, and each of them runs one thread as fast as it can. A *thread* is one run of a piece of code,
# with its own variables. A GPU keeps tens of thousands of threads going. Each of them is slow, but while some wait for
# memory, others compute. So a program for a GPU has to answer a question that an ordinary program never asks: *which
# thread does which part of the work?* This lesson is about the question. The others are about good answers.
#
# ## A first kernel
#
# A kernel is a function that every thread runs. It is written in Python, and `@cuda.jit` marks it to be compiled for
# the device when it is first called. This one records who ran it, and `show_source` prints its source.

# %%
from labkit import cuda, show_source
from labkit.kernels.positions import positions, positions_kernel

show_source(positions_kernel)

# %% [markdown]
# There is no loop over the elements: the kernel handles one element, and it is run once for each of them.
#
# Threads come in *blocks* of equal size, and all blocks of a launch together are its *grid*. Three values tell a thread
# which element is its own: the index of its block, `blockIdx.x`; the number of threads in a block, `blockDim.x`; and
# its own index within the block, `threadIdx.x`. Blocks can also be counted along a second and a third axis, hence the
# `.x`; lesson 04 makes use of that. A kernel returns nothing. It stores its results in arrays that are passed to it,
# and `block.size` is the number of elements in the array `block`, as in NumPy.
#
# Now ten elements and blocks of four threads. `positions` launches the kernel; `cuda.to_device` copies an array to the
# memory of the GPU, and `copy_to_host` copies it back. How many blocks are started, how many threads is that, and how
# many of them have nothing to do?

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
# Three blocks, twelve threads, two of them idle. A launch always starts whole blocks, so the last one hangs over the
# end. For the two threads without an element the test `if i < block.size` is false, and they do nothing. That test is
# the *guard*, and leaving it out is one of the most common mistakes in GPU programming: the two threads would write to
# memory that belongs to something else.
#
# The arrays were filled with -1 beforehand, so any element that no thread wrote would show.
#
# ## Watching it run
#
# `observe` runs a kernel slowly and records everything that it does. `play` then shows a block step by step. Here is
# the last of the three blocks: press play, or use the arrow keys. Two of its threads have no element; watch what the
# guard does to them.

# %%
from labkit import observe

block, thread = np.full((2, 10), -1, np.int32)
observe(positions_kernel[3, 4], block, thread).play(block=2)

# %% [markdown]
# All four threads compute an index. Then the guard lets two of them through, and the other two are done.
#
# ## The launch
#
# The launch itself is one line of `positions`, after two checks of the arguments.

# %%
show_source(positions)

# %% [markdown]
# `kernel[grid, block](arguments)`: first how many blocks, then how many threads in each, and then the arguments, as in
# any call. `blocks_for` divides and rounds up. The third entry in the brackets may be left out; lesson 13 needs it. A
# launch does not wait for the kernel. It puts it into a queue, and Python goes on. `copy_to_host` does wait, until the
# kernel has run.
#
# There may be far more blocks than the GPU can run at a time; the rest wait their turn. Blocks run in any order, many
# at the same time or one after another, so no block may depend on the result of another block of the same launch. In
# return, the same program runs on a GPU with two processors or with 132.
#
# ## The device on your bench
#
# Here is the device that has just run your kernel. `table` prints values in rows and columns.

# %%
from labkit import device, table

here = cuda.get_current_device()
major, minor = here.compute_capability
free, total = cuda.current_context().get_memory_info()
table([("compute capability", f"{major}.{minor}"), ("multiprocessors", here.MULTIPROCESSOR_COUNT),
       ("threads in a block, at most", here.MAX_THREADS_PER_BLOCK), ("threads in a warp", here.WARP_SIZE),
       ("memory, GiB", total / 2**30), ("free memory, GiB", free / 2**30)],
      ["device", device.name()])

# %% [markdown]
# If the machine has an NVIDIA GPU, `cuda` is `numba.cuda`, and kernels are compiled for that GPU. On any other machine
# it is labkit's *CPU device*, which compiles the very same kernels for the CPU. It gives the GPU's answers and enforces
# the GPU's limits, and it is the better place to make mistakes, because it can say what went wrong. The one thing that
# it cannot give is the GPU's speed. So every time in this course says where it was measured. Those of large GPUs were
# recorded beforehand, most of them on an NVIDIA H200.
#
# `cuda.get_current_device()` describes the device, and `cuda.current_context()` knows how much of its memory is free.
# The *compute capability* is the version of the GPU's design, which decides its instructions and its limits. A
# *multiprocessor* is a part of the GPU that runs blocks, and a *warp* is a group of 32 threads of a block that execute
# the same instruction together; lesson 02 is about both. On the CPU device a multiprocessor is a core of your CPU, and
# the limits are those of compute capability 9.0{{ hardware }}.
#
# If you expected another device, `labkit doctor` in a terminal says why this one was chosen. It lists what is
# installed, and gives the command that repairs whatever is broken.
#
# ## There and back
#
# A GPU has its own memory. Data is copied there, processed, and copied back. The machine around the GPU, with its CPU
# and the memory that NumPy uses, is called the *host*.
#
# Here is the round trip without any computation, with the kind of data that the later parts of this course are about. A
# language model reads text as *tokens*, integers that each stand for a word or a part of one. A program that generates
# text sends a short list of them to the device at every step, and they have to arrive exactly as they were.

# %%
active_tokens = [128000, 791, 6864, 315, 9822]

on_host = np.array(active_tokens, dtype=np.int32)
on_device = cuda.to_device(on_host)  # host to device
back = on_device.copy_to_host()  # device to host

print(type(on_device).__name__, on_device.dtype, on_device.shape)
print("came back unchanged:", back.tolist() == active_tokens)

# %% [markdown]
# `cuda.to_device` allocates memory on the device and fills it. `cuda.device_array` only allocates. What is in an array
# from `cuda.device_array` before anything is written to it?

# %%
untouched = cuda.device_array(4, dtype=np.float32)
print(untouched.copy_to_host() if not device.on_gpu() else "on a GPU: whatever was there")

# %% [markdown]
# Whatever was there before. On a GPU that is often zeros and sometimes data left by another array, so a program that
# relies on zeros may work for months before it fails. The CPU device fills fresh memory with NaN, so that the mistake
# shows on the first day.
#
# ## When a launch is refused
#
# A device checks a launch before it runs anything. Here are three launches that no GPU accepts. `cuda.synchronize`
# waits until the device has finished, so that an error cannot slip past. Which of the limits in the table above does
# the first launch violate?

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
# The block is too large: 1,024 threads are the limit. The wording differs between devices. A GPU reports an error code
# from its *driver*, the program that controls it; the CPU device names the kernel, the value and the limit. After a
# refused launch everything still works.
#
# ## Trust, then speed
#
# In this course every kernel is compared with NumPy before it is timed. `agree` does that. One convenient size would
# prove little, so it tries several: 1, 31, 257, which is one more than a block, and more than a whole grid. It fills
# the output with NaN beforehand, so that an element that no thread wrote cannot pass, and it computes the reference in
# float64. Here it checks the kernel of the next lesson, which adds two vectors.

# %%
from labkit import agree
from labkit.kernels.ops.elementwise import VECTOR_ADD

agree(VECTOR_ADD, ["vector_add_per_thread"])

# %% [markdown]
# The kernels for one operation form a *ladder*, and each of them is a *rung*; lesson 01 has three. The column *of the
# allowed* gives the largest error as a fraction of what the check allows. Here that is twice{{ if near(1 / 0.5, 2) }}
# the largest error of a single rounding. A sum of two float32 values is rounded exactly once, so a right answer uses up
# half of the allowance at most.
#
# ## What I learned
#
# - A launch is a grid of blocks of threads. All threads run the same code; only their indices tell them apart.
# - Threads come in whole blocks, so there are nearly always a few too many. The guard is not optional.
# - Host and device have separate memories. Copies are explicit, and so is their cost.
# - An error message names the value and the limit. Reading it is quicker than guessing.
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
# - Set `threads_per_block` to 3, then to 32. Predict how many threads are idle each time, then look at the picture.
# - How many blocks of 256 threads do 2,049 elements need, and how many 2,048? Check with `-(-n // 256)`.
# - Launch `positions_kernel[5, 4](block, thread)` on ten elements. How many threads are idle now, and why is that no
#   problem?
#
# Next: **01 · Vector addition**, where ten million elements are added, and memory sets the pace.
