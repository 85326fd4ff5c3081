"""A scheduler without a model: who has which seat in which step, for figures and to compare ways of scheduling.

    timeline = simulate([Work(prompt=100, output=40), Work(prompt=10, output=200, arrival=5)], max_num_seqs=2)
    timeline.steps, timeline.idle
    for cell in timeline.cells: ...     # step, seat, request, tokens, kind
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

from labkit.engine.block_manager import PAGE, BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import FinishReason, Request


@dataclass(frozen=True)
class Work:
    """A request as far as a scheduler knows it: tokens of its prompt, tokens of its output, and the step before which
    it comes."""

    prompt: int
    output: int
    arrival: int = 0


class Cell(NamedTuple):
    """What a seat does in a step. kind: "prefill" for tokens of a prompt, or computed again after a preemption, or
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
    coming = sorted(range(len(work)), key=lambda number: work[number].arrival)
    cells, held, ends, preemptions = [], [], [0] * len(work), 0
    while coming or plan.has_unfinished():
        while coming and work[coming[0]].arrival <= len(held):
            number = coming.pop(0)
            one = work[number]
            plan.add(Request(str(number), [0] * one.prompt, SamplingParams(max_tokens=one.output),
                             max_length=one.prompt + one.output))
        step = plan.schedule()
        preemptions += step.preempted
        for chunk in step.chunks:
            number, sequence = int(chunk.sequence.request.request_id), chunk.sequence
            kind = "decode" if sequence.output_length and chunk.length == 1 else "prefill"
            cells.append(Cell(len(held), sequence.seat, number, chunk.length, kind))
        held.append(num_pages - blocks.num_free)
        for sequence, _ in plan.receive(step, [Sampled(0)] * len(step.samples)):
            if sequence.ended_by_last():
                ends[int(sequence.request.request_id)] = len(held) - 1
                plan.finish(sequence, FinishReason.LENGTH)
    return Timeline(tuple(cells), tuple(ends), max_num_seqs, tuple(held), preemptions)
