"""A decoding step of a Llama in one persistent kernel beside the engine's graph of launches.

    llama_one_kernel()      1 to 8 sequences with 1,024 tokens each: both graphs, agreement, the phases' times

Prediction for one sequence on an H200, Llama 3.2 1B in bfloat16: 2.5 GB of weights and keys and values at 4.2 TB/s take
0.60 ms, of which a layer's 29 us and the head's 126. Memory is busy while the ring takes weights: between down and
gate_up those are its 197 KB of each SM, and the 160 that qkv and o use, 11 us in all. In that time lie four joins (3.5,
2, 1.5 and 2.5 us), qkv (2.5), attention (4: the queries' way from L2, a page, and the chain of fence, count and merge)
and o (2), and gate_up's norm (1): 19 us, 8 of them exposed. Between gate_up and down the ring covers the join. So a
layer takes 37 us and, with the first loads, the greedy token and the launches for sampling (0.03 ms), the step 0.75 ms,
where the graph of launches takes 0.92.

Measured on 30 November 2026: 0.84 ms, and 1.00 with eight sequences, where the launches take 0.92 and 1.13. A join
takes 0.6 us where no copies are in flight (after attention), and up to 3 where they are. Tried without success: to copy
or prefetch more than two stages ahead (a prefetch to L2 takes as much of the SMs' bandwidth as the copy itself), and to
wait for the words themselves instead of a counter.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence

import numpy as np

from labkit import device, measure
from labkit.engine.model_runner import ModelRunner
from labkit.kernels.attention.pages import pages_for
from labkit.kernels.persistent.decoder import ROWS
from labkit.measure import roofline, time_graph
from labkit.measure.series.llama import (
    TINY,
    TOKENS,
    RandomTensors,
    _replayed_ms,
    cache_bytes,
    config_here,
    decoding,
    random_cache,
    random_model,
    roundings_from_float64,
    say,
    weight_bytes,
)
from labkit.models.llama import Cache, Llama
from labkit.models.minilm_reference import cosines
from labkit.models.one_kernel import OneKernel
from labkit.models.step import Inputs, Piece, Step

SEQUENCES = (1, 2, 4, 8)
PHASES = ("norm_qkv", "attention", "o", "norm_gate_up", "down")


def reference_error(dtype: str = "bfloat16", contexts: Sequence[int] = (40, 1, 17)) -> float:
    """The largest error of a logit of a tiny model, computed in one kernel, against NumPy in float64, as
    roundings_from_float64 gives it. Other paths to it round as often: a few units."""
    return roundings_from_float64(Llama(TINY, RandomTensors(TINY), dtype, one_kernel=True), contexts)


def phase_times(times: np.ndarray, layers: int, names: Sequence[str] = PHASES) -> dict:
    """Microseconds of the phases, called `names`, in all layers, of times (blocks, marks) in nanoseconds: the median of
    a block's work and of its wait at the join behind it, and the work of the slowest block; and the marks of the middle
    layer, in nanoseconds after the first mark of the launch."""
    count = len(names)
    of_layers = times[:, : 2 * count * layers + 1].astype(np.int64)
    work = (of_layers[:, 1::2] - of_layers[:, :-1:2]).reshape(-1, layers, count) / 1e3
    waits = (of_layers[:, 2::2] - of_layers[:, 1::2]).reshape(-1, layers, count) / 1e3
    begin = layers // 2 * 2 * count
    middle = of_layers[:, begin : begin + 2 * count + 1]
    rows = [{"phase": name, "work_us": float(np.median(work[..., n])), "wait_us": float(np.median(waits[..., n])),
             "slowest_us": float(np.median(work[..., n].max(axis=0)))} for n, name in enumerate(names)]
    return {"phases": rows, "head_us": float(np.median(times[:, -1] - times[:, -2]) / 1e3),
            "from_first_to_last_us": float((times.max() - times.min()) / 1e3),
            "middle_layer_ns": (middle - of_layers.min()).tolist()}


def timed_phases(model: Llama, step: Step, cache: Cache, logits) -> dict:
    """Run a step in a kernel that records its phases; the third run is taken."""
    timed = OneKernel(model, timed=True)
    for _ in range(3):
        timed.forward(step, cache, logits)
    times = timed.buffers.times.copy_to_host().reshape(timed.buffers.blocks, -1)
    return {"sequences": step.shape.sequences, **phase_times(times, model.config.num_hidden_layers)}


def llama_one_kernel(sequences: Sequence[int] | None = None, tokens: int | None = None) -> dict | None:
    """Milliseconds of a step in both forms, each in the engine's graph, and of the kernel alone; how far their logits
    are apart; and the phases. None on a GPU that has no bulk copies."""
    config, model = config_here(), random_model()
    sequences = list(sequences or device.pick(gpu=SEQUENCES, cpu=(1,)))
    tokens = tokens or device.pick(gpu=TOKENS, cpu=20)
    if max(sequences) > ROWS:
        raise ValueError(f"sequences are {sequences}; at most {ROWS} are allowed")
    one = copy.copy(model)
    try:
        one.one_kernel = OneKernel(model)
    except ValueError as error:
        say(f"llama_one_kernel: {error}")
        return None
    error = reference_error()
    say(f"llama_one_kernel: a tiny model is {error:.1f} roundings from NumPy in float64")
    pages = max(sequences) * (pages_for(tokens) + 1)
    pool, cache, rows, timelines = random_cache(config, pages), Cache(config, pages, model.dtype), [], []
    for layer in (*cache.keys, *cache.values):
        layer.copy_to_device(pool)
    for count in sequences:
        row, found = {"sequences": count}, {}
        for name, each in (("launches", model), ("one_kernel", one)):
            runner = ModelRunner(each, num_pages=pages, max_num_seqs=count, max_num_batched_tokens=count,
                                 max_model_len=tokens + 1)
            runner.fill_cache(pool)
            step = decoding(runner, count, tokens)
            sampled = [sampled.token for sampled in runner.launch(step).tokens()]
            graph, logits = runner.captured(count)
            row[f"{name}_ms"], row[f"{name}_nodes"] = _replayed_ms(graph), graph.nodes
            found[name] = logits.copy_to_host()[:count], sampled
        chunks = [chunk.sequence for chunk in step.chunks]
        inputs = Inputs(count, count, pages_for(tokens + 1)).step(
            [Piece(each.tokens[-1:], tokens - 1, each.pages) for each in chunks])
        alone = time_graph(functools.partial(one.one_kernel.forward, inputs, cache, logits), launches=4)
        (ours, ours_tokens), (theirs, their_tokens) = found["one_kernel"], found["launches"]
        nbytes = weight_bytes(config) + cache_bytes(config, count * tokens)
        greedy = one.one_kernel.buffers.tokens.copy_to_host()[:count]
        row |= {"kernel_ms": alone and alone.p50, "bytes": nbytes, "cosine": float(cosines(ours, theirs).min()),
                "largest_difference": float(np.abs(ours - theirs).max() / np.abs(theirs).max()),
                "same_tokens": float(np.mean(np.array(ours_tokens) == their_tokens)),
                "kernels_tokens": bool((greedy == ours.argmax(axis=1)).all())}
        if device.on_gpu():
            row["bound_ms"] = nbytes / roofline.limits().bandwidth_gbs / 1e6
        if row["cosine"] < 0.999 or not row["kernels_tokens"] or not math.isfinite(row["largest_difference"]):
            raise AssertionError(f"llama_one_kernel: {count} sequences: the two forms differ: {row}")
        if count in (1, max(sequences)):
            timelines.append(timed_phases(model, inputs, cache, logits))
        say(f"llama_one_kernel: {count} sequences, {row['one_kernel_ms']['p50']:.3f} ms in a graph of "
            f"{row['one_kernel_nodes']}, {row['launches_ms']['p50']:.3f} in one of {row['launches_nodes']}; the kernel "
            f"alone {row['kernel_ms'] or 0:.3f}, its bytes {row.get('bound_ms', 0):.3f}; cosine {row['cosine']:.6f}, "
            f"same tokens {row['same_tokens']:.2f}")
        rows.append(row)
    for timeline in timelines:
        say(f"llama_one_kernel: {timeline['sequences']} sequences: " + "; ".join(
            f"{one['phase']} {one['work_us']:.1f} us, slowest {one['slowest_us']:.1f}, then waits {one['wait_us']:.1f}"
            for one in timeline["phases"]) + f"; head {timeline['head_us']:.1f} us; all "
            f"{timeline['from_first_to_last_us']:.0f} us")
    return measure.stamped({"weights": "random", "shape": config.size, "tokens": tokens, "rows": rows,
                            "roundings_from_float64": error, "timelines": timelines})
