"""The same kernels by either compiler of GPU code, numba-cuda and numba-cuda-mlir: is each rung right, how long does it
take to compile and to run, and what does a launch cost. Each compiler runs in processes of its own.

A rung that is wrong, does not compile, crashes its process or does not end is recorded as such, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import numpy as np

from labkit import cuda, device, measure
from labkit._common import paths
from labkit._common.cores import cores
from labkit.device import compiler, gpu_kernels, graphs, launches
from labkit.kernels.agree import Sample, agree, poison, to_device
from labkit.measure.ops import all_ops, op
from labkit.measure.timing import graph_launches, time_kernel, time_launch, time_replay

ROUNDS = 3
MAX_WORKERS = 8  # processes that check, for each compiler
SLOW_MS = 5.0  # from here on a launch is timed on its own
PATIENCE_S = 90  # for one answer
CHILD = """\
import time
begin = time.perf_counter()
from labkit import cuda
ready = time.perf_counter()
from labkit.measure.series import compilers
compilers.answer(ready - begin)
"""


# --- A process of one compiler ----------------------------------------------------------------------------------------


class _Timed:
    """One operation at the size that it is timed at, with its arrays on the device."""

    def __init__(self, name: str):
        self.op = op(name)
        self.size = self.op.work.timed
        self.inputs = self.op.inputs(np.random.default_rng(0), **self.size)
        self.arrays = to_device(self.inputs)
        self.poison = poison(tuple(self.op.shape(**self.size)), self.op.dtype)
        self.out = cuda.to_device(self.poison)
        self.replays: dict[str, tuple] = {}  # rung -> (graph, launches in it), of those that are timed so

    @functools.cached_property
    def sample(self) -> Sample:
        return Sample(self.op, self.inputs, shape=self.poison.shape)

    def launch(self, rung, stream=0) -> None:
        rung(*self.arrays, self.out, stream=stream)


@functools.lru_cache(maxsize=1)
def _timed(name: str) -> _Timed:
    return _Timed(name)


def check(name: str, rung_name: str) -> dict:
    """Compile a rung's kernels and compare its results: {"compile_s", "problem" (empty if right)}."""
    timed = _timed(name)
    rung = timed.op.rung(rung_name)
    if rung.missing:
        return {"compile_s": None, "problem": rung.missing}
    seconds = None
    if device.on_gpu():
        planned = launches.planned(lambda: timed.launch(rung))
        begin = time.perf_counter()
        for kernel, types in {(one.kernel, gpu_kernels.argument_types(one.kernel, one.args)) for one in planned}:
            gpu_kernels.compiled(kernel, types)
        seconds = time.perf_counter() - begin
    problem = agree(timed.op, [rung], check=False).rows[0].problem
    if not problem:
        timed.out.copy_to_device(timed.poison)
        timed.launch(rung)
        cuda.synchronize()
        problem = timed.sample.check(timed.out.copy_to_host(), rung).problem
    return {"compile_s": seconds, "problem": problem}


def time_us(name: str, rung_name: str) -> float:
    """The median time of a rung in microseconds: in a CUDA graph, or on its own where it is slow."""
    timed = _timed(name)
    rung = timed.op.rung(rung_name)
    if rung_name not in timed.replays:
        once_ms = time_kernel(lambda: timed.launch(rung), flush=False, budget_s=0.01, min_runs=2, max_runs=4).p50
        count = graph_launches(once_ms)

        def many(stream):
            for _ in range(count):
                timed.launch(rung, stream)

        timed.replays[rung_name] = (graphs.capture(many) if once_ms < SLOW_MS and device.on_gpu() else None), count
    graph, count = timed.replays[rung_name]
    if graph is None:
        return 1000 * time_kernel(lambda: timed.launch(rung), flush=False, budget_s=0.03, min_runs=3).p50
    return 1000 * time_replay(graph.launch, count, 7).p50


def registers(name: str, rung_name: str) -> list[dict]:
    """What each kernel of a rung takes: {"kernel", "registers", "local_bytes", "shared_bytes"}."""
    timed = _timed(name)
    taken = [launches.resources(one) for one in launches.of(timed.op.rung(rung_name), *timed.arrays, timed.out)]
    return [{key: one[key] for key in ("kernel", "registers", "local_bytes", "shared_bytes")} for one in taken if one]


def launch_costs() -> dict:
    """Microseconds for a launch of a tiny kernel: by its launcher, of a bound kernel, of one bound anew, in a graph."""
    from labkit.kernels.elementwise import vector_add_per_thread, vector_add_per_thread_kernel

    n = 1024
    a, b, out = (cuda.to_device(np.ones(n, np.float32)) for _ in range(3))
    grid, kernel = -(-n // 256), vector_add_per_thread_kernel
    bound = kernel[grid, 256]
    graph = measure.time_graph(lambda stream: vector_add_per_thread(a, b, out, stream=stream), launches=100)
    return {"launcher_us": 1000 * time_launch(lambda: vector_add_per_thread(a, b, out)).p50,
            "bound_us": 1000 * time_launch(lambda: bound(a, b, out)).p50,
            "configured_us": 1000 * time_launch(lambda: kernel[grid, 256](a, b, out)).p50,
            "graph_us": graph and 1000 * graph.p50}


COMMANDS = {function.__name__: function for function in (check, time_us, registers, launch_costs)}


def answer(import_s: float) -> None:
    """Of a process that `_Child` starts: answer each line, {"do": a command, "with": its arguments}, with one."""
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"import_s": import_s, "device": device.name()}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = {"result": COMMANDS[asked["do"]](*asked["with"])}
        except Exception as error:  # the next rung may be right
            result = {"error": f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:300]}
        print(json.dumps(result), file=answers, flush=True)


# --- The processes together -------------------------------------------------------------------------------------------


class Failed(Exception):
    """What a process answered in place of a result."""


class _Child:
    """A process of one compiler, started anew after an answer that leaves it unusable."""

    def __init__(self, compiler_name: str, cache: str):
        self.environment = {**os.environ, "LABKIT_COMPILER": compiler_name, "LABKIT_KERNEL_CACHE": cache}
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, cwd=paths.REPOSITORY, env=self.environment)
        self.start = self._read()

    def _read(self) -> dict:
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        self.close()
        raise Failed("the process ended" if ready else f"no answer in {PATIENCE_S} s")

    def ask(self, command: str, *arguments):
        """The result of a command. Raises Failed with what went wrong."""
        if self.process.poll() is not None:
            self._start()
        with contextlib.suppress(OSError):
            print(json.dumps({"do": command, "with": arguments}), file=self.process.stdin, flush=True)
        found = self._read()
        problem = found.get("error") or isinstance(found["result"], dict) and found["result"].get("problem") or ""
        if "CUDA" in problem or "Cuda" in problem:
            self.close()  # after such an error a context answers nothing else
        if "error" in found:
            raise Failed(found["error"])
        return found["result"]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _checked(name: str, cache: str, rungs: list, workers: int) -> dict:
    """(op, rung) -> what `check` returns, by several processes of one compiler."""
    pending, found = queue.SimpleQueue(), {}
    for each in {op_name: [rung for other, rung in rungs if other == op_name] for op_name, _ in rungs}.items():
        pending.put(each)

    def work():
        child = None
        with contextlib.suppress(queue.Empty):
            while True:
                op_name, of_op = pending.get_nowait()
                for rung in of_op:
                    try:
                        child = child or _Child(name, cache)
                        found[op_name, rung] = child.ask("check", op_name, rung)
                    except Failed as error:
                        found[op_name, rung] = {"compile_s": None, "problem": str(error)}
        if child:
            child.close()

    threads = [threading.Thread(target=work) for _ in range(min(workers, pending.qsize()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _asked(child: _Child, command: str, *arguments):
    """A result, or None where it failed, which is printed."""
    try:
        return child.ask(command, *arguments)
    except Failed as error:
        print(f"{child.environment['LABKIT_COMPILER']}: {command} {arguments}: {error}", file=sys.stderr)
        return None


def compilers(names=None, *, chosen=tuple(compiler.PACKAGES), rounds: int = ROUNDS,
              budget_s: float = 330) -> dict | None:
    """Check and time every rung by each compiler, in turns. names: of operations; all if left out.

    Returns {"rows": [{"op", "rung", "us": {compiler: a median for each round}, "compile_s": {compiler: s},
    "problem": {compiler: text}, "resources": {compiler: [...]}}], "start_s", "launch", "seconds"}; None where a
    compiler is not installed, or without a GPU. budget_s: no round begins after it.
    """
    if not device.on_gpu() and len(chosen) > 1 or not all(map(compiler.installed, chosen)):
        return None
    began = time.perf_counter()
    rungs = [(each.name, rung.__name__) for each in all_ops() if names is None or each.name in names
             for rung in each.rungs if rung.kernel]
    workers = max(1, min(MAX_WORKERS, cores() // len(chosen)))
    with tempfile.TemporaryDirectory() as caches:
        checked: dict[str, dict] = {}

        def run_checks(name):
            checked[name] = _checked(name, f"{caches}/{name}", rungs, workers)

        threads = [threading.Thread(target=run_checks, args=(name,)) for name in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = {"checks": time.perf_counter() - began}
        timers = {name: _Child(name, f"{caches}/{name}") for name in chosen}
        launch = {name: _asked(child, "launch_costs") for name, child in timers.items()}
        rows = [{"op": op_name, "rung": rung, "us": {name: [] for name in chosen},
                 "compile_s": {name: checked[name][op_name, rung]["compile_s"] for name in chosen},
                 "problem": {name: checked[name][op_name, rung]["problem"] for name in chosen},
                 "resources": {}} for op_name, rung in rungs]
        for op_name in measure.steps("compilers", list(dict.fromkeys(op_name for op_name, _ in rungs))):
            for turn in range(rounds):
                for row in (row for row in rows if row["op"] == op_name):
                    for name, child in timers.items():
                        if row["problem"][name] or turn and time.perf_counter() - began > budget_s:
                            continue
                        us = _asked(child, "time_us", op_name, row["rung"])
                        row["us"][name] += [] if us is None else [us]
                        if turn == 0:
                            row["resources"][name] = _asked(child, "registers", op_name, row["rung"])
        starts = {name: child.start["import_s"] for name, child in timers.items()}
        for child in timers.values():
            child.close()
    seconds["all"] = time.perf_counter() - began
    return measure.stamped({"rows": rows, "start_s": starts, "launch": launch, "seconds": seconds,
                            "workers": workers, "rounds": rounds})


# --- What was measured ------------------------------------------------------------------------------------------------

COMPILED_S = 0.01  # less: nothing was compiled
ALIKE = 1.05  # times whose ratio is at most this are taken for equal


class Row(NamedTuple):
    """A rung by each compiler. times: ms, the median of the rounds; ratio: of the second compiler's to the first's."""

    op: str
    rung: str
    times: dict[str, float | None]
    ratio: float | None
    compile_s: dict[str, float | None]
    problem: dict[str, str]


class Comparison(NamedTuple):
    """rows: by ratio, the largest first, then those without one. faster, alike, slower: how many are so by the second
    compiler. wrong: rows that are right by the first one alone; refused: rows that fail by both, because the rung does
    not take the size that is timed."""

    rows: list[Row]
    faster: int
    alike: int
    slower: int
    mean: float
    wrong: list[Row]
    refused: list[Row]
    compile_s: dict[str, float]
    seconds: dict[str, float]


def compared(series: dict) -> Comparison:
    """What the series "compilers" says. mean: the geometric mean of ratios; compile_s: a median; seconds: of all.

    A rung whose kernels another one had compiled before has no seconds."""
    rows = []
    for row in series["rows"]:
        times = {name: statistics.median(us) / 1000 if us else None for name, us in row["us"].items()}
        first, second = times.values()
        rows.append(Row(row["op"], row["rung"], times, second / first if first and second else None,
                        {name: s if s and s > COMPILED_S else None for name, s in row["compile_s"].items()},
                        row["problem"]))
    timed = sorted((row for row in rows if row.ratio), key=lambda row: -row.ratio)
    others = [row for row in rows if not row.ratio]
    built = [row.compile_s for row in rows if all(row.compile_s.values())]
    names = tuple(rows[0].times)
    return Comparison(
        timed + others,
        sum(row.ratio < 1 / ALIKE for row in timed), sum(1 / ALIKE <= row.ratio <= ALIKE for row in timed),
        sum(row.ratio > ALIKE for row in timed), statistics.geometric_mean(row.ratio for row in timed),
        [row for row in others if not row.problem[names[0]]], [row for row in others if row.problem[names[0]]],
        {name: statistics.median(one[name] for one in built) for name in names},
        {name: sum(one[name] for one in built) for name in names})
