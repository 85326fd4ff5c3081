# %% [markdown]
# # 17 · Other ways to write a kernel
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - how a program over a block of elements differs from the program of a thread
# - what Triton and cuTile decide for you, and what they still want to know
# - when that is a gain, and how to notice when it is not

# %% [markdown]
# ## The problem
#
# Two jobs that you know: the sum of two vectors, and softmax of each row. Three languages, all of them Python to look
# at. In Numba you write what one thread does. In *Triton* and in *cuTile* you write what a whole block does, with
# vectors in place of numbers, and a compiler finds out what each thread has to do.
#
# Each of the three runs here in some way. Where there is no GPU, the programs in Triton run in Triton's interpreter, if
# Triton is installed, and those in cuTile on a small model of it in NumPy. That shows what they compute, and nothing
# about speed.

# %%
from labkit import device
from labkit.kernels.libraries import cutile as tile_kernels
from labkit.kernels.libraries import triton as triton_kernels

print("Numba:  on", device.name())
print("Triton: on", triton_kernels.why_not() or triton_kernels.where())
print("cuTile: on", tile_kernels.where())
print(tile_kernels.why_not())

# %% [markdown]
# ## Prediction
#
# Vector addition is bound by memory: 12 bytes for one addition. Before you go on, write down how the three languages
# will compare on a GPU for 2^28 elements, and how they will compare for softmax of 8,192 rows of 8,192. Which decision
# could make one of them slow?

# %% [markdown]
# ## A thread, a program, a tile
#
# The kernel of lesson 01 first. One thread has one element, and a guard for the threads that have none.

# %%
from labkit import show_source
from labkit.kernels.elementwise import vector_add_per_thread_kernel

show_source(vector_add_per_thread_kernel)

# %%
show_source(triton_kernels.add_kernel)

# %% [markdown]
# A *program* of Triton has a number, `program_id`, and no threads. `tl.arange(0, BLOCK)` is a vector of BLOCK numbers,
# and so is everything that is made from it: `offsets`, `mask`, `a`, `b`. A pointer plus a vector is a vector of
# pointers. The guard has become the mask, a vector of true and false: where it is false, nothing is loaded or stored.
# BLOCK is a `constexpr`, known when the program is compiled, because a vector in registers must have a known length.

# %%
show_source(tile_kernels.vector_add_tiles)

# %% [markdown]
# In cuTile even the pointers are gone. An array is cut into *tiles* of a given shape, `bid(0)` is the block's number,
# and `load` fetches the tile with that number. There is no mask: an array knows its length, and what a store has beyond
# the end is dropped. A tile is a value, as a number is. It has no address and cannot be written to.

# %%
from labkit.course.drawings import other_ways as pictures

pictures.masks(n=19, block=8)

# %% [markdown]
# The two rows of the picture cover the same elements, and the same five are missing at the end. What differs is who
# knows about threads. In Numba you chose how many there are and which element each one has. In the other two you chose
# how large a block is, and nothing else.

# %% [markdown]
# ## The same sums
#
# As far as `agree` is concerned, a program in another language is one more rung: it gets the arrays, and what it writes
# is compared with a float64 sum. One rounding is at most half of the error allowed.

# %%
from labkit import agree
from labkit.kernels.elementwise import vector_add_per_thread
from labkit.kernels.ops.elementwise import VECTOR_ADD

runs = [vector_add_per_thread, tile_kernels.vector_add_cutile]
if not triton_kernels.why_not():
    runs.append(triton_kernels.vector_add_triton)
agree(VECTOR_ADD.with_rungs(*runs))

# %% [markdown]
# The notebook that this course set out from adds 2^12 elements in tiles of 2^4.

# %%
import numpy as np

from labkit import cuda

n, tile = 2**12, 2**4
a, out = cuda.to_device(np.ones(n, np.float32)), cuda.device_array(n, np.float32)
tile_kernels.vector_add_cutile(a, a, out, tile=tile)
print(f"{n} elements in tiles of {tile}: {-(-n // tile)} blocks; {(out.copy_to_host() == 2).sum()} elements are right")

# %% [markdown]
# ## A power of two
#
# Both languages want the length of a vector to be a power of two. A warp has 32 lanes, a block has some warps, and a
# vector has to be dealt out to them evenly. Ask cuTile for a tile of 12:

# %%
try:
    tile_kernels.vector_add_cutile(a, a, out, tile=12)
except Exception as error:  # cuTile's own error, or the model's
    print(f"{type(error).__name__}: {str(error).splitlines()[0]}")

# %% [markdown]
# That is said when the program is compiled, not when it runs. cuTile's front end needs no GPU for it. Where the package
# is installed, it can also be watched at its work: from Python to *Tile IR*. To turn that into a GPU's code takes its
# compiler, tileiras, which comes with CUDA 13.3 for a GPU like the H200.

# %%
try:
    code = tile_kernels.translate(tile_kernels.vector_add_tiles, tile=16)
    print(f"{len(code)} bytes of Tile IR for tiles of 16")
except ImportError as error:
    print(error)

# %% [markdown]
# ## Softmax, and what to pad with
#
# A row of 781 numbers does not fill a vector of 1,024. For a sum the padding would have to be 0. What must it be for
# the maximum, if every number in the row may be negative? Look for the answer in both sources.

# %%
show_source(triton_kernels.softmax_kernel)

# %%
show_source(tile_kernels.softmax_tiles)

# %% [markdown]
# Minus infinity serves twice. It never is the maximum, and exp makes 0 of it, which adds nothing to the sum. Both
# programs take the whole row into one vector, subtract, exponentiate, divide. There is no loop, no barrier and no
# shared memory to be seen. In lesson 15 the same takes shuffles, trees and two barriers.

# %%
from labkit.kernels.ops.softmax import SOFTMAX
from labkit.kernels.softmax.rows import softmax_warp

runs = [softmax_warp, tile_kernels.softmax_cutile]
if not triton_kernels.why_not():
    runs.append(triton_kernels.softmax_triton)
agree(SOFTMAX.with_rungs(*runs))

# %%
rng = np.random.default_rng(0)
x = (50 * rng.standard_normal((4, 781)) - 300).astype(np.float32)  # nothing above 0
for softmax in runs:
    out = cuda.to_device(np.full(x.shape, np.nan, np.float32))
    softmax(cuda.to_device(x), out)
    print(f"{softmax.__name__:16} the rows add up to", *(f"{total:.6f}" for total in out.copy_to_host().sum(axis=1)))

# %% [markdown]
# ## On a GPU
#
# All in one run, on the same arrays, with cold caches, every result checked before it was timed. Your prediction is for
# this figure.

# %%
from labkit.measure.series import libraries as series

here = series.three_languages()  # None without a GPU
pictures.languages(here)

# %%
from labkit import measure

h200 = measure.recorded_series("three_languages", gpu="NVIDIA H200")
add, softmax = (job["rows"] for job in h200["jobs"])
code = h200["triton_code"]["add_kernel"]

versions = h200["versions"]
print(f"{h200['where']}, {h200['date']}, Triton {versions['triton']}, cuda-tile {versions['cuda-tile']}")
for row in (*add, *softmax):
    print(f"  {row['name']:32} {row['ms']:.3f} ms {row['gbs']:8,.0f} GB/s")
print(f"Triton's add_kernel: {code['warps']} warps, {code['registers']} registers a thread, "
      f"{code['vector_loads']} loads, each of 128 bits")

# %% [markdown]
# The sums first. Triton, cuTile and PyTorch are within one percent of each other{{ if max(fast) / min(fast) < 1.01 }},
# and so is the rung of lesson 01 that loads four elements ahead. The plain kernel in Numba reaches four
# fifths{{ if near(numba_share, 4 / 5) }} of that. Its thread asks for two numbers and waits. In Triton the program says
# 1,024 elements and nothing about threads, and the compiler made of it what that rung does by hand: 128 threads with 8
# elements each, four loads of 128 bits before the first addition.
#
# It does so only when it knows enough. Triton looks at the arguments of a launch: a pointer that is divisible by 16, an
# n that is divisible by 16. I compiled the same program twice for the H200, without launching it. Told that n is
# divisible by 16, it has 4 loads of 128 bits. Not told, it has 16 loads of 32 bits, since the mask may end within a
# vector. One more element in the array, and another program runs.
#
# The tiles of 16 from above were the source's, not mine. Triton gives a program 128 threads, if nothing else is said.
# What will they do with 16 elements? Predict the curve.

# %%
pictures.over_tiles(series.tile_sizes())

# %% [markdown]
# With 16 elements most of the threads have nothing to do, and a block costs its start, however little it does. Half the
# elements in a block are twice the blocks, and on the H200 twice{{ if near(tiles[0] / tiles[1], 2) }} the time. From
# 256 on{{ if halves_until_256 }}, two for each thread, memory is what it waits for, and the size makes no difference.
#
# Softmax surprised me twice. PyTorch's own takes twice{{ if near(torch_over_triton, 2, 0.12) }} as long as the other
# two. Compiled, it takes {{ compiled_longer:.0% }} longer than Triton's program here: `torch.compile` writes a Triton
# kernel, too, but one that goes over the row twice, the second time in the cache. And cuTile's, with the shortest
# source of all, takes longer still.
#
# To find out I compiled it offline for the H200, as `translate(..., output="cubin")` does, told tileiras 13.3 that the
# rows are well aligned, and read the machine code. A block has 256 threads, of which 128 compute: each holds 64 numbers
# of the row in registers. The other 128 carry the result away with the tensor memory accelerator. The kernel has 255
# registers{{ compiled }} a thread, the most there can be, and 256 × 255 registers{{ hardware }} are nearly all that a
# multiprocessor has. So there is room for one block at a time. While it computes, nothing is loaded, and while it
# stores, nothing is computed. Triton's program was launched with {{ triton_warps }} warps and has
# {{ triton_registers }} registers a thread, so four of its blocks share a multiprocessor, and one can load while
# another computes.
#
# In Triton the number of warps is one that I chose, in the launcher. In cuTile I left it all to the compiler, as one
# should at first. Its decorator takes hints, and `occupancy` is the one that fits the suspicion: how many blocks a
# multiprocessor should hold. With `ct.kernel(occupancy=4)` the same program has to do with {{ 65536 // (4 * 256) }}
# registers a thread. Write down what you expect of 2, 4 and 8. At 8, a thread has {{ 65536 // (8 * 256) }} registers
# for its {{ 8192 // 128 }} numbers, and the compiler moves some of them to memory and back. The next cell tries it
# where cuTile runs, and elsewhere shows the H200's run.

# %%
hints = series.tile_hints() or measure.recorded_series("tile_hints", gpu="NVIDIA H200")
print(f"{hints['where']}, {hints['date']}")
for row in hints["found"]:
    words = ", ".join(f"{name} {value}" for name, value in row["hints"].items()) or "no hint"
    print(f"  {words:34} {row['ms']:.3f} ms {row['gbs']:8,.0f} GB/s")

# %% [markdown]
# On the H200 the suspicion was right. With room for four blocks the same source takes less than
# half{{ if hints[2].ms / hints[0].ms < 0.5 }} of its time, and stands within a few percent of Triton's program and of
# our kernel. Two blocks go two thirds{{ if near(two_blocks_gain, 2 / 3) }} of the way. Eight are slower than no hint at
# all{{ if hints[3].ms > hints[0].ms }}: what no longer fits the registers goes through memory. One word to the compiler
# was worth more than anything I could have changed in the program.

# %%

import numpy as np

from labkit import agree, cuda, measure, show_source
from labkit.course.drawings import libraries as pictures
from labkit.kernels.libraries import blas, blas_softmax
from labkit.kernels.libraries.blas_softmax import softmax_by_isamax, softmax_by_row_max, softmax_on_device
from labkit.measure.series import libraries as series

blas.source()

# %% [markdown]
# ## Softmax from library calls
#
# Softmax turns a row of numbers into positive ones that add up to 1:
#
# $$\text{out}_c = \frac{e^{x_c - m}}{\sum_j e^{x_j - m}} \qquad m = \max_j x_j$$
#
# Mathematically m cancels. Numerically it keeps $e^x$ in range: in float32, exp of 89 is infinite. Lesson 15 writes a
# kernel for this. Here is an idea that looks economical: let the library do the reductions, and write only the two
# steps between. BLAS has `asum`, the sum of absolute values, which for exponentials is their sum. And it has `isamax`,
# the index of the largest element. Fortran counts from 1, and so does `isamax`: mind the `index - 1`.

# %%
x = cuda.to_device(np.array([1, -7, 3], np.float32))
print("of [1, -7, 3]: isamax", blas.isamax(3, x), "  asum", blas.asum(3, x))
show_source(softmax_by_isamax)

# %% [markdown]
# Element number 2 is −7, and the sum is 11. Remember both.
#
# The notebook that this course follows tests its softmax with 128 × 128 numbers from −10 to 10: it compares each
# element with a CPU's within 1e-5, and prints the sum of the first row. Its output was: results match, sum of the first
# row 1.000000{{ quoted }}. Here is the same test for three forms; the second and the third come below.

# %%
for row in series.softmax_check()["found"]:
    print(f"{row['name']:20} difference {row['max_difference']:.1e}   row 0 adds up to {row['first_row_sum']:.6f}")

# %% [markdown]
# All three match. Now a row that the test does not have: −200 and 100. Before you run it, go through the code above
# with a pencil. What is `index`, what is `biggest`, and what is exp of the difference?

# %%
row = cuda.to_device(np.array([[-200.0, 100.0]], np.float32))
out = cuda.device_array((1, 2), np.float32)
with np.errstate(over="ignore", invalid="ignore"):
    softmax_by_isamax(row, out)
print(out.copy_to_host())

# %% [markdown]
# `isamax` compares absolute values, so it finds −200. 100 minus −200 is 300, exp of 300 is infinite in float32, and
# infinity divided by infinity is not a number. The right answer is 0 and 1.
#
# The test could not find this. With numbers from −10 to 10 the wrong maximum is wrong by at most 20, exp of 20 is a
# number like any other, and m cancels, as it does on paper. A test finds what its inputs contain. (Even there it costs
# accuracy: $x - m$ is rounded, more coarsely the further m is from x. Compare the differences in the table above.)
#
# BLAS has no maximum. So the second form finds the maxima of all rows with one launch of a reduction kernel, of the
# kind that lesson 15 builds.

# %%
for softmax in (softmax_by_row_max, softmax_on_device):
    softmax(row, out)
    print(f"{softmax.__name__:20} {out.copy_to_host()}")
agree(blas_softmax.BLAS_SOFTMAX, sizes=({"R": 3, "C": 5}, {"R": 9, "C": 32}, {"R": 7, "C": 1000}))

# %% [markdown]
# ## A loop on the host
#
# Each row takes its own calls, one after another, from Python. In the first form the host waits three times for each
# row: for the index, for one element of `x`, and for the sum. The third form leaves both numbers in device memory,
# where the kernels read them, and never waits.

# %%
show_source(softmax_on_device)

# %% [markdown]
# Predict the time as the number of rows grows, for the loops and for one kernel that takes all rows in a single launch
# (`softmax_warp`, a warp for each row; lesson 15 explains such reductions). From where on does each grow?

# %%
h200 = measure.recorded_series("softmax_rows", gpu="NVIDIA H200")
rows, ms = h200["rows"][-1], {line["name"]: line["ms"][-1] for line in h200["lines"]}
for name in ("softmax_by_isamax", "softmax_by_row_max", "softmax_on_device", "softmax_warp"):
    print(f"{name:20} {ms[name]:9.3f} ms for {rows:,} rows of {h200['cols']:,}: {1000 * ms[name] / rows:8.2f} us a row")
print(f"{h200['where']}; the best loop takes {ms['softmax_on_device'] / ms['softmax_warp']:,.0f} times one launch")
pictures.over_rows(series.softmax_rows())

# %% [markdown]
# The loops grow from the second row on, in a straight line: twice the rows, twice the time{{ if linear }}. On the H200
# one launch costs the same for one row as for a thousand{{ if flat }}, so the loops do not spend their time on softmax.
# It is spent between the calls: on Python, the launches, and in two of the three on waiting for a number. Leaving the
# numbers on the device removes the waiting, but not the launches.
#
# The library's reductions are good, but they take one vector at a time, and a softmax needs one for each row. A library
# is fast at the job it was written for; the shape of the call decides whether yours is that job.

# %% [markdown]
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
# | goes to | PTX | PTX | Tile IR |
#
# The rows that say "you" are the subject of lessons 07, 08 and 15 to 18. They are work. They are also the reason why
# this course is in Numba: a decision that a compiler takes cannot be learned by watching it being taken, only by taking
# it.
#
# The three can be mixed in one program, since all of them work on the same memory. Triton and cuTile take PyTorch's
# tensors. A kernel in Numba does, too, and `labkit.kernels.softmax.torch_op` makes one into an operation of PyTorch.

# %% [markdown]
# ## What was implemented
#
# - vector addition and softmax in Triton, with masks, for any length
# - the same in cuTile, and a model of the few names it takes, so that the programs run anywhere
# - a comparison in one run, with the machine code as witness

# %% [markdown]
# ## What I learned
#
# - A mask is a guard written for a whole vector. The question is the same: what happens to those who have no element?
# - Padding is part of the algorithm. 0 for a sum, minus infinity for a maximum, and a test of positive numbers would
#   not tell them apart.
# - Vector addition is too easy to compare languages with. Whoever asks for enough bytes at a time gets the memory's
#   speed.
# - Where a compiler decides, ask it what it decided. Threads and registers of a block are two numbers, and they told me
#   where to look.
# - Divisible by 16 is a property of your data that a compiler can use, if you let it hold.

# %% [markdown]
# ## Resources
#
# - [Triton: Vector Addition](https://triton-lang.org/main/getting-started/tutorials/01-vector-add.html)
# - [Triton: Fused Softmax](https://triton-lang.org/main/getting-started/tutorials/02-fused-softmax.html)
# - [Tillet, Kung, Cox: Triton, an intermediate language and compiler for tiled neural network computations
#   (2019)](https://doi.org/10.1145/3315508.3329973)
# - [cuTile Python](https://docs.nvidia.com/cuda/cutile-python)

# %% [markdown]
# ## Try it
#
# - Copy `softmax_tiles` into a cell and leave out `padding_mode`. Predict the result for a row of 5 on the model, and
#   say why cuTile promises nothing about it.
# - `pictures.masks(n, 8)`: for which n is nothing masked? If n is uniformly random, what share of a large program is
#   wasted on average? And of softmax, where a row of 1,025 takes a vector of 2,048?
# - The two curves over the size of a tile lie on top of each other, up to 128 in steps of exactly two. What does that
#   say about who computes and who only waits? How many blocks a second does the H200 start?
# - With a GPU: launch `triton_kernels.softmax_kernel` by hand with `num_warps=1` and with 32. Predict first which of
#   the two suffers from registers, and which from waiting.
#
# Next: **reductions and softmax**, with every decision taken by hand.

# %% [numbers]
# add = series.three_languages.jobs[0].rows
# softmax = series.three_languages.jobs[1].rows
# fast = [add['Triton'].ms, add['cuTile'].ms, add['PyTorch'].ms]
# hints = series.tile_hints.found
# tiles = series.tile_sizes.lines['Triton'].ms
# numba_share = add['Triton'].ms / add['Numba, vector_add_per_thread'].ms
# halves_until_256 = tiles[3] / tiles[4] > 1.5 and tiles[4] / tiles[5] < 1.05
# torch_over_triton = softmax['PyTorch'].ms / softmax['Triton'].ms
# compiled_longer = row('softmax', 'PyTorch, compiled').graph_us / row('softmax', 'Triton').graph_us - 1
# triton_warps = series.three_languages.triton_code.softmax_kernel.warps
# triton_registers = series.three_languages.triton_code.softmax_kernel.registers
# two_blocks_gain = (hints[0].ms - hints[1].ms) / (hints[0].ms - hints[2].ms)

# product = series.library_products.rows
# lines = series.softmax_rows.lines
# loop = lines['softmax_on_device'].ms
# f16_error = product['cuBLAS GEMM f16, sums f32'].relative_error
# bf16_over_f16 = (product['cuBLAS GEMM bf16, sums f32'].relative_error /
#                  product['cuBLAS GEMM f16, sums f32'].relative_error)
# linear = 3.7 < loop[5] / loop[4] < 4.1 and 3.7 < loop[4] / loop[3] < 4.1
# flat = lines['softmax_warp'].ms[-1] / lines['softmax_warp'].ms[0] < 1.1
