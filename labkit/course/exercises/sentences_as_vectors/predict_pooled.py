"""Predict: what reaches an embedding

To keep it simple, the rows of this model have only two elements. After the last layer, a sentence has the rows (3, 0)
and (0, 4). Its embedding is their mean, scaled to length 1. How long is the mean before it is scaled? What is the
cosine between the embedding and the query (0, 1)?

Two kernels are wrong. One of them divides the sum by 16, the rows of a padded sentence, instead of 2. The other reads
one row too many, which holds (1, −1). What is the cosine between the wrong embedding and the right one in each case?

Last, a batch of the real width, 384. Twelve sentences are padded to 16 rows each, and have 16, 9, 16, 4, 16, 16, 7, 11,
16, 2, 5 and 13 tokens. Each row of padding holds NaN in its first column and ordinary values in the rest. A kernel
multiplies the rows by a mask, takes the mean and scales it to length 1. How many of the 12 × 384 elements are NaN?
"""

HINTS = ("Which property of the mean is left after it has been scaled to length 1?",
         "Only its direction. A wrong divisor does not change that, an extra row does. And the length of a row is "
         "the root of the sum of all its squares: what is it when one of them is NaN?",
         "The mean is (1.5, 2). For a cosine, multiply the sums of the rows and divide by their lengths: (3, 4) with "
         "(0, 1), with (3, 4) and with (4, 3). Then 384 for each sentence that has padding.")
POINTS = 1
NEEDS = ("mean_pool",)

# %%
length_of_mean = None
with_query = None
divided_by_16 = None
one_row_more = None
nan_numbers = None
### BEGIN SOLUTION
length_of_mean = 2.5
with_query = 0.8
divided_by_16 = 1
one_row_more = 24 / 25
nan_numbers = 7 * 384
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise
from labkit.kernels.pooling import l2_normalize_reference

TOKENS = np.array([[3.0, 0.0], [0.0, 4.0]])  # the rows of a sentence
BEHIND = np.array([[1.0, -1.0]])  # the first row of its padding
ROWS, COLUMNS = 16, 384  # of a padded sentence
COUNTS = np.array([16, 9, 16, 4, 16, 16, 7, 11, 16, 2, 5, 13])  # tokens


def _pooled() -> dict:
    mean, query = TOKENS.mean(axis=0), np.array([0.0, 1.0])
    right, diluted, longer = l2_normalize_reference(
        np.array([mean, TOKENS.sum(axis=0) / ROWS, np.concatenate([TOKENS, BEHIND]).mean(axis=0)]))
    x = np.ones((COUNTS.size, ROWS, COLUMNS))
    mask = np.arange(ROWS) < COUNTS[:, None]
    x[~mask, 0] = np.nan
    masked = l2_normalize_reference((x * mask[..., None]).sum(axis=1) / COUNTS[:, None])
    return {"length_of_mean": float(np.linalg.norm(mean)), "with_query": round(float(right @ query), 9),
            "divided_by_16": round(float(right @ diluted), 9), "one_row_more": round(float(right @ longer), 9),
            "nan_numbers": int(np.isnan(masked).sum())}


EXERCISE = PredictionExercise(
    name="predict_pooled",
    truth=_pooled,
    how={"length_of_mean": "The mean is (1.5, 2), and the root of 2.25 + 4 is 2.5.",
         "with_query": "The mean divided by its length is (0.6, 0.8), and the query picks its second element.",
         "divided_by_16": "Divided by 2 or by 16, the sum has the same direction, and scaling to length 1 removes the "
                          "rest.",
         "one_row_more": "The sum is (4, 3) instead of (3, 4): (4 * 3 + 3 * 4) / (5 * 5).",
         "nan_numbers": "A mean with one NaN has the length NaN, and all 384 elements are divided by it. Seven of the "
                        "sentences have padding."},
    wrong={"the sum instead of the mean": {"length_of_mean": 5},
           "the product of the query and the mean, not scaled to length 1": {"with_query": 2},
           "a wrong divisor changes the length of the mean, but not its direction": {"divided_by_16": 0.125},
           "the row of padding alone, not added to the others": {"one_row_more": -0.141421},
           "the NaN does not stay in its column: all elements are divided by the length": {"nan_numbers": 7},
           "sentences without padding are counted, too": {"nan_numbers": 4608},
           "the sentences without padding, instead of those with it": {"nan_numbers": 1920}},
)
