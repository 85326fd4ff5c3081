"""What the engine asks of whatever runs a model: launch a step, and hand over its tokens when they are wanted.

    handle = runner.launch(step)       # returns before the step has run
    ...                                # the host schedules the next one
    handle.tokens()                    # waits for this one

The contract that the scheduler relies on:

- Steps run one after another, in the order of their launches. A page that was given back may therefore be written by a
  later step while the host has not seen an earlier one end.
- Within a step the copies of pages come first, one after the other; then, in each layer, K and V of all its tokens are
  written before any attention reads them: a sequence may find a prefix that another one writes in the same step.
- The token that a step samples for a sequence is kept on the device at the sequence's seat. Where a later step's id is
  -1 - seat, it is that token.
- A token depends on the tokens before it, on its request's parameters and seed, and on its position: not on seats,
  pages, chunks or the company of other sequences.
"""

from __future__ import annotations

from typing import Protocol

from labkit.engine.outputs import Sampled
from labkit.engine.scheduler import Step


class Handle(Protocol):
    """A step that was launched."""

    def tokens(self) -> list[Sampled]:
        """One for each of step.samples; waits until the step has run."""


class Runner(Protocol):
    """num_pages, page_size: the memory for K and V. max_model_len: the longest sequence, in tokens."""

    num_pages: int
    page_size: int
    max_model_len: int

    def launch(self, step: Step) -> Handle:
        """Reads the step's sequences before it returns: the host changes them afterwards."""


def bucket(count: int, largest: int) -> int:
    """The size of batch for which a graph is captured that holds `count` sequences: a power of two up to 32, then a
    multiple of 32, at most `largest`."""
    if not 1 <= count <= largest:
        raise ValueError(f"count is {count}; it must be from 1 to {largest}")
    size = 1 << (count - 1).bit_length() if count <= 32 else -(-count // 32) * 32
    return min(size, largest)


def buckets(largest: int) -> list[int]:
    """Every size that `bucket` returns for up to `largest` sequences."""
    return sorted({bucket(count, largest) for count in range(1, largest + 1)})
