"""A scheduler without a model: the seats of the requests in each step and, given a cost per step, clients' latency.

    timeline = simulate([Work(prompt=100, output=40), Work(prompt=10, output=200, arrival=5)], max_num_seqs=2)
    timeline.steps, timeline.idle
    for cell in timeline.cells: ...     # step, seat, request, tokens, kind

    served = serve_trace(trace, StepCost(step_ms=1.0, row_ms=0.004, cached_ms=1e-5), max_num_seqs=2)
    served.first_ms, served.gaps_ms, served.tokens_per_second

    shortest = partial(ChoosingScheduler, choose=lambda prompts, waited: prompts.argmin())
    serve_trace(trace, cost, shortest)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.engine.block_manager import PAGE, BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler, Step
from labkit.engine.sequence import FinishReason, Request, Sequence


@dataclass(frozen=True)
class Work:
    """A request as far as a scheduler knows it: tokens of its prompt, tokens of its output, and when it comes: for
    `simulate` the number of the step, for `serve_trace` milliseconds."""

    prompt: int
    output: int
    arrival: float = 0


class Cell(NamedTuple):
    """The work of one seat in a step. kind: "prefill" for tokens of a prompt, or computed again after a preemption, or
    "decode"."""

    step: int
    seat: int
    request: int  # its number in the list
    tokens: int
    kind: str


@dataclass(frozen=True)
class Timeline:
    cells: tuple[Cell, ...]
    ends: tuple[int, ...]  # of each request: the step with its last token
    seats: int
    held: tuple[int, ...]  # pages held after each step was scheduled
    preemptions: int

    @property
    def steps(self) -> int:
        return len(self.held)

    @property
    def idle(self) -> float:
        """The part of all seats in all steps that did nothing."""
        return 1 - len(self.cells) / (self.steps * self.seats) if self.steps else 0.0


def simulate(work: Items[Work], scheduler: type[Scheduler] = Scheduler, *, max_num_seqs: int = 8,
             max_num_batched_tokens: int = 2048, num_pages: int = 1_000, page_size: int = PAGE,
             blocks: Callable[..., BlockManager] = BlockManager) -> Timeline:
    """Serves the requests with tokens that mean nothing. Each prompt is its own: none is found in the prefix cache.
    scheduler, blocks: as LLMEngine takes them."""
    blocks = blocks(num_pages, page_size, prefix_caching=False)
    plan = scheduler(blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    upcoming = _by_arrival(work)
    cells, held, ends, preemptions = [], [], [0] * len(work), 0
    while upcoming or plan.has_unfinished():
        while upcoming and work[upcoming[-1]].arrival <= len(held):
            index = upcoming.pop()
            plan.add(_request(index, work[index]))
        step = plan.schedule()
        preemptions += step.preempted
        for chunk in step.chunks:
            index, sequence = int(chunk.sequence.request.request_id), chunk.sequence
            kind = "decode" if sequence.output_length and chunk.length == 1 else "prefill"
            cells.append(Cell(len(held), sequence.seat, index, chunk.length, kind))
        held.append(num_pages - blocks.num_free)
        for index, ended in _received(plan, step):
            if ended:
                ends[index] = len(held) - 1
    return Timeline(tuple(cells), tuple(ends), max_num_seqs, tuple(held), preemptions)


def _by_arrival(work: Items[Work]) -> list[int]:
    """The requests' indices, the last to arrive first."""
    return sorted(range(len(work)), key=lambda index: (work[index].arrival, index), reverse=True)


def _request(index: int, work: Work) -> Request:
    return Request(str(index), [0] * work.prompt, SamplingParams(max_tokens=work.output),
                   max_length=work.prompt + work.output)


def _received(plan: Scheduler, step: Step) -> Iterator[tuple[int, bool]]:
    """Samples a step's tokens: for each, the index of its request and whether the request ends with it."""
    for sequence, _ in plan.receive(step, [Sampled(0)] * len(step.samples)):
        ended = sequence.ended_by_last() is not None
        if ended:
            plan.finish(sequence, FinishReason.LENGTH)
        yield int(sequence.request.request_id), ended


# --- Times -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepCost:
    """How long a step takes, in milliseconds, by a model of three numbers.

    step_ms: the least, in which all weights are read once. row_ms: of the arithmetic for a row, a prompt's token or an
    output's. A step takes the longer of the two, and cached_ms for each token whose keys and values it reads.
    """

    step_ms: float
    row_ms: float
    cached_ms: float

    def ms(self, rows: float, cached: float) -> float:
        return max(self.step_ms, rows * self.row_ms) + cached * self.cached_ms

    def of(self, step: Step) -> float:
        rows = cached = 0
        for chunk in step.chunks:
            rows += chunk.length
            cached += chunk.begin + chunk.length
        return self.ms(rows, cached)

    @classmethod
    def fitted(cls, decode: dict, prefill: dict) -> StepCost:
        """From the recorded series llama_decode and llama_prefill, of steps in a graph."""
        longest, single = max(prefill["rows"], key=lambda row: row["tokens"]), decode["rows"][0]
        step_ms, row_ms = single["ms"]["p50"], longest["ms"]["p50"] / longest["tokens"]
        points = [(max(step_ms, row["sequences"] * row_ms), row["sequences"] * decode["tokens"], row["ms"]["p50"])
                  for row in decode["rows"]]
        # Least squares of the relative errors; the rows with few sequences say little about the cache.
        cached_ms = sum((ms - floor_ms) * cached / ms**2 for floor_ms, cached, ms in points) / sum(
            (cached / ms) ** 2 for _, cached, ms in points)
        return cls(step_ms, row_ms, cached_ms)


@dataclass(frozen=True, eq=False)
class Served:
    """What clients saw, in milliseconds.

    first_ms, ends_ms: of each request, from its arrival to its first and to its last token. gaps_ms: between two tokens
    of a request, of all requests together.
    """

    first_ms: np.ndarray
    ends_ms: np.ndarray
    gaps_ms: np.ndarray
    total_ms: float  # from the first arrival to the last token
    steps: int
    tokens: int  # of all outputs
    preemptions: int

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens / self.total_ms


def serve_trace(work: Items[Work], cost: StepCost, scheduler: Callable[..., Scheduler] = Scheduler, *,
                max_num_seqs: int = 64, max_num_batched_tokens: int = 2048, num_pages: int = 16_384) -> Served:
    """Serves requests that arrive at given milliseconds, each step as long as `cost` says. A step's tokens are seen
    when it ends. While there is nothing to do, time advances to the next arrival."""
    if not work:
        raise ValueError("work has no requests; one at least is needed")
    plan = scheduler(BlockManager(num_pages, prefix_caching=False), max_num_seqs=max_num_seqs,
                     max_num_batched_tokens=max_num_batched_tokens)
    choosing = isinstance(plan, ChoosingScheduler)
    upcoming = _by_arrival(work)
    now = start = float(work[upcoming[-1]].arrival)
    first, last, ends = (np.zeros(len(work)) for _ in range(3))
    gaps: list[float] = []
    active = steps = preemptions = 0
    while upcoming or active:
        if not active:
            now = max(now, float(work[upcoming[-1]].arrival))
        while upcoming and work[upcoming[-1]].arrival <= now:
            index = upcoming.pop()
            plan.add(_request(index, work[index]))
            active += 1
            if choosing:
                plan.arrived_ms[str(index)] = float(work[index].arrival)
        if choosing:
            plan.now = now
        step = plan.schedule()
        preemptions += step.preempted
        steps += 1
        now += cost.of(step)
        for index, ended in _received(plan, step):
            if last[index]:
                gaps.append(now - last[index])
            else:
                first[index] = now
            last[index] = now
            if ended:
                ends[index] = now
                active -= 1
    arrivals = np.array([one.arrival for one in work], float)
    return Served(first - arrivals, ends - arrivals, np.array(gaps), now - start, steps,
                  sum(one.output for one in work), preemptions)


# --- Order of admission ----------------------------------------------------------------------------------------------


class ChoosingScheduler(Scheduler):
    """Admits waiting requests in an order of its own.

    choose: (tokens of each prompt, milliseconds that each has waited) -> the number of the one that is next. The arrays
    have the waiting requests in the order in which they came. What runs goes on running, as with any scheduler.
    """

    def __init__(self, blocks: BlockManager, *, choose: Callable[[np.ndarray, np.ndarray], int], **options):
        super().__init__(blocks, **options)
        self.choose, self.now = choose, 0.0
        self.arrived_ms: dict[str, float] = {}  # when each request came, by its id

    def _next_waiting(self) -> Sequence | None:
        waiting = self.waiting
        if not waiting:
            return None
        prompts = np.array([sequence.length for sequence in waiting])
        waited = np.array([self.now - self.arrived_ms[sequence.request.request_id] for sequence in waiting])
        chosen = self._chosen(self.choose(prompts, waited), len(waiting))
        # _admit pops the first of the list; the order of the others does not matter here.
        self._waiting[:] = [waiting.pop(chosen), *waiting]
        return self._waiting[0]

    @staticmethod
    def _chosen(value, count: int) -> int:
        try:
            chosen = operator.index(value)
        except TypeError:
            raise TypeError(f"choose returned {value!r}; it must return a whole number") from None
        if not 0 <= chosen < count:
            raise IndexError(f"choose returned {chosen}; with {count} waiting it must return a number from 0 to "
                             f"{count - 1}")
        return chosen
