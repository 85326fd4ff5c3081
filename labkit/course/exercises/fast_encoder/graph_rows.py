"""From a blank page: few shapes, few graphs

A CUDA graph is captured for one number of rows, and a packed batch may have any. So the rows are rounded up to one of a
few allowed counts, and the extra rows stay empty. The rule: let p be the largest power of two that is not larger than
the number of tokens. The allowed counts are the multiples of p / 16, or of 16 if p / 16 is less. A batch without tokens
has 16 rows. With 1,000 tokens, for example, p is 512, the counts are multiples of 32, and the batch has 1,024 rows;
with 1,030 they are multiples of 64, and it has 1,088.

Write `graph_rows(counts)`, a function of the host. `counts` (n,) holds the token counts of n batches, integers up to a
billion. Return an array with the rows of each: the smallest allowed count that is not less than its token count.
"""

HINTS = ("What are p and the allowed counts for 1,023 tokens? And for 1,024?",
         "count.bit_length() - 1 is the exponent of the largest power of two that is not larger than count. The step "
         "is a sixteenth of that power, and 16 at least; -(-a // b) * b rounds a up to a multiple of b.",
         "For each count of counts.tolist(), with 0 taken as 1: step = max(16, (1 << (count.bit_length() - 1)) // 16), "
         "and its rows are -(-count // step) * step.")
POINTS = 2

import numpy as np

# %%
graph_rows = None  # write the function


### BEGIN SOLUTION
def graph_rows(counts):
    rows = []
    for count in counts.tolist():
        power = 1 << max(count.bit_length() - 1, 0)
        step = max(16, power // 16)
        rows.append(-(-max(count, 1) // step) * step)
    return np.array(rows)


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach
from labkit.models.minilm import few_values


def _rows_of_graphs(counts):
    return np.array([few_values(max(1, int(count)), 16) for count in counts])


def _counts(rng, n, most):
    return rng.integers(0, most + 1, n)


def _near_doubles(distance):
    return lambda rng, counts: (2 ** (5 + np.arange(len(counts)) % 25) + distance,)


def graph_rows_power_of_two(counts):
    return np.maximum(16, 2 ** np.ceil(np.log2(np.maximum(counts, 1)))).astype(int)


EXERCISE = FunctionExercise(
    name="graph_rows",
    reference=_rows_of_graphs,
    inputs=_counts,
    sizes=tuple({"n": n, "most": most} for n, most in ((1, 40), (9, 300), (40, 3000), (30, 10**9))),
    random_size=lambda rng: {"n": int(rng.integers(20, 60)), "most": int(rng.integers(2000, 100_000))},
    domain=(Reach("a batch has no tokens", lambda rng, counts: (0 * counts,)),
            Reach("the counts are allowed numbers already", lambda rng, counts: (_rows_of_graphs(counts),),
                  {"n": 40, "most": 3000}),
            Reach("the counts are powers of two", _near_doubles(0), {"n": 30, "most": 10**9}),
            Reach("the counts are one less than powers of two", _near_doubles(-1), {"n": 30, "most": 10**9}),
            Reach("the counts are one more than powers of two", _near_doubles(1), {"n": 30, "most": 10**9})),
    wrong={
        "multiples of 16 at any size: thousands of shapes": Edit("max(16, power // 16)", "16"),
        "multiples of p / 16 below 256 tokens, too, fewer than 16 rows apart": Edit("max(16, power // 16)",
                                                                                    "max(1, power // 16)"),
        "the next power of two: up to half of the rows are empty": graph_rows_power_of_two,
        "p is the next power of two, and the steps are twice as wide":
            Edit("1 << max(count.bit_length() - 1, 0)", "1 << count.bit_length()"),
        "rounded down: the last tokens have no row": Edit("-(-max(count, 1) // step) * step",
                                                         "max(count // step, 1) * step"),
        "a count that is allowed already is rounded up to the next": Edit("-(-max(count, 1) // step) * step",
                                                                          "(count // step + 1) * step"),
        "no rows for no tokens": Edit("max(count, 1)", "count"),
    },
)

EQUIVALENT = {
    "number: 0 -> 1": "It makes a difference only for 0 and 1 tokens, and these have 16 rows either way.",
}
