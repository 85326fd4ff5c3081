"""What `observe` counts beside what a GPU counts: the same launches under Nsight Compute (ncu).

    python -m labkit.counters --out FOLDER      on a machine with a GPU and ncu; writes observe-and-ncu.json

Launches    matmul naive, coalesced and tiled (16 x 16), 64 x 64 x 64, float32
Counters    l1tex__t_requests / t_sectors of global loads and stores (a request is one instruction of one warp; a sector
            is 32 bytes), shared-memory load and store instructions of warps, shared-memory bank conflicts
"""

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

METRICS = {
    "requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
    "sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"),
    "shared requests": ("smsp__inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_shared_st.sum"),
    "bank conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
}
SIZE = 64


def launches():
    """{name: (kernel, grid, block)} of the compared launches."""
    from labkit.kernels import matmul

    blocks = (SIZE // 16, SIZE // 16)
    kernels = {"naive": matmul.matmul_naive_kernel, "coalesced": matmul.matmul_coalesced_kernel,
               "tiled": matmul.matmul_tiled_kernel}  # fmt: skip
    return {name: (kernel, blocks, (16, 16)) for name, kernel in kernels.items()}


def _inputs():
    from labkit import cuda

    rng = np.random.default_rng(0)
    arrays = [rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2)]
    return *map(cuda.to_device, arrays), cuda.to_device(np.zeros((SIZE, SIZE), np.float32))


def observed():
    """{name: counts} from observe."""
    from labkit import observe

    found = {}
    for name, (kernel, grid, block) in launches().items():
        counts = observe(kernel[grid, block], *_inputs()).counts
        names = {"requests": "global_requests", "sectors": "sectors", "shared requests": "shared_requests",
                 "bank conflicts": "bank_conflicts"}  # fmt: skip
        found[name] = {what: counts[key] for what, key in names.items()}
    return found


def measured():
    """{name: counts} from ncu. Raises RuntimeError where ncu is missing or cannot read the counters."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError("ncu (Nsight Compute) is not on the PATH")
    metrics = ",".join(metric for pair in METRICS.values() for metric in pair)
    command = [ncu, "--clock-control", "none", "--csv", "--metrics", metrics, "--kernel-name", "regex:matmul",
               sys.executable, "-m", "labkit.counters", "--workload"]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line for line in result.stdout.splitlines() if line.startswith('"')]
    if result.returncode or not rows:
        raise RuntimeError(f"ncu failed: {(result.stderr or result.stdout).strip()[-400:]}")
    values = {}
    for row in csv.DictReader(io.StringIO("\n".join(rows))):
        number = float(row["Metric Value"].replace(",", ""))
        values.setdefault(int(row["ID"]), {})[row["Metric Name"]] = int(number)
    found = {}
    for name, (_, counts) in zip(launches(), sorted(values.items()), strict=True):
        found[name] = {what: sum(counts[m] for m in pair) for what, pair in METRICS.items()}
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", action="store_true", help="only launch the kernels")
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    options = parser.parse_args()
    if options.workload:
        from labkit import cuda

        for kernel, grid, block in launches().values():
            kernel[grid, block](*_inputs())
            cuda.synchronize()
        return
    from labkit import measure

    ours, theirs = observed(), measured()
    print(f"{'':12}{'':18}{'observe':>10}{'ncu':>10}")
    for name in ours:
        for what in METRICS:
            print(f"{name:12}{what:18}{ours[name][what]:>10,}{theirs[name][what]:>10,}")
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"machine": measure.machine(), "size": SIZE, "observe": ours, "ncu": theirs}
    (options.out / "observe-and-ncu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
