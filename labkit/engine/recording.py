"""A scheduler that writes down what it does, for figures.

    llm = LLM("tiny-llama", scheduler=RecordingScheduler)
    llm.generate(prompts, params)
    for step in llm.engine.scheduler.history: ...     # step.parts, step.preempted, step.held
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from labkit.engine.block_manager import BlockManager
from labkit.engine.scheduler import Scheduler, Step
from labkit.engine.sequence import Sequence

Name = tuple[str, int]  # a request's id, and which of its outputs


class Part(NamedTuple):
    """Tokens of a sequence in a step. kind: "prefill", "decode", or "again" for what was computed before a
    preemption."""

    name: Name
    kind: str
    tokens: int


@dataclass(frozen=True)
class Recorded:
    """A step. held: pages that sequences hold while it runs. waiting: sequences that have neither a slot nor pages."""

    parts: tuple[Part, ...]
    preempted: tuple[Name, ...]
    waiting: tuple[Name, ...]
    held: int

    def tokens(self, *kinds: str) -> int:
        return sum(part.tokens for part in self.parts if not kinds or part.kind in kinds)


def name_of(sequence: Sequence) -> Name:
    return sequence.request.request_id, sequence.index


class RecordingScheduler(Scheduler):
    """history: every step that has something to run, oldest first."""

    def __init__(self, blocks: BlockManager, **options):
        super().__init__(blocks, **options)
        self.history: list[Recorded] = []
        self._reached: dict[Name, int] = {}  # tokens of each sequence that were computed or found in the prefix cache

    def schedule(self) -> Step:
        previous = [(sequence, sequence.admission) for sequence in self.running]
        step = super().schedule()
        if step.chunks:
            running = {chunk.sequence for chunk in step.chunks}
            preempted = tuple(name_of(each) for each, admission in previous
                              if each.seat < 0 or each.admission != admission)
            self.history.append(Recorded(
                tuple(part for chunk in step.chunks for part in self._parts(chunk)), preempted,
                tuple(name_of(each) for each in self.waiting if each not in running),
                self.blocks.num_pages - self.blocks.num_free))
        return step

    def _parts(self, chunk) -> list[Part]:
        """A chunk may begin with tokens that were computed before, and go on with new ones."""
        name, prompt, end = name_of(chunk.sequence), len(chunk.sequence.request.prompt), chunk.begin + chunk.length
        recomputed = min(max(self._reached.get(name, 0), chunk.begin), end)
        prompt_end = min(max(prompt, recomputed), end)  # where the output begins
        for sequence in chunk.samples:  # with n > 1 the others begin where the first one's prompt ends
            self._reached[name_of(sequence)] = end
        self._reached[name] = max(self._reached.get(name, 0), end)
        counts = (("again", recomputed - chunk.begin), ("prefill", prompt_end - recomputed),
                  ("decode", end - prompt_end))
        return [Part(name, kind, tokens) for kind, tokens in counts if tokens]
