"""Ladders: they refuse wrong rungs, name what was not timed, and survive JSON."""

import importlib
import json
from dataclasses import replace

import pytest

from labkit import device, measure
from labkit._common.tables import MIMETYPE
from labkit.kernels.agree import Verdict
from labkit.kernels.baselines import Baseline
from labkit.kernels.elementwise import vector_add_per_thread
from labkit.kernels.op import rung
from labkit.kernels.ops.elementwise import VECTOR_ADD
from labkit.kernels.ops.matmul import MATMUL
from labkit.measure import CPU_DEVICE, Ladder, Timing, ladder
from tests import made_up


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


def test_speed_ups_are_over_the_first_rung():
    table = made_up.ladder().table()
    at = table["columns"].index("speed-up")
    assert {row[0]: row[at] for row in table["rows"]} == {
        "vector_add_slow": "1", "vector_add_fast": "2", "NumPy, on the host": "0.025", "PyTorch": "2.25"}


def test_rates_are_those_of_p50(monkeypatch):
    """Of a mean they would be slower: p95 of a GPU's time is far out, at times."""
    home = importlib.import_module("labkit.measure.ladder")
    contest = home._Contest(VECTOR_ADD, {"n": 1000}, 0, 0.01, None)
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    timing, verdict = Timing(1.0, 2.0, 40.0, 20, made_up.GPU), Verdict(0.0, 0.0, 1.0)
    row = contest._row("rung", "", "rung", timing, verdict)
    assert (row.gbs, row.tflops) == pytest.approx((12_000 / 2.0 / 1e6, 1000 / 2.0 / 1e9))
    assert row.fraction == pytest.approx(contest.bound.time_ms / 2.0)
    host = contest._row("NumPy", "", "host", timing, verdict)
    assert host.gbs == row.gbs and host.fraction is None  # the limits are the GPU's


def test_a_rung_that_writes_nothing_does_not_pass_with_what_the_one_before_wrote():
    @rung(kernel=vector_add_per_thread.kernel, idea="does nothing")
    def idle(a, b, out, stream=0):
        pass

    with pytest.raises(AssertionError, match="idle at n=100: 100 elements were never written"):
        ladder(VECTOR_ADD, {"n": 100}, rungs=[vector_add_per_thread, idle], baselines=False, budget_s=0.01)


def test_a_wrong_rung_is_not_timed():
    @rung(kernel=vector_add_per_thread.kernel, idea="adds a to itself")
    def wrong(a, b, out, stream=0):
        vector_add_per_thread(a, a, out, stream=stream)

    with pytest.raises(AssertionError, match="wrong at n=5,000: .* elements are wrong"):
        ladder(VECTOR_ADD, {"n": 5_000}, rungs=[wrong], budget_s=0.01)


def test_what_a_baseline_prepares_is_not_timed():
    calls = []

    def prepare(np, a, b, out):
        calls.append("prepare")
        return a + b, out

    def call(np, both, out):
        calls.append("call")
        out[:] = both

    host = Baseline("NumPy, on the host", "numpy", call, prepare=prepare)
    found = ladder(replace(VECTOR_ADD, baselines=(host,)), {"n": 100}, rungs=(), budget_s=0.001)
    assert calls[0] == "prepare" and calls.count("prepare") == 1 and calls.count("call") > 3
    assert [row.name for row in found.rows] == ["NumPy, on the host"]


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


def test_what_is_launched_in_a_graph_and_from_python_has_two_columns():
    """Of many launches the time in a graph is the one that rates are of; the other has a column of its own."""
    recorded = measure.recorded_ladder("gpt2_block", {"S": 16}, "NVIDIA H200")
    row = recorded.row("block_fused")
    assert row.timing == row.graph and row.called.p50 > row.timing.p50
    assert row.tflops == pytest.approx(recorded.flops / row.timing.p50 / 1e9)
    assert row.fraction == pytest.approx(recorded.bound_ms / row.timing.p50)
    assert "from Python" in recorded.table()["columns"] and "in a graph" not in recorded.table()["columns"]
    assert measure.Ladder.from_json(recorded.to_json()).row("block_fused") == row


def test_what_torch_compiles_is_timed_only_where_that_is_asked_for(monkeypatch):
    ladders = importlib.import_module("labkit.measure.ladder")  # labkit.measure.ladder is the function
    monkeypatch.setattr(ladders.device, "on_gpu", lambda: True)
    monkeypatch.setattr(ladders, "import_library", lambda name: object())
    names = [one.title for one in ladders.baselines_of(VECTOR_ADD, compiled=False)]
    compiled = [one.title for one in ladders.baselines_of(VECTOR_ADD)]
    assert "PyTorch" in names and "PyTorch, compiled" not in names
    assert [name for name in compiled if "compiled" not in name] == names != compiled
