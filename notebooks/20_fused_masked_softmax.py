# %% [markdown]
# # 20 · Fused masked softmax
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what merging three kernels into one saves: on paper, counted, and measured
# - how much is saved by not reading what a mask hides
# - why a kernel that moves hardly more bytes than it must can still be slow

# %% [markdown]
# ## The problem
#
# A language model cuts its text into *tokens*, words or pieces of words, and *attention* compares every token of a
# sequence with the others (lesson 24). The token that is compared is the *query*, those that it is compared with are
# the *keys*, and a *score* says how well the two match. Then three things happen to the scores:
#
# $$P = \text{softmax}(\text{scale} \cdot X + \text{mask})$$
#
# They are scaled, by $1/\sqrt{64} = {{ 1 / 64**0.5:.3f }}$ where queries are vectors of 64 elements. Some are hidden:
# the *mask* adds $-\infty$ there, and $e^{-\infty} = 0$. And the softmax of lesson 16 turns each row into
# probabilities. GPT-2 hides a token's future; that mask is called *causal*.

# %%
import numpy as np

from labkit import agree, cuda, device, ladder, measure, observe, plots, show_source, table
from labkit.course.drawings import fused_masked_softmax as pictures
from labkit.device.launches import planned
from labkit.kernels.ops.masked_softmax import MASKED_SOFTMAX_CAUSAL, MASKED_SOFTMAX_NONE, MASKED_SOFTMAX_PADDING
from labkit.kernels.softmax import masked as ms
from labkit.measure import ncu as counters

pictures.masks()

# %% [markdown]
# *Padding* is for *batches*, several sequences that are computed in one pass: sequences of different lengths are stored
# as if they had the same length, and what is beyond the end of a sequence is hidden. All three masks leave the first
# columns of a row visible, so all that a kernel needs is one value per row: how many columns are visible.

# %% [markdown]
# ## Three kernels
#
# The plain way is one kernel per step. The first multiplies each score by the scale, the second applies the mask, and
# the third is the softmax with two trees from lesson 16. Here is the second.

# %%
show_source(ms.mask_kernel)

# %% [markdown]
# How often do the three together read the whole array, and how often do they write it? And how many passes would be
# left if one kernel did everything?

# %%
scores = np.random.default_rng(0).standard_normal((1, 64, 64), dtype=np.float32)
small, out = cuda.to_device(scores[:, :32, :32].copy()), cuda.device_array((1, 32, 32), np.float32)


def passes(name):
    """Passes over a causal matrix of 32 x 32 that the threads of this launcher request: (read, written)."""
    launcher = getattr(ms, f"masked_softmax_{name}")
    counts = [observe(one.kernel[one.grid, one.block, 0, one.shared_bytes], *one.args).counts
              for one in planned(lambda: launcher(small, out, causal=True))]
    return tuple(sum(each[f"bytes_{kind}"] for each in counts) / (4 * 32 * 32) for kind in ("loaded", "stored"))


table([("three kernels", *passes("unfused")), ("at best", 1, 1)], {"": "", "read": ".2f", "written": ".2f"},
      "Passes over the array")

# %% [markdown]
# Scaling takes one pass to read and one to write. The mask only writes, half a pass, since what is hidden need not be
# read to be overwritten. Softmax takes three passes to read and two to write. Together that is seven and a half,
# against two at best, or one and a half if what is hidden is not read.

# %% [markdown]
# ## One kernel
#
# *Fusing* the three means that only the result is stored. The most direct way, printed for instance in an unsigned
# report with the title *Fused Attention Softmax Accelerator GPT 2 Inference*, is a softmax in three loops that each
# scale and mask what they load:

# %%
show_source(ms.masked_softmax_three_read_kernel)

# %% [markdown]
# Nothing that a thread computed in the first loop is left in the second. `block_max` and `block_sum` are the two-level
# reductions of lesson 15. Is the result the same as that of the three kernels?

# %%
unfused, fused = (cuda.device_array(scores.shape, np.float32) for _ in range(2))
ms.masked_softmax_unfused(cuda.to_device(scores), unfused, causal=True, scale=0.125)
ms.masked_softmax_three_read(cuda.to_device(scores), fused, causal=True, scale=0.125)
expected = unfused.copy_to_host().astype(np.float64)
difference = np.abs(fused.copy_to_host() - expected).max()
for digits in (".6f", ".1e"):
    print(f"largest difference {difference:{digits}}, sum of a row off by {abs(expected.sum(-1) - 1).max():{digits}}")

# %% [markdown]
# Nearly. The rows are added up in a different order, so the last bits may differ. Printed with six decimals, everything
# below half a millionth looks like zero. But two kernels that agree may both be wrong; the test that counts is the one
# against NumPy in float64, further down.

# %% [markdown]
# ## Leave out what is hidden
#
# Under a causal mask a row sees half{{ if near(1025 / 2048, 0.5) }} of its columns on average. The kernel above loads
# the other half as well, three times, only to replace it by $-\infty$. Since every mask leaves the first columns, a
# loop can simply end there: the loops of `bounded` run to `visible` instead of `size`. How many passes does that leave?

# %%
names = ("unfused", "three_read", "bounded")
plots.traffic({name: passes(name) for name in names}, "A loop that ends at the mask reads half as much",
              "passes over the array", place="Counted by observe")

# %% [markdown]
# A pass and a half to read, and one to write: hidden columns still get their zeros.

# %% [markdown]
# ## One pass
#
# A row of up to 1,024 elements fits into the registers of a single warp, 32 per lane. Then there is no shared memory
# and no barrier at all, and each score is loaded once. Here is the kernel, and `make_row`, which makes its three device
# functions.

# %%
show_source(ms.ALIGNED[1])

# %%
show_source(ms.make_row)

# %% [markdown]
# With `vec4`, eight loads of four neighbours each come first, and a lane skips a load if all four are hidden. The
# factor $\log_2 e$ of the exponential is part of `factor`, so both cost one multiplication. At the end every column
# gets a value; the hidden ones get zeros.
#
# That can be tested. Let us put NaN wherever the mask is. What should happen to the result?

# %%
poisoned = np.where(np.triu(np.ones((64, 64), bool), 1), np.float32(np.nan), scores)
result = cuda.device_array(scores.shape, np.float32)
ms.masked_softmax_single_read(cuda.to_device(poisoned), result, causal=True)
print(f"{np.isnan(result.copy_to_host()).sum()} NaN, largest difference from the unfused result "
      f"{np.abs(result.copy_to_host() - expected).max():.1e}")

# %% [markdown]
# Nothing: not one NaN comes through. Now against NumPy, under all three masks, also with sizes that are no multiple of
# four, for which a kernel loads one element at a time. The tests also run rows of more than 1,024 elements, each
# handled by a block, and rows in which nothing is visible: this kernel returns zeros there, PyTorch NaN. Do all of them
# agree?

# %%
sizes = ({"B": 1, "S": 4}, {"B": 3, "S": 20}, {"B": 2, "S": 64}, {"B": 1, "S": 257})
table([(row.name, row.error, row.units) for op in (MASKED_SOFTMAX_NONE, MASKED_SOFTMAX_PADDING)
       for row in agree(op, sizes=sizes[:3]).rows],
      {"rung": "", "largest error": ".1e", "of what is allowed": ".2f"})

# %%
agree(MASKED_SOFTMAX_CAUSAL, sizes=sizes)

# %% [markdown]
# They do. So far that is arithmetic and counting; now to the time.

# %% [markdown]
# ## The bytes, measured
#
# On a GPU, caches stand between what threads request and what memory delivers. Nsight Compute counts what memory really
# delivered. `three_read` requests three passes. How many does memory have to deliver?

# %%
moved = {}
for row in counters.recorded()["ops"]["masked_softmax_causal"]["rows"]:
    name = row["name"].split(" (")[0].removeprefix("causal_")
    read, written = moved.get(name, (0.0, 0.0))
    moved[name] = read + row["dram_read"] / 2**28, written + row["dram_write"] / 2**28
plots.traffic(moved, "Memory delivers three reads of a row only once", "passes over the array",
              place="Measured on an H200 by ncu, 64 matrices of 1,024 x 1,024")

# %% [markdown]
# One. A row is 4 KB, and when the second loop starts, it is still in a cache. So `three_read` moves as few bytes as it
# can without skipping what is hidden, and yet it takes {{ words(three_read_slowdown) }} times as long as `single_read`.
# Skipping is not the explanation either: `bounded` reads {{ words(bounded_share) }} of the scores from memory, as much
# as `single_read`, and takes twice{{ if near(ms['bounded'] / ms['single_read'], 2) }} as long.
#
# PyTorch's three calls, the last bar, move about {{ words(moved / scores) }} times the size of the scores. (A little
# less is written than one would think: when a kernel ends, its last {{ min(left) / 1e6:.0f }} to
# {{ max(left) / 1e6:.0f }} MB are still in the L2 cache.)
#
# If not for bandwidth, what does `bounded` wait for?

# %%
counters.profile("masked_softmax_causal")

# %% [markdown]
# For loads, and for barriers. Each of its loops has one load per iteration, so a warp has a single load in flight, and
# it computes every exponential twice. `single_read` has fewer warps, half{{ if near(single_read_occupancy, 0.5) }} of
# the maximum, and no barrier. But each of its lanes has eight loads of 16 bytes in flight. This is the lesson of the
# climb in lesson 15: loads in flight, not occupancy.

# %% [markdown]
# ## The climb
#
# Here is the ladder for 64 matrices with a causal mask. Three PyTorch calls are an easy target; `torch.compile` fuses
# them into one Triton kernel by itself. Which of the two does `single_read` beat, and if it beats the second, why?

# %% tags=["hide-input"]
plots.ladder(ladder(MASKED_SOFTMAX_CAUSAL))

# %%
rows = []
for mask in ("none", "causal", "padding"):
    for S, B in ((512, 1), (1024, 1), (1024, 64)):
        one = measure.recorded_ladder(f"masked_softmax_{mask}", {"B": B, "S": S}, gpu="NVIDIA H200")
        us = {row.name.removeprefix(f"{mask}_").split(" (")[0]: 1000 * row.graph.p50 for row in one.rows if row.graph}
        timed = [us.get(name) for name in ("unfused", "single_read", "PyTorch", "PyTorch, compiled")]
        rows.append((mask, f"{B} x {S} x {S}", *timed, timed[3] / timed[1]))
table(rows, {"mask": "", "size": "", "unfused": ".1f", "single_read": ".1f", "PyTorch": ".1f", "compiled": ".1f",
             "compiled / single_read": ".2f"},
      "In a graph, us", note=f"Measured on {one.where}. PyTorch: one call each for scale, mask (if any) and softmax.")

# %% [markdown]
# Against PyTorch's separate calls `single_read` is twice{{ if near(fused['none'][0], 2) }} as fast without a mask and
# more than four times{{ if masked_gain }} as fast with one. The compiled kernel is as fast as ours without a
# mask{{ if abs(fused['none'][1] - 1) < 0.05 }}: both read each score once and write each result once. Under a mask it
# does not know that half{{ if near(1023 / 2048, 0.5) }} of the scores need not be read, and with 64 matrices it needs a
# quarter{{ if compiled_longer }} longer. A single matrix of 512 stays in the cache, where skipping saves
# nothing{{ if fused['alone'] < 1 }}.

# %% [markdown]
# ## A single matrix
#
# All those times are from CUDA graphs. Called from Python, how much longer does one matrix of 1,024 × 1,024 take than
# one of 512 × 512, which has a quarter of the elements?

# %% tags=["hide-input"]
pictures.launch_floor(measure.recorded_series("masked_softmax_sizes", gpu="NVIDIA H200"))

# %% [markdown]
# No longer at all. In the graph every size has its own time, {{ min(graphs):.0f }} to {{ max(graphs):.0f }} us for
# these two. Called from Python both take about 40{{ if near(sum(called) / 4, 40, 0.05) }} us: that is the launch, and
# the kernel leaves this floor only at a size of 4,096. If two sizes take the same time, you are timing something else.
# For small work, get rid of the launch first (lesson 13).

# %% [markdown]
# ## As an operator of PyTorch
#
# To be useful, a kernel must be easy to call. `labkit.kernels.softmax.torch_op` turns it into a PyTorch operator:
# tensors in and out, on PyTorch's stream, with a derivative, and known to `torch.compile`.

# %%
if device.on_gpu() and measure.import_library("torch"):
    import torch

    from labkit.kernels.softmax.torch_op import masked_softmax

    x = torch.randn(2, 4, 300, 300, device="cuda", requires_grad=True)  # 2 sequences, 4 heads
    hidden = torch.triu(torch.ones(300, 300, dtype=torch.bool, device="cuda"), 1)
    mine, theirs = masked_softmax(x, 0.125, True), torch.softmax((0.125 * x).masked_fill(hidden, -torch.inf), -1)
    print(f"largest difference from PyTorch {(mine - theirs).abs().max().item():.1e}")
    print(torch.autograd.grad(mine[..., 0].sum(), x)[0].shape, "is the derivative's shape")
else:
    from labkit._common.paths import PACKAGE

    print("It needs PyTorch and a GPU. This is all of it:\n")
    print((PACKAGE / "kernels" / "softmax" / "torch_op.py").read_text())

# %% [markdown]
# ## What I learned
#
# - A kernel that knows what its mask hides need not read it. A compiler that is handed the mask does not know.
# - What threads request is not what memory delivers. The third pass over a row of 4 KB comes from a cache, and it still
#   costs time.
# - Full occupancy is not the goal. Loads in flight are.
# - If two sizes take the same time, what was timed is not the work.

# %% [markdown]
# ## Resources
#
# - [M. Shoeybi et al.: Megatron-LM (2019)](https://arxiv.org/abs/1909.08053), whose fused kernels do the same thing
# - *Fused Attention Softmax Accelerator GPT 2 Inference*, a report without author, date or address
# - [PyTorch: Custom Operators](https://pytorch.org/tutorials/advanced/python_custom_ops.html)

# %% [markdown]
# ## Try it
#
# - `passes` always uses a causal mask. Remove it: which of the three launchers request more, and by how much?
# - How many blocks of `single_read` would fit on a multiprocessor if a thread needed 64 registers{{ example }}? Predict
#   it, then call `occupancy.blocks(occupancy.H200, 128, 64, 0)` from `labkit.device`.
# - In the cell with NaN, use `masked_softmax_three_read`. Why is the result right, although it loads the NaN?
#
# Next: **LayerNorm**, where two sums are needed and the second depends on the first.

# %% [numbers]
# scores = 2**28
# ms = times_of('masked_softmax_causal', ('three_read', 'bounded', 'single_read'), 'causal_')
# launched = profiled('masked_softmax_causal')
# fused = {**{mask: [row('masked_softmax_' + mask, name, B=64, S=1024).graph_us / row('masked_softmax_' + mask, mask +
#          '_single_read', B=64, S=1024).graph_us for name in ('PyTorch (', 'PyTorch, compiled')] for mask in ('none',
#          'causal', 'padding')}, 'alone': row('masked_softmax_causal', 'PyTorch, compiled', B=1, S=512).graph_us /
#          row('masked_softmax_causal', 'causal_single_read', B=1, S=512).graph_us}
# moved = sum(row['dram_read'] + row['dram_write'] for row in launched if row['kind'] == 'rival')
# left = [2**28 - row['dram_write'] for row in launched if row['kernel'] in ('masked_softmax_three_read_kernel',
#         'masked_softmax_bounded_kernel', 'masked_softmax_warp_row_kernel')]
# cases = [row for row in series.masked_softmax_sizes.rows if row.B == 1 and row.S in (512, 1024)]
# called = [1000 * row.fused.p50 for row in cases]
# graphs = [1000 * row.fused_graph.p50 for row in cases]
# three_read_slowdown = ms['three_read'] / ms['single_read']
# bounded_share = ncu('masked_softmax_causal', 'causal_bounded').dram_read / scores
# single_read_occupancy = ncu('masked_softmax_causal', 'causal_single_read').occupancy_percent / 100
# masked_gain = 4 < fused['causal'][0] < fused['padding'][0] < 5
# compiled_longer = all(0.2 < fused[mask][1] - 1 < 0.3 for mask in ('causal', 'padding'))
