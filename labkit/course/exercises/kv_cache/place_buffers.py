"""Buffers by first fit

Buffer i has `sizes[i]` bytes and is live from launch `first[i]`, which writes it, to launch `last[i]`, which reads it
for the last time, both included. All three are arrays (n,) of integers. Go through the buffers in order, and put each
at the lowest address, from 0 up, where it shares no byte with an earlier buffer that is live in one of the same
launches. Return the addresses, an array (n,). No alignment is needed.

For example, buffers of 8, 4 and 6 bytes that are live in launches 0 to 1, 1 to 2, and 2 to 3 get the addresses 0, 8 and
0: the third shares a launch only with the second, and fits below it.
"""

HINTS = ("When do two ranges of launches have a launch in common, and two ranges of addresses a byte? Why must the "
         "other buffers be examined from low addresses to high ones?",
         "Collect the buffers that were placed before and are live in a common launch, sort them by address, and begin "
         "at address 0. Whenever the buffer would overlap one of them, move it to that one's end.",
         "others = [j for j in range(i) if first[j] <= last[i] and first[i] <= last[j]]; for j in sorted(others, "
         "key=lambda j: offsets[j]): if offsets[j] < at + sizes[i] and at < offsets[j] + sizes[j]: at = offsets[j] + "
         "sizes[j].")
POINTS = 2

import numpy as np


# %%
def place_buffers(sizes, first, last):
    ### BEGIN SOLUTION
    offsets = np.zeros(len(sizes), np.int64)
    for i in range(len(sizes)):
        others = [j for j in range(i) if first[j] <= last[i] and first[i] <= last[j]]
        at = 0
        for j in sorted(others, key=lambda j: offsets[j]):  # from low addresses to high ones
            if offsets[j] < at + sizes[i] and at < offsets[j] + sizes[j]:
                at = offsets[j] + sizes[j]
        offsets[i] = at
    return offsets
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach


def _placed(sizes, first, last):
    offsets = np.zeros(len(sizes), np.int64)
    for i in range(len(sizes)):
        others = [j for j in range(i) if first[j] <= last[i] and first[i] <= last[j]]
        candidates = sorted({0, *(int(offsets[j] + sizes[j]) for j in others)})
        offsets[i] = next(at for at in candidates if all(
            at + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= at for j in others))
    return offsets


def _buffers(rng, n, launches):
    ends = np.sort(rng.integers(0, launches, (n, 2)), axis=1)
    return rng.integers(1, 12, n) * 16, ends[:, 0], ends[:, 1]


def _lives(words, choose, **size):
    def turn(rng, *arrays):
        return tuple(np.asarray(each).astype(np.int64) for each in choose(len(arrays[0])))

    return Reach(words, turn, size or {"n": 9, "launches": 6})


def place_above_all(sizes, first, last):
    offsets = np.zeros(len(sizes), np.int64)
    for i in range(len(sizes)):
        ends = [offsets[j] + sizes[j] for j in range(i) if first[j] <= last[i] and first[i] <= last[j]]
        offsets[i] = max(ends, default=0)
    return offsets


EXERCISE = FunctionExercise(
    name="place_buffers",
    reference=_placed,
    inputs=_buffers,
    sizes=tuple({"n": n, "launches": launches} for n, launches in ((1, 1), (3, 4), (8, 6), (25, 12))),
    random_size=lambda rng: {"n": int(rng.integers(10, 40)), "launches": int(rng.integers(4, 16))},
    domain=(_lives("all buffers are live in the same launch", lambda n: (16 * np.arange(1, n + 1), [0] * n, [3] * n)),
            _lives("no two buffers are live in the same launch",
                   lambda n: (16 * np.arange(1, n + 1), 2 * np.arange(n), 2 * np.arange(n) + 1)),
            _lives("each buffer is written by the launch that reads the previous one",
                   lambda n: ([64, 16, 32] * (n // 3), np.arange(n), np.arange(n) + 1)),
            _lives("a buffer fits exactly into a gap", lambda n: (
                [32, 48, 32, 48, *[16] * (n - 4)], [0, 0, 0, 3, *[9] * (n - 4)], [5, 2, 5, 5, *[9] * (n - 4)])),
            _lives("a buffer is a byte larger than a gap", lambda n: (
                [32, 48, 32, 49, *[16] * (n - 4)], [0, 0, 0, 3, *[9] * (n - 4)], [5, 2, 5, 5, *[9] * (n - 4)])),
            _lives("of two gaps the lower one is large enough", lambda n: (
                [16, 16, 16, 16, 16, 16, *[8] * (n - 6)], [0, 0, 0, 0, 0, 3, *[3] * (n - 6)],
                [5, 2, 5, 2, 5, 5, *[5] * (n - 6)])),
            _lives("each buffer is live in a single launch", lambda n: (
                16 * (1 + np.arange(n) % 3), np.arange(n) // 3, np.arange(n) // 3))),
    wrong={
        "a buffer that a launch reads may be overwritten by what it writes": Edit(
            "first[j] <= last[i] and first[i] <= last[j]", "first[j] < last[i] and first[i] < last[j]"),
        "gaps are not used: each buffer goes above all that are live with it": place_above_all,
        "the others are not examined in the order of their addresses: a lower gap is missed":
            Edit("sorted(others, key=lambda j: offsets[j])", "others"),
        "all others count, whether they are live at the same time or not": Edit(
            "if first[j] <= last[i] and first[i] <= last[j]", ""),
        "a gap is taken if its first byte is free, whatever its size": Edit(
            "if offsets[j] < at + sizes[i] and at < offsets[j] + sizes[j]:",
            "if offsets[j] <= at < offsets[j] + sizes[j]:"),
        "a gap must be larger than the buffer: one of the same size is missed": Edit(
            "offsets[j] < at + sizes[i]", "offsets[j] <= at + sizes[i]"),
        "two buffers conflict only if they begin in the same launch": Edit(
            "first[j] <= last[i] and first[i] <= last[j]", "first[j] == first[i]"),
        "it moves to where the other begins, not to its end": Edit("at = offsets[j] + sizes[j]",
                                                                 "at = max(at, offsets[j])"),
    },
)

EQUIVALENT = {
    "call: np.zeros(len(sizes), np.int64) -> np.ones(len(sizes), np.int64)":
        "Every element is assigned before it is read.",
    "omission: offsets[i] = at -> offsets[i] += at": "The element is 0 before.",
}
