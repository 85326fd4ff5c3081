"""A step: tokens of several sequences that go through a model together, each with its keys and values in pages.

    inputs = Inputs(tokens=512, sequences=8, pages=64)
    step = inputs.step([Piece([7], 31, [4, 9]), Piece(prompt, 0, [5, 2, 0])])      # one goes on, one begins

No model is needed for it: any decoder with rotary positions takes it as it is. T rows of tokens, B sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labkit import cuda
from labkit.kernels.attention.pages import PAGE, pages_for


class Piece(NamedTuple):
    """What one sequence adds in a step."""

    ids: Sequence[int]  # its next tokens, at least one
    before: int  # how many tokens of it are in the cache already
    pages: Sequence[int]  # all of its pages so far, in their order, those for these tokens among them


class Shape(NamedTuple):
    """What a graph is captured for. All else of a step lies in device memory.

    The first `decoding` sequences have one row each, in their order; the rows of the others follow. The last of the
    first may be empty: then they have no rows, and those of the others follow all the same. A sequence with one row is
    computed alike wherever it is among those, and differently in its last bits among the others.
    """

    rows: int  # T
    sequences: int  # B; those that a shape has too many are empty
    decoding: int
    longest: int  # at least the rows of the longest of the other sequences; 0 if there are none


class Step(NamedTuple):
    """A step on the device; all int32."""

    shape: Shape
    ids: object  # (T,), as positions and slots
    positions: object  # of the tokens in their sequences
    slots: object  # where its keys and values go: page * PAGE + place there; -1: nowhere, it is a row of padding
    begins: object  # (B,), as lengths, contexts and last: the first row of each sequence
    lengths: object  # its rows
    contexts: object  # its tokens in all, with those of the cache
    last: object  # its last row: the one whose logits are computed
    page_table: object  # (B, pages): where its tokens are
    of_decoding: tuple  # page_table and contexts of the decoding sequences
    of_others: tuple  # page_table, begins, lengths and contexts of the others


def step_of(shape: Shape, ids, positions, slots, begins, lengths, contexts, last, page_table) -> Step:
    """A step of these device arrays, as Step describes them."""
    n = shape.decoding
    return Step(shape, ids, positions, slots, begins, lengths, contexts, last, page_table,
                (page_table[:n], contexts[:n]), (page_table[n:], begins[n:], lengths[n:], contexts[n:]))


def shape_of(pieces: Sequence[Piece]) -> Shape:
    """The smallest shape that holds them."""
    lengths = [len(piece.ids) for piece in pieces]
    decoding = next((number for number, length in enumerate(lengths) if length != 1), len(lengths))
    return Shape(sum(lengths), len(lengths), decoding, max(lengths[decoding:], default=0))


def lay_out(pieces: Sequence[Piece], shape: Shape, width: int) -> np.ndarray:
    """A step as the device wants it: all of Step, one after the other, so that it is one copy. width: of the table.
    Raises ValueError for pieces that do not fit."""
    needed = shape_of(pieces)
    if needed.decoding < len(pieces) and needed.decoding != shape.decoding:
        raise ValueError(f"the shape has {shape.decoding} decoding sequences, and the pieces begin with "
                         f"{needed.decoding} of one token; others follow, so both must be equal")
    if any(wanted > has for wanted, has in zip(needed, shape, strict=True)):
        raise ValueError(f"the pieces need {needed}, and the step has {shape}")
    T, B = shape.rows, shape.sequences
    host = np.zeros(3 * T + (4 + width) * B, np.int32)
    ids, positions, slots, sequences = np.split(host, (T, 2 * T, 3 * T))
    begins, lengths, contexts, last, table = np.split(sequences, (B, 2 * B, 3 * B, 4 * B))
    table = table.reshape(B, width)
    slots[:] = -1
    row = 0
    for number, (tokens, before, pages) in enumerate(pieces):
        count, context = len(tokens), before + len(tokens)
        if not count or before < 0 or not pages_for(context) <= len(pages) <= width:
            raise ValueError(f"piece {number}: {count} tokens after {before}, and {len(pages)} pages of {PAGE}; at "
                             f"least one token, and from {pages_for(context)} to {width} pages are needed")
        table[number, : len(pages)] = pages
        places = np.arange(before, context)
        ids[row : row + count], positions[row : row + count] = tokens, places
        slots[row : row + count] = table[number, places // PAGE] * PAGE + places % PAGE
        begins[number], lengths[number], contexts[number], last[number] = row, count, context, row + count - 1
        row += count
    return host


class Inputs:
    """The device memory of steps up to this size, allocated once. tokens: rows of a step. pages: of a sequence."""

    def __init__(self, tokens: int, sequences: int, pages: int):
        if min(tokens, sequences, pages) < 1:
            raise ValueError(f"tokens, sequences and pages must be at least 1; they are {tokens}, {sequences}, {pages}")
        self.tokens, self.sequences, self.pages = tokens, sequences, pages
        self.memory = cuda.device_array(3 * tokens + (4 + pages) * sequences, np.int32)
        self.views = functools.lru_cache(maxsize=256)(self._views)

    def step(self, pieces: Sequence[Piece], shape: Shape | None = None, stream=0) -> Step:
        """These pieces, copied to the device. shape: a larger one, for which a graph was captured."""
        shape = shape or shape_of(pieces)
        host = lay_out(pieces, shape, self.pages)
        step = self.views(shape)
        self.memory[: host.size].copy_to_device(host, stream)
        return step

    def _views(self, shape: Shape) -> Step:
        if shape.rows > self.tokens or shape.sequences > self.sequences:
            raise ValueError(f"the step has {shape.rows} rows of {shape.sequences} sequences; memory was allocated for "
                             f"{self.tokens} of {self.sequences}")
        T, B = shape.rows, shape.sequences
        rows = [self.memory[number * T : (number + 1) * T] for number in range(3)]
        sequences = [self.memory[3 * T + number * B : 3 * T + (number + 1) * B] for number in range(4)]
        table = self.memory[3 * T + 4 * B : 3 * T + (4 + self.pages) * B].reshape(B, self.pages)
        return step_of(shape, *rows, *sequences, table)
