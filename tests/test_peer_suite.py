"""scripts/peer_suite.py puts results in their classes, and what it has recorded is well formed."""

import json
import subprocess
import sys
import unittest

import pytest

from labkit._common.paths import REPOSITORY
from tests.scripts import loaded

pytestmark = pytest.mark.sweep(every=True)  # about the repository: .ci/run runs it

SCRIPT = REPOSITORY / "scripts" / "peer_suite.py"
RECORD = REPOSITORY / "data" / "peer_suite.json"


@pytest.fixture(scope="module")
def suite():
    with loaded("peer_suite") as script:
        yield script


class Samples(unittest.TestCase):
    """Tests with one outcome each, as numba-cuda writes them."""

    def passed(self):
        self.assertEqual(1 + 1, 2)

    def wrong(self):
        self.assertEqual(1 + 1, 3)

    def accepted(self):
        with self.assertRaises(TypeError):
            pass

    def skipped(self):
        self.skipTest("only on the simulator")

    def gpu(self):
        from labkit.simt import api

        self.assertIsNone(api.compile_ptx)

    def refused(self):
        from labkit.simt import api

        self.assertIsNone(api.no_such_name)

    def timeout(self):
        while True:
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="the time limit needs SIGALRM")
@pytest.mark.parametrize("kind", ["passed", "wrong", "accepted", "skipped", "gpu", "refused", "timeout"])
def test_each_class(suite, kind):
    assert suite.run_test(Samples(kind), limit_s=1 if kind == "timeout" else 60)[0] == kind


def test_errors_of_a_run_are_no_refusals(suite):
    from labkit.simt.errors import BarrierError

    fault = BarrierError("k, line 3: ...", kernel="k", filename="f", line=3, block=None, thread=None)
    assert suite.classified("error", fault, ["labkit/simt/workers.py"]) == "wrong"
    assert suite.classified("error", KeyError("line 3"), ["labkit/simt/kernel.py"]) == "wrong"


def test_share(suite):
    assert suite.share({"passed": 6, "wrong": 1, "refused": 1, "gpu": 50, "skipped": 9}) == 0.75


def test_the_record_is_well_formed(suite):
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert list(record["counts"]) == list(record["tests"]) == list(suite.CLASSES)
    for kind, names in record["tests"].items():
        assert names == sorted(set(names)) and len(names) == record["counts"][kind]
    assert record["share_passed"] == suite.share(record["counts"]) > 0.5
    assert set(record["versions"]) == {"numba", "numba-cuda", "numpy", "python"}
    assert str(REPOSITORY) not in RECORD.read_text(encoding="utf-8")


@pytest.mark.sweep
def test_one_file_of_numba_cuda(suite):
    """The whole way: a process of the pool in which numba.cuda is the CPU device."""
    pytest.importorskip("numba_cuda")
    command = [sys.executable, SCRIPT, "cudapy.test_lang", "-v"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "share passed                         100.0%" in done.stdout, done.stdout
