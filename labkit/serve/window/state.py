"""What the window shows of the engine between two steps: small, and cheap to take, however many pages there are.

    changes, picture = Changes(), Picture()
    change = changes.since(engine)     # in the engine's thread, between two steps
    event = picture.apply(change)      # in any other: a dictionary for JSON, the changes
    event = picture.whole()            # the same for a new viewer: the whole state

A page of the KV cache is looked at when a sequence has taken it and when it has given it back, and a few thousand
others each time, in turn, for what only the prefix cache knows. A sequence's full pages never change, so of a table
that was seen before only what lies behind them is read again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from labkit.engine.llm_engine import LLMEngine
from labkit.engine.sequence import Sequence

IN_TURN = 2_048  # pages of which it is looked up each time whether the prefix cache knows them
AT_MOST = 16_384  # pages of tables that are read at a time; the rest is read the next time
LISTED = 48  # of those that wait


@dataclass
class Change:
    """state: all that is sent each time. tables: (admission, number of the first of these pages, pages) of the
    sequences that run, where there is something new. cached: (first page, a byte for each page from there on: 1 if a
    prompt may find it)."""

    state: dict
    tables: list[tuple[int, int, array]] = field(default_factory=list)
    cached: list[tuple[int, bytes]] = field(default_factory=list)
    looked_at: int = 0  # pages


class Changes:
    """The engine's state as last reported, kept in its thread."""

    def __init__(self):
        self._tables: dict[int, tuple[array, int]] = {}  # admission -> its pages, and how many of them were full
        self._next_page = 0

    def since(self, engine: LLMEngine) -> Change:
        scheduler, blocks = engine.scheduler, engine.blocks
        running, waiting = scheduler.running, scheduler.waiting
        change = Change({
            "pages": blocks.num_pages, "page_size": blocks.page_size, "free": blocks.num_free,
            "cached": blocks.num_cached, "max_num_seqs": scheduler.max_num_seqs,
            "budget": scheduler.max_num_batched_tokens, "seats": [_running_entry(each) for each in running],
            "waiting": [_waiting_entry(each) for each in waiting[:LISTED]], "waiting_count": len(waiting)})
        alive = {sequence.admission for sequence in running}
        for admission in self._tables.keys() - alive:
            pages, _ = self._tables.pop(admission)
            self._look_up(pages[: max(0, AT_MOST - change.looked_at)], blocks, change)
        for sequence in running:
            self._read(sequence, blocks.page_size, change)
        start = self._next_page if self._next_page < blocks.num_pages else 0
        self._next_page = min(start + IN_TURN, blocks.num_pages)
        change.cached.append((start, bytes(map(blocks.is_cached, range(start, self._next_page)))))
        change.looked_at += self._next_page - start
        return change

    def _read(self, sequence: Sequence, page_size: int, change: Change) -> None:
        pages, full = self._tables.get(sequence.admission) or (array("i"), 0)
        end = min(len(sequence.pages), full + max(0, AT_MOST - change.looked_at))
        new = array("i", sequence.pages[full:end])
        change.looked_at += len(new)
        if new != pages[full:]:
            change.tables.append((sequence.admission, full, new))
        # A page that is not full may still be exchanged for a copy.
        pages[full:] = new
        self._tables[sequence.admission] = pages, min(sequence.computed // page_size, end)

    def _look_up(self, pages: Iterable[int], blocks, change: Change) -> None:
        for page in pages:
            change.cached.append((page, bytes((blocks.is_cached(page),))))
            change.looked_at += 1


def _running_entry(sequence: Sequence) -> dict:
    request = sequence.request
    return {"seat": sequence.seat, "admission": sequence.admission, "id": request.request_id, "index": sequence.index,
            "prompt": len(request.prompt), "computed": sequence.computed, "output": sequence.output_length,
            "most": request.max_length - len(request.prompt), "found": request.num_cached_tokens or 0}


def _waiting_entry(sequence: Sequence) -> dict:
    """again: it ran before, and gave its pages back."""
    request = sequence.request
    return {"id": request.request_id, "index": sequence.index, "prompt": len(request.prompt),
            "output": sequence.output_length, "again": sequence.admission > 0}


class Picture:
    """All changes combined: the first event of a viewer who connects later."""

    def __init__(self):
        self.tables: dict[int, list[int]] = {}  # admission -> pages
        self.cached = bytearray()
        self._state: dict = {}

    def apply(self, change: Change) -> dict:
        self._state = change.state
        alive = {seat["admission"] for seat in change.state["seats"]}
        self.tables = {admission: pages for admission, pages in self.tables.items() if admission in alive}
        for admission, start, pages in change.tables:
            self.tables[admission] = self.tables.get(admission, [])[:start] + pages.tolist()
        if len(self.cached) != change.state["pages"]:
            self.cached = bytearray(change.state["pages"])
        marks: tuple[set[int], set[int]] = set(), set()
        for start, known in change.cached:
            if self.cached[start : start + len(known)] != known:
                for page, is_cached in enumerate(known, start):
                    if self.cached[page] != is_cached:
                        self.cached[page] = is_cached
                        marks[is_cached].add(page)
        return self._state | {"lost": runs(sorted(marks[0])), "kept": runs(sorted(marks[1])), "tables": [
            (admission, start, runs(pages)) for admission, start, pages in change.tables]}

    def whole(self) -> dict:
        """lost, kept: pages that the prefix cache no longer knows, and those that it knows now."""
        return self._state | {"lost": [0, len(self.cached)], "tables": [
            (admission, 0, runs(pages)) for admission, pages in self.tables.items()],
            "kept": runs(page for page, is_cached in enumerate(self.cached) if is_cached)}


def runs(pages: Iterable[int]) -> list[int]:
    """Run-length encode pages as start, count, start, count: 5, 6, 7, 2 becomes 5, 3, 2, 1."""
    result: list[int] = []
    expected = None
    for page in pages:
        if page == expected:
            result[-1] += 1
        else:
            result += (page, 1)
        expected = page + 1
    return result
