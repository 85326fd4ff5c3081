# %% [markdown]
# # 29 · GPT-2 writes
#
# *Lab notebook, 23 November 2026*
#
# You will learn
#
# - how a model writes: a prompt at once, then token after token from a cache, with some chance in between
# - where the time of a token goes, and why it is not where the bytes are
# - what a faster kernel is worth to a whole program, and how to know that before you write the kernel
#
# ## The problem
#
# The last lesson got one token out of a prompt. To write, append the token and run the model again. Done that way,
# each token costs as much as all the text before it, and taking the likeliest token each time makes dull text. This
# lesson changes both. Then it asks what its kernels are worth: does a faster softmax make the model write faster?
#
# ## Prediction
#
# A model that writes reads every one of its weights for every token. Write down two numbers before you go on. How many
# tokens a second can GPT-2 small write at most, on a GPU that reads {{ round(limits.bandwidth_gbs, -2):,.0f }} GB a
# second? And: if a kernel for the softmax of attention is three times as fast as the three kernels before it, how much
# faster does the model write?

# %%
from labkit import measure
from labkit.models.gpt2 import Config

small = Config()  # the defaults are GPT-2 small's
bandwidth = measure.recorded(gpu="NVIDIA H200")["limits"]["bandwidth_gbs"]
print(f"{small.parameters:,} parameters are {4 * small.parameters / 1e6:.0f} MB in float32")
print(f"{bandwidth:,.0f} GB/s (an H200, by a copy): {1e9 * bandwidth / (4 * small.parameters):,.0f} tokens a second")

# %% [markdown]
# This is a bound. How near one gets is measured later in this lesson, and the second answer comes at its end.
#
# ## The cache
#
# For the second new token one could send the whole text through the model again. But attention needs only the keys and
# values of the earlier tokens, and those do not change: no token sees a later one. So every layer keeps them, a row for
# each token, in the *KV cache*. For a new token the model computes one row, appends its keys and values to the cache,
# and attends to all rows there. Each such step is called *decode*.

# %%
from labkit import show_source
from labkit.kernels.attention.three_pass import append_to_cache_kernel

show_source(append_to_cache_kernel)

# %% [markdown]
# `start[0]` says how many tokens are in the cache. The argument is an array in device memory and not a number, so that
# the launches of a step are the same for every token: they can be captured in a graph once and replayed. Here are one
# new token and four, which attend to themselves and to those in the cache.

# %%
from labkit import agree
from labkit.kernels.ops.attention import ATTENTION_CACHED

agree(ATTENTION_CACHED, ["attention_cached_all_threads"],
      sizes=({"S": 1, "H": 2, "D": 64, "before": 29}, {"S": 4, "H": 2, "D": 64, "before": 31}))

# %% [markdown]
# The next cell writes with and without the cache, from the same prompt. Before you run it: how many rows go through
# the layers, for a prompt of 24 tokens and 16 new ones?

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

# %%
from labkit.course.drawings import gpt2_writes as pictures
from labkit.measure.series import generation as experiment

pictures.cache_curve(experiment.cache_curve())

# %%
recorded = measure.recorded_series("cache_curve", gpu="NVIDIA H200")
for n, one_more, all_again in zip(recorded["position"], recorded["with_us"], recorded["without_us"], strict=True):
    print(f"{n:5,} before: from the cache {one_more:4.0f} us, all again {all_again:6,.0f} us, "
          f"that is {all_again / (n + 1):4.1f} us for each of them")

# %% [markdown]
# Without the cache a token costs as much as a prompt of that length; both axes are logarithmic. With it a token costs
# about the same wherever it stands. The last column shows something else: a token of a prompt costs a fraction of a
# token that is written. The tokens of a prompt go through a layer together, and share its launches and one pass over
# its weights. Those that are written go alone, one after the other.
#
# ## Chance
#
# Taking the most likely token each time is called *greedy*. That is right for a test, but such a text is dull and soon
# repeats itself. So a token is drawn at random instead. This is called *sampling*, and there are three ways to shape
# the distribution. The *temperature* T divides the logits before the softmax: below 1 the likely tokens become more
# likely. *Top-k* keeps the k most likely. *Top-p* keeps as many of the most likely as together have the share p. The
# probabilities that are left are scaled so that their sum is 1 again. Then a random number decides. It comes from a
# generator with a seed, and the same seed gives the same text. Here are the most likely tokens after a prompt.

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
# ## It writes

# %%
import textwrap

from labkit.engine.text import write

for sampler in (GREEDY, Sampler(0.8, top_k=40), Sampler(1.6)):
    written = write(loaded, "kernel:", lambda piece: None, tokens=32, sampler=sampler, seed=1)
    print(textwrap.fill(f"temperature {sampler.temperature}: kernel:{written.text}", 92))
    print(f"    {written.per_second:.0f} tokens a second ({measure.where()})\n")

# %% [markdown]
# That is `labkit generate "kernel:"`, with `--temperature`, `--top-k`, `--top-p`, `--seed`, `--greedy`, and `--model`
# for a real GPT-2: a folder, or a name such as `openai-community/gpt2`, which is downloaded once. The tiny one has
# read its only book so often that it can recite long parts of it (`data/README.md` says how often). Where a prompt or
# chance leads away from the text, it goes on in the book's manner: pronunciation, *n.*, etymology in brackets.
#
# ## Your kernels in it
#
# Some of the exercises are kernels of a model. This table lists them, those of later lessons and other models among
# them, and shows which of yours, in `work/exercises/`, can be used by now.

# %%
from labkit.course import yours

mine = yours.answers()
mine

# %% [markdown]
# Lesson 26 puts some of them into a block. The embedding, the cache and the logits belong to a whole model. Here are
# the course's own answers to these, one at a time and then all together, with every activation compared with float64.
# `yours.one_by_one(mine, tiny, prompt)` does it with yours, and `yours.with_kernels(tiny, mine)` is the model that
# then writes with them.

# %%
answers = yours.answers("embed_tokens", "append_rows", "linear_patch", solutions=True)
yours.one_by_one(answers, tiny, prompt)

# %% [markdown]
# ## Where a token's time goes
#
# One token, launch by launch, as recorded on an H200. A launch's time is what a step in a graph saves if it is left
# out. The black line is the time for its bytes, at the speed of a copy. The second plot is the same step with a long
# text before it: only attention has grown, and far less than the text.

# %%
step = measure.recorded_series("step_launches", gpu="NVIDIA H200")
first = step["steps"][0]
print(f"at most {1e9 * bandwidth / (4 * small.parameters):,.0f} tokens a second; "
      f"measured {1e6 / first['us']:,.0f}, with {sum(row['count'] for row in first['rows'])} launches for a token")
pictures.step_shares(step)

# %%
pictures.step_shares(step, len(step["steps"]) - 1)  # the latest position that was measured

# %% [markdown]
# My prediction counted bytes, as the black lines do. The logits reach theirs, and even beat it a little: it is drawn
# for a copy, which also has to write. Nothing else comes near. A step is about {{ words(launches) }} launches, one
# after the other, with a single row to work on. A LayerNorm of 768 numbers hardly reads anything and takes its
# microseconds all the same: it starts, waits for its loads, exchanges some sums, and ends before the next launch may
# start. Writing one token after the other is a matter of *latency*, not of bandwidth. (With many texts at once the rows
# would share the weights, as those of a prompt do.)
#
# The four products of a layer and the logits take more than half{{ if products / step.us > 0.5 }} of the time. All of
# attention, orange, comes next, and the softmax is only a part of it.
#
# ## The experiment
#
# Now the second prediction. Lesson 20 follows an article, *Fused Attention Softmax Accelerator GPT 2 Inference*. It put
# its fused softmax into distilgpt2, a GPT-2 with six layers, on an NVIDIA L4, and let it write up to a hundred tokens
# after each of three prompts. Its kernel was 1.24 to 4.78 times{{ quoted }} as fast as PyTorch's steps. Here is the
# same experiment on an H200, with models of the right shape. Their weights are random, which does not change the time,
# and the prompts are those that GPT-2's tokenizer makes of the article's. Beside them stands the tiny model.
#
# Attention is computed in three ways: scale, mask and softmax as three launches; as one launch; and all of attention
# as one kernel, the flash attention of lesson 25. Every kernel is launched from Python, as in the article, and then a
# whole token as one graph. (Launches from Python still went through Numba then. Labkit's own, lesson 13, take less.)

# %%
found = measure.recorded_series("generation", gpu="NVIDIA H200")
pictures.rates(found)

# %% [markdown]
# In a graph the two larger ones write about ten{{ if near(sum(faster[1:]) / 2, 10) }} times as fast, and the tiny one
# {{ words(faster[0]) }} times as fast. The three ways differ far less: one launch for the softmax gains
# {{ min(fused) - 1:.0% }} to {{ max(fused) - 1:.0% }}, one kernel for all of attention {{ min(whole) - 1:.0% }} to
# {{ max(whole) - 1:.0% }}. Here are the three prompts beside the article's results. The numbers in brackets compare
# with softmax in three launches, those of the article with PyTorch, and above 1 is a gain. (The article's own table
# calls the inverse a speed-up, so its 1.01{{ quoted }} is a loss and its 0.98{{ quoted }} a gain.)

# %%
pictures.beside_the_article(found, "distilgpt2's shape", "called")

# %% [markdown]
# Here is one of the prompts on this machine, with the tiny model. All three ways must write the same text.

# %%
from labkit import device

length = device.pick(gpu=100, cpu=22)  # tokens of a text, the prompt among them
here = experiment.generation(("tiny",), ["The quick brown fox"], length=length, runs=device.pick(gpu=2, cpu=1))
pictures.beside_the_article(here)

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

# %% [markdown]
# Does the law hold here? The softmax's share and its own speed-up were measured apart from the whole. So the law can
# predict the whole. How far is it off, at most?

# %%
for how, missed in pictures.apart(found).items():
    print(f"{pictures.HOWS[how]}: off by {missed:.1%} at most")
pictures.amdahl_table(found)

# %% [markdown]
# In a graph the law holds from a single token to a prompt of 1,024. Launched from Python it is rougher, and one
# measured gain is even larger than "at most". Perhaps a launch of the softmax takes longer among other launches than
# by itself. Then its share is larger than was measured.
#
# Now the size of the gain. The article timed its kernel on squares of 512 and 1,024 rows. A model that writes from a
# cache has no such square. For each head it has one row of scores, no longer than the text so far: 400 bytes at most.
# Fusing saves hardly any bytes there, but two launches in each layer. So the softmax gains less than on a square, and
# at the size of GPT-2 it has less than a tenth{{ if small.softmax_us / small.us < 0.1 }} of the step. In a long prompt
# the scores are a square, the softmax has bytes to save, and its share and its speed-up grow with the length.
#
# The article's tokens a second go down by 0.7%{{ quoted }} at one prompt and up by 1.7%{{ quoted }} at another: noise,
# it says, and 1.00{{ quoted }} on average. What share can the softmax have had, if a gain of 1%{{ example }} drowns in
# the noise? Amdahl's law, solved for p:

# %%
gain, own = 1.01, 4.65  # of the whole; of the softmax at 1,024, causal
print(f"{(1 - 1 / gain) / (1 - 1 / own):.1%}")

# %% [markdown]
# So small a share is plausible. An L4 reads some 300 GB{{ hardware }} a second, the weights of distilgpt2 take it about
# {{ 328 / 300:.1f }} ms, and a token took 5.5{{ quoted }} in the article. The rest must have been something else:
# launches, Python and PyTorch around the kernels. Here a step is little more than its launches, so two launches fewer
# in each layer show. The more there is around a kernel, the less a faster kernel gains.
#
# The green bars above show where more can be gained: not by a faster softmax, but by not storing the scores at all.
# The article's authors measured no gain and wrote it down, which is more than most do. The law would have shown it
# before they wrote the kernel, and before I wrote mine.
#
# `experiment.generation(("tiny",), experiment.prompts_from(FILE))` takes its prompts from a text file, such as
# WikiText-2's validation text.
#
# ## What I learned
#
# - Reading is cheap and writing is expensive: the tokens of a prompt share the weights, those of an answer do not.
# - I counted bytes and predicted a multiple of what came. One row is not enough work for a GPU. Then count launches.
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
#
# ## Try it
#
# - Give the sampler `Sampler(0.01)` and `Sampler(100.0)`. Predict both texts before you run them.
# - In the cell with both ways, take 100 new tokens, and predict the rows without the cache.
#
# The exercises ask for the cache and what it saves, a mask, a sampler, and Amdahl's law; one of your kernels goes into
# the model at once.
#
# Next: **a sentence encoder**, a model that reads.

# %% [numbers]
# step = series.step_launches.steps[0]
# launches = sum(one.count for one in step.rows)
# products = sum(step.rows[name].us for name in ('attn.c_attn', 'attn.added', 'mlp.gelu', 'out', 'logits'))
# models = series.generation.models
# faster = [mean_rate(model, 'graph') / mean_rate(model, 'called') for model in models]
# small = models[2].step.unfused
# fused = [mean_rate(model, how, 'fused') / mean_rate(model, how) for model in models for how in ('called', 'graph')]
# whole = [mean_rate(model, how, 'one kernel') / mean_rate(model, how) for model in models for how in ('called',
#          'graph')]
