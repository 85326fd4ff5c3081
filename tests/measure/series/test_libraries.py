"""The series of the lessons on libraries, their figures, and what bench keeps."""

import json

import pytest

from labkit import device, measure
from labkit.course.drawings import libraries, other_ways
from labkit.measure import bench
from labkit.measure.series import libraries as series


def test_every_series_is_json_and_says_where_and_when():
    for taken in (series.library_products(16, budget_s=0.01), series.bf16_projection(2, 3, 8),
                  series.softmax_check(4, 8), series.softmax_rows((1, 2), cols=16, budget_s=0.01)):
        again = json.loads(json.dumps(taken, allow_nan=False))
        assert again["where"] == measure.where()
        assert again["date"]


def test_errors_of_the_precisions_stand_in_their_order():
    rows = {row["name"].split(" ", 1)[1]: row["relative_error"]
            for row in series.library_products(64, budget_s=0.01)["rows"]}
    assert rows["SGEMM"] < 1e-5 < rows["GEMM f16, sums f32"] < 1e-3 < rows["GEMM bf16, sums f32"] < 1e-2


@pytest.mark.cpu_device
def test_what_needs_a_gpu_is_none_without_one():
    assert series.three_languages() is None
    assert series.tile_sizes() is None
    assert series.tile_hints() is None


def test_the_h200s_series_are_recorded_and_can_be_drawn():
    recorded = measure.recorded_series("three_languages", gpu="NVIDIA H200")
    assert {row["name"] for job in recorded["jobs"] for row in job["rows"]} >= {"Triton", "cuTile", "PyTorch"}
    assert "NVIDIA H200" in other_ways.languages(recorded).summary
    assert other_ways.over_rows(measure.recorded_series("softmax_rows", gpu="NVIDIA H200"), None).summary
    assert "tile, Measured on NVIDIA H200" in other_ways.over_tiles().summary


def test_the_pictures_of_ideas_say_what_they_show():
    assert "3 x 2" in libraries.two_readings(2, 3).summary
    assert "5 with none" in other_ways.masks(19, 8).summary
    with pytest.raises(ValueError, match="at most 4 rows"):
        libraries.two_readings(5, 5)
    with pytest.raises(ValueError, match="1 to 40"):
        other_ways.masks(100, 8)


@pytest.mark.parametrize("known, kept", [("", True), ("cuda-tile is not installed", False), (None, False)])
def test_a_recording_with_cutile_is_not_replaced_by_one_without(monkeypatch, capsys, known, kept):
    taken = {"cutile": "cuda-tile is not installed", "jobs": []}
    monkeypatch.setattr(series, "three_languages", lambda: taken)
    monkeypatch.setattr(bench, "HOMES", {})
    monkeypatch.setattr(device, "name", lambda: "NVIDIA H200")
    monkeypatch.setattr(measure, "recorded_series", lambda name, gpu: None if known is None else {"cutile": known})
    assert bench.collect("three_languages", quick=False)["series"] == ({} if kept else {"three_languages": taken})
    assert ("is kept" in capsys.readouterr().err) == kept
