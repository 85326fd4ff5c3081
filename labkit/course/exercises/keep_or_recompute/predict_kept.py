r"""Predict: what attention keeps

On paper: one sequence has 4,096 tokens, and a layer has 8 heads. How many bytes are its attention weights in bfloat16,
if the whole matrix of each head is kept, hidden weights included? How many bytes is the log-sum-exp, in float32? If the
sequence is twice as long, by what factor does each of them grow? And how many matrix products does the backward pass
have per head if the weights were kept, and how many if they are recomputed? Count every product once, as if a single
launch computed all gradients.
"""

HINTS = ("A head's matrix has one row per query and one column per key. The log-sum-exp has one value per query and "
         "head.",
         "8 * 4,096 * 4,096 weights of 2 bytes, and 8 * 4,096 values of 4 bytes. With kept weights, the products are "
         "those of dV, dP, dQ and dK.",
         "To recompute the weights takes one more, the product of queries and keys.")
POINTS = 1

# %%
weights_bytes = None  # of all heads
lse_bytes = None  # of all heads
weights_factor = None  # for twice the tokens
lse_factor = None  # for twice the tokens
products_kept = None  # of the backward pass, with the weights kept
products_recomputed = None  # and with the weights recomputed
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
         "lse_factor": "It has one value per query, and there are twice as many queries.",
         "products_kept": "dV, dP, dQ and dK are one product each.",
         "products_recomputed": "Those four, and the product of queries and keys, for the scores."},
    wrong={
        "the heads were left out": {"weights_bytes": 2 * TOKENS**2, "lse_bytes": 4 * TOKENS},
        "4 bytes per weight were counted": {"weights_bytes": 4 * HEADS * TOKENS**2},
        "2 bytes per log-sum-exp were counted": {"lse_bytes": 2 * HEADS * TOKENS},
        "only the visible half of the weights was counted": {"weights_bytes": HEADS * TOKENS * (TOKENS + 1)},
        "the weights were taken to grow in proportion to the tokens": {"weights_factor": 2},
        "the products of the forward pass were counted": {"products_kept": 2},
        "the output was taken to be recomputed as well": {"products_recomputed": 6},
    },
)
