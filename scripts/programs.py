"""Programs that no one here wrote, on the CPU device: what passes, and why the rest does not.

    python scripts/programs.py                  run all, write data/simt_programs.json, print a table
    python scripts/programs.py stumpy -v        run those whose name holds a word; nothing is written
    python scripts/programs.py --update stumpy  run those, and put them into the record

scripts/programs.toml lists them. Packages come from PyPI, repositories from GitHub at the commit named there, or from
FOLDER/owner/name with --repositories FOLDER; none of it is kept here. Each runs twice under `python -m labkit.simt`,
with no compiled kernels at first, and the timed part of it under Numba's own simulator as well.
"""

import argparse
import datetime
import fnmatch
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import xml.etree.ElementTree
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts" / "programs.toml"
RECORD = ROOT / "data" / "simt_programs.json"
KINDS = {
    "passed": "passed", "gpu": "needs a GPU's library, driver or code", "refused": "refused, and says what",
    "found": "stopped at a fault of the program's", "program": "fails for a reason of its own",
    "wrong": "wrong or obscure", "timeout": "not in time", "skipped": "skipped by the test itself",
}  # fmt: skip
LEFT_OUT = ("!", "%pip", "%cd", "%load", "%matplotlib")  # lines of a notebook
FILE_LIMITS = 4  # a file of tests may take so many times a test's limit
LIMIT_S = 120  # one test, script or notebook on the CPU device
SIMULATOR_LIMIT_S = 120  # one of them, or a program's timed tests, under Numba's simulator
_FAULTS = ("BarrierError", "OutOfBoundsError", "MisalignedError", "WarpError", "DeadlockError", "KernelAssertionError")
_REFUSALS = re.compile(r"UnsupportedError|CPU device|not supported|cannot be|numba\.cuda has no")
_GPU = re.compile(
    r"needs a GPU|needs numba\.cuda|No module named '(cupy|torch|cudf|rmm|cuda|cccl|pycuda|nvmath|pynvml)"
    r"|CudaSupportError|CudaDriverError|NVVM|nvrtc|libcuda|nvcc|cuInit"
)  # fmt: skip


# ---------------------------------------------------------------- what there is


def programs(words=()):
    """The programs of the list whose name holds one of the words."""
    every = tomllib.loads(LIST.read_text(encoding="utf-8"))["program"]
    return [program for program in every if not words or any(word in program["name"] for word in words)]


def fetched(program, work, repositories=None):
    """The folder that holds the program's files, fetched into work unless they are there."""
    folder = work / re.sub(r"\W+", "-", program["source"])
    if folder.is_dir():
        return folder
    origin, name = program["source"].split(":", 1)
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        temporary = Path(temporary)
        if origin == "pypi":
            files = temporary / "files"
            form = ["--no-binary", name.split("==")[0]] if program.get("sdist") else []
            _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", *form, "-d", temporary, name])
            (archive,) = [path for path in temporary.iterdir() if path.suffix in (".whl", ".gz", ".zip")]
            if archive.suffix == ".gz":
                with tarfile.open(archive) as opened:
                    opened.extractall(files, filter="data")
                (files,) = files.iterdir()
            else:
                zipfile.ZipFile(archive).extractall(files)
            files.rename(folder)
        else:
            owner_name, commit = name.split("@")
            address = f"{repositories}/{owner_name}" if repositories else f"https://github.com/{owner_name}"
            copy = temporary / "copy"
            partial = [] if repositories else ["--filter=blob:none"]
            _run(["git", "clone", "-q", "--no-checkout", *partial, address, copy])
            _run(["git", "-C", copy, "checkout", "-q", commit, "--", *program["paths"]])
            copy.rename(folder)
    return folder


def environment(work, needs):
    """The Python of a virtual environment in work: this one's packages, and those that the programs need beside."""
    folder = work / "venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        parents = [path for path in sys.path if path.endswith("site-packages")]
        (site / "parent.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in parents))
    _run([python, "-m", "pip", "install", "-q", *sorted(needs)])
    return python


def _run(command):
    subprocess.run(list(map(str, command)), check=True)


# ---------------------------------------------------------------- one run


def run(program, folder, python, device, cache, select=None):
    """{item: (kind, text, seconds)} of a program: its tests, scripts, notebooks' cells and calls.

    device: "simt", or "simulator" for Numba's own. select: run only tests whose name matches this expression of pytest.
    """
    variables = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "MPLBACKEND": "Agg", "PYTHONWARNINGS": "ignore", "LABKIT_CACHE_DIR": str(cache),
        "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_DISABLE_PERFORMANCE_WARNINGS": "1",
    }  # fmt: skip
    start = [str(python)]
    if device == "simt":
        start += ["-m", "labkit.simt"]
    else:
        variables["NUMBA_ENABLE_CUDASIM"] = "1"
    limit = SIMULATOR_LIMIT_S if device == "simulator" else LIMIT_S
    found = {}
    for name, text in program.get("files", {}).items():
        (folder / name).write_text(text)
    if program.get("tests"):
        found |= _tests(program, folder, start, variables, limit, select)
    for script in [] if select else _matching(folder, program.get("scripts", []), program.get("not", [])):
        found[script] = _script(start, folder / script, folder, variables, limit)
    for notebook in [] if select else _matching(folder, program.get("notebooks", []), program.get("not", [])):
        found |= _notebook(start, notebook, folder, variables, limit)
    for name, call in program.get("calls", {}).items():
        path = folder / f"call_{name}.py"
        path.write_text(call)
        found[name] = _script(start, path, folder, variables, limit)
    return {name: _overridden(program, name, *result) for name, result in found.items()}


def _matching(folder, patterns, left_out):
    names = {str(path.relative_to(folder)) for pattern in patterns for path in folder.glob(pattern)}
    return sorted(name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in left_out))


def _limited(command, folder, variables, limit):
    """(exit code or None, output, seconds) of a command that is ended with its children after limit seconds."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0], time.perf_counter() - begin
    return process.returncode, output, time.perf_counter() - begin


def _script(start, path, folder, variables, limit):
    code, output, seconds = _limited([*start, str(path)], path.parent, variables, limit)
    if code is None:
        return "timeout", f"{limit} s", seconds
    if code == 0:
        return "passed", "", seconds
    lines = [line for line in output.splitlines() if line.strip()]
    return (*classified("\n".join(lines[-40:])), seconds)


def _tests(program, folder, start, variables, limit, select):
    """{test: result}; each file in a process of its own, so that one which is ended costs no other's results."""
    found = {}
    chosen = select or program.get("select")
    for file in _matching(folder, program["tests"], program.get("not", [])):
        with tempfile.TemporaryDirectory() as temporary:
            report = Path(temporary, "report.xml")
            command = [*start, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", f"--timeout={limit}",
                       f"--junitxml={report}", *(["-k", chosen] if chosen else []), *program.get("options", []), file]
            code, output, seconds = _limited(command, folder, variables, FILE_LIMITS * limit)
            if report.exists():
                cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
                found |= dict(_case(case) for case in cases)
            else:
                kind, text = ("timeout", f"{seconds:.0f} s") if code is None else classified(output)
                found[f"{file} (all tests)"] = kind, text, seconds
    return found


def _case(case):
    name = f"{case.get('classname')}::{case.get('name')}".removeprefix("::")
    seconds = float(case.get("time"))
    for result in case:
        if result.tag == "skipped":
            return name, ("skipped", result.get("message", "")[:200], seconds)
        if result.tag in ("failure", "error"):
            text = result.get("message", "") + "\n" + (result.text or "")
            if "Timeout" in result.get("message", ""):
                return name, ("timeout", result.get("message"), seconds)
            return name, (*classified(text, result.get("message")), seconds)
    return name, ("passed", "", seconds)


def _notebook(start, name, folder, variables, limit):
    """{notebook, cell: result}; in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary, "report.json")
        command = [*start, __file__, "--cells", str(folder / name), "--report", str(report)]
        code, output, seconds = _limited(command, (folder / name).parent, variables, 3 * limit)
        cells = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    found = {}
    for index, raised, took in cells:
        found[f"{name}, cell {index}"] = (*(classified(raised) if raised else ("passed", "")), took)
    if code is None:
        found[f"{name}, after cell {cells[-1][0] if cells else 0}"] = ("timeout", f"{3 * limit} s", seconds)
    elif code:
        found[f"{name}, after cell {cells[-1][0] if cells else 0}"] = (*classified(output), seconds)
    return found


def _run_cells(path, report):
    """Execute the code cells of a notebook with IPython, without shell commands; a line of JSON for each."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.showtraceback = lambda *args, **kwargs: None
    sys.path.insert(0, str(path.parent))
    with open(report, "w", buffering=1) as lines:
        for index, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            source = "".join(cell["source"])
            if cell["cell_type"] != "code" or source.startswith(("%%bash", "%%sh")):
                continue
            kept = [line for line in source.splitlines() if not line.lstrip().startswith(LEFT_OUT)]
            source = "\n".join(kept).replace("%timeit ", "%timeit -n 1 -r 1 ")
            begin = time.perf_counter()
            result = shell.run_cell(source)
            error = result.error_before_exec or result.error_in_exec
            raised = f"{type(error).__name__}: {error}" if error else None
            lines.write(json.dumps([index, raised, time.perf_counter() - begin]) + "\n")


# ---------------------------------------------------------------- why something did not pass


def classified(text, message=None):
    """(kind, sentence) of what did not pass, from its traceback or message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(E\s+)?[\w.]*(Error|Exception|Interrupt|Timeout)\b", line)]
    said = (message or "").strip() or (raised or lines or [""])[-1]
    sentence = re.sub(r"^E\s+", "", said.splitlines()[0] if said else "")
    sentence = re.sub(r"[\w./~-]*/(?=[\w-]+\.\w+)", "", sentence)[:300]
    for kind, pattern in (("found", "|".join(_FAULTS)), ("gpu", _GPU), ("refused", _REFUSALS)):
        if re.search(pattern, sentence) or (kind != "refused" and raised and re.search(pattern, raised[-1])):
            return kind, sentence
    return "wrong", sentence


def _overridden(program, name, kind, text, seconds):
    """The kind and sentence that the list gives by hand for what did not pass."""
    if kind not in ("passed", "skipped"):
        for pattern, because in program.get("because", {}).items():
            if fnmatch.fnmatch(f"{name} {text}", pattern):
                kind, text = because.split(": ", 1)
    return kind, text, round(seconds, 3)


# ---------------------------------------------------------------- all runs, and the record


def recorded(program, folder, python, simulator=True):
    """What the record says of a program: two runs on the CPU device, and the timed part under Numba's simulator."""
    with tempfile.TemporaryDirectory() as cache:
        first = run(program, folder, python, "simt", cache)
        second = run(program, folder, python, "simt", cache)
    counts = {kind: sum(k == kind for k, _, _ in first.values()) for kind in KINDS}
    entry = {key: program[key] for key in ("name", "source", "licence", "what", "checked")}
    if program.get("fresh"):
        entry["fresh"] = True
    entry |= {"run": len(first), "counts": {kind: n for kind, n in counts.items() if n}, "share_passed": share(counts)}
    entry["seconds"] = {"first": _total(first), "second": _total(second)}
    if simulator and "timed" in program:
        entry["simulator"] = compared(program, folder, python, first, second)
    causes = {}
    for name, (kind, text, _) in first.items():
        if kind not in ("passed", "skipped"):
            causes.setdefault(f"{kind}: {text}", []).append(name)
    entry["causes"] = causes
    changed = sorted(name for name in first if second.get(name, ("absent",))[0] != first[name][0])
    return entry | ({"differs_the_second_time": changed} if changed else {})


def compared(program, folder, python, first, second):
    """The times of what passes on both, in seconds: the CPU device, twice, and Numba's simulator."""
    timed = program["timed"]
    few = {**program, **timed, "calls": program.get("calls", {}) if timed.get("calls") else {}}
    for part in ("tests", "scripts", "notebooks"):
        few[part] = timed.get(part, [])
    with tempfile.TemporaryDirectory() as cache:
        theirs = run(few, folder, python, "simulator", cache)
    both = sorted(name for name in theirs if theirs[name][0] == "passed" and first.get(name, ("",))[0] == "passed")
    late = sorted(name for name in theirs if theirs[name][0] == "timeout")
    other = {name: f"{kind}: {text}" for name, (kind, text, _) in theirs.items() if kind not in ("passed", "timeout")}
    entry = {"items": len(both), "simt_first": _total(first, both), "simt_second": _total(second, both),
             "simulator": _total(theirs, both)}  # fmt: skip
    return entry | ({"not_in_time": late} if late else {}) | ({"not_passed": other} if other else {})


def _total(results, names=None):
    return round(sum(results[name][2] for name in (results if names is None else names)), 2)


def share(counts):
    """The share that passes of what a CPU device could pass."""
    able = sum(counts.get(kind, 0) for kind in KINDS if kind not in ("gpu", "skipped", "program"))
    return round(counts.get("passed", 0) / able, 4) if able else 0.0


def table(entries):
    """The entries, a line each."""
    short = ("pass", "gpu", "refuse", "found", "own", "wrong", "late", "skip")
    heads = " ".join(f"{head:>6}" for head in ("run", *short, "share", "first", "second"))
    lines = [f"{'':36} {heads}   a part of it, s: first, second, Numba's simulator"]
    for entry in entries:
        counts = " ".join(f"{entry['counts'].get(kind, 0):>6}" for kind in KINDS)
        times = f"{entry['seconds']['first']:>6.0f} {entry['seconds']['second']:>6.0f}"
        part = entry.get("simulator")
        beside = f"{part['simt_first']}, {part['simt_second']}, {part['simulator']}" if part else ""
        head = f"{entry['name'][:36]:36} {entry['run']:>6} {counts}"
        lines.append(f"{head} {entry['share_passed']:>6.1%} {times}   {beside}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only programs whose name holds one of these")
    parser.add_argument("--update", action="store_true", help="put the programs that are run into the record")
    parser.add_argument("--repositories", type=Path, help="a folder with owner/name, instead of GitHub")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "programs", help="where programs are fetched to")
    parser.add_argument("--no-simulator", action="store_true", help="leave Numba's simulator out")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the cause of all that did not pass")
    parser.add_argument("--cells", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cells:
        return _run_cells(given.cells, given.report)
    given.work.mkdir(parents=True, exist_ok=True)
    chosen = programs(given.words)
    needs = {need for program in chosen for need in program.get("needs", [])} | {"pytest", "pytest-timeout", "ipython"}
    python = environment(given.work, needs)
    entries = []
    for program in chosen:
        entry = recorded(program, fetched(program, given.work, given.repositories), python, not given.no_simulator)
        print(table([entry]).splitlines()[1], file=sys.stderr, flush=True)
        if given.verbose:
            for cause, names in entry["causes"].items():
                print(f"    {len(names)} {cause}\n        {'; '.join(names[:6])}", file=sys.stderr, flush=True)
        entries.append(entry)
        if given.update or not given.words:
            write(entries, keep=given.update)  # after each: a run can be stopped
    print(table(entries))
    return 0


def write(entries, keep):
    """Write data/simt_programs.json: entries, and what it holds of the other programs if keep."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))["programs"] if keep and RECORD.exists() else []
    by_name = {entry["name"]: entry for entry in known}
    by_name |= {entry["name"]: entry for entry in entries}
    ordered = [by_name[program["name"]] for program in programs() if program["name"] in by_name]
    versions = {name: importlib.metadata.version(name) for name in ("numba", "numba-cuda", "numpy")}
    versions["python"] = ".".join(map(str, sys.version_info[:2]))
    record = {"date": datetime.date.today().isoformat(), "versions": versions, "programs": ordered}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
