"""Which parts of a recording are read is noted, and a part that changes is found."""

import json

import pytest

from labkit._common import paths, recordings

DATA = {"machine": {"device": "GPU"}, "limits": {"bandwidth_gbs": 4000.0},
        "ops": {"softmax": [{"rows": []}], "matmul": [{"rows": [1]}]}, "series": {"copies": {"where": "GPU"}}}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)
    monkeypatch.setenv(recordings.NOTES, str(tmp_path / "quotes"))
    (tmp_path / "gpu.json").write_text(json.dumps(DATA))
    return tmp_path


def test_what_is_read_is_noted_and_nothing_else(recorded):
    data = recordings.read(recorded / "gpu.json")
    assert data == DATA
    assert recordings.noted(recorded / "quotes") == []
    assert data["ops"]["softmax"] == DATA["ops"]["softmax"]
    assert data.get("series", {}).get("copies")
    assert data.get("series").get("not_there") is None
    assert data["limits"]["bandwidth_gbs"] == 4000.0
    assert recordings.noted(recorded / "quotes") == ["gpu.json limits", "gpu.json ops.softmax",
                                                     "gpu.json series.copies", "gpu.json series.not_there"]


def test_all_that_is_gone_through_is_noted(recorded):
    data = recordings.read(recorded / "gpu.json")
    assert len([*data["ops"].values()]) == 2
    assert recordings.noted(recorded / "quotes") == ["gpu.json ops.matmul", "gpu.json ops.softmax"]


def test_a_part_that_changes_is_found_and_the_others_stay(recorded):
    parts = ("gpu.json ops.softmax", "gpu.json ops.matmul", "gpu.json series.not_there", "other.json limits")
    known = {part: recordings.digest(part, recorded) for part in parts}
    assert known["gpu.json series.not_there"] is None and known["other.json limits"] is None
    assert recordings.changed(known, recorded) == []
    newer = {**DATA, "ops": {**DATA["ops"], "matmul": [{"rows": [2]}]}, "series": {"not_there": {}}}
    (recorded / "gpu.json").write_text(json.dumps(newer, indent=1))
    assert recordings.changed(known, recorded) == ["gpu.json ops.matmul", "gpu.json series.not_there"]
