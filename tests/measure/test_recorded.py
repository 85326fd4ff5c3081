"""Recorded measurements: found, and of which GPU."""

import json

import pytest

from labkit import device, measure
from labkit._common import paths
from labkit.kernels.ops.elementwise import VECTOR_ADD
from tests import made_up


@pytest.fixture
def recorded_here(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)
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


def test_a_ladder_is_recorded_at_each_of_its_sizes(recorded_here):
    data = made_up.measurements()
    (first,) = data["ops"]["vector_add"]
    data["ops"]["vector_add"] = [first, {**first, "size": {"n": 5}}]
    (recorded_here / f"{measure.slug(made_up.GPU)}.json").write_text(json.dumps(data))
    assert measure.recorded_ladder("vector_add").size == first["size"]
    assert measure.recorded_ladder("vector_add", {"n": 5}).size == {"n": 5}


def test_the_h200_is_preferred(recorded_here):
    for name in ("a-gpu", "nvidia-h200", "z-gpu"):
        (recorded_here / f"{name}.json").write_text(json.dumps({"name": name}))
    if device.name() != "NVIDIA H200":
        assert measure.recorded()["name"] == "nvidia-h200"
    assert measure.recorded("z-gpu")["name"] == "z-gpu"


def test_a_gpu_of_which_only_other_parts_were_recorded_is_passed_over(recorded_here, monkeypatch):
    monkeypatch.setattr(device, "name", lambda: "Mine")
    (recorded_here / "mine.json").write_text(json.dumps({"name": "mine", "ops": {}, "series": {"own": {"of": "mine"}}}))
    whole = {**made_up.measurements(), "name": "nvidia-h200"}
    (recorded_here / "nvidia-h200.json").write_text(json.dumps(whole))
    assert measure.recorded()["name"] == "mine"
    assert measure.recorded_series("own") == {"of": "mine"}
    assert measure.recorded_series("vector_add_sizes") == whole["series"]["vector_add_sizes"]
    assert measure.recorded_ladder("vector_add") == made_up.ladder()
    assert measure.recorded_ladder("vector_add", gpu="Mine") is None
