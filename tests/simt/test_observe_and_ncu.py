"""observe counts what a GPU counts: compared with what ncu read on an H200 for the same launches."""

import json

import pytest

from labkit._common.paths import MEASUREMENTS
from tests.simt import observe_and_ncu as counters

RECORDED = MEASUREMENTS / "ncu" / "nvidia-h200.json"


@pytest.fixture(scope="module")
def ours():
    return counters.observed()


@pytest.fixture(scope="module")
def theirs():
    return json.loads(RECORDED.read_text(encoding="utf-8"))["ncu"]


@pytest.mark.sweep
@pytest.mark.cpu_device
@pytest.mark.parametrize("kernel", ["naive", "coalesced", "tiled"])
@pytest.mark.parametrize("what", ["requests", "sectors", "bank conflicts"])
def test_equal_to_the_counters_of_a_gpu(ours, theirs, kernel, what):
    assert ours[kernel][what] == theirs[kernel][what]


@pytest.mark.sweep
@pytest.mark.cpu_device
def test_shared_loads_differ_by_what_the_compiler_joins(ours, theirs):
    """A row of a_tile is read four numbers at a time on the GPU: of its loads one in four is left."""
    warps, steps = (64 * 64) // 32, 64
    of_a_tile = warps * steps
    assert ours["tiled"]["shared requests"] - theirs["tiled"]["shared requests"] == of_a_tile - of_a_tile // 4


def test_missing_ncu_is_reported(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="ncu"):
        counters.measured()
