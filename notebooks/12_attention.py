# %% [markdown]
# # 12 · Attention
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - what attention computes, and where the numbers of a head lie
# - why 192 idle threads cost nothing, and what costs so much instead
# - how a softmax is corrected after the fact, so that no row of scores has to be kept: flash attention
#
# ## The problem
#
# A language model has a row of numbers for each token. Every layer so far treats each row by itself. Attention is the
# one place where tokens look at each other. A linear layer makes three things out of each token's row: a *query*, for
# what the token looks for, a *key*, by which it can be found, and a *value*, which it hands over. A query is compared
# with every key, by a dot product. Softmax turns the scores into weights, and the weights average the values:
#
# $$\text{out}_t = \sum_j \text{softmax}_j\left(\frac{q_t \cdot k_j}{\sqrt{D}}\right) v_j$$
#
# D is the length of these vectors. The dot product of two random vectors grows with the root of D, and so the root is
# taken out again. All of that happens several times side by side, in *heads* that know nothing of each other. The
# smallest GPT-2 has 12 heads with D = 64.
#
# ## Prediction
#
# Before you run the next cell, write down for 1,024 tokens and 12 heads: the flops (a score is a dot product of 64
# numbers, and the weighted values take as many again), the bytes that have to be read and written at least, and which
# of the two sets the limit. Then a number that the table does not have: how large is the matrix of all scores?

# %%
from labkit import roofline
from labkit.kernels.attention.three_pass import ATTENTION

roofline.predict(ATTENTION, S=1024, H=12, D=64)

# %% [markdown]
# There are 256 flops to a byte. On paper this is a problem for the arithmetic, as a matrix product is, and not for the
# memory, as softmax is. The scores are 12 × 1,024 × 1,024 numbers, 50 MB, four times as much as goes in and comes out.
# A program that writes them, reads and writes them for softmax, and reads them again moves 200 MB more than it has to.
# The baselines of two products and a softmax in the ladder below are such programs. None of our kernels is.
#
# ## Where the numbers of a head lie
#
# Queries, keys and values come out of one product of matrices, so they lie side by side in one row for each token:
# 3 × 768 = 2,304 numbers, and in each third the heads one after the other.

# %%
from labkit.measure.plots import attention as attention_pictures

attention_pictures.qkv_rows()

# %% [markdown]
# The formula under the picture is all a kernel needs. In PyTorch the same is written as a reshape. Do they agree?

# %%
import numpy as np

S, H, D = 7, 12, 64
qkv = np.random.default_rng(0).random((S, 3 * H * D), dtype=np.float32)
flat, split = qkv.reshape(-1), qkv.reshape(S, 3, H, D)
for t in range(S):
    for part, offset in enumerate((0, 768, 1536)):
        for h in range(H):
            begin = t * 2304 + offset + h * 64
            assert np.array_equal(flat[begin : begin + 64], split[t, part, h])
print(f"{S * 3 * H} pieces of 64 numbers, each where t * 2304 + {{0, 768, 1536}} + h * 64 says")

# %% [markdown]
# So there is no reason to split the heads into arrays of their own, and to merge them later. Those would be kernels
# that only move bytes. In the MiniLM of lesson 11, one product for all three and no splitting took a sentence from
# 0.140 ms to 0.118.
#
# ## Three passes
#
# This is how the GPT-2 in CUDA that I studied does it. A block of 256 threads takes one query of one head, so the grid
# is S × 12. It needs the largest score before the first power, and the sum before the first weight. Hence three passes
# over the keys.

# %%
from labkit import show_source
from labkit.kernels.attention import three_pass as at

show_source(at.weigh_keys)

# %%
show_source(at.attention_three_pass_kernel)

# %% [markdown]
# In the first pass a thread takes every 256th key and does a whole dot product. `block_max` and `block_sum` are those
# of lesson 09, with the barrier that was missing in print. `keys_values`, `first` and `start` let the same kernel read
# keys from a cache, which comes at the end. Here `keys_values` is `qkv` itself, `first` is 768 and `start` is 0.
#
# Two things in that program do not fit each other. Its text names online softmax among the patterns of the program;
# its code has none, for it knows the whole row before the second pass. And its kernel has no causal mask: each token
# sees the later ones as well, which is not what a GPT-2 was trained for. Here `causal` is an argument. A third thing
# concerns the port of MiniLM as well: in both, the search for the largest score starts at -1e30. A row whose scores
# all lie below that gets a maximum which is none of its own, every weight underflows to 0, and the row becomes 0
# divided by 0. The maximum of no numbers is minus infinity, and that is where the search begins here.

# %%
from labkit import agree

sizes = ({"S": 1, "H": 1, "D": 1}, {"S": 5, "H": 2, "D": 3},
         {"S": 33, "H": 2, "D": 64}, {"S": 300, "H": 1, "D": 64})
agree(ATTENTION, ["attention_three_pass"], sizes=sizes)

# %% [markdown]
# ## Room for a row
#
# `cuda.shared.array(0, float32)` has no length. How long it is, the launch says, as the fourth number in its brackets:
# `kernel[grid, block, stream, nbytes]`. This is *dynamic* shared memory. A row of scores takes four bytes a key, and a
# block gets 48 KB without asking. Before you run the cell: for how many keys is that?

# %%
from labkit._common.tables import PlainTable

rows = []
for keys in (1024, 4096, 12_256, 12_257, 58_080, 58_081):
    taken = 4 * keys + at.PARTIAL  # block_max and block_sum have 128 bytes of their own
    verdict = "after asking for more" if taken <= at.MAX_SHARED else "no"
    verdict = "yes" if taken <= at.SHARED_UNASKED else verdict
    rows.append((f"{keys:,}", f"{4 * keys:,}", verdict))
PlainTable("A row of scores in shared memory", ("keys", "bytes", "fits on an H200"), tuple(rows))

# %% [markdown]
# 4 KB at GPT-2's 1,024 tokens. The author gives the limit as 48 KB on most devices, and as 96 for those who ask.
# An H200 allows 227 KB. Numba has no call for asking, so `dynamic_shared` of labkit goes to the driver, where it is
# named `cuKernelSetAttribute`. A launcher calls it before the launch, with the same arguments.

# %%
from labkit.kernels.arguments import dynamic_shared

show_source(dynamic_shared)

# %% [markdown]
# And above the limit? The author's program never checks whether a launch succeeded. The kernel would not run, and the
# next one would work on whatever lies in that memory. A launcher has to be louder.

# %%
import textwrap

from labkit import cuda

too_long = cuda.device_array((60_000, 3 * 16), np.float32)
try:
    at.attention_three_pass(too_long, 1, cuda.device_array((60_000, 16), np.float32))
except ValueError as error:
    print(textwrap.fill(f"ValueError: {error}", 90))

# %% [markdown]
# ## Idle threads
#
# Look at the third pass again. A thread takes a column of the values, and a head has 64 columns. So 192 of the 256
# threads do nothing. The author knows it and takes it as the price of simple code. `attention_all_threads` does not pay
# it: four groups of 64 threads take a quarter of the keys each, and their sums are added in shared memory.
#
# The passes over keys and values have the same number of multiply-adds. Write down what you expect: by which factor is
# `all_threads` faster?

# %%
from labkit import measure


def h200(op, S):
    """name -> microseconds, as recorded for S tokens and 12 heads of 64."""
    rows = measure.recorded_ladder(op, {"S": S, "H": 12, "D": 64}, gpu="NVIDIA H200").rows
    return {row.name.removeprefix(f"{op}_"): 1000 * (row.graph or row.timing).p50 for row in rows}


def h200_table(op, names, sizes=(16, 128, 1024, 4096)):
    found = [h200(op, S) for S in sizes]
    print(f"us on an H200, at {', '.join(f'{S:,}' for S in sizes)} tokens")
    for name in names:
        cells = (f"{us[name]:,.1f}" if name in us else "-" for us in found)
        print(f"{name.split(' (')[0]:20}" + "".join(f"{cell:>11}" for cell in cells))


h200_table("attention", ("three_pass", "all_threads"))

# %% [markdown]
# My own guess was 2.5: five units of time before, two after. What came is less than nothing. With all threads at work
# it is never faster, and at 4,096 tokens it takes more than half as long again. If four times as many threads do not
# help, the third pass is not where the time goes. So I took the kernel apart: the first two passes alone, and the
# third alone with weights of 1.

# %%
passes = measure.recorded_series("attention_passes", gpu="NVIDIA H200")
for name, us in passes["us"].items() if passes else ():
    print(f"{name:36} {us:8,.0f} us")

# %% [markdown]
# The first two take as long alone as all three together. The third pass hides behind them: while one block reads
# values, the others on its multiprocessor compute scores. With all threads the third pass is even slower by itself. I
# do not know why. My guess is that 64 threads in each block walk down the values in step with the other blocks, which
# are of the same head, and find in the cache what those have just loaded; four groups are at four places at a time.
#
# So what are the first two doing, with all threads busy? `observe` counts what each line asks for. Before you run the
# cell, look at the line in `weigh_keys` that loads keys. Lane 0 reads number i of key j, lane 1 number i of key j + 1.
# How far apart are these two in memory?

# %%
from labkit import observe

S = 32
qkv, heads = ATTENTION.inputs(np.random.default_rng(1), S=S, H=1, D=64)
arguments = (qkv, qkv, np.zeros(1, np.int32), np.zeros((S, 64), np.float32),
             np.uint32(64), np.uint32(64), np.float32(0.125), np.uint32(0))
report = observe(at.attention_three_pass_kernel[(1, 1), 256, 0, 4 * S], *arguments)
for line, counts in sorted(report.lines.items()):
    if counts.get("global_loads", 0) > 1000:
        print(f"line {line}: {counts['global_requests']} requests of warps, "
              f"{counts['lines_128']:,} lines of 128 bytes")

# %% [markdown]
# The first of the two lines belongs to the scores, the second to the values. Half of the scores' requests are for the
# query: one number for all lanes, one line. The other 64 are for keys, and take 32 lines each: every lane wants a
# different one. The keys of two neighbours lie a whole row of qkv apart, 9,216 bytes with 12 heads. The values are read
# as memory likes it best, neighbours side by side, one line for a request.
#
# The lines come from a cache, for the next seven rounds of the loop want the same 32 bytes. But a cache, too, answers
# one request for 32 lines in 32 steps. Suppose that it takes one clock for a line. Then the time of the whole kernel
# can be predicted from that number alone:

# %%
tflops = measure.recorded("NVIDIA H200")["limits"]["fp32_tflops"]
clock_ghz = 1000 * tflops / (132 * 128 * 2)  # multiprocessors, multiply-adds a clock, flops of one
requests = 1024 * 12 * (1024 // 32) * 64  # queries, heads, warps of keys, numbers of a key
us = requests * 32 / 132 / clock_ghz / 1000
print(f"{requests / 1e6:.1f} million requests of 32 lines, {clock_ghz:.2f} GHz: {us:,.0f} us")
print(f"recorded on the H200: {h200('attention', 1024)['three_pass']:,.0f} us")

# %% [markdown]
# That is most of it. I had been looking at threads that do nothing, and the trouble was in those that work. The price
# that the author paid for simple code was nothing at all.
#
# ## The whole matrix in one block
#
# The port of MiniLM tells of an attempt that failed: one block for each head, its whole matrix of scores in shared
# memory, then softmax, then the values. It is the first thing that comes to mind, and it was slower. Here it is as a
# rung: three loops with a barrier between them, and the scores never leave the multiprocessor.

# %%
h200_table("attention", ("three_pass", "whole_matrix"))

# %%
from labkit.device import occupancy

small = measure.recorded_ladder("attention", {"S": 128, "H": 12, "D": 64}, gpu="NVIDIA H200")
registers = small.row("attention_whole_matrix").resources[0]["registers"]
rows = []
for S in (16, 64, 90, 128, 170, 241):
    taken = 256, registers, 4 * S * S
    full = occupancy.occupancy(occupancy.H200, *taken)
    rows.append((f"{S}", f"{4 * S * S / 1024:.0f} KB", f"{occupancy.blocks(occupancy.H200, *taken)}", f"{full:.0%}"))
PlainTable(f"Blocks of 256 threads with {registers} registers each, on a multiprocessor of an H200",
           ("tokens", "scores", "blocks", "occupancy"), tuple(rows))

# %% [markdown]
# Theirs held halves, 32 KB for 128 tokens, and by their account one block to a multiprocessor. They blame that, and
# three phases that wait for each other, and a second-level cache that would have held the scores anyway.
#
# On the H200 it takes ten times as long as three passes, at 128 tokens, and I would add a simpler reason. Twelve heads
# are twelve blocks, and the GPU has 132 multiprocessors. The other 120 look on. A batch of many sentences would fill
# them, as theirs did. Then the occupancy in the table begins to count, and at 242 tokens the matrix does not fit into
# any block.
#
# What the attempt got right is the aim. What it got wrong is to keep more than it needs. So how much does one need?
#
# ## Taking a softmax back
#
# Lesson 09 joined two parts of a row, with the largest numbers $m$ and $m'$ and the sums $s$ and $s'$ of their powers:
# each sum is multiplied by $e^{m - M}$, with $M$ the larger of the two. Attention has a third thing to carry along, the
# weighted values, not yet divided by the sum: $u = \sum e^{x_j - m} v_j$. It is a sum of the same powers, so the same
# factor corrects it:
#
# $$u_{\text{both}} = u \, e^{m - M} + u' \, e^{m' - M}$$
#
# So the keys can come in tiles. For each tile: its scores, the new maximum, the factor for what was there, the
# exponentials, and both sums. Then the tile may be forgotten. Here is one query, and 96 keys in tiles of 16, in NumPy.

# %%
rng = np.random.default_rng(2)
q, (keys, values) = 3 * rng.standard_normal(64), rng.standard_normal((2, 96, 64))
row_max, row_sum, acc = -np.inf, 0.0, np.zeros(64)
print("keys    row_max   factor  row_sum    off from attention over these keys")
for j in range(0, 96, 16):
    scores = keys[j : j + 16] @ q / 8
    new = max(row_max, scores.max())
    factor, exponentials = np.exp(row_max - new), np.exp(scores - new)
    row_sum = row_sum * factor + exponentials.sum()
    acc = acc * factor + exponentials @ values[j : j + 16]
    row_max = new

    row = np.exp(keys[: j + 16] @ q / 8)  # all keys so far, in one go
    off = abs(acc / row_sum - row @ values[: j + 16] / row.sum()).max()
    print(f"{j + 16:4} {row_max:10.3f} {factor:8.4f} {row_sum:8.3f}    {off:.0e}")

# %% [markdown]
# After each tile, `acc / row_sum` is the attention over all keys seen so far, to the last digits of a float64. Where
# the factor is 1 the tile brought no new largest score. Where it is small, most of what had been added up is taken
# back. The factor of the first tile is 0, for there was nothing.
#
# And what has to be kept? For each query two numbers and the 64 of `acc`, however long the row is.
#
# ## Tiles
#
# That alone would save room. What saves time is the second half of the idea. The three-pass kernel reads all keys and
# values of a head again for every query. Let a block take many queries: then each tile of keys and values, once it lies
# in shared memory, serves all of them.

# %%
attention_pictures.tiles()

# %% [markdown]
# Count what is asked of memory and caches, for keys and values: a block goes through all of them once. Twice as many
# queries in a block, half as many blocks.

# %%
from labkit.kernels.attention.flash import make_flash

kernels = [make_flash(64, number) for number in (1, 2, 4, 8)]
rows = []
for queries, nbytes in ((1, 4096), *((kernel.rows, kernel.shared_bytes) for kernel in kernels)):
    blocks = 12 * 1024 // queries
    read = blocks * 2 * 1024 * 64 * 4  # keys and values, 64 floats each
    rows.append((f"{queries}", f"{blocks:,}", f"{nbytes / 1024:.0f} KB", f"{read / 1e6:,.0f} MB",
                 f"{ATTENTION.work.flops(S=1024, H=12, D=64) / read:.1f}"))
PlainTable("1,024 tokens, 12 heads", ("queries of a block", "blocks", "shared memory of each",
                                      "keys and values read", "flop a byte"), tuple(rows))

# %% [markdown]
# One query to a block, three passes: 6.4 GB, half a flop for each byte. 64 queries: 101 MB. Flash attention is known
# for not writing the scores to memory. The three-pass kernel does not write them either. Its author counts three passes
# through memory where flash attention would make one. But the second pass is all in shared memory, and as to keys and
# values, in both kernels a block goes through each of them once. What differs is how many blocks there are.
#
# (128 queries look better still. I tried: then a thread has eight queries, which take all the registers that a thread
# can have, and at 4,096 tokens it was slower. So 64 are the most that the launcher picks.)
#
# The kernel is made by a function, for each size of a head and each number of queries that a thread has. Here is the
# part that corrects.

# %%
import inspect

parts = inspect.getclosurevars(make_flash(64, 4).py_func).nonlocals
show_source(parts["take_exponentials"])

# %% [markdown]
# And here is the kernel. Read it with the picture beside you: `while key0 < end` is the walk along the framed row.

# %%
show_source(make_flash(64, 4))

# %% [markdown]
# Everything in it is from earlier lessons. A tile of scores and of accumulators in each thread's registers, as in a
# product of matrices (05). `cp.async`, which brings the values while the scores are computed, and the next keys during
# the rest (05). Eight threads share a query, so its largest score goes round by three shuffles (09). A row in shared
# memory is four numbers longer than it need be, against bank conflicts (11). Powers of two in place of powers of e,
# with one factor for both the scale and $\log_2 e$ (09).
#
# Each thread adds up its own part of `total`, and only after the last tile the eight parts become one. The factor is
# the same for all of them, so that is allowed.
#
# ## Right at any length

# %%
sizes = ({"S": 1, "H": 1, "D": 64}, {"S": 33, "H": 2, "D": 64}, {"S": 130, "H": 1, "D": 64})
agree(ATTENTION, sizes=sizes)

# %%
from labkit.kernels.attention.three_pass import ATTENTION_CAUSAL

agree(ATTENTION_CAUSAL, sizes=sizes)

# %% [markdown]
# What is allowed depends on the inputs: a small absolute error of a score gives its weight the same relative error.
# On the CPU device a block has 16 queries, on a GPU up to 64, and the tests run other numbers, too.
#
# ## Above the diagonal
#
# Under a causal mask a query sees the keys up to its own token. On the right of the picture above, ten of 25 tiles are
# white: no query of their block sees any of their keys. The loop ends before them. In a tile on the diagonal the kernel
# asks for each score whether it counts. To the left of it, it need not ask. Before you run the cell: at 1,024 tokens
# and tiles of 64 × 64, which part of the tiles is left? And at 4,096?

# %%
for S in (1024, 4096):
    side = S // 64
    left = side * (side + 1) / 2 / side**2
    causal, whole = h200("attention_causal", S), h200("attention", S)
    torch = next(name for name in whole if name.startswith("PyTorch, fused"))
    print(f"{S:5,} tokens: {left:.0%} of the tiles, {causal['flash'] / whole['flash']:.0%} of the time "
          f"on the H200, PyTorch {causal[torch] / whole[torch]:.0%}")

# %% [markdown]
# At 4,096 tokens the time is what the tiles say, at 1,024 it is not. The blocks of a causal launch differ: the last has
# its whole row of tiles to do, the first a single one. At 1,024 tokens there are 192 blocks. An H200 holds all of them
# at once, and the launch takes as long as its longest block, which saves no tile; it only has its multiprocessor to
# itself, towards the end. At 4,096 there are 768 blocks, more than fit, and where a short one has ended, another
# begins. For that the long ones must come first, so the kernel numbers its blocks from the end.
#
# ## The ladder

# %%
from labkit import ladder, plots

found = ladder(ATTENTION)
plots.ladder(found)

# %% [markdown]
# On the CPU device three_pass and all_threads come last, because 256 threads go by all those barriers for every single
# query, and whole_matrix does well, because one core does the work of all multiprocessors anyway. On a GPU, as told,
# whole_matrix is the slowest.
#
# PyTorch's fused attention is `scaled_dot_product_attention`, SDPA for short. In float32, on the H200 we recorded, the
# kernel here is a little faster. Both stay well below the limit of the multiply-adds: each product wants its numbers
# from shared memory, as in lesson 05, and between two products there is a softmax, with an exponential for each score.
#
# One line surprised me. PyTorch's unfused program writes all scores to memory and reads them back, twice.

# %%
for S in (1024, 4096):
    us = h200("attention", S)
    unfused = next(us[name] for name in us if name.startswith("PyTorch (two"))
    print(f"{S:5,} tokens: three passes to unfused {us['three_pass'] / unfused:4.1f}, "
          f"unfused to flash {unfused / us['flash']:.1f}")

# %% [markdown]
# Nearly everything that lies between three passes and flash, the unfused program has too, for a product of matrices is
# made of tiles. Not to write the scores is worth less than a factor of two here. They are 50 MB at 1,024 tokens, and
# the second-level cache of an H200 has 60. On a GPU with less of it, or with more tokens, the scores cost more, and at
# some length they are more than the GPU's memory.
#
# Here is where the rungs stand on the roofline, in float32, and in halves, which come next.

# %%
names = ("attention", "attention_half")
plots.roofline([measure.recorded_ladder(name, gpu="NVIDIA H200") for name in names])

# %% [markdown]
# Now over the number of tokens.

# %%
from labkit.measure.series import attention as attention_series

attention_pictures.over_lengths(attention_series.attention_sizes())

# %% [markdown]
# Both axes are logarithmic. On the H200 the lines become straight, with the same slope: twice the tokens, four times
# the work. (Three passes rises once more at 8,192 tokens. Their keys and values are 50 MB, and I suppose that they no
# longer stay in the second-level cache.) The lines differ in where they begin to rise. Flash is level up to a hundred
# tokens or so. There the GPU is not full, and a launch takes as long as one of its blocks, a few microseconds, whether
# there are ten of them or fifty.
#
# ## Halves on tensor cores
#
# Both products can go to the tensor cores. With `mma.sync` a warp multiplies tiles of 16 × 16 and 16 × 8 halves, and
# the sums are float32 (lesson 05). The scores come out of the first product as sums, spread over the lanes. The powers
# go into the second product as its first factor, spread over the lanes. Does a lane have what it will need?
#
# Write down, with the picture of lesson 05 (`plots.mma_lanes()`) beside you, which elements lane 13 holds of the sums
# of two products side by side, 16 × 16 scores, and which elements it has to hold of a first factor.

# %%
g, pair = np.divmod(np.arange(32), 4)
for register in range(4):
    for half in (0, 1):
        wanted = g + 8 * (register % 2), 8 * (register // 2) + 2 * pair + half  # row and column
        product, c = register // 2, 2 * (register % 2) + half
        held = g + 8 * (c // 2), 8 * product + 2 * pair + c % 2
        assert np.array_equal(wanted, held)  # in all 32 lanes
        print(f"a{register}, half {half}: sum c{c} of the {('left', 'right')[product]} product")

# %% [markdown]
# It does. Two sums, rounded to halves and packed into a word, are a register of the factor. No shuffle, no shared
# memory: the powers stay where they are.

# %%
from labkit.kernels.attention.half import ATTENTION_HALF, make_flash_half

parts = inspect.getclosurevars(make_flash_half(64, 4, 1).py_func).nonlocals
show_source(parts["add_values"])

# %% [markdown]
# On the CPU device this kernel takes long to compile, so `observe` runs a single warp of it, with 16 queries, in plain
# Python. It also looks for races and for bank conflicts. The rows lie in shared memory without any padding, moved by an
# exclusive or, as in the transpose of lesson 11.

# %%
from labkit.kernels.attention.flash import scale_for_powers_of_two
from labkit.kernels.attention.three_pass import attention_reference

one_warp = make_flash_half(64, 1, 1)
qkv, heads = ATTENTION_HALF.inputs(np.random.default_rng(3), S=16, H=1, D=64)
out = np.zeros((16, 64), np.float16)
launch = one_warp[(1, 1), 32, 0, one_warp.shared_bytes]
scale = scale_for_powers_of_two(64)
report = observe(launch, qkv, qkv, np.zeros(1, np.int32), out, np.uint32(64), scale, np.uint32(0))
error = abs(out - attention_reference(qkv, 1)) / ATTENTION_HALF.tolerance(qkv.astype(float), 1)
print(f"largest error {error.max():.2f} of the allowed, {len(report.races)} races, "
      f"{report.counts['bank_conflicts']} bank conflicts in {report.counts['shared_requests']} requests")

# %%
from labkit import device

recorded = measure.recorded_ladder("attention_half", gpu="NVIDIA H200")
ladder(ATTENTION_HALF) if device.on_gpu() else recorded

# %%
for op in ("attention", "attention_half"):
    print(f"--- {op}")
    h200_table(op, [name for name in h200(op, 1024) if "flash" in name or "fused" in name])

# %% [markdown]
# Halves are several times as fast as float32. What sets their limit? Take a tile of 64 queries and 128 keys, in heads
# of 64, and count the clocks of a multiprocessor for each kind of work in it. Write down your order before you run
# the cell: the two products, the powers, and the rest, for which I allow 400 instructions a warp.

# %%
tiles = 12 * (4096 // 64) * (4096 // 128) / 132  # of each multiprocessor, at 4,096 tokens
clocks = {"two products, 4,096 flop a clock": 2 * 2 * 64 * 128 * 64 / 4096,
          "powers of two, 16 a clock": 64 * 128 / 16,
          "scale, largest, sum, rounding": 400}
for name, each in (*clocks.items(), ("one after the other", sum(clocks.values()))):
    print(f"{name:34} {each:6,.0f} clocks {tiles * each / clock_ghz / 1000:6.0f} us at 4,096 tokens")

# %% [markdown]
# No part is small beside another, and the exponentials cost as much as the tensor cores. Done one after the other, they
# add up. Done at the same time, they would take little more than a third of that. With `mma.sync` a warp waits for its
# product, and only other warps can fill the gap. It also gets no more than three quarters of the tensor cores' rate
# (lesson 05).
#
# `wgmma` (lesson 05) runs on while the four warps that started it do something else. `flash_wgmma` is built on that, in
# the way of FlashAttention-3. What changed against `flash`:
#
# - One group of four warps does nothing but start copies, by TMA. The others, three or only one, have 64 queries each.
# - Queries, keys and values go from shared memory into the product without passing through registers. The powers are
#   the exception, and the gift of the layout holds there, too: `wgmma` takes its first factor from registers, and they
#   are the ones that the sums came in.
# - While a product runs, the exponentials of the next tile are computed. Here is the middle of the loop, one round for
#   each tile. Before you read on: which of the two products may still be running during `take_exponentials`?

# %%
from labkit.kernels.attention.wgmma import make_flash_wgmma

source = inspect.getsource(make_flash_wgmma)
middle = source[source.index("start_scores(scores, query_tile, key_tile)") :]
middle = middle[: middle.index("pack(words, scores)") + len("pack(words, scores)")]
print(textwrap.dedent(" " * 20 + middle))

# %% [markdown]
# `wgmma_wait(1)` waits until no more than one product is under way. The scores came first, so it is the product of the
# *last* tile's powers with its values. (The loop that does nothing never runs. Without it the compiler, which is free
# to do so, moved the wait before the powers.)
#
# The table above has what came of it. On the H200 that we recorded, `flash` with `mma.sync` is ahead of PyTorch up to
# 128 tokens, and well behind it from 1,024 on, where PyTorch hands halves to cuDNN. `flash_wgmma` is ahead of it at all
# four lengths. With 16 tokens there is little to overlap and more to set up, and `flash` is the faster one. So
# `attention_half`, the dotted line of flash over the lengths, picks `mma.sync` up to 64 queries, and `wgmma` beyond.
#
# Was it the overlap? To find out I let a warpgroup wait for all its products before it takes powers. That was a
# little slower, and still far ahead of `flash`. So most of the gain has other causes: the instruction is quicker, and
# while one warpgroup takes powers, the tensor cores multiply for the two others. Two more ideas only cost time:
# blocks that stay and fetch their next queries early, and every fourth power by a polynomial, against the queue at
# the units for exponentials. What is left is about what the tensor cores and the exponentials would take one after
# the other, with everything else hidden. That is more than a third of what perfect overlap could save.
#
# ## One query, a long cache
#
# A model that writes does so token by token. The keys and values of earlier tokens do not change, so they are kept, in
# a *cache*, and each new token has a single query for all of them. Lesson 14 writes that way.
#
# With one query the flops are few, two for each number read. Predict: the cache of 1,024 tokens holds 2 × 768 floats
# for each. How long does an H200 take to read it at 4,200 GB/s? And how many blocks does flash attention launch, with
# one query and 12 heads?

# %%
from labkit.kernels.attention.three_pass import ATTENTION_CACHED

roofline.predict(ATTENTION_CACHED, **ATTENTION_CACHED.work.timed_gpu)

# %% [markdown]
# Twelve blocks, on 132 multiprocessors: the failure of the whole matrix again. But the correction above joins any two
# parts of a row, in any order. It does not care who has computed them. So the keys of a head are split over blocks, 128
# to a block. Each block leaves its `row_max`, its `row_sum` and its `acc`, and a second kernel joins them.

# %%
from labkit.kernels.attention.decode import make_decode

show_source(make_decode(64)[1])

# %%
sizes = ({"S": 1, "H": 2, "D": 64, "before": 299}, {"S": 3, "H": 1, "D": 64, "before": 20})
agree(ATTENTION_CACHED, sizes=sizes)

# %%
attention_pictures.over_caches(attention_series.attention_keys())

# %% [markdown]
# On the H200, flash with its twelve blocks takes a time for each tile of keys, one after another, and so does the
# three-pass kernel for its requests. With the keys split, a cache of two thousand costs little more than one of a
# hundred. In float32 PyTorch's line looks like that of a kernel without such a form. In halves it has one.
#
# The prediction for 1,024 keys was 1.5 us, and decode takes some eight. A line that is level does not wait for bytes:
# these are two launches in a row, and in each of them loads that wait for others. Further on the lines of decode bend,
# at 8,192 keys in floats, at 16,384 in halves. Both are 50 MB. A smaller cache stays in the second-level cache from one
# launch to the next, which is kind to a benchmark: in a model, the other layers have been there in between.

# %%
found = measure.recorded_series("attention_keys", gpu="NVIDIA H200")
picked, rows = (1024, 4096, 16_384, 32_768), []
for line in found["lines"]:
    if "decode" in line["name"] or "SDPA" in line["name"]:
        us = dict(zip(found["keys"], line["us"], strict=True))
        each = 12 * 64 * (4 if "f16" in line["name"] else 8)  # bytes of a key and a value
        rows.append((line["name"], *(f"{each * keys / us[keys] / 1000:,.0f}" for keys in picked)))
PlainTable("Keys and values read, GB/s on an H200", ("", *(f"{keys:,} keys" for keys in picked)), tuple(rows))

# %% [markdown]
# This table led me to a mistake of mine. In the first version of the second kernel, every thread went through the
# slices one after the other, and waited for its loads at each. 32,768 keys are 256 slices. In the last column floats
# and halves were both far from the pace of a copy: half the bytes took nearly the same time, so it did not wait for
# bytes. Now four threads share the slices for each number of the head, and each has four on their way before it adds.
# The 1,024 tokens of a GPT-2 are eight slices. There it gains a microsecond or two, and I would not have found it
# without the long caches. At the longest two PyTorch's form for halves still reads faster, near the pace of a copy.
#
# `start`, the number of tokens so far, lies in device memory and is no argument of the launch. So one captured graph
# (lesson 06) serves every token, however long the cache has become. The grid has blocks for a full cache, and those
# that find no keys leave at once.
#
# ## What was implemented
#
# - attention in three passes, with 64 threads and with all of them for the third
# - a whole matrix of scores in shared memory, kept for why it fails
# - flash attention in float32 for any length and heads of a multiple of 16; in halves on tensor cores, by `mma.sync`
#   and by `wgmma`
# - both with a causal mask that skips tiles, and with a cache of keys and values
# - a form for one query: keys split over blocks, and a kernel that joins what they found
#
# ## What I learned
#
# - Idle threads are easy to see and may cost nothing. Count the requests of those that work.
# - A row of scores in shared memory is no crime. To read all keys again for every query is.
# - At these lengths tiles are the larger half of flash attention, and not to write the scores is the smaller one.
# - The correction of a softmax is one multiplication. Tiles, split keys and caches all stand on it.
# - Less memory traffic does not help a kernel that leaves 120 of 132 multiprocessors empty. I met that twice.
# - Whatever is done one after the other becomes the limit once the rest is fast: a loop over slices, or powers that
#   wait for products.
# - A layout of registers can be a gift: the sums of one product are the factor of the next, lane by lane.
#
# ## Resources
#
# - [A. Vaswani et al.: Attention Is All You Need (2017)](https://arxiv.org/abs/1706.03762)
# - [T. Dao et al.: FlashAttention (2022)](https://arxiv.org/abs/2205.14135), and
#   [FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691)
# - [J. Shah et al.: FlashAttention-3 (2024)](https://arxiv.org/abs/2407.08608)
# - [M. Milakov, N. Gimelshein: Online normalizer calculation for softmax (2018)](https://arxiv.org/abs/1805.02867)
#
# ## Try it
#
# - In the cell with the six tiles, sort the keys by their score first, ascending and then descending. What happens to
#   the factors? Which order would a GPU like better, and does it matter to the result?
# - In the same cell, leave the factor out of `acc`. From which tile on is the result wrong?
# - `attention_pictures.tiles(queries=32, tile=4, block=5)`: smaller tiles. How many scores are computed in vain, and
#   what do small tiles cost instead?
#
# The exercises for this lesson end with attention from a blank page, by a warp, with every key and value loaded once.
#
# Next: **the GPT-2 block**, where attention meets the layers around it.
