"""Our own ranges in a trace that a tool wrote: Nsight Compute names the NVTX ranges around each kernel.

    python -m labkit.measure.ncu_ranges       takes the trace and writes it (needs a GPU, ncu, and nvtx or PyTorch)
    table()                                   the recorded one

The program that ncu watches is `workload`: the small product of lesson 11, then two softmaxes, in ranges that nest.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import types
from pathlib import Path

import numpy as np

from labkit._common import recordings
from labkit._common.files import write_text
from labkit._common.tables import PlainTable, number
from labkit.measure.ncu import PROFILES, csv_of, function_name, under_ncu

TIME = "gpu__time_duration.sum"
COLUMN = "Push/Pop_Range"  # part of the column's name: "thread Domain:Push/Pop_Range:PL_Type:..."
OPTIONS = ("--nvtx", "--csv", "--print-units", "base", "--metrics", TIME)
PROGRAM = ("labkit.measure.ncu_ranges", "--workload")
TIMEOUT_S = 180
TITLE, COLUMNS = "Kernels and the ranges around them, as ncu names them", ("kernel", "ranges, from the outermost", "us")


def workload(rows: int = 64, cols: int = 256) -> None:
    """Launch kernels inside nested ranges."""
    from labkit import cuda
    from labkit.kernels.ops.softmax import SOFTMAX
    from labkit.measure.nvtx import Ranges
    from labkit.measure.series.overheads import product_trip

    provide_nvtx()
    ranges = Ranges("A program under ncu")
    x = cuda.to_device(SOFTMAX.inputs(np.random.default_rng(0), R=rows, C=cols)[0])
    out = cuda.device_array((rows, cols), np.float32)
    with ranges("program"):
        product_trip(ranges)
        with ranges("softmax"):
            for rung in (SOFTMAX.rungs[0], SOFTMAX.rungs[-1]):
                with ranges(rung.__name__):
                    rung(x, out)


def provide_nvtx() -> None:
    """Where the package nvtx is missing, have Ranges use the same calls of PyTorch.

    Raises RuntimeError where that is missing, too.
    """
    from labkit.measure import nvtx

    if nvtx.nvtx() is not None:
        return
    try:
        import torch.cuda.nvtx as calls
    except ImportError:
        raise RuntimeError("NVTX ranges need the package nvtx (pip install nvtx) or PyTorch") from None
    sys.modules["nvtx"] = types.SimpleNamespace(push_range=calls.range_push, pop_range=calls.range_pop)
    nvtx.nvtx.cache_clear()


def parse(output: str) -> list[dict]:
    """ncu's CSV -> {"kernel", "ranges": from the outermost, "us"} of each launch, in their order.

    Raises ValueError where there is no kernel, or no column for ranges.
    """
    table = csv_of(output)
    column = next((name for name in table.fieldnames or () if COLUMN in name), None)
    if column is None:
        raise ValueError(f"ncu printed no column {COLUMN}: {output.strip()[-400:]}")
    launches = []
    for row in table:
        if row["Metric Name"] == TIME:
            nanoseconds = float(row["Metric Value"].replace(",", ""))
            launches.append({"kernel": function_name(row["Kernel Name"]), "ranges": ranges_in(row[column] or ""),
                             "us": nanoseconds / 1000})
    if not launches:
        raise ValueError(f"ncu printed no kernel: {output.strip()[-400:]}")
    return launches


def ranges_in(cell: str) -> list[str]:
    """The names in a cell such as `1  "<default domain>:outer:none:none"  "<default domain>:inner:none:none"`."""
    return [name for _, name in re.findall(r'"([^":]*):([^":]*)(?::[^"]*)?"', cell)]


def traced() -> dict:
    """Run the workload under ncu: {"command", "rows", "csv": what ncu printed, line by line}.

    Raises RuntimeError where ncu is missing, fails, or names no range.
    """
    result = under_ncu(*OPTIONS, program=PROGRAM, timeout_s=TIMEOUT_S)
    try:
        rows = parse(result.stdout)
    except ValueError as error:
        raise RuntimeError(f"{error} {result.stderr.strip()[-400:]}") from None
    if not any(row["ranges"] for row in rows):
        raise RuntimeError(f"ncu saw {len(rows)} kernels and no range around them: {result.stderr.strip()[-400:]}")
    return {"command": " ".join(("ncu --clock-control none", *OPTIONS, "python -m", *PROGRAM)), "rows": rows,
            "csv": [line for line in result.stdout.splitlines() if line.startswith('"')]}


def recorded(gpu: str = "nvidia-h200") -> dict | None:
    """The trace that was recorded on a GPU; None if there is none."""
    path = PROFILES / f"{gpu}-ranges.json"
    return recordings.read(path) if path.is_file() else None


def table(data: dict | None = None) -> PlainTable:
    """Each kernel of a trace with its ranges; left out, of the recorded one."""
    data = recorded() if data is None else data
    if data is None:
        how = "Not measured yet: python -m labkit.measure.ncu_ranges on a GPU with ncu takes the trace."
        return PlainTable(TITLE, COLUMNS, (), (how,), kind="ranges")
    rows = tuple((function_name(row["kernel"]), " / ".join(row["ranges"]) or "-", number(row["us"]))
                 for row in data["rows"])
    machine = data["machine"]
    return PlainTable(TITLE, COLUMNS, rows, (f"ncu on {machine['device']}, {machine['date']}.", data["command"]),
                      kind="ranges")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m labkit.measure.ncu_ranges", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PROFILES, help="the folder to write into")
    parser.add_argument("--workload", action="store_true", help="only launch the kernels: ncu runs this")
    options = parser.parse_args()
    if options.workload:
        workload()
        return
    from labkit import measure

    machine = measure.machine()
    try:
        data = {"machine": machine, **traced()}
    except RuntimeError as error:
        raise SystemExit(f"labkit: {error}") from None
    path = options.out / f"{measure.slug(machine['device'])}-ranges.json"
    write_text(path, json.dumps(data, indent=1) + "\n")
    print(table(data))
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
