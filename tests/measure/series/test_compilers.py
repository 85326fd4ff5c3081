"""The rungs by either compiler. Without a GPU one compiler's processes run the CPU device."""

import json

import pytest

from labkit import device, measure
from labkit.measure.series import compilers

CHOSEN = ("numba-cuda",)


@pytest.mark.sweep(every=True)
@pytest.mark.cpu_device
def test_each_rung_is_checked_and_timed_in_turns():
    found = compilers.compilers(("transpose",), chosen=CHOSEN, rounds=2)
    assert [row["rung"] for row in found["rows"]] == [
        rung.__name__ for rung in measure.ops.op("transpose").rungs]
    for row in found["rows"]:
        assert row["problem"] == {"numba-cuda": ""}
        assert len(row["us"]["numba-cuda"]) == 2 and min(row["us"]["numba-cuda"]) > 0
    assert found["launch"]["numba-cuda"]["bound_us"] > 0 and found["where"] == measure.where()
    json.dumps(found, allow_nan=False)


@pytest.mark.sampled(1, sweep=99, quick="raise RuntimeError('a bad rung')-RuntimeError: a bad rung")
@pytest.mark.cpu_device
@pytest.mark.parametrize("failing, message", [
    ("raise RuntimeError('a bad rung')", "RuntimeError: a bad rung"),
    ("raise RuntimeError('CUDA_ERROR_ILLEGAL_ADDRESS')", "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"),
    ("__import__('os')._exit(1)", "the process ended"), ("time.sleep(60)", "no answer in 3 s")])
def test_a_rung_that_fails_is_recorded_and_the_next_is_checked(monkeypatch, failing, message):
    patched = f"""\
def check(op, rung):
    if rung.endswith("naive"):
        {failing}
    return {{"compile_s": None, "problem": ""}}
compilers.COMMANDS["check"] = check
compilers.answer"""
    monkeypatch.setattr(compilers, "CHILD", compilers.CHILD.replace("compilers.answer", patched))
    monkeypatch.setattr(compilers, "PATIENCE_S", 3 if "sleep" in failing else 60)
    found = compilers._checked("numba-cuda", "off", [("transpose", "transpose_naive"), ("transpose", "other")], 1)
    assert found["transpose", "transpose_naive"]["problem"] == message
    assert found["transpose", "other"] == {"compile_s": None, "problem": ""}


@pytest.mark.skipif(device.on_gpu(), reason="about the CPU device")
def test_without_a_gpu_there_is_nothing_to_compare():
    assert compilers.compilers(("transpose",)) is None


def row(rung, first, second, problem=""):
    return {"op": "add", "rung": rung, "us": {"numba-cuda": first, "mlir": second},
            "compile_s": {"numba-cuda": 0.5, "mlir": 0.25}, "problem": {"numba-cuda": "", "mlir": problem},
            "resources": {}}


def test_what_was_measured_is_compared_by_medians():
    refuses = {**row("refuses", [], [], "too large"), "problem": dict.fromkeys(("numba-cuda", "mlir"), "too large")}
    found = compilers.compared({"rows": [
        row("same", [100, 900, 104], [105, 1, 106]), row("slow", [10], [40]), row("fast", [40], [20]),
        row("wrong", [10], [], "1 of 3 elements are wrong"), refuses]})
    assert [each.rung for each in found.rows] == ["slow", "same", "fast", "wrong", "refuses"]
    assert (found.faster, found.alike, found.slower) == (1, 1, 1)
    assert found.rows[1].times == {"numba-cuda": 0.104, "mlir": 0.105}
    assert found.mean == pytest.approx((4 * 0.5 * 105 / 104) ** (1 / 3))
    assert [each.rung for each in found.wrong] == ["wrong"] and [each.rung for each in found.refused] == ["refuses"]
    assert found.compile_s["mlir"] == 0.25 and found.seconds["numba-cuda"] == 2.5
