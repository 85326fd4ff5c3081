"""Timing: percentiles, where a time was taken, ladders that refuse wrong rungs, recorded measurements."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda, device, measure
from labkit._common.tables import MIMETYPE
from labkit.kernels.baselines import Baseline
from labkit.kernels.elementwise import VECTOR_ADD, vector_add_per_thread
from labkit.kernels.matmul.float32 import MATMUL
from labkit.kernels.op import rung
from labkit.measure import CPU_DEVICE, Ladder, Timing, ladder, time_host, time_kernel
from tests import made_up


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
    assert 2 <= timing.p50 < 50
    assert timing.runs >= 5
    assert timing.where == "host CPU"


def test_kernel_time_says_where():
    a, b, out = (cuda.to_device(np.ones(1000, np.float32)) for _ in range(3))
    timing = time_kernel(lambda: vector_add_per_thread(a, b, out), budget_s=0.02)
    assert timing.p5 <= timing.p50 <= timing.p95
    assert timing.p50 > 0
    assert timing.where == (device.name() if device.on_gpu() else CPU_DEVICE)
    np.testing.assert_array_equal(out.copy_to_host(), 2)


@pytest.fixture
def small_add():
    return ladder(VECTOR_ADD, {"n": 5_000}, budget_s=0.01)


def test_ladder_has_every_rung_and_numpy(small_add):
    names = [row.name for row in small_add.rows]
    assert names[:3] == [r.__name__ for r in VECTOR_ADD.rungs]
    assert "NumPy, on the host" in names
    assert all(row.error_units <= 1 for row in small_add.rows)
    assert small_add.row("NumPy, on the host").timing.where == "host CPU"
    assert small_add.size == {"n": 5_000}
    with pytest.raises(ValueError, match="no row 'x'"):
        small_add.row("x")


def test_a_cpu_time_never_passes_for_a_gpu_rate(small_add):
    if device.on_gpu():
        pytest.skip("this machine has a GPU: its rates are real")
    assert small_add.where == CPU_DEVICE
    assert not small_add.on_gpu
    for row in small_add.rows:
        assert (row.gbs, row.tflops, row.fraction, row.graph) == (None, None, None, None)
    shown = str(small_add)
    assert "shows work, not GPU speed" in shown
    assert "GB/s" not in shown


def test_ladder_shows_itself_and_survives_json(small_add):
    bundle = small_add._repr_mimebundle_()
    assert "vector_add_per_thread" in bundle["text/plain"]
    assert small_add.where in bundle["text/html"]
    assert bundle[MIMETYPE]["kind"] == "ladder"
    assert bundle[MIMETYPE]["kernels"] == [r.kernel.__name__ for r in VECTOR_ADD.rungs]
    again = Ladder.from_json(json.loads(json.dumps(small_add.to_json(), allow_nan=False)))
    assert again == small_add


def test_gpu_ladder_table_has_rates_and_limit():
    shown = str(made_up.ladder())
    assert "GB/s" in shown
    assert "80%" in shown
    assert "Limit: 1,000 GB/s" in shown
    assert f"Measured on {made_up.GPU}" in shown


def test_a_wrong_rung_is_not_timed():
    @rung(kernel=vector_add_per_thread.kernel, idea="adds a to itself")
    def wrong(a, b, out, stream=0):
        vector_add_per_thread(a, a, out, stream=stream)

    with pytest.raises(AssertionError, match="wrong at n=5,000: .* elements are wrong"):
        ladder(VECTOR_ADD, {"n": 5_000}, rungs=[wrong], budget_s=0.01)


def test_a_failed_rung_is_marked():
    @rung(kernel=vector_add_per_thread.kernel, idea="twice", failed="twice the work, twice the time")
    def twice(a, b, out, stream=0):
        vector_add_per_thread(a, b, out, stream=stream)
        vector_add_per_thread(a, b, out, stream=stream)

    found = ladder(VECTOR_ADD, {"n": 100}, rungs=[twice], baselines=False, budget_s=0.01)
    assert "twice failed: twice the work" in str(found)


def test_ladder_of_matmul_checks_at_the_timed_size():
    few = MATMUL.with_rungs(*MATMUL.rungs[:5])  # the later ones compile for long; tests/kernels runs them
    found = ladder(few, {"M": 33, "N": 17, "K": 20}, budget_s=0.01)
    assert [row.name for row in found.rungs] == [r.__name__ for r in few.rungs]
    assert found.flops == 2 * 33 * 17 * 20


def test_copies_are_timed_apart():
    found = measure.time_copy(2**16)
    assert set(found) == {"h2d_pageable", "d2h_pageable", "h2d_pinned", "d2h_pinned"}
    assert all(entry["p50"] > 0 and entry["gbs"] > 0 and entry["where"] == measure.where() for entry in found.values())


def test_machine_says_what_a_time_depends_on():
    facts = measure.machine()
    assert facts["device"] == device.name()
    assert facts["kind"] == device.kind()
    assert facts["numpy"] == np.__version__
    assert len(facts["date"]) == 10
    if device.on_gpu():
        assert facts["compute_capability"]
        assert facts["sms"] > 0
    json.dumps(facts)


def test_slug():
    assert measure.slug("NVIDIA H200") == "nvidia-h200"
    assert measure.slug("Tesla T4 (16 GB)") == "tesla-t4-16-gb"


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
    monkeypatch.setattr(measure, "flush_cache", lambda: flushes.append(1))
    a, b, out = (cuda.to_device(np.ones(1000, np.float32)) for _ in range(3))
    timing = time_kernel(lambda: vector_add_per_thread(a, b, out), budget_s=0.01, min_runs=7, max_runs=9)
    assert timing.runs == len(flushes)
    assert 7 <= timing.runs <= 9
    assert timing.p50 > 0


def test_flush_writes_its_buffer(monkeypatch):
    monkeypatch.setattr(measure, "FLUSH_BYTES", 4096)
    measure._flush_buffer.cache_clear()
    try:
        measure.flush_cache()
        cuda.synchronize()
        assert np.all(measure._flush_buffer().copy_to_host() == 1)
    finally:
        measure._flush_buffer.cache_clear()


@pytest.fixture
def recorded_here(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "RECORDED", tmp_path)
    return tmp_path


def test_nothing_recorded(recorded_here):
    assert measure.recorded() is None
    assert measure.recorded_ladder("vector_add") is None
    assert measure.recorded_series("matmul_sizes") is None


def test_recorded_measurements_are_found(recorded_here):
    (recorded_here / f"{measure.slug(made_up.GPU)}.json").write_text(json.dumps(made_up.measurements()))
    assert measure.recorded()["limits"] == made_up.LIMITS
    found = measure.recorded_ladder(VECTOR_ADD)
    assert found == made_up.ladder()
    assert measure.recorded_ladder(VECTOR_ADD, {"n": 3}) is None
    assert measure.recorded_ladder("softmax") is None
    assert measure.recorded_series("vector_add_sizes")["n"][0] == 1024
    with pytest.raises(ValueError, match="no measurements of 'Other' are recorded; there are nvidia-imaginary"):
        measure.recorded("Other")


def test_the_h200_is_preferred(recorded_here):
    for name in ("a-gpu", "nvidia-h200", "z-gpu"):
        (recorded_here / f"{name}.json").write_text(json.dumps({"name": name}))
    if device.name() != "NVIDIA H200":
        assert measure.recorded()["name"] == "nvidia-h200"
    assert measure.recorded("z-gpu")["name"] == "z-gpu"


def test_a_baseline_that_fails_is_named_and_the_others_are_timed(capsys):
    def broken(xp, a, b, out):
        raise RuntimeError("no kernel image")

    op = replace(VECTOR_ADD, baselines=(Baseline("NumPy, in place", "numpy", lambda np, a, b, out: a + b),
                                        Baseline("Broken", "numpy", broken, note="on purpose")))
    found = ladder(op, {"n": 100}, budget_s=0.01)
    assert found.row("NumPy, in place").kind == "host"
    assert found.skipped == {"Broken (on purpose)": "RuntimeError: no kernel image"}
    assert "Broken (on purpose) was not timed: RuntimeError" in str(found)
    assert "no kernel image" in capsys.readouterr().err
    assert Ladder.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_baseline_that_is_wrong_is_named():
    op = replace(VECTOR_ADD, baselines=(Baseline("Zero", "numpy", lambda np, a, b, out: 0 * a),))
    assert "expected" in ladder(op, {"n": 100}, budget_s=0.01).skipped["Zero"]


def test_a_rung_that_refuses_the_size_is_named():
    @rung(kernel=vector_add_per_thread.kernel, idea="picky", sizes="multiples of 4")
    def picky(a, b, out, stream=0):
        if out.size % 4:
            raise ValueError(f"out has {out.size} elements; a multiple of 4 is allowed")
        vector_add_per_thread(a, b, out, stream=stream)

    op = VECTOR_ADD.with_rungs(vector_add_per_thread, picky)
    found = ladder(op, {"n": 102}, baselines=False, budget_s=0.01)
    assert [row.name for row in found.rows] == ["vector_add_per_thread"]
    assert "multiples of 4 only: out has 102 elements" in found.skipped["picky"]
    assert len(ladder(op, {"n": 104}, baselines=False, budget_s=0.01).rows) == 2


def test_resources_are_shown_and_kept():
    one = made_up.ladder()
    taken = {"kernel": "vector_add_slow_kernel", "grid": [8], "block": [16, 16], "registers": 40, "local_bytes": 0,
             "shared_bytes": 4096, "blocks_per_sm": 6, "occupancy": 0.75}
    with_them = replace(one, rows=(replace(one.rows[0], resources=(taken,)), *one.rows[1:]))
    shown = str(with_them.resources_table())
    for part in ("vector_add_slow", "16 x 16", "40", "4,096", "75%"):
        assert part in shown
    assert Ladder.from_json(json.loads(json.dumps(with_them.to_json()))) == with_them
    assert "the CPU device has none" in str(made_up.ladder(on_gpu=False).resources_table())


def test_an_older_recording_is_read():
    """Fields that came later are left out of it."""
    data = made_up.ladder().to_json()
    for name in ("peak", "skipped"):
        del data[name]
    for row in data["rows"]:
        del row["resources"]
    assert Ladder.from_json(data) == made_up.ladder()


@pytest.mark.gpu
def test_a_gpu_ladder_knows_what_its_kernels_take():
    found = ladder(MATMUL, {"M": 256, "N": 256, "K": 256}, rungs=["matmul_tiled"], budget_s=0.01)
    (taken,) = found.row("matmul_tiled").resources
    assert taken["block"] == [16, 16]
    assert taken["shared_bytes"] == 2 * 16 * 16 * 4
    assert 8 <= taken["registers"] <= 255
    assert 1 <= taken["blocks_per_sm"] <= 32
    assert 0 < taken["occupancy"] <= 1
    assert found.row("matmul_tiled").graph.p50 > 0
    assert all(row.graph for row in found.baselines if row.name.startswith("PyTorch"))


def test_what_is_launched_in_a_graph_and_from_python_is_told_apart():
    """Of many launches the time in a graph is the one that rates are of; the other has a column of its own."""
    recorded = measure.recorded_ladder("gpt2_block", {"S": 16}, "NVIDIA H200")
    row = recorded.row("block_fused")
    assert row.timing == row.graph and row.called.p50 > row.timing.p50
    assert row.tflops == pytest.approx(recorded.flops / row.timing.p50 / 1e9)
    assert row.fraction == pytest.approx(recorded.bound_ms / row.timing.p50)
    assert "from Python" in recorded.table()["columns"] and "in a graph" not in recorded.table()["columns"]
    assert measure.Ladder.from_json(recorded.to_json()).row("block_fused") == row
