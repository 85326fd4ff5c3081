# %% [markdown]
# # 17 · Numbers and files
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - how float32, float16 and bfloat16 hold a number, bit by bit, and how a number is rounded to fit
# - why models are published in bfloat16, what it costs in a sum, and how kernels read eight numbers at once
# - how the tensors of a model get from several files into one buffer on the device
# - how to compute from a model's configuration how long a token must take, before any of it is written
#
# ## The problem
#
# This is the first of five lessons that build an engine for Llama, from the first right token to many conversations at
# once. They cover the ground of [tiny-vllm](https://github.com/jmaczan/tiny-vllm), a course by J. Maczan that does it
# in CUDA C++ with cuBLAS. Ours is written in Python, and every kernel is our own.
#
# To a program, a model is files full of numbers and a short configuration that says how many of each kind there are.
# Today is about these two. No model runs yet, and at the end you will know how fast one can be.

# %%
from labkit.models.llama import LLAMA_3_2_1B

for name, value in vars(LLAMA_3_2_1B).items():
    print(f"{name:26}{value}")
print(f"{LLAMA_3_2_1B.parameters:,} parameters")

# %% [markdown]
# ## Prediction
#
# The parameters are published as bfloat16. To write one token, the model multiplies with nearly all of them. Write down
# three guesses. How many bytes are these parameters? How long does an H200 need at least for one token? And what does
# 12.34 become in bfloat16: how many of its digits are still right?
#
# ## A number in bits
#
# A floating-point number has three parts: a sign, an exponent and a fraction.
#
# $$\text{value} = (-1)^{\text{sign}} \cdot 1.\text{fraction} \cdot 2^{\,\text{exponent} - \text{bias}}$$
#
# A float16 has 5 bits of exponent with a bias of 15, and 10 bits of fraction. Here is 12.34 by hand. It is divided by 2
# until it lies between 1 and 2, and the exponent counts how often. The 1 in front of the point is the same for every
# number, so it is not stored. The fraction is the rest.

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
# The fraction would have to be 555.52, and only whole numbers fit. tiny-vllm works this example out digit by digit and
# drops the digits that do not fit. That is *truncation*, and it gives 0x4A2B. The nearest float16 is the next one,
# 0x4A2C. IEEE 754 rounds to nearest by default, and so do GPUs and NumPy.

# %%
from labkit.kernels.dtypes import float_table
from labkit.measure.plots import numbers as pictures

float_table(12.34)

# %%
pictures.bits_of(12.34)

# %% [markdown]
# In bfloat16 three digits are left. It has 8 bits of exponent, as a float32 has, and 7 of the 23 bits of fraction.
#
# ## Rounding
#
# A bfloat16 is the upper half of a float32, so truncation is a shift by 16 bits. Rounding to nearest adds a little
# before the shift: enough to carry into the upper half where the lower half is more than 0x8000. A tie, exactly 0x8000,
# goes to the number whose last bit is 0. That is called *nearest even*, and it is one addition more:

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
# Truncation makes every number smaller in magnitude, so its errors add up in a long sum. The errors of rounding to
# nearest have either sign and tend to cancel.
#
# One kind of value breaks the formula. What do you expect for NaN, whose bits are an exponent of all ones and any
# fraction but 0?

# %%
for pattern in (0x7F800001, 0x7FFFFFFF):
    nan = np.array([pattern], np.uint32)
    print(f"0x{pattern:X} is {nan.view(np.float32)[0]}: the formula gives {float32_of(rounded_bits(nan))[0]}, "
          f"bfloat16_of {float32_of(bfloat16_of(nan.view(np.float32)))[0]}")

# %% [markdown]
# The first NaN has its fraction in the lower half and becomes infinity. In the second the addition carries into the
# sign, and the result is zero. NaN needs a test of its own; without it, a fault in a model turns into an ordinary
# number and goes unnoticed.
#
# ## Range and precision
#
# Both 16-bit formats have the same number of bits. How they divide them decides which numbers exist at all, and how far
# apart these are.

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
# float16 has the finer steps and the narrow range: 70,000 overflows to infinity, and 1e-8 becomes 0. Below the smallest
# normal number the steps stay the same size, the flat parts on the left: these are the *subnormal* numbers, with a 0 in
# front of the point.
#
# Rounding to bfloat16 changes a weight by at most one part in 256, and the output of a trained network hardly changes.
# An infinity is worse: the next layer turns it into NaN. Training reaches both ends of the range, with tiny gradients
# and large activations. So large models are trained in bfloat16, and they are published as they were trained.
#
# ## What it costs in a sum
#
# A weight is rounded once. A sum is rounded after every addition. Add 1 again and again: where does the sum stop
# growing in bfloat16, and where in float16?

# %%
def as_bfloat16(x):
    return float32_of(bfloat16_of(x))


def as_float16(x):
    return x.astype(np.float16).astype(np.float32)


for name, rounded in (("bfloat16", as_bfloat16), ("float16", as_float16)):
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
# From 256 on, the neighbours of a bfloat16 are 2 apart; 257 is a tie and goes to the even one, 256. So kernels load and
# store bfloat16 and keep their accumulators in float32. The products are no problem: two numbers of 8 significant bits
# have a product of 16, which a float32 holds exactly.
#
# ## Eight numbers in a load
#
# NumPy has no bfloat16, so our arrays are `uint16`. Two neighbours are one word of 32 bits, with the first of them in
# the low half. A shift and a mask make two float32 of it:

# %%
pair = bfloat16_of([12.34, -1.5])
(word,) = pair.view(np.uint32)
first, second = np.array([word << np.uint32(16), word & np.uint32(0xFFFF0000)]).view(np.float32)
print(f"0x{word:08X}: {first}, {second}")

# %% [markdown]
# A thread can load 128 bits at once, which is eight bfloat16. The first kernel of a Llama only moves rows: `out[t]` is
# row `ids[t]` of the embedding table. It exists with one number per load, and with eight:

# %%
from labkit import show_source
from labkit.kernels import embedding
from labkit.kernels.elements import BFLOAT16 as BF16

by_one, by_eight = embedding.make_token_embedding_strided(BF16), embedding.make_token_embedding(BF16)
show_source(by_eight)

# %% [markdown]
# Four tokens, rows of 2,048 numbers. A row is 4,096 bytes. How many sectors of 32 bytes does each kernel move, and how
# many requests does it take, a request being one load or store of a whole warp? Guess both ratios.

# %%
from labkit import agree, cuda, observe

table = cuda.to_device(bfloat16_of(rng.standard_normal((97, 2048)).astype(np.float32)))
ids, rows = cuda.to_device(np.array([5, 96, 0, 5], np.int32)), cuda.device_array((4, 2048), np.uint16)
for name, kernel in (("one number a load", by_one), ("eight numbers a load", by_eight)):
    counts = observe(kernel[4, 256], ids, table, rows).counts
    print(f"{name:22}{counts['sectors']:7,} sectors{counts['global_requests']:7,} requests, "
          f"{counts['global_loads'] + counts['global_stores']:7,} loads and stores")
agree(embedding.TOKEN_EMBEDDING_BF16)

# %%
from labkit import measure

found = measure.recorded_ladder("token_embedding_bf16", gpu="NVIDIA H200")
found or "token_embedding_bf16 has not been recorded on the H200 yet; what it moves is above."

# %% [markdown]
# The bytes are the same, and so are the sectors. What shrinks is the number of instructions that ask for them: a warp
# gets 64 bytes for a load of one bfloat16 in each lane, and 512 bytes for a load of eight. Lessons 09 and 10 found that
# the bytes on their way decide how busy the memory is, and wide loads put more of them there.
#
# ## A model in several files
#
# Lesson 14 took a safetensors file apart: 8 bytes with the length of the header, a header in JSON, then the numbers. A
# large model comes as several such files, *shards*, and an index says which tensor is in which. This is a small Llama
# from the course's tests, in three shards. I read its index and its headers by hand:

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
    print(file, header.pop("__metadata__", None), f"{len(header)} tensors")  # no tensor of that name
    headers[file], data[file] = header, raw[8 + length :]  # offsets count from here
name = "model.layers.0.self_attn.k_proj.weight"
entry = headers[index[name]][name]
begin, end = entry["data_offsets"]
by_hand = np.frombuffer(data[index[name]][begin:end], np.uint16).reshape(entry["shape"])
print(name, entry, float32_of(by_hand[0, :3]))

# %%
from safetensors import deserialize

from labkit.models.load import tensors

ours, same = tensors(folder), 0  # labkit's reader, over all shards
for file in headers:
    for tensor_name, theirs in deserialize((folder / file).read_bytes()):
        same += ours[tensor_name].tobytes() == bytes(theirs["data"])
print(f"{same} of {len(ours)} tensors have the bytes that the library safetensors finds;",
      "by hand:", np.array_equal(by_hand, ours[name]))

# %% [markdown]
# ## One buffer and a map
#
# On the device all tensors go into a single allocation, filled by a single copy. The host keeps a map of names and
# offsets, and a weight is the start of the buffer plus its offset. There are two reasons. Each allocation and each copy
# has a cost of its own, and a model has hundreds of tensors. And the order is ours to choose: here it is the one in
# which a token meets them.

# %%
from labkit.models.blob import Blob
from labkit.models.llama import Config, names_in
from labkit.models.safetensors import read

config = Config.read(folder / "config.json")
blob = Blob(ours, dtype=np.uint16, names=list(names_in(ours, config).values()))
name = list(blob)[rng.integers(len(blob))]  # any of them
print(name, blob.entries[name], np.array_equal(blob[name].copy_to_host(), ours[name]))
pictures.shards_and_blob({file.removesuffix(".safetensors"): read(folder / file).entries for file in headers},
                         blob.entries, blob.nbytes)

# %% [markdown]
# In a file the tensors lie side by side, wherever the one before ends. In the buffer each begins at a multiple of 16
# bytes, because a load of 128 bits needs such an address. How many bytes are lost between these three?

# %%
from labkit.models.blob import layout

shapes_of_three = {"a": (3,), "b": (5, 7), "c": (2, 2)}
places, nbytes = layout(shapes_of_three, dict.fromkeys(shapes_of_three, np.dtype(np.uint16)))
print({name: (place.offset, place.nbytes) for name, place in places.items()}, nbytes)

copies = measure.recorded_series("copies", gpu="NVIDIA H200")
for kind in ("pageable", "pinned"):
    ms = 2 * LLAMA_3_2_1B.parameters / copies[f"h2d_{kind}"]["gbs"] / 1e6
    print(f"Llama 3.2 1B to the H200 in one copy, from {kind} memory: {ms:.0f} ms")

# %% [markdown]
# ## What is on which side
#
# A GPU reads its own memory. Whatever a kernel needs has to be there before the launch, so an engine first asks the
# device what it has. (`labkit doctor` asks more. Without a GPU, labkit's CPU device answers with this machine's cores
# and memory, and with a GPU's limits for a launch.)

# %%
gpu = cuda.get_current_device()
memory = cuda.current_context().get_memory_info()
print(f"{gpu.name}, compute capability {'.'.join(map(str, gpu.compute_capability))}, "
      f"{gpu.MULTIPROCESSOR_COUNT} SMs, up to {gpu.MAX_THREADS_PER_BLOCK:,} threads a block")
print(f"memory: {memory.free / 1e9:.1f} of {memory.total / 1e9:.1f} GB are free")

# %% [markdown]
# The next question is what crosses the bus, and how often. The weights cross once, at the start. For each step the host
# sends the ids of the tokens that are active, a few bytes, and gets one id per sequence back; activations and caches
# never leave the device. Nothing is allocated in a step. The buffer of ids is made once, for the largest batch, and
# only its active part is copied:

# %%
most = 8
waiting = cuda.to_device(np.zeros(most, np.int32))  # allocated once
for active in ([61, 7, 40], [12], [3, 3, 5, 5, 8]):
    waiting[: len(active)].copy_to_device(np.array(active, np.int32))  # no allocation
    print(f"{len(active)} active: {4 * len(active)} of {waiting.nbytes} bytes copied,", waiting.copy_to_host())

# %% [markdown]
# Behind the active ids lie old ones. A kernel has to know how many are active, or it computes for tokens that are gone.
#
# Ids come from text and become text again. In a conversation, special tokens stand around each message. A template that
# comes with the model says which; this is Llama 3's format, for one question:

# %%
from labkit.models.tokenizer import Tokenizer


def message(role, content=""):
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}"


question = "What is a hacker?"
print(repr("<|begin_of_text|>" + message("user", question) + "<|eot_id|>" + message("assistant")))
tokenizer = Tokenizer.of(find_root() / "data" / "tiny-gpt2")  # Llama's own comes with its weights
ids_of_text = tokenizer.encode(question)
print(ids_of_text, repr(tokenizer.decode(ids_of_text)))

# %% [markdown]
# The text ends where the answer begins. Each of the special tokens is a single id, such as 128,009 for `<|eot_id|>`,
# with which the model ends its answer.
#
# ## The model on paper
#
# A file has names and shapes, and not a word about the order in which they are used. That is in the model's code. To
# see it, labkit records the launches of a forward pass without running them, here of the small Llama, for 5 tokens:

# %%
from labkit.device import launches
from labkit.models.llama import Alone, Llama

alone, order = Alone(Llama(config, ours), context=16), []
launches.planned(lambda: alone([1, 2, 3, 4, 5], watch=lambda name, array: order.append((name, array.shape))))
for name, shape in order:
    if not name.startswith("layers.1"):  # as layer 0
        print(f"{name:22}{shape}")

# %% [markdown]
# A layer normalises, computes queries, keys and values in one product, rotates queries and keys by their position,
# attends, and projects the result back. The MLP follows: another norm, two products side by side, one of which gates
# the other, and one back. Every name will get a kernel in the next lessons.
#
# Now the real one. Which of the tensors do you expect to hold most of the bytes?

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
# To write one token, each weight of each layer is read once. Of the embedding table one row is needed at the start, but
# there is no separate head: `tie_word_embeddings` says that the same table is multiplied with at the end, whole. And
# attention reads the keys and values of all tokens before. (The norms are too small to matter.) The sum, divided by the
# bandwidth that was measured on the H200, is a lower bound for the time:

# %%
c = LLAMA_3_2_1B
layer = {name: 2 * c.num_hidden_layers * prod(shape) for name, shape in c.layer_parameters.items()}
parts = {"attention's weights": sum(n for name, n in layer.items() if "self_attn" in name),
         "the MLP's weights": sum(n for name, n in layer.items() if "mlp" in name),
         "the head, all of the table": 2 * c.vocab_size * c.hidden_size,
         "1,024 keys and values": 2 * 2 * 1024 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim}
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
pictures.bytes_of_a_token(parts, bandwidth)

# %%
token = sum(parts.values())
print(f"in bfloat16: {token / bandwidth / 1e6:.3f} ms, {1e9 * bandwidth / token:,.0f} tokens a second at most")
print(f"in float32:  {2 * token / bandwidth / 1e6:.3f} ms")
weights, cache = 2 * c.parameters, parts["1,024 keys and values"]
for sequences in (1, 32, 256):
    step = (weights + sequences * cache) / bandwidth / 1e6
    print(f"{sequences:3} sequences at 1,024 tokens: a step of {step:.3f} ms, "
          f"{1e3 * sequences / step:,.0f} tokens a second")

# %% [markdown]
# No kernel, however clever, makes one sequence faster than this; only fewer bytes do. But many sequences share one
# reading of the weights, and that is the reason for everything in the last three of the five lessons: caches in pages,
# and batches whose members come and go. This is what a step of that engine takes on the H200, as far as recorded:

# %%
steps = measure.recorded_series("llama_decode", gpu="NVIDIA H200")
for row in steps["rows"] if steps else ():
    print(f"{row['sequences']:3} sequences: {row['ms']['p50']:.3f} ms, by the bytes {row['bound_ms']:.3f}")
if steps is None:
    print("llama_decode has not been recorded on the H200 yet; the bounds are above.")

# %% [markdown]
# ## What was implemented
#
# - numbers taken apart and rounded by hand, in three formats
# - the embedding of a Llama in bfloat16, eight numbers a load, equal to NumPy to the last bit
# - a reader for models in several files, and one buffer with a map
# - a bound for the time of a token, from the configuration alone
#
# ## What I learned
#
# - bfloat16 is float32 with its lower half rounded away: the same range, and two or three digits.
# - Round to nearest even, keep NaN, and never accumulate in 16 bits.
# - Wide loads move the same sectors with fewer instructions.
# - The format's header gives sizes and places; the order of the work is in the code.
# - A token costs its bytes. Know them before you write a kernel.
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
# - How long a context makes a token read as many bytes of keys and values as of weights?
# - How much would a token gain if the weights had 8 bits, and the cache still 16?
#
# In the exercises you round to bfloat16 with integers, read eight numbers in a load, repair a sum, lay out a buffer,
# predict the time of a token for another model, and write the embedding with its launcher from a blank page.
