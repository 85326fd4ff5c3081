"""The interface between the engine and what runs a model: launch a step, and return its tokens on request.

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
  pages, chunks or other sequences in the batch.
"""

from __future__ import annotations

from typing import Protocol

from labkit.engine.outputs import Sampled
from labkit.engine.scheduler import Chunk, Step
from labkit.models.step import Shape


class Handle(Protocol):
    """A step that was launched."""

    def tokens(self) -> list[Sampled]:
        """One for each of step.samples; waits until the step has run."""

    def prompt_tokens(self) -> list[tuple[Chunk, list[Sampled]]]:
        """For each chunk of the step that is `scored`: its prompt's tokens at these places, with their logprobs. Called
        after `tokens`, and only where there are such chunks."""


class Runner(Protocol):
    """num_pages, page_size: the memory for K and V. max_model_len: the longest sequence, in tokens. vocab_size: the
    model's token ids are below it."""

    num_pages: int
    page_size: int
    max_model_len: int
    vocab_size: int

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


# The rows of a step with parts of prompts: a power of two from 16 to 128, where linear layers change their kernels;
# then multiples of the tile of 128 rows in which they compute anyway, of two tiles and of eight where these are a small
# part. In the six runs of `labkit bench engine` 302 steps have parts of prompts. Padding adds 38 rows to one on
# average, 0.17 ms on an H200, and these steps are of 37 kinds; 238 of them are the third of their kind or later, which
# replay a graph. With powers of two alone it would be 143 rows, 25 kinds and 259 replays; with every multiple of 128,
# 30 rows, 41 kinds and 236 replays.
STRIDES = ((1024, 128), (2048, 256))  # up to so many rows, multiples of this; beyond, of WIDEST
WIDEST = 1024


def row_bucket(rows: int, largest: int) -> int:
    """The rows of a step with parts of prompts, for which a graph is captured, at most `largest`."""
    if not 1 <= rows <= largest:
        raise ValueError(f"rows is {rows}; it must be from 1 to {largest}")
    stride = next((stride for end, stride in STRIDES if rows <= end), WIDEST)
    size = max(16, 1 << (rows - 1).bit_length()) if rows <= 128 else -(-rows // stride) * stride
    return min(size, largest)


def padded(shape: Shape, rows: int, sequences: int, slots: int) -> Shape:
    """The shape for which a graph is captured that runs a step with parts of prompts: of few kinds, since each costs a
    capture. rows, sequences: the most that there is memory for. slots: the most sequences that decode.

    Empty sequences are cheap: blocks of attention end at once. So there are 0, 32, 128, 256, ... that decode, others by
    powers of two, and the longest has all of the rows, or a quarter, a sixteenth, ...
    """
    T = row_bucket(shape.rows, rows)
    others = shape.sequences - shape.decoding
    decoding = shape.decoding and (32 if shape.decoding <= 32 else -(-shape.decoding // 128) * 128)
    decoding, others = min(decoding, slots, T), others and 1 << (others - 1).bit_length()
    if decoding + others > sequences:
        return shape._replace(rows=T)
    longest = T if others else 0
    while longest // 4 >= max(1, shape.longest):
        longest //= 4
    return Shape(T, decoding + others, decoding, longest)
