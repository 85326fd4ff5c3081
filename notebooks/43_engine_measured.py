# %% [markdown]
# # 43 · The engine, measured
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what pages, continuous batching and larger steps are worth, measured

# %% [markdown]
# ## The problem
#
# To be written.

# %%
from labkit.engine import LLM, SamplingParams

llm = LLM("tiny-llama", num_pages=64, max_num_seqs=8)
params = SamplingParams(temperature=0.7, seed=1, max_tokens=24)
for output in llm.generate(["A hacker is", "kludge:", "The first computer bug"], params):
    print(repr(output.prompt), "->", repr(output.outputs[0].text))

# %% [markdown]
# ## A step, measured
#
# How fast can it be? A decode step reads all weights once and, for each sequence, its keys and values. Below are such
# steps as measured for Llama 3.2 1B, with random weights, in a CUDA graph; the bound is the time for the bytes. PyTorch
# runs the same model on the same numbers, in a graph as well, as it is and through `torch.compile`. Guess: how near to
# the bound is a step for one sequence, and how near for 256?

# %%
from labkit import measure
from labkit.measure.plots import engine as runs

decode, prefill = (measure.recorded_series(name, gpu="NVIDIA H200") for name in ("llama_decode", "llama_prefill"))
print(f"{'ms':>16}{'bytes':>9}{'here':>9}{'PyTorch':>9}{'compiled':>9}{'launch by launch':>19}")
for row in (*decode["rows"], *prefill["rows"]):
    what = f"batch of {row['sequences']}" if "sequences" in row else f"prompt of {row['tokens']:,}"
    bound = f"{row['bound_ms']:9.2f}" if "bound_ms" in row else " " * 9
    theirs = [*(row["torch"] or {}).values()] or ["", ""]
    called = f"{row['called_ms']:18.2f}" if "tflops" in row else ""
    print(f"{what:>16}{bound}{row['ms']['p50']:9.2f}", *(f"{ms:8.2f}" if ms else " " * 8 for ms in theirs), called)
runs.decode_steps(decode, None)

# %% [markdown]
# *Called from Python*, in the figure, is what the engine sees of such a step: filling the buffer and the copies there
# and back come on top. For one sequence a step takes {{ one.ms.p50:.2f }} ms, and its bytes need
# {{ one.bound_ms:.2f }}, {{ one.bound_ms / one.ms.p50:.0% }} of it. It has {{ one.launches }} launches, so the
# difference is {{ launch_us:.0f }} us for each of them. Some of that is in the nature of a launch: the memory is idle
# until its first loads arrive and after the last ones have. So in a graph most kernels begin before the previous one
# has ended, and fetch their weights meanwhile. With 256 sequences the step reaches
# {{ most.bound_ms / most.ms.p50:.0% }} of the bound.
#
# PyTorch without compiling takes {{ eager_slowdown:.1f }} times as long for one sequence. The compiled step is the one
# to beat: ours is faster for one sequence and for 32{{ if faster_to_32 }}, and takes {{ longer_at_256:.0% }} longer
# for 256. Prompts are within 4%{{ if prompts_within }} of it, at {{ prefill[0].tflops:.0f }} and
# {{ prefill[1].tflops:.0f }} TFLOP/s. The last column shows them launched one by one from Python, which makes no
# difference{{ if called_alike }}: the GPU takes longer for each kernel than the host for its launch.
#
# Do the two compute the same? For one sequence and for the prompts the cosine between their logits is at least
# {{ least_cosine:.4f }}. And which of them is less accurate? Neither: compared with the same step in float32,
# both{{ if cosines_equal }} have a cosine of {{ one.to_float32.ours:.4f }} for one sequence. What is left is the
# rounding of bfloat16.

# %% [markdown]
# ## The whole, measured
#
# Now the whole engine: 128 requests at once, with prompts and outputs of 100 to 1,024 tokens. Two of the runs have
# memory for all of them, 16,384 pages; the other four have 4,096. With a contiguous cache, where each sequence owns
# memory for 2,048 tokens, that is enough for 32 at a time. Look at what you wrote down: which gains more there, pages
# or continuous batching?

# %%
served = measure.recorded_series("engine", gpu="NVIDIA H200")
print(f"{served['prompt_tokens']:,} tokens of prompts, {served['output_tokens']:,} of outputs")
print(f"{'':26}{'tokens/s':>9}{'steps':>7}{'admit':>7}{'ms: p50':>9}{'p99':>7}{'sequences':>11}{'preempted':>11}"
      f"{'host':>6}")
for row in served["rows"]:
    admit = len(set(row["spans"]["begin"]))  # steps in which a sequence begins
    print(f"{row['name']:26}{row['tokens_per_second']:9,.0f}{row['steps']:7,}{admit:7}{row['step_ms']['p50']:9.2f}"
          f"{row['step_ms']['p99']:7.1f}{row['mean_sequences']:11.0f}{row['preemptions']:11}{row['host_share']:6.0%}")
runs.seats(served)

# %% [markdown]
# *Pages* gain most. In the same memory up to {{ pages_sequences }} sequences run instead of {{ contiguous_sequences }},
# and the engine writes {{ static_gain:.1f }} times as many tokens a second in static batches, {{ continuous_gain:.1f }}
# times as many continuously. Some sequences are preempted for it, and what they had is computed again.
#
# *Continuous batching* saves a third{{ if near(steps_saved, 1 / 3) }} of the steps: seats are empty for
# {{ idle['contiguous, continuous']:.0% }} of the time instead of {{ idle['contiguous, static']:.0% }}. The run takes
# {{ continuous_s:.1f }} s instead of {{ runs['contiguous, static'].seconds:.1f }}, which is a little less than the
# steps promise{{ if below_promise }}. With more sequences a step takes longer, {{ continuous_ms:.2f }} ms instead of
# {{ static_ms:.2f }} in the median. And while a static batch admits its prompts together, in
# {{ admit['contiguous, static'] }} steps for all four batches, here {{ admit['contiguous, continuous'] }} steps admit a
# prompt; the 99th percentile of a step is {{ p99_ms:.0f }} ms. Such steps once decided the matter: when the engine
# launched them one by one through Numba, the static run was the faster one. With pages the gain is smaller,
# {{ pages_gain:.1f }} times. Up to {{ pages_running }} of the {{ series.engine.requests }} requests run at once, and
# few are left to fill the seats that become free.
#
# *Larger steps* pay as well. With a budget of 8,192 tokens instead of 2,048, the engine admits all prompts in
# {{ admit[larger] }} steps instead of {{ admit['all at once'] }}, and writes {{ runs[larger].tokens_per_second:,.0f }}
# tokens a second instead of {{ unlimited_rate:,.0f }}. Nearly all requests have their first token within
# {{ larger_first_s:.1f }} s instead of {{ unlimited_first_s:.1f }}.
#
# For comparison, the continuous batching of transformers {{ series.engine.transformers.version }} was given the same
# requests for {{ series.engine.transformers.seconds:.0f }} s, and wrote {{ transformers_rate:.0f }} tokens a second.
# That is not a fair comparison for an engine. vLLM would be, and was not measured.
#
# The column *host* is the part of the time in which the host did not wait for the device. In decode steps it stays
# hidden: with larger steps, half of the steps take less than {{ runs[larger].step_ms.p50:.2f }} ms, for
# {{ runs[larger].mean_sequences:.0f }} sequences on average, and the graph alone needs
# {{ series.llama_decode.rows[6].ms.p50:.2f }} ms for 64 and {{ series.llama_decode.rows[7].ms.p50:.2f }} for 128. So
# what comes next are the kernels again: with 64 sequences the bytes would take {{ bytes_ms:.2f }} ms.
#
# An engine in production has more around this: models spread over several GPUs, weights of fewer bits, outputs that
# follow a grammar. The core is the same, and little of it depends on Llama: Qwen3, with its norms of queries and keys,
# runs through the same engine without a line of it changed.

# %% [markdown]
# ## What I learned
#
# - A prefix of the sorted order needs no sort. A threshold describes it, and sums over the row find the threshold.
# - State that depends on the batch makes outputs irreproducible. A counter instead of a generator, and whole numbers
#   instead of floats, remove it.
# - The host's work is hidden as long as it plans a step in less time than the device needs for one.
# - A better schedule pays only if its steps cost about the same. Launched one by one through Numba, the steps with
#   prompts cost more than the empty seats that they avoided; as graphs they do not.

# %% [markdown]
# ## Resources
#
# - [J. Salmon et al.: Parallel Random Numbers: As Easy as 1, 2, 3 (2011)](https://doi.org/10.1145/2063384.2063405),
#   Philox
# - [G. Yu et al.: Orca (2022)](https://www.usenix.org/conference/osdi22/presentation/yu), continuous batching
# - [vLLM's documentation](https://docs.vllm.ai/), for the names that this engine shares with it

# %% [markdown]
# ## Try it
#
# - Give a request of the small engine another seed. Do the texts of the others change?
# - Let `LLM.stream` print a text as it is written, with a stop string in it, and abort a request half way.
# - With a GPU: `labkit bench engine` takes these measurements. Let a scheduler wait until four seats are free before it
#   admits the next prompts. Is continuous batching faster then?
#
# In the exercises for this lesson you predict what is sampled from seven tokens, find a threshold without a sort and
# sample with it, and write Philox from a blank page.
#
# Next: **serving**, where the engine gets an API and strangers send it requests.

# %% [numbers]
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
# eager_slowdown = one.torch['eager, in a graph'] / one.ms.p50
# faster_to_32 = one.ms.p50 < one.torch[compiled] and some.ms.p50 < some.torch[compiled]
# longer_at_256 = most.ms.p50 / most.torch[compiled] - 1
# prompts_within = all([abs(row.ms.p50 / row.torch[compiled] - 1) < 0.04 for row in prefill])
# called_alike = all([abs(row.called_ms / row.ms.p50 - 1) < 0.05 for row in prefill])
# least_cosine = min(each.cosine for each in (one, *prefill))
# cosines_equal = round(one.to_float32.ours, 4) == round(one.to_float32.torch, 4)
# pages_sequences = runs['pages, static'].most_sequences
# contiguous_sequences = runs['contiguous, static'].most_sequences
# static_gain = runs['pages, static'].tokens_per_second / runs['contiguous, static'].tokens_per_second
# continuous_gain = runs['pages, continuous'].tokens_per_second / runs['contiguous, continuous'].tokens_per_second
# steps_saved = 1 - runs['contiguous, continuous'].steps / runs['contiguous, static'].steps
# continuous_s = runs['contiguous, continuous'].seconds
# below_promise = (0.8 < runs['contiguous, static'].seconds / runs['contiguous, continuous'].seconds *
#                  runs['contiguous, continuous'].steps / runs['contiguous, static'].steps < 1)
# continuous_ms = runs['contiguous, continuous'].step_ms.p50
# static_ms = runs['contiguous, static'].step_ms.p50
# p99_ms = runs['contiguous, continuous'].step_ms.p99
# pages_gain = runs['pages, static'].seconds / runs['pages, continuous'].seconds
# pages_running = runs['pages, continuous'].most_sequences
# unlimited_rate = runs['all at once'].tokens_per_second
# larger_first_s = runs[larger].first_token_ms.p99 / 1000
# unlimited_first_s = runs['all at once'].first_token_ms.p99 / 1000
# bytes_ms = series.llama_decode.rows[6].bound_ms
# transformers_rate = series.engine.transformers.tokens_per_second
