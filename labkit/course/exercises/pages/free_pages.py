"""From a blank page: who holds which page

Write the bookkeeping of a block manager. There are `pages` pages of 16 tokens, all free at first, and `events` (n, 3)
is an array of integers with one event per row:

- `0, s, count`: sequence s grows by `count` tokens, 0 or more. If it does not exist yet, it starts here.
- `1, s, child`: `child`, which does not exist yet, becomes a copy of sequence s. Both hold the same pages.
- `2, s, 0`: sequence s ends. A page is free again once nobody holds it.

A page with several holders must not be written. So before a sequence grows into a shared last page that is not full, it
swaps that page for a new one. An event that needs more pages than are free changes nothing, and a sequence that would
have started with it does not exist. (Events 1 and 2 name existing sequences only.)

With 4 pages:

```
0, 0, 20    sequence 0 has 20 tokens in 2 pages                         2 free
1, 0, 1     sequence 1 is a copy and holds the same 2 pages             2 free
0, 1, 5     1 grows into the shared last page: it swaps it for a new    1 free
0, 1, 30    55 tokens need 4 pages, two more than it has: refused       1 free
2, 0, 0     0 ends: its first page is still held by 1                   2 free
```

So `free_pages` returns `[2, 2, 1, 1, 2]`: the number of free pages after each event, an array of n integers.

Write `free_pages(events, pages)`, a host function.
"""

HINTS = ("What do you have to know about each page, and about each sequence, to say which pages become free when a "
         "sequence ends?",
         "A list of the free pages, a count of holders per page, and for each sequence its number of tokens and its "
         "list of pages. Before a sequence grows, count what it needs: new pages, and one more if its last page is not "
         "full and has several holders. Change something only if that many are free.",
         "shared = count > 0 and tokens[s] % 16 > 0 and holders[held[s][-1]] > 1; new = -(-(tokens[s] + count) // 16) "
         "- len(held[s]); if new + shared <= len(free), the shared page loses a holder and leaves the list, and new + "
         "shared pages come from free.")
POINTS = 2
NEEDS = ("predict_pages",)

import numpy as np

# %%
free_pages = None  # write the function


### BEGIN SOLUTION
def free_pages(events, pages):
    free, holders = list(range(pages)), [0] * pages
    tokens, held = {}, {}
    counts = []
    for kind, s, number in events.tolist():
        if kind == 0:
            before, mine = tokens.get(s, 0), list(held.get(s, []))
            shared = number > 0 and before % 16 > 0 and holders[mine[-1]] > 1
            new = -(-(before + number) // 16) - len(mine)
            if new + shared <= len(free):
                if shared:
                    holders[mine.pop()] -= 1
                    new += 1
                for _ in range(new):
                    mine.append(free.pop())
                    holders[mine[-1]] = 1
                tokens[s], held[s] = before + number, mine
        elif kind == 1:
            tokens[number], held[number] = tokens[s], list(held[s])
            for page in held[s]:
                holders[page] += 1
        else:
            for page in held.pop(s):
                holders[page] -= 1
                if holders[page] == 0:
                    free.append(page)
            del tokens[s]
        counts.append(len(free))
    return np.array(counts)


### END SOLUTION

# %% [check]
from types import SimpleNamespace

from labkit.course.exercises import Edit, FunctionExercise, Reach
from labkit.engine.block_manager import BlockManager


def _free_pages(events, pages):
    """By the engine's own block manager."""
    blocks, living, counts = BlockManager(pages, prefix_caching=False), {}, []
    for event in events.tolist():
        _serve(blocks, living, *event)
        counts.append(blocks.num_free)
    return np.array(counts)


def _serve(blocks, living, kind, s, number) -> None:
    if kind == 0:
        sequence = living.get(s) or _new_sequence()
        if number == 0 or blocks.missing(sequence, number) <= blocks.num_free:
            if number:
                blocks.grow(sequence, number)
            sequence.computed += number
            living[s] = sequence
    elif kind == 1:
        living[number] = _new_sequence()
        blocks.fork(living[s], living[number])
    else:
        blocks.release(living.pop(s))


def _new_sequence() -> SimpleNamespace:
    """What a block manager needs to know of one."""
    return SimpleNamespace(pages=[], computed=0, digests=[], registered=0)


def _random_events(rng, n, most, pages):
    """Events that may come, found by serving them. most: tokens of one growth."""
    blocks, living, rows, names = BlockManager(pages, prefix_caching=False), {}, [], 0
    while len(rows) < n:
        kind = int(rng.choice(3, p=(0.55, 0.25, 0.2))) if living else 0
        s = int(rng.choice(list(living))) if living else 0
        number = int(rng.integers(0, most + 1)) if kind == 0 else 0
        if kind == 0 and (not living or rng.random() < 0.35):
            s, names = names, names + 1
        if kind == 1:
            number, names = names, names + 1
        _serve(blocks, living, kind, s, number)
        rows.append((kind, s, number))
    return np.array(rows)


def _event_inputs(rng, n, most, pages):
    return _random_events(rng, n, most, pages), pages


def _events_are(words, *rows, pages=8):
    return Reach(words, lambda rng, *inputs: (np.array(rows), pages), {"n": len(rows), "most": 20, "pages": 8})


EXERCISE = FunctionExercise(
    name="free_pages",
    reference=_free_pages,
    inputs=_event_inputs,
    sizes=tuple({"n": n, "most": most, "pages": pages} for n, most, pages in (
        (1, 20, 3), (4, 20, 8), (12, 20, 8), (60, 40, 12), (60, 7, 9))),
    random_size=lambda rng: {"n": int(rng.integers(60, 120)), "most": int(rng.integers(5, 60)),
                             "pages": int(rng.integers(6, 20))},
    domain=(
        _events_are("the pages run out, and are given back", (0, 0, 100), (0, 1, 30), (0, 0, 28), (0, 0, 1), (2, 0, 0),
                    (0, 1, 128), (0, 1, 129)),
        _events_are("a sequence grows into the last free page",
                    (0, 0, 112), (0, 1, 16), (0, 0, 1), (2, 1, 0), (0, 0, 1)),
        _events_are("the last page of a fork is full", (0, 0, 32), (1, 0, 1), (0, 1, 1), (0, 0, 1), (2, 0, 0),
                    (2, 1, 0)),
        _events_are("the last page of a fork is not full", (0, 0, 20), (1, 0, 1), (0, 1, 1), (0, 0, 30), (0, 1, 40),
                    (2, 0, 0), (2, 1, 0)),
        _events_are("three sequences share a page", (0, 0, 20), (1, 0, 1), (1, 1, 2), (0, 2, 3), (0, 0, 3), (0, 1, 3),
                    (2, 1, 0), (2, 0, 0), (2, 2, 0)),
        _events_are("the sequence that was forked ends first", (0, 0, 20), (1, 0, 1), (2, 0, 0), (0, 1, 12), (0, 1, 1),
                    (2, 1, 0)),
        _events_are("a shared page cannot be replaced: none is free", (0, 0, 120), (1, 0, 1), (0, 1, 1), (0, 0, 8),
                    (2, 1, 0), (0, 0, 8)),
        _events_are("a sequence grows by no tokens", (0, 0, 0), (0, 1, 20), (1, 1, 2), (0, 2, 0), (0, 0, 5), (1, 0, 3),
                    (0, 1, 0), (2, 1, 0), (2, 2, 0)),
        _events_are("a sequence without tokens is forked", (0, 0, 0), (1, 0, 1), (0, 1, 17), (2, 0, 0), (2, 1, 0)),
        _events_are("a sequence starts again under its old name", (0, 3, 40), (2, 3, 0), (0, 3, 10), (0, 3, 6),
                    (0, 3, 1)),
    ),
    wrong={
        "a sequence that ends frees its pages, even if others hold them": Edit("if holders[page] == 0:", "if True:"),
        "a fork does not count as a holder": Edit("for page in held[s]:\n    holders[page] += 1",
                                                  "for page in []:\n    holders[page] += 1"),
        "a shared page is written: it is never replaced": Edit(
            "shared = number > 0 and before % 16 > 0 and holders[mine[-1]] > 1", "shared = False"),
        "a shared page is replaced even if it is full": Edit("before % 16 > 0", "before > 0"),
        "the old page's count still includes the holder that gave it up":
            Edit("holders[mine.pop()] -= 1", "mine.pop()"),
        "growing by 0 tokens replaces a shared page with a new one": Edit("number > 0 and before", "before"),
        "pages are rounded down": Edit("-(-(before + number) // 16) - len(mine)",
                                       "max(0, (before + number) // 16 - len(mine))"),
        "a full page is followed by an empty one too soon": Edit("-(-(before + number) // 16) - len(mine)",
                                                                 "(before + number) // 16 + 1 - len(mine)"),
        "the page that replaces a shared one is not counted among those needed": Edit(
            "new + shared <= len(free)", "new <= len(free)"),
        "the last free page is never given away": Edit("new + shared <= len(free)", "new + shared < len(free)"),
    },
)
