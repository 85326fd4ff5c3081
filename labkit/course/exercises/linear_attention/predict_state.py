"""Predict: a state and a cache

A head has 64 elements. How many elements does linear attention keep for it, S and z together, and how many does a cache
of keys and values hold after 1,000 tokens? What is the smallest number of tokens with which the cache is the larger of
the two?

Causal softmax attention computes n(n + 1) / 2 pairs, with 2 × 64 flops per score and as many per weighted value. For 2
tokens that is 3 pairs and 768 flops. Per token, linear attention with a running state spends 2 × 64² flops on adding to
S and as many on reading from it. At how many tokens do both need the same number of flops? Leave out the exponentials,
z and the divisions.
"""

HINTS = ("What does each of the two keep per head, and which of them grows with the number of tokens?",
         "S is a 64 x 64 matrix and z has 64 elements; a token adds a key and a value to the cache. For the flops, "
         "write both counts as formulas in n and cancel what they have in common.",
         "64 * 64 + 64, and 2 * 1000 * 64. The cache is larger as soon as 128 n exceeds 4,160. 4 * 64 * n(n + 1) / 2 = "
         "4 * 64 * 64 * n means n + 1 = 128.")
POINTS = 1

# %%
state_numbers = None
cache_numbers = None
cache_larger_from = None  # tokens
equal_flops_at = None  # tokens
### BEGIN SOLUTION
state_numbers = 64 * 64 + 64
cache_numbers = 2 * 1000 * 64
cache_larger_from = 33  # 2 * 64 * 32 is 4,096, and 2 * 64 * 33 is 4,224
equal_flops_at = 127  # 4 * 64 * n * (n + 1) / 2 = 4 * 64 * 64 * n: n + 1 is 128
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

EXERCISE = PredictionExercise(
    name="predict_state",
    truth=lambda: {"state_numbers": 64 * 65, "cache_numbers": 2 * 1000 * 64,
                   "cache_larger_from": 64 * 65 // (2 * 64) + 1, "equal_flops_at": 2 * 64 - 1},
    how={"state_numbers": "S has 64 rows of 64 elements, and z has 64.",
         "cache_numbers": "Each token has a key and a value of 64 elements.",
         "cache_larger_from": "A token adds 128 elements to the cache: 32 tokens have 4,096, and 33 have 4,224.",
         "equal_flops_at": "4 * 64 * n(n + 1) / 2 against 4 * 64 * 64 * n: they are equal if n + 1 is 128."},
    wrong={"z is left out": {"state_numbers": 4096},
           "the cache has keys or values, not both": {"cache_numbers": 64_000, "cache_larger_from": 66},
           "z is left out of the comparison": {"cache_larger_from": 32},
           "all n * n pairs are computed": {"equal_flops_at": 64},
           "the scores are counted, but not the weighted values": {"equal_flops_at": 255},
           "n * n / 2 pairs, without half the diagonal": {"equal_flops_at": 128}},
)
