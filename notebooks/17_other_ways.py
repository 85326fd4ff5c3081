# %% [markdown]
# # 17 · Other ways to write a kernel
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - what a softmax made of library calls costs, and which row breaks it
# - how a program over a block of elements differs from a program for one thread
# - what Triton and cuTile decide for you, what you still have to tell them, and how to notice when they decide badly
#
# ## The problem
#
# The last two lessons built a softmax by hand: loops, shuffles, trees, barriers. There are shorter ways to get one. You
# can assemble it from library calls, as lesson 14 did with products. Or you can write it in *Triton* or *cuTile*, two
# languages embedded in Python in which you say what a whole block does, and a compiler works out what each thread has
# to do. This lesson tries all three on softmax, and the two languages on the sum of two vectors as well. What do they
# cost, and what do they save you?
#
# Each of them runs here in some form. Without a GPU, the library is the model of cuBLAS from lesson 14, programs in
# Triton run in Triton's interpreter if it is installed, and those in cuTile on a small model of it in NumPy. These show
# what a program computes, and nothing about its speed.

# %%
import numpy as np

from labkit import agree, cuda, device, measure, show_source, table
from labkit.course.drawings import other_ways as pictures
from labkit.kernels.libraries import blas
from labkit.kernels.libraries import cutile as tile_kernels
from labkit.kernels.libraries import triton as triton_kernels
from labkit.measure.series import libraries as series

table([("Numba", device.name()), ("BLAS", blas.source()),
       ("Triton", triton_kernels.why_not() or triton_kernels.where()), ("cuTile", tile_kernels.where())],
      ["", "runs on"], note=tile_kernels.why_not())

# %% [markdown]
# Each of the four computes the same results on any device; the times are recordings.
#
# ## Softmax from library calls
#
# A softmax needs two reductions per row, the maximum and the sum of the exponentials. Let the library do these, and
# write only the two elementwise steps by hand. It sounds economical. BLAS has `asum`, the sum of absolute values,
# which for exponentials is their sum. And it has `isamax`, which returns an index, counted from 1 as in Fortran,
# presumably that of the maximum. What do `isamax` and `asum` return for [1, −7, 3]?

# %%
from labkit.kernels.libraries.blas_softmax import softmax_by_isamax, softmax_by_row_max, softmax_on_device

x = cuda.to_device(np.array([1, -7, 3], np.float32))
print("isamax", blas.isamax(3, x), "  asum", blas.asum(3, x))

# %% [markdown]
# `asum` returns 11, as it should. But `isamax` returns 2, and element number 2 is −7. The *a* in its name stands for
# absolute value. Here is a softmax that overlooks this:

# %%
show_source(softmax_by_isamax)

# %% [markdown]
# The first test that comes to mind is a matrix of random numbers. Take 128 × 128 of them from −10 to 10, compare every
# element with NumPy's, and add up the first row; do the same with two other forms, which come below. Does a test with
# values from −10 to 10 notice the wrong maximum?

# %% tags=["hide-input"]
table([(row["name"], f"{row['max_difference']:.1e}", row["first_row_sum"]) for row in series.softmax_check()["found"]],
      {"": "", "largest difference": "", "sum of the first row": ".6f"})

# %% [markdown]
# It does not. All three agree with NumPy far more closely than such a test would require. Now a row that the test does
# not contain: −200 and 100. Go through the source on paper: what are `index`, `biggest` and the two exponentials, and
# what is the result?

# %%
row = cuda.to_device(np.array([[-200.0, 100.0]], np.float32))
out = cuda.device_array((1, 2), np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    softmax_by_isamax(row, out)
print(out.copy_to_host())

# %% [markdown]
# `isamax` finds −200, the largest magnitude. 100 minus −200 is 300, the exponential of 300 is infinite in float32, and
# infinity divided by infinity is not a number. The right answer is 0 and 1.
#
# The test could not find this. Between −10 and 10 the wrong maximum is wrong by at most 20; the exponential of 20 is an
# ordinary number, and the subtracted number cancels in the quotient, as it does on paper. A test only finds what its
# inputs contain. Even in that test the mistake leaves a trace: $x - m$ is rounded more coarsely the further $m$ is from
# $x$, and the first line of the table shows the largest difference{{ if less_accurate }}.
#
# BLAS has no maximum. So the second form finds the maxima of all rows with one launch of a reduction kernel like those
# of lesson 15.

# %%
for softmax in (softmax_by_row_max, softmax_on_device):
    softmax(row, out)
    print(f"{softmax.__name__:20} {out.copy_to_host()}")

# %%
from labkit.kernels.libraries.blas_softmax import BLAS_SOFTMAX

agree(BLAS_SOFTMAX, sizes=({"R": 3, "C": 5}, {"R": 9, "C": 32}, {"R": 7, "C": 1000}))

# %% [markdown]
# Both are right. The third form differs from the second in one respect. In the second, the host waits for the sum of
# every row to come back. In the third, maxima and sums stay in device memory, where the kernels read them, and the host
# never waits:

# %%
show_source(softmax_on_device)

# %% [markdown]
# All three loop over the rows in Python. The kernel `softmax_warp` of lesson 16 handles all rows in a single launch.
# How does the time of a loop over library calls grow with the number of rows, and how does that of a single launch?

# %%
pictures.over_rows(series.softmax_rows())

# %% tags=["hide-input"]
h200 = measure.recorded_series("softmax_rows", gpu="NVIDIA H200")
rows = h200["rows"][-1]
table([(line["name"], line["ms"][-1], 1000 * line["ms"][-1] / rows) for line in h200["lines"]],
      ["", "ms", "us per row"], f"{rows:,} rows of {h200['cols']:,}: a launch, or thousands of them",
      note=h200["where"])

# %% [markdown]
# The time of the loops grows linearly: twice the rows, twice the time{{ if linear }}. On the H200 one launch costs the
# same for one row as for a thousand{{ if flat }}, so the loops do not spend their time on softmax. They spend it
# between the calls, on Python, on launches, and in two of the three on waiting for a value. Leaving the values on the
# device removes the waiting, but not the launches.
#
# The library's reductions are good, but each call reduces one vector, and a softmax needs two reductions per row. A
# library is fast at the job that it was written for. Before you build on one, ask whether that is the job you have.
#
# ## A thread, a program, a tile
#
# The other two ways keep the single launch. Compare how they add two vectors. In the kernel of lesson 01 each thread
# handles one element, and a guard stops the threads that have none.

# %%
from labkit.kernels.elementwise import vector_add_per_thread, vector_add_per_thread_kernel

show_source(vector_add_per_thread_kernel)

# %%
show_source(triton_kernels.add_kernel)

# %% [markdown]
# A *program* in Triton has an index, `program_id`, and no threads. `tl.arange(0, BLOCK)` is a vector of BLOCK integers,
# and so everything computed from it is a vector too: `offsets`, `mask`, `a`, `b`. A pointer plus a vector is a vector
# of pointers. The guard has become the mask, a vector of booleans: nothing is loaded or stored where it is false. BLOCK
# is a `constexpr`, known at compile time, because a vector in registers must have a fixed length.

# %%
show_source(tile_kernels.vector_add_tiles)

# %% [markdown]
# In cuTile even the pointers are gone. An array is cut into *tiles* of a given shape, `bid(0)` is the block's index,
# and `load` fetches the tile with that index. There is no mask: an array knows its length, and stores past the end are
# dropped. A tile is a value, like an integer. It has no address, and nothing can be written into it.

# %%
pictures.masks(n=19, block=8)

# %% [markdown]
# Both rows of the picture cover the same elements, and the same five slots at the end are empty. The difference is
# whether you know about threads. In Numba you decide how many there are and which element each of them has. In the
# other two you decide how large a block is, and nothing else.
#
# To `agree`, a program in another language is one more rung: it gets the arrays, and its result is compared with a sum
# in float64. One rounding is at most half of the error allowed.

# %%
from labkit.kernels.ops.elementwise import VECTOR_ADD

runs = [vector_add_per_thread, tile_kernels.vector_add_cutile]
if not triton_kernels.why_not():
    runs.append(triton_kernels.vector_add_triton)
agree(VECTOR_ADD.with_rungs(*runs))

# %% [markdown]
# All are right, even at lengths that are no multiple of a block, where the mask and the end of the array matter.
#
# ## A power of two
#
# Both languages require the length of a vector to be a power of two, so that it can be dealt out evenly to the lanes of
# a few warps. What happens if you want tiles of 12 from cuTile?

# %%
n = 2**12
a, out = cuda.to_device(np.ones(n, np.float32)), cuda.device_array(n, np.float32)
tile_kernels.vector_add_cutile(a, a, out, tile=16)
print(f"tiles of 16: {(out.copy_to_host() == 2).sum():,} of {n:,} elements are right")
try:
    tile_kernels.vector_add_cutile(a, a, out, tile=12)
except Exception as error:  # cuTile's own error, or the model's
    print(f"tiles of 12: {type(error).__name__}: {str(error).splitlines()[0]}")

# %% [markdown]
# The error comes at compile time, before anything runs. cuTile's front end translates Python into *Tile IR*, and needs
# no GPU for that: where the package is installed, `tile_kernels.translate(tile_kernels.vector_add_tiles, tile=16)`
# returns it. Turning Tile IR into a GPU's machine code is the job of its compiler, tileiras, which comes with CUDA 13.1
# and later (for an H200, with CUDA 13.3).
#
# ## Softmax, and what to pad with
#
# A row of 781 elements does not fill a vector of 1,024. The rest of the vector is *padding*, and the program says what
# it holds. For a sum that would be 0. Look at how both programs load a row:

# %%
show_source(triton_kernels.softmax_kernel)

# %%
show_source(tile_kernels.softmax_tiles)

# %% [markdown]
# Both pad with minus infinity, which is right twice. It is never the maximum, and its exponential is 0, which adds
# nothing to the sum. The rest is the formula: load the row into one vector, subtract, exponentiate, divide. There is no
# loop, no barrier and no shared memory in sight. Would padding with 0 work if every element of a row is negative?

# %%
from labkit.kernels.ops.softmax import SOFTMAX
from labkit.kernels.softmax.rows import softmax_warp

values = (50 * np.random.default_rng(0).standard_normal(781) - 300).astype(np.float32)  # none above 0
with np.errstate(invalid="ignore"):
    for name, padding in (("minus infinity", -np.inf), ("0", 0)):
        padded = np.concatenate([values, np.full(1024 - values.size, padding, np.float32)])
        e = np.exp(padded - padded.max())
        print(f"padded with {name:15} the {values.size} elements add up to {(e / e.sum())[:values.size].sum():.6f}")

runs = [softmax_warp, tile_kernels.softmax_cutile]
if not triton_kernels.why_not():
    runs.append(triton_kernels.softmax_triton)
agree(SOFTMAX.with_rungs(*runs))

# %% [markdown]
# It would not. Then the maximum is 0, which is not in the row: all exponentials vanish next to those of the padding,
# which gets all of the probability. Tests on rows with positive elements would pass.
#
# ## On a GPU
#
# All of this was timed in one run, on the same arrays, with cold caches, and every result was checked before it was
# timed. Addition moves 12 bytes for a single flop, and softmax has to move 8 bytes per element. Which decision of a
# compiler could still make one of the languages slow, and for which of the two jobs?

# %%
pictures.languages(series.three_languages())  # the recording, if there is no GPU here

# %% [markdown]
# Addition first. Triton, cuTile and PyTorch are within one percent of each other{{ if max(fast) / min(fast) < 1.01 }},
# and so is the rung of lesson 01 that loads four elements ahead. The plain kernel in Numba reaches four
# fifths{{ if near(numba_share, 4 / 5) }} of that: each thread requests two values and waits. The Triton program only
# says 1,024 elements, and the compiler turned this into what that rung does by hand: {{ 32 * triton_add.warps }}
# threads with {{ 1024 // (32 * triton_add.warps) }} elements each and {{ words(triton_add.vector_loads) }} loads of 128
# bits before the first addition.
#
# It can do so only if it knows enough. Triton looks at the arguments of a launch: is a pointer divisible by 16, is n? I
# compiled the same program twice for the H200, without launching it. If Triton is told that n is divisible by 16, there
# are 4 loads of 128 bits. If not, there are 16 loads of 32 bits, since the mask may end within a vector. Add one
# element to the array, and a different program runs.
#
# For softmax the languages differ. Triton is as fast as our best kernel, cuTile takes almost
# {{ words(cutile_over_triton) }} times as long, and PyTorch's own kernel twice{{ if near(torch_over_triton, 2, 0.12) }}
# as long. PyTorch compiled takes {{ compiled_longer:.0% }} longer than Triton: `torch.compile` generates a Triton
# kernel too, but one that reads the row twice, the second time from the cache.
#
# ## Two decisions that matter
#
# The first decision is one that you make yourself: the size of a tile. By default Triton gives a program 128 threads.
# How does the bandwidth of a vector addition depend on the tile, from 16 elements to 4,096?

# %%
pictures.over_tiles(series.tile_sizes())

# %% [markdown]
# With 16 elements most threads have nothing to do, and starting a block has a fixed cost, however little it does. Half
# the tile means twice as many blocks, and on the H200 twice{{ if near(tiles[0] / tiles[1], 2) }} the time. From 256
# on{{ if halves_until_256 }}, two elements per thread, memory is the limit and the size makes no difference.
#
# The second decision was the compiler's, and it explains cuTile's softmax. I compiled the program offline for the H200,
# as `translate(..., output="cubin")` does, told tileiras 13.3 that the rows are well aligned, and read the machine
# code. A block has 256 threads. Half of them compute, with 64 elements of the row in registers each; the other half
# store the result with the tensor memory accelerator (lesson 10). Each thread has 255 registers{{ compiled }}, the most
# there can be, so one block takes nearly all of an SM's registers. While that block computes, nothing is loaded, and
# while it stores, nothing is computed. Triton's program has {{ triton_registers }} registers per thread with
# {{ triton_warps }} warps, a number that I chose in the launcher. Four of its blocks share an SM, and one can load
# while another computes.
#
# So the suspect is occupancy (lesson 03). cuTile's decorator takes a hint with that name: how many blocks an SM should
# hold. With `ct.kernel(occupancy=4)` the same program has to make do with {{ 65536 // (4 * 256) }} registers per
# thread, and with 8 it has {{ 65536 // (8 * 256) }} for {{ 8192 // 128 }} elements. How does the time of the softmax
# change with an occupancy hint of 2, 4 and 8?

# %% tags=["hide-input"]
hints = series.tile_hints() or measure.recorded_series("tile_hints", gpu="NVIDIA H200")
table([(", ".join(f"{name} = {value}" for name, value in row["hints"].items()) or "none", row["ms"], row["gbs"])
       for row in hints["found"] if "num_worker_warps" not in row["hints"]],
      {"hint": "", "ms": ".3f", "GB/s": ",.0f"}, "One hint more than doubles the speed of the same source",
      note=f"{hints['where']}, {hints['date']}.")

# %% [markdown]
# On the H200 the suspicion was right. With room for four blocks the same source takes less than
# half{{ if hints[2].ms / hints[0].ms < 0.5 }} the time, within a few percent of Triton and of our
# kernel{{ if hinted_as_triton }}. Two blocks go two thirds{{ if near(two_blocks_share, 2 / 3) }} of the way. Eight are
# slower than no hint at all{{ if hints[3].ms > hints[0].ms }}: what no longer fits into the registers is moved to
# memory and back. One hint to the compiler was worth more than anything I could have changed in the program.
#
# ## What each leaves to the compiler
#
# | | Numba | Triton | cuTile |
# | --- | --- | --- | --- |
# | you write | what a thread does | what a block does, over vectors | what a block does, over tiles |
# | which thread has which element | you | compiler | compiler |
# | threads in a block | you | `num_warps`, or 4 | compiler, with hints |
# | the end of an array | `if i < n` | a mask in each load and store | the array knows |
# | loads of 128 bits | you, by `labkit.ptx` | compiler, if aligned | compiler, if aligned |
# | shared memory, barriers, shuffles | you | compiler | compiler |
# | tensor cores | you, by `labkit.ptx` | `tl.dot` | `ct.mma` |
# | lengths | any | powers of two | powers of two |
# | without a GPU | here, yes | its interpreter | no |
# | compiles to | PTX | PTX | Tile IR |
#
# The rows that say "you" are the subject of lessons 06 to 10, 15 and 16. They are work, and they are the reason why
# this course is in Numba: you learn to make a decision by making it, and you learn little by watching a compiler make
# it for you.
#
# The three can be mixed in one program, since all of them work on the same memory. Triton and cuTile accept PyTorch's
# tensors. So does a kernel in Numba, and `labkit.kernels.softmax.torch_op` turns one into an operation of PyTorch.
#
# ## What I learned
#
# - A test finds what its inputs contain. Random values from −10 to 10 say nothing about −200.
# - A library call per row costs a launch per row. The loop around the calls was the slow part.
# - A mask is a guard for a whole vector. The question stays the same: what happens where there is no element?
# - Padding is part of the algorithm: 0 for a sum, minus infinity for a maximum.
# - Vector addition is too easy to compare languages with. Anything that keeps enough bytes in flight runs at the
#   memory's speed.
# - Where a compiler decides, ask it what it decided. The threads and registers of a block told me where to look.
#
# ## Resources
#
# - [cuBLAS: cublasI<t>amax](https://docs.nvidia.com/cuda/cublas/index.html#cublasi-t-amax)
# - [Triton: Vector Addition](https://triton-lang.org/main/getting-started/tutorials/01-vector-add.html)
# - [Triton: Fused Softmax](https://triton-lang.org/main/getting-started/tutorials/02-fused-softmax.html)
# - [Tillet, Kung, Cox: Triton, an intermediate language and compiler for tiled neural network computations
#   (2019)](https://doi.org/10.1145/3315508.3329973)
# - [cuTile Python](https://docs.nvidia.com/cuda/cutile-python)
#
# ## Try it
#
# - By trial, find the smallest x for which a row [−x, x] breaks `softmax_by_isamax`. Then explain its value.
# - Copy `softmax_tiles` into a cell and leave out `padding_mode`. Predict the result for a row of 5 on the model, and
#   say why cuTile promises nothing about it.
# - The two curves over the size of a tile lie on top of each other, and up to 128 the bandwidth doubles with every
#   step. What does that say about what the GPU is waiting for? How many blocks per second does the H200 start?
# - With a GPU: launch `triton_kernels.softmax_kernel` by hand with `num_warps=1` and with 32. Predict first which of
#   the two runs short of registers, and which spends its time waiting.
#
# Next: **histogram**, where thousands of threads share a few counters.

# %% [numbers]
# add = series.three_languages.jobs[0].rows
# softmax = series.three_languages.jobs[1].rows
# triton_add = series.three_languages.triton_code.add_kernel
# fast = [add['Triton'].ms, add['cuTile'].ms, add['PyTorch'].ms]
# hints = series.tile_hints.found
# tiles = series.tile_sizes.lines['Triton'].ms
# numba_share = add['Triton'].ms / add['Numba, vector_add_per_thread'].ms
# halves_until_256 = tiles[3] / tiles[4] > 1.5 and tiles[4] / tiles[5] < 1.05
# torch_over_triton = softmax['PyTorch'].ms / softmax['Triton'].ms
# cutile_over_triton = softmax['cuTile'].ms / softmax['Triton'].ms
# compiled_longer = row('softmax', 'PyTorch, compiled').graph_us / row('softmax', 'Triton').graph_us - 1
# triton_warps = series.three_languages.triton_code.softmax_kernel.warps
# triton_registers = series.three_languages.triton_code.softmax_kernel.registers
# two_blocks_share = (hints[0].ms - hints[1].ms) / (hints[0].ms - hints[2].ms)
# hinted_as_triton = hints[2].ms / min(softmax['Triton'].ms, softmax[0].ms) < 1.05
# check = series.softmax_check.found
# less_accurate = check[0].max_difference > 2 * check[1].max_difference
# lines = series.softmax_rows.lines
# loop = lines['softmax_on_device'].ms
# linear = 3.7 < loop[5] / loop[4] < 4.1 and 3.7 < loop[4] / loop[3] < 4.1
# flat = lines['softmax_warp'].ms[-1] / lines['softmax_warp'].ms[0] < 1.1
