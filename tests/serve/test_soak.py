"""What a soak finds: of answers, memory and what is left over, from findings that are given; and a short one for real.

LABKIT_SOAK_S=300 pytest -m sweep tests/serve/test_soak.py        the five minutes
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from tests.measure.serving.fake_server import FakeServer, Script
from tests.serve import garbage, soak
from tests.serve.garbage import Answered, Peer
from tests.serve.soak import Reply, Tally


def chunk(index=0, text="", reason=None, chat=False, **more):
    part = {"delta": {"content": text}} if chat else {"text": text}
    return {"choices": [{"index": index, "finish_reason": reason, **part}], **more}


USAGE = {"choices": [], "usage": {"completion_tokens": 5}}


def test_an_answer_is_put_together_from_its_stream():
    stream = [chunk(1, " x"), chunk(0, "a"), chunk(0, "b"), chunk(1, reason="stop"), chunk(0, reason="length"), USAGE]
    whole = {"choices": [{"index": 0, "text": "ab", "finish_reason": "length"},
                         {"index": 1, "text": " x", "finish_reason": "stop"}], "usage": {"completion_tokens": 5}}
    assert soak.reply_of(stream) == soak.reply_of([whole]) == Reply((("ab", "length"), (" x", "stop")), 5)
    talk = [chunk(chat=True), chunk(text="Hi", chat=True), chunk(reason="stop", chat=True), USAGE]
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
              "usage": {"completion_tokens": 5}}
    assert soak.reply_of(talk) == soak.reply_of([answer]) == Reply((("Hi", "stop"),), 5)


@pytest.mark.parametrize("parts", [[], [chunk(text="a")], [chunk(reason="stop")], [USAGE],
                                   [chunk(0, reason="stop"), chunk(1, "a"), USAGE],
                                   [chunk(0, reason="stop"), {"error": {"message": "x"}}, USAGE]])
def test_an_answer_that_is_not_whole(parts):
    with pytest.raises(RuntimeError, match="not whole|an error in the answer"):
        soak.reply_of(parts)


def test_questions_are_of_every_kind_and_have_one_right_answer():
    asked = soak.questions("m", 48)
    assert asked == soak.questions("m", 48)
    assert {one.path for one in asked} == {"/v1/completions", "/v1/chat/completions"}
    assert any("n" in one.body for one in asked) and any("stop" in one.body for one in asked)
    assert all(one.body["temperature"] == 0 or "seed" in one.body for one in asked)


def test_answers_are_judged():
    tally, right = Tally(), [Reply((("a", "stop"),), 1), Reply((("b", "stop"),), 1)]
    for reply in (right[0], 429, right[1], Reply((("c", "stop"),), 1)):
        soak._judge(tally, 9, 0, reply, right, 0.5)
    assert (tally.answered, tally.deferred, tally.seconds) == (1, 1, [0.5])
    assert "the answer to question 1" in tally.wrong[0] and "question" not in tally.wrong[1].split("alone")[1]


FACTS = {"seconds": 300.0, "idle": {"pages_held": 0.0, "waiting": 0.0}, "files": [20, 22], "same_afterwards": True}


def test_a_good_run_has_no_problems():
    found = soak.judge(Tally(answered=10, tokens=300, seconds=[1.0] * 10), [(float(at), 500.0) for at in range(60)],
                       FACTS)
    assert found["problems"] == [] and found["tokens_per_second"] == 1.0 and found["answer_seconds"]["p99"] == 1.0
    assert found["memory_mb"]["slope_per_minute"] == 0 and found["memory_mb"]["allowed_per_minute"] == 5.0
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("tally, facts, problem", [
    ({"lost": ["client 3: reset"]}, {}, "lost: client 3: reset"), ({"wrong": ["x"]}, {}, "wrong: x"),
    ({}, {"idle": {"pages_held": 3.0}}, "pages_held is 3 at the end"),
    ({}, {"idle": {"pages_held": None}}, "/metrics does not say pages_held"),
    ({}, {"files": [20, 60]}, "60 files and sockets are open"),
    ({}, {"same_afterwards": False}, "answers otherwise than before"),
    ({"answered": 0}, {}, "no request was answered")])
def test_what_is_not_as_it_must_be_is_a_problem(tally, facts, problem):
    found = soak.judge(Tally(**{"answered": 1, **tally}), [], FACTS | facts)
    assert len(found["problems"]) == 1 and problem in found["problems"][0]


def test_memory_that_grows_is_a_problem_and_peaks_are_not():
    rng = np.random.default_rng(0)
    flat = [(float(at), 400 + 100 * (at < 60) * at / 60 + float(rng.uniform(0, 4)) + 80 * (at % 50 == 0))
            for at in range(300)]  # it grows at first, while all is new
    assert abs(soak.slope(flat)) < 1 and soak.judge(Tally(answered=1), flat, FACTS)["problems"] == []
    leak = [(at, memory + 8 * at / 60) for at, memory in flat]
    assert soak.slope(leak) == pytest.approx(8, abs=1)
    assert "memory grows by" in soak.judge(Tally(answered=1), leak, FACTS)["problems"][0]
    assert soak.slope(flat[:6]) is None  # too short to say


@pytest.mark.parametrize("growth, fine", [(4, True), (12, True), (40, False)])
def test_a_short_run_may_grow_by_as_much_as_a_long_one(growth, fine):
    """Within half a minute one step of the heap is a slope of many MB a minute."""
    steps = [(float(at), 574.0 + growth * (at >= 20)) for at in range(31)]
    ramp = [(float(at), 574.0 + growth * at / 30) for at in range(31)]
    for samples in (steps, ramp)[0 if fine else 1:]:
        found = soak.judge(Tally(answered=1), samples, FACTS | {"seconds": 30.0})
        assert (found["problems"] == []) == fine, found["problems"]


def test_of_this_process_memory_and_files_are_known():
    memory, files = soak.memory_mb(os.getpid()), soak.open_files(os.getpid())
    if os.path.isdir("/proc/self"):
        with open(os.devnull):
            assert soak.open_files(os.getpid()) == files + 1
        assert 10 < memory < 100_000
    assert soak.memory_mb(2**22 + 1) is None and soak.open_files(2**22 + 1) is None


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the system does not say which processes there are")
def test_a_server_is_all_of_its_processes():
    hold = "import time; held = bytearray(50 << 20); held[:] = b'x' * len(held); print(flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    before = soak.memory_mb(os.getpid()), soak.open_files(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert len(soak.family(child.pid)) == 2 and soak.memory_mb(child.pid) > 60
        assert soak.memory_mb(os.getpid()) > before[0] + 50 and soak.open_files(os.getpid()) > before[1]
        for each in reversed(soak.family(child.pid)):
            os.kill(each, signal.SIGKILL)


# --- Garbage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer, fine", [
    (Answered(400, b'{"error": {"message": "m", "type": "t", "param": null, "code": null}}'), True),
    (Answered(400, b'{"error": {"message": "m"}}'), False), (Answered(422, b'{"detail": []}'), False),
    (Answered(400, b"bad"), False), (Answered(200, b"{}"), False), (Answered(500, b"{}"), False),
    (Answered(None, b""), False)])
def test_an_error_must_be_the_clients_and_in_openais_shape(answer, fine):
    assert (garbage.refused(answer) is None) == fine


def test_what_is_sent_reaches_a_server_and_its_answer_is_read():
    with FakeServer(refuses="no_such_field") as server:
        peer = Peer.of(server.url, "fake")
        wrong = asyncio.run(garbage.unknown_fields(peer, np.random.default_rng(0)))
        assert "not in OpenAI's shape" in wrong and server.written[0].body["no_such_field"] < 9
        assert asyncio.run(garbage.unknown_model(peer, np.random.default_rng(0))).startswith("it answers None")


def test_a_slow_reader_gets_all_of_it(monkeypatch):
    monkeypatch.setattr(garbage, "SLOW_S", 0.0)
    with FakeServer(Script(first_s=0.01)) as server:
        chunks = asyncio.run(garbage.read_slowly(Peer.of(server.url, "fake"), "/v1/completions",
                                                 {"prompt": [0, 1], "max_tokens": 3}))
    assert soak.reply_of(chunks) == Reply(((" w w w", "length"),), 3)
    with FakeServer(Script(fails="silent")) as server, pytest.raises(RuntimeError, match="without"):
        asyncio.run(garbage.read_slowly(Peer.of(server.url, "fake"), "/v1/completions",
                                        {"prompt": [0, 1], "max_tokens": 3}))


# --- For real --------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.cpu_device
def test_a_server_with_two_hundred_clients():
    seconds = float(os.environ.get("LABKIT_SOAK_S", "20"))
    found = soak.run("tiny-llama", clients=200, seconds=seconds, say=print)
    assert found["problems"] == []
    assert found["answered"] > 20 and found["vanished"] > 20 and found["different_answers"] > 30
    assert Counter(found["sent_as_garbage"]).total() > 20
