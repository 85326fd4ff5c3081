"""The scheduler with the block manager, by a fake model that knows what every page must hold: whatever arrives, is
aborted or preempted, and however little memory there is, each output is that of its request run alone."""

import itertools
import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from labkit.engine.block_manager import BlockManager
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler, StaticScheduler
from labkit.engine.sequence import FinishReason, Request, State
from tests.engine.fake_model import END, VOCABULARY, FakeRunner, alone

MAX_LENGTH = 40


def check_pages(scheduler) -> None:
    """Every page is held by as many sequences as it counts, or free; none is lost, none is held twice by one sequence;
    what is shared or can be found again has the tokens that its holders have."""
    blocks = scheduler.blocks
    holders = Counter(itertools.chain.from_iterable(sequence.pages for sequence in scheduler.running))
    free = list(blocks._free)
    assert len(free) == len(set(free)) == blocks.num_free
    for page in range(blocks.num_pages):
        assert blocks.references(page) == holders[page]
        assert (page in blocks._free) == (holders[page] == 0)
    tokens_of = {}
    for sequence in scheduler.running:
        assert len(set(sequence.pages)) == len(sequence.pages) == blocks.pages_for(sequence.computed)
        for number, page in enumerate(sequence.pages):
            full = (number + 1) * blocks.page_size
            if holders[page] > 1 and full <= min(sequence.computed, len(sequence.tokens)):
                assert tokens_of.setdefault(page, sequence.tokens[:full]) == sequence.tokens[:full]
    assert len(set(blocks._cached.values())) == len(blocks._cached)
    assert all(blocks._digest_of[page] == digest for digest, page in blocks._cached.items())
    assert sum(digest is not None for digest in blocks._digest_of) == len(blocks._cached)


class Service:
    """A scheduler and a fake model, with up to two steps in flight, and everything that must hold after each."""

    def __init__(self, num_pages, page_size, max_num_seqs, budget, caching=True, padded=False, scheduler=Scheduler):
        blocks = BlockManager(num_pages, page_size, caching)
        self.scheduler = scheduler(blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
        self.runner = FakeRunner(num_pages, page_size, max_num_seqs, MAX_LENGTH, padded)
        self.requests, self.in_flight = [], []
        self.preemptions = self.cached = self.discarded = self.copies = 0

    def add(self, prompt, **params) -> Request | None:
        """None if it could not run alone, which must be refused."""
        request = Request(str(len(self.requests)), prompt, SamplingParams(**params), seed=params.get("seed", 0),
                          stop_ids=(END,), max_length=MAX_LENGTH)
        if -(-(request.max_length - 1) // self.runner.page_size) > self.runner.num_pages:
            with pytest.raises(ValueError, match="pages"):
                self.scheduler.add(request)
            return None
        self.scheduler.add(request)
        self.requests.append(request)
        return request

    def unfinished(self) -> list:
        sequences = [sequence for request in self.requests for sequence in request.sequences]
        return sorted(sequence for sequence in sequences if sequence.state is not State.FINISHED)

    def launch(self):
        unfinished = self.unfinished()
        step = self.scheduler.schedule()
        self.preemptions += step.preempted
        self.copies += len(step.copies)
        assert step.tokens <= self.scheduler.max_num_batched_tokens
        scheduled = [chunk.sequence for chunk in step.chunks]
        assert len(set(scheduled)) == len(scheduled) and len(step.samples) <= self.scheduler.max_num_seqs
        assert all(sequence.state is State.RUNNING for sequence in [*scheduled, *step.samples])
        if unfinished:  # the oldest gets on in every step, unless all that is left of it is on its way
            first = unfinished[0]
            assert first in scheduled or first.complete or first.pending and first.state is State.WAITING
            assert first.state is not State.HELD
        if step.chunks:
            self.in_flight.append((step, self.runner.launch(step)))
        return step

    def receive(self) -> None:
        step, handle = self.in_flight.pop(0)
        tokens = handle.tokens()
        alive = self.scheduler.receive(step, tokens)
        self.discarded += len(tokens) - len(alive)
        for sequence, _ in alive:
            reason = sequence.ended_by_last()
            if reason:
                self.scheduler.finish(sequence, reason)

    def check(self) -> None:
        scheduler = self.scheduler
        check_pages(scheduler)
        seats = [sequence.seat for sequence in scheduler.running]
        assert sorted(seats + scheduler._seats) == list(range(scheduler.max_num_seqs))
        assert scheduler.running == sorted(scheduler.running)
        if scheduler.running and scheduler.waiting:
            assert scheduler.running[-1] < scheduler.waiting[0]

    def check_outputs(self) -> None:
        for request in self.requests:
            for sequence in request.sequences:
                expected = alone(request, sequence.index)
                if sequence.finish_reason is FinishReason.ABORT:
                    assert sequence.output == expected[: sequence.output_length]
                elif sequence.state is State.FINISHED:
                    assert sequence.output == expected
                    assert sequence.finish_reason is (FinishReason.STOP if expected[-1] in request.ending
                                                      and len(expected) > request.params.min_tokens
                                                      else FinishReason.LENGTH)
                else:
                    assert sequence.output == expected[: sequence.output_length]
            self.cached += request.num_cached_tokens or 0

    def drain(self, ahead: bool = True) -> int:
        """Until all have ended. In the order of arrival, each sequence takes at most its chunks and its tokens once it
        is the oldest, whatever the others do: the steps that this allows are never exceeded."""
        budget = self.scheduler.max_num_batched_tokens
        allowed = 4 + sum(-(-sequence.request.max_length // budget) + 3
                          + sequence.request.max_length - len(sequence.request.prompt) for sequence in self.unfinished())
        for steps in itertools.count():
            if not (self.scheduler.has_unfinished() or self.in_flight):
                break
            assert steps <= allowed, "a sequence starves"
            before = len(self.in_flight)
            self.launch()
            for _ in range(before if ahead else len(self.in_flight)):
                self.receive()
            self.check()
        assert not self.unfinished() and not self.scheduler.running
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_pages
        assert self.runner.launched == self.runner.received
        self.check_outputs()
        return steps


PREFIXES = [[(7 * i + i * i) % VOCABULARY for i in range(20)], [(5 * i) % VOCABULARY for i in range(20)]]
REQUESTS = st.fixed_dictionaries({
    "prefix": st.sampled_from(PREFIXES),
    "shared": st.integers(0, 20),
    "own": st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6),
    "max_tokens": st.integers(1, 12),
    "temperature": st.sampled_from([0.0, 1.0]),
    "n": st.sampled_from([1, 1, 2, 3, 5]),
    "seed": st.integers(0, 2**40),
    "min_tokens": st.integers(0, 4),
    "ignore_eos": st.booleans(),
    "stop_token_ids": st.sampled_from([None, [2], [2, 3]]),
})


def arguments(drawn: dict) -> dict:
    """SamplingParams' and the prompt of what was drawn."""
    drawn = dict(drawn)
    drawn["prompt"] = drawn.pop("prefix")[: drawn.pop("shared")] + drawn.pop("own")
    drawn["n"] = drawn["n"] if drawn["temperature"] else 1
    drawn["min_tokens"] = min(drawn["min_tokens"], drawn["max_tokens"])
    return drawn


class ServiceMachine(RuleBasedStateMachine):
    """Requests come and are aborted, and steps are launched and received, in any order that the contract allows."""

    @initialize(num_pages=st.integers(4, 24), page_size=st.sampled_from([1, 2, 4]), max_num_seqs=st.integers(1, 5),
                budget=st.integers(1, 16), caching=st.booleans(), padded=st.booleans())
    def begin(self, num_pages, page_size, max_num_seqs, budget, caching, padded):
        self.service = Service(num_pages * 4 // page_size, page_size, max_num_seqs, budget, caching, padded)

    @rule(request=REQUESTS)
    def add(self, request):
        self.service.add(**arguments(request))

    @precondition(lambda self: len(self.service.in_flight) < 2)
    @rule()
    def launch(self):
        self.service.launch()

    @precondition(lambda self: self.service.in_flight)
    @rule()
    def receive(self):
        self.service.receive()

    @rule(steps=st.integers(1, 8))
    def one_step_ahead(self, steps):
        for _ in range(steps):
            before = len(self.service.in_flight)
            if before < 2:
                self.service.launch()
            for _ in range(before):
                self.service.receive()

    @precondition(lambda self: self.service.requests)
    @rule(number=st.integers(0, 1000))
    def abort(self, number):
        requests = self.service.requests
        self.service.scheduler.abort(requests[-1 - number % min(len(requests), 6)])

    @invariant()
    def holds(self):
        if hasattr(self, "service"):
            self.service.check()

    def teardown(self):
        if hasattr(self, "service"):
            self.service.drain()


QUICK = settings(max_examples=60, stateful_step_count=25, derandomize=True, deadline=None, database=None,
                 suppress_health_check=list(HealthCheck))
ServiceMachine.TestCase.settings = QUICK
TestService = ServiceMachine.TestCase


@pytest.mark.sweep
def test_service_for_long():
    run_state_machine_as_test(ServiceMachine, settings=settings(QUICK, max_examples=3_000, stateful_step_count=60))


def served(seed: int) -> Service:
    """A random service: arrivals, aborts and steps by one generator, and the memory is short in most."""
    rng = random.Random(seed)
    page_size = rng.choice([1, 2, 4, 8])
    service = Service(rng.randint(-(-MAX_LENGTH // page_size), 100 // page_size), page_size, rng.randint(1, 6),
                      rng.choice([1, 3, 8, 32]), rng.random() < 0.8, rng.random() < 0.3)
    ahead, rate = rng.random() < 0.7, rng.choice([0.1, 0.4, 1.0])
    for _ in range(60):
        while rng.random() < rate / 2:
            greedy = rng.random() < 0.5
            service.add(rng.choice(PREFIXES)[: rng.randint(0, 20)] + rng.choices(range(VOCABULARY), k=rng.randint(1, 6)),
                        max_tokens=rng.randint(1, 14), temperature=0.0 if greedy else 1.0, seed=rng.randint(0, 2**50),
                        n=1 if greedy else rng.choice([1, 2, 4]), ignore_eos=rng.random() < 0.5)
        before = len(service.in_flight)
        service.launch()
        for _ in range(before if ahead else len(service.in_flight)):
            service.receive()
        service.check()
        if service.requests and rng.random() < 0.1:
            service.scheduler.abort(rng.choice(service.requests[-8:]))
    service.drain(ahead)
    return service


def test_random_services_meet_everything_that_can_happen():
    services = [served(seed) for seed in range(40)]
    for what, least in (("preemptions", 100), ("cached", 500), ("discarded", 100), ("copies", 50)):
        assert sum(getattr(service, what) for service in services) >= least, what
    assert sum(len(service.requests) for service in services) > 300


@pytest.mark.sweep
def test_many_random_services():
    for seed in range(40, 4_000):
        served(seed)
