"""From a blank page: whose time is it

A profiler's table counts an outer range with everything inside it. In the lesson's table from `nsys` the whole product
takes 50.0 % of the time and the allocation another 50.0 %: the same 125 ms, counted twice.

A range's *own* time is its total minus the ranges directly inside it. Write `own_time(parent, total)`, which returns
the own time of every range. Ranges are numbered in the order they begin: `parent[i]` is the index of the
range around range `i`, or -1 if there is none, and `total[i]` is its time in milliseconds.

For example, `own_time([-1, 0, 0, 2], [10, 3, 5, 4])` is `[2, 3, 1, 4]`: range 0 contains ranges 1 and 2, and range 2
contains range 3. In the lesson's table, `parent` is `[-1, 0, 0, 0, 0, 0]`, five ranges in one.
"""

HINTS = ("An outer range of 10 ms holds one of 7 ms, and that one holds one of 3 ms. What are the three own times?",
         "They are 3, 4 and 3: subtract from each range the ranges directly inside it, and nothing else. What is "
         "nested deeper is already in the child's total.",
         "Go through all ranges. If a range is inside another one, subtract its total from that one's own time: "
         "own[outer] -= total[child].")
POINTS = 1

import numpy as np

# %%
own_time = None  # write the function here: def own_time(parent, total)
### BEGIN SOLUTION
def own_time(parent, total):
    own = np.array(total, np.float64)
    for child, outer in enumerate(parent):
        if outer >= 0:
            own[outer] -= total[child]  # what is nested deeper is part of the child's total
    return own


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach


def _own_time(parent, total):
    own = np.array(total, np.float64)
    for child, at in enumerate(parent):
        if at >= 0:
            own[at] -= total[child]
    return own


def own_time_is_total(parent, total):
    return np.array(total, np.float64)


def own_time_takes_all_below(parent, total):
    own = np.array(total, np.float64)
    for child, at in enumerate(parent):
        while at >= 0:
            own[at] -= total[child]
            at = parent[at]
    return own


def _tree(rng, n):
    """Ranges in the order in which they begin: each one's parent comes before it, and its children fit into it."""
    parent = np.array([-1] + [int(rng.integers(0, k)) for k in range(1, n)], np.int64)
    total = rng.uniform(1, 50, n)
    for child in range(n - 1, 0, -1):
        total[parent[child]] += total[child]
    return parent, total


def _within(parent_of):
    """Ranges nested in one another as parent_of says, each longer than its children together."""
    def turn(rng, parent, total):
        parent = np.array([parent_of(k) for k in range(len(parent))], np.int64)
        total = rng.uniform(1, 50, len(parent))
        for child in range(len(parent) - 1, 0, -1):
            if parent[child] >= 0:
                total[parent[child]] += total[child]
        return parent, total

    return turn


EXERCISE = FunctionExercise(
    name="own_time",
    reference=_own_time,
    inputs=_tree,
    sizes=tuple({"n": n} for n in (1, 2, 3, 6, 20, 100)),
    tolerance=lambda parent, total: np.full(len(total), 1e-6),
    domain=(Reach("no range is inside another", _within(lambda k: -1)),
            Reach("each range is inside the one before it", _within(lambda k: k - 1)),
            Reach("all ranges are inside the first", _within(lambda k: 0 if k else -1))),
    wrong={
        "nothing is subtracted: an outer range is counted with everything inside it": own_time_is_total,
        "grandchildren are subtracted from their grandparent as well, but they are already part of a child":
            own_time_takes_all_below,
        "the outer range is subtracted from the inner one":
            Edit("own[outer] -= total[child]", "own[child] -= total[outer]"),
        "only the outermost range has what is inside it subtracted": Edit("if outer >= 0:", "if outer == 0:"),
    },
)
