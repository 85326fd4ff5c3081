r"""Predict: what attention keeps

On paper: one sequence has 4,096 tokens, and a layer has 8 heads. How many bytes do the weights of its attention take in
bfloat16, if the whole matrix of each head is kept, hidden weights included? How many does the log-sum-exp take, in
float32? If the sequence is twice as long, by which factor does each of them grow? And how many products of matrices
does the backward pass have for each head, if the weights were kept, and if they are computed again? Count every
product once, as if a single launch computed all gradients.
"""

HINTS = ("A head's matrix has a row for each query and a column for each key. The log-sum-exp has one value for each "
         "query and head.",
         "8 * 4,096 * 4,096 weights of 2 bytes, and 8 * 4,096 values of 4 bytes. With kept weights, the products are "
         "those of dV, dP, dQ and dK.",
         "Computing the weights again takes the product of queries and keys, one more.")
POINTS = 1

# %%
weights_bytes = None  # of all heads
lse_bytes = None  # of all heads
weights_factor = None  # for twice the tokens
lse_factor = None  # for twice the tokens
products_kept = None  # of the backward pass, with the weights kept
products_recomputed = None  # and with the weights computed again
### BEGIN SOLUTION
weights_bytes = 268_435_456
lse_bytes = 131_072
weights_factor = 4
lse_factor = 2
products_kept = 4
products_recomputed = 5
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

TOKENS, HEADS = 4096, 8


def _truth() -> dict:
    return {"weights_bytes": 2 * HEADS * TOKENS**2, "lse_bytes": 4 * HEADS * TOKENS, "weights_factor": 4,
            "lse_factor": 2, "products_kept": 4, "products_recomputed": 5}


EXERCISE = PredictionExercise(
    name="predict_kept",
    truth=_truth,
    how={"weights_bytes": "8 matrices of 4,096 x 4,096 weights, 2 bytes each.",
         "lse_bytes": "4,096 values for each of 8 heads, 4 bytes each.",
         "weights_factor": "The matrix has twice the rows and twice the columns.",
         "lse_factor": "It has a value for each query, and there are twice as many.",
         "products_kept": "dV, dP, dQ and dK are one product each.",
         "products_recomputed": "The four, and that of queries and keys, for the scores."},
    wrong={
        "the heads were left out": {"weights_bytes": 2 * TOKENS**2, "lse_bytes": 4 * TOKENS},
        "4 bytes were counted for a weight": {"weights_bytes": 4 * HEADS * TOKENS**2},
        "2 bytes were counted for a log-sum-exp": {"lse_bytes": 2 * HEADS * TOKENS},
        "only the visible half of the weights was counted": {"weights_bytes": HEADS * TOKENS * (TOKENS + 1)},
        "the weights were taken to grow as the tokens do": {"weights_factor": 2},
        "the products of the forward pass were counted": {"products_kept": 2},
        "the output was taken to be computed again as well": {"products_recomputed": 6},
    },
)
