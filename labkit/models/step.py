"""A step: tokens of several sequences that go through a model together, each with its keys and values in pages.

    inputs = Inputs(tokens=512, sequences=8, pages=64)
    step = inputs.step([Piece([7], 31, [4, 9]), Piece(prompt, 0, [5, 2, 0])])      # one continues, one starts

It depends on no model: any decoder with rotary positions can take it. T rows of tokens, B sequences.
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
    pages: Sequence[int]  # all of its pages, in order, including those for these tokens


class Shape(NamedTuple):
    """What a graph is captured for. Everything else about a step lies in device memory.

    The first `decoding` sequences have one row each, in their order; the rows of the others follow. The last of the
    decoding ones may be empty and have no rows. A sequence with one row gives the same bits at any position among the
    decoding sequences; among the others its last bits differ.
    """

    rows: int  # T
    sequences: int  # B; surplus ones are empty
    decoding: int
    longest: int  # at least the rows of the longest of the other sequences; 0 if there are none


class Step(NamedTuple):
    """A step on the device; all int32."""

    shape: Shape
    ids: object  # (T,), as positions and slots
    positions: object  # of the tokens in their sequences
    slots: object  # where its keys and values are written: page * PAGE + offset; -1 for a row of padding
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
    decoding = next((index for index, length in enumerate(lengths) if length != 1), len(lengths))
    return Shape(sum(lengths), len(lengths), decoding, max(lengths[decoding:], default=0))


def lay_out(pieces: Sequence[Piece], shape: Shape, width: int) -> np.ndarray:
    """Lay out a step for the device: all arrays of Step in one, so that it is one copy. width: of the table.
    Raises ValueError for pieces that do not fit."""
    needed = shape_of(pieces)
    if needed.decoding < len(pieces) and needed.decoding != shape.decoding:
        raise ValueError(f"the shape has {shape.decoding} decoding sequences, and the pieces begin with "
                         f"{needed.decoding} of one token; others follow, so both must be equal")
    if any(size > limit for size, limit in zip(needed, shape, strict=True)):
        raise ValueError(f"the pieces need {needed}, and the step has {shape}")
    T, B = shape.rows, shape.sequences
    host = np.zeros(3 * T + (4 + width) * B, np.int32)
    ids, positions, slots, sequences = np.split(host, (T, 2 * T, 3 * T))
    begins, lengths, contexts, last, table = np.split(sequences, (B, 2 * B, 3 * B, 4 * B))
    table = table.reshape(B, width)
    slots[:] = -1
    row = 0
    for index, (tokens, num_cached, pages) in enumerate(pieces):
        count, context = len(tokens), num_cached + len(tokens)
        if not count or num_cached < 0 or not pages_for(context) <= len(pages) <= width:
            raise ValueError(f"piece {index}: {count} tokens after {num_cached}, and {len(pages)} pages of {PAGE}; at "
                             f"least one token, and from {pages_for(context)} to {width} pages are needed")
        table[index, : len(pages)] = pages
        pos = np.arange(num_cached, context)
        ids[row : row + count], positions[row : row + count] = tokens, pos
        slots[row : row + count] = table[index, pos // PAGE] * PAGE + pos % PAGE
        begins[index], lengths[index], contexts[index], last[index] = row, count, context, row + count - 1
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
        rows = [self.memory[i * T : (i + 1) * T] for i in range(3)]
        sequences = [self.memory[3 * T + i * B : 3 * T + (i + 1) * B] for i in range(4)]
        table = self.memory[3 * T + 4 * B : 3 * T + (4 + self.pages) * B].reshape(B, self.pages)
        return step_of(shape, *rows, *sequences, table)
