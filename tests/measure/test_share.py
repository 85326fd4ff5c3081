"""What is shared of a recording: what anybody may see, and what this machine measured."""

import copy
import json

import pytest

from labkit._common import paths
from labkit._common.errors import UserError
from labkit.measure import Ladder, share, validate
from labkit.measure.recorded import recordings_by_gpu, shared_folder
from tests import made_up


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """As `labkit bench` left it on a machine with this GPU."""
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)
    monkeypatch.setattr(share.device, "on_gpu", lambda: True)
    monkeypatch.setattr(share.measure, "machine", lambda: {**made_up.CARD_MACHINE, "date": "2026-01-03"})
    return made_up.card()


def keep(recording):
    (paths.MEASUREMENTS / "nvidia-geforce-rtx-4060.json").write_text(json.dumps(recording))


def test_one_file_is_written_and_says_what_it_holds(recording):
    recording["series"]["trace"] = {"where": "somewhere", "path": "/home/me"}
    recording["ops"]["matmul"][0]["skipped"] = {"PyTorch (cuBLAS)": "OSError: /home/me/libtorch.so",
                                                "matmul_tiled": "needs compute capability 9.0; this GPU has 8.9"}
    keep(recording)
    path, message = share.write()
    assert path == paths.MEASUREMENTS / "shared" / "nvidia-geforce-rtx-4060.json"
    for words in (str(path), "2 operations on NVIDIA GeForce RTX 4060, 2026-01-03", "no path", "CONTRIBUTING.md"):
        assert words in message
    text = path.read_text()
    for absent in ("/home", "x86_64", "somewhere", "an idea", "_kernel"):
        assert absent not in text
    found = validate.read_shared(path)
    assert found["ops"]["matmul"][0]["skipped"] == {
        "PyTorch (cuBLAS)": validate.NOT_TIMED, "matmul_tiled": "needs compute capability 9.0; this GPU has 8.9"}
    whole, shared = (Ladder.from_json(one["ops"]["vector_add"][0]) for one in (recording, found))
    assert [row.name for row in shared.rows] == [row.name for row in whole.rows]
    assert [row.timing.p50 for row in shared.rows] == pytest.approx([row.timing.p50 for row in whole.rows], rel=1e-7)
    assert sum(line.startswith('{"op":') for line in text.splitlines()) == 2  # a line for each ladder


def test_only_the_operations_asked_for_are_shared(recording):
    keep(recording)
    path, _ = share.write(["matmul"])
    assert list(validate.read_shared(path)["ops"]) == ["matmul"]
    with pytest.raises(UserError, match="nothing of softmax is recorded .*`labkit bench softmax`"):
        share.write(["matmul", "softmax"])


def test_what_the_course_no_longer_has_is_left_out(recording):
    matmul, = recording["ops"]["matmul"]
    matmul["rows"].append({**matmul["rows"][0], "name": "matmul_of_an_earlier_version"})
    matmul["skipped"]["a library of an earlier version"] = "needs compute capability 9.0; this GPU has 8.9"
    recording["ops"]["matmul"].append({**copy.deepcopy(matmul), "size": {"N": 64}})
    recording["ops"]["of_an_earlier_version"] = copy.deepcopy(recording["ops"]["vector_add"])
    whole = made_up.card()["ops"]["matmul"]
    keep(recording)
    shared = validate.read_shared(share.write()[0])["ops"]
    assert list(shared) == ["vector_add", "matmul"] and len(shared["matmul"]) == 1
    assert [row["name"] for row in shared["matmul"][0]["rows"]] == [row["name"] for row in whole[0]["rows"]]
    assert shared["matmul"][0]["skipped"] == whole[0].get("skipped", {})


def test_what_another_machine_recorded_is_not_shared(recording):
    recording["ops"]["vector_add"][0]["machine"]["driver"] = "570.1"
    recording["ops"]["matmul"][0]["machine"]["date"] = "2026-01-01"  # earlier, and otherwise the same
    keep(recording)
    path, _ = share.write()
    assert list(validate.read_shared(path)["ops"]) == ["matmul"]


def test_without_a_recording_or_a_gpu_there_is_nothing_to_share(recording, monkeypatch):
    with pytest.raises(UserError, match="first run `labkit bench`"):
        share.write()
    monkeypatch.setattr(share.device, "on_gpu", lambda: False)
    keep(recording)
    with pytest.raises(UserError, match="times of the CPU device are not shared"):
        share.write()


def test_a_recording_that_makes_no_sense_is_not_written(recording):
    recording["ops"]["matmul"][0]["limits"]["bandwidth_gbs"] = 900.0
    keep(recording)
    with pytest.raises(UserError, match="cannot be shared:\n.*bandwidth_gbs is 900; the data sheet of .* says 272"):
        share.write()
    assert not shared_folder().exists()


def test_gpus_with_a_recording_are_listed_the_courses_own_first(recording):
    keep(recording)
    share.write(["matmul"])
    other = copy.deepcopy(recording)
    other["machine"]["device"] = "NVIDIA L4"
    (shared_folder() / "nvidia-l4.json").write_text(json.dumps(other))
    found = recordings_by_gpu()
    assert {gpu: [list(one["ops"]) for one in files] for gpu, files in found.items()} == {
        made_up.CARD: [["vector_add", "matmul"], ["matmul"]], "NVIDIA L4": [["vector_add", "matmul"]]}
