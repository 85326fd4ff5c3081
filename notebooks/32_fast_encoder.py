# %% [markdown]
# # 32 · Making the encoder fast
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a model that is right becomes fast: eleven forms of one encoder, each with a single change
# - what to count before you measure: launches, bytes, flops, and the blocks that an SM can hold
# - why three ideas from the textbook made things worse on one GPU, and which of them fail on an H200

# %% [markdown]
# ## The problem
#
# The encoder of the last lesson computes the right embeddings. Is it also fast? The article *No cuBLAS: A Hand-Written
# CUDA BERT That Matches PyTorch* takes the same model, all-MiniLM-L6-v2, to the speed of PyTorch on an RTX 3090, with
# kernels written by hand in CUDA C++. It gets there in eight steps.
#
# Our library has the eight as forms of the encoder, rebuilt in Python from the article's description, and three more of
# its own. Each is the whole model, and differs from the one before it in a single idea.

# %%
import textwrap
from itertools import pairwise

import numpy as np

from labkit import agree, measure
from labkit.models import minilm
from labkit.models.minilm_steps import STEPS, step

for number, one in enumerate(STEPS, 1):
    print(f"{number:2}  {one.name}")
    print(textwrap.indent(textwrap.fill(one.changes, 84), "      "))

# %% [markdown]
# ## Prediction
#
# The article gives the time after each of its eight steps. Write down three guesses before you run the cell. Which step
# gained the most? Which gained the least? And how much did steps 3, 4 and 5 gain, which put launches together?

# %%
times = (0.225, 0.140, 0.118, 0.109, 0.102, 0.101, 0.091, 0.015)  # ms a sentence, RTX 3090
theirs = dict(zip([one.name for one in STEPS], times, strict=False))  # without our three
before = None
for name, ms in theirs.items():
    factor = f"{before / ms:6.2f} times as fast" if before else ""
    print(f"{name:22} {ms:.3f} ms {factor}")
    before = ms

# %% [markdown]
# The last step gained the most, and it is unlike the others. The article's test sentence has 9 tokens, and the model
# now computes 16 rows for it instead of 128. That is less work, not faster work, and PyTorch gains from it, too, as the
# article itself says. Of the other steps, *cp.async*, which feeds the products better, gained the most, and each fusion
# gained a little.

# %% [markdown]
# ## Before the first step
#
# The article began even earlier: a single sentence, padded to 128 tokens, with the linear layers by a naive kernel, by
# tiles in shared memory, and by tensor cores with one tile a warp. Those are lessons 06 and 08 in one model. It reports
# 7 ms, 2.6 ms and 0.91 ms{{ quoted }}. Here is the same for our kernels; everything but the linear layers is that of
# the form *simple*. Which of the two factors will an H200 keep?

# %%
single = measure.recorded_series("minilm_single")
print(f"{'one sentence, 128 rows':26}{'article, ms':>12}{'ours, ms':>18}{'cosine':>12}")
for name, ms in {"naive": 7.0, "tiled": 2.6, "tensor cores": 0.91}.items():
    row = next(one for one in single["rows"] if (one["name"], one["tokens"]) == (name, 128))
    print(f"{name:26}{ms:12.2f}{row['us'] / 1000:18.2f}{row['cosine']:12.6f}")

# %% [markdown]
# Tiles are worth a factor of {{ single['naive'] / single['tiled']:.1f }}. Tensor cores with one tile a warp then lose
# most of it: {{ single['tensor cores'] / 1000:.1f }} ms. A product of 128 rows has few tiles, so few warps run, and
# each of them waits for memory at every step along K. The last of the three is where the ladder begins.

# %% [markdown]
# ## All forms, one result
#
# A form that is fast and wrong is worth nothing. The second step, for example, replaces the product. In the first form
# each warp computes one tile of 16 × 16 from global memory; now `cp.async` fills one buffer in shared memory while the
# other is multiplied. Both have to agree with NumPy. (The course's tests compare every launch of every form.)

# %%
from labkit.kernels.ops.linear import LINEAR

agree(LINEAR, ["linear_tensor_core", "linear_double_buffered"],
      sizes=({"M": 37, "N": 24, "K": 48}, {"M": 16, "N": 64, "K": 384}))

# %% [markdown]
# ## Count before you measure
#
# Three things can be counted without running anything: the launches, the bytes that they cannot do without (each number
# read once, each result written once), and the flops of the products. Guess first: how many launches does one layer
# have in the first form, where queries, keys and values are three products, heads are split and merged by copies, and
# GELU and the residuals are launches of their own? How many are left in the last form?

# %%
from labkit.course.drawings import fast_encoder as pictures
from labkit.models.minilm_counts import launches_of_layer

real = minilm.Config()  # all-MiniLM-L6-v2
long = [128] * 64
layers = {one.name: launches_of_layer(one, real, long) for one in STEPS}
pictures.layer_of_each_step(layers)

# %% [markdown]
# From 18 launches to 7. The steps fall into three groups.
#
# - **Some remove launches, and with them traffic.** *one product* no longer copies heads, and reads its input once
#   instead of three times. *warp LayerNorm* keeps the sum of a residual in registers. *GELU fused* saves the inner
#   activations, the widest rows of the model, a trip to memory and back. *tiled attention* never writes a score.
# - **Some leave the counts as they are.** *cp.async*, *scores in registers*, *float16 accumulators* and *wgmma* change
#   how a kernel feeds its units. (*wgmma* saves one launch of the whole pass: the embedding and its LayerNorm become
#   one.)
# - **Two change the number of rows.** With 128 tokens in each sentence, *no padding to 128* and *packed* have nothing
#   to remove. With 16, the first of them removes most of the rows, and *packed* finds nothing more, since all sentences
#   have the same length.
#
# How do the counts compare with what the steps gained? Here are the article's factors and ours, and beside them the
# ratios of our counts before and after each step. Which column do you expect to come closest to the times?

# %%
def counted(layer):
    return len(layer), sum(one.bytes for one in layer), sum(one.flops for one in layer)


ladder = measure.recorded_series("minilm_ladder", gpu="NVIDIA H200")
ours = {one["name"]: one["us"] for one in ladder["steps"]}
print(f"{'':22}{'article, RTX 3090':>20}{'ours, H200':>12}{'launches':>10}{'bytes':>8}{'flops':>8}")
for before, name in pairwise(ours):
    lengths = [16] * 64 if name == "no padding to 128" else long  # as in the article
    was, now = (np.array(counted(launches_of_layer(step(each), real, lengths)))
                for each in (before, name))
    fewer = was / now
    gained = f"{theirs[before] / theirs[name]:20.2f}" if name in theirs else " " * 20
    batch = f"64 x {lengths[0]}"
    print(f"{name:22}{gained}{ours[before][batch] / ours[name][batch]:12.2f}"
          f"{fewer[0]:10.2f}{fewer[1]:8.2f}{fewer[2]:8.2f}")
pictures.step_times(ladder)

# %% [markdown]
# For *one product* and *warp LayerNorm* the ratio of the bytes is what the article gained, and the H200 gained a little
# more. *GELU fused* promises more than either GPU gained: the error function has to be computed in any case. Where no
# count changes and the time does, the gain lies inside the kernel. A step that saves nothing you can count needs a
# different reason, and you should know which.
#
# With 128 tokens *cp.async* gained by far the most on the H200, a factor of {{ copying_gain:.1f }}. Some of that is due
# to a poor start: our first form takes as long on an H200 as{{ if near(steps['simple'].us[long], 225, 0.05) }} the
# article's took on an RTX 3090. (We shall see below what is wrong with its product.) *wgmma* with {{ wgmma_gain:.1f }}
# and *tiled attention* with {{ tiled_gain:.1f }} follow, which the article does not have. *GELU fused*, *scores in
# registers* and *float16 accumulators* gained less than 4%{{ if small_gains }} each.
#
# With 16 tokens, *no padding to 128* removes seven eighths of the flops{{ if 0.87 < 1 - 3.6 / 29.0 < 0.88 }} and gains
# only a factor of {{ short_padding_gain:.1f }}: with an eighth of the rows, a launch takes much more than an eighth of
# the time{{ if launches_cost }}. *wgmma* then gains another {{ short_wgmma_gain:.1f }} without removing any work. What
# bounds such a batch is a question for the next lesson.

# %% [markdown]
# ## What float16 accumulators cost
#
# Every form computes in float16. A tensor core multiplies float16 numbers exactly and adds the products up in float32
# accumulators, or in float16 ones. In the second case the sum is rounded to 11 bits at every step along K, and in
# lesson 08 the error grew with K. The model's dot products have 384 and 1,536 terms. What do you expect of those?

# %%
def relative_error(x, w, numbers, accumulators):  # root of the mean square
    true, acc = x @ w.T, np.zeros((len(x), len(w)), accumulators)
    x, w = (each.astype(numbers).astype(np.float32) for each in (x, w))
    for k in range(0, x.shape[1], 16):  # a step of the tensor cores
        acc = (acc + x[:, k : k + 16] @ w[:, k : k + 16].T).astype(accumulators)
    return np.sqrt(np.mean((acc.astype(numbers) - true) ** 2) / np.mean(true**2))


rng = np.random.default_rng(0)
pairs = [rng.standard_normal((2, 64, K)) for K in (384, 1536)]
print(f"{'relative error':34}{'K = 384':>10}{'K = 1,536':>12}")
for name, *types in (("float32", np.float32, np.float32),
                     ("float16, float32 accumulators", np.float16, np.float32),
                     ("float16, float16 accumulators", np.float16, np.float16)):
    short_sum, long_sum = (relative_error(x, w, *types) for x, w in pairs)
    print(f"{name:34}{short_sum:10.1e}{long_sum:12.1e}")

# %% [markdown]
# Rounding the inputs to float16 loses more than three digits at once. With float32 accumulators that is all, whatever
# the length of the sum. With float16 accumulators the error is larger, and it grows with the length. An embedding
# tolerates it: in the article the cosine with the reference stayed at 0.9999{{ quoted }} through all six layers.
#
# And the gain? GeForce cards such as the RTX 3090, the article explains, run at twice the rate with float16
# accumulators. That was the step with which it caught up with cuBLAS, which accumulates in float32 by default. An H200
# is no GeForce: NVIDIA lists the same peak for both kinds. What do you expect of it, in a product of 4,096 × 4,096 and
# in a layer of the model?

# %%
control = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")
for name, kind in (("double_buffered", "float32 accumulators"),
                   ("f16_accumulators", "float16 accumulators")):
    row = control.row(f"matmul_half_{name}")
    print(f"{kind}: {row.resources[0]['registers']} registers a thread, {row.tflops:.0f} TFLOP/s")
for one in ladder["failures"]:
    if one["name"] == "float16 accumulators":
        print(f"in a layer of MiniLM, {one['M']:,} x {one['K']} to {one['N']:,}: "
              f"{one['us']:.1f} us, with float32 accumulators {one['beside_us']:.1f} us")

# %% [markdown]
# They gain nothing{{ if no_gain }} in the large product, {{ f16.beside_us / f16.us - 1:.0% }} in the layer, and
# {{ model_gain:.0% }} in the whole model. The registers that are saved do not make room for a third block on an SM. So
# here float16 accumulators give digits away for next to nothing, and from *wgmma* on the forms accumulate in float32
# again.

# %% [markdown]
# ## Tiles that did not help
#
# The article names three ideas that made its model slower. All three are meant to reduce traffic or to hide it. Our
# library has them, too, so that they can be examined.
#
# The first is a **tile in shared memory, filled by hand**. In the first form each warp reads its fragments from global
# memory, the same numbers again and again. The textbook says: load a tile once and share it. This is what Nsight
# Compute counted on the H200 for a product of the model, 8,192 × 384 by 384 × 384. The third column is the product of
# *cp.async*. Which row would you look at first to find out why it is so much faster?

# %%
from labkit.measure import ncu

counters = {op: {one["name"].removeprefix(f"{of}_"): one for one in ncu.recorded()["ops"][op]["rows"]}
            for op, of in (("minilm_products", "matmul_half"),
                           ("attention_sentences_half", "attention_sentences_half"))}
products = counters["minilm_products"]
chosen = [products[name] for name in ("tensor_core", "hand_blocked", "double_buffered")]
print(f"{'':28}{'a tile a warp':>16}{'hand-blocked':>16}{'cp.async':>16}")
for text, key, unit in (("from DRAM, MB", "dram_read", 1e6),
                        ("through L2, MB", "l2_bytes", 1e6),
                        ("hits in L2, %", "l2_hit_percent", 1),
                        ("instructions, million", "instructions", 1e6),
                        ("registers of a thread", "registers", 1),
                        ("occupancy, %", "occupancy_percent", 1),
                        ("bank conflicts, million", "bank_conflicts", 1e6),
                        ("time, us", "time_us", 1)):
    print(f"{text:28}" + "".join(f"{one[key] / unit:16.1f}" for one in chosen))

# %% [markdown]
# The tiles did what they promise: half{{ if near(blocked.l2_bytes / plain.l2_bytes, 1 / 2) }} of the traffic through L2
# is gone. It did not help, because nearly all of those reads had been hits in L2, and DRAM delivers the inputs once in
# either case. What the tiles cost is in the other rows. There are more instructions, since a warp now copies as well as
# computes. There are more registers, which leave fewer warps on an SM. And there are bank conflicts, which a kernel
# without shared memory cannot have. This idea fails on the H200 as well.
#
# What helps shows in the row of the instructions. `cp.async` copies past the registers, `ldmatrix` loads whole
# fragments, and a warp uses each of them for several tiles: {{ fewer_instructions:.0f }} times fewer instructions, and
# a tenth{{ if near(copies.time_us / plain.time_us, 1 / 10) }} of the time, although the occupancy is the lowest of the
# three. That is why the second step gained so much.

# %% [markdown]
# ## What fits on an SM
#
# The other two ideas, **a third buffer** for the product and **a whole score matrix** in shared memory, can be judged
# before they are written. A block needs shared memory and registers, an SM has a fixed amount of both, and how many
# blocks fit is a division. The kernels below are ours, with the threads, registers and bytes that Nsight Compute found
# on the H200. How many blocks of each will an SM hold, on an RTX 3090 and on an H200?

# %%
from labkit.device import occupancy

# SMs, and of each the threads, blocks, registers and bytes of shared memory
RTX_3090 = occupancy.GPU("RTX 3090", 82, 1536, 16, 65_536, 102_400)
attention = counters["attention_sentences_half"]
kernels = {"product, two buffers": products["double_buffered"],
           "product, three buffers": products["three_stage"],
           "attention, whole matrix": attention["whole_matrix"],
           "attention, tiles": attention["flash"]}
print(f"{'blocks an SM holds':24}{'threads':>8}{'registers':>10}{'shared, bytes':>15}   "
      f"{'RTX 3090':20}{'H200'}")
for name, one in kernels.items():
    threads, registers, shared = (int(one[key]) for key in ("threads", "registers", "shared_bytes"))
    line = f"{name:24}{threads:8}{registers:10}{shared:15,}"
    for gpu in (RTX_3090, occupancy.H200):  # ncu's bytes include those that the system takes
        allowed = occupancy.limits(gpu, threads, registers, shared - occupancy.SHARED_OF_SYSTEM)
        scarce = min(allowed, key=allowed.get)
        line += f"{allowed[scarce]:4} by {scarce:13}"
    print(line.rstrip())

# %% [markdown]
# On an RTX 3090 both ideas leave a single block on an SM. When its warps wait, at a barrier or for memory, there is
# nothing else to run. The article reports exactly that for its score matrix: 32 KB of scores, and one block per SM.
# With the third buffer, one block fits where there were two. And with K as short as 384 or 1,536, the article adds, two
# buffers are enough to hide the latency.
#
# An H200 has more than twice the shared memory{{ if 233472 > 2 * 102400 }}. There, registers limit the product to the
# same number of blocks with either number of buffers, and even whole score matrices leave several blocks on an SM. So
# will the two ideas fail there?

# %%
for one in ladder["failures"]:
    if one["name"] != "float16 accumulators":  # that one was above
        print(f"{one['name']:14}{one['us']:7.1f} us; {one['beside']:14}{one['beside_us']:7.1f} us"
              f"   {one['M']:,} x {one['K']} to {one['N']:,}")
for one in ladder["attention"]:
    print(f"attention, {one['form']:16}{one['us_a_layer']:7.1f} us a layer   "
          f"{one['sentences']} x {one['tokens']} tokens")

# %% [markdown]
# They do not, at least not with 128 tokens. With the third buffer the products are 2% to 4%{{ if third_stage_gains }}
# faster. The whole score matrix takes little more than half of{{ if above_half }} the time of three launches, and loses
# to them only with 16 tokens. Yet attention in tiles is {{ words(tiles_gain) }} times as fast again. Can the counters
# of the same kernels explain that?

# %%
print(f"{'':30}{'instructions, million':>22}{'occupancy, %':>14}{'hits in L2, %':>15}")
three = [one for one in ncu.recorded()["ops"]["attention_sentences_half"]["rows"]
         if one["name"].endswith("three_launches")]
for name, one in {**{one["kernel"].removesuffix("_kernel"): one for one in three}, **kernels}.items():
    print(f"{name:30}{one['instructions'] / 1e6:22.1f}{one['occupancy_percent']:14.1f}"
          f"{one['l2_hit_percent']:15.1f}")

# %% [markdown]
# The third buffer changes neither the occupancy nor the hits in L2. Attention in tiles is the kernel with the fewest
# warps: its registers allow an SM only three blocks, of four warps each. But it executes
# {{ words(tiles_instructions) }} of the instructions that the whole matrix takes.

# %%
from labkit import agree, measure
from labkit.models import minilm

work = measure.recorded_series("minilm", gpu="NVIDIA H200")["rows"]
kinds = ("eager", "SDPA", "transformers", "compiled", "three lines")


def table(title, ours, torch):
    print(f"{title:26}" + "".join(f"{one['sentences']:6} x {one['tokens']:3}" for one in work))
    for name in work[0]["ours"]:
        print(f"{'ours, ' + name:26}" + "".join(f"{one['ours'][name][ours]:12.2f}" for one in work))
    for name in kinds:
        print(f"{'PyTorch, ' + name:26}" + "".join(f"{one['torch'][name + torch]:12.2f}" for one in work))


table("us a sentence, in a graph", "us_a_sentence", ", in a graph")
print(f"smallest cosine of the two sides' embeddings: {min(one['cosine'] for one in work):.6f}")

# %% [markdown]
# ## The problem
#
# The article of the last lesson is called *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*. For 64 sentences
# of 128 tokens the article reports 0.090 ms{{ quoted }} a sentence, and 0.092 ms{{ quoted }} for PyTorch on the same
# GPU. With 16 tokens it was 0.015 ms{{ quoted }} against 0.025{{ quoted }}. That is a good result: PyTorch leaves its
# products to cuBLAS, a library with many years of tuning behind it.
#
# The last form of our encoder has no product from a library either. How does it compare with PyTorch on an H200?

# %% [markdown]
# ## A fair comparison
#
# "As fast as PyTorch" means little without saying which PyTorch. Our model runs in a CUDA graph, while PyTorch that is
# called line by line pays for Python at every line. Hence the rules of our measurement:
#
# - The weights and the token ids are the same, in the same precision, and lie on the device. Only forward passes are
#   timed.
# - Everything runs before it is timed, and then many times. The median counts.
# - PyTorch gets every chance: eager (each operation launched as Python reaches it), with its fused attention (SDPA),
#   that form compiled, the model of the library transformers, and that one compiled, as a user would write it in three
#   lines. Each is timed both in a graph and called from Python, as ours are.
# - The embeddings of both sides are compared in the same run.
#
# Our model takes part in three forms: *packed* and *padded*, the layouts of lesson 30 with the kernels that the model
# uses by default, and *few rows*, which is packed and has products made for few rows.

# %% [markdown]
# ## Prediction
#
# Both sides run in graphs. Write down who will be ahead, and by what factor: with 64 sentences of 16 tokens, with 64 of
# 128, with 512 of 16, and with one sentence alone?

# %%
from labkit import agree, measure
from labkit.models import minilm

work = measure.recorded_series("minilm", gpu="NVIDIA H200")["rows"]
kinds = ("eager", "SDPA", "transformers", "compiled", "three lines")


def table(title, ours, torch):
    print(f"{title:26}" + "".join(f"{one['sentences']:6} x {one['tokens']:3}" for one in work))
    for name in work[0]["ours"]:
        print(f"{'ours, ' + name:26}" + "".join(f"{one['ours'][name][ours]:12.2f}" for one in work))
    for name in kinds:
        print(f"{'PyTorch, ' + name:26}" + "".join(f"{one['torch'][name + torch]:12.2f}" for one in work))


table("us a sentence, in a graph", "us_a_sentence", ", in a graph")
print(f"smallest cosine of the two sides' embeddings: {min(one['cosine'] for one in work):.6f}")

# %% [markdown]
# Against the fastest PyTorch of each batch: 64 sentences of 16 tokens are {{ ahead[0]:.1f }} times as fast as in
# PyTorch, 64 of 128 tokens {{ ahead[1]:.1f }} times, and 512 of 16 tokens {{ ahead[2]:.1f }} times. For one sentence
# alone that no longer holds. With 128 tokens, compiled PyTorch is faster than ours in any form{{ if ahead[4] < 1 }}.
# With 16 tokens it is faster than the kernels that the model uses by default{{ if faster_than_default }} (*packed* and
# *padded*), and only with products made for few rows is ours ahead{{ if ahead[3] > 1 }}.
#
# (One number is odd, as the next table will show: 64 sentences of 128 tokens take longer with transformers in the graph
# than called. The recording does not say why.)

# %% [markdown]
# ## Without graphs
#
# Now every pass is called from Python, launch by launch. Who will be ahead?

# %%
table("us a sentence, called", "called_us_a_sentence", "")

# %% [markdown]
# Every form of ours was slower than every form of PyTorch: with 64 sentences of 128 tokens more than four times
# slower{{ if four_times_slower }} than the best, and {{ single_ms:.1f }} ms for a single short sentence. When this was
# recorded, a launch went through Numba, which is several times as expensive as labkit's own way today, and our
# launchers also check arguments and slice arrays in Python, every time. In a graph all of this is gone: from the second
# batch of a shape on, the model launches a pass as one graph. Whoever compares our graph with PyTorch called from
# Python measures Python.

# %% [markdown]
# ## Longer sentences
#
# Products grow with the number of tokens, attention with its square. At what length does attention become the larger
# part?

# %%
from labkit.course.drawings import matching_pytorch as pictures
from labkit.models.minilm_counts import launches_of_layer
from labkit.models.minilm_steps import step

real = minilm.Config()  # all-MiniLM-L6-v2
print(f"{'tokens':>8}{'products, MFLOP':>18}{'attention, MFLOP':>18}{'share':>8}")
for tokens in (16, 64, 128, 256, 512):
    layer = launches_of_layer(step("packed"), real, [tokens] * 64)
    split = [sum(one.flops for one in layer if one.kind == kind) * real.num_hidden_layers / 64e6
             for kind in ("product", "attention")]
    print(f"{tokens:8}{split[0]:18.0f}{split[1]:18.0f}{split[1] / sum(split):8.1%}")

pictures.over_length(measure.recorded_series("minilm_lengths", gpu="NVIDIA H200"))

# %% [markdown]
# At none that the model can read: it has 512 positions, and even there most of the flops are in the products. The
# figure shows how the time grows, and not who is ahead: its PyTorch has fused attention and a graph, but is not
# compiled. Compiled, with 64 sentences of 128 tokens, it takes only {{ ahead[1]:.2f }} times as long as ours. Note how
# little the shortest sentences save: with a sixteenth of the tokens, ours still takes more than a sixth of the
# time{{ if above_sixth }}.

# %% [markdown]
# ## Where the time goes
#
# In the article's profile, 70%{{ quoted }} of the time went into products, in its own model as in PyTorch. What about
# ours? To find out without a profiler's overhead, the pass was captured again without all launches of one kind. (What
# that saves need not add up to the whole.)

# %%
profile = measure.recorded_series("minilm_profile", gpu="NVIDIA H200")
for found in profile["passes"]:
    print(f"{found['sentences']} x {found['tokens']} tokens: {found['us']:.0f} us in a graph, "
          f"{found['launches']} launches, {found['us_a_launch']:.1f} us a launch")
    for row in found["rows"]:
        print(f"    {row['name']:22}{row['count']:4}{row['us_saved']:10.1f} us shorter without")
    their = found["torch"]["rows"]
    cublas = sum(row["us"] for row in their if row["name"].startswith("nvjet"))
    print(f"    PyTorch, SDPA: {found['torch']['launches']} launches; its kernels take "
          f"{sum(row['us'] for row in their):.0f} us, products {cublas:.0f} of them")

# %% [markdown]
# At 128 tokens, two thirds{{ if near(products_share, 2 / 3) }} of the time are products. One of them stands out: `gelu`
# and `projected` have the same flops and the same bytes, and `gelu` takes nearly twice as long{{ if gelu_twice }}. Its
# epilogue is the larger one, with {{ words(1536 / 384) }} times as many elements to store, each of them after an error
# function. PyTorch launches GELU separately, and spends less than half of its time{{ if below_half }} in products.

# %% [markdown]
# ## What bounds a small batch
#
# 64 sentences of 16 tokens have an eighth of the rows of{{ if 16 / 128 == 1 / 8 }} 64 × 128, and take a third of the
# time{{ if near(profile[1].us / profile[0].us, 1 / 3) }}. One sentence of 16 tokens has a 64th of *their* rows, and how
# much of their time?

# %%
weights_of_a_layer = sum(outputs * inputs for outputs, inputs in real.products)
flops_a_row = 2 * weights_of_a_layer * real.num_hidden_layers
launches_of_pass = 2 + len(layer) * real.num_hidden_layers
limits = measure.recorded(gpu="NVIDIA H200")["limits"]
overhead = measure.recorded_series("launch_overhead", gpu="NVIDIA H200")
weights_us = 2 * weights_of_a_layer * real.num_hidden_layers / limits["bandwidth_gbs"] / 1e3
for one in sorted(work, key=lambda one: one["sentences"] * one["tokens"]):
    us = one["ours"]["packed"]["us_a_sentence"] * one["sentences"]
    floor = flops_a_row * one["sentences"] * one["tokens"] / limits["f16_tflops"] / 1e6
    print(f"{one['sentences']:4} x {one['tokens']:3} tokens {us:8.0f} us, "
          f"{us / launches_of_pass:5.1f} a launch; products at the peak {floor:6.1f} us")
print(f"weights from DRAM once {weights_us:.0f} us; {launches_of_pass} launches of a tiny kernel "
      f"{launches_of_pass * overhead['graph_us']:.0f} us")

# %% [markdown]
# Most of it: 1,024 rows take only {{ rows_ratio:.1f }} times as long as 16. Neither flops nor bytes explain that; the
# weights could be read from DRAM in {{ dram_us:.0f }} us. What is left is the launches, {{ profile[1].launches }} of
# them, each of which has to wait for the one before. A launch of nearly nothing takes
# {{ series.launch_overhead.graph_us:.1f }} us in a graph, and one of ours takes {{ launch_us:.1f }} us even for 16
# rows. In a product, a few blocks walk along K step by step, each step has to wait for its loads, and most SMs have
# nothing to do. So tuning the products for large batches does not help here. Fewer launches would, or shorter ones,
# with more blocks and with K divided among warps. The products of *few rows* are built like that: a block computes only
# 16 columns, its eight warps share K, and their sums are added in shared memory. Their kernel agrees with NumPy:

# %%
from labkit.kernels.ops.skinny_linear import SKINNY_LINEAR_HALF

agree(SKINNY_LINEAR_HALF, ["skinny_linear_half_tensor_core"],
      sizes=({"M": 3, "N": 24, "K": 72}, {"M": 7, "N": 40, "K": 264}))

# %% [markdown]
# That is why *few rows* is ahead with 16 tokens. The model does not use these products by default, because then the
# last bits of an embedding would depend on its batch (lesson 31).
#
# PyTorch meets the same bound. With 64 sentences of 16 tokens and SDPA in a graph it needs {{ sdpa_launch_us:.1f }} us
# a launch, about as much as ours{{ if as_ours }}, and it has {{ profile[1].torch.launches }} of them, among them
# memsets, which only fill memory with a value.

# %% [markdown]
# ## Sizes as constants
#
# A launch can also be made shorter by what the compiler knows. In the article's source the sizes are compile-time
# constants: rows of 384, 6 layers, 12 heads of 32, an inner width of 1,536, 128 tokens. Most of our kernels read them
# from the arrays' shapes or get them as arguments, so that one compiled kernel serves every model. What is that worth?
# Three kernels of an encoder were compiled for an H200 twice, from the same source: the sizes as arguments, and as
# constants. Which of the three can gain most: a tiled product with GELU, a residual with LayerNorm (a warp a row), or
# the copy that splits queries, keys and values into heads?

# %%
from labkit.measure.series import encoder_sizes

made, times = encoder_sizes.recorded_compiled(), measure.recorded_series("encoder_sizes")
us = {(row["name"], row["form"]): row["us"] for row in times["rows"]}
print(f"{'PTX for sm_90':24}{'sizes as':12}{'instructions':>13}{'branches':>10}{'divisions':>11}"
      f"{'registers':>11}{'us':>10}")
for row in sorted(made["rows"], key=lambda row: row["name"]):
    print(f"{row['name']:24}{row['form']:12}{row['instructions']:13}{row['branches']:10}{row['divisions']:11}"
          f"{row['registers']:11}{us[row['name'], row['form']]:10.1f}")

# %% [markdown]
# The copy can. A number's place in the output follows from divisions by the sizes, and a division by a number that the
# compiler does not know takes dozens of machine instructions. By a constant it is a multiplication and a shift, and no
# division is left: the copy takes {{ sizes['constants']:.0f }} us instead of {{ sizes['arguments']:.0f }}. In LayerNorm
# the loops are gone, since the compiler knows that a lane has twelve numbers, but its time is that of its memory
# traffic. The product has hardly changed: its inner loop is over a tile, whose size was a constant all along.
#
# That is the rule that our kernels follow. What sets the size of an array in registers or in shared memory, or the
# length of an inner loop, is a constant, and a factory makes a kernel for each value; the rest is an argument.

# %% [markdown]
# ## Many sentences, no padding
#
# A small batch wastes most of the GPU, so put many sentences into each. They differ in length, and lesson 30 packed
# them to save the rows of padding. In attention, each query of a sentence meets each of its keys. Suppose that padding
# is computed like everything else and masked afterwards. How many times as many scores as it needs does a batch have
# that is padded to 128? Guess, then look at eight sentences of these lengths.

# %%
pictures.score_matrices([9, 6, 12, 23, 31, 64, 92, 128])

# %% [markdown]
# The rows grow with the padded length, the scores with its square. Our attention knows where each sentence ends and
# skips the rest, whatever the layout. So packing saves it nothing in attention; it saves rows in all other launches.
#
# A CUDA graph belongs to one shape, and a packed batch may have any number of rows. So the number is rounded up to one
# of a few values, by a sixteenth at most where there are many rows. How many different numbers of rows are left for
# batches of up to 8,192 tokens?

# %%
tokens = range(1, 8193)
shapes = {minilm.few_values(count, minilm.ROUND) for count in tokens}
most = max(minilm.few_values(count, minilm.ROUND) / count for count in tokens if count > 256)
print(f"{len(tokens):,} numbers of tokens, {len(shapes)} numbers of rows; "
      f"above 256 tokens at most {most - 1:.1%} more")

# %% [markdown]
# ## A whole corpus
#
# In the article, 2,000 sentences of the STS benchmark, about 15 tokens each, ran at 54,000 a second and in PyTorch at
# 39,000, both sorted by length and padded to the longest of each batch. Padded to 128, the article's own model ran at
# 11,000 a second. Our corpus is as large. How many will it be on an H200? And which size of batch will be best for each
# layout? Beside each rate stands the smallest cosine of the embeddings with those in float64, over all sentences.

# %%
series = measure.recorded_series("minilm_corpus", gpu="NVIDIA H200")


print(f"{series['sentences']:,} sentences of {series['mean_tokens']:.1f} tokens on average: {series['corpus']}")
print(f"{'sentences a second':28}{'forward':>12}{'with copies':>14}{'cosine':>14}")
for one in series["ours"]:
    name = f"{one['form'].replace('_', ' ')}, by {one['batch']:,}"
    print(f"{name:28}{one['sentences_per_second']:12,.0f}{one['embed_sentences_per_second']:14,.0f}"
          f"{one['cosine']:14.6f}")
for one in series["torch"]:
    ways = {"as it is": one["graph_sentences_per_second"], **one["compiled_ways"]}
    for way, rate in ways.items():
        if isinstance(rate, float):
            name = f"PyTorch, {way}, {one['form']}, by {one['batch']:,}"
            print(f"{name:54}{rate:12,.0f}" + (f"{one['cosine']:12.6f}" if way == "as it is" else ""))

# %% [markdown]
# Batches padded to their longest sentence are fastest with 256{{ if best_256 }} sentences; beyond that, the padding
# costs more than fewer launches save. Packed, 1,024 sentences are best{{ if best_1024 }}, and all 2,000 in one batch
# are nearly as fast{{ if one_batch_near }}.
#
# PyTorch's rows are all in graphs. Padded, and compiled between one attention and the next, it reaches less than
# half{{ if below_half_of_ours }} of our rate. But PyTorch can be packed as well, with two kinds of attention that know
# where a sentence ends: FlashAttention for sequences of different lengths (*varlen*), and FlexAttention, which compiles
# a kernel for a given mask. With the latter it comes close: we are ahead by a factor of {{ gain:.1f }}. Padded against
# padded it was {{ padded_gain:.1f }}. Packing makes our own rate {{ packing_gain:.1f }} times as high, and PyTorch's,
# together with FlexAttention, {{ torch_best / torch_padded:.1f }} times.
#
# Laying out a packed batch of all sentences in Python, and copying it to the device and back, costs
# {{ embed_cost:.0% }} of the rate. And what if you begin with text?

# %%
text = series["text"]
print("seconds from text to embeddings:")
for label, key in (("ours, by 2,000", "ours_seconds_2000"), ("of that, the tokenizer", "tokenizing_seconds"),
                   ("PyTorch packed and compiled, by 256", "torch_seconds_256"),
                   ("of that, the tokenizer", "torch_tokenizing_seconds"),
                   ("sentence-transformers, by 256", "library_seconds_256")):
    print(f"    {label:36}{text[key]:6.3f}")

# %% [markdown]
# Then the tokenizer takes longer than all the rest, in both{{ if tokenizer_longest }}. PyTorch packed and compiled is
# ahead of ours here{{ if torch_ahead }}: it does not ask the tokenizer for offsets into the text. The next saving has
# to come from there. (sentence-transformers pads, and calls PyTorch line by line.)

# %% [markdown]
# ## What I learned
#
# - Count first. A step that changes no count needs a reason inside the kernel. A step that does change one may only
#   save what the cache was saving already.
# - The article's largest gain came from leaving work out, and it says the least about kernels. Ours came from a product
#   with fewer instructions.
# - Neither fewer bytes nor more warps are an end in themselves. The fastest kernels here have the lowest occupancy.
# - A failure belongs to a kernel *and* a GPU: with 128 tokens, two of the article's three do not fail on an H200. On a
#   different GPU, do the division again; and if it does not explain the times, count the instructions.

# %% [markdown]
# ## Resources
#
# - the article: *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, on an RTX 3090
# - [T. Dao: FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691), attention in tiles
# - [CUDA C++ Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities),
#   the limits of an SM

# %% [markdown]
# ## Try it
#
# - Build a form of your own with `dataclasses.replace(step("GELU fused").kernels, ...)`: give it the attention in tiles
#   (with `attention_takes=()`, since it takes no memory for scores), and say how many launches a layer will have. Then
#   let `launches_of_layer(Step("mine", "", kernels), real, long)` count them. (`Step` is in `minilm_steps`, too.)
# - Find the longest sentence for which an SM of an H200 still holds two blocks with a whole score matrix.
# - With a GPU: `labkit bench minilm_ladder` takes the ladder. Which steps gain more than their count, and why?
#
# In the exercises for this lesson you do the division yourself, and in the end an encoder runs on your own attention
# and LayerNorm, with every launch compared.
#
# Next: **matching PyTorch**. The last form is fast. Is it as fast as PyTorch?

# %% [numbers]
# single = {one.name: one.us for one in series.minilm_single.rows if one.tokens == 128}
# long = '64 x 128'
# short = '64 x 16'
# steps = series.minilm_ladder.steps
# f16 = series.minilm_ladder.failures['float16 accumulators']
# third = [one.beside_us / one.us for one in series.minilm_ladder.failures if one.name == 'three stages']
# three_launches = series.minilm_ladder.attention[0]
# whole_matrix = series.minilm_ladder.attention[2]
# tiles = series.minilm_ladder.attention[4]
# plain = ncu('minilm_products', 'matmul_half_tensor_core')
# blocked = ncu('minilm_products', 'matmul_half_hand_blocked')
# copies = ncu('minilm_products', 'matmul_half_double_buffered')
# copying_gain = steps['simple'].us[long] / steps['cp.async'].us[long]
# wgmma_gain = steps['no padding to 128'].us[long] / steps['wgmma'].us[long]
# tiled_gain = steps['wgmma'].us[long] / steps['tiled attention'].us[long]
# small_gains = (max(steps['warp LayerNorm'].us[long] / steps['GELU fused'].us[long], steps['GELU fused'].us[long] /
#                steps['scores in registers'].us[long], steps['scores in registers'].us[long] /
#                steps['float16 accumulators'].us[long]) < 1.04)
# short_padding_gain = steps['float16 accumulators'].us[short] / steps['no padding to 128'].us[short]
# launches_cost = steps['no padding to 128'].us[short] / steps['no padding to 128'].us[long] > 2 / 8
# short_wgmma_gain = steps['no padding to 128'].us[short] / steps['wgmma'].us[short]
# no_gain = (abs(row('matmul_half', 'f16_accumulators').tflops / row('matmul_half', 'double_buffered').tflops - 1) <
#            0.015)
# model_gain = steps['scores in registers'].us[long] / steps['float16 accumulators'].us[long] - 1
# fewer_instructions = plain.instructions / copies.instructions
# third_stage_gains = 1.015 < min(third) and max(third) < 1.045
# above_half = 0.5 < whole_matrix.us_a_layer / three_launches.us_a_layer < 0.6
# tiles_gain = whole_matrix.us_a_layer / tiles.us_a_layer
# tiles_instructions = (ncu('attention_sentences_half', 'flash').instructions / ncu('attention_sentences_half',
#                       'whole_matrix').instructions)

# packed = series.minilm_corpus.ours[2]
# whole = series.minilm_corpus.ours[3]
# padded = [one for one in series.minilm_corpus.ours if one.form == 'padded']
# torch_best = max([one.compiled_graph_sentences_per_second for one in series.minilm_corpus.torch])
# torch_padded = max([one.compiled_graph_sentences_per_second for one in series.minilm_corpus.torch if one.form ==
#                    'padded'])
# sizes = {one.form: one.us for one in series.encoder_sizes.rows if one.name == 'heads apart'}
# few = series.minilm.rows[0]
# full = series.minilm.rows[1]
# alone = series.minilm.rows[3]
# theirs = ('eager, in a graph', 'SDPA, in a graph', 'transformers, in a graph', 'compiled, in a graph',
#           'three lines, in a graph')
# ahead = [min([one.torch[name] for name in theirs]) / min([one.ours[name].us_a_sentence for name in ('packed',
#          'padded', 'few rows')]) for one in series.minilm.rows]
# profile = series.minilm_profile.passes
# faster_than_default = (alone.torch['compiled, in a graph'] < min(alone.ours.packed.us_a_sentence,
#                        alone.ours.padded.us_a_sentence))
# four_times_slower = 4 < full.ours.padded.called_us_a_sentence / full.torch.SDPA < 5
# single_ms = alone.ours.packed.called_us_a_sentence / 1e3
# above_sixth = 1 / 6 < series.minilm_lengths.ours_us[0] / series.minilm_lengths.ours_us[7] < 1 / 5
# products_share = (sum([profile[0].rows[name].us_saved for name in ('qkv', 'attention.projected', 'gelu',
#                   'projected')]) / profile[0].us)
# gelu_twice = 1.7 < profile[0].rows['gelu'].us_saved / profile[0].rows['projected'].us_saved < 2
# below_half = (sum([one.us for one in profile[0].torch.rows if 'nvjet' in one.name]) < sum([one.us for one in
#               profile[0].torch.rows]) / 2)
# rows_ratio = 64 * few.ours.packed.us_a_sentence / alone.ours.packed.us_a_sentence
# dram_us = 2 * 6 * 12 * 384**2 / limits.bandwidth_gbs / 1e3
# launch_us = alone.ours.packed.us_a_sentence / 44
# sdpa_launch_us = 64 * few.torch['SDPA, in a graph'] / profile[1].torch.launches
# as_ours = abs(64 * few.torch['SDPA, in a graph'] / profile[1].torch.launches / profile[1].us_a_launch - 1) < 0.01
# best_256 = (max(padded[0].sentences_per_second, padded[2].sentences_per_second, padded[3].sentences_per_second) <
#             padded[1].sentences_per_second)
# below_half_of_ours = torch_padded / packed.sentences_per_second < 0.5
# gain = packed.sentences_per_second / torch_best
# padded_gain = padded[1].sentences_per_second / torch_padded
# packing_gain = packed.sentences_per_second / padded[1].sentences_per_second
# embed_cost = 1 - whole.embed_sentences_per_second / whole.sentences_per_second
# best_1024 = packed.sentences_per_second == max(one.sentences_per_second for one in series.minilm_corpus.ours)
# one_batch_near = whole.sentences_per_second > 0.9 * packed.sentences_per_second
# tokenizer_longest = (2 * series.minilm_corpus.text.tokenizing_seconds > series.minilm_corpus.text.ours_seconds_2000
#                      and 2 * series.minilm_corpus.text.torch_tokenizing_seconds >
#                      series.minilm_corpus.text.torch_seconds_256)
# torch_ahead = series.minilm_corpus.text.torch_seconds_256 < series.minilm_corpus.text.ours_seconds_2000
