# %% [markdown]
# # 34 · A model in bytes
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how the tensors of a model get from several files into one buffer on the device
# - what travels between host and device in each step of an engine, and what never does
# - how to compute, from a model's configuration alone, how long a token must take
#
# ## The problem
#
# To a program, a model is a set of files full of numbers, and a short configuration that gives their shapes. This
# lesson follows those bytes: from the files to the host, from there to the device, and from the device's memory through
# the kernels, once for every token. We do not run a model yet, but by the end we know how fast one can be.

# %%
from labkit.models.configs import LLAMA_3_2_1B

for name, value in vars(LLAMA_3_2_1B).items():
    print(f"{name:26}{value}")
print(f"{LLAMA_3_2_1B.parameters:,} parameters")

# %% [markdown]
# ## Prediction
#
# The parameters are bfloat16, two bytes each, and writing one token reads all of them. Write down three guesses. How
# many bytes do the parameters take? How long does it take to copy them to an H200? And how long does the H200 need for
# one token, at the least?
#
# ## A model in several files
#
# Lesson 28 took a *safetensors* file apart: 8 bytes with the length of the header, a header in JSON, then the numbers.
# A large model comes as several such files, *shards*, and an index says which tensor is in which. This is a small Llama
# from the course's tests, in three shards. We read its index and headers by hand, and then one tensor:

# %%
import json

import numpy as np

from labkit._common.paths import find_root
from labkit.kernels.dtypes import float32_of

folder = find_root() / "tests" / "golden" / "llama" / "llama3"
index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
headers, data = {}, {}
for file in sorted(set(index.values())):
    raw = (folder / file).read_bytes()
    length = int.from_bytes(raw[:8], "little")  # uint64, lowest byte first
    header = json.loads(raw[8 : 8 + length])
    print(file, header.pop("__metadata__", None), f"{len(header)} tensors")  # free text, not a tensor
    headers[file], data[file] = header, raw[8 + length :]  # offsets count from here

# %%
name = "model.layers.0.self_attn.k_proj.weight"
entry = headers[index[name]][name]
begin, end = entry["data_offsets"]
by_hand = np.frombuffer(data[index[name]][begin:end], np.uint16).reshape(entry["shape"])  # the bits of bfloat16
print(name, entry, float32_of(by_hand[0, :3]))

# %% [markdown]
# labkit's reader does the same for all shards. Here it is compared with the library safetensors, byte by byte.

# %%
from safetensors import deserialize

from labkit.models.load import tensors

ours = tensors(folder)
theirs = {key: bytes(found["data"]) for file in headers for key, found in deserialize((folder / file).read_bytes())}
same = sum(ours[key].tobytes() == theirs[key] for key in ours)
print(f"{same} of {len(ours)} tensors as the library safetensors reads them; {name} as read by hand:",
      np.array_equal(ours[name], by_hand))

# %% [markdown]
# ## One buffer and a map
#
# On the device, as in lesson 28, all tensors share a single allocation, filled by a single copy. The host keeps a map
# from names to offsets. There are two reasons for it. Every allocation and every copy has a fixed cost, and a large
# model has hundreds of tensors. And we choose the order: here it is that of a forward pass.

# %%
from labkit.course.drawings import model_in_bytes as pictures
from labkit.models.blob import Blob
from labkit.models.configs import names_in
from labkit.models.llama import Config
from labkit.models.safetensors import read

config = Config.read(folder / "config.json")
blob = Blob(ours, dtype=np.uint16, names=list(names_in(ours, config).values()))
print(name, blob.entries[name])
print("every tensor as in its file:", all(np.array_equal(blob[key].copy_to_host(), ours[key]) for key in blob))
pictures.shards_and_blob({file.removesuffix(".safetensors"): read(folder / file).entries for file in headers},
                         blob.entries, blob.nbytes)

# %% [markdown]
# In a file each tensor begins where the one before ends. In the buffer each begins at a multiple of 16 bytes, because a
# 128-bit load, which fetches eight bfloat16 at once, needs such an address. How many bytes of padding lie between the
# three tensors below?

# %%
from labkit.models.blob import layout

shapes_of_three = {"a": (3,), "b": (5, 7), "c": (2, 2)}
places, nbytes = layout(shapes_of_three, dict.fromkeys(shapes_of_three, np.dtype(np.uint16)))
padding = nbytes - sum(place.nbytes for place in places.values())
print({key: (place.offset, place.nbytes) for key, place in places.items()}, f"{padding} of {nbytes} bytes: padding")

# %% [markdown]
# How long does it take to copy all of Llama 3.2 1B, at the rates that lesson 01 recorded? Pageable memory is what a
# program gets by default; pinned memory is locked in place, so that the GPU can fetch from it directly.

# %%
from labkit import measure

copies = measure.recorded_series("copies", gpu="NVIDIA H200")
for kind in ("pageable", "pinned"):
    ms = 2 * LLAMA_3_2_1B.parameters / copies[f"h2d_{kind}"]["gbs"] / 1e6
    print(f"Llama 3.2 1B to the H200 in one copy, from {kind} memory: {ms:.0f} ms")

# %% [markdown]
# ## Host and device
#
# Kernels work in the GPU's own memory, and whatever they need has to be there before the launch. So an engine begins by
# looking at how much memory there is. (`labkit doctor` shows more. Without a GPU, labkit's CPU device reports this
# machine's cores as SMs, this machine's memory, and a GPU's limits for a launch.)

# %%
from labkit import cuda

gpu = cuda.get_current_device()
memory = cuda.current_context().get_memory_info()
print(f"{gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability))}, "
      f"{gpu.MULTIPROCESSOR_COUNT} SMs, up to {gpu.MAX_THREADS_PER_BLOCK:,} threads per block")
print(f"memory: {memory.free / 1e9:.1f} of {memory.total / 1e9:.1f} GB are free")

# %% [markdown]
# The weights are copied once, at the start. In each step the host sends the ids of the new tokens with their positions
# and their places in the cache, kilobytes in all, and gets one id per sequence back. Activations and caches never leave
# the device, and a step allocates nothing: the buffer of ids is made once, for the largest batch, and only its active
# part is copied. Three steps follow, with five, three and one active ids. What does the buffer hold after the last?

# %%
most = 8
waiting = cuda.to_device(np.zeros(most, np.int32))  # allocated once
for active in ([3, 3, 5, 5, 8], [61, 7, 40], [12]):
    waiting[: len(active)].copy_to_device(np.array(active, np.int32))  # no allocation
    print(f"{len(active)} active: {4 * len(active)} of {waiting.nbytes} bytes copied,", waiting.copy_to_host())

# %% [markdown]
# After the active id lie stale ones, of the steps before. A kernel has to be given the number of active ids, or it
# computes with those, too. The first launch of a Llama looks up a row of the embedding table for each id. Here it gets
# a view of the one active id, and then, by mistake, the whole buffer:

# %%
from labkit import agree
from labkit.kernels.embedding import token_embedding
from labkit.kernels.ops.embedding import TOKEN_EMBEDDING_BF16

key = "model.embed_tokens.weight"
for ids in (waiting[:1], waiting):
    out = cuda.device_array((ids.size, config.hidden_size), np.uint16)
    token_embedding(ids, blob[key], out)  # the table is a view of the one buffer
    print(f"ids: {ids.size}, numbers written: {out.size:5,}, rows of the table:",
          np.array_equal(out.copy_to_host(), ours[key][ids.copy_to_host()]))
agree(TOKEN_EMBEDDING_BF16)

# %% [markdown]
# Nothing fails: the rows of stale ids are rows of the table like any others. The only sign is that there are too many.
#
# ## What the ids stand for
#
# Ids come from text and become text again. In a conversation, *special tokens* stand around each message, and a
# template that comes with the model says which. Llama 3 writes a question like this, with an empty line at the end:
#
# ```text
# <|begin_of_text|><|start_header_id|>user<|end_header_id|>
#
# What is a hacker?<|eot_id|><|start_header_id|>assistant<|end_header_id|>
#
# ```
#
# The small model of the next lesson has a shorter format. How many ids does this text become?

# %%
from labkit.models.tokenizer import Tokenizer

tokenizer = Tokenizer.of(find_root() / "data" / "tiny-llama")
text = "<|endoftext|><|user|>What is a hacker?<|end|><|assistant|>"
for token in tokenizer.encode(text, marks=False):  # the special tokens are in the text already
    print(f"{token:5} {tokenizer.decode([token], marks=True)!r}")

# %% [markdown]
# The text ends where the answer begins. However long its name, a special token is a single id. The model ends its
# answer with one: `<|end|>` here, and `<|eot_id|>` in Llama 3, where it is 128,009.
#
# ## The model on paper
#
# A file lists names and shapes, but not the order in which they are used. That is in the model's code. labkit can
# record the launches of a forward pass without running them. Here is what those of the small Llama in three shards
# write, for 5 tokens. (Keys and values go to the cache, in pages of 16 tokens, and only the last token gets *logits*, a
# score for each token that could be next.)

# %%
from labkit.device import launches
from labkit.models.llama import Llama, SingleSequence

alone, order = SingleSequence(Llama(config, ours), context=16), []
launches.planned(lambda: alone([1, 2, 3, 4, 5], watch=lambda key, array: order.append((key, array.shape))))
for key, shape in order:
    if not key.startswith("layers.1"):  # as layer 0
        print(f"{key:22}{shape}")

# %% [markdown]
# A layer normalises its input, computes queries, keys and values in one product, rotates queries and keys by position,
# attends, projects, and adds the result to its input. The MLP follows: another norm, two products side by side, one of
# which gates the other, and a third product, which is added as well. The next lessons open each of these kernels.
#
# Now the real model. Which tensors do you expect to hold most of the bytes?

# %%
from math import prod

from labkit.models.configs import shapes

for key, shape in shapes(LLAMA_3_2_1B).items():
    if not key.startswith("layers.") or key.startswith("layers.0."):
        times = LLAMA_3_2_1B.num_hidden_layers if key.startswith("layers.") else 1
        print(f"{times:2} x {key.replace('.0.', '.*.'):45}{str(shape):18}{2 * times * prod(shape) / 1e6:9,.1f} MB")
print(f"{LLAMA_3_2_1B.parameters:,} parameters, {2 * LLAMA_3_2_1B.parameters:,} bytes")

# %% [markdown]
# ## What a token must read
#
# To write one token, each weight of each layer is read once. Of the embedding table, one row is read at the start, and
# at the end all of it: `tie_word_embeddings` says that the table is also the *head*, the matrix that computes the
# logits. Attention reads the keys and values of the tokens before, here 1,024. (The norms are too small to matter.) The
# sum, divided by the bandwidth that a copy reaches on the H200, gives a bound for the time:

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
print(f"in bfloat16: {token / bandwidth / 1e6:.3f} ms, {1e9 * bandwidth / token:,.0f} tokens a second at most")
print(f"in float32:  {2 * token / bandwidth / 1e6:.3f} ms")

# %% [markdown]
# A kernel that only reads may be slightly faster than a copy. Beyond that, only fewer bytes make a single sequence
# faster.
#
# ## What a batch shares
#
# A *batch* of sequences writes a token for each of them in one step. The step reads the weights once for all, and the
# keys and values of each sequence. With 32 sequences, by how much is a step longer, and how many times as many tokens
# come out of it in a second? And with 256?

# %%
weights, cache = 2 * c.parameters, parts["keys and values"]
for sequences in (1, 32, 256):
    step = (weights + sequences * cache) / bandwidth / 1e6
    print(f"sequences: {sequences:3}, a step: {step:.3f} ms, together {1e3 * sequences / step:,.0f} tokens a second")

# %% [markdown]
# With 32 sequences the weights are still most of what a step reads. With 256 it is the caches, which each sequence has
# for itself. That is why the next part of the course deals with caches in pages, and with batches whose members come
# and go. They put the engine's recorded times beside this bound.
#
# ## What was implemented
#
# - a reader for models in several files, and one buffer with a map
# - a buffer of ids that is allocated once and filled in part
# - a bound for the time of a token, from the configuration alone
#
# ## What I learned
#
# - A file's header gives names, shapes and places; the order of the work is in the code.
# - One allocation, one copy: the host keeps the map, and tensors begin at multiples of 16 bytes.
# - Weights cross to the device once. A step sends ids and gets ids back.
# - A token costs its bytes. Count them before writing a kernel.
# - A batch shares the weights, and each sequence brings its own cache.
#
# ## Resources
#
# - [Hugging Face: safetensors](https://github.com/huggingface/safetensors), the section "Format"
# - [A. Dubey et al.: The Llama 3 Herd of Models (2024)](https://arxiv.org/abs/2407.21783)
# - [J. Maczan: tiny-vllm](https://github.com/jmaczan/tiny-vllm), the course whose ground these two parts cover
#
# ## Try it
#
# - At what context length does a token read as many bytes of keys and values as of weights?
# - How much faster would a token be if the weights had 8 bits, and the cache still 16?
# - From how many sequences on does a step read more of caches than of weights? Vary the 1,024 tokens, too.
#
# In the exercises you lay out one buffer for several files, predict the time of a token for another model, and write
# the first launch of a Llama, with its launcher, from a blank page.
#
# Next: **Llama by hand**, where the first kernels of a layer are opened.
