"""Predict, then observe: loads with and without tiles

`a` is 40 × 50, `b` is 50 × 24. Blocks are 16 × 16, and so are tiles. Work out on paper:

- `naive`: how many elements do all threads together load from global memory, with one thread per element of `out` and
  no tiles?
- `tiled`: how many with tiles? A zero beyond an edge is no load.
- `barriers`: at how many barriers does one thread of the tiled kernel wait?
"""

HINTS = ("How many threads have an element, and how many elements does each of them load without tiles? How many "
         "blocks does the grid have along each axis, for 40 x 24?",
         "A block loads each element that it needs exactly once. So an element of a is loaded once for each block "
         "along its row of out, and one of b once for each block along its column.",
         "naive = 40 * 24 * 2 * 50. The grid is 2 blocks wide and 3 high: tiled = 2 * (40 * 50) + 3 * (50 * 24). "
         "Barriers: two per step, and 50 takes four steps of 16.")
POINTS = 2

# %%
naive = None  # loads from global memory, all threads together
tiled = None  # the same with tiles of 16 x 16
barriers = None  # of one thread
### BEGIN SOLUTION
naive = 40 * 24 * 2 * 50  # each of 40 * 24 threads: a row of a and a column of b
tiled = 2 * (40 * 50) + 3 * (50 * 24)  # a is loaded once for each of 2 block columns, b for each of 3 block rows
barriers = 2 * 4  # two a step, four steps: 16 + 16 + 16 + 2
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

COUNTED = {"M": 40, "N": 24, "K": 50}


def _loads_counted() -> dict:
    """Thread by thread, for the naive kernel and for tiles of 16; each thread's barriers."""
    M, N, K = COUNTED.values()
    naive = tiled = barriers = 0
    for row in range(-(-M // 16) * 16):
        for col in range(-(-N // 16) * 16):
            x, y, barriers = col % 16, row % 16, 0
            naive += 2 * K if row < M and col < N else 0
            for start in range(0, K, 16):
                tiled += (row < M and start + x < K) + (start + y < K and col < N)
                barriers += 2
    return {"naive": naive, "tiled": tiled, "barriers": barriers}


EXERCISE = PredictionExercise(
    name="predict_loads",
    truth=_loads_counted,
    how={"naive": "Each thread with an element goes through a row of `a` and a column of `b`. How many elements is "
                  "that, and how many threads have an element?",
         "tiled": "A block loads its rows of `a` once. How many blocks are side by side and need the same rows? And "
                  "how many are one below the other and need the same columns of `b`? Zeros are not loaded.",
         "barriers": "How many steps of 16 does it take to get through K = 50, the last one included? And how many "
                     "barriers does each step have?"},
    wrong={"only one of the two matrices was counted": {"naive": 48_000},
           "each matrix was counted once, but several blocks load the same part": {"tiled": 3_200},
           "zeros beyond the edges were counted as loads": {"tiled": 12_288},
           "the last step, which is not full, was left out": {"barriers": 6},
           "one barrier per step was counted, but there are two": {"barriers": 4}},
)

AFTER = """
Then observe. The next kernel has the loops of the tiled one but loads nothing: it counts the loads and the barriers.
`counts[0]` is the sum over all threads; `counts[1]` is counted by one of them.

# %%
import numpy as np


@cuda.jit
def count_loads(counts, rows, depth, cols):
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + y, cuda.blockIdx.x * 16 + x
    loads, waits = 0, 0
    for start in range(0, depth, 16):
        if row < rows and start + x < depth:
            loads += 1
        if start + y < depth and col < cols:
            loads += 1
        waits += 2
    cuda.atomic.add(counts, 0, loads)
    if row == 0 and col == 0:
        counts[1] = waits


counts = cuda.to_device(np.zeros(2, np.int64))
count_loads[(2, 3), (16, 16)](counts, 40, 50, 24)
loads, waits = counts.copy_to_host()
print(f"{loads:,} loads from global memory in tiles of 16 x 16, and {waits} barriers a thread")
"""
