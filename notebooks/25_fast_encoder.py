# %% [markdown]
# # 25 · Making the encoder fast
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a model that is right becomes fast: eleven forms of one encoder, each with a single change
# - what to count before you measure: launches, bytes, flops, and the blocks that an SM can hold
# - why three ideas from the textbook made things worse on one GPU, and which of them fail on an H200
#
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
#
# ## Before the first step
#
# The article began even earlier: a single sentence, padded to 128 tokens, with the linear layers by a naive kernel, by
# tiles in shared memory, and by tensor cores with one tile a warp. Those are lessons 05 and 07 in one model. It reports
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
#
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
#
# ## What float16 accumulators cost
#
# Every form computes in float16. A tensor core multiplies float16 numbers exactly and adds the products up in float32
# accumulators, or in float16 ones. In the second case the sum is rounded to 11 bits at every step along K, and in
# lesson 07 the error grew with K. The model's dot products have 384 and 1,536 terms. What do you expect of those?

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
#
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
#
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
#
# ## What I learned
#
# - Count first. A step that changes no count needs a reason inside the kernel. A step that does change one may only
#   save what the cache was saving already.
# - The article's largest gain came from leaving work out, and it says the least about kernels. Ours came from a product
#   with fewer instructions.
# - Neither fewer bytes nor more warps are an end in themselves. The fastest kernels here have the lowest occupancy.
# - A failure belongs to a kernel *and* a GPU: with 128 tokens, two of the article's three do not fail on an H200. On a
#   different GPU, do the division again; and if it does not explain the times, count the instructions.
#
# ## Resources
#
# - the article: *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, on an RTX 3090
# - [T. Dao: FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691), attention in tiles
# - [CUDA C++ Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities),
#   the limits of an SM
#
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
