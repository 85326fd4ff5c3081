"""What a server says of itself, and one that is started, fails or is slow."""

import subprocess
import sys

import pytest

from labkit._common.errors import UserError
from labkit.measure.serving import server
from tests.measure.serving.fake_server import FakeServer

TEXT = """# HELP lag of the loop
# TYPE lag histogram
lag_bucket{le="0.001"} 10.0
lag_bucket{le="0.01"} 20.0
lag_bucket{le="0.1"} 20.0
lag_bucket{le="+Inf"} 21.0
lag_sum 1.5
waiting 3
held{kind="a b",x="\\"q\\""} 2.0
held{kind="c"} 5e-1
"""


def test_metrics_are_read():
    found = server.parse(TEXT)
    assert server.value(found, "waiting") == 3 and server.value(found, "held") == 2.5
    assert server.value(found, "absent") is None
    assert found["held"][(("kind", "a b"), ("x", '\\"q\\"'))] == 2.0


def test_percentiles_of_a_histogram_are_interpolated():
    found = server.parse(TEXT)
    of = {each: server.percentile({}, found, "lag", each) for each in (100 * 5 / 21, 100 * 15 / 21, 100)}
    assert list(of.values()) == [pytest.approx(0.0005), pytest.approx(0.0055), 0.1]  # beyond the last bound: that bound


def test_of_two_moments_what_lies_between_counts():
    before, after = server.parse(TEXT), server.parse(TEXT.replace(" 20.0", " 120.0").replace(" 21.0", " 121.0"))
    assert server.percentile(before, after, "lag", 50) == pytest.approx(0.001 + 0.5 * 0.009)
    assert server.percentile(before, before, "lag", 50) is None and server.percentile({}, {}, "lag", 50) is None


def test_the_model_is_the_first_that_is_served():
    with FakeServer(metrics=TEXT) as fake:
        assert server.first_model(fake.url) == "fake"
        assert server.value(server.metrics(fake.url), "waiting") == 3
        assert not server.is_ready(fake.url)  # it answers 404
        with pytest.raises(UserError, match="v1/v1/models answers with status 404"):
            server.first_model(f"{fake.url}/v1")
    with pytest.raises(UserError, match="no server answers at"):
        server.first_model(fake.url)


@pytest.fixture
def command(monkeypatch):
    """Another program in the place of labkit serve: its port is the last argument but the options."""
    popen = subprocess.Popen

    def put(program: str):
        monkeypatch.setattr(server.subprocess, "Popen", lambda words, **options: popen(
            [sys.executable, "-c", program, *words[5:]], **options))
    return put


SERVES = """
import http.server, sys, signal
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def test_a_server_runs_until_the_block_ends(command):
    command(SERVES)
    waited = []
    with server.running(["--model", "x"], ready_s=30, waiting=waited.append) as started:
        assert server.is_ready(started.url) and started.pid > 0 and waited
    assert not server.is_ready(started.url)


def test_a_server_that_does_not_get_ready_says_why(command):
    command("raise SystemExit('no such model')")
    with pytest.raises(UserError, match="the server ended: no such model"), server.running([], ready_s=30):
        pass
    command("import time; time.sleep(60)")
    with pytest.raises(UserError, match="was not ready after .* it wrote nothing"), server.running([], ready_s=0.3):
        pass


def test_a_server_that_does_not_stop_is_ended():
    stubborn = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); "
                                                       "print(1, flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    stubborn.stdout.readline()
    assert server.stop(stubborn, drain_s=0.2) == -9
    stubborn.stdout.close()
