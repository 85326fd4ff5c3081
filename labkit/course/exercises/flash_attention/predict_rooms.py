"""Predict: shared memory and tiles

500 tokens, 12 heads of 64, float32. The three-pass kernel keeps a row of scores in shared memory. `whole_matrix` of
lesson 24 keeps a head's whole matrix. Flash attention has blocks of 64 queries and tiles of 64 keys.
"""

HINTS = ("How many groups of 64 queries do 500 make, and does the last group need a block as well?",
         "Eight groups. Each head needs eight blocks, and under a causal mask block b of a head needs tiles 0 to b. "
         "Without a mask each block goes through all keys once.",
         "4 * 500; 4 * 500 * 500 / 1000; 12 * 8; 1 + 2 + ... + 8; 500 / 8.")
POINTS = 2

# %%
row_bytes = None  # bytes of shared memory that a block of the three-pass kernel needs for its scores
matrix_kb = None  # KB, of 1,000 bytes, that a head's whole matrix of scores needs
blocks = None  # blocks that flash attention launches
tiles_causal = None  # tiles that the blocks of one head go through under a causal mask, in total
fewer = None  # how many times fewer keys and values flash attention loads than one query per block, without a mask
### BEGIN SOLUTION
row_bytes = 4 * 500
matrix_kb = 4 * 500 * 500 / 1000
blocks = 12 * 8  # 500 queries are eight groups of 64, the last with 52
tiles_causal = 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8
fewer = 500 / 8  # a head has 8 blocks instead of 500, and each goes through all keys and values once
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _rooms():
    from labkit.kernels.attention.flash import make_flash

    tokens, heads, size = 500, 12, 64
    kernel = make_flash(size, 4)
    tiles = -(-tokens // kernel.rows)
    return {"row_bytes": 4 * tokens, "matrix_kb": 4 * tokens * tokens / 1000, "blocks": heads * tiles,
            "tiles_causal": tiles * (tiles + 1) // 2, "fewer": tokens / tiles}


EXERCISE = PredictionExercise(
    name="predict_rooms",
    truth=_rooms,
    how={"row_bytes": "one float32 per key, and there are as many keys as tokens",
         "matrix_kb": "a row of scores for each of the 500 queries; a KB has 1,000 bytes here",
         "blocks": "500 queries in groups of 64, the last of them not full; and each head needs all of these groups",
         "tiles_causal": "the first group of queries needs one tile of keys, the second two, and so on",
         "fewer": "every block goes through all keys and values once: how many blocks does a head have before, how "
                  "many after?"},
    wrong={"the last group, which is not full, is forgotten": {"blocks": 84, "tiles_causal": 28,
                                                              "fewer": 500 / 7},
           "the tiles on the diagonal are left out": {"tiles_causal": 28},
           "counts the tiles of a causal mask as half of all": {"tiles_causal": 32},
           "a float32 has four bytes": {"row_bytes": 500, "matrix_kb": 250}},
)
