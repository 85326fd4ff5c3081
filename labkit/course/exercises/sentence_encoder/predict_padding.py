"""Predict: what padding costs

A batch holds six sentences, of 4, 9, 12, 18, 25 and 44 tokens. How many rows go through the linear layers if each
sentence is padded to 128 rows? If each is padded to the longest, rounded up to a multiple of 16? And if they are packed
end to end? In attention each query of a sentence meets each of its keys. How many such pairs does a head have in the
second layout, if padding is computed like everything else? And how many in the third?
"""

HINTS = ("How many rows does a single sentence have in each of the three layouts?",
         "128 rows; 48 rows, the next multiple of 16 after 44; and its own tokens. The pairs of a sentence are the "
         "square of its rows.",
         "6 * 128; 6 * 48; the sum of the lengths; 6 * 48 * 48; and the sum of the squares of the lengths.")
POINTS = 1

# %%
rows_to_128 = None
rows_to_longest = None  # rounded up to a multiple of 16
rows_packed = None
pairs_to_longest = None  # of a query and a key, padding included
pairs_packed = None
### BEGIN SOLUTION
rows_to_128 = 6 * 128
rows_to_longest = 6 * 48
rows_packed = 4 + 9 + 12 + 18 + 25 + 44
pairs_to_longest = 6 * 48 * 48
pairs_packed = 4**2 + 9**2 + 12**2 + 18**2 + 25**2 + 44**2
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise
from labkit.models.minilm import packed, padded, padded_to_128

LENGTHS = np.array([4, 9, 12, 18, 25, 44])


def _padding() -> dict:
    wide, short, none = (form(LENGTHS)[0] for form in (padded_to_128, padded, packed))
    return {"rows_to_128": wide.rows, "rows_to_longest": short.rows, "rows_packed": none.rows,
            "pairs_to_longest": short.sentences * short.longest**2, "pairs_packed": int((LENGTHS**2).sum())}


EXERCISE = PredictionExercise(
    name="predict_padding",
    truth=_padding,
    how={"rows_to_128": "Six sentences of 128 rows each.",
         "rows_to_longest": "The longest has 44 tokens, and the next multiple of 16 is 48: six times 48.",
         "rows_packed": "4 + 9 + 12 + 18 + 25 + 44, and no other rows.",
         "pairs_to_longest": "48 queries see 48 keys in each of six sentences.",
         "pairs_packed": "Each sentence has the square of its length: 16 + 81 + 144 + 324 + 625 + 1,936."},
    wrong={"the longest is not rounded up to 16": {
               "rows_to_128": 768, "rows_to_longest": 264, "rows_packed": 112, "pairs_to_longest": 11616,
               "pairs_packed": 3126},
           "each sentence is rounded up separately, not the longest for all": {
               "rows_to_128": 768, "rows_to_longest": 160, "rows_packed": 112, "pairs_to_longest": 5120,
               "pairs_packed": 3126},
           "every row sees every row: a token sees only its own sentence": {
               "rows_to_128": 768, "rows_to_longest": 288, "rows_packed": 112, "pairs_to_longest": 82944,
               "pairs_packed": 12544},
           "each pair is counted once, as if a query saw no later keys": {
               "rows_to_128": 768, "rows_to_longest": 288, "rows_packed": 112, "pairs_to_longest": 7056,
               "pairs_packed": 1619},
           "only the rows of padding are counted": {
               "rows_to_128": 656, "rows_to_longest": 176, "rows_packed": 0, "pairs_to_longest": 10698,
               "pairs_packed": 0}},
)
