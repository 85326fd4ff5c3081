# %% [markdown]
# # 30 · A sentence encoder
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what the angle between two embeddings means, and how WordPiece cuts words into tokens
# - how BERT is assembled from kernels that you already know, and where it differs from GPT-2
# - how much work a padded batch wastes, and how to pack sentences so that no padding is left
#
# ## The problem
#
# The model of the last lesson writes. This one reads. A *sentence encoder* turns a text of any length into a vector of
# fixed size. That vector is an *embedding*, too, of a whole text this time. The model has been trained on pairs of
# texts that belong together, so that texts with similar meanings point in similar directions even when they share few
# words. Search, clustering and the detection of duplicates then all come down to comparing vectors.
#
# The cosine of the angle between two vectors measures how similar their directions are:
#
# $$\cos(a, b) = \frac{a \cdot b}{\lVert a \rVert \, \lVert b \rVert}$$
#
# It is 1 for the same direction and 0 for a right angle. If every embedding has length 1, the denominator disappears,
# and comparing a question with a million texts is a single matrix product.
#
# Our model is all-MiniLM-L6-v2, one of the most widely used: a BERT with six layers and embeddings of 384 elements. Its
# weights do not come with the course (`labkit weights minilm` downloads them), but this lesson does not need them. The
# course's tests contain the embeddings of 48 texts, computed with the library transformers in float64. Here are ten of
# them. Which two of the ten sentences are closest, and is the German one closer to its translation than to any other?

# %%
import json

import numpy as np

from labkit._common.paths import find_root
from labkit.course.drawings import sentence_encoder as pictures
from labkit.measure.plots.sentences import cosines

folder = find_root() / "tests" / "golden" / "minilm"
golden = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))["sentences"]
recorded = np.load(folder / "embeddings.npy")  # (48, 384), each row of length 1
chosen = [5, 4, 6, 7, 9, 10, 8, 29, 32, 34]
texts, ids = [golden[i]["text"] for i in chosen], [golden[i]["ids"] for i in chosen]
cosines(texts, recorded[chosen])

# %% [markdown]
# Sentences 2 and 3 are the closest: they say the same thing, one in the active voice and one in the passive. The German
# sentence is closest to its translation, and the two share "warp", "32" and "threads". The penguins are nearly at a
# right angle to everything technical; the fox is the closest to them. Note what is missing: no pair has a cosine
# anywhere near −1. Unrelated texts are orthogonal, not opposite.
#
# ## Prediction
#
# A GPU is fast only with many sentences in a batch, but sentences differ in length. The usual answer is *padding*:
# every sentence is extended to one common length, the model computes all rows, and the results of the padding are
# ignored. Take 64 sentences of about 15 tokens on average, padded to 128 tokens each. How many rows does the model
# compute, what share of them is padding, and by what factor do the matrix products become more expensive?

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
# Nearly nine rows out of ten{{ if 0.85 < 1 - 952 / (64 * 128) < 0.9 }} are computed and thrown away, and the products
# cost {{ 64 * 128 / 952:.1f }} times as much. No kernel can be tuned well enough to make up for that. The last section
# of this lesson gets rid of the padding. Before that we need tokens, and a model to feed.
#
# ## From text to tokens
#
# The model's tokenizer, *WordPiece*, lowercases the text, separates words and punctuation, and then breaks each word
# into pieces from a fixed vocabulary. The rule is greedy: take the longest piece that the word begins with, then the
# longest that the rest begins with, and so on. Pieces that continue a word are marked with `##`. If no piece fits the
# rest, the whole word becomes a single `[UNK]`. The next cell has a few entries of the real vocabulary with their real
# ids, and the rule as a function.

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


# %% [markdown]
# The sentence then gets two special tokens, `[CLS]` in front and `[SEP]` behind. Into which pieces will "embedding" be
# cut, and into which "besteht", German for "consists"?


# %%
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
# With the whole vocabulary, and some care for accents, Chinese characters and very long words, the real tokenizer does
# no more than this. From here on we use the recorded tokens.
#
# ## A model to take apart
#
# To look inside the model we need weights, and random ones will do: the launches and the shapes are the same. This is a
# BERT with MiniLM's vocabulary and heads of width 32, but with only two narrow layers.

# %%
from labkit import agree, device, show_source
from labkit.models.configs import shapes

config = minilm.Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                       intermediate_size=256)
rng = np.random.default_rng(0)
tensors = {}
for name, shape in shapes(config).items():
    scale = shape[1] ** -0.5 if name.startswith("encoder") and len(shape) == 2 else 0.05
    middle = 1 if name.endswith("LayerNorm.weight") else 0
    tensors[name] = middle + scale * rng.standard_normal(shape, np.float32)
model = minilm.MiniLM(config, tensors, device.pick(gpu=np.float16, cpu=np.float32))
count = sum(tensor.size for tensor in tensors.values())
print(f"{count:,} parameters, {model.dtype}, on {device.name()}")

# %% [markdown]
# Its first kernel is a gather. A row is the sum of three table rows: one for the token, one for its position, and one
# for the *type*, which tells two texts apart where a model reads them in pairs. Here each text is read alone, so all
# types are 0.

# %%
from labkit.kernels.embedding_sum import embedding_sum_kernel
from labkit.kernels.ops.embedding_layernorm import EMBEDDING_LAYERNORM

show_source(embedding_sum_kernel)

# %% [markdown]
# The positions are an input. GPT-2's embedding computed them itself; here a batch contains many sentences, and each
# must start at position 0, wherever it is in the array. For an index that is not in its table the kernel reads nothing,
# and the row becomes NaN. The next lesson makes use of that.
#
# BERT then normalises the sum. The kernel that the model uses does both in one launch, as in lesson 23: one warp per
# row, and the sum never leaves the registers.

# %%
sizes = {"T": 5, "C": 64}, {"T": 3, "C": 13}
agree(EMBEDDING_LAYERNORM, ["embedding_layernorm_fused"], sizes=sizes)

# %% [markdown]
# ## One layer
#
# You have met all the parts of a BERT layer before: linear layers with a bias, LayerNorm and GELU (lessons 21 and 23),
# attention (lesson 24). Only the arrangement differs from the block of lesson 26.

# %%
show_source(minilm.MiniLM.layer)

# %% [markdown]
# Each `report` passes the result of a launch to `watch`. There are seven in a layer, two of them in `self_attention`.
# How many launches does the real model have, with its six layers, from token ids to embeddings?

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
# It has 44: the embedding, seven per layer, and a last one that pools. Four things differ from GPT-2.
#
# - **LayerNorm comes last.** In BERT's order, Post-LN, the residual stream itself passes through each LayerNorm. So the
#   additions move: GPT-2's belong to the epilogue of a product, BERT's to the LayerNorm that needs the sum. The number
#   of launches stays the same: seven, as in lesson 27.
# - **There is no causal mask.** A token may look at the tokens after it, since nothing has to be predicted.
# - **Attention stays within a sentence.** All sentences of the batch are in one array, and a token may not see
#   those of another sentence.
# - **GELU is the exact one**, with the error function, not the approximation with tanh.
#
# ## Three layouts
#
# How do 64 sentences of different lengths become one array? The model accepts three layouts: padded to 128, padded to
# the longest sentence of the batch (rounded up to 16, the height of a tensor core's tile), and *packed*, which means
# end to end with nothing in between. The longest of the 64 sentences of the prediction has 43 tokens. How many rows
# will the 64 sentences have in each layout?

# %%
pictures.layouts(lengths)

# %% [markdown]
# They have {{ 64 * 128:, }} rows padded to 128, {{ 64 * 48:, }} padded to the longest, which is rounded up to 48, and
# 960 packed. Padding to the longest sentence already helps, but a single long sentence makes all the others expensive.
# Packed, the batch has as many rows as there are tokens, plus a few at the end: the count is rounded up a little so
# that only a few shapes occur, because each shape is captured as a separate graph (lesson 32).
#
# What does packing cost the kernels? Almost nothing. Products, GELU and LayerNorm treat each row by itself, no matter
# which sentence it belongs to. Only attention and the last launch, which makes one row per sentence, need to know. They
# read two small arrays: where each sentence begins, and how long it is. A padded batch is described by the same two
# arrays, so the kernels are the same in all three layouts.
#
# `lay_out` puts the batch into one array of integers, so that a single copy brings it to the device: token, type and
# position of each row, then the two small arrays. How many rows do the ten sentences of the first figure have in each
# layout?

# %%
for form in minilm.FORMS:
    shape, host = minilm.lay_out(ids, form)
    begins, its_lengths = host[3 * shape.rows :].reshape(2, shape.sentences)
    print(f"{form:14} {shape.rows:5} rows; begins {begins}")
print(f"{'':27}lengths {its_lengths}")

# %% [markdown]
# Packed they have 112 rows, padded to the longest 160, and padded to 128 they have 1,280. Attention that computed the
# padding as well would waste an even larger share than the products do: each row of a sentence meets every row of it,
# so the work grows with the square of the padded length. In an exercise you count that. On an H200, the real model
# embeds the sentences of these lessons {{ packed / padded:.1f }} times as fast packed as padded to 128 (lesson 32 has
# the measurement).
#
# ## What I learned
#
# - The fastest row is the one that is not there. Before tuning a kernel, count how much of its input is padding.
# - Two small arrays, where a sentence begins and how long it is, describe any layout. The host chooses one, and the
#   kernels need not know which.
# - With Pre-LN and with Post-LN a layer has the same number of launches. Only the position of the addition changes, and
#   with it the kernel that should do it.
# - A tokenizer knows spelling, not grammar. The meaning of the pieces is left to the model.
#
# ## Resources
#
# - [J. Devlin et al.: BERT (2018)](https://arxiv.org/abs/1810.04805)
# - [W. Wang et al.: MiniLM (2020)](https://arxiv.org/abs/2002.10957)
# - [Y. Wu et al.: Google's Neural Machine Translation System (2016)](https://arxiv.org/abs/1609.08144), with WordPiece
# - [all-MiniLM-L6-v2](https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), the model
#
# ## Try it
#
# - Remove "##ding" from the small vocabulary. Predict the pieces of "embedding", then run the cell.
# - Add a sentence of 120 tokens to `lengths`. Which of the three layouts suffers, and by how much?
# - Give `config` a third layer. Predict the number of launches, then run the cells again.
#
# In the exercises you cut words into pieces, count what padding costs, and write the model's first launch
# yourself. It then runs in a small encoder, with every launch compared.
#
# Next: **sentences as vectors**, from one row per token to one vector that depends on its sentence alone, and a search
# that uses such vectors.

# %% [numbers]
# packed = max([one.sentences_per_second for one in series.minilm_corpus.ours if one.form == 'packed'])
# padded = max([one.sentences_per_second for one in series.minilm_corpus.ours if one.form == 'padded_to_128'])
