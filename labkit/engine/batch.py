"""A step as flat arrays in one block of memory, so that one copy brings it to the device.

    builder = BatchBuilder(max_num_seqs=64, max_pages=128)
    batch = builder.build(step)
    batch.buffer                        # int32; ids, positions, page_table and all else lie in it

What a sequence's slot needs in every step, its page table and sampling parameters, is kept here from step to step; a
step brings only the changes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from labkit.engine.block_manager import PAGE
from labkit.engine.scheduler import Chunk, Step
from labkit.engine.sequence import Sequence
from labkit.models.step import Shape

# One number for each token of the step; for each of its sequences; the page table; for each sequence how its token is
# drawn. The first three in the order in which the models read them.
TOKEN_FIELDS = ("ids", "positions", "slots")
SEQUENCE_FIELDS = ("begins", "lengths", "contexts", "last")
DRAW_FIELDS = ("seats", "steps", "counted", "biased")
# The same in every step as long as a sequence keeps its seat; of seeds two numbers, the low one first.
SEAT_FIELDS = ("top_k", "num_logprobs", "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
               "repetition_penalty")
FLOATS = SEAT_FIELDS[2:]


NARROWEST = 8  # pages in a row of a step's page table, at least


@dataclass(frozen=True)
class Layout:
    """Where the arrays of a batch lie: of so many tokens (T) and sequences (B), with so many pages each (W)."""

    tokens: int
    sequences: int
    max_pages: int

    @functools.cached_property
    def parts(self) -> dict[str, tuple[int, int]]:
        """(begin, end) of each array, in elements of four bytes."""
        bounds, offset = {}, 0
        sizes = [(name, self.tokens) for name in TOKEN_FIELDS] + [(name, self.sequences) for name in SEQUENCE_FIELDS]
        sizes += [("page_table", self.sequences * self.max_pages)]
        sizes += [(name, self.sequences) for name in DRAW_FIELDS + SEAT_FIELDS]
        sizes += [("seeds", 2 * self.sequences)]
        for name, size in sizes:
            bounds[name] = offset, offset + size
            offset += size
        return bounds

    @property
    def size(self) -> int:
        return self.parts["seeds"][1]

    def views(self, buffer) -> dict:
        """The arrays in an int32 array of `size` numbers, NumPy's or the device's."""
        floats = buffer.view(np.float32)
        views = {name: (floats if name in FLOATS else buffer)[begin:end]
                 for name, (begin, end) in self.parts.items()}
        return views | {"page_table": views["page_table"].reshape(self.sequences, self.max_pages),
                        "seeds": views["seeds"].view(np.uint32).reshape(self.sequences, 2)}


@dataclass
class Batch:
    """A step for a model; the arrays of `layout` are its attributes.

    ids, positions, slots (T,): of each token; an id below 0 is a token that the host does not know yet: -1 - seat, the
        one that this seat's sequence sampled last. slot = page * page_size + the place in the page; -1: a row of
        padding.
    begins, lengths, contexts, last (B,): a sequence's first row, how many it has, how many tokens up to its last one,
        and the row whose logits are wanted. Those with one row come first; behind them and at the end there may be
        empty sequences, of no rows and no tokens: padding, which takes no rows from the others. With n > 1 the outputs
        that begin with another one's last row follow the others: they have no rows, and the same `last`.
    seats, steps (B,): where the token that is drawn goes, and its position in its sequence, which is the generator's
        counter. No sequence has the seat max_num_seqs: it is for padding, and for chunks that do not reach the end of
        the prompt.
    counted, biased (B,): the seat of a sequence with penalties, whose tokens are counted, and of one with biases; -1
        for the others.
    top_k, temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty (B,), seeds (B, 2) uint32:
        how it is drawn.
    num_logprobs (B,): how many of the most likely tokens are listed with their logprobs; -1: no logprobs.
    """

    layout: Layout
    buffer: np.ndarray
    decoding: int  # how many of the first sequences have one row, or are empty
    longest: int  # rows of the longest of the others
    copies: list[tuple[int, int]]  # pages, as in Step
    samples: list[tuple[int, Sequence]]  # for each of step.samples its number among the sequences, and itself
    fresh: list[Sequence]  # those that are new at their seats; all of their tokens are known
    scored: list[tuple[int, Chunk]]  # chunks that give logprobs of their prompt's tokens, each with its first row

    def __post_init__(self):
        for name, view in self.layout.views(self.buffer).items():
            setattr(self, name, view)

    def banned(self) -> list[tuple[int, tuple[int, ...]]]:
        """(index, tokens): the tokens that must not be drawn for a sequence, where there are any."""
        pairs = [(index, sequence.banned(int(self.steps[index]))) for index, sequence in self.samples
                 if sequence.request.params.min_tokens]
        pairs += [(index, tokens) for index, sequence in self.samples if sequence.request.bad_words
                  for tokens, _ in [sequence.bad_words(int(self.steps[index]))]]
        return [(index, tokens) for index, tokens in pairs if tokens]

    def banned_after(self) -> list[tuple[int, int, int, int]]:
        """(index, seat, previous, token): a token that must not follow another one, where the host does not know yet
        which token the sequence at the seat sampled last."""
        return [(index, sequence.seat, previous, token) for index, sequence in self.samples
                if sequence.request.bad_words
                for previous, token in sequence.bad_words(int(self.steps[index]))[1]]


def decodes(chunk: Chunk) -> bool:
    """Whether its sequence is one of the first, of one row each; one from which others fork is not."""
    return chunk.length == 1 and len(chunk.samples) < 2


def shape_needed(step: Step) -> Shape:
    """The smallest shape that holds a step."""
    others = [chunk for chunk in step.chunks if not decodes(chunk)]
    forks = sum(len(chunk.samples) - 1 for chunk in others if chunk.samples)
    return Shape(step.tokens, len(step.chunks) + forks, len(step.chunks) - len(others),
                 max((chunk.length for chunk in others), default=0))


class BatchBuilder:
    """max_pages: of one sequence."""

    def __init__(self, max_num_seqs: int, max_pages: int, page_size: int = PAGE):
        self.max_num_seqs, self.max_pages, self.page_size = max_num_seqs, max_pages, page_size
        self._tables = np.zeros((max_num_seqs + 1, max_pages), np.int32)
        self._admitted = [0] * max_num_seqs  # the admission of the sequence that each seat is set up for
        self._params = np.zeros((len(SEAT_FIELDS), max_num_seqs + 1), np.int32)
        self._params[1] = -1  # no logprobs of padding
        self._seeds = np.zeros((max_num_seqs + 1, 2), np.uint32)

    def build(self, step: Step, tokens: int = 0, sequences: int = 0, decoding: int = 0) -> Batch:
        """tokens, sequences, decoding: how many there are with padding, as a captured graph wants them; no padding if
        there are more. Reads the sequences as they are between `schedule` and the next change."""
        running = dict.fromkeys([chunk.sequence for chunk in step.chunks] + step.samples)
        fresh = [sequence for sequence in running if self._set_up(sequence)]
        for chunk in step.chunks:
            self._update_table(chunk.sequence, chunk.begin // self.page_size)
        single = [chunk for chunk in step.chunks if decodes(chunk)]
        chunks = single + [chunk for chunk in step.chunks if not decodes(chunk)]
        empty = max(0, decoding - len(single))  # sequences between those of one row and the others
        indices = np.arange(len(chunks))  # of each chunk, among the sequences
        indices[len(single) :] += empty
        forks = [(index, sequence) for index, chunk in zip(indices.tolist(), chunks, strict=True)
                 for sequence in chunk.samples[1:]]
        begins = np.array([chunk.begin for chunk in chunks], np.int32)
        lengths = np.array([chunk.length for chunk in chunks], np.int32)
        T, B = int(lengths.sum()), len(chunks) + empty
        used = B + len(forks)
        layout = Layout(max(tokens, T), max(sequences, used), self.width([chunk.sequence for chunk in chunks]))
        index_of = {chunk.sequence: index for index, chunk in zip(indices.tolist(), chunks, strict=True)}
        index_of |= {sequence: B + index for index, (_, sequence) in enumerate(forks)}
        batch = Batch(layout, np.zeros(layout.size, np.int32), len(single) + empty,
                      int(lengths[len(single) :].max(initial=0)), list(step.copies),
                      [(index_of[sequence], sequence) for sequence in step.samples], fresh, [])

        seats = np.array([chunk.sequence.seat for chunk in chunks], np.int32)
        starts = np.cumsum(lengths) - lengths
        batch.scored = [(start, chunk) for start, chunk in zip(starts.tolist(), chunks, strict=True) if chunk.scored]
        batch.ids[:T] = [token for chunk in chunks for token in _ids(chunk)]
        positions, rows = batch.positions[:T], np.repeat(seats, lengths)
        positions[:] = np.arange(T) - np.repeat(starts - begins, lengths)
        batch.slots[:] = -1
        batch.slots[:T] = (self._tables[rows, positions // self.page_size] * self.page_size
                           + positions % self.page_size)
        batch.begins[indices], batch.lengths[indices], batch.contexts[indices] = starts, lengths, begins + lengths
        batch.last[indices] = starts + lengths - 1
        batch.page_table[indices] = self._tables[seats, : layout.max_pages]

        batch.seats[:] = self.max_num_seqs
        batch.seats[[index for index, _ in batch.samples]] = [sequence.seat for _, sequence in batch.samples]
        batch.counted[:] = batch.biased[:] = -1
        for index, sequence in batch.samples:
            if sequence.request.params.penalized:
                batch.counted[index] = sequence.seat
            if sequence.request.biased:
                batch.biased[index] = sequence.seat
        batch.steps[:B] = batch.contexts[:B]
        origins = [index for index, _ in forks]
        batch.begins[B:used] = T
        batch.last[B:used], batch.steps[B:used] = batch.last[origins], batch.steps[origins]
        for values, name in zip(self._params[:, batch.seats], SEAT_FIELDS, strict=True):
            getattr(batch, name).view(np.int32)[:] = values
        batch.seeds[:] = self._seeds[batch.seats]
        return batch

    def width(self, sequences: Iterable[Sequence]) -> int:
        """Of a page table that holds these: one of few sizes, each four times the one before, since a graph is captured
        for each; so short sequences do not pay for copying entries that only the longest one may need."""
        needed, size = max((len(sequence.pages) for sequence in sequences), default=1), NARROWEST
        while size < needed:
            size *= 4
        return min(size, self.max_pages)

    def _set_up(self, sequence: Sequence) -> bool:
        """Write the sequence's page table and parameters at its seat; False if they are there already."""
        seat, params = sequence.seat, sequence.request.params
        if self._admitted[seat] == sequence.admission:
            return False
        self._admitted[seat] = sequence.admission
        temperature = 0.0 if params.greedy else params.temperature
        floats = np.array([temperature, *(getattr(params, name) for name in FLOATS[1:])], np.float32)
        num_logprobs = -1 if params.logprobs is None else params.logprobs
        self._params[:, seat] = [max(params.top_k, 0), num_logprobs, *floats.view(np.int32)]
        self._seeds[seat] = sequence.seed % 2**32, sequence.seed >> 32
        self._update_table(sequence, 0)
        return True

    def _update_table(self, sequence: Sequence, start: int) -> None:
        """Copy the sequence's pages from index `start` on: only those that a step writes into are new."""
        pages = sequence.pages
        if start < len(pages):
            self._tables[sequence.seat, start : len(pages)] = pages[start:]


def _ids(chunk: Chunk) -> list[int]:
    known = chunk.sequence.tokens[chunk.begin : chunk.begin + chunk.length]
    return known if len(known) == chunk.length else [*known, -1 - chunk.sequence.seat]
