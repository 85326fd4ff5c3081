"""A step as flat arrays in one block of memory, so that one copy brings it to the device.

    builder = BatchBuilder(max_num_seqs=64, max_pages=128)
    batch = builder.build(step)
    batch.buffer                        # int32, everything below lies in it
    batch.ids, batch.positions, batch.slots, ...

What a seat needs in every step, its page table and how its tokens are drawn, is kept here from step to step; a step
brings only what is new. `ids` below 0 are tokens that the host does not know yet: -1 - seat, the token that the seat's
sequence sampled last, which lies on the device.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from labkit.engine.block_manager import PAGE
from labkit.engine.scheduler import Step
from labkit.engine.sequence import Sequence

ALIGN = 4  # numbers: each array begins at a multiple of 16 bytes
# One number for each token of the step (T, the rows of the model's matrices), for each of its sequences (B), and for
# each token that is drawn (S). The page table, (B, max_pages), follows them.
TOKEN_FIELDS = ("ids", "positions", "slots")
SEQUENCE_FIELDS = ("begins", "lengths", "contexts")
SAMPLE_FIELDS = ("rows", "seats", "draws")
# Of a sample too, but the same as long as its sequence keeps its seat.
SEAT_FIELDS = ("seeds_low", "seeds_high", "top_k", "temperature", "top_p", "min_p", "presence_penalty",
               "frequency_penalty", "repetition_penalty")
FLOATS = SEAT_FIELDS[3:]


@dataclass(frozen=True)
class Layout:
    """Where each array of a batch begins, for so many tokens, sequences and samples."""

    tokens: int
    sequences: int
    samples: int
    max_pages: int

    @functools.cached_property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Of each array beginning and end, in numbers of four bytes."""
        found, at = {}, 0
        for names, count in ((TOKEN_FIELDS, self.tokens), (SEQUENCE_FIELDS, self.sequences),
                             (SAMPLE_FIELDS + SEAT_FIELDS, self.samples)):
            for name in names:
                found[name] = at, at + count
                at += -(-count // ALIGN) * ALIGN
        found["page_table"] = at, at + self.sequences * self.max_pages
        return found

    @property
    def size(self) -> int:
        return self.parts["page_table"][1]

    def views(self, buffer) -> dict:
        """The arrays in an int32 array of `size` numbers, NumPy's or the device's."""
        floats = buffer.view(np.float32)
        views = {name: (floats if name in FLOATS else buffer)[begin:end]
                 for name, (begin, end) in self.parts.items()}
        return views | {"page_table": views["page_table"].reshape(self.sequences, self.max_pages)}


@dataclass
class Batch:
    """positions, slots (T,): of each token; slot = page * page_size + its place in the page; -1: a row of padding.
    begins, lengths, contexts (B,): a sequence's first row, how many it has, and how many tokens up to its last one.
    rows, seats, draws (S,): the row whose logits a token is drawn from, the seat where it is put, and its position in
    its sequence, the generator's counter; seeds_low, seeds_high: the two parts of the generator's seed, unsigned.
    A padded sequence has length 0, a padded sample the seat max_num_seqs, which no sequence has."""

    layout: Layout
    buffer: np.ndarray
    copies: list[tuple[int, int]]  # pages, as in Step
    longest: int  # of lengths
    samples: list[Sequence]
    logprobs: int | None  # how many the samples ask for at most
    banned: list[tuple[int, ...]]  # of each sample: the tokens that must not be drawn
    fresh: list[Sequence] = field(default_factory=list)  # those that are new at their seats

    def __post_init__(self):
        for name, view in self.layout.views(self.buffer).items():
            setattr(self, name, view)


class BatchBuilder:
    """max_pages: of one sequence."""

    def __init__(self, max_num_seqs: int, max_pages: int, page_size: int = PAGE):
        self.max_num_seqs, self.max_pages, self.page_size = max_num_seqs, max_pages, page_size
        self._tables = np.zeros((max_num_seqs, max_pages), np.int32)
        self._admitted = [0] * max_num_seqs  # the admission of the sequence that each seat is set up for
        self._params = np.zeros((len(SEAT_FIELDS), max_num_seqs + 1), np.int32)  # the last column is for padding

    def build(self, step: Step, tokens: int = 0, sequences: int = 0, samples: int = 0) -> Batch:
        """tokens, sequences, samples: how many there are with padding, as a captured graph wants them; as many as there
        are if these are more. Reads the sequences as they are between `schedule` and the next change."""
        chunks, drawn = step.chunks, step.samples
        fresh = [sequence for sequence in drawn if self._set_up(sequence)]
        fresh += [chunk.sequence for chunk in chunks if self._set_up(chunk.sequence)]
        begins = np.array([chunk.begin for chunk in chunks], np.int32)
        lengths = np.array([chunk.length for chunk in chunks], np.int32)
        count = int(lengths.sum())
        layout = Layout(max(tokens, count), max(sequences, len(chunks)), max(samples, len(drawn)), self.max_pages)
        banned = [each.banned(chunk.begin + chunk.length) for chunk in chunks for each in chunk.samples]
        wanted = [each.request.params.logprobs for each in drawn if each.request.params.logprobs is not None]
        batch = Batch(layout, np.zeros(layout.size, np.int32), list(step.copies), int(lengths.max(initial=0)), drawn,
                      max(wanted, default=None), banned, fresh)

        for chunk in chunks:
            self._update_table(chunk.sequence, chunk.begin // self.page_size)
        seats = np.array([chunk.sequence.seat for chunk in chunks], np.int32)
        batch.ids[:count] = [token for chunk in chunks for token in _ids(chunk)]
        firsts = np.cumsum(lengths) - lengths
        batch.positions[:count] = np.arange(count) - np.repeat(firsts - begins, lengths)
        positions, row_seats = batch.positions[:count], np.repeat(seats, lengths)
        pages = self._tables[row_seats, positions // self.page_size]
        batch.slots[:] = -1
        batch.slots[:count] = pages * self.page_size + positions % self.page_size
        used = len(chunks)
        batch.begins[:used], batch.lengths[:used], batch.contexts[:used] = firsts, lengths, begins + lengths
        batch.page_table[:used] = self._tables[seats]

        batch.seats[:] = self.max_num_seqs
        batch.seats[: len(drawn)] = [sequence.seat for sequence in drawn]
        times = [len(chunk.samples) for chunk in chunks]
        batch.rows[: len(drawn)] = np.repeat(firsts + lengths - 1, times)
        batch.draws[: len(drawn)] = np.repeat(begins + lengths, times)
        for values, name in zip(self._params[:, batch.seats], SEAT_FIELDS, strict=True):
            getattr(batch, name).view(np.int32)[:] = values
        return batch

    def _set_up(self, sequence: Sequence) -> bool:
        """What belongs to the sequence at its seat; False if it is there already."""
        seat, params = sequence.seat, sequence.request.params
        if self._admitted[seat] == sequence.admission:
            return False
        self._admitted[seat] = sequence.admission
        whole = np.array([sequence.seed % 2**32, sequence.seed >> 32, max(params.top_k, 0)], np.uint32)
        temperature = 0.0 if params.greedy else params.temperature
        floats = np.array([temperature, *(getattr(params, name) for name in FLOATS[1:])], np.float32)
        self._params[:, seat] = np.concatenate([whole.view(np.int32), floats.view(np.int32)])
        self._update_table(sequence, 0)
        return True

    def _update_table(self, sequence: Sequence, first: int) -> None:
        """The sequence's pages from number `first`: only what a step writes into is new."""
        pages = sequence.pages
        if first < len(pages):
            self._tables[sequence.seat, first : len(pages)] = pages[first:]


def _ids(chunk) -> list[int]:
    known = chunk.sequence.tokens[chunk.begin : chunk.begin + chunk.length]
    return known if len(known) == chunk.length else [*known, -1 - chunk.sequence.seat]
