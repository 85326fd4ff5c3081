"""What a program pays besides its kernels: the series are measured, and a trace is cut to one product."""

import json

import numpy as np
import pytest

from labkit import device, measure
from labkit.measure.nvtx import Ranges
from labkit.measure.series import overheads

PARTS = ["allocate", "copy to the device", "kernel", "copy to the host", "free"]


def test_the_product_is_right_and_its_parts_are_marked():
    ranges = Ranges()
    np.testing.assert_array_equal(overheads.product_trip(ranges, n=20), np.full((20, 20), 120))
    assert [one["path"] for one in ranges.to_json()] == [["matrix product"]] + [["matrix product", p] for p in PARTS]


@pytest.mark.sweep(every=True)
def test_a_fresh_process_makes_three_trips():
    found = overheads.cold_start()
    assert found["import_ms"] > 0
    assert found["where"] == measure.where()
    cold, warm, again = ({one["path"][-1]: one["ms"] for one in trip} for trip in found["trips"])
    assert list(cold) == list(warm) == list(again) == ["matrix product", *PARTS]
    assert cold["matrix product"] > min(warm["matrix product"], again["matrix product"])  # one of them may have to wait


def test_series_have_a_value_for_each_size():
    found = overheads.copy_sizes(sizes=(4, 4096), budget_s=0.002)
    assert all(len(values) == 2 and min(values) > 0 for key, values in found.items() if key.endswith("_us"))
    found = overheads.launch_sizes(exponents=(8, 10), times=3)
    assert found["n"] == [256, 1024]
    assert len(found["python_us"]) == 2
    if not device.on_gpu():
        assert "graph_us" not in found


def test_the_fair_baseline_has_each_rung():
    found = overheads.fair_baseline(times=2)
    assert [(row["name"], row["kernels"]) for row in found["rows"]][:2] == [("three kernels", 3), ("fused", 1)]
    json.dumps(found, allow_nan=False)


def event(cat, name, start, us):
    return {"ph": "X", "cat": cat, "name": name, "ts": 1000.0 + start, "dur": us}


def test_a_trace_is_cut_to_its_last_product():
    found = [
        event("user_annotation", "matrix product", 0, 50), event("kernel", "early", 10, 5),
        event("user_annotation", "matrix product", 100, 80), event("user_annotation", "kernel", 120, 20),
        event("cuda_driver", "cuLaunchKernelEx", 122, 3), event("kernel", "matmul_naive", 130, 4),
        event("gpu_user_annotation", "kernel", 130, 4), event("gpu_memcpy", "Memcpy DtoH", 150, 6),
        event("kernel", "late", 300, 5), {"ph": "i", "cat": "kernel", "name": "instant"},
    ]
    events = overheads.events_of(found)
    assert [(e["row"], e["name"], e["start_us"], e["us"]) for e in events] == [
        ("ranges 1", "matrix product", 0.0, 80), ("ranges 2", "kernel", 20.0, 20),
        ("driver", "cuLaunchKernelEx", 22.0, 3), ("GPU", "matmul_naive", 30.0, 4), ("GPU", "Memcpy DtoH", 50.0, 6)]
    assert overheads.events_of([]) == []


@pytest.mark.gpu
def test_the_trace_shows_ranges_and_the_gpus_work():
    if measure.import_library("torch") is None:
        pytest.skip("the trace is PyTorch's profiler's")
    rows = {one["row"] for one in overheads.trace()["events"]}
    assert {"ranges 1", "ranges 2", "GPU"} <= rows
