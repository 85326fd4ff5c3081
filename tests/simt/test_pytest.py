"""The pytest plugin: suites in processes of their own."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu_device
SUITE = '''
import subprocess, sys, unittest
import numpy as np, pytest
from numba import cuda, float32

@cuda.jit
def add_up(values, total):
    i = cuda.grid(1)
    if i < values.size:
        total[0] += values[i]

@cuda.jit
def beyond(a):
    a[cuda.grid(1) + 1] = 1

@cuda.jit
def diverges(a):
    i = cuda.threadIdx.x
    if i < 4:
        cuda.syncthreads()
    a[i] = 1

@cuda.jit
def unwritten(a):
    part = cuda.shared.array(64, float32)
    a[cuda.threadIdx.x] = part[cuda.threadIdx.x]

def race():
    total = np.zeros(1, np.float32)
    add_up[1, 64](np.ones(64, np.float32), total)

def test_on_the_cpu():
    assert cuda.get_current_device().name == "labkit CPU device"
    code = "from numba import cuda; print(cuda.get_current_device().name)"
    assert "CPU" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

def test_race():
    race()

def test_beyond():
    try:
        beyond[1, 8](np.zeros(8))
    except IndexError:
        pass

def test_diverges():
    try:
        diverges[1, 64](np.zeros(64))
    except cuda.KernelRuntimeError:
        pass

def test_unwritten():
    unwritten[1, 32](np.zeros(32))

@pytest.mark.cuda_allow("race", "out_of_bounds")
def test_allowed():
    race()

@pytest.mark.cuda_allow
def test_all_allowed():
    race()

@pytest.fixture
def raced():
    race()

def test_fixture(raced):
    pass

@pytest.mark.xfail(strict=True)
def test_expected():
    race()

class Tests(unittest.TestCase):
    def test_of_unittest(self):
        race()
'''
WRONG = ["test_race", "test_beyond", "test_diverges", "test_unwritten", "test_fixture", "test_of_unittest"]


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "conftest.py").write_text("from numba import cuda\n", encoding="utf-8")
    (tmp_path / "test_suite.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def run(suite, *options):
    """(the lines that pytest prints, {test: how it ended})"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "-m", "pytest", "-rA", "--strict-markers", *options], text=True, cwd=suite,
                          capture_output=True, env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    results = [line.split() for line in lines if line.startswith(("PASSED", "FAILED", "ERROR", "XFAIL"))]
    return lines, {words[1].rpartition("::")[2]: words[0] for words in results if len(words) > 1}


@pytest.mark.sweep(every=True)
def test_cuda_on_cpu(suite):
    lines, results = run(suite, "-p", "labkit.simt.pytest", "--cuda-on-cpu")
    assert "cuda: the CPU device of labkit.simt" in lines
    assert results.pop("test_expected") == "FAILED"  # which a strict xfail is that passes
    assert set(results.values()) == {"PASSED"}


def check_observed(lines, results):
    assert "cuda: the CPU device of labkit.simt, launches are observed" in lines
    assert {name for name, result in results.items() if result in ("FAILED", "ERROR")} == set(WRONG)
    assert results["test_expected"] == "XFAIL" and results["test_on_the_cpu"] == "PASSED"
    assert "cuda: 8 launches observed" in lines


@pytest.mark.sweep(every=True)
def test_cuda_observe_fails_a_test_for_its_launches(suite):
    lines, results = run(suite, "-p", "labkit.simt.pytest", "--cuda-observe")
    check_observed(lines, results)
    text = "\n".join(lines)
    assert (
        "1 finding in the launches of this test\n\n"
        "test_suite.py:10: race in add_up\n"
        "     10 | total[0] += values[i]\n"
        "  What happens: Thread 32 reads total[0] at line 10, and thread "
    ) in text
    for kind, kernel in (("access out of bounds", "beyond"), ("barrier that some threads do not reach", "diverges"),
                         ("read of memory that nothing wrote", "unwritten")):  # fmt: skip
        assert f": {kind} in {kernel}\n" in text
    assert "  What to do:   Guard it, so that only threads with an element do it: `if i < a.size:`." in lines
    assert "  Seen:         beyond[1, 8], once in this launch" in lines


@pytest.mark.sweep(every=True)
def test_the_configuration_and_workers_of_xdist(suite):
    pytest.importorskip("xdist")
    settings = "[pytest]\naddopts = -p labkit.simt.pytest -n 2\ncuda_observe = true\n"
    (suite / "pytest.ini").write_text(settings, encoding="utf-8")
    check_observed(*run(suite))


@pytest.mark.sweep(every=True)
def test_large_launches_are_not_observed(suite):
    lines, results = run(suite, "-p", "labkit.simt.pytest", "--cuda-observe", "--cuda-observe-threads", "31")
    assert results["test_race"] == "PASSED"
    compiled = "add_up (5), diverges (1), unwritten (1)"
    assert f"cuda: 1 launch observed; too large or too many to observe, so run compiled: {compiled}" in lines


@pytest.mark.sweep(every=True)
def test_a_long_launch_begins_again_compiled(suite):
    text = '''
import numpy as np
from numba import cuda

@cuda.jit
def count(a):
    for _ in range(10_000):
        a[cuda.threadIdx.x] += 1

def test_long():
    a = np.zeros(64)
    count[1, 64](a)
    assert (a == 10_000).all()
'''
    (suite / "test_suite.py").write_text(text, encoding="utf-8")
    lines, results = run(suite, "-p", "labkit.simt.pytest", "--cuda-observe")
    assert results == {"test_long": "PASSED"}
    assert "cuda: 0 launches observed; too large or too many to observe, so run compiled: count (1)" in lines


@pytest.mark.sweep(every=True)
def test_a_failing_test_has_both(suite):
    text = SUITE.replace("def test_race():\n    race()\n", "def test_race():\n    race()\n    assert not 'a reason'\n")
    (suite / "test_suite.py").write_text(text, encoding="utf-8")
    lines, _ = run(suite, "-p", "labkit.simt.pytest", "--cuda-observe", "-k", "test_race")
    assert "E       AssertionError: assert not 'a reason'" in lines
    assert any("CUDA launches call" in line for line in lines) and "test_suite.py:10: race in add_up" in lines


@pytest.mark.sweep(every=True)
def test_an_unknown_kind_is_named(suite):
    (suite / "test_suite.py").write_text(SUITE.replace('"out_of_bounds"', '"rice"'), encoding="utf-8")
    lines, _ = run(suite, "-p", "labkit.simt.pytest", "--cuda-observe", "-k", "test_allowed")
    assert any("cuda_allow has no kind 'rice'; kinds: race, out_of_bounds" in line for line in lines)


def test_without_the_options_nothing_changes(suite):
    text = "def test():\n    import sys\n    assert not any(m.startswith('labkit.simt.obs') for m in sys.modules)\n"
    (suite / "test_suite.py").write_text(text, encoding="utf-8")
    (suite / "conftest.py").unlink()
    lines, results = run(suite, "-p", "labkit.simt.pytest")
    assert results == {"test": "PASSED"} and not any(line.startswith("cuda:") for line in lines)
