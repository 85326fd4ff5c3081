"""Slots that are refilled

Requests wait in a queue, and request i will write `lengths[i]` tokens, one per step; `lengths` is an array (n,) of
positive integers. There are `slots` slots. Before each step, every free slot gets the next request in the queue, the
lowest slot first. A slot is free from the step after its request's last token on. Return an array (n, 2) with the slot
of each request and the step of its first token, both counted from 0.

For example, lengths of 3, 1 and 2 in two slots give `[[0, 0], [1, 0], [1, 1]]`: slot 1 is free again after one step.
"""

HINTS = ("Two slots, and outputs of 5, 2 and 4 tokens: which slot does the third request get, and in which step?",
         "For each slot, keep the first step in which it is free. Requests go in the order of the queue, "
         "each to the slot that is free first; if there are several, to the lowest.",
         "free = [0] * slots; for each length: slot = free.index(min(free)); append (slot, free[slot]) to the result; "
         "free[slot] += length.")
POINTS = 2

import numpy as np


# %%
def refill_slots(lengths, slots):
    ### BEGIN SOLUTION
    free, found = [0] * slots, []  # the first step in which each slot is free
    for length in lengths.tolist():
        slot = free.index(min(free))
        found.append((slot, free[slot]))
        free[slot] += length
    return np.array(found)
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach, at


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


EXERCISE = FunctionExercise(
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
        "of the free slots, the highest is taken": Edit(
            "slot = free.index(min(free))", "slot = slots - 1 - free[::-1].index(min(free))"),
        "the slot that becomes free last is taken": Edit("free.index(min(free))", "free.index(max(free))"),
        "the longest outputs go first, not in the order of the queue": refill_longest_first,
        "the step is that of the end, not of the beginning": Edit(
            "found.append((slot, free[slot]))\nfree[slot] += length",
            "free[slot] += length\nfound.append((slot, free[slot]))"),
    },
)

EQUIVALENT = {
    "type: free[slot] += length -> free[slot] += int32(length)": "It is already an integer, far below 2**31.",
}

AFTER = """
The requests of the lesson, with four slots: the steps of continuous batching until the last request ends, and those of
static batching, which are the longest answer of each batch, added up.

# %%
counts = np.array([24, 3, 9, 14, 4, 6, 20, 3, 10, 5])
found = refill_slots(counts, 4)
if found is not None:
    print("continuous:", (found[:, 1] + counts).max(), "static:", sum(counts[i : i + 4].max() for i in (0, 4, 8)))
"""
