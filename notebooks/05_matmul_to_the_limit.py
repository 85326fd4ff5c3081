# %% [markdown]
# # 05 · Matrix multiplication to the limit
#
# *Lab notebook, 20 November 2026*
#
# You will learn
#
# - why each thread should compute a small tile of the product, and how large a tile it can afford
# - how loads are kept on their way while the multiply-adds run
# - what a tensor core multiplies, which lane holds which number, and what its formats cost in accuracy
#
# ## The problem
#
# The product is the one of lesson 04, and so is the reference. That lesson ended on the H200 with the best rung at 13%
# of the peak, and with a count: in the tiled kernel a thread loads 20 times from shared memory for 16 multiply-adds,
# and shared memory can serve one warp in the time in which the arithmetic could serve four.

# %%
from labkit import measure, roofline
from labkit.kernels.matmul.float32 import MATMUL

h200 = measure.recorded_ladder("matmul", gpu="NVIDIA H200")
print("on the H200")
for name in ("matmul_tiled", "matmul_tiled_32", "PyTorch (cuBLAS)"):
    row = h200.row(name)
    print(f"{name:17} {row.tflops:5.1f} TFLOP/s, {row.fraction:.0%} of the peak")

roofline.predict(MATMUL, M=4096, N=4096, K=4096)

# %% [markdown]
# ## Prediction
#
# A multiprocessor has 128 units for multiply-adds in float32, so four warps can do one in each clock. Its shared memory
# is built of 32 *banks*: neighbouring numbers lie in neighbouring banks, and a bank hands out one number in a clock. So
# at best it serves the 32 lanes of one warp. If a thread loads L numbers for P products, at most P in 4 L of the units
# can be busy.
#
# A thread with one element of `out` loads two numbers for each product. Now let it compute a *thread tile* of
# p × p elements.
# In one step of k it loads p numbers of `a` and p of `b`, keeps them in registers, and multiplies each with each.
#
# Before you run the next cell: which p would keep all units busy? And what might stop you from taking p = 16 at once?

# %%
for p in (1, 2, 4, 8, 16):
    loads, products = 2 * p, p * p
    busy = min(1.0, products / (4 * loads))
    print(f"{p:2d} x {p:<2d}  {loads:2d} loads, {products:3d} products: at most {busy:4.0%} busy")

# %% [markdown]
# From p = 8 on, shared memory is no longer what runs short. The price is registers. The p × p sums have to stay
# somewhere between two steps, and a thread of this GPU has 255 registers at most.
#
# ## A tile for each thread

# %%
from labkit import plots

plots.thread_tile(threads=4, size=4)

# %%
from labkit import show_source
from labkit.kernels.matmul.float32 import make_matmul_register_blocked

show_source(make_matmul_register_blocked)

# %% [markdown]
# `cuda.local.array` asks for memory of the thread's own. If every index is a constant when the kernel is compiled, the
# compiler needs no memory for it and gives each element a register. The loops over it have constant bounds and are
# *unrolled*, written out round by round, and after that all indices are constants.
#
# The elements of a thread tile lie 16 apart. Then the 16 threads of a row of the block read 16 neighbours in `b_tile`:
# 16 different banks, in one go.
#
# With p = 8 the block's tile of `out` is 128 × 128, and each tile is only 8 deep. Here is what three sizes of
# thread tile did on the H200. Registers and local memory are as the compiler reported them.

# %%
for size in ("_4", "", "_16"):
    name = "matmul_register_blocked" + size
    row = h200.row(name)
    used = row.resources[0]
    print(f"{name:26}  {row.tflops:5.1f} TFLOP/s   {used['registers']:3d} registers, "
          f"{used['local_bytes']:4d} bytes of local memory a thread")

# %% [markdown]
# 4 × 4 doubles the speed of the tiles, or nearly so, and 8 × 8 more than triples it. And 16 × 16, which should need
# the fewest loads of all, is slower than 4 × 4. Its 256 sums do not fit. What does not fit is kept in *local memory*,
# which in spite of its name is ordinary memory behind the caches. The last column says how many bytes of it each
# thread needs, and they are written and read again in every step. I keep the rung, marked as failed. The formula that
# recommended it was right about loads, and knew nothing of registers.
#
# ## 128 bits at a time
#
# An instruction of the GPU can load 4, 8 or 16 bytes for each lane. 16 bytes are four floats. Numba never uses that by
# itself, even where four neighbours are loaded one after the other, because it cannot know that the address is a
# multiple of 16. `labkit.ptx` has the instruction by its own name. (*PTX* is NVIDIA's assembly language. The compiler
# writes it, and the driver makes of it the machine code of the GPU at hand.)

# %%
from labkit.kernels.matmul.float32_tiles import load_four

show_source(load_four)

# %% [markdown]
# `nc` in `load_nc4` stands for *non-coherent*: these data are not written while the kernel runs, so the load may take a
# path that does not watch for writes. In C++ the compiler finds that out from `const` and `__restrict__`. Numba has no
# such word, the instruction says it.
#
# In shared memory the four numbers have to be neighbours, too. For `b` they are: a row of the tile is a row of the
# matrix. A thread tile needs four *rows* of `a` at the same k. So the tile of `a` is transposed as it is written, and
# its rows are made four longer than they need to be. The picture shows why, for eight banks in place of 32.

# %%
lines = {"8 in a line": lambda k, row: 8 * k + row, "9 in a line": lambda k, row: 9 * k + row}
plots.banks(lines)

# %% [markdown]
# A warp that writes a row of `a` as a column of the tile hits one bank again and again, unless each line begins a
# little further on. (The kernel writes two columns of 16 at a time, and 4 is the shift that keeps their 32 numbers
# apart.)
#
# Four loads now feed 64 products, where 16 did before. Predict: is that worth a factor of four?

# %%
for name in ("matmul_register_blocked", "matmul_vectorized"):
    print(f"{name:24}  {h200.row(name).tflops:.1f} TFLOP/s on the H200")

# %% [markdown]
# It is not, and it could not be. The numbers are as many as before, and shared memory, with 128 bytes in a clock,
# still takes four clocks for the 512 bytes of one such load. What is saved is instructions. A multiprocessor has four
# *schedulers*. Each issues one instruction of one of its warps in a clock, and one that is not a multiply-add takes
# the place of one.
#
# That suggests another way to look at a kernel: how many of its instructions are multiply-adds? NVIDIA's profiler,
# which the next lesson introduces, counts the instructions. The product of 4,096 takes 2.15 billion multiply-adds of
# whole warps, for everyone.

# %%
# Read with Nsight Compute on the H200: instructions of warps, how busy the units for multiply-adds were, and how many
# warps of a scheduler waited for global memory whenever one of its warps issued an instruction.
from labkit.measure import ncu

rows = {row["name"].split(" (")[0].removeprefix("matmul_"): row for row in ncu.recorded()["ops"]["matmul"]["rows"]}


def shown(value, format_spec):
    return "-" if value is None else format(value, format_spec)


print("                    instructions   multiply-adds   units busy   wait for memory")
for name in ("register_blocked", "vectorized", "double_buffered", "pipelined", "PyTorch"):
    row = rows.get(name, {})
    instructions, busy = row.get("instructions"), row.get("fma_percent")
    share = instructions and 4096**3 / 32 / instructions
    waiting = row["stalls"].get("long_scoreboard", 0.0) if row else None
    print(f"{name:18} {shown(instructions and instructions / 1e9, '9.3f'):>9} bn {shown(share, '.0%'):>12} "
          f"{shown(busy and busy / 100, '.0%'):>14} {shown(waiting, '.2f'):>17}")

# %% [markdown]
# (PyTorch's product is cuBLAS's.) The share of multiply-adds is a ceiling, and the units of *vectorized* stay well
# below theirs. The rest is waiting, and the next two rungs go after that.
#
# ## Two pairs of tiles
#
# In every kernel so far a block loads, waits, multiplies, waits. While it loads, its multiply-add units have nothing to
# do, unless another block on the same multiprocessor happens to be at its products. With a second pair of tiles the
# loads of the next step can be under way during the products of this one. That is *double buffering*.

# %%
plots.overlap()

# %%
from labkit.kernels.matmul.float32 import make_matmul_double_buffered

show_source(make_matmul_double_buffered)

# %% [markdown]
# Look for the order of things in the loop. The numbers that were loaded during the last round go to shared memory.
# Barrier. The loads of the next round start. The products follow, and nothing in them needs those loads, so no warp
# waits. There is one barrier in a round. It says that this pair is complete, and as everybody is past the last round's
# products by then, the other pair is free.
#
# On the H200 the waiting for global memory disappeared: compare the last column of the table above, for *vectorized*
# and for *double_buffered*. What do you expect of the speed?

# %%
for name in ("matmul_vectorized", "matmul_double_buffered", "PyTorch (cuBLAS)"):
    print(f"{name:24}  {h200.row(name).tflops:.1f} TFLOP/s on the H200")

# %% [markdown]
# Next to nothing. Two blocks share a multiprocessor, and one had covered for the other already. What warps wait for now
# is shared memory: each step begins with four loads and then needs their results at once.
#
# ## A pipeline
#
# The last rung of this ladder changes four things.
#
# - `cp.async` copies from global to shared memory without passing through registers. A thread starts a copy and goes
#   on. With no registers to wait in, copies can run further ahead. Three pairs of tiles form a ring.
# - The numbers of the next step of k are read from shared memory during the products of this one. That takes a second
#   set of 16 registers, one for even and one for odd steps.
# - The 32 patches of a warp lie together, in a tile of 64 × 32.
# - The 64 products go to and fro, so that each shares a factor with the one before it. A register that is read twice
#   running is fetched once.

# %%
from labkit.kernels.matmul.float32_tiles import add_products_to_and_fro, copy_pair, two_steps

show_source(copy_pair)

# %%
show_source(add_products_to_and_fro)

# %%
show_source(two_steps)

# %% [markdown]
# The kernel calls `two_steps` seven times in a row, with the numbers 0, 2, 4 and so on. It looks clumsy, and it is on
# purpose. Written out, the code runs at 0.96 of the speed of cuBLAS on the H200; as a loop it was clearly slower. The
# compiler does not unroll a loop of this size, and where a loop ends, the reading ahead ends, too. The order of the
# products gains a little more.
#
# A copy that nobody waits for is a new way to be wrong. `cp_async_commit` closes a group of copies, `cp_async_wait(n)`
# waits until at most n groups are still on their way, and only a barrier after that makes the numbers everybody's. Here
# is what happens without the wait.

# %%
from numba import float32, uint32

from labkit import cuda, observe, ptx


@cuda.jit
def no_wait_kernel(a, out):
    tile = cuda.shared.array(64, float32)
    i = uint32(cuda.threadIdx.x)
    ptx.cp_async_4(tile, i, a, i, 4)
    ptx.cp_async_commit()
    # ptx.cp_async_wait(0) belongs here
    cuda.syncthreads()
    out[i] = tile[uint32(63) - i]


# %%
import textwrap

import numpy as np

numbers = np.arange(64, dtype=np.float32)
report = observe(no_wait_kernel[1, 64], numbers, np.zeros_like(numbers))
print(textwrap.fill(str(report.races[0]), 90))

# %% [markdown]
# On a GPU it may be right, whenever the copy happens to be fast enough. That makes it a bug of the worst kind.
#
# ## What the compiler does
#
# Twice now it mattered whether a loop is unrolled. Here are two dot products of 16 numbers, one with the length as a
# constant and one with the length as an argument.

# %%
from labkit.device import compiling


@cuda.jit
def dot_constant(a, b, out):
    total = float32(0.0)
    for k in range(16):
        total += a[k] * b[k]
    out[0] = total


@cuda.jit
def dot_variable(a, b, out, length):
    total = float32(0.0)
    k = uint32(0)
    while k < length:
        total += a[k] * b[k]
        k = uint32(k + uint32(1))
    out[0] = total


# %%
from numba import types

vector, matrix = types.float32[::1], types.Array(types.float32, 2, "C")
pipelined_kernel = MATMUL.rung("matmul_pipelined").kernel[0]
compiled = {dot_constant: (vector,) * 3, dot_variable: (vector,) * 3 + (types.uint32,),
            pipelined_kernel: (matrix,) * 3}
try:
    for kernel, arguments in compiled.items():
        text = compiling.ptx(kernel, types.void(*arguments))
        fused, jumps, calls = (text.count(word) for word in ("fma.rn.f32", "bra", "call.uni"))
        print(f"{kernel.__name__:24} {fused:5d} multiply-adds, {jumps} jumps, {calls} calls")
except compiling.NoCompiler:
    print("No compiler for NVIDIA's GPUs is installed here. Where there was one, it said:\n")
    print("dot_constant                16 multiply-adds, 0 jumps, 0 calls")
    print("dot_variable                 5 multiply-adds, 5 jumps, 0 calls")
    print("matmul_pipelined_kernel   1024 multiply-adds, 21 jumps, 0 calls")

# %% [markdown]
# With a constant the loop is gone: 16 multiply-adds in a row. With an argument it stays a loop, four products to a turn
# and one more for what is left over. CUDA C++ has `#pragma unroll` to ask for it, and templates to make a size a
# constant. In Numba a function that makes the kernel does both: what it closes over is a constant inside.
#
# The last line shows that nothing is called. Device functions are inlined, so `two_steps` and the others cost nothing.
# CUDA C++ has `__forceinline__` to make sure.
#
# ## Right at every size

# %%
from labkit import agree, device

odd = ({"M": 1, "N": 1, "K": 1}, {"M": 37, "N": 23, "K": 19}, {"M": 129, "N": 131, "K": 35})
few = ["matmul_register_blocked", "matmul_pipelined"]
rungs = device.pick(gpu=[rung.__name__ for rung in MATMUL.rungs], cpu=few)
agree(MATMUL, rungs, sizes=device.pick(gpu=MATMUL.awkward, cpu=odd))

# %% [markdown]
# A tile of 128 × 128 for a product of 37 × 23 is a waste, and it is right. Rows that do not begin at multiples of 16
# bytes cannot be loaded four at a time. The fast kernels have a slower form for those, and the launcher picks.
#
# (On the CPU device I look at two rungs here. Each takes some seconds to compile for a processor. `agree(MATMUL)` tries
# all ten.)
#
# ## The ladder

# %%
from labkit import ladder

size = device.pick(gpu=MATMUL.work.timed_gpu, cpu={"M": 67, "N": 67, "K": 67})
found = ladder(MATMUL, size, rungs=rungs)
found

# %%
plots.ladder(found)

# %% [markdown]
# On the CPU device a register is a place in memory like any other and nothing is on its way: the copies of `cp.async`
# are made when they are waited for. The order of the rungs there says nothing about a GPU.
#
# The bars of the H200 do. From the naive kernel to the pipeline it is a factor of fifty. What separates the last rung
# from cuBLAS can be read in the table of counts above: nearly the same number of instructions, and units that cuBLAS
# keeps busy for a little more of the time. That neither comes closer to all of it has two causes at least. Not every
# instruction is a multiply-add. And a multiply-add reads three registers, which the register file cannot always
# deliver in one clock. The profiler calls that a *dispatch stall*, and sees more of it in my kernel.

# %%
ours, theirs = h200.row("matmul_pipelined"), h200.row("PyTorch (cuBLAS)")
ratio = theirs.timing.p50 / ours.timing.p50
print(f"on the H200: {ours.tflops:.1f} TFLOP/s, {ratio:.2f} of cuBLAS, {ours.fraction:.0%} of the peak")

# %% [markdown]
# That is at 4,096. At other sizes the picture is less kind.

# %%
sizes = measure.recorded_series("matmul_sizes", gpu="NVIDIA H200")
rates = {line["name"]: line["rate"] for line in sizes["lines"]}
for at, n in enumerate(sizes["x"]):
    ours, theirs = rates["matmul_pipelined"][at], rates["PyTorch (cuBLAS)"][at]
    print(f"{n:5,}  {(n // 128) ** 2:5,} blocks  {ours:5.1f} of {theirs:4.1f} TFLOP/s: {ours / theirs:.2f}")

# %% [markdown]
# A product of 1,024 has 64 tiles of 128 × 128, and the H200 has 132 multiprocessors. More than half of them get
# nothing. cuBLAS has many kernels: it can take one with smaller tiles, or let several blocks share the steps of k. I
# have one kernel.
#
# ## Another unit
#
# A multiply-add instruction of a warp does 64 flops. Beside the units for those stands one that does thousands: the
# *tensor core*. Its instruction multiplies two small matrices and adds the product to a third. `mma.sync` m16n8k16
# (M, N and K are in the name) takes 16 × 16 and 16 × 8 *halves*, numbers of two bytes, and adds to 16 × 8 float32 sums.
#
# All 32 lanes of a warp execute it together, and each brings a part of the matrices in its registers. That part is
# called a *fragment*. Which lane holds what is fixed. It is the table that you keep open beside the editor when you
# write such a kernel.

# %%
plots.mma_lanes(lane=13)

# %%
flops = 2 * 16 * 8 * 16
limits = h200.limits
print(f"one mma.sync: {flops:,} flops; one multiply-add of a warp: {2 * 32}")
print(f"peaks of the H200: {limits['fp32_tflops']:.0f} TFLOP/s in float32, "
      f"{limits['mma_f16_tflops']:.0f} with mma.sync on halves")

# %% [markdown]
# Ten times the peak. Here is a product with it, the simplest that I could write: a warp computes 16 × 16 elements, and
# each lane collects its fragments from global memory, number by number.

# %%
from labkit.kernels.matmul.half import MATMUL_HALF, matmul_half_tensor_core_kernel

show_source(matmul_half_tensor_core_kernel)

# %%
agree(MATMUL_HALF, ["matmul_half_tensor_core"], sizes=MATMUL_HALF.awkward[:4])

# %% [markdown]
# The CPU device does what the instruction does, from all 32 lanes' registers to all 32 lanes' registers. So a kernel
# for tensor cores can be written and tested on a machine that has none.
#
# The float32 pipeline reaches 49 TFLOP/s on the H200. Predict: how far does this kernel get, with a unit that is ten
# times as fast?

# %%
h200_half = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")
times = {row.name.removeprefix("matmul_half_"): 1000 * row.timing.p50 for row in h200_half.rows}
for name, us in times.items():
    print(f"{name:20} {us:9,.0f} us {2 * 4096**3 / us / 1e6:7.1f} TFLOP/s on the H200")

# %% [markdown]
# `tensor_core` reaches less than a third of what the float32 pipeline does without tensor cores. A unit that is ten
# times as fast is ten times as hungry, and this kernel feeds it two bytes at a time. So the climb begins again from the
# bottom, with the same steps as before: reuse in shared memory, wide copies, two buffers, a pipeline. Here is what each
# rung of the table does.

# %%
MATMUL_HALF

# %% [markdown]
# *Swizzled* means that the pieces of a row change places, so that a column is spread over the banks; lesson 11 draws
# it. A *warpgroup* is four warps.
#
# What is new is `ldmatrix`. It reads four 8 × 8 blocks of halves from shared memory and deals them out to the lanes in
# just the layout that `mma.sync` wants. Each lane gives the address of one row of 16 bytes. One instruction takes the
# place of eight loads and four packings.
#
# The last two rungs use an instruction that came with the H200's generation, Hopper: `wgmma`. 128 threads multiply 64
# rows by up to 256 columns, and both matrices are read from shared memory, without fragments. Copies are made by a unit
# of their own, the *tensor memory accelerator*, TMA: one thread asks for a whole tile and goes on. In the last rung 128
# threads do nothing but ask for tiles, and 256 do nothing but multiply. How they tell each other which tile is ready is
# drawn in the docstring of `make_wgmma_specialised`, in `labkit/kernels/matmul/wgmma.py`.
#
# Your own ladder of halves follows if you have a GPU. If not, the H200's.

# %%
plots.ladder(ladder(MATMUL_HALF) if device.on_gpu() else h200_half, None)

# %% [markdown]
# ### Two steps that failed elsewhere
#
# The ladder of halves follows a write-up, *the source* from here on: MiniLM, a small language model, by hand in CUDA on
# an RTX 3090. Its author reports two steps out of the textbook that made things worse. I tried both on the H200.
#
# - *Tiles in shared memory, filled by hand.* Slower there, and slower here: 11 TFLOP/s against the 14 of the kernel
#   that reads everything from global memory again and again. The reason given is right, too. Those repeated reads hit
#   the caches, and the tiles add barriers and copies of single halves. It is not shared memory that fails here, it is
#   the way in: with copies of 16 bytes by `cp.async`, and with `ldmatrix`, tiles reach 281.
# - *A third buffer.* Slower there on every shape. Here it is ahead, by little in products of the source's shapes and by
#   more the longer the dot products are:

# %%
print("K       two buffers   three, in a graph on the H200")
for M, N, K in ((8192, 1152, 384), (8192, 384, 1536), (4096, 4096, 4096)):
    recorded = measure.recorded_ladder("matmul_half", {"M": M, "N": N, "K": K}, gpu="NVIDIA H200")
    two, three = (1000 * recorded.row(f"matmul_half_{name}").graph.p50 for name in ("double_buffered", "three_stage"))
    print(f"{K:<5,} {two:10.1f} us {three:9.1f} us   {two / three:.2f} times as fast")

# %% [markdown]
# I think that a short K has little time to win back what a deeper pipeline costs at its beginning.
#
# ## What halves cost
#
# A half has 11 bits of precision and a largest value of 65,504. bfloat16 has the range of a float32 and 8 bits. TF32
# has that range and the 11 bits of a half. In all three the products of two numbers are exact and the sums are
# float32. So the error comes from rounding the inputs. NumPy can show its size.

# %%
def to_bf16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def to_tf32(x):
    return ((x.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def relative_error(got, true):
    return np.linalg.norm(got - true) / np.linalg.norm(true)


# %%
rng = np.random.default_rng(5)
a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((256, 1024), (1024, 256)))
true = a.astype(np.float64) @ b.astype(np.float64)

formats = {"float16": lambda x: x.astype(np.float16), "TF32": to_tf32, "bfloat16": to_bf16}
for name, rounded in formats.items():
    got = rounded(a).astype(np.float64) @ rounded(b).astype(np.float64)
    cosine = (got * true).sum() / np.linalg.norm(got) / np.linalg.norm(true)
    print(f"{name:9} relative error {relative_error(got, true):.1e}   cosine {cosine:.7f}")
print(f"float32   relative error {relative_error(a @ b, true):.1e}")

# %% [markdown]
# Three digits, or a little more than two for bfloat16. For a neural network that is often plenty. The cosine between
# the results, which is what the source watched, hardly feels it.
#
# One can save once more and keep the *sums* in halves. On a GeForce card such an `mma.sync` runs at twice the rate of
# the one with float32 sums, and the source's author closed the last gap to cuBLAS with it. But a sum is rounded after
# every instruction now. Predict how the error grows with K.

# %%
for depth in (64, 256, 1024, 4096):
    shapes = (128, depth), (depth, 128)
    a, b = (rng.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in shapes)
    true = a.astype(np.float64) @ b.astype(np.float64)
    sums = np.zeros((128, 128), np.float16)
    for k in range(0, depth, 16):  # one mma.sync
        sums = (sums + a[:, k : k + 16] @ b[k : k + 16]).astype(np.float16)
    single = (a @ b).astype(np.float16)
    errors = relative_error(single, true), relative_error(sums, true)
    print(f"K = {depth:5,}   float32 sums {errors[0]:.1e}   half sums {errors[1]:.1e}")

# %% [markdown]
# With float32 sums the error is that of the one rounding at the end, for every K. With half sums it grows like the
# square root of the number of steps. The cosine was still 0.9999 at the end of the source's six layers, with K of 384
# and 1,536. And the H200 is no GeForce. Here is the same kernel with float32 sums and with half sums.

# %%
for name in ("double_buffered", "f16_accumulators"):
    print(f"{name:16} {2 * 4096**3 / times[name] / 1e6:.0f} TFLOP/s on the H200")

# %% [markdown]
# ## Theirs and ours
#
# The source measured milliseconds for a sentence through a model of six layers, all kernels together, on an RTX 3090. I
# measure the product alone, 4,096 in each direction, on an H200. The times cannot be compared. The factors can, with
# care.

# %%
steps = [
    ("tiles in shared memory", "naive", "tiled", "7 to 2.6 ms", 7 / 2.6),
    ("tensor cores, a tile a warp", "tiled", "tensor_core", "2.6 to 0.91 ms", 2.6 / 0.91),
    ("cp.async, 64 x 32 a warp", "tensor_core", "double_buffered", "0.225 to 0.10 ms", 2.25),
    ("half sums", "double_buffered", "f16_accumulators", "0.101 to 0.091 ms", 0.101 / 0.091),
]
print(f"{'':30}{'source, RTX 3090':30}ours, H200")
for idea, before, after, theirs, factor in steps:
    print(f"{idea:30}{theirs:20}x {factor:<8.1f}x {times[before] / times[after]:.1f}")

# %% [markdown]
# (The first two lines of the source are for one sentence, the others for each of 64 in a batch. Blocking the registers
# of the attention's scores in the same way took it from 0.102 to 0.101 ms. At equal precision its product stayed about
# 13% behind cuBLAS, and it says so.)
#
# The largest factor is in another place. On the RTX 3090 tensor cores brought most at once, and on the H200 they are
# worth little until copies and fragments keep up with them. A faster unit moves the work to whatever feeds it.

# %%
ratio = times["PyTorch (cuBLAS)"] / times["wgmma_specialised"]
print(f"wgmma_specialised on the H200: {ratio:.2f} of cuBLAS's speed, at equal precision")

# %% [markdown]
# And the shapes of the source's model: its four linear layers, `x @ w.T + bias`, for 64 sentences of 128 tokens. Both
# sides have float32 sums and the bias in the same kernel. Microseconds in a CUDA graph on the H200, ours by the last
# rung of `linear`, and by `pipelined`, the fastest on `mma.sync`.

# %%
print(f"{'layer':15}{'ours':>7}{'PyTorch':>13}{'speed':>8}{'on mma.sync':>15}")
for before, after in ((384, 1152), (384, 384), (384, 1536), (1536, 384)):
    recorded = measure.recorded_ladder("linear", {"M": 8192, "N": after, "K": before}, gpu="NVIDIA H200")
    us = {row.name.split(" ")[0]: 1000 * row.graph.p50 for row in recorded.rows if row.graph}
    ours, theirs, mma = (us[name] for name in ("linear_wgmma_specialised", "PyTorch", "linear_pipelined"))
    print(f"{before:5} to {after:5}{ours:7.1f} us{theirs:10.1f} us{theirs / ours:8.2f}{mma:12.1f} us")

# %% [markdown]
# The gap of 13% is closed here without giving up precision. It took the instructions of another GPU. With `mma.sync`,
# which is what the RTX 3090 has, the same four layers take 1.3 to 1.8 times as long on the H200.
#
# ## Every rung on one roofline

# %%
names = ("matmul", "matmul_tf32", "matmul_bf16", "matmul_half", "linear", "linear_gelu")
recorded = [measure.recorded_ladder(name, gpu="NVIDIA H200") for name in names]
plots.every_rung(recorded, "The products of this lesson")

# %% [markdown]
# All points of an operation stand above one another: the rungs change how fast it goes and not what it is. The float32
# products hang below the lowest roof, the products of halves reach for one more than ten times as high. (*linear gelu*
# is one of them, a layer with its activation; lesson 11 takes it up.) With halves a product of the same size also moves
# half the bytes, so it stands further to the right.
#
# ## What was implemented
#
# - the float32 product in six more rungs: three sizes of thread tile, 128-bit accesses, double buffering, a pipeline
# - a rung that failed, with the reason in bytes
# - products of halves, bfloat16 and TF32 on tensor cores, from one that is slower than float32 to `wgmma`
# - half sums, with what they cost in accuracy
#
# ## What I learned
#
# - Count instructions. What is not a multiply-add takes the place of one.
# - A model that knows one limit recommends running into the next. Shared memory said 16 × 16, the registers said no.
# - Hiding a wait that another block hides already gains little. The profiler's list of waits told me so, one run too
#   late.
# - Ten times the peak is nothing until the numbers arrive ten times as fast.
# - The last few percent were in the order of the multiply-adds. I would not have believed it.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: Asynchronous Data
#   Copies](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#asynchronous-data-copies)
# - [PTX ISA: Matrix Fragments for
# mma.m16n8k16](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html#warp-level-matrix-fragment-mma-16816-float)
# - [NVIDIA CUTLASS: Efficient GEMM in CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html)
# - [S. Boehm: How to Optimize a CUDA Matmul Kernel for cuBLAS-like
#   Performance](https://siboehm.com/articles/22/CUDA-MMM)
#
# ## Try it
#
# - Make a kernel with `make_matmul_register_blocked(6)` and predict its ceiling from the formula at the top. What else
#   has to be a multiple of something for it to work?
# - In `no_wait_kernel` put the wait behind the barrier and not before it. What does `observe` say now, and why is it
#   right?
# - In the cell on half sums add 100 to `a` before it is rounded. Predict which of the two columns suffers, and what
#   happens at K = 4,096.
#
# Next: **where the time goes**, when the product is fast and the program is slow.
