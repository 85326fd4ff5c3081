"""Empty seats

An engine with `seats` seats has recorded each stay in one of them: stay i begins with step `begins[i]`, and its seat is
free again from step `ends[i]` on. Both are arrays (n,) of integers, and n is at least 1. The run begins with step 0 and
ends when the last stay does.

Return an array of two counts: how many (seat, step) pairs are taken, and how many are empty.

An example with two seats: the stays are from 0 to 5, from 0 to 2 and from 2 to 6. The run has 6 steps, so there are 12
pairs. 5 + 2 + 4 = 11 of them are taken, and 1 is empty: `[11, 1]`.
"""

HINTS = ("How many steps does the run in the example have, and which of the three stays determines that?",
         "A stay takes a seat for ends - begins steps. In all there are seats times steps pairs.",
         "taken = (ends - begins).sum(); np.array([taken, seats * ends.max() - taken])")
POINTS = 1

import numpy as np


# %%
def empty_seats(begins, ends, seats):
    ### BEGIN SOLUTION
    taken = (ends - begins).sum()
    return np.array([taken, seats * ends.max() - taken])
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach


def _empty_seats(begins, ends, seats):
    taken = sum(end - begin for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
    return np.array([taken, seats * max(ends.tolist()) - taken])


def _stays(rng, n, seats):
    """Requests of random lengths, each in the seat that is free first; some seats have nothing to do for a while."""
    free, begins, ends = [0] * seats, [], []
    for _ in range(n):
        seat = int(np.argmin(free))
        begins.append(free[seat] + int(rng.integers(0, 3)))
        free[seat] = begins[-1] + int(rng.integers(1, 30))
        ends.append(free[seat])
    order = rng.permutation(n)
    return np.array(begins)[order], np.array(ends)[order], seats


def _given(words, begins, ends, seats):
    return Reach(words, lambda rng, *_: (np.array(begins), np.array(ends), seats), {"n": len(begins), "seats": seats})


EXERCISE = FunctionExercise(
    name="empty_seats",
    reference=_empty_seats,
    inputs=_stays,
    sizes=tuple({"n": n, "seats": seats} for n, seats in ((1, 1), (3, 2), (20, 4), (60, 7))),
    random_size=lambda rng: {"n": int(rng.integers(2, 60)), "seats": int(rng.integers(1, 9))},
    domain=(_given("there is one stay, and several seats", [0], [7], 3),
            _given("no seat is ever empty", [0, 0, 4], [4, 9, 9], 2),
            _given("the run ends with a stay that is not the last in the list", [0, 0, 2], [9, 2, 6], 2),
            _given("nothing runs in the first steps", [3, 5], [6, 8], 2),
            _given("all seats are empty for a while", [0, 6], [2, 9], 1)),
    wrong={
        "the run ends with the last stay of the list": Edit("ends.max()", "ends[-1]"),
        "the last step is counted as taken": Edit("(ends - begins).sum()", "(ends - begins + 1).sum()"),
        "the run begins with the first stay": Edit("ends.max()", "(ends.max() - begins.min())"),
        "there is one seat per stay": Edit("seats * ends.max()", "len(ends) * ends.max()"),
        "all pairs are returned, not the empty ones": Edit("seats * ends.max() - taken", "seats * ends.max()"),
    },
)
