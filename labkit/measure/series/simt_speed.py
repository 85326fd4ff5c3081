"""The CPU device beside Numba's simulator and beside loops written by hand, for one machine's CPU.

    labkit bench simt --kernels 200,50,25        or: python -m labkit.measure.series.simt_speed 200,50,25

Cold    the first launch of a fresh kernel, nothing on disk: its compile is part of it
Warm    a later launch: the simulator's second one, of ours the median of twenty
Runs    both devices in processes of their own, in turn, kernel by kernel: what else the machine does slows both. A
        first launch in each process is left out; its seconds are in `start_s`
Right   what the two leave in the arrays is compared, and a loop's with its kernel's
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from labkit._common import paths
from labkit._common.files import write_text
from labkit.measure.series.simt_kernels import (
    NUMBAS,
    OURS,
    PAIRS,
    WITH_BARRIERS,
    imported,
    kind,
    launch_shape,
    pair,
    pair_shape,
    program,
)

THREADS = (64, 1024, 4096)
COUNTS = (200, 50, 25)  # kernels at each: a launch of 4,096 threads takes the simulator seconds
GOALS = {("cold", 64): 1, ("cold", 4096): 20, ("warm", 4096): 200}  # times as fast as the simulator, at least
COMPILE_GOALS = {False: 2, True: 3}  # times what the loop takes to compile, at most; True: with barriers
LAUNCH_GOAL_US = 30
RECORD = paths.MEASUREMENTS / "simt" / "speed.json"


def arrays(threads: int):
    """(a, b, out) of a launch: a and b from 0 to 1."""
    rng = np.random.default_rng(threads)
    return *(rng.random(threads, dtype=np.float32) for _ in range(2)), np.zeros(threads, np.float32)


def _timed(call):
    """(seconds on the clock, seconds of this process on the CPU)."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


@contextlib.contextmanager
def _empty_cache():
    """Nothing that was compiled before is found on disk."""
    before = os.environ.get("LABKIT_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LABKIT_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("LABKIT_CACHE_DIR")
            if before is not None:
                os.environ["LABKIT_CACHE_DIR"] = before


# ---------------------------------------------------------------- in a process for each device


def _launch(cuda, kernel, shape, threads):
    """(a launch as a function, its output on the device)."""
    a, b, out = map(cuda.to_device, arrays(threads))
    grid, block = shape
    return lambda: kernel[grid, block](a, b, out, threads), out


def drawn(cuda, head, folder, k, threads, warm_launches):
    """{"cold", "warm": [wall, cpu]; "out"} of the k-th drawn kernel."""
    with _empty_cache():
        kernel = imported(head + program(k), folder, f"drawn_{k}_{threads}").kernel
        launch, out = _launch(cuda, kernel, launch_shape(k, threads), threads)
        cold = _timed(launch)
        result = out.copy_to_host()
        warm = [_timed(launch) for _ in range(warm_launches)]
    return {"cold": cold, "warm": [*map(statistics.median, zip(*warm, strict=True))], "out": result.tolist()}


def beside_loop(cuda, folder, name, round_):
    """{"kernel", "loop": [wall, cpu] of the first call of each; "warm_us"}. Raises AssertionError where they differ."""
    with _empty_cache():
        module = imported(OURS + pair(name), folder, f"pair_{name.replace(' ', '_')}_{round_}")
        threads = 64
        launch, out = _launch(cuda, module.kernel, pair_shape(name, threads), threads)
        a, b, expected = arrays(threads)

        def loop():
            module.loop(threads // 64, a, b, expected, threads)

        first, other = (launch, loop) if round_ % 2 else (loop, launch)
        times = {first: _timed(first), other: _timed(other)}
        np.testing.assert_allclose(out.copy_to_host(), expected, rtol=1e-6, err_msg=name)
        warm = [_timed(launch)[0] for _ in range(300)]
    return {"kernel": times[launch], "loop": times[loop], "warm_us": 1e6 * statistics.median(warm)}


def _serve(device):
    """Answer requests, a line of JSON each, until the input ends."""
    if device == "simulator":
        from numba import cuda

        head, function, warm_launches = NUMBAS, drawn, 1
    else:
        from labkit.simt import api as cuda

        head, function, warm_launches = OURS, drawn, 20
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            request = json.loads(line)
            if "pair" in request:
                answer = beside_loop(cuda, folder, request["pair"], request["round"])
            else:
                answer = function(cuda, head, folder, request["k"], request["threads"], warm_launches)
            print(json.dumps(answer), flush=True)


class _Device:
    """A process that launches kernels on ours or on the simulator."""

    def __init__(self, device):
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1" if device == "simulator" else "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "labkit.measure.series.simt_speed", "--serve", device], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.name = device

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self.name} ended at {request}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---------------------------------------------------------------- measuring


def _spread(values):
    """{"median", "p25", "p75", "least", "most"}."""
    values = sorted(values)
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": statistics.median(values), "p25": quartiles[0], "p75": quartiles[2], "least": values[0],
            "most": values[-1]}


def beside_simulator(counts=COUNTS, report=lambda text: None):
    """The first `counts` drawn kernels at each number of THREADS, on both devices: a row for each, with [wall, cpu] of
    both, and whether they agree; and the seconds of the first launch of each process."""
    devices = {name: _Device(name) for name in ("ours", "simulator")}
    rows, start_s = [], {}
    try:
        for name, device in devices.items():
            start_s[name] = device.ask(k=10**6, threads=64)["cold"]
        for threads, count in zip(THREADS, counts, strict=True):
            for k in range(count):
                report(f"kernel {k + 1} of {count} at {threads:,} threads")
                answers = {name: device.ask(k=k, threads=threads) for name, device in devices.items()}
                outs = [np.array(answer.pop("out")) for answer in answers.values()]
                agree = bool(np.allclose(*outs, rtol=1e-4, atol=1e-4))
                rows.append({"k": k, "kind": kind(k), "threads": threads, "agree": agree, **answers})
    finally:
        for device in devices.values():
            device.close()
    return rows, start_s


def ratios(rows):
    """How many times as fast ours is, by the clock and by time on the CPU, cold and warm, at each number of threads."""
    found = []
    for threads in dict.fromkeys(row["threads"] for row in rows):
        mine = [row for row in rows if row["threads"] == threads]
        for how in ("cold", "warm"):
            wall, cpu = ([row["simulator"][how][k] / max(row["ours"][how][k], 1e-9) for row in mine] for k in (0, 1))
            seconds = {name: _spread([row[name][how][0] for row in mine]) for name in ("ours", "simulator")}
            found.append({"how": how, "threads": threads, "kernels": len(mine), "wall": _spread(wall),
                          "cpu": _spread(cpu), "seconds": seconds})  # fmt: skip
    return found


def beside_loops(rounds=5, report=lambda text: None):
    """For each of PAIRS: what the first call of the kernel takes, divided by that of the loop, and a warm launch."""
    device, rows = _Device("ours"), []
    try:
        for name in PAIRS:
            device.ask(pair=name, round=-1)  # what all kernels share is compiled or loaded
        for name in PAIRS:
            report(f"compiling {name}")
            answers = [device.ask(pair=name, round=k) for k in range(rounds)]
            rows.append({
                "name": name, "barriers": name in WITH_BARRIERS,
                "wall": _spread([each["kernel"][0] / each["loop"][0] for each in answers]),
                "cpu": _spread([each["kernel"][1] / each["loop"][1] for each in answers]),
                "kernel_s": _spread([each["kernel"][1] for each in answers]),
                "loop_s": _spread([each["loop"][1] for each in answers]),
                "launch_us": _spread([each["warm_us"] for each in answers]),
            })  # fmt: skip
    finally:
        device.close()
    return rows


def measure(counts=COUNTS, rounds=5, report=lambda text: None):
    """All of it, with the machine and the date."""
    from labkit.measure.machine import machine

    begin = time.perf_counter()
    loops = beside_loops(rounds, report)
    rows, start_s = beside_simulator(counts, report)
    facts = {key: value for key, value in machine().items()
             if key in ("date", "python", "host", "labkit", "numba", "numba-cuda", "numpy")}
    return {"schema": 1, "machine": {**facts, "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None},
            "seconds": time.perf_counter() - begin, "start_s": start_s, "differ": [
                [row["k"], row["threads"]] for row in rows if not row["agree"]],
            "ratios": ratios(rows), "loops": loops, "rows": rows}  # fmt: skip


def _mark(met):
    return " ✓" if met else " ✗"


def show(result, console):
    """Print it beside the goals."""
    from rich.table import Table

    table = Table(title="Numba's simulator / the CPU device, in seconds of a launch",
                  caption="medians over the kernels, with quartiles; times of this machine's CPU")
    for column in ("threads", "", "kernels", "simulator", "ours", "times as fast", "by CPU time", "goal"):
        table.add_column(column, justify="left" if column == "" else "right")
    for row in result["ratios"]:
        goal, wall = GOALS.get((row["how"], row["threads"])), row["wall"]
        table.add_row(f"{row['threads']:,}", row["how"], str(row["kernels"]),
                      *(f"{row['seconds'][name]['median']:.2g}" for name in ("simulator", "ours")),
                      f"{wall['median']:,.3g} ({wall['p25']:,.3g} to {wall['p75']:,.3g})",
                      f"{row['cpu']['median']:,.3g}",
                      "" if goal is None else f"{goal}{_mark(wall['median'] >= goal)}")  # fmt: skip
    console.print(table)
    table = Table(title="The first call of a kernel / of the same loop with numba.njit, and a warm launch")
    for column in ("kernel", "barriers", "kernel, s", "loop, s", "ratio", "goal", "launch, us"):
        table.add_column(column, justify="left" if column in ("kernel", "barriers") else "right")
    for row in result["loops"]:
        goal = COMPILE_GOALS[row["barriers"]]
        table.add_row(row["name"], "yes" if row["barriers"] else "", f"{row['kernel_s']['median']:.3f}",
                      f"{row['loop_s']['median']:.3f}", f"{row['cpu']['median']:.2f}",
                      f"{goal}{_mark(row['cpu']['median'] <= goal)}",
                      f"{row['launch_us']['median']:.1f}{_mark(row['launch_us']['median'] <= LAUNCH_GOAL_US)}")
    console.print(table)
    if result["differ"]:
        console.print(f"The two devices differ in {result['differ']}")


def counts_of(text):
    """Numbers of kernels at each of THREADS, from "200,50,25" or one number for all."""
    parts = text.split(",")
    if not all(part.isdigit() and int(part) for part in parts) or len(parts) not in (1, len(THREADS)):
        raise ValueError(f"the kernels are {text!r}; give a number, or {len(THREADS)} separated by commas, for "
                         f"{', '.join(f'{n:,}' for n in THREADS)} threads")
    numbers = [int(part) for part in parts]
    return tuple(numbers if len(numbers) > 1 else numbers * len(THREADS))


def main(kernels="200,50,25", console=None, record=RECORD):
    """Measure, print and record. Returns an exit code: 0 if all kernels agree, else 1."""
    from rich.console import Console

    console = console or Console()
    counts = counts_of(kernels)
    with console.status("measuring") as status:
        result = measure(counts, report=status.update)
    show(result, console)
    path = Path(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result, indent=1, allow_nan=False) + "\n")
    console.print(f"Recorded in {path}")
    return 1 if result["differ"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(sys.argv[2])
    else:
        sys.exit(main(*sys.argv[2:3]))
