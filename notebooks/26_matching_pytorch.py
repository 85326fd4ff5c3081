# %% [markdown]
# # 26 · Matching PyTorch
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what it takes to compare with PyTorch fairly, and which batches are won and which are lost
# - what bounds a small batch when neither flops nor bytes do
# - how a whole corpus runs in a single batch, without padding and with few CUDA graphs
#
# ## The problem
#
# The article of the last lesson is called *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*. For 64 sentences
# of 128 tokens the article reports 0.090 ms{{ quoted }} a sentence, and 0.092 ms{{ quoted }} for PyTorch on the same
# GPU. With 16 tokens it was 0.015 ms{{ quoted }} against 0.025{{ quoted }}. That is a good result: PyTorch leaves its
# products to cuBLAS, a library with many years of tuning behind it.
#
# The last form of our encoder has no product from a library either. How does it compare with PyTorch on an H200?
#
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
# Our model takes part in three forms: *packed* and *padded*, the layouts of lesson 23 with the kernels that the model
# uses by default, and *few rows*, which is packed and has products made for few rows.
#
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
#
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
#
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
#
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
#
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
# last bits of an embedding would depend on its batch (lesson 24).
#
# PyTorch meets the same bound. With 64 sentences of 16 tokens and SDPA in a graph it needs {{ sdpa_launch_us:.1f }} us
# a launch, about as much as ours{{ if as_ours }}, and it has {{ profile[1].torch.launches }} of them, among them
# memsets, which only fill memory with a value.
#
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
#
# ## Many sentences, no padding
#
# A small batch wastes most of the GPU, so put many sentences into each. They differ in length, and lesson 23 packed
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
#
# ## What I learned
#
# - In a fair comparison the other side gets its graph, too, and the batches where it wins stay in the table.
# - A small batch is bounded by its launches, by their number and by how long each takes for nearly no work. A kernel
#   that is tuned for large batches does not help it.
# - Packing made one batch of a whole corpus. PyTorch gained more from it than we did.
# - When the model is fast, look at what surrounds it.
#
# ## Resources
#
# - the article: *No cuBLAS: A Hand-Written CUDA BERT That Matches PyTorch*, on an RTX 3090
# - [J. Devlin et al.: BERT (2018)](https://arxiv.org/abs/1810.04805)
# - [torch.compile](https://pytorch.org/docs/stable/generated/torch.compile.html) and [CUDA
#   graphs](https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs) in PyTorch
#
# ## Try it
#
# - Count the numbers of rows again, once rounded up to multiples of 16 and once to powers of two. What does each rule
#   cost, in graphs and in empty rows?
# - Draw `score_matrices` for eight sentences of equal length. Which layout still computes too much, and when does none?
# - Suppose that attention and the product after it became one launch. Predict the time of 1 × 16 tokens from the time
#   of a launch. What would it do to 64 × 128?
# - With a GPU and PyTorch: `labkit bench minilm` takes the comparison. Which lines change places?
#
# In the exercises for this lesson you say what a fair comparison changes, pack a batch yourself, find where each of its
# sentences begins, and choose the few shapes for its graphs.
#
# Next: **bfloat16, bit by bit**, the format in which large models are published, and the first step towards a Llama.

# %% [numbers]
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
