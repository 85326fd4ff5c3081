"""Predict: the worth of a batch

A model has 10⁹ weights in bfloat16, 25 layers, and 8 heads of keys and values of 80 values each, also in bfloat16.
A GPU moves 4,000 GB/s and does 800 · 10¹² flops per second. Every sequence has 1,000 tokens in its cache. A step reads
all weights once, and all keys and values of each sequence; suppose that it takes as long as these bytes need.

How many MB are the keys and values of one sequence (1 MB = 10⁶ bytes)? How many microseconds does a step take with 1
sequence, and with 125? How many tokens per second does the GPU compute with 125? And for how many rows of a prompt do
the flops, two per weight and row, take as long as the weights' bytes?
"""

HINTS = ("What does a step read once for all sequences, and what once per sequence?",
         "A token's keys and values are 2 times layers times heads times values per head, 2 bytes each. 4,000 GB per "
         "second is 4,000 MB per millisecond, 4 MB per microsecond. A step computes one token per sequence.",
         "64,000 bytes per token, 64 MB per sequence. (2,000 + 64) / 4 and (2,000 + 125 * 64) / 4 microseconds. The "
         "weights' bytes take 500 microseconds, enough for 400 * 10**9 flops; a row takes 2 * 10**9.")
POINTS = 1

# %%
kept_mb = None
step_us_1 = None
step_us_125 = None
tokens_per_second_125 = None
rows_at_ridge = None
### BEGIN SOLUTION
kept_mb = 2 * 25 * 8 * 80 * 2 * 1000 // 10**6
step_us_1 = (2000 + kept_mb) // 4
step_us_125 = (2000 + 125 * kept_mb) // 4
tokens_per_second_125 = 125 * 10**6 // step_us_125
rows_at_ridge = 500 * 800 * 10**6 // (2 * 10**9)  # flops in 500 microseconds, by those of a row
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _batch() -> dict:
    weights, kept = 2 * 10**9, 2 * 25 * 8 * 80 * 2 * 1000  # bytes: of the model, of a sequence of 1,000 tokens
    step = {count: (weights + count * kept) // 4_000_000 for count in (1, 125)}  # us, at 4,000 GB/s
    return {"kept_mb": kept // 10**6, "step_us_1": step[1], "step_us_125": step[125],
            "tokens_per_second_125": 125 * 10**6 // step[125],
            "rows_at_ridge": 800 * 10**12 * weights // (2 * 10**9 * 4000 * 10**9)}


EXERCISE = PredictionExercise(
    name="predict_batch",
    truth=_batch,
    how={"kept_mb": "A key and a value of 80 elements in each of 8 heads and 25 layers, 2 bytes per element, are "
                    "64,000 bytes per token.",
         "step_us_1": "2,000 MB of weights and 64 MB of keys and values, at 4 MB per microsecond.",
         "step_us_125": "The weights once, and 125 times 64 MB: 10,000 MB.",
         "tokens_per_second_125": "Each step computes 125 tokens, and there are 400 steps per second.",
         "rows_at_ridge": "A row takes two flops for each of a billion weights: 2.5 microseconds. The weights' bytes "
                          "take 500."},
    wrong={"only the keys, without the values": {"kept_mb": 32, "step_us_1": 508, "step_us_125": 1500},
           "only one layer": {"kept_mb": 2.56},
           "every sequence reads the weights for itself": {"step_us_125": 64_500},
           "only the weights: keys and values are not read": {
               "step_us_1": 500, "step_us_125": 500, "tokens_per_second_125": 250_000},
           "steps per second, not tokens": {"tokens_per_second_125": 400},
           "a multiplication and an addition were counted as one flop": {"rows_at_ridge": 400},
           "float32: four bytes per value": {"kept_mb": 128, "step_us_1": 1032, "step_us_125": 5000}},
)
