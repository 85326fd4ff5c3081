# %% [markdown]
# # 28 · From a file to a token
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - what is in a file of weights, byte by byte, and how a reader notices that a file is corrupt
# - how text becomes tokens, and how tokens become rows of a matrix
# - how to show that a model computes what another program computes, and how to find the launch where it does not
#
# ## The problem
#
# So far the course has written kernels. In this lesson and the next they become a model that writes text. A GPT-2
# receives the ids of some *tokens*, pieces of text, and returns a value for each token of its *vocabulary*, the list of
# all tokens that it knows. These values are the *logits*. The larger a token's logit, the more likely that token is to
# come next:
#
# $$P(\text{next} = i) = \frac{e^{z_i}}{\sum_j e^{z_j}}, \qquad z = \text{GPT2}(t_1, t_2, \dots, t_n)$$
#
# Most of what happens between tokens and logits is in the course already: the blocks of lesson 26, a LayerNorm and one
# product. In front of them comes an *embedding*, which turns each token into a row of the matrix that the blocks work
# on; it is a kernel of this lesson. Around all that, the weights have to get from a file to the device, and text has to
# become tokens. And the token chosen at the end must be the right one.
#
# ## Prediction
#
# The course includes a small GPT-2, just large enough to write something that looks like English. It was trained on the
# Jargon File, the old hackers' dictionary. It has six blocks of width 256. A block of width C has 12 C² + 13 C
# parameters. Outside the blocks there is a row of 256 values for each of 2,048 tokens and each of 256 positions, and a
# LayerNorm at the end. How many bytes do the weights of this GPT-2 take in float16?

# %%
block = 12 * 256**2 + 13 * 256
parameters = 6 * block + (2048 + 256) * 256 + 2 * 256  # a LayerNorm has a weight and a bias
print(f"{parameters:,} parameters, {2 * parameters:,} bytes")

# %% [markdown]
# ## A file of weights
#
# The file is in the format of most published models today, *safetensors*. Let us read it by hand first. It
# has three parts: eight bytes with the size of the header, the header, and the data.

# %%
import json

from labkit._common.paths import find_root

path = find_root() / "data" / "tiny-gpt2" / "model.safetensors"
file = path.read_bytes()
length = int.from_bytes(file[:8], "little")  # lowest byte first
header = json.loads(file[8 : 8 + length])
print(f"{len(file):,} bytes: 8, then {length:,} of header, then {len(file) - 8 - length:,} of numbers")
print("__metadata__", header.pop("__metadata__", None))
for name in list(header)[:3]:
    print(name, header[name])

# %% [markdown]
# The data take exactly as many bytes as predicted; the header adds some. It is JSON. Each tensor has a type, a shape
# and two offsets, begin and end, counted from the end of the header. F16 is float16, two bytes per element. That is the
# whole format, so reading a tensor takes three lines.

# %%
import numpy as np

name = "transformer.h.0.attn.c_attn.weight"
begin, end = header[name]["data_offsets"]
numbers = np.frombuffer(file, np.float16, offset=8 + length + begin, count=(end - begin) // 2)
by_hand = numbers.reshape(header[name]["shape"])
print(by_hand.shape, by_hand[0, :4])

# %%
from labkit.course.drawings import file_to_token as pictures
from labkit.models.safetensors import read

ours = read(path)  # labkit's own reader
pictures.file_layout(ours.entries, length, list(ours)[:6])

# %% [markdown]
# The figure shows the first tensors of the file: they follow one another without gaps. `read` is labkit's reader. The
# next cell compares it with the library `safetensors`, tensor by tensor and bit by bit.

# %%
from safetensors.numpy import load_file

theirs = load_file(path)
same = [np.array_equal(ours[name], theirs[name]) for name in theirs]
print(f"{sum(same)} of {len(theirs)} tensors are the same as the library's; by hand:",
      np.array_equal(by_hand, theirs[name]))

# %% [markdown]
# ## A corrupt file
#
# A file may come from anywhere. A reader that trusts it may return the wrong bytes, or read beyond the end of the file.
# But the tensors follow one another without gaps up to the last byte, so the header says how long the file has to be.
# labkit's reader raises a `SafetensorsError` if it notices a mistake. The next cell makes four changes to the file: the
# last byte is cut off, a shape becomes larger, a tensor begins two bytes early, and the header's size becomes 2⁶⁴ − 1.
# Which of the four changes does labkit's reader notice?

# %%
import tempfile
import textwrap
from pathlib import Path

from labkit.models.safetensors import SafetensorsError


def attempt(what, changed):
    """What our reader says to these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.safetensors"
        path.write_bytes(changed)
        try:
            print(f"{what}: {len(read(path))} tensors")
        except SafetensorsError as error:
            message = str(error).removeprefix(f"{path}: ")
            print(textwrap.fill(f"{what}: {message}", 88, subsequent_indent="    "))


longer = file[8 : 8 + length].replace(b"[256,768]", b"[999,768]", 1)
overlap = file[8 : 8 + length].replace(b"[1536,394752]", b"[1534,394750]", 1)
attempt("unchanged", file)
attempt("the last byte is missing", file[:-1])
attempt("a shape is larger", file[:8] + longer + file[8 + length :])
attempt("a tensor begins too early", file[:8] + overlap + file[8 + length :])
attempt("the header is endless", b"\xff" * 8 + file[8:])

# %% [markdown]
# It notices all four before it reads a single element, and each message says what does not fit. No checksum was needed:
# it is enough that the lengths have to add up.
#
# ## One buffer
#
# The weights go to the device in one piece, a `Blob`: one allocation, one copy, and a map that says where each tensor
# begins. Each begins at a multiple of 16 bytes, since the kernels load four values at a time. On the way, float16
# becomes float32.

# %%
from labkit.models.blob import Blob

blob = Blob(ours, dtype=np.float32)
for name in list(blob)[:3]:
    print(f"{blob.entries[name].offset:>10,}  {name} {blob.entries[name].shape}")
name = list(blob)[int(np.random.default_rng().integers(len(blob)))]  # any of them
print(blob)
print(name, "is the same:", np.array_equal(blob[name].copy_to_host(), ours[name].astype(np.float32)))

# %% [markdown]
# ## Tokens
#
# A token is a piece of text that occurs often. The list of pieces is built before training, by *byte-pair encoding*:
# begin with single bytes, join the pair that occurs most often, and repeat until there are as many pieces as wanted.
# GPT-2 has 50,257, this model 2,048. The *tokenizer* cuts a text into these pieces: a frequent word becomes one token,
# a rare one is split up. Into how many tokens does the tokenizer cut "softmax", and into how many "Grüße, 你好"?

# %%
from labkit.models.load import load

loaded = load("tiny")
tokenizer = loaded.tokenizer
print(loaded.log)
for text in ("hacker: n. A person who", "The quick brown fox", "softmax", "Grüße, 你好"):
    ids = tokenizer.encode(text)
    print(f"{len(text):3} characters, {len(ids):2} tokens:", *(repr(tokenizer.decode([i])) for i in ids[1:]))
    assert tokenizer.decode(ids) == text

# %% [markdown]
# Four and sixteen, not counting the first token, which marks the beginning of a text and is not shown. A space belongs
# to the word after it. Every text comes back as it was, since in the end everything is made of bytes. A Chinese
# character is three bytes and here three tokens, none of which is a character by itself. Such a token is shown as the
# replacement character �, and a program that prints the text has to wait for the rest of the character.
#
# ## From tokens to rows, and a trap
#
# The first kernel of the model is the embedding, a gather: row `ids[t]` of a table of tokens, plus a row of a table of
# positions. `start[0]` is the number of tokens that came in earlier passes.

# %%
from labkit import show_source
from labkit.kernels.embedding import embedding_strided_kernel, embedding_whole_row, embedding_whole_row_kernel

show_source(embedding_whole_row_kernel)

# %% [markdown]
# It has one block per token and one thread per column. That is simple, and right for GPT-2, whose rows have 768
# columns. The author of [tiny-vllm](https://github.com/jmaczan/tiny-vllm), a Llama in CUDA, first launched such a
# kernel for rows of 2,048. labkit's launcher refuses that. What happens if the kernel is launched with 2,048 threads
# per block anyway, past the launcher?

# %%
from labkit import cuda

token_rows, position_rows = (cuda.to_device(np.ones((8, 2048), np.float32)) for _ in range(2))
two_ids, start = cuda.to_device(np.array([3, 1], np.int32)), cuda.to_device(np.zeros(1, np.int32))
rows = cuda.device_array((2, 2048), np.float32)
try:
    embedding_whole_row(two_ids, token_rows, position_rows, start, rows)  # labkit's launcher, which checks
except ValueError as error:
    print(error)
try:
    embedding_whole_row_kernel[2, 2048](two_ids, token_rows, position_rows, start, rows)  # without the launcher
    cuda.synchronize()
except Exception as error:
    print(f"\n{type(error).__name__}: {str(error).splitlines()[0]}")

# %% [markdown]
# A block has at most 1,024 threads, so the launch fails and nothing is computed. A C++ program that does not check for
# errors carries on with garbage. The fix is a loop: 256 threads, each of which copies every 256th column. That is right
# for any width.

# %%
show_source(embedding_strided_kernel)

# %%
from labkit import agree
from labkit.kernels.ops.embedding import EMBEDDING

agree(EMBEDDING, sizes=({"T": 3, "C": 768}, {"T": 3, "C": 1023}))

# %% [markdown]
# ## The first token
#
# All tokens of a prompt go through the model in one pass. That is called *prefill*, and it gives the logits after the
# last of them. When a model is *ported*, rewritten for other software, the first milestone is a single token: the most
# likely one after a prompt must be the same as in a well-known implementation. Here that is `GPT2LMHeadModel` of the
# library transformers. A small model with random weights, and what transformers computed with it in float64, come with
# the course's tests. Ours computes in float32. To how many decimal places will the logits agree?

# %%
from labkit.models.gpt2 import GPT2, Config, Workspace

golden = find_root() / "tests" / "golden" / "gpt2-random"
known = json.loads((golden / "expected.json").read_text())
model = GPT2(Config.read(golden / "config.json"), read(golden / "model.safetensors"))
ws = Workspace(model.config)
logits = model.prefill(known["prompt"], ws).copy_to_host()[0]
expected = np.load(golden / "logits.npy")[-1]
print(f"the first token: ours {np.argmax(logits)}, theirs {known['greedy'][0]}")
print(f"largest difference of {logits.size} logits: {np.abs(logits - expected).max():.1e}; "
      f"the two largest are never closer than {known['least_margin']:.3f}")

# %% [markdown]
# They agree to about five decimal places; the two largest are much further apart than that. Still, one token may be
# right by luck. Sixty-four in a row are not. `model.decode` appends a token and returns the next logits; the next
# lesson shows how.

# %%
tokens = [int(np.argmax(logits))]
while len(tokens) < 64:
    tokens.append(int(np.argmax(model.decode(tokens[-1], ws).copy_to_host())))
print(f"{len(tokens)} tokens, each the likeliest after those before it; the same: {tokens == known['greedy']}")
print("theirs were made by", known["made_by"])

# %% [markdown]
# ## The launch where it goes wrong
#
# If the first token is different, where did it go wrong? Printing all the arrays of both programs does not help.
# Instead, compare what every launch wrote with the same step in NumPy and float64, and look at the first launch that
# differs; everything after it is bound to differ, too. In the next cell one model is right, and the other has the wrong
# GELU: the exact one of lesson 23 instead of the form with tanh. Which activation will be named for the second?

# %%
from labkit.kernels.gelu import gelu_erf_vectorized
from labkit.models.gpt2 import Kernels
from labkit.models.gpt2_block import separately
from labkit.models.gpt2_reference import parity

right = parity(model, known["prompt"])
other = model.with_kernels(Kernels(linear=separately(gelu=gelu_erf_vectorized)))
wrong = parity(other, known["prompt"])
print(f"ours: {len(right.rows)} activations, the first that differs: {right.first}")
print(f"with the other GELU, the first that differs: {wrong.first.name}, by {wrong.first.error:.1e}")
right

# %% [markdown]
# The right model has no launch that differs, and the wrong one is caught at the GELU of its first block. The table
# lists what the right model's launches wrote.
#
# "The same token" leaves one question open: which of two equal logits is chosen? NumPy takes the first, and so does
# PyTorch in practice. On a GPU, threads finish in no fixed order, so the column has to be part of what they compare.
# labkit's kernel packs a logit and its column into one integer, and in an exercise you do it another way.

# %%
from labkit.kernels.argmax import key_of
from labkit.kernels.ops.argmax import ARGMAX

show_source(key_of)

# %%
agree(ARGMAX, ["argmax_packed"], sizes=({"R": 3, "C": 5}, {"R": 7, "C": 1000}))

# %% [markdown]
# ## What I learned
#
# - A good format makes corruption detectable: lengths that have to add up are worth more than a checksum that is never
#   computed.
# - A launch can fail silently. Check the device's limits before it, or check for an error after it.
# - Test a port launch by launch on the way, and token by token at the end. The first activation that differs saves a
#   day.
# - To get the same tokens you need a rule for equal logits, and on a GPU the rule has to be part of the comparison.
#
# ## Resources
#
# - [safetensors: the format](https://github.com/huggingface/safetensors#format)
# - [R. Sennrich et al.: Neural Machine Translation of Rare Words with Subword Units
#   (2016)](https://arxiv.org/abs/1508.07909): byte-pair encoding
# - [A. Radford et al.: Language Models are Unsupervised Multitask Learners
#   (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
#
# ## Try it
#
# - In the cell with the changed files, find a change that is not refused. (Change a byte after the header. What would
#   it take to notice that?)
# - Encode your name and a word that is newer than the Jargon File. Predict the tokens first.
# - `from labkit.kernels.argmax import argmax`, and launch it on a row of 2,048 columns with 0.0{{ example }} in column
#   1500, -0.0{{ example }} in column 700 and -1.0{{ example }} elsewhere. Which column wins, and which line of `key_of`
#   decides?
#
# In the exercises you read a tensor from a file, work out where tensors begin in a file and on the device, and find the
# most likely token.
#
# Next: **GPT-2 writes**, where one token is followed by the next.
