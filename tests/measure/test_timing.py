"""Timing: percentiles, and where a time was taken."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import cuda, device, measure
from labkit.kernels.elementwise import vector_add_per_thread
from labkit.measure import CPU_DEVICE, Timing, time_host, time_kernel
from labkit.measure import timing as measure_timing
from tests.yardstick import allowed


def test_percentiles():
    timing = Timing.of(range(1, 102), "here")
    assert (timing.p5, timing.p50, timing.p95, timing.runs) == (6, 51, 96, 101)
    assert "here" in str(timing)


def test_host_time_is_wall_clock_and_leaves_the_first_call_out():
    calls = []

    def slow_at_first():
        calls.append(1)
        time.sleep(0.1 if len(calls) == 1 else 0.002)

    timing = time_host(slow_at_first, budget_s=0.02, min_runs=5)
    assert 2 <= timing.p50 < allowed(50)
    assert timing.runs >= 5
    assert timing.runs == len(calls) - 1
    assert timing.where == "host CPU"


def test_kernel_time_says_where():
    a, b, out = (cuda.to_device(np.ones(1000, np.float32)) for _ in range(3))
    timing = time_kernel(lambda: vector_add_per_thread(a, b, out), budget_s=0.02)
    assert timing.p5 <= timing.p50 <= timing.p95
    assert timing.p50 > 0
    assert timing.where == (device.name() if device.on_gpu() else CPU_DEVICE)
    np.testing.assert_array_equal(out.copy_to_host(), 2)


def test_copies_are_timed_apart():
    found = measure.time_copy(2**16)
    assert set(found) == {"h2d_pageable", "d2h_pageable", "h2d_pinned", "d2h_pinned"}
    assert all(entry["p50"] > 0 and entry["gbs"] > 0 and entry["where"] == measure.where() for entry in found.values())


def test_the_rate_of_a_copy_is_that_of_its_p50(monkeypatch):
    monkeypatch.setattr(measure_timing, "time_host", lambda *args, **options: Timing(1.0, 2.0, 40.0, 5, "here"))
    for entry in measure.time_copy(2**16).values():
        assert entry["gbs"] == pytest.approx(2**16 / 2.0 / 1e6)


def test_a_replay_is_timed_behind_another_and_divided_among_its_launches(monkeypatch):
    done, elapsed = [], iter((500.0, 400.0, *[9.0, 12.0, 12.0, 15.0]))  # the first two are left out
    event = SimpleNamespace(record=lambda: done.append("event"))
    monkeypatch.setattr(measure_timing, "cuda", SimpleNamespace(
        event=lambda: event, synchronize=lambda: None, event_elapsed_time=lambda start, stop: next(elapsed)))
    timing = measure_timing.time_replay(lambda: done.append("replay"), launches=3, runs=4)
    assert (timing.p50, timing.runs) == (4.0, 4) and "in a CUDA graph" in timing.where
    assert done == ["replay", "event", "replay", "event"] * 6


def test_graph_is_not_measured_without_a_gpu():
    if device.on_gpu():
        pytest.skip("this machine has a GPU")
    assert measure.time_graph(lambda stream: None) is None


@pytest.mark.gpu
def test_graph_time_is_below_the_launch_time():
    if measure.import_library("torch") is None:
        pytest.skip("PyTorch captures the graph and is not installed")
    a, b, out = (cuda.to_device(np.ones(1024, np.float32)) for _ in range(3))
    vector_add_per_thread(a, b, out)
    graph = measure.time_graph(lambda stream: vector_add_per_thread(a, b, out, stream=stream))
    assert graph.p50 < measure.time_launch(lambda: vector_add_per_thread(a, b, out)).p50


def test_events_time_a_kernel_as_on_a_gpu(monkeypatch):
    """The GPU's path, on whatever events this device has: one pair for each run, the cache flushed before each."""
    flushes = []
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(device, "name", lambda: "NVIDIA Imaginary")
    monkeypatch.setattr(measure_timing, "flush_cache", lambda: flushes.append(1))
    a, b, out = (cuda.to_device(np.ones(1000, np.float32)) for _ in range(3))
    timing = time_kernel(lambda: vector_add_per_thread(a, b, out), budget_s=0.01, min_runs=7, max_runs=9)
    assert timing.runs == len(flushes)
    assert 7 <= timing.runs <= 9
    assert timing.p50 > 0


def test_flush_writes_its_buffer(monkeypatch):
    monkeypatch.setattr(measure_timing, "FLUSH_BYTES", 4096)
    measure_timing._flush_buffer.cache_clear()
    try:
        measure_timing.flush_cache()
        cuda.synchronize()
        assert np.all(measure_timing._flush_buffer().copy_to_host() == 1)
    finally:
        measure_timing._flush_buffer.cache_clear()
