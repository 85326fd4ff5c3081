# %% [markdown]
# # 24 · Llama by hand
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - what every launch of a Llama computes, from the tokens of a question to the first token of the answer
# - why its norm needs no mean, why it rotates by position, and why it has fewer heads of keys than of queries
# - how comparing launch by launch finds a single wrong line in a model
#
# ## The problem
#
# "What is a hacker?" Our model, `data/tiny-llama`, was trained for this course on the Jargon File, a dictionary of
# hackers' slang, and recites its definitions. It has the architecture of Llama 3.2 1B and is two hundred times smaller.
# This lesson follows the question through the model to the first token of the answer, and compares what each kernel
# writes with NumPy in float64.

# %%
import textwrap

import numpy as np

from labkit import agree, cuda, measure, show_source
from labkit.models.llama import LLAMA_3_2_1B, Alone, Kernels
from labkit.models.load import load

loaded = load("tiny-llama")
model, tokenizer, tiny = loaded.model, loaded.tokenizer, loaded.model.config
print(f"{'':24}{'tiny-llama':>14}{'Llama 3.2 1B':>16}")
for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
             "head_dim", "intermediate_size", "vocab_size", "parameters"):
    print(f"{name:24}{getattr(tiny, name):14,}{getattr(LLAMA_3_2_1B, name):16,}")

# %% [markdown]
# ## Prediction
#
# A layer normalises, computes queries, keys and values, rotates queries and keys, attends, projects, normalises again,
# and applies an MLP. Write down three guesses before you run the cell. How many launches does the tiny model make
# between token ids and logits? What share of the parameters is the embedding table, in each of the two models? And how
# many bytes of keys and values does one token add to the cache?

# %%
launched = []


def counted(name, launch):
    return lambda *args, **options: (launched.append(name), launch(*args, **options))


question = [{"role": "user", "content": "What is a hacker?"}]
ids = tokenizer.chat(question)
watched = {name: counted(name, launch) for name, launch in vars(model.kernels).items()
           if name != "arrange_gate_up"}  # that one runs on the host
Alone(model.with_kernels(Kernels(**watched)), context=64)(ids)
print(f"{len(launched)} launches:",
      ", ".join(f"{launched.count(name)} {name}" for name in dict.fromkeys(launched)), "\n")
for name, config in (("tiny-llama", tiny), ("Llama 3.2 1B", LLAMA_3_2_1B)):
    table = config.vocab_size * config.hidden_size
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    print(f"{name:14}{table / config.parameters:5.0%} of the parameters are embeddings, "
          f"{2 * numbers:6,} bytes a token in the cache")

# %% [markdown]
# A layer takes eight launches. Four more surround the layers: the embedding, the last norm, the gathering of the last
# row, and the logits.
#
# ## From text to tokens
#
# The model was trained on conversations, in which *special tokens* mark who is speaking. Every family of models has its
# own format, so a model comes with a *chat template*: a small program in the language Jinja, stored with the tokenizer,
# that turns a list of messages into a text.

# %%
print(tokenizer.template.render(question), "\n")
for token in ids:
    print(f"{token:6}  {tokenizer.decode([token], marks=True)!r}")

# %% [markdown]
# The text ends where the answer begins. Two mistakes are common. The template writes the first token, `<|endoftext|>`,
# itself, and many tokenizers add such a token as well: the model still answers a prompt that begins with two of them,
# and often worse. And the tokenizer recognises special tokens wherever they stand, so users who type them can end their
# own turn and write the model's. A program that takes text from strangers should look for them.
#
# ## A row for each token
#
# The first launch gathers: row t of its output is row `ids[t]` of the embedding table. The obvious kernel has a block
# for each token and a thread for each column. The tiny model has 256 columns and Llama 3.2 1B has 2,048. What will
# happen with each?

# %%
@cuda.jit
def a_thread_for_each_column(ids, table, out):
    token, col = cuda.blockIdx.x, cuda.threadIdx.x
    out[token, col] = table[ids[token], col]


d_ids = cuda.to_device(np.array(ids, np.int32))
for width in (256, 2048):
    table = cuda.to_device(np.zeros((tiny.vocab_size, width), np.uint16))
    out = cuda.device_array((len(ids), width), np.uint16)
    try:
        a_thread_for_each_column[len(ids), width](d_ids, table, out)
        print(f"{width} columns: launched")
    except Exception as error:
        print(f"{width} columns: {type(error).__name__}: {error}")

# %% [markdown]
# A block has at most 1,024 threads, so a kernel written for one model fails with the next. In the model's own kernel a
# thread copies 16 bytes, eight bfloat16 numbers, and the threads are numbered through all rows. (The uint16 in these
# cells is bfloat16: NumPy has no such type, so arrays hold the bits, as in lesson 23.) A copy has to be exact.

# %%
from labkit.kernels.embedding import TOKEN_EMBEDDING_BF16

agree(TOKEN_EMBEDDING_BF16, sizes=({"T": 9, "C": 256}, {"T": 3, "C": 2048}))

# %% [markdown]
# Now run the whole model once and keep what every launch writes. The rest of the lesson goes through these arrays.

# %%
from labkit.kernels.dtypes import float32_of

seen, alone = {}, Alone(model, context=64)
logits = alone(ids, watch=lambda name, array: seen.update({name: array.copy_to_host()}))
logits = logits.copy_to_host()[0]
for name, array in seen.items():
    if not name.startswith("layers.") or name.startswith("layers.0."):
        print(f"{name:22} {array.dtype.name:8} {array.shape}")

# %% [markdown]
# ## A norm without a mean
#
# LayerNorm subtracts the mean of a row, divides by its standard deviation, multiplies by weights and adds biases.
# RMSNorm keeps the division and the weights:
#
# $$\text{out}_i = \frac{x_i}{\sqrt{\frac{1}{C} \sum_j x_j^2 + \varepsilon}} \, w_i$$
#
# There is one sum instead of two, and its terms are never negative, so nothing cancels. What is lost? Guess which of
# the two norms ignores a row's multiplication by 3, and which ignores the addition of 3.

# %%
def layernorm(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def rmsnorm(x):
    return x / np.sqrt((x * x).mean() + 1e-5)


row = np.random.default_rng(0).standard_normal(256)
for norm in (layernorm, rmsnorm):
    times, plus = (np.abs(norm(other) - norm(row)).max() for other in (3 * row, row + 3))
    print(f"{norm.__name__:10} largest change if multiplied {times:.1e}, if shifted {plus:.1e}")
for size in (1, 1e-2, 1e-4):
    print(f"a row of {size:g}: RMSNorm makes it {rmsnorm(np.full(256, size))[0]:.3f}")

# %% [markdown]
# Both ignore the scale, up to ε. Only LayerNorm ignores a shift, and the paper on RMSNorm found that models train as
# well without that. The last lines show ε at work. It prevents a division by 0, and it also decides how large a small
# row comes out. A model is right only with the ε that it was trained with: 1e-5 here, 1e-6 in Qwen3.
#
# Inputs and outputs are bfloat16, with 8 significant bits, but the arithmetic between them must be float32: lesson 23
# showed where a sum in bfloat16 gets stuck. The ladder is that of LayerNorm in lesson 15: a thread for each row, a
# block with a tree, a warp with shuffles, and the row in registers. Here is the warp. `load` converts an element to
# float32, `rounded` rounds to bfloat16 and back, and `store` rounds and writes.

# %%
from labkit.kernels.norm import rmsnorm as norms

show_source(norms.make_rmsnorm_warp)

# %%
agree(norms.RMSNORM_BF16, ["rmsnorm_warp", "rmsnorm_registers"],
      sizes=({"T": 5, "C": 256}, {"T": 2, "C": 2048}))

# %% [markdown]
# The kernel rounds before the multiplication by the weight, too, because the transformers library does. Programs that
# round in different places disagree in their last bits.
#
# ## One product for queries, keys and values
#
# The next launch is a linear layer. Weights are stored as (outputs, inputs), so those of queries, keys and values can
# be stacked into one matrix: one launch, which reads its input once.
#
# The model calls no library, but cuBLAS is a useful second opinion. As lesson 10 showed, it takes every matrix to be
# stored column by column, so it sees what we store row by row as its transpose. For out = X Wᵀ it must write
# outᵀ = W Xᵀ. It sees W as Wᵀ and has to transpose it (`OP_T`); it sees X as Xᵀ, as needed (`OP_N`). How many of the
# numbers will differ? (Without a GPU the cell calls labkit's model of cuBLAS in NumPy.)

# %%
from labkit.kernels.libraries import blas

weight = model.layers[0]["self_attn.qkv_proj.weight"]
by_blas = cuda.device_array(seen["layers.0.qkv"].shape, np.uint16)
blas.linear(cuda.to_device(seen["layers.0.input_norm"]), weight, by_blas)
ours, theirs = seen["layers.0.qkv"], by_blas.copy_to_host()
error = np.abs(float32_of(ours) - float32_of(theirs)).max() / np.abs(float32_of(ours)).max()
print(f"({len(ids)}, {weight.shape[1]}) times {weight.shape}^T, by {blas.source()}")
print(f"numbers that differ: {(ours != theirs).sum()} of {ours.size:,}, by at most {error:.1e} of the largest")

# %% [markdown]
# One function, `linear`, serves every linear layer. It picks its kernel by the number of rows: for a few rows the
# weights are streamed past them, for many the product is computed in tiles.
#
# ## A position is a rotation
#
# Attention has no notion of order: permute the keys together with their values, and the result is the same. GPT-2
# therefore adds a learned vector for each position to the embedding. Llama uses *rotary position embedding*, RoPE,
# which follows from two requirements. A query at position p and a key at position j meet only in their dot product, so
# that is where positions must show. And only the distance between the two should count.
#
# Take two numbers of a head as a point in the plane, and rotate it by an angle proportional to its position: the
# query's by pω, the key's by jω. A dot product does not change if both vectors are rotated alike. Rotate both back by
# pω: the query is as it was, the key is rotated by (j − p)ω, and only the distance is left.
#
# A head of D numbers has D / 2 such pairs, and each rotates at its own speed: pair d by $\omega_d = \theta^{-2d/D}$ for
# each position. Fast pairs tell neighbours apart, slow ones tell apart what is far away. With θ = 10,000 and heads of
# 32, how many of pairs 0, 2, 4 and 8 have completed a turn by position 8?

# %%
from labkit.kernels.rope import frequencies
from labkit.measure.plots import llama_by_hand as pictures

speeds = frequencies(tiny.head_dim, tiny.rope_theta)
pictures.rotations(speeds, pairs=(0, 2, 4, 8))

# %% [markdown]
# Only the first. In NumPy the rotation is a few lines, and the derivation can be tested. Rotate a random query and a
# random key to positions three apart, and then move both. What happens to the score, and what if only one of them
# moves?

# %%
from labkit.models.llama_reference import rotate

show_source(rotate)

# %%
query, key = np.random.default_rng(1).standard_normal((2, 1, 1, tiny.head_dim))
for p, j in ((5, 2), (105, 102), (1003, 1000), (5, 3)):
    score = (rotate(query, [p], tiny) * rotate(key, [j], tiny)).sum()
    print(f"positions {p:4} and {j:4}, {p - j} apart: {score:.12f}")

# %% [markdown]
# Which numbers of a head form a pair? In the paper they are neighbours, 2d and 2d + 1. In the files for the
# transformers library pair d is (d, d + D/2): the head is split in the middle. Either works with weights in the
# matching order. The test above cannot tell them apart, since both are rotations; a test further down can.
#
# The angles are computed in float64, and a table holds the cosines and sines for each position. One launch splits a row
# of `qkv`, rotates queries and keys in registers, and writes keys and values to the cache. The first rung takes three
# launches for that.

# %%
from labkit.kernels import rope

agree(rope.ROPE_SPLIT_CACHE_BF16, ["rope_three_launches", "rope_vectorized"],
      sizes=({"T": 16, "H": 8, "KV": 4, "D": 32},))

# %% [markdown]
# Llama 3 was trained with 8,192 positions, and its successors were extended to 131,072, where a slow pair reaches
# angles that it has never had in training. *llama3 scaling* changes each frequency according to its wavelength, the
# number of tokens for a full turn. Pairs that complete at least four turns in 8,192 tokens stay as they are. Those that
# complete less than one are slowed down by a factor of 32, so that the new positions lie within the old angles. Between
# the two, frequencies are interpolated. How many of the 32 pairs do you expect to stay as they are?

# %%
scaling = LLAMA_3_2_1B.rope_scaling
plain = frequencies(LLAMA_3_2_1B.head_dim, LLAMA_3_2_1B.rope_theta)
scaled = frequencies(LLAMA_3_2_1B.head_dim, LLAMA_3_2_1B.rope_theta, scaling)
pictures.wavelengths(plain, scaled, scaling["original_max_position_embeddings"],
                     scaling["low_freq_factor"], scaling["high_freq_factor"])

# %% [markdown]
# ## Attention, with fewer keys than queries
#
# While a model writes, every new token reads the keys and values of all earlier ones: they take memory, and reading
# them takes time. *Grouped-query attention* shares them. With H heads of queries and only K heads of keys and values,
# query head h reads head h // (H / K). Llama 3.2 1B has 32 and 8. Predict the size of its cache for one text of 131,072
# tokens, with 8 heads of keys and values and with 32.

# %%
for kv_heads in (8, 32):
    a_token = 2 * LLAMA_3_2_1B.num_hidden_layers * kv_heads * LLAMA_3_2_1B.head_dim * 2
    print(f"{kv_heads:2} heads of keys and values: {a_token:7,} bytes a token, "
          f"{131_072 * a_token / 1e9:5.1f} GB for 131,072 tokens")

# %% [markdown]
# The weights of that model are 2.5 GB. Even with 8 heads a single long text takes more.
#
# Here is attention step by step in NumPy, from the queries, keys and values of our last layer. (`gather` collects keys
# and values from the pages of the cache, the subject of lesson 26.) The root of D keeps the scores of longer heads from
# growing, as in lesson 17. Which token do you expect the last one to attend to, just before the answer begins?

# %%
from labkit.kernels.attention.pages import gather

last, pages = f"layers.{tiny.num_hidden_layers - 1}.", np.array(alone.pages)
q = float32_of(seen[last + "q"]).astype(np.float64)  # (T, H, D)
keys, values = (gather(float32_of(seen[last + name]), pages, len(ids)).astype(np.float64)
                for name in ("keys", "values"))  # (T, K, D)
shared = q.shape[1] // keys.shape[1]
keys, values = (np.repeat(each, shared, axis=1) for each in (keys, values))

scores = np.einsum("thd,nhd->htn", q, keys) / np.sqrt(q.shape[2])
scores[:, ~np.tri(len(ids), dtype=bool)] = -np.inf  # the causal mask: no token sees a later one
weights = np.exp(scores - scores.max(axis=2, keepdims=True))
weights /= weights.sum(axis=2, keepdims=True)
mixed = np.einsum("htn,nhd->thd", weights, values).reshape(len(ids), -1)

attended = float32_of(seen[last + "attended"])
print(f"the kernel's largest error: {np.abs(attended - mixed).max():.1e}, "
      f"rounding to bfloat16 alone allows {np.abs(mixed).max() / 2**8:.1e}")

# %%
pieces = [tokenizer.decode([token], marks=True) for token in ids]
pictures.head_weights(pieces, weights, shared)

# %% [markdown]
# The bottom row of each square is the last token. Several heads attend to " hacker", the word in question. Heads 0 and
# 1 share their keys and still differ, since their queries do. (`np.repeat` makes copies; our decode kernel does not.
# One block computes all query heads of a group and loads their keys once.)
#
# ## The residual stream
#
# A projection brings the heads back to the width of the model, and its result is added to x, the *residual stream* that
# runs past all layers. The sum of two bfloat16 numbers is rounded only once, so it has to agree with NumPy to the last
# bit. The addition and the norm after it are one launch: the norm takes the sum from registers.

# %%
agree(norms.ADD_RMSNORM_BF16, ["add_rmsnorm_fused"], sizes=({"T": 9, "C": 256},))

# %% [markdown]
# ## SwiGLU
#
# GPT-2's MLP widens a row, applies GELU, and projects back. Llama's computes two wide rows, *gate* and *up*. The gate
# goes through SiLU, x / (1 + exp(−x)), and multiplies the other:
#
# $$\text{down}\big(\text{silu}(\text{gate}(x)) \cdot \text{up}(x)\big)$$
#
# SiLU resembles GELU. Where is it negative, and how far below 0 does it go?

# %%
import math

from labkit.measure.plots.ladders import curves

at = np.linspace(-6, 4, 1001)
silu = at / (1 + np.exp(-at))
gelu = at * (1 + np.vectorize(math.erf)(at / math.sqrt(2))) / 2
print(f"the least value of SiLU is {silu.min():.3f}, at {at[silu.argmin()]:.2f}")
curves(at, {"SiLU": silu, "GELU": gelu}, "SiLU and GELU", "x", "out")

# %% [markdown]
# It is negative wherever x is, and nearly 0 far below 0: there the gate switches an output off.
#
# Both products have the same input, and an output needs only its own element of each. So one launch can compute both
# and multiply them in registers, if gate and up of an output end up in the same thread. For that the weights are
# interleaved when the model is loaded: eight rows of the gate, eight of the up, and so on. That saves a launch, and
# writing and reading the wide rows.

# %%
from labkit.kernels.linear.bf16 import LINEAR_SWIGLU

agree(LINEAR_SWIGLU, ["linear_swiglu_streamed"], sizes=({"M": 9, "N": 24, "K": 264}, {"M": 1, "N": 8, "K": 256}))

# %% [markdown]
# ## From the last row to a token
#
# After the last layer comes one more norm. Only the last row is needed, since it predicts the next token. Its dot
# products with the rows of a table are the logits. In a *tied* model that table is the embedding itself: the likeliest
# token is the one whose embedding has the largest dot product with the last row.

# %%
shares = np.exp(logits.astype(np.float64) - logits.max())
shares /= shares.sum()
for token in np.argsort(-shares, kind="stable")[:5]:
    piece = repr(tokenizer.decode([token]))
    print(f"{token:6}  {piece:8} logit {logits[token]:6.2f}  {shares[token]:7.2%}")

# %% [markdown]
# *Greedy* decoding takes the token with the largest logit and, of equal ones, the lower id: the `argmax` of lesson 20.
#
# ## Launch by launch
#
# Is the whole model right? `parity` runs it and compares what each launch wrote with the same step in NumPy and
# float64, computed from the model's own inputs to that step. So a wrong launch is one wrong row of the table, and later
# launches are judged independently.

# %%
from labkit.models.llama_reference import activations, bfloat16, parity, weights_of

whole = parity(model, [ids]).check()
worst = max(whole.rows, key=lambda row: row.error / row.allowed)
print(f"{len(whole.rows)} activations agree; "
      f"the largest error is {worst.error / worst.allowed:.2f} of the allowed one, in {worst.name}")

# %% [markdown]
# Now two mistakes, both in the rotation. The first counts positions from 1 instead of 0, in all layers. The second
# pairs neighbours, in layer 3 only. Predict for each which activation will be the first to disagree, and whether the
# answer begins differently.

# %%
from itertools import count


def wrong_rope(mistake, layers):
    """rope_split_cache with a mistake in these layers."""
    number = count()

    def launch(qkv, table, positions, slots, q, *rest, **options):
        if next(number) % tiny.num_hidden_layers in layers:
            qkv, positions = mistake(qkv, positions, q.shape[2])
        rope.rope_split_cache(qkv, table, positions, slots, q, *rest, **options)

    return Kernels(rope_split_cache=launch)


def from_one(qkv, positions, size):
    return qkv, cuda.to_device(positions.copy_to_host() + np.int32(1))


def neighbours(qkv, positions, size):
    """Reordered, so that 2d and 2d + 1 meet."""
    heads = qkv.copy_to_host().reshape(len(qkv), -1, size // 2, 2)
    return cuda.to_device(np.ascontiguousarray(heads.swapaxes(2, 3).reshape(qkv.shape))), positions


def answer(model, count):
    """The first tokens of a greedy answer, as a text."""
    alone, tokens, step = Alone(model, 128), [], ids
    while len(tokens) < count and (not tokens or tokens[-1] not in tokenizer.stop):
        tokens.append(int(alone(step).copy_to_host()[0].argmax()))
        step = tokens[-1:]  # the cache holds the rest
    return tokenizer.decode(tokens)


for mistake, layers in ((from_one, range(tiny.num_hidden_layers)), (neighbours, (3,))):
    other = model.with_kernels(wrong_rope(mistake, layers))
    first, wrong = parity(other, [ids]).first, Alone(other, 64)(ids).copy_to_host()[0]
    print(f"{mistake.__name__:12}{first.name:14}logits move by {np.abs(wrong - logits).max():5.2f}   "
          f"{answer(other, 10).strip()!r}")

# %% [markdown]
# Counting from 1 rotates every query and every key too far, and parity reports it in the first layer. The logits hardly
# move, because only distances count; what is left is rounding. It is still a bug, which shows as soon as another
# program continues with these keys. The other mistake is found in its layer, `layers.3.q`. And yet both answers begin
# with the right words. The model knows this answer by heart, and a test of the answer alone would have passed both
# mistakes.
#
# ## The first right token
#
# Finally the reference computes everything in float64 from the ids on, without using anything that the kernels wrote:
# once exactly, and once rounding to bfloat16 wherever the model does. Which of the two do you expect to be nearer to
# our logits?

# %%
truth = weights_of(model.tensors, tiny, "bfloat16")
for name, options in (("float64", {}), ("rounded as bfloat16", {"rounded": bfloat16})):
    exact = activations(tiny, truth, ids, **options)["logits"][-1]
    print(f"{name:20} first token {tokenizer.decode([int(exact.argmax())])!r}, "
          f"ours {tokenizer.decode([int(logits.argmax())])!r}; "
          f"largest difference of a logit {np.abs(exact - logits).max():.3f}")
    assert exact.argmax() == logits.argmax()

# %% [markdown]
# The first token is right. The rounded reference is about as far from ours as the exact one: where float32 and float64
# fall on different sides of a rounding boundary, a last bit differs, and every later layer carries that on.
#
# The rest of the answer is the same work again, a token at a time. `answer` already does it with a cache, which is the
# subject of lesson 25:

# %%
print(textwrap.fill(answer(model, 60), 98))

# %% [markdown]
# ## Sixteen layers, and another architecture
#
# For Llama 3.2 1B nothing is missing: only its configuration has other numbers. No kernel of the model has a width or a
# number of layers written into it; the sizes that matter to the compiler are constants, and the kernels are compiled
# for each model's.
#
# Another architecture costs a file. Qwen3 normalises each head of queries and keys before rotating it, and this is all
# that differs from Llama in the launches:

# %%
from labkit.models import qwen3

show_source(qwen3.Qwen3)

# %% [markdown]
# The course's tests compare each of its launches, too. And the configuration of each model refuses what its launches do
# not compute: an unknown scaling, a bias, a sliding window.
#
# ## How fast?
#
# These times were recorded on an H200 for the shapes of Llama 3.2 1B, each kernel in a CUDA graph, without Python's
# share of a launch. The bound is the time for the bytes at the rate of a copy, or for the flops, whichever is longer; a
# kernel that only reads can be a little faster than a copy. Where ours is fused, PyTorch launches several kernels.
# Which of them will be furthest from its bound?

# %%
print(f"{'fastest rung, in us':28}{'size':26}{'bound':>8}{'ours':>8}{'PyTorch':>9}")
for name in ("token_embedding_bf16", "rmsnorm_bf16", "add_rmsnorm_bf16", "rope_split_cache_bf16",
             "linear_swiglu", "lm_head"):
    ladder = measure.recorded_ladder(name, gpu="NVIDIA H200")
    if ladder is None:
        print(f"{name}: not recorded on the H200 yet")
        continue
    us = {row.name.split(" (")[0]: 1e3 * (row.graph or row.timing).p50
          for row in ladder.rows if row.timing}
    best = min((row.name for row in ladder.rows if row.kind == "rung" and row.timing), key=us.get)
    size = " ".join(f"{axis}={length}" for axis, length in ladder.size.items())
    print(f"{best:28}{size:26}{1e3 * ladder.bound_ms:8.1f}{us[best]:8.1f}"
          f"{us.get('PyTorch', math.nan):9.1f}")

# %% [markdown]
# ## What was implemented
#
# - a Llama from the tokens of a chat to the first token of the answer, each launch compared with NumPy in float64
# - RMSNorm, RoPE with llama3 scaling, grouped-query attention and SwiGLU, in bfloat16 with float32 arithmetic
# - a comparison that names the launch and the layer in which a model goes wrong
# - a second architecture, in a class with two methods
#
# ## What I learned
#
# - A norm can do without the mean. It cannot do without the ε of its training.
# - A rotation turns absolute positions into distances. That is a property, so it can be tested without a model.
# - Keys and values take memory for every token of a text, queries do not. Hence there are fewer heads of them.
# - Where a model rounds is part of its definition: round elsewhere, and the last bits differ.
# - A wrong model can give the right answer. Compare launches, not answers.
#
# ## Resources
#
# - [H. Touvron et al.: LLaMA (2023)](https://arxiv.org/abs/2302.13971), and [A. Dubey et al.: The Llama 3 Herd of
#   Models (2024)](https://arxiv.org/abs/2407.21783)
# - [B. Zhang, R. Sennrich: Root Mean Square Layer Normalization (2019)](https://arxiv.org/abs/1910.07467)
# - [J. Su et al.: RoFormer (2021)](https://arxiv.org/abs/2104.09864), the paper on rotary positions
# - [J. Ainslie et al.: GQA (2023)](https://arxiv.org/abs/2305.13245)
# - [N. Shazeer: GLU Variants Improve Transformer (2020)](https://arxiv.org/abs/2002.05202)
# - [A. Yang et al.: Qwen3 Technical Report (2025)](https://arxiv.org/abs/2505.09388)
#
# ## Try it
#
# - Ask another question. Which token comes second, and how close is it?
# - Load the model with `dtype="float32"` and count positions from 1 again. How far do the logits move now?
# - Leave out the division by the root of D in the attention above. Which of the heads change most?
# - Pair neighbours in each of the other layers, one at a time, and print sixty tokens. Which layers can be wrong
#   without changing the answer?
# - Swap gate and up in `arrange_gate_up`, and let `parity` find it.
#
# In the exercises for this lesson you write an RMSNorm and a rotation that then run in a Llama, and grouped-query
# attention from a blank page.
