"""What `observe` counts, compared with a GPU's own counters, which Nsight Compute (ncu) reads.

    python -m tests.simt.observe_and_ncu --out FOLDER     needs a GPU and ncu; writes observe-and-ncu.json

Launches matmul naive, coalesced and tiled (16 x 16), 64 x 64 x 64: requests (one instruction of one warp) and sectors
(32 bytes) of global memory, shared-memory instructions of warps, bank conflicts.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from labkit import cuda, measure, observe
from labkit._common.files import write_text
from labkit.kernels.matmul import float32 as matmul
from labkit.measure.ncu import csv_of, under_ncu

METRICS = {
    "requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
    "sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"),
    "shared requests": ("smsp__inst_executed_op_shared_ld.sum", "smsp__inst_executed_op_shared_st.sum"),
    "bank conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
}
SIZE = 64


def compared_launches():
    """{name: (kernel, grid, block)} of the compared launches."""
    blocks = (SIZE // 16, SIZE // 16)
    kernels = {"naive": matmul.matmul_naive_kernel, "coalesced": matmul.matmul_coalesced_kernel,
               "tiled": matmul.matmul_tiled_kernel}
    return {name: (kernel, blocks, (16, 16)) for name, kernel in kernels.items()}


def _inputs():
    rng = np.random.default_rng(0)
    arrays = [rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2)]
    return *map(cuda.to_device, arrays), cuda.to_device(np.zeros((SIZE, SIZE), np.float32))


def observed():
    """{name: counts} from observe."""
    result = {}
    for name, (kernel, grid, block) in compared_launches().items():
        counts = observe(kernel[grid, block], *_inputs()).counts
        names = {"requests": "global_requests", "sectors": "sectors", "shared requests": "shared_requests",
                 "bank conflicts": "bank_conflicts"}
        result[name] = {label: counts[key] for label, key in names.items()}
    return result


def measured():
    """{name: counts} from ncu. Raises RuntimeError where ncu is missing or cannot read the counters."""
    result = under_ncu("--csv", "--metrics", ",".join(metric for pair in METRICS.values() for metric in pair),
                       "--kernel-name", "regex:matmul", program=("tests.simt.observe_and_ncu", "--workload"))
    values = {}
    for row in csv_of(result.stdout):
        value = float(row["Metric Value"].replace(",", ""))
        values.setdefault(int(row["ID"]), {})[row["Metric Name"]] = int(value)
    if result.returncode or not values:
        raise RuntimeError(f"ncu failed: {(result.stderr or result.stdout).strip()[-400:]}")
    counters = {}
    for name, (_, counts) in zip(compared_launches(), sorted(values.items()), strict=True):
        counters[name] = {label: sum(counts[m] for m in pair) for label, pair in METRICS.items()}
    return counters


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simt.observe_and_ncu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--workload", action="store_true", help="only launch the kernels: ncu runs this")
    options = parser.parse_args()
    if options.workload:
        for kernel, grid, block in compared_launches().values():
            kernel[grid, block](*_inputs())
            cuda.synchronize()
        return
    observed_counts, ncu_counts = observed(), measured()
    print(f"{'':12}{'':18}{'observe':>10}{'ncu':>10}")
    for name in observed_counts:
        for metric in METRICS:
            print(f"{name:12}{metric:18}{observed_counts[name][metric]:>10,}{ncu_counts[name][metric]:>10,}")
    result = {"machine": measure.machine(), "size": SIZE, "observe": observed_counts, "ncu": ncu_counts}
    write_text(options.out / "observe-and-ncu.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
