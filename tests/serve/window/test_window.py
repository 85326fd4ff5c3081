"""The window's page, its events and its controls, on the fake model."""

import asyncio
import base64
import contextlib
import hashlib
import html.parser
import json
import re
import time
import tomllib

import httpx
import pytest
from fastapi.testclient import TestClient

from labkit._common.paths import PACKAGE, REPOSITORY
from labkit.engine import LLMEngine, SamplingParams
from labkit.serve import window as windows
from labkit.serve.app import create_app
from labkit.serve.async_engine import AsyncEngine
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings
from labkit.serve.window import UNREAD, Window, page
from tests.engine.fake_model import FakeRunner
from tests.engine.test_llm import Letters
from tests.serve.serving import listening, until
from tests.serve.window.test_state import Browser, check

LONG = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.0)


class Slow(FakeRunner):
    seconds = 0.0

    def launch(self, step):
        time.sleep(self.seconds)
        return super().launch(step)


@contextlib.contextmanager
def watched(seconds=0.0):
    """A window on a thread that serves the fake model."""
    runner = Slow(60, 4, 4, 64)
    runner.seconds = seconds
    transport = EngineThread(LLMEngine(runner, Letters(), max_num_seqs=4, max_num_batched_tokens=16))
    transport.start()
    thread = AsyncEngine(transport)
    try:
        yield Window(thread, model="letters", control=True)
    finally:
        thread.resume()
        thread.stop(drain_s=5)


def parsed(line: bytes):
    """(name, data) of an event; None for a comment."""
    if line.startswith(b":"):
        return None
    name, data = re.fullmatch(rb"event: (\w+)\ndata: (.*)\n\n", line).groups()
    return name.decode(), json.loads(data)


async def read(window, until, seconds=10):
    """The events of a new watcher, the last one being the first for which until(name, data) holds."""
    found, events = [], window.events()
    async with asyncio.timeout(seconds), contextlib.aclosing(events):
        async for line in events:
            event = parsed(line)
            if event:
                found.append(event)
                if until(*event):
                    return found
    return found


# --- The page --------------------------------------------------------------------------------------------------------


class Elements(html.parser.HTMLParser):
    """labelled: ids of fields that stand in a label, or that one names."""

    def __init__(self, text):
        super().__init__()
        self.found, self.labelled, self.in_label = [], set(), False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.found.append((tag, attributes))
        if tag == "label":
            self.in_label = True
            self.labelled.add(attributes.get("for"))
        elif self.in_label:
            self.labelled.add(attributes.get("id"))

    def handle_endtag(self, tag):
        self.in_label &= tag != "label"


def part(tag):
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page()[0], re.DOTALL)
    return text


def test_the_page_asks_for_nothing_and_may_run_its_own_script_only():
    text, policy = page()
    elements = Elements(text)
    links = [value for _, attributes in elements.found for name, value in attributes.items() if name in ("src", "href")]
    assert links == ["data:,", "#message"]
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    digest = base64.b64encode(hashlib.sha256(part("script").encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy
    assert "innerHTML" not in text and "page.css" not in re.sub(r"/\*.*?\*/", "", part("style"))


def test_every_element_that_the_script_asks_for_is_on_the_page_once_and_every_field_has_a_label():
    elements = Elements(page()[0])
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    asked = set(re.findall(r"""\$\("([\w-]+)"\)""", part("script")))
    assert len(asked) > 30 and asked <= set(ids)
    fields = {attributes["id"] for tag, attributes in elements.found if tag in ("input", "textarea")}
    assert len(fields) > 8 and fields <= elements.labelled


def test_all_of_the_pages_files_are_installed():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    installed = {path for pattern in settings["package-data"]["labkit"] for path in PACKAGE.glob(pattern)}
    files = {path for path in (PACKAGE / "serve" / "window").iterdir() if path.suffix in (".html", ".css", ".js")}
    assert len(files) == 6 and files <= installed


def contrast(one: str, other: str) -> float:
    """As WCAG defines it: 4.5 at least for text."""
    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_in_both_colour_schemes():
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", block))
                   for block in re.findall(r":root \{(.*?)\}", part("style"), re.DOTALL))
    for colours in (light, light | dark):
        for text, grounds in (("ink", ("paper", "panel", "ground", "accent-pale")), ("soft", ("paper", "panel")),
                              ("accent", ("paper", "accent-pale")), ("on-accent", ("accent",)),
                              ("bad", ("paper", "bad-pale"))):
            for ground in grounds:
                assert contrast(colours[text], colours[ground]) >= 4.5, f"{text} on {ground}"
        assert contrast(colours["edge"], colours["paper"]) >= 3
        for seat in range(8):  # its number, on as much of its colour as is mixed in at most
            mixed = "#" + "".join(f"{round(0.55 * int(a, 16) + 0.45 * int(b, 16)):02x}" for a, b in zip(
                re.findall(r"\w\w", colours[f"s{seat}"]), re.findall(r"\w\w", colours["paper"]), strict=True))
            assert contrast(colours["ink"], mixed) >= 4.5, f"seat {seat}"


# --- Events ----------------------------------------------------------------------------------------------------------


def test_the_first_event_is_all_and_the_others_what_changed_until_nothing_is_left():
    async def watch(window):
        browser = Browser()
        window.engine.pause()
        streams = [window.engine.submit("ghijkghijkg" + "abcd"[at], LONG) for at in range(4)]

        def ends(name, data):
            window.engine.resume()  # with the first event
            return data["step"] is not None and not data["seats"]

        found = await read(window, ends)
        for name, data in found:
            browser.receive(data, whole=name == "whole")
        assert [name for name, _ in found] == ["whole"] + ["change"] * (len(found) - 1) and len(found) > 2
        assert max(len(data["seats"]) for _, data in found) == 4
        assert any(chunk[2] == "decode" for _, data in found if data["step"] for chunk in data["step"]["chunks"])
        assert sum(data["sums"]["generated"] for _, data in found) == 4 * 40
        assert sum(data["sums"]["prompt"] for _, data in found) == 4 * 12 - sum(
            stream.request.num_cached_tokens for stream in streams)
        assert found[0][1]["model"] == "letters" and found[0][1]["control"] is True
        window.engine.ask(lambda there: check(browser, there.engine)).result(5)
        for stream in streams:
            assert [output async for output in stream][-1].finished

    with watched(seconds=0.01) as window:
        asyncio.run(watch(window))


@pytest.mark.sweep(every=True)
def test_at_most_ten_times_a_second_and_only_while_someone_watches():
    async def watch(window):
        assert not window.engine.transport.observers and window.looked == 0
        for _ in range(4):
            window.engine.submit("ghijk", SamplingParams(max_tokens=58, ignore_eos=True))
        end = time.monotonic() + 0.55
        found = await read(window, lambda name, data: time.monotonic() > end)
        assert 3 <= len(found) <= 9 and window.looked <= 9
        assert sum(len(data["steps"]) for _, data in found) > 2 * len(found)
        assert len(window.engine.transport.observers) == 1
        await asyncio.sleep(0.25)
        assert not window.engine.transport.observers and window.watchers == 0
        before = window.looked
        await asyncio.sleep(0.25)
        assert window.looked == before
        assert (await read(window, lambda name, data: True))[0][0] == "whole"

    with watched(seconds=0.01) as window:
        asyncio.run(watch(window))


def test_a_slow_reader_is_sent_the_whole_anew_and_little_is_kept_for_it(monkeypatch):
    monkeypatch.setattr(windows, "EVERY_S", 0.01)

    async def watch(window):
        slow, browser = window.events(), Browser()
        await anext(slow)  # a comment
        name, data = parsed(await anext(slow))
        browser.receive(data, whole=name == "whole")
        for at in range(8):
            window.engine.submit("ghijkghijkg" + "abcd"[at % 4], LONG)
        keeps_up = asyncio.create_task(read(window, lambda name, data: not data["seats"] and data["free"] == 60 and
                                            data["step"] is not None))
        most = 0
        while not keeps_up.done():
            most = max([most, *(len(each.unread) for each in window._watchers)])
            await asyncio.sleep(0.005)
        assert most == UNREAD and len(keeps_up.result()) > 3 * UNREAD
        names = []
        while window.watchers and (browser.state["step"] is None or browser.state["seats"]):
            name, data = parsed(await anext(slow))
            names.append(name)
            browser.receive(data, whole=name == "whole")
        assert "whole" in names
        window.engine.ask(lambda there: check(browser, there.engine)).result(5)
        await slow.aclose()

    with watched(seconds=0.005) as window:
        asyncio.run(asyncio.wait_for(watch(window), 20))


def test_a_step_that_keeps_the_engine_long_is_shown(monkeypatch):
    monkeypatch.setattr(windows, "LONG_S", 0.05)

    async def watch(window):
        window.engine.submit("ghijk", SamplingParams(max_tokens=2, ignore_eos=True))
        await asyncio.sleep(0.02)
        (name, data), *_ = await read(window, lambda name, data: name == "long")
        assert name == "long" and data["seconds"] > 0.03 and data["paused"] is False

    with watched(seconds=0.4) as window:
        asyncio.run(watch(window))


def test_when_the_engine_takes_no_more_requests_the_events_end():
    async def watch(window):
        reading = asyncio.create_task(read(window, lambda name, data: False))
        await asyncio.sleep(0.15)
        window.engine.drain()
        found = await asyncio.wait_for(reading, 2)
        assert found and window.watchers == 0
        await asyncio.to_thread(until, lambda: not window.engine.transport.observers)

    with watched() as window:
        asyncio.run(watch(window))


# --- Over HTTP -------------------------------------------------------------------------------------------------------


KEY = {"Authorization": "Bearer key"}


def app_of(window, **settings):
    """The server's app, with this window."""
    app = create_app(window.engine, Settings(**{"api_key": "key"} | settings))
    app.state.window = window
    return app


def test_a_client_that_goes_leaves_nothing_behind():
    with watched() as window, listening(app_of(window)) as address, httpx.Client() as client:
        with client.stream("GET", f"{address}/window/events", headers=KEY) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            assert next(line for line in lines if line.startswith("event")) == "event: whole"
            assert window.watchers == 1 and len(window.engine.transport.observers) == 1
        until(lambda: window.watchers == 0 and not window.engine.transport.observers)
        with client.stream("GET", f"{address}/window/events", headers=KEY) as response:
            until(lambda: window.watchers == 1)
            window.engine.drain()
            for _ in response.iter_lines():
                pass  # it ends
        assert client.get(f"{address}/window/events", headers=KEY).status_code == 503


def test_the_page_is_open_and_what_it_asks_for_needs_the_key():
    with watched() as window, TestClient(app_of(window)) as client:
        shown = client.get("/")
        assert shown.status_code == 200 and shown.headers["content-security-policy"] == page()[1]
        for headers in ({}, {"Authorization": "Bearer other"}):
            assert client.get("/window/events", headers=headers).status_code == 401
            assert client.post("/window/control", json={"action": "pause"}, headers=headers).status_code == 401
        others = KEY | {"Origin": "http://elsewhere.example"}
        assert client.post("/window/control", json={"action": "pause"}, headers=others).status_code == 403
        assert client.get("/window/events", headers=others).status_code == 403
        assert not window.engine.paused
        own = KEY | {"Origin": "http://testserver"}
        assert client.post("/window/control", json={"action": "pause"}, headers=own).json()["paused"] is True


@pytest.mark.parametrize("settings, allowed", [({"host": "127.0.0.1"}, True), ({"host": "0.0.0.0"}, False),
                                               ({"host": "0.0.0.0", "window_control": True}, True)])
def test_the_engine_is_controlled_from_this_machine_or_where_that_is_allowed(settings, allowed):
    with watched() as window, TestClient(create_app(window.engine, Settings(api_key="key", **settings)),
                                         headers=KEY) as client:
        answer = client.post("/window/control", json={"action": "pause"})
        assert answer.status_code == (200 if allowed else 403) and window.engine.paused is allowed
        if not allowed:
            assert "--window-control" in answer.json()["error"]["message"]
        assert client.app.state.window.control is allowed


def test_before_there_is_an_engine_the_page_is_there_and_says_what_is_missing():
    with TestClient(create_app(None, Settings(api_key="key")), headers=KEY) as client:
        assert client.get("/").status_code == 200
        answer = client.get("/window/events")
        assert answer.status_code == 503 and "being loaded" in answer.json()["error"]["message"]


async def running_loop():
    return asyncio.get_running_loop()


def test_pause_one_step_slow_motion_resume():
    with watched() as window, TestClient(app_of(window), headers=KEY) as client:
        def do(**body):
            return client.post("/window/control", json=body)

        thread = window.engine
        assert do(action="step").status_code == 409
        assert do(action="pause").json() == {"paused": True, "delay_s": 0.0, "steps": 0}
        refused = do(action="step")
        assert refused.status_code == 409 and "no request" in refused.json()["error"]["message"]

        stream = thread.submit("ghijk", LONG, loop=client.portal.call(running_loop))
        computed = []
        for number in range(1, 5):
            assert do(action="step").json()["steps"] == number
            computed.append(thread.ask(lambda there: there.engine.scheduler.running[0].computed).result(5))
        assert computed == [5, 6, 7, 8]
        time.sleep(0.05)
        assert thread.steps == 4
        assert do(action="delay", delay_s=0.05).json()["delay_s"] == 0.05
        assert do(action="resume").json()["paused"] is False
        time.sleep(0.3)
        assert 5 <= thread.steps <= 12
        assert do(action="delay", delay_s=0).json()["delay_s"] == 0.0
        until(lambda: not thread.unfinished)
        assert stream.request.sequences[0].output_length == 40


@pytest.mark.parametrize("body", [{"action": "stop"}, {}, {"action": "delay", "delay_s": 60}, {"action": "delay"},
                                  {"action": "delay", "delay_s": -1}, {"action": "pause", "force": True}])
def test_what_is_no_control_is_refused(body):
    with watched() as window, TestClient(app_of(window), headers=KEY) as client:
        assert client.post("/window/control", json=body).status_code == 400
        assert not window.engine.paused and window.engine.delay_s == 0
