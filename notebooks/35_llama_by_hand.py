# %% [markdown]
# # 35 · Llama by hand
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a question becomes tokens, and tokens become rows of numbers
# - why a Llama's norm needs no mean, and why one launch computes queries, keys and values
# - how a rotation gives a token its position, and why only distances are left of it
#
# ## The problem
#
# "What is a hacker?" Our model, `data/tiny-llama`, was trained for this course on the Jargon File, a dictionary of
# hackers' slang, and recites its definitions. It has the architecture of Llama 3.2 1B and is two
# hundred{{ if near(1235814400 / 5475584, 200, 0.2) }} times smaller.
#
# In this lesson and the next we follow the question through the model to the first token of the answer, and compare
# what each launch writes with NumPy in float64. This lesson ends with queries and keys that carry their positions.

# %%
import numpy as np

from labkit import agree, cuda, measure, show_source
from labkit.models.configs import LLAMA_3_2_1B
from labkit.models.llama import Kernels, SingleSequence
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
# and applies an MLP. Write down two guesses before you run the cell. How many launches does the tiny model make between
# token ids and logits? And what share of the parameters is the embedding table, in each of the two models?

# %%
launched = []


def counted(name, launch):
    return lambda *args, **options: (launched.append(name), launch(*args, **options))


question = [{"role": "user", "content": "What is a hacker?"}]
ids = tokenizer.chat(question)
watched = {name: counted(name, launch) for name, launch in vars(model.kernels).items()
           if name != "arrange_gate_up"}  # that one runs on the host
SingleSequence(model.with_kernels(Kernels(**watched)), context=64)(ids)
print(f"{len(launched)} launches:",
      ", ".join(f"{launched.count(name)} {name}" for name in dict.fromkeys(launched)), "\n")
for name, config in (("tiny-llama", tiny), ("Llama 3.2 1B", LLAMA_3_2_1B)):
    table = config.vocab_size * config.hidden_size
    print(f"{name:14}{table / config.parameters:5.0%} of the parameters are embeddings")

# %% [markdown]
# A layer takes eight launches. Four more surround the layers: the embedding, the last norm, the gathering of the last
# row, and the logits. This lesson is about the first four launches of the model. Before them come the tokens.
#
# ## From text to tokens
#
# The model was trained on conversations, in which special tokens (lesson 34) mark who is speaking. Every family of
# models has its own format, so a model comes with a *chat template*: a small program in the language Jinja, stored with
# the tokenizer, that turns a list of messages into a text.

# %%
print(tokenizer.template.render(question), "\n")
for token in ids:
    print(f"{token:6}  {tokenizer.decode([token], marks=True)!r}")

# %% [markdown]
# The text ends where the answer begins. Two mistakes are common. The template writes the first token, `<|endoftext|>`,
# and many tokenizers add one as well: a prompt that begins with two is often answered worse. And special tokens are
# recognised wherever they stand, so users who type them can end their own turn and write the model's. A program that
# takes text from strangers should look for them.
#
# ## A row for each token
#
# The first launch gathers: row t of its output is row `ids[t]` of the embedding table. In lesson 28 the simplest kernel
# for that, with a block for each token and a thread for each column, failed for rows of 2,048. Here it is once more,
# with the 256 columns of our model and the 2,048 of Llama 3.2 1B:

# %%
@cuda.jit
def a_thread_for_each_column(ids, table, out):
    token, col = cuda.blockIdx.x, cuda.threadIdx.x
    out[token, col] = table[ids[token], col]


for width in (256, 2048):
    table = cuda.to_device(np.zeros((tiny.vocab_size, width), np.uint16))
    out = cuda.device_array((len(ids), width), np.uint16)
    try:
        a_thread_for_each_column[len(ids), width](cuda.to_device(np.array(ids, np.int32)), table, out)
        print(f"{width} columns: launched")
    except Exception as error:
        print(f"{width} columns: {type(error).__name__}: {error}")

# %% [markdown]
# A block has at most 1,024 threads, so a kernel written for one model fails with the next. In the model's own kernel a
# thread copies 16 bytes, eight bfloat16 numbers, and the threads are numbered through all rows. (The uint16 in these
# cells is bfloat16: NumPy has no such type, so arrays hold the bits, as in lesson 33.) A copy has to be exact.

# %%
from labkit.kernels.ops.embedding import TOKEN_EMBEDDING_BF16

agree(TOKEN_EMBEDDING_BF16, sizes=({"T": 9, "C": 256}, {"T": 3, "C": 2048}))

# %% [markdown]
# Now run the whole model once and keep what every launch writes. We compare our own results with these arrays.

# %%
from labkit.kernels.dtypes import float32_of

seen = {}
SingleSequence(model, context=64)(ids, watch=lambda name, array: seen.update({name: array.copy_to_host()}))
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
# There is one sum instead of two, and its terms are never negative, so nothing cancels. What is lost? Guess which norm
# ignores a row's multiplication by 3, and which ignores the addition of 3.

# %%
def layernorm(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def rmsnorm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


row = np.random.default_rng(0).standard_normal(256)
for norm in (layernorm, rmsnorm):
    times, plus = (np.abs(norm(other) - norm(row)).max() for other in (3 * row, row + 3))
    print(f"{norm.__name__:10} largest change if multiplied {times:.1e}, if shifted {plus:.1e}")
for size in (1, 1e-2, 1e-4):
    print(f"a row of {size:g}: RMSNorm makes it {rmsnorm(np.full(256, size))[0]:.3f}")

# %% [markdown]
# Both ignore the scale, up to ε. Only LayerNorm ignores a shift, and the paper on RMSNorm found that models train as
# well without that. The last lines show ε at work. It prevents a division by 0, and it also decides how large a small
# row comes out. A model is right only with the ε that it was trained with: 1e-5 here, 1e-6 in Qwen3 (lesson 36).
#
# Inputs and outputs are bfloat16, with 8 significant bits, but the arithmetic between them must be float32: lesson 33
# showed where a sum in bfloat16 gets stuck. The ladder is that of LayerNorm in lesson 21: a thread for each row, a
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
# What is each rung worth? The next cell shows times recorded on an H200, for 16,384 rows of Llama 3.2 1B, each kernel
# in a CUDA graph. The warp has no barrier, and the tree has one for each of its levels. Which of the two is faster?

# %%
ladder = measure.recorded_ladder("rmsnorm_bf16", gpu="NVIDIA H200")
print(f"{'at the rate of a copy':22}{1e3 * ladder.bound_ms:8.1f} us")
for row in ladder.rows:
    print(f"{row.name:22}{1e3 * (row.graph or row.timing).p50:8.1f} us")

# %% [markdown]
# With rows of 2,048 the tree is faster{{ if tree_faster }}: a lane of the warp walks over 64 columns, a thread of the
# tree over 8. The last rung takes eight numbers with each load and reads the row once.
#
# ## One product for queries, keys and values
#
# The next launch is a linear layer. Weights are stored as (outputs, inputs), so those of queries, keys and values can
# be stacked into one matrix: one launch, which reads its input once.
#
# The model calls no library, but cuBLAS is a useful second opinion. It takes every matrix to be stored column by column
# (lesson 14), so it sees ours as their transposes. For out = X Wᵀ it must write outᵀ = W Xᵀ: it sees W as Wᵀ and has to
# transpose it (`OP_T`), and it sees X as Xᵀ, as needed (`OP_N`). How many of the numbers will differ? (Without a GPU
# the cell calls labkit's model of cuBLAS in NumPy.)

# %%
from labkit.kernels.libraries import blas

weight = model.layers[0]["self_attn.qkv_proj.weight"]
by_blas = cuda.device_array(seen["layers.0.qkv"].shape, np.uint16)
blas.linear(cuda.to_device(seen["layers.0.input_norm"]), weight, by_blas)
ours, theirs = float32_of(seen["layers.0.qkv"]), float32_of(by_blas.copy_to_host())
error = np.abs(ours - theirs).max() / np.abs(ours).max()
print(f"({len(ids)}, {weight.shape[1]}) times {weight.shape}^T, by {blas.source()}")
print(f"numbers that differ: {(ours != theirs).sum()} of {ours.size:,}, by at most {error:.1e} of the largest")

# %% [markdown]
# One function, `linear`, serves every linear layer. It picks its kernel by the number of rows: for a few rows the
# weights are streamed past them, for many the product is computed in tiles.
#
# ## A position is a rotation
#
# Attention does not depend on order: permute the keys together with their values, and the result is the same. GPT-2
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
for p, j in ((5, 2), (105, 102), (1003, 1000), (5, 3)):
    score = (rotate(query, [p], tiny) * rotate(key, [j], tiny)).sum()
    print(f"positions {p:4} and {j:4}, {p - j} apart: {score:.12f}")

# %% [markdown]
# Which numbers of a head form a pair? In the paper they are neighbours, 2d and 2d + 1. In the files for the
# transformers library pair d is (d, d + D/2): the head is split in the middle. Either works with weights in the
# matching order. The test above cannot tell them apart, since both are rotations; the comparison below can.
#
# The angles are computed in float64, and a table holds their cosines and sines. One launch splits a row of `qkv`,
# rotates queries and keys in registers, and writes keys and values to the cache. The first rung takes three launches.

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
# complete less than one are slowed down by a factor of 32, so that the new positions lie within the old angles. Between
# the two, frequencies are interpolated. How many of the 32 pairs stay as they are?

# %%
scaling = LLAMA_3_2_1B.rope_scaling
plain = frequencies(LLAMA_3_2_1B.head_dim, LLAMA_3_2_1B.rope_theta)
scaled = frequencies(LLAMA_3_2_1B.head_dim, LLAMA_3_2_1B.rope_theta, scaling)
pictures.wavelengths(plain, scaled, scaling["original_max_position_embeddings"],
                     scaling["low_freq_factor"], scaling["high_freq_factor"])

# %% [markdown]
# ## Four launches in NumPy
#
# Here is everything so far in NumPy and float64, from the ids to the rotated queries of the first layer. On the way the
# model rounds to bfloat16 four times: twice in the norm, and once in each of the two launches after it. A rounding
# changes a number by 1/256 of it at most. How large will the largest error be, compared with the largest query?

# %%
from labkit.models.llama_reference import weights_of

truth = weights_of(model.tensors, tiny, "bfloat16")
x = truth["embed_tokens.weight"][ids]
normed = rmsnorm(x) * truth["layers.0.input_layernorm.weight"]
stacked = np.concatenate([truth[f"layers.0.self_attn.{part}_proj.weight"] for part in "qkv"])
heads = (normed @ stacked.T).reshape(len(ids), -1, tiny.head_dim)
q = rotate(heads[:, : tiny.num_attention_heads], range(len(ids)), tiny)

error = np.abs(float32_of(seen["layers.0.q"]) - q).max() / np.abs(q).max()
print(f"the largest error is {error:.1e} of the largest number; 1/256 is {1 / 256:.1e}")

# %% [markdown]
# Four roundings, and the error is about as large as that of one. In a sum of 256 products the errors of the inputs have
# different signs and mostly cancel.
#
# ## What I learned
#
# - A prompt is made by a program that comes with the model. Two first tokens, or a stranger's special tokens, spoil it.
# - A norm can do without the mean. It cannot do without the ε of its training.
# - Where a model rounds is part of its definition: round elsewhere, and the last bits differ.
# - A rotation turns absolute positions into distances. That is a property, so it can be tested without a model.
#
# ## Resources
#
# - [H. Touvron et al.: LLaMA (2023)](https://arxiv.org/abs/2302.13971)
# - [B. Zhang, R. Sennrich: Root Mean Square Layer Normalization (2019)](https://arxiv.org/abs/1910.07467)
# - [J. Su et al.: RoFormer (2021)](https://arxiv.org/abs/2104.09864), the paper on rotary positions
#
# ## Try it
#
# - Type a special token into the question, such as `<|end|>`. Which tokens does the conversation have now?
# - Change ε to 1e-3 in `rmsnorm` and run the last cell again. Or count positions from 1. Which error is larger?
# - Draw pairs of Llama 3.2 1B: `pictures.rotations(plain, pairs=...)`. Which is the first that hardly moves?
#
# In the exercises for this lesson you write an RMSNorm and a rotation that then run in a Llama, and a kernel for both.
#
# Next: **the first right token**: attention, the second half of a layer, and the end of the model.

# %% [numbers]
# tree_faster = row('rmsnorm_bf16', 'rmsnorm_block_tree').graph_us < row('rmsnorm_bf16', 'rmsnorm_warp').graph_us
