"""Predict: seven tokens

The weights of seven tokens, in the order of the vocabulary, are 10, 20, 1, 40, 3, 25 and 1. They are the exponentials
of the logits at temperature 1, scaled so that their sum is 100. Tokens are numbered from 0.

- `top_p` = 0.8 keeps the tokens whose weight is at least a threshold. What is the largest threshold with which they
  still reach 80? For 0.4 it would be 40: token 3 alone. How many passes over the row does a bit-by-bit search make if
  it starts with the highest bit of the largest weight?
- The kept weights are then laid end to end, in the order of the vocabulary, and a random number below their sum is
  drawn. Which token does the number 5 select, and which does 60?
- How many tokens does `top_p` = 0.8 keep at temperature 0.5, by which each logit is divided? And how many do `min_p` =
  0.3 and `top_p` = 0.75 keep together, at temperature 1? `min_p` comes first, and `top_p` is a fraction of the weights
  that it leaves.
"""

HINTS = ("Sort the weights from the largest down and add them up. After how many is 80 reached?",
         "The largest threshold that still reaches the mass is the weight of the last token kept. A weight of 40 has "
         "as many bits as its binary form has digits. Only kept tokens have intervals, in the order of the "
         "vocabulary. A logit divided by 0.5 is doubled: what happens to its exponential?",
         "40 + 25 + 20 = 85 reach 80. Tokens 1, 3 and 5 have the intervals 0 to 19, 20 to 59 and 60 to 84. At "
         "temperature 0.5 the weights are squared: 1600, 625, 400, 100, 9, 1 and 1. min_p leaves weights of at least "
         "0.3 x 40 = 12, and top_p needs 0.75 of their sum.")
POINTS = 2

# %%
threshold = None
passes = None
token_5 = None  # the token for the random number 5
token_60 = None
kept_cold = None  # tokens, at temperature 0.5
kept_both = None  # tokens, with min_p and top_p
### BEGIN SOLUTION
threshold = 20
passes = 6
token_5 = 1
token_60 = 5
kept_cold = 2
kept_both = 2
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise
from labkit.course.exercises.the_engine import drawn
from labkit.kernels.sampling_reference import kept_reference

SEVEN = np.array([10, 20, 1, 40, 3, 25, 1])  # the weights, in the order of the vocabulary


def _sampled() -> dict:
    logits = np.log(SEVEN).astype(np.float32)
    kept, cold, both = (kept_reference(logits, temperature, 0, top_p, min_p) > 0
                        for temperature, top_p, min_p in ((1.0, 0.8, 0.0), (0.5, 0.8, 0.0), (1.0, 0.75, 0.3)))
    token_5, token_60 = drawn(np.array([SEVEN * kept] * 2), np.array([5, 60])).tolist()
    return {"threshold": int(SEVEN[kept].min()), "passes": int(SEVEN.max()).bit_length(), "token_5": token_5,
            "token_60": token_60, "kept_cold": int(cold.sum()), "kept_both": int(both.sum())}


SAMPLED = {"threshold": 20, "passes": 6, "token_5": 1, "token_60": 5, "kept_cold": 2, "kept_both": 2}

EXERCISE = PredictionExercise(
    name="predict_sampling",
    truth=_sampled,
    how={"threshold": "40 + 25 = 65 is less than 80; with 20 the sum is 85. A threshold of 21 would keep only 65.",
         "passes": "The largest weight, 40, has six bits, and each bit needs one pass.",
         "token_5": "Tokens 1, 3 and 5 are kept, with weights 20, 40 and 25. Their intervals are in the order of the "
                    "vocabulary: 0 to 19, 20 to 59, 60 to 84.",
         "token_60": "60 is the first number of the third interval: 20 + 40.",
         "kept_cold": "At temperature 0.5 the logits are doubled, so the weights are squared: 1600 + 625 = 2225, and "
                      "80% of the total, 2736, is 2189.",
         "kept_both": "min_p keeps weights of at least 0.3 * 40 = 12: 40, 25 and 20, together 85. 75% of that is "
                      "63.75, and 40 + 25 reach it."},
    wrong={"the token with which the mass is reached is left out": {
               **SAMPLED, "threshold": 25, "token_5": 3, "kept_cold": 1, "kept_both": 1},
           "the intervals are laid out in the order of the weights": {**SAMPLED, "token_5": 3},
           "tokens that are not kept have intervals as well": {**SAMPLED, "token_5": 0, "token_60": 3},
           "an interval includes the first number of the next": {**SAMPLED, "token_60": 3},
           "a lower temperature does not change how many tokens are kept": {**SAMPLED, "kept_cold": 3},
           "top_p is a fraction of all weights, not of those that min_p keeps": {**SAMPLED, "kept_both": 3},
           "min_p is a probability, not a fraction of the largest one": {**SAMPLED, "kept_both": 1},
           "one pass per token": {**SAMPLED, "passes": 7}},
)
