# %% [markdown]
# # 01 · Vector addition
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - how one line of index arithmetic and one guard spread ten million additions over threads
# - how to time a kernel: warm-up, twenty runs, the copies apart from the computing
# - when a GPU loses to NumPy, and what it loses to
#
# ## The problem
#
# Two vectors of $n$ float32 numbers, added element by element:
#
# $$c_i = a_i + b_i, \qquad 0 \le i < n$$
#
# There is no easier kernel, so everything that we measure will be memory, launches and copies. I take $n$ = 10,000,003.
# Ten million keep a large GPU busy, and because of the three, the last block of threads is only partly used.

# %%
import time

import numpy as np

from labkit import agree, cuda, device, ladder, measure, plots, roofline, show_source
from labkit.course.drawings import vector_add as pictures
from labkit.kernels import elementwise
from labkit.kernels.elementwise import vector_add_per_thread
from labkit.kernels.ops.elementwise import VECTOR_ADD
from labkit.measure.series import vector

n = 10_000_003
begin = time.perf_counter()  # how long it takes to send a single number: explained below
cuda.to_device(np.zeros(1, np.float32))
print(f"first contact: {1000 * (time.perf_counter() - begin):.1f} ms ({measure.where()})")

# %% [markdown]
# ## A prediction
#
# Before you run the next cell, write down two numbers. How many bytes must move between the device and its memory to
# add these vectors? And if an H200 moves about {{ round(limits.bandwidth_gbs, -2):,.0f }} GB each second and computes
# about {{ gflops:,.0f }} GFLOP each second, which of the two will it wait for?

# %%
roofline.predict(VECTOR_ADD, n=n)

# %% [markdown]
# A *flop* is one floating-point operation, and a GFLOP is a billion of them. Each addition reads two numbers of four
# bytes and writes one: twelve bytes. The table compares the time for the bytes with the time for the flops. The GPU
# does both at once, so the larger of the two is the *bound*: no kernel should be faster. (One will be, by a little.)
# This way of looking at a kernel is called the *roofline*. Vector addition is bound by memory.
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
# Numba's own name for it is `cuda.grid(1)`; `u32.grid(1)` is the same number as an unsigned 32-bit integer. Numba
# takes an index for a signed 64-bit number, as in Python, where -1 means the last element, and adds a test for negative
# values to every access. An unsigned index needs no test. Vectors take the same time either way, as the kernel waits
# for memory. A matrix product does not (lesson 06).
#
# The `if` is the guard. Before you run the next cell: which thread of which block is the first to find no element?

# %%
block = 256
blocks = -(-n // block)  # rounded up
print(f"{blocks:,} blocks of {block} are {blocks * block:,} threads, {blocks * block - n} too many")
print(f"the first of them: block {n // block:,}, thread {n % block}")

# %% [markdown]
# ## Host, device and back
#
# The host cannot access the GPU's memory, and a kernel cannot access a NumPy array. So every program for a GPU has the
# same steps: allocate memory there, copy the inputs to it, launch, copy the result back. Here they are, each with its
# time, and NumPy's addition on the host for comparison. Everything runs 21 times{{ example }}; the first time has its
# own column.

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
print(f"{'':18}   first      median       least        most   ({measure.where()})")
for step, ms in times.items():
    print(f"{step:18}{ms[0]:8.2f}{median[step]:12.3f}{min(ms[1:]):12.3f}{max(ms[1:]):12.3f} ms")
print("the sum equals NumPy's, bit for bit:", np.array_equal(c, expected))

# %% [markdown]
# A launch only puts the kernel into a queue and returns. Without `synchronize`, which waits for the device to finish,
# we would time the queueing. The first time is slower, for reasons that have nothing to do with adding.
#
# - The first launch compiles. Numba turns the Python function into machine code for these types of arguments, and keeps
#   it for as long as the program runs. (The CPU device also keeps it on disk.)
# - The operating system hands out memory only when it is first touched, which takes time. Here that happens to `c` and
#   to `expected`.
# - On a GPU the very first access, the one at the top of this page, sets up a *context*: the driver loads, takes memory
#   and prepares for your process.
#
# None of this belongs in the time of a kernel. Running it once before the clock starts is called the *warm-up*. Of the
# other twenty runs I take the median, because one interruption by the operating system would change the mean.
#
# The results agree to the last bit, because a sum of two float32 numbers has one correctly rounded value. Longer sums
# depend on the order of their additions, so from the matrix product on we shall need a tolerance.
#
# ## Without the guard
#
# Here is the same kernel without its `if`. To see what the 125 threads without an element do, I allocate 256 sevens
# behind each vector, which the kernel should leave alone.

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
# later call fails, and names neither thread nor line. NVIDIA's tool `compute-sanitizer python program.py` finds
# accesses outside all allocations. It would not report this cell: the sevens are in the same allocation as the vector.
#
# ## Agreement
#
# One size proves little. `agree` runs every kernel of the operation at sizes where mistakes show: a single element, one
# less and one more than a block, a few more than a whole grid. The first kernel you know; the other two come below.

# %%
agree(VECTOR_ADD)

# %% [markdown]
# ## The trip as a picture
#
# Here are the times of an H200, and if you have a GPU, yours from above. Each bar begins where the one before ended.
# Before you look: how much of the H200's trip is the kernel?

# %%
copies = measure.recorded_series("copies", gpu="NVIDIA H200")
h200 = measure.recorded_ladder("vector_add", {"n": 10_000_000}, gpu="NVIDIA H200")
there, home = (40 / copies[way]["gbs"] for way in ("h2d_pageable", "d2h_pageable"))  # 40 MB: ms
kernel, numpy_ms = (h200.row(name).timing.p50 for name in ("vector_add_per_thread", "NumPy, on the host"))
trip_ms = there + there + kernel + home

print(f"on the H200 the kernel takes {kernel / trip_ms:.1%} of the trip, and NumPy as long as "
      f"{numpy_ms / kernel:.0f} kernels or {numpy_ms / trip_ms:.2f} trips")
recorded = {"steps": dict(zip(list(steps)[:4], (there, there, kernel, home), strict=True)), "numpy_ms": numpy_ms,
            "title": f"NVIDIA H200, {copies['date']}, n=10,000,000; copies from the recorded rates"}
here = {"steps": dict(list(median.items())[:4]), "numpy_ms": median["NumPy"],
        "title": f"Here, n={n:,}. {measure.where()}"}
pictures.round_trip(here, recorded)

# %% [markdown]
# On the H200 the kernel is far faster than NumPy, and the whole trip takes about as long as NumPy
# does{{ if far_faster }}. The kernel reads from the GPU's own memory, thousands of GB each second. But the data had to
# come over the *bus* that joins host and GPU, which is much slower. (The CPU device has no bus: a copy stays within
# your memory.)
#
# ## The copies, apart
#
# The bus can do better than that. NumPy's arrays live in *pageable* memory, which the operating system may move. So the
# driver first copies the data to a place that cannot move, and from there to the GPU. An array can be put in such a
# place from the beginning. It is then called *pinned*, and `cuda.pinned_array` makes one.

# %%
print(f"{'':16}here       H200   ({measure.where()})")
for way, found in measure.time_copy(4 * n).items():
    print(f"{way:14}{found['gbs']:6.1f} {copies[way]['gbs']:10.1f} GB/s")

# %% [markdown]
# `h2d` is host to device, `d2h` the way back. In the H200's column the pinned copies are several times as fast, because
# the data is copied once and not twice. But pinned memory is slow to allocate and lost to all other programs, so one
# pins a few arrays and uses them again and again.
#
# ## Two more rungs
#
# From here on the data stays on the device, and only the kernel is timed; on a GPU, by the GPU's own clock. On the H200
# it reaches about two thirds{{ if near(of_bound, 2/3) }} of the bound. I tried two ideas to do better. The first is the
# *grid-stride loop*: start a fixed number of threads, and let each go on with the element that is one whole grid
# further. `cuda.gridsize(1)` is the number of threads in the grid.

# %%
show_source(elementwise.vector_add_grid_stride_kernel)

# %% [markdown]
# The second gives each thread four elements, each one block's width after the last, and loads all of them before it
# stores any. A thread goes on after a load until it needs the number; then it waits. Waiting for eight loads that are
# on their way together takes hardly longer than waiting for two.

# %%
show_source(elementwise.vector_add_four_loads_kernel)

# %% [markdown]
# Which thread has which of 29 elements, in blocks of four? The numbers are threads; thread 0's boxes are dark.

# %%
pictures.owners(n=29, block=4, rungs=("per_thread", "grid_stride", "four_loads"))

# %% [markdown]
# In all three, neighbouring threads load neighbouring elements at the same moment. That is called *coalesced* access.
# The 32 threads of a warp load together, and memory delivers pieces of 32 bytes, eight floats each. So a warp that
# loads 32 floats in a row gets them in four deliveries, all of which it uses. If thread 0 had the elements 0 to 3 and
# thread 1 the elements 4 to 7, the work would be shared just as fairly, and each load would need {{ words(16 / 4) }}
# times the deliveries. Lesson 04 counts them.
#
# The kernels of one operation, slowest first, are a *ladder*, and each is a rung. Before you run the ladder: which of
# the three is the fastest on a GPU, and by how much? In its table *p50* is the median of the runs, and nine runs out of
# ten lie between *p5* and *p95*.

# %%
found = ladder(VECTOR_ADD, {"n": n})
found

# %%
big = measure.recorded_ladder("vector_add", {"n": 2**28}, gpu="NVIDIA H200")
s = measure.recorded_series("vector_add_sizes", gpu="NVIDIA H200")

print(f"{'':24}{'10 million':>12}{'2^28':>8}   of the bound, on the H200 we recorded")
for row in (*h200.rungs, h200.row("PyTorch")):
    print(f"{row.name:24}{row.fraction:12.0%}{big.row(row.name).fraction:8.0%}")
print(f"\n1,024 elements take {1000 * s['kernel_ms'][0]:.1f} us, ten million {1000 * kernel:.0f} us")
plots.ladder(found, recorded=h200)

# %% [markdown]
# The order in the CPU device's table predicts nothing about a GPU. A core runs the threads of a block one after
# another. In the grid-stride loop each of them goes through the whole vector before the next one begins, so neighbours
# do not share what is fetched. On a GPU they run at the same moment, and do.
#
# On the H200 the grid-stride loop gains nothing at ten million and little at 2^28, less than I expected of a loop that
# so many tutorials recommend. But it is right with any grid, so the grid can be chosen to fit the machine.
#
# Four elements a thread is the real step, and with it our kernel is as fast as PyTorch's. It does the same additions
# and moves the same bytes, but more of them are on their way at any moment. Lesson 02 explains why that matters.
#
# At 2^28 that rung passes the bound, and so does PyTorch. The bound is the speed of a copy, which writes one byte for
# each byte it reads, an addition only one for every two; I suspect that reading is cheaper. Starting and ending a
# kernel takes a few microseconds, however few the elements: at ten million they are still a
# tenth{{ if near(small.kernel_ms[0] / kernel, 1 / 10) }} of the whole.
#
# ## When does a GPU lose?
#
# Here is the same addition over many sizes, four ways: NumPy on the host; the kernel alone; the kernel called from
# Python and waited for; and the whole trip with its three copies. Before you look: from which size on will the GPU win,
# in each of the three ways?

# %%
sizes = vector.vector_add_sizes(exponents=device.pick(gpu=range(10, 26), cpu=range(10, 21, 2)))
alone, called = (plots.crossing(s["n"], s[key], s["numpy_ms"])[0] / 1000 for key in ("kernel_ms", "call_ms"))
n_most, numpy_ms, kernel_ms, trip_ms = (s[key][-1] for key in ("n", "numpy_ms", "kernel_ms", "with_copies_ms"))
pinned_ms = kernel_ms + 4 * n_most / 1e6 * (2 / copies["h2d_pinned"]["gbs"] + 1 / copies["d2h_pinned"]["gbs"])
print(f"""on the H200 we recorded
    the kernel alone beats NumPy from  {alone:7.0f} thousand elements on
    called from Python it does from    {called:7.0f} thousand elements on
    at 2^28 NumPy takes as long as     {numpy_ms / trip_ms:7.2f} trips
    and from pinned memory as          {numpy_ms / pinned_ms:7.1f} trips, going by the rates
    a copy of 4 KB takes               {1000 * (s['with_copies_ms'][0] - s['call_ms'][0]) / 3:7.0f} us""")
plots.crossover(sizes, recorded=s)

# %% [markdown]
# Read the H200's lines from the left. Small sizes all cost the same. The kernel takes its few microseconds, the call
# from Python about {{ words(call_over_kernel) }} times that, the trip {{ words(trip_over_call) }} times as much again,
# while NumPy adds a thousand elements in less than one microsecond. Then each line bends upwards where its bytes begin
# to count.
#
# With the copies there is no crossover: the lines of the trip and of NumPy run together. I take the reason to be that
# in both a single core of the host moves twelve bytes for each addition, in one case to add, in the other to copy. With
# pinned memory the trip would win. Better still is no trip: copy the data once, and do everything to it on the device.
#
# And the short list of tokens in lesson 00? Like any small copy, it costs more than the call of a kernel. An engine
# that copies five small arrays for each token pays five times that. It is better to put everything into one array.
#
# ## What I learned
#
# - By the index formula every element has one owner. The guard is for the threads that have no element.
# - A missing guard is silent on a GPU. I now write the guard before the line it guards.
# - Without `synchronize` I was timing a queue. Without a warm-up I was timing a compiler.
# - The kernel was never the problem: on the H200 it is less than one percent{{ if kernel / trip < 0.01 }} of the trip.
#   Ask first where the data is.
# - The loop that many recommend gained nothing here. More loads in flight did.
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
# - Take `cuda.synchronize()` out of the loop. On a GPU: which steps become "faster", and where does their time go?
# - Change `pictures.owners` to `block=8, grid=1`. How many elements does thread 0 add in each rung? Count before you
#   run.
#
# Next: **02 · The machine**: how a GPU runs a kernel, and why four loads in flight are faster than one.

# %% [numbers]
# small = series.vector_add_sizes
# kernel = row('vector_add', 'per_thread', n=10_000_000).ms
# numpy = row('vector_add', 'NumPy', n=10_000_000).ms
# trip = kernel + 80 / series.copies.h2d_pageable.gbs + 40 / series.copies.d2h_pageable.gbs
# gflops = round(1000 * limits.fp32_tflops, -3)
# far_faster = kernel < numpy / 50 and 0.6 < numpy / trip < 1.6
# of_bound = row('vector_add', 'per_thread', n=10_000_000).fraction
# call_over_kernel = small.call_ms[0] / small.kernel_ms[0]
# trip_over_call = small.with_copies_ms[0] / small.call_ms[0]
