"""Predict: bytes per flop

The pipelined kernel at M = N = K = 4,096 on a GPU with 132 SMs. A block computes 128 × 128 elements, and two blocks fit
on an SM.

- `loaded`: how many elements does one block load from global memory in all?
- `flop_per_byte`: how many flops does it do per byte of these?
- `rounds`: as many blocks run at a time as fit on the whole GPU. How many rounds (the waves of lesson 03) do all blocks
  need, with the last one counted as a whole?
- `ring_bytes`: how many bytes of shared memory does a block use? It has three pairs of tiles of 16 steps of k each, and
  a step has 128 + 4 elements of `a` and 128 of `b`.
"""

HINTS = ("Which rows of a and which columns of b does a tile of 128 x 128 elements need, and how long are they?",
         "flop_per_byte: 2 flops for each element of the tile and each k, divided by 4 bytes for each element loaded. "
         "rounds: 1,024 blocks, 264 at a time.",
         "loaded = 2 * 128 * 4096. flop_per_byte = 2 * 128 * 128 * 4096 / (4 * loaded). ring_bytes = 3 * 16 * (128 + 4 "
         "+ 128) * 4.")
POINTS = 2

# %%
loaded = None
flop_per_byte = None
rounds = None
ring_bytes = None
### BEGIN SOLUTION
loaded = 2 * 128 * 4096
flop_per_byte = 2 * 128 * 128 * 4096 // (4 * loaded)  # 32
rounds = -(-32 * 32 // (2 * 132))  # 1,024 blocks, 264 at a time: 3.9
ring_bytes = 3 * 16 * (128 + 4 + 128) * 4  # more than 48 KB
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

TRAFFIC = {"loaded": 2 * 128 * 4096, "flop_per_byte": 32, "rounds": 4, "ring_bytes": 3 * 16 * (132 + 128) * 4}

EXERCISE = PredictionExercise(
    name="predict_traffic",
    truth=lambda: TRAFFIC,
    how={"loaded": "128 rows of a and 128 columns of b, each 4,096 long",
         "flop_per_byte": "2 * 128 * 128 * 4,096 flops for 4 * `loaded` bytes",
         "rounds": "32 * 32 blocks, 2 * 132 at a time, rounded up",
         "ring_bytes": "three pairs of tiles of 16 steps, each with 132 + 128 elements of 4 bytes"},
    wrong={"each element of the tile was taken to load a row and a column of its own":
           {**TRAFFIC, "loaded": 2 * 128 * 128 * 4096, "flop_per_byte": 0.25},
           "elements were counted, not bytes": {**TRAFFIC, "flop_per_byte": 128},
           "one block was taken to fit on an SM": {**TRAFFIC, "rounds": 8},
           "the four elements of padding were left out": {**TRAFFIC, "ring_bytes": 3 * 16 * 256 * 4}},
)

AFTER = """
Compare `flop_per_byte` with the intensity at which both limits bind, in the first table of lesson 06. Besides, most of
those bytes come from the L2 cache, since all blocks in a row of tiles read the same rows of `a`. And how full is the
last round? What is missing is the tail.
"""
