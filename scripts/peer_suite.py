"""numba-cuda's own tests against the CPU device: what share of them passes, and how the others fail.

    python scripts/peer_suite.py                 run all, write data/peer_suite.json, print a table
    python scripts/peer_suite.py --check         run all; 1 if the share that passes is below the recorded one
    python scripts/peer_suite.py test_sync -v    run the files whose name holds a word; nothing is written

The tests are those of the numba-cuda that is installed; nothing of them is kept here. Each runs in a process of a pool
in which `numba.cuda` is labkit.simt.api, with a time limit. Its result is one of

    passed      as on a GPU
    refused     an error of the CPU device that names what it does not support
    gpu         asks for PTX, SASS, LLVM's IR, the driver, or a library that only a GPU has: no CPU device can pass
    accepted    the test expects an error, and the CPU device raised none
    wrong       another result, or an error that does not say what is not supported
    timeout     neither in time
    skipped     the test says so itself

The share is passed / (all - gpu - skipped).
"""

import argparse
import datetime
import fnmatch
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import unittest
import unittest.mock
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "data" / "peer_suite.json"
CLASSES = {
    "passed": "passed", "refused": "refused, and says what", "gpu": "needs PTX, the driver or GPU code",
    "accepted": "accepted where a GPU refuses", "wrong": "wrong or obscure", "timeout": "not in time",
    "skipped": "skipped by the test itself",
}  # fmt: skip
TESTS = "numba.cuda.tests"
# Compilers, caches, linkers, the driver and what numba-cuda keeps inside: no semantics of kernels.
LEFT_OUT = {
    "cudapy": (
        "test_analysis", "test_array_alignment", "test_bfloat16_bindings", "test_byteflow", "test_cache_hints",
        "test_caching", "test_cffi", "test_compiler", "test_copy_propagate", "test_cupy_*", "test_debug*",
        "test_fp8_bindings", "test_inspect", "test_ipc", "test_ir*", "test_lineinfo", "test_multigpu", "test_serialize",
        "test_sm_creation", "test_ssa", "test_tracing", "test_typeconv", "test_typeinfer", "test_launch_config_*",
        "test_make_function_*", "test_multiprocessing",
    ),
    "cudadrv": (
        "test_context_stack", "test_cuda_driver", "test_deallocations", "test_emm_plugins", "test_init",
        "test_inline_ptx", "test_linkable_code", "test_linker", "test_module_callbacks", "test_nvjitlink", "test_nvrtc",
        "test_nvvm_driver", "test_runtime",
    ),
    "doc_examples": ("test_cpointer", "test_ffi"),
}  # fmt: skip
LEFT_OUT_TESTS = ("*TestLibdeviceCompilation*",)  # 330 that compile to PTX alone
LIMIT_S = 40
_SAYS_SO = re.compile(
    r"not supported|cannot be (used|called|reached|read|passed)|does not exist on the CPU device|the CPU device|"
    r"numba\.cuda has no|takes? (numbers|\()|host (object|function)|must be|must have|may be at most|a kernel|"
    r"device function|device array|not a dtype|is recursive|too (large|much)|line \d+|has no (option|argument)"
)
_GPU_WORDS = re.compile(
    r"needs (a GPU|numba\.cuda)|NVVM|nvrtc|libcuda|libnvvm|CUDA driver|cuInit|CUDA_HOME|"
    r"cuda_include|nvjitlink|_numba_cuda|No such file or directory: '.*cuda", re.IGNORECASE
)  # fmt: skip
_GPU_NAMES = {"CudaSupportError", "CudaDriverError", "CudaAPIError", "NvvmError", "NvvmSupportError", "NvrtcError",
              "DynamicLibNotFoundError", "LinkerError", "NvvmInternalError"}  # fmt: skip


_NOT_REFUSALS = {"AssertionError", "BarrierError", "DeadlockError", "KernelAssertionError", "KernelTimeout",
                 "MisalignedError", "OutOfBoundsError", "WarpError"}  # fmt: skip


def classified(kind, raised=None, places=()):
    """The class of one result of unittest: kind is "passed", "skipped" or "error".

    raised: the exception; places: the files of its traceback, outermost first.
    """
    if kind != "error":
        return kind
    name, text = type(raised).__name__, str(raised)
    if name == "Skipped":  # pytest.skip
        return "skipped"
    ours = any("labkit/simt/" in place for place in places)
    if name == "OutOfTime":
        return "timeout"
    if name in _GPU_NAMES or _GPU_WORDS.search(text) or any("/cudadrv/" in p and "/tests/" not in p for p in places):
        return "gpu"
    if isinstance(raised, AssertionError) and re.search(r"\w+ not raised|not triggered", text):
        return "accepted"
    internal = isinstance(raised, (KeyError, ZeroDivisionError, RecursionError)) or name in _NOT_REFUSALS
    if ours and not internal and _SAYS_SO.search(text):
        return "refused"
    return "wrong"


# ---------------------------------------------------------------- in a process of the pool


class OutOfTime(BaseException):
    """A test took longer than its limit."""


def _become_numba_cuda():
    """From here on `numba.cuda` is the CPU device; of numba-cuda there are its tests alone."""
    from labkit.simt import stand_in

    for name in ("filecheck", "filecheck.matcher", "filecheck.options", "filecheck.parser", "filecheck.finput"):
        sys.modules.setdefault(name, unittest.mock.MagicMock(name=name))  # reads LLVM's IR: there is none
    stand_in.install()
    importlib.import_module("numba.cuda").__path__ = [str(_folder())]


def _folder():
    return Path(importlib.util.find_spec("numba_cuda").origin).parent / "numba" / "cuda"


class _Result(unittest.TestResult):
    """Remembers the outcome of one test; of several subtests that fail, the first."""

    def __init__(self):
        super().__init__()
        self.kind, self.raised, self.places = "passed", None, ()

    def _failed(self, err):
        if self.kind != "error":
            self.kind, self.raised = "error", err[1]
            self.places = [frame.filename for frame in traceback.extract_tb(err[2])]

    def addError(self, test, err):
        self._failed(err)

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._failed(err)

    def addSkip(self, test, reason):
        if self.kind == "passed":
            self.kind = "skipped"

    def addUnexpectedSuccess(self, test):
        self.kind, self.raised = "error", AssertionError("expected failure: error not raised")


def run_test(test, limit_s=LIMIT_S):
    """(class, message) of a unittest.TestCase."""
    result = _Result()

    def out_of_time(*_):
        raise OutOfTime(f"{limit_s} s")

    before = signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(limit_s)
    try:
        test.run(result)
    except OutOfTime as late:
        result.kind, result.raised = "error", late
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    text = "" if result.raised is None else f"{type(result.raised).__name__}: {result.raised}"
    return classified(result.kind, result.raised, result.places), " ".join(text.split())[:400]


def _all_tests(suite):
    for part in suite:
        yield from _all_tests(part) if isinstance(part, unittest.TestSuite) else [part]


_OF_CHILDREN = f"""import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import peer_suite
peer_suite._become_numba_cuda()
"""


def _work():
    """Read modules from stdin; for each test write a line of JSON. A line with no class is the test that begins."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what tests print
    os.environ.setdefault("LABKIT_WORKERS", "1")
    _become_numba_cuda()
    children = tempfile.TemporaryDirectory()  # tests start processes of their own
    Path(children.name, "sitecustomize.py").write_text(_OF_CHILDREN)
    os.environ["PYTHONPATH"] = os.pathsep.join([children.name, str(ROOT)])
    for line in sys.stdin:
        module, done = json.loads(line)
        try:
            tests = list(_all_tests(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))))
        except Exception as error:
            places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            text = f"{type(error).__name__}: {error}"
            answers.write(json.dumps([f"{module}.(import)", classified("error", error, places), text[:400]]) + "\n")
            tests = []
        for test in tests:
            left_out = any(fnmatch.fnmatch(test.id(), pattern) for pattern in LEFT_OUT_TESTS)
            if test.id() not in done and not left_out:
                answers.write(json.dumps([test.id(), None, ""]) + "\n")
                answers.write(json.dumps([test.id(), *run_test(test)]) + "\n")
        answers.write(json.dumps(None) + "\n")


# ---------------------------------------------------------------- the pool


def modules(words=()):
    """The test modules that are run: of numba-cuda's cudapy, cudadrv and doc_examples, those that concern semantics."""
    folder = _folder() / "tests"
    found = []
    for part, left_out in LEFT_OUT.items():
        for path in sorted((folder / part).glob("test_*.py")):
            taken = any(fnmatch.fnmatch(path.stem, pattern) for pattern in left_out)
            if not taken and (not words or any(word in f"{part}.{path.stem}" for word in words)):
                found.append(f"{TESTS}.{part}.{path.stem}")
    return found


def run_module(module):
    """{test: (class, message)} of a module, in a process that is replaced when a test hangs or ends it."""
    done, ended = {}, False
    while not ended:
        process = subprocess.Popen([sys.executable, __file__, "--work"], text=True, cwd=ROOT,
                                   env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        begun, timer = None, None
        try:
            process.stdin.write(json.dumps([module, sorted(done)]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if timer:
                    timer.cancel()
                answer = json.loads(line)
                if answer is None:
                    return done
                name, kind, text = answer
                begun = name if kind is None else None
                if kind is not None:
                    done[name] = kind, text
                timer = threading.Timer(LIMIT_S + 15, process.kill)
                timer.start()
        finally:
            if timer:
                timer.cancel()
            process.kill()
            process.wait()
        hangs = begun is not None and process.returncode == -signal.SIGKILL
        done[begun or f"{module}.(import)"] = "timeout" if hangs else "wrong", "the process ended"
        ended = begun is None
    return done


def run_all(names, processes):
    """{test: (class, message)} of these modules, so many at a time."""
    results = {}
    with ThreadPoolExecutor(processes) as pool:
        for name, found in zip(names, pool.map(run_module, names), strict=True):
            passed = sum(kind == "passed" for kind, _ in found.values())
            print(f"{name.removeprefix(TESTS)[1:]}: {passed} of {len(found)} passed", file=sys.stderr)
            results.update(found)
    return {name.removeprefix(f"{TESTS}."): results[name] for name in sorted(results)}


# ---------------------------------------------------------------- the record


def share(counts):
    """The share that passes of what a CPU device could pass."""
    able = sum(counts.values()) - counts.get("gpu", 0) - counts.get("skipped", 0)
    return round(counts.get("passed", 0) / able, 4) if able else 0.0


def recording(results):
    """What data/peer_suite.json holds."""
    import numba
    import numba_cuda
    import numpy

    by_class = {kind: sorted(name for name, (k, _) in results.items() if k == kind) for kind in CLASSES}
    counts = {kind: len(names) for kind, names in by_class.items()}
    versions = {"numba": numba.__version__, "numba-cuda": numba_cuda.__version__, "numpy": numpy.__version__,
                "python": ".".join(map(str, sys.version_info[:2]))}  # fmt: skip
    return {"date": datetime.date.today().isoformat(), "versions": versions, "counts": counts,
            "share_passed": share(counts), "tests": by_class}  # fmt: skip


def table(record):
    lines = [f"{CLASSES[kind]:<36} {count:>5}" for kind, count in record["counts"].items()]
    return "\n".join([*lines, f"{'share passed':<36} {record['share_passed']:>5.1%}"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="run only files whose name holds one of these")
    parser.add_argument("--check", action="store_true", help="fail if the share that passes has fallen")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument("-v", "--verbose", action="store_true", help="print every test that did not pass")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return _work()
    results = run_all(modules(given.words), given.processes)
    if given.verbose:
        for name, (kind, text) in results.items():
            if kind not in ("passed", "skipped"):
                print(f"{kind:9} {name}  {text}")
    record = recording(results)
    print(table(record))
    if given.check:
        before = json.loads(RECORD.read_text(encoding="utf-8"))["share_passed"]
        if record["share_passed"] < before:
            print(f"the share that passes is {record['share_passed']:.1%}; {RECORD.name} has {before:.1%}")
            return 1
    elif not given.words:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
