# %% [markdown]
# # 45 · Linear attention
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how attention can do without a cache: regroup its sums and keep a state of fixed size
# - three kernels for it, and why the one with the fewest flops is not the one to use
# - what such a state costs, and what it forgets
#
# ## The problem
#
# A server spends most of its memory on keys and values, and pages only reduce the waste (lesson 39). The cache grows
# because attention needs every earlier key again: with the scores $s_j = q \cdot k_j / \sqrt{d}$ it sums $e^{s_j} v_j$
# over all of them and divides by the sum of the $e^{s_j}$. For n tokens this costs $O(n^2 d)$ flops and a cache of
# $O(n d)$ elements.
#
# *Linear attention* ([A. Katharopoulos et al., 2020](https://arxiv.org/abs/2006.16236)) replaces the exponential by a
# product $\varphi(q) \cdot \varphi(k)$, where $\varphi$ is applied to each element: $\varphi(x)$ is $x + 1$ above 0 and
# $e^x$ elsewhere. It is positive, so the weights can be divided by their sum. Then the sums can be regrouped:
#
# $$\text{out}_i = \frac{\sum_{j \le i} (\varphi(q_i) \cdot \varphi(k_j))\, v_j}
# {\sum_{j \le i} \varphi(q_i) \cdot \varphi(k_j)}
# = \frac{\varphi(q_i)\, S_i}{\varphi(q_i) \cdot z_i}$$
#
# $$S_i = \sum_{j \le i} \varphi(k_j)^T v_j \qquad
# z_i = \sum_{j \le i} \varphi(k_j)$$
#
# $S$ has d × d elements and $z$ has d. A new token is added to both, and no key is ever needed again: n tokens cost
# $O(n d^2)$ flops. This lesson is in the appendix because no model of this course uses linear attention, but many
# recent models have layers of this kind.
#
# A head has 64 elements, so linear attention keeps 64 × 65 elements per head, however long the text becomes. Above how
# many tokens does linear attention need fewer flops than softmax attention, and how many times as many does softmax
# attention need at 16,384 tokens?

# %%
from IPython.display import display

from labkit import agree, measure, show_source, table
from labkit.course.drawings import linear_attention as pictures

d = 64
counts = []
for n in (16, 127, 1024, 16_384):
    softmax, linear = 2 * d * n * (n + 1), 4 * d * d * n  # scores and values of the pairs; S added to, S read
    counts.append((n, softmax / 1e6, linear / 1e6, 2 * n * d, d * (d + 1), 16 * n * d / 1e6))
display(table(counts, {"tokens": "", "softmax, MFLOP": ",.1f", "linear, MFLOP": ",.1f", "softmax keeps": "",
                       "linear keeps": "", "in and out, MB": ".2f"}))
pictures.linear_costs(d)

# %% [markdown]
# The flop counts are equal at 127 tokens, and at 16,384 tokens softmax attention needs {{ 16384 // 128 }} times as
# many. The state is as large as a cache of {{ 64 * 65 / (2 * 64) }} tokens. The bytes of the inputs and outputs are the
# same for both: each query, key and value is read once, and each result written once.
#
# ## All pairs
#
# The definition can be computed directly. Each block handles one token: it computes the weights of all tokens up to it,
# and adds up their weighted values. This is causal attention without the exponential, with as many flops as softmax
# attention.

# %%
from labkit.kernels.attention.linear_attention import make_chunked, make_quadratic, make_running
from labkit.kernels.ops.linear_attention import LINEAR_ATTENTION

show_source(make_quadratic(d))

# %% [markdown]
# ## A running state
#
# The regrouped form reads like the formula. Thread c keeps column c of $S$ in registers, and for each token the block
# adds to the state and reads from it. This form has the fewest flops of the three. What could still make the running
# state slow on a GPU with 132 SMs, in a model with 12 heads?

# %%
show_source(make_running(d))

# %% [markdown]
# The tokens are processed one after another, so there is only one block per head: 120 of 132 SMs have nothing to do,
# and the block waits at two barriers for every token. For a model that writes one token at a time this is the right
# kernel. For a prompt it is not.
#
# ## In chunks
#
# Sums can be grouped in any way, up to rounding, which is what made the scan of lesson 19 possible. Cut the tokens into
# chunks of 32. One launch computes each chunk's own $S$ and $z$, all chunks in parallel. A second one turns these into
# the state *before* each chunk, an exclusive scan. A third one gives every token the contribution of the state before
# its chunk, plus that of the pairs within the chunk, at most 32 × 32 of them. Which of the three launches is still
# serial?

# %%
states, scan, combine = make_chunked(d)
show_source(scan)

# %%
show_source(combine)

# %% [markdown]
# Only the scan, with one addition per chunk instead of one step per token, and it has $d (d + 1)$ threads per head.
# Each thread loads its element for eight chunks before it stores the first, so it waits for memory only once in eight
# chunks. The price of all this is memory traffic: the states of all chunks, $d (d + 1) / 32$ elements per token, are
# written twice and read twice. That is twice{{ if near(4 * 4 * 64 * 65 / 32 / (16 * 64), 2) }} the bytes of the inputs
# and outputs.
#
# All three have to agree with NumPy, also where the last chunk is not full:

# %%
agree(LINEAR_ATTENTION)

# %% [markdown]
# ## What was measured
#
# By flops alone, linear attention should overtake softmax attention, here `flash` (lesson 25), at 127 tokens. But
# `flash` keeps its tiles in registers and needs a single launch. These times are from an H100, in a CUDA graph where a
# launch is short. Where do the two lines really cross?

# %%
pictures.over_linear(measure.recorded_series("linear_attention_lengths", gpu="NVIDIA H100 80GB HBM3"), None)

# %% [markdown]
# Later than that: `flash` is faster up to {{ measured.S[faster[0] - 1]:, }} tokens, and the chunked form from
# {{ measured.S[faster[0]]:, }} on. At 16,384 tokens `flash` takes {{ words(flash_slowdown) }} times as long. The
# running form has little work but no parallelism along the sequence, so it is slower than the chunked one at every
# length{{ if running_slower }}; the quadratic form has the most work, and is slower than the chunked one
# everywhere{{ if quadratic_slower }}.
#
# ## What is lost
#
# A state of fixed size cannot hold arbitrarily many pairs. We give both kinds of attention n random pairs of a key and
# a value, and look one pair up, with a query that is four times its key. At how many pairs does each kind of attention
# fail?

# %%
import numpy as np

from labkit.kernels.attention.linear_attention import phi_reference as phi

rng = np.random.default_rng(0)
errors = []
for n in (4, 16, 64, 256, 1024, 4096):
    k, v = rng.standard_normal((2, n, d))
    wanted = rng.integers(n, size=20)
    queries = 4 * k[wanted]
    scores = queries @ k.T / np.sqrt(d)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    S, z = phi(k).T @ v, phi(k).sum(axis=0)  # all that linear attention keeps of the pairs
    errors.append((n, *(np.linalg.norm(out - v[wanted]) / np.linalg.norm(v[wanted])
                        for out in (weights @ v / weights.sum(axis=1, keepdims=True),
                                    phi(queries) @ S / (phi(queries) @ z)[:, None]))))
table(errors, {"pairs": "", "error with a softmax": ".1%", "linear": ".1%"})

# %% [markdown]
# The softmax does not fail: the exponential makes one key stand out among thousands, and no earlier token is lost. The
# weights of linear attention are much more alike, so four pairs are already mixed up, and the more pairs there are, the
# closer the result comes to the mean of all values. Models with such a state have to learn what to keep and what to
# forget, and some combine layers of both kinds. A model that was trained with a softmax, like ours, needs the softmax
# and the cache.
#
# ## What I learned
#
# - Without the exponential, attention needs only two running sums. The order in which a product is computed decides
#   what it costs.
# - The kernel with the fewest flops is not the fastest. A recurrence must be cut into chunks to fill a GPU.
# - A cache grows, and forgets nothing. A state does not grow, and forgets.
#
# ## Resources
#
# - [A. Katharopoulos et al.: Transformers are RNNs (2020)](https://arxiv.org/abs/2006.16236), linear attention
# - [W. Hua et al.: Transformer Quality in Linear Time (2022)](https://arxiv.org/abs/2202.10447), attention in chunks
# - [S. Yang et al.: Gated Linear Attention Transformers (2023)](https://arxiv.org/abs/2312.06635), a state that forgets
#   on purpose, and its kernels
#
# ## Try it
#
# - Replace $\varphi$ by the square of the positive part in the last experiment. Which error changes, and why?
# - Compute the chunked form's flops for a chunk of c tokens: pairs within chunks, and the state read once per token.
#   Which c has the fewest, with heads of 64?
# - How many tokens must a sequence have before the chunked form's states take less memory than a cache? (Careful.)
#
# In the exercises for this lesson you compare a state with a cache, add a token to the state, and read from it.

# %% [numbers]
# measured = series_of('linear_attention_lengths', 'NVIDIA H100 80GB HBM3')
# lines = {one.name: one.us for one in measured.lines}
# chunked = lines['linear, chunked']
# at = [0, 1, 2, 3, 4, 5, 6, 7]
# faster = [i for i in at if chunked[i] < lines['flash'][i]]
# flash_slowdown = lines['flash'][7] / chunked[7]
# running_slower = all([lines['linear, running'][i] > chunked[i] for i in at])
# quadratic_slower = all([lines['linear, quadratic'][i] > chunked[i] for i in at[:6]])
