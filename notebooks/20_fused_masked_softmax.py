# %% [markdown]
# # 20 · Fused masked softmax
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - what it saves to put three kernels into one, first on paper, then counted, then measured
# - why a kernel that reads a row three times can move it through memory once, and be slow all the same
# - how a launch can hide everything that a kernel does
#
# ## The problem
#
# A language model cuts its text into *tokens*, words or pieces of words, and in *attention* every token of a sequence
# is compared with the others (lesson 24). The token that is compared is the *query*, each one that it is compared with
# is a *key*, and a *score* says how well the two match. Then three things happen to the scores:
#
# $$P = \text{softmax}(\text{scale} \cdot X + \text{mask})$$
#
# They are scaled, by $1/\sqrt{64} = {{ 1 / 64**0.5:.3f }}$ where a query is a vector of 64 numbers. Some are hidden:
# the mask adds $-\infty$ there, and $e^{-\infty} = 0$. And the softmax of lesson 15 makes probabilities of each row.
# GPT-2 hides what lies in a token's future. That mask is called *causal*.

# %%
import numpy as np

from labkit import agree, cuda, device, ladder, measure, observe, plots, show_source
from labkit._common.tables import PlainTable, number
from labkit.course.drawings import fused_masked_softmax as pictures
from labkit.device import occupancy
from labkit.device.launches import planned
from labkit.kernels.ops.masked_softmax import MASKED_SOFTMAX_CAUSAL, MASKED_SOFTMAX_NONE, MASKED_SOFTMAX_PADDING
from labkit.kernels.softmax import masked as ms

pictures.masks()

# %% [markdown]
# With *padding* the sequences of a batch have different lengths and are stored as if they had the same; what lies
# beyond the end of a sequence is hidden. All three masks leave the first columns of a row, so a kernel needs one number
# for each row: how many it sees.
#
# ## Prediction
#
# There are B matrices of S × S, and three kernels, one after the other: the first scales and stores, the second adds
# the mask, the third is the softmax. Write down how often the whole array is read, and how often it is written. Then
# the same for one kernel that does everything. What is the ratio?
#
# ## Three kernels
#
# The first multiplies each score by the scale. The third is the softmax with two trees, from lesson 15. This is the
# second.

# %%
show_source(ms.mask_kernel)

# %% [markdown]
# ## One kernel
#
# This lesson follows a report, *Fused Attention Softmax Accelerator GPT 2 Inference*, which did the same on an NVIDIA
# L4. It describes a kernel that loads a row once into registers, but its pseudocode is that of a different one, which
# loads the row three times:

# %%
show_source(ms.masked_softmax_three_read_kernel)

# %% [markdown]
# There are three loops, and each of them loads the row, scales it and masks it again. What a thread computed in the
# first loop is gone in the second. But nothing is stored except the result, and that is what *fused* means. `block_max`
# and `block_sum` are the two-level reductions of lesson 15: shuffles, then shared memory.
#
# The report tests one matrix of 64 × 64 with the causal mask: every row of the result must have the sum 1, and the
# fused result must be that of the three kernels. (The report prints 0.000000{{ quoted }} for the largest difference.)

# %%
scores = np.random.default_rng(0).standard_normal((1, 64, 64), dtype=np.float32)
unfused, fused = (cuda.device_array(scores.shape, np.float32) for _ in range(2))
ms.masked_softmax_unfused(cuda.to_device(scores), unfused, causal=True, scale=0.125)
ms.masked_softmax_three_read(cuda.to_device(scores), fused, causal=True, scale=0.125)
expected = unfused.copy_to_host().astype(np.float64)
sums, difference = expected.sum(axis=-1), np.abs(fused.copy_to_host() - expected)
for digits in (".6f", ".1e"):
    print(f"largest difference {difference.max():{digits}}, mean {difference.mean():{digits}}, "
          f"relative {difference.max() / expected.max():{digits}}, sum of a row off by {abs(sums - 1).max():{digits}}")

# %% [markdown]
# Six digits after the point show zeros for everything below half a millionth. The numbers of a row are added in a
# different order, so the last bits may differ. And two kernels that agree may both be wrong: the test that counts is
# against NumPy in float64, further down.
#
# ## The bytes, on paper
#
# The report has a formula: the three kernels take seven passes over the array and one number for each row; the fused
# kernel reads once and writes once.

# %%
for B, S in ((1, 512), (1, 1024), (64, 1024)):
    paper = 4 * (7 * B * S * S + B * S), 4 * 2 * B * S * S
    print(f"{B:2} x {S:4}: {paper[0]:13,} bytes unfused, {paper[1]:11,} fused, {1 - paper[1] / paper[0]:.1%} saved")

# %% [markdown]
# The first two lines are in the report, digit for digit. $1 - 2/7 = {{ 100 * (1 - 2 / 7):.1f }}\%$, whatever the size.
# (Its summary says about 75%{{ quoted }}, and the headings of its tables count four passes against one.) The report
# does not derive its seven passes. Scale and mask each read and write, and that would leave three for the softmax. Is
# it so?
#
# ## The bytes, counted
#
# `observe` counts what the threads load and store. In passes over the array, for one matrix of 32 × 32, causal:

# %%
small, out = cuda.to_device(scores[:, :32, :32].copy()), cuda.device_array((1, 32, 32), np.float32)


def passes(launcher):
    """Passes over the array that the kernels of this launcher read and write."""
    counts = [observe(one.kernel[one.grid, one.block, 0, one.shared_bytes], *one.args).counts
              for one in planned(lambda: launcher(small, out, causal=True))]
    return tuple(sum(c[f"bytes_{kind}"] for c in counts) / (4 * 32 * 32) for kind in ("loaded", "stored"))


counted = {name: passes(getattr(ms, f"masked_softmax_{name}"))
           for name in ("unfused", "three_read", "bounded", "single_read")}
plots.traffic(counted, "What the threads ask for", "passes over the array", place="Counted by observe")

# %% [markdown]
# The scaling reads one pass and writes one. The mask only writes, half a pass, since what is hidden need not be read to
# be overwritten. The softmax reads three and writes two. That makes seven and a half, so the report's seven are about
# right for kernels such as these. The pseudocode asks for four passes, twice{{ if near(4 / 2, 2) }} as many as the
# model of a fused kernel has. The other two kernels come next.
#
# ## Not reading what is hidden
#
# A row of a causal mask sees half{{ if near(1025 / 2048, 0.5) }} of its columns on average. The pseudocode loads the
# other half as well, three times, to replace it by $-\infty$. Since every mask leaves the first columns, a loop can end
# there. The loops of `bounded` run to `visible` and not to `size`.
#
# ## One pass
#
# A row of up to 1,024 elements fits into the registers of one warp, 32 for each lane. Then there is no shared memory
# and no barrier at all. Here is the kernel, and `make_row`, which makes its three device functions.

# %%
show_source(ms.ALIGNED[1])

# %%
show_source(ms.make_row)

# %% [markdown]
# With `vec4`, eight loads of four neighbours each come first, and a lane whose four are hidden does not load. The
# factor $\log_2 e$ of the exponential is part of `factor`, so that both take one multiplication. At the end every
# column gets a value: the hidden ones get zeros, without having been looked at. That can be tested. Put NaN where the
# mask is, and the result must not change.

# %%
poisoned = np.where(np.triu(np.ones((64, 64), bool), 1), np.float32(np.nan), scores)
result = cuda.device_array(scores.shape, np.float32)
ms.masked_softmax_single_read(cuda.to_device(poisoned), result, causal=True)
print(f"{np.isnan(result.copy_to_host()).sum()} NaN, largest difference from the unfused result "
      f"{np.abs(result.copy_to_host() - expected).max():.1e}")

# %% [markdown]
# (A row may also see nothing, if a sequence has the length 0. PyTorch's softmax makes NaN of it, this kernel zeros.)
#
# ## Right at every size, under every mask

# %%
sizes = ({"B": 1, "S": 4}, {"B": 3, "S": 20}, {"B": 2, "S": 64}, {"B": 1, "S": 260})
for op in (MASKED_SOFTMAX_NONE, MASKED_SOFTMAX_PADDING):
    for row in agree(op, sizes=sizes[:3]).rows:
        print(f"{row.name:22} largest error {row.error:.1e}, {row.units:.2f} of what is allowed")
agree(MASKED_SOFTMAX_CAUSAL, sizes=sizes)

# %% [markdown]
# (Sizes that are no multiple of four go to a kernel that loads one element at a time, and rows of more than 1,024 to a
# block. The tests run those, too.)
#
# ## The bytes, measured
#
# On a GPU the caches stand between what threads ask for and what memory delivers. Nsight Compute counts what really
# came. Before you look: three_read asks for three passes. How many will memory have to read?

# %%
from labkit.measure import ncu as counters

counters.profile("masked_softmax_causal")

# %%
moved = {}
for row in counters.recorded()["ops"]["masked_softmax_causal"]["rows"]:
    read, written = moved.get(row["name"].split(" (")[0], (0.0, 0.0))
    moved[row["name"].split(" (")[0]] = read + row["dram_read"] / 2**28, written + row["dram_write"] / 2**28
plots.traffic(moved, "What memory delivers", "passes over the array", place="Measured on an H200 by ncu")

# %% [markdown]
# I had expected three passes. On the H200 that we recorded it is one: {{ scores / 1e6:.0f }} MB, the size of the
# scores. A row has 4 KB, and when the second loop comes, it still lies in a cache. So the pseudocode reads and writes
# memory once after all, and still takes {{ words(three_read_slowdown) }} times as long as `single_read`. Nor is it the
# mask: `bounded` reads {{ words(bounded_share) }} of the scores from memory, as much as `single_read`, and takes
# twice{{ if near(ms['bounded'] / ms['single_read'], 2) }} as long.
#
# Bytes do not explain that. The loops of both hold one load each, so a warp has only one load in flight. They compute
# each exponential twice and cross barriers in between. `single_read` has fewer warps,
# half{{ if near(single_read_occupancy, 0.5) }} of what would fit. But each has eight loads of 16 bytes on their way.
#
# The model of seven passes is too much for real kernels: PyTorch's three read and write about
# {{ words(moved / scores) }} times the size of the scores. (Less is written than one would think: when a kernel ends,
# its last {{ min(left) / 1e6:.0f }} to {{ max(left) / 1e6:.0f }} MB are still on their way, in the L2 cache.)
#
# ## The ladder

# %%
plots.ladder(ladder(MASKED_SOFTMAX_CAUSAL))

# %%
rows = []
for mask in ("none", "causal", "padding"):
    for S, B in ((512, 1), (1024, 1), (1024, 64)):
        one = measure.recorded_ladder(f"masked_softmax_{mask}", {"B": B, "S": S}, gpu="NVIDIA H200")
        us = {row.name.removeprefix(f"{mask}_").split(" (")[0]: 1000 * row.graph.p50 for row in one.rows if row.graph}
        names = ("unfused", "three_read", "single_read", "PyTorch", "PyTorch, compiled")
        rows.append((mask, f"{B} x {S} x {S}", *(number(us.get(name)) for name in names),
                     f"{us['PyTorch, compiled'] / us['single_read']:.2f}"))
PlainTable("In a graph, us", ("mask", "", *names, "ratio"), tuple(rows),
           (f"Measured on {one.where}. PyTorch: a call each for scale, mask (if any) and softmax. "
            "Ratio: compiled to single_read.",))

# %% [markdown]
# Beside PyTorch's separate calls `single_read` is twice{{ if near(fused['none'][0], 2) }} as fast without a mask and
# more than four times{{ if masked_gain }} as fast with one. But those calls are not the ones to beat. `torch.compile`
# fuses them by itself and writes one Triton kernel for them, which compares indices and so reads no mask either.
# Without a mask it is as fast as ours{{ if abs(fused['none'][1] - 1) < 0.05 }}: both read each score once and write
# each result once. Under a mask it does not know that half{{ if near(1023 / 2048, 0.5) }} of the scores need not be
# read. With 64 matrices it therefore takes a quarter{{ if compiled_longer }} longer than ours. A single matrix of 512
# stays in the cache, and there we gain nothing{{ if fused['alone'] < 1 }}.
#
# ## The report's figures, and ours
#
# The report times PyTorch's three calls against its fused kernel: 5 calls to warm up, then 100, one matrix each. Here
# is the same on an H200, called from Python, with `single_read` as the fused kernel. Before you look: how much longer
# should a matrix of 1,024 take than one of 512?

# %%
series = measure.recorded_series("masked_softmax_sizes", gpu="NVIDIA H200")
theirs = {(512, "none"): "37, 30, 1.27", (512, "causal"): "141, 30, 4.78",
          (1024, "none"): "37, 30, 1.24", (1024, "causal"): "139, 30, 4.65"}
rows = []
for row in series["rows"]:
    B, S, slow, fast = row["B"], row["S"], row["unfused"], row["fused"]
    us = ("{:.1f} ({:.1f}–{:.1f})".format(*(1000 * one[p] for p in ("p50", "p5", "p95"))) for one in (slow, fast))
    gbs = (f"{4 * n / one['p50'] / 1e6:,.0f}" for n, one in ((7 * B * S * S + B * S, slow), (2 * B * S * S, fast)))
    rows.append((f"{B} x {S}", row["mask"], *us, *gbs, f"{slow['p50'] / fast['p50']:.2f}",
                 theirs.get((S, row["mask"]), "-") if B == 1 else "-"))
columns = ("", "mask", "PyTorch, unfused", "fused", "GB/s", "GB/s", "ratio", "theirs: us, us, ratio")
PlainTable("Called from Python, us: p50 (p5–p95)", columns, tuple(rows),
           (f"Ours on {series['where']}. GB/s by the report's count of bytes: seven passes, and two.",
            "Theirs on an L4; mean of the four ratios 2.99, fused over unfused in GB/s 0.85."))

# %% [markdown]
# In the report 512 and 1,024 take the same time: 0.030 ms{{ quoted }}, with four times the work. So it was not the work
# that was timed, but the launch. Ours are of the same kind. At B = 1 a call of ours costs about
# 40{{ if near(sum(called) / 4, 40, 0.05) }} us for both sizes, more than PyTorch's
# calls{{ if min(called) > max(theirs) }}, although the kernel itself takes {{ min(graphs):.0f }} to
# {{ max(graphs):.0f }} us. The rest is Python. The report's ratio of bandwidths, 0.85{{ quoted }}, has the same reason:
# the fused kernel has fewer bytes to move in the same time.
#
# Where does the floor end? Here is one matrix over its size, called and in a graph, in which Python has no part.

# %%
pictures.launch_floor(series)

# %% [markdown]
# In the graph every size has its own time from the start. The called kernel leaves its floor at 4,096. If you have
# small work, the launch is the first thing to get rid of.
#
# The report ends with the resources of a block: 8 warps, 256 bytes of shared memory, 6 blocks on a multiprocessor, an
# occupancy of 100%{{ quoted }}. Lesson 02 showed how that is computed.

# %%
print("on an L4, blocks allowed by each:", occupancy.limits(occupancy.L4, threads=256, registers=32, shared_bytes=256))
measure.recorded_ladder("masked_softmax_causal", gpu="NVIDIA H200").resources_table()

# %% [markdown]
# The report's 6 blocks and 100%{{ quoted }} are right if a thread has at most {{ 65536 // 1536 // 8 * 8 }} registers,
# which it does not say. In our table the fastest kernel has the lowest occupancy. What counts is that each of its warps
# has more loads in flight. (The report also asks for silicon area, and answers that software takes none. Registers and
# shared memory are what a kernel takes.)
#
# ## As an operator of PyTorch
#
# To be of use, a kernel must be easy to call. `labkit.kernels.softmax.torch_op` makes an operator of it: PyTorch's
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
# - A traffic model is a claim about kernels. I check whose: mine asked for {{ 1 + 1 + 0.5 + 3 + 2 }} passes, PyTorch's
#   three moved {{ round(moved / scores) }}, and the model said 7.
# - What threads ask for and what memory delivers are two numbers. The third pass over a row of 4 KB comes from a cache,
#   and it still costs time.
# - The best saving was to not read what is hidden. No model of passes had it.
# - If two sizes take the same time, I am timing something else.
# - Full occupancy is not the goal. Loads on their way are.
#
# ## Resources
#
# - [M. Shoeybi et al.: Megatron-LM (2019)](https://arxiv.org/abs/1909.08053), whose fused kernels do the same
# - [CUDA C++ Programming Guide: Compute Capabilities](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities)
# - [Nsight Compute: Metrics Guide](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#metrics-guide)
# - [PyTorch: Custom Operators](https://pytorch.org/tutorials/advanced/python_custom_ops.html)
#
# ## Try it
#
# - In the cell that counts passes, take the mask away: `causal=False`. Which bars change, and by how much?
# - How many blocks of `single_read` would fit on a multiprocessor if a thread took 64 registers{{ example }}? Predict
#   it, then call `occupancy.blocks(occupancy.H200, 128, 64, 0)`.
# - In the cell with NaN, use `masked_softmax_three_read`. Why does it come out right, although it loads the NaN?
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
# theirs = [1000 * row.unfused.p50 for row in cases]
# graphs = [1000 * row.fused_graph.p50 for row in cases]
# three_read_slowdown = ms['three_read'] / ms['single_read']
# bounded_share = ncu('masked_softmax_causal', 'causal_bounded').dram_read / scores
# single_read_occupancy = ncu('masked_softmax_causal', 'causal_single_read').occupancy_percent / 100
# masked_gain = 4 < fused['causal'][0] < fused['padding'][0] < 5
# compiled_longer = all(0.2 < fused[mask][1] - 1 < 0.3 for mask in ('causal', 'padding'))
