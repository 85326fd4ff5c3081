"""Every recording makes sense, and a recording that was tampered with does not."""

import copy
import json

import pytest

from labkit._common import paths
from labkit.measure import validate

RECORDINGS = sorted(paths.MEASUREMENTS.glob("*.json"))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def recording():
    return read(paths.MEASUREMENTS / "nvidia-h200.json")


def row(recording, op, name):
    return next(one for one in recording["ops"][op][0]["rows"] if one["name"] == name)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_makes_sense(path):
    assert validate.problems(read(path)) == []


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_agrees_with_the_profile_of_the_same_gpu(path):
    profile = path.parent / "ncu" / f"{path.stem}-kernels.json"
    if profile.is_file():
        assert validate.profile_differences(read(path), read(profile)) == []


def test_limits_that_a_gpu_does_not_have_are_no_problem(recording):
    recording["limits"]["mma_tf32_tflops"] = None
    assert validate.problems(recording) == []
    recording["limits"]["bandwidth_gbs"] = 0.0
    assert validate.problems(recording) == ["limits: bandwidth_gbs is 0.0"]


def test_a_recording_agrees_with_itself(recording):
    assert validate.differences(recording, copy.deepcopy(recording)) == []


def test_a_median_outside_its_own_percentiles(recording):
    for name, p50 in (("p5", 0.5), ("p95", 2.0)):
        changed = copy.deepcopy(recording)
        timing = row(changed, "softmax", "softmax_naive")["timing"]
        timing["p50"] = p50 * timing[name]
        assert any("softmax_naive: timing: p5, p50, p95" in problem for problem in validate.problems(changed))
    changed = copy.deepcopy(recording)
    changed["series"]["copies"]["h2d_pinned"]["p50"] = 0.5
    assert any("series copies: h2d_pinned: p5, p50, p95" in problem for problem in validate.problems(changed))


def test_a_rate_that_is_not_work_over_time(recording):
    for name in ("gbs", "tflops", "fraction"):
        changed = copy.deepcopy(recording)
        row(changed, "softmax", "softmax_naive")[name] *= 1.1
        (problem,) = validate.problems(changed)
        assert f"softmax_naive: {name} is" in problem


def test_a_row_beyond_the_hardware(recording):
    fast = row(recording, "softmax", "softmax_vectorized")
    ladder = recording["ops"]["softmax"][0]
    ms = ladder["bound_ms"] / 1.2
    fast["timing"].update(p5=ms, p50=ms, p95=ms)
    fast.update(gbs=ladder["bytes"] / ms / 1e6, tflops=ladder["flops"] / ms / 1e9, fraction=1.2)
    (problem,) = validate.problems(recording)
    assert problem.endswith("softmax_vectorized: 120% of what the hardware can do")


def test_dates_units_and_signs(recording):
    recording["ops"]["softmax"][0]["unit"] = "GB"
    recording["ops"]["matmul"][0]["machine"]["date"] = "yesterday"
    recording["series"]["softmax_cpu"]["ms"] = -1.0
    recording["series"]["copy_sizes"]["date"] = None
    recording["series"]["vector_add_sizes"]["call_ms"].pop()
    found = validate.problems(recording)
    assert len(found) == 5
    for part in ("the unit is 'GB'", "the date is 'yesterday'", "series softmax_cpu: ms is -1.0",
                 "series copy_sizes: the date is None", "differ in length"):
        assert any(part in problem for problem in found), part


def test_a_second_recording_that_differs_is_named(recording):
    changed = copy.deepcopy(recording)
    assert changed["series"]["softmax_cpu"]["ms"] == pytest.approx(270, abs=1)
    changed["series"]["softmax_cpu"]["ms"] = 470.0
    assert validate.problems(changed) == []  # in itself it could be true
    (found,) = validate.differences(recording, changed)
    assert found.startswith("series softmax_cpu.ms: 270.2 and 470")
    assert validate.differences(recording, changed, tolerance=0.8) == []
    changed["machine"]["device"] = "another GPU"
    assert validate.differences(recording, changed) == []


def test_what_was_just_taken_is_compared_with_the_recording(recording):
    taken = copy.deepcopy(recording)
    count, apart = validate.against(recording, taken)
    assert count > 100
    assert apart == []

    timing = row(taken, "softmax", "softmax_block_tree")["timing"]
    for name in ("p5", "p50", "p95"):
        timing[name] *= 1.2
    assert [text.split(": ")[:3] for text in validate.against(recording, taken)[1]] == [
        ["softmax, R=8,192, C=8,192", "softmax_block_tree", "timing"]]
    timing["p5"] /= 2  # the spreads reach each other
    assert validate.against(recording, taken)[1] == []
    numpy = row(taken, "softmax", "NumPy, on the host")["timing"]
    numpy["p5"], numpy["p50"], numpy["p95"] = 1e3, 2e3, 3e3  # the host's
    assert validate.against(recording, taken)[1] == []
    taken["machine"] = {**taken["machine"], "device": "another GPU"}
    assert validate.against(recording, taken) == (0, [])


def test_a_profile_that_differs_is_named(recording):
    profile = read(paths.MEASUREMENTS / "ncu" / "nvidia-h200-kernels.json")
    next(one for one in profile["ops"]["softmax"]["rows"] if one["name"] == "softmax_warp")["time_us"] *= 2
    (found,) = validate.profile_differences(recording, profile)
    assert found.startswith("softmax_warp under ncu")


def test_a_recording_without_sense_is_refused_and_one_that_differs_is_announced(recording, capsys):
    changed = copy.deepcopy(recording)
    changed["series"]["softmax_cpu"]["ms"] = 470.0
    validate.check(changed, recording)
    assert "not as before: series softmax_cpu.ms: 270.2 and 470" in capsys.readouterr().err
    validate.check(changed)
    row(changed, "softmax", "softmax_naive")["timing"]["p95"] = 0.001
    with pytest.raises(ValueError, match="makes no sense:\nsoftmax, .*p5, p50, p95"):
        validate.check(changed, recording)
