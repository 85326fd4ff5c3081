# %% [markdown]
# # 31 · Sentences as vectors
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how to keep padding out of a mean, and how to test that it stays out of the whole model
# - how one row per token becomes one vector per sentence, and what its last bits depend on
# - which tests find a mistake in a model, and what a cosine can tell
#
# ## The problem
#
# The last layer of the encoder in lesson 30 gives one row per token. A search needs one vector per sentence, its
# embedding, of length 1, so that the cosine of two sentences is a dot product. The last launch makes it, and that looks
# easy: take the mean of the sentence's rows, and scale it to length 1.
#
# But the vector must depend on its sentence and on nothing else: not on padding, not on the other sentences of
# the batch, not on the layout. If it does depend on them, nothing crashes. A wrong embedding has the right
# shape and length 1. The search that uses it only gets a little worse. So most of this lesson is
# about tests: which mistakes they find, and which they do not.
#
# Here is the small model of the last lesson again, a BERT with two narrow layers and random weights, and the ten
# sentences with their tokens.

# %%
import json

import numpy as np

from labkit import agree, device, show_source
from labkit._common.paths import find_root
from labkit.models import minilm
from labkit.models.configs import shapes

folder = find_root() / "tests" / "golden" / "minilm"
golden = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))["sentences"]
chosen = [5, 4, 6, 7, 9, 10, 8, 29, 32, 34]
texts, ids = [golden[i]["text"] for i in chosen], [golden[i]["ids"] for i in chosen]

config = minilm.Config(hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
                       intermediate_size=256)
rng = np.random.default_rng(0)
tensors = {}
for name, shape in shapes(config).items():
    scale = shape[1] ** -0.5 if name.startswith("encoder") and len(shape) == 2 else 0.05
    middle = 1 if name.endswith("LayerNorm.weight") else 0
    tensors[name] = middle + scale * rng.standard_normal(shape, np.float32)
model = minilm.MiniLM(config, tensors, device.pick(gpu=np.float16, cpu=np.float32))
print(f"{len(ids)} sentences, {sum(map(len, ids))} tokens; {model.dtype}, on {device.name()}")

# %% [markdown]
# ## Prediction
#
# This lesson answers three questions.
#
# 1. A sentence has two tokens, and a third row is padding, which holds whatever was in memory: here a NaN. The classic
#    way to ignore such a row is a *mask*: multiply each row by 1 or 0, add up, and divide by the number of ones. What
#    is the mean?
# 2. A sentence is embedded alone, then in a batch with nine others. Are its two embeddings equal to the last bit?
# 3. By mistake, a model computes GELU with tanh, as GPT-2 does, where BERT's is the exact one with the error function.
#    How far from 1 is the cosine between its embeddings and the right ones?
#
# The next cell answers the first. What is the mean if the rows are multiplied by a mask, and what is it if the padding
# is not read?

# %%
x, mask = np.array([1.0, 3.0, np.nan]), np.array([1.0, 1.0, 0.0])
print("multiplied by a mask:", (x * mask).sum() / mask.sum())
print("not read at all:     ", x[:2].mean())

# %% [markdown]
# In floating point 0 × NaN is NaN, and so is 0 × ∞. Attention has the same trap: a score that is masked with −∞ gets
# the weight 0, and the weight is then multiplied by the row of values. Such a mask works until the day the padding
# contains a NaN or an infinity. If a row must not influence a result, do not read it.
#
# ## The mean of a sentence
#
# Many BERTs use the row of `[CLS]` as the sentence's vector. MiniLM takes the mean over all its tokens, *mean pooling*,
# and scales it to length 1. The simplest kernel for the mean has one thread per column. It reads two small arrays,
# which say where each sentence begins and how long it is, and only the rows of its own sentence. Note what it does with
# a sentence that has no tokens.

# %%
from labkit.kernels.ops.pooling import MEAN_POOL_NORMALIZED
from labkit.kernels.pooling import mean_pool_columns_kernel, rows_of

show_source(rows_of)

# %%
show_source(mean_pool_columns_kernel)

# %% [markdown]
# A sentence without tokens has no mean; 0 / 0 would be NaN. The kernel divides by at least 1, so that the mean is a row
# of zeros. A sentence whose end is beyond the last row of `x` gets NaN, which any test finds; the kernel does not read
# past the end. The model itself uses a faster kernel, which also scales to length 1 in the same launch. It divides by
# at least a tiny number, so zeros stay zeros.

# %%
sizes = {"B": 3, "T": 130, "C": 64}, {"B": 5, "T": 3, "C": 13}
agree(MEAN_POOL_NORMALIZED, ["mean_pool_normalized_fused"], sizes=sizes)

# %% [markdown]
# An empty *text* is not a sentence without tokens, since it still has its two special tokens, `[CLS]` and `[SEP]`. What
# lengths will the embeddings of no tokens, of `[CLS] [SEP]` and of a sentence have?

# %%
found = model.embed([[], [101, 102], ids[0]])
print("lengths of the embeddings:", np.linalg.norm(found, axis=1).round(6))

# %% [markdown]
# The first is a row of zeros, as expected; the other two have length 1.
#
# ## Padding must not matter
#
# That kernel reads only its own rows. To find out whether all the others do, we poison a batch. `model.embed` normally
# lays out the sentences, copies them into a `Workspace` (all the memory that a batch of one shape needs) and calls
# `forward`; the next cell does these steps one by one, and changes the tokens in between: every padding row gets the
# token −1. It is in no vocabulary, and the embedding returns a row of NaN for it. A kernel that reads padding where it
# should not will then carry a NaN into a sentence. How far do the padding's NaNs spread?

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
# They stay in their rows through all layers and reach no others.
#
# ## The same bits
#
# Now the second question of the prediction: the same bits, rather than nearly the same values. Compared with the packed
# batch, does an embedding have the same bits in the other two layouts of the last lesson, with NaN in the padding, and
# when the sentence is alone in its batch?

# %%
packed = model.embed(ids, "packed")
others = {"padded": model.embed(ids, "padded"),
          "padded to 128": model.embed(ids, "padded_to_128"),
          "padded with NaN": poisoned,
          "each sentence alone": np.concatenate([model.embed([one]) for one in ids])}
for name, embeddings in others.items():
    print(f"{name:20} the same bits as packed: {np.array_equal(embeddings, packed)}")

# %% [markdown]
# It does in all of them, which is no accident. Floating-point addition is not associative, so bits are equal only if
# the same values are added in the same order. Here the order depends on the sentence alone. Attention walks over the
# keys of a sentence in tiles counted from its own first token; pooling adds its rows in a fixed order; and each element
# of a product is summed over K in the same order, for any number of rows.
#
# The last point does not hold everywhere. It holds on the CPU device, and on a GPU in float16, where every tile goes
# through K from beginning to end. In float32 on a GPU the library chooses its product kernel by the number of rows, and
# for few rows it divides K among warps and blocks. There, the last bits of an embedding depend on the size of its
# batch. A search is not affected; a test for equal bits is.
#
# ## Is it right?
#
# The tests so far compare the model with itself. They would pass if every embedding were wrong in the same way. The
# next cell draws the cosines of our ten sentences, as in the first figure of the last lesson. With random weights, will
# the penguins be at a right angle to the kernels again?

# %%
from labkit.measure.plots import sentences as pictures

pictures.cosines(texts, packed)

# %% [markdown]
# No: with random weights all ten sentences are nearly alike, penguins and kernels included. The model has the same
# kernels as the real one; the meaning of an angle comes from training alone. So these cosines do not show whether a
# kernel is right. That requires a comparison with the truth. As in lessons 26 and 28, we watch every launch and compare
# what it wrote with the same step in NumPy and float64.

# %%
from labkit.models.minilm_reference import cosines, parity, weights_of
from labkit.models.minilm_reference import embeddings as reference

exact = minilm.MiniLM(config, tensors, np.float32)
parity(exact, ids).check()

# %% [markdown]
# Now for two mistakes that are easily made when a model is ported. One is the GELU of the third question. The other is
# LayerNorm's epsilon: BERT's configuration has 1e-12, and the usual default, in PyTorch and in lesson 21, is 1e-5. With
# either mistake the model still runs and produces embeddings of length 1. How far from 1 is the smallest cosine with
# the right embeddings, for each of the two mistakes?

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
# Only the eighth decimal place differs. A cosine close to 1 proves little. The launch-by-launch comparison finds each
# mistake immediately and names the launch. It is done in float32, because the rounding of float16 would hide the wrong
# GELU.
#
# With the real weights there is one more test: the embeddings that the library transformers computed in float64,
# which are among the course's tests.

# %%
from labkit.models import weights
from labkit.models.sentences import Encoder

recorded = np.load(folder / "embeddings.npy")[chosen]
encoder = None
if weights.is_there(weights.MINILM):
    encoder = Encoder.from_pretrained("minilm", dtype=np.float32)
    smallest = cosines(encoder.encode(texts), recorded).min()
    print(f"smallest cosine with the embeddings of transformers: {smallest:.8f}")
else:
    print("The weights are not here: `labkit weights minilm`, then run this cell again.")

# %% [markdown]
# ## What it is for
#
# Tokenizer and model together are the `Encoder` above. It is called the same way as in the library
# sentence-transformers, so code written for that library only has to change its import.
# `Encoder.from_pretrained("minilm").encode(texts)` returns an array of n × 384 numbers for n texts.
#
# `labkit embed FILE -o out.npy` does it for a file with one text per line, and `labkit search "why is my kernel slow"`
# searches this course. The index of that search, `data/search.npz`, holds an embedding for every passage of the lessons
# and for the documentation of the kernels, all made by the real MiniLM. It comes with the course, so we can explore it
# without the weights. How large is the cosine of two random passages of the course?

# %%
from labkit.course import registry, search
from labkit.course.passages import passages

course = registry.load()
index = search.Index.read(search.index_path(course))
known = [one for one in passages(course)
         if one.digest in index.rows and not one.lesson.endswith("sentences_as_vectors")]
vectors = index.embeddings[[index.rows[one.digest] for one in known]].astype(np.float32)
near = vectors @ vectors.T  # every cosine of two passages, in one product
low, middle, high = np.percentile(near[np.triu_indices(len(near), 1)], (5, 50, 95))
print(f"any two passages of the course: {middle:.2f} in the middle, "
      f"nine in ten between {low:.2f} and {high:.2f}")

# %% [markdown]
# Compare that with the first figure of the last lesson, where unrelated sentences had cosines close to 0. All passages
# of this course are about GPU kernels, so any two of them have something in common. A cosine has no absolute scale. It
# ranks the texts of one collection, and each collection and each model needs its own threshold for "means the same".
#
# ## A search
#
# To search is to rank all passages by their cosine with a question. Any embedding can be the question, so the recorded
# ones will do. Where do the sentence about warps, its German counterpart and the penguins lead?

# %%
for number in (4, 5, 6):
    best = search.by_meaning(known, index, recorded[number].astype(np.float32))[0]
    print(f"{texts[number]}\n    {best.score:.2f}  {best.passage.title}")

# %% [markdown]
# Both languages lead to the same section, German with a smaller cosine. The penguins lead to the passage of the last
# lesson that mentions them, but it is mostly about other things. A search always returns something, and the nearest
# passage need not be near.
#
# Last, a question in plain words. The lesson on serving answers it, in its section "Why latency explodes", but in terms
# of load, queues and requests. With the weights, the next cell searches by meaning. Without them, `labkit search` falls
# back on the words that question and passage share, weighted by how rare they are. Does the search find that section?

# %%
question = "how full may a machine get before customers wait"
hits, remark = search.search(course, question, encoder and encoder.encode)
print(question)
for hit in hits[:3]:
    print(f"    {hit.score:.2f}  {hit.passage.title}")
print(remark)

# %% [markdown]
# By words it does not: the passages that it finds share words with the question and miss its meaning. By meaning, the
# section is among the first hits.
#
# ## What I learned
#
# - Two small arrays, where a sentence begins and how long it is, replaced every mask. A row that is never read cannot
#   do any harm.
# - Bits are equal only if values are added in the same order, and it pays to know which kernels always keep the same
#   order.
# - A single number at the end hides mistakes that a step-by-step comparison shows immediately.
# - A cosine ranks. It does not judge.
#
# ## Resources
#
# - [N. Reimers and I. Gurevych: Sentence-BERT (2019)](https://arxiv.org/abs/1908.10084), the mean and the cosine
# - [all-MiniLM-L6-v2](https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), the model
#
# ## Try it
#
# - Write a pooling kernel that multiplies by a mask, give it to the model with `replace(model.kernels, ...)`, and
#   poison the batch again.
# - Give the wrong LayerNorms an epsilon of 1e-3. Is the smallest cosine now below 0.999{{ example }}? Predict it,
#   then run the cell.
# - With the weights: find two sentences that mean the opposite of each other and still have a cosine above
#   0.8{{ example }}.
#
# In the exercises you write the mean, find padding that leaks into attention, and write the search. Your mean runs in a
# small encoder, with every launch compared.
#
# Next: **making the encoder fast**. The encoder is right. What does each of its launches cost, and which of them can be
# removed?
