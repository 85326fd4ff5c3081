"""The engine behind its API: how the runs follow from one another, against a server that is made up; and for real."""

import contextlib
import json

import pytest

from labkit import device
from labkit.measure import targets, validate
from labkit.measure.series import serve as series
from labkit.measure.series.llama import TINY
from labkit.measure.serving import drive
from labkit.measure.serving.drive import Run
from labkit.measure.serving.load import Load, Work
from labkit.measure.serving.server import Server
from tests.measure.serving.fake_server import FakeServer, Script
from tests.measure.serving.here import ClientHere

METRICS = "".join(f'{series.LAG}_bucket{{le="{bound}"}} %d\n' for bound in ("0.001", "0.01", "+Inf"))
METRICS += "labkit_steps_total %d\n"
ALONE = {"seconds": 0.1, "tokens_per_second": 1000.0}


@pytest.fixture
def made_up(monkeypatch):
    """A server in the place of labkit serve, whose event loop's lag is counted further at each look."""
    monkeypatch.setattr(drive, "_Process", ClientHere)
    monkeypatch.setattr(series, "engine_alone", lambda work, *given: ALONE)
    monkeypatch.setattr(series.importlib.util, "find_spec", lambda name: True)
    looks = iter(((0, 0, 0, 7), (50, 100, 100, 30), (50, 200, 200, 90), (50, 200, 200, 100), (60, 200, 200, 140)))
    monkeypatch.setattr(series.server, "metrics", lambda url: series.server.parse(METRICS % next(looks)))
    started = []

    @contextlib.contextmanager
    def running(options, **given):
        started.append(options)
        with FakeServer(Script(gap_s=0.002)) as fake:
            started.append(fake)
            yield Server(fake.url, 1)

    monkeypatch.setattr(series.server, "running", running)
    return started


@pytest.mark.cpu_device
def test_the_rates_follow_from_the_closed_loop(made_up):
    taken = json.loads(json.dumps(series.serve(shares=(0.2, 0.4), arrivals_s=0.2), allow_nan=False))
    options, fake, other, _ = made_up
    assert options.pop() == "--no-engine-process"
    assert other == [*options, "--engine-process"] and taken["engine_process"]["steps"] == 40
    assert options[0] == "--model" and options[2:] == ["--max-num-seqs", "4", "--max-model-len", "24"]
    closed, apart = taken["closed"], taken["engine_process"]
    assert taken["engine_process_share_of_alone"] == pytest.approx(apart["output_throughput"] / 1000)
    assert closed["completed"] == apart["completed"] == 6 and apart["max_concurrency"] == 4
    assert closed["max_concurrency"] == 4 and closed["request_rate"] is None
    assert closed["steps"] == 23
    assert taken["share_of_alone"] == pytest.approx(closed["output_throughput"] / 1000)
    assert [run["request_rate"] for run in taken["runs"]] == [
        pytest.approx(share * closed["request_throughput"]) for share in (0.2, 0.4)]
    assert taken["half_load"] == {"request_rate": taken["runs"][1]["request_rate"],
                                  "median_ttft_ms": taken["runs"][1]["median_ttft_ms"]}
    assert taken["loop_lag"]["closed"] == {"p50": pytest.approx(1.0), "p99": pytest.approx(9.82)}
    assert taken["loop_lag"]["rates"]["p50"] == pytest.approx(5.5)
    assert all(token < TINY.vocab_size for written in fake.written for token in written.body["prompt"])
    # Warmed up with every size of batch, and with prompts of full length.
    assert [written.body["max_tokens"] for written in fake.written[:8]] == [2, 3, 4, 5, 2, 2, 2, 2]
    recording = {"machine": {"device": "x", "date": "2026-01-02"}, "limits": {}, "ops": {}, "series": {"serve": taken}}
    assert validate.problems(recording) == []
    found = [one.value for one in targets.evaluate(recording) if one.goal.source == "serve"]
    assert len(found) == 3 and all(value > 0 for value in found)


def test_a_run_with_a_failure_is_no_measurement(monkeypatch):
    monkeypatch.setattr(drive, "_Process", ClientHere)
    with FakeServer(Script(), Script(fails=500)) as fake:
        target = drive.Target(fake.url, "fake")
        with pytest.raises(RuntimeError, match="1 of 2 requests failed: .*HTTP 500"):
            series.taken(Load([Work([0], 2), Work([1], 2)], concurrency=2), target)


@pytest.mark.cpu_device
def test_rates_beyond_what_is_served_while_all_seats_are_taken(made_up):
    taken = json.loads(json.dumps(series.serve_overload(shares=(0.2, 0.4), arrivals_s=0.2), allow_nan=False))
    options, fake = made_up
    assert options[0] == "--model" and not any("engine-process" in option for option in options)
    assert taken["closed"]["completed"] == 12 and taken["closed"]["max_concurrency"] == 4
    assert [run["request_rate"] for run in taken["runs"]] == [
        pytest.approx(share * taken["capacity"]) for share in (0.2, 0.4)]
    for run in taken["runs"]:
        assert run["max_concurrency"] is None and run["first_ms_by_second"][0] > 0


@pytest.mark.cpu_device
def test_the_longest_gap_in_a_cold_server_by_what_requests_ask_for(made_up):
    taken = json.loads(json.dumps(series.serve_cold(), allow_nan=False))
    assert [kind["kind"] for kind in taken["kinds"]] == ["plain", *series.FIRST_OPTIONS]
    assert taken["longest_gap_ms"] == max(kind["gap_ms"] for kind in taken["kinds"]) >= 2
    assert min(kind["first_ms"] for kind in taken["kinds"]) > 0 and len(made_up) == 4  # two servers, and their options
    run = Run(None, [{"gaps": [0.1, 0.3], "first": 0.5}, {"gaps": [], "first": 0.7}])
    assert series.longest_waits(run) == {"gap_ms": pytest.approx(300), "first_ms": pytest.approx(700)}


def records(*spans):
    return [{"sent": sent, "took": took, "first": first} for sent, took, first in spans]


def test_the_rate_while_all_seats_are_taken():
    # Two seats. The first two end at 1 and 2; then one ends each half second until the last is sent, at 3.5.
    loop = Run(None, records((0, 1, .1), (0, 2, .1), (1, 1.5, .1), (2, 1, .1), (2.5, 1, .1), (3, 4, .1), (3.5, 9, .1)))
    assert series.rate_when_full(loop, 2) == pytest.approx(3 / 1.5)
    with pytest.raises(ValueError, match="a closed loop of 7 requests says nothing about 4 taken seats"):
        series.rate_when_full(loop, 4)


def test_waits_for_the_first_token_by_the_second_of_the_request():
    run = Run(None, records((0.1, 1, .010), (0.9, 1, .030), (2.5, 1, .5)))
    assert series.first_ms_by_second(run) == [pytest.approx(20.0), None, pytest.approx(500.0)]


def test_where_a_server_cannot_run_there_is_nothing_to_measure(monkeypatch, capsys):
    monkeypatch.setattr(series.importlib.util, "find_spec", lambda name: None if name == "uvicorn" else True)
    for measure in (series.serve, series.serve_overload, series.serve_cold):
        assert measure() is None and "uvicorn not installed" in capsys.readouterr().err


@pytest.mark.sweep
@pytest.mark.cpu_device
def test_the_engine_alone():
    found = series.engine_alone([Work([3, 4, 5], 4), Work([6, 7], 2), Work([8], 5)], 2, 16, 20)
    assert found["steps"] > 5 and found["tokens_per_second"] == pytest.approx(11 / found["seconds"])
    assert found["first_token_ms"]["p50"] > 0


@pytest.mark.sweep
def test_all_of_it():
    pytest.importorskip("fastapi")
    taken = json.loads(json.dumps(series.serve(shares=(0.5,)), allow_nan=False))
    assert taken["closed"]["completed"] == taken["requests"] and 0 < taken["share_of_alone"] < 1.5
    assert taken["loop_lag"]["closed"]["p99"] > 0 and device.kind() in ("cpu", "gpu")
