"""Predict: what fits

*wgmma_specialised* has tiles of 128 × 256 in float16. A stage holds 64 steps of k: 128 rows of `a` and 256 columns of
`b`. A block has 232,448 bytes of shared memory. Besides the stages, these have to hold the block's finished tile of
`out`, in float16. Two warpgroups multiply, 64 rows each.

For *wgmma_cp_async*, with tiles of 128 × 128, a stage would take (128 + 128) · 64 · 2 = 32,768 bytes, and a thread
would have 64 accumulators.

- `stage_bytes`: how many bytes does a stage take?
- `stages`: how many whole stages fit?
- `accumulators`: how many float32 accumulators does a thread of a consumer hold?
- `products`: how many `wgmma` m64n256k16 does a block execute per stage?
- `place`: at which position of its row does TMA store piece 6 of row 11 of a tile, if a row has eight pieces?
"""

HINTS = ("How many values of a and of b does a stage hold, and how many bytes does a float16 have? What else needs "
         "shared memory?",
         "The finished tile has 2 * 128 * 256 bytes. Each consumer has 64 x 256 accumulators for 128 threads, and "
         "needs one product for every 16 steps of k. The swizzle repeats every eight rows.",
         "stages = (232448 - 65536) // stage_bytes; accumulators = 64 * 256 // 128; products = 2 consumers times 64 / "
         "16; place = 6 ^ (11 % 8).")
POINTS = 2

# %%
stage_bytes = None
stages = None
accumulators = None
products = None
place = None
### BEGIN SOLUTION
stage_bytes = (128 + 256) * 64 * 2
stages = (232448 - 128 * 256 * 2) // stage_bytes  # 3
accumulators = 64 * 256 // 128
products = 2 * (64 // 16)
place = 5  # 6 ^ 3: row 11 is the row 3 of its group of eight
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

STAGES = {"stage_bytes": (128 + 256) * 64 * 2, "stages": 3, "accumulators": 128, "products": 8, "place": 6 ^ 3}

EXERCISE = PredictionExercise(
    name="predict_stages",
    truth=lambda: STAGES,
    how={"stage_bytes": "128 rows of a and 256 columns of b, 64 steps of k, 2 bytes",
         "stages": "(232,448 - 2 * 128 * 256) / stage_bytes, rounded down",
         "accumulators": "128 * 256 elements, divided among the 256 threads of two warpgroups",
         "products": "each consumer needs one for every 16 of the 64 steps of k",
         "place": "6 XOR (11 modulo 8)"},
    wrong={"values were counted, not bytes": {"stage_bytes": 24576, "stages": 6},
           "the finished tile was given no memory": {"stages": 4},
           "all 384 threads were taken to hold accumulators": {"accumulators": 85},
           "the row was not reduced modulo 8": {"place": 6 ^ 11},
           "the products of only one consumer were counted": {"products": 4}},
)

AFTER = """
Shared memory limits how many stages there are, and registers limit how large a tile can be. With 128 accumulators in
each thread of a consumer, it makes sense that the producer gives up registers.
"""
