"""Predict: what the cache saves

A prompt has 10 tokens, and greedy decoding adds 50. Every pass of the model computes one row for each token that goes
through its layers; the last of the new tokens is not fed back. How many rows is that in all, with the cache and without
it? And how many bytes does each token add to the cache of GPT-2 small, with 12 layers of width 768, in float32?
"""

HINTS = ("Which passes do three new tokens need? How many rows does each compute, with the cache and without?",
         "With it: 10 rows, then one for each further token. Without it: 10 rows, then 11, then 12, and so on. The "
         "last token is not fed back.",
         "10 + 49; the sum of 10 to 59; and layers times two times width times four bytes.")
POINTS = 1
NEEDS = ("append_rows",)

# %%
rows_with = None  # rows through the layers, with the cache
rows_without = None
cache_bytes = None  # for each token
### BEGIN SOLUTION
rows_with = 10 + 49  # the prompt at once, then one row for each further token
rows_without = sum(range(10, 60))  # 10 rows for the first token, 59 for the last
cache_bytes = 12 * 2 * 768 * 4
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _rows():
    prompt, new = 10, 50
    return {"rows_with": prompt + new - 1, "rows_without": sum(range(prompt, prompt + new)),
            "cache_bytes": 12 * 2 * 768 * 4}


EXERCISE = PredictionExercise(
    name="predict_rows",
    truth=_rows,
    how={"rows_with": "The prompt's 10 rows give the first token. Each further token needs one row: 49 of them.",
         "rows_without": "The first token needs 10 rows, the second 11, the last 59: the sum of 10 to 59.",
         "cache_bytes": "A key and a value of 768 elements in each of 12 layers, 4 bytes per element."},
    wrong={"the last token is counted, though nothing is computed from it": {
               "rows_with": 60, "rows_without": 1725, "cache_bytes": 73728},
           "only the keys": {"rows_with": 59, "rows_without": 1725, "cache_bytes": 36864},
           "only one layer": {"rows_with": 59, "rows_without": 1725, "cache_bytes": 6144},
           "every pass is counted with all 60 rows": {"rows_with": 59, "rows_without": 3000, "cache_bytes": 73728}},
)
