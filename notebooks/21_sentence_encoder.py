# %% [markdown]
# # 21 · A sentence encoder
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how a model turns a text into a vector, and what the angle between two such vectors means
# - how BERT is assembled from kernels that you already know, and where it differs from GPT-2
# - why most of a padded batch is wasted work, and how to pack sentences so that no padding is left
#
# ## The problem
#
# The model of the last lesson writes. This one reads. A *sentence encoder* turns a text of any length into a vector of
# fixed length, its *embedding*. It has been trained on pairs of texts that belong together, so that texts with similar
# meanings point in similar directions even when they share few words. Search, clustering and the detection of
# duplicates then all come down to comparing vectors.
#
# How similar two directions are is measured by the cosine of the angle between them:
#
# $$\cos(a, b) = \frac{a \cdot b}{\lVert a \rVert \, \lVert b \rVert}$$
#
# It is 1 for the same direction and 0 for a right angle. If every embedding has length 1, the denominator disappears,
# and comparing a question with a million texts is a single matrix product.
#
# Our model is all-MiniLM-L6-v2, one of the most widely used: a BERT with six layers and embeddings of 384 numbers. Its
# weights do not come with the course (`labkit weights minilm` downloads them), but this lesson does not need them. The
# course's tests contain the embeddings of 48 texts, computed with the library transformers in float64. Here are ten of
# them. Before you look at the figure, guess which two are closest, and whether the German sentence is closer to its
# translation or to any other.

# %%
import json

import numpy as np

from labkit._common.paths import find_root
from labkit.measure.plots import sentences as pictures

folder = find_root() / "tests" / "golden" / "minilm"
golden = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))["sentences"]
recorded = np.load(folder / "embeddings.npy")  # (48, 384), each row of length 1
chosen = [5, 4, 6, 7, 9, 10, 8, 29, 32, 34]
texts, ids = [golden[i]["text"] for i in chosen], [golden[i]["ids"] for i in chosen]
pictures.cosines(texts, recorded[chosen])

# %% [markdown]
# Sentences 2 and 3 say the same thing, one in the active voice and one in the passive, and the model sees through the
# grammar. The German sentence lands near its English counterpart; they do share "warp", "32" and "threads". The
# penguins are nearly at a right angle to everything technical, and it is the fox that they come closest to. Note what
# is missing: no pair has a cosine anywhere near −1. Unrelated texts are orthogonal, not opposite.
#
# ## Prediction
#
# A GPU is fast only with many sentences at once, but sentences differ in length. The usual remedy is *padding*: every
# sentence is extended to one common length, the model computes all rows, and the results of the padding are ignored.
# Take 64 sentences of about 15 tokens on average, padded to 128 tokens each. Write down three numbers before you run
# the cell. How many rows does the model compute? What fraction of them is padding? And by what factor do the matrix
# products become more expensive?

# %%
from labkit.models import minilm

lengths = np.clip(np.random.default_rng(28).gamma(3.0, 5.0, 64).round(), 3, None).astype(int)
minilm_size = minilm.Config()  # the defaults are all-MiniLM-L6-v2's
weights_of_a_layer = sum(outputs * inputs for outputs, inputs in minilm_size.products)
gflop_a_row = 2e-9 * weights_of_a_layer * minilm_size.num_hidden_layers
rows, tokens = 64 * 128, lengths.sum()
print(f"{tokens} tokens, {lengths.min()} to {lengths.max()} in a sentence; {rows:,} rows")
print(f"{1 - tokens / rows:.0%} of the rows are padding")
print(f"products: {gflop_a_row * rows:.0f} GFLOP with the padding, {gflop_a_row * tokens:.0f} without")

# %% [markdown]
# Nearly nine rows out of ten are computed and thrown away. No kernel can be tuned well enough to make up for that. We
# shall come back to this once there is a model to feed.
#
# ## From text to tokens
#
# BERT's tokenizer, *WordPiece*, lowercases the text, separates words and punctuation, and then breaks each word into
# pieces from a fixed vocabulary. The rule is greedy: take the longest piece with which the word begins, then the
# longest with which the rest begins, and so on. Pieces that continue a word are marked with `##`. A word that cannot be
# completed becomes a single `[UNK]`. Finally `[CLS]` goes in front and `[SEP]` behind. Here is all of it, with a few
# entries of the real vocabulary under their real numbers. How will "embedding" come apart? And "besteht", German for
# "consists"?

# %%
import re

tiny = {piece: int(number) for piece, number in re.findall(r"(\S+) (\d+)", """
    [UNK] 100 [CLS] 101 [SEP] 102 . 1012 ? 1029 b 1038 e 1041 is 2003 ##s 2015 be 2022
    my 2026 ##e 2063 ##ing 2075 ##d 2094 ##t 2102 best 2190 ##h 2232 every 2296 water 2300
    large 2312 why 2339 ##b 2497 bed 2793 fast 3435 32 3590 slow 4030 ##di 4305 ##ding 4667
    parallel 5903 em 7861 ##bed 8270 ##eh 11106 thread 11689 kernel 16293 ein 16417
    threads 16457 cache 17053 aus 17151 warp 24136""")}


def pieces_of(word, vocabulary):
    found, begin = [], 0
    while begin < len(word):
        for end in range(len(word), begin, -1):  # the longest piece first
            piece = ("##" if begin else "") + word[begin:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        found.append(piece)
        begin = end
    return found


def tokenize(text, vocabulary):
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    pieces = [piece for word in words for piece in pieces_of(word, vocabulary)]
    return ["[CLS]", *pieces, "[SEP]"]


for number in (5, 10, 33):
    pieces = tokenize(golden[number]["text"], tiny)
    same = [tiny[piece] for piece in pieces] == golden[number]["ids"]
    print(*pieces, f"\n    the same tokens as transformers': {same}")

# %% [markdown]
# The greedy rule knows no grammar. It cuts "embedding" after "em", because "em" is in the vocabulary and nothing longer
# fits, and it finds the English "best" in a German verb. Making sense of such pieces is left to the model.
#
# With the whole vocabulary, and some care for accents, Chinese characters and very long words, this is how every BERT
# reads. From here on we take the tokens as recorded.
#
# ## A model to take apart
#
# To look inside the model we need weights, and random ones will do: a kernel that is wrong is wrong with them, too.
# This is a BERT with MiniLM's vocabulary and heads of 32 numbers, but with only two narrow layers.

# %%
from labkit import agree, device, show_source

config = minilm.Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                       intermediate_size=256)
rng = np.random.default_rng(0)
tensors = {}
for name, shape in minilm.shapes(config).items():
    scale = shape[1] ** -0.5 if name.startswith("encoder") and len(shape) == 2 else 0.05
    middle = 1 if name.endswith("LayerNorm.weight") else 0
    tensors[name] = middle + scale * rng.standard_normal(shape, np.float32)
model = minilm.MiniLM(config, tensors, device.pick(gpu=np.float16, cpu=np.float32))
count = sum(tensor.size for tensor in tensors.values())
print(f"{count:,} parameters, {model.dtype}, on {device.name()}")

# %% [markdown]
# Its first kernel gathers. A row is the sum of three table rows: one for the word, one for its position, and one for
# the *type*, which tells two texts apart where a model reads them in pairs. (Here there is only one text, and all types
# are 0.)

# %%
from labkit.kernels.embedding_sum import EMBEDDING_LAYERNORM, embedding_sum_kernel

show_source(embedding_sum_kernel)

# %% [markdown]
# Note that the positions are an input. GPT-2's embedding counted them; here a batch contains many sentences, and each
# must start at position 0, wherever it lies. BERT then normalises the sum. The kernel that the model uses does both in
# one launch, as in lesson 16: one warp for each row, and the sum never leaves the registers.

# %%
sizes = {"T": 5, "C": 64}, {"T": 3, "C": 13}
agree(EMBEDDING_LAYERNORM, ["embedding_layernorm_fused"], sizes=sizes)

# %% [markdown]
# ## One layer
#
# You have met everything in a layer of BERT before: linear layers with a bias, LayerNorm and GELU (lessons 15 and 16),
# attention (lesson 17). Only the arrangement differs from the block of lesson 19. Before you read on: if every layer
# takes seven launches, how many does the real model take from token ids to embeddings?

# %%
show_source(minilm.MiniLM.layer)

# %%
launches = []
model.embed(ids, watch=lambda name, array: launches.append((name, array.shape)))
for name, shape in launches[:9]:
    print(f"{name:28} {shape}")
print(f"...\n{len(launches)} launches with {config.num_hidden_layers} layers; "
      f"the real model takes {2 + 7 * minilm_size.num_hidden_layers}")

# %%
pictures.layer_launches(config, launches[0][1][0])

# %% [markdown]
# Four things differ from GPT-2.
#
# - **LayerNorm comes last.** In BERT's order, Post-LN, the residual stream itself passes through each LayerNorm. Hence
#   the additions move: GPT-2's belong to the epilogue of a product, BERT's to the LayerNorm that needs the sum at once.
#   The number of launches stays the same.
# - **There is no causal mask.** A token may look at the tokens after it, since nothing has to be predicted.
# - **Attention stays within a sentence.** All sentences of the batch lie in the same array, and no token may see those
#   of another sentence.
# - **GELU is the exact one**, with the error function, not the approximation with tanh.
#
# ## Three layouts
#
# How do 64 sentences of different lengths become one array? The model accepts three layouts: padded to 128, padded to
# the longest sentence of the batch (rounded up to 16, the height of a tensor core's tile), and *packed*, which means
# end to end with nothing in between. How many rows will each of them have for the sentences of the prediction?

# %%
pictures.layouts(lengths)

# %% [markdown]
# Padding to the longest sentence already helps, but a single long sentence makes every other one expensive. Packed, the
# batch has as many rows as there are tokens, plus a few at the end. (The number of rows is rounded up a little so that
# only a few different shapes occur, because each shape is captured as a graph of its own.)
#
# What does packing cost the kernels? Almost nothing. Products, GELU and LayerNorm treat each row by itself and do not
# care which sentence it belongs to. Only attention and pooling need to know, and they read two small arrays from device
# memory: where each sentence begins, and how long it is. A padded batch is described by the same two arrays, so no
# kernel can tell which layout it is working on.

# %%
for form in minilm.FORMS:
    shape, host = minilm.lay_out(ids, form)
    begins, its_lengths = host[3 * shape.rows :].reshape(2, shape.sentences)
    print(f"{form:14} {shape.rows:5} rows; begins {begins}")
print(f"{'':27}lengths {its_lengths}")

# %% [markdown]
# ## Padding must not matter
#
# The classic way to ignore padding is a mask: multiply the unwanted rows by 0 and add up. Suppose that the third of
# these rows is padding, and that it holds what memory happened to contain. What is the mean of the other two?

# %%
x, mask = np.array([1.0, 3.0, np.nan]), np.array([1.0, 1.0, 0.0])
print("multiplied by a mask:", (x * mask).sum() / mask.sum())
print("not read at all:     ", x[:2].mean())

# %% [markdown]
# In floating point 0 × NaN is NaN, and so is 0 × ∞. Attention has the same trap: a score that is masked with −∞ gets
# the weight 0, and the weight is then multiplied with the row of values. Such a mask works until the day when the
# padding contains a NaN. A kernel that must not be influenced by a row should not read it.
#
# To find out whether ours keep to that rule, we poison the batch: every padding row gets the token −1, which is in no
# vocabulary, and for which the embedding returns a row of NaN.

# %%
shape, host = minilm.lay_out(ids, "padded")
is_padding = np.ones(shape.rows, bool)
for begin, length in zip(*host[3 * shape.rows :].reshape(2, shape.sentences), strict=True):
    is_padding[begin : begin + length] = False
host[: shape.rows][is_padding] = -1

workspace = minilm.Workspace(config, shape, model.dtype, model.kernels)
batch = workspace.batch(shape)
batch.inputs.copy_to_device(host)
seen = {}
model.forward(batch, watch=lambda name, array: seen.update({name: array.copy_to_host()}))
bad = np.isnan(seen["layer.1.out"]).any(axis=1)
print(f"{is_padding.sum()} rows of padding; after the last layer {bad.sum()} rows have a NaN, "
      f"{(bad & ~is_padding).sum()} of them in a sentence")
poisoned = seen["pooled"]
print("NaN in the embeddings:", np.isnan(poisoned).any())

# %% [markdown]
# The poison passes through all layers in its own rows and reaches no other. Now a stricter question. Is the embedding
# of a sentence the same in all three layouts? And if the sentence is alone in its batch? Not nearly the same: the same
# bits.

# %%
packed = model.embed(ids, "packed")
others = {"padded": model.embed(ids, "padded"),
          "padded to 128": model.embed(ids, "padded_to_128"),
          "padded with NaN": poisoned,
          "each sentence alone": np.concatenate([model.embed([one]) for one in ids])}
for name, embeddings in others.items():
    print(f"{name:20} the same bits as packed: {np.array_equal(embeddings, packed)}")

# %% [markdown]
# That is not a matter of luck. Floating-point addition is not associative, so bits are equal only if the same numbers
# are added in the same order. Here the order depends on the sentence alone. Attention walks over the keys of a sentence
# in tiles counted from its own first token; pooling adds its rows in a fixed order; and each element of a product is
# summed over K in the same order, whatever the number of rows.
#
# The last point is the delicate one, and it does not always hold. On the CPU device it does, and on a GPU in float16,
# where every tile goes through K from beginning to end. In float32 on a GPU the library chooses its product by the
# number of rows, and for few rows it divides K among warps and blocks. There, the last bits of an embedding depend on
# the size of its batch. A search does not mind; a test for equality does.
#
# ## Pooling
#
# The layers leave a row for each token, and we want one for each sentence. Many BERTs take the row of `[CLS]`; MiniLM
# takes the mean over all tokens and scales it to length 1. The simplest kernel for the mean has a thread for each
# column. Look at how it treats a sentence without tokens.

# %%
from labkit.kernels.pooling import MEAN_POOL_NORMALIZED, mean_pool_columns_kernel, rows_of

show_source(rows_of)

# %%
show_source(mean_pool_columns_kernel)

# %%
sizes = {"B": 3, "T": 130, "C": 64}, {"B": 5, "T": 3, "C": 13}
agree(MEAN_POOL_NORMALIZED, ["mean_pool_normalized_fused"], sizes=sizes)

# %%
found = model.embed([[], [101, 102], ids[0]])
print("lengths of the embeddings:", np.linalg.norm(found, axis=1).round(6))
untrained = (packed @ packed.T)[np.triu_indices(len(ids), 1)]
print(f"cosines of the ten sentences: {untrained.min():.2f} to {untrained.max():.2f}")

# %% [markdown]
# A sentence without tokens has no mean; 0 / 0 would be NaN. The kernel divides by at least 1, and the normalisation by
# at least a tiny number, so that the result is a row of zeros, whose product with any embedding is 0. This is not the
# same as the empty *text*, which still has its two special tokens, `[CLS]` and `[SEP]`, and therefore a proper
# embedding.
#
# The last line is a warning. Our random model finds all ten sentences nearly alike, penguins and kernels included. It
# makes the same launches as the real one; the meaning of an angle comes from training alone. So whether a kernel is
# right cannot be judged from its cosines. That takes a comparison with the truth.
#
# ## Is it right?
#
# As in lessons 19 and 20, we watch every launch and compare what it wrote with the same step in NumPy and float64.

# %%
from labkit.models.minilm_reference import cosines, parity, weights_of
from labkit.models.minilm_reference import embeddings as reference

exact = minilm.MiniLM(config, tensors, np.float32)
parity(exact, ids).check()

# %% [markdown]
# Now for two mistakes that are easily made when a model is ported. BERT's configuration has an epsilon of 1e-12 in
# its LayerNorm; the usual default, in PyTorch and in lesson 15, is 1e-5. And there is the GELU with tanh, which GPT-2
# uses. Both models still run, and both produce embeddings of length 1. How far from 1 will the cosine with the correct
# embeddings be, and would you have noticed?

# %%
from dataclasses import replace

from labkit.kernels.embedding_sum import embedding_layernorm
from labkit.kernels.linear import few_rows
from labkit.kernels.norm.layernorm import add_layernorm_fused


def forgets_epsilon(launch):
    return lambda *args, epsilon, stream=0: launch(*args, stream=stream)


def takes_tanh(*args, gelu=False, **options):
    few_rows.linear(*args, gelu=bool(gelu), **options)  # True: the form with tanh


truth = reference(config, weights_of(tensors, config), ids)
mistakes = {"none": exact.kernels,
            "epsilon 1e-5": replace(exact.kernels, embed=forgets_epsilon(embedding_layernorm),
                                    add_layernorm=forgets_epsilon(add_layernorm_fused)),
            "GELU with tanh": replace(exact.kernels, linear=takes_tanh)}
for mistake, kernels in mistakes.items():
    other = exact.with_kernels(kernels)
    first = parity(other, ids).first
    print(f"{mistake:15} smallest cosine {cosines(other.embed(ids), truth).min():.8f}; "
          f"the first that differs: {first.name if first else '-'}")

# %% [markdown]
# A cosine close to 1 proves little: both mistakes hide in its last digits. The comparison launch by launch finds each
# of them at once and names the place. (It is done in float32, because the roundings of float16 would cover up the wrong
# GELU.) With the real weights, transformers itself has the last word.

# %%
from labkit.models import weights
from labkit.models.sentences import Encoder

encoder = None
if weights.is_there(weights.MINILM):
    encoder = Encoder.from_pretrained("minilm", dtype=np.float32)
    with_theirs = cosines(encoder.encode(texts), recorded[chosen])
    print(f"smallest cosine with the embeddings of transformers: {with_theirs.min():.8f}")
else:
    print("The weights are not here: `labkit weights minilm`, then run this cell again.")

# %% [markdown]
# ## What it is for
#
# Tokenizer and model together are an `Encoder`. It is called as the library sentence-transformers is, so that code
# which uses that library needs only another import:
#
# ```python
# from labkit.models.sentences import Encoder
#
# encoder = Encoder.from_pretrained("minilm")
# embeddings = encoder.encode(["Why is my kernel slow?", "It waits for memory."])  # (2, 384)
# ```
#
# `labkit embed FILE -o out.npy` does it for a file with a text on each line. And `labkit search "why is my kernel
# slow"` searches this course. The index of that search, `data/search.npz`, holds an embedding for every section of the
# lessons and for the documentation of the kernels. It comes with the course, so we can explore it without the weights.
# The whole search is the one product below.

# %%
from labkit.course import registry, search
from labkit.course.passages import passages

course = registry.load()
index = search.Index.read(search.index_path(course))
known = [one for one in passages(course)
         if one.digest in index.rows and one.lesson != "21_sentence_encoder"]
vectors = index.embeddings[[index.rows[one.digest] for one in known]].astype(np.float32)
near = vectors @ vectors.T

start = next((n for n, one in enumerate(known) if "barrier that is missing" in one.title), 0)
print(f"nearest to: {known[start].title}")
for hit in search.by_meaning(known, index, vectors[start])[1:5]:
    print(f"    {hit.score:.2f}  {hit.passage.title}")
low, middle, high = np.percentile(near[np.triu_indices(len(near), 1)], (5, 50, 95))
print(f"any two passages of the course: {middle:.2f} in the middle, "
      f"nine in ten between {low:.2f} and {high:.2f}")

# %% [markdown]
# Compare the last line with the first figure, where unrelated sentences had cosines close to 0. All passages of this
# course are about GPU kernels, so any two of them have something in common. A cosine has no absolute scale. It ranks
# the texts of one collection, and a threshold for "means the same" has to be found anew for each collection and each
# model.
#
# Last, a question. Lesson 34 answers it in its section "Chance", in other words. Where the weights are missing, `labkit
# search` falls back on words that question and passage share, weighted by how rare they are. Does that find the
# section? With the weights, the same cell searches by meaning.

# %%
question = "picking the next word at random"
hits, remark = search.search(course, question, encoder and encoder.encode)
print(question)
for hit in hits[:3]:
    print(f"    {hit.score:.2f}  {hit.passage.title}")
print(remark)

# %% [markdown]
# ## What was implemented
#
# - WordPiece by hand, with the same tokens as the library's
# - a BERT with Post-LN: three embedding tables, seven launches a layer, mean pooling, rows of length 1
# - three layouts of a batch for the same kernels, with the same bits from each
# - parity with float64 for every launch; an encoder, and a search over this course
#
# ## What I learned
#
# - The fastest row is the one that is not there. Before tuning a kernel, count how much of its input is padding.
# - Two small arrays, where a sentence begins and how long it is, replaced every mask. A row that is never read cannot
#   do any harm.
# - Equal bits take equal orders of addition. It pays to know which kernels promise that, and which do not.
# - A single number at the end hides mistakes that a comparison step by step shows at once.
# - A cosine ranks. It does not judge.
#
# ## Resources
#
# - [J. Devlin et al.: BERT (2018)](https://arxiv.org/abs/1810.04805)
# - [W. Wang et al.: MiniLM (2020)](https://arxiv.org/abs/2002.10957)
# - [N. Reimers and I. Gurevych: Sentence-BERT (2019)](https://arxiv.org/abs/1908.10084), the mean and the cosine
# - [Y. Wu et al.: Google's Neural Machine Translation System (2016)](https://arxiv.org/abs/1609.08144), with WordPiece
# - [all-MiniLM-L6-v2](https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), the model
#
# ## Try it
#
# - Remove "##ding" from the small vocabulary. Predict the pieces of "embedding", then run the cell.
# - Add a sentence of 120 tokens to `lengths`. Which of the three layouts suffers, and by how much?
# - Write a pooling kernel that multiplies by a mask, give it to the model with `replace(model.kernels, ...)`, and
#   poison the batch again.
# - With the weights: find two sentences that mean the opposite of each other and still have a cosine above 0.8.
#
# In the exercises for this lesson you write pieces of this model yourself, and put two of your kernels to work in it,
# with every launch compared.
