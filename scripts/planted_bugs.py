"""Small kernels with one bug each, and who finds it: observe on the CPU device, and compute-sanitizer on a GPU.

    python scripts/planted_bugs.py              observe each; writes data/planted_bugs.json, prints a table
    python scripts/planted_bugs.py --sanitizer  on a machine with a GPU and compute-sanitizer: its column as well

Each kernel is made twice: with the bug, on a line that ends with `# bug`, and mended, which must be found faultless.
compute-sanitizer runs its four tools on each: memcheck, racecheck, initcheck and synccheck.
"""

import argparse
import datetime
import inspect
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

os.environ.setdefault("LABKIT_DEVICE", "cpu")  # what observe needs; compute-sanitizer's processes set their own
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labkit import cuda, observe  # noqa: E402
from labkit.measure.sanitizer import summary  # noqa: E402

RECORD = ROOT / "data" / "planted_bugs.json"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TIMEOUT_S = 120
AT_ONCE = 6  # processes, each with a context of its own
ON_GPU = {**os.environ, "LABKIT_DEVICE": "gpu",
          "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
BUGS = {}


def bug(sentence):
    """Enter a function that makes the launch: its argument is whether the bug is mended."""

    def enter(make):
        BUGS[make.__name__] = sentence, make
        return make

    return enter


def zeros(*shape, dtype=np.float32):
    return cuda.to_device(np.zeros(shape, dtype))


def counting(n, dtype=np.float32):
    return cuda.to_device(np.arange(n, dtype=dtype))


# ---------------------------------------------------------------- memory


@bug("a store beyond the end: the guard is missing")
def no_guard(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x):
        i = cuda.grid(1)
        if i < x.size or not mended:
            x[i] = 1  # bug

    return kernel[2, 32], zeros(50)


@bug("a load one beyond the end")
def off_by_one(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size - (1 if mended else 0):
            out[i] = x[i + 1]  # bug

    return kernel[2, 32], counting(64), zeros(64)


@bug("rows and columns exchanged in a matrix that is not square")
def exchanged_axes(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x):
        i, j = cuda.grid(2)
        if mended:
            i, j = j, i
        x[i, j] = 1  # bug

    return kernel[(1, 1), (8, 4)], zeros(4, 8)


@bug("an unsigned index below zero")
def unsigned_underflow(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if i > 0 or not mended:
            out[i] = x[np.uint32(i - 1)]  # bug

    return kernel[1, 32], counting(32), zeros(32)


@bug("a negative index, which means the last element in Python and in Numba")
def wrapped_index(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if i > 0 or not mended:
            out[i] = x[i - 1]  # bug

    return kernel[1, 32], counting(32), zeros(32)


@bug("an index that overflows 16 bits and becomes negative")
def overflowing_index(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if mended:
            out[i] = x[i * 1000]
        else:
            out[i] = x[np.int16(i * 1000)]  # bug

    return kernel[1, 64], counting(64_000), zeros(64)


@bug("a store beyond a shared array that is smaller than the block")
def small_shared_array(mended):
    threads = 32 if mended else 64

    @cuda.jit(lineinfo=True)
    def kernel(x):
        s = cuda.shared.array(32, np.float32)
        i = cuda.threadIdx.x
        s[i] = x[i]  # bug
        cuda.syncthreads()
        x[i] = s[i] + 1

    return kernel[1, threads], counting(64)


@bug("a load beyond a shared array")
def neighbour_in_shared_memory(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        s = cuda.shared.array(64, np.float32)
        i = cuda.threadIdx.x
        s[i] = x[i]
        cuda.syncthreads()
        if i < 63 or not mended:
            out[i] = s[i + 1]  # bug

    return kernel[1, 64], counting(64), zeros(64)


@bug("a load beyond a local array")
def neighbour_in_local_memory(mended):
    @cuda.jit(lineinfo=True)
    def kernel(out):
        mine = cuda.local.array(4, np.float32)
        for k in range(4):
            mine[k] = k
        i = cuda.grid(1)
        out[i] = mine[i % (4 if mended else 5)]  # bug

    return kernel[1, 32], zeros(32)


@bug("floats at an address that is no multiple of 4")
def misaligned(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x):
        i = cuda.grid(1)
        x[i] = 1  # bug

    start = 0 if mended else 1
    return kernel[1, 32], zeros(129, dtype=np.uint8)[start : start + 128].view(np.float32)


# ---------------------------------------------------------------- races


@bug("a missing barrier between a store to shared memory and the load by another thread")
def missing_barrier(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        s = cuda.shared.array(64, np.float32)
        i = cuda.threadIdx.x
        s[i] = x[i]
        if mended:
            cuda.syncthreads()
        out[i] = s[63 - i]  # bug

    return kernel[1, 64], counting(64), zeros(64)


@bug("a missing barrier at the end of a loop: the next tile overwrites values that are still being read")
def missing_second_barrier(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        s = cuda.shared.array(64, np.float32)
        i = cuda.threadIdx.x
        total = np.float32(0)
        for tile in range(4):
            s[i] = x[tile * 64 + i]  # bug
            cuda.syncthreads()
            total += s[63 - i]
            if mended:
                cuda.syncthreads()
        out[i] = total

    return kernel[1, 64], counting(256), zeros(64)


@bug("a warp that exchanges through shared memory without syncwarp")
def missing_syncwarp(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        s = cuda.shared.array(32, np.float32)
        i = cuda.threadIdx.x
        s[i] = x[i]
        if mended:
            cuda.syncwarp()
        out[i] = s[31 - i]  # bug

    return kernel[1, 32], counting(32), zeros(32)


@bug("threads of a block that add to one element without an atomic")
def sum_without_atomic(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if mended:
            cuda.atomic.add(out, 0, x[i])
        else:
            out[0] += x[i]  # bug

    return kernel[1, 64], counting(64), zeros(1)


@bug("a histogram in shared memory without atomics")
def histogram_without_atomics(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        bins = cuda.shared.array(8, np.int32)
        i = cuda.threadIdx.x
        if i < 8:
            bins[i] = 0
        cuda.syncthreads()
        if mended:
            cuda.atomic.add(bins, x[i] % 8, 1)
        else:
            bins[x[i] % 8] += 1  # bug
        cuda.syncthreads()
        if i < 8:
            out[i] = bins[i]

    return kernel[1, 64], counting(64, np.int32), zeros(8, dtype=np.int32)


@bug("a block that reads what another block of the launch writes")
def between_blocks(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        x[i] = i
        if mended:
            out[i] = x[i]
        else:
            out[i] = x[x.size - 1 - i]  # bug

    return kernel[2, 32], zeros(64), zeros(64)


@bug("elements shifted in place: a thread overwrites what its neighbour still reads")
def shifted_in_place(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size - 1:
            if mended:
                out[i] = x[i + 1]
            else:
                x[i] = x[i + 1]  # bug

    return kernel[1, 64], counting(64), zeros(64)


# ---------------------------------------------------------------- memory that nothing wrote


@bug("shared memory that was not filled to its end")
def unwritten_shared(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        s = cuda.shared.array(32, np.float32)
        i = cuda.threadIdx.x
        if i < 20 or mended:
            s[i] = x[i]
        cuda.syncthreads()
        out[i] = s[i]  # bug

    return kernel[1, 32], counting(32), zeros(32)


@bug("an array of device_array that is added to, as though it began with zeros")
def unwritten_global(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] += x[i]  # bug

    return kernel[1, 32], counting(32), zeros(32) if mended else cuda.device_array(32, np.float32)


@bug("a local array that is added to, as though it began with zeros")
def unwritten_local(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        sums = cuda.local.array(2, np.float32)
        i = cuda.grid(1)
        if mended:
            sums[0] = 0
        sums[0] += x[i]  # bug
        out[i] = sums[0]

    return kernel[1, 32], counting(32), zeros(32)


# ---------------------------------------------------------------- barriers and warps


@bug("a barrier inside a branch that part of the block takes")
def barrier_in_branch(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        s = cuda.shared.array(64, np.float32)
        i = cuda.threadIdx.x
        s[i] = x[i]
        if mended:
            cuda.syncthreads()
        elif i < 40:
            cuda.syncthreads()  # bug
        out[i] = s[i]

    return kernel[1, 64], counting(64), zeros(64)


@bug("a barrier that threads miss because they have returned")
def barrier_after_return(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.grid(1)
        if i >= 40 and not mended:
            return
        cuda.syncthreads()  # bug
        if i < 40:
            out[i] = x[i]

    return kernel[1, 64], counting(64), zeros(64)


@bug("a shuffle whose mask names lanes that do not take part")
def mask_of_absent_lanes(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.threadIdx.x
        if mended:
            out[i] = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
        elif i < 16:
            out[i] = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)  # bug
        cuda.syncthreads()  # where the other lanes are

    return kernel[1, 32], counting(32), zeros(32)


@bug("a shuffle from a lane that its mask leaves out")
def source_outside_mask(mended):
    @cuda.jit(lineinfo=True)
    def kernel(x, out):
        i = cuda.threadIdx.x
        if i < 16:
            out[i] = cuda.shfl_down_sync(0xFFFF, x[i], 8 if mended and i < 8 else (0 if mended else 8))  # bug

    return kernel[1, 32], counting(32), zeros(32)


@bug("syncwarp with a mask that leaves out the caller")
def mask_without_caller(mended):
    @cuda.jit(lineinfo=True)
    def kernel(out):
        i = cuda.threadIdx.x
        cuda.syncwarp(0xFFFFFFFF if mended else 0xFFFF)  # bug
        out[i] = i

    return kernel[1, 32], zeros(32)


@bug("more threads in a block than a GPU allows")
def block_too_large(mended):
    @cuda.jit(lineinfo=True)
    def kernel(out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = i

    return kernel[1, 1024 if mended else 2048], zeros(32)  # bug


# ---------------------------------------------------------------- who finds it


def line_of(make):
    """(number, text) of the line with the bug, in this file."""
    lines, first = inspect.getsourcelines(make)
    (found,) = [(first + k, text) for k, text in enumerate(lines) if text.rstrip().endswith("# bug")]
    return found[0], found[1].replace("# bug", "").strip()


def observed(name, mended=False):
    """What the CPU device says of a kernel: None, or {"as": kind, "says": sentence, "lines": numbers}."""
    sentence, make = BUGS[name]
    try:
        configured, *args = make(mended)
        report = observe(configured, *args)
    except Exception as error:
        line = getattr(error, "line", None)
        return {"as": type(error).__name__, "says": _short(error), "lines": [line] if line else []}
    for finding in [*report.findings, *report.warnings]:
        return {"as": finding.kind, "says": _short(finding), "lines": finding.lines}
    return None


def _short(error):
    return re.sub(r"[\w./~-]*/(?=planted_bugs\.py)", "", " ".join(str(error).split()))[:300]


def sanitized(name, tool):
    """What a tool of compute-sanitizer says of the launch with the bug: {"errors", "line_named", "says"}."""
    number, _ = line_of(BUGS[name][1])
    command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", sys.executable, __file__, "--launch"]
    try:
        done = subprocess.run([*command, name], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT,
                              env=ON_GPU)  # fmt: skip
        errors, lines = summary(done.stdout + done.stderr)
    except subprocess.TimeoutExpired:
        return {"problem": f"not done after {TIMEOUT_S} s"}
    except ValueError as error:
        return {"problem": str(error)[-300:]}
    says = next((line.lstrip("= ") for line in lines if re.search(r"Invalid|hazard|Uninit|Barrier|error", line)), "")
    return {"errors": errors, "line_named": any(f"planted_bugs.py:{number}" in line for line in lines), "says": says}


def all_sanitized():
    """{bug: {tool: what it says}}, several processes at a time."""
    pairs = [(name, tool) for name in BUGS for tool in TOOLS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        says = dict(zip(pairs, pool.map(lambda pair: sanitized(*pair), pairs), strict=True))
    return {name: {tool: says[name, tool] for tool in TOOLS} for name in BUGS}


def recorded(name):
    number, text = line_of(BUGS[name][1])
    found = observed(name)
    entry = {"name": name, "bug": BUGS[name][0], "line": text, "simt": None}
    if found:
        entry["simt"] = {"as": found["as"], "line_named": number in found["lines"], "says": found["says"]}
    return entry


def table(entries):
    """A line for each bug: who finds it."""
    lines = [f"{'':28} {'observe':26} {'line':5} compute-sanitizer"]
    for entry in entries:
        ours, theirs = entry["simt"] or {"as": "-", "line_named": False}, entry["compute_sanitizer"]
        tools = theirs if isinstance(theirs, str) else ", ".join(t for t in TOOLS if theirs[t].get("errors")) or "-"
        lines.append(f"{entry['name']:28} {ours['as']:26} {'yes' if ours['line_named'] else 'no':5} {tools}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sanitizer", action="store_true", help="run compute-sanitizer as well: needs a GPU")
    parser.add_argument("--launch", choices=BUGS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.launch:
        configured, *args = BUGS[given.launch][1](False)
        configured(*args)
        return cuda.synchronize()
    says = all_sanitized() if given.sanitizer else dict.fromkeys(BUGS, "not run")
    entries = [{**recorded(name), "compute_sanitizer": says[name]} for name in BUGS]
    print(table(entries))
    record = {"date": datetime.date.today().isoformat(), "bugs": entries}
    if given.sanitizer:
        machine = "import json; from labkit import measure; print(json.dumps(measure.machine()))"
        done = subprocess.run([sys.executable, "-c", machine], capture_output=True, text=True, check=True, env=ON_GPU)
        record["machine"] = json.loads(done.stdout)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
