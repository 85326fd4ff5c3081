# %% [markdown]
# # 36 · The first right token
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - why a Llama has fewer heads of keys than of queries, and what that saves
# - what its MLP computes, and how the last row becomes a token
# - how comparing launch by launch finds a single wrong line in a model
#
# ## The problem
#
# The last lesson followed a question through the first four launches of `data/tiny-llama`, up to queries and keys that
# carry their positions. Now we go on to the first token of the answer. And then we ask whether it is right. The model
# has memorised the dictionary it was trained on, so even a wrong program may print the right words. To be sure, we
# compare every launch with NumPy in float64, and then put mistakes into the model to see what a comparison finds.
#
# The next cell runs the model once and keeps what each launch wrote, as in the last lesson.

# %%
import math
import textwrap

import numpy as np

from labkit import agree, cuda, measure, show_source
from labkit.kernels.dtypes import float32_of
from labkit.models.configs import LLAMA_3_2_1B
from labkit.models.llama import Kernels, SingleSequence
from labkit.models.load import load

loaded = load("tiny-llama")
model, tokenizer, tiny = loaded.model, loaded.tokenizer, loaded.model.config
ids = tokenizer.chat([{"role": "user", "content": "What is a hacker?"}])
seen, alone = {}, SingleSequence(model, context=64)
logits = alone(ids, watch=lambda name, array: seen.update({name: array.copy_to_host()}))
logits = logits.copy_to_host()[0]
print(f"{len(ids)} tokens, {len(seen)} arrays")

# %% [markdown]
# ## Prediction
#
# While a model writes, every new token reads the keys and values of all earlier ones. They are kept in a *cache*: they
# take memory, and reading them takes time. Llama 3.2 1B has 16 layers and 32 heads of queries, each of 64 numbers in
# bfloat16, and its weights take {{ 2 * 1235814400 / 1e9:.1f }} GB. Write down three guesses. How many bytes does one
# token add to the cache, with only 8 heads of keys and values? How large is the cache for one text of 131,072 tokens?
# And with 32 heads of each?

# %%
for kv_heads in (8, 32):
    a_token = 2 * LLAMA_3_2_1B.num_hidden_layers * kv_heads * LLAMA_3_2_1B.head_dim * 2
    print(f"{kv_heads:2} heads of keys and values: {a_token:7,} bytes a token, "
          f"{131_072 * a_token / 1e9:5.1f} GB for 131,072 tokens")
print(f"tiny-llama: {2 * tiny.num_hidden_layers * tiny.num_key_value_heads * tiny.head_dim * 2:,} bytes a token")

# %% [markdown]
# Even with 8 heads, a single long text takes more than the weights.
#
# ## Attention with fewer keys than queries
#
# *Grouped-query attention* shares keys and values. With H heads of queries and only K heads of keys and values, query
# head h reads head h // (H / K). Llama 3.2 1B has 32 and 8, the tiny model 8 and 4.
#
# Here is attention step by step in NumPy, from the queries, keys and values of our last layer. (`gather` collects keys
# and values from the pages of the cache, the subject of lesson 39.) The root of D keeps the scores of longer heads from
# growing, as in lesson 24. Which token do you expect the last one to attend to, just before the answer begins?

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
# 1 share their keys and still differ, since their queries do. (`np.repeat` makes copies; our decode kernel does not.
# One block computes all query heads of a group and loads their keys once.)
#
# ## The residual stream
#
# A projection brings the heads back to the width of the model, and its result is added to x, the *residual stream* that
# runs past all layers. The sum of two bfloat16 numbers is rounded only once, so it has to agree with NumPy to the last
# bit. The addition and the norm after it are one launch: the norm takes the sum from registers.

# %%
from labkit.kernels.ops.rmsnorm import ADD_RMSNORM_BF16

agree(ADD_RMSNORM_BF16, ["add_rmsnorm_fused"], sizes=({"T": 9, "C": 256},))

# %% [markdown]
# ## SwiGLU
#
# GPT-2's MLP widens a row, applies GELU, and projects back. Llama's computes two wide rows, *gate* and *up*. The gate
# goes through SiLU, x / (1 + exp(−x)), and multiplies the other. That is SwiGLU:
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
curves(at, {"SiLU": silu, "GELU": gelu}, "SiLU and GELU", "x", "out")

# %% [markdown]
# It is negative wherever x is, and nearly 0 far below 0: there the gate switches an output off.
#
# Both products have the same input, and an output needs only its own element of each. So one launch can compute both
# and multiply them in registers, if gate and up of an output end up in the same thread. For that the weights are
# interleaved when the model is loaded: eight rows of the gate, eight of the up, and so on. That saves a launch, and
# writing and reading the wide rows.

# %%
from labkit.kernels.ops.linear_bf16 import LINEAR_SWIGLU

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
# *Greedy* decoding takes the token with the largest logit and, of equal ones, the lower id: the `argmax` of lesson 28.
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
# Now let us make two mistakes, both in the rotation. The first counts positions from 1 instead of 0, in all layers. The
# second rotates pairs of neighbours, (2d, 2d + 1) instead of (d, d + D/2), in layer 3 only.

# %%
from itertools import count

from labkit.kernels import rope


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


# %% [markdown]
# Predict for each mistake which activation will be the first to disagree, and whether the answer begins differently.

# %%
def answer(model, count):
    """The first tokens of a greedy answer, as a text."""
    alone, tokens, step = SingleSequence(model, 128), [], ids
    while len(tokens) < count and (not tokens or tokens[-1] not in tokenizer.stop):
        tokens.append(int(alone(step).copy_to_host()[0].argmax()))
        step = tokens[-1:]  # the cache holds the rest
    return tokenizer.decode(tokens)


for mistake, layers in ((from_one, range(tiny.num_hidden_layers)), (neighbours, (3,))):
    other = model.with_kernels(wrong_rope(mistake, layers))
    first, wrong = parity(other, [ids]).first, SingleSequence(other, 64)(ids).copy_to_host()[0]
    print(f"{mistake.__name__:12}{first.name:14}logits move by {np.abs(wrong - logits).max():5.2f}   "
          f"{answer(other, 10).strip()!r}")

# %% [markdown]
# Counting from 1 rotates every query and every key too far, and parity reports it in the first layer. The logits hardly
# move, because only distances count; what is left is rounding. It is still a bug, which shows as soon as another
# program continues with these keys. The other mistake is found in its layer, `layers.3.q`. And yet both answers begin
# with the right words: a test of the answer alone would have passed both mistakes.
#
# ## The first right token
#
# Finally the reference computes everything from the ids on, without using anything that the kernels wrote: once in
# float64 throughout, and once rounding to bfloat16 wherever the model does. Which of the two do you expect to be nearer
# to our logits?

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
# subject of lesson 37:

# %%
print(textwrap.fill(answer(model, 60), 98))

# %% [markdown]
# ## Sixteen layers, and another architecture
#
# For Llama 3.2 1B nothing is missing: only its configuration has other numbers. No kernel has a width written into it.
# Sizes that matter to the compiler are constants, and each model gets kernels that are compiled for its own sizes.
#
# Another architecture costs a file. Qwen3 normalises each head of queries and keys before rotating it, and its
# attention may have biases. Nothing else differs from Llama in the launches:

# %%
from labkit.models import qwen3

show_source(qwen3.Qwen3)

# %% [markdown]
# The course's tests compare each of its launches, too. And the configuration of each model refuses what its launches do
# not compute: an unknown scaling, a bias in the MLP, a sliding window.
#
# ## How fast?
#
# These times were recorded on an H200 for the shapes of Llama 3.2 1B, each kernel in a CUDA graph, without Python's
# share of a launch. The bound is the time for the bytes at the rate of a copy, or for the flops, whichever is longer; a
# kernel that only reads can be a little faster than a copy. Where ours is fused, PyTorch launches several kernels;
# compiled, fewer. Which of ours will be furthest from its bound, and which is furthest ahead?

# %%
print(f"{'fastest rung, in us':28}{'size':26}{'bound':>8}{'ours':>8}{'PyTorch':>9}{'compiled':>10}")
for name in ("rmsnorm_bf16", "add_rmsnorm_bf16", "rope_split_cache_bf16", "linear_swiglu", "lm_head"):
    ladder = measure.recorded_ladder(name, gpu="NVIDIA H200")
    us = {row.name.split(" (")[0]: 1e3 * (row.graph or row.timing).p50
          for row in ladder.rows if row.timing}
    best = min((row.name for row in ladder.rows if row.kind == "rung" and row.timing), key=us.get)
    compiled = min(us[name] for name in us if ", compiled" in name)
    size = " ".join(f"{axis}={length}" for axis, length in ladder.size.items())
    print(f"{best:28}{size:26}{1e3 * ladder.bound_ms:8.1f}{us[best]:8.1f}"
          f"{us['PyTorch']:9.1f}{compiled:10.1f}")

# %% [markdown]
# The norm alone is furthest from its bound{{ if norm_furthest }}, and PyTorch's is as fast{{ if as_fast }}. The
# rotation is furthest ahead: {{ words(rotated['PyTorch (']) }} times as fast as PyTorch, which launches its steps one
# by one. But most of that is what fusing is worth to anybody: compiled, PyTorch takes only
# {{ rotated['PyTorch, compiled']:.1f }} times as long as ours.
#
# ## What I learned
#
# - Keys and values take memory for every token of a text, queries do not. Hence there are fewer heads of them.
# - A kernel can compute two products and multiply them, if both reach the same thread. The weights can be ordered so.
# - A wrong model can give the right answer. Compare launches, not answers.
# - Compare each launch from the model's own inputs to it. Then the first wrong row of the table is the wrong launch.
# - A new architecture of the same family costs a class with two methods.
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
# Next: **the KV cache**, without which every token would compute its past again.

# %% [numbers]
# beyond = {op: row(op, name).graph_us / row(op, name).bound_ms for op, name in (('rmsnorm_bf16', 'rmsnorm_registers'),
#           ('add_rmsnorm_bf16', 'add_rmsnorm_fused'), ('rope_split_cache_bf16', 'rope_vectorized'), ('linear_swiglu',
#           'linear_swiglu_picked'), ('lm_head', 'lm_head_streamed'))}
# rotated = {name: row('rope_split_cache_bf16', name).graph_us / row('rope_split_cache_bf16',
#            'rope_vectorized').graph_us for name in ('PyTorch (', 'PyTorch, compiled')}
# norm_furthest = beyond['rmsnorm_bf16'] == max(beyond.values())
# as_fast = (abs(row('rmsnorm_bf16', 'PyTorch, compiled').graph_us / row('rmsnorm_bf16', 'rmsnorm_registers').graph_us -
#            1) < 0.05)
