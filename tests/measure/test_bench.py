"""labkit bench: what it measures, where it writes, what it must never write."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from labkit import device, measure
from labkit._common import paths
from labkit.course import measured
from labkit.measure import CPU_DEVICE, Ladder, bench
from labkit.measure.series import overheads, vector
from tests import made_up


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path / "measurements")
    monkeypatch.setattr(bench, "BUILD", tmp_path / "build")
    return tmp_path


@pytest.fixture
def console():
    return Console(record=True, width=140, file=open("/dev/null", "w"))


# Those with series of their own; the others differ only in their kernels, which their own tests run.
OFTEN = ("vector_add", "volume_add")
SWEPT = ("matmul", "masked_softmax_causal")


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in OFTEN else pytest.mark.sweep if name in SWEPT else pytest.mark.slow)
    for name in bench.HOMES])
def test_quick_run_of_each_operation(name):
    shown = []
    data = bench.collect(name, quick=True, show=shown.append)
    assert data["problems"] == {}
    assert [one.op for one in shown] == [name]
    assert list(data["ops"]) == [name]
    assert data["machine"]["device"] == device.name()
    for key in data["series"]:
        assert bench.SERIES[key].op == name
        assert data["series"][key]["where"] == measure.where()
    json.dumps(data, allow_nan=False)


def test_an_unknown_operation_is_named():
    with pytest.raises(ValueError, match=r"no operation is called 'sofmax'; did you mean softmax, .* or softmax_\w+\?"):
        bench.collect("sofmax")


@pytest.mark.sweep
def test_main_writes_json_and_plots_into_out(folders, console):
    out = folders / "out"
    assert bench.main(console, ops=["matmul"], out=str(out), quick=True) == 0
    name = f"{measure.slug(device.name())}.json"
    data = json.loads((out / name).read_text())
    assert data["schema"] == bench.SCHEMA
    assert data["ops"]["matmul"][0]["where"] == measure.where()
    assert {path.name for path in out.glob("*.png")} == {"matmul.png", "matmul_sizes.png"}
    assert "matmul_naive" in console.export_text()
    assert not (folders / "measurements").exists()


def test_main_writes_a_single_file(folders, console):
    out = folders / "mine.json"
    bench.main(console, ops=["vector_add"], out=str(out), quick=True)
    assert json.loads(out.read_text())["ops"]["vector_add"]
    assert not list(folders.rglob("*.png"))


def test_a_cpu_device_never_writes_into_data_measurements(folders):
    if device.on_gpu():
        pytest.skip("this machine has a GPU")
    path, _ = bench.places(None)
    assert path.parent == folders / "build"
    for out in (folders / "measurements", folders / "measurements" / "x.json"):
        with pytest.raises(ValueError, match="GPU measurements only"):
            bench.places(out)


@pytest.mark.gpu
def test_a_gpu_writes_into_data_measurements(folders):
    path, _ = bench.places(None)
    assert path == folders / "measurements" / f"{measure.slug(device.name())}.json"


def test_merge_keeps_what_was_not_measured_again(tmp_path):
    path = tmp_path / "deep" / "gpu.json"
    both = made_up.measurements()
    bench.merge(path, both)
    newer = {**both, "ops": {"matmul": [made_up.ladder("matmul", "TFLOP/s").to_json()]}, "series": {}}
    merged = bench.merge(path, newer)
    assert merged == json.loads(path.read_text())
    assert merged["ops"]["vector_add"] == both["ops"]["vector_add"]
    assert merged["ops"]["matmul"] == newer["ops"]["matmul"]
    assert set(merged["series"]) == set(both["series"])

    anew = {**newer, "limits": {**both["limits"], "bandwidth_gbs": 1.0}}
    assert bench.merge(path, anew)["limits"] == both["limits"], "of one operation: the file's limits stay"
    whole = {**anew, "ops": dict.fromkeys(bench.HOMES, [])}
    assert bench.merge(path, whole)["limits"]["bandwidth_gbs"] == 1.0
    assert bench.merge(path, both)["limits"]["bandwidth_gbs"] == 1.0
    assert [p.name for p in path.parent.iterdir()] == ["gpu.json"], "no temporary file is left"


def test_merge_leaves_the_old_file_when_writing_fails(tmp_path):
    path = tmp_path / "gpu.json"
    bench.merge(path, made_up.measurements())
    before = path.read_text()
    with pytest.raises(ValueError, match="bandwidth_gbs is nan"):
        bench.merge(path, {**made_up.measurements(), "limits": {"bandwidth_gbs": float("nan")},
                           "ops": dict.fromkeys(bench.HOMES, [])})
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["gpu.json"]


@pytest.mark.sweep(every=True)
def test_draw_makes_a_plot_of_each_ladder_and_series(tmp_path):
    drawn = bench.draw(made_up.measurements(), tmp_path)
    assert {path.stem for path in drawn} == {"vector_add", "matmul", "vector_add_sizes", "volume_add_block_shapes",
                                             "matmul_sizes", "roofline"}
    assert len(drawn) + 1 <= 8


def test_crossover_series_is_measured_at_each_size():
    series = vector.vector_add_sizes(exponents=(8, 10), budget_s=0.005)
    assert series["n"] == [256, 1024]
    for key in ("kernel_ms", "call_ms", "with_copies_ms", "numpy_ms"):
        assert len(series[key]) == 2
        assert min(series[key]) > 0


def test_launch_overhead():
    series = overheads.launch_overhead()
    assert series["launcher_us"] > 0
    assert series["bound_us"] > 0
    if not device.on_gpu():
        assert series["where"] == CPU_DEVICE
        assert series["graph_us"] is None


def test_recorded_files_fit_the_schema():
    """What is in data/measurements can be read, is a GPU's, and makes a README table."""
    files = sorted(paths.MEASUREMENTS.glob("*.json"))
    if not files:
        pytest.skip("no GPU measurements are recorded yet")
    for path in files:
        data = json.loads(path.read_text())
        assert data["schema"] == bench.SCHEMA
        assert data["machine"]["kind"] == "gpu"
        for entries in data["ops"].values():
            assert all(Ladder.from_json(entry).on_gpu for entry in entries)
        assert measured.readme_table(data)


def test_one_wrong_rung_does_not_cost_the_other_measurements(monkeypatch, capsys, folders, console):
    ladder = measure.ladder

    def fails_for_volumes(op, *args, **kwargs):
        if op.name == "volume_add":
            raise AssertionError("volume_add_3d: 1 of 9 elements is wrong")
        return ladder(op, *args, **kwargs)

    monkeypatch.setattr(bench, "HOMES", {name: bench.HOMES[name] for name in ("vector_add", "volume_add")})
    monkeypatch.setattr(measure, "ladder", fails_for_volumes)
    assert bench.main(console, ops=["all"], out=str(folders / "x.json"), quick=True) == 1
    data = json.loads((folders / "x.json").read_text())
    assert data["ops"]["vector_add"]
    assert "problems" not in data
    assert "targets" not in data, "what follows from the rest is not written"
    assert "volume_add_3d: 1 of 9 elements" in console.export_text()


def test_the_command_takes_operations_and_series(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from labkit.cli import app

    asked = []
    monkeypatch.setattr(bench, "main", lambda console=None, **given: asked.append(given) or 0)
    run = CliRunner().invoke
    assert run(app, ["bench", "matmul", "--quick"]).exit_code == 0
    assert run(app, ["bench", "generation", "minilm", "--out", str(tmp_path)]).exit_code == 0
    assert run(app, ["bench"]).exit_code == 0
    assert asked == [{"ops": ["matmul"], "out": None, "quick": True},
                     {"ops": ["generation", "minilm"], "out": str(tmp_path), "quick": False},
                     {"ops": [], "out": None, "quick": False}]
    refused = run(app, ["bench", "matmul", "fft"])
    assert refused.exit_code == 2 and "'fft'" in refused.output
    refused = run(app, ["bench", "matmul", "simt"])
    assert refused.exit_code == 2 and "labkit bench simt" in refused.output
    if not device.on_gpu():
        refused = run(app, ["bench", "matmul", "--out", str(paths.MEASUREMENTS)])
        assert refused.exit_code == 2 and "GPU measurements only" in refused.output.replace("\n", " ")


def test_a_series_alone(monkeypatch):
    def made_up(name, n):
        taken = SimpleNamespace(op="matmul", missing="", take=lambda quick: {"n": [n]})
        monkeypatch.setitem(bench.SERIES, name, taken)

    made_up("made_up", 1)
    data = bench.collect("made_up")
    assert data["ops"] == {} and data["series"] == {"made_up": {"n": [1]}}
    made_up("another", 2)
    assert bench.collect("another", "made_up")["series"] == {"made_up": {"n": [1]}, "another": {"n": [2]}}
