# %% [markdown]
# # 22 · Matching PyTorch
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how a model that is right becomes fast: eleven forms of one encoder, each with a single change, and what it saves
# - what half precision costs, in the numbers and in the accumulators
# - why three ideas from the textbook made things worse on one GPU, and which of them fail on an H200
# - what it takes to compare with PyTorch fairly
#
# ## The problem
#
# The encoder of the last lesson computes the right embeddings. Is it also fast? The yardstick is PyTorch, which leaves
# its products to cuBLAS, a library with many years of tuning behind it.
#
# An article has tried the same: *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*. Its author wrote
# all-MiniLM-L6-v2 in CUDA C++ for an RTX 3090. For 64 sentences of 128 tokens the article reports 0.090 ms a sentence,
# and 0.092 ms for PyTorch on the same GPU. With 16 tokens it was 0.015 ms against 0.025.
#
# It got there in eight steps. Our library has them as forms of the encoder, rebuilt in Python from the article's
# description, and three more of its own. Each is the whole model, and differs from the one before it in a single idea.

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
# The article gives the time after each of the first eight steps. Write down three guesses before you run the cell.
# Which step gained the most? Which gained the least? And how much did the three steps gain that put launches together,
# 3, 4 and 5?

# %%
times = (0.225, 0.140, 0.118, 0.109, 0.102, 0.101, 0.091, 0.015)  # ms a sentence, RTX 3090
theirs = dict(zip([one.name for one in STEPS], times, strict=False))  # without our three
before = None
for name, ms in theirs.items():
    factor = f"{before / ms:6.2f} times as fast" if before else ""
    print(f"{name:22} {ms:.3f} ms {factor}")
    before = ms

# %% [markdown]
# The last step gained the most, and it is unlike the others: the article's test sentence has 9 tokens, and the model
# now computes 16 rows for it instead of 128. That is less work rather than faster work, and PyTorch gains from it, too,
# as the article itself says. Of the other steps, the one that feeds the products better gained the most, and each
# fusion gained a little.
#
# ## All forms, one result
#
# A form that is fast and wrong is worth nothing. The second step, for example, exchanges the product: in the first form
# each warp computes one tile of 16 × 16 from global memory, and now `cp.async` fills one buffer in shared memory while
# the other is multiplied. Both have to agree with NumPy. (The course's tests compare every launch of every form.)

# %%
from labkit.kernels.linear.layers import LINEAR

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
from labkit.measure.plots import matching as pictures
from labkit.models.minilm_counts import launches_of_layer

real = minilm.Config()  # all-MiniLM-L6-v2
long = [128] * 64
layers = {one.name: launches_of_layer(one, real, long) for one in STEPS}
pictures.layer_of_each_step(layers)

# %% [markdown]
# The steps fall into three groups.
#
# - **Some remove launches, and with them traffic.** *one product* no longer copies heads, and reads its input once
#   instead of three times. *warp LayerNorm* keeps the sum of a residual in registers. *GELU fused* saves the inner
#   activations, the widest rows of the model, a trip to memory and back. *tiled attention* never writes a score.
# - **Some leave the counts as they are.** *cp.async*, *scores in registers*, *float16 accumulators* and *wgmma* change
#   how a kernel feeds its units. (*wgmma* saves one launch of the whole pass: it also computes the embedding and its
#   LayerNorm in one.)
# - **Two change the number of rows.** *no padding to 128* and *packed* have nothing to remove at 128 tokens. At 16
#   tokens the first of them removes most of the rows, and since all sentences have the same length, *packed* finds
#   nothing more.
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
# more. *GELU fused* promises more than either GPU got: the error function has to be computed in any case. Where no
# count changes and the time does, the gain lies inside the kernel. A count is a good first question. If a step saves
# nothing that can be counted, it needs a different reason, and you should know which.
#
# On the H200 *cp.async* gained by far the most, a factor of 5.7. Some of that is due to a poor start: our first form
# takes as long on an H200 as the article's took on an RTX 3090. We shall see below what is wrong with its product. Next
# come *wgmma* with 1.7 and *tiled attention* with 1.5, which the article does not have. *GELU fused*, *scores in
# registers* and *float16 accumulators* gained less than 4% each at 128 tokens.
#
# With 16 tokens, *no padding to 128* removes seven eighths of the flops and gains only a factor of 2.3: with an eighth
# of the rows, a launch takes much more than an eighth of the time. *wgmma* then gains another 2.4 without removing any
# work. What bounds such a batch is the question of a section below.
#
# ## What precision costs
#
# Every form of the ladder computes in half precision. A tensor core multiplies float16 numbers exactly and adds the
# products up in float32 accumulators. It can also add them up in float16. Then the sum is rounded to 11 bits at every
# step along K. What does that do to dot products as long as the model's, with 384 and 1,536 terms? NumPy can imitate
# it:

# %%
def product(x, w, accumulators):
    acc = np.zeros((len(x), len(w)), accumulators)
    for k in range(0, x.shape[1], 16):  # a step of the tensor cores
        part = x[:, k : k + 16].astype(np.float32) @ w[:, k : k + 16].T.astype(np.float32)
        acc = (acc + part).astype(accumulators)
    return acc


rng = np.random.default_rng(0)
print(f"{'relative error (root of the mean square)':48}{'K = 384':>10}{'K = 1,536':>12}")
forms = (("float32", np.float32, np.float32),
         ("float16, float32 accumulators", np.float16, np.float32),
         ("float16, float16 accumulators", np.float16, np.float16))
pairs = [(rng.standard_normal((64, K)), rng.standard_normal((64, K))) for K in (384, 1536)]
for name, numbers, accumulators in forms:
    errors = []
    for x, w in pairs:
        out = product(x.astype(numbers), w.astype(numbers), accumulators).astype(numbers)
        errors.append(np.sqrt(np.mean((out - x @ w.T) ** 2) / np.mean((x @ w.T) ** 2)))
    print(f"{name:48}{errors[0]:10.1e}{errors[1]:12.1e}")

# %% [markdown]
# Rounding the inputs to float16 loses more than three digits at once. With float32 accumulators that is all, whatever
# the length of the sum. With float16 accumulators the error is larger, and it grows with the length. An embedding
# tolerates it: in the article the cosine with the reference stayed at 0.9999 through all six layers.
#
# And the gain? GeForce cards such as the RTX 3090, the article explains, run at twice the rate with float16
# accumulators. That was the step with which it caught up with cuBLAS, which accumulates in float32 by default. An H200
# is no GeForce: NVIDIA lists the same peak for both kinds. The control is the same kernel with both kinds, measured for
# lesson 07 with matrices of 4,096 × 4,096. What do you expect?

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
# They gain about 1% in either product, and 2% in the whole model. The registers that are saved do not make room for a
# third block on an SM. So here float16 accumulators give digits away for next to nothing, and from *wgmma* on the forms
# accumulate in float32 again.
#
# ## Padding, once more
#
# In lesson 21, packing saved the rows of padding. In attention, each query of a sentence meets each of its keys.
# Suppose that padding is computed like everything else and masked afterwards. By what factor does a batch that is
# padded to 128 have too many scores? Guess, then look at eight sentences of these lengths.

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
# What about a whole corpus? In the article, 2,000 sentences of the STS benchmark, about 15 tokens each, ran at 54,000 a
# second and in PyTorch at 39,000, both sorted by length and padded to the longest of each batch. Padded to 128, the
# article's own model ran at 11,000 a second. How many will it be on an H200, with sentences of such lengths? And which
# size of batch will be best for each layout?

# %%
series = measure.recorded_series("minilm_corpus", gpu="NVIDIA H200")
print(f"{'sentences a second':28}{'forward':>12}{'with copies':>14}")
for one in series["ours"]:
    name = f"{one['form'].replace('_', ' ')}, by {one['batch']:,}"
    print(f"{name:28}{one['sentences_per_second']:12,.0f}{one['embed_sentences_per_second']:14,.0f}")
for one in series["torch"]:
    called, graph = (one[f"{how}_sentences_per_second"] for how in ("called", "graph"))
    print(f"PyTorch, by {one['batch']:<16,}{graph:12,.0f} in a graph, {called:,.0f} called")
text = series["text"]
print("seconds from text to embeddings:"
      f"\n    ours, by 2,000              {text['ours_seconds_2000']:10.3f}"
      f"\n    of that, the tokenizer      {text['tokenizing_seconds']:10.3f}"
      f"\n    sentence-transformers, by 256{text['library_seconds_256']:9.3f}")

# %% [markdown]
# Batches padded to their longest sentence are fastest with 256 sentences; beyond that, the padding costs more than
# fewer launches save. Packed, everything is best in a single batch, which runs four times as many sentences a second as
# the best PyTorch does. Padded as PyTorch's are, ours is ahead by a factor of 2.4. (PyTorch's is its fused attention
# with a mask, in a graph, and not compiled, since each shape would have to be compiled anew.) Laying out that one
# packed batch in Python, and copying it to the device and back, costs two fifths of the rate. And if you begin with
# text, the tokenizer takes longer than all the rest.
#
# ## What did not work
#
# The article names three ideas that made its model slower. All three are meant to reduce traffic or to hide it. Our
# library has them, too, so that they can be examined.
#
# **Tiles in shared memory, filled by hand.** In the simple kernel each warp reads its fragments from global memory, the
# same numbers again and again. The textbook says: load a tile once and share it. This is what Nsight Compute counted on
# the H200 for a product of the model, 8,192 × 384 by 384 × 384. The third column is the product of *cp.async*. Which
# row would you look at first to find out why it is so much faster?

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
# The tiles did what they promise: half of the traffic through L2 is gone. It did not help, because nearly all of those
# reads had been hits in L2, and DRAM delivers the inputs once in either case. What the tiles cost is in the other rows.
# There are more instructions, since a warp now copies as well as computes. There are more registers, which leave fewer
# warps on an SM. And there are bank conflicts, which a kernel without shared memory cannot have. This idea fails on the
# H200 as well.
#
# What helps shows in the row of the instructions. `cp.async` copies past the registers, `ldmatrix` loads whole
# fragments, and a warp uses each of them for several tiles: 35 times fewer instructions, and a tenth of the time,
# although the occupancy is the lowest of the three. That is why the second step gained so much.
#
# **A third buffer, and a whole score matrix.** These two can be judged before they are written. A block needs shared
# memory and registers, an SM has a fixed amount of both, and what fits is a division. The kernels below are ours, with
# the threads, registers and bytes that Nsight Compute found on the H200. How many blocks of each will an SM hold, on an
# RTX 3090 and on an H200?

# %%
from labkit.device import occupancy

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
# An H200 has more than twice the shared memory. There, registers limit the product to the same number of blocks with
# either number of buffers, and even whole score matrices leave several blocks on an SM. So will the two ideas fail
# there?

# %%
for one in ladder["failures"]:
    if one["name"] != "float16 accumulators":  # that one was above
        print(f"{one['name']:14}{one['us']:7.1f} us; {one['beside']:14}{one['beside_us']:7.1f} us"
              f"   {one['M']:,} x {one['K']} to {one['N']:,}")
for one in ladder["attention"]:
    print(f"attention, {one['form']:16}{one['us_a_layer']:7.1f} us a layer   "
          f"{one['sentences']} x {one['tokens']} tokens")
print(f"{'':30}{'instructions, million':>22}{'occupancy, %':>14}{'hits in L2, %':>15}")
three = [one for one in ncu.recorded()["ops"]["attention_sentences_half"]["rows"]
         if one["name"].endswith("three_launches")]
for name, one in {**{one["kernel"].removesuffix("_kernel"): one for one in three}, **kernels}.items():
    print(f"{name:30}{one['instructions'] / 1e6:22.1f}{one['occupancy_percent']:14.1f}"
          f"{one['l2_hit_percent']:15.1f}")

# %% [markdown]
# They do not, at least not with 128 tokens. With the third buffer the products are 2% to 4% faster, at the same
# occupancy and with as many hits in L2. The whole score matrix takes little more than half of the time of three
# launches, and loses to them only with 16 tokens. Yet attention in tiles is three times as fast again, and it is the
# kernel with the fewest warps: its registers allow an SM only three blocks, of four warps each. It executes a fifth of
# the instructions.
#
# A failure belongs to a kernel *and* a GPU. On a different GPU, do the division again; and if it does not explain the
# times, count the instructions.
#
# ## A fair comparison
#
# "As fast as PyTorch" means little without saying which PyTorch. Our model runs in a CUDA graph, while PyTorch that is
# called line by line pays for Python at every line. Hence the rules of our measurement:
#
# - The weights and the token ids are the same, in the same precision, and lie on the device. Only forward passes are
#   timed.
# - Everything runs before it is timed, and then many times. The median counts.
# - PyTorch gets every chance: eager, with its fused attention (SDPA), that form compiled, the model of the library
#   transformers, and that one compiled, as a user would write it in three lines; each called from Python and in a
#   graph, as ours are.
# - The embeddings of both sides are compared in the same run.
#
# Who will be ahead with large batches, and who with a single sentence?

# %%
work = measure.recorded_series("minilm", gpu="NVIDIA H200")["rows"]
for one in work:
    print(f"{one['sentences']} x {one['tokens']} tokens, us a sentence")
    for name, row in one["ours"].items():
        print(f"    ours, {name:22}{row['us_a_sentence']:10.2f} in a graph"
              f"{row['called_us_a_sentence']:10.2f} called")
    for name in ("eager", "SDPA", "transformers", "compiled", "three lines"):
        print(f"    PyTorch, {name:19}{one['torch'][f'{name}, in a graph']:10.2f} in a graph"
              f"{one['torch'][name]:10.2f} called")
    print(f"    smallest cosine of the two {one['cosine']:12.6f}")

# %% [markdown]
# In graphs, against the fastest PyTorch of each batch: 64 sentences of 16 tokens are 1.4 times as fast as in PyTorch,
# 64 of 128 tokens 1.1 times, and 512 of 16 tokens 1.8 times. For one sentence alone that no longer holds. With 128
# tokens, compiled PyTorch is faster than ours in any form. With 16 tokens it is faster than the kernels that the model
# uses by default (*packed* and *padded*), and only with products made for few rows is ours ahead.
#
# (One line is odd: with 128 tokens, transformers is slower in the graph than called. The recording does not say why.)
#
# And called from Python, without a graph, every form of ours was slower than every form of PyTorch: with 64 sentences
# of 128 tokens more than four times slower than the best, and 5.4 ms for a single short sentence. When this was
# recorded, a launch went through Numba, which is several times as expensive as labkit's own way today, and our
# launchers also check arguments and slice arrays in Python, every time. In a graph all of this is gone: from the second
# batch of a shape on, the model launches a pass as one graph.
#
# And longer sentences? Products grow with the number of tokens, attention with its square. At what length does
# attention become the larger part?

# %%
series = measure.recorded_series("minilm_lengths", gpu="NVIDIA H200")
print(f"{'tokens':>8}{'products, MFLOP':>18}{'attention, MFLOP':>18}{'share':>8}")
for tokens in (16, 64, 128, 256, 512):
    layer = launches_of_layer(step("packed"), real, [tokens] * 64)
    split = [sum(one.flops for one in layer if one.kind == kind) * real.num_hidden_layers / 64e6
             for kind in ("product", "attention")]
    print(f"{tokens:8}{split[0]:18.0f}{split[1]:18.0f}{split[1] / sum(split):8.1%}")

pictures.over_length(series)

# %% [markdown]
# At none that the model can read: it has 512 positions, and even there most of the flops are in the products. The
# figure compares graphs, PyTorch's with its fused attention but not compiled. Ours is ahead at every length, by 1.4 to
# 1.7. Note how little the shortest sentences save: with a sixteenth of the tokens, ours still takes more than a sixth
# of the time.
#
# In the article's profile, 70% of the time went into products, in its own model as in PyTorch. What about ours? To find
# out without a profiler's overhead, the pass was captured again without all launches of one kind. (What that saves need
# not add up to the whole.)

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
# At 128 tokens, two thirds of the time are products. One of them stands out: `gelu` and `projected` have the same flops
# and the same bytes, and `gelu` takes nearly twice as long. Its epilogue is the larger one, with four times as many
# elements to store, each of them after an error function. PyTorch launches GELU separately, and spends less than half
# of its time in products.
#
# ## What bounds a small batch
#
# 64 sentences of 16 tokens have an eighth of the rows of 64 × 128, and take a third of the time. One sentence of 16
# tokens has a 64th of *their* rows, and how much of their time?

# %%
weights_of_a_layer = sum(outputs * inputs for outputs, inputs in real.products)
flops_a_row = 2 * weights_of_a_layer * real.num_hidden_layers
launches_of_pass = 2 + len(layers["packed"]) * real.num_hidden_layers
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
# Most of it: 1,024 rows take only 1.3 times as long as 16. Neither flops nor bytes explain that; the weights could be
# read from DRAM in 5 us. What is left is the launches, 44 of them, each of which has to wait for the one before. A
# launch of nearly nothing takes 1.2 us in a graph, and one of ours takes 3.6 us even for 16 rows. In a product, a few
# blocks walk along K step by step, each step has to wait for its loads, and most SMs have nothing to do. So tuning the
# products for large batches does not help here. Fewer launches would, or shorter ones, with more blocks and with K
# divided among warps. The products for few rows are built like that, which is why *few rows* is ahead with 16 tokens.
# The model does not use them by default, because then the last bits of an embedding would depend on its batch (lesson
# 21).
#
# PyTorch meets the same bound. With 64 sentences of 16 tokens and SDPA in a graph it needs 4.7 us a launch, about as
# much as ours, and it has 75 of them, memsets included.
#
# ## What was implemented
#
# - eleven forms of one encoder, each checked launch by launch, and a count of what each has to launch, move and compute
# - the three ideas that failed in the article, examined on an H200
# - a comparison with five kinds of PyTorch, called and in graphs: `labkit bench minilm`
#
# ## What I learned
#
# - The article's largest gain came from leaving work out, and it says the least about kernels. Ours came from a product
#   with fewer instructions.
# - Count first. A step that changes no count needs a reason inside the kernel. A step that does change one may only
#   save what the cache was saving already.
# - Neither fewer bytes nor more warps are an end in themselves. The fastest kernels here have the lowest occupancy.
# - A failure belongs to a kernel and a GPU. With 128 tokens, two of the article's three do not fail on an H200.
# - A small batch is bounded by its launches, by their number and by how long each takes for nearly no work.
# - In a fair comparison the other side gets its graph, too, and the batches where it wins stay in the table.
#
# ## Resources
#
# - the article: *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, on an RTX 3090
# - [J. Devlin et al.: BERT (2018)](https://arxiv.org/abs/1810.04805)
# - [T. Dao: FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691), attention in tiles
# - [CUDA C++ Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities),
#   the limits of an SM
# - [torch.compile](https://pytorch.org/docs/stable/generated/torch.compile.html) and [CUDA
#   graphs](https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs) in PyTorch
#
# ## Try it
#
# - Build a form of your own with `dataclasses.replace(step("GELU fused").kernels, ...)`: give it the attention in tiles
#   (with `attention_takes=()`, since it takes no memory for scores), and say how many launches a layer will have. Then
#   let `launches_of_layer(Step("mine", "", kernels), ...)` count them.
# - Find the longest sentence for which an SM of an H200 still holds two blocks with a whole score matrix.
# - With a GPU: `labkit bench minilm_ladder` takes the ladder. Which steps gain more than their count, and why?
#
# In the exercises for this lesson you pack a batch yourself and predict a failure, and in the end an encoder runs on
# your own attention and LayerNorm, with every launch compared.
