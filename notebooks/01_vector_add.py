# %% [markdown]
# # 01 · Vector addition
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how one line of index arithmetic and one guard spread ten million additions over threads
# - how to time a kernel: warm-up, twenty runs, copies and computation timed separately
# - why memory sets the pace, and what a thread can do about it
#
# ## The problem
#
# Two vectors of $n$ float32 values are to be added, element by element:
#
# $$c_i = a_i + b_i, \qquad 0 \le i < n$$
#
# There is no easier kernel, so whatever we measure will be about memory, launches and copies. I choose $n$ =
# 10,000,003. Ten million elements keep a large GPU busy, and because of the three, the last block of threads is only
# partly used.

# %%
import time

import numpy as np

from labkit import agree, cuda, ladder, measure, plots, roofline, show_source, table
from labkit.course.drawings import vector_add as pictures
from labkit.kernels import elementwise
from labkit.kernels.elementwise import vector_add_per_thread
from labkit.kernels.ops.elementwise import VECTOR_ADD

n = 10_000_003
begin = time.perf_counter()  # how long it takes to send a single value: explained below
cuda.to_device(np.zeros(1, np.float32))
print(f"first contact: {1000 * (time.perf_counter() - begin):.1f} ms ({measure.where()})")

# %% [markdown]
# ## A prediction
#
# An H200 moves about {{ round(limits.bandwidth_gbs, -2):,.0f }} GB per second between its processors and its memory,
# and computes about {{ gflops:,.0f }} GFLOP per second. A *flop* is one floating-point operation, and a GFLOP is a
# billion of them.
#
# How many bytes must move to add these vectors, and what will the GPU wait for, the bytes or the additions?

# %%
roofline.predict(VECTOR_ADD, n=n)

# %% [markdown]
# Each addition reads two values of four bytes and writes one: twelve bytes for a single flop. `roofline.predict`
# compares the time for the bytes with the time for the flops. A GPU does both at the same time, so the longer of the
# two is the *bound*, the least time that any kernel should need. This way of looking at a kernel is called the
# *roofline*. Vector addition is bound by memory, and by a wide margin: the arithmetic would be done in a fraction of
# the time.
#
# ## One thread, one element

# %%
show_source(elementwise.vector_add_per_thread_kernel)

# %% [markdown]
# Every thread runs these three lines once. `u32.grid(1)` is short for the index formula of lesson 00:
#
# $$i = \text{blockIdx.x} \times \text{blockDim.x} + \text{threadIdx.x}$$
#
# It counts the threads of all blocks before this one, then those before this thread in its own block. So every thread
# has a different $i$, no $i$ is left out, and no two threads write to the same element.
#
# Numba's own name for it is `cuda.grid(1)`; `u32.grid(1)` is the same value as an unsigned 32-bit integer. Why bother?
# Numba treats an index as a signed 64-bit integer in which, as in Python, -1 means the last element, and so it adds a
# test for negative values to every access. An unsigned index needs no test. For vectors it makes no difference, since
# the kernel waits for memory anyway. In some later kernels it does (lesson 06).
#
# The `if` is the guard. Which thread of which block is the first to find no element?

# %%
block = 256
blocks = -(-n // block)  # rounded up
print(f"{blocks:,} blocks of {block} are {blocks * block:,} threads, {blocks * block - n} too many")
print(f"the first of them: block {n // block:,}, thread {n % block}")

# %% [markdown]
# Only the last block has idle threads, as always. Of its 256 threads 131 have an element: four whole warps, and three
# threads of a fifth.
#
# ## Host, device and back
#
# The host cannot access the GPU's memory, and a kernel cannot access a NumPy array. So every GPU program goes through
# the same steps: allocate memory on the device, copy the inputs there, launch, copy the result back. Here they are,
# each with its time, next to NumPy's addition on the host. Everything runs 21 times{{ example }}, and the first run has
# its own column.
#
# Which step will differ most between its first run and the others?

# %%
rng = np.random.default_rng(0)
a, b = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)
c, expected = np.empty_like(a), np.empty_like(a)
d_a, d_b, d_c = (cuda.device_array(n, np.float32) for _ in range(3))

steps = {
    "a to the device": lambda: d_a.copy_to_device(a),
    "b to the device": lambda: d_b.copy_to_device(b),
    "kernel": lambda: vector_add_per_thread(d_a, d_b, d_c),
    "c to the host": lambda: d_c.copy_to_host(c),
    "NumPy": lambda: np.add(a, b, out=expected),
}
times = {step: [] for step in steps}
for _ in range(21):
    for step, call in steps.items():
        begin = time.perf_counter()
        call()
        cuda.synchronize()  # a launch returns before the kernel has run
        times[step].append(1000 * (time.perf_counter() - begin))

median = {step: float(np.median(ms[1:])) for step, ms in times.items()}
print("the sum equals NumPy's, bit for bit:", np.array_equal(c, expected))
table([(step, ms[0], median[step], min(ms[1:]), max(ms[1:])) for step, ms in times.items()],
      {"ms": "", "first": ".2f", "median": ".3f", "least": ".3f", "most": ".3f"}, note=measure.where())

# %% [markdown]
# A launch only puts the kernel into a queue and returns. Without `synchronize`, which waits until the device has
# finished, we would be timing the queue. Several steps are slower the first time, usually the kernel above all, for
# reasons that have nothing to do with adding.
#
# - The first launch compiles. Numba turns the Python function into machine code for arguments of these types, and keeps
#   it for as long as the program runs. The CPU device also keeps it on disk.
# - The operating system hands out memory only when it is first touched, which takes time. Here that happens to `c` and
#   to `expected`.
# - On a GPU the very first access, at the top of this page, sets up a *context*: the driver is loaded, allocates memory
#   and prepares for your process.
#
# None of this belongs in the time of a kernel. Running it once before the clock starts is called the *warm-up*. From
# the other twenty runs I use the median, because a single interruption by the operating system would change the mean.
#
# The results agree to the last bit, because the sum of two float32 values has one correctly rounded result. Longer sums
# depend on the order of their additions. From the matrix product on we shall need a *tolerance*, the largest error that
# still counts as right.
#
# ## Without the guard
#
# Here is the same kernel without its `if`. To catch the 125 threads without an element in the act, I put 256 sevens
# behind each vector, which the kernel should leave alone. What will this cell print on your device, an error or a count
# of sevens?

# %%
@cuda.jit
def unguarded_kernel(a, b, out):
    i = cuda.grid(1)
    out[i] = a[i] + b[i]


memories = [cuda.to_device(np.append(values, np.full(256, 7, np.float32))) for values in (a, b, c)]
try:
    unguarded_kernel[blocks, block](*(memory[:n] for memory in memories))
    print(f"No error, and {np.count_nonzero(memories[2].copy_to_host()[n:] != 7)} sevens overwritten.")
except IndexError as error:
    print(type(error).__name__, *str(error).split(": "), sep="\n    ")

# %% [markdown]
# The CPU device checks every access and stops at the first wrong one. It names the kernel, the line, the array, the
# index and the thread, which is the one that you predicted above.
#
# A GPU does not check. There this cell reports no error, and 125 of the sevens are overwritten. Without our sevens,
# those threads might write into another array of the same program, or to memory that was never allocated; then some
# later call fails, without naming the thread or the line. NVIDIA's tool `compute-sanitizer python program.py` finds
# accesses outside all allocations. It would not report this cell, because the sevens are in the same allocation as the
# vector.
#
# ## Agreement
#
# One size proves little. `agree` runs every kernel of the operation at sizes where mistakes show: a single element, one
# less and one more than a block, a few more than a whole grid. You know the first kernel; the other two come below.

# %%
agree(VECTOR_ADD)

# %% [markdown]
# All three agree. Now for the time.
#
# ## The trip as a picture
#
# Here are the steps on an H200 and, if you have a GPU, your own from above. Each bar begins where the one before it
# ended. What share of the H200's trip is the kernel?

# %%
copies = measure.recorded_series("copies", gpu="NVIDIA H200")
h200 = measure.recorded_ladder("vector_add", {"n": 10_000_000}, gpu="NVIDIA H200")
there, home = (40 / copies[way]["gbs"] for way in ("h2d_pageable", "d2h_pageable"))  # 40 MB: ms
kernel, numpy_ms = (h200.row(name).timing.p50 for name in ("vector_add_per_thread", "NumPy, on the host"))

recorded = {"steps": dict(zip(list(steps)[:4], (there, there, kernel, home), strict=True)), "numpy_ms": numpy_ms,
            "title": f"NVIDIA H200, {copies['date']}, n=10,000,000; copies from the recorded rates"}
here = {"steps": dict(list(median.items())[:4]), "numpy_ms": median["NumPy"],
        "title": f"Here, n={n:,}. {measure.where()}"}
pictures.round_trip(here, recorded)

# %% [markdown]
# The kernel is {{ (kernel / trip):.1% }} of the trip. It is {{ round(numpy / kernel, -1):.0f }} times as fast as NumPy,
# and yet the whole trip takes about as long as NumPy does{{ if as_long_as_numpy }}. The kernel reads the GPU's own
# memory, thousands of GB each second. But the data had to cross the *bus* between host and GPU, which is far slower.
# The CPU device has no bus: there, a copy stays within your memory.
#
# So a GPU does not pay off for a single addition. It does if the data stays on it. Lesson 11 looks at a whole program
# in this way.
#
# ## The copies, apart
#
# The bus can do better than that. NumPy's arrays live in *pageable* memory, which the operating system may move. So the
# driver first copies the data to memory that cannot move, and from there to the GPU. An array can also be allocated in
# such memory. It is then called *pinned*, and `cuda.pinned_array` makes one. `h2d` is short for host to device, `d2h`
# for the way back. How much faster is a copy from or to pinned memory?

# %%
table([(way, found["gbs"], copies[way]["gbs"]) for way, found in measure.time_copy(4 * n).items()],
      {"GB/s": "", "here": ".1f", "H200": ".1f"}, note=measure.where())

# %% [markdown]
# On the H200's host, pinned copies are about three times as fast{{ if near(pinned_gain, 3.2) }}. But pinned memory is
# slow to allocate and unavailable to all other programs, so one pins a few arrays and reuses them.
#
# ## A loop over the grid
#
# From here on the data stays on the device, and only the kernel is timed. On a GPU that is the time between two
# *events*, marks in the queue at which the GPU notes the time on its own clock. On the H200 our kernel reaches about
# two thirds{{ if near(of_bound, 2/3) }} of the bound. I tried two ideas to do better.
#
# The first is the *grid-stride loop*: start a fixed number of threads, and let each of them go on to the element one
# whole grid further on. `gridsize(1)` is the number of threads in the grid.

# %%
show_source(elementwise.vector_add_grid_stride_kernel)

# %% [markdown]
# There are fewer threads to start, and the index is computed once for many elements.
#
# ## Four loads before the first store
#
# The second idea gives each thread four elements, each one block width after the previous one, and loads all of them
# before it stores any. A load does not stop a thread. It goes on until it needs the value, and only then does it wait.
# Waiting for eight loads that travel together takes little longer than waiting for two.

# %%
show_source(elementwise.vector_add_four_loads_kernel)

# %% [markdown]
# Both rungs change which thread adds which element. Suppose there are 29 elements and blocks of four threads. Which
# elements does thread 0 add in each of the three rungs?

# %%
pictures.owners(n=29, block=4, rungs=("per_thread", "grid_stride", "four_loads"))

# %% [markdown]
# The values in the boxes are threads, and thread 0's boxes are dark. In all three rungs neighbouring threads load
# neighbouring elements at the same moment. That is called *coalesced* access. The 32 threads of a warp load together,
# and memory delivers pieces of 32 bytes, eight floats each. A warp that loads 32 floats in a row gets them in four
# deliveries and uses every byte. If thread 0 had elements 0 to 3 and thread 1 elements 4 to 7, the work would be shared
# just as evenly, but each load would need {{ words(16 / 4) }} times as many deliveries. Lesson 04 counts them.
#
# ## The ladder
#
# `ladder` times every rung. In its table *p50* is the median of the runs, and nine runs out of ten are between *p5* and
# *p95*.
#
# Which of the three rungs is the fastest on a GPU, and by how much?

# %%
found = ladder(VECTOR_ADD, {"n": n})
found

# %%
plots.ladder(found, recorded=h200)

# %%
big = measure.recorded_ladder("vector_add", {"n": 2**28}, gpu="NVIDIA H200")
table([(row.name, row.fraction, big.row(row.name).fraction) for row in (*h200.rungs, h200.row("PyTorch"))],
      {"of the bound": "", "10 million": ".0%", "2^28": ".0%"}, note="recorded on an NVIDIA H200")

# %% [markdown]
# The order of rungs on the CPU device says nothing about a GPU. A core runs the threads of a block one after another.
# In the grid-stride loop each thread goes through the whole vector before the next one begins, so neighbours do not
# share what is fetched. On a GPU they run at the same moment, and do.
#
# On the H200 the grid-stride loop changes nothing at ten million elements and little at 2^28, which is less than I had
# expected from a loop that so many tutorials recommend. It has another virtue: it is correct for any grid, so the grid
# can be chosen to fit the machine.
#
# Four elements per thread is the real step, and with it our kernel is as fast as PyTorch's{{ if as_fast_as_pytorch }}.
# It does the same additions and moves the same bytes, but more of them are in flight at any moment. Lesson 02 explains
# why that matters.
#
# At ten million elements no kernel comes close to the bound. Starting and ending a kernel takes a few microseconds,
# however few the elements, and here that is still a tenth{{ if near(small.kernel_ms[0] / kernel, 1 / 10) }} of the
# whole.
#
# ## Faster than the bound?
#
# At 2^28 elements our last rung beats the bound by {{ (passed - 1):.0% }}, and so does PyTorch. The bytes are right, so
# the error must be in the speed by which they are divided: that of a copy, {{ limits.bandwidth_gbs:,.0f }} GB/s on the
# H200. A copy reads as much as it writes. Kernels that read more than they write turn out to be a little
# faster{{ if copy_is_slowest }}: our addition moves {{ addition_gbs:,.0f }} GB/s, and a kernel of lesson 02, which only
# reads, {{ reading_gbs:,.0f }}. So the bound is a yardstick, good to a few percent, and not a law of nature.
#
# ## What I learned
#
# - By the index formula every element has one owner. The guard is for the threads that have no element.
# - A missing guard is silent on a GPU. I now write the guard before the line it guards.
# - Without `synchronize` I was timing a queue. Without a warm-up I was timing a compiler.
# - The kernel was never the problem: on the H200 it is less than one percent{{ if kernel / trip < 0.01 }} of the trip.
#   Ask first where the data is.
# - The loop that many recommend made no difference here. More loads in flight did.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Thread
#   Hierarchy](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy)
# - [Mark Harris: CUDA Pro Tip, grid-stride
#   loops](https://developer.nvidia.com/blog/cuda-pro-tip-write-flexible-kernels-grid-stride-loops/)
# - [Williams, Waterman, Patterson: Roofline (2009)](https://doi.org/10.1145/1498765.1498785)
#
# ## Try it
#
# - Set `n` to 10,000,128 and run the unguarded kernel again. Predict the outcome first. Is the kernel right now?
# - Remove `cuda.synchronize()` from the loop. On a GPU, which steps become "faster", and where does their time go?
# - Change `pictures.owners` to `block=8, grid=1`. How many elements does thread 0 add in each rung? Count before you
#   run it.
#
# Next: **02 · The machine**: how a GPU runs a kernel, and why eight loads in flight are better than two.

# %% [numbers]
# small = series.vector_add_sizes
# kernel = row('vector_add', 'per_thread', n=10_000_000).ms
# numpy = row('vector_add', 'NumPy', n=10_000_000).ms
# trip = kernel + 80 / series.copies.h2d_pageable.gbs + 40 / series.copies.d2h_pageable.gbs
# gflops = round(1000 * limits.fp32_tflops, -3)
# as_long_as_numpy = 0.6 < numpy / trip < 1.6
# pinned_gain = (series.copies.h2d_pinned.gbs / series.copies.h2d_pageable.gbs +
#                series.copies.d2h_pinned.gbs / series.copies.d2h_pageable.gbs) / 2
# of_bound = row('vector_add', 'per_thread', n=10_000_000).fraction
# as_fast_as_pytorch = all([near(row('vector_add', 'four_loads', n=n).ms / row('vector_add', 'PyTorch', n=n).ms, 1)
#                           for n in (10_000_000, 2**28)])
# passed = row('vector_add', 'four_loads', n=2**28).fraction
# addition_gbs = row('vector_add', 'four_loads', n=2**28).gbs
# reading_gbs = series.machine.memories['memory'].gbs
# copy_is_slowest = 1 < min(addition_gbs, reading_gbs) / limits.bandwidth_gbs < 1.04
