# %% [markdown]
# # 29 · GPT-2 writes
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a model writes: the prompt in one pass, then token after token from a cache, with some chance in between
# - where the time of a token goes, and why it is not where the bytes are
# - how much a faster kernel speeds up a whole program, and how to know that before you write the kernel
#
# ## The problem
#
# The last lesson got one token out of a prompt. To write, append the token and run the model again. Done that way, each
# token costs as much as all the text before it, and always choosing the likeliest token makes dull text. This lesson
# changes both. Then it asks what its kernels contribute: does a faster softmax make the model write faster?
#
# ## Prediction
#
# A model that writes reads all of its weights for every token. How many tokens per second can GPT-2 small write at
# most, in float32, on a GPU that reads {{ round(limits.bandwidth_gbs, -2):,.0f }} GB a second?

# %%
from labkit import measure, table
from labkit.models.gpt2 import Config

small = Config()  # the defaults are GPT-2 small's
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
print(f"{small.parameters:,} parameters are {4 * small.parameters / 1e6:.0f} MB in float32")
print(f"{bandwidth:,.0f} GB/s (an H200, by a copy): {1e9 * bandwidth / (4 * small.parameters):,.0f} tokens a second")

# %% [markdown]
# This is an upper bound. How close a model gets is measured below.
#
# ## The cache
#
# For the second new token we could send the whole text through the model again. But attention needs only the keys and
# values of the earlier tokens, and those never change: no token sees a later one. So every layer keeps them, one row
# per token, in the *KV cache*. For a new token the model computes a single row, appends its keys and values to the
# cache, and attends to all the rows there. Such a step is called *decode*.

# %%
from labkit import show_source
from labkit.kernels.attention.three_pass import append_to_cache_kernel

show_source(append_to_cache_kernel)

# %% [markdown]
# `start[0]` is the number of tokens in the cache. It is an array in device memory rather than an argument, so that the
# launches of a step are the same for every token: they can be captured in a graph once and replayed. The next cell
# checks one new token, and then four, which attend to themselves and to those in the cache.

# %%
from labkit import agree
from labkit.kernels.ops.attention import ATTENTION_CACHED

agree(ATTENTION_CACHED, ["attention_cached_all_threads"],
      sizes=({"S": 1, "H": 2, "D": 64, "before": 29}, {"S": 4, "H": 2, "D": 64, "before": 31}))

# %% [markdown]
# The next cell writes 16 tokens after a prompt of 24, first without the cache and then with it. `prefill` is the pass
# over a prompt (lesson 28), and `decode` appends one token. How many rows go through the layers without the cache, and
# how many with it?

# %%
import numpy as np

from labkit.models.gpt2 import Workspace
from labkit.models.load import load

loaded = load("tiny")
tiny, tokenizer, ws = loaded.model, loaded.tokenizer, Workspace(loaded.model.config)


def without_cache(prompt, count):
    ids, rows = list(prompt), 0
    while len(ids) < len(prompt) + count:
        ws.reset()
        rows += len(ids)
        ids.append(int(np.argmax(tiny.prefill(ids, ws).copy_to_host())))
    return ids[len(prompt) :], rows


def with_cache(prompt, count):
    ws.reset()
    logits, new, rows = tiny.prefill(prompt, ws), [], len(prompt)
    while True:
        new.append(int(np.argmax(logits.copy_to_host())))
        if len(new) == count:
            return new, rows
        logits, rows = tiny.decode(new[-1], ws), rows + 1


prompt = tokenizer.encode("hacker: n. A person who enjoys exploring the details of programs and machines")
slow, fast = without_cache(prompt, 16), with_cache(prompt, 16)
print(f"{len(prompt)} tokens; the same text: {slow[0] == fast[0]}; rows without the cache {slow[1]}, with it {fast[1]}")

# %% [markdown]
# Without the cache, every pass computes the whole text so far: 24 + 25 + … + 39 rows. With it, the prompt's 24 rows are
# followed by one row for each of the next 15 tokens; nothing is computed from the last one. How much does the time of a
# token depend on the text before it, with the cache and without?

# %%
from labkit.course.drawings import gpt2_writes as pictures
from labkit.measure.series import generation as experiment

pictures.cache_curve(experiment.cache_curve())

# %%
curve = measure.recorded_series("cache_curve", gpu="NVIDIA H200")
rows = zip(curve["position"], curve["with_us"], curve["without_us"], strict=True)
table([(n, one_more, again, again / (n + 1)) for n, one_more, again in rows],
      {"tokens before it": "", "with the cache, us": ",.0f", "without, us": ",.0f", "without, us per row": ".1f"},
      note=f"{curve['where']}, {curve['date']}")

# %% [markdown]
# With the cache, very little. Without it, a token costs as much as a prompt of that length; both axes are logarithmic.
# The last column shows something else: a row of a long prompt costs a fraction of what a written token costs. The rows
# of a prompt go through a layer together and share its launches and one pass over its weights. Written tokens go
# through it one at a time.
#
# ## Chance
#
# Always choosing the most likely token is called *greedy*. That is right for a test, but such a text is dull and soon
# repeats itself. *Sampling* draws a token at random instead, and there are three common ways to shape the distribution.
# The *temperature* T divides the logits before the softmax: below 1 the likely tokens become more likely. *Top-k* keeps
# the k most likely tokens. *Top-p* keeps the smallest set of most likely tokens whose probabilities add up to p or
# more. The remaining probabilities are scaled to a sum of 1, and a random number decides. It comes from a generator
# with a seed, so the same seed gives the same text. Here are the 16 likeliest tokens after a prompt, under four
# samplers. Which of the four samplers give all 16 tokens a chance?

# %%
from labkit.engine.sampler import GREEDY, Sampler

ws.reset()
z = tiny.prefill(tokenizer.encode("This is a"), ws).copy_to_host()[0]
likeliest = np.argsort(-z, kind="stable")[:16]
samplers = {"as the model says": Sampler(), "temperature 0.5": Sampler(0.5),
            "top-k 5": Sampler(top_k=5), "top-p 0.7": Sampler(top_p=0.7)}
shares = {name: sampler.probabilities(z)[likeliest] for name, sampler in samplers.items()}
words = [tokenizer.decode([i]) for i in likeliest]
pictures.next_token(words, shares, 'After "This is a": the 16 likeliest tokens')

# %% [markdown]
# The first two: a temperature changes the odds and excludes nobody. Top-k and top-p cut off the tail, marked ×: top-k
# always at the same count, top-p earlier where the model is more certain.
#
# ## It writes

# %%
import textwrap

from labkit.engine.text import write

for sampler in (GREEDY, Sampler(0.8, top_k=40), Sampler(1.6)):
    written = write(loaded, "kernel:", lambda piece: None, tokens=32, sampler=sampler, seed=1)
    print(textwrap.fill(f"temperature {sampler.temperature}: kernel:{written.text}", 92))
    print(f"    {written.per_second:.0f} tokens a second ({measure.where()})\n")

# %% [markdown]
# On the command line this is `labkit generate "kernel:"`, with `--temperature`, `--top-k`, `--top-p`, `--seed` and
# `--greedy`, and with `--model` for a real GPT-2: a folder, or a name such as `openai-community/gpt2`, which is
# downloaded once. The tiny model has read its only book so often that it can recite long parts of it (`data/README.md`
# says how often). Where a prompt or chance leads away from the text, it continues in the style of the book:
# pronunciation, *n.*, etymology in brackets.
#
# ## Your kernels in it
#
# Some of the exercises are kernels of a model. This table lists them, including those of later lessons and other
# models, and shows which of yours, in `work/exercises/`, are ready to use.

# %%
from labkit.course import yours

mine = yours.answers()
mine

# %% [markdown]
# Lesson 26 puts some of them into a block. The embedding (the gather of lesson 28), the cache and the logits belong to
# a whole model. Here are the course's answers to those three, one at a time and then all together, with every
# activation compared with float64. `yours.one_by_one(mine, tiny, prompt)` does the same with yours, and
# `yours.with_kernels(tiny, mine)` is the model that then writes with them.

# %%
answers = yours.answers("embed_tokens", "append_rows", "linear_patch", solutions=True)
yours.one_by_one(answers, tiny, prompt)

# %% [markdown]
# ## Where a token's time goes
#
# The bound in the prediction counts bytes. The figures show one token of GPT-2 small launch by launch, recorded on an
# H200: first with a short text before it, then with a long one. A launch's time is what a step in a graph saves when it
# is left out, and the black line is the time that its bytes need at the speed of a copy. Which launches of a step take
# no longer than their bytes need?

# %%
step = measure.recorded_series("step_launches", gpu="NVIDIA H200")
first = step["steps"][0]
print(f"at most {1e9 * bandwidth / (4 * small.parameters):,.0f} tokens a second; "
      f"measured {1e6 / first['us']:,.0f}, with {sum(row['count'] for row in first['rows'])} launches for a token")
pictures.step_shares(step)

# %%
pictures.step_shares(step, len(step["steps"]) - 1)  # the latest position that was measured

# %% [markdown]
# Only the logits. They even beat their line a little, because it is drawn for a copy, and a copy also has to write. A
# step is about {{ words(launches) }} launches, one after the other, with a single row to work on. A LayerNorm of one
# row reads next to nothing and still takes microseconds: it starts, waits for its loads, exchanges some sums, and ends
# before the next launch may start. Writing one token after the other is bound by *latency* rather than bandwidth. With
# many texts in one pass, the rows would share the weights, as those of a prompt do (lesson 38).
#
# The four products of a layer and the logits take more than half{{ if products / step.us > 0.5 }} of the time. All of
# attention, in orange, comes next, and the softmax is only a part of it. With the long text before the token, only
# attention takes longer, and it has grown by far less than the text.
#
# ## What a faster softmax does for the model
#
# Lesson 20 fused the three kernels of attention's softmax (scale, mask, softmax) into one. For a step of GPT-2 small,
# that makes the softmax {{ own_speedup:.1f }} times as fast. How much faster does the model write? *Amdahl's law*
# answers that before anything is built. If a part takes a share p of the time and becomes s times as fast, the whole
# becomes
#
# $$\frac{1}{1 - p + p / s}$$
#
# times as fast. Even a softmax that takes no time at all gives no more than $1 / (1 - p)$.

# %% tags=["hide-input"]
from labkit import plots

share = np.linspace(0, 0.5, 101)
lines = pictures.speedups(share, {"s = 2.4": 2.4, "s = 4.5": 4.5, "no time at all": np.inf})
plots.curves(share, lines, "A part that takes a tenth of the time can save a tenth at most",
             "its share of the time", "the whole, times as fast")

# %% [markdown]
# The curves are flat where the share is small. The experiment measured the share of the softmax, its own speed-up, and
# the speed-up of the whole step separately, for three models and for prompts of GPT-2 small, in graphs and launched
# from Python. Read the law off the curves: by how many percent does a step of GPT-2 small become faster, if the softmax
# takes {{ own_share:.0% }} of it?

# %%
found = measure.recorded_series("generation", gpu="NVIDIA H200")
pictures.amdahl_table(found)

# %% [markdown]
# By {{ small_law:.1% }}, says the law, and {{ small_gain:.1% }} was measured. In a graph the law is off by
# {{ off_in_graph:.0% }} at most, from a single token to a prompt of 1,024. Launched from Python it is off by up to
# {{ off_called:.0% }}, nearly as much as the speed-up itself, so those rows show little.
#
# A model that writes has one row of scores per head, no longer than the text so far, so fusing saves next to no bytes
# there. It saves two launches per layer. In a prompt the scores are a square matrix. Then there are bytes to save, and
# the softmax's share and its speed-up both grow with the length.
#
# So far only the softmax became faster. Flash attention (lesson 25) turns all of attention into one kernel that never
# stores a score, and a CUDA graph takes Python out from between the launches. Which of the three makes the model write
# fastest: one launch for the softmax, one kernel for attention, or a graph?

# %%
pictures.rates(found)

# %% [markdown]
# The graph, by far: the two larger models write about ten{{ if near(sum(faster[1:]) / 2, 10) }} times as fast in one,
# the tiny one {{ words(faster[0]) }} times. One launch for the softmax makes the model {{ min(fused) - 1:.0% }} to
# {{ max(fused) - 1:.0% }} faster, and one kernel for all of attention {{ min(whole) - 1:.0% }} to
# {{ max(whole) - 1:.0% }}. These launches from Python still went through Numba; labkit's own (lesson 13) are faster.
#
# The figure also has the rates of *Fused Attention Softmax Accelerator GPT 2 Inference*, the project report that lesson
# 20 follows. It put its fused softmax, 1.24 to 4.78 times{{ quoted }} as fast as PyTorch's steps, into distilgpt2 on an
# NVIDIA L4. Its rate changed by −0.7%{{ quoted }} to +1.7%{{ quoted }} from prompt to prompt, 1.00 times{{ quoted }} on
# average. The law says why: a softmax that takes a few percent of a token's time cannot do more, however fast it
# becomes. Most of that time was launches, Python and PyTorch around the kernels, since the weights alone need
# {{ 328 / 300:.1f }} ms at an L4's 300 GB{{ hardware }} a second, and a token took 5.5{{ quoted }}.
#
# ## What I learned
#
# - Reading is cheap and writing is expensive: the tokens of a prompt share the weights, those of an answer do not.
# - I counted bytes, and my prediction was several times too high. One row is not enough work for a GPU, and then
#   launches are what counts.
# - Before you make a kernel faster, measure its share of the whole. That takes no new kernel.
#
# You began with `c[i] = a[i] + b[i]`. Every kernel in the model that just wrote is one that you have read, and some of
# them may be yours.
#
# ## Resources
#
# - [A. Holtzman et al.: The Curious Case of Neural Text Degeneration (2019)](https://arxiv.org/abs/1904.09751): top-p
# - [G. Amdahl: Validity of the single processor approach to achieving large scale computing capabilities
#   (1967)](https://doi.org/10.1145/1465482.1465560)
# - *Fused Attention Softmax Accelerator GPT 2 Inference*, a project report on an NVIDIA L4, without author or date
#
# ## Try it
#
# - Give the sampler `Sampler(0.01)` and `Sampler(100.0)`. Predict both texts before you run them.
# - In the cell that writes both ways, write 100 new tokens, and predict the rows without the cache.
# - `experiment.generation(("tiny",), ["The quick brown fox"], length=22, runs=1)` repeats the experiment on this
#   machine. Do all three ways write the same text?
#
# In the exercises you append to the cache and work out what it saves, repair a mask, write a sampler, and apply
# Amdahl's law. One of your kernels goes into the model right away.
#
# Next: **a sentence encoder**, a model that reads.

# %% [numbers]
# step = series.step_launches.steps[0]
# launches = sum(one.count for one in step.rows)
# products = sum(step.rows[name].us for name in ('attn.c_attn', 'attn.added', 'mlp.gelu', 'out', 'logits'))
# models = series.generation.models
# faster = [mean_rate(model, 'graph') / mean_rate(model, 'called') for model in models]
# small = models[2].step
# own_speedup = small.unfused.softmax_us / small.fused.softmax_us
# own_share = small.unfused.softmax_us / small.unfused.us
# small_gain = small.unfused.us / small.fused.us - 1
# small_law = 1 / (1 - own_share + own_share / own_speedup) - 1
# in_graph = [one.step for one in models] + [one for one in series.generation.prefill]
# off_in_graph = max([abs(one.unfused.us / one.fused.us * (1 - one.unfused.softmax_us / one.unfused.us *
#                (1 - one.fused.softmax_us / one.unfused.softmax_us)) - 1) for one in in_graph])
# called = [(one.step.unfused, one.step.fused) for one in models]
# off_called = max([abs(one.called_us / other.called_us * (1 - one.called_softmax_us / one.called_us * (1 -
#              other.called_softmax_us / one.called_softmax_us)) - 1) for one, other in called])
# fused = [mean_rate(model, how, 'fused') / mean_rate(model, how) for model in models for how in ('called', 'graph')]
# whole = [mean_rate(model, how, 'one kernel') / mean_rate(model, how) for model in models for how in ('called',
#          'graph')]
