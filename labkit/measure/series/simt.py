"""How fast the CPU device is: against Numba's own simulator, and against the clock; how long long kernels compile.

    python -m labkit.measure.series.simt

Work    a tiled 64 x 64 x 64 product on both; 512 x 512 x 512 and a vector addition of 10 million elements here; the
        first call of a kernel with its compile (empty cache), and the same in a second process (from the cache).
        Compile time is left out of the first three. Kernels of several shapes, 100 to 800 lines long: the first call
        of each, in seconds of this process on the CPU. Times are of this machine's CPU and do not apply to a GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numba import float32

from labkit.measure.machine import stamped

TILE = 16
LENGTHS = (100, 200, 400, 800)  # lines of a kernel
HEAD = """from numba import float32
from labkit.simt import api as cuda

@cuda.jit
def kernel(a, b, out, n):
    s = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    x = a[i]
"""
SHAPES = {  # what a kernel repeats, its k-th time
    "straight": "    x = x * a[(i + {k}) % n] - b[(t + {k}) % n]\n",
    "stores": "    out[(i + {k}) % n] = a[(i + {k}) % n] * b[(t + {k}) % n]\n",
    "branches": "    if x > float32({k}):\n        x = x - b[(t + {k}) % n]\n",
    "loops": "    for j in range({k} % 7 + 1):\n        x += a[(i + j + {k}) % n]\n",
    "barriers": "    s[t] = x\n    cuda.syncthreads()\n    x += s[(t + {k}) % 64]\n    cuda.syncthreads()\n",
    "branches with barriers": "    if n > {k}:\n        s[t] = x\n        cuda.syncthreads()\n"
                              "        x += s[(t + {k}) % 64]\n    cuda.syncthreads()\n",
    "shuffles": "    y = cuda.shfl_xor_sync(0xFFFFFFFF, x, 1 << {k} % 5)\n    x += y\n",
}  # fmt: skip
GOALS = {
    "speedup over numba's simulator, 64^3 tiled": (500, "times", "at least"),
    "512^3 tiled": (2.0, "s", "at most"),
    "vector add, 10 million": (0.5, "s", "at most"),
    "first call, with its compile": (3.0, "s", "at most"),
    "first call in a second process": (1.0, "s", "at most"),
}


def make_kernels(module):
    """(tiled matmul, vector add) for a module that looks like numba.cuda."""
    global cuda  # the simulator replaces `cuda` in a kernel's globals, and nowhere else
    cuda = module

    @cuda.jit
    def matmul(a, b, out):
        a_tile = cuda.shared.array((TILE, TILE), float32)
        b_tile = cuda.shared.array((TILE, TILE), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        col, row = cuda.grid(2)
        total = float32(0)
        for tile in range(a.shape[1] // TILE):
            a_tile[y, x] = a[row, tile * TILE + x]
            b_tile[y, x] = b[tile * TILE + y, col]
            cuda.syncthreads()
            for k in range(TILE):
                total += a_tile[y, k] * b_tile[k, x]
            cuda.syncthreads()
        out[row, col] = total

    @cuda.jit
    def add(a, b, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[i] + b[i]

    return matmul, add


def _matmul_once(cuda, matmul, n):
    """Seconds for an n x n x n product on device arrays; checks the result."""
    rng = np.random.default_rng(0)
    a, b = (rng.random((n, n), dtype=np.float32) for _ in range(2))
    on_device = cuda.to_device(a), cuda.to_device(b), cuda.to_device(np.full((n, n), np.nan, np.float32))
    start = time.perf_counter()
    matmul[(n // TILE, n // TILE), (TILE, TILE)](*on_device)
    cuda.synchronize()
    seconds = time.perf_counter() - start
    np.testing.assert_allclose(on_device[2].copy_to_host(), a.astype(np.float64) @ b, rtol=1e-5)
    return seconds


def _simulator():
    """Child process: the 64^3 product under NUMBA_ENABLE_CUDASIM=1."""
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack
    from numba import cuda

    matmul, _ = make_kernels(cuda)
    print(json.dumps({"seconds": _matmul_once(cuda, matmul, 64)}))


def _first_call():
    """Child process: the first call of the tiled kernel, imports left out."""
    from labkit.simt import api as cuda

    matmul, _ = make_kernels(cuda)
    print(json.dumps({"seconds": _matmul_once(cuda, matmul, 64)}))


def long_kernel(shape, lines, folder):
    """A kernel of this one of SHAPES with about this many lines, from a file that is written into the folder."""
    name = f"{shape.replace(' ', '_')}_{lines}"
    repeated = SHAPES[shape]
    body = "".join(repeated.format(k=k) for k in range(max(1, lines // repeated.count("\n"))))
    path = Path(folder) / f"{name}.py"
    path.write_text(f"{HEAD}{body}    out[i] = x\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def _compile(shapes, lengths):
    """Child process: {shape: seconds of the first call at each length}, in this process's time on the CPU."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        warm_up = [(shape, 4) for shape in shapes]  # loads what all kernels share
        for shape, lines in (*warm_up, *((shape, lines) for shape in shapes for lines in lengths)):
            kernel = long_kernel(shape, lines, folder)
            a, b, out = (np.ones(256, np.float32) for _ in range(3))
            start = time.process_time()
            kernel[2, 64](a, b, out, 256)
            times.setdefault(shape, []).append(time.process_time() - start)
    print(json.dumps({"seconds": {shape: seconds[1:] for shape, seconds in times.items()}}))


def compile_lengths(lengths=LENGTHS, shapes=tuple(SHAPES)):
    """How the time of a first call, nearly all of it compiling, grows with a kernel's length. {"lines", "seconds":
    {shape: one for each length}}."""
    with tempfile.TemporaryDirectory() as cache:
        request = json.dumps([list(shapes), list(lengths)])
        seconds = _child("compile", request, LABKIT_CACHE_DIR=cache)
    return stamped({"lines": list(lengths), "seconds": seconds})


def _child(mode, *arguments, **environment):
    """Run this module in a new process; what it measured, or None where the simulator is not there."""
    result = subprocess.run(
        [sys.executable, "-m", "labkit.measure.series.simt", mode, *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode:
        return None
    return json.loads(result.stdout.strip().splitlines()[-1])["seconds"]


def time_cpu_device(report=lambda text: None):
    """{what: number} for the rows of GOALS, and the single times behind them. `report` is called with the name of
    each."""
    from labkit.simt import api as cuda

    matmul, add = make_kernels(cuda)
    result = {}
    report("the tiled product, compiled")
    _matmul_once(cuda, matmul, 64)
    simt_s = float(np.median([_matmul_once(cuda, matmul, 64) for _ in range(20)]))
    result["64^3 tiled"] = simt_s
    result["512^3 tiled"] = float(np.median([_matmul_once(cuda, matmul, 512) for _ in range(5)]))
    report("vector addition")
    n = 10_000_000
    rng = np.random.default_rng(0)
    a, b = (cuda.to_device(rng.random(n, dtype=np.float32)) for _ in range(2))
    out = cuda.device_array_like(a)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        add[-(-n // 256), 256](a, b, out)
        times.append(time.perf_counter() - start)
    np.testing.assert_array_equal(out.copy_to_host(), a.copy_to_host() + b.copy_to_host())
    result["vector add, 10 million"] = float(np.median(times[1:]))
    report("a first call with its compile, and again from the cache")
    with tempfile.TemporaryDirectory() as cache:
        result["first call, with its compile"] = _child("first-call", LABKIT_CACHE_DIR=cache)
        result["first call in a second process"] = _child("first-call", LABKIT_CACHE_DIR=cache)
    report("numba's simulator: some ten seconds")
    simulator = _child("simulator", NUMBA_ENABLE_CUDASIM="1")
    if simulator is not None:
        result["64^3 tiled, numba's simulator"] = simulator
        result["speedup over numba's simulator, 64^3 tiled"] = simulator / simt_s
    return result


def main(console=None):
    """Print the numbers beside their targets. Returns an exit code: 0 if all measured ones are met, else 1."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    with console.status("measuring the CPU device") as status:
        result = time_cpu_device(lambda text: status.update(f"measuring {text}"))
    table = Table(title="The CPU device", caption="times of this machine's CPU: they show work, not GPU speed")
    for column in ("what", "measured", "target"):
        table.add_column(column, justify="left" if column == "what" else "right")
    good = True
    for label, value in result.items():
        limit, unit, sense = GOALS.get(label, (None, "s", ""))
        if value is None:
            table.add_row(label, "not measured", "")
            continue
        met = limit is None or (value >= limit if sense == "at least" else value <= limit)
        good &= met
        time_text = f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"
        shown = f"{value:,.0f} times" if unit == "times" else time_text
        target = "" if limit is None else f"{sense} {limit:g} {unit} {'✓' if met else '✗'}"
        table.add_row(label, shown, target)
    if "speedup over numba's simulator, 64^3 tiled" not in result:
        table.add_row("numba's simulator", "not measured: numba-cuda is not installed", "")
    console.print(table)
    with console.status("compiling kernels of up to 800 lines: a few minutes"):
        result = compile_lengths()
    table = Table(title="A first call, by the kernel's length", caption="seconds on this machine's CPU")
    for column in ("lines of", *map(str, result["lines"])):
        table.add_column(column, justify="left" if column == "lines of" else "right")
    for shape, seconds in result["seconds"].items():
        table.add_row(shape, *(f"{s:.1f}" for s in seconds))
    console.print(table)
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["simulator"]:
        _simulator()
    elif sys.argv[1:] == ["first-call"]:
        _first_call()
    elif sys.argv[1:2] == ["compile"]:
        _compile(*json.loads(sys.argv[2]))
    else:
        sys.exit(main())
