"""The engine's thread on the fake model: each request gets what it gets alone, whoever goes away, waits or fails."""

import asyncio
import contextlib
import threading
import time

import pytest

from labkit.engine import LLMEngine, SamplingParams
from labkit.serve.async_engine import AsyncEngine, Busy, DeadlineExceeded, Draining, StepFault
from labkit.serve.engine_thread import EngineThread
from tests.engine.fake_model import FakeRunner
from tests.engine.test_llm import LONG, Letters, expected, requests, seen
from tests.serve.serving import until

PAGES = 30


class Faulty(FakeRunner):
    """Raises at the launch of a step with a prompt that has the token `poison`, or when its tokens are asked for."""

    poison, at_tokens = None, False

    def launch(self, step):
        bad = any(self.poison in chunk.sequence.request.prompt for chunk in step.chunks)
        handle = super().launch(step)
        if bad and not self.at_tokens:
            self.received = self.launched  # the engine asks for none of what it launched before
            raise RuntimeError("the device is on fire")
        if bad:
            def failing():
                self.received = self.launched
                raise RuntimeError("the device is on fire")
            handle.tokens = failing
        return handle


@contextlib.contextmanager
def running(runner=None, max_waiting=256, **options):
    """A thread with an engine of the fake model; at the end it has no request and no page is held."""
    seats = options.setdefault("max_num_seqs", 4)
    runner = runner or FakeRunner(PAGES, 4, seats, 64)
    transport = EngineThread(LLMEngine(runner, Letters(), **{"max_num_batched_tokens": 16} | options))
    transport.start()
    thread = AsyncEngine(transport, max_waiting)
    try:
        yield thread
    finally:
        thread.stop(drain_s=5)
    assert thread.unfinished == 0 and thread.stats.free_pages == thread.stats.pages == PAGES


async def read(stream):
    return [output async for output in stream]


def in_threads(client):
    """client(seed) four times at once, each in a thread of its own."""
    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)


def settled(thread):
    """After everything that was asked of it."""
    thread.ask(lambda there: None).result(5)


def wrong_of_many(engine):
    """Four loops stream twelve requests each; the requests that did not get what they get alone."""
    wrong = []

    def client(seed):
        async def ask():
            asked = list(requests(12, seed))
            streams = [engine.submit(prompt, params, final_only=at % 3 == 0)
                       for at, (prompt, params) in enumerate(asked)]
            for at, ((prompt, params), outputs) in enumerate(zip(asked, await asyncio.gather(*map(read, streams)),
                                                                 strict=True)):
                texts, last = [output.outputs[0].text for output in outputs], outputs[-1]
                whole = [seen(one) for one in last.outputs] == [expected(prompt, params, index)
                                                                for index in range(params.n)]
                named = last.prompt == prompt and last.prompt_token_ids == Letters().encode(prompt)
                grows = all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))
                if not (whole and named and grows and (len(outputs) == 1 or at % 3)):
                    wrong.append((prompt, params, texts))
        asyncio.run(ask())

    in_threads(client)
    return wrong


def test_each_of_many_streams_in_several_loops_gets_what_it_gets_alone():
    with running() as thread:
        assert wrong_of_many(thread) == [] and thread.waiting == 0


def test_a_slow_reader_finds_the_newest_output_and_no_one_waits_for_it():
    async def ask():
        params = SamplingParams(max_tokens=30, **LONG)
        slow = thread.submit("abc", params)
        first = await anext(slow)
        await read(thread.submit("cab", params))
        await asyncio.sleep(0.05)
        rest = await read(slow)
        assert len(first.outputs[0].token_ids) < 30 and len(rest) == 1
        assert seen(rest[0].outputs[0]) == expected("abc", params)

    with running() as thread:
        thread.delay_s = 0.005  # so that the first output is not the last one, too
        asyncio.run(ask())


def test_one_stream_alone_shows_every_token():
    async def ask():
        outputs = await read(thread.submit("abc", SamplingParams(max_tokens=9, **LONG)))
        assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 10))

    with running() as thread:
        thread.delay_s = 0.005  # so that the reader is not late
        asyncio.run(ask())


def test_a_cancelled_request_frees_its_pages_before_the_next_step_and_its_stream_ends():
    async def ask():
        stream = thread.submit("abcdefgh", SamplingParams(max_tokens=40, **LONG))
        other = thread.submit("abc", SamplingParams(max_tokens=40, **LONG))
        for _ in range(3):
            thread.step_once()
        await anext(stream)
        await asyncio.to_thread(until, lambda: thread.steps == 3)
        steps, free = thread.steps, thread.stats.free_pages
        assert free < PAGES - 2
        stream.cancel()
        await asyncio.to_thread(settled, thread)
        assert thread.steps == steps and thread.stats.free_pages > free
        await read(stream)
        stream.cancel()  # again, after its end
        thread.resume()
        assert seen((await read(other))[-1].outputs[0]) == expected("abc", SamplingParams(max_tokens=40, **LONG))

    with running() as thread:
        thread.pause()
        asyncio.run(ask())


def test_too_many_that_wait_are_refused_and_wrong_ones_too():
    async def ask():
        params = SamplingParams(max_tokens=3, **LONG)
        streams = [thread.submit("abc", params) for _ in range(2)]
        with pytest.raises(Busy, match="2 requests wait, as many as may"):
            thread.submit("abc", params)
        with pytest.raises(ValueError, match="the prompt has 64 tokens; at most 63 fit"):
            thread.submit("a" * 64, params)
        streams[0].cancel()
        await asyncio.to_thread(settled, thread)
        streams.append(thread.submit("cab", params))  # there is a place again
        thread.resume()
        for stream, prompt in zip(streams[1:], ("abc", "cab"), strict=True):
            assert seen((await read(stream))[-1].outputs[0]) == expected(prompt, params)

    with running(max_waiting=2) as thread:
        thread.pause()
        asyncio.run(ask())
    with pytest.raises(ValueError, match="max_waiting is 0"):
        AsyncEngine(thread.transport, 0)


@pytest.mark.parametrize("state", ["running", "waiting", "paused"])
def test_a_deadline_ends_a_request_wherever_it_is(state):
    async def ask():
        if state == "paused":
            thread.pause()
        thread.delay_s = 0.01
        kept = thread.submit("cab", SamplingParams(max_tokens=12, **LONG))
        late = thread.submit("abc", SamplingParams(max_tokens=50, **LONG), deadline_s=0.05)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await read(late)
        assert time.monotonic() - began < 1
        thread.resume()
        assert seen((await read(kept))[-1].outputs[0]) == expected("cab", SamplingParams(max_tokens=12, **LONG))

    with running(max_num_seqs=1 if state == "waiting" else 4) as thread:
        asyncio.run(ask())


@pytest.mark.parametrize("at_tokens", [False, True])
def test_a_fault_ends_its_batch_alone_and_the_engine_goes_on(at_tokens):
    async def ask():
        params = SamplingParams(max_tokens=12, **LONG)
        thread.pause()
        healthy, bad = thread.submit("abcd", params), thread.submit("kab", params)
        waiting = [thread.submit(prompt, params) for prompt in ("ab", "cd")]  # there are two seats
        thread.resume()
        for stream in (healthy, bad):
            with pytest.raises(StepFault, match="a step of this request's batch failed: RuntimeError"):
                await read(stream)
        for stream, prompt in zip(waiting, ("ab", "cd"), strict=True):
            assert seen((await read(stream))[-1].outputs[0]) == expected(prompt, params)
        assert thread.faults == 1 and str(thread.transport.last_fault) == "the device is on fire" and thread.alive

    runner = Faulty(PAGES, 4, 2, 64)
    runner.poison, runner.at_tokens = 10, at_tokens  # the letter k
    with running(runner, max_num_seqs=2) as thread:
        asyncio.run(ask())


def test_an_engine_whose_steps_all_fail_says_so_and_keeps_no_request():
    async def ask():
        for together in (1, 1, 3):  # of three at one seat, each is the batch of a step of its own
            assert thread.alive
            streams = [thread.submit("kab", SamplingParams(max_tokens=4)) for _ in range(together)]
            for stream in streams:
                with pytest.raises(StepFault):
                    await read(stream)
        assert not thread.alive and thread.faults >= 4
        runner.poison = None
        await read(thread.submit("kab", SamplingParams(max_tokens=4)))
        assert thread.alive

    runner = Faulty(PAGES, 4, 1, 64)
    runner.poison = 10
    with running(runner, max_num_seqs=1) as thread:
        asyncio.run(ask())


def test_stop_lets_requests_end_and_takes_no_more():
    async def ask():
        params = SamplingParams(max_tokens=20, **LONG)
        streams = [thread.submit("abc", params) for _ in range(6)]  # some wait
        thread.pause()
        thread.drain()
        with pytest.raises(Draining, match="takes no more requests"):
            thread.submit("abc", params)
        outputs = await asyncio.gather(*map(read, streams), asyncio.to_thread(thread.stop, 5))
        assert {str(seen(each[-1].outputs[0])) for each in outputs[:-1]} == {str(expected("abc", params))}
        assert not thread.alive
        with pytest.raises(Draining, match="has ended"):
            thread.ask(lambda there: None)

    with running() as thread:
        asyncio.run(ask())


def test_stop_waits_no_longer_than_it_may():
    async def ask():
        stream = thread.submit("abc", SamplingParams(max_tokens=50, **LONG))
        thread.delay_s = 0.2
        began = time.monotonic()
        await asyncio.to_thread(thread.stop, 0.05)
        assert time.monotonic() - began < 2
        with pytest.raises(Draining, match="before the answer was complete"):
            await read(stream)

    with running() as thread:
        asyncio.run(ask())


def test_reports_say_what_each_step_did_and_one_at_a_time_is_possible():
    reports = []

    async def ask():
        params = SamplingParams(max_tokens=3, **LONG)
        streams = [thread.submit(prompt, params) for prompt in ("abcdefgh", "ab", "cd")]
        thread.step_once()
        await asyncio.to_thread(until, lambda: len(reports) == 1)
        await asyncio.sleep(0.02)
        assert len(reports) == 1 and thread.paused and thread.unfinished == 3
        thread.resume()
        await asyncio.gather(*map(read, streams))

    def failing(report):
        raise ZeroDivisionError

    with running(max_num_seqs=2) as thread:
        thread.transport.observers += [failing, reports.append]
        thread.pause()
        asyncio.run(ask())
        assert thread.transport.observers == [reports.append]
    first, second = reports[:2]
    assert first.chunks == (("1", 0, 8, "prefill"), ("2", 1, 2, "prefill"))
    assert (first.number, first.waiting, first.running, first.generated) == (1, 1, 2, 0)
    assert second.chunks == (("1", 0, 1, "decode"), ("2", 1, 1, "decode")) and second.generated == 2
    assert sum(report.generated for report in reports) == 9 and sum(report.finished for report in reports) == 3
    assert [report.number for report in reports] == list(range(1, len(reports) + 1))
    assert all(report.seconds > 0 for report in reports) and not reports[-1].chunks


def test_a_call_runs_between_steps_and_gives_back_what_it_returns_or_raises():
    names = []
    with running() as thread:
        assert thread.ask(lambda there: names.append(threading.current_thread().name) or there.engine.blocks.num_free
                          ).result(5) == PAGES
        with pytest.raises(ZeroDivisionError):
            thread.ask(lambda there: 1 / 0).result(5)
        for wrong in (-1, 61):
            with pytest.raises(ValueError, match="delay_s is"):
                thread.delay_s = wrong
    assert names == ["engine"]


def test_a_loop_that_is_closed_leaves_no_request():
    async def leave():
        thread.submit("abc", SamplingParams(max_tokens=50, **LONG))

    with running() as thread:
        thread.delay_s = 0.002
        asyncio.run(leave())
        until(lambda: thread.unfinished == 0)
        assert thread.steps < 40


def test_streams_of_many_readers_take_turns(monkeypatch):
    """With n readers each is shown its newest text once in n times the pace, and the first token at once."""
    monkeypatch.setattr("labkit.serve.engine_thread.PACE_S", 0.02)

    async def ask():
        params = SamplingParams(max_tokens=40, **LONG)
        thread.pause()
        streams = [thread.submit("abc", params) for _ in range(3)]
        thread.resume()
        began = time.monotonic()
        outputs = await asyncio.gather(*map(read, streams))
        seconds = time.monotonic() - began
        for each in outputs:
            assert len(each[0].outputs[0].token_ids) <= 2 and len(each) <= 3 + seconds / 0.06
            assert seen(each[-1].outputs[0]) == expected("abc", params)

    with running() as thread:
        asyncio.run(ask())
