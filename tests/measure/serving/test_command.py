"""`labkit bench serve` with a load of one's own, against a server that is made up: what is printed and written."""

import contextlib
import json

import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit._common import paths
from labkit._common.errors import UserError
from labkit.measure.serving import command, drive
from labkit.measure.serving.load import Slo
from tests.measure.serving.fake_server import FakeServer, Script
from tests.measure.serving.here import ClientHere

PLAN = {"requests": 6, "prompts": (2, 4), "outputs": (2, 3), "slo": Slo.of("ttft=60000")}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(drive, "_Process", ClientHere)


def run(server, out, **given) -> tuple[int, list[str], list[str]]:
    shown, notes = [], []

    @contextlib.contextmanager
    def progress(load):
        yield lambda seen: None

    code = command.main(command.Plan(url=server.url, **(PLAN | given)), str(out), show=shown.append, note=notes.append,
                        progress=progress, status=lambda text: contextlib.nullcontext())
    return code, shown, notes


def test_each_rate_is_a_run_and_all_are_written(tmp_path):
    with FakeServer(Script(gap_s=0.01)) as server:
        code, shown, notes = run(server, tmp_path / "new" / "x.json", rates=[50.0, float("inf")])
    found = json.loads((tmp_path / "new" / "x.json").read_text())
    assert code == 0 and [each["request_rate"] for each in found["runs"]] == [50.0, "inf"]
    assert found["model_id"] == "fake" and found["url"] == server.url and found["machine"]["date"] == found["date"]
    for each in found["runs"]:
        assert each["completed"] == 6 == each["num_prompts"] and each["request_goodput"] == each["request_throughput"]
        assert each["total_output_tokens"] == sum(each["requests"]["output_lens"]) and not each["stopped"]
    assert (tmp_path / "new" / "x.png").read_bytes().startswith(b"\x89PNG")
    assert sum("Serving Benchmark Result" in each for each in shown) == 2
    assert "x.json" in notes[-1] and "x.png" in notes[-1]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["x.json", "x.png"]
    assert len(server.written) == 13  # and one request before, that does not count


def test_a_server_that_refuses_a_field_of_vllms_is_asked_without_it(tmp_path):
    with FakeServer(refuses="ignore_eos") as server:
        code, *_ = run(server, tmp_path / "x.json", concurrency=2)
    assert code == 0 and json.loads((tmp_path / "x.json").read_text())["settings"]["body"] == {}


def test_a_server_that_does_not_answer_stops_it_before_the_run(tmp_path):
    with FakeServer(Script(fails=500)) as server, pytest.raises(UserError, match="HTTP 500: this is 500"):
        run(server, tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists() and len(server.written) == 1


def test_what_was_measured_until_ctrl_c_is_written(tmp_path, monkeypatch):
    def stopped(load, target, **options):
        found = drive.drive(load, target, **options)
        found.stopped = load.rate == 200.0
        return found

    monkeypatch.setattr(command, "drive", stopped)
    with FakeServer() as server:
        code, shown, _ = run(server, tmp_path / "x.json", rates=[100.0, 200.0, 300.0])
    found = json.loads((tmp_path / "x.json").read_text())
    assert code == 130 and [each["request_rate"] for each in found["runs"]] == [100.0, 200.0]
    assert "stopped before its end" in shown[-1] and (tmp_path / "x.png").exists()


def test_a_file_that_is_there_stays_where_the_new_one_is_not_whole(tmp_path, monkeypatch):
    (tmp_path / "x.json").write_text("before")
    monkeypatch.setattr(command.measure, "machine", lambda: {"gpu": float("nan")})  # no JSON
    with FakeServer() as server, pytest.raises(ValueError, match="JSON"):
        run(server, tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] and (tmp_path / "x.json").read_text() == "before"


def test_where_nothing_can_be_written_nothing_is_measured(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for wrong in (tmp_path / "file" / "x.json", tmp_path / "folder.json", paths.MEASUREMENTS / "x.json"):
        with pytest.raises(UserError, match="--out"):
            command.places(str(wrong))
    assert command.places(str(tmp_path / "new")) == (tmp_path / "new" / "serve.json", tmp_path / "new" / "serve.png")


# --- As a command ----------------------------------------------------------------------------------------------------


def labkit(*words):
    return CliRunner().invoke(cli.app, ["bench", *words], env={"COLUMNS": "200"})


def test_the_command(tmp_path):
    with FakeServer() as server:
        done = labkit("serve", "--url", f"{server.url}/v1/", "--concurrency", "2", "--requests", "4", "--prompts", "5",
                      "--outputs", "3", "--seed", "2", "--slo", "ttft=9000", "--out", str(tmp_path / "x.json"))
    assert done.exit_code == 0, done.output
    assert "Maximum request concurrency:             2" in done.output
    assert "Total generated tokens:                  12" in done.output
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["settings"]["slo_ms"] == {"ttft": 9000.0} and found["runs"][0]["total_input_tokens"] == 20


@pytest.mark.parametrize("words, message", [
    (["matmul", "--rate", "3"], "--rate is only for serve"), (["--url", "http://x"], "--url is only for serve"),
    (["serve", "--rate", "-3"], "--rate"), (["serve", "--rate", "3", "--prompts", "9-2"], "--prompts '9-2'"),
    (["serve", "--rate", "3", "--quick"], "--quick does not work with a custom load"),
    (["serve", "--rate", "3", "--slo", "speed=3"], "--slo 'speed=3'"),
    (["serve", "--url", "http://127.0.0.1:9", "--out", "/dev/null/x.json"], "cannot be written"),
    (["serve", "--url", "http://127.0.0.1:9", "--out", "build/none.json"], "no server answers at http://127.0.0.1:9")])
def test_what_is_wrong_is_named(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = labkit(*words)
    assert done.exit_code == 2 and message in " ".join(done.output.split()), done.output
