"""From a blank page: static or continuous

Request i will write `outputs[i]` tokens, one per step; `outputs` is an array (n,) of positive integers. There are
`seats` seats, and requests are served in order. Count the steps until all have ended, in two ways.

- *Static*: the first `seats` requests form a batch. When the last of them has ended, the next `seats` begin.
- *Continuous*: as soon as a seat is free, the next request begins there, in the step after the previous request's last
  token.

An example with two seats and outputs of 5, 2 and 4 tokens. Static: the first two need 5 steps, and the third 4 more, 9
in all. Continuous: the third begins in the third step, in the seat of the second, and everything is done after 6 steps.

Write `count_steps(outputs, seats)`. It returns an array of the two counts, static first: for the example, `[9, 6]`.
"""

HINTS = ("Which request of a static batch decides how long it takes? Which seat does the next request get in a "
         "continuous one?",
         "Static: the sum of the maxima of `seats` outputs each. Continuous: keep for each seat the number of steps "
         "after which it is free; the next request goes to the seat with the smallest.",
         "free = [0] * seats; for each output: seat = free.index(min(free)); free[seat] += output; the run takes "
         "max(free) steps.")
POINTS = 2
NEEDS = ("empty_seats",)

import numpy as np

# %%
count_steps = None  # write the function


### BEGIN SOLUTION
def count_steps(outputs, seats):
    static = sum(outputs[first : first + seats].max() for first in range(0, len(outputs), seats))
    free = [0] * seats
    for output in outputs.tolist():
        seat = free.index(min(free))
        free[seat] += output
    return np.array([static, max(free)])


### END SOLUTION

# %% [check]
import heapq

from labkit.course.exercises import Edit, FunctionExercise, Reach


def _count_steps(outputs, seats):
    lengths = outputs.tolist()
    batches = [lengths[first : first + seats] for first in range(0, len(lengths), seats)]
    ends = [0] * seats
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return np.array([sum(map(max, batches)), max(ends)])


def _requests(words, outputs, seats):
    return Reach(words, lambda rng, *_: (np.array(outputs), seats), {"n": len(outputs), "seats": seats})


EXERCISE = FunctionExercise(
    name="count_steps",
    reference=_count_steps,
    inputs=lambda rng, n, seats: (rng.integers(1, 100, n), seats),
    sizes=tuple({"n": n, "seats": seats} for n, seats in ((1, 1), (3, 2), (17, 4), (64, 8))),
    random_size=lambda rng: {"n": int(rng.integers(2, 80)), "seats": int(rng.integers(1, 12))},
    domain=(_requests("there are fewer requests than seats", [3, 8], 5),
            _requests("there is one seat", [3, 8, 1], 1),
            _requests("the last batch is not full", [5, 2, 4], 2),
            _requests("all outputs are equally long", [6] * 9, 3),
            _requests("the longest output comes last", [1, 1, 1, 1, 50], 2),
            _requests("two seats become free in the same step", [4, 4, 2, 7, 1], 2)),
    wrong={
        "a static batch takes as long as its outputs together": Edit("].max() for", "].sum() for"),
        "the last batch is left out if it is not full": Edit("range(0, len(outputs), seats)",
                                                             "range(0, len(outputs) - seats + 1, seats)"),
        "the outputs are sorted first": Edit("outputs[first : first + seats].max()",
                                             "np.sort(outputs)[first : first + seats].max()",
                                             "in outputs.tolist()", "in np.sort(outputs).tolist()"),
        "a request goes to the next seat in turn, not to the first that is free":
            Edit("for output in outputs.tolist():\n    seat = free.index(min(free))",
                 "for turn, output in enumerate(outputs.tolist()):\n    seat = turn % seats"),
        "a continuous run ends when the first seat has nothing left": Edit("max(free)]", "min(free)]"),
        "a seat is free one step too late": Edit("free[seat] += output", "free[seat] += output + 1"),
        "the steps of a continuous run are all tokens divided by the seats": Edit(
            "max(free)]", "-(-int(outputs.sum()) // seats)]"),
    },
)

EQUIVALENT = {
    "type: free[seat] += output -> free[seat] += int32(output)": "The same whole number.",
}
