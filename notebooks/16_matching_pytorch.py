# %% [markdown]
# # 16 · Matching PyTorch
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how a model that is right becomes fast: eleven forms of one encoder, each with a single change, and what it saves
# - what half precision costs, in the numbers and in the accumulators
# - why three ideas from the textbook made things worse, and how a short calculation could have said so
# - what it takes to compare with PyTorch fairly
#
# ## The problem
#
# The encoder of the last lesson computes the right embeddings. Is it also fast? The yardstick is PyTorch, which leaves
# its products to cuBLAS, a library with many years of tuning behind it.
#
# An article has tried the same: *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*. Its author wrote
# all-MiniLM-L6-v2 in CUDA C++, kernel by kernel, for an RTX 3090. For 64 sentences of 128 tokens the article reports
# 0.090 ms a sentence, and 0.092 ms for PyTorch on the same GPU. With 16 tokens it was 0.015 ms against 0.025.
#
# It got there in eight steps. Our library has them as forms of the encoder, rebuilt in Python from the article's
# description, and three more of its own. Each is the whole model with one thing changed.

# %%
import json
import textwrap

import numpy as np

from labkit import device, measure, show_source
from labkit._common.paths import find_root
from labkit.models import minilm
from labkit.models.minilm_steps import ATTENTIONS, STEPS, step

for number, one in enumerate(STEPS, 1):
    print(f"{number:2}  {one.name}")
    print(textwrap.indent(textwrap.fill(one.changes, 84), "      "))

# %% [markdown]
# ## Prediction
#
# The article gives the time after each of the first eight steps. Write down three guesses before you run the cell.
# Which step gained the most? Which gained the least? And what did each of the three steps gain that do nothing but put
# launches together (3, 4 and 5)?

# %%
theirs = dict(zip([one.name for one in STEPS],  # ms a sentence on an RTX 3090
                  (0.225, 0.140, 0.118, 0.109, 0.102, 0.101, 0.091, 0.015)))
before = None
for name, ms in theirs.items():
    factor = f"{before / ms:6.2f} times as fast" if before else ""
    print(f"{name:22} {ms:.3f} ms {factor}")
    before = ms

# %% [markdown]
# The last step gained the most, and it is not like the others: the test sentence has 9 tokens, and instead of 128 rows
# the model computes 16. That is less work, not faster work, and PyTorch gains from it just as well. The article says
# so itself. Of the other steps, the one that feeds the products better gained the most, and each fusion a little.
#
# We shall go through the steps with a question that needs no GPU: what does each of them save?
#
# ## All forms, one result
#
# A form that is fast and wrong is worth nothing. The course's tests compare every launch of every form with NumPy in
# float64. Here are two of them, on a small model with random weights: the first, and the one that takes queries, keys
# and values from a single product.

# %%
from labkit.measure.series.minilm import random_tensors, sentences_of
from labkit.models.minilm_reference import parity

config = minilm.Config(vocab_size=100, hidden_size=64, num_hidden_layers=1,
                       num_attention_heads=2, intermediate_size=256)
ids = sentences_of([8, 12, 15], config.vocab_size)
model = minilm.MiniLM(config, random_tensors(config), np.float16, step("simple").kernels)
print(f"{model.dtype}, on {device.name()}")
parity(model, ids, "padded").check()

# %%
parity(model.with_kernels(step("one product").kernels), ids, "padded").check()

# %% [markdown]
# The rows for queries, keys and values have become one, `qkv`, and the result is the same up to roundings. A step is
# nothing but another set of launchers, as in `replace(kernels, linear=mine)`. That is why each could be tried alone.
#
# ## Count before you measure
#
# Three things can be counted without running anything: the launches, the bytes that they cannot do without (each number
# read once, each result written once), and the flops of the products. Guess first: how many launches does one layer
# have in the first form, where queries, keys and values are three products, heads are split and merged by copies, and
# GELU and the residuals are launches of their own? And how many are left in the last?

# %%
from labkit.measure.plots import matching as pictures
from labkit.models.minilm_counts import launches_of_layer, outside_layers

real = minilm.Config()  # all-MiniLM-L6-v2
long, short = [128] * 64, [16] * 64
layers = {one.name: launches_of_layer(one, real, long) for one in STEPS}
pictures.layer_of_each_step(layers)

# %%
def counted(layer):
    return len(layer), sum(one.bytes for one in layer), sum(one.flops for one in layer)


print(f"{'':22}{'launches':>10}{'64 x 128 tokens':>22}{'64 x 16 tokens':>24}")
print(f"{'':22}{'of a pass':>10}{'MB':>10}{'GFLOP':>12}{'MB':>12}{'GFLOP':>12}   (a layer)")
for one in STEPS:
    count, nbytes, flops = counted(layers[one.name])
    _, few_bytes, few_flops = counted(launches_of_layer(one, real, short))
    whole = outside_layers(one, real, long) + real.num_hidden_layers * count
    print(f"{one.name:22}{whole:10}{nbytes / 1e6:10.0f}{flops / 1e9:12.1f}"
          f"{few_bytes / 1e6:12.0f}{few_flops / 1e9:12.1f}")

# %% [markdown]
# The steps fall into three groups.
#
# - **Some remove launches, and with them traffic.** *one product* no longer copies heads, and reads its input once
#   instead of three times. *warp LayerNorm* keeps the sum of a residual in registers. *GELU fused* saves the inner
#   activations a trip to memory and back, and these are the widest rows of the model. *tiled attention* never writes a
#   score.
# - **Some leave all counts as they are.** *cp.async*, *scores in registers*, *float16 accumulators* and *wgmma* change
#   how a kernel feeds its units. A count of this kind does not see them, and they have to be judged by a profiler.
#   (*wgmma* also does the embedding and its LayerNorm in one launch.)
# - **Two change the number of rows.** At 128 tokens there is no padding to remove. At 16 tokens most of the rows are
#   gone.
#
# Which of the three counts matters depends on the size of the batch. Divide each by what the H200 can do: bytes by its
# bandwidth, flops by the peak of its tensor cores, and for a launch take what the smallest kernel costs inside a graph
# (all recorded in earlier lessons). Before you run the cell: at 16 tokens, which of the three is the largest in the
# last form?

# %%
limits = measure.recorded(gpu="NVIDIA H200")["limits"]
overhead = measure.recorded_series("launch_overhead", gpu="NVIDIA H200")
print(f"{'a layer, us':28}{'bytes':>8}{'flops':>8}{'launches':>10}")
for name in ("simple", "GELU fused", "packed"):
    for lengths in (long, short):
        count, nbytes, flops = counted(launches_of_layer(step(name), real, lengths))
        print(f"{name:12} 64 x {lengths[0]:3} tokens{nbytes / limits['bandwidth_gbs'] / 1e3:7.1f}"
              f"{flops / limits['f16_tflops'] / 1e6:8.1f}{count * overhead['graph_us']:10.1f}")

# %% [markdown]
# These are no predictions of a time, only three things that have to be done and may overlap. The bytes are a pessimistic
# bound: what one launch has just written is often still in L2 when the next one reads it. But the picture is clear. With
# long sentences the launches hardly count. With short ones, the work has become so small that starting it is the largest
# item. There the plumbing decides, and a hand-written model with few launches has the least of it.
#
# What did the steps gain, then? The article's factors, beside ours by count:

# %%
def recorded(name, instead):
    found = measure.recorded_series(name, gpu="NVIDIA H200")
    if found is None:
        print(f"{name} has not been recorded on the H200 yet; {instead}\n")
    return found


ladder = recorded("minilm_ladder", "what follows is counted.")
print(f"{'':22}{'article, RTX 3090':>20}{'launches':>12}{'bytes':>10}{'flops':>10}")
names = list(theirs)
for before, name in zip(names, names[1:]):
    lengths = short if name == "no padding to 128" else long  # as the article measured
    ratios = [was / now for was, now in zip(*(
        counted(launches_of_layer(step(each), real, lengths)) for each in (before, name)))]
    print(f"{name:22}{theirs[before] / theirs[name]:20.2f}" + "".join(
        f"{ratio:{width}.2f}" for ratio, width in zip(ratios, (12, 10, 10))))

# %%
if ladder:
    display(pictures.step_times(ladder))

# %% [markdown]
# For two steps, *one product* and *warp LayerNorm*, the ratio of the bytes is close to what the article gained. For
# *GELU fused* it promises more than came. The error function has to be computed in either case, as lesson 11 found, and
# fusing only hides the trip to memory. Where no count changes and the time does, the gain is in how the kernel runs. So
# a count is a good first question: a step that saves nothing countable needs another reason, and one should know which.
#
# ## What precision costs
#
# Our float32 model moves twice the bytes and cannot use float16 tensor cores. Half precision is therefore where every
# form in the ladder starts. A tensor core multiplies float16 numbers exactly and adds up in float32, its accumulators.
# It can also add up in float16. Then every step along K rounds the sum to 11 bits. What does that do to a dot product as
# long as the model's, 384 and 1,536 numbers?

# %%
def product(x, w, accumulators):
    acc = np.zeros((len(x), len(w)), accumulators)
    for k in range(0, x.shape[1], 16):  # a step of the tensor cores
        part = x[:, k : k + 16].astype(np.float32) @ w[:, k : k + 16].T.astype(np.float32)
        acc = (acc + part).astype(accumulators)
    return acc


rng = np.random.default_rng(0)
print(f"{'relative error (root of the mean square)':48}{'K = 384':>10}{'K = 1,536':>12}")
forms = (("float32", np.float32, np.float32), ("float16, float32 accumulators", np.float16, np.float32),
         ("float16, float16 accumulators", np.float16, np.float16))
pairs = [(rng.standard_normal((64, K)), rng.standard_normal((64, K)) / np.sqrt(K)) for K in (384, 1536)]
for name, numbers, accumulators in forms:
    errors = []
    for x, w in pairs:
        out = product(x.astype(numbers), w.astype(numbers), accumulators).astype(numbers)
        errors.append(np.sqrt(np.mean((out - x @ w.T) ** 2) / np.mean((x @ w.T) ** 2)))
    print(f"{name:48}{errors[0]:10.1e}{errors[1]:12.1e}")

# %% [markdown]
# Rounding the inputs costs most of the precision at once. Rounding the sums as well adds to that, and more so the longer
# the dot product is. An embedding tolerates it: in the article the cosine with the reference stayed at 0.9999 through
# all six layers.
#
# What is gained? On an RTX 3090, as on all GeForce cards, float16 accumulators double the rate of the tensor cores. In
# the article that was the step that closed the gap to cuBLAS, which accumulates in float32 by default. NVIDIA's tables
# for Hopper give the same peak for both. So on an H200 only the registers are saved, and lesson 05 has the measured
# control: the same kernel with both kinds of accumulators.

# %%
control = measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")
for name, kind in (("double_buffered", "float32 accumulators"),
                   ("f16_accumulators", "float16 accumulators")):
    row = control.row(f"matmul_half_{name}")
    print(f"{kind}: {row.resources[0]['registers']} registers a thread, {row.tflops:.0f} TFLOP/s")
if ladder:
    for one in ladder["failures"]:
        if one["name"] == "float16 accumulators":
            print(f"in a layer of MiniLM, {one['M']:,} x {one['K']} to {one['N']:,}: "
                  f"{one['us']:.1f} us, with float32 accumulators {one['beside_us']:.1f} us")

# %% [markdown]
# A trade is only worth its price where somebody pays. The forms after *float16 accumulators* go back to float32.
#
# ## Padding, once more
#
# Lesson 15 counted rows. Here are the first 41 texts of the course's tests, with the tokens that the real tokenizer
# made of them, in three layouts. (Attention is square in the length. What happens to it comes next.)

# %%
from labkit.measure.plots import sentences as layouts

folder = find_root() / "tests" / "golden" / "minilm"
golden = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))["sentences"]
lengths = np.array([len(one["ids"]) for one in golden[:41]])
layouts.layouts(lengths)

# %% [markdown]
# A linear layer computes every row of these. In attention, each query of a sentence meets each key. If padding is
# computed like everything else, and masked afterwards, how many times too many scores does a batch have that is padded
# to 128? Guess, for eight of these sentences.

# %%
pictures.score_matrices(lengths[[5, 6, 7, 8, 15, 26, 27, 40]])

# %% [markdown]
# The padded rows grow with the padding, the scores with its square. The article's attention computes all of them and
# gives masked keys no weight. Ours knows where each sentence ends and skips the rest in any layout, so that packing
# saves it nothing more in attention. It saves the other launches, whose work is in the rows.
#
# Single batches are one thing, a whole corpus another. These are 2,000 sentences with the lengths that our measurement
# uses, about 15 tokens on average. They are sorted by length before they are divided into batches, as the library
# sentence-transformers does it. How much padding is left then? And does a larger batch make it better or worse?

# %%
from labkit.measure.series.minilm import corpus_lengths

corpus = corpus_lengths(2000, 128)
shuffled = np.random.default_rng(5).permutation(corpus)
flops_a_row = 2 * sum(outputs * inputs for outputs, inputs in real.products) * real.num_hidden_layers
print(f"{corpus.sum():,} tokens, {corpus.mean():.1f} on average, {corpus.min()} to {corpus.max()}\n")
print(f"{'':38}{'rows':>10}{'padding':>10}{'products, GFLOP':>18}{'launches':>10}")
for form in ("padded_to_128", "padded", "packed"):
    for order, size in (("sorted", 64), ("sorted", 256), ("as they come", 64)):
        chosen = corpus if order == "sorted" else shuffled
        batches = [chosen[first : first + size] for first in range(0, len(chosen), size)]
        rows = sum(minilm.FORMS[form](batch)[0].rows for batch in batches)
        name = f"{form.replace('_', ' ')}, {order}, by {size}"
        print(f"{name:38}{rows:10,}{1 - corpus.sum() / rows:10.0%}{flops_a_row * rows / 1e9:18.0f}"
              f"{len(batches) * (2 + 7 * real.num_hidden_layers):10,}")

# %% [markdown]
# Sorting does most of what there is to do, and it costs nothing. Larger batches pad a little more and need far fewer
# launches. Packed batches do not care for the order: what they have too many are the few rows by which their number is
# rounded up.
#
# That rounding has a reason. A CUDA graph belongs to one shape, and a packed batch may have any number of rows. So the
# number is rounded up by at most a sixteenth, to one of a few values. How many graphs could there be for batches of up
# to 8,192 tokens?

# %%
tokens = range(1, 8193)
shapes = {minilm.few_values(count, minilm.ROUND) for count in tokens}
most = max(minilm.few_values(count, minilm.ROUND) / count for count in tokens if count > 256)
print(f"{len(set(tokens)):,} numbers of tokens, {len({minilm.up(n, 16) for n in tokens})} multiples of 16, "
      f"{len(shapes)} shapes; above 256 tokens at most {most - 1:.1%} more rows")

# %% [markdown]
# In the article, 2,000 sentences of the STS benchmark ran at 54,000 a second, and 39,000 in PyTorch, both padded to the
# longest of each batch. Padded to 128, it was 11,000. That is the price of padding, measured.

# %%
series = recorded("minilm_corpus", "the rows above are what can be counted.")
if series:
    print(f"{'sentences a second':28}{'forward':>12}{'with copies':>14}")
    for one in series["ours"]:
        name = f"{one['form'].replace('_', ' ')}, by {one['batch']:,}"
        print(f"{name:28}{one['sentences_per_second']:12,.0f}{one['embed_sentences_per_second']:14,.0f}")
    for one in series["torch"]:
        graph = one["graph_sentences_per_second"]
        print(f"PyTorch, by {one['batch']:<16,}{one['called_sentences_per_second']:12,.0f}   called; "
              f"{f'{graph:,.0f} in a graph' if graph else 'could not be captured'}")

# %% [markdown]
# ## What did not work
#
# The article names three ideas that made its model slower. All three reduce traffic, or hide it. We have rebuilt them,
# too, and they can be examined.
#
# **Tiles in shared memory, filled by hand.** The simple kernel lets each warp read its fragments from global memory,
# the same numbers again and again. The textbook says: load a tile once, share it. Here is what Nsight Compute counted
# on the H200, in the product of two 4,096 × 4,096 matrices:

# %%
from labkit.measure import ncu

rows = {one["name"]: one for one in ncu.recorded()["ops"]["matmul_half"]["rows"]}
chosen = [rows[f"matmul_half_{name}"] for name in ("tensor_core", "hand_blocked")]
print(f"{'':28}{'a tile a warp':>16}{'hand-blocked':>16}")
for text, key, unit in (("from DRAM, MB", "dram_read", 1e6), ("hits in L2, %", "l2_hit_percent", 1),
                        ("occupancy, %", "occupancy_percent", 1),
                        ("bank conflicts, million", "bank_conflicts", 1e6), ("time, ms", "time_us", 1e3)):
    print(f"{text:28}" + "".join(f"{one[key] / unit:16.1f}" for one in chosen))

# %% [markdown]
# The tiles did what they promise: less than half as many bytes came from DRAM. It did not help, since the repeated reads
# had been hits in L2 anyway. What the tiles cost is in the other lines: shared memory and registers that leave fewer
# warps on an SM, and conflicts in the banks that the plain kernel cannot have.
#
# **A third buffer, and a whole score matrix.** These two can be judged before they are written. A block needs shared
# memory and registers, an SM has a fixed amount, and what fits is a division. The kernels are ours: the product with two
# and with three buffers, attention with all scores of a head in shared memory, and attention in tiles. How many blocks
# of each will an SM hold, on an RTX 3090 and on an H200?

# %%
from labkit import cuda
from labkit.device import launches, occupancy

RTX_3090 = occupancy.GPU("RTX 3090", 82, 1536, 16, 65_536, 102_400)
half = {"qkv": (8192, 3 * 384), "out": (8192, 384)}
qkv, out = (cuda.device_array(shape, np.float16) for shape in half.values())
begins, of_128 = (cuda.to_device(np.array(array, np.int32)) for array in (128 * np.arange(64), long))

kernels = {}
for name in ("double_buffered", "three_stage"):
    used = control.row(f"matmul_half_{name}").resources[0]
    kernels[f"product, {name.replace('_', ' ')}"] = used["block"][0], used["registers"], used["shared_bytes"]
for name in ("whole matrix", "tiles"):
    attention = ATTENTIONS[name].attention
    (one,) = launches.planned(lambda: attention(qkv, 12, begins, of_128, 128, out))
    kernels[f"attention, {name}"] = one.threads, None, one.shared_bytes

print(f"{'':26}{'threads':>8}{'shared, bytes':>15}{'RTX 3090':>24}{'H200':>24}")
for name, (threads, registers, shared) in kernels.items():
    line = f"{name:26}{threads:8}{shared:15,}"
    for gpu in (RTX_3090, occupancy.H200):
        allowed = occupancy.limits(gpu, threads, registers or 32, shared)
        if registers is None:
            del allowed["registers"]  # known to the compiler alone: at most so many
        scarce = min(allowed, key=allowed.get)
        line += f"{allowed[scarce]:6} by {scarce:14}"
    print(line)

# %% [markdown]
# On an RTX 3090 both ideas leave a single block on an SM. When its warps wait, at a barrier or for memory, nothing else
# can run. The article reports just that for its score matrix: 32 KB of scores, and one block per SM. (The scores alone
# would leave capacity for more. Our block also holds queries, keys and values; what theirs holds besides, the article
# does not say.) The third buffer turns two blocks into one, and with only 384 or 1,536 numbers along K two buffers had
# hidden the copies already.
#
# An H200 has more than twice the shared memory. There, registers limit the product to the same number of blocks with
# two buffers or three, and lesson 05 found the third buffer ahead. And three blocks with a whole matrix fit. So a
# failure is a property of a kernel *and* a GPU. Whoever moves to another one should do the division again.

# %%
if ladder:
    for one in ladder["failures"]:
        print(f"{one['name']:20} {one['us']:9.1f} us; {one['beside']:20} {one['beside_us']:9.1f} us   "
              f"{one['M']:,} x {one['K']} to {one['N']:,}")
    for one in ladder["attention"]:
        print(f"attention, {one['form']:16} {one['us_a_layer']:7.1f} us a layer   "
              f"{one['sentences']} x {one['tokens']} tokens")
else:
    print("minilm_ladder has not been recorded on the H200 yet; what fits on an SM is counted above.")

# %% [markdown]
# The three have one thing in common. Intuition said that fewer bytes are better. At these shapes the bytes were in the
# cache, and the scarce thing was warps that are ready to run.
#
# ## A fair comparison
#
# "As fast as PyTorch" can mean anything as long as it is not said which PyTorch. Ours runs in a CUDA graph. PyTorch
# called from Python, line by line, pays for Python. That is what most people run, but it is not the best that PyTorch
# can do. The rules of our measurement:
#
# - the same weights and the same token ids, already on the device, in the same precision; forward passes only, and
#   tokenization as a line of its own
# - everything is run before it is timed, and many times; the median counts
# - a graph is compared with a graph, a call from Python with a call from Python
# - PyTorch gets every chance: eager, with its fused attention, compiled, and what a user of transformers would write in
#   three lines
# - the embeddings of both sides are compared in the same run

# %%
from labkit.measure.series import minilm as measurement

show_source(measurement.torch_rows)

# %%
series = recorded("minilm", "what is counted is what a pass costs in launches alone:")
for one in series["rows"] if series else ():
    print(f"{one['sentences']} sentences of {one['tokens']} tokens, us a sentence")
    for name, row in one["ours"].items():
        print(f"    ours, {name:22}{row['us_a_sentence']:10.2f} in a graph"
              f"{row['called_us_a_sentence']:10.2f} called")
    for name, us in (one["torch"] or {}).items():
        if isinstance(us, float):
            print(f"    PyTorch, {name:19}{us:10.2f}")
print(f"{'launches, ms':22}{'from Python':>14}{'in a graph':>14}")
for name in ("simple", "GELU fused", "packed"):
    count = outside_layers(step(name), real, long) + real.num_hidden_layers * len(layers[name])
    print(f"{name:14}{count:8}{count * overhead['launcher_us'] / 1e3:14.2f}"
          f"{count * overhead['graph_us'] / 1e3:14.2f}")

# %% [markdown]
# The lower table multiplies launches by what lesson 06 recorded for a single one of a tiny kernel. Numba's launch from
# Python is expensive, several times PyTorch's own. Without the graph, no kernel of ours could be fast enough to make up
# for that. It is also the reason why each shape becomes a graph at its second use.
#
# How does the time develop with the length? The products grow with the tokens, attention with their square. Where does
# attention become the larger part?

# %%
series = recorded("minilm_lengths", "here are the flops of a sentence.")
if series:
    display(pictures.over_length(series))
print(f"{'tokens':>8}{'products, MFLOP':>18}{'attention, MFLOP':>18}{'share':>8}")
for tokens in (16, 64, 128, 256, 512):
    layer = launches_of_layer(step("packed"), real, [tokens] * 64)
    split = [sum(one.flops for one in layer if one.kind == kind) * real.num_hidden_layers / 64e6
             for kind in ("product", "attention")]
    print(f"{tokens:8}{split[0]:18.0f}{split[1]:18.0f}{split[1] / sum(split):8.1%}")

# %% [markdown]
# Even at the longest text that the model accepts, most of the flops are in the products. The article's profile says the
# same of the time: 70% of it was spent in products, in its own model and in PyTorch. To see where the rest goes, count
# by kind, in the first form and in the last.

# %%
profile = recorded("minilm_profile", "these are shares of the counts.")
for found in profile["passes"] if profile else ():
    print(f"{found['sentences']} x {found['tokens']} tokens: {found['us']:.0f} us, {found['launches']} launches, "
          f"{found['us_a_launch']:.1f} us a launch in a graph")
    for row in found["rows"]:
        print(f"    {row['name']:22}{row['count']:4}{row['us_saved']:10.1f} us shorter without")
print(f"{'':26}{'launches':>10}{'bytes':>10}{'flops':>10}   (64 x 128 tokens)")
for name in ("simple", "packed"):
    whole = counted(layers[name])
    for kind in dict.fromkeys(one.kind for one in layers[name]):
        part = counted([one for one in layers[name] if one.kind == kind])
        print(f"{name:10}{kind:16}" + "".join(f"{some / all_of_it:10.0%}"
                                              for some, all_of_it in zip(part, whole)))

# %% [markdown]
# In the first form, what is not a product has most of the launches and most of the bytes, and next to none of the
# flops. Every fusion was taken from there.
#
# ## What was implemented
#
# - eleven forms of one encoder, from a tile for each warp to packed sentences, each checked launch by launch
# - a count of launches, bytes and flops for each form, without running it
# - the three ideas that failed, with what the profiler and the occupancy say about them
# - a comparison with four kinds of PyTorch, ready to be taken with `labkit bench minilm`
#
# ## What I learned
#
# - The largest step was to leave out work. It is also the one that says least about kernels.
# - Count first. A step that changes no count must have a reason inside the kernel, and one that does may still save what
#   a cache was saving already.
# - Few bytes are no aim in themselves. What was short was warps.
# - Each failure belongs to a GPU. The division that explains it takes a minute, and I should have done it first.
# - A comparison is as good as its worse side. Give the other side its graph, too.
#
# ## Resources
#
# - the article: *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, on an RTX 3090
# - [J. Devlin et al.: BERT (2018)](https://arxiv.org/abs/1810.04805)
# - [T. Dao: FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691), attention in tiles
# - [CUDA C++ Programming Guide: Compute Capabilities](https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities),
#   the limits of an SM
# - [PyTorch: torch.compile](https://pytorch.org/docs/stable/generated/torch.compile.html) and
#   [CUDA graphs](https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs)
#
# ## Try it
#
# - Build a form of your own with `replace(step("packed").kernels, ...)`: the tiled attention in the first form, say.
#   Count its launches before you run it.
# - How many sentences of 16 tokens does a batch need before the bytes of the last form outweigh its launches?
# - Find the longest sentence for which an SM of an H200 still holds two blocks with a whole score matrix.
# - With a GPU: `labkit bench minilm_ladder` takes the ladder. Which steps gain more than their count, and why?
#
# In the exercises for this lesson you pack a batch yourself, and an encoder runs on your attention and your LayerNorm.
