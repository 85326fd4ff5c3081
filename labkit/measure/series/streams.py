"""Copies that run beside kernels. The series of lesson 13.

    in_chunks(...)      an array copied to the device, computed on and copied back, in parts, on several streams
    schedule(...)       when each part is copied and computed if copies there, kernels and copies back do not wait for
                        each other: a calculation, no measurement
    streams()           the whole, in 1 to 64 chunks, with pinned and with pageable memory, and its three parts alone
    streams_trace()     the same in four chunks as PyTorch's profiler (CUPTI) sees it, on one stream and on three

Units   milliseconds; n elements of float32, 4 n bytes there and 4 n back, 2 n * rounds flop
"""

from __future__ import annotations

import numpy as np
from numba import float32

from labkit import cuda, device, measure
from labkit.measure import time_host, time_kernel
from labkit.measure.series.beside_torch import profiler_events

BLOCK = 256
ENGINES = ("copy to the device", "kernel", "copy to the host")
CHUNKS = (1, 2, 4, 8, 16, 32, 64)


@cuda.jit
def settle_kernel(x, out, rounds):
    """out = x (2 - 2^-rounds), the slow way: as many multiplications and additions as are asked for."""
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(rounds):
            value = float32(0.5) * value + x[i]
        out[i] = value


def settled(x: np.ndarray, rounds: int) -> np.ndarray:
    """What settle_kernel computes, in float64."""
    return x.astype(np.float64) * (2.0 - 0.5**rounds)


def in_chunks(x, out, on_device, chunks, rounds, streams):
    """x and out: arrays of the host; on_device: two arrays of the device of their size. Returns before the work is
    done."""
    size = -(-x.size // chunks)
    for chunk in range(chunks):
        part, stream = slice(chunk * size, (chunk + 1) * size), streams[chunk % len(streams)]
        d_in, d_out = (array[part] for array in on_device)
        d_in.copy_to_device(x[part], stream)
        settle_kernel[-(-d_in.size // BLOCK), BLOCK, stream](d_in, d_out, rounds)
        d_out.copy_to_host(out[part], stream)


def schedule(parts: dict[str, float], chunks: int, streams: int = 3) -> list[dict]:
    """Events {"engine", "stream", "start_ms", "ms"} of in_chunks, if each of the three ENGINES does one thing at a time
    in the order in which they were asked, and a stream's work is in order.

    parts: milliseconds that each engine needs for the whole.
    """
    if chunks < 1 or streams < 1:
        raise ValueError(f"chunks is {chunks} and streams is {streams}; both must be 1 or more")
    free, ended, events = dict.fromkeys(ENGINES, 0.0), [0.0] * streams, []
    for chunk in range(chunks):
        stream = chunk % streams
        for engine in ENGINES:
            start, ms = max(free[engine], ended[stream]), parts[engine] / chunks
            free[engine] = ended[stream] = start + ms
            events.append({"engine": engine, "stream": stream, "start_ms": start, "ms": ms})
    return events


def makespan(parts: dict[str, float], chunks: int, streams: int = 3) -> float:
    """Milliseconds from the first event of schedule() to the end of the last."""
    return max(event["start_ms"] + event["ms"] for event in schedule(parts, chunks, streams))


def _arrays(n: int):
    """x and out in pinned memory, and two arrays of the device."""
    x, out = cuda.pinned_array(n, np.float32), cuda.pinned_array(n, np.float32)
    x[:] = np.linspace(-1, 1, n, dtype=np.float32)
    return x, out, tuple(cuda.device_array(n, np.float32) for _ in range(2))


def _balanced_rounds(n: int, on_device, copy_ms: float) -> int:
    """So many rounds that the kernel takes about as long as a copy."""
    tried = 256
    ms = time_kernel(lambda: settle_kernel[-(-n // BLOCK), BLOCK](*on_device, tried), budget_s=0.05).p50
    return max(1, round(tried * copy_ms / ms))


def streams(n: int | None = None, rounds: int | None = None, chunks=CHUNKS, budget_s: float = 0.3) -> dict:
    """{"n", "rounds", "parts": {engine: ms}, "runs": [{"chunks", "streams", "memory", "ms": {p5, p50, p95}}]}."""
    n = n or device.pick(gpu=2**26, cpu=2**18)
    x, out, on_device = _arrays(n)
    pageable = np.array(x), np.empty_like(out)
    engine_ms = {}
    for engine, call in zip(ENGINES, (lambda: on_device[0].copy_to_device(x), None,
                                      lambda: on_device[1].copy_to_host(out)), strict=True):
        if call is not None:
            engine_ms[engine] = time_host(call, after=cuda.synchronize, budget_s=budget_s).p50
    if rounds is None:
        rounds = device.pick(gpu=0, cpu=4) or _balanced_rounds(n, on_device, engine_ms["copy to the device"])
    engine_ms["kernel"] = time_kernel(lambda: settle_kernel[-(-n // BLOCK), BLOCK](*on_device, rounds), flush=False).p50
    runs = []
    for memory, arrays in (("pinned", (x, out)), ("pageable", pageable)):
        for count in chunks if memory == "pinned" else chunks[:4]:
            for lanes in (1, 3) if count > 1 else (1,):
                cuda_streams = [cuda.stream() for _ in range(lanes)]

                def work(arrays=arrays, count=count, cuda_streams=cuda_streams):
                    in_chunks(*arrays, on_device, count, rounds, cuda_streams)

                arrays[1][:] = np.nan
                work()
                cuda.synchronize()
                np.testing.assert_allclose(arrays[1], settled(x, rounds), rtol=1e-5)
                timing = time_host(work, after=cuda.synchronize, budget_s=budget_s)
                runs.append({"chunks": count, "streams": lanes, "memory": memory,
                             "ms": timing.percentiles()})
    return measure.stamped({"n": n, "rounds": rounds, "parts": {engine: engine_ms[engine] for engine in ENGINES},
                            "runs": runs})


# --- The GPU's own time line -----------------------------------------------------------------------------------------


def streams_trace(n: int | None = None, chunks: int = 4) -> dict | None:
    """in_chunks as PyTorch's profiler sees it: {"panels": [{"streams", "events"}]}, events as schedule() gives them.
    None without a GPU or PyTorch."""
    if measure.torch_on_gpu() is None:
        return None
    n = n or 2**26
    x, out, on_device = _arrays(n)
    copy_ms = time_host(lambda: on_device[0].copy_to_device(x), after=cuda.synchronize, budget_s=0.1).p50
    rounds, panels = _balanced_rounds(n, on_device, copy_ms), []
    for lanes in (1, 3):
        cuda_streams = [cuda.stream() for _ in range(lanes)]

        def twice(cuda_streams=cuda_streams):
            for _ in range(2):  # a profiler's own first time is slow
                cuda.synchronize()
                in_chunks(x, out, on_device, chunks, rounds, cuda_streams)

        panels.append({"streams": lanes, "events": engine_events(profiler_events(twice))[-3 * chunks:]})
        start_ms = min(event["start_ms"] for event in panels[-1]["events"])
        for event in panels[-1]["events"]:
            event["start_ms"] -= start_ms
    return measure.stamped({"n": n, "rounds": rounds, "chunks": chunks, "panels": panels})


def engine_events(trace_events: list[dict]) -> list[dict]:
    """Copies and kernels of a trace in Chrome's format, in the order in which they began; streams are numbered as they
    come."""
    stream_ids: dict[int, int] = {}
    events = []
    for event in sorted((each for each in trace_events if each.get("ph") == "X"), key=lambda each: each["ts"]):
        kind, name = event.get("cat"), event.get("name", "")
        engine = ("kernel" if kind == "kernel" else None if kind != "gpu_memcpy" else
                  ENGINES[0] if "HtoD" in name else ENGINES[2] if "DtoH" in name else None)
        if engine is None:
            continue
        stream = event.get("args", {}).get("stream", event.get("tid", 0))
        events.append({"engine": engine, "stream": stream_ids.setdefault(stream, len(stream_ids)),
                       "start_ms": event["ts"] / 1000, "ms": event["dur"] / 1000})
    return events
