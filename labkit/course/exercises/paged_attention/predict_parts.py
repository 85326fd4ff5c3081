"""Predict: parts and their sums

Two parts of a row's keys are to be joined. The exponentials have the base 2, as in the kernels, and sums are relative
to the largest score of their part. For example, with `row_max` 1 and 2, and `row_sum` 4 and 3, the two joined have
`row_max` 2 and `row_sum` 4 / 2 + 3 = 5.

Here the first part has `row_max` 3, `row_sum` 6, and `acc`, the sum of the weighted values in one column, 12. The
second has 5, 2.5 and 10. What is the `row_sum` of the two joined? And what is the result in that column?

The kernels cut the pages of a sequence into parts. Each has a 16th of the pages, rounded up to a multiple of 4, but at
least 8; the last one has the rest. A page has 16 tokens. How many parts does a sequence of 1,000 tokens have, and one
of 2,600?
"""

HINTS = ("The part with the largest score 3 is brought to 5. By which power of 2 is everything in it multiplied?",
         "2 ** (3 - 5) is a quarter: of the sum 6, and of its acc. For the parts, round a 16th of the pages up to a "
         "multiple of 4, but take at least 8; how many parts of this size do the pages need?",
         "6 / 4 + 2.5, and (12 / 4 + 10) divided by that sum. 63 pages in parts of 8, and 163 pages in parts of 12; "
         "the last part may be smaller.")
POINTS = 1

# %%
row_sum = None
result = None
parts_of_1000 = None
parts_of_2600 = None
### BEGIN SOLUTION
row_sum = 6 / 4 + 2.5  # 2 ** (3 - 5) is a quarter
result = (12 / 4 + 10) / (6 / 4 + 2.5)
parts_of_1000 = -(-63 // 8)  # a 16th of 63 pages is 4
parts_of_2600 = -(-163 // 12)  # a 16th of 163 pages is 11, rounded up to 12
### END SOLUTION

# %% [check]
import math

from labkit.course.exercises import PredictionExercise
from labkit.kernels.attention.pages import pages_for


def _parts_predicted() -> dict:
    factor = 2.0 ** (3 - 5)  # of the first part, which has 3, 6 and 12; the other has 5, 2.5 and 10
    row_sum = 6 * factor + 2.5
    return {"row_sum": row_sum, "result": (12 * factor + 10) / row_sum,
            "parts_of_1000": _parts(1000), "parts_of_2600": _parts(2600)}


def _parts(tokens: int) -> int:
    """As find_parts of labkit.kernels.attention.paged_merge counts them; tests compare the two."""
    pages = pages_for(tokens)
    share = max(8, 4 * math.ceil(math.ceil(pages / 16) / 4))
    return math.ceil(pages / share)


EXERCISE = PredictionExercise(
    name="predict_parts",
    truth=_parts_predicted,
    how={"row_sum": "The larger maximum is 5. The first part's sum is multiplied by 2 ** (3 - 5): 6 / 4 + 2.5.",
         "result": "acc is brought to the same maximum, 12 / 4 + 10, and divided by the sum of all weights, 4.",
         "parts_of_1000": "63 pages: a 16th of them is 4, rounded up, but a part has at least 8. So 7 parts have 8 "
                          "pages, and one has 7.",
         "parts_of_2600": "163 pages: a 16th of them is 11, rounded up, and the next multiple of 4 is 12. So 13 parts "
                          "have 12 pages, and one has 7."},
    wrong={"the sums are added without bringing them to one maximum": {"row_sum": 8.5},
           "both parts are brought to the smaller maximum": {"row_sum": 16},
           "the mean of the two parts' results": {"result": 3},
           "always 16 parts": {"parts_of_1000": 16, "parts_of_2600": 16},
           "the size of a part is not rounded up to a multiple of 4": {"parts_of_2600": 15}},
)
