"""From a blank page: the rows of a step

In a step, sequence b has `new[b]` rows: one if it is decoding, several if they are from its prompt, or none at all. The
cache already holds `before[b]` of its tokens. Both are arrays (B,) of integers, and a step has at least one row. The
rows of all sequences are packed end to end, in the order of the sequences.

Return an array (T, 3) of integers. For each of the T rows it holds the sequence, the position in that sequence, and a 1
if the row is its sequence's last in this step, so that the head needs it, else 0. Sequences and positions are counted
from 0.

For example, `before = [5, 0]` and `new = [1, 3]` give

```
[[0, 5, 1],
 [1, 0, 0],
 [1, 1, 0],
 [1, 2, 1]]
```

Write `rows_of_step(before, new)`.
"""

HINTS = ("In the example, where does position 5 come from, and why is row 3 marked while rows 1 and 2 are not?",
         "Two loops: over the sequences, and over the rows of each. Row i of sequence b has position before[b] + i, "
         "and it is the last one if i is new[b] - 1. A sequence without rows adds nothing, but keeps its index.",
         "rows = []; for b in range(len(new)): for i in range(new[b]): rows.append((b, before[b] + i, int(i == new[b] "
         "- 1))); return np.array(rows).")
POINTS = 2

import numpy as np

# %%
rows_of_step = None  # write the function


### BEGIN SOLUTION
def rows_of_step(before, new):
    rows = []
    for b in range(len(new)):
        for i in range(new[b]):
            rows.append((b, before[b] + i, int(i == new[b] - 1)))
    return np.array(rows)


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach


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


EXERCISE = FunctionExercise(
    name="rows_of_step",
    reference=_rows,
    inputs=_sequences,
    sizes=tuple({"B": B, "most": most} for B, most in ((1, 1), (2, 3), (5, 4), (9, 12))),
    random_size=lambda rng: {"B": int(rng.integers(3, 12)), "most": int(rng.integers(2, 9))},
    domain=(_step_of("every sequence has one row", [5, 3, 9, 30], [1, 1, 1, 1]),
            _step_of("every sequence begins with its prompt", [0, 0, 0], [4, 2, 7]),
            _step_of("a prompt shares the step with sequences that decode", [12, 7, 0], [1, 1, 6]),
            _step_of("a prompt is continued after its first part", [16, 4], [5, 1]),
            _step_of("the first sequence has no rows", [8, 3, 0], [0, 1, 3]),
            _step_of("a sequence in the middle has no rows", [8, 3, 6], [2, 0, 1]),
            _step_of("the last sequence has no rows", [8, 3, 5], [1, 2, 0]),
            _step_of("a prompt has a single token", [0, 4], [1, 1])),
    wrong={
        "positions begin at 0: the tokens in the cache are left out": Edit("before[b] + i", "i"),
        "positions are one too high: the first token has position 0": Edit("before[b] + i", "before[b] + i + 1"),
        "all rows of a sequence have its first position": Edit("before[b] + i", "before[b]"),
        "positions continue from one sequence to the next: they count from the step's first row": Edit(
            "before[b] + i", "before[b] + len(rows)"),
        "the first row of each sequence is marked": Edit("i == new[b] - 1", "i == 0"),
        "every row is marked: the head would compute logits that are never used": Edit("int(i == new[b] - 1)", "1"),
        "only decoding sequences are marked: a prompt gives a token as well": Edit("i == new[b] - 1", "new[b] == 1"),
        "only the last row of the whole step is marked": Edit("i == new[b] - 1",
                                                             "i == new[b] - 1 and b == len(new) - 1"),
        "a sequence without rows still gets one": Edit("range(new[b])", "range(max(new[b], 1))"),
        "only sequences with rows are counted: one without rows has an index, too": Edit(
            "rows.append((b, ", "rows.append((sum(new[:b] > 0), "),
    },
)

AFTER = """
The step of the lesson: two sequences that decode, and a prompt.

# %%
rows = rows_of_step(np.array([9, 10, 0]), np.array([1, 1, 9])) if rows_of_step else None
if rows is not None:
    print(rows.T)
"""
