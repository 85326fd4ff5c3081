# %% [markdown]
# # 35 · Llama by hand
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how a question becomes tokens, and tokens become rows of values
# - why a Llama's norm needs no mean, and why one launch computes queries, keys and values
# - how a rotation gives a token its position, and why only distances remain
#
# ## The problem
#
# "What is a hacker?" Our model, `data/tiny-llama`, was trained for this course on the Jargon File, a dictionary of
# hackers' slang, and recites its definitions. It has the architecture of Llama 3.2 1B and is about two
# hundred{{ if near(1235814400 / 5475584, 200, 0.2) }} times smaller.
#
# In this lesson and the next we follow the question through the model to the first token of the answer, and compare
# what each launch writes with NumPy in float64. This lesson ends with queries and keys that carry their positions.

# %%
import numpy as np

from labkit import agree, cuda, measure, plots, show_source, table
from labkit.models.configs import LLAMA_3_2_1B
from labkit.models.llama import Kernels, SingleSequence
from labkit.models.load import load

loaded = load("tiny-llama", dtype="bfloat16")
model, tokenizer, tiny = loaded.model, loaded.tokenizer, loaded.model.config
table([(name, getattr(tiny, name), getattr(LLAMA_3_2_1B, name))
       for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                    "intermediate_size", "vocab_size", "parameters")], ["", "tiny-llama", "Llama 3.2 1B"])

# %% [markdown]
# ## Prediction
#
# A layer normalises, computes queries, keys and values, rotates queries and keys, attends, projects, normalises again,
# and applies an MLP. `Kernels` names the launches of a model, and here each is wrapped to count its calls. How many
# launches does the tiny model make between token ids and logits, and what share of the parameters is the embedding
# table, in each of the two models?

# %%
launched = []


def counted(name, launch):
    return lambda *args, **options: (launched.append(name), launch(*args, **options))


question = [{"role": "user", "content": "What is a hacker?"}]
ids = tokenizer.chat(question)
watched = {name: counted(name, launch) for name, launch in vars(model.kernels).items()
           if name != "arrange_gate_up"}  # that one runs on the host
SingleSequence(model.with_kernels(Kernels(**watched)), context=64)(ids)
table([(name, launched.count(name)) for name in dict.fromkeys(launched)], ["launch", "times"],
      f"{len(launched)} launches in all")

# %%
table([(name, config.vocab_size * config.hidden_size, config.vocab_size * config.hidden_size / config.parameters)
       for name, config in (("tiny-llama", tiny), ("Llama 3.2 1B", LLAMA_3_2_1B))],
      {"model": "", "embeddings": "", "of the parameters": ".0%"})

# %% [markdown]
# A layer needs eight launches. Four more surround the layers: the embedding, the last norm, the gathering of the last
# row, and the logits. This lesson is about the first four launches of the model. Before them come the tokens.
#
# ## From text to tokens
#
# The model was trained on conversations, in which special tokens (lesson 34) mark who is speaking. Every family of
# models has its own format, so a model comes with a *chat template*: a small program in the language Jinja, stored with
# the tokenizer, that turns a list of messages into a text.

# %%
print(tokenizer.template.render(question))

# %%
table([(token, repr(tokenizer.decode([token], marks=True))) for token in ids], {"id": "d", "token": ""})

# %% [markdown]
# The text ends where the answer begins. Two mistakes are common. The template writes the first token, `<|endoftext|>`,
# and many tokenizers add one as well: a prompt that begins with two is often answered worse. And special tokens are
# recognised wherever they occur, so users who type them can end their own turn and write the model's. A program that
# accepts text from strangers should look for them.
#
# The first launch turns tokens into rows: row t of its output is row `ids[t]` of the embedding table. Lesson 34 showed
# it. Now we run the whole model once and keep what every launch writes, to compare our own results with these arrays. A
# uint16 is bfloat16: NumPy has no such type, so arrays hold the bits, as in lesson 33. On a GPU whose tensor cores
# cannot multiply bfloat16 (a T4), the model computes in float16 instead.

# %%
from labkit.kernels.dtypes import float32_of

seen = {}
SingleSequence(model, context=64)(ids, watch=lambda name, array: seen.update({name: array.copy_to_host()}))
table([(name, array.dtype.name, str(array.shape)) for name, array in seen.items()
       if not name.startswith("layers.") or name.startswith("layers.0.")], ["written", "type", "shape"])

# %% [markdown]
# This lesson opens the first four of these: up to `layers.0.q`.
#
# ## A norm without a mean
#
# LayerNorm subtracts the mean of a row, divides by its standard deviation, multiplies by weights and adds biases.
# *RMSNorm* keeps the division and the weights:
#
# $$\text{out}_i = \frac{x_i}{\sqrt{\frac{1}{C} \sum_j x_j^2 + \varepsilon}} \, w_i$$
#
# There is one sum instead of two, and its terms are never negative, so nothing cancels. But something is lost. Which of
# the two norms ignores a row's multiplication by 3, and which ignores the addition of 3?

# %%
def layernorm(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def rmsnorm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


row = np.random.default_rng(0).standard_normal(256)
table([(norm.__name__, *(np.abs(norm(other) - norm(row)).max() for other in (3 * row, row + 3)))
       for norm in (layernorm, rmsnorm)],
      {"norm": "", "largest change if multiplied": ".1e", "if shifted": ".1e"})

# %%
table([(size, rmsnorm(np.full(256, size))[0]) for size in (1, 1e-2, 1e-4)],
      {"a row of": "g", "RMSNorm's output": ".3f"})

# %% [markdown]
# Both ignore the scale, up to ε. Only LayerNorm ignores a shift, and the article on RMSNorm, [B. Zhang and R. Sennrich
# (2019)](https://arxiv.org/abs/1910.07467), found that models train just as well without that. The second table shows ε
# at work. It prevents a division by 0, and it also decides how large the output of a small row is. A model is right
# only with the ε that it was trained with: 1e-5 here, 1e-6 in Qwen3 (lesson 36).
#
# Inputs and outputs are bfloat16, with 8 significant bits, but the arithmetic between them must be float32: lesson 33
# showed where a sum in bfloat16 gets stuck. The ladder is that of LayerNorm in lesson 21: one thread per row, a
# block with a tree, a warp with shuffles, and the row in registers. Here is the warp. `load` converts an element to
# float32, `rounded` rounds to bfloat16 and back, and `store` rounds and writes.

# %%
from labkit.kernels.norm import rmsnorm as norms
from labkit.kernels.ops.rmsnorm import RMSNORM_BF16

show_source(norms.make_rmsnorm_warp)

# %%
agree(RMSNORM_BF16, ["rmsnorm_warp", "rmsnorm_registers"],
      sizes=({"T": 5, "C": 256}, {"T": 2, "C": 2048}))

# %% [markdown]
# The kernel rounds before the multiplication by the weight, too, because the transformers library does.
#
# How much does each rung save? These are recorded on an H200, for 16,384 rows of Llama 3.2 1B. A row belongs to a warp,
# which needs no barrier, or to a block with a tree, which has a barrier at each of its levels. Which of the two is
# faster?

# %% tags=["hide-input"]
plots.ladder(measure.recorded_ladder("rmsnorm_bf16", gpu="NVIDIA H200"), None)

# %% [markdown]
# With rows of 2,048 the tree is faster{{ if tree_faster }}: a lane of the warp walks over 64 columns, a thread of the
# tree over 8. The last rung loads eight values at a time and reads the row only once.
#
# ## One product for queries, keys and values
#
# The next launch is a linear layer. Weights are stored as (outputs, inputs), so those of queries, keys and values can
# be stacked into one matrix: one launch, which reads its input once.
#
# The model calls no library, but cuBLAS is a useful second opinion. It expects every matrix to be stored column by
# column (lesson 14), so it sees ours as their transposes. For out = X Wᵀ it must write outᵀ = W Xᵀ: it sees W as Wᵀ and
# has to transpose it (`OP_T`), and it sees X as Xᵀ, as needed (`OP_N`). Without a GPU, the cell calls labkit's model of
# cuBLAS in NumPy. How many of the outputs will differ from ours?

# %%
from labkit.kernels.libraries import blas

weight = model.layers[0]["self_attn.qkv_proj.weight"]
by_blas = cuda.device_array(seen["layers.0.qkv"].shape, seen["layers.0.qkv"].dtype)
blas.linear(cuda.to_device(seen["layers.0.input_norm"]), weight, by_blas)
ours, theirs = float32_of(seen["layers.0.qkv"]), float32_of(by_blas.copy_to_host())
error = np.abs(ours - theirs).max() / np.abs(ours).max()
print(f"({len(ids)}, {weight.shape[1]}) times {weight.shape}^T, by {blas.source()}")
print(f"outputs that differ: {(ours != theirs).sum()} of {ours.size:,}, by at most {error:.1e} of the largest")

# %% [markdown]
# A few, in the last bit: the sums were added in a different order. One function, `linear`, serves every linear layer.
# It picks its kernel by the number of rows: for a few rows the weights are streamed past them, for many the product is
# computed in tiles.
#
# ## A position is a rotation
#
# Attention does not depend on order: permute the keys together with their values, and the result is the same. GPT-2
# therefore adds a learned vector for each position to the embedding. Llama uses *rotary position embedding*, RoPE,
# which follows from two requirements. A query at position p and a key at position j meet only in their dot product, so
# that is where positions must show. And only the distance between the two should count.
#
# Let two values of a head be a point in the plane, and rotate it by an angle proportional to its position: the
# query's by pω, the key's by jω. A dot product does not change if both vectors are rotated alike. Rotate both back by
# pω: the query is as it was, the key is rotated by (j − p)ω, and only the distance is left.
#
# A head of D values has D / 2 such pairs, and each rotates at its own speed: pair d by $\omega_d = \theta^{-2d/D}$ per
# position. Fast pairs tell neighbours apart, slow ones tell distant tokens apart. With θ = 10,000 and heads of 32, how
# many of pairs 0, 2, 4 and 8 have completed a turn by position 8?

# %%
from labkit.course.drawings import llama_by_hand as pictures
from labkit.kernels.rope import frequencies

pictures.rotations(frequencies(tiny.head_dim, tiny.rope_theta), pairs=(0, 2, 4, 8))

# %% [markdown]
# Only the first. In NumPy the rotation is a few lines, and we can test the derivation. Rotate a random query and key to
# positions three apart, and then move both. What happens to the score, and what if only one of them moves?

# %%
from labkit.models.llama_reference import rotate

show_source(rotate)

# %%
query, key = np.random.default_rng(1).standard_normal((2, 1, 1, tiny.head_dim))
rows = []
for p, j in ((5, 2), (105, 102), (1003, 1000), (5, 3)):
    rows.append((p, j, p - j, (rotate(query, [p], tiny) * rotate(key, [j], tiny)).sum()))
table(rows, {"position of the query": "d", "of the key": "d", "apart": "", "score": ".12f"})

# %% [markdown]
# The score stays the same as long as the distance does, and changes when only one of them moves.
#
# One question is left: which two values form a pair? In [J. Su and others (2021)](https://arxiv.org/abs/2104.09864),
# who proposed RoPE, they are neighbours, 2d and 2d + 1. In the files for the transformers library pair d is
# (d, d + D/2): the head is split in the middle. Either works with weights in the matching order. The test above cannot
# tell them apart, since both are rotations; the comparison below can.
#
# The angles are computed in float64, and a table holds their cosines and sines. One launch splits a row of `qkv`,
# rotates queries and keys in registers, and writes keys and values to the cache. The first rung needs three launches.

# %%
from labkit.kernels.ops.rope import ROPE_SPLIT_CACHE_BF16

agree(ROPE_SPLIT_CACHE_BF16, ["rope_three_launches", "rope_vectorized"],
      sizes=({"T": 16, "H": 8, "KV": 4, "D": 32},))

# %% [markdown]
# ## More positions than in training
#
# Llama 3 was trained with 8,192 positions, and its successors were extended to 131,072, where a slow pair reaches
# angles that never occurred in training. *llama3 scaling* changes each frequency according to its wavelength, the
# number of tokens for a full turn. Pairs that complete at least four turns in 8,192 tokens stay as they are. Those that
# complete less than one are slowed down by a factor of 32, so that the new positions stay within the old angles.
# Between the two, frequencies are interpolated. How many of the 32 pairs stay as they are?

# %%
scaling = LLAMA_3_2_1B.rope_scaling
plain = frequencies(LLAMA_3_2_1B.head_dim, LLAMA_3_2_1B.rope_theta)
scaled = frequencies(LLAMA_3_2_1B.head_dim, LLAMA_3_2_1B.rope_theta, scaling)
pictures.wavelengths(plain, scaled, scaling["original_max_position_embeddings"],
                     scaling["low_freq_factor"], scaling["high_freq_factor"])

# %% [markdown]
# Fifteen. Fourteen are slowed down by the whole factor, and three are in between.
#
# ## Four launches in NumPy
#
# Here is everything so far in NumPy and float64, from the ids to the rotated queries of the first layer. On the way the
# model rounds to bfloat16 four times: twice in the norm, and once in each of the two launches after it. A rounding
# changes a value by at most 1/256 of it. How large will the largest error be, compared with the largest query?

# %%
from labkit.models.llama_reference import weights_of

truth = weights_of(model.tensors, tiny, "bfloat16")
x = truth["embed_tokens.weight"][ids]
normed = rmsnorm(x) * truth["layers.0.input_layernorm.weight"]
stacked = np.concatenate([truth[f"layers.0.self_attn.{part}_proj.weight"] for part in "qkv"])
heads = (normed @ stacked.T).reshape(len(ids), -1, tiny.head_dim)
q = rotate(heads[:, : tiny.num_attention_heads], range(len(ids)), tiny)

error = np.abs(float32_of(seen["layers.0.q"]) - q).max() / np.abs(q).max()
print(f"the largest error is {error:.1e} of the largest query; 1/256 is {1 / 256:.1e}")

# %% [markdown]
# Four roundings, and the error is about as large as that of one. In a sum of 256 products the errors of the inputs have
# different signs and mostly cancel.
#
# ## What I learned
#
# - A prompt is made by a program that comes with the model. Two first tokens, or a stranger's special tokens, spoil it.
# - A norm can do without the mean. It cannot do without the ε it was trained with.
# - Where a model rounds is part of its definition: round elsewhere, and the last bits differ.
# - A rotation turns absolute positions into distances. That is a property, so it can be tested without a model.
#
# ## Resources
#
# - [H. Touvron et al.: LLaMA (2023)](https://arxiv.org/abs/2302.13971)
# - [B. Zhang, R. Sennrich: Root Mean Square Layer Normalization (2019)](https://arxiv.org/abs/1910.07467)
# - [J. Su et al.: RoFormer (2021)](https://arxiv.org/abs/2104.09864), the article on rotary positions
#
# ## Try it
#
# - Type a special token into the question, such as `<|end|>`. Which tokens does the conversation have now?
# - Change ε to 1e-3 in `rmsnorm` and run the last cell again. Or count positions from 1. Which error is larger?
# - Draw pairs of Llama 3.2 1B: `pictures.rotations(plain, pairs=...)`. Which is the first that barely moves?
#
# In the exercises for this lesson you write an RMSNorm and a rotation that then run in a Llama, and a kernel for both.
#
# Next: **the first right token**: attention, the second half of a layer, and the end of the model.

# %% [numbers]
# tree_faster = row('rmsnorm_bf16', 'rmsnorm_block_tree').graph_us < row('rmsnorm_bf16', 'rmsnorm_warp').graph_us
