# %% [markdown]
# # 23 · Numbers and files
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how float32, float16 and bfloat16 store a number, bit by bit, and how a number is rounded to fit
# - why models are published in bfloat16, what it costs in a sum, and how kernels load eight numbers at once
# - how the tensors of a model get from several files into one buffer on the device
# - how to compute, from a model's configuration alone, how long a token must take
#
# ## The problem
#
# In five lessons we build an inference engine for Llama, from one correct token to many conversations at once. They
# cover the ground of [tiny-vllm](https://github.com/jmaczan/tiny-vllm), a course by J. Maczan in CUDA C++ with cuBLAS.
# Ours is in Python, with kernels of our own throughout.
#
# To a program, a model is a set of files full of numbers, and a short configuration that gives their shapes. This
# lesson is about those two. We do not run a model yet, but by the end we know how fast one can be.

# %%
from labkit.models.llama import LLAMA_3_2_1B

for name, value in vars(LLAMA_3_2_1B).items():
    print(f"{name:26}{value}")
print(f"{LLAMA_3_2_1B.parameters:,} parameters")

# %% [markdown]
# ## Prediction
#
# The parameters are published in bfloat16, and writing one token reads all of them. Write down three guesses. How many
# bytes do the parameters take? How long does an H200 need for one token, at the least? And what does 12.34 become in
# bfloat16: how many of its digits survive?
#
# ## A number in bits
#
# A floating-point number has three parts: a sign, an exponent and a fraction.
#
# $$\text{value} = (-1)^{\text{sign}} \cdot 1.\text{fraction} \cdot 2^{\,\text{exponent} - \text{bias}}$$
#
# float16 has 5 exponent bits, with a bias of 15, and 10 fraction bits. Here is 12.34 by hand. We divide by 2 until the
# result lies between 1 and 2, and count the divisions: that is the exponent. The leading 1 is always there, so it is
# not stored. The fraction is what follows it.

# %%
value, exponent = 12.34, 0
while value >= 2:
    value, exponent = value / 2, exponent + 1
print(f"12.34 = {value:.4f} * 2^{exponent}, and the exponent is stored as {exponent} + 15 = {exponent + 15}")
print(f"the fraction, in units of 2^-10: {value - 1:.4f} * 1024 = {(value - 1) * 1024:.2f}")
for kept in (555, 556):
    bits = (exponent + 15) << 10 | kept
    print(f"  {kept}: 0 {exponent + 15:05b} {kept:010b} = 0x{bits:X} = {(1 + kept / 1024) * 2**exponent}")

# %% [markdown]
# The fraction would have to be 555.52, and only whole numbers fit. tiny-vllm works through this example digit by digit
# and drops the digits that do not fit. That is *truncation*, and it gives 0x4A2B. The nearest float16 is 0x4A2C. IEEE
# 754 rounds to nearest by default, and so do GPUs and NumPy.

# %%
from labkit.kernels.dtypes import float_table
from labkit.measure.plots import numbers as pictures

float_table(12.34)

# %%
pictures.bits_of(12.34)

# %% [markdown]
# Only the first three digits survive in bfloat16. It has the 8 exponent bits of float32, and 7 of its 23 fraction bits.
#
# ## Rounding
#
# The upper 16 bits of a float32 are a bfloat16, so truncation is a shift. To round to nearest, we add 0x7FFF before the
# shift, which carries into the upper half if the lower half is more than 0x8000. If it is exactly 0x8000, the number is
# a tie and goes to the neighbour whose last bit is 0; adding the last bit that is kept does that. The rule is called
# *round to nearest, ties to even*.

# %%
import numpy as np

from labkit.kernels.dtypes import bfloat16_of, float32_of


def rounded_bits(bits):  # uint32: the bits of float32 numbers
    even = bits >> np.uint32(16) & np.uint32(1)  # the last bit that is kept
    return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)


numbers = np.random.default_rng(0).uniform(1, 2, 100_000).astype(np.float32)
for name, kept in (("truncated", (numbers.view(np.uint32) >> 16).astype(np.uint16)),
                   ("to nearest", rounded_bits(numbers.view(np.uint32)))):
    error = (float32_of(kept) - numbers) * 128  # in units of the last bit
    print(f"{name:12} mean error {error.mean():+.3f}, largest {np.abs(error).max():.3f}")

# %% [markdown]
# Truncation moves every number towards zero, so in a long sum of positive numbers its errors add up. The errors of
# rounding to nearest have either sign and tend to cancel.
#
# One kind of value breaks the formula: NaN, whose exponent bits are all 1 and whose fraction is not 0. What does it
# become?

# %%
for pattern in (0x7F800001, 0x7FFFFFFF):
    nan = np.array([pattern], np.uint32)
    print(f"0x{pattern:X} is {nan.view(np.float32)[0]}: the formula gives {float32_of(rounded_bits(nan))[0]}, "
          f"bfloat16_of {float32_of(bfloat16_of(nan.view(np.float32)))[0]}")

# %% [markdown]
# The first NaN has its fraction in the lower half and becomes infinity. In the second the carry runs through the
# exponent into the sign, and the result is -0. NaN needs a test of its own. Without it, a fault in a model can come out
# as an ordinary zero and go unnoticed.
#
# ## Range and precision
#
# The two 16-bit formats divide their bits differently. The exponent bits decide how large and how small a number can
# be, the fraction bits how far apart neighbours are.

# %%
pictures.spacing()

# %%
from labkit.kernels.dtypes import BFLOAT16, FLOAT16, FLOAT32, decode, encode

print(f"{'':10}{'smallest':>12}{'smallest normal':>17}{'largest':>12}{'after 1':>13}   "
      f"{'70,000':>8}{'1e-8':>10}")
for form in (FLOAT32, FLOAT16, BFLOAT16):
    one = encode(1.0, form)
    least, normal, largest, after = (decode(bits, form) for bits in (
        1, 1 << form.fraction_bits, form.infinity - 1, one + 1))
    print(f"{form.name:10}{least:12.2g}{normal:17.2g}{largest:12.3g}{after:13.9g}   "
          f"{decode(encode(70_000, form), form):8g}{decode(encode(1e-8, form), form):10.3g}")

# %% [markdown]
# Near 1, float16 has the finer steps. Its range is narrow: 70,000 overflows to infinity, and 1e-8 becomes 0. Below the
# smallest normal number the spacing stays the same (the flat parts of the lines). These are the *subnormal* numbers,
# with a leading 0 in place of the 1.
#
# Rounding to bfloat16 changes a weight by at most one part in 256, which hardly changes the output of a trained
# network. Overflow is worse: the next norm or softmax turns an infinity into NaN. Training needs both ends of the
# range, for tiny gradients and large activations. So large models are trained in bfloat16, and published as they were
# trained.
#
# ## What it costs in a sum
#
# A weight is rounded once. A 16-bit accumulator is rounded after every addition. Keep adding 1: where does the sum stop
# growing in bfloat16, and where in float16?

# %%
def as_bfloat16(x):
    return float32_of(bfloat16_of(x))


for name, rounded in (("bfloat16", as_bfloat16), ("float16", lambda x: x.astype(np.float16).astype(np.float32))):
    total = np.zeros(1, np.float32)
    while rounded(total + 1) > total:
        total = rounded(total + 1)
    print(f"{name}: 1 + 1 + 1 + ... = {total[0]:,.0f}")

rng = np.random.default_rng(1)
x, w = (as_bfloat16(rng.standard_normal((200, 2048)).astype(np.float32)) for _ in range(2))
exact = np.sum(x.astype(np.float64) * w, axis=1)
for name, rounded in (("bfloat16", as_bfloat16), ("float32", lambda acc: acc)):
    acc = np.zeros(200, np.float32)
    for k in range(2048):
        acc = rounded(acc + x[:, k] * w[:, k])
    error = np.sqrt(np.mean((acc - exact) ** 2) / np.mean(exact**2))
    print(f"{name} accumulator: relative error of a dot product {error:.1e}")

# %% [markdown]
# From 256 on, neighbouring bfloat16 numbers are 2 apart. 257 is a tie and goes to 256, whose last bit is 0. So kernels
# load and store bfloat16 but keep their accumulators in float32. The products are exact there: two significands of 8
# bits have a product of at most 16, and a float32 has 24.
#
# ## Eight numbers in a load
#
# NumPy has no bfloat16, so our arrays are `uint16`. Two neighbours form a 32-bit word, the first one in its low half. A
# shift and a mask make two float32 of it:

# %%
pair = bfloat16_of([12.34, -1.5])
(word,) = pair.view(np.uint32)
first, second = np.array([word << np.uint32(16), word & np.uint32(0xFFFF0000)]).view(np.float32)
print(f"0x{word:08X}: {first}, {second}")

# %% [markdown]
# A thread can load 128 bits at once, which is eight bfloat16. The first kernel of a Llama only copies rows: `out[t]` is
# row `ids[t]` of the embedding table. There is one version with a number per load, and this one with eight. (`EACH` is
# 8, and `MISSING` is a word of two NaN, for an id that is not in the table.)

# %%
from labkit import show_source
from labkit.kernels import embedding
from labkit.kernels.elements import BFLOAT16 as BF16

by_one, by_eight = embedding.make_token_embedding_strided(BF16), embedding.make_token_embedding(BF16)
show_source(by_eight)

# %% [markdown]
# Take four tokens and rows of 2,048 numbers, 4,096 bytes. How many 32-byte sectors does each kernel move, and how many
# requests does it make, a request being one load or store of a whole warp? Guess both ratios.

# %%
from labkit import agree, cuda, observe

table = cuda.to_device(bfloat16_of(rng.standard_normal((97, 2048)).astype(np.float32)))
ids, rows = cuda.to_device(np.array([5, 96, 0, 5], np.int32)), cuda.device_array((4, 2048), np.uint16)
for name, kernel in (("one number per load", by_one), ("eight numbers per load", by_eight)):
    counts = observe(kernel[4, 256], ids, table, rows).counts
    print(f"{name:24}{counts['sectors']:7,} sectors{counts['global_requests']:7,} requests")
agree(embedding.TOKEN_EMBEDDING_BF16)

# %%
from labkit import measure

recorded = measure.recorded_ladder("token_embedding_bf16", gpu="NVIDIA H200")
recorded or print("The times on the H200 have not been recorded yet.")

# %% [markdown]
# The sectors are the same, and the wide loads need far fewer requests for them: a warp gets 512 bytes per request, not
# 64. (The ratio stays below eight because each warp also loads an id.) Lessons 12 and 14 found that the bytes in flight
# decide how much bandwidth a kernel reaches, and wide loads put more of them in flight.
#
# ## A model in several files
#
# Lesson 20 took a safetensors file apart: 8 bytes with the length of the header, a header in JSON, then the numbers. A
# large model comes as several such files, *shards*, and an index says which tensor is in which. This is a small Llama
# from the course's tests, in three shards. We read its index and headers by hand:

# %%
import json

from labkit._common.paths import find_root

folder = find_root() / "tests" / "golden" / "llama" / "llama3"
index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
headers, data = {}, {}
for file in sorted(set(index.values())):
    raw = (folder / file).read_bytes()
    length = int.from_bytes(raw[:8], "little")  # uint64, lowest byte first
    header = json.loads(raw[8 : 8 + length])
    print(file, header.pop("__metadata__", None), f"{len(header)} tensors")  # free text, not a tensor
    headers[file], data[file] = header, raw[8 + length :]  # offsets count from here
name = "model.layers.0.self_attn.k_proj.weight"
entry = headers[index[name]][name]
begin, end = entry["data_offsets"]
by_hand = np.frombuffer(data[index[name]][begin:end], np.uint16).reshape(entry["shape"])
print(name, entry, float32_of(by_hand[0, :3]))

# %%
from safetensors import deserialize

from labkit.models.load import tensors

ours = tensors(folder)  # labkit's reader, over all shards
theirs = {key: bytes(found["data"]) for file in headers for key, found in deserialize((folder / file).read_bytes())}
same = sum(ours[key].tobytes() == theirs[key] for key in ours)
print(f"{same} of {len(ours)} tensors as the library safetensors reads them; {name} as read by hand:",
      np.array_equal(ours[name], by_hand))

# %% [markdown]
# ## One buffer and a map
#
# On the device, as in lesson 20, all tensors share a single allocation, filled by a single copy. The host keeps a map
# from names to offsets. There are two reasons for it. Every allocation and every copy has a fixed cost, and a large
# model has hundreds of tensors. And we choose the order: here it is that of a forward pass.

# %%
from labkit.models.blob import Blob
from labkit.models.llama import Config, names_in
from labkit.models.safetensors import read

config = Config.read(folder / "config.json")
blob = Blob(ours, dtype=np.uint16, names=list(names_in(ours, config).values()))
print(name, blob.entries[name])
print("every tensor as in its file:", all(np.array_equal(blob[key].copy_to_host(), ours[key]) for key in blob))
pictures.shards_and_blob({file.removesuffix(".safetensors"): read(folder / file).entries for file in headers},
                         blob.entries, blob.nbytes)

# %% [markdown]
# In a file each tensor begins where the one before ends. In the buffer each begins at a multiple of 16 bytes, because a
# 128-bit load needs such an address. How many bytes of padding lie between the three tensors below? And how long does
# it take to copy all of Llama 3.2 1B, at the rates that lesson 01 recorded?

# %%
from labkit.models.blob import layout

shapes_of_three = {"a": (3,), "b": (5, 7), "c": (2, 2)}
places, nbytes = layout(shapes_of_three, dict.fromkeys(shapes_of_three, np.dtype(np.uint16)))
padding = nbytes - sum(place.nbytes for place in places.values())
print({name: (place.offset, place.nbytes) for name, place in places.items()}, f"{padding} of {nbytes} bytes: padding")

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
gpu = cuda.get_current_device()
memory = cuda.current_context().get_memory_info()
print(f"{gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability))}, "
      f"{gpu.MULTIPROCESSOR_COUNT} SMs, up to {gpu.MAX_THREADS_PER_BLOCK:,} threads per block")
print(f"memory: {memory.free / 1e9:.1f} of {memory.total / 1e9:.1f} GB are free")

# %% [markdown]
# Then there is the traffic between host and device. The weights are copied once, at the start. In each step the host
# sends the ids of the new tokens with their positions and their places in the cache, kilobytes in all, and gets one id
# per sequence back. Activations and caches never leave the device, and a step allocates nothing: the buffer of ids is
# made once, for the largest batch, and only its active part is copied.

# %%
most = 8
waiting = cuda.to_device(np.zeros(most, np.int32))  # allocated once
for active in ([61, 7, 40], [12], [3, 3, 5, 5, 8]):
    waiting[: len(active)].copy_to_device(np.array(active, np.int32))  # no allocation
    print(f"{len(active)} active: {4 * len(active)} of {waiting.nbytes} bytes copied,", waiting.copy_to_host())

# %% [markdown]
# After the active ids lie stale ones. A kernel has to be given the number of active ids, or it computes with those,
# too.
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
# The small model of the next lesson has a shorter format:

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
# record the launches of a forward pass without running them. Here is what those of the small Llama write, for 5 tokens.
# (Keys and values go to the cache, in pages of 16 tokens, and only the last token gets logits.)

# %%
from labkit.device import launches
from labkit.models.llama import Alone, Llama

alone, order = Alone(Llama(config, ours), context=16), []
launches.planned(lambda: alone([1, 2, 3, 4, 5], watch=lambda name, array: order.append((name, array.shape))))
for name, shape in order:
    if not name.startswith("layers.1"):  # as layer 0
        print(f"{name:22}{shape}")

# %% [markdown]
# A layer normalises its input, computes queries, keys and values in one product, rotates queries and keys by position,
# attends, projects, and adds the result to its input. The MLP follows: another norm, two products side by side, one of
# which gates the other, and a third product, which is added as well. The next lessons open each of these kernels.
#
# Now the real model. Which tensors do you expect to hold most of the bytes?

# %%
from math import prod

from labkit.models.llama import shapes

for name, shape in shapes(LLAMA_3_2_1B).items():
    if not name.startswith("layers.") or name.startswith("layers.0."):
        times = LLAMA_3_2_1B.num_hidden_layers if name.startswith("layers.") else 1
        print(f"{times:2} x {name.replace('.0.', '.*.'):45}{str(shape):18}{2 * times * prod(shape) / 1e6:9,.1f} MB")
print(f"{LLAMA_3_2_1B.parameters:,} parameters, {2 * LLAMA_3_2_1B.parameters:,} bytes")

# %% [markdown]
# ## What a token must read
#
# To write one token, each weight of each layer is read once. Of the embedding table, one row is read at the start, and
# at the end all of it: `tie_word_embeddings` says that the table is also the head. Attention reads the keys and values
# of the tokens before, here 1,024. (The norms are too small to matter.) The sum, divided by the bandwidth that a copy
# reaches on the H200, gives a bound for the time:

# %%
c = LLAMA_3_2_1B
layer = {name: 2 * c.num_hidden_layers * prod(shape) for name, shape in c.layer_parameters.items()}
parts = {"attention weights": sum(n for name, n in layer.items() if "self_attn" in name),
         "MLP weights": sum(n for name, n in layer.items() if "mlp" in name),
         "head: the whole table": 2 * c.vocab_size * c.hidden_size,
         "keys and values": 2 * 2 * 1024 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim}
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
pictures.bytes_of_a_token(parts, bandwidth)

# %%
token = sum(parts.values())
print(f"in bfloat16: {token / bandwidth / 1e6:.3f} ms, {1e9 * bandwidth / token:,.0f} tokens a second at most")
print(f"in float32:  {2 * token / bandwidth / 1e6:.3f} ms")
weights, cache = 2 * c.parameters, parts["keys and values"]
for sequences in (1, 32, 256):
    step = (weights + sequences * cache) / bandwidth / 1e6
    print(f"sequences: {sequences:3}, a step: {step:.3f} ms, together {1e3 * sequences / step:,.0f} tokens a second")

# %% [markdown]
# A kernel that only reads may be slightly faster than a copy. Beyond that, only fewer bytes make a single sequence
# faster. But the sequences of a batch share one pass over the weights. That is the reason for the last three of these
# lessons: caches in pages, and batches whose members come and go. They put the engine's recorded times beside this
# bound.
#
# ## What was implemented
#
# - numbers taken apart and rounded by hand, in three formats
# - the embedding of a Llama in bfloat16, with eight numbers per load
# - a reader for models in several files, and one buffer with a map
# - a bound for the time of a token, from the configuration alone
#
# ## What I learned
#
# - bfloat16 is float32 with its lower half rounded away: the same range, and two or three digits.
# - Round to nearest even, test for NaN, and never accumulate in 16 bits.
# - Wide loads move the same sectors with fewer requests.
# - A file's header gives names, shapes and places; the order of the work is in the code.
# - A token costs its bytes. Count them before writing a kernel.
#
# ## Resources
#
# - [J. Maczan: tiny-vllm](https://github.com/jmaczan/tiny-vllm), the source of the example 12.34
# - [D. Goldberg: What Every Computer Scientist Should Know About Floating-Point Arithmetic
#   (1991)](https://doi.org/10.1145/103162.103163)
# - [S. Wang, P. Kanwar: BFloat16, the secret to high performance on Cloud TPUs
#   (2019)](https://cloud.google.com/blog/products/ai-machine-learning/bfloat16-the-secret-to-high-performance-on-cloud-tpus)
# - [Hugging Face: safetensors](https://github.com/huggingface/safetensors), the section "Format"
# - [A. Dubey et al.: The Llama 3 Herd of Models (2024)](https://arxiv.org/abs/2407.21783)
#
# ## Try it
#
# - `float_table(0.1)`, `float_table(65_520.0)`, `float_table(1e-7)`: guess the row of float16 first.
# - Find the smallest whole number that bfloat16 cannot hold. And float16? And float32?
# - At what context length does a token read as many bytes of keys and values as of weights?
# - How much faster would a token be if the weights had 8 bits, and the cache still 16?
#
# In the exercises you round to bfloat16 with integers, load eight numbers at once, repair a sum, lay out a buffer,
# predict the time of a token for another model, and write the embedding with its launcher from a blank page.
