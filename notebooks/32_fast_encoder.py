# %% [markdown]
# # 32 · Making the encoder fast
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a correct model becomes fast: eleven forms of one encoder, each with a single change
# - what to count before you measure: launches, bytes, flops, and the blocks that fit on an SM
# - how to compare a model with PyTorch fairly, and what limits it when the batch is small

# %% [markdown]
# ## The problem
#
# The encoder of the last two lessons computes the right embeddings. Is it also fast? A post on tytr.dev, [*No cuBLAS: A
# Hand-Written CUDA BERT That Matches PyTorch*](https://tytr.dev/blog/cuda-bert-matching-pytorch/), brings the same
# model, all-MiniLM-L6-v2, to the speed of PyTorch on an RTX 3090, with every kernel written by hand in CUDA C++. It
# gets there in eight steps. With 64 sentences of 128 tokens it ends at 0.090 ms{{ quoted }} a sentence, and PyTorch at
# 0.092{{ quoted }}. That is an achievement: PyTorch leaves its products to cuBLAS, a library with many years of tuning
# behind it.
#
# labkit has those eight steps as forms of the encoder, rebuilt in Python from the post's description, followed by three
# new ones. Each form is the whole model, and each changes one thing in the form above it.

# %%
from labkit import agree, measure, show_source, table
from labkit.models import minilm
from labkit.models.minilm_steps import STEPS, step

table([(number, one.name, one.changes) for number, one in enumerate(STEPS, 1)], ["", "form", "what changes"])

# %% [markdown]
# A form that is fast and wrong is useless, so the course's tests compare every launch of every form with NumPy. Here
# are the two kinds of product that the first and the second form use.

# %%
from labkit.kernels.ops.linear import LINEAR

agree(LINEAR, ["linear_tensor_core", "linear_double_buffered"],
      sizes=({"M": 37, "N": 24, "K": 48}, {"M": 16, "N": 64, "K": 384}))

# %% [markdown]
# ## Count before you measure
#
# Three things can be counted without running anything: the launches, the bytes that cannot be avoided (each input read
# once, each result written once), and the flops of the products. Start with the launches. In the first form, queries,
# keys and values are three products, heads are split and merged by copies, and GELU and the residuals are separate
# launches. How many launches does one layer have in the first form, and how many in the last?

# %%
from labkit.course.drawings import fast_encoder as pictures
from labkit.models.minilm_counts import launches_of_layer

real = minilm.Config()  # all-MiniLM-L6-v2
long, short = [128] * 64, [16] * 64  # sentences of a batch
pictures.layer_of_each_step({one.name: launches_of_layer(one, real, long) for one in STEPS})

# %% [markdown]
# There are 18 in the first form and 7 in the last. The steps fall into three groups.
#
# - **Some remove launches, and traffic with them.** *one product* no longer copies heads, and reads its input once
#   instead of three times. *warp LayerNorm* keeps the sum of a residual in registers. *GELU fused* saves the inner
#   activations, the widest rows of the model, a trip to memory and back. *tiled attention* never stores a score.
# - **Some leave the counts alone.** *cp.async*, *scores in registers*, *float16 accumulators* and *wgmma* change how a
#   kernel feeds its units.
# - **Two change the number of rows.** When all sentences have 128 tokens, *no padding to 128* and *packed* have nothing
#   to remove. When they have 16, the first of the two removes seven rows out of eight{{ if 16 / 128 == 1 / 8 }}.
#
# ## Measure, and compare with the counts
#
# The figure shows the time of all eleven forms on an H200. The table below it shows by what factor each step shortens
# the time, in the post and for us, and by what factor it reduces the counts. Which step do you expect to have the
# largest factor with 128 tokens, and is it one that reduces a count?

# %%
from itertools import pairwise

from IPython.display import display

ladder = measure.recorded_series("minilm_ladder", gpu="NVIDIA H200")
display(pictures.step_times(ladder))

theirs = dict(zip([one.name for one in STEPS],  # ms a sentence, on an RTX 3090
                  (0.225, 0.140, 0.118, 0.109, 0.102, 0.101, 0.091, 0.015), strict=False))
ours = {one["name"]: one["us"] for one in ladder["steps"]}


def counted(name, lengths):
    layer = launches_of_layer(step(name), real, lengths)
    return len(layer), sum(one.bytes for one in layer), sum(one.flops for one in layer)


rows = []
for before, name in pairwise(ours):
    lengths = short if name == "no padding to 128" else long  # as in the post
    batch = f"64 x {lengths[0]}"
    fewer = [was / now for was, now in zip(counted(before, lengths), counted(name, lengths), strict=True)]
    quoted = theirs[before] / theirs[name] if name in theirs else None
    rows.append((name, batch, quoted, ours[before][batch] / ours[name][batch], *fewer))
table(rows, {"step": "", "batch": "", "RTX 3090, the post": ".2f", "H200, ours": ".2f",
             "launches": ".2f", "bytes": ".2f", "flops": ".2f"})

# %% [markdown]
# *cp.async* has the largest factor, {{ copying_gain:.1f }}, and it reduces no count. *wgmma*, with
# {{ wgmma_gain:.1f }}, does not either. So if a step is faster but saves nothing you can count, the reason must be
# inside the kernel, and the next section looks for it. In *one product* and *warp LayerNorm* the bytes shrink by about
# the post's factor, and the H200 gains a little more. *GELU fused* promises more than either GPU gets, since the error
# function has to be computed in any case. Like *scores in registers* and *float16 accumulators*, it makes the H200 less
# than 4%{{ if small_gains }} faster.
#
# The post's largest factor belongs to *no padding to 128*. Its test sentence has 9 tokens, and the model now computes
# 16 rows for it instead of 128. That is less work rather than faster work, and PyTorch benefits in the same way, as the
# post says itself. With 16 tokens this step removes seven eighths of our flops as well, and yet it makes the H200 only
# {{ short_padding_gain:.1f }} times as fast. We come back to that below, under "What limits a small batch".

# %% [markdown]
# ## Inside the product
#
# Why does *cp.async* shorten the time by so much? In the first form, every warp loads its fragments straight from
# global memory, one float16 at a time, and neighbouring warps load the same values again:

# %%
from labkit.kernels.matmul.half import (
    matmul_half_hand_blocked_kernel,
    matmul_half_tensor_core_kernel,
)
from labkit.kernels.matmul.mma import make_staged

show_source(matmul_half_tensor_core_kernel, "for k in u32.range", "add_product(")

# %% [markdown]
# The textbook fix is a tile in shared memory: load it once per block and share it. The post tried that and found its
# model slower. Here is the same idea in our library. The threads of a block copy both tiles, element by element:

# %%
show_source(matmul_half_hand_blocked_kernel, "for start in u32.range", "cuda.syncthreads()")

# %% [markdown]
# The second form also has tiles in shared memory, but fills them with `cp.async`, 16 bytes at a time, while it
# multiplies the previous ones, and reads whole fragments with `ldmatrix` (lessons 08 and 09). Its loop:

# %%
show_source(make_staged, "for step in u32.range(steps):", "regs = ptx.ldmatrix_x4(")

# %% [markdown]
# Nsight Compute profiled all three for one product of the model, 8,192 × 384 by 384 × 384, on the H200. Which counter
# explains both why tiles copied by hand are slower than no tiles and why those of `cp.async` are ten times as fast?

# %%
from labkit.measure import ncu

counters = {op: {one["name"].removeprefix(f"{prefix}_"): one for one in ncu.recorded()["ops"][op]["rows"]}
            for op, prefix in (("minilm_products", "matmul_half"),
                               ("attention_sentences_half", "attention_sentences_half"))}
products, attention = counters["minilm_products"], counters["attention_sentences_half"]
chosen = [products[name] for name in ("tensor_core", "hand_blocked", "double_buffered")]
table([(text, *(one[key] / unit for one in chosen)) for text, key, unit in (
          ("time, us", "time_us", 1), ("from DRAM, MB", "dram_read", 1e6), ("through L2, MB", "l2_bytes", 1e6),
          ("hits in L2, %", "l2_hit_percent", 1), ("instructions, million", "instructions", 1e6),
          ("bank conflicts, million", "bank_conflicts", 1e6), ("registers per thread", "registers", 1),
          ("occupancy, %", "occupancy_percent", 1))],
      {"": "", "from global memory": ".1f", "tiles, copied by hand": ".1f", "tiles, cp.async": ".1f"})

# %% [markdown]
# The instructions do. The hand-copied tiles do what they promise: only half{{ if half_the_traffic }} of the traffic
# through L2 is left. But nearly all of those reads were hits in L2 already, and DRAM delivers the inputs once in either
# case. The price is more instructions, because a warp now copies as well as computes, and bank conflicts, which a
# kernel without shared memory cannot have. So this idea fails on the H200 as it failed on the RTX 3090. `cp.async` and
# `ldmatrix` move the same tiles with {{ fewer_instructions:.0f }} times fewer instructions than the first kernel, and
# take a tenth{{ if near(copies.time_us / plain.time_us, 1 / 10) }} of its time, at the lowest occupancy of the three.
#
# With *float16 accumulators* the post caught up with cuBLAS: GeForce cards, it explains, run at twice the rate with
# them. An H200 has the same peak for float16 and float32 accumulators. There, the whole model became only
# {{ model_gain:.0% }} faster, while every sum is rounded to 11 bits at each step along K (lesson 08). So from *wgmma*
# on our forms accumulate in float32 again.

# %% [markdown]
# ## What fits on an SM
#
# The post names two more ideas that made its model slower: **a third buffer** for the product, and attention with **a
# whole score matrix** in shared memory. Both can be judged before they are written. A block needs registers and shared
# memory, an SM has a fixed amount of each, and a division gives the number of blocks that fit. How many blocks of each
# kernel fit on an SM of either GPU, with the threads, registers and bytes that Nsight Compute found?

# %%
from labkit.device import occupancy

# SMs; threads, blocks, registers and bytes of shared memory of each
RTX_3090 = occupancy.GPU("RTX 3090", 82, 1536, 16, 65_536, 102_400)
kernels = {"product, two buffers": products["double_buffered"],
           "product, three buffers": products["three_stage"],
           "attention, whole matrix": attention["whole_matrix"],
           "attention, tiles": attention["flash"]}


def fit(gpu, threads, registers, shared):  # ncu's bytes include those that the system reserves
    allowed = occupancy.limits(gpu, threads, registers, shared - occupancy.SHARED_OF_SYSTEM)
    scarce = min(allowed, key=allowed.get)
    return f"{allowed[scarce]}, limited by {scarce}"


rows = []
for name, one in kernels.items():
    needs = [int(one[key]) for key in ("threads", "registers", "shared_bytes")]
    rows.append((name, *needs, fit(RTX_3090, *needs), fit(occupancy.H200, *needs)))
table(rows, ["kernel", "threads", "registers", "shared, bytes", "blocks on an RTX 3090", "on an H200"])

# %% [markdown]
# On an RTX 3090 each of the two ideas leaves room for a single block per SM. When its warps wait, at a barrier or for
# memory, nothing else can run. An H200 has more than twice the shared memory{{ if 233472 > 2 * 102400 }}: registers
# limit the product to two blocks with two buffers or three, and even whole score matrices leave room for several
# blocks.
#
# Measured on the H200 with 128 tokens, neither idea fails. Three buffers make the products 2% to
# 4%{{ if third_stage_gains }} faster. For attention there are three contenders: scores, softmax and context in three
# launches; the whole matrix in one; and tiles of keys, whose scores never leave the registers. This is the kernel with
# tiles, and its loop is the flash attention of lesson 25:

# %%
from labkit.kernels.attention.sentences_flash import make_sentences_flash_half

show_source(make_sentences_flash_half, "begin, tokens, scale = find_sentence", "store_rows(")

# %% [markdown]
# The kernel looks up where its sentence begins and how long it is, and returns if its queries are beyond the end. It
# needs to know nothing else about packing. With tiles an SM holds the fewest warps. Is attention in tiles the fastest
# of the three nevertheless?

# %%
named = {"scores": ("three_launches", "sentence_scores_half_kernel"),
         "softmax": ("three_launches", "sentence_softmax_kernel"),
         "context": ("three_launches", "sentence_context_half_kernel"),
         "whole matrix": ("whole_matrix", None), "tiles": ("flash", None)}
a_layer = {one["form"]: one["us_a_layer"] for one in ladder["attention"] if one["tokens"] == 128}
rows = []
for name, (form, kernel) in named.items():
    one = next(row for row in ncu.recorded()["ops"]["attention_sentences_half"]["rows"]
               if row["name"].endswith(form) and kernel in (None, row["kernel"]))
    rows.append((name, one["time_us"], one["instructions"] / 1e6, one["occupancy_percent"]))
display(table(rows, {"launch": "", "us": ".1f", "instructions, million": ".1f", "occupancy, %": ".0f"}))
table(a_layer.items(), {"attention of 64 x 128 tokens": "", "us per layer, in a graph": ".1f"})

# %% [markdown]
# It is. The whole matrix takes little more than half{{ if above_half }} the time of the three launches, and the tiles
# are {{ words(tiles_gain) }} times as fast again. They execute {{ words(tiles_instructions) }} of the whole matrix's
# instructions, because scores stay in registers and are never stored to shared memory and read back. As with the
# products, the fastest of the three executes the fewest instructions, at the lowest occupancy.

# %% [markdown]
# ## A fair comparison
#
# Now the question in the post's title: is the last form as fast as PyTorch? "As fast as PyTorch" means little without
# saying which PyTorch. Our model runs in a CUDA graph, whereas PyTorch, called line by line, pays for Python at every
# line. So these are the rules:
#
# - Both sides have the same weights and token ids, in the same precision, already on the device. Only forward passes
#   are timed, many times, after a warm-up, and the median counts.
# - PyTorch gets every chance: eager (each operation launched as Python reaches it); with its fused attention, SDPA;
#   that form compiled; the model of the library transformers; and that one compiled, as a user would in three lines.
#   Each is timed in a graph and called from Python, and so are our forms.
# - The embeddings of both sides are compared in the same run.
#
# Our entries are *packed* and *padded*, the layouts of lesson 30, and *few rows*, which is packed and has products made
# for few rows. Is our model ahead of the fastest PyTorch in a graph, for each of the five batches?

# %%
work = measure.recorded_series("minilm", gpu="NVIDIA H200")["rows"]
rows = [(f"ours, {name}", *(one["ours"][name]["us_a_sentence"] for one in work)) for name in work[0]["ours"]]
for name in ("eager", "SDPA", "transformers", "compiled", "three lines"):
    rows.append((f"PyTorch, {name}", *(one["torch"][f"{name}, in a graph"] for one in work)))
batches = [f"{one['sentences']} x {one['tokens']}" for one in work]
table(rows, {"us per sentence, in a graph": "", **dict.fromkeys(batches, ".1f")},
      note=f"smallest cosine of the two sides: {min(one['cosine'] for one in work):.6f}")

# %% [markdown]
# With many sentences ours is ahead of the fastest PyTorch, by {{ ahead[0]:.1f }} times for 64 sentences of 16 tokens,
# {{ ahead[1]:.1f }} for 64 of 128, and {{ ahead[2]:.1f }} for 512 of 16. A single sentence of 128 tokens is fastest in
# compiled PyTorch{{ if ahead[4] < 1 }}. So is one of 16 tokens, compared with our default
# kernels{{ if faster_than_default }}; only *few rows* is ahead of it{{ if ahead[3] > 1 }}.
#
# Called from Python, launch by launch, the ranking is reversed: every form of ours was slower than every form of
# PyTorch{{ if always_behind }}, with 64 sentences of 128 tokens more than four times slower than the
# best{{ if four_times_slower }}. At the time, our launches went through Numba, several times as expensive as labkit's
# own launcher today (lesson 13), and our launchers check arguments and slice arrays in Python on every call. In a graph
# all of that is gone, and from the second batch of a shape on the model launches a pass as one graph. Comparing our
# graph with PyTorch called from Python would only measure Python.

# %% [markdown]
# ## What limits a small batch
#
# Back to the batch for which removing seven eighths of the rows gave only {{ short_padding_gain:.1f }} times the speed.
# Each row of the next table is one batch, with the time of a pass, that time divided by the number of launches, and the
# time that the products alone would take at the peak of the tensor cores. How much shorter does a pass become from
# 1,024 rows to 16?

# %%
launches = 2 + 6 * len(launches_of_layer(step("packed"), real, long))
weights_of_a_layer = sum(outputs * inputs for outputs, inputs in real.products)
flops_of_a_row = 2 * weights_of_a_layer * real.num_hidden_layers
limits = measure.recorded(gpu="NVIDIA H200")["limits"]
rows = []
for one in sorted(work, key=lambda one: one["sentences"] * one["tokens"]):
    count = one["sentences"] * one["tokens"]
    us = one["ours"]["packed"]["us_a_sentence"] * one["sentences"]
    rows.append((count, us, us / launches, flops_of_a_row * count / limits["f16_tflops"] / 1e6))
table(rows, {"rows": "", "us": ".0f", f"us per launch, of {launches}": ".1f", "products at the peak, us": ".1f"})

# %% [markdown]
# Very little: 1,024 rows take only {{ rows_ratio:.1f }} times as long as 16. Flops do not explain that, nor do bytes;
# all weights of the layers could be read from DRAM in {{ dram_us:.0f }} us. That leaves a chain of
# {{ profile[1].launches }} launches, each waiting for the one before. A launch that does next to nothing takes
# {{ series.launch_overhead.graph_us:.1f }} us in a graph, and one of ours takes {{ launch_us:.1f }} us even for 16
# rows, because a few blocks walk along K one step after another, and most SMs have nothing to do.
#
# PyTorch hits the same limit. With 64 sentences of 16 tokens and SDPA it takes {{ sdpa_launch_us:.1f }} us per launch,
# about as long as ours{{ if as_ours }}, and it has {{ profile[1].torch.launches }} of them.
#
# What helps is fewer launches, or shorter ones, with more blocks and K divided among warps. *few rows* has such
# products. A block computes only 16 columns; each of its eight warps works on every eighth step along K; at the end
# their sums meet in shared memory:

# %%
from labkit.kernels.linear.few_rows import make_skinny_half

show_source(make_skinny_half, "cuda.syncthreads()  # the partial sums", "out_row, out_col =")

# %% [markdown]
# The model does not use these products by default, because the last bits of an embedding would then depend on its batch
# (lesson 31).
#
# ## Many sentences, no padding
#
# The other remedy for a small batch is to make it larger. Sentences differ in length, and packing them saves the rows
# of padding. Attention can save more, since each query of a sentence meets each of its keys. Suppose that padding is
# computed and masked afterwards. A batch has sentences of 9, 6, 12, 23, 31, 64, 92 and 128 tokens, each padded to 128.
# How many times as many scores as it needs are computed?

# %%
pictures.score_matrices([9, 6, 12, 23, 31, 64, 92, 128])

# %% [markdown]
# It is {{ 8 * 128**2 / needed:.1f }} times as many. The rows grow with the padded length, the scores with its square.
# Our attention knows where each sentence ends and skips the rest, in any layout. So packing saves nothing there; it
# saves rows in all the other launches.
#
# A CUDA graph is captured for one shape, and a packed batch may have any number of rows. So that number is rounded up,
# by at most a sixteenth where there are many rows, and fewer than a hundred graphs serve all batches of up to 8,192
# tokens. You write that rounding in an exercise.
#
# The post embedded 2,000 sentences of the STS benchmark, about 15 tokens each, at 54,000 a second{{ quoted }}, and
# PyTorch did 39,000{{ quoted }}, both padded to the longest sentence of each batch. Our corpus is 2,000 sentences of
# these lessons. Which batch size is best for padding to the longest, which for packing, and is PyTorch behind?

# %%
corpus = measure.recorded_series("minilm_corpus", gpu="NVIDIA H200")
rows = [(f"ours, {one['form'].replace('_', ' ')}", one["batch"], one["sentences_per_second"])
        for one in corpus["ours"] if one["form"] != "padded_to_128" or one["batch"] == 1024]
for one in corpus["torch"]:
    rows += [(f"PyTorch, {one['form']}, {way}", one["batch"], rate)
             for way, rate in one["compiled_ways"].items() if isinstance(rate, float) and "autotuned" not in way]
table(rows, {"": "", "sentences in a batch": "", "sentences per second": ",.0f"},
      f"{corpus['sentences']:,} sentences of {corpus['mean_tokens']:.1f} tokens on average, in graphs")

# %% [markdown]
# Padded to the longest, batches of 256{{ if best_256 }} are best: beyond that the padding costs more than having fewer
# launches saves. Packed, 1,024 sentences are best{{ if best_1024 }}. Padded and compiled, PyTorch reaches less than
# half{{ if below_half_of_ours }} of our packed rate. But PyTorch can be packed, too, with attention that knows where a
# sentence ends: FlashAttention for sequences of different lengths (*varlen*), or FlexAttention, which compiles a kernel
# for a given mask. With the latter, ours is ahead by a factor of only {{ gain:.1f }}. Packing makes our own rate
# {{ packing_gain:.1f }} times as high, and PyTorch's {{ torch_best / torch_padded:.1f }} times.
#
# And if you begin with text? Then the tokenizer takes longer than all the rest, on both
# sides{{ if tokenizer_longest }}, and PyTorch is ahead{{ if torch_ahead }}, because its tokenizer does not return the
# offsets of each token in the text. The next saving would have to come from there.

# %% [markdown]
# ## What I learned
#
# - Count first. If a step is faster and changes no count, the reason is inside the kernel. A step that does change one
#   may only save what a cache was saving already.
# - The largest step came from executing fewer instructions. Neither fewer bytes nor more warps are ends in themselves:
#   the fastest kernels here have the lowest occupancy.
# - A failure belongs to a kernel *and* a GPU. Two of the post's three do not fail on an H200; on another GPU, do the
#   division again.
# - A comparison is fair only if both sides pay for the same things. In graphs, a small batch is bound by its chain of
#   launches, ours and PyTorch's alike.
#
# ## Resources
#
# - [No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch](https://tytr.dev/blog/cuda-bert-matching-pytorch/), on an
#   RTX 3090
# - [T. Dao: FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691), attention in tiles
# - [CUDA C++ Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities),
#   the limits of an SM
#
# ## Try it
#
# - Find the longest sentence for which an SM of an H200 still holds two blocks with a whole score matrix.
# - Build a form of your own with `dataclasses.replace(step("GELU fused").kernels, ...)`: tiles as its attention,
#   `attention=step("packed").kernels.attention`, and `attention_takes=()`, since tiles need no memory for scores.
#   Predict the launches of a layer, then count them with `launches_of_layer(Step("mine", "", kernels), real, long)`;
#   `Step` is in `minilm_steps`.
# - With a GPU: `labkit bench minilm_ladder` times the eleven forms. Which step differs most from the H200's?
#
# In the exercises you do the division yourself, write a residual with its LayerNorm and the attention over packed
# sentences, and work out what is fair. Two of your kernels then run in an encoder, with every launch compared.
#
# Next: **bfloat16, bit by bit**. The last two parts of the course build an inference engine for Llama, and begin with
# its numbers.

# %% [numbers]
# long = '64 x 128'
# short = '64 x 16'
# steps = series.minilm_ladder.steps
# third = [one.beside_us / one.us for one in series.minilm_ladder.failures if one.name == 'three stages']
# three_launches = series.minilm_ladder.attention[0]
# whole_matrix = series.minilm_ladder.attention[2]
# tiles = series.minilm_ladder.attention[4]
# plain = ncu('minilm_products', 'matmul_half_tensor_core')
# blocked = ncu('minilm_products', 'matmul_half_hand_blocked')
# copies = ncu('minilm_products', 'matmul_half_double_buffered')
# copying_gain = steps['simple'].us[long] / steps['cp.async'].us[long]
# wgmma_gain = steps['no padding to 128'].us[long] / steps['wgmma'].us[long]
# small_gains = (max(steps['warp LayerNorm'].us[long] / steps['GELU fused'].us[long], steps['GELU fused'].us[long] /
#                steps['scores in registers'].us[long], steps['scores in registers'].us[long] /
#                steps['float16 accumulators'].us[long]) < 1.04)
# short_padding_gain = steps['float16 accumulators'].us[short] / steps['no padding to 128'].us[short]
# model_gain = steps['scores in registers'].us[long] / steps['float16 accumulators'].us[long] - 1
# half_the_traffic = near(blocked.l2_bytes / plain.l2_bytes, 1 / 2)
# fewer_instructions = plain.instructions / copies.instructions
# third_stage_gains = 1.015 < min(third) and max(third) < 1.045
# above_half = 0.5 < whole_matrix.us_a_layer / three_launches.us_a_layer < 0.6
# tiles_gain = whole_matrix.us_a_layer / tiles.us_a_layer
# tiles_instructions = (ncu('attention_sentences_half', 'flash').instructions / ncu('attention_sentences_half',
#                       'whole_matrix').instructions)
# packed = series.minilm_corpus.ours[2]
# padded = [one for one in series.minilm_corpus.ours if one.form == 'padded']
# torch_best = max([one.compiled_graph_sentences_per_second for one in series.minilm_corpus.torch])
# torch_padded = max([one.compiled_graph_sentences_per_second for one in series.minilm_corpus.torch if one.form ==
#                    'padded'])
# few = series.minilm.rows[0]
# full = series.minilm.rows[1]
# alone = series.minilm.rows[3]
# in_graphs = ('eager, in a graph', 'SDPA, in a graph', 'transformers, in a graph', 'compiled, in a graph',
#              'three lines, in a graph')
# ahead = [min([one.torch[name] for name in in_graphs]) / min([one.ours[name].us_a_sentence for name in ('packed',
#          'padded', 'few rows')]) for one in series.minilm.rows]
# faster_than_default = (alone.torch['compiled, in a graph'] < min(alone.ours.packed.us_a_sentence,
#                        alone.ours.padded.us_a_sentence))
# always_behind = min([min([one.ours[name].called_us_a_sentence for name in ('packed', 'padded', 'few rows')]) /
#                 max([one.torch[name] for name in ('eager', 'SDPA', 'transformers', 'compiled', 'three lines')])
#                 for one in series.minilm.rows]) > 1
# four_times_slower = 4 < full.ours.padded.called_us_a_sentence / full.torch.SDPA < 5
# profile = series.minilm_profile.passes
# rows_ratio = 64 * few.ours.packed.us_a_sentence / alone.ours.packed.us_a_sentence
# dram_us = 2 * 6 * 12 * 384**2 / limits.bandwidth_gbs / 1e3
# launch_us = alone.ours.packed.us_a_sentence / 44
# sdpa_launch_us = 64 * few.torch['SDPA, in a graph'] / profile[1].torch.launches
# as_ours = abs(64 * few.torch['SDPA, in a graph'] / profile[1].torch.launches / profile[1].us_a_launch - 1) < 0.01
# best_256 = (max(padded[0].sentences_per_second, padded[2].sentences_per_second, padded[3].sentences_per_second) <
#             padded[1].sentences_per_second)
# best_1024 = packed.sentences_per_second == max(one.sentences_per_second for one in series.minilm_corpus.ours)
# below_half_of_ours = torch_padded / packed.sentences_per_second < 0.5
# gain = packed.sentences_per_second / torch_best
# packing_gain = packed.sentences_per_second / padded[1].sentences_per_second
# tokenizer_longest = (2 * series.minilm_corpus.text.tokenizing_seconds > series.minilm_corpus.text.ours_seconds_2000
#                      and 2 * series.minilm_corpus.text.torch_tokenizing_seconds >
#                      series.minilm_corpus.text.torch_seconds_256)
# torch_ahead = series.minilm_corpus.text.torch_seconds_256 < series.minilm_corpus.text.ours_seconds_2000
# needed = sum([tokens**2 for tokens in (9, 6, 12, 23, 31, 64, 92, 128)])
