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
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import FinishReason, Request, State
from labkit.measure.static_batching import StaticScheduler
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
    """A scheduler and a fake model, with steps in flight, and everything that must hold after each."""

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
        assert sorted(seats + scheduler._free_slots) == list(range(scheduler.max_num_seqs))
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

    def drain(self, ahead: int = 1) -> None:
        """Until all have ended. In the order of arrival, each sequence takes at most its chunks and its tokens once it
        is the oldest, whatever the others do: the steps that this allows are never exceeded. ahead: steps in flight
        while the next one is scheduled."""
        budget = self.scheduler.max_num_batched_tokens
        requests = [sequence.request for sequence in self.unfinished()]
        allowed = 4 + sum(-(-each.max_length // budget) + 4 + each.max_length - len(each.prompt) for each in requests)
        for steps in itertools.count():
            if not (self.scheduler.has_unfinished() or self.in_flight):
                break
            assert steps <= allowed, "a sequence starves"
            launched = self.launch().chunks
            for _ in range(len(self.in_flight) - (ahead if launched else 0)):
                self.receive()
            self.check()
        assert not self.unfinished() and not self.scheduler.running
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_pages
        assert self.runner.launched == self.runner.received
        self.check_outputs()


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

    @precondition(lambda self: len(self.service.in_flight) < 3)
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


QUICK = settings(max_examples=50, stateful_step_count=25, derandomize=True, deadline=None, database=None,
                 suppress_health_check=list(HealthCheck))
ServiceMachine.TestCase.settings = QUICK
TestService = ServiceMachine.TestCase


@pytest.mark.sweep
def test_service_for_long():
    run_state_machine_as_test(ServiceMachine, settings=settings(QUICK, max_examples=1_000, stateful_step_count=60))


def served(seed: int) -> Service:
    """A random service: arrivals, aborts and steps by one generator, and the memory is short in most."""
    rng = random.Random(seed)
    page_size = rng.choice([1, 2, 4, 8])
    service = Service(rng.randint(-(-MAX_LENGTH // page_size), 70 // page_size), page_size, rng.randint(2, 6),
                      rng.choice([2, 8, 32]), rng.random() < 0.8, rng.random() < 0.3)
    ahead, rate = rng.choice([0, 1, 1, 2]), rng.choice([0.1, 0.3, 0.6])
    for _ in range(50):
        while rng.random() < rate / 2:
            greedy = rng.random() < 0.5
            own = rng.choices(range(VOCABULARY), k=rng.randint(1, 6))
            service.add(rng.choice(PREFIXES)[: rng.randint(0, 20)] + own, max_tokens=rng.randint(1, 20),
                        temperature=0.0 if greedy else 1.0, seed=rng.randint(0, 2**50),
                        n=1 if greedy else rng.choice([1, 2, 4]), ignore_eos=rng.random() < 0.5)
        launched = service.launch().chunks
        for _ in range(len(service.in_flight) - (ahead if launched else 0)):
            service.receive()
        service.check()
        if service.requests and rng.random() < 0.1:
            service.scheduler.abort(rng.choice(service.requests[-8:]))
    service.drain(ahead)
    return service


@pytest.mark.sweep(every=True)
def test_random_services_meet_everything_that_can_happen():
    services = [served(seed) for seed in range(30)]
    for what, least in (("preemptions", 40), ("cached", 400), ("discarded", 50), ("copies", 30)):
        assert sum(getattr(service, what) for service in services) >= least, what
    assert sum(len(service.requests) for service in services) > 250


@pytest.mark.sweep
def test_many_random_services():
    for seed in range(30, 2_000):
        served(seed)


# --- One thing at a time ---------------------------------------------------------------------------------------------


def test_a_long_prompt_runs_in_chunks_beside_those_that_decode():
    service = Service(num_pages=40, page_size=4, max_num_seqs=4, budget=8)
    short = service.add([3], max_tokens=12, temperature=0.0, ignore_eos=True)
    service.launch()
    long = service.add(list(range(20)), max_tokens=4, temperature=0.0, ignore_eos=True)
    chunks = [[(chunk.sequence.request is long, chunk.begin, chunk.length) for chunk in service.launch().chunks]
              for _ in range(1)]
    service.receive()
    chunks += [[(chunk.sequence.request is long, chunk.begin, chunk.length) for chunk in service.launch().chunks]
               for _ in range(3)]
    assert chunks == [[(False, 1, 1), (True, 0, 7)], [(False, 2, 1), (True, 7, 7)], [(False, 3, 1), (True, 14, 6)],
                      [(False, 4, 1), (True, 20, 1)]]
    service.drain()
    assert len(short.sequences[0].output) == 12


def test_the_next_step_is_scheduled_before_the_tokens_of_this_one_are_known():
    """The id of a token that the host does not know is that of its seat."""
    service = Service(num_pages=8, page_size=4, max_num_seqs=2, budget=8)
    service.add([3, 4], max_tokens=4, temperature=0.0, ignore_eos=True)
    service.launch()
    step = service.scheduler.schedule()
    assert service.runner.builder.build(step).ids.tolist() == [-1]
    assert service.scheduler.running[0].tokens == [3, 4] and service.scheduler.running[0].pending == 2


def test_what_a_step_samples_for_a_sequence_that_had_ended_is_discarded():
    service = Service(num_pages=8, page_size=4, max_num_seqs=2, budget=8)
    expected = None
    for start in range(VOCABULARY):  # one that ends early by itself
        request = Request("", [start], SamplingParams(max_tokens=12, temperature=0.0), stop_ids=(END,), max_length=40)
        if len(expected := alone(request)) < 12:
            break
    request = service.add([start], max_tokens=12, temperature=0.0)
    service.drain()
    assert request.sequences[0].output == expected and service.discarded == 1


def test_without_a_stop_no_step_is_one_too_many():
    """The length is known in advance."""
    service = Service(num_pages=8, page_size=4, max_num_seqs=2, budget=8)
    service.add([3, 4], max_tokens=5, temperature=0.0, ignore_eos=True)
    service.drain()
    assert service.discarded == 0 and service.runner.launched == 5


def test_a_preempted_sequence_goes_on_where_it_was():
    """Two sequences of 20 tokens in pages for 24: the younger one leaves and comes again."""
    service = Service(num_pages=6, page_size=4, max_num_seqs=2, budget=32, caching=False)
    for number in range(2):
        service.add([3 + number] * 4, max_tokens=16, temperature=0.0, ignore_eos=True)
    service.drain()
    assert service.preemptions == 1


def test_the_pages_of_a_preempted_sequence_are_found_again_in_the_prefix_cache():
    rows = []
    for caching in (False, True):
        service = Service(num_pages=7, page_size=4, max_num_seqs=2, budget=32, caching=caching)
        for number in range(2):
            service.add([3 + number] * 4, max_tokens=16, temperature=0.0, ignore_eos=True)
        service.drain()
        assert service.preemptions == 1
        rows.append(service.runner.rows)
    assert rows[1] < rows[0]


def test_a_prefix_of_the_same_step_is_found():
    service = Service(num_pages=20, page_size=4, max_num_seqs=4, budget=64)
    for own in (1, 2, 3):
        service.add([*range(9), own], max_tokens=2, temperature=0.0)
    step = service.launch()
    assert [(chunk.begin, chunk.length) for chunk in step.chunks] == [(0, 10), (8, 2), (8, 2)]
    service.drain()


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token():
    service = Service(num_pages=20, page_size=4, max_num_seqs=4, budget=64)
    for _ in range(2):
        service.add(list(range(8)), max_tokens=2, temperature=0.0, ignore_eos=True)
    step = service.launch()
    assert [(chunk.begin, chunk.length) for chunk in step.chunks] == [(0, 8), (4, 4)]
    service.drain()


def test_n_outputs_compute_the_prompt_once_and_copy_only_its_last_page():
    service = Service(num_pages=40, page_size=4, max_num_seqs=4, budget=64)
    request = service.add(list(range(10)), n=4, max_tokens=5, seed=5, ignore_eos=True)
    step = service.launch()
    assert [len(chunk.samples) for chunk in step.chunks] == [4] and step.tokens == 10
    assert service.scheduler.blocks.num_free == 40 - 3
    step = service.launch()
    assert len(step.copies) == 3 and step.tokens == 4
    service.check()
    service.drain()
    assert len({tuple(sequence.output) for sequence in request.sequences}) > 1
    assert service.runner.rows == 10 + 4 * 4


def test_an_output_without_a_seat_waits_and_finds_the_prompt_in_the_prefix_cache():
    service = Service(num_pages=40, page_size=4, max_num_seqs=2, budget=64)
    service.add(list(range(10)), n=3, max_tokens=5, seed=5, ignore_eos=True)
    service.launch()
    assert len(service.scheduler.running) == 2 and len(service.scheduler.waiting) == 1
    service.drain()
    assert service.runner.rows == 10 + 2 * 4 + 2 + 4


def test_an_abort_gives_everything_back_at_once():
    service = Service(num_pages=40, page_size=4, max_num_seqs=2, budget=6)
    requests = [service.add(list(range(10)), n=n, max_tokens=5, ignore_eos=True) for n in (3, 1)]
    for _ in range(2):
        service.launch()
    for request in requests:
        service.scheduler.abort(request)
        service.scheduler.abort(request)  # nothing is left to do
    assert service.scheduler.blocks.num_free == 40 and not service.scheduler.has_unfinished()
    assert all(sequence.finish_reason is FinishReason.ABORT for each in requests for sequence in each.sequences)
    service.drain()


def test_what_can_never_run_is_refused():
    scheduler = Scheduler(BlockManager(3, 4))
    long = Request("7", [1] * 8, SamplingParams(max_tokens=6), max_length=40)
    with pytest.raises(ValueError, match="request 7 may become 14 tokens long; its K and V need 4 pages"):
        scheduler.add(long)
    scheduler.add(Request("8", [1] * 8, SamplingParams(max_tokens=5), max_length=40))  # the last one's are not kept
    for wrong in ({"max_num_seqs": 0}, {"max_num_batched_tokens": 0}):
        with pytest.raises(ValueError, match="must be 1 or more"):
            Scheduler(BlockManager(3, 4), **wrong)
    with pytest.raises(ValueError, match="the prompt has 40 tokens; at most 39 fit"):
        Request("9", [1] * 40, SamplingParams(), max_length=40)
    with pytest.raises(ValueError, match="no token"):
        Request("9", [], SamplingParams(), max_length=40)


def test_a_static_batch_is_filled_again_only_when_all_of_it_have_ended():
    services = []
    for kind in (StaticScheduler, Scheduler):
        service = Service(num_pages=60, page_size=4, max_num_seqs=3, budget=64, scheduler=kind)
        for number, length in enumerate((12, 2, 3, 4, 12, 2)):
            service.add([number, 3], max_tokens=length, temperature=0.0, ignore_eos=True)
        service.drain()
        services.append(service)
    assert [service.runner.launched for service in services] == [24, 16]
