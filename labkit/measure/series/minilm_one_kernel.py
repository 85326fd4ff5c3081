"""The embedding of one sentence by MiniLM in one persistent kernel, beside the graph of launches.

    minilm_one_kernel()     16 and 128 tokens: both forms in a graph, called with copies, how exact, the phases' times

Prediction for an H200: a join costs 0.8 us, and a phase an L2 latency or two (0.4 us each) and some barriers. With 16
tokens a layer has four joins and takes 8 us; with 128 it has five and takes 12 us, the tensor cores being busy for 1.5:
55 and 80 us with the launch, the embedding and the mean, where the launches take 158 and 172.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np

from labkit import cuda, device, measure
from labkit.kernels.persistent.encoder import MOST_TOKENS, ROWS
from labkit.measure import time_graph, time_host
from labkit.measure.series.beside_torch import still_compiling, why_not
from labkit.measure.series.llama import say
from labkit.measure.series.minilm import Using, _model, random_tensors, ready, sentences_of
from labkit.measure.series.torch_bert import TorchBert, called_us, torch_bert
from labkit.measure.timing import time_torch_graph
from labkit.models.minilm import HALF, Config, MiniLM
from labkit.models.minilm_one_kernel import OneKernel
from labkit.models.minilm_reference import cosines, embeddings, weights_of

TINY = Config(vocab_size=61, max_position_embeddings=32, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
              intermediate_size=128)
TOKENS = (16, 128)
ROUNDS = 3  # in each, one form after the other
COMPILING_S = 30.0  # when PyTorch stops to begin to compile
PHASES = ("qkv", "attention", "out", "inner", "down")
PHASES_OF_ONE_TILE = ("qkv_attention", "out", "inner", "down")


def timing_us(forward: Callable) -> dict:
    """Percentiles of a pass in a graph, in microseconds; on the CPU device, called."""
    if device.on_gpu():
        timing = time_graph(forward, launches=20)
    else:
        timing = time_host(forward, after=cuda.synchronize, budget_s=0.02, min_runs=1, max_runs=1)
    if timing is None:
        raise RuntimeError("the pass could not be captured in a graph")
    return {name: 1000 * value for name, value in asdict(timing).items() if name in ("p5", "p50", "p95")}


def in_turns(forms: dict[str, Callable]) -> dict[str, dict]:
    """The median round of each form."""
    found: dict[str, list] = {name: [] for name in forms}
    for _ in range(device.pick(gpu=ROUNDS, cpu=1)):
        for name, forward in forms.items():
            found[name].append(timing_us(forward))
    return {name: sorted(rounds, key=lambda one: one["p50"])[len(rounds) // 2] for name, rounds in found.items()}


def phase_times(times: np.ndarray, layers: int, phases: Sequence[str]) -> list[dict]:
    """Microseconds of each phase, of times (blocks, marks) in nanoseconds: the median of a block's work, the slowest
    block's, and the median and the least wait at the join behind it. Blocks that had nothing to do recorded nothing."""
    count = len(phases)
    times = times[times[:, 0] > 0, : 2 * count * layers + 1].astype(np.int64)
    work = (times[:, 1::2] - times[:, :-1:2]).reshape(-1, layers, count) / 1e3
    waits = (times[:, 2::2] - times[:, 1::2]).reshape(-1, layers, count) / 1e3
    return [{"phase": name, "work_us": float(np.median(work[..., n])),
             "slowest_us": float(np.median(work[..., n].max(axis=0))), "wait_us": float(np.median(waits[..., n])),
             "least_wait_us": float(np.median(waits[..., n].min(axis=0)))} for n, name in enumerate(phases)]


def timed_phases(model: MiniLM, ids) -> list[dict]:
    """Run a sentence in a kernel that records its phases; the third run is taken."""
    timed = OneKernel(model, timed=True)
    timed.put(ids)
    for _ in range(device.pick(gpu=3, cpu=1)):
        timed.forward()
    times = timed.buffers.times.copy_to_host().reshape(timed.buffers.blocks, -1)
    has_head = len(ids) <= ROWS and timed.buffers.blocks >= model.config.num_attention_heads
    return phase_times(times, model.config.num_hidden_layers, PHASES_OF_ONE_TILE if has_head else PHASES)


def torch_compiled(bert: TorchBert, ids, compile_until: float) -> dict:
    """PyTorch's model compiled, in a CUDA graph: `us`, or `why_not`."""
    inputs = bert.inputs([ids], len(ids))
    try:
        still_compiling(compile_until)
        bert.torch._dynamo.reset()
        call = bert.torch.compile(bert.forward, dynamic=False)
        call(*inputs)
        timing = time_torch_graph(lambda: call(*inputs), launches=4)
    except Exception as error:  # what cannot be compiled here must not cost the other rows
        return {"us": None, "why_not": why_not(error)}
    return {"us": None if timing is None else 1000 * timing.p50}


def minilm_one_kernel(tokens: Sequence[int] | None = None, using: Using | None = None) -> dict | None:
    """Microseconds of a sentence in both forms, in graphs and from Python with its copies; cosines with NumPy in
    float64; the phases; PyTorch compiled. None on a GPU that has no bulk copies."""
    tokens = list(tokens or device.pick(gpu=TOKENS, cpu=(3,)))
    if max(tokens) > MOST_TOKENS:
        raise ValueError(f"tokens are {tokens}; at most {MOST_TOKENS} are allowed")
    model, weights = using or device.pick(gpu=_model, cpu=_tiny)()
    model = model.with_kernels(HALF)
    try:
        one = OneKernel(model)
    except ValueError as error:
        say(f"minilm_one_kernel: {error}")
        return None
    exact = weights_of(model.tensors, model.config, np.float16)
    bert, compile_until, rows = torch_bert(model), time.monotonic() + COMPILING_S, []
    for count in tokens:
        (ids,) = sentences_of([count], model.config.vocab_size)
        forward, shape = ready(model, [ids], "packed")
        one.put(ids)
        found = in_turns({"launches": forward, "one_kernel": functools.partial(one.forward, True)})
        truth = embeddings(model.config, exact, [ids])
        both = {"launches": forward.batch.pooled.copy_to_host()[:1],
                "one_kernel": one.buffers.pooled.copy_to_host()[None]}
        row = {"tokens": count, "rows": shape.rows, "us": found,
               "cosine": {name: float(cosines(ours, truth).min()) for name, ours in both.items()},
               "copies_too_us": {"launches": called_us(lambda ids=ids: model.embed([ids])),
                                 "one_kernel": called_us(lambda ids=ids: one.embed(ids))},
               "phases": timed_phases(model, ids), "torch": None}
        if not min(row["cosine"].values()) > 0.999:
            raise AssertionError(f"minilm_one_kernel: {count} tokens: an embedding is wrong: {row}")
        if bert is not None:
            row["torch"] = torch_compiled(bert, ids, compile_until)
        say(f"minilm_one_kernel: {count} tokens, {found['one_kernel']['p50']:.1f} us, {found['launches']['p50']:.1f} "
            f"by launches, PyTorch {row['torch']}; cosines {row['cosine']}; " + "; ".join(
                f"{each['phase']} {each['work_us']:.2f} us, slowest {each['slowest_us']:.2f}, then waits "
                f"{each['wait_us']:.2f}" for each in row["phases"]))
        rows.append(row)
    return measure.stamped({"weights": weights, "blocks": one.buffers.blocks, "rows": rows})


def _tiny() -> Using:
    return MiniLM(TINY, random_tensors(TINY), np.float16, HALF), "random, tiny"
