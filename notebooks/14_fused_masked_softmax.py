# %% [markdown]
# # 14 · Fused masked softmax
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
# is compared with the others (lesson 17). The token that is compared is the *query*, each one that it is compared
# with is a *key*, and a *score* says how well the two match. Then three things happen to the scores:
#
# $$P = \text{softmax}(\text{scale} \cdot X + \text{mask})$$
#
# They are scaled, by $1/\sqrt{64} = 0.125$ where a query is a vector of 64 numbers. Some are hidden: the mask adds
# $-\infty$ there, and $e^{-\infty} = 0$. And the softmax of lesson 12 makes probabilities of each row. GPT-2 hides
# what lies in a token's future. That mask is called *causal*.

# %%
from labkit import plots

plots.masks()

# %% [markdown]
# With *padding* the sequences of a batch have different lengths and are stored as if they had the same. What lies
# beyond the end of a sequence is hidden. All three masks leave the first columns of a row, so a kernel needs one number
# for each row: how many it sees.
#
# ## Prediction
#
# B matrices of S × S. Three kernels, one after the other: the first scales and stores, the second adds the mask, the
# third is the softmax. Write down how often the whole array is read, and how often it is written. Then the same for one
# kernel that does everything. What is the ratio?
#
# ## Three kernels

# %%
from labkit import show_source
from labkit.kernels.softmax.masked import mask_kernel, masked_softmax_unfused, scale_kernel

show_source(scale_kernel)

# %%
show_source(mask_kernel)

# %% [markdown]
# The third is the softmax with two trees, from lesson 12. This lesson follows a report, *Fused Attention Softmax
# Accelerator GPT 2 Inference*, which did the same on an NVIDIA L4. Its first test: for one matrix of 64 × 64 with the
# causal mask, every row of the result must have the sum 1.

# %%
import numpy as np

from labkit import cuda

scores = np.random.default_rng(0).standard_normal((1, 64, 64), dtype=np.float32)
unfused = cuda.device_array(scores.shape, np.float32)
masked_softmax_unfused(cuda.to_device(scores), unfused, causal=True, scale=0.125)
sums = unfused.copy_to_host().sum(axis=-1, dtype=np.float64)
print(f"shape {unfused.shape}, sum of a row {sums.mean():.6f}, from {sums.min():.6f} to {sums.max():.6f}")
print(f"more digits: from {sums.min():.9f} to {sums.max():.9f}")

# %% [markdown]
# ## One kernel
#
# The report describes a kernel that loads a row once into registers, but its pseudocode is that of another one, which
# loads the row three times. Here is the second.

# %%
from labkit.kernels.softmax.masked import masked_softmax_three_read, masked_softmax_three_read_kernel

show_source(masked_softmax_three_read_kernel)

# %% [markdown]
# Three loops, and each of them loads the row, scales it and masks it again. What a thread has computed in the first
# loop is forgotten in the second. Nothing is stored but the result, though, and that is what *fused* means. The two
# `block_max` and `block_sum` are the two-level reductions of lesson 12: shuffles, then shared memory.
#
# How far is the fused result from the unfused one? (The report prints 0.000000 for the largest difference.)

# %%
fused = cuda.device_array(scores.shape, np.float32)
masked_softmax_three_read(cuda.to_device(scores), fused, causal=True, scale=0.125)
difference = np.abs(fused.copy_to_host().astype(np.float64) - unfused.copy_to_host())
relative = difference.max() / unfused.copy_to_host().max()
print(f"largest {difference.max():.6f}, mean {difference.mean():.6f}, relative {relative:.6f}")
print(f"largest {difference.max():.1e}, mean {difference.mean():.1e}, relative {relative:.1e}")

# %% [markdown]
# Six digits after the point show zeros for everything below half a millionth. The numbers of a row are added in
# another order, so the last bits may differ. And two kernels that agree may both be wrong: the test that counts is
# against NumPy in float64, further down.
#
# ## The bytes, on paper
#
# The report has a formula: the unfused way takes seven passes over the array and one number for each row; the fused
# way reads once and writes once.

# %%
from labkit._common.tables import PlainTable

theirs = {(1, 512): (7_342_080, 2_097_152), (1, 1024): (29_364_224, 8_388_608)}
rows = []
for B, S in ((1, 512), (1, 1024), (64, 1024)):
    unfused_bytes = 4 * (7 * B * S * S + B * S)
    fused_bytes = 4 * 2 * B * S * S
    known = theirs.get((B, S))
    rows.append((str(B), str(S), f"{unfused_bytes:,}", f"{fused_bytes:,}", f"{1 - fused_bytes / unfused_bytes:.1%}",
                 "-" if known is None else "the same" if known == (unfused_bytes, fused_bytes) else "another"))
PlainTable("The report's model", ("B", "S", "unfused", "fused", "saved", "in the report"), tuple(rows),
           ("The report's tables say 71.4%, its summary about 75%. The headings of those tables count four passes "
            "against one, which would be 75%; the bytes under them are those of seven against two.",))

# %% [markdown]
# $1 - 2/7 = 71.4\%$, whatever the size. The report does not derive its seven passes. Scale and mask each read and
# write, and that would leave three for the softmax. Is it so?
#
# ## The bytes, counted
#
# `observe` counts what the threads load and store. In passes over the array, for one matrix of 32 × 32, causal:

# %%
from labkit import observe
from labkit.kernels.softmax import masked as ms
from labkit.kernels.softmax.rows import softmax_block_tree_kernel

S = 32
small = scores[:, :S, :S].copy()
lengths = np.zeros(1, np.int32)  # read only where there is padding
scale, causal = np.float32(0.125), np.uint32(1)


def passes(*launches):
    """Passes over the array that these launches read and write."""
    counts = [observe(launch, *args).counts for launch, args in launches]
    return tuple(sum(c[f"bytes_{kind}"] for c in counts) / (4 * S * S) for kind in ("loaded", "stored"))


out = np.empty((1, S, S), np.float32)
fused_arguments = (small, lengths, out, scale, causal)
factor = np.float32(0.125 * np.log2(np.e))
counted = {
    "unfused": passes((ms.scale_kernel[(1, S), S], (small, out, scale)),
                      (ms.mask_kernel[(1, S), S], (out, lengths, np.uint32(1), causal)),
                      (softmax_block_tree_kernel[S, S, 0, 4 * S], (out[0], out[0]))),
    "three_read": passes((ms.masked_softmax_three_read_kernel[S, S], fused_arguments)),
    "bounded": passes((ms.masked_softmax_bounded_kernel[S, S], fused_arguments)),
    "single_read": passes((ms.ALIGNED[0][S // 4, 128], (small, lengths, out, factor, causal))),
}
plots.traffic(counted, "What the threads ask for", "passes over the array", place="Counted by observe")

# %% [markdown]
# The unfused way: the scaling reads one pass and writes one. The mask only writes, half a pass, since what is hidden
# need not be read to be overwritten. The softmax reads three and writes two. That makes seven and a half, so the
# report's seven are about right for kernels such as these.
#
# The pseudocode asks for four passes, twice as many as the model of a fused kernel has. The other two kernels come
# next.
#
# ## Not reading what is hidden
#
# A row of a causal mask sees half of its columns on average. The pseudocode loads the other half as well, three times,
# to replace it by $-\infty$. Since every mask leaves the first columns, a loop can end there. That is `bounded`: its
# loops run to `seen` and not to `size`.
#
# ## One pass
#
# A row of up to 1,024 elements fits into the registers of one warp, 32 for each lane. Then there is no shared
# memory and no barrier at all.

# %%
show_source(ms.ALIGNED[1])

# %% [markdown]
# Eight loads of four neighbours each stand first, and a lane whose four are hidden does not load. The constant
# $\log_2 e$ of the exponential is part of `factor`, so that scaling and exponential share one multiplication. At the
# end every column gets a value: the hidden ones get zeros, without having been looked at. That can be tested. Put NaN
# where the mask is, and the result must not change.

# %%
poisoned = np.where(np.triu(np.ones((64, 64), bool), 1), np.float32(np.nan), scores)
result = cuda.device_array(scores.shape, np.float32)
ms.masked_softmax_single_read(cuda.to_device(poisoned), result, causal=True)
print(f"{np.isnan(result.copy_to_host()).sum()} NaN, largest difference from the unfused result "
      f"{np.abs(result.copy_to_host() - unfused.copy_to_host()).max():.1e}")

# %% [markdown]
# A row may see nothing, with padding to a length of 0. PyTorch's softmax makes NaN of it. Here it comes out as zeros.
#
# ## Right at every size, under every mask

# %%
from labkit import agree

sizes = ({"B": 1, "S": 4}, {"B": 3, "S": 20}, {"B": 2, "S": 64}, {"B": 1, "S": 260})
agree(ms.MASKED_SOFTMAX_CAUSAL, sizes=sizes)

# %%
for op in (ms.MASKED_SOFTMAX_NONE, ms.MASKED_SOFTMAX_PADDING):
    for row in agree(op, sizes=sizes[:3]).rows:
        print(f"{row.name:22} largest error {row.error:.1e}, {row.units:.2f} of what is allowed")

# %% [markdown]
# (Sizes that are no multiple of
# four go to a kernel that loads one element at a time. Rows of more than 1,024 go to a block. The tests run those,
# too.)
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
# I had expected three passes. On the H200 that we recorded it is one: 268 MB, the size of the scores. A row has 4 KB.
# When the second loop comes, the row still lies in a cache. So the pseudocode reads and writes
# memory once after all, and still takes three times as long as `single_read`. Nor
# is it the mask: `bounded` reads half of the scores from memory, as much as `single_read`, and takes twice as long.
#
# Bytes do not explain that. The loops of both hold one load each, so a warp has only one load in flight.
# They compute each exponential twice and cross barriers in between. `single_read` has fewer warps, half of what would
# fit. But each has eight loads of 16 bytes on their way.
#
# It also shows that the model of seven passes is too much for real kernels: PyTorch's three read and write about six
# times the size of the scores. (Written is less than one would think everywhere: when a kernel ends, its last 20 to
# 27 MB are still on their way, in the L2 cache.)
#
# The columns *load* and *store* tell how well the accesses of a warp lie together: 4 sectors for 32 numbers of 4 bytes
# is all that is needed, and 16 for 32 times 16 bytes. Everything here is coalesced. The last column says what warps
# wait for: for memory, mostly (`long_scoreboard`).
#
# ## The ladder

# %%
from labkit import ladder

found = ladder(ms.MASKED_SOFTMAX_CAUSAL)
plots.ladder(found)

# %%
from labkit import measure
from labkit._common.tables import number
from labkit.device import occupancy

rows = []
for mask in ("none", "causal", "padding"):
    for S, B in ((512, 1), (1024, 1), (1024, 64)):
        one = measure.recorded_ladder(f"masked_softmax_{mask}", {"B": B, "S": S}, gpu="NVIDIA H200")
        us = {row.name: 1000 * row.graph.p50 for row in one.rows if row.graph}
        torch = next(name for name in us if name.startswith("PyTorch"))
        ours = us[f"{mask}_single_read"]
        rows.append((mask, f"{B} x {S} x {S}", *(number(us[f"{mask}_{rung}"]) for rung in ("unfused", "three_read")),
                     number(ours), number(us[torch]), number(us.get("torch.compile")), f"{us[torch] / ours:.1f}"))
columns = ("mask", "", "unfused", "three_read", "single_read", "PyTorch", "torch.compile", "ratio")
PlainTable("In a graph, us", columns, tuple(rows),
           (f"Measured on {one.where}. PyTorch: three calls, scale, mask, softmax. Ratio: PyTorch to single_read.",))

# %% [markdown]
# `torch.compile` fuses the three calls by itself and writes a kernel in Triton for it. Without a mask it is as fast as
# ours; both move each byte once. Under a mask it does not know that half of the scores need not be read.
#
# ## The report's figures, and ours
#
# The report times the unfused way by PyTorch against its fused kernel: 5 calls to warm up, then 100, one matrix each.
# Here is the same on an H200, called from Python, with `single_read` as the fused kernel. Before you look: how much
# longer should a matrix of 1,024 take than one of 512?

# %%
series = measure.recorded_series("masked_softmax_sizes", gpu="NVIDIA H200")
theirs = {(512, "none"): (37, 30, 1.27), (512, "causal"): (141, 30, 4.78),
          (1024, "none"): (37, 30, 1.24), (1024, "causal"): (139, 30, 4.65)}


def spread(timing):
    p5, p50, p95 = (1000 * timing[name] for name in ("p5", "p50", "p95"))
    return f"{p50:.1f} ({p5:.1f}–{p95:.1f})"


rows = []
for row in series["rows"]:
    B, S = row["B"], row["S"]
    slow, fast = row["unfused"]["p50"], row["fused"]["p50"]
    gbs = [4 * (7 * B * S * S + B * S) / slow / 1e6, 8 * B * S * S / fast / 1e6]
    known = theirs.get((S, row["mask"])) if B == 1 else None
    rows.append((f"{B} x {S}", row["mask"], spread(row["unfused"]), spread(row["fused"]), f"{gbs[0]:,.0f}",
                 f"{gbs[1]:,.0f}", f"{slow / fast:.2f}", ", ".join(map(str, known)) if known else "-"))
columns = ("", "mask", "PyTorch, unfused", "fused", "GB/s", "GB/s", "ratio", "theirs: us, us, ratio")
PlainTable("Called from Python, us: p50 (p5–p95)", columns, tuple(rows),
           (f"Ours on {series['where']}. GB/s by the report's count of bytes: seven passes, and two.",
            "Theirs on an L4; mean of the four ratios 2.99, fused over unfused in GB/s 0.85."))

# %% [markdown]
# In the report 512 and 1,024 take the same time: 0.030 ms, with four times the work. So it was not the work that was
# timed, but the launch. Ours are of the same kind. At B = 1 a call of ours costs about 40 us for both sizes, more
# than PyTorch's calls, although the kernel itself takes 2 to 3 us. The rest is Python. The report's ratio of
# bandwidths, 0.85, has the same reason: the fused kernel has fewer bytes to move in the same time.
#
# Where does the floor end? Here is one matrix over its size, called and in a graph, in which Python has no part.

# %%
plots.launch_floor(series)

# %% [markdown]
# In the graph every size has its own time from the start. The called kernel leaves its floor at 4,096. If you have
# small work, the launch is the first thing to get rid of.
#
# The report ends with the resources of a block: 8 warps, 256 bytes of shared memory, 6 blocks on a multiprocessor, an
# occupancy of 100%. Lesson 02 has shown how that is computed.

# %%
print(f"on an L4 ({occupancy.L4.multiprocessors} SMs of {occupancy.L4.threads:,} threads), blocks allowed by each:")
print(occupancy.limits(occupancy.L4, threads=256, registers=32, shared_bytes=256))
gpu = occupancy.of_device() or occupancy.H200
rows = []
for row in measure.recorded_ladder("masked_softmax_causal", gpu="NVIDIA H200").rungs:
    for taken in row.resources:
        threads = int(np.prod(taken["block"]))
        need = (threads, taken["registers"], taken["shared_bytes"])
        rows.append((row.name, taken["kernel"].removesuffix("_kernel"), str(threads), str(taken["registers"]),
                     str(taken["shared_bytes"]), f"{occupancy.occupancy(gpu, *need):.0%}", number(row.timing.p50)))
columns = ("rung", "kernel", "threads", "registers", "shared, bytes", "occupancy", "ms, the rung")
PlainTable(f"On an SM of the {gpu.name}", columns, tuple(rows),
           ("Registers of a thread as ptxas gave them for the H200; occupancy computed.",))

# %% [markdown]
# The report's 6 blocks and 100% are right if a thread has at most 40 registers, which it does not say. In our table
# the fastest kernel has the lowest occupancy: each of its warps has more loads in flight. (The report also asks for
# silicon area, and answers that software takes none. Registers and shared memory are what a kernel takes.)
#
# ## As an operator of PyTorch
#
# A kernel is of use where it can be called. `labkit.kernels.softmax.torch_op` makes an operator of it: PyTorch's
# tensors in and out, on PyTorch's stream, with a derivative, and known to `torch.compile`.

# %%
from labkit import device

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
# - A traffic model is a claim about kernels. I check whose: mine asked for 7.5 passes, PyTorch's three moved 6, and the
#   model said 7.
# - What threads ask for and what memory delivers are two numbers. The third pass over a row of 4 KB comes from a cache,
#   and it still costs time.
# - The best saving was to not read what is hidden. No model of passes had it.
# - If two sizes take the same time, I am timing something else.
# - Full occupancy is not the goal. Loads on their way are.
#
# ## Resources
#
# - [M. Shoeybi et al.: Megatron-LM (2019)](https://arxiv.org/abs/1909.08053), whose fused kernels scale, mask and
#   normalise
# - [CUDA C++ Programming Guide: Compute Capabilities](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities)
# - [Nsight Compute: Metrics Guide](https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#metrics-guide)
# - [PyTorch: Custom Operators](https://pytorch.org/tutorials/advanced/python_custom_ops.html)
#
# ## Try it
#
# - In the cell that counts passes, replace the causal mask by none: `causal = np.uint32(0)`. Which bars change, and by
#   how much?
# - How many blocks of `single_read` would fit on a multiprocessor if a thread took 64 registers? Predict it, then call
#   `occupancy.blocks(gpu, 128, 64, 0)`.
# - In the cell with NaN, use `masked_softmax_three_read`. Why does it come out right, although it loads the NaN?
#
# Next: **LayerNorm**, where two sums are needed and the second depends on the first.
