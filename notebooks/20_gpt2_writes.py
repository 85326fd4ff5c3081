# %% [markdown]
# # 20 · GPT-2 writes
#
# *Lab notebook, 21 November 2026*
#
# You will learn
#
# - what is in a file of weights, byte by byte, and how a reader notices that a file lies
# - how a model writes: a prompt at once, then token after token from a cache, with some chance in between
# - what a faster kernel is worth to a whole program, and how to know that before you write the kernel
#
# ## The problem
#
# So far the course has written kernels. In this lesson they write text. A GPT-2 takes the numbers of some *tokens*,
# pieces of text, and returns a number for each token of its vocabulary, the list of all tokens that it knows. These
# numbers are the *logits*. The larger the number, the better that token continues the text:
#
# $$P(\text{next} = i) = \frac{e^{z_i}}{\sum_j e^{z_j}}, \qquad z = \text{GPT2}(t_1, t_2, \dots, t_n)$$
#
# Choose a token, append it, and run the model again. Everything between the tokens and the logits is in this course
# already: an embedding, some blocks of lesson 19, a LayerNorm, one product. What is missing is around it. The weights
# have to come out of a file, the text has to become tokens, and for each new token the model should not have to begin
# at the first one again.
#
# ## Prediction
#
# A model that writes reads every one of its weights for every token. Write down two numbers before you go on. How many
# tokens a second can GPT-2 small write at most, on a GPU that reads 4,200 GB a second? And: if a kernel for the softmax
# of attention is three times as fast as the three kernels before it, how much faster does the model write?

# %%
from labkit import measure
from labkit.models.gpt2 import Config

small = Config()  # the defaults are GPT-2 small's
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
print(f"{small.parameters:,} parameters are {4 * small.parameters / 1e6:.0f} MB in float32")
print(f"{bandwidth:,.0f} GB/s (an H200, by a copy): {1e9 * bandwidth / (4 * small.parameters):,.0f} tokens a second")

# %% [markdown]
# The first is a bound, and the lesson will show how near one gets. The second has to wait until the end of the lesson.
#
# ## A file of weights
#
# The course carries a GPT-2 of its own, as large as it needs to be to write something that looks like English: six
# layers, 256 wide, trained on the Jargon File, the old dictionary of hackers. Its weights are in the format in which
# most models are published today, *safetensors*. Read it by hand first. A file has three parts: eight bytes that say
# how long the header is, the header, and the numbers.

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
# The header is JSON. Each tensor has a type, a shape, and two offsets, which count from the end of the header. That is
# the whole format. F16 is a float16, two bytes. So reading a tensor takes three lines.

# %%
import numpy as np

name = "transformer.h.0.attn.c_attn.weight"
begin, end = header[name]["data_offsets"]
numbers = np.frombuffer(file, np.float16, offset=8 + length + begin, count=(end - begin) // 2)
by_hand = numbers.reshape(header[name]["shape"])
print(by_hand.shape, by_hand[0, :4])

# %%
from labkit.measure.plots import generation as pictures
from labkit.models.safetensors import read

ours = read(path)  # labkit's own reader
pictures.file_layout(ours.entries, length, list(ours)[:6])

# %% [markdown]
# Here labkit's reader is compared with the library `safetensors`, tensor by tensor, bit by bit.

# %%
from safetensors.numpy import load_file

theirs = load_file(path)
same = [np.array_equal(ours[name], theirs[name]) for name in theirs]
print(f"{sum(same)} of {len(theirs)} tensors are the same as the library's; by hand:",
      np.array_equal(by_hand, theirs[name]))

# %% [markdown]
# ## A file that lies
#
# A file may come from anywhere. A reader that trusts it reads the wrong bytes, or bytes that do not belong to the file.
# But the tensors lie side by side, without gaps, to the end. So the header says how long the file has to be, and every
# lie shows before a single number is read. Four lies:

# %%
import tempfile
import textwrap
from pathlib import Path

from labkit.models.safetensors import SafetensorsError


def refused(what, changed):
    """What our reader says to these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        lie = Path(folder) / "lie.safetensors"
        lie.write_bytes(changed)
        try:
            print(f"{what}: {len(read(lie))} tensors")
        except SafetensorsError as error:
            said = str(error).removeprefix(f"{lie}: ")
            print(textwrap.fill(f"{what}: {said}", 88, subsequent_indent="    "))


longer = file[8 : 8 + length].replace(b"[256,768]", b"[999,768]", 1)
overlap = file[8 : 8 + length].replace(b"[1536,394752]", b"[1534,394750]", 1)
refused("the truth", file)
refused("the last byte is missing", file[:-1])
refused("a shape is larger", file[:8] + longer + file[8 + length :])
refused("a tensor begins too early", file[:8] + overlap + file[8 + length :])
refused("the header is endless", b"\xff" * 8 + file[8:])

# %% [markdown]
# ## One buffer
#
# The weights go to the device in one piece: one allocation, one copy, and a map that says where each tensor begins.
# Each begins at a multiple of 16 bytes, since the kernels load four numbers at a time. On the way float16 becomes
# float32.

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
# A *token* is a piece of text that occurs often. The list of pieces is made before training: begin with single bytes,
# join the pair that occurs most often, and repeat, until there are as many pieces as one wants. GPT-2 has 50,257, this
# one 2,048. What is frequent becomes one token, what is rare falls apart.

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
# Every text comes back as it was, since in the end everything is made of bytes. The space belongs to the word after it.
# A Chinese character is three bytes, and here three tokens, none of which is a character. Such a token is shown as a
# sign for "no text yet", and whoever prints the text has to wait for the rest. (The first token, which is not shown,
# marks the beginning of a text.)
#
# ## From tokens to rows, and a trap
#
# The first kernel gathers: row `ids[t]` of a table of tokens, plus the row of its position.

# %%
from labkit import show_source
from labkit.kernels.embedding import embedding_strided_kernel, embedding_whole_row, embedding_whole_row_kernel

show_source(embedding_whole_row_kernel)

# %% [markdown]
# It takes a block for each token and a thread for each column, which is simple, and right for GPT-2, which is 768 wide.
# The author of tiny-vllm, a Llama in CUDA, first launched such a kernel for rows of 2,048.  Before you run the next
# cell: what happens?

# %%
from labkit import cuda

token_rows, position_rows = (cuda.to_device(np.ones((8, 2048), np.float32)) for _ in range(2))
two_ids, start = cuda.to_device(np.array([3, 1], np.int32)), cuda.to_device(np.zeros(1, np.int32))
rows = cuda.device_array((2, 2048), np.float32)
try:
    embedding_whole_row(two_ids, token_rows, position_rows, start, rows)
except ValueError as error:
    print(error)
try:
    embedding_whole_row_kernel[2, 2048](two_ids, token_rows, position_rows, start, rows)  # without asking a launcher
    cuda.synchronize()
except Exception as error:
    print(f"\n{type(error).__name__}: {str(error).splitlines()[0]}")

# %% [markdown]
# A block has at most 1,024 threads. Nothing is computed, and a program in C++ that does not check for errors goes on
# with whatever was in its memory. The cure is a loop: 256 threads, each of which takes every 256th column. That is
# right for any width, bit for bit.

# %%
show_source(embedding_strided_kernel)

# %%
from labkit import agree
from labkit.kernels.embedding import EMBEDDING

agree(EMBEDDING, sizes=({"T": 3, "C": 768}, {"T": 3, "C": 1023}))

# %% [markdown]
# ## The first token
#
# All tokens of a prompt go through the model at once. That is called *prefill*, and it gives the logits after the last
# of them. When a model is *ported*, written anew for other software, the first milestone is a single token: the most
# likely one after a prompt must be that of a well-known implementation, `GPT2LMHeadModel` of the library transformers.
# A small model with random weights, and what transformers computed with it in float64, come with the course's tests.

# %%
from labkit.models.gpt2 import GPT2, Workspace

golden = find_root() / "tests" / "golden" / "gpt2-random"
known = json.loads((golden / "expected.json").read_text())
model = GPT2(Config.read(golden / "config.json"), read(golden / "model.safetensors"))
ws = Workspace(model.config)
logits = model.prefill(known["prompt"], ws).copy_to_host()[0]
theirs = np.load(golden / "logits.npy")[-1]
print(f"the first token: ours {np.argmax(logits)}, theirs {known['greedy'][0]}")
print(f"largest difference of {logits.size} logits: {np.abs(logits - theirs).max():.1e}; "
      f"two tokens are never closer than {known['least_margin']:.3f}")

# %%
tokens = [int(np.argmax(logits))]
while len(tokens) < 64:
    tokens.append(int(np.argmax(model.decode(tokens[-1], ws).copy_to_host())))
print(f"{len(tokens)} tokens, each the likeliest after those before it; the same: {tokens == known['greedy']}")
print("theirs were made by", known["made_by"])

# %% [markdown]
# If the first token is a different one, where did it go wrong? Printing all arrays of both programs does not help.
# Instead, compare the output of every launch with the same step in NumPy and float64. Look at the first one that
# differs; everything after it has to differ, too. In this example the model has the wrong GELU, the exact one of lesson
# 16 in place of the form with the tanh.

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
# ## The cache
#
# For the second new token one could send the whole text through the model again. But attention needs only the keys and
# values of the earlier tokens, and those do not change: no token sees its future. So every layer keeps them, a row for
# each token, in the *KV cache*. A new token computes one row, appends it to the cache, and attends to all rows. Each
# such step is called *decode*.

# %%
from labkit.kernels.attention.three_pass import append_to_cache_kernel

show_source(append_to_cache_kernel)

# %% [markdown]
# `start` says how many tokens are in the cache. It is in device memory and not among the arguments, so that the
# launches of a step are the same for every token: they can be captured in a graph once and replayed. The next cell
# writes with and without the cache, from the same prompt. Before you run it: how many rows go through the layers, for a
# prompt of 24 tokens and 16 new ones?

# %%
def without_cache(prompt, count):
    ids, rows = list(prompt), 0
    while len(ids) < len(prompt) + count:
        ws.reset()
        rows += len(ids)
        ids.append(int(np.argmax(model.prefill(ids, ws).copy_to_host())))
    return ids[len(prompt) :], rows


def with_cache(prompt, count):
    ws.reset()
    logits, new, rows = model.prefill(prompt, ws), [], len(prompt)
    while True:
        new.append(int(np.argmax(logits.copy_to_host())))
        if len(new) == count:
            return new, rows
        logits, rows = model.decode(new[-1], ws), rows + 1


slow, fast = without_cache(known["prompt"], 16), with_cache(known["prompt"], 16)
print(f"the same tokens: {slow[0] == fast[0]}; rows without the cache {slow[1]}, with it {fast[1]}")

# %%
from labkit.measure.series import generation as experiment

curve = experiment.cache_curve()
pictures.cache_curve(curve)

# %%
recorded = measure.recorded_series("cache_curve", gpu="NVIDIA H200")
for n, one_more, all_again in zip(recorded["position"], recorded["with_us"], recorded["without_us"], strict=True):
    print(f"{n:5,} before: from the cache {one_more:4.0f} us, all again {all_again:6,.0f} us, "
          f"that is {all_again / (n + 1):4.1f} us for each of them")

# %% [markdown]
# Both axes are logarithmic. Without the cache a token costs as much as a prompt of that length, and the line climbs.
# With it a token costs about the same wherever it stands. The last column shows something else: a token of a prompt
# costs a fraction of a token that is written. The tokens of a prompt go through a layer together, and share its
# launches and one pass over its weights. Those that are written go alone, one after the other.
#
# ## Chance
#
# Taking the most likely token each time is called *greedy*. That is right for a test, but such a text is dull and soon
# repeats itself. So a token is drawn at random instead, or *sampled*, and there are three ways to shape the
# distribution. The *temperature* T divides the logits before the softmax: below 1 the likely tokens become more likely.
# *Top-k* keeps the k most likely. *Top-p* keeps as many of the most likely as together have the share p. Here are the
# most likely tokens after a prompt:

# %%
from labkit.engine.sampler import Sampler

tiny, prompt = loaded.model, tokenizer.encode("This is a")
tiny_ws = Workspace(tiny.config)
z = tiny.prefill(prompt, tiny_ws).copy_to_host()[0]
likeliest = np.argsort(-z, kind="stable")[:16]
samplers = {"as the model says": Sampler(), "temperature 0.5": Sampler(0.5),
            "top-k 5": Sampler(top_k=5), "top-p 0.7": Sampler(top_p=0.7)}
shares = {name: sampler.probabilities(z)[likeliest] for name, sampler in samplers.items()}
words = [tokenizer.decode([i]) for i in likeliest]
pictures.next_token(words, shares, 'After "This is a": the 16 likeliest tokens')

# %% [markdown]
# The probabilities that are left are scaled so that their sum is 1 again. Then a random number decides, from a
# generator with a seed, and the same seed gives the same text.
#
# Greedy decoding leaves one question open: which of two equal logits is taken? NumPy takes the first, and so does
# PyTorch in practice. On a GPU threads finish in no fixed order, so the column has to be part of what they compare:
# `key_of` packs number and column into one integer, which is larger for a larger number and, between equal ones, for
# the earlier column.

# %%
from labkit.kernels.argmax import ARGMAX, argmax, key_of

show_source(key_of)

# %%
ties = np.full((1, 2048), -1.0, np.float32)
ties[0, [1500, 700, 1900]] = 3.5
found = cuda.device_array(1, np.int32)
argmax(cuda.to_device(ties), found)
print("three equal ones, at 700, 1500 and 1900; found:", found.copy_to_host()[0])
agree(ARGMAX, ["argmax_packed"], sizes=({"R": 3, "C": 5}, {"R": 7, "C": 1000}))

# %% [markdown]
# ## It writes

# %%
from labkit.engine.sampler import GREEDY
from labkit.engine.text import write

for sampler in (GREEDY, Sampler(0.8, top_k=40), Sampler(1.6)):
    written = write(loaded, "kernel:", lambda piece: None, tokens=32, sampler=sampler, seed=1)
    print(textwrap.fill(f"temperature {sampler.temperature}: kernel:{written.text}", 92))
    print(f"    {written.per_second:.0f} tokens a second ({measure.where()})\n")

# %% [markdown]
# That is `labkit generate "kernel:"`, with `--temperature`, `--top-k`, `--top-p`, `--seed`, `--greedy`, and `--model`
# for a real GPT-2: a folder, or a name such as `openai-community/gpt2`, which is downloaded once. The tiny one was
# trained on its only book so many times that it can recite long parts of it (`data/README.md` says how many). Where a
# prompt or chance leads away from the book's text, it continues in the book's manner: pronunciation, *n.*, etymology in
# brackets.
#
# ## Your kernels in it
#
# Some of the exercises are kernels that a GPT-2 needs. Those that you have done, in `work/exercises/`, can be used
# here. This table lists them, and which of them are yours by now.

# %%
from labkit.course import yours

mine = yours.answers()
mine

# %% [markdown]
# Lesson 19 puts them into a block. Some belong to a whole model: the embedding, the cache, the logits. Here are the
# course's own answers to these, one at a time and then all together, with every activation compared with float64.
# `yours.one_by_one(mine, tiny, prompt)` does it with yours, and `yours.with_kernels(tiny, mine)` is the model that then
# writes with them.

# %%
answers = yours.answers("embed_tokens", "append_rows", "linear_patch", solutions=True)
yours.one_by_one(answers, tiny, prompt)

# %% [markdown]
# ## Where a token's time goes
#
# One token, launch by launch. On a GPU a launch's time is what a step in a graph saves if it is left out. The black
# line is the time for its bytes, at the speed of a copy.

# %%
step = measure.recorded_series("step_launches", gpu="NVIDIA H200")
pictures.step_shares(step)

# %%
pictures.step_shares(step, len(step["steps"]) - 1)  # the latest position that was measured

# %% [markdown]
# The second is the same step with a long text before it. Only attention has grown, and far less than the text.

# %%
first = step["steps"][0]
print(f"predicted: {1e9 * bandwidth / (4 * small.parameters):,.0f} tokens a second, at most")
print(f"measured:  {1e6 / first['us']:,.0f}, with {sum(row['count'] for row in first['rows'])} launches for a token")

# %% [markdown]
# My prediction counted bytes, as the black lines do. The logits reach theirs, and a little more: the line is drawn for
# a copy, which also has to write. Nothing else comes near. A step is about a hundred launches, one after the other, and
# each has a single row to work on. A LayerNorm of 768 numbers hardly reads anything, and takes its microseconds all the
# same: it starts, waits for its loads, exchanges some sums, and ends before the next one may start. Writing one token
# after the other is a matter of *latency*, not of bandwidth. (With many texts at once the rows would share the weights,
# as those of a prompt do.)
#
# The four products of a layer and the logits take more than half of the time. All of attention, orange, comes next, and
# the softmax is only a part of it.
#
# ## The experiment
#
# Now the second prediction. The report that lesson 14 follows, *Fused Attention Softmax Accelerator GPT 2 Inference*,
# put its fused softmax into distilgpt2, a GPT-2 with six layers, on an NVIDIA L4, and let it write on three prompts up
# to a hundred tokens. Its kernel was 1.24 to 4.78 times as fast as PyTorch's steps. Here is the same experiment.
# Attention is taken apart again: a launch for the scores, then scale, mask and softmax as three launches or as one,
# then a launch for the values. A third way is the flash attention of lesson 18, one kernel for everything. First on
# this machine, with the tiny model and one of the prompts:

# %%
from labkit import device

length = device.pick(gpu=100, cpu=22)  # tokens of a text, the prompt among them
mine_here = experiment.generation(("tiny",), ["The quick brown fox"], length=length, runs=device.pick(gpu=2, cpu=1))
experiment.generation_table(mine_here)

# %% [markdown]
# The tokens are the same, as they must be. Now the H200, with models of the right shape. Their weights are random,
# which does not change the time, and the prompts have as many tokens as GPT-2's tokenizer would make of them. Every
# kernel is launched from Python, as in the report, and then a whole token as one graph. When this was recorded, a
# launch from Python went through Numba. By labkit's own way (lesson 09) it takes less.

# %%
found = measure.recorded_series("generation", gpu="NVIDIA H200")
pictures.rates(found)

# %% [markdown]
# In a graph the two larger ones write about ten times as fast, and the tiny one sixteen times as fast. The three ways
# differ by a few percent. Here is the report's table again, with its three prompts, and its numbers at the right. Mind
# its last column. The report prints it as a speed-up, and divides the baseline's tokens a second by those of the fused
# kernel, so its 1.01 is a loss and its 0.98 a gain.

# %%
experiment.generation_table(found, "distilgpt2's shape", "called")

# %% [markdown]
# ## Why
#
# *Amdahl's law.* A part takes the share p of the time. Make it s times as fast, and the whole becomes
#
# $$\frac{1}{1 - p + p / s}$$
#
# times as fast. Even a softmax that takes no time at all gives no more than $1 / (1 - p)$.

# %%
from labkit import plots

share = np.linspace(0, 0.5, 101)
lines = pictures.speedups(share, {"s = 1.24": 1.24, "s = 4.78": 4.78, "no time at all": np.inf})
plots.curves(share, lines, "Amdahl's law: what a faster part is worth",
             "its share of the time", "the whole, times as fast")

# %%
experiment.amdahl_table(found)

# %%
pictures.gains(found)

# %% [markdown]
# First the law itself. The softmax's share and its own speed-up were measured apart from the whole. By how much does
# their prediction miss the whole, at most?

# %%
for how, missed in experiment.apart(found).items():
    print(f"{experiment.HOWS[how]}: {missed:.1%}")

# %% [markdown]
# In a graph the law holds from a single token to a prompt of 1,024. Launched from Python it is rougher, and a measured
# gain can even be larger than "at most". One possible reason: a launch of the softmax may take longer among the others
# than it does when it is launched again and again by itself, and then its share is larger than was measured.
#
# Then the numbers. The report timed its kernel on squares of 512 and 1,024 rows. A model that writes from a cache has
# no such square. For each head it has one row of scores, no longer than the text so far: 400 bytes at most. Fusing
# saves hardly any bytes there, but two launches in each layer. So the softmax gains less than on a square, and at the
# size of GPT-2 it has less than a tenth of the step. With a prompt it is different. There the scores are a square, the
# softmax has bytes to save, and share and speed-up grow with its length.
#
# The report's tokens a second go down by 0.7% at one prompt and up by 1.7% at another: noise, it says, and 1.00 on
# average.  What share can the softmax have had, if a gain of 1% drowns in the noise? Amdahl's law, solved for p:

# %%
gain, own = 1.01, 4.65  # of the whole; of the softmax at 1,024, causal
print(f"{(1 - 1 / gain) / (1 - 1 / own):.1%}")

# %% [markdown]
# So small a share is plausible. An L4 reads some 300 GB a second, the weights of distilgpt2 take it about 1.1 ms, and a
# token took 5.5 in the report. The rest must have been something else: launches, Python and PyTorch around the kernels.
# Here a step is little more than its launches, so two launches less in each layer show. The more there is around a
# kernel, the less a faster kernel gains.
#
# And the green bars say where more was to be had: not in a faster softmax, but in not storing the scores at all. The
# report's authors measured no gain and wrote it down, which is more than most do. The law would have shown it before
# they wrote the kernel, and before I wrote mine.
#
# `labkit report` puts all of it on one page: every figure and table of that report, with ours beside it. With
# `--measure` it takes this machine's times as well, and `--prompts FILE` takes the prompts from a text file, such as
# the validation text of WikiText-2.
#
# ## What I learned
#
# - A format is good if a lie in it can be found. Lengths that have to add up are worth more than a checksum that is
#   never computed.
# - A port is tested token by token at the end, and launch by launch on the way there. The first activation that differs
#   saves a day.
# - Reading is cheap and writing is expensive: the tokens of a prompt share the weights, the tokens of the answer do
#   not.
# - I counted bytes and predicted a multiple of what came. One row is not enough work for a GPU. Then count launches.
# - Before you make a kernel faster, measure its share of the whole. That takes no new kernel.
#
# You began with `c[i] = a[i] + b[i]`. Every kernel in the model that just wrote is one that you have read, and some of
# them may be yours.
#
# ## Resources
#
# - [A. Radford et al.: Language Models are Unsupervised Multitask Learners
#   (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
# - [safetensors: the format](https://github.com/huggingface/safetensors#format)
# - [A. Holtzman et al.: The Curious Case of Neural Text Degeneration (2019)](https://arxiv.org/abs/1904.09751): top-p
# - [G. Amdahl: Validity of the single processor approach to achieving large scale computing capabilities
#   (1967)](https://doi.org/10.1145/1465482.1465560)
#
# ## Try it
#
# - In the cell with the lies, invent one that is not refused. (Change a byte after the header. What would it take to
#   notice that?)
# - Give the sampler `Sampler(0.01)` and `Sampler(100.0)`. Predict both texts before you run them.
# - In the cell with both ways, take 100 new tokens, and predict the rows without the cache.
#
# The exercises ask for a tensor of a file, the cache, the most likely token and a sampler; one of your kernels goes
# into the model at once.
#
# Next: **a sentence encoder**, a model that reads.
