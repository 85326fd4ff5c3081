# %% [markdown]
# # 34 · A model in bytes
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how the tensors of a model get from several files into one buffer on the device
# - what travels between host and device in each step of an engine, and what never does
# - how to compute, from a model's configuration alone, how long a token must take
#
# ## The problem
#
# To a program, a model is a set of files full of values and a short configuration that gives their shapes. This lesson
# follows those bytes: from the files to the host, from there to the device, and from the device's memory through the
# kernels, once for every token. We do not run a model yet, but by the end we know how fast one can be.
#
# The model is Llama 3.2 1B, and this is its configuration:

# %%
from math import prod

import numpy as np

from labkit import agree, cuda, measure, show_source, table
from labkit._common.paths import find_root
from labkit.models.configs import LLAMA_3_2_1B

table([(name, str(value)) for name, value in vars(LLAMA_3_2_1B).items()], ["setting", "value"],
      f"{LLAMA_3_2_1B.parameters:,} parameters")

# %% [markdown]
# ## Prediction
#
# The parameters are bfloat16, two bytes each, and generating one token reads all of them. How many bytes do the
# parameters occupy, how long does it take to copy them to an H200, and how long does the H200 need for one token, at
# least?
#
# ## A model in several files
#
# Lesson 28 opened a *safetensors* file: a header in JSON with the name, type, shape and position of each tensor,
# and then the values. A large model comes as several such files, *shards*, and an index says which tensor is in which.
# Here is a small Llama from the course's tests, in three shards:

# %%
import json

from labkit.models.safetensors import read

folder = find_root() / "tests" / "golden" / "llama" / "llama3"
index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
shards = {file: read(folder / file) for file in sorted(set(index.values()))}
table([(name, file, str(shards[file].entries[name].shape)) for name, file in list(index.items())[:6]],
      ["tensor", "shard", "shape"], f"The first 6 of {len(index)} entries of the index")

# %% [markdown]
# labkit's `tensors` reads all shards of a folder. Here it is compared with the library safetensors, byte by byte.

# %%
from safetensors import deserialize

from labkit.models.load import tensors

ours = tensors(folder)
theirs = {key: bytes(found["data"]) for file in shards for key, found in deserialize((folder / file).read_bytes())}
same = sum(ours[key].tobytes() == theirs[key] for key in ours)
print(f"{same} of {len(ours)} tensors are as the library safetensors reads them")

# %% [markdown]
# ## One buffer and a map
#
# On the device all tensors share one allocation, filled by one copy, and the host keeps a map from names to offsets:
# the `Blob` of lesson 28. A large model has hundreds of tensors, so this saves hundreds of allocations and copies, each
# of which has a fixed cost. And we choose the order of the tensors. Here it is that of a forward pass. The next figure
# shows how the tensors of a layer, scattered over the shards, come together:

# %%
from labkit.course.drawings import model_in_bytes as pictures
from labkit.models.blob import Blob
from labkit.models.configs import names_in
from labkit.models.llama import Config

config = Config.read(folder / "config.json")
blob = Blob(ours, dtype=np.uint16, names=list(names_in(ours, config).values()))
print("every tensor as in its file:", all(np.array_equal(blob[key].copy_to_host(), ours[key]) for key in blob))
pictures.shards_and_blob({file.removesuffix(".safetensors"): each.entries for file, each in shards.items()},
                         blob.entries, blob.nbytes)

# %% [markdown]
# One copy moves the whole buffer. It comes from *pageable* memory, which is what a program gets by default, or from
# *pinned* memory, which is locked so that the GPU can fetch from it directly (lesson 01). How long does each take for
# all of Llama 3.2 1B?

# %%
copies = measure.recorded_series("copies", gpu="NVIDIA H200")
size = 2 * LLAMA_3_2_1B.parameters
rates = {kind: copies[f"h2d_{kind}"]["gbs"] for kind in ("pageable", "pinned")}
table([(kind, gbs, size / gbs / 1e6) for kind, gbs in rates.items()],
      {"memory of the host": "", "GB/s": ".1f", "ms for Llama 3.2 1B": ".0f"}, f"{size:,} bytes to an H200 in one copy")

# %% [markdown]
# Pinned memory is more than three times as fast{{ if pinned_faster }}. Either way it is a fraction of a second, paid
# once.
#
# ## Host and device
#
# In each step the host sends the ids of the new tokens with their positions and their slots in the cache, kilobytes in
# all, and gets one id per sequence back. Activations and caches never leave the device, and a step allocates nothing:
# the buffer of ids is allocated once, for the largest batch, and only its active part is copied.
#
# Three steps follow, with five, three and one active ids. What does the buffer hold after the last?

# %%
most = 8
waiting = cuda.to_device(np.zeros(most, np.int32))  # allocated once
rows = []
for active in ([3, 3, 5, 5, 8], [61, 7, 40], [12]):
    waiting[: len(active)].copy_to_device(np.array(active, np.int32))  # no allocation
    rows.append((str(active), 4 * len(active), str(waiting.copy_to_host())))
table(rows, ["active ids", "bytes copied", "the buffer after the copy"])

# %% [markdown]
# The active id, and stale ids from earlier steps. A kernel has to be told how many ids are active, or it computes with
# the stale ones, too. The first launch of a Llama is such a kernel. It copies one row of the embedding table per id, in
# its simplest form with one block per token:

# %%
from labkit.kernels import embedding

show_source(embedding.make_token_embedding_strided)

# %% [markdown]
# The grid has as many blocks as `ids` has elements. We pass a view of the one active id, and then, by mistake, the
# whole buffer. Will the mistake raise an error?

# %%
from labkit.kernels.ops.embedding import TOKEN_EMBEDDING_BF16

key = "model.embed_tokens.weight"
rows = []
for ids in (waiting[:1], waiting):
    out = cuda.device_array((ids.size, config.hidden_size), np.uint16)
    embedding.token_embedding(ids, blob[key], out)  # the table is a view of the one buffer
    right = np.array_equal(out.copy_to_host(), ours[key][ids.copy_to_host()])
    rows.append((ids.size, out.size, "yes" if right else "no"))
table(rows, ["ids", "values written", "rows of the table"])

# %%
agree(TOKEN_EMBEDDING_BF16)

# %% [markdown]
# Nothing fails: the rows of stale ids are rows of the table like any others. The only sign is that there are too many
# rows.
#
# ## Where ids come from
#
# Ids come from text and become text again. In a conversation, *special tokens* mark the beginning and end of each
# message, and a template that comes with the model says how. Llama 3 writes a question like this, with an empty line at
# the end:
#
# ```text
# <|begin_of_text|><|start_header_id|>user<|end_header_id|>
#
# What is a hacker?<|eot_id|><|start_header_id|>assistant<|end_header_id|>
#
# ```
#
# The small model of the next lesson has a shorter format. Its `Tokenizer` turns text into ids and ids into text. How
# many ids does this text become?

# %%
from labkit.models.tokenizer import Tokenizer

tokenizer = Tokenizer.of(find_root() / "data" / "tiny-llama")
text = "<|endoftext|><|user|>What is a hacker?<|end|><|assistant|>"
table([(token, repr(tokenizer.decode([token], marks=True)))
       for token in tokenizer.encode(text, marks=False)],  # the special tokens are in the text already
      {"id": "d", "token": ""})

# %% [markdown]
# A special token is a single id, however long its name. The text ends where the answer begins, and the model ends its
# answer with another special token: `<|end|>` here, and `<|eot_id|>` in Llama 3, where it is 128,009.
#
# ## The model on paper
#
# A file lists names and shapes, but says nothing about the order of their use. That is in the model's code. `planned`
# records the launches of a function without running them, and `SingleSequence` runs a model, here a `Llama`, on one
# text. Together they list what a forward pass of the small Llama in three shards would write, for 5 tokens. Keys and
# values go to the cache, in pages of 16 tokens, and only the last token gets *logits*, a score for each token that
# could be next.

# %%
from labkit.device import launches
from labkit.models.llama import Llama, SingleSequence

alone, order = SingleSequence(Llama(config, ours, "bfloat16"), context=16), []
launches.planned(lambda: alone([1, 2, 3, 4, 5], watch=lambda key, array: order.append((key, str(array.shape)))))
table([each for each in order if not each[0].startswith("layers.1")], ["written", "shape"],
      "Layer 1 is as layer 0")

# %% [markdown]
# A layer normalises its input, computes queries, keys and values in one product, rotates queries and keys by position,
# attends, projects, and adds the result to its input. The MLP follows: another norm, two products side by side, one of
# which gates the other, and a third product, whose result is added as well. The next lessons open each of these
# kernels.
#
# Now the real model. Which tensors do you expect to hold most of the bytes?

# %%
from labkit.models.configs import shapes

rows = []
for key, shape in shapes(LLAMA_3_2_1B).items():
    if not key.startswith("layers.") or key.startswith("layers.0."):
        times = LLAMA_3_2_1B.num_hidden_layers if key.startswith("layers.") else 1
        rows.append((key.replace(".0.", ".*."), times, str(shape), 2 * times * prod(shape) / 1e6))
table(rows, {"tensor": "", "how many": "", "shape": "", "MB in all": ",.1f"},
      f"{LLAMA_3_2_1B.parameters:,} parameters, {2 * LLAMA_3_2_1B.parameters:,} bytes")

# %% [markdown]
# The three matrices of the MLP hold about two thirds{{ if near(3 * 16 * 2048 * 8192 / 1235814400, 2 / 3) }} of the
# bytes, and the embedding table most of the rest.
#
# ## What a token must read
#
# To generate one token, each weight of each layer is read once. Of the embedding table, one row is read at the start
# and all of it at the end: `tie_word_embeddings` says that the table is also the *head*, the matrix that computes the
# logits. Attention reads the keys and values of the earlier tokens, here 1,024. The norms are too small to matter.
# Divided by the bandwidth that a copy reaches on the H200, the sum gives a bound for the time. Which part do you expect
# to take longest?

# %%
c = LLAMA_3_2_1B
layer = {key: 2 * c.num_hidden_layers * prod(shape) for key, shape in c.layer_parameters.items()}
parts = {"attention weights": sum(n for key, n in layer.items() if "self_attn" in key),
         "MLP weights": sum(n for key, n in layer.items() if "mlp" in key),
         "head: the whole table": 2 * c.vocab_size * c.hidden_size,
         "keys and values": 2 * 2 * 1024 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim}
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
pictures.bytes_of_a_token(parts, bandwidth)

# %%
token = sum(parts.values())
table([(name, factor * token / bandwidth / 1e6, 1e9 * bandwidth / (factor * token))
       for name, factor in (("bfloat16", 1), ("float32", 2))],
      {"stored as": "", "ms per token, at least": ".3f", "tokens/s, at most": ",.0f"})

# %% [markdown]
# The MLP takes longest, and the head about as long as four layers{{ if near(525.3 / 121.6, 4) }}. A kernel that only
# reads may be slightly faster than a copy. Beyond that, a single sequence gets faster only with fewer bytes. So the
# answers to the prediction are {{ model_gb:.2f }} GB, {{ pinned_ms:.0f }} ms for a copy from pinned memory, and
# {{ token_ms:.1f }} ms for a token.
#
# A *batch* of sequences is another matter: it reads the weights once for all of them, and only the keys and values for
# each. Lesson 38 works out how far that goes, and compares it with recorded steps.
#
# ## What was implemented
#
# - a reader for models in several files, and one buffer with a map
# - a buffer of ids that is allocated once and filled in part
# - a bound for the time of a token, from the configuration alone
#
# ## What I learned
#
# - A file's header gives names, shapes and offsets; the order of the work is in the code.
# - One allocation, one copy: the host keeps the map.
# - Weights cross to the device once. A step sends ids and gets ids back.
# - A token costs its bytes. Count them before writing a kernel.
#
# ## Resources
#
# - [Hugging Face: safetensors](https://github.com/huggingface/safetensors), the section "Format"
# - [A. Dubey et al.: The Llama 3 Herd of Models (2024)](https://arxiv.org/abs/2407.21783)
# - [J. Maczan: tiny-vllm](https://github.com/jmaczan/tiny-vllm), a course that covers the same ground as these two
#   parts
#
# ## Try it
#
# - At what context length does a token read as many bytes of keys and values as of weights?
# - How much faster would a token be if the weights had 8 bits, and the cache still 16?
# - How many sequences does it take until a step reads more bytes of caches than of weights?
#
# In the exercises for this lesson you lay out one buffer for several files, predict the time of a token for another
# model, and write the first launch of a Llama, with its launcher, from a blank page.
#
# Next: **Llama by hand**, which opens the first kernels of a layer.

# %% [numbers]
# pinned_faster = series.copies.h2d_pinned.gbs > 3 * series.copies.h2d_pageable.gbs
# model_gb = 2 * 1235814400 / 1e9
# pinned_ms = 1000 * model_gb / series.copies.h2d_pinned.gbs
# token_ms = 1000 * (model_gb + 1024 * 32768 / 1e9) / limits.bandwidth_gbs
