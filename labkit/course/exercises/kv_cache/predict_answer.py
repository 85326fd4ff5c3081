"""Predict: an answer with a cache and without one

A model has 10⁹ weights in bfloat16, 25 layers, and 4 heads of keys and values of 100 values each, also in bfloat16. It
gets a prompt of 400 tokens and writes an answer of 100. The prompt's step gives the first of these.

How many rows go through the model in all steps together, with a cache and without one? How many bytes of keys and
values does the cache hold at the end?

A GPU moves 4,000 GB/s and does 800 · 10¹² flops per second. Suppose that a step takes as long as the weights' bytes,
which it reads once, or its flops, two per weight and row, whichever is longer. Leave out attention, keys and values.
How many microseconds do all steps after the prompt's need with a cache, and how many do all 100 steps need without one?
"""

HINTS = ("The first step computes the prompt and gives the first token. How many steps follow, and which token never "
         "goes through the model?",
         "With a cache, each later step has one row; without one, it has a row for each token so far: 400, 401, 402 "
         "and so on. A step lasts as long as the longer of two times: 0.5 ms for the weights' bytes, 2.5 microseconds "
         "for the flops of each row.",
         "400 + 99 rows with a cache; without one 100 * 400 + (0 + 1 + ... + 99). A token keeps 2 * 25 * 4 * 100 * 2 "
         "bytes. 99 steps of 500 microseconds; and without a cache 2.5 microseconds for each of its rows, because 400 "
         "rows take longer than the bytes.")
POINTS = 1

# %%
rows_with = None
rows_without = None
kept_bytes = None
decode_us_with = None
all_us_without = None
### BEGIN SOLUTION
rows_with = 400 + 99  # the last token is not computed with
rows_without = sum(400 + done for done in range(100))
kept_bytes = rows_with * 2 * 25 * 4 * 100 * 2
decode_us_with = 99 * 2 * 10**9 / (4000 * 10**3)
all_us_without = rows_without * 2 * 10**9 / (800 * 10**6)  # 400 rows take 1,000 microseconds, longer than the bytes
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _answer() -> dict:
    prompt, tokens, weights = 400, 100, 10**9
    kept, rows = 2 * 25 * 4 * 100 * 2, [prompt + done for done in range(tokens)]  # bytes of a token; without a cache
    by_bytes = 2 * weights / 4_000_000  # us, at 4,000 GB/s
    step = [max(by_bytes, 2 * weights * count / 800_000_000) for count in rows]  # us, at 800 TFLOP/s
    return {"rows_with": prompt + tokens - 1, "rows_without": sum(rows), "kept_bytes": (prompt + tokens - 1) * kept,
            "decode_us_with": (tokens - 1) * by_bytes, "all_us_without": sum(step)}


EXERCISE = PredictionExercise(
    name="predict_answer",
    truth=_answer,
    how={"rows_with": "400 rows of the prompt, and one per token of the answer except the last.",
         "rows_without": "The first step has 400 rows, the last one 499: 100 steps with 449.5 rows on average.",
         "kept_bytes": "A key and a value of 100 elements in each of 4 heads and 25 layers, 2 bytes per element, are "
                       "40,000 bytes, for each of 499 tokens.",
         "decode_us_with": "A step of one row takes as long as the weights' 2,000 MB: 500 microseconds. 99 follow.",
         "all_us_without": "400 rows take 1,000 microseconds for their flops, longer than the bytes, and later steps "
                           "have more. So all rows count, with 2.5 microseconds each."},
    wrong={"the last token goes through the model as well: nothing is computed after it": {
               "rows_with": 500, "kept_bytes": 20_000_000, "decode_us_with": 50_000},
           "a step also computes the token that it should predict: 401 rows in the first, 500 in the last": {
               "rows_without": 45_050, "all_us_without": 112_625},
           "the prompt is computed again in every step, but not the answer so far": {
               "rows_without": 40_000, "all_us_without": 100_000},
           "only the keys, without the values": {"kept_bytes": 9_980_000},
           "only one layer": {"kept_bytes": 798_400},
           "a single row takes as long as its flops: the weights are not read": {"decode_us_with": 247.5},
           "steps without a cache take as long as the weights' bytes, however many rows they have": {
               "all_us_without": 50_000},
           "bytes and flops one after the other, not at the same time": {
               "decode_us_with": 49_747.5, "all_us_without": 162_375}},
)
