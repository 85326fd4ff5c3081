"""What the window shows of pages, seats and queue, against the block manager's truth, as a browser puts it together
from the events."""

import json
import random
from array import array

import pytest

from labkit.engine import LLMEngine, SamplingParams
from labkit.engine.block_manager import BlockManager
from labkit.serve.window.state import AT_MOST, IN_TURN, LISTED, Changes, Picture, runs
from tests.engine.fake_model import FakeRunner
from tests.engine.test_llm import Letters, requests


class Browser:
    """What page.js keeps, from events that have been JSON."""

    def __init__(self):
        self.tables, self.known, self.state = {}, set(), {}

    def receive(self, event, whole=False):
        self.state = event = json.loads(json.dumps(event))
        if whole:
            self.tables = {}
        self.known = (self.known - set(unrolled(event["lost"]))) | set(unrolled(event["kept"]))
        alive = {seat["admission"] for seat in event["seats"]}
        self.tables = {key: pages for key, pages in self.tables.items() if key in alive}
        for admission, first, pages in event["tables"]:
            assert len(self.tables.get(admission, [])) >= first
            self.tables[admission] = self.tables.get(admission, [])[:first] + unrolled(pages)


def unrolled(pages):
    return [first + more for first, count in zip(pages[::2], pages[1::2], strict=True) for more in range(count)]


def check(browser, engine):
    blocks, scheduler = engine.blocks, engine.scheduler
    assert {key: pages for key, pages in browser.tables.items() if pages} == {
        sequence.admission: sequence.pages for sequence in scheduler.running if sequence.pages}
    assert browser.known == {page for page in range(blocks.num_pages) if blocks.is_cached(page)}
    holders = [page for pages in browser.tables.values() for page in pages]
    assert all(holders.count(page) == blocks.references(page) for page in range(blocks.num_pages))
    assert browser.state["free"] == blocks.num_free and browser.state["cached"] == blocks.num_cached
    assert {seat["seat"]: (seat["id"], seat["index"], seat["computed"], seat["output"])
            for seat in browser.state["seats"]} == {
        each.seat: (each.request.request_id, each.index, each.computed, each.output_length)
        for each in scheduler.running}
    assert [(one["id"], one["index"]) for one in browser.state["waiting"]] == [
        (each.request.request_id, each.index) for each in scheduler.waiting]


@pytest.mark.parametrize("seed", range(4))
def test_a_browser_that_heard_every_change_and_one_that_comes_late_see_what_the_block_manager_knows(seed):
    rng = random.Random(seed)
    engine = LLMEngine(FakeRunner(18, 4, 6, 64), Letters(), max_num_seqs=6, max_num_batched_tokens=16)
    changes, picture, early = Changes(), Picture(), Browser()
    coming, seen = list(enumerate(requests(60, seed))), dict.fromkeys(("shared", "kept", "again", "forked"), 0)
    while coming or engine.has_unfinished_requests():
        while coming and rng.random() < 0.3:
            number, (prompt, params) = coming.pop()
            engine.add_request(str(number), prompt, params)
        if engine.has_unfinished_requests():
            engine.step()
        if rng.random() < 0.03:
            engine.abort_request([str(number) for number in range(0, 60, 3)])
        if rng.random() < 0.3:
            continue  # several steps between two looks
        early.receive(picture.apply(changes.since(engine)))
        check(early, engine)
        late = Browser()
        late.receive(picture.whole(), whole=True)
        check(late, engine)
        held = [page for pages in early.tables.values() for page in pages]
        seen["shared"] += len(held) > len(set(held))
        seen["kept"] += bool(early.known - set(held))
        seen["again"] += any(one["again"] for one in early.state["waiting"])
        seen["forked"] += any(seat["index"] for seat in early.state["seats"])
    assert all(seen.values()), f"never seen: {seen}"
    assert engine.stats().preemptions


def test_of_many_pages_only_what_is_new_is_looked_at():
    pages, each, count = 30_000, 400, 64
    engine = LLMEngine(FakeRunner(pages, 16, count, 16 * each + 64, vocab_size=count), None, max_num_seqs=count,
                       max_num_batched_tokens=10**6)
    blocks = engine.blocks
    for number in range(count):
        engine.add_request(str(number), [number] * (16 * each - 8), SamplingParams(max_tokens=60, ignore_eos=True))
    engine.runner = Quiet()
    engine.step()
    assert pages - blocks.num_free > AT_MOST
    changes, picture, browser = Changes(), Picture(), Browser()
    first = changes.since(engine)
    assert first.looked_at <= AT_MOST + IN_TURN
    browser.receive(picture.apply(first))
    for _ in range(-(-pages // IN_TURN)):
        browser.receive(picture.apply(changes.since(engine)))
    assert browser.known == {page for page in range(pages) if blocks.is_cached(page)}
    assert sorted(browser.tables.values()) == sorted(sequence.pages for sequence in engine.scheduler.running)
    for _ in range(3):
        engine.step()
        change = changes.since(engine)
        event = picture.apply(change)
        assert change.looked_at <= IN_TURN + 3 * count, "it looks at all pages each time"
        assert len(json.dumps(event["tables"])) < 40 * count
        browser.receive(event)
    assert sorted(browser.tables.values()) == sorted(sequence.pages for sequence in engine.scheduler.running)
    engine.abort_request([str(number) for number in range(count)])
    browser.receive(picture.apply(changes.since(engine)))
    assert browser.tables == {} and browser.state["free"] == pages


class Quiet:
    """Samples the token 5 for each."""

    def launch(self, step):
        from labkit.engine.outputs import Sampled

        class Handle:
            def tokens(self):
                return [Sampled(5)] * len(step.samples)

        return Handle()


def test_a_long_queue_is_counted_and_its_beginning_listed():
    engine = LLMEngine(FakeRunner(30), Letters(), max_num_seqs=4)
    for number in range(100):
        engine.add_request(str(number), "abc", SamplingParams())
    state = Changes().since(engine).state
    assert state["waiting_count"] == 100 and len(state["waiting"]) == LISTED
    assert state["waiting"][0] == {"id": "0", "index": 0, "prompt": 3, "output": 0, "again": False}


def test_a_page_that_is_exchanged_for_a_copy_is_seen():
    engine = LLMEngine(FakeRunner(30), Letters(), max_num_seqs=4)
    changes, picture, browser = Changes(), Picture(), Browser()
    engine.add_request("0", "ghijkg", SamplingParams(n=3, temperature=1.0, max_tokens=9, ignore_eos=True, seed=1))
    engine.step()
    browser.receive(picture.apply(changes.since(engine)))
    before = list(browser.tables.values())
    assert len(before) == 3 and before[0] == before[1] == before[2]  # the second page is not full
    engine.step()
    browser.receive(picture.apply(changes.since(engine)))
    now = list(browser.tables.values())
    assert len({pages[0] for pages in now}) == 1 and len({pages[1] for pages in now}) == 3
    check(browser, engine)


def test_runs_of_pages():
    for pages, expected in (([], []), ([5, 6, 7, 2], [5, 3, 2, 1]), ([3, 2, 1], [3, 1, 2, 1, 1, 1])):
        assert runs(pages) == runs(array("i", pages)) == expected
        assert unrolled(expected) == pages


def test_an_engine_that_began_anew_after_a_fault_is_seen_empty():
    engine = LLMEngine(FakeRunner(30), Letters(), max_num_seqs=4)
    changes, picture, browser = Changes(), Picture(), Browser()
    engine.add_request("0", "ghijkghijk", SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    browser.receive(picture.apply(changes.since(engine)))
    assert browser.known
    engine.runner.launch = None
    with pytest.raises(TypeError):
        engine.step()
    browser.receive(picture.apply(changes.since(engine)))
    check(browser, engine)
    assert not browser.known and not browser.tables and isinstance(engine.blocks, BlockManager)
