# %% [markdown]
# # 43 · The engine, measured
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - how close a step of a billion-parameter model comes to the time its bytes need, and where the rest goes
# - what pages, continuous batching and larger steps each bring
# - how this engine compares with others, and what such a comparison can and cannot show
#
# ## The problem
#
# The engine is complete: pages, attention over them, a scheduler, sampling, graphs, a host that stays one step ahead.
# Each of these was built because it ought to help. Which of them does, and how much? And is the whole engine any good?
#
# The times are from an H200 unless another card is named, for a model of the shape of Llama 3.2 1B. Its weights are
# random, which changes the texts but not the time. There are two kinds of questions: how long one step takes, and how
# many tokens per second the engine writes over all steps.
#
# ## A step
#
# A step that gives each running sequence one more token is called *decoding*. It reads all weights once and, for each
# sequence, its keys and values. We call these bytes, divided by the bandwidth of a copy, the bound, although a kernel
# that only reads is a little faster (lesson 40). Below are such steps for sequences of 1,024 tokens, each in a CUDA
# graph. PyTorch runs the same model on the same inputs, in a graph as well, with and without `torch.compile`. How close
# to the bound is a step for one sequence, and how close for 256?

# %%
from labkit import agree, measure, show_source, table
from labkit.measure.plots import engine as runs

decode, prefill = (measure.recorded_series(name, gpu="NVIDIA H200") for name in ("llama_decode", "llama_prefill"))


def torch_ms(row):
    theirs = row["torch"] or {}
    return theirs.get("eager, in a graph"), theirs.get("compiled, in a graph")


table([(row["sequences"], row["bound_ms"], row["ms"]["p50"], *torch_ms(row)) for row in decode["rows"]],
      {"sequences": "", "bound, ms": ".2f", "here": ".2f", "PyTorch": ".2f", "PyTorch, compiled": ".2f"})

# %% tags=["hide-input"]
runs.decode_steps(decode, None)

# %% [markdown]
# For one sequence a step takes {{ one.ms.p50:.2f }} ms, and its bytes need {{ one.bound_ms:.2f }} ms,
# {{ one.bound_ms / one.ms.p50:.0% }} of that. With 256 sequences the step reaches {{ most.bound_ms / most.ms.p50:.0% }}
# of the bound.
#
# PyTorch without `torch.compile` takes {{ eager_slowdown:.1f }} times as long for one sequence. The compiled step is
# the one to beat: our step is faster for one sequence and for 32{{ if faster_to_32 }}, and takes
# {{ longer_at_256:.0% }} longer for 256. *Called from Python*, in the figure, is the step as the engine sees it:
# filling the buffer and copying it to the device and the tokens back come on top.
#
# Do both compute the same? The cosine between their logits is at least {{ least_cosine:.4f }}. And neither is less
# accurate: compared with the same step in float32, both{{ if cosines_equal }} have a cosine of
# {{ one.to_float32.ours:.4f }} for one sequence. The rest is bfloat16 rounding.
#
# ## Where the rest of a step goes
#
# The step for one sequence has {{ one.launches }} launches, and the gap to the bound is {{ launch_us:.0f }} us per
# launch. Some of that comes with every launch: memory is idle until the kernel's first loads reach it, and again after
# its last. So most kernels of a step begin before the previous one has ended. This is the kernel for linear layers with
# few rows, from its start to its first loads. What may a kernel do before `griddepcontrol_wait`, and what not?

# %%
from labkit.kernels.linear import streamed

show_source(streamed.make_tensor, "row0 = ", "k0 = warp")

# %% [markdown]
# It may let the next kernel begin (`launch_dependents`) and bring its own weights into L2, because nothing writes them
# during a step. `x` is the result of the previous kernel, so it may only be read after the wait, when that kernel has
# ended. In the graph such kernels are connected by a special edge, a *programmatic dependent launch*. The kernel has to
# agree with NumPy like any other:

# %%
from labkit.kernels.ops.linear_bf16 import STREAMED_LINEAR

agree(STREAMED_LINEAR, ["streamed_tensor_cores"], sizes=({"M": 2, "N": 17, "K": 264}, {"M": 1, "N": 8, "K": 256}))

# %% [markdown]
# ## Prompts
#
# A prompt is bound by arithmetic. Here are two, in a graph and launched kernel by kernel from Python. How much does the
# graph save in a step of several milliseconds?

# %%
table([(f"{row['tokens']:,}", row["ms"]["p50"], row["called_ms"], *torch_ms(row), row["tflops"])
       for row in prefill["rows"]],
      {"tokens": "", "in a graph, ms": ".2f", "launch by launch": ".2f", "PyTorch": ".2f", "PyTorch, compiled": ".2f",
       "TFLOP/s": ".0f"})

# %% [markdown]
# Next to nothing: launched kernel by kernel, the shorter prompt takes
# {{ prefill[0].called_ms / prefill[0].ms.p50 - 1:.0% }} longer, and the longer one is equally fast to within
# {{ abs(prefill[1].called_ms / prefill[1].ms.p50 - 1):.0% }}. The GPU takes longer to run each kernel than the host to
# launch it. At {{ prefill[0].tflops:.0f }} and {{ prefill[1].tflops:.0f }} TFLOP/s both are within
# 4%{{ if prompts_within }} of the compiled PyTorch.
#
# ## Pages, continuous batching, larger steps
#
# Now the whole engine: 128 requests, all sent together, with prompts and outputs of 100 to 1,024 tokens. Two of the
# runs have memory for all of them, 16,384 pages; the other four have 4,096 pages. With a contiguous cache, where each
# sequence owns memory for 2,048 tokens, that is enough for 32 sequences at a time. *Static* batches wait until their
# last sequence has ended; continuous batching fills a seat as soon as it is free. Which raises the tokens per second
# more in the same memory, pages or continuous batching?

# %%
served = measure.recorded_series("engine", gpu="NVIDIA H200")
print(f"{served['prompt_tokens']:,} tokens of prompts, {served['output_tokens']:,} of outputs")
table([(row["name"], row["tokens_per_second"], row["steps"], len(set(row["spans"]["begin"])), row["step_ms"]["p50"],
        row["step_ms"]["p99"], row["mean_sequences"], row["preemptions"], row["host_share"]) for row in served["rows"]],
      {"": "", "tokens/s": ",.0f", "steps": "", "that admit": "", "ms: p50": ".2f", "p99": ".1f", "sequences": ".0f",
       "preempted": "", "host": ".0%"})

# %% tags=["hide-input"]
runs.seats(served)

# %% [markdown]
# *Pages*. In the same memory up to {{ pages_sequences }} sequences run instead of {{ contiguous_sequences }}, and the
# engine writes {{ static_gain:.1f }} times as many tokens per second in static batches, {{ continuous_gain:.1f }} times
# as many continuously. The price is that some sequences are preempted, and their tokens are computed again.
#
# *Continuous batching* writes {{ contiguous_gain:.1f }} times as many with the contiguous cache. It saves a
# third{{ if near(steps_saved, 1 / 3) }} of the steps: seats are empty for {{ idle['contiguous, continuous']:.0% }} of
# the time instead of {{ idle['contiguous, static']:.0% }}. Why is the factor less than the number of steps
# promises{{ if below_promise }}? With more sequences a step takes longer, {{ continuous_ms:.2f }} ms instead of
# {{ static_ms:.2f }} in the median. And while a static batch admits its prompts together, in
# {{ admit['contiguous, static'] }} steps for all four batches, here {{ admit['contiguous, continuous'] }} steps admit a
# prompt. With pages, continuous batching writes only {{ pages_gain:.1f }} times as many: up to {{ pages_running }} of
# the {{ series.engine.requests }} requests run at the same time anyway, and few are left to fill the seats that become
# free.
#
# *Larger steps* help as well. With a budget of 8,192 tokens instead of 2,048, the engine admits all prompts in
# {{ admit[larger] }} steps instead of {{ admit['all at once'] }}, and writes {{ runs[larger].tokens_per_second:,.0f }}
# tokens per second instead of {{ unlimited_rate:,.0f }}. Nearly all requests have their first token within
# {{ larger_first_s:.1f }} s instead of {{ unlimited_first_s:.1f }} s.
#
# The last column shows how much of the time the host was not waiting for the device. In decode steps this work stays
# hidden: with the larger budget, half of the steps take less than {{ runs[larger].step_ms.p50:.2f }} ms, for
# {{ runs[larger].mean_sequences:.0f }} sequences on average, and the graph alone needs
# {{ series.llama_decode.rows[6].ms.p50:.2f }} ms for 64 and {{ series.llama_decode.rows[7].ms.p50:.2f }} for 128. So
# the next thing to work on would be the kernels again: with 64 sequences the bytes need only {{ bytes_ms:.2f }} ms.
#
# ## How other engines compare
#
# One other engine ran on the same GPU, on the same day: the continuous batching of transformers
# {{ series.engine.transformers.version }} was given the same requests for {{ series.engine.transformers.seconds:.0f }}
# s, and wrote {{ transformers_rate:.0f }} tokens per second, against {{ runs[larger].tokens_per_second:,.0f }} here. It
# is a library for training and trying out models, so that says little. vLLM is the yardstick, and it was not measured
# here. Others have measured it, with this model:
#
# - *One sequence, H100.* [B. Spector et al. (2025)](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles)
#   report that vLLM and SGLang use at most 50%{{ quoted }} of an H100's bandwidth when they generate one sequence with
#   Llama 3.2 1B. Their own *megakernel*, the whole forward pass in a single launch, uses 78%{{ quoted }}. Of an H200's
#   4.8{{ hardware }} TB/s our step uses {{ of_peak(one.ms.p50):.0% }} in a graph, and {{ of_peak(one.called_ms):.0% }}
#   called from Python. They timed whole generations, so the second is the one to compare: for a single sequence this
#   engine does as well as vLLM and SGLang did, and its {{ one.launches }} launches are what is in the way.
# - *256 requests, A800.* [nano-vllm's](https://github.com/GeeeekExplorer/nano-vllm) `bench.py` sends 256 requests with
#   prompts and outputs of 100 to 1,024 tokens, all together. A [user of a relative of
#   it](https://github.com/cosmoliu2002/nano-vllm-triton/issues/1) ran that with Llama 3.2 1B on an A800: vLLM 0.10.2
#   wrote 12,627 tokens per second{{ quoted }}, the relative 15,068{{ quoted }}.
#
# The second load is easy to repeat, down to the last token of its prompts. We had an H100 for it, with
# 3.35{{ hardware }} TB/s where an A800 has 2.04{{ hardware }}. Going by bandwidth alone, how many times as fast as the
# A800 should the H100 be?

# %%
ours = measure.recorded_series("nano_vllm_bench", gpu="NVIDIA H100 80GB HBM3")
table([("vLLM 0.10.2, A800 (quoted)", 10.61, 12_627), ("nano-vllm-triton, A800 (quoted)", 8.89, 15_068),
       ("this engine, H100", ours["seconds"], ours["tokens_per_second"])],
      {f"{ours['requests']} requests, {ours['output_tokens']:,} tokens": "", "seconds": ".2f", "tokens/s": ",.0f"})

# %% [markdown]
# {{ 3.35 / 2.04:.1f }} times. This engine on the H100 is {{ bench.tokens_per_second / 12627:.1f }} times as fast as
# vLLM on the A800, and {{ bench.tokens_per_second / 15068:.1f }} times as fast as the relative. Other things differ,
# too: the tensor cores, the host, which matters when steps are as short as these, the versions, which are a year old,
# and the weights, real there and random here. A single run by a stranger is an anecdote. It does show that this engine
# is not slow by a large factor.
#
# An engine in production has more around this: models spread over several GPUs, weights with fewer bits, outputs that
# follow a grammar. The core is the same, and little of it depends on Llama: Qwen3, which also normalises queries and
# keys, runs in the same engine without changing a line of it.
#
# ## What I learned
#
# - A better schedule pays off in full only if its steps cost the same. A third fewer steps do not save a third of the
#   time.
# - Pages helped more than continuous batching here: unused memory cost more than empty seats.
# - A small step of a hundred launches loses a few microseconds per launch, even in a graph.
# - A fair comparison has the same load, the same model and the same GPU. If one of them differs, say which.
#
# ## Resources
#
# - [B. Spector, J. Juravsky et al.: Look Ma, No Bubbles!
#   (2025)](https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles), a Llama 1B in one launch
# - [G. Yu et al.: Orca (2022)](https://www.usenix.org/conference/osdi22/presentation/yu), continuous batching
# - [W. Kwon et al.: PagedAttention (2023)](https://arxiv.org/abs/2309.06180), which measures the same three ideas
# - [nano-vllm](https://github.com/GeeeekExplorer/nano-vllm), whose README compares it with vLLM on a laptop's GPU
#
# ## Try it
#
# - With a GPU: `labkit bench engine` makes these measurements. Let the scheduler wait until four seats are free before
#   it admits the next prompts. Is continuous batching faster then?
# - Run nano-vllm's `bench.py` with this engine: change its import line.
# - From the table of steps, compute the tokens per second for each number of sequences. How many would you run?
#
# In the exercises for this lesson you predict rates from bytes, measure empty seats, and count the steps of both kinds
# of batching from a blank page.
#
# Next: **serving**, where the engine gets an API and strangers send it requests.

# %% [numbers]
# bench = series_of('nano_vllm_bench', 'NVIDIA H100 80GB HBM3')
# one = series.llama_decode.rows[0]
# some = series.llama_decode.rows[5]
# most = series.llama_decode.rows[8]
# compiled = 'compiled, in a graph'
# prefill = series.llama_prefill.rows
# runs = series.engine.rows
# larger = 'all at once, larger steps'
# admit = {run.name: len({begin for begin in run.spans.begin}) for run in runs}
# busy = {run.name: sum(run.spans.end) - sum(run.spans.begin) for run in runs}
# idle = {run.name: 1 - busy[run.name] / (run.seconds * run.seats) for run in runs}
# launch_us = 1000 * (one.ms.p50 - one.bound_ms) / one.launches
# of_peak = lambda ms: one.bytes / ms / 1e6 / 4800
# eager_slowdown = one.torch['eager, in a graph'] / one.ms.p50
# faster_to_32 = one.ms.p50 < one.torch[compiled] and some.ms.p50 < some.torch[compiled]
# longer_at_256 = most.ms.p50 / most.torch[compiled] - 1
# prompts_within = all([abs(row.ms.p50 / row.torch[compiled] - 1) < 0.04 for row in prefill])
# least_cosine = min(each.cosine for each in (one, *prefill))
# cosines_equal = round(one.to_float32.ours, 4) == round(one.to_float32.torch, 4)
# pages_sequences = runs['pages, static'].most_sequences
# contiguous_sequences = runs['contiguous, static'].most_sequences
# static_gain = runs['pages, static'].tokens_per_second / runs['contiguous, static'].tokens_per_second
# continuous_gain = runs['pages, continuous'].tokens_per_second / runs['contiguous, continuous'].tokens_per_second
# steps_saved = 1 - runs['contiguous, continuous'].steps / runs['contiguous, static'].steps
# contiguous_gain = runs['contiguous, static'].seconds / runs['contiguous, continuous'].seconds
# below_promise = (0.8 < runs['contiguous, static'].seconds / runs['contiguous, continuous'].seconds *
#                  runs['contiguous, continuous'].steps / runs['contiguous, static'].steps < 1)
# continuous_ms = runs['contiguous, continuous'].step_ms.p50
# static_ms = runs['contiguous, static'].step_ms.p50
# pages_gain = runs['pages, static'].seconds / runs['pages, continuous'].seconds
# pages_running = runs['pages, continuous'].most_sequences
# unlimited_rate = runs['all at once'].tokens_per_second
# larger_first_s = runs[larger].first_token_ms.p99 / 1000
# unlimited_first_s = runs['all at once'].first_token_ms.p99 / 1000
# bytes_ms = series.llama_decode.rows[6].bound_ms
# transformers_rate = series.engine.transformers.tokens_per_second
