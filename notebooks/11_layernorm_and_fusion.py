# %% [markdown]
# # 11 · LayerNorm and fusion
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - why a variance in one pass can come out negative, and two ways around it
# - what a bank conflict is, and how one unused column removes it
# - what it is worth to make one kernel of two: count the bytes first, then the launches, then look at the clock
#
# ## The problem
#
# GPT-2 and its relatives, the *transformers*, pass a row of numbers for each token from layer to layer, and before or
# after each layer the row is normalised: moved to a mean of 0 and a variance of 1, and then scaled and shifted by a
# weight and a bias that belong to the column:
#
# $$\text{out}_{r,c} = \frac{x_{r,c} - \mu_r}{\sqrt{\sigma_r^2 + 10^{-5}}} \; w_c + b_c$$
#
# $\mu_r$ is the mean of the row and $\sigma_r^2$ its variance, the mean of the squared differences from $\mu_r$. GPT-2
# does this 25 times for each token, with rows of 768. The small number under the root keeps a row of equal values from
# being divided by zero.
#
# ## Prediction
#
# Two sums, and the second needs the result of the first. Written down as it stands, that is three passes over the row:
# one for the mean, one for the variance, one for the result.
#
# Before you run the next cell, write down for 65,536 rows of 4,096: the bytes if each row is read once and written
# once, and the time that takes at 4,200 GB/s. Then your guess how much longer a kernel takes that reads each row three
# times.

# %%
from labkit import roofline
from labkit.kernels.norm.layernorm import LAYERNORM

roofline.predict(LAYERNORM, R=65536, C=4096)

# %% [markdown]
# ## A block for each row
#
# This is how a GPT-2 in CUDA that I studied does it: 256 threads share a row, and a tree in shared memory adds up what
# they found. The tree is `block_reduce_sum` from lesson 09, with the barrier that was missing in print.

# %%
from labkit import show_source
from labkit.kernels.norm.layernorm import layernorm_block_tree_kernel

show_source(layernorm_block_tree_kernel)

# %% [markdown]
# Three loops over the row, as predicted. How many barriers does a thread come by, and how often is each element loaded?

# %%
import numpy as np

from labkit import observe

x, weight, bias = LAYERNORM.inputs(np.random.default_rng(0), R=1, C=768)
report = observe(layernorm_block_tree_kernel[1, 256], x, weight, bias, np.zeros_like(x))
print(f"{report.counts['barriers']} barriers")
print(f"{report.counts['global_loads'] / 768:.0f} loads for each element: three of x, one of weight, one of bias")

# %% [markdown]
# ## A variance that keeps its digits
#
# It is tempting to save a pass. The variance is also the mean of the squares less the square of the mean,
#
# $$\sigma^2 = \frac{1}{C} \sum_k x_k^2 - \mu^2,$$
#
# and both sums can be made at the same time. On paper the two formulas are equal. Here is a row with a mean of 10,000
# and a variance of about 1. Before you run the cell: how many digits does a float32 have?

# %%
row = (10_000 + np.random.default_rng(1).standard_normal(768)).astype(np.float32)
mean = row.mean()

print(f"in float64                       {row.astype(np.float64).var():.6f}")
print(f"differences from the mean        {((row - mean) ** 2).mean():.6f}")
print(f"mean of squares less square      {(row * row).mean() - mean * mean:.6f}")
print(f"neighbours of 10,000 squared     {np.spacing(np.float32(10_000**2)):.0f} apart")

# %% [markdown]
# A float32 has 24 bits, some seven digits. The mean of the squares is about 100,000,000, and there the next float32 is
# 8 away. The difference of two such numbers can be 0, 8, 16 or -8. It cannot be 1. Nothing went wrong in the
# subtraction, which is exact. The digits were gone before, when the squares were rounded. This is called
# *cancellation*.
#
# `layernorm_one_pass` is a kernel that does so. I let it run over rows whose mean is a growing multiple of their
# spread, beside the kernel with three loops, and beside a third one that comes below.

# %%
from labkit import cuda, device, plots
from labkit.kernels.norm.layernorm import (
    layernorm_block_tree,
    layernorm_one_pass,
    layernorm_reference,
    layernorm_welford,
)

ratios = [1, 10, 100, 300, 1000, 3000, 10_000]
rungs = {"three loops": layernorm_block_tree, "one pass": layernorm_one_pass, "Welford": layernorm_welford}
ones, zeros = np.ones(768, np.float32), np.zeros(768, np.float32)
errors = {name: [] for name in rungs}
spoilt = []
for ratio in ratios:
    x = (ratio + np.random.default_rng(2).standard_normal((64, 768))).astype(np.float32)
    for name, launch in rungs.items():
        out = cuda.device_array(x.shape, np.float32)
        launch(*map(cuda.to_device, (x, ones, zeros)), out)
        wrong = np.abs(out.copy_to_host() - layernorm_reference(x, ones, zeros))
        errors[name].append(np.nanmax(wrong))
        spoilt.append((name, ratio, int(np.isnan(wrong).any(axis=1).sum())))

plots.curves(ratios, errors, "How wrong LayerNorm comes out", "mean of a row, in units of its spread",
             "largest error", log_x=True, log_y=True, marks=True, place=f"On {device.name()}")

# %%
for name, ratio, rows in spoilt:
    if rows:
        print(f"{name}, mean {ratio:,} times the spread: {rows} of 64 rows are NaN")

# %% [markdown]
# The results should be numbers around 1. With a mean a thousand times the spread, the one pass is off in the first
# digit. Above that the variance comes out negative in some rows, and the root of it is NaN. The other two lines grow as
# well, but slowly: that is the rounding of the mean itself, which no formula avoids.
#
# Rows with a mean of a thousand spreads are rare. But a kernel that is right for usual numbers and returns NaN
# for others is not a kernel that I want to look for in a model of a hundred layers.
#
# There is a formula that needs a single pass and loses nothing. It is from 1962 and carries the name of Welford. It
# keeps the mean of what it has seen so far and the sum of the squared differences from that mean, and corrects both
# with every element.

# %%
from labkit.kernels.norm.layernorm import layernorm_welford_kernel

show_source(layernorm_welford_kernel)

# %% [markdown]
# Each lane does so for its own columns. Then 32 lanes with 32 counts, means and sums become one, two at a time. If the
# means of two sets lie `apart`, joining them adds `apart` squared, weighted with the sizes of the two sets. The price
# is a division for every element.
#
# ## A row that stays
#
# All of these formulas try to avoid reading the row again. There is a simpler way: do not let go of it. A warp has 32
# times up to 255 registers. A row of 768 takes 24 of them in each lane. What a thread holds in registers it can walk
# over as often as it likes, and the first formula is good enough.

# %%
plots.quads(columns=27, lanes=4)

# %% [markdown]
# A lane loads four neighbours with one instruction, 128 bits, and the lanes of a warp load side by side. The picture
# has 4 lanes in place of 32.

# %%
from labkit.kernels.norm.layernorm import make_layernorm_warp

show_source(make_layernorm_warp)

# %% [markdown]
# `v` is an array of the thread's own. It has no place in memory: the loops have constant bounds, so the compiler
# unrolls them, every index becomes a constant, and each element becomes a register. For that reason a function makes
# the kernel, one for each number of quads. For rows of 768, ptxas counts 49 registers a thread, and none had to move to
# local memory.
#
# The sums go through `warp_sum`, five shuffles. There is no shared memory and no barrier in this kernel at all. The
# zeros beyond the end of a row do no harm to the sum. They would to the variance, where a zero differs from the mean,
# and there the kernel asks.
#
# `load_four` comes in three kinds, picked by the launcher. If a row fills all lanes there is nothing to guard. If its
# length is a multiple of four, a quad is inside or outside as a whole. For any other length rows begin at any address,
# a load of 128 bits would fault, and the quad is loaded one by one.
#
# A row of 4,096 takes 128 registers in each lane, and then only few warps fit on a multiprocessor.
# `layernorm_registers` gives such a row to a block of 512 threads. The sums then take two levels, with one barrier
# each.
#
# ## Right at every size

# %%
from labkit import agree

agree(LAYERNORM, LAYERNORM.rungs[:5], sizes=({"R": 5, "C": 767}, {"R": 6, "C": 768}))

# %% [markdown]
# 767 is no multiple of four, so in the last kernel each row begins at another address. The tests run further lengths, a
# single column among them, views that begin at odd addresses, and the kernels for wide rows.
#
# ## The ladder
#
# Write down an order of the rungs, for a GPU, and the place of PyTorch in it.

# %%
from labkit import ladder

found = ladder(LAYERNORM, rungs=None if device.on_gpu() else LAYERNORM.rungs[:5])
found

# %%
plots.ladder(found)

# %% [markdown]
# On the CPU device a warp is a loop over 32 threads and a shuffle is a pass through memory. Its order means nothing.
# The rest is about the H200 that we recorded, at this size and at a smaller one: 8,192 tokens of GPT-2, 768 wide, in a
# graph.

# %%
from labkit import measure

wide = measure.recorded_ladder("layernorm", {"R": 65536, "C": 4096}, gpu="NVIDIA H200")
small = measure.recorded_ladder("layernorm", {"R": 8192, "C": 768}, gpu="NVIDIA H200")

print("                       65,536 x 4,096          8,192 x 768")
for row in wide.rows:
    us = small.row(row.name).graph
    if us is not None:
        print(f"{row.name:23} {row.gbs:6,.0f} GB/s {row.fraction:4.0%}  {1000 * us.p50:9.1f} us in a graph")

# %% [markdown]
# Three things surprised me.
#
# The kernel with three loops reaches 85% of the speed of a copy on the wide rows. I had counted (3 + 1) / (1 + 1),
# twice as slow. But a row is 16 KB and its block reads it again at once. The second and the third pass come out of a
# cache, and not out of memory. The source of a kernel says what it asks for. What it gets from memory is another
# question.
#
# The same kernel falls far behind on the small rows. Each of 256 threads has three elements to add, and then stands at
# twenty barriers. Here the barriers are the work, and the warp that has none is three times as fast.
#
# And reading less does not always help. The two kernels in the middle read a row twice, not three times, and on the
# wide rows they lose against the tree. Their loops load four bytes a lane, use them, and load the next four. I think
# there are too few bytes on the way, and Welford also waits for a division in each round. On the small rows they win:
# no barrier.
#
# ## The rung that failed
#
# `layernorm_persistent` was my own idea of the end of this ladder. The grid is as large as the GPU can run at once, a
# block goes from row to row, keeps weight and bias in registers, and has asked for its next row before it adds up the
# present one. On paper memory never pauses.

# %%
for name in ("layernorm_registers", "layernorm_persistent"):
    row = wide.row(name)
    print(f"{name:22} {row.gbs:,.0f} GB/s, {row.resources[0]['registers']} registers a thread")

# %% [markdown]
# It is the slower one, and the longer one. With several blocks on a multiprocessor one loads while another adds up,
# and nobody has to program it. My first version had an `if` around the early load and was slower still. I suppose
# that a load in a branch is waited for where the branch ends, which is the opposite of early.
#
# ## A tile that turns
#
# The barriers of shared memory have appeared in three lessons. It has another property, which LayerNorm was lucky
# enough not to meet. A transpose meets it.
#
# $$\text{out}_{c,r} = a_{r,c}$$
#
# No arithmetic. But whichever way the threads lie, either the loads or the stores of a warp run down a column of
# memory. The way out is an exercise of lesson 04: a block loads a tile along the rows of `a`, waits, and stores it
# along the rows of `out`. The turn takes place in shared memory. And it is not free there either.
#
# Shared memory lies in 32 *banks* (lesson 05), each four bytes wide. Element i of a float32 array is in bank i % 32. In
# one step every bank gives one element. If the lanes of a warp want elements from 32 different banks, that is one step.
# If all want different elements of the same bank, it is 32, one after another: a *bank conflict*.

# %%
plots.banks({"rows of 8": lambda row, col: 8 * row + col, "rows of 9": lambda row, col: 9 * row + col,
             "col ^ row": lambda row, col: 8 * row + (col ^ row)})

# %% [markdown]
# On the left a column lies in a single bank, because a row is as long as there are banks. In the middle a row has one
# more element, which nobody uses. Now each row begins one bank further, and a column walks through all of them. On the
# right nothing is wasted: row r keeps its element c at place c ^ r, exclusive or, and finds it there again.

# %%
from labkit.kernels.transpose import make_transpose_tiled

show_source(make_transpose_tiled)

# %% [markdown]
# The tile is 32 × 32, the pitch is 32 or 33, and the rest is the same. To read the columns of a tile takes 32 requests,
# one for each column, by one warp each. Before you run the cell: how many steps too many does the pitch of 32 cost, for
# one tile?

# %%
from labkit.kernels.transpose import transpose_padded_kernel, transpose_swizzled_kernel, transpose_tiled_kernel

square = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
for kernel, name in ((transpose_tiled_kernel, "pitch 32"), (transpose_padded_kernel, "pitch 33"),
                     (transpose_swizzled_kernel, "col ^ row")):
    counts = observe(kernel[1, (32, 8)], square, np.zeros_like(square)).counts
    print(f"{name:10} {counts['bank_conflicts']:4} steps too many")

# %%
from labkit.kernels.transpose import TRANSPOSE

turned = ladder(TRANSPOSE)
plots.ladder(turned)

# %% [markdown]
# There is no bank on the CPU device. On the H200 the naive kernel writes a sector of 32 bytes for every four that it
# means. The tile cures that, the pitch of 33 doubles the speed once more, and loads and stores of 128 bits bring it to
# nine tenths of a copy. PyTorch stays behind; I think its copy is a general one, for any strides.
#
# The exclusive or has no conflicts either, and is slower than the padding. I had expected them equal. One guess: with
# the padding the four places of a thread lie a fixed distance apart; with the exclusive or each has to be worked out
# anew.
#
# ## One kernel of two
#
# Around a LayerNorm stands an addition. What a layer computes is added to what went into it, the *residual*, and the
# sum is normalised. As two kernels, counted for each element of four bytes:
#
# - the addition reads two and writes one
# - LayerNorm reads one and writes one
#
# The second reads what the first has just written. *Fusion* makes one kernel of both, and the sum stays in the
# registers where it was made. BERT, and MiniLM, a small model of its kind, need the normalised row only. GPT-2 adds to
# the sum again in its next layer, so there the fused kernel stores both. Before you run the next cell, work out the
# three counts, and the factors between them.

# %%
moved = {"addition, then LayerNorm": (4 * 3, 4 * 2), "fused, sum kept (GPT-2)": (4 * 2, 4 * 2),
         "fused (BERT, MiniLM)": (4 * 2, 4 * 1)}
plots.traffic(moved, "Bytes for each element", "bytes", least=12)

# %%
from labkit.kernels.norm.layernorm import make_residual_layernorm

show_source(make_residual_layernorm)

# %% [markdown]
# It is the kernel from above with two loads in place of one. `keep` says whether the sum is stored, `warps` whether a
# warp or a block shares the row. Does it save a launch? A graph can be asked what it holds.

# %%
from labkit import graphs
from labkit.kernels.norm.layernorm import ADD_LAYERNORM

arrays = [cuda.to_device(array) for array in ADD_LAYERNORM.inputs(np.random.default_rng(3), R=8, C=768)]
out = cuda.device_array((8, 768), np.float32)
for launch in ADD_LAYERNORM.rungs:
    graph = graphs.capture(lambda stream, launch=launch: launch(*arrays, out, stream=stream))
    print(f"{launch.__name__:22} {graph.nodes} in the graph")

# %%
fused = ladder(ADD_LAYERNORM)
plots.ladder(fused)

# %%
for name, least in (("add_layernorm", 12), ("residual_layernorm", 16)):
    recorded = measure.recorded_ladder(name, gpu="NVIDIA H200")
    two, one = (recorded.row(f"{name}_{kind}").timing.p50 for kind in ("unfused", "fused"))
    print(f"{name:20} predicted {least / 20:.2f}, measured {one / two:.2f} of the time of two kernels")

# %% [markdown]
# Bytes predict it. What is left between the numbers is that two kernels leave some of their sum in the cache for one
# another, and that a launch has a beginning and an end in which memory is not busy.
#
# ## The cheapest kernel is none
#
# The other small kernel of a layer is its activation. GELU comes in two forms: BERT's is exact, GPT-2's has a tanh in
# place of the error function.
#
# $$\frac{x}{2}\left(1 + \text{erf}\frac{x}{\sqrt{2}}\right) \qquad
# \frac{x}{2}\left(1 + \tanh\left(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\right)\right)$$

# %%
from labkit.kernels.gelu import gelu_erf_reference, gelu_tanh_reference

at = np.linspace(-6, 6, 1201)
apart = gelu_tanh_reference(at) - gelu_erf_reference(at)
print(f"at most {abs(apart).max():.6f} apart, at x = {abs(at[abs(apart).argmax()]):.2f}")
plots.curves(at, {"apart": apart}, "GELU: the tanh form less the exact one", "x", "difference")

# %% [markdown]
# Half a thousandth. A float16 near 1 has a step of one thousandth. But a model was trained with one of the two, and
# layers are many, so a port takes the form of the model. (The GPT-2 in CUDA that I studied calls the tanh form a Padé
# approximant, and says that PyTorch uses it. A Padé approximant is a quotient of two polynomials, which this is not;
# and PyTorch's `gelu` is the exact form unless one asks for `approximate="tanh"`.)
#
# Which of them is faster? The tanh and the error function each cost a long row of instructions, and the tanh form can
# do without a tanh: with $u$ for what stands in its brackets, $(1 + \tanh u) / 2 = 1 / (1 + e^{-2u})$.

# %%
gelu, erf = (measure.recorded_ladder(name, gpu="NVIDIA H200") for name in ("gelu", "gelu_erf"))
for recorded in (gelu, erf):
    for row in recorded.rows:
        print(f"{row.name:20} {row.gbs:6,.0f} GB/s  {row.fraction:4.0%}")

# %% [markdown]
# It makes no difference on the H200: who loads four at a time has arrived, whatever the arithmetic. Eight bytes an
# element are what a GELU costs, and no cleverness inside the kernel changes that. Outside it does. Before GELU comes a
# product of matrices, which holds each element in a register just before it stores it. GELU could be computed there, in
# the *epilogue* of the product: bias, GELU, store. That saves the whole kernel, to the last byte.
#
# MiniLM's layer in halves, 8,192 tokens, 384 in and 1,536 out. A GELU of its own would read and write 25 MB each.
# Before you run the cell: how many microseconds is that at 4,200 GB/s?

# %%
from labkit.kernels.linear.layers import LINEAR_GELU

LINEAR_GELU

# %%
moved_mb = 2 * 2 * 8192 * 1536 / 1e6
print(f"predicted: {moved_mb:.0f} MB less, {1000 * moved_mb / 4200:.0f} us")
shape = {"M": 8192, "N": 1536, "K": 384}
layer, tanh, plain = (measure.recorded_ladder(name, shape, gpu="NVIDIA H200")
                      for name in ("linear_gelu", "linear_gelu_tanh", "linear"))
rows = {row.name: row for row in layer.rows}
rows["the layer on wgmma without any GELU, from lesson 05"] = plain.row("linear_wgmma_specialised")
rows["the layer on wgmma with the tanh form"] = tanh.row("linear_gelu_tanh_wgmma")
for name, row in rows.items():
    print(f"{name:52} {1000 * row.graph.p50:5.1f} us in a graph")

# %% [markdown]
# The table names what is fused and what is not. PyTorch's line is a product by cuBLAS, with the bias in its epilogue,
# and a GELU after it. An epilogue is no free lunch: the product's sums fill the registers, and the error function
# wants some, too. The first version of `fused` was slower than the two kernels that it replaced.
#
# The rung on wgmma is the fastest. It computes GELU while its next tile is being copied. That hides the copy and not
# the arithmetic, as the line without GELU shows: twelve million error functions cost about what the 50 MB would have
# cost. As a kernel of its own, GELU waits for bytes. In the epilogue it waits for arithmetic, and there the form counts
# after all. The last line has GPT-2's, without a tanh, and costs less than half as much.
#
# ## Beside the source
#
# Two write-ups stand behind this lesson. The one with MiniLM on an RTX 3090 gives the time of the whole model for one
# sentence, at 64 sentences of 128 tokens: 0.118 ms before these two steps, 0.109 after a warp took each LayerNorm,
# 0.102 after GELU moved into the product. It computes in float16. The model has 13 LayerNorms, 384 wide, and 6 GELUs,
# 1,536 wide. So the H200's times for such pieces, in float32, can be added up.

# %%
layer = measure.recorded_ladder("layernorm", {"R": 8192, "C": 384}, gpu="NVIDIA H200")
tree, warp = (1000 * layer.row(f"layernorm_{name}").graph.p50 for name in ("block_tree", "warp_per_row"))
gelu_alone = 1000 * measure.recorded_ladder("gelu_erf", {"n": 8192 * 1536}, gpu="NVIDIA H200").row(
    "gelu_erf_vectorized").graph.p50

print("saved, us for a sentence           RTX 3090, theirs    H200, ours")
print(f"LayerNorm: a warp for each row    {118 - 109:10}           {13 * (tree - warp) / 64:10.1f}")
print(f"GELU: no kernel of its own        {109 - 102:10}           {6 * gelu_alone / 64:10.1f}")

# %% [markdown]
# Theirs are differences of two rounded times of a whole model. Ours are sums of kernels in a graph, with no model
# around them, on a GPU with four and a half times the bandwidth. For GELU it is what there is to save at most, since
# the epilogue has to compute it all the same. I would not have dared to predict more than the order, and the order is
# the same: the norm that waits at barriers costs more than the activation that only moves bytes.
#
# Their LayerNorm takes the residual in, and so does ours. In halves, as they compute, with the sums in float32:

# %%
for size in ({"R": 8192, "C": 384}, {"R": 65536, "C": 768}):
    recorded = measure.recorded_ladder("add_layernorm_half", size, gpu="NVIDIA H200")
    ours, torchs = (1000 * recorded.row(name).graph.p50 for name in
                    ("add_layernorm_half_warp", "PyTorch (add, then layer_norm)"))
    print(f"{size['R']:6,} x {size['C']}: {ours:5.1f} us, PyTorch in two kernels {torchs:5.1f} us, in a graph")

# %% [markdown]
# The other write-up, GPT-2 by hand, has the kernel with the tree, 768 wide. At that width the tree takes three times as
# long as the warp here, in the table above.
#
# ## What was implemented
#
# - LayerNorm in seven rungs, two of which failed: one for its digits, one for its speed
# - rows in registers, of any length and at any address, in a warp or in a block
# - a residual folded into LayerNorm, with its sum kept or not
# - GELU in both forms; a residual addition
# - a transpose in five rungs: naive, a tile, a padded tile, a swizzled tile, 128 bits at a time
#
# ## What I learned
#
# - A formula that saves a pass can cost all digits. I check a variance with a mean of 10,000.
# - The best way not to read a row twice is to keep it. Registers are the largest fast memory that there is.
# - Count what a kernel asks for, then ask where it comes from. Three passes were nearly free where the cache held the
#   row.
# - Barriers are cheap beside 16 KB of loading and expensive beside 3 KB.
# - Two kernels that hand an array over are a candidate. Bytes predict what fusing them is worth.
# - I wrote a pipeline by hand, and the hardware had a better one.
#
# ## Resources
#
# - [Ba, Kiros, Hinton: Layer Normalization (2016)](https://arxiv.org/abs/1607.06450)
# - [Hendrycks, Gimpel: Gaussian Error Linear Units (2016)](https://arxiv.org/abs/1606.08415)
# - [Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances
#   (1979)](http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf)
# - [M. Harris: An Efficient Matrix Transpose in CUDA
#   C/C++](https://developer.nvidia.com/blog/efficient-matrix-transpose-cuda-cc/)
#
# ## Try it
#
# - In the cell with the four variances, lower the mean to 1,000 and to 100. From where on has the last formula a digit
#   right? Predict it from `np.spacing`.
# - In the cell with the banks, try `lambda row, col: 10 * row + col`. How many steps, and why not one?
# - In the cell with the bytes, add a third kernel before the other two: the bias of a linear layer, added to `x`. What
#   does fusing all three save?
#
# Next: **attention**, where a softmax stands between two products, and fusing the three is another matter.
