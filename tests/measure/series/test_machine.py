"""The series of lesson 02 at tiny sizes: each result is compared with NumPy, and each part has the keys that
data/measurements/README.md promises. The times are the CPU device's, and none is looked at."""

import json

import numpy as np
import pytest

from labkit import cuda, device, measure
from labkit.course.drawings import the_machine as pictures
from labkit.device import occupancy
from labkit.device.occupancy import GPU, H200, L4
from labkit.measure.series import machine as series

SMALL = GPU("a small one", 2, 128, 4, 65_536, 32_768)


@pytest.fixture(autouse=True)
def one_run_each(monkeypatch):
    monkeypatch.setattr(series, "BUDGET_S", 0.0)


@pytest.fixture(scope="module")
def x():
    return series.hashed(2**14)


def percentiles(us: dict) -> bool:
    return set(us) == {"p5", "p50", "p95"} and 0 < us["p5"] <= us["p50"] <= us["p95"]


def test_branches_and_ways():
    rows = series.branches(SMALL, steps=4, block=64)
    assert [row["name"] for row in rows] == ["one branch", "two, by warp", "two, by lane"]
    assert all(percentiles(row["us"]) for row in rows)
    rows = series.ways(SMALL, counts=(1, 4), steps=3, block=64)
    assert [row["ways"] for row in rows] == [1, 4]
    assert all(percentiles(row[name]) for row in rows for name in ("lanes", "warps"))


def test_bytes_in_flight_are_threads_times_loads(x):
    rows = series.in_flight(SMALL, x, threads=[32, 128], loads=(1, 4), rounds=2)
    assert [(row["threads"], row["loads"], row["bytes_in_flight"]) for row in rows] == [
        (32, 1, 256), (32, 4, 1024), (128, 1, 1024), (128, 4, 4096)]
    assert all(percentiles(row["us"]) and row["gbs"] > 0 for row in rows)
    assert series.threads_of(H200) == [32, 64, 128, 256, 512, 1024, 2048]
    assert series.threads_of(L4) == [32, 64, 128, 256, 512, 1024, 1536]


def test_occupancy_is_halved_from_row_to_row(x):
    rows = series.occupancies(SMALL, x, block=32, steps=16, rounds=2)
    assert [(row["work"], row["each"]) for row in rows[::3]] == [("reading", 1), ("reading", 8), ("multiply-adds", 1),
                                                                 ("multiply-adds", 4)]
    assert [row["occupancy"] for row in rows] == 4 * [1.0, 0.5, 0.25]
    assert all(row["rate"] > 0 and percentiles(row["us"]) for row in rows)


@pytest.mark.parametrize("gpu", [H200, L4], ids=lambda gpu: gpu.name)
def test_dynamic_shared_memory_leaves_as_many_blocks_as_wanted(gpu):
    found = series.resident_limits(gpu, 64, 24)
    assert [resident for resident, _ in found] == {"NVIDIA H200": [32, 16, 8, 4, 2, 1], "NVIDIA L4": [24, 12, 6, 3, 1]}[
        gpu.name]
    for resident, nbytes in found:
        assert occupancy.blocks(gpu, 64, 24, nbytes) == resident
        assert nbytes <= gpu.shared_bytes - occupancy.SHARED_OF_SYSTEM  # the most that a block may ask for


def test_waves_are_taken_on_both_sides_of_each_step():
    found = series.waves(SMALL, count=2, points=2, steps=16, block=32)
    assert found["blocks"] == [1, 4, 8, 9, 12, 16] and found["per_wave"] == 8
    assert all(len(found[key]) == 6 for key in ("us", "p5_us", "p95_us"))


def test_spills_have_a_row_for_each_limit():
    rows = series.spills(SMALL, limits=(None, 32), rounds=2, blocks=1, block=32)
    assert [row["limit"] for row in rows] == [None, 32]
    assert all(percentiles(row["us"]) for row in rows)
    assert all((row["registers"] is None) == (not device.on_gpu()) for row in rows)


@pytest.mark.sweep
def test_memories_have_a_size_a_latency_and_a_rate(x, monkeypatch):
    monkeypatch.setattr(series, "SAMPLE", 2)
    monkeypatch.setattr(series, "latencies", lambda places: {name: {"ns": 5.0} for name in places})
    tiny = GPU("a small one", 1, 256, 4, 65_536, 32_768)
    rows = series.memories(tiny, x, l2_bytes=2**18, passes=1, rounds=1, steps=16)
    assert [row["name"] for row in rows] == ["registers", "shared memory", "L1 cache", "L2 cache", "memory"]
    assert rows[0]["bytes"] == 262_144 and rows[1]["bytes"] == 32_768 and rows[3]["bytes"] == 2**18
    assert all(row["gbs"] > 0 for row in rows)
    json.dumps(rows)


def test_a_wrong_result_is_not_timed():
    out = cuda.to_device(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="made up: 3 of 4 results are wrong, the first at 1: 0.0, and NumPy gives 1.0"):
        series.timed("made up", lambda: None, out, lambda at: at.astype(np.float32))


@pytest.mark.sweep
@pytest.mark.cpu_device
def test_every_figure_draws_from_what_the_series_gives():
    taken = series.machine(GPU("a small one", 2, 512, 8, 65_536, 65_536), words=2**15, steps=16, rounds=4)
    assert taken["where"] == measure.CPU_DEVICE
    series_of_json = json.loads(json.dumps(taken, allow_nan=False))
    for row in series_of_json["spills"]:  # what a GPU's compiler tells
        row.update(registers=32, local_bytes=0, occupancy=1.0)
    for name in ("branches", "bytes_in_flight", "occupancy", "waves", "spills", "memories"):
        assert getattr(pictures, name)(series_of_json).png(dpi=40).startswith(b"\x89PNG")


@pytest.mark.cpu_device
def test_the_series_is_a_gpus():
    assert series.machine() is None
