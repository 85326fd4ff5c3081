# %% [markdown]
# # 27 · A faster block
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what can be saved without making a single kernel faster: launches, bytes, allocations
# - what a program has to look like so that one graph can hold all of it
# - how the block compares with the same design in CUDA C++ and with PyTorch, and what float16 costs in digits
#
# ## The problem
#
# The block of the last lesson is right, but slow. It makes ten launches. The CUDA C++ design that it follows also
# allocates eight arrays in each call and frees them at the end. None of that is arithmetic. So this lesson first saves
# launches and memory around the kernels. Then it replaces the kernels with the fastest of the course, and looks at the
# clock.
#
# ## Prediction
#
# With 16 tokens a block reads {{ 4 * 7_087_872 / 1e6:.0f }} MB of weights and little else. Lesson 13 measured a launch.
# Which of these three takes longest on an H200: reading these bytes at {{ round(limits.bandwidth_gbs, -2):,.0f }} GB/s,
# launching ten kernels from Python, or ten launches in a graph?

# %%
from labkit import measure, roofline, table
from labkit.models import gpt2_block as block
from labkit.models.gpt2_block import GPT2_SMALL

limits = roofline.limits()
cost = measure.recorded_series("launch_overhead", gpu="NVIDIA H200")
moved = sum(block.traffic(GPT2_SMALL, 16).values())
rows = [("the bytes of a block with 16 tokens", moved / limits.bandwidth_gbs / 1e3)]
rows += [(f"{count} launches {how}", count * cost[key]) for how, key in (("from Python", "launcher_us"),
                                                                       ("in a graph", "graph_us")) for count in (10, 7)]
table(rows, {"": "", "us": ".0f"}, note=f"launches recorded on {cost['where']}, {cost['date']}")

# %% [markdown]
# If the kernels are as fast as their bytes allow, launches from Python leave the GPU waiting for the host most of the
# time{{ if waits_for_host }}. And that is the least a launch costs: it was measured with a kernel of three arguments,
# while a launcher of the block also checks its arrays and chooses a kernel for their shape.
#
# ## Seven launches
#
# Three of the ten launches do next to no arithmetic: both additions, and GELU. Each reads what the product before it
# has just written. In lesson 23 such a step moved into the *epilogue* of the product, where its input is still in a
# register. The same epilogue adds a residual. It is called once per element, between the last multiplication and the
# store.

# %%
from labkit import show_source
from labkit.kernels.linear.fused import epilogue_for
from labkit.kernels.ops.fused_linear import FUSED_LINEAR_GELU

show_source(epilogue_for)

# %%
from labkit import agree

sizes = {"M": 37, "N": 23, "K": 19}, {"M": 1, "N": 40, "K": 200}
agree(FUSED_LINEAR_GELU, FUSED_LINEAR_GELU.rungs[:2], sizes=sizes)

# %% [markdown]
# These are the seven launches that are left. GELU and the additions are now in the last column.

# %%
from labkit.course.drawings import faster_block as pictures

pictures.seven_launches(tokens=1024)

# %% [markdown]
# `FUSED` holds the course's fastest kernels, with these epilogues, and `KERNEL_FOR_EACH_STEP` the kernels of the last
# lesson. A graph knows how many launches it contains. How many bytes do the epilogues save with 16 tokens, and how many
# with 1,024?

# %%
import numpy as np

from labkit import cuda, graphs
from labkit.models.gpt2_block import FUSED, KERNEL_FOR_EACH_STEP, Workspace, solve

rng = np.random.default_rng(0)
x, flat = rng.standard_normal((16, 768), np.float32), GPT2_SMALL.random(rng)
d_x, weights, out = cuda.to_device(x), cuda.to_device(flat), cuda.device_array(x.shape, np.float32)
workspace = Workspace(GPT2_SMALL, 16)

rows = []
for name, kernels, fused in (("KERNEL_FOR_EACH_STEP", KERNEL_FOR_EACH_STEP, False), ("FUSED", FUSED, True)):
    graph = graphs.capture(lambda stream, kernels=kernels: solve(
        d_x, out, weights, 16, workspace=workspace, kernels=kernels, stream=stream))
    few, many = (sum(block.traffic(GPT2_SMALL, n, fused=fused).values()) for n in (16, 1024))
    rows.append((name, graph.nodes, few / 1e6, many / 1e6))
table(rows, {"": "", "launches": "", "MB with 16 tokens": ".1f", "with 1,024": ".1f"})

# %% [markdown]
# With 1,024 tokens a quarter{{ if near(bytes_gone, 1 / 4) }} of all bytes is gone. With 16 tokens nearly all bytes are
# weights, and only three launches are saved. On a GPU the graph can have a few more nodes: a product with few rows is
# split over its K to fill the SMs, and another launch adds up the parts.
#
# The seven have to be right at other lengths, too:

# %%
from labkit.models.gpt2_block_op import GPT2_BLOCK

agree(GPT2_BLOCK, ["block_fused"], sizes=({"S": 1}, {"S": 17}))

# %% [markdown]
# They are.
#
# ## Memory that stays
#
# The CUDA C++ design allocates eight arrays in each call. On a GPU `cudaMalloc` goes through the driver, `cudaFree`
# waits until the GPU has finished, and neither can be recorded in a graph. A *workspace* is the opposite: memory
# allocated once, for up to so many tokens, and used in every call and by every block. `Workspace` is the block's. How
# much smaller than the eight arrays can the workspace be, if an array may be overwritten as soon as its contents are no
# longer needed?

# %%
room, eight = Workspace(GPT2_SMALL, 1024), 4 * 1024 * (6 * 768 + 2304 + 3072)
table([("eight arrays, in each call", eight / 1e6), ("the workspace, once", room.nbytes / 1e6)],
      {"1,024 tokens": "", "MB": ".1f"})

# %% [markdown]
# Both LayerNorms write into the same array, because the result of the first is no longer needed by then, and a fused
# addition needs no array for its input.
#
# ## When something is wrong
#
# The CUDA C++ design has a macro around its allocations: if one fails, `solve` returns without a message, and `output`
# keeps its old values. Its ten launches are not checked at all. If CUDA refuses one, the other nine run on stale
# data. An error message should name the bad argument and the values it accepts:

# %%
from labkit.kernels.embedding import embedding_whole_row

ids, start = cuda.to_device(np.zeros(1, np.int32)), cuda.to_device(np.zeros(1, np.int32))
wide = cuda.device_array((1, 2048), np.float32)
for attempt in (lambda: solve(d_x, out, weights, 5000),
                lambda: solve(d_x, out, weights, 17),
                lambda: solve(d_x, out, weights[:-1], 16),
                lambda: solve(x, out, weights, 16),
                lambda: embedding_whole_row(ids, wide, wide, start, wide)):  # 2,048 threads
    try:
        attempt()
    except (ValueError, TypeError) as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown]
# The last one is a bad launch: a block has at most 1,024 threads. All of these errors are raised before anything is
# launched. An index out of bounds cannot be seen before the launch. The CPU device reports it with its line, but a GPU
# does not (lesson 01).
#
# ## One graph
#
# Python checks the arguments and launches the kernels in every call. With a graph it does so once, when the graph is
# captured. The next table times five ways to make a whole call with 16 tokens, by the host's clock. How much faster is
# one graph than ten launches?

# %%
calls = measure.recorded_series("block_calls", gpu="NVIDIA H200")
ways = {"ten launches, eight allocations per call": "eight_allocations_us",
        "ten launches": "ten_kernels_us", "seven launches, a workspace per call": "allocating_us",
        "seven launches": "workspace_us", "one graph": "graph_us"}
table([(way, calls[key]) for way, key in ways.items()], {"16 tokens": "", "us": ",.0f"},
      note=f"recorded on {calls['where']}, {calls['date']}")

# %% [markdown]
# Ten launches take {{ calls.ten_kernels_us:.0f }} us, not the {{ predicted_us:.0f }} predicted: the block's launchers
# have more to check and to decide than an addition's. Seven take {{ seven_share:.0% }} of the time. Allocating makes a
# call three to four times as long{{ if allocating_slow }}. In a graph all of this is gone. A call takes
# {{ calls.graph_us:.0f }} us, of which the kernels need {{ seven[0]:.0f }}. Without the graph the GPU was idle most of
# the time, waiting for Python.
#
# A graph replays the same launches with the same arguments. Which of the block's addresses may change from one call to
# the next?

# %%
shape, rng = block.Shape(width=96, heads=4, inner=384), np.random.default_rng(5)
first, other = (rng.standard_normal((16, 96), np.float32) for _ in range(2))
layer, narrow = cuda.to_device(shape.random(rng)), Workspace(shape, 16)
small_x, small_out = cuda.to_device(first), cuda.device_array((16, 96), np.float32)


def call(stream=0):
    solve(small_x, small_out, layer, 16, shape=shape, workspace=narrow, stream=stream)


graph = graphs.capture(call)
plain, replayed = (measure.time_kernel(what, budget_s=0.2) for what in (call, graph.launch))
small_x.copy_to_device(other)  # the graph reads what is there when it is launched
graph.launch()
truth = block.block_steps(other, shape.split(layer.copy_to_host()), shape.heads)["out"]
print(f"another x, the same graph: largest error {abs(small_out.copy_to_host() - truth).max():.1e}")
table([("called", plain.p50), ("replayed", replayed.p50)], {f"{graph.nodes} launches": "", "ms": ".2f"},
      note=measure.where())

# %% [markdown]
# None. `x`, `out`, the weights and the workspace stay where they are, and only their contents change. That is a
# condition on the whole program, and the reason why the workspace comes before the graph. In one of the exercises you
# write a program that replays a graph for one input after another.
#
# ## In float16
#
# Weights and rows can be in float16, with accumulators in float32: `solve` picks the kernels by the type of the
# weights. The products move to the tensor cores (lesson 08), as does attention (lesson 25), and
# half{{ if near(2 / 4, 1 / 2) }} as many bytes are moved. How large is the error of an element of the output, if a
# float16 near 1 has a step of {{ 2**-10:.3f }}?

# %%
from labkit import device

if device.on_gpu():
    half, half_flat = x.astype(np.float16), flat.astype(np.float16)
    got = cuda.device_array(half.shape, np.float16)
    solve(cuda.to_device(half), got, cuda.to_device(half_flat), 16)
    w = {name: part.astype(np.float64) for name, part in GPT2_SMALL.split(half_flat).items()}
    truth = block.block_steps(half, w, 12)["out"]
    print(f"largest error {abs(got.copy_to_host() - truth).max():.1e}, "
          f"allowed {block.allowed_error(GPT2_SMALL, truth, 7, np.float16):.1e}")
else:
    print("The CPU device runs a tensor core's work lane by lane, and its kernels take as long to\n"
          "compile as the rest of this page. The cell works there, too: take the `if` away.")

# %%
rows = []
for operation, name in (("gpt2_block", "block_fused"), ("gpt2_block_half", "block_half")):
    for tokens in pictures.LENGTHS:
        if found := measure.recorded_ladder(operation, {"S": tokens}, gpu="NVIDIA H200"):
            rows.append((name, tokens, found.row(name).error, found.row(name).error_units))
table(rows, {"": "", "tokens": "", "largest error": ".1e", "of the allowed": ".3f"}, note="NVIDIA H200")

# %% [markdown]
# The sums along the block are larger than 1, so errors of a few thousandths are to be expected in float16. An output
# within 0.001{{ example }} is out of reach. Models are run in float16 nevertheless: what counts is which token is the
# most likely, and that seldom depends on the third digit.
#
# ## The clock
#
# How fast is the block on an H200? The next table has five programs, all with the same weights:
#
# | row | what it is |
# |---|---|
# | *CUDA C++, ten kernels* | a design in CUDA C++ (lesson 26), written for this course, compiled by nvcc |
# | *ten kernels* | the same design in Python: the ten launches of the last lesson |
# | *seven* | this lesson's block: fewer launches, and the fastest kernels of the course in each |
# | *PyTorch* | `torch.nn`'s layers, with products by cuBLAS, in float32 without TF32 |
# | *PyTorch compiled* | the same after `torch.compile`, which fuses what is between the products |
#
# The last three were measured in float16 as well. All programs are replayed as graphs, so no launch from the host is
# part of these times, with two exceptions. *CUDA C++, eight allocations* allocates in each call, which no graph can
# hold. And the ten kernels with 4,096 tokens were launched from the host, which makes no difference next to
# {{ round(theirs[3] / 1000, -1):.0f }} ms. In which order do the five finish with 16 tokens, and with 4,096?

# %%
times = pictures.recorded_times()
table([(name, *microseconds) for name, microseconds in times.items()],
      {"us": ""} | {f"{tokens:,} tokens": ",.1f" for tokens in pictures.LENGTHS}, note="NVIDIA H200")

# %% tags=["hide-input"]
from labkit import plots

wanted = ("CUDA C++, ten kernels", "PyTorch compiled, float32", "seven, float32", "PyTorch compiled, float16",
          "seven, float16")
shown = {name: [us or np.nan for us in times[name]] for name in wanted if any(times[name])}
plots.curves(pictures.LENGTHS, shown, "Seven launches are the fastest at every length", "tokens", "microseconds",
             log_x=True, log_y=True, marks=True, place="Recorded on NVIDIA H200") if shown else "Not recorded."

# %% [markdown]
# Compare two rows at a time: each line below divides one row by another. Which of these factors grow with the tokens,
# and which shrink?

# %%
pairs = {"allocations: eight per call / none": ("CUDA C++, eight allocations", "CUDA C++, ten kernels"),
         "the language: ten kernels / CUDA C++": ("ten kernels", "CUDA C++, ten kernels"),
         "this course: ten kernels / seven": ("ten kernels", "seven, float32"),
         "cuBLAS: PyTorch / seven, float32": ("PyTorch, float32", "seven, float32"),
         "fusion: compiled / seven, float32": ("PyTorch compiled, float32", "seven, float32"),
         "cuBLAS: PyTorch / seven, float16": ("PyTorch, float16", "seven, float16"),
         "fusion: compiled / seven, float16": ("PyTorch compiled, float16", "seven, float16")}
table([(question, *(a / b if a and b else None for a, b in zip(times[slow], times[fast], strict=True)))
       for question, (slow, fast) in pairs.items()],
      {"": ""} | {f"{tokens:,} tokens": ".2f" for tokens in pictures.LENGTHS}, note="NVIDIA H200")

# %% [markdown]
# *Allocations.* The CUDA C++ has the same kernels in both rows. Eight allocations in each call, without a graph,
# double{{ if near(eight[0] / theirs[0], 2) }} its time with 16 tokens. With 4,096 they add
# {{ eight[1] / theirs[3] - 1:.0% }}.
#
# *The language.* In Python the same ten kernels take at most {{ python_longer:.0% }} longer than in CUDA C++, and the
# gap is smaller with more tokens{{ if less_with_more }}. That is the difference between Numba's compiler and nvcc.
#
# *This course.* From ten kernels to seven, the time falls to a quarter{{ if near(seven[0] / ours[0], 1 / 4) }} with few
# tokens and to less than a twentieth{{ if seven[3] / ours[3] < 1 / 20 }} with 4,096. The three launches are the smaller
# part of that. Most of it is in the kernels: thread tiles in registers for the products (lesson 07), attention in
# tiles (lesson 25), and a split over K where a product is too small to fill the GPU.
#
# *cuBLAS and fusion.* One would expect PyTorch to lead at least where products decide, with many tokens. Operation by
# operation it is slower than ours at every size{{ if slower_everywhere }}. Compiled, most of that lead is gone:
# `torch.compile` fuses what is between the products, as the seven kernels do. In float16 the two are equal at 128
# tokens{{ if abs(compiled_half[128] - 1) < 0.01 }} and within {{ abs(compiled_half[1024] - 1):.0% }} at 1,024. With few
# tokens, launches, latencies and weights decide. There a program written for one model has an advantage: it can fuse
# into the products, which `torch.compile` leaves to cuBLAS, and split each product as its shape requires. With many
# tokens the products and attention are nearly all of the time, and no product of ours is ahead of cuBLAS by much
# (lesson 10).
#
# ## What I learned
#
# - Three of ten kernels did little but move rows. In the epilogues of the products they are nearly free.
# - Memory first, then the graph: a call that allocates cannot be recorded.
# - With few tokens, look at the host first. A faster kernel does not help while the GPU waits for the next launch.
# - Compare one thing at a time: the same kernels in another language, other kernels in the same one.
#
# ## Resources
#
# - [CUDA C++ Programming Guide: CUDA
#   Graphs](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-graphs)
# - [NVIDIA CUTLASS: Efficient GEMM in
#   CUDA](https://docs.nvidia.com/cutlass/media/docs/cpp/efficient_gemm.html), on epilogues and on split-K
#
# ## Try it
#
# - Capture the narrow block once with `kernels=KERNEL_FOR_EACH_STEP` and once without. How many nodes has each graph,
#   and how long does a replay take?
# - Allocate the workspace inside `call`, by leaving `workspace=narrow` out. On the CPU device the graph still works.
#   Which sentence at the top of `labkit/device/graphs.py` says why it must not be done on a GPU?
# - Compute the first table for a GPU with a tenth of the bandwidth and the same launch costs. Does Python still keep it
#   waiting?
#
# Next: **from a file to a token**, where such blocks get their weights from a file, and words to read.

# %% [numbers]
# compiled_half = {S: row('gpt2_block_half', 'PyTorch, compiled', S=S).us / row('gpt2_block_half', 'block_half', S=S).us
#                  for S in (128, 1024)}
# calls = series.block_calls
# lengths = (16, 128, 1024, 4096)
# ours = [row('gpt2_block', 'block_ten_kernels', S=S).us for S in lengths]
# seven = [row('gpt2_block', 'block_fused', S=S).us for S in lengths]
# theirs = [row('gpt2_block', 'CUDA C++ (ten kernels)', S=S).us for S in lengths]
# eight = [row('gpt2_block', 'CUDA C++ (ten kernels, eight allocations)', S=S).us for S in (16, 4096)]
# waits_for_host = 10 * series.launch_overhead.launcher_us > 2 * block_bytes(16) / limits.bandwidth_gbs / 1000
# bytes_gone = 1 - block_bytes(1024) / block_bytes(1024, False)
# predicted_us = 10 * series.launch_overhead.launcher_us
# seven_share = calls.workspace_us / calls.ten_kernels_us
# allocating_slow = all(2.5 < ratio < 4.5 for ratio in (calls.allocating_us / calls.workspace_us,
#                       calls.eight_allocations_us / calls.ten_kernels_us))
# python_longer = max(a / b - 1 for a, b in ((ours[at], theirs[at]) for at in (0, 1, 2, 3)))
# less_with_more = all(ours[at] / theirs[at] < ours[0] / theirs[0] for at in (1, 2, 3))
# slower_everywhere = all(row(op, 'PyTorch', S=S).us > row(op, rung, S=S).us for op, rung in (('gpt2_block',
#                         'block_fused'), ('gpt2_block_half', 'block_half')) for S in lengths)
