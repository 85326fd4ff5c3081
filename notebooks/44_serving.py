# %% [markdown]
# # 44 · Serving
#
# *Lab notebook, 22 November 2026*
#
# You will learn
#
# - what happens between an HTTP request and the first token of its answer, seen from the client's side
# - what a scheduler decides about waiting: the size of a step, and who is next
# - why latency explodes before a server is full, and how to measure a server without deceiving yourself
#
# ## The problem
#
# The engine of the last lesson is a Python object. To be useful to others it needs an address, and a protocol that
# their programs already speak. For language models that is OpenAI's HTTP API: a client sends JSON, and the answer comes
# as a whole or, token by token, as a stream of events. The server around the engine decides what is accepted, who
# waits, and what happens when a client disappears.
#
# ## Prediction
#
# A server runs at half of the load that it could handle, and a request stays in it for 100 ms{{ example }} on average.
# Write down how long it stays when the load grows to 90%{{ example }}. And which policy has the shorter mean time to
# the first token: first come, first served, or the shortest prompt first? What could speak against the better one?
#
# ## A call
#
# The next cell starts `labkit serve` as a process of its own (that needs `pip install -e '.[serve]'`) and talks to it
# over HTTP, as any client would. A client sends a list of messages, but the model reads tokens. Its chat template turns
# the messages into one text with marks that say who speaks, and the tokenizer turns the text into ids. Both are in the
# first line of the output.

# %%
import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import islice

import numpy as np

from labkit import agree, measure
from labkit.course.drawings import serving as pictures
from labkit.engine import LLM, SamplingParams
from labkit.kernels.ops.sampling import SAMPLE
from labkit.measure.plots import serve
from labkit.measure.serving import server
from labkit.measure.simulation import ChoosingScheduler, StepCost, Work, serve_trace

llm = LLM("tiny-llama", num_pages=64, max_num_seqs=8)
question = {"model": "tiny-llama", "max_tokens": 12, "temperature": 0,
            "messages": [{"role": "user", "content": "What is a hacker?"}]}
ids = llm.get_tokenizer().chat(question["messages"])
print(llm.get_tokenizer().decode(ids, marks=True), "->", *ids)

processes, http = contextlib.ExitStack(), None
if all(map(find_spec, ("fastapi", "uvicorn", "httpx"))):
    import httpx

    here = processes.enter_context(server.running(["--model", "tiny-llama", "--max-num-seqs", "8"]))
    http = processes.enter_context(httpx.Client(base_url=here.url, trust_env=False, timeout=60))
    print(json.dumps(http.post("/v1/chat/completions", json=question).json(), indent=1))
else:
    print("the extra `serve` is not installed: what the server answers is left out")

# %% [markdown]
# With `"stream": true` the response stays open, and the answer comes in pieces. Each *server-sent event* is a line of
# text that begins with `data:`. For an answer of twelve tokens, how many events do you expect, and what is in the first
# one and the last?

# %%
if http:
    began, events = time.perf_counter(), []
    with http.stream("POST", "/v1/chat/completions", json={**question, "stream": True}) as answer:
        for line in filter(None, answer.iter_lines()):
            shown = line if "choices" not in line else "data: {... " + line[line.index('"choices"'):]
            events.append(f"{1e3 * (time.perf_counter() - began):5.0f} ms  {shown[:105]}")
    print(*events[:3], "...", *events[-2:], f"{len(events)} events", sep="\n")

# %% [markdown]
# The first event names the speaker, and the last one is not JSON. Each event between them carries the text that is new,
# which need not be a token: a character of several bytes waits until it is whole, text that might become a stop string
# is held back, and a client that reads slowly gets several tokens at once. The server never waits for a reader.
#
# ## One thread owns the engine
#
# A server has hundreds of connections, and the engine is not made for hundreds of callers. So one thread owns it and
# runs one step after another. An *event loop* in another thread handles HTTP. It never computes and never waits for a
# step: it puts requests into the engine thread's inbox and gets outputs back. A request to drop a sequence, because its
# client has gone, goes through the inbox too. The engine needs no locks.
#
# The requests below arrive at the same moment, three of them to be sampled with a seed. On the CPU device their answers
# must be those of an engine in this process that serves them one by one. (Lesson 41 says why the bits may differ on a
# GPU.) The kernel that samples is compared with NumPy, as always.

# %%
fields = [{"prompt": prompt, "temperature": temperature, "seed": 7, "max_tokens": 16} for prompt, temperature in (
    ("A hacker is", 0.0), ("kludge:", 0.8), ("The first computer bug", 0.8), ("kludge:", 0.8))]
if http:
    with ThreadPoolExecutor(len(fields)) as pool:
        answers = pool.map(lambda one: http.post("/v1/completions", json={"model": "tiny-llama", **one}).json(), fields)
    for one, answer in zip(fields, answers, strict=True):
        params = SamplingParams(temperature=one["temperature"], seed=7, max_tokens=16)
        text, alone = answer["choices"][0]["text"], llm.generate(one["prompt"], params)[0].outputs[0].text
        print("the same" if alone == text else "different", repr(text), sep="   ")
agree(SAMPLE, ["sample_split"], sizes=({"R": 4, "V": 40},))

# %% [markdown]
# ## Refused, or gone
#
# Much of a server is about requests that cannot be served. Which of these three should a client send again later? A
# fourth client goes away in the middle of its answer. Its sequence holds pages: what becomes of them?

# %%
wrong = [("a temperature below 0", {**question, "temperature": -1}), ("another model", {**question, "model": "gpt-9"}),
         ("a prompt longer than the context", {**question, "messages": [{"role": "user", "content": "bug " * 2000}]})]
for what, body in wrong if http else ():
    answer = http.post("/v1/chat/completions", json=body)
    print(f"{what:34}{answer.status_code}  {answer.json()['error']['message'][:90]}")

if http:
    with http.stream("POST", "/v1/chat/completions", json={**question, "stream": True, "max_tokens": 200}) as answer:
        list(islice(answer.iter_lines(), 3))  # up to the first token
        print("pages held while it streams:", server.value(server.metrics(here.url), "labkit_kv_pages_held"))
    time.sleep(0.5)
    print("and after it has gone:      ", server.value(server.metrics(here.url), "labkit_kv_pages_held"))
processes.close()  # the server lets running requests end, and stops

# %% [markdown]
# None of the three: waiting does not help, and that is what 400 and 404 mean. A 429 says that too many are waiting, a
# 503 that the server is about to stop. Both name a time after which to try again. Why refuse a request that could just
# as well wait? The section *Why latency explodes* has the answer. When a connection closes, the server cancels the
# request, and its pages are free before the next step. `/metrics`, which the cell reads, has many such numbers for the
# operator.
#
# ## What a step costs
#
# The rest of this lesson is about time, and a tiny model on a CPU says nothing about that. But the scheduler runs
# without a model, as lesson 41 showed. A step of Llama 3.2 1B takes the time to read all weights once or, with many
# rows, the time to compute, which is then longer; and it reads keys and values. If we know how long each step takes, we
# know when each token comes:
#
# $$t = \max(t_\text{weights},\; \text{rows} \cdot t_\text{row}) + \text{tokens in the cache} \cdot t_\text{cached}$$
#
# The three times on the right are fitted to what was recorded on the H200. How well will three numbers do?

# %%
decode, prefill, runs = (measure.recorded_series(name, gpu="NVIDIA H200")
                         for name in ("llama_decode", "llama_prefill", "engine"))
cost = StepCost.fitted(decode, prefill)
print(f"{cost.step_ms:.2f} ms for the weights, {1e3 * cost.row_ms:.2f} us for a row, {1e6 * cost.cached_ms:.1f} ns for "
      f"a token in the cache\n{'':22}{'recorded, ms':>14}{'by the model':>14}")
steps = [(f"batch of {row['sequences']}", row, row["sequences"], decode["tokens"]) for row in decode["rows"][::2]]
for name, row, rows, each in (*steps, *((f"prompt of {row['tokens']:,}", row, row["tokens"], 1)
                                        for row in prefill["rows"])):
    print(f"{name:22}{row['ms']['p50']:14.2f}{cost.ms(rows, rows * each):14.2f}")
larger = next(row for row in runs["rows"] if row["name"] == "all at once, larger steps")
lengths = np.random.default_rng(7).integers(runs["shortest"], runs["longest"] + 1, (runs["requests"], 2))
again = serve_trace([Work(int(prompt), int(output)) for prompt, output in lengths], cost,
                    max_num_seqs=larger["seats"], max_num_batched_tokens=larger["budget"])
print(f"\n{runs['requests']} requests at once: recorded {larger['steps']:,} steps, "
      f"{larger['tokens_per_second']:,.0f} tokens/s; simulated {again.steps:,}, {again.tokens_per_second:,.0f}")

# %% [markdown]
# The simulated engine takes as many steps as the real one, as it is the same scheduler. Its steps are shorter, because
# the model leaves out the host. That is good enough to compare schedules. Up to the load test, all times are computed.
#
# ## How large may a step be?
#
# Users see the *time to first token* (TTFT) and the *inter-token latency* (ITL), the time between two tokens; operators
# also look at the *throughput*. The token budget of a step affects all three. In the traffic below most prompts are
# short, but one in ten has several thousand tokens: a document, say, and a question about it. Which of the curves go up
# with the budget, which go down, and which stay?

# %%
def traffic(rate, count=300, seed=0):
    """Requests at random moments, `rate` of them in a second on average."""
    rng = np.random.default_rng(seed)
    prompts = np.where(rng.random(count) < 0.1, rng.integers(4000, 8001, count), rng.integers(50, 401, count))
    outputs, arrivals = rng.geometric(1 / 60, count), np.cumsum(rng.exponential(1e3 / rate, count))
    return [Work(int(p), int(o), float(at)) for p, o, at in zip(prompts, outputs, arrivals, strict=True)]


budgets = [128, 256, 512, 1024, 2048, 4096, 8192]
found = [serve_trace(traffic(100), cost, max_num_seqs=32, max_num_batched_tokens=budget) for budget in budgets]
print("tokens per second:", *(f"{one.tokens_per_second:,.0f}" for one in found))
pictures.curves(budgets, {
    "time to first token, ms": {f"p{p}": [np.percentile(one.first_ms, p) for one in found] for p in (50, 99)},
    "between two tokens, ms": {f"p{p}": [np.percentile(one.gaps_ms, p) for one in found] for p in (50, 99)}},
    "The token budget of a step", "tokens of a step, at most", doubling=True)

# %% [markdown]
# With the smallest budget each step reads all weights for few rows, and prompts wait for their turn. Beyond a few
# hundred tokens the time to first token gains nothing more, while the slowest gaps between tokens grow with the budget:
# every reader waits while a long prompt is computed. The throughput stays: the server can only write what it is asked
# for, so throughput says nothing about a server that is not saturated.
#
# ## Who is next?
#
# Our scheduler admits requests in the order of their arrival: FIFO. Below are 300 requests that at times arrive faster
# than they can be served. *Shortest first* admits the request with the shortest prompt. In the third policy a request
# also moves ahead while it waits: a prompt that is a thousand tokens shorter is worth twenty milliseconds of waiting.
# Which dots will move up, and which down?

# %%
policies = {"FIFO": lambda prompts, waited: 0, "Shortest first": lambda prompts, waited: prompts.argmin(),
            "Shortest first, with aging": lambda prompts, waited: (0.02 * prompts - waited).argmin()}
work = traffic(220)
served = {name: serve_trace(work, cost, partial(ChoosingScheduler, choose=choose), max_num_seqs=32,
                            max_num_batched_tokens=512) for name, choose in policies.items()}
pictures.waits({name: ([one.arrival for one in work], each.first_ms, [one.prompt > 1000 for one in work])
                for name, each in served.items()})

# %% [markdown]
# Letting short prompts pass lowers the mean a lot, in about the same total time. But a long one waits as long as
# shorter ones keep coming. That is *starvation*. With *aging* every request comes first in the end; the price is a
# weight that has to be chosen.
#
# ## Why latency explodes
#
# First a law that needs hardly any assumptions. Let λ be the rate at which requests arrive, W the mean time that one
# stays, and L the mean number of those inside. Then L = λW. This is *Little's law*, which lesson 02 used for bytes in
# flight. It holds for a whole server and for its queue alone, with every policy.
#
# How long they stay depends on chance: arrivals come in clusters, and time in which a server is idle is lost. In the
# simplest case, a single server with exponentially distributed times between arrivals and service times with the mean
# S, the mean stay is $W = S / (1 - \rho)$, where ρ is the load, the part of the time in which the server works. At
# 50%{{ example }} W is {{ 1 / (1 - 0.5):.0f }} S and at 90%{{ example }} it is {{ 1 / (1 - 0.9):.0f }} S: the 100
# ms{{ example }} of the prediction become {{ 100 * (1 - 0.5) / (1 - 0.9):.0f }}. Here is the formula beside chance
# itself:

# %%
rng = np.random.default_rng(0)
print(f"{'load':>6}{'S / (1 - load)':>17}{'400,000 requests':>19}")
for load in (0.5, 0.75, 0.9, 0.95):
    between, service = rng.exponential(1 / load, 400_000), rng.exponential(1, 400_000)
    left = np.cumsum(service[:-1] - between[1:])  # the work that each request finds, if that could fall below 0
    waiting = left - np.minimum(np.minimum.accumulate(left), 0)
    print(f"{load:6.0%}{1 / (1 - load):17.1f}{waiting.mean() + 1:19.1f}")

# %% [markdown]
# An engine has many seats, and its steps get longer with the load. Does its latency explode as well? Draw the curves
# before you run the cell. At a load of 1, requests arrive as fast as the engine handles them when all are there at
# once.

# %%
engine = partial(serve_trace, cost=cost, max_num_seqs=16, max_num_batched_tokens=512)
capacity, loads = 600e3 / engine(traffic(1e6, 600)).total_ms, [0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1]
found = [engine(traffic(load * capacity, 600)) for load in loads]
pictures.curves(loads, {
    "time to first token, ms": {f"p{p}": [np.percentile(one.first_ms, p) for one in found] for p in (50, 99)},
    "between two tokens, ms": {f"p{p}": [np.percentile(one.gaps_ms, p) for one in found] for p in (50, 99)},
    "requests inside": {"λW": [600 / one.total_ms * one.ends_ms.mean() for one in found]}},
    "Latency over load", f"load; 1 is {capacity:.0f} requests a second", mark=1.0)

# %% [markdown]
# Between two tokens hardly anything changes, since the seats limit what is in a step. It is the queue that grows: for a
# long time not at all, and then, in the last fifth of the capacity, fast. Beyond a load of 1 there is no mean any more.
#
# That is why a server refuses. Someone whose request has waited for a minute gives up and asks again, and the server
# computes answers that no one reads. With a bound on the queue those inside are served in time, and the others learn at
# once that they should come back later.
#
# ## The load test
#
# How is a real server measured? In a *closed loop* each client sends its next request when its last one has been
# answered. If the server gets slow, they send less: that shows the highest throughput, and hides the delays that users
# would see. In an *open loop* requests arrive at a rate, whatever the server does: that shows latency. *Goodput* counts
# only requests that met their limits. `labkit bench serve` does both. Here is the server with Llama 3.2 1B's shape and
# random weights on an H200: first a closed loop with a client for each seat, then open loops. What share of the
# engine's throughput do you expect to be left with JSON and HTTP around it?

# %%
recorded = measure.recorded_series("serve", gpu="NVIDIA H200")
alone, closed = recorded["alone"], recorded["closed"]
for name, speed, seconds, run in (
        ("the engine alone", alone["tokens_per_second"], alone["seconds"], alone),
        (f"{recorded['seats']} clients over HTTP", closed["output_throughput"], closed["duration"], closed)):
    print(f"{name:24}{speed:8,.0f} tokens/s in {run['steps']:,} steps of {1e3 * seconds / run['steps']:.2f} ms")
print(f"\n{'requests/s':>10}{'first token, ms: p50':>22}{'p99':>6}{'a token, ms: p50':>18}{'tokens an event':>17}")
for run in recorded["runs"]:
    print(f"{run['request_rate']:10.1f}{run['median_ttft_ms']:22.0f}{run['p99_ttft_ms']:6.0f}"
          f"{run['median_tpot_ms']:18.2f}{run['tokens_per_piece']:17.1f}")
serve.load(recorded)

# %% [markdown]
# Over HTTP {{ series.serve.share_of_alone:.0% }} is left. The engine takes about as many steps for the same requests,
# but each of them lasts a quarter longer{{ if near(step_longer, 1.25) }}. The likely cause, which this recording does
# not measure, is that the engine's thread and the event loop share one Python interpreter: while one writes JSON for
# {{ serve.seats }} streams, the other cannot prepare the next step. vLLM runs its engine in a process of its own for
# this reason, and {{ engine_share:.0% }} is left with it here. So does `labkit serve` on a GPU, unless it is given
# `--no-engine-process`, as it was for the figure.
#
# The readers notice it too. With more streams each gets larger pieces less often:
# {{ words(serve.runs[-1].tokens_per_piece) }} tokens in an event on average at the highest rate. So the ITL in the
# figure is the time between two *events*. What a token costs its reader is the column `a token`, which stays below 4
# ms{{ if stays_below }}.
#
# There is no explosion, even at {{ serve.runs[-1].share_of_capacity:.0% }} of what the closed loop had shown. That loop
# was short: {{ serve.requests }} requests for {{ serve.seats }} seats, so that for much of the time seats were empty,
# and the capacity came out too low. At the highest rate at most {{ inside_at_once }} requests were inside at once, and
# a load that lasts seconds ends before a queue can grow.
#
# The p99 of the first token is about 100 ms{{ if near(serve.runs[0].p99_ttft_ms, 100) }} even at the lowest rate, where
# no one waits for a seat. In each of these runs the load generator itself was held up at least once, for about 70
# ms{{ if near(held_up_ms, 70) }} on average, and may well be to blame. Measure the measuring program too.
#
# ## The window
#
# Start a server yourself with `labkit serve`, and open the address that it prints. This page shows the engine at work.

# %%
pictures.window()

# %% [markdown]
# Things to try:
#
# - Ask something. Under *Seats* the prompt is computed in one step; then the sequence decodes, a token in each step,
#   and takes a new page after every sixteenth (lesson 39).
# - Run the demo. Pages in a bold frame are held by several sequences, whose prompts begin alike (lesson 41).
# - Press *Pause*, then *Step once*. Predict before each step which seats get a token, and who leaves (lesson 38).
# - Close the tab in the middle of an answer and open it again: its pages are free.
#
# ## What was implemented
#
# - a server with OpenAI's API: one thread owns the engine, and an event loop never waits for it
# - a simulator with the cost of a step, in which budgets and policies can be compared
# - a load generator with open and closed loops, and a window into the running engine
#
# ## What I learned
#
# - Measure throughput on a server that is saturated, and latency on one that is not.
# - A schedule does not make a step faster. It decides who waits for it.
# - Waiting is not proportional to the load. The last fifth of the capacity is the expensive one.
# - A slow reader, a client that has gone, and one request too many are normal cases.
#
# This is the last lesson; an appendix on linear attention follows. The first one was `c[i] = a[i] + b[i]`, and behind
# the window it still is: threads that know their index, a guard at the end, memory that is read in whole lines. The
# rest was done to keep them busy.
#
# ## Resources
#
# - [J. Little: A Proof for the Queuing Formula L = λW (1961)](https://doi.org/10.1287/opre.9.3.383)
# - [M. Harchol-Balter: Performance Modeling and Design of Computer Systems](https://www.cambridge.org/9781107027503)
# - [A. Agrawal et al.: Sarathi-Serve (2024)](https://arxiv.org/abs/2403.02310), step budgets against latency
# - [Y. Zhong et al.: DistServe (2024)](https://arxiv.org/abs/2401.09670), goodput
#
# ## Try it
#
# - Point the official client at your server: `OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")`.
# - Make `step_ms` much longer with `dataclasses.replace(cost, ...)`, for a slower host. Which budget is best then?
# - Find the rate at which this machine saturates: `labkit bench serve --rate 1,2,4`.

# %% [numbers]
# serve = series.serve
# step_longer = (serve.closed.duration / serve.closed.steps) / (serve.alone.seconds / serve.alone.steps)
# engine_share = series.serve.engine_process_share_of_alone
# stays_below = max(run.median_tpot_ms for run in serve.runs) < 4
# inside_at_once = serve.runs[-1].max_concurrent_requests
# held_up_ms = sum(run.client_lag_ms.max for run in serve.runs) / 5
