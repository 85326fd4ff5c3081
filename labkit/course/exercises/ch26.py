"""The exercises of lesson 26: a prediction about pages, keys written to their slots, the holders of pages, attention
over pages with a warp for each head, parts of a softmax joined, and attention split over blocks.

Sizes are B sequences of at most S tokens, T rows, H query heads and KV heads of keys and values, with D numbers each.
"""

import math
from types import SimpleNamespace

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import shuffles
from labkit.course.exercises.domains import MOVED, of
from labkit.engine.block_manager import BlockManager
from labkit.kernels.attention.paged import paged_decode_reference, tolerance_decode
from labkit.kernels.attention.pages import PAGE, gather, paged_inputs, pages_for
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32

UNTOUCHED = -7.0  # what nothing is written to

# --- Predict: pages, slots, parts -------------------------------------------------------------------------------------


def _pages_predicted() -> dict:
    lengths, token = (1000, 17, 512, 3), 2 * 16 * 8 * 64 * 2
    used = sum(map(pages_for, lengths))
    return {"pages_used": used, "empty_bytes": (used * PAGE - sum(lengths)) * token, "slot": 7 * PAGE + 5,
            "parts_of_1000": _parts(1000), "parts_of_2600": _parts(2600)}


def _parts(tokens: int) -> int:
    """As find_parts of labkit.kernels.attention.paged_split counts them; tests compare the two."""
    pages = pages_for(tokens)
    share = max(8, 4 * math.ceil(math.ceil(pages / 16) / 4))
    return math.ceil(pages / share)


PREDICT_PAGES = PredictionExercise(
    name="predict_pages",
    truth=_pages_predicted,
    how={"pages_used": "1,000 tokens fill 62 pages and a half, so they take 63. The others take 2, 32 and 1.",
         "empty_bytes": "8, 15, 0 and 13 places are empty. A token has keys and values, 8 heads of 64 numbers of 2 "
                        "bytes each, in 16 layers: 32,768 bytes.",
         "slot": "Token 37 is token 5 of the third page, which is page 7: 7 times 16 and 5.",
         "parts_of_1000": "63 pages: a 16th of them is 4, rounded up, but a part has at least 8. So 7 parts have 8 "
                          "pages, and one has 7.",
         "parts_of_2600": "163 pages: a 16th of them is 11, rounded up, and the next multiple of 4 is 12. So 13 parts "
                          "have 12 pages, and one has 7."},
    wrong={"pages are rounded down": {"pages_used": 95},
           "a full last page is followed by an empty one": {"pages_used": 99, "empty_bytes": 1_703_936},
           "a token has keys or values, not both": {"empty_bytes": 589_824},
           "one layer in place of 16": {"empty_bytes": 73_728},
           "the slot without the table: token 37 is in slot 37": {"slot": 37},
           "the pages of the table are counted from 1": {"slot": 197},
           "always 16 parts": {"parts_of_1000": 16, "parts_of_2600": 16},
           "the share is not rounded to a multiple of 4": {"parts_of_2600": 15}},
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

# --- Attention over pages ---------------------------------------------------------------------------------------------


def _lengths(rng, B, S):
    """One of them is S; the others may be 0."""
    lengths = rng.integers(0, S + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = S
    return lengths


def _attention_inputs(rng, B, S, H, KV, D):
    return _with_pages(rng, uniform(rng, B, H, D), _lengths(rng, B, S), KV, pages_for(S) + 1)


def _with_pages(rng, q, lengths, kv_heads, width):
    """Inputs for sequences of these lengths, of which none fills a row of `width` pages, with as many pages as they may
    need at most. NaN and numbers of no page stand wherever nothing may be read."""
    *used, narrow = paged_inputs(rng, lengths, kv_heads, q.shape[2], np.float32)
    pages = len(lengths) * (width - 1) + 1
    moved = rng.permutation(pages)[: len(used[0])]  # page p is now moved[p]
    caches = [np.full((pages, *each.shape[1:]), np.nan, np.float32) for each in used]
    for cache, each in zip(caches, used, strict=True):
        cache[moved] = each
    table = rng.choice(np.array([-1, -(2**31), 2**31 - 1], np.int32), (len(lengths), width))
    for row, old, tokens in zip(table, narrow, lengths, strict=True):
        row[: pages_for(tokens)] = moved[old[: pages_for(tokens)]]
    return 2 * q, *caches, table, lengths, np.float32(1 / math.sqrt(q.shape[2]))


def _with_lengths(words, choose):
    """choose(lengths, how many tokens a sequence may have at most) -> other lengths."""
    def turn(rng, q, keys, values, table, lengths, scale, *rest):
        most = (table.shape[1] - 1) * PAGE
        new = np.asarray(choose(lengths, most), np.int32)
        return *_with_pages(rng, uniform(rng, *q.shape), new, keys.shape[1], table.shape[1]), *rest

    return Reach(words, turn)


def _scaled(words, queries=1.0, keys=1.0, values=1.0, shift=0.0):
    """Each of the three multiplied; shift: queries at least so far below 0, and keys as far above."""
    def turn(rng, q, k, v, table, lengths, scale, *rest):
        if shift:
            q, k = -np.abs(q) - np.float32(shift), np.abs(k) + np.float32(shift)
        return (*(np.float32(factor) * each for factor, each in ((queries, q), (keys, k), (values, v))), table, lengths,
                scale, *rest)

    return Reach(words, turn)


def _equal_keys(rng, q, keys, values, *rest):
    return q, np.where(np.isnan(keys), keys, np.float32(0.5)), values, *rest


DOMAIN = (
    _with_lengths("every sequence is an empty place", lambda lengths, most: 0 * lengths),
    _with_lengths("every sequence has a single token", lambda lengths, most: 0 * lengths + 1),
    _with_lengths("the last page of each sequence is full", lambda lengths, most: 0 * lengths + most),
    _with_lengths("the last page of each sequence has one token", lambda lengths, most: 0 * lengths + most - 15),
    _with_lengths("only the first place in the batch is taken",
                  lambda lengths, most: np.where(np.arange(len(lengths)) == 0, most, 0)),
    _scaled("scores are thousands apart", queries=100, keys=100),
    _scaled("values are large", values=10_000),
    _scaled("all scores are far below 0", shift=9),
    _scaled("all scores are 0", queries=0),
    Reach("all keys are equal", _equal_keys),
)
ATTENDED = {"B": 1, "S": 32, "H": 2, "KV": 1, "D": 64}  # with one sequence, S is its length
SMALL_ATTENTION = tuple(dict(zip(("B", "S", "H", "KV", "D"), size, strict=True)) for size in (
    (1, 16, 1, 1, 32), (3, 20, 4, 2, 32), (1, 32, 2, 1, 64), (2, 40, 3, 3, 96), (1, 70, 4, 1, 128)))


def _loaded_once(report) -> str | None:
    """Keys, values and query once; each lane may look up the table for each token."""
    _, tokens, heads, _, size = ATTENDED.values()
    loads, allowed = report.counts["global_loads"], heads * (tokens * (2 * size + 32 + 16) + size + 6 * 32)
    if loads <= allowed:
        return shuffles(report)
    return (f"For {tokens} tokens in {heads} heads of {size} your kernel makes {loads:,} loads, and {allowed:,} are "
            f"enough. Load each number of the query, the keys and the values once: keep the query in `query`, and "
            f"instead of a second pass correct `acc` where the maximum grows.")


PAGED_ATTENTION = KernelExercise(
    name="paged_attention",
    reference=paged_decode_reference,
    inputs=_attention_inputs,
    arguments=lambda inputs, out, size: (*inputs[:-1], out, inputs[-1]),
    shape=lambda B, S, H, KV, D: (B, H, D),
    sizes=SMALL_ATTENTION,
    random_size=lambda rng: {"B": int(rng.integers(1, 4)), "S": int(rng.integers(17, 60)), "H": 4, "KV": 2, "D": 32},
    launch=lambda B, S, H, KV, D: ((H, B), 32),
    tolerance=lambda *inputs: 2 * tolerance_decode(*inputs, bf16=False),
    observe_sizes=(ATTENDED,),
    demand=_loaded_once,
    domain=DOMAIN,
    wrong={
        "the pages are taken in the order of memory, not of the table": Edit("page_table[b, j // 16]", "j // 16"),
        "all sequences use the first one's table": Edit("page_table[b, j // 16]", "page_table[0, j // 16]"),
        "the whole table is read, to its last page": Edit("range(lengths[b])", "range(16 * page_table.shape[1])"),
        "the last page is taken for full": Edit("range(lengths[b])", "range((lengths[b] + 15) // 16 * 16)"),
        "the newest token is left out": Edit("range(lengths[b])", "range(lengths[b] - 1)"),
        "every query head has the first head of keys": Edit("head // (q.shape[1] // keys.shape[1])", "0"),
        "head % K: neighbouring query heads read different heads of keys":
            Edit("head // (q.shape[1] // keys.shape[1])", "head % keys.shape[1]"),
        "the scores are not scaled": Edit("* scale", ""),
        "the values are the keys": Edit("weight * values[", "weight * keys["),
        "acc is not corrected when the maximum grows": Edit("acc[i] * factor + weight", "acc[i] + weight"),
        "row_sum is not corrected when the maximum grows": Edit("row_sum * factor + weight", "row_sum + weight"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "an empty place becomes 0 / 0": Edit(" if row_sum > 0 else float32(0.0)", ""),
        "the division by the sum of the weights is missing": Edit("acc[i] / row_sum", "acc[i]"),
        "the query is loaded again for each token": Edit("score += query[i] *",
                                                         "score += scale * q[b, head, lane + 32 * i] *",
                                                         "query[i] = q[b, head, lane + 32 * i] * scale", ""),
        "`shfl_down_sync`: only lane 0 has the score": Edit("cuda.shfl_xor_sync(", "cuda.shfl_down_sync("),
    },
)

# --- Parts of a softmax, joined ---------------------------------------------------------------------------------------

JOINED = {"R": 3, "P": 4, "D": 64}


def _join_inputs(rng, R, P, D, whole=False):
    parts = np.empty((R, P, D + 2), np.float32)
    parts[..., :D] = 4 * uniform(rng, R, P, D)
    parts[..., D] = 5 * uniform(rng, R, P)
    parts[..., D + 1] = rng.uniform(1, 9, (R, P))
    counts = rng.integers(0, P + 1, R).astype(np.int32)
    counts[rng.integers(R)] = P
    return parts if whole else _behind(parts, counts), counts


def _behind(parts, counts):
    """NaN behind the parts of each row."""
    beyond = np.arange(parts.shape[1]) >= counts[:, None]
    return np.where(beyond[..., None], np.float32(np.nan), parts)


def _joined(parts, counts, measure=None):
    """measure: of the weighted values, instead of their sum."""
    R, P, size = parts.shape
    out = np.zeros((R, size - 2))
    for r, count in enumerate(counts):
        if count:
            acc, row_max, row_sum = np.split(parts[r, :count].astype(np.float64), [size - 2, size - 1], axis=1)
            weights = np.exp(row_max - row_max.max())
            out[r] = ((acc * weights).sum(axis=0) / (row_sum * weights).sum() if measure is None
                      else measure(acc, row_max, row_sum, weights))
    return out


def _join_tolerance(parts, counts):
    def errors(acc, row_max, row_sum, weights):
        far = 4 + 2 * len(acc) + np.abs(row_max) + np.abs(row_max).max()  # of a weight, and of sums of so many
        total, sizes = (row_sum * weights).sum(), np.abs(acc) * weights
        moved = (row_sum * weights * far).sum() / total  # of the sum of the weights
        return 2 * EPS32 * ((sizes * far).sum(axis=0) + moved * sizes.sum(axis=0)) / total

    return _joined(parts, counts, errors)


def _records(words, change):
    """change(rng, parts, counts) -> counts, with parts, which are all there, changed in place."""
    def turn(rng, parts, counts):
        R, P, size = parts.shape
        parts, _ = _join_inputs(rng, R, P, size - 2, whole=True)
        counts = np.asarray(change(rng, parts, counts), np.int32)
        return _behind(parts, counts), counts

    return Reach(words, turn, {"R": 4, "P": 5, "D": 40})


def _maxima(values):
    def change(rng, parts, counts):
        parts[..., -2] = values(rng, parts[..., -2])
        return 0 * counts + parts.shape[1]

    return change


def _acc_once(report) -> str | None:
    R, P, D = JOINED.values()
    allowed = R * P * D + R * P * 32 * 4 * (D // 32) + R * 32 * 8
    loads = report.counts["global_loads"]
    if loads <= allowed:
        return None
    return (f"For {R} rows of {P} parts with {D} numbers your kernel makes {loads:,} loads, and {allowed:,} are "
            f"enough. Each number of acc belongs to one column of out: only the thread that writes it loads it.")


JOIN_ATTENTION = KernelExercise(
    name="join_attention",
    reference=_joined,
    inputs=_join_inputs,
    shape=lambda R, P, D: (R, D),
    sizes=tuple({"R": R, "P": P, "D": D} for R, P, D in ((1, 1, 1), (2, 3, 5), (4, 5, 40), (3, 4, 64), (2, 16, 100))),
    launch=lambda R, P, D: (R, 32),
    tolerance=_join_tolerance,
    observe_sizes=(JOINED,),
    demand=_acc_once,
    domain=(
        _records("no row has a part", lambda rng, parts, counts: 0 * counts),
        _records("every row has a single part", lambda rng, parts, counts: 0 * counts + 1),
        _records("every row has all its parts", lambda rng, parts, counts: 0 * counts + parts.shape[1]),
        _records("the largest scores are equal", _maxima(lambda rng, m: np.full_like(m, 3.5))),
        _records("the largest score is in the first part", _maxima(lambda rng, m: -np.sort(-m, axis=1))),
        _records("the largest score is in the last part", _maxima(lambda rng, m: np.sort(m, axis=1))),
        _records("the largest scores are near 10,000", _maxima(lambda rng, m: 10_000 + m)),
        _records("the largest scores are near -10,000", _maxima(lambda rng, m: -10_000 + m)),
        _records("one part's largest score is far above the others'",
                 _maxima(lambda rng, m: np.where(np.arange(m.shape[1]) == rng.integers(m.shape[1]), 9_000, m))),
    ),
    wrong={
        "acc is not brought to the larger maximum": Edit(
            "acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)", "acc += parts[r, p, i]"),
        "row_sum is not brought to the larger maximum": Edit(
            "row_sum += parts[r, p, D + 1] * math.exp(parts[r, p, D] - row_max)", "row_sum += parts[r, p, D + 1]"),
        "the mean of the parts' results": Edit(
            "acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)", "acc += parts[r, p, i] / parts[r, p, D + 1]",
            "acc / row_sum", "acc / float32(counts[r])"),
        "exponentials of the maxima themselves, which overflow": Edit(
            "row_max = max(row_max, parts[r, p, D])", "row_max = float32(0.0)"),
        "the maximum begins at 0": Edit("float32(-math.inf)", "float32(0.0)"),
        "the first part's maximum is taken for the largest": Edit("row_max = max(row_max, parts[r, p, D])",
                                                                 "row_max = parts[r, 0, D]"),
        "all records are read, also those behind the row's parts": Edit(
            "for p in range(counts[r]):\n    acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)",
            "for p in range(parts.shape[1]):\n    acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)"),
        "a row without parts becomes 0 / 0": Edit(" if counts[r] > 0 else float32(0.0)", ""),
        "row_max and row_sum are exchanged": Edit(
            "row_max = max(row_max, parts[r, p, D])", "row_max = max(row_max, parts[r, p, D + 1])",
            "row_sum += parts[r, p, D + 1] * math.exp(parts[r, p, D] - row_max)",
            "row_sum += parts[r, p, D] * math.exp(parts[r, p, D + 1] - row_max)",
            "acc += parts[r, p, i] * math.exp(parts[r, p, D] - row_max)",
            "acc += parts[r, p, i] * math.exp(parts[r, p, D + 1] - row_max)"),
        "only the first 32 numbers": Edit("range(lane, D, 32)", "range(lane, min(D, 32), 32)"),
        "the division by the sum of the weights is missing": Edit("acc / row_sum", "acc"),
        "every lane goes through all numbers": Edit("range(lane, D, 32)", "range(D)", "out[r, i] =",
                                                    "if i % 32 == lane: out[r, i] ="),
    },
)

# --- From a blank page: attention split over blocks -------------------------------------------------------------------

WIDE = 32
SPLIT = {"B": 1, "S": 32, "H": 4, "KV": 1, "share": 1}


def _split_inputs(rng, B, S, H, KV, share):
    return *_attention_inputs(rng, B, S, H, KV, WIDE), share


def _parts_of_table(table, share) -> int:
    return -(-table.shape[1] // share)


def _parts_of_size(S, share) -> int:
    return -(-(pages_for(S) + 1) // share)


def _split(q, keys, values, table, lengths, scale, share, measure=None):
    """The records of all parts; measure: their largest errors instead."""
    B, H, D = q.shape
    out = np.full((B, H, _parts_of_table(table, share), D + 2), UNTOUCHED if measure is None else 0.0)
    group = H // keys.shape[1]
    for b, tokens in enumerate(lengths.astype(int)):
        k, v = (gather(cache, table[b], tokens).astype(np.float64) for cache in (keys, values))
        for first in range(0, tokens, share * PAGE):
            part, seen = first // (share * PAGE), slice(first, first + share * PAGE)
            for head in range(H):
                query, key, value = q[b, head].astype(np.float64), k[seen, head // group], v[seen, head // group]
                scores = key @ query * float(scale)
                weights = np.exp(scores - scores.max())
                out[b, head, part] = (np.r_[weights @ value, scores.max(), weights.sum()] if measure is None
                                      else measure(np.abs(key) @ np.abs(query) * float(scale), scores, weights, value))
    return out


def _split_tolerance(q, keys, values, table, lengths, scale, share):
    def errors(sizes, scores, weights, value):
        score = 2 * math.sqrt(WIDE) * sizes  # of each score, in units of EPS32
        below = np.abs(scores) + np.abs(scores).max()
        weight = weights * (score + score.max() + below + 4 + 2 * math.sqrt(len(scores)))
        return 2 * EPS32 * np.r_[weight @ np.abs(value), score.max(), weight.sum()]

    return _split(q, keys, values, table, lengths, scale, share, errors)


def _group_loads_once(report) -> str | None:
    tokens, group, blocks = SPLIT["S"], SPLIT["H"] // SPLIT["KV"], _parts_of_size(SPLIT["S"], SPLIT["share"])
    loads = report.counts["global_loads"]
    allowed = tokens * (2 * WIDE + 2 * 32) + blocks * (group * WIDE + 6 * 32)
    if loads <= allowed:
        return shuffles(report)
    return (f"For {tokens} tokens your kernel makes {loads:,} loads, and {allowed:,} are enough. The {group} query "
            f"heads of a block read the same keys and values: load a key once, and use it for all of them.")


ATTEND_SPLIT = KernelExercise(
    name="attend_split",
    reference=_split,
    inputs=_split_inputs,
    shape=lambda B, S, H, KV, share: (B, H, _parts_of_size(S, share), WIDE + 2),
    start=lambda q, keys, values, table, lengths, scale, share: np.full(
        (*q.shape[:2], _parts_of_table(table, share), WIDE + 2), UNTOUCHED),
    sizes=tuple(dict(zip(("B", "S", "H", "KV", "share"), size, strict=True)) for size in (
        (1, 1, 1, 1, 1), (3, 40, 4, 2, 1), (1, 32, 4, 1, 1), (2, 70, 3, 3, 3))),
    random_size=lambda rng: {"B": int(rng.integers(1, 4)), "S": int(rng.integers(17, 70)), "H": 4, "KV": 2,
                             "share": int(rng.integers(1, 4))},
    launch=lambda B, S, H, KV, share: ((_parts_of_size(S, share), KV, B), 32),
    tolerance=_split_tolerance,
    observe_sizes=(SPLIT,),
    demand=_group_loads_once,
    domain=DOMAIN,
    wrong={
        "every block goes over the whole sequence": Edit("part * share * 16, min((part + 1) * share * 16, lengths[b])",
                                                         "0, lengths[b]"),
        "the last part goes to the end of its pages, where no token is": Edit(
            "min((part + 1) * share * 16, lengths[b])", "(part + 1) * share * 16", "first < end", "first < lengths[b]"),
        "a share is taken for so many tokens": Edit("part * share * 16, min((part + 1) * share * 16, lengths[b])",
                                                    "part * share, min((part + 1) * share, lengths[b])"),
        "a part without tokens is written": Edit("if first < end:", "if True:"),
        "pages are counted from the part's beginning": Edit("page_table[b, j // 16]",
                                                            "page_table[b, (j - first) // 16]"),
        "row_max and row_sum are exchanged": Edit("out[b, head, part, 32] = row_max[n]",
                                                  "out[b, head, part, 32] = row_sum[n]",
                                                  "out[b, head, part, 33] = row_sum[n]",
                                                  "out[b, head, part, 33] = row_max[n]"),
        "acc is divided by the sum of the weights already": Edit("lane] = acc[n]", "lane] = acc[n] / row_sum[n]"),
        "neighbouring query heads read different heads of keys": Edit(
            "q[b, kv_head * group + n, lane]", "q[b, n * keys.shape[1] + kv_head, lane]",
            "head = kv_head * group + n", "head = n * keys.shape[1] + kv_head"),
        "acc is not corrected when the maximum grows": Edit("acc[n] * factor + weight", "acc[n] + weight"),
        "the first maximum is 0, and scores far below it vanish": Edit("float32(-math.inf)", "float32(0.0)"),
        "the scores are not scaled": Edit("* scale", ""),
        "the keys are loaded again for each query head": Edit("score = query[n] * key",
                                                              "score = query[n] * keys[page, kv_head, j % 16, lane]"),
    },
)

EXERCISES = (PREDICT_PAGES, STORE_SLOTS, FREE_PAGES, PAGED_ATTENTION, JOIN_ATTENTION, ATTEND_SPLIT)
