"""The exercises of lesson 33: a prediction about pages, keys written to their slots, and the holders of pages.

Sizes are T rows of K heads with D numbers each; n events, with growths of at most so many tokens.
"""

from types import SimpleNamespace

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks
from labkit.course.exercises.domains import MOVED, of
from labkit.engine.block_manager import BlockManager
from labkit.kernels.attention.pages import PAGE, pages_for
from labkit.kernels.op import uniform

UNTOUCHED = -7.0  # what nothing is written to

# --- Predict: pages and slots -----------------------------------------------------------------------------------------


def _pages_predicted() -> dict:
    lengths, token = (1000, 17, 512, 3), 2 * 16 * 8 * 64 * 2
    used = sum(map(pages_for, lengths))
    return {"pages_used": used, "empty_bytes": (used * PAGE - sum(lengths)) * token, "slot": 7 * PAGE + 5,
            "held_by_two": pages_for(50) + pages_for(70) - 40 // PAGE}


PREDICT_PAGES = PredictionExercise(
    name="predict_pages",
    truth=_pages_predicted,
    how={"pages_used": "1,000 tokens fill 62 pages and a half, so they take 63. The others take 2, 32 and 1.",
         "empty_bytes": "8, 15, 0 and 13 places are empty. A token has keys and values, 8 heads of 64 numbers of 2 "
                        "bytes each, in 16 layers: 32,768 bytes.",
         "slot": "Token 37 is token 5 of the third page, which is page 7: 7 times 16 and 5.",
         "held_by_two": "50 tokens take 4 pages and 70 take 5. The first 32 of the 40 equal tokens fill two pages, "
                        "which are shared; the third page of each also has tokens of its own."},
    wrong={"pages are rounded down": {"pages_used": 95},
           "a full last page is followed by an empty one": {"pages_used": 99, "empty_bytes": 1_703_936},
           "a token has keys or values, not both": {"empty_bytes": 589_824},
           "one layer in place of 16": {"empty_bytes": 73_728},
           "the slot without the table: token 37 is in slot 37": {"slot": 37},
           "the pages of the table are counted from 1": {"slot": 197},
           "no page is shared": {"held_by_two": 9},
           "a page that is equal in part is shared, too": {"held_by_two": 6}},
)

# --- Keys to their slots ----------------------------------------------------------------------------------------------


def _cache_of(rows) -> np.ndarray:
    """What the cache holds before: nothing that a row could hold."""
    tokens, heads, size = rows.shape
    return np.full((_cache_pages(tokens), heads, PAGE, size), UNTOUCHED, np.float32)


def _cache_pages(tokens: int) -> int:
    return pages_for(tokens) + 2


def _stored(rows, slots):
    out = _cache_of(rows)
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0:
            out[slot // PAGE, :, slot % PAGE] = row
    return out


def _slot_inputs(rng, T, K, D):
    slots = rng.permutation(_cache_pages(T) * PAGE)[:T].astype(np.int32)
    slots[rng.random(T) < 0.2] = -1
    return uniform(rng, T, K, D), slots


def _slots_with(words, choose):
    """choose(rng, T, how many slots there are) -> slots."""
    def turn(rng, rows, slots):
        return rows, choose(rng, len(slots), _cache_pages(len(slots)) * PAGE).astype(np.int32)

    return Reach(words, turn, {"T": 6, "K": 2, "D": 8})


STORED = {"T": 4, "K": 2, "D": 64}


@asks("Neighbouring lanes load and store neighbouring numbers.")
def _whole_sectors(report) -> str | None:
    T, K, D = STORED.values()
    least = 2 * T * K * D * 4 // 32  # of rows and of the cache
    if report.counts["sectors"] <= 1.5 * least:
        return None
    return (f"Your requests touch {report.counts['sectors']:,} sectors of 32 bytes; about {least:,} are enough. In "
            f"each request of a warp, let lane 0 have number 0 of a head, lane 1 number 1 and so on.")


@cuda.jit
def store_slots_strided(rows, slots, out):
    t, lane = cuda.blockIdx.x, cuda.threadIdx.x
    slot = slots[t]
    if slot >= 0:
        each = (rows.shape[2] + 31) // 32
        for head in range(rows.shape[1]):
            for i in range(lane * each, min((lane + 1) * each, rows.shape[2])):
                out[slot // 16, head, slot % 16, i] = rows[t, head, i]


STORE_SLOTS = KernelExercise(
    name="store_slots",
    reference=_stored,
    inputs=_slot_inputs,
    shape=lambda T, K, D: (_cache_pages(T), K, PAGE, D),
    start=lambda rows, slots: _cache_of(rows),
    sizes=tuple({"T": T, "K": K, "D": D} for T, K, D in ((1, 1, 1), (3, 2, 5), (6, 2, 8), (4, 2, 64), (20, 3, 40))),
    launch=lambda T, K, D: (T, 32),
    observe_sizes=(STORED,),
    demand=_whole_sectors,
    domain=(_slots_with("all rows are padding", lambda rng, T, count: np.full(T, -1)),
            _slots_with("no row is padding", lambda rng, T, count: rng.permutation(count)[:T]),
            _slots_with("the rows go to slots in a row", lambda rng, T, count: np.arange(T)),
            _slots_with("the first slot and the last one are used",
                        lambda rng, T, count: np.where(np.arange(T) % 2, count - 1 - np.arange(T), np.arange(T))),
            _slots_with("the slots fall while the tokens rise", lambda rng, T, count: count - 1 - np.arange(T)),
            _slots_with("all rows but the last are padding",
                        lambda rng, T, count: np.where(np.arange(T) == T - 1, 17, -1)),
            *of(0, MOVED)),
    wrong={
        "a row of padding is written, before the cache's beginning": Edit("if slot >= 0:", "if True:"),
        "slot 0 is taken for padding": Edit("if slot >= 0:", "if slot > 0:"),
        "page and place are exchanged": Edit("slot // 16, slot % 16", "slot % 16, slot // 16"),
        "rows go to the slot of their number": Edit("slot = slots[t]", "slot = t if slots[t] >= 0 else -1"),
        "the slot is taken for the page, with the place 0": Edit("slot // 16, slot % 16", "slot, 0"),
        "only the first 32 numbers of a head": Edit("range(cuda.threadIdx.x, rows.shape[2], 32)",
                                                    "range(cuda.threadIdx.x, min(32, rows.shape[2]), 32)"),
        "all heads get the first one's keys": Edit("rows[t, head, i]", "rows[t, 0, i]"),
        "only the first head": Edit("range(rows.shape[1])", "range(1)"),
        "a lane has several neighbouring numbers: the lanes of a request lie apart": store_slots_strided,
    },
)

# --- Who holds which page ---------------------------------------------------------------------------------------------


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


FREE_PAGES = FunctionExercise(
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
        _events_are("a growth takes the last free page", (0, 0, 112), (0, 1, 16), (0, 0, 1), (2, 1, 0), (0, 0, 1)),
        _events_are("the last page of a fork is full", (0, 0, 32), (1, 0, 1), (0, 1, 1), (0, 0, 1), (2, 0, 0),
                    (2, 1, 0)),
        _events_are("the last page of a fork has free places", (0, 0, 20), (1, 0, 1), (0, 1, 1), (0, 0, 30), (0, 1, 40),
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
        _events_are("a sequence begins again under its old name", (0, 3, 40), (2, 3, 0), (0, 3, 10), (0, 3, 6),
                    (0, 3, 1)),
    ),
    wrong={
        "an ending sequence frees its pages, whoever holds them as well": Edit("if holders[page] == 0:", "if True:"),
        "a fork does not count as a holder": Edit("for page in held[s]:\n    holders[page] += 1",
                                                  "for page in []:\n    holders[page] += 1"),
        "a shared page is written: it is never replaced": Edit(
            "shared = number > 0 and before % 16 > 0 and holders[mine[-1]] > 1", "shared = False"),
        "a shared page is replaced even if it is full": Edit("before % 16 > 0", "before > 0"),
        "the old page keeps a holder that gave it up": Edit("holders[mine.pop()] -= 1", "mine.pop()"),
        "a growth by no tokens takes a new page in place of a shared one": Edit("number > 0 and before", "before"),
        "pages are rounded down": Edit("-(-(before + number) // 16) - len(mine)",
                                       "max(0, (before + number) // 16 - len(mine))"),
        "a full page is followed by an empty one": Edit("-(-(before + number) // 16) - len(mine)",
                                                        "(before + number) // 16 + 1 - len(mine)"),
        "the page in place of a shared one is not counted when there are too few": Edit(
            "new + shared <= len(free)", "new <= len(free)"),
        "the last free page is never given away": Edit("new + shared <= len(free)", "new + shared < len(free)"),
    },
)

EXERCISES = (PREDICT_PAGES, STORE_SLOTS, FREE_PAGES)
