"""A GPU's own counters, read with Nsight Compute (ncu).

    python -m labkit.measure.ncu --profile --out FOLDER     the course's kernels: bytes, occupancy, what warps wait for
    profile("softmax")                                      the recorded profile of an operation, as a table

The first needs a GPU and ncu, and writes <gpu>-kernels.json. It launches every rung of the operations in PROFILED, and
PyTorch's kernels, once each at full size; before each pass ncu empties the caches.
"""

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labkit._common import paths, recordings
from labkit._common.files import write_text

# Operation -> the rungs to profile; all of them if empty. At the operation's own size, PyTorch beside them.
PROFILED: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul_naive", "matmul_coalesced", "matmul_tiled", "matmul_tiled_grouped", "matmul_register_blocked",
               "matmul_register_blocked_16", "matmul_vectorized", "matmul_double_buffered", "matmul_async_copies",
               "matmul_warp_tiles", "matmul_reads_ahead", "matmul_pipelined"),
    "softmax": (),
    "masked_softmax_causal": (),
    "layernorm": ("layernorm_naive", "layernorm_block_tree", "layernorm_warp_per_row", "layernorm_registers"),
    "matmul_half": (),
    "attention_sentences_half": (),
}

# Profiles at another size than the operation's own -> the operation, the rungs, the size. PyTorch is profiled as well.
AT_SIZE: dict[str, tuple[str, tuple[str, ...], dict]] = {
    "minilm_products": ("matmul_half", ("matmul_half_tensor_core", "matmul_half_hand_blocked",
                                        "matmul_half_double_buffered", "matmul_half_three_stage",
                                        "matmul_half_f16_accumulators"), {"M": 8192, "N": 384, "K": 384}),
}

STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
VALUES = {
    "time_us": "gpu__time_duration.sum",
    "dram_read": "dram__bytes_read.sum",
    "dram_write": "dram__bytes_write.sum",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "load_sectors_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "store_sectors_per_request": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "registers": "launch__registers_per_thread",
    "threads": "launch__block_size",
    "shared_bytes": "launch__shared_mem_per_block",
    "instructions": "smsp__inst_executed.sum",  # of warps
    "fma_percent": "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    "l1_percent": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "l2_bytes": "lts__t_bytes.sum",
}
# What a warp waits for, in words. ncu counts warps that wait for each at the time an instruction is issued.
REASONS = {
    "long_scoreboard": "data from global or local memory",
    "short_scoreboard": "data from shared memory or a special function",
    "barrier": "the other warps at a barrier",
    "mio_throttle": "the queue of shared memory and special functions",
    "lg_throttle": "the queue of global memory",
    "math_pipe_throttle": "an arithmetic unit",
    "wait": "the fixed latency of the instruction before",
    "not_selected": "its turn: others were ready too",
    "selected": "nothing: it was issued",
    "gmma": "a product of the tensor cores",
    "drain": "its last stores",
    "branch_resolving": "a branch",
    "no_instruction": "the next instruction",
    "membar": "a fence",
    "imc_miss": "a constant",
    "dispatch_stall": "the dispatcher",
    "sleeping": "the end of its sleep",
    "tex_throttle": "the queue of the texture unit",
    "misc": "something else",
}
STALLS = tuple(REASONS)
PROFILES = paths.MEASUREMENTS / "ncu"


def under_ncu(*options: str, program: Sequence[str], timeout_s: float = 150) -> subprocess.CompletedProcess:
    """Run `python -m program` under ncu. Raises RuntimeError where ncu is missing."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError("ncu (Nsight Compute) is not on the PATH")
    command = [ncu, "--clock-control", "none", *options, sys.executable, "-m", *program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)


def csv_of(output: str) -> csv.DictReader:
    """Read what ncu printed with --csv, between its own lines and the program's."""
    return csv.DictReader(io.StringIO("\n".join(line for line in output.splitlines() if line.startswith('"'))))


def _job(name: str) -> tuple[str, tuple[str, ...], dict | None]:
    """(operation, rungs, size) of a profile's name; without a size it is the operation's own."""
    return AT_SIZE.get(name) or (name, PROFILED.get(name, ()), None)


def workload(name: str, rungs: tuple[str, ...], sequence: Path, with_baseline: bool = True) -> None:
    """Launches each rung and PyTorch once for ncu, which profiles between profile_start and profile_stop; writes which
    launch was whose into `sequence`."""
    from labkit import cuda, measure
    from labkit.device import launches
    from labkit.kernels.agree import to_device
    from labkit.measure.ops import op

    name, at_size = _job(name)[::2]
    one = op(name)
    size = at_size or one.work.timed_gpu
    on_device = to_device(one.inputs(np.random.default_rng(0), **size))
    out = cuda.device_array(one.shape(**size), one.dtype)
    done = []

    def once(label, kind, call):
        call()  # compiles, allocates
        cuda.synchronize()
        cuda.profile_start()
        kernels = call()
        cuda.synchronize()
        cuda.profile_stop()
        done.append({"name": label, "kind": kind, "kernels": kernels})

    for launcher in one.rungs:
        if launcher.missing or (rungs and launcher.__name__ not in rungs):
            continue

        def call(launcher=launcher):
            with launches.record(launches.kernels_of(launcher)) as launched:
                launcher(*on_device, out)
            return [each.kernel.__name__ for each in launched]

        try:
            once(launcher.__name__, "rung", call)
        except ValueError as error:  # a size that the rung does not allow
            print(f"{launcher.__name__}: {error}", file=sys.stderr)
    baselines = [each for each in measure.baselines_of(one) if each.library == "torch" and "compile" not in each.name]
    # Which kernels a baseline launches is not known: they are the last ones, whatever their number.
    for baseline in baselines[:1] if with_baseline else ():
        tensors = measure.hand_over("torch", *on_device, out)
        run = baseline.bound(measure.import_library("torch"), *tensors)
        once(baseline.title, "baseline", lambda: (run(), None)[1])  # noqa: B023
    sequence.write_text(json.dumps({"size": size, "bytes": one.work.bytes(**size), "done": done}), encoding="utf-8")


def profiled(name: str, rungs: tuple[str, ...] = ()) -> dict:
    """{"size", "bytes", "rows": [{"name", "kind", "kernel", values..., "stalls": {reason: warps}}]} of an operation."""
    metrics = [*VALUES.values(), *(STALL.format(reason) for reason in STALLS)]
    with tempfile.TemporaryDirectory() as folder:
        sequence = Path(folder) / "sequence.json"
        for _ in range(4):
            result = under_ncu("--profile-from-start", "off", "--csv", "--print-units", "base", "--metrics",
                               ",".join(metrics), program=("labkit.measure.ncu", "--workload", name, "--rungs",
                                                           ",".join(rungs), "--sequence", str(sequence)),
                               timeout_s=400)  # every rung is compiled first
            unknown = set(re.findall(r"[Ff]ailed to find metric (?:regex:)?\W*([\w.]+)", result.stdout + result.stderr))
            unknown &= set(metrics)
            if not unknown:
                break
            metrics = [metric for metric in metrics if metric not in unknown]  # another GPU names it otherwise
        if not sequence.is_file():
            raise RuntimeError(f"ncu failed: {(result.stdout + result.stderr).strip()[-800:]}")
        launched = json.loads(sequence.read_text(encoding="utf-8"))
    return {"size": launched["size"], "bytes": launched["bytes"], "rows": _assign(_launches(result.stdout), launched)}


def ncu_report(name: str, rung: str) -> str:
    """What ncu itself prints for one rung: speed of light, launch and occupancy."""
    with tempfile.TemporaryDirectory() as folder:
        result = under_ncu("--profile-from-start", "off", "--section", "SpeedOfLight", "--section", "LaunchStats",
                           "--section", "Occupancy", program=("labkit.measure.ncu", "--workload", name, "--rungs", rung,
                                                              "--no-baseline", "--sequence", f"{folder}/x"))
    result.check_returncode()
    lines = [line.rstrip() for line in result.stdout.splitlines() if not line.startswith("==")]
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)


def recorded_report() -> str:
    """Return ncu's own report on one kernel, as recorded on a GPU."""
    data = recorded()
    if not data or "report" not in data:
        return "No report is recorded; python -m labkit.measure.ncu --profile on a GPU with ncu takes one."
    machine = data["machine"]
    return f"ncu on {machine['device']}, {machine['date']}\n\n{data['report']}"


def _launches(output: str) -> list[dict]:
    """ncu's CSV, a line for each metric of each launch -> [{"kernel", metric: value}] in the order of launching."""
    launches: dict[int, dict] = {}
    for row in csv_of(output):
        launch = launches.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"]})
        try:
            launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:  # "n/a": a kernel that stores nothing has no sectors per store
            launch[row["Metric Name"]] = None
    return [launches[key] for key in sorted(launches)]


def _assign(measured: list[dict], launched: dict) -> list[dict]:
    """Assigns to each of ncu's launches the rung or the baseline that made it."""
    rows = []
    begin = 0
    for one in launched["done"]:
        stop = len(measured) if one["kernels"] is None else begin + len(one["kernels"])
        names = one["kernels"] or [function_name(launch["kernel"]) for launch in measured[begin:stop]]
        for name, launch in zip(names, measured[begin:stop], strict=True):
            values = {key: launch.get(metric) for key, metric in VALUES.items()}
            if values["time_us"] is not None:
                values["time_us"] /= 1000
            stalls = {reason: launch.get(STALL.format(reason)) for reason in STALLS}
            rows.append({"name": one["name"], "kind": one["kind"], "kernel": name, **values,
                         "stalls": {reason: value for reason, value in stalls.items() if value}})
        begin = stop
    return rows


def function_name(kernel: str) -> str:
    """The name of a kernel as ncu gives it, without return type, namespaces, template arguments, Numba's mangling and
    parameters, at most 60 characters: "void at::native::<unnamed>::softmax_warp_forward<float, (int)10>(float *)" is
    softmax_warp_forward, and "copy_kernel[v1,cw51cXTLS](Array<float, 1, C>)" is copy_kernel.
    """
    bare = kernel.replace("(anonymous namespace)::", "")
    while (shorter := re.sub(r"<[^<>]*>", "", bare)) != bare:  # innermost template arguments first
        bare = shorter
    return re.split(r"[(\[]", bare)[0].split(" ")[-1].split("::")[-1][:60]


def recorded(gpu: str = "nvidia-h200") -> dict | None:
    """Return every profile recorded on a GPU; None if there is none."""
    path = PROFILES / f"{gpu}-kernels.json"
    return recordings.read(path) if path.is_file() else None


def profile(name: str, data: dict | None = None):
    """What ncu read for each kernel of an operation: time, memory traffic, occupancy, what warps wait for."""
    from labkit._common.tables import PlainTable, number, size_text

    data = recorded() if data is None else data
    title = f"{name} under Nsight Compute"
    columns = ("", "us", "read MB", "written MB", "load", "store", "L2 hits", "occupancy", "waits")
    if data is None or name not in data["ops"]:
        return PlainTable(title, columns, (), ("No profile is recorded; python -m labkit.measure.ncu --profile on a "
                                               "GPU with ncu takes one.",), kind="profile")
    one = data["ops"][name]

    def percent(value):
        return "-" if value is None else f"{value:.0f}%"

    def mega(value):
        return number(None if value is None else value / 1e6)

    rows, reasons_shown = [], set()
    several = {row["name"] for row, after in zip(one["rows"], one["rows"][1:], strict=False)
               if row["name"] == after["name"]}
    for row in one["rows"]:
        waits = sorted(((value, reason) for reason, value in row["stalls"].items()
                        if reason not in ("selected", "not_selected")), reverse=True)[:2]
        reasons_shown |= {reason for _, reason in waits}
        label = row["name"]
        if label in several:  # older recordings hold no name for kernels in an unnamed namespace
            label += f": {row['kernel'].removesuffix('_kernel') or 'name not recorded'}"
        rows.append((label, number(row["time_us"]), mega(row["dram_read"]), mega(row["dram_write"]),
                     number(row["load_sectors_per_request"]), number(row["store_sectors_per_request"]),
                     percent(row["l2_hit_percent"]), percent(row["occupancy_percent"]),
                     ", ".join(f"{reason} {value:.1f}" for value, reason in waits)))
    machine = data["machine"]
    return PlainTable(f"{title}, {size_text(one['size'])}", columns, tuple(rows), (
        f"The operation has to move {one['bytes'] / 1e6:,.0f} MB. ncu on {machine['device']}, "
        f"{one.get('date', machine['date'])}, caches cold, clocks as they are.",
        "load, store: sectors of 32 bytes that one instruction of a warp touches. waits: how many warps of a scheduler "
        "wait, and for what, when an instruction is issued.",
        *(f"{reason}: {REASONS[reason]}." for reason in REASONS if reason in reasons_shown)), kind="profile")


def main():
    parser = argparse.ArgumentParser(prog="python -m labkit.measure.ncu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--profile", nargs="*", metavar="OP", default=[],
                        help="profile these operations, or names of AT_SIZE; all of PROFILED and AT_SIZE if none")
    parser.add_argument("--workload", help="only launch this operation's kernels: ncu runs this")
    parser.add_argument("--rungs", default="", help="with --workload: only these rungs")
    parser.add_argument("--no-baseline", action="store_true", help="with --workload: leave PyTorch out")
    parser.add_argument("--sequence", type=Path, help="with --workload: where to write what was launched")
    options = parser.parse_args()
    if options.workload:
        workload(options.workload, tuple(filter(None, options.rungs.split(","))), options.sequence,
                 not options.no_baseline)
    else:
        _write_profiles(options.profile or [*PROFILED, *AT_SIZE], options.out)


def _write_profiles(names: list[str], out: Path) -> None:
    from labkit import measure
    from labkit.measure.ops import HOMES

    machine = measure.machine()
    gpu = measure.slug(machine["device"])
    result = {**(recorded(gpu) or {"ops": {}}), "machine": machine}  # ops not profiled again are kept
    path = out / f"{gpu}-kernels.json"

    def keep():
        write_text(path, json.dumps(result, indent=1) + "\n")

    for name in [name for name in names if name in HOMES or name in AT_SIZE]:
        try:
            result["ops"][name] = {"date": machine["date"], **profiled(name, _job(name)[1])}
            keep()
            print(profile(name, result))
        except Exception as error:  # the other operations' profiles are worth having
            print(f"{name} was not profiled: {error}", file=sys.stderr)
    try:
        result["report"] = ncu_report("matmul", "matmul_tiled")
    except Exception as error:
        print(f"no report: {error}", file=sys.stderr)
    keep()
    print(f"Wrote {path}")


if __name__ == "__main__":
    main()
