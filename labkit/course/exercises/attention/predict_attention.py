"""Predict: flops, bytes and threads of attention

2,048 tokens, 16 heads of 96, float32, every query sees every key. A block of the three-pass kernel has 256 threads
for one query of one head. A MB has 1,000,000 bytes.
"""

HINTS = ("How many scores does one head have, and how many flops does each cost? The weighted values cost as many "
         "again.",
         "Four arrays of 2,048 x 16 x 96 elements are read or written at least; the scores are 16 matrices of 2,048 x "
         "2,048. In the third pass a thread has one of the 96 columns.",
         "4 * 2048**2 * 16 * 96 / 1e9; 4 * 4 * 2048 * 16 * 96 / 1e6; 4 * 16 * 2048**2 / 1e6; 4 * 2048; 256 - 96; one "
         "line per lane; 2,048 times the size of the keys.")
POINTS = 2

# %%
gflop = None  # billions of flops of both products together
least_mb = None  # MB that have to be read and written at least
scores_mb = None  # MB of all scores
row_bytes = None  # bytes of shared memory that a block needs for its row of scores
idle = None  # threads of a block that have no work in the third pass
lines = None  # lines of 128 bytes that a warp touches in one request for elements of 32 keys
keys_mb = None  # MB of keys that all blocks together request in the first pass
### BEGIN SOLUTION
gflop = 4 * 2048**2 * 16 * 96 / 1e9
least_mb = 4 * 4 * 2048 * 16 * 96 / 1e6
scores_mb = 4 * 16 * 2048**2 / 1e6
row_bytes = 4 * 2048
idle = 256 - 96
lines = 32
keys_mb = 4 * 16 * 2048 * 2048 * 96 / 1e6  # 2,048 times what they take in memory
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _asked():
    tokens, heads, size, block, warp = 2048, 16, 96, 256, 32
    return {"gflop": 4 * tokens**2 * heads * size / 1e9, "least_mb": 4 * 4 * tokens * heads * size / 1e6,
            "scores_mb": 4 * heads * tokens**2 / 1e6, "row_bytes": 4 * tokens, "idle": block - size,
            "lines": warp, "keys_mb": 4 * heads * tokens * tokens * size / 1e6}


EXERCISE = PredictionExercise(
    name="predict_attention",
    truth=_asked,
    how={"gflop": "a score is a dot product of 96 elements, two flops each; the weighted values take as many again",
         "least_mb": "queries, keys and values are read once and the output is written once: four arrays of 2,048 rows "
                     "with 16 * 96 elements",
         "scores_mb": "one score per query, key and head",
         "row_bytes": "one float32 per key",
         "idle": "in the third pass a thread has one column of the values, and a head has 96 of them",
         "lines": "in the first pass each lane reads an element of another key, and the keys are a row of qkv apart",
         "keys_mb": "each of a head's 2,048 queries requests all of its 2,048 keys, 96 elements each"},
    wrong={"a multiply-add is two flops": {"gflop": 2 * 2048**2 * 16 * 96 / 1e9},
           "the heads are left out: each has its own matrix": {"scores_mb": 4 * 2048**2 / 1e6},
           "a float32 has four bytes": {"row_bytes": 2048, "scores_mb": 16 * 2048**2 / 1e6},
           "counts the threads that work": {"idle": 96},
           "counts the keys once, as if all queries shared them": {"keys_mb": 4 * 16 * 2048 * 96 / 1e6},
           "neighbouring lanes do not share a line: their keys are a row of qkv apart": {"lines": 1}},
)
