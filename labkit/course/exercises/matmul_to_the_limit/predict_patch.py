"""Predict: a thread tile that is not square

Blocks have 16 × 16 threads, and each thread computes a tile of 6 rows and 4 columns. Tiles are 8 deep. Work out on
paper:

- `loads`: how many elements does a thread read from shared memory in one step of k?
- `products`: how many multiply-adds does it do with them?
- `busy`: for what percentage of the time are the multiply-add units busy at most, if a warp's load from shared memory
  takes as long as four of its multiply-adds?
- `tile_bytes`: how many bytes of shared memory does a pair of tiles need, one of `a` and one of `b`?
"""

HINTS = ("The thread tile has 6 rows and 4 columns. How many rows of a and how many columns of b does it touch?",
         "loads counts rows and columns, products counts elements. busy: the units could do four products in the time "
         "of one load.",
         "busy = 100 * products / (4 * loads). The tiles cover 16 * 6 rows and 16 * 4 columns, 8 steps, 4 bytes "
         "each.")
POINTS = 1

# %%
loads = None
products = None
busy = None  # in percent
tile_bytes = None
### BEGIN SOLUTION
loads = 6 + 4
products = 6 * 4
busy = 100 * products // (4 * loads)  # 60
tile_bytes = (16 * 6 + 16 * 4) * 8 * 4
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

THREAD_TILE = {"loads": 6 + 4, "products": 6 * 4, "busy": 60, "tile_bytes": (96 + 64) * 8 * 4}

EXERCISE = PredictionExercise(
    name="predict_patch",
    truth=lambda: THREAD_TILE,
    how={"loads": "one element per row of the thread tile, and one per column",
         "products": "each element of a is multiplied by each of b",
         "busy": "100 * products / (4 * loads)",
         "tile_bytes": "16 threads times 6 rows, 16 threads times 4 columns, 8 steps of k, 4 bytes"},
    wrong={"one load was counted for each factor of each product": {**THREAD_TILE, "loads": 48, "busy": 12},
           "shared memory was taken to serve four warps at a time as well": {**THREAD_TILE, "busy": 100},
           "one tile was counted, not two": {**THREAD_TILE, "tile_bytes": 96 * 8 * 4}},
)
