"""NVIDIA's compute-sanitizer over the kernels of every operation: accesses outside memory, and races.

    python -m labkit.measure.sanitizer --out FOLDER            memcheck and racecheck, every rung and size
    python -m labkit.measure.sanitizer matmul reduce_sum       these operations alone

Needs a GPU and compute-sanitizer. Writes <gpu>.json, what each tool found for each operation, and <gpu>.log, the tools'
own words. Each operation runs in a process of its own at its awkward sizes, its results checked as everywhere. Two
controls show that the tools find what they should: a kernel without its guard for memcheck, and lesson 15's block
reduction without its last barrier for racecheck, which is also launched many times without a tool.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from labkit._common import paths, recordings
from labkit._common.files import read_json, write_text

TOOLS = ("memcheck", "racecheck")
RECORDED = paths.MEASUREMENTS / "sanitizer"
CONTROLS = {"no guard": "memcheck", "no last barrier": "racecheck"}
ROWS, COLUMNS, LAUNCHES = 264, 1000, 200  # of lesson 15's race
TIMEOUT_S = 240
LOG_LINES = 60  # of one tool on one operation


def workload(name: str) -> dict:
    """Launches what a tool watches, and returns the outcome: {"rungs", "size"}, or {"wrong", "rows"}."""
    if name in CONTROLS:
        return {"no guard": without_guard, "no last barrier": without_last_barrier}[name]()
    from labkit.kernels.agree import agree
    from labkit.measure.ops import op

    one = op(name)
    rows = agree(one, check=False).rows
    refused = [row.name for row in rows if row.problem.startswith("refuses every size")]
    errors = [f"{row.name}: {row.problem}" for row in rows if row.problem and row.name not in refused]
    if errors:
        raise AssertionError("; ".join(errors))
    return {"rungs": [row.name for row in rows if not row.skipped and row.name not in refused], "refused": refused,
            "sizes": len(one.awkward)}


def without_guard() -> dict:
    """One thread reads and writes one element beyond the end of its array."""
    from labkit import cuda

    @cuda.jit
    def add_one_kernel(x):
        i = cuda.grid(1)
        x[i] += np.float32(1)

    x = cuda.to_device(np.zeros(1024, np.float32))  # 4 KB: the next byte belongs to no array
    add_one_kernel[5, 256](x)
    cuda.synchronize()
    return {}


def without_last_barrier(launches: int = 1) -> dict:
    """How many rows of a launch came out wrong, the worst of all launches."""
    from labkit import cuda
    from labkit.kernels.reduce import mean_and_variance_racy_kernel

    x = np.random.default_rng(0).random((ROWS, COLUMNS), dtype=np.float32)
    truth = np.stack([x.mean(axis=1, dtype=np.float64), x.var(axis=1, dtype=np.float64)], axis=1)
    rows, out = cuda.to_device(x), cuda.device_array((ROWS, 2), np.float32)
    wrong_rows = 0
    for _ in range(launches):
        mean_and_variance_racy_kernel[ROWS, 256](rows, out)
        wrong_rows = max(wrong_rows, int((np.abs(out.copy_to_host() - truth) > 1e-4).any(axis=1).sum()))
    return {"wrong": wrong_rows, "rows": ROWS, "launches": launches}


def summary(output: str) -> tuple[int, list[str]]:
    """(errors, the tool's lines) of compute-sanitizer's output. Raises ValueError where it gave no summary."""
    lines = [line for line in output.splitlines() if line.startswith("=========")]
    counts = [int(count) for line in lines
              for count in re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", line)
              for count in count if count]
    if not counts:
        raise ValueError((output.strip() or "no output")[-600:])
    return sum(counts), lines


def checked(name: str, tool: str) -> tuple[dict, list[str]]:
    """Runs one workload under one tool: ({"errors", "seconds", what the workload gave}, the tool's lines)."""
    begin = time.perf_counter()
    command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", sys.executable, "-m", __spec__.name,
               "--workload", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S,
                              env={**os.environ, "LABKIT_DEVICE": "gpu"})
        errors, lines = summary(done.stdout + done.stderr)
        outputs = re.findall(r"^WORKLOAD (.*)$", done.stdout, re.MULTILINE)
        result = {"errors": errors, **(json.loads(outputs[-1]) if outputs else {})}
        if not outputs and name not in CONTROLS:
            result["problem"] = (done.stderr.strip() or "it ended without a word")[-400:]
    except subprocess.TimeoutExpired:
        result, lines = {"problem": f"not done after {TIMEOUT_S} s"}, []
    except ValueError as error:
        result, lines = {"problem": str(error)}, []
    return {**result, "seconds": round(time.perf_counter() - begin, 1)}, lines


def take(names: list[str], folder: Path, workers: int) -> dict:
    """Every operation of `names` under both tools, and the controls. Written after each, so that a run can be
    stopped."""
    from labkit import measure

    machine = measure.machine()
    path = folder / f"{measure.slug(machine['device'])}.json"
    known = read_json(path) if path.is_file() else {}
    results = {tool: dict(known.get(tool, {})) for tool in TOOLS} | {"controls": {}}
    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True).stdout
    result = {"machine": {**machine, "compute-sanitizer": version.strip().splitlines()[-1]}, **results}
    log = _kept_log(path.with_suffix(".log"))

    def one(job):
        name, tool = job
        return job, checked(name, tool)

    jobs = [*CONTROLS.items(), *((name, tool) for name in names for tool in TOOLS)]
    with ThreadPoolExecutor(workers) as pool:
        for (name, tool), (outcome, lines) in pool.map(one, jobs):
            results["controls" if name in CONTROLS else tool][name] = outcome
            log[f"{name}, {tool}"] = "\n".join(lines[:LOG_LINES])
            print(f"{name}, {tool}: {outcome.get('problem') or outcome['errors']} ({outcome['seconds']} s)", flush=True)
            write_text(path, json.dumps(result, indent=1) + "\n")
    results["controls"]["no last barrier, no tool"] = without_last_barrier(LAUNCHES)
    write_text(path, json.dumps(result, indent=1) + "\n")
    text = "\n\n".join(f"# {job}\n{lines}".rstrip() for job, lines in sorted(log.items()))
    write_text(path.with_suffix(".log"), text + "\n")
    return result


def _kept_log(path: Path) -> dict[str, str]:
    """The log of the runs before, of those operations too that are not run again."""
    if not path.is_file():
        return {}
    parts = path.read_text(encoding="utf-8").removeprefix("# ").split("\n\n# ")
    return {job: lines.rstrip("\n") for job, _, lines in (part.partition("\n") for part in parts)}


def recorded_race(gpu: str = "nvidia-h200") -> str:
    """What lesson 15's race did on a GPU without a tool, and under racecheck, in two lines."""
    recording = recordings.read(RECORDED / f"{gpu}.json")
    alone, watched = (recording["controls"][name] for name in ("no last barrier, no tool", "no last barrier"))
    return (f"{recording['machine']['device']}, {recording['machine']['date']}\n"
            f"{alone['launches']} launches: {alone['wrong']} of {alone['rows']} rows wrong in the worst of them\n"
            f"1 launch under racecheck: {watched['wrong']} of {watched['rows']} rows wrong, {watched['errors']} hazard")


def problems(recorded: dict) -> list[str]:
    """Return a recording's findings against a kernel, or against itself: a control that was not found, an operation
    that was not run and is not in UNRECORDED."""
    from labkit.measure.ops import HOMES, UNRECORDED

    errors = [f"{name}, {tool}: {one.get('problem') or one['errors']}" for tool in TOOLS
              for name, one in recorded[tool].items() if one.get("problem") or one["errors"]]
    errors += [f"{name} was not run under {tool}, and is not in UNRECORDED in labkit/measure/ops.py"
               for tool in TOOLS for name in HOMES
               if name not in recorded[tool] and name not in UNRECORDED]
    errors += [f"{tool} does not see the control {name!r}" for name, tool in CONTROLS.items()
               if not recorded["controls"].get(name, {}).get("errors")]
    return errors


def main():
    from labkit.measure.ops import HOMES

    parser = argparse.ArgumentParser(prog="python -m labkit.measure.sanitizer", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help="operations; all if none is named")
    parser.add_argument("--out", type=Path, default=RECORDED)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--workload", help="only launch this operation's kernels: the tools run this")
    options = parser.parse_args()
    if options.workload:
        print("WORKLOAD " + json.dumps(workload(options.workload)), flush=True)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit.", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    result = take(options.ops or [*HOMES], options.out, options.workers)
    errors = problems(result)
    print("\n".join(errors) or "Nothing found, but for the controls.")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
