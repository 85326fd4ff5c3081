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
# There is no easier kernel, and that is its use. Nothing in it can hide the machine: what we measure will be memory,
# launches and copies. I take $n$ = 10,000,003. Ten million is enough to keep a large GPU busy, and the three on top
# make sure that the last block of threads does not come out even.

# %%
import time

import numpy as np

from labkit import agree, cuda, device, ladder, measure, plots, roofline, show_source
from labkit.kernels import elementwise
from labkit.kernels.elementwise import VECTOR_ADD, vector_add_per_thread
from labkit.measure import bench

n = 10_000_003

begin = time.perf_counter()
cuda.to_device(np.zeros(1, np.float32))
print(f"first contact: {1000 * (time.perf_counter() - begin):.1f} ms ({measure.where()})")

# %% [markdown]
# The last lines sent a single number to the device and took the time. Keep it in mind; it comes back below.
#
# ## A prediction
#
# Before you run the next cell, write down two numbers. How many bytes must move between the processor and its memory to
# add these vectors? And if an H200 moves about 4,200 GB each second and computes about 65,000 GFLOP each second, which
# of the two will it wait for?

# %%
roofline.predict(VECTOR_ADD, n=n)

# %% [markdown]
# A *flop* is one floating-point operation. Each addition is one, and for it two numbers are read and one is written:
# twelve bytes. The table compares the time that the bytes need with the time that the flops need. The larger of the two
# is the *bound*, and no kernel should be faster. (One will be, by a little. Look out for it.) This way of looking at a
# kernel is called the *roofline*. Vector addition stands at the far low end of it, where arithmetic is free and
# everything we pay for is memory.
#
# ## One thread, one element

# %%
show_source(elementwise.vector_add_per_thread_kernel)

# %% [markdown]
# Every thread runs these three lines once. `cuda.grid(1)` is short for the index formula
#
# $$i = \text{blockIdx.x} \times \text{blockDim.x} + \text{threadIdx.x}$$
#
# Skip the threads of all blocks before mine, then count to my place in my own. The formula gives every thread an $i$ of
# its own and leaves none out. So each element has one owner, and no two threads ever write to the same place.
#
# `uint32` is there for speed. Numba takes an index for a signed one, as in Python, and adds a test for negative values
# to every access. An unsigned index cannot be negative, so the test is gone.
#
# The `if` is the guard. Threads come in whole blocks, and ten million and three is not a whole number of blocks. Before
# you run the next cell: which thread of which block is the first to find no element?

# %%
block = 256
blocks = -(-n // block)  # rounded up

print(f"{blocks:,} blocks of {block} are {blocks * block:,} threads, {blocks * block - n} too many")
print(f"the first of them: block {n // block:,}, thread {n % block}")

# %% [markdown]
# ## Host, device and back
#
# A GPU has memory of its own. The processor that runs Python, the *host*, cannot look into it, and a kernel cannot look
# into a NumPy array. So every program for a GPU takes the same way: inputs to the device, room for the result, a
# launch, the result back to the host. Here it is, with a stopwatch on each step.

# %%
rng = np.random.default_rng(0)
a, b = rng.random(n, dtype=np.float32), rng.random(n, dtype=np.float32)


def timed(ms, step, call):
    begin = time.perf_counter()
    result = call()
    cuda.synchronize()  # a launch returns before the kernel has run
    ms[step] = 1000 * (time.perf_counter() - begin)
    return result


# %%
def trip():
    ms = {}
    d_a = timed(ms, "a to the device", lambda: cuda.to_device(a))
    d_b = timed(ms, "b to the device", lambda: cuda.to_device(b))
    d_c = timed(ms, "room for the sum", lambda: cuda.device_array(n, np.float32))
    timed(ms, "kernel", lambda: vector_add_per_thread(d_a, d_b, d_c))
    return timed(ms, "sum to the host", d_c.copy_to_host), ms


(c, first), (c_again, second) = trip(), trip()
print(f"{'':18}first trip   second   ({measure.where()})")
for step in first:
    print(f"{step:18}{first[step]:10.2f}{second[step]:9.2f} ms")

# %% [markdown]
# The `synchronize` in `timed` is not decoration. On a GPU a launch only puts the kernel into a queue and returns. A
# stopwatch without it times the queueing.
#
# The first trip is the slow one, for reasons that have nothing to do with adding.
#
# - The first launch compiles. Numba turns the Python function into machine code for these types of arguments, and keeps
#   it for as long as the program runs. The CPU device also keeps it on disk: if you have run this lesson before, it
#   loads what it finds there.
# - Fresh memory is slow the first time it is touched, because the operating system hands it out only then. The last
#   step pays for this on both trips: `copy_to_host` makes a new NumPy array unless you give it one.
# - On a GPU the first contact of all, the one at the top of this page, sets up a *context*: the driver loads, takes
#   memory and prepares for your process.
#
# All of this is paid once and belongs in no measurement of a kernel. Running a kernel before the clock starts is called
# the *warm-up*.
#
# Is the answer right?

# %%
print("the sum equals NumPy's, bit for bit:  ", np.array_equal(c, a + b))
print("a copy there and back is exact:       ", np.array_equal(cuda.to_device(a).copy_to_host(), a))

# %% [markdown]
# Bit for bit is not luck. The sum of two float32 numbers has one correctly rounded value, and NumPy and the device both
# give it. Longer sums depend on their order, so from the matrix product on we shall need a tolerance. A copy rounds
# nothing, ever.
#
# ## A very small trip
#
# Not everything that travels is large. An engine that generates text keeps a Python list of the tokens that are active
# now, one for each sequence it is writing. The list changes at every step, and at every step the device needs it. The
# way to do that: allocate once, for the most there can ever be, and copy only what is there.

# %%
slots = 8  # the most sequences that this engine will write at once
d_tokens = cuda.device_array(slots, np.int32)

for active_tokens in ([128000, 791, 6864], [315, 9822], [13]):
    tokens = np.array(active_tokens, np.int32)
    d_tokens[: tokens.size].copy_to_device(tokens)
    back = d_tokens[: tokens.size].copy_to_host().tolist()
    print(f"{active_tokens!s:20} {tokens.nbytes:2} bytes, unchanged: {back == active_tokens}")

# %% [markdown]
# Twelve bytes at most. Remember them when we come to what a copy costs.
#
# ## Without the guard
#
# The same kernel, without its `if`. To see what the 125 stray threads do, I give the vectors a neighbour: behind each
# of them, in the same allocation, stand 256 sevens that are none of our business.

# %%
@cuda.jit
def unguarded_kernel(a, b, out):
    i = cuda.grid(1)
    out[i] = a[i] + b[i]


def with_neighbours(values):
    memory = cuda.to_device(np.append(values, np.full(256, 7, np.float32)))
    return memory, memory[: values.size]


# %%
(_, our_a), (_, our_b), (memory, our_c) = with_neighbours(a), with_neighbours(b), with_neighbours(c)
try:
    unguarded_kernel[blocks, block](our_a, our_b, our_c)
    stray = np.count_nonzero(memory.copy_to_host()[n:] != 7)
    print(f"No error. {stray} of the neighbour's numbers have been overwritten.")
except IndexError as error:
    print(type(error).__name__, *str(error).split(": "), sep="\n    ")

# %% [markdown]
# The CPU device checks every access and stops at the first wrong one. It names the kernel, the line, the array, the
# index and the thread: the very thread that you predicted above.
#
# A GPU checks nothing. There this cell reports that all went well, and 125 of the neighbour's numbers are gone. Without
# a neighbour of our own making, the stray threads might hit another array of the same program, which is worse, or
# memory that nobody owns. Then some later call fails, with an error that names neither thread nor line, and the process
# has to be started anew.
#
# NVIDIA's tool for this is `compute-sanitizer`. It runs a whole program under watch, as in `compute-sanitizer python
# program.py`, and reports every access outside all allocations: how many bytes, which thread, which block. It is not
# run here, and it would not object to this cell. Our neighbour lives in our own allocation, and to the sanitizer that
# is one piece. The CPU device knows where each array ends.
#
# ## Agreement
#
# One size proves little. `agree` runs every kernel of the operation at sizes chosen to hurt: a single element, one less
# and one more than a block, a few more than a whole grid. It fills the output with NaN before, and looks for stray
# writes after.

# %%
agree(VECTOR_ADD)

# %% [markdown]
# The table has three kernels. You know one of them; the others come below.
#
# ## Twenty runs
#
# Now the clock. The buffers exist, the kernel is compiled. Each step of the trip runs twenty times, NumPy's addition on
# the host runs twenty times, and I take the median. A mean would let one interruption by the operating system speak for
# all twenty.

# %%
d_a, d_b, d_c = cuda.to_device(a), cuda.to_device(b), cuda.device_array(n, np.float32)
steps = {
    "a to the device": lambda: d_a.copy_to_device(a),
    "b to the device": lambda: d_b.copy_to_device(b),
    "kernel": lambda: vector_add_per_thread(d_a, d_b, d_c),
    "sum to the host": lambda: d_c.copy_to_host(c),
    "NumPy": lambda: np.add(a, b, out=c_again),
}
runs = []
for _ in range(20):
    runs.append({})
    for step, call in steps.items():
        timed(runs[-1], step, call)

# %%
median = {step: float(np.median([run[step] for run in runs])) for step in steps}

print(f"{'':18}  median       least        most   ({measure.where()})")
for step, ms in median.items():
    times = [run[step] for run in runs]
    print(f"{step:18}{ms:8.3f}{min(times):12.3f}{max(times):12.3f} ms")

# %% [markdown]
# Now the same trip as a picture, here and on the H200. Each bar begins where the one before ended. Before you look: how
# much of the H200's trip is the kernel?

# %%
copies = measure.recorded_series("copies", gpu="NVIDIA H200")
h200 = measure.recorded_ladder("vector_add", {"n": 10_000_000}, gpu="NVIDIA H200")
there, home = (40 / copies[way]["gbs"] for way in ("h2d_pageable", "d2h_pageable"))  # 40 MB: ms
kernel = h200.row("vector_add_per_thread").timing.p50

recorded = {
    "steps": dict(zip(list(steps)[:4], (there, there, kernel, home), strict=True)),
    "numpy_ms": h200.row("NumPy, on the host").timing.p50,
    "title": f"NVIDIA H200, {copies['date']}, n=10,000,000; copies from the recorded rates",
}
here = {"steps": dict(list(median.items())[:4]), "numpy_ms": median["NumPy"],
        "title": f"Here, n={n:,}. {measure.where()}"}
plots.round_trip(here, recorded)

# %%
trip_ms = sum(recorded["steps"].values())

print("on the H200 we recorded")
print(f"    the kernel takes                {kernel / trip_ms:6.1%} of the trip")
print(f"    NumPy takes as long as          {recorded['numpy_ms'] / kernel:6.0f} kernels")
print(f"    NumPy takes as long as          {recorded['numpy_ms'] / trip_ms:6.2f} trips")

# %% [markdown]
# That is this lesson in one picture. On the H200 the kernel is far faster than NumPy, and the whole trip is slower:
# NumPy is done before it ends. The kernel reads from the GPU's own memory, thousands of GB each second. The data got
# there over the *bus* that joins host and GPU, and through a queue at its gate.
#
# On the CPU device there is no bus. A "copy to the device" is a copy from one part of your memory to another, and the
# kernel runs on the processor that NumPy runs on. Its bars show that the steps happen, and nothing about a GPU.
#
# ## The copies, apart
#
# The bus can do better than that. NumPy's arrays live in *pageable* memory, which the operating system may move. So the
# driver first copies the data to a place that stays put, from which the GPU may fetch it: that is the queue at the
# gate. Memory can be made to stay put from the beginning. It is then called *pinned*, and `cuda.pinned_array` makes it.

# %%
apart = measure.time_copy(4 * n)

print(f"{'':16}here       H200   ({measure.where()})")
for way, found in apart.items():
    print(f"{way:14}{found['gbs']:6.1f} {copies[way]['gbs']:10.1f} GB/s")

# %% [markdown]
# `h2d` is host to device, `d2h` the way back. In the H200's column the pinned copies are several times as fast, since
# the data moves once where it moved twice. Pinned memory is taken from everybody else on the machine and slow to
# allocate, so one pins a few buffers and uses them again and again.
#
# ## Two more rungs
#
# From here on the data stays on the device, and only the kernel is timed, by the GPU's own clock (*events*) where there
# is one. On the H200 it reaches about two thirds of the bound. Where is the rest? I tried two ideas. The first is the
# *grid-stride loop*: start a fixed number of threads, and let each go on with the element one whole grid further.

# %%
show_source(elementwise.vector_add_grid_stride_kernel)

# %% [markdown]
# The second gives each thread four elements, and asks for all of them before it adds any. A thread that waits for two
# loads does nothing else meanwhile. A thread that waits for eight waits hardly any longer.

# %%
show_source(elementwise.vector_add_four_loads_kernel)

# %% [markdown]
# Where do a thread's elements lie? Here are 29 of them, under blocks of four threads. The numbers are threads; the dark
# boxes belong to thread 0.

# %%
plots.owners(n=29, block=4, rungs=("per_thread", "grid_stride", "four_loads"))

# %% [markdown]
# In all three, neighbouring threads touch neighbouring elements at any one moment. That is called *coalesced* access,
# and it matters more than anything else in this picture. The 32 threads of a *warp* load together, and memory delivers
# 32 bytes at a time. So a warp that asks for 32 floats in a row gets them in four deliveries with nothing left over.
# Had thread 0 the elements 0 to 3 and thread 1 the elements 4 to 7, the work would be shared just as fairly, and each
# load would need four times the deliveries. The next lesson takes this apart.
#
# Before you run the *ladder*, every rung timed on the same data: which of the three is the fastest on a GPU, and by how
# much?

# %%
found = ladder(VECTOR_ADD, {"n": n})
found

# %%
plots.ladder(found, recorded=h200)

# %% [markdown]
# First what misleads. On the CPU device the grid-stride loop comes last by far. A core there runs the threads of a
# block one after another, and a thread that walks the whole vector in steps of 262,144 elements brings a new piece of
# memory into the cache for each single number. On a GPU its neighbours run at the same moment and share that piece. The
# order of the bars on the CPU device is no prediction. Read the H200's.

# %%
big = measure.recorded_ladder("vector_add", {"n": 2**28}, gpu="NVIDIA H200")
start_ms = measure.recorded_series("vector_add_sizes", gpu="NVIDIA H200")["kernel_ms"][0]

print(f"{'':24}{'10 million':>12}{'2^28':>8}   of the bound, on the H200 we recorded")
for row in (*h200.rungs, h200.row("PyTorch")):
    print(f"{row.name:24}{row.fraction:12.0%}{big.row(row.name).fraction:8.0%}")
print(f"\n1,024 elements take {1000 * start_ms:.1f} us, ten million {1000 * kernel:.0f} us")

# %% [markdown]
# The grid-stride loop gains nothing at ten million and little at 2^28. I had expected more of a loop that so many
# tutorials recommend. It spares the GPU the starting of blocks, and that was not what we waited for. It keeps its place
# for another reason: it is right with any grid, so the grid can be chosen to fit the machine.
#
# Four loads at once is the real step, and it puts us beside PyTorch. The arithmetic is the same and not a byte less is
# moved. But more bytes are under way at any moment: while the answer to the first request travels, so do the others.
#
# At 2^28 that rung passes the bound, and so does PyTorch. The bound is the speed of a copy, which writes one byte for
# each byte it reads. An addition writes one for every two. I take it that reading is the cheaper half, which would put
# the limit of an addition a little above that of a copy. A bound that was measured is a measurement, too.
#
# At ten million all of them fall short of what they reach at 2^28. Part of that is in the last line: a few microseconds
# go into starting and ending, however few the elements, and at ten million they are still a tenth of the whole.
#
# ## When does a GPU lose?
#
# Now the question that decides whether to use one at all. The same addition over many sizes, four ways: NumPy on the
# host; the kernel alone; the kernel called from Python and waited for; and the whole trip with its three copies.

# %%
sizes = bench.vector_add_sizes(exponents=device.pick(gpu=range(10, 26), cpu=range(10, 21, 2)))
recorded_sizes = measure.recorded_series("vector_add_sizes", gpu="NVIDIA H200")

plots.crossover(sizes, recorded=recorded_sizes)

# %% [markdown]
# Read the H200's lines from the left. Small sizes all cost the same. The kernel takes its few microseconds, the call
# from Python about seven times that, the trip six times as much again, while NumPy is done with a thousand elements
# in less than one microsecond. Then the lines bend upwards, each where its bytes begin to count.

# %%
s = recorded_sizes
n_most, numpy_ms, trip_ms = s["n"][-1], s["numpy_ms"][-1], s["with_copies_ms"][-1]
alone, called = (plots.crossing(s["n"], s[key], s["numpy_ms"])[0] for key in ("kernel_ms", "call_ms"))
small_us = 1000 * (s["with_copies_ms"][0] - s["call_ms"][0]) / 3
pinned_ms = s["kernel_ms"][-1] + sum(
    4 * n_most / copies[way]["gbs"] / 1e6 for way in ("h2d_pinned", "h2d_pinned", "d2h_pinned"))

print("on the H200 we recorded")
print(f"    the kernel alone beats NumPy from  {alone / 1000:7.0f} thousand elements on")
print(f"    called from Python it does from    {called / 1000:7.0f} thousand elements on")
print(f"    at 2^28 NumPy takes as long as     {numpy_ms / trip_ms:7.2f} trips")
print(f"    and from pinned memory as          {numpy_ms / pinned_ms:7.1f} trips, going by the rates")
print(f"    a copy of 4 KB takes               {small_us:7.0f} us")

# %% [markdown]
# With the copies there is no crossover. The trip's line and NumPy's run into each other and stay together. I think they
# are made of the same stuff: in both, a single core of the host moves twelve bytes for each addition through its
# memory, in one case to add, in the other to feed the bus. Pinned memory would win the trip. The better answer is not
# to make it. Bring the data once, and do everything to it before it goes home.
#
# And the twelve bytes of active tokens? They cost what any small copy costs, and that is more than the call of a
# kernel. An engine that sends five small arrays for each token pays five times that before it has computed anything.
# One array with everything in it is the cure.
#
# ## What was implemented
#
# - vector addition, one thread an element, with its guard; the whole way from host to device and back
# - a grid-stride rung and a rung with four loads in flight
# - a stopwatch for each step, twenty runs, medians; copies measured apart, pageable and pinned
# - the crossover: kernel, call, and trip against NumPy
#
# ## What I learned
#
# - The index formula is a promise that every element has one owner. The guard is for the threads that have no element.
# - A missing guard is silent on a GPU. I now write the guard before the line it guards.
# - Without `synchronize` I was timing a queue. Without a warm-up I was timing a compiler.
# - The kernel was never the problem. On the H200 it is less than one percent of the trip.
# - The recommended loop gained nothing here. More loads in flight did.
# - "GPU against CPU" has no answer until somebody says where the data is.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Thread Hierarchy](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-hierarchy)
# - [CUDA C++ Best Practices Guide: Data Transfer Between Host and Device](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html#data-transfer-between-host-and-device)
# - [Mark Harris: CUDA Pro Tip, grid-stride loops](https://developer.nvidia.com/blog/cuda-pro-tip-write-flexible-kernels-grid-stride-loops/)
# - [Williams, Waterman, Patterson: Roofline, an insightful visual performance model (2009)](https://doi.org/10.1145/1498765.1498785)
#
# ## Try it
#
# - Set `n` to 10,000,128 and run the unguarded kernel again. Predict the outcome first. Is the kernel right now?
# - Take `cuda.synchronize()` out of `timed` and run the twenty runs again. On a GPU: which steps become "faster", and
#   where does their time go? On the CPU device little changes. Why?
# - Change `plots.owners` to `block=8, grid=1`. How many elements does thread 0 add in each rung? Count before you run.
#
# Next: **02 · Indexing in three dimensions**, where the same bytes are asked for in another order.
