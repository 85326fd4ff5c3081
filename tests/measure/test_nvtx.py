"""Ranges nest, add up, survive errors, and are NVTX ranges where nvtx is there."""

import sys
import time
import types

import pytest

from labkit.measure import nvtx as module
from labkit.measure.nvtx import Ranges, RecordedRanges


@pytest.fixture(autouse=True)
def no_nvtx(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    module.nvtx.cache_clear()
    yield
    module.nvtx.cache_clear()


def test_inner_ranges_stand_below_the_outer_and_add_up():
    ranges = Ranges("a trip")
    with ranges("trip"):
        for _ in range(3):
            with ranges("work"):
                time.sleep(0.002)
        with ranges("rest"):
            pass
    found = {tuple(one["path"]): one for one in ranges.to_json()}
    assert list(found) == [("trip",), ("trip", "work"), ("trip", "rest")]
    assert found["trip", "work"]["count"] == 3
    assert found["trip", "work"]["ms"] >= 6
    assert found["trip",]["ms"] >= found["trip", "work"]["ms"] + found["trip", "rest"]["ms"]
    assert ranges.ms("work") == ranges.ms("trip", "work") == found["trip", "work"]["ms"]
    shown = str(ranges)
    for part in ("a trip", "100.0%", "\u2007\u2007work", "By the host's clock"):
        assert part in shown


def test_a_range_ends_with_its_error_and_one_pop_too_many_is_named():
    ranges = Ranges()
    with pytest.raises(ZeroDivisionError), ranges("outer"), ranges("inner"):
        1 / 0  # noqa: B018
    assert [one["count"] for one in ranges.to_json()] == [1, 1]
    with pytest.raises(RuntimeError, match="pop.. came more often"):
        ranges.pop()
    with pytest.raises(ValueError, match="0 ranges are called 'copy'; there are outer, outer / inner"):
        ranges.ms("copy")


def test_with_nvtx_each_range_is_one_of_its_ranges(monkeypatch):
    calls = []
    fake = types.SimpleNamespace(push_range=calls.append, pop_range=lambda: calls.append("end"))
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    module.nvtx.cache_clear()
    ranges = Ranges()
    with ranges("outer"), ranges("inner"):
        pass
    assert calls == ["outer", "inner", "end", "end"]


def test_only_a_range_that_waits_waits(monkeypatch):
    waits = []
    monkeypatch.setattr(module.cuda, "synchronize", lambda: waits.append(1))
    for wait in (True, False):
        ranges = Ranges(wait=wait)
        with ranges("launch"):
            pass
    assert len(waits) == 1
    assert "No range waits for the device." in str(ranges)


def test_recorded_ranges_say_where():
    shown = str(RecordedRanges([{"path": ["trip"], "ms": 2.0, "count": 1}], "Cold", "NVIDIA Imaginary, 2026-01-02"))
    assert "NVIDIA Imaginary, 2026-01-02" in shown
