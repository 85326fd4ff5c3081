# %% [markdown]
# # 44 · Serving
#
# *Lab notebook, 28 November 2026*
#
# You will learn
#
# - what happens between an HTTP request and the first token of its answer, seen from the client's side
# - how a scheduler decides who waits: the size of a step, and which request is next
# - why latency explodes before a server is full, and how to measure a server without fooling yourself
#
# ## The problem
#
# The engine of the last lessons is a Python object. To be useful to others it needs an address, and a protocol that
# their programs already speak. For language models that is OpenAI's HTTP API: a client sends JSON, and the answer comes
# as a whole or, token by token, as a stream of events. The server around the engine decides which requests are
# accepted, which wait, and what happens when a client disappears.
#
# ## A call
#
# The next cell starts `labkit serve` in a separate process (that needs `pip install -e '.[serve]'`) and talks to it
# over HTTP, as any client would. A client sends a list of messages, but the model reads tokens. The model's chat
# template turns the messages into one text with marks that say who speaks, and the tokenizer turns the text into ids.

# %%
import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import islice

import numpy as np
from IPython.display import display

from labkit import agree, measure, show_source, table
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
# text that begins with `data:`. For an answer of twelve tokens, how many events will there be, and what do the first
# and the last contain?

# %%
if http:
    began, events = time.perf_counter(), []
    with http.stream("POST", "/v1/chat/completions", json={**question, "stream": True}) as answer:
        for line in filter(None, answer.iter_lines()):
            shown = line if "choices" not in line else "data: {... " + line[line.index('"choices"'):]
            events.append(f"{1e3 * (time.perf_counter() - began):5.0f} ms  {shown[:105]}")
    print(*events[:3], "...", *events[-2:], f"{len(events)} events", sep="\n")

# %% [markdown]
# The first event names the speaker, and the last one is not JSON. Each event between them carries the new text. An
# event is not a token: a character of several bytes waits until it is whole, text that might become a stop string is
# held back, and a client that reads slowly gets several tokens in one event. The server never waits for a reader.
#
# ## One thread owns the engine
#
# A server has hundreds of connections, and the engine is not made for hundreds of callers. So one thread owns it, an
# `EngineThread`, and does nothing but this:

# %%
from labkit.serve.engine_thread import EngineThread

show_source(EngineThread._run, "while not", "self._step()")

# %% [markdown]
# An *event loop* in another thread handles HTTP. It computes nothing and never waits for a step: it puts requests into
# the engine thread's inbox and gets outputs back. If a client disconnects, that goes through the inbox, too. So the
# engine needs no locks.
#
# The requests below arrive at the same moment, and three of them sample with a seed. An engine in this process serves
# the same requests one by one. Will the server's answers be the same as those of the engine alone?

# %%
fields = [{"prompt": prompt, "temperature": temperature, "seed": 7, "max_tokens": 16} for prompt, temperature in (
    ("A hacker is", 0.0), ("kludge:", 0.8), ("The first computer bug", 0.8), ("kludge:", 0.8))]
if http:
    with ThreadPoolExecutor(len(fields)) as pool:
        answers = pool.map(lambda one: http.post("/v1/completions", json={"model": "tiny-llama", **one}).json(), fields)
    rows = []
    for one, answer in zip(fields, answers, strict=True):
        params = SamplingParams(temperature=one["temperature"], seed=7, max_tokens=16)
        text, alone = answer["choices"][0]["text"], llm.generate(one["prompt"], params)[0].outputs[0].text
        rows.append(("the same" if alone == text else "different", one["prompt"], text))
    display(table(rows, ["", "prompt", "answer"]))
agree(SAMPLE, ["sample_split"], sizes=({"R": 4, "V": 40},))

# %% [markdown]
# On the CPU device they are; lesson 41 says why the last bits may differ on a GPU. The sampling kernel is compared with
# NumPy, as always.
#
# ## Refused, or gone
#
# Much of a server is about requests that cannot be served. Below are three, and a fourth client that disconnects in the
# middle of its answer, while its sequence holds pages. Which of the three refused requests should a client send again
# later?

# %%
wrong = [("a temperature below 0", {**question, "temperature": -1}), ("another model", {**question, "model": "gpt-9"}),
         ("a prompt longer than the context", {**question, "messages": [{"role": "user", "content": "bug " * 2000}]})]
if http:
    answers = [(what, http.post("/v1/chat/completions", json=body)) for what, body in wrong]
    display(table([(what, str(answer.status_code), answer.json()["error"]["message"][:90]) for what, answer in answers],
                  ["request", "status", "message"]))
    with http.stream("POST", "/v1/chat/completions", json={**question, "stream": True, "max_tokens": 200}) as answer:
        list(islice(answer.iter_lines(), 3))  # up to the first token
        print("pages held while it streams:", server.value(server.metrics(here.url), "labkit_kv_pages_held"))
    time.sleep(0.5)
    print("and after it has gone:      ", server.value(server.metrics(here.url), "labkit_kv_pages_held"))
processes.close()  # the server lets running requests end, and stops

# %% [markdown]
# None of the three: waiting does not help, and that is what 400 and 404 mean. A 429 says that too many are waiting, a
# 503 that the server is about to stop. Both say after how long to try again. Why refuse a request that could just as
# well wait? The section *Why latency explodes* has the answer. When the fourth client's connection closed, the server
# cancelled the request, and its pages were free before the next step. `/metrics`, which the cell reads, tells the
# operator much more.
#
# ## What a step costs
#
# The rest of this lesson is about time, and a tiny model on a CPU tells us nothing about that. But the scheduler runs
# without a model, as lesson 41 showed. A step of Llama 3.2 1B takes as long as reading all weights once or, with many
# rows, as long as the arithmetic, if that is longer; then the keys and values are read. If we know how long each step
# takes, we know when each token comes:
#
# $$t = \max(t_\text{weights},\; \text{rows} \cdot t_\text{row}) + \text{tokens in the cache} \cdot t_\text{cached}$$
#
# The three times on the right, a `StepCost`, are fitted to steps that were recorded on the H200. How far off is a cost
# model with only three parameters, for single steps and for a whole run?

# %%
decode, prefill, runs = (measure.recorded_series(name, gpu="NVIDIA H200")
                         for name in ("llama_decode", "llama_prefill", "engine"))
cost = StepCost.fitted(decode, prefill)
print(f"{cost.step_ms:.2f} ms for the weights, {1e3 * cost.row_ms:.2f} us for a row, {1e6 * cost.cached_ms:.1f} ns for "
      f"a token in the cache")
steps = [(f"batch of {row['sequences']}", row["ms"]["p50"], cost.ms(row["sequences"], row["sequences"] * 1024))
         for row in decode["rows"][::2]]
steps += [(f"prompt of {row['tokens']:,}", row["ms"]["p50"], cost.ms(row["tokens"], row["tokens"]))
          for row in prefill["rows"]]
display(table(steps, {"step": "", "recorded, ms": ".2f", "by the model": ".2f"}))
larger = next(row for row in runs["rows"] if row["name"] == "all at once, larger steps")
lengths = np.random.default_rng(7).integers(runs["shortest"], runs["longest"] + 1, (runs["requests"], 2))
again = serve_trace([Work(int(prompt), int(output)) for prompt, output in lengths], cost,
                    max_num_seqs=larger["seats"], max_num_batched_tokens=larger["budget"])
table([("recorded", larger["steps"], larger["tokens_per_second"]), ("simulated", again.steps, again.tokens_per_second)],
      {f"{runs['requests']} requests at once": "", "steps": "", "tokens/s": ",.0f"})

# %% [markdown]
# The simulated engine makes as many steps as the real one, since it is the same scheduler. Its steps are shorter,
# because the model leaves out the host. That is good enough to compare schedules. Up to the load test, all times are
# computed.
#
# ## How large may a step be?
#
# Users see the *time to first token* (TTFT) and the time between two tokens; operators also look at the *throughput*.
# The token budget of a step affects all three. In the traffic below most prompts are short, but one in ten has several
# thousand tokens: a document, say, and a question about it. Which curves go up with the budget, and which go down?

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
    "Beyond a few hundred tokens a larger step only delays readers", "tokens of a step, at most", doubling=True)

# %% [markdown]
# With the smallest budget each step reads all weights for few rows, and prompts wait for their turn. Beyond a few
# hundred tokens the time to first token does not fall any further, while the slowest gaps between tokens grow with the
# budget: every reader waits while a long prompt is computed. The throughput stays the same, since the server can only
# write what clients request. Throughput says nothing about a server that is not saturated.
#
# ## Who is next?
#
# Our scheduler admits requests in the order of their arrival: FIFO. Below are 300 requests that at times arrive faster
# than they can be served, and a `ChoosingScheduler`, which takes the policy as an argument. *Shortest first* admits the
# request with the shortest prompt. In the third policy a request also moves ahead while it waits: twenty milliseconds
# of waiting count as much as a prompt that is a thousand tokens shorter. Which dots will move up, and which down, those
# of short prompts or of long ones?

# %%
policies = {"FIFO": lambda prompts, waited: 0, "Shortest first": lambda prompts, waited: prompts.argmin(),
            "Shortest first, with aging": lambda prompts, waited: (0.02 * prompts - waited).argmin()}
work = traffic(220)
served = {name: serve_trace(work, cost, partial(ChoosingScheduler, choose=choose), max_num_seqs=32,
                            max_num_batched_tokens=512) for name, choose in policies.items()}
pictures.waits({name: ([one.arrival for one in work], each.first_ms, [one.prompt > 1000 for one in work])
                for name, each in served.items()}, "Shortest first starves the long prompts; aging does not")

# %% [markdown]
# Letting short prompts go first lowers the mean wait a lot, in about the same total time. But a long prompt waits for
# as long as shorter ones keep coming. That is *starvation*. With *aging* every request gets its turn in the end, at the
# price of a weight that somebody has to choose.
#
# ## Why latency explodes
#
# First a law that needs next to no assumptions. Let λ be the rate at which requests arrive, W the mean time that a
# request stays, and L the mean number of requests inside. Then L = λW. This is *Little's law*, which lesson 02 used for
# bytes in flight. It holds for a whole server and for its queue alone, with every policy.
#
# How long requests stay depends on chance: arrivals come in clusters, and idle time is lost. In the simplest case, a
# single server with exponentially distributed times between arrivals, and service times that are exponential too, with
# mean S, the mean stay is $W = S / (1 - \rho)$, where ρ is the load, the fraction of time that the server is busy. Say
# a request stays for 100 ms{{ example }} on average at a load of 50%{{ example }}. How long does a request stay at a
# load of 90%{{ example }}?

# %%
rng = np.random.default_rng(0)
rows = []
for load in (0.5, 0.75, 0.9, 0.95):
    between, service = rng.exponential(1 / load, 400_000), rng.exponential(1, 400_000)
    left = np.cumsum(service[:-1] - between[1:])  # the work that each request finds, if that could fall below 0
    waiting = left - np.minimum(np.minimum.accumulate(left), 0)
    rows.append((load, 1 / (1 - load), waiting.mean() + 1))
table(rows, {"load": ".0%", "S / (1 - load)": ".1f", "400,000 requests": ".1f"}, "The mean stay, in service times")

# %% [markdown]
# At 50%{{ example }} W is {{ 1 / (1 - 0.5):.0f }} S and at 90%{{ example }} it is {{ 1 / (1 - 0.9):.0f }} S, so the 100
# ms{{ example }} become {{ 100 * (1 - 0.5) / (1 - 0.9):.0f }}. The second column is the formula, and the third is a
# simulation.
#
# An engine has many seats, and its steps get longer with the load. A load of 1 means that requests arrive at the rate
# at which the engine would serve them if all were there from the start. Does the engine's latency explode as well, and
# which of the three plots shows it first?

# %%
engine = partial(serve_trace, cost=cost, max_num_seqs=16, max_num_batched_tokens=512)
capacity, loads = 600e3 / engine(traffic(1e6, 600)).total_ms, [0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1]
found = [engine(traffic(load * capacity, 600)) for load in loads]
pictures.curves(loads, {
    "time to first token, ms": {f"p{p}": [np.percentile(one.first_ms, p) for one in found] for p in (50, 99)},
    "between two tokens, ms": {f"p{p}": [np.percentile(one.gaps_ms, p) for one in found] for p in (50, 99)},
    "requests inside": {"λW": [600 / one.total_ms * one.ends_ms.mean() for one in found]}},
    "Near the capacity the queue explodes, not the steps", f"load; 1 is {capacity:.0f} requests a second", mark=1.0)

# %% [markdown]
# It does, and the time to first token shows it. Between two tokens little changes, since the seats limit what is in a
# step. It is the queue that grows: hardly at first, and then, in the last fifth of the capacity, fast. Beyond a load of
# 1 there is no mean any more: the queue grows for as long as requests arrive.
#
# That is why a server refuses requests. A user whose request has waited for a minute gives up and asks again, and the
# server computes answers that nobody reads. With a bound on the queue, those inside are served in time, and the others
# learn immediately that they should come back later.
#
# ## The load test
#
# How is a real server measured? In a *closed loop* each client sends its next request when its last one has been
# answered. If the server slows down, the clients send fewer requests: that shows the highest throughput, and hides the
# delays that users would see. In an *open loop* requests arrive at a given rate, no matter how fast the server answers:
# that shows latency. *Goodput* counts only requests that met their latency limits. `labkit bench serve` does both.
#
# First the closed loop: the server with Llama 3.2 1B's shape and random weights on an H200, with one client per seat,
# {{ serve.seats }} of them. What fraction of the engine's throughput is left with JSON and HTTP around it?

# %%
recorded = measure.recorded_series("serve", gpu="NVIDIA H200")
alone, closed, apart = recorded["alone"], recorded["closed"], recorded["engine_process"]
table([("the engine alone", alone["tokens_per_second"], alone["steps"], 1e3 * alone["seconds"] / alone["steps"]),
       *((f"over HTTP, {name}", run["output_throughput"], run["steps"], 1e3 * run["duration"] / run["steps"])
         for name, run in (("one process", closed), ("two processes", apart)))],
      {"": "", "tokens/s": ",.0f", "steps": "", "ms a step": ".2f"})

# %% [markdown]
# {{ serve.share_of_alone:.0% }} in one process. The engine needs about as many steps for the same requests, but each of
# them takes a quarter longer{{ if near(step_longer, 1.25) }}: its thread and the event loop share one Python
# interpreter, and while one writes JSON for {{ serve.seats }} streams, the other cannot prepare the next step. With the
# engine in its own process, {{ engine_share:.0% }} is left. vLLM does it that way, and so does `labkit serve` on a GPU.
#
# Now open loops. The rates are fractions of the closed loop's throughput. Each answer is a stream, and the server may
# put several tokens into an event. How does the number of tokens in an event change with the rate?

# %%
table([(run["request_rate"], run["share_of_capacity"], run["median_ttft_ms"], run["p99_ttft_ms"],
        run["median_itl_ms"], run["tokens_per_piece"], run["median_tpot_ms"]) for run in recorded["runs"]],
      {"requests/s": ".1f", "of the closed loop": ".0%", "first token, ms: p50": ".0f", "p99": ".0f",
       "between events, ms": ".1f", "tokens in an event": ".1f", "ms a token": ".2f"})

# %% tags=["hide-input"]
serve.load(recorded)

# %% [markdown]
# With more streams each reader gets larger pieces less often: {{ words(serve.runs[-1].tokens_per_piece) }} tokens in an
# event on average at the highest rate. Benchmarks call the time from one event to the next *inter-token latency*, ITL,
# as if an event were a token. Here it is not: the time between events grows to {{ serve.runs[-1].median_itl_ms:.0f }}
# ms, and the time per token stays below 4 ms{{ if stays_below }}. Check what a benchmark counts.
#
# And there is no explosion, even at {{ serve.runs[-1].share_of_capacity:.0% }} of the closed loop's rate, for two
# reasons. That loop was short, {{ serve.requests }} requests for {{ serve.seats }} seats, so seats were empty for much
# of the time and the capacity came out too low. And at each rate requests arrived for only {{ arrivals_s:.0f }} s, so
# that at most {{ inside_at_once }} were inside: the load ended before a queue could grow.
#
# The p99 of the first token is about 100 ms{{ if near(serve.runs[0].p99_ttft_ms, 100) }} even at the lowest rate, where
# no one waits for a seat. In each of these runs the load generator was itself held up at least once, for about 70
# ms{{ if near(held_up_ms, 70) }} on average. Measure the measuring program, too.
#
# ## Beyond the capacity
#
# So here is a longer and larger load, on an H100. Its closed loop has five requests per seat, and only the part with
# all seats taken counts: that is the capacity, {{ beyond.capacity:.0f }} requests a second. Then requests arrive for
# {{ beyond.arrivals_s:.0f }} s at half of it, just below it, and above it. The figure shows, for each second, how long
# the requests that arrive in it wait for their first token. How does the wait change from second to second at
# {{ beyond.runs[3].share_of_capacity:.0% }} of the capacity?

# %%
overload = measure.recorded_series("serve_overload", gpu="NVIDIA H100 80GB HBM3")
display(table([(run["request_rate"], run["share_of_capacity"], run["median_ttft_ms"], run["p99_ttft_ms"],
                run["max_concurrent_requests"], run["request_goodput"] / run["request_throughput"])
               for run in overload["runs"]],
              {"requests/s": ".0f", "of the capacity": ".0%", "first token, ms: p50": ",.0f", "p99": ",.0f",
               "inside at most": "", "within the limits": ".0%"}))
seconds = range(1, int(overload["arrivals_s"]) + 1)
pictures.curves(seconds, {"time to first token, ms": {
    f"{run['share_of_capacity']:.0%}": run["first_ms_by_second"][: len(seconds)] for run in overload["runs"]}},
    "Above the capacity the wait grows for as long as the load lasts", "second in which the request arrives")

# %% [markdown]
# For {{ words(full_after) }} seconds it looks like the others, because it takes that long until {{ beyond.seats }}
# seats are full. From then on the excess requests join the queue, and the wait grows with every second, to
# {{ last_ms:.0f }} ms in the last one. There is no end to it: the longer the measurement, the longer the wait that it
# finds. The median of the run, {{ beyond.runs[3].median_ttft_ms:.0f }} ms, looks harmless, because the first seconds
# dominate it. The goodput is honest: only {{ within:.0% }} of the requests met their limits, a first token within
# {{ beyond.slo_ms.ttft:.0f }} ms and {{ beyond.slo_ms.tpot:.0f }} ms for each further one.
#
# Just below the capacity the wait stays about the same from second to second. That is the difference between a load of
# {{ beyond.runs[1].share_of_capacity:.0% }} and one of {{ beyond.runs[2].share_of_capacity:.0% }}, and the median of a
# short run hides it.
#
# ## The window
#
# Start a server yourself with `labkit serve`, and open the address that it prints. The page there shows the engine at
# work.

# %%
pictures.window()

# %% [markdown]
# Things to try:
#
# - Ask something. Under *Seats* the prompt is computed in one step; then the sequence decodes, one token per step, and
#   gets a new page after every sixteenth (lesson 39).
# - Run the demo. Pages in a bold frame are held by several sequences, whose prompts have the same beginning (lesson
#   41).
# - Press *Pause*, then *Step once*, and say before each step which seats get a token, and which become free (lesson
#   38).
# - Close the tab in the middle of an answer and open it again: its pages are free.
#
# ## What I learned
#
# - Measure throughput on a server that is saturated, and latency on one that is not. A short load does not saturate it.
# - A schedule does not make a step faster. It decides which requests wait.
# - Waiting is not proportional to the load. The last fifth of the capacity is the expensive one.
# - A slow reader, a client that disconnects and one request too many are normal cases.
#
# This is the last lesson about inference; an appendix (lessons 45 to 47) and lessons about training (48 to 51) follow.
# The course began with `c[i] = a[i] + b[i]`, and behind the window it is still that: threads that know their index, a
# guard at the end, memory that is read in whole lines. Everything else keeps them busy.
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
# arrivals_s = serve.runs[-1].num_prompts / serve.runs[-1].request_rate
# beyond = series_of('serve_overload', 'NVIDIA H100 80GB HBM3')
# waits = beyond.runs[3].first_ms_by_second
# full_after = len([ms for ms in waits if ms < 100])
# last_ms = waits[7]
# within = beyond.runs[3].request_goodput / beyond.runs[3].request_throughput
# held_up_ms = sum(run.client_lag_ms.max for run in serve.runs) / 5
