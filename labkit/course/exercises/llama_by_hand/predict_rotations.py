"""Predict: launches and rotations

Llama 3.1 8B has 32 layers, a width of 4,096, 32 query heads, 8 heads of keys and values, heads of 128 values, and θ =
500,000. Its llama3 scaling starts from 8,192 positions: pairs that complete at least four turns in these are kept,
pairs that complete less than one are slowed down by a factor of 8, and the rest are in between.

How many launches does this model make for a prompt, if it is computed as in the lesson? How many rows does the stacked
matrix for queries, keys and values have, one per output? How many of the 64 pairs are kept, and how many are slowed
down by the whole factor?
"""

HINTS = ("How many launches did the tiny model make in each of its 6 layers, and around them? And after how many "
         "tokens has pair d made one full turn?",
         "The stacked matrix has one row per element of each head, of queries, keys and values. Pair d turns once in 2 "
         "* pi * 500,000 ** (d / 64) tokens: compare that with 8,192 / 4 and with 8,192.",
         "Eight launches per layer and four more; (32 + 8 + 8) * 128 rows. Count the d from 0 to 63 whose wavelength "
         "is at most 2,048, and those whose is at least 8,192.")
POINTS = 1

# %%
launches = None
qkv_rows = None
pairs_kept = None
pairs_slowed = None  # by the whole factor
### BEGIN SOLUTION
launches = 8 * 32 + 4
qkv_rows = (32 + 8 + 8) * 128
pairs_kept = 29  # those for which 8,192 / (2 * pi * 500,000**(pair / 64)) is 4 or more
pairs_slowed = 29  # and 1 or less
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise
from labkit.course.exercises.llama_by_hand import LLAMA_3_1_8B
from labkit.kernels.rope import frequencies


def _launches_and_rotations() -> dict:
    c = LLAMA_3_1_8B
    plain = frequencies(c.head_dim, c.rope_theta)
    factor = plain / frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
    return {"launches": 8 * c.num_hidden_layers + 4,
            "qkv_rows": (c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim,
            "pairs_kept": int(np.isclose(factor, 1).sum()), "pairs_slowed": int(np.isclose(factor, 8).sum())}


EXERCISE = PredictionExercise(
    name="predict_rotations",
    truth=_launches_and_rotations,
    how={"launches": "Eight in each layer; around them the embedding, the last norm, the gathering of the last rows, "
                     "and the logits.",
         "qkv_rows": "One row per output: 32 heads of queries, 8 of keys and 8 of values, 128 values each.",
         "pairs_kept": "Pair d turns once in 2 pi 500,000^(d / 64) tokens; that must be at most 8,192 / 4. The last "
                       "such d is 28, and pair 0 counts as well.",
         "pairs_slowed": "At least 8,192 tokens per turn: from d = 35 on."},
    wrong={"the launches of the layers alone": {"launches": 256},
           "16 layers, as Llama 3.2 1B has": {"launches": 132},
           "as many key and value heads as query heads": {"qkv_rows": 12288},
           "the values are forgotten: only queries and keys": {"qkv_rows": 5120},
           "a head has 4096 / 8 values: the width is divided by the number of key heads": {"qkv_rows": 24576},
           "pairs are counted from 1: the fastest one is forgotten": {"pairs_kept": 28},
           "the wavelength is the inverse of the frequency: 2 pi is forgotten": {"pairs_kept": 38, "pairs_slowed": 20},
           "those between count as slowed by the whole factor": {"pairs_slowed": 35}},
)
