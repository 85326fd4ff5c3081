"""What a program pays besides its kernels: starting up, copying, launching. The series of lesson 11.

    cold_start()       a small product in a fresh process, three times over, as ranges
    launch_overhead()  one launch of a tiny kernel
    copies()           copies of one large array
    copy_sizes()       copies of 4 bytes to 512 MB
    launch_sizes()     one addition from Python, from PyTorch, and inside a graph, over sizes
    fair_baseline()    three small steps: kernels of their own, fused, PyTorch's, compiled, each also in a graph
    trace()            the small product on the GPU's own time line, as PyTorch's profiler (CUPTI) records it
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np

from labkit import cuda, device, measure
from labkit._common import paths
from labkit.device import launches
from labkit.kernels.agree import to_device
from labkit.measure import time_graph, time_host, time_launch, time_torch_graph
from labkit.measure.series.beside_torch import profiler_events

SIDE = 256  # of the matrices in the small product


def product_trip(ranges, n: int = SIDE) -> np.ndarray:
    """A small matrix product from end to end. `ranges(name)` marks its parts: a Ranges, or anything of its kind."""
    from labkit.kernels.matmul.float32 import matmul_naive

    a, b = (np.full((n, n), value, np.float32) for value in (2, 3))
    with ranges("matrix product"):
        with ranges("allocate"):
            d_a, d_b, d_c = (cuda.device_array((n, n), np.float32) for _ in range(3))
        with ranges("copy to the device"):
            d_a.copy_to_device(a)
            d_b.copy_to_device(b)
        with ranges("kernel"):
            matmul_naive(d_a, d_b, d_c)
        with ranges("copy to the host"):
            c = d_c.copy_to_host()
        with ranges("free"):
            del d_a, d_b, d_c
    return c


FRESH = """\
import json, time
begin = time.perf_counter()
from labkit.measure.series.overheads import product_trip
from labkit.measure.nvtx import Ranges
imported = time.perf_counter()
from labkit import device
device.kind()
found = time.perf_counter()
trips = []
for _ in range(3):
    ranges = Ranges()
    product_trip(ranges)
    trips.append(ranges.to_json())
print(json.dumps({"import_ms": 1000 * (imported - begin), "find_ms": 1000 * (found - imported), "trips": trips}))
"""


def cold_start() -> dict:
    """The small product three times in a fresh process: {"import_ms", "find_ms", "trips": [ranges, ...]}."""
    root = paths.REPOSITORY
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, cwd=root, timeout=300)
    if done.returncode:
        raise RuntimeError(f"the fresh process failed: {done.stderr.strip()[-500:]}")
    return measure.stamped({**json.loads(done.stdout.splitlines()[-1]), "n": SIDE})


def launch_overhead(n: int = 1024) -> dict:
    """What one launch of a tiny kernel costs: through the launcher, bound once, in a graph; and torch.add."""
    from labkit.kernels.elementwise import vector_add_per_thread, vector_add_per_thread_kernel

    a, b, out = (cuda.to_device(np.ones(n, np.float32)) for _ in range(3))
    bound = vector_add_per_thread_kernel[-(-n // 256), 256]
    series = {
        "n": n,
        "launcher_us": 1000 * time_launch(lambda: vector_add_per_thread(a, b, out)).p50,
        "bound_us": 1000 * time_launch(lambda: bound(a, b, out)).p50,
        "graph_us": None,
        "torch_us": None,
    }
    graph = time_graph(lambda stream: vector_add_per_thread(a, b, out, stream=stream), launches=100)
    if graph is not None:
        series["graph_us"] = 1000 * graph.p50
    torch = measure.torch_on_gpu()
    if torch is not None:
        x, y, z = (torch.ones(n, device="cuda") for _ in range(3))

        def add():
            torch.add(x, y, out=z)

        add()
        torch.cuda.synchronize()
        times = []
        for _ in range(10):
            begin = time.perf_counter()
            for _ in range(200):
                add()
            torch.cuda.synchronize()
            times.append(1e6 * (time.perf_counter() - begin) / 200)
        series["torch_us"] = float(np.median(times))
    return measure.stamped(series)


def copies() -> dict:
    """Copies between host and device, pageable and pinned."""
    return measure.stamped(measure.time_copy(device.pick(gpu=2**28, cpu=2**24)))


def copy_sizes(sizes=None, budget_s: float = 0.05) -> dict:
    """Microseconds for a copy of each size, by the host's clock: {"bytes", "h2d_pageable_us", "h2d_pinned_us", ...}."""
    sizes = sizes or device.pick(gpu=[4 * 8**k for k in range(10)], cpu=[4 * 8**k for k in range(8)])
    series = {"bytes": list(sizes)} | {f"{way}_{kind}_us": [] for kind in ("pageable", "pinned")
                                       for way in ("h2d", "d2h")}
    for nbytes in measure.steps("copies over sizes", list(sizes)):
        count = nbytes // 4
        on_device = cuda.device_array(count, np.float32)
        hosts = {"pageable": np.ones(count, np.float32), "pinned": cuda.pinned_array(count, np.float32)}
        for kind, host in hosts.items():
            host[:] = 1.0
            for way, copy in (("h2d", on_device.copy_to_device), ("d2h", on_device.copy_to_host)):
                timing = time_host(lambda copy=copy, host=host: copy(host), after=cuda.synchronize, budget_s=budget_s,
                                   max_runs=50)
                series[f"{way}_{kind}_us"].append(1000 * timing.p50)
    return measure.stamped(series)


def launch_sizes(exponents=None, times: int = 50) -> dict:
    """Microseconds for one vector addition among many: launched from Python, by PyTorch, in a graph, over sizes."""
    from labkit.kernels.elementwise import vector_add_four_loads

    exponents = exponents or device.pick(gpu=range(8, 27, 2), cpu=range(8, 17, 2))
    torch = measure.torch_on_gpu()
    series = {"n": [], "python_us": [], "graph_us": [], "torch_us": [], "torch_graph_us": []}
    for n in measure.steps("launches over sizes", [2**e for e in exponents]):
        a, b, out = (cuda.to_device(np.ones(n, np.float32)) for _ in range(3))

        def run(stream=0, arrays=(a, b, out)):
            vector_add_four_loads(*arrays, stream=stream)

        series["n"].append(n)
        series["python_us"].append(1000 * time_launch(run, launches=times).p50)
        graph = time_graph(run, launches=times)
        series["graph_us"].append(None if graph is None else 1000 * graph.p50)
        if torch is not None:
            x, y, z = measure.hand_over("torch", a, b, out)

            def add(torch=torch, x=x, y=y, z=z):
                torch.add(x, y, out=z)

            series["torch_us"].append(1000 * time_launch(add, launches=times).p50)
            graph = time_torch_graph(add, launches=times)
            series["torch_graph_us"].append(None if graph is None else 1000 * graph.p50)
    return measure.stamped({key: values for key, values in series.items() if values and None not in values})


def fair_baseline(times: int = 100) -> dict:
    """Bias, GELU, residual at a small size: {"size", "rows": [{"name", "kernels", "call_us", "graph_us"}]}."""
    from labkit.kernels.ops.bias_gelu_add import BIAS_GELU_ADD as op

    size = op.work.timed
    arrays = to_device(op.inputs(np.random.default_rng(0), **size))
    out = cuda.device_array(op.shape(**size), op.dtype)
    rows = []

    def row(name, kernels, call, graph):
        rows.append({"name": name, "kernels": kernels, "call_us": 1000 * time_launch(call, launches=times).p50,
                     "graph_us": None if graph is None else 1000 * graph.p50})

    for launcher in op.rungs:
        def run(stream=0, launcher=launcher):
            launcher(*arrays, out, stream=stream)

        row(launcher.__name__.removeprefix("bias_gelu_add_").replace("_", " "), len(launches.kernels_of(launcher)), run,
            time_graph(run, launches=times))
    for baseline in measure.baselines_of(op):
        library_arrays = measure.hand_over(baseline.library, *arrays, out)
        module = measure.import_library(baseline.library)

        def call(baseline=baseline, library_arrays=library_arrays, module=module):
            baseline.call(module, *library_arrays)

        try:
            call()
            row(baseline.title, None, call, time_torch_graph(call, launches=times))
        except Exception as error:  # torch.compile needs a compiler of its own
            print(f"{baseline.title} was not measured: {type(error).__name__}: {error}", file=sys.stderr)
    return measure.stamped({"size": size, "rows": rows})


# --- The GPU's own time line ---------------------------------------------------------------------------------------


def trace() -> dict | None:
    """The second of two small products as PyTorch's profiler sees it; None without a GPU or PyTorch.

    {"events": [{"row": "ranges 1" | "ranges 2" | "driver" | "GPU", "name", "start_us", "us"}]}, from the outer range's
    start on.
    """
    if measure.torch_on_gpu() is None:
        return None
    from torch.profiler import record_function

    def twice():
        product_trip(record_function)  # a profiler's own first time is slow
        cuda.synchronize()
        product_trip(record_function)

    product_trip(record_function)
    cuda.synchronize()
    return measure.stamped({"events": events_of(profiler_events(twice))})


ROWS = {"user_annotation": "ranges", "cuda_driver": "driver", "cuda_runtime": "driver", "kernel": "GPU",
        "gpu_memcpy": "GPU", "gpu_memset": "GPU"}


def events_of(trace_events: list[dict]) -> list[dict]:
    """The last product in a trace in Chrome's format, with its ranges, the driver's calls and the GPU's work."""
    known = [event for event in trace_events if event.get("ph") == "X" and event.get("cat") in ROWS]
    outer = max((event for event in known if event["name"] == "matrix product"), key=lambda event: event["ts"],
                default=None)
    if outer is None:
        return []
    begin, end = outer["ts"], outer["ts"] + outer["dur"]
    events = []
    for event in sorted(known, key=lambda event: event["ts"]):
        if not begin <= event["ts"] <= end:
            continue
        row = ROWS[event["cat"]]
        if row == "ranges":
            row = "ranges 1" if event is outer else "ranges 2"
        events.append({"row": row, "name": event["name"][:80], "start_us": event["ts"] - begin, "us": event["dur"]})
    return events
