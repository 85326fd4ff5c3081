# %% [markdown]
# # 49 · Keep or recompute
#
# *Lab notebook, 29 November 2026*
#
# You will learn
#
# - how to derive the gradient of a norm, with its sums along a row and over all rows
# - what a forward pass keeps for the backward pass, and what is cheaper to recompute
# - how flash attention's backward pass works without storing the matrix of weights
#
# ## The problem
#
# A backward kernel often needs more than `dout` (lesson 48): GELU's needs the input of the forward pass, and so does a
# linear layer's. These arrays stay in memory until the backward pass reaches their layer, and they can use more memory
# than the model's parameters. An array that is cheap to recompute need not be kept.
#
# Attention is the extreme case. In lesson 24 its weights were a matrix with one row and one column per token, and the
# softmax's gradient needs exactly these weights. Take the 12 layers of GPT-2, with 12 heads of 64, in bfloat16 and one
# sequence. An H200 has 141 GB{{ hardware }} of memory. From what sequence length do the attention weights of all layers
# no longer fit into that memory, and how many bytes are the queries, keys, values and outputs at that length?

# %%
import numpy as np

from labkit import plots, table

LAYERS, HEADS, SIZE = 12, 12, 64
tokens = 2 ** np.arange(7, 18, 2)
weights = LAYERS * HEADS * tokens.astype(float) ** 2 * 2
vectors = 4 * LAYERS * tokens * HEADS * SIZE * 2
plots.curves(tokens, {"weights": weights / 1e9, "q, k, v, out": vectors / 1e9},
             "What attention may keep for its backward pass", "tokens", "GB", log_x=True, log_y=True, marks=True)

# %%
table([(int(length), kept / 1e9, others / 1e9) for length, kept, others in zip(tokens, weights, vectors, strict=True)
       if length >= 2048], {"tokens": ",", "weights, GB": ",.1f", "q, k, v, out, GB": ",.2f"})

# %% [markdown]
# From about {{ round((141e9 / (12 * 12 * 2)) ** 0.5, -3):,.0f }} tokens on, the weights no longer fit. At 32,768 tokens
# they are {{ 12 * 12 * 32768**2 * 2 / 1e9:.0f }} GB, and the four other arrays together
# {{ 4 * 12 * 32768 * 768 * 2 / 1e9:.1f }} GB. The weights grow with the square of the length. Lesson 25 computed
# attention without ever storing them. This lesson does the same for the backward pass, after a simpler case.
#
# ## The gradient of a norm
#
# RMSNorm divides a row by the root of its mean square (lesson 21). With $\text{rstd}$ as one over that root and
# $\hat x = x \, \text{rstd}$, the output is $\hat x_c \, w_c$. Let $g = \text{dout} \cdot w$ be the gradient of
# $\hat x$. Each $x_i$ changes its own $\hat x_i$ and, through $\text{rstd}$, all others:
#
# $$\frac{\partial \hat x_j}{\partial x_i} = \text{rstd} \, \Bigl([i = j] - \frac{\hat x_i \hat x_j}{C}\Bigr)$$
#
# Multiplied by $g_j$ and summed over $j$, this gives
#
# $$dx_i = \text{rstd} \, \Bigl(g_i - \hat x_i \; \frac{1}{C} \sum_j g_j \hat x_j\Bigr)$$
#
# LayerNorm also subtracts the mean of $x$, so the mean of $g$ is subtracted in $dx$:
#
# $$dx_i = \text{rstd} \, \Bigl(g_i - \frac{1}{C} \sum_j g_j - \hat x_i \; \frac{1}{C} \sum_j g_j \hat x_j\Bigr)$$
#
# LayerNorm's output stays the same if a constant is added to a row, and nearly the same if the row is multiplied by a
# positive factor. For a row of LayerNorm, what do you expect $\sum_i dx_i$ and $\sum_i dx_i \hat x_i$ to be?

# %%
from labkit.kernels.norm.backward import norm_backward_reference

rng = np.random.default_rng(0)
x, dout, norm_weight = rng.standard_normal((4, 768)), rng.standard_normal((4, 768)), rng.standard_normal(768)
dx, _, _ = norm_backward_reference(x, norm_weight, dout, centred=True)
normalised = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
table([(row, abs(total), abs(along)) for row, (total, along) in
       enumerate(zip(dx.sum(axis=1), (dx * normalised).sum(axis=1), strict=True))],
      {"row": "", "sum of dx": ".1e", "sum of dx * xhat": ".1e"})

# %% [markdown]
# Both are 0, the first up to rounding and the second up to the small $\epsilon$ under the root. The two subtracted
# terms remove from $g$ the two directions in which the output cannot change.
#
# The kernel needs each row's mean and rstd again. The forward pass could have kept both, but the backward kernel reads
# `x` anyway, so it recomputes them without another byte from memory. Here is the plainest kernel for `dx`, with one
# thread per row. How many times does it load each element of `x`, and how many times each of `dout`?

# %%
from labkit import show_source
from labkit.kernels.elements import FLOAT32
from labkit.kernels.norm.backward import EPSILON, make_norm_backward_naive
from labkit.kernels.ops.norm_backward import LAYERNORM_BACKWARD, RMSNORM_BACKWARD

rows_kernel, columns_kernel = make_norm_backward_naive(FLOAT32, FLOAT32, True, False, EPSILON)
show_source(rows_kernel)

# %%
from labkit import observe

x, norm_weight, dout = LAYERNORM_BACKWARD.inputs(rng, R=32, C=64)
statistics = np.zeros((2, 32), np.float32)
report = observe(rows_kernel[1, 32], x.ravel(), norm_weight, dout.ravel(), np.zeros(x.size, np.float32), *statistics)
table([(report.counts["global_loads"] / x.size,)], {"loads per element, of x, dout and the weight": ".0f"})

# %% [markdown]
# Three times each, nine loads with the three of the weight. As in lesson 21, the remedy is to keep the row in
# registers.
#
# ## A sum over all rows
#
# The gradient of the weight is $dw_c = \sum_r \text{dout}_{r,c} \, \hat x_{r,c}$, and that of LayerNorm's bias
# $\sum_r \text{dout}_{r,c}$: sums down the columns. On the naive rung a second kernel computes them, and reads `x` and
# `dout` again. But a kernel that keeps its row in registers already has both.
#
# So the library's kernel adds them up on the way. It launches far fewer blocks than there are rows. A block, or a warp
# if rows are short, processes one row after another. Meanwhile each thread adds up $\text{dout} \cdot \hat x$ and
# `dout` for its own columns in registers:

# %%
from labkit.kernels.norm.backward import make_norm_backward

show_source(make_norm_backward(FLOAT32, 256, True, 3, True, True, EPSILON), "while row < rows", "row += row_step")

# %% [markdown]
# At the end each block stores its column sums, and a second launch adds these up, always in the same order (lesson 48).
# Take 8,192 rows of 768 in float32 and one block for each of an H200's {{ machine.sms }} multiprocessors. How do the
# bytes of these partial sums compare with those of `x`?

# %%
table([("x", 8192 * 768 * 4 / 1e6), ("partial sums of the weight and the bias", 132 * 2 * 768 * 4 / 1e6)],
      {"": "", "MB": ".2f"})

# %% [markdown]
# About a thirtieth. They are written once and read once, mostly from L2. In the second kernel a block adds up 32
# columns, and each of its 32 warps reads every 32nd partial sum:

# %%
from labkit.kernels.partial_sums import make_sum_by_warps

show_source(make_sum_by_warps(FLOAT32, False))

# %%
from labkit import agree

agree(LAYERNORM_BACKWARD)

# %%
agree(RMSNORM_BACKWARD)

# %% [markdown]
# ## The next row is on its way
#
# A kernel that keeps rows in registers still has to wait for the next ones. While a row is being processed, the
# library's kernel already copies the next two into shared memory with `cp.async` (lesson 08). How close does that bring
# it to the time of its bytes? The ladder is that of RMSNorm in bfloat16.

# %%
from labkit import measure

plots.ladder(measure.recorded_ladder("rmsnorm_backward_bf16", gpu="NVIDIA H200"), None)

# %% [markdown]
# The fused kernel takes {{ fused / bound:.2f }} times as long as its bytes, and compiled PyTorch
# {{ compiled / fused:.1f }} times as long as the fused kernel. The naive rung is slow mainly because of its second
# kernel: one thread walks down each column, and there are only {{ columns:, }} columns.

# %% [markdown]
# ## What is kept
#
# The gradients of a transformer's operations need different arrays. Some of these are in memory anyway, and others can
# be recomputed from those:

# %% tags=["hide-input"]
table([("linear layer", "x, W", "x; W is a weight"),
       ("LayerNorm, RMSNorm", "x, mean and rstd", "x; statistics are recomputed"),
       ("GELU, SwiGLU", "x and the sigmoid", "x; the sigmoid is recomputed"),
       ("residual addition", "nothing", "nothing: dout goes to both inputs"),
       ("rotary position embedding", "the angles", "nothing: a table has them"),
       ("embedding", "the ids", "the ids"),
       ("attention", "q, k, v and the weights", "q, k, v, out and a number per row"),
       ("cross entropy", "the probabilities", "nothing: the gradient replaces the logits")],
      ["operation", "its gradient needs", "kept"])

# %% [markdown]
# An array that two operations need is kept once: the output of a norm is the input of a linear layer. Many trainers go
# further and keep only the input of each layer. In the backward pass they run the layer's forward pass again, which
# costs a third more flops. This is called *activation checkpointing*.
#
# ## Attention, from its definition
#
# For one head let $S = Q K^T / \sqrt{D}$ be the scores, $P$ their softmax and $O = P V$ the output. Write $dO$ for
# `dout`. Then $O$ is a product, $P$ a softmax and $S$ another product, and lesson 48 has the gradient of each:
#
# $$dV = P^T dO \qquad dP = dO \, V^T \qquad dS_{ij} = P_{ij} \Bigl(dP_{ij} - \sum_k dP_{ik} P_{ik}\Bigr)$$
#
# $$dQ = dS \, K / \sqrt{D} \qquad dK = dS^T Q / \sqrt{D}$$
#
# If $P$ was not kept, $S$ has to be recomputed. The forward pass has two matrix products of this size: how many does
# the backward pass have then?

# %%
from labkit.kernels.ops.attention_training import ATTENTION_BACKWARD, ATTENTION_TRAINING

size = {"B": 1, "S": 8192, "shortest": 8192, "H": 12, "KV": 12, "D": 64}
flops = [op.work.flops(**size) / 1e9 for op in (ATTENTION_TRAINING, ATTENTION_BACKWARD)]
table([("forward", flops[0]), ("backward", flops[1]), ("backward / forward", flops[1] / flops[0])],
      {"causal, 8,192 tokens": "", "GFLOP": ".1f"})

# %% [markdown]
# Five, so {{ 5 / 2:.1f }} times the flops of the forward pass. One of the five is the recomputation.
#
# ## Two numbers for each row
#
# There are two obstacles to recomputing $P$ tile by tile. A softmax needs the maximum and the sum of its row, and the
# gradient needs $\delta_i = \sum_k dP_{ik} P_{ik}$. Both run over all keys, but a block sees one tile at a time.
#
# For the first, the forward pass keeps one float32 per query, the *log-sum-exp* of its scores,
# $\text{lse}_i = \log \sum_j e^{S_{ij}}$. With it every weight is
#
# $$P_{ij} = e^{S_{ij} - \text{lse}_i},$$
#
# in any order, for any tile, without a maximum: $\text{lse}_i$ is at least as large as every score of the row, so the
# exponent is never above 0.
#
# For the second, insert the definition of $dP$ and swap the sums:
#
# $$\delta_i = \sum_k P_{ik} \sum_d dO_{id} V_{kd} = \sum_d dO_{id} \sum_k P_{ik} V_{kd} = \sum_d dO_{id} \, O_{id}$$
#
# With 8,192 keys and a head of 64 elements, how many terms does the sum over keys on the left have, and how many the
# last sum, on the right?

# %%
from labkit.kernels.attention.training import causal_weights

queries, keys, values, grads = rng.standard_normal((4, 300, 64))
P, lse = causal_weights(queries, keys)
left = (P * (grads @ values.T)).sum(axis=1)
right = (grads * (P @ values)).sum(axis=1)
table([(8192, 64, np.abs(left - right).max())],
      {"terms on the left": ",", "on the right": "", "largest difference of 300 sums": ".1e"})

# %% [markdown]
# On the right there are 64, and no key is needed. The kernel for $\delta$ makes one pass over `out` and `grad_out`.
#
# ## Rows and columns
#
# $dQ_i$ is a sum over keys, and $dK_j$ and $dV_j$ are sums over queries. A block that goes through tiles of keys for
# its queries can add up $dQ$ in registers. But each tile also contributes to the $dK$ and $dV$ of its keys, and blocks
# with other queries contribute to the same rows. FlashAttention-2 adds up $dQ$ with atomics. The course's kernels do
# not: in one launch each block owns some queries, and in a second one some keys.

# %% tags=["hide-input"]
from labkit.course.drawings import keep_or_recompute as pictures

pictures.strips()

# %% [markdown]
# The price is that both launches compute $S$ and $dP$. How many matrix products do the two launches of the backward
# pass compute in all?

# %%
from labkit.kernels.attention.backward import make_backward_keys_plain, make_backward_queries_plain

show_source(make_backward_queries_plain(64, FLOAT32))

# %% [markdown]
# Seven: $S$, $dP$ and $dQ$ here, and $S$, $dP$, $dV$ and $dK$ in the other. In return every run gives the same bits,
# and $dQ$ needs no float32 buffer to accumulate in. The line with `exp2_approx` recomputes a weight, with $\text{lse}$
# converted to base 2. The next line is the softmax's gradient. The other kernel keeps its keys and values, and loops
# over tiles of queries:

# %%
show_source(make_backward_keys_plain(64, FLOAT32), "for member in", "the tile is free to overwrite")

# %% [markdown]
# With grouped-query attention (lesson 35) several query heads use the same keys, and the outer loop adds up the
# gradients of all of them. These are the plain kernels. On tensor cores, the weights and `grad_score` stay in
# registers, as fragments of the next product (lesson 25).

# %%
agree(ATTENTION_TRAINING)

# %%
agree(ATTENTION_BACKWARD)

# %% [markdown]
# How much does the forward pass keep now? For the log-sum-exp, 4 bytes per token and head:

# %%
rows = [(int(length), LAYERS * HEADS * int(length) * 4 / 1e6, kept / 1e6)
        for length, kept in zip(tokens, weights, strict=True) if length in (2048, 8192, 131072)]
table(rows, {"tokens": ",", "log-sum-exp, MB": ",.1f", "weights, MB": ",.0f"})

# %% [markdown]
# At every length that is less than a hundredth of the size of `q`, `k`, `v` and `out`.
#
# ## A rotation back
#
# Before attention, queries and keys are rotated by angles that depend on their position (lesson 35): a pair $(a, b)$
# becomes $(a \cos \theta - b \sin \theta, \; b \cos \theta + a \sin \theta)$. This is a linear map, so its backward
# pass multiplies by the transposed matrix. What does the backward pass of a rotation need from the forward pass?

# %%
from labkit.kernels.ops.rope_backward import ROPE_SPLIT_BACKWARD
from labkit.kernels.rope_backward import make_rope_split_backward_per_thread

show_source(make_rope_split_backward_per_thread(FLOAT32))

# %% [markdown]
# Nothing but the positions. The transpose of a rotation is the rotation by the opposite angle, so the last two lines
# are those of the forward pass with the sine negated. The kernel also writes the gradients of queries, keys and values
# side by side again, in the layout in which the product before the rotation wrote them.

# %%
agree(ROPE_SPLIT_BACKWARD)

# %% [markdown]
# ## Every formula checked
#
# As in lesson 48, finite differences in float64 check the references that the kernels agree with.

# %%
from labkit.kernels.attention.backward import attention_backward_reference
from labkit.kernels.attention.training import attention_training_reference
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rmsnorm import rmsnorm_reference
from labkit.kernels.rope import rope_table, rotated_reference
from labkit.kernels.rope_backward import rope_split_backward_reference


def difference(function, x, dout, direction, h=1e-5):
    """The derivative of sum(dout * function(x)) along `direction`."""
    return float((dout * (function(x + h * direction) - function(x - h * direction))).sum()) / (2 * h)


x, dout, w = rng.standard_normal((5, 12)), rng.standard_normal((5, 12)), rng.standard_normal(12)
q, k, v, dattended = rng.standard_normal((4, 9, 2, 32))
one = np.array([0, 9], np.int32)  # a single sequence of nine tokens
dq, dk, dv = attention_backward_reference(q, k, v, dattended, one)
angles, positions = rope_table(16, 32, 10_000.0), np.arange(3, 12, dtype=np.int32)
no_keys = dattended[:, :0]
rotated_back = rope_split_backward_reference(dattended, no_keys, no_keys, angles, positions).reshape(q.shape)
layernorm_grads = norm_backward_reference(x, w, dout, centred=True)
rmsnorm_grads = norm_backward_reference(x, w, dout, centred=False)
cases = {  # name: (function, its input, dout, the gradient by the formula)
    "LayerNorm, x": (lambda x: layernorm_reference(x, w, np.zeros(12)), x, dout, layernorm_grads[0]),
    "LayerNorm, weight": (lambda w: layernorm_reference(x, w, np.zeros(12)), w, dout, layernorm_grads[1]),
    "RMSNorm, x": (lambda x: rmsnorm_reference(x, w), x, dout, rmsnorm_grads[0]),
    "RMSNorm, weight": (lambda w: rmsnorm_reference(x, w), w, dout, rmsnorm_grads[1]),
    "attention, q": (lambda q: attention_training_reference(q, k, v, one)[0], q, dattended, dq),
    "attention, k": (lambda k: attention_training_reference(q, k, v, one)[0], k, dattended, dk),
    "attention, v": (lambda v: attention_training_reference(q, k, v, one)[0], v, dattended, dv),
    "rotation": (lambda q: rotated_reference(q, angles, positions), q, dattended, rotated_back),
}
found = []
for name, (function, at, grad_out, gradient) in cases.items():
    direction = rng.standard_normal(at.shape)
    by_formula = (gradient * direction).sum()
    found.append((name, by_formula, abs(difference(function, at, grad_out, direction) - by_formula)))
table(found, {"": "", "by the formula": ".6f", "finite difference is off by": ".1e"})

# %% [markdown]
# All agree.
#
# ## What was implemented
#
# - the gradients of LayerNorm and RMSNorm in one pass, with the weight's and the bias's sums over all rows
# - causal attention for training, which keeps one value per query and head, and its backward pass, which recomputes the
#   weights tile by tile
# - the backward pass of the rotation of queries and keys
#
# ## What I learned
#
# - A norm's gradient removes from $g$ the directions in which the output cannot change.
# - What depends only on data that is read anyway is cheap to recompute: a norm's statistics cost flops, but no bytes.
# - The weights of attention grow with the square of the length. With the log-sum-exp, the forward pass keeps one value
#   for each of their rows.
# - $\delta$, a sum over all keys, is also a sum over the elements of a head.
# - If every sum belongs to a single block, no atomics are needed. Here that costs two more products.
#
# ## Resources
#
# - [T. Dao: FlashAttention-2 (2023)](https://arxiv.org/abs/2307.08691), the backward pass in algorithm 2
# - [T. Chen et al.: Training Deep Nets with Sublinear Memory Cost (2016)](https://arxiv.org/abs/1604.06174), activation
#   checkpointing
# - [J. Su et al.: RoFormer (2021)](https://arxiv.org/abs/2104.09864)
#
# ## Try it
#
# - At which sequence length do the attention weights of one GPT-2 layer need as much memory as its parameters?
# - Leave out the mean of $g$ in a copy of LayerNorm's formula. Which of the two sums above is no longer 0?
# - With a GPU: `labkit bench attention_backward_bf16`.
#
# In the exercises for this lesson you predict what attention keeps, write the gradient of a row's normalisation from a
# blank page, and compute the gradients of scores.

# %% [numbers]
# fused = row('rmsnorm_backward_bf16', 'rmsnorm_backward_fused').us
# compiled = row('rmsnorm_backward_bf16', 'PyTorch, compiled').us
# bound = 1000 * row('rmsnorm_backward_bf16', 'rmsnorm_backward_fused').bound_ms
# columns = 2048
