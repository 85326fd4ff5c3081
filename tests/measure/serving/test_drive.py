"""Clients against a server whose latencies are known: it notes when it wrote what, on the clock that they use."""

import time

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit.measure.serving import drive as driving
from labkit.measure.serving.drive import Target, clients_for, drive
from labkit.measure.serving.load import Load, Work, random_work
from tests.measure.serving.fake_server import FakeServer, Script
from tests.measure.serving.here import ClientHere

PROCESS = driving._Process
LATE_S = 2.0  # a machine with much to do may be so late; what is compared is never so close


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(driving, "_Process", ClientHere)


@pytest.fixture
def processes(here, monkeypatch):
    """The clients are processes, as they are for a user."""
    monkeypatch.setattr(driving, "_Process", PROCESS)


def target(server, **fields) -> Target:
    return Target(server.url, "fake", **fields)


def scripted(*numbers: int, output: int = 4) -> list[Work]:
    """Requests that get these scripts of the server."""
    return [Work([number, 7, 8], output) for number in numbers]


def test_times_are_those_at_which_the_server_wrote(processes):
    with FakeServer(Script(first_s=0.15, gap_s=0.06), Script(first_s=0.05, gap_s=0.1, at_a_time=3)) as server:
        run = drive(Load(scripted(0, 1, output=6), concurrency=1), target(server))
    slow, wide = run.records
    for record, written in zip((slow, wide), server.written, strict=True):
        assert record["error"] is None and (record["prompt_tokens"], record["output_tokens"]) == (3, 6)
        first = written.texts[0] - written.came  # the request came after it was sent, and was read after it was written
        assert first <= record["first"] < first + LATE_S
        arrived = run.began + record["sent"] + record["first"] + np.cumsum([0, *record["gaps"]])
        assert all(0 <= came - wrote < LATE_S for came, wrote in zip(arrived, written.texts, strict=True))
        assert record["took"] >= record["first"] + sum(record["gaps"]) - 1e-5
    assert len(slow["gaps"]) == 5 and len(wide["gaps"]) == 1
    assert wide["sent"] >= slow["sent"] + slow["took"]  # one at a time
    assert run.seconds == wide["sent"] + wide["took"]


def test_a_closed_loop_keeps_so_many_under_way_and_no_more():
    with FakeServer(Script(first_s=0.1)) as server:
        run = drive(Load(scripted(*[0] * 15, output=1), concurrency=5), target(server), clients=2)
    assert server.most == 5 and len(run.records) == 15
    assert [record["number"] for record in run.records] == list(range(15))
    assert run.seconds >= 0.3


@pytest.mark.sweep(every=True)
def test_an_open_loop_does_not_wait_for_answers():
    load = Load(scripted(*[0] * 12, output=1), rate=40.0, seed=3)
    with FakeServer(Script(first_s=1.5)) as server:
        run = drive(load, target(server))
        moments = [written.came - run.began for written in server.written]
    assert server.most == 12
    assert [record["at"] for record in run.records] == load.arrivals()
    assert all(0 <= record["sent"] - record["at"] < LATE_S for record in run.records)
    assert max(moments) < 1.5 + max(load.arrivals())


def test_arrivals_above_the_limit_wait():
    with FakeServer(Script(first_s=0.05)) as server:
        run = drive(Load(scripted(*[0] * 6, output=1), rate=1000.0, concurrency=2), target(server))
    assert server.most == 2 and all(record["error"] is None for record in run.records)


def test_each_kind_of_failure_has_its_name():
    fails = (None, 429, 500, "cut", "error", "silent", "html", "empty")
    with FakeServer(*(Script(fails=each) for each in fails)) as server:
        run = drive(Load(scripted(*range(len(fails))), concurrency=8), target(server))
    kinds = {record["number"]: (record["error"], record["detail"]) for record in run.records}
    assert kinds[0] == (None, None)
    assert kinds[1] == ("HTTP 429", "this is 429") and kinds[2] == ("HTTP 500", "this is 500")
    assert kinds[3][0] == "connection lost" and kinds[4] == ("error in the stream", "a step failed")
    assert kinds[5][0] == "cut short" and kinds[6][0] == "not this API" and kinds[7][0] == "no text"


def test_an_answer_that_does_not_come_and_a_server_that_is_not_there():
    with FakeServer(Script(fails="hang")) as server:
        (late,) = drive(Load(scripted(0), concurrency=1), target(server), timeout_s=0.3).records
    (absent,) = drive(Load(scripted(0), concurrency=1), target(server), timeout_s=5.0).records  # it is gone by now
    assert late["error"] == "timeout" and late["took"] < 0.3 + LATE_S
    assert absent["error"] == "no connection"


def test_what_is_asked():
    with FakeServer() as server:
        drive(Load(scripted(0), concurrency=1), target(server, key="k", body={"ignore_eos": True}))
    assert server.written[0].body == {
        "model": "fake", "prompt": [0, 7, 8], "max_tokens": 4, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True}


def test_progress_is_seen():
    seen = []
    with FakeServer(Script(first_s=0.1, gap_s=0.2), Script(fails=500)) as server:
        drive(Load(scripted(0, 0, 1), concurrency=3), target(server),
              watch=lambda now: seen.append((now.ended, now.failed, now.in_flight, now.pieces)))
    assert (1, 1) in [one[:2] for one in seen] and seen[-1][:2] == (3, 1)
    assert any(one[2] == 2 for one in seen) and max(one[3] for one in seen) >= 2


def test_ctrl_c_keeps_what_was_measured_and_leaves_no_client(processes):
    def interrupted(now):
        if now.ended == 3:  # the quick ones
            raise KeyboardInterrupt

    with FakeServer(Script(), Script(fails="hang")) as server:
        began = time.monotonic()
        run = drive(Load(scripted(0, 1, 0, 1, 0, 1), concurrency=6), target(server), watch=interrupted)
        took = time.monotonic() - began
        while server.running and time.monotonic() < began + 20:  # a connection stays open as long as its client lives
            time.sleep(0.02)
        assert server.running == 0
    assert run.stopped and [record["number"] for record in run.records] == [0, 2, 4] and took < 20
    assert all(record["error"] is None for record in run.records) and run.seconds > 0 and run.lags


def test_a_client_that_fails_says_why(processes, monkeypatch, tmp_path):
    broken = tmp_path / "client.py"
    broken.write_text("raise SystemExit('no sockets left')")
    monkeypatch.setattr(driving.client, "__file__", str(broken))
    with pytest.raises(RuntimeError, match="a client of the benchmark failed: no sockets left"):
        drive(Load(scripted(0), concurrency=1), Target("http://127.0.0.1:9", "fake"))


def test_without_httpx_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(driving.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[serve\]'"):
        drive(Load(scripted(0), concurrency=1), Target("http://127.0.0.1:9", "fake"))


def test_clients_are_as_many_as_the_streams_need_and_the_machine_has(monkeypatch):
    work = random_work(300, (1, 1), (1, 1))
    monkeypatch.setattr(driving.os, "cpu_count", lambda: 16)
    assert [clients_for(Load(work, concurrency=count)) for count in (1, 32, 33, 128, 300)] == [1, 1, 2, 4, 4]
    assert clients_for(Load(work, rate=1.0)) == 4 and clients_for(Load(work[:3], concurrency=128)) == 1
    monkeypatch.setattr(driving.os, "cpu_count", lambda: 2)
    assert clients_for(Load(work, concurrency=128)) == 1
    assert [driving._share(7, index, 3) for index in range(3)] == [3, 2, 2]
