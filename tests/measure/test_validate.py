"""Every recording makes sense, and a recording that was tampered with does not."""

import copy
import json
import math
import random

import pytest

from labkit._common import paths
from labkit.measure import share, slug, validate
from labkit.measure.recorded import shared_folder
from tests import made_up

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


# --- Files that others share -----------------------------------------------------------------------------------------


@pytest.fixture
def shared():
    """A file that can be shared."""
    return json.loads(share.as_text(share.shared(made_up.card(), made_up.CARD_MACHINE)))


def test_every_file_that_was_shared_can_be():
    for path in shared_folder().glob("*.json"):  # there may be none
        assert path.stem == slug(validate.read_shared(path)["machine"]["device"])


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_courses_own_recordings_are_within_the_data_sheets(path):
    recording = read(path)
    for limits in [recording["limits"], *(one["limits"] for ladders in recording["ops"].values() for one in ladders)]:
        assert list(validate.problems_of_limits(limits, recording["machine"]["device"])) == []


def test_a_real_recording_can_be_shared():
    recording = read(paths.MEASUREMENTS / "nvidia-h100-80gb-hbm3.json")
    assert validate.shared_problems(share.shared(recording, recording["machine"])) == []


def test_a_made_up_card_can_be_shared(shared):
    assert validate.shared_problems(shared) == []
    assert validate.described(shared) == "2 operations on NVIDIA GeForce RTX 4060, 2026-01-02"


def set_(recording, where, value):
    """Set what `where` leads to, such as "ops.matmul.0.bytes"."""
    *way, last = (int(key) if key.isdigit() else key for key in where.split("."))
    for key in way:
        recording = recording[key]
    recording[last] = value


ROW = "ops.matmul.0.rows.0"


@pytest.mark.parametrize(("where", "value", "words"), [
    ("schema", 2, "schema is 2; 1 is allowed"),
    ("user", "me", "user is there, which a shared file does not hold"),
    ("series", {"trace": {}}, "series.trace is there, which"),
    ("machine.host", "x86_64, 16 cores", "machine.host is there, which"),
    ("ops.matmul.0.rows", "none", "ops.matmul[0].rows is 'none'; a JSON array is needed"),
    ("ops.matmul.0.size", [1], "ops.matmul[0].size is [1]; a JSON object is needed"),
    (f"{ROW}.timing.p50", "fast", "ops.matmul[0].rows[0].timing.p50 is 'fast'; a number is needed"),
    (f"{ROW}.timing.p50", math.nan, "matmul_naive: timing: p5, p50, p95 are"),
    (f"{ROW}.timing.p5", -1.0, "matmul_naive: timing: p5, p50, p95 are -1.0"),
    (f"{ROW}.gbs", math.nan, "matmul_naive: gbs is nan, and work over time is"),
    (f"{ROW}.error", math.nan, "its error is 0.3 of the allowed one"),
    (f"{ROW}.error_units", 1.5, "its error is 1.5 of the allowed one"),
    (f"{ROW}.name", "matmul_magic", "'matmul_magic': no rung is called so"),
    (f"{ROW}.kind", "baseline", "'matmul_naive': no baseline is called so"),
    (f"{ROW}.timing.where", "NVIDIA L4", "'matmul_naive': timing: taken on 'NVIDIA L4'"),
    (f"{ROW}.timing.where", "labkit CPU device", "'matmul_naive': timing: taken on 'labkit CPU device'"),
    ("machine.kind", "cpu", "only times of a GPU are shared, not those of the CPU device"),
    ("ops.matmul.0.machine.kind", "cpu", "only times of a GPU are shared, not those of the CPU device"),
    ("machine.device", "My fast card", "'My fast card' is no name of a GPU"),
    ("machine.device", "NVIDIA Imaginary", "'NVIDIA Imaginary' is no name of a GPU"),
    ("machine.date", "2999-01-01", "the date 2999-01-01 is in the future"),
    ("machine.date", "soon", "the date is 'soon'"),
    ("machine.driver", "mine at /home/me", "driver is 'mine at /home/me'; a version is needed"),
    ("machine.compute_capability", "9.0", "compute_capability is 9.0; NVIDIA GeForce RTX 4060 has 8.9"),
    ("machine.l2_mb", 10**6, "l2_mb is 1000000; 0 to 512 is allowed"),
    ("limits.bandwidth_gbs", 300.0, "bandwidth_gbs is 300; the data sheet of NVIDIA GeForce RTX 4060 says 272"),
    ("limits.fp32_tflops", 30.0, "fp32_tflops is 30; the data sheet of NVIDIA GeForce RTX 4060 says 15.1"),
    ("limits.bandwidth_gbs", math.nan, "limits: bandwidth_gbs is nan"),
    ("ops.matmul.0.limits.bandwidth_gbs", 0.0, "limits: bandwidth_gbs is 0.0"),
    ("limits.source", "data sheet", "they must be measured on NVIDIA GeForce RTX 4060, not data sheet"),
    ("ops.matmul_magic", [], "no operation is called 'matmul_magic'"),
    ("ops.softmax", [], "softmax: nothing was measured"),
    ("ops.matmul.0.rows", [], "matmul: nothing was measured"),
    ("ops.vector_add.0.rows.3.fraction", 0.5, "'NumPy, on the host': fraction is 0.5, of no GPU"),
    (f"{ROW}.timing.runs", 0, "'matmul_naive': timing: 0 runs up to"),
    (f"{ROW}.timing.p95", 1e9, "'matmul_naive': timing: 20 runs up to 1e+09 ms"),
    ("limits.mma_f16_tflops", 40.0, "mma_f16_tflops is 40; the data sheet of NVIDIA GeForce RTX 4060 says 30.2"),
    ("ops", {}, "it holds no operation"),
    ("ops.matmul.0.op", "vector_add", "it is of vector_add on 'NVIDIA GeForce RTX 4060', not of matmul"),
    ("ops.matmul.0.size", {"n": 4096}, "matmul has no such size"),
    ("ops.matmul.0.flops", 10, "flops is 10, and by this version of labkit 137438953472"),
    ("ops.matmul.0.bound_ms", 1e-3, "bound_ms is 0.001, and by this version of labkit 9.4"),
    ("ops.matmul.0.skipped", {"matmul_tiled": "the server at /opt/gpu failed"}, "labkit's reasons are allowed"),
    ("ops.matmul.0.skipped", {"matmul_tiled": "needs /opt/gpu"}, "contains the path '/opt'"),
    ("ops.matmul.0.skipped", {"magic": "it failed"}, "no rung or baseline is called 'magic'"),
    ("ops.matmul.0.title", "measured by me@gpu-box.example.org", "ops.matmul[0].title contains the address 'e@g'"),
    ("ops.matmul.0.limit_label", "on box.local", "ops.matmul[0].limit_label contains the host 'box.local'"),
])
def test_a_file_that_was_damaged_or_made_up_is_refused_with_the_reason(shared, where, value, words):
    set_(shared, where, value)
    found = validate.shared_problems(shared)
    assert any(words in problem for problem in found), found


@pytest.mark.parametrize("where", ["machine", "limits.gpu", "ops.matmul.0.rows.0.timing", "ops.matmul.0.machine.sms"])
def test_a_file_that_lacks_something_is_refused(shared, where):
    *way, last = (int(key) if key.isdigit() else key for key in where.split("."))
    inner = shared
    for key in way:
        inner = inner[key]
    del inner[last]
    (problem,) = validate.shared_problems(shared)
    assert problem.endswith(f"{last} is missing")


def places(value, way=()):
    """The way to every value of a recording."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield *way, key
        yield from places(inner, (*way, key))


def test_no_value_anywhere_makes_the_check_fail_itself(shared):
    draw = random.Random(1)
    ways = list(places(shared))
    for _ in range(300):
        *way, last = draw.choice(ways)
        changed = copy.deepcopy(shared)
        inner = changed
        for key in way:
            inner = inner[key]
        inner[last] = draw.choice([None, -1, 0, 1e308, 2**62, 10**400, "x", "", [], {}, True, math.nan, -math.inf])
        if changed != shared:
            assert all(isinstance(problem, str) for problem in validate.shared_problems(changed))


@pytest.mark.parametrize("value", [None, [], "text", {}, {"schema": "1"}])
def test_what_is_no_recording_at_all_is_refused(value):
    assert "1 is allowed" in validate.shared_problems(value)[0]


def test_a_time_that_no_gpu_can_take_is_refused(shared):
    """Alone it must be within the bound; in a graph as well, but for what the cache holds."""
    ladder = shared["ops"]["vector_add"][0]
    fast = ladder["rows"][0]
    ms = ladder["bound_ms"] / 1.2
    fast["timing"].update(p5=ms, p50=ms, p95=ms)
    fast.update(gbs=ladder["bytes"] / ms / 1e6, tflops=ladder["flops"] / ms / 1e9, fraction=1.2)
    (problem,) = validate.shared_problems(shared)
    assert problem.endswith("120% of what the hardware can do")
    ms = ladder["bound_ms"]
    fast["timing"].update(p5=ms, p50=ms, p95=ms)
    fast.update(gbs=ladder["bytes"] / ms / 1e6, tflops=ladder["flops"] / ms / 1e9, fraction=1.0)
    fast["graph"] = {**fast["timing"], "p5": ms / 1.2, "p50": ms / 1.2}
    (problem,) = validate.shared_problems(shared)
    assert "graph: " in problem and "the hardware needs" in problem
    ladder["machine"]["l2_mb"] = 512  # of 3,072 MiB
    assert validate.shared_problems(shared) == []


def test_a_gpu_without_a_data_sheet_has_the_limits_of_the_fastest(shared):
    text = share.as_text(shared).replace(made_up.CARD, "NVIDIA GeForce RTX 3070 Ti")
    recording = json.loads(text)
    assert validate.shared_problems(recording) == []
    recording["limits"]["bandwidth_gbs"] = 20_000.0
    assert validate.shared_problems(recording) == [
        "limits: bandwidth_gbs is 2e+04; the fastest GPU known here has 8,000"]


@pytest.mark.parametrize(("content", "words"), [
    (b"{", "it is not JSON"), (b"\xff", "it is not UTF-8 text"), (b"[]", "schema is"),
    (b" " * 1_500_001, "bytes; at most")])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content, words):
    path = tmp_path / "shared.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        validate.read_shared(path)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        validate.read_shared(tmp_path / "none.json")


@pytest.mark.parametrize("text", ["/home/me/x", "~/x", "./x", "see ../up", r"C:\Users\me", r"\\server\share",
                                  "labkit/measure/x", "bench.py", "me@box", "http://x", "10.0.0.7", "localhost",
                                  "gpu1.example.com"])
def test_paths_addresses_and_hosts_are_private(text):
    assert validate.private(text)


@pytest.mark.parametrize("text", ["GB/s", "q, k and v of 1/2", "PyTorch, compiled", "NumPy, on the host",
                                  "needs compute capability 9.0; this GPU has 8.9", "f16 / bf16",
                                  "copy bandwidth, measured on NVIDIA H200"])
def test_other_texts_are_not(text):
    assert validate.private(text) is None
