"""The engine in a process of its own, on the fake model: what is asked of it and what it answers, and who ends."""

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys

import pytest

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.engine import CompletionOutput, LLMEngine, RequestOutput, SamplingParams
from labkit.engine.outputs import Logprobs, with_logprobs
from labkit.engine.sequence import Request
from labkit.serve.async_engine import (
    AsyncEngine,
    Busy,
    DeadlineExceeded,
    Draining,
    EngineDied,
    StepFault,
)
from labkit.serve.embeddings import embed
from labkit.serve.engine_process import SIGNALS, EngineProcess, pack_logprobs, portable, unpack_logprobs
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings
from labkit.serve.window.look import look, look_no_more
from labkit.serve.window.state import Picture
from tests.engine.fake_model import as_pairs, listed, logprobs_alone
from tests.engine.test_llm import LONG, Letters, expected, seen, with_and_without_logprobs
from tests.serve.serving import Chatting, Encoder, until
from tests.serve.test_engine_thread import PAGES, Faulty, read, wrong_of_many

proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the system does not say what a process does")
posix = pytest.mark.skipif(os.name != "posix", reason="no such signals on this system")
POISON = 10  # the letter k


def load(settings: Settings, doing) -> EngineThread:
    doing("the fake model is being made")
    if settings.model == "missing":
        raise UserError("there is no such model")
    if settings.model == "deadly":
        os._exit(3)
    runner = Faulty(PAGES, 4, settings.max_num_seqs or 4, 64)
    runner.poison = POISON if settings.model == "faulty" else None
    engine = LLMEngine(runner, Chatting(), max_num_seqs=settings.max_num_seqs or 4, max_num_batched_tokens=16)
    thread = EngineThread(engine, Encoder())
    thread.start()
    return thread


@contextlib.contextmanager
def running(**settings):
    engine = AsyncEngine(EngineProcess(Settings(**settings), load), settings.get("max_waiting", 256))
    try:
        yield engine
    finally:
        engine.stop(drain_s=5)
    assert engine.unfinished == 0 and not engine.running and engine.transport._process.exitcode is not None


@pytest.fixture(scope="module", autouse=True)
def importable():
    """The other process imports `load` from here."""
    with pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(REPOSITORY)
        yield


@pytest.fixture(scope="module")
def engine(importable):
    with running() as found:
        yield found
        assert found.stats.free_pages == found.stats.pages == PAGES and found.faults == 0


# What the other process is asked to do: it imports these.

def nothing(thread):
    pass


def divide(thread, by):
    return 1 / by


def die(thread):
    os._exit(9)


class Unsendable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def raise_unsendable(thread):
    raise Unsendable("this", "that")


@pytest.mark.sweep(every=True)
def test_logprobs_are_those_of_the_other_process_in_however_many_pieces_they_come(engine):
    asked = list(with_and_without_logprobs())

    async def ask():
        streams = [engine.submit(prompt, params, final_only=at % 4 == 0) for at, (prompt, params) in enumerate(asked)]
        return await asyncio.gather(*map(read, streams))

    for (prompt, params), outputs in zip(asked, asyncio.run(ask()), strict=True):
        for one in outputs[-1].outputs:
            of_prompt, found = logprobs_alone(Request("", Letters().encode(prompt), params, max_length=64),
                                              one.token_ids)
            assert one.logprobs is None if params.logprobs is None else as_pairs(one.logprobs) == found
            assert params.prompt_logprobs is None or as_pairs(outputs[-1].prompt_logprobs) == of_prompt
            for before in outputs:  # what was given out has not grown
                assert params.logprobs is None or len(before.outputs[one.index].logprobs) == len(
                    before.outputs[one.index].token_ids)
    first = outputs[-1].outputs[0].logprobs[0]
    assert all(each.decoded_token == "abcdefghijk"[token] for token, each in first.items())


def test_only_new_logprobs_are_sent():
    sent, known, sizes, entries = {}, {}, [], []
    for count in range(1, 5):
        entries.append(with_logprobs([3], listed(count, 3, 2)[None])[0])
        output = RequestOutput("1", None, [], [CompletionOutput(0, "", [3] * count, 0.0, Logprobs(entries, {3: "d"}))],
                               prompt_logprobs=Logprobs([None, entries[0]], {}))
        pack_logprobs(output, sent)
        sizes.append((len(output.outputs[0].logprobs[0]), len(output.prompt_logprobs[0])))
        output = pickle.loads(pickle.dumps(output))
        unpack_logprobs(output, known, dict(enumerate("abcdefghijk")))
        assert [each[3].logprob for each in output.outputs[0].logprobs] == [each.logprob for each in entries]
        assert output.prompt_logprobs[0] is None and output.prompt_logprobs[1][3].logprob == entries[0].logprob
    assert sizes == [(1, 2), (1, 0), (1, 0), (1, 0)]


@pytest.mark.sweep(every=True)
def test_each_of_many_streams_in_several_loops_gets_what_it_gets_alone(engine):
    assert wrong_of_many(engine) == []
    until(lambda: engine.waiting == 0 and engine.stats.free_pages == PAGES)
    assert engine.steps > 10 and engine.stats.generated > 100


def test_what_it_knows_of_the_engine(engine):
    assert engine.alive and engine.max_model_len == 64 and engine.embedding_size == 4
    assert engine.tokenizer.encode("cab") == [2, 0, 1] and engine.transport.pid != os.getpid()


def test_steps_one_at_a_time_and_a_request_that_is_cancelled(engine):
    async def ask():
        params = SamplingParams(max_tokens=40, **LONG)
        stream, other = engine.submit("abcdefgh", params), engine.submit("abc", params)
        assert engine.paused and engine.waiting == engine.unfinished == 2
        before = engine.steps
        for _ in range(3):
            engine.step_once()
        assert (await anext(stream)).outputs[0].token_ids
        await asyncio.to_thread(until, lambda: engine.steps == before + 3)
        assert engine.waiting == 0 and engine.stats.free_pages < PAGES - 2
        free = engine.stats.free_pages
        stream.cancel()
        await read(stream)
        await asyncio.to_thread(until, lambda: engine.stats.free_pages > free)
        assert engine.steps == before + 3 and engine.unfinished == 1
        stream.cancel()  # again, after its end
        engine.resume()
        assert seen((await read(other))[-1].outputs[0]) == expected("abc", params)

    engine.pause()
    asyncio.run(ask())


def test_what_cannot_run_is_refused_here(engine):
    async def ask():
        for prompt, words in (("a" * 64, "the prompt has 64 tokens; at most 63 fit"), ("", "no token")):
            with pytest.raises(ValueError, match=words):
                engine.submit(prompt, SamplingParams())

    asyncio.run(ask())
    with pytest.raises(ValueError, match="delay_s is -1"):
        engine.delay_s = -1


def test_a_deadline_and_a_loop_that_is_closed(engine):
    async def late():
        with pytest.raises(DeadlineExceeded):
            await read(engine.submit("abc", SamplingParams(max_tokens=50, **LONG), deadline_s=0.05))

    async def leave():
        engine.submit("abc", SamplingParams(max_tokens=50, **LONG))

    engine.delay_s = 0.02
    asyncio.run(late())
    asyncio.run(leave())
    until(lambda: engine.unfinished == 0)
    engine.delay_s = 0.0


def test_functions_run_there_and_their_results_and_errors_come_back(engine):
    assert engine.ask(divide, 4).result(30) == 0.25
    with pytest.raises(ZeroDivisionError):
        engine.ask(divide, 0).result(30)
    with pytest.raises(RuntimeError, match="Unsendable: this and that"):
        engine.ask(raise_unsendable).result(30)
    rows, tokens = engine.ask(embed, ["abc", "de"]).result(30)
    assert rows[:, 0].tolist() == [3, 2] and tokens == 5
    assert isinstance(portable(UserError("words")), UserError)


def test_the_window_sees_it(engine):
    async def ask():
        stream = engine.submit("abcdef", SamplingParams(max_tokens=20, **LONG))
        engine.step_once()
        await asyncio.to_thread(until, lambda: engine.waiting == 0)
        picture, first = Picture(), engine.ask(look, True).result(30)
        event = picture.apply(first.change)
        assert [seat["prompt"] for seat in event["seats"]] == [6] and first.launched is None and first.seconds > 0
        engine.step_once()
        before = engine.steps
        await asyncio.to_thread(until, lambda: engine.steps > before)
        second = engine.ask(look).result(30)
        assert len(second.steps["steps"]) == 1 and picture.apply(second.change)["seats"][0]["computed"] >= 6
        engine.ask(look_no_more).result(30)
        engine.resume()
        await read(stream)

    engine.pause()
    asyncio.run(ask())


@pytest.mark.sweep
def test_too_many_that_wait_are_refused():
    async def ask():
        params = SamplingParams(max_tokens=3, **LONG)
        streams = [engine.submit("abc", params) for _ in range(2)]
        with pytest.raises(Busy, match="2 requests wait, as many as may"):
            engine.submit("abc", params)
        streams[0].cancel()
        await read(streams[0])
        streams.append(engine.submit("cab", params))  # there is a place again
        engine.drain()  # goes on, although it is paused
        with pytest.raises(Draining, match="takes no more requests"):
            engine.submit("abc", params)
        for stream, prompt in zip(streams[1:], ("abc", "cab"), strict=True):
            assert seen((await read(stream))[-1].outputs[0]) == expected(prompt, params)

    with running(max_waiting=2) as engine:
        engine.pause()
        asyncio.run(ask())


@pytest.mark.sweep
def test_a_fault_ends_its_batch_alone():
    async def ask():
        params = SamplingParams(max_tokens=12, **LONG)
        engine.pause()
        bad, waiting = [engine.submit(prompt, params) for prompt in ("abcd", "kab")], engine.submit("ab", params)
        engine.resume()
        for stream in bad:
            with pytest.raises(StepFault, match="a step of this request's batch failed: RuntimeError"):
                await read(stream)
        assert seen((await read(waiting))[-1].outputs[0]) == expected("ab", params)
        assert engine.faults == 1 and engine.alive
        for _ in range(3):
            with pytest.raises(StepFault):
                await read(engine.submit("kab", params))
        await asyncio.to_thread(until, lambda: not engine.alive)

    with running(model="faulty", max_num_seqs=2) as engine:
        asyncio.run(ask())


@pytest.mark.sweep
def test_stop_lets_requests_end_or_waits_no_longer_than_it_may():
    async def ask(drain_s):
        params = SamplingParams(max_tokens=20, **LONG)
        streams = [engine.submit("abc", params) for _ in range(6)]  # some wait
        found = await asyncio.gather(*map(read, streams), asyncio.to_thread(engine.stop, drain_s),
                                     return_exceptions=True)
        with pytest.raises(Draining, match="has ended"):
            engine.ask(nothing)
        return found[:-1], expected("abc", params)

    with running() as engine:
        found, right = asyncio.run(ask(20))
        assert [seen(each[-1].outputs[0]) for each in found] == [right] * 6
    with running() as engine:
        engine.delay_s = 0.2
        found, _ = asyncio.run(ask(0.05))
        assert all(isinstance(each, Draining) for each in found)


@pytest.mark.sweep(every=True)
def test_a_process_that_ends_leaves_no_one_waiting():
    async def ask():
        stream = engine.submit("abc", SamplingParams(max_tokens=50, **LONG))
        await anext(stream)
        future = engine.ask(die)
        with pytest.raises(EngineDied, match=r"the engine's process ended \(exit code 9\) before the answer"):
            await read(stream)
        with pytest.raises(EngineDied):
            future.result(30)
        with pytest.raises(EngineDied, match=r"the engine's process ended \(exit code 9\)"):
            engine.submit("abc", SamplingParams())
        assert engine.trouble == "the engine's process ended (exit code 9)" and engine.unfinished == 0
        assert engine.transport.failed.wait(30)

    with running() as engine:
        engine.delay_s = 0.01
        asyncio.run(ask())


@pytest.mark.sweep
def test_a_model_that_cannot_be_loaded():
    messages = []
    with pytest.raises(UserError, match="there is no such model"):
        EngineProcess(Settings(model="missing"), load, messages.append)
    assert messages == ["the fake model is being made"]
    with pytest.raises(RuntimeError, match=r"ended while it loaded its model \(exit code 3\)"):
        EngineProcess(Settings(model="deadly"), load)


@pytest.mark.sweep
@proc
def test_signals_do_not_end_it_even_while_it_starts():
    with running() as early, open(f"/proc/{early.transport.pid}/status") as file:
        blocked = int(next(line for line in file if line.startswith("SigBlk")).split()[1], 16)
    assert all(blocked >> (each - 1) & 1 for each in SIGNALS)


@posix
def test_signals_do_not_end_it(engine):
    for each in (signal.SIGINT, signal.SIGTERM):
        os.kill(engine.transport.pid, each)
    assert engine.ask(divide, 1).result(30) == 1


@pytest.mark.sweep
@proc
def test_it_ends_with_who_started_it():
    code = ("import os\nfrom labkit.serve.engine_process import EngineProcess\n"
            "from labkit.serve.settings import Settings\nfrom tests.serve.test_engine_process import load\n"
            "if __name__ == '__main__':\n    print(EngineProcess(Settings(), load).pid, flush=True)\n    os._exit(1)")
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60,
                         env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    pid = int(run.stdout)
    until(lambda: ended(pid), 10)


def ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] == "Z"
    except OSError:
        return True
