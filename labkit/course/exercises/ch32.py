"""The exercises of lesson 32: what a batch is worth, slots that are refilled, and the rows of a step.

Sizes are n requests in so many slots, or B sequences that bring at most `most` rows each.
"""

import numpy as np

from labkit.course.exercises import Edit, FunctionExercise, PredictionExercise, Reach
from labkit.course.exercises.domains import at

# --- Predict: what a batch is worth -----------------------------------------------------------------------------------


def _batch() -> dict:
    weights, kept = 2 * 10**9, 2 * 25 * 8 * 80 * 2 * 1000  # bytes: of the model, of a sequence of 1,000 tokens
    step = {count: (weights + count * kept) // 4_000_000 for count in (1, 125)}  # us, at 4,000 GB/s
    return {"kept_mb": kept // 10**6, "step_us_1": step[1], "step_us_125": step[125],
            "tokens_per_second_125": 125 * 10**6 // step[125],
            "rows_at_ridge": 800 * 10**12 * weights // (2 * 10**9 * 4000 * 10**9)}


PREDICT_BATCH = PredictionExercise(
    name="predict_batch",
    truth=_batch,
    how={"kept_mb": "A key and a value of 80 numbers in each of 8 heads and 25 layers, 2 bytes a number, are 64,000 "
                    "bytes for a token.",
         "step_us_1": "2,000 MB of weights and 64 MB of keys and values, at 4 MB in a microsecond.",
         "step_us_125": "The weights once, and 125 times 64 MB: 10,000 MB.",
         "tokens_per_second_125": "Each step computes 125 tokens, and there are 400 steps in a second.",
         "rows_at_ridge": "A row takes two flops for each of a billion weights: 2.5 microseconds. The weights' bytes "
                          "take 500."},
    wrong={"the keys alone, without the values": {"kept_mb": 32, "step_us_1": 508, "step_us_125": 1500},
           "one layer alone": {"kept_mb": 2.56},
           "every sequence reads the weights for itself": {"step_us_125": 64_500},
           "the weights alone: keys and values are not read": {
               "step_us_1": 500, "step_us_125": 500, "tokens_per_second_125": 250_000},
           "steps in a second, not tokens": {"tokens_per_second_125": 400},
           "a multiplication and an addition are counted as one flop": {"rows_at_ridge": 400},
           "float32: four bytes a number": {"kept_mb": 128, "step_us_1": 1032, "step_us_125": 5000}},
)

# --- Slots that are refilled ------------------------------------------------------------------------------------------


def _refilled(lengths, slots):
    free, found = [0] * slots, []
    for length in lengths.tolist():
        slot = free.index(min(free))
        found.append((slot, free[slot]))
        free[slot] += length
    return np.array(found).reshape(len(found), 2)


def _requests(rng, n, slots):
    return rng.integers(1, 30, n), slots


def _lengths_are(words, choose, **size):
    def turn(rng, lengths, slots):
        return np.asarray(choose(rng, len(lengths))).astype(lengths.dtype), slots

    return Reach(words, turn, size or {"n": 12, "slots": 3})


def refill_static(lengths, slots):
    found, begin = [], 0
    for first in range(0, len(lengths), slots):
        batch = lengths[first : first + slots]
        found += [(slot, begin) for slot in range(len(batch))]
        begin += max(batch)
    return np.array(found).reshape(len(found), 2)


def refill_longest_first(lengths, slots):
    free, found = [0] * slots, np.zeros((len(lengths), 2), int)
    for number in np.argsort(-lengths, kind="stable"):
        slot = free.index(min(free))
        found[number] = slot, free[slot]
        free[slot] += int(lengths[number])
    return found


REFILL_SLOTS = FunctionExercise(
    name="refill_slots",
    reference=_refilled,
    inputs=_requests,
    sizes=tuple({"n": n, "slots": slots} for n, slots in ((1, 1), (3, 2), (9, 4), (40, 6))),
    random_size=lambda rng: {"n": int(rng.integers(15, 60)), "slots": int(rng.integers(2, 9))},
    domain=(at("there are more slots than requests", n=5, slots=8), at("there is a single slot", n=7, slots=1),
            _lengths_are("all outputs are equally long", lambda rng, n: [5] * n),
            _lengths_are("all outputs have a single token", lambda rng, n: [1] * n),
            _lengths_are("the first output is longer than all others together",
                         lambda rng, n: [100 * n] + [3] * (n - 1)),
            _lengths_are("the last output is longer than all others together",
                         lambda rng, n: [3] * (n - 1) + [100 * n]),
            _lengths_are("many slots become free in the same step", lambda rng, n: rng.integers(1, 3, n))),
    wrong={
        "static batching: the next requests wait until all slots are free": refill_static,
        "slots in rotation, whether they are free or not": Edit("slot = free.index(min(free))",
                                                            "slot = len(found) % slots"),
        "a slot stays empty for a step: the next request can begin right after the last token": Edit(
            "free[slot] += length", "free[slot] += length + 1"),
        "the last token and the next request's first share a step": Edit("free[slot] += length",
                                                                        "free[slot] += max(length - 1, 1)"),
        "of free slots the one with the highest number is taken": Edit(
            "slot = free.index(min(free))", "slot = slots - 1 - free[::-1].index(min(free))"),
        "the slot that is free last is taken": Edit("free.index(min(free))", "free.index(max(free))"),
        "the longest outputs go first: the queue is served in its order": refill_longest_first,
        "the step is that of the end, not of the beginning": Edit(
            "found.append((slot, free[slot]))\nfree[slot] += length",
            "free[slot] += length\nfound.append((slot, free[slot]))"),
    },
)

# --- From a blank page: the rows of a step ----------------------------------------------------------------------------


def _rows(before, new):
    sequence = np.repeat(np.arange(len(new)), new)
    ends = np.cumsum(new)
    position = before[sequence] + np.arange(len(sequence)) - (ends - new)[sequence]
    return np.stack([sequence, position, np.isin(np.arange(len(sequence)), ends[new > 0] - 1)], axis=1).astype(np.int64)


def _sequences(rng, B, most):
    """One sequence at least brings rows."""
    new = rng.integers(0, most + 1, B)
    new[rng.integers(B)] = most
    return rng.integers(0, 40, B), new


def _step_of(words, before, new):
    def turn(rng, *arrays):
        return np.array(before, np.int64), np.array(new, np.int64)

    return Reach(words, turn, {"B": len(new), "most": max(new)})


ROWS_OF_STEP = FunctionExercise(
    name="rows_of_step",
    reference=_rows,
    inputs=_sequences,
    sizes=tuple({"B": B, "most": most} for B, most in ((1, 1), (2, 3), (5, 4), (9, 12))),
    random_size=lambda rng: {"B": int(rng.integers(3, 12)), "most": int(rng.integers(2, 9))},
    domain=(_step_of("every sequence brings one row", [5, 3, 9, 30], [1, 1, 1, 1]),
            _step_of("every sequence begins with its prompt", [0, 0, 0], [4, 2, 7]),
            _step_of("a prompt runs beside sequences that go on", [12, 7, 0], [1, 1, 6]),
            _step_of("a prompt goes on after a part of it", [16, 4], [5, 1]),
            _step_of("the first sequence brings nothing", [8, 3, 0], [0, 1, 3]),
            _step_of("a sequence in the middle brings nothing", [8, 3, 6], [2, 0, 1]),
            _step_of("the last sequence brings nothing", [8, 3, 5], [1, 2, 0]),
            _step_of("a prompt has a single token", [0, 4], [1, 1])),
    wrong={
        "positions begin at 0: the tokens in the cache are left out": Edit("before[b] + i", "i"),
        "positions are one too high: the first token has position 0": Edit("before[b] + i", "before[b] + i + 1"),
        "all rows of a sequence have its first position": Edit("before[b] + i", "before[b]"),
        "positions go on from one sequence to the next: they are counted from the step's first row": Edit(
            "before[b] + i", "before[b] + len(rows)"),
        "the first row of each sequence is marked": Edit("i == new[b] - 1", "i == 0"),
        "every row is marked: the head would compute logits that are never used": Edit("int(i == new[b] - 1)", "1"),
        "only sequences that go on are marked: a prompt gives a token as well": Edit("i == new[b] - 1", "new[b] == 1"),
        "only the last row of the whole step is marked": Edit("i == new[b] - 1",
                                                             "i == new[b] - 1 and b == len(new) - 1"),
        "a sequence that brings nothing gets a row all the same": Edit("range(new[b])", "range(max(new[b], 1))"),
        "sequences are numbered by the rows that they bring: one without rows has a number, too": Edit(
            "rows.append((b, ", "rows.append((sum(new[:b] > 0), "),
    },
)

EXERCISES = (PREDICT_BATCH, REFILL_SLOTS, ROWS_OF_STEP)
