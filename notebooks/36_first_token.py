# %% [markdown]
# # 36 · The first right token
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - why a Llama has fewer key heads than query heads, and what that saves
# - what its MLP computes, and how the last row becomes a token
# - how comparing launch by launch finds a single wrong line in a model
#
# ## The problem
#
# The last lesson followed a question through the first four launches of `data/tiny-llama`, up to queries and keys that
# carry their positions. Now we go on to the first token of the answer, and then ask whether it is right. The model has
# memorised the dictionary it was trained on, so even a wrong program may print the right words. To be sure, we compare
# every launch with NumPy in float64, and then plant mistakes in the model to see what a comparison finds.
#
# The next cell runs the model once and keeps what each launch wrote, as in the last lesson.

# %%
import math
import textwrap

import numpy as np

from labkit import agree, cuda, measure, show_source, table
from labkit.kernels.dtypes import float32_of
from labkit.models.configs import LLAMA_3_2_1B
from labkit.models.llama import Kernels, SingleSequence
from labkit.models.load import load

loaded = load("tiny-llama", dtype="bfloat16")
model, tokenizer, tiny = loaded.model, loaded.tokenizer, loaded.model.config
ids = tokenizer.chat([{"role": "user", "content": "What is a hacker?"}])
seen, alone = {}, SingleSequence(model, context=64)
logits = alone(ids, watch=lambda name, array: seen.update({name: array.copy_to_host()}))
logits = logits.copy_to_host()[0]
print(f"{len(ids)} tokens, {len(seen)} arrays")

# %% [markdown]
# ## Prediction
#
# When a model generates text, every new token reads the keys and values of all earlier ones. They are kept in a
# *cache*, which costs memory to hold and time to read. Llama 3.2 1B has 16 layers and 32 query heads, each of 64 values
# in bfloat16, and its weights are {{ 2 * 1235814400 / 1e9:.1f }} GB. How large is the cache for one text of 131,072
# tokens with 32 heads of keys and values, and how large with only 8?

# %%
rows = []
for kv_heads in (8, 32):
    a_token = 2 * LLAMA_3_2_1B.num_hidden_layers * kv_heads * LLAMA_3_2_1B.head_dim * 2
    rows.append((kv_heads, a_token, 131_072 * a_token / 1e9))
table(rows, {"heads of keys and values": "", "bytes per token": "", "GB for 131,072 tokens": ".1f"})

# %% [markdown]
# Even with 8 heads, a single long text occupies more memory than the weights.
#
# ## Attention with fewer keys than queries
#
# *Grouped-query attention* shares keys and values. With H query heads and only K heads of keys and values, query head h
# reads head h // (H / K). Llama 3.2 1B has 32 and 8, the tiny model 8 and 4.
#
# Here is attention step by step in NumPy, from the queries, keys and values of our last layer. (`gather` collects keys
# and values from the pages of the cache, the subject of lesson 39.) Dividing by the root of D keeps the scores of
# longer heads from growing, as in lesson 24. Which token do you expect the last one, just before the answer begins, to
# attend to most?

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
from labkit.course.drawings import first_token as pictures

pieces = [tokenizer.decode([token], marks=True) for token in ids]
pictures.head_weights(pieces, weights, shared)

# %% [markdown]
# The bottom row of each square is the last token. Several heads attend to " hacker", the word in question. Heads 0 and
# 1 share their keys and still differ, since their queries do. `np.repeat` made copies of the keys; our decode kernel
# makes none. One of its blocks computes all query heads of a group and loads their keys once.
#
# ## The residual stream
#
# A projection brings the heads back to the width of the model, and its result is added to x, the *residual stream* that
# runs through the whole model. The addition and the norm after it are one launch: the norm gets the sum from registers.
# A sum of two bfloat16 numbers is rounded only once, so it has to agree with NumPy to the last bit.

# %%
from labkit.kernels.ops.rmsnorm import ADD_RMSNORM_BF16

agree(ADD_RMSNORM_BF16, ["add_rmsnorm_fused"], sizes=({"T": 9, "C": 256},))

# %% [markdown]
# ## SwiGLU
#
# GPT-2's MLP widens a row, applies GELU, and projects back. Llama's computes two wide rows, *gate* and *up*. The gate
# goes through SiLU, x / (1 + exp(−x)), and multiplies up. That is SwiGLU:
#
# $$\text{down}\big(\text{silu}(\text{gate}(x)) \cdot \text{up}(x)\big)$$
#
# SiLU resembles GELU. Where is it negative, and how far below 0 does it go?

# %%
from labkit.measure.plots.ladders import curves

at = np.linspace(-6, 4, 1001)
silu = at / (1 + np.exp(-at))
gelu = at * (1 + np.vectorize(math.erf)(at / math.sqrt(2))) / 2
print(f"the least value of SiLU is {silu.min():.3f}, at {at[silu.argmin()]:.2f}")
curves(at, {"SiLU": silu, "GELU": gelu}, "SiLU and GELU are smooth switches", "x", "out")

# %% [markdown]
# It is negative wherever x is, and far below 0 it is nearly 0: there the gate switches an output off.
#
# Gate and up have the same input, and an output needs only its own element of each. So one launch can compute both and
# multiply them in registers, provided that both products of an output end up in the same thread. To bring them there,
# the weights are interleaved when the model is loaded: eight rows of the gate, eight of the up, and so on (a `GROUP` is
# eight). In the simplest kernel, a thread computes one output:

# %%
from labkit.kernels.linear import streamed

show_source(streamed.make_thread)

# %% [markdown]
# Fusing saves a launch, and it saves writing the two wide rows and reading them back.

# %%
from labkit.kernels.ops.linear_bf16 import LINEAR_SWIGLU

agree(LINEAR_SWIGLU, ["linear_swiglu_streamed"], sizes=({"M": 9, "N": 24, "K": 264}, {"M": 1, "N": 8, "K": 256}))

# %% [markdown]
# ## From the last row to a token
#
# After the last layer comes one more norm. Only the last row matters now, since it predicts the next token. Its dot
# products with the rows of a table are the logits. In a *tied* model that table is the embedding itself: the most
# likely token is the one whose embedding has the largest dot product with the last row.

# %%
shares = np.exp(logits.astype(np.float64) - logits.max())
shares /= shares.sum()
table([(token, repr(tokenizer.decode([token])), logits[token], shares[token])
       for token in np.argsort(-shares, kind="stable")[:5]],
      {"id": "d", "token": "", "logit": ".2f", "probability": ".2%"}, "The five likeliest first tokens")

# %% [markdown]
# *Greedy* decoding picks the token with the largest logit and, in a tie, the lower id: the `argmax` of lesson 28.
#
# ## Launch by launch
#
# Is the whole model right? The function `parity` runs it and compares what each launch wrote with the same step in
# NumPy and float64, computed from the model's own inputs to that step. So a wrong launch is one wrong row of the table,
# and later launches are judged independently.

# %%
from labkit.models.llama_reference import activations, bfloat16, parity, weights_of

whole = parity(model, [ids]).check()
worst = max(whole.rows, key=lambda row: row.error / row.allowed)
print(f"{len(whole.rows)} activations agree; "
      f"the largest error is {worst.error / worst.allowed:.2f} of the allowed one, in {worst.name}")

# %% [markdown]
# ## Two mistakes
#
# Now let us plant two mistakes, both in the rotation. `Kernels` names the launches that a model is made of, and any of
# them can be replaced by a function with the same arguments. The first replacement counts positions from 1 instead of 0
# and leaves the rest to the right launch:

# %%
from labkit.kernels.rope import rope_split_cache


def from_one(qkv, table, positions, *others, **options):
    one_more = cuda.to_device(positions.copy_to_host() + np.int32(1))
    rope_split_cache(qkv, table, one_more, *others, **options)


# %% [markdown]
# The second is wrong in layer 3 only. There it rotates neighbours, (2d, 2d + 1), instead of (d, d + D/2). To do so it
# reorders the values of each query and key, so that neighbours end up where the right launch expects its pairs. The
# launch is called once in each layer, so a counter tells which layer it is.

# %%
from itertools import cycle

layer = cycle(range(tiny.num_hidden_layers))


def neighbours_in_layer_3(qkv, *others, **options):
    if next(layer) == 3:
        heads = qkv.copy_to_host().reshape(len(qkv), -1, tiny.head_dim)
        rotated = heads[:, : -tiny.num_key_value_heads]  # queries and keys; the values come last
        rotated[:] = np.concatenate([rotated[..., 0::2], rotated[..., 1::2]], axis=2)
        qkv = cuda.to_device(heads.reshape(qkv.shape))
    rope_split_cache(qkv, *others, **options)


# %% [markdown]
# For each mistake, which activation will be the first to disagree with NumPy, and will the answer begin differently?

# %%
def answer(model, count):
    """The first tokens of a greedy answer, as a text."""
    alone, tokens, step = SingleSequence(model, 128), [], ids
    while len(tokens) < count and (not tokens or tokens[-1] not in tokenizer.stop):
        tokens.append(int(alone(step).copy_to_host()[0].argmax()))
        step = tokens[-1:]  # the cache holds the rest
    return tokenizer.decode(tokens)


rows = []
for mistake in (from_one, neighbours_in_layer_3):
    other = model.with_kernels(Kernels(rope_split_cache=mistake))
    first, wrong = parity(other, [ids]).first, SingleSequence(other, 64)(ids).copy_to_host()[0]
    rows.append((mistake.__name__, first.name, np.abs(wrong - logits).max(), answer(other, 10).strip()))
table(rows, {"mistake": "", "first to disagree": "", "a logit moves by up to": ".2f", "the answer begins": ""})

# %% [markdown]
# Counting from 1 rotates every query and every key too far, and parity reports it in the first layer. The logits move
# little, because attention depends only on distances; what is left is rounding. It is still a bug, which shows as soon
# as another program continues with these keys. The other mistake is found in its layer, `layers.3.q`. And yet both
# answers begin with the right words: a test of the answer alone would have passed both mistakes.
#
# ## The first right token
#
# Finally, the reference computes everything from the ids on, without using anything that the kernels wrote: once in
# float64 throughout, and once rounding to bfloat16 wherever the model does. Which of the two do you expect to come
# closer to our logits?

# %%
truth = weights_of(model.tensors, tiny, "bfloat16")
rows = []
for name, options in (("float64", {}), ("rounded to bfloat16", {"rounded": bfloat16})):
    exact = activations(tiny, truth, ids, **options)["logits"][-1]
    assert exact.argmax() == logits.argmax()
    rows.append((name, tokenizer.decode([int(exact.argmax())]), tokenizer.decode([int(logits.argmax())]),
                 np.abs(exact - logits).max()))
table(rows, {"reference": "", "its first token": "", "ours": "", "largest difference of a logit": ".3f"})

# %% [markdown]
# The first token is right, and neither reference is much closer than the other. Where float32 and float64 fall on
# different sides of a rounding boundary, a last bit differs, and the difference carries through every later layer.
#
# The rest of the answer is the same work again, one token at a time. `answer` already does it with a cache, the subject
# of the next lesson:

# %%
print(textwrap.fill(answer(model, 60), 98))

# %% [markdown]
# ## Sixteen layers, and another architecture
#
# For Llama 3.2 1B nothing is missing: its configuration has other values, and that is all. No kernel has a hard-coded
# width. Sizes that matter to the compiler are constants, and each model gets kernels compiled for its own.
#
# Another architecture takes one more file. Qwen3 normalises each head of queries and keys before rotating it, and its
# attention may have biases. In everything else its launches are Llama's:

# %%
from labkit.models import qwen3

show_source(qwen3.Qwen3)

# %% [markdown]
# The course's tests compare each of its launches, too. And a model's configuration refuses what its launches do not
# compute: an unknown scaling, a bias in the MLP, a sliding window.
#
# ## How fast?
#
# These times were recorded on an H200 for the shapes of Llama 3.2 1B, each kernel in a CUDA graph. The bound is the
# time for the bytes at the rate of a copy, or for the flops, whichever is longer; a kernel that only reads can be
# slightly faster than a copy. Where ours is fused, PyTorch launches several kernels, and compiled, fewer. Which of ours
# is furthest from its bound, and which is furthest ahead of PyTorch?

# %%
ladders = [measure.recorded_ladder(name, gpu="NVIDIA H200") for name in (
    "rmsnorm_bf16", "add_rmsnorm_bf16", "rope_split_cache_bf16", "linear_swiglu", "lm_head")]
rows = []
for each in ladders:
    us = {row.name.split(" (")[0]: 1e3 * (row.graph or row.timing).p50 for row in each.rows if row.timing}
    best = min((row.name for row in each.rows if row.kind == "rung" and row.timing), key=us.get)
    compiled = min(us[name] for name in us if ", compiled" in name)
    rows.append((best, 1e3 * each.bound_ms, us[best], us[best] / (1e3 * each.bound_ms), us["PyTorch"], compiled))
table(rows, {"fastest rung": "", "bound, us": ".1f", "ours, us": ".1f", "ours / bound": ".2f", "PyTorch, us": ".1f",
             "compiled, us": ".1f"})

# %% tags=["hide-input"]
from labkit.measure.plots.ladders import climbs

climbs(ladders)

# %% [markdown]
# The norm alone is furthest from its bound{{ if norm_furthest }}, and compiled PyTorch is as fast{{ if as_fast }}. The
# rotation is furthest ahead: {{ words(rotated['PyTorch (']) }} times as fast as PyTorch, which launches its steps one
# by one. But any fusion would have won most of that: compiled, PyTorch takes only
# {{ rotated['PyTorch, compiled']:.1f }} times as long as ours. The figure shows every rung's speed relative to the
# fastest library; only the norm alone ends just short of it.
#
# ## What I learned
#
# - Keys and values occupy memory for every token of a text, queries do not. So it pays to have fewer key and value
#   heads.
# - A kernel can compute two products and multiply them, if both reach the same thread. Order the weights so that they
#   do.
# - A wrong model can give the right answer. Compare launches as well as answers.
# - Compare each launch from the model's own inputs to it. Then the first wrong row of the table is the wrong launch.
# - A new architecture of the same family takes a class with two methods.
#
# ## Resources
#
# - [A. Dubey et al.: The Llama 3 Herd of Models (2024)](https://arxiv.org/abs/2407.21783)
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
# In the exercises for this lesson you write a gated product, predict the size of a cache, and write grouped-query
# attention from a blank page.
#
# Next: **the KV cache**. Without it every step would compute the past again.

# %% [numbers]
# beyond = {op: row(op, name).graph_us / row(op, name).bound_ms for op, name in (('rmsnorm_bf16', 'rmsnorm_registers'),
#           ('add_rmsnorm_bf16', 'add_rmsnorm_fused'), ('rope_split_cache_bf16', 'rope_vectorized'), ('linear_swiglu',
#           'linear_swiglu_picked'), ('lm_head', 'lm_head_streamed'))}
# rotated = {name: row('rope_split_cache_bf16', name).graph_us / row('rope_split_cache_bf16',
#            'rope_vectorized').graph_us for name in ('PyTorch (', 'PyTorch, compiled')}
# norm_furthest = beyond['rmsnorm_bf16'] == max(beyond.values())
# as_fast = (abs(row('rmsnorm_bf16', 'PyTorch, compiled').graph_us / row('rmsnorm_bf16', 'rmsnorm_registers').graph_us -
#            1) < 0.05)
