"""Which sequences run in the next step, and which of their tokens: continuous batching.

    scheduler = Scheduler(BlockManager(1_000), max_num_seqs=64, max_num_batched_tokens=2_048)
    scheduler.add(request)
    step = scheduler.schedule()                      # what the runner launches
    for sequence, sampled in scheduler.receive(step, handle.tokens()): ...

Requests are served in the order in which they came. A step first has a part of each running sequence, the oldest first:
one token of each decoding sequence, a chunk of the prompt of each one in prefill; the rest of the step's token budget
goes to waiting sequences. If pages run out, the youngest running sequence gives its own back and waits; it is computed
again later, with what it has generated (preemption by recomputing). So the oldest unfinished sequence always advances,
and each sequence becomes the oldest in time: none starves.

`schedule` may be called for step n + 1 before `receive` for step n: a token that the host does not know yet lies on the
device, at the sequence's slot, and counts as `pending`. Where a sequence turns out to have ended at step n, what step
n + 1 samples for it is discarded. Its pages may be used again at once, because the device runs one step after another.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.engine.block_manager import BlockManager
from labkit.engine.outputs import Sampled
from labkit.engine.sequence import FinishReason, Request, Sequence, State

# Of all schedulers: a runner that serves another engine after this one must not take its sequences for this one's.
ADMISSIONS = itertools.count(1)


class Chunk(NamedTuple):
    """The tokens begin .. begin + length of a sequence run in a step; the last one may be on the device only.

    samples: the sequences whose next token is drawn from the last one's logits: this one, where the chunk reaches its
    end, and with n > 1 the other outputs of its prompt.
    """

    sequence: Sequence
    begin: int
    length: int
    samples: tuple[Sequence, ...] = ()

    @property
    def scored(self) -> range:
        """The places in the prompt of the tokens whose logprobs come of this chunk, where the request wants them."""
        request = self.sequence.request
        if request.params.prompt_logprobs is None or self.sequence.index:
            return range(0)
        return range(self.begin + 1, min(self.begin + self.length + 1, len(request.prompt)))


@dataclass
class Step:
    """copies: pages (from, to) to copy before anything else, in this order. The runner reads the sequences when it
    launches the step; they change afterwards."""

    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: int = 0  # sequences that gave their pages back for it

    @property
    def tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def samples(self) -> list[Sequence]:
        """The sequences in the order in which a step's handle returns their tokens."""
        return [sequence for chunk in self.chunks for sequence in chunk.samples]


class Scheduler:
    """max_num_seqs: how many run at a time; each has a slot (Sequence.seat), a number below it, as long as it runs.
    max_num_batched_tokens: of a step, the token budget."""

    def __init__(self, blocks: BlockManager, *, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048):
        if max_num_seqs < 1 or max_num_batched_tokens < 1:
            raise ValueError(f"max_num_seqs is {max_num_seqs} and max_num_batched_tokens is {max_num_batched_tokens}; "
                             f"both must be 1 or more")
        self.blocks = blocks
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        self.running: list[Sequence] = []  # the oldest first
        self._waiting: list[Sequence] = []  # a heap, the oldest first; those that ended while they waited are in it
        self._free_slots = list(range(max_num_seqs))  # a heap
        self._arrivals = 0

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that could not run even alone."""
        self.blocks.check(request)

    def add(self, request: Request) -> None:
        """Raises ValueError for a request that could not run even alone."""
        self.check(request)
        self._arrivals += 1
        for sequence in request.sequences:
            sequence.order = self._arrivals, sequence.index
        first, *others = request.sequences
        first.followers = others
        heapq.heappush(self._waiting, first)

    @property
    def waiting(self) -> list[Sequence]:
        """The oldest first."""
        return sorted(sequence for sequence in self._waiting if sequence.state is State.WAITING)

    def has_unfinished(self) -> bool:
        return bool(self.running) or any(sequence.state is State.WAITING for sequence in self._waiting)

    # --- A step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> Step:
        """The next step; without chunks if there is nothing to run before results of earlier steps are received."""
        step, budget = Step(), self.max_num_batched_tokens
        for sequence in tuple(self.running):
            length = min(sequence.length - sequence.computed, budget)
            can_run = sequence.state is State.RUNNING and length and not sequence.complete
            if can_run and self._make_pages(sequence, length, step):
                self._run(sequence, length, step)
                budget -= length
        self._admit(budget, step)
        return step

    def _make_pages(self, sequence: Sequence, tokens: int, step: Step) -> bool:
        """Preempt until there are pages for so many more tokens; False if the sequence itself was preempted."""
        while self.blocks.missing(sequence, tokens) > self.blocks.num_free:
            youngest = self.running[-1]
            self._release(youngest, State.WAITING)
            heapq.heappush(self._waiting, youngest)
            step.preempted += 1
            if youngest is sequence:
                return False
        return True

    def _admit(self, budget: int, step: Step) -> None:
        while budget and self._free_slots and (sequence := self._next_waiting()):
            prefix = self.blocks.cached_prefix(sequence)
            reserved = self.blocks.watermark * len(self.running)
            required = self.blocks.needed(sequence, sequence.length, prefix) + reserved
            if sequence.pending or required > self.blocks.num_free:
                break
            heapq.heappop(self._waiting)
            self.blocks.take(sequence, prefix)
            if sequence.request.num_cached_tokens is None:
                sequence.request.num_cached_tokens = sequence.computed
            self._assign_slot(sequence)
            length = min(sequence.length - sequence.computed, budget)
            self._run(sequence, length, step)
            budget -= length

    def _next_waiting(self) -> Sequence | None:
        while self._waiting and self._waiting[0].state is not State.WAITING:
            heapq.heappop(self._waiting)
        return self._waiting[0] if self._waiting else None

    def _run(self, sequence: Sequence, length: int, step: Step) -> None:
        """Add the sequence's next tokens to the step. There are pages for them."""
        begin, samples = sequence.computed, ()
        copy = self.blocks.grow(sequence, length)
        if copy:
            step.copies.append(copy)
        sequence.computed += length
        if sequence.computed == sequence.length:
            samples = (sequence, *self._fork(sequence))
            for each in samples:
                each.pending += 1
        self.blocks.register(sequence)
        step.chunks.append(Chunk(sequence, begin, length, samples))

    def _fork(self, first: Sequence) -> list[Sequence]:
        """Assign slots to the other outputs of a prompt that is computed with this step: they share its pages. Those
        without a slot wait like any other sequence, and may find the prompt in the prefix cache."""
        forked = []
        for sequence in first.followers:
            if self._free_slots:
                self.blocks.fork(first, sequence)
                self._assign_slot(sequence)
                forked.append(sequence)
            else:
                sequence.state = State.WAITING
                heapq.heappush(self._waiting, sequence)
        first.followers = []
        return forked

    def _assign_slot(self, sequence: Sequence) -> None:
        sequence.state, sequence.seat, sequence.admission = (State.RUNNING, heapq.heappop(self._free_slots),
                                                             next(ADMISSIONS))
        self.running.append(sequence)  # all that run are older: no sequence overtakes a waiting one

    def _release(self, sequence: Sequence, state: State) -> None:
        """Free a running sequence's slot and pages."""
        self.running.remove(sequence)
        heapq.heappush(self._free_slots, sequence.seat)
        self.blocks.release(sequence)
        sequence.state, sequence.seat = state, -1

    # --- Results of a step -------------------------------------------------------------------------------------------

    def receive(self, step: Step, tokens: Iterable[Sampled]) -> list[tuple[Sequence, Sampled]]:
        """Appends the tokens of a step to their sequences; steps are received in the order in which they were
        scheduled. Returns those that count: tokens of sequences that have ended since are discarded. Whoever calls
        it finishes the sequences that have ended with them."""
        alive = []
        for sequence, sampled in zip(step.samples, tokens, strict=True):
            sequence.pending -= 1
            if sequence.state is not State.FINISHED:
                sequence.tokens.append(sampled.token)
                alive.append((sequence, sampled))
        return alive

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Remove a sequence, in whatever state it is; one that is finished stays as it is."""
        if sequence.state is State.FINISHED:
            return
        if sequence.state is State.RUNNING:
            self._release(sequence, State.FINISHED)
        sequence.state, sequence.finish_reason = State.FINISHED, reason

    def abort(self, request: Request) -> None:
        for sequence in request.sequences:
            self.finish(sequence, FinishReason.ABORT)
