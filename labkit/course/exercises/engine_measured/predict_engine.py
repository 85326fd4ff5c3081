"""Predict: pages and steps

A cache has room for 64,000 tokens. A sequence may have up to 2,000 tokens, and at any moment it has 500 on average. In
each step, reading the weights takes 1,024 us, and each sequence adds 8 us.

How many sequences run at a time if each reserves its 2,000 tokens, and how many if each holds only the tokens that it
has? Suppose that all pages are full. How many tokens per second does the engine write in either case?

Then compare two runs that write the same tokens. The static run has 4,000 steps with 16 sequences on average, the
continuous run 2,000 steps with 32. How many milliseconds does each take?
"""

HINTS = ("What limits the number of sequences, and how long does a step with that many take?",
         "64,000 tokens in pieces of 2,000, or of 500. A step takes 1,024 us plus 8 us per sequence, and writes one "
         "token per sequence.",
         "32 sequences in 1,024 + 8 * 32 us, 128 in 1,024 + 8 * 128 us. 4,000 * (1,024 + 8 * 16) us and 2,000 * "
         "(1,024 + 8 * 32) us.")
POINTS = 1

# %%
reserved = None  # sequences at a time
paged = None
rate_reserved = None  # tokens per second
rate_paged = None
ms_static = None
ms_continuous = None
### BEGIN SOLUTION
reserved = 64_000 // 2_000
paged = 64_000 // 500
rate_reserved = reserved * 10**6 // (1_024 + 8 * reserved)
rate_paged = paged * 10**6 // (1_024 + 8 * paged)
ms_static = 4_000 * (1_024 + 8 * 16) // 1_000
ms_continuous = 2_000 * (1_024 + 8 * 32) // 1_000
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _step_us(sequences: int) -> int:
    return 1_024 + 8 * sequences


TRUE = {"reserved": 32, "paged": 128, "rate_reserved": 25_000, "rate_paged": 62_500, "ms_static": 4_608,
        "ms_continuous": 2_560}

EXERCISE = PredictionExercise(
    name="predict_engine",
    truth=lambda: {"reserved": 64_000 // 2_000, "paged": 64_000 // 500,
                   **{f"rate_{name}": count * 1_000_000 // _step_us(count)
                      for name, count in (("reserved", 32), ("paged", 128))},
                   "ms_static": 4_000 * _step_us(16) // 1_000, "ms_continuous": 2_000 * _step_us(32) // 1_000},
    how={"reserved": "64,000 tokens in pieces of 2,000.",
         "paged": "64,000 tokens in pieces of 500 on average.",
         "rate_reserved": "A step takes 1,024 + 8 * 32 = 1,280 us and writes 32 tokens.",
         "rate_paged": "A step takes 1,024 + 8 * 128 = 2,048 us and writes 128 tokens.",
         "ms_static": "A step takes 1,024 + 8 * 16 = 1,152 us, and there are 4,000.",
         "ms_continuous": "A step takes 1,280 us, and there are 2,000. Half as many steps do not take half the time: "
                          "each is longer."},
    wrong={"a step takes equally long with any number of sequences": {
               **TRUE, "rate_reserved": 31_250, "rate_paged": 125_000, "ms_static": 4_096, "ms_continuous": 2_048},
           "four times as many sequences write four times as many tokens": {**TRUE, "rate_paged": 100_000},
           "half as many steps take half the time": {**TRUE, "ms_continuous": 2_304},
           "the rate is the number of steps per second": {**TRUE, "rate_reserved": 781, "rate_paged": 488}},
)
