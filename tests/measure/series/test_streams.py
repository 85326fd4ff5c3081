"""An array in chunks: right for any number of them, on any number of streams; what a schedule says; a trace read."""

import json

import numpy as np
import pytest

from labkit import cuda, measure
from labkit.measure.series import streams as series

PARTS = {"copy to the device": 4.0, "kernel": 4.0, "copy to the host": 4.0}


@pytest.mark.parametrize(("n", "chunks", "lanes"), [(1, 1, 1), (1000, 3, 2), (1001, 7, 3), (64, 64, 3)])
def test_chunks_cover_the_array(n, chunks, lanes):
    x, out, on_device = series._arrays(n)
    out[:] = np.nan
    series.in_chunks(x, out, on_device, chunks, 5, [cuda.stream() for _ in range(lanes)])
    cuda.synchronize()
    np.testing.assert_allclose(out, series.settled(x, 5), rtol=1e-6)


def test_a_schedule_by_hand():
    # chunk:   there 0-1 1-2 2-3 3-4, kernels one later, back two later: 4 chunks end after 6 of their quarters
    assert series.makespan(PARTS, 1) == 12 and series.makespan(PARTS, 4) == 6 and series.makespan(PARTS, 4, 1) == 12
    slow = {**PARTS, "kernel": 8.0}
    assert series.makespan(slow, 4) == pytest.approx(1 + 8 + 1)  # the kernel never waits but for its first chunk
    assert series.makespan(PARTS, 4, 2) == 7  # the third chunk waits for the end of the first
    starts = [event["start_ms"] for event in series.schedule(PARTS, 4) if event["engine"] == "kernel"]
    assert starts == [1, 2, 3, 4]


@pytest.mark.parametrize(("chunks", "streams"), [(0, 1), (3, 0)])
def test_nothing_cannot_be_scheduled(chunks, streams):
    with pytest.raises(ValueError, match="both must be 1 or more"):
        series.schedule(PARTS, chunks, streams)


def test_the_series_has_each_way():
    found = series.streams(n=4096, rounds=2, chunks=(1, 2, 4), budget_s=0.001)
    assert list(found["parts"]) == list(series.ENGINES) and min(found["parts"].values()) > 0
    assert [(run["memory"], run["chunks"], run["streams"]) for run in found["runs"]] == [
        (memory, *way) for memory in ("pinned", "pageable") for way in ((1, 1), (2, 1), (2, 3), (4, 1), (4, 3))]
    assert found["where"] == measure.where()
    json.dumps(found, allow_nan=False)


def test_a_trace_is_read_by_engine_and_stream():
    def event(cat, name, start, us, stream):
        return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": us, "args": {"stream": stream}}

    found = series.engine_events([
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 3000, 500, 20), event("cuda_driver", "cuLaunch", 0, 1, 0),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1000, 500, 20), event("kernel", "settle", 2000, 250, 13),
        event("gpu_memset", "Memset", 2500, 1, 13), {"ph": "i", "cat": "kernel", "name": "instant", "ts": 0}])
    assert [(each["engine"], each["stream"], each["start_ms"], each["ms"]) for each in found] == [
        ("copy to the device", 0, 1.0, 0.5), ("kernel", 1, 2.0, 0.25), ("copy to the host", 0, 3.0, 0.5)]
