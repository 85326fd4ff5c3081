"""The server as a process: it listens before it can serve, drains at the first signal and ends at the second."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from labkit import device
from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.serve import loading, server
from labkit.serve.settings import Settings
from tests.serve.serving import until

posix = pytest.mark.skipif(os.name != "posix", reason="no signals but Ctrl-C on this system")
LONG = {"model": "tiny-llama", "prompt": "abc", "ignore_eos": True, "temperature": 0, "stream": True}


@contextlib.contextmanager
def process(loads_s=0.0, engine="thread", restart_s=60.0):
    """(the process, its address, its lines so far)."""
    child = subprocess.Popen([sys.executable, "-m", "tests.serve.fake_server", str(loads_s), engine, str(restart_s)],
                             cwd=REPOSITORY,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(iter(child.stdout.readline, "")))
    reader.start()
    try:
        until(lambda: any("listens on" in line for line in lines) or child.poll() is not None, 60)
        assert child.poll() is None, child.stderr.read()
        yield child, re.search(r"http://\S+", "".join(lines))[0], lines
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stdout.close()
        child.stderr.close()


def answers(client, path):
    with contextlib.suppress(httpx.TransportError):
        return client.get(path).status_code


@pytest.mark.sweep(every=True)
@posix
@pytest.mark.parametrize("engine", ["thread", pytest.param("process", marks=pytest.mark.sweep)])
def test_it_answers_while_it_loads_and_drains_at_the_first_signal(engine):
    with process(loads_s=1.0, engine=engine) as (child, url, lines), httpx.Client(base_url=url, timeout=20) as client:
        assert answers(client, "/health") == 200  # at once: it has announced that it listens
        until(lambda: "kernels are being compiled, 1 of 2" in client.get("/ready").text)
        health = client.get("/health").json()
        assert health == {"status": "loading", "doing": "kernels are being compiled, 1 of 2"}
        loading = client.get("/ready")
        assert loading.status_code == 503 and loading.json()["error"]["code"] == "loading"
        early = client.post("/v1/completions", json=LONG)
        assert early.status_code == 503 and early.headers["retry-after"]
        until(lambda: client.get("/ready").status_code == 200)
        until(lambda: any("curl" in line for line in lines))
        assert any(f"tiny-llama at {url}/v1" in line for line in lines)
        with client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 60}) as stream:
            events = stream.iter_lines()
            next(events)
            child.send_signal(signal.SIGTERM)
            until(lambda: answers(client, "/ready") == 503)
            refused = client.post("/v1/completions", json=LONG)
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
            assert [line for line in events if line][-1] == "data: [DONE]"  # what ran has come to its end
        assert child.wait(20) == 0
        assert "Traceback" not in child.stderr.read()


@pytest.mark.sweep
@posix
@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_second_signal_ends_it_at_once(engine):
    with process(engine=engine) as (child, url, _), httpx.Client(base_url=url, timeout=20) as client:
        until(lambda: answers(client, "/ready") == 200)
        with client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 60}) as stream:
            next(stream.iter_lines())
            child.send_signal(signal.SIGTERM)
            until(lambda: answers(client, "/ready") == 503)
            child.send_signal(signal.SIGTERM)
            assert child.wait(5) == 128 + signal.SIGTERM


@pytest.mark.sweep(every=True)
@posix
@pytest.mark.parametrize("engine", ["thread", pytest.param("process", marks=pytest.mark.sweep)])
def test_a_signal_while_it_loads_ends_it(engine):
    with process(loads_s=60, engine=engine) as (child, url, _), httpx.Client(base_url=url) as client:
        assert answers(client, "/health") == 200  # at once: it has announced that it listens
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0


def engines(lines):
    """The processes in which an engine was loaded, as far as they have been named."""
    return [int(match[1]) for line in lines if (match := re.search(r"in process (\d+)", line))]


@posix
@pytest.mark.sweep
@pytest.mark.parametrize("engine", ["process", "tiny"])
def test_an_engine_that_is_killed_is_started_again(engine):
    with (process(engine=engine, restart_s=0.01) as (child, url, lines),
          httpx.Client(base_url=url, timeout=120) as client):
        until(lambda: answers(client, "/ready") == 200, 300)
        for killed in (1, 2):
            with client.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 60}) as stream:
                events = stream.iter_lines()
                next(events)
                os.kill(engines(lines)[-1], signal.SIGKILL)
                last = json.loads([line for line in events if line][-1].removeprefix("data: "))
            assert last["error"]["code"] == "engine_died"
            assert "the engine's process ended (killed by SIGKILL" in last["error"]["message"]
            until(lambda: len(engines(lines)) == killed + 1 and answers(client, "/ready") == 200, 300)  # noqa: B023
            assert client.get("/health").json() == {"status": "ok"}
            answer = client.post("/v1/completions", json=LONG | {"stream": False, "max_tokens": 3})
            assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 3
            assert f"labkit_engine_restarts_total {killed}.0" in client.get("/metrics").text
        exempt = [int(count) for count in re.findall(r"(\d+) objects are exempt", "".join(lines))]
        assert len(exempt) == (3 if engine == "tiny" else 0) and all(count > 100_000 for count in exempt)
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0


@pytest.mark.sweep(every=True)
@posix
def test_an_engine_that_is_killed_soon_after_its_start_waits_and_says_so():
    with process(engine="process", restart_s=3000) as (child, url, lines), httpx.Client(base_url=url) as client:
        until(lambda: answers(client, "/ready") == 200, 60)
        os.kill(engines(lines)[-1], signal.SIGKILL)
        until(lambda: client.get("/health").json().get("error", {}).get("code") == "restarting", 60)
        for path in ("/health", "/ready", "/v1/models"):
            found = client.get(path)
            assert found.status_code == 503 and found.json()["error"]["code"] == "restarting"
            assert re.search(r"the engine's process ended \(killed by SIGKILL.*\); it is started again in [\d]+ s$",
                             found.json()["error"]["message"])
        assert int(client.get("/ready").headers["retry-after"]) > 60  # as long as it takes
        assert len(engines(lines)) == 1
        child.send_signal(signal.SIGTERM)  # ends it while it waits
        assert child.wait(20) == 0


@pytest.mark.parametrize("given, gpu, count, apart", [(None, True, 2, True), (None, True, 1, False),
                                                      (None, False, 8, False), (True, False, 1, True),
                                                      (False, True, 8, False)])
def test_the_engine_has_a_process_of_its_own_on_a_gpu(monkeypatch, given, gpu, count, apart):
    monkeypatch.setattr(device, "on_gpu", lambda: gpu)
    monkeypatch.setattr(server, "cores", lambda: count)
    assert server.in_process(Settings(engine_process=given)) is apart


def load_nothing(settings, doing):
    doing("it loads")
    raise UserError("there is no such model")


def test_a_model_that_cannot_be_loaded_ends_it():
    with pytest.raises(UserError, match="there is no such model"):
        server.run(Settings(port=0), say=str, ready=str, doing=str, load=load_nothing)


def test_it_says_that_it_listens_when_it_does():
    """It can be connected to by then, and nothing is loaded before."""
    shown = []

    def say(line):
        host, port = re.fullmatch(r"labkit listens on http://(.*):(\d+)", line).groups()
        socket.create_connection((host, int(port)), 5).close()
        shown.append("it listens")

    with pytest.raises(UserError, match="there is no such model"):
        server.run(Settings(port=0), say=say, ready=shown.append, doing=shown.append, load=load_nothing)
    assert shown == ["it listens", "it loads"]


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1, port {port}"):
            server.bound(Settings(port=port))
    with pytest.raises(UserError, match="cannot listen on not an address"):
        server.bound(Settings(host="not an address"))


@pytest.mark.parametrize(("option", "message"), [({"max_num_seqs": 10**9}, "it must be from 1 to 16,384"),
                                                 ({"max_model_len": 10**9}, "it must be from 2 to ")])
def test_an_option_that_cannot_be_is_refused_in_a_sentence(option, message):
    (name,) = option
    with pytest.raises(UserError, match=f"^{name} is 1000000000; {message}"):
        loading.load_model(Settings(**option), lambda text: None)
