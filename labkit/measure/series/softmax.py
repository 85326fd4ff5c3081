"""What lessons 15 and 20 quote beside the ladders: latencies, softmax on one core, masked softmax over sizes.

labkit.measure.bench takes these on a GPU and records them; the lessons take them at small sizes wherever they run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numba import njit

from labkit import cuda, device, measure
from labkit.kernels.pointer_chase import SHARED, chase, random_cycle
from labkit.kernels.softmax.masked import masked_softmax_single_read, masks, unfused_by_library
from labkit.measure import Timing

# (B, S): first the two sizes of the article, then longer rows, then more of them
SIZES = ((1, 512), (1, 1024), (1, 2048), (1, 4096), (1, 8192), (4, 1024), (16, 1024), (64, 1024), (64, 512))


def latencies(levels=None) -> dict:
    """Measure the latency in ns of one load from shared memory, the L1 cache, the L2 cache and memory.

    places: {name: (bytes of the chain, steps)}. A cache is warm because the chain fits into it and was followed before.
    """
    levels = levels or {"shared memory": (4 * SHARED, 32_768), "L1 cache": (4 * SHARED, 32_768),
                        "L2 cache": (2**23, 65_536), "memory": (2**29, 8192)}
    result = {}
    out = cuda.to_device(np.zeros(1, np.uint32))
    for name, (nbytes, steps) in levels.items():
        chain = cuda.to_device(random_cycle(nbytes // 4))
        time_ms = functools.partial(_chase_ms, chain, out, name == "shared memory", name == "memory")
        result[name] = {"bytes": nbytes, "steps": steps, "ns": ns_a_step(time_ms, steps)}
    return result


def _chase_ms(chain, out, shared: bool, flush: bool, steps: int) -> float:
    follow = functools.partial(chase, chain, steps, out, shared=shared)
    return measure.time_kernel(follow, budget_s=0.2, min_runs=3, max_runs=10, flush=flush).p50


def ns_a_step(time_ms: Callable[[int], float], steps: int, tries: int = 10) -> float:
    """Nanoseconds of a step: the time of 2n steps less that of n, over n, so that the work before and after the loop
    cancels. On a busy machine the longer loop can take less time than the shorter; both are then timed again. Raise
    RuntimeError if that happens `tries` times."""
    for _ in range(tries):
        once, twice = time_ms(steps), time_ms(2 * steps)
        if twice > once:
            return 1e6 * (twice - once) / steps
    raise RuntimeError(f"{tries} times, {2 * steps:,} steps took no longer than {steps:,}: is the machine busy?")


def memory_latency() -> dict | None:
    """Nanoseconds for a load from each memory of a GPU; None on the CPU device, which has a single memory."""
    return measure.stamped({"places": latencies()}) if device.on_gpu() else None


@njit
def softmax_on_one_core(x, out):
    """What every GPU kernel is compared with: three loops over each row, compiled for the CPU."""
    for row in range(x.shape[0]):
        largest = x[row, 0]
        for col in range(1, x.shape[1]):
            largest = max(largest, x[row, col])
        total = np.float32(0.0)
        for col in range(x.shape[1]):
            out[row, col] = math.exp(x[row, col] - largest)
            total += out[row, col]
        for col in range(x.shape[1]):
            out[row, col] /= total


def softmax_cpu(rows: int | None = None, cols: int | None = None) -> dict:
    """The three loops on one core of this machine's CPU, in ms."""
    rows = rows or device.pick(gpu=8192, cpu=256)
    cols = cols or device.pick(gpu=8192, cpu=1024)
    x = 8 * np.random.default_rng(0).random((rows, cols), dtype=np.float32)
    out = np.empty_like(x)
    timing = measure.time_host(lambda: softmax_on_one_core(x, out), budget_s=1.0, min_runs=3, max_runs=10)
    return {**measure.stamped({"rows": rows, "cols": cols, "ms": timing.p50}), "where": "one core of the host"}


def masked_softmax_sizes(sizes=None, runs: int = 100, warm_up: int = 5) -> dict:
    """The article's microbenchmark and beyond: unfused by a library (PyTorch on a GPU, else NumPy) and our single read.

    For each size and mask, in ms: `unfused`, `fused` (called from Python, one pair of events for each call) and
    `unfused_graph`, `fused_graph` (in a CUDA graph; None without a GPU), each with p5, p50, p95.
    """
    sizes = sizes or device.pick(gpu=SIZES, cpu=((1, 64), (1, 128)))
    rows = []
    for B, S in measure.steps("masked softmax over sizes", list(sizes)):
        host = 40 * np.random.default_rng(0).random((B, S, S), dtype=np.float32)
        scores, out = cuda.to_device(host), cuda.device_array(host.shape, np.float32)
        library = measure.import_library("torch") if device.on_gpu() else np
        arrays = [host, np.empty_like(host)]
        if device.on_gpu():
            arrays = [library.as_tensor(array, device="cuda") for array in (scores, out)]
        for causal in (False, True):
            unfused = functools.partial(unfused_by_library(causal), library, *masks(causal)(library, *arrays))

            def fused(stream=0, scores=scores, out=out, causal=causal):
                masked_softmax_single_read(scores, out, causal=causal, stream=stream)

            rows.append({"B": B, "S": S, "mask": "causal" if causal else "none",
                         "unfused": _called(unfused, runs, warm_up), "fused": _called(fused, runs, warm_up),
                         "unfused_graph": _percentiles(measure.time_torch_graph(unfused)),
                         "fused_graph": _percentiles(measure.time_graph(fused))})
    return measure.stamped({"rows": rows, "runs": runs, "warm_up": warm_up,
                            "unfused": "PyTorch" if device.on_gpu() else "NumPy"})


def _called(call, runs: int, warm_up: int) -> dict:
    """Calls one after another, waiting for each, as the article timed them."""
    for _ in range(warm_up):
        call()
    cuda.synchronize()
    if not device.on_gpu():
        return _percentiles(measure.time_host(call, after=cuda.synchronize, budget_s=0.05, max_runs=runs))
    times = []
    for _ in range(runs):
        start, stop = cuda.event(), cuda.event()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(cuda.event_elapsed_time(start, stop))
    return _percentiles(Timing.of(times, measure.where()))


def _percentiles(timing: Timing | None) -> dict | None:
    return None if timing is None else timing.percentiles()
