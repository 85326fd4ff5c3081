"""From a blank page: a quarter turn

Turn a picture by 90 degrees, clockwise: its left column, read from the bottom up, becomes the first row. The picture
`a` has the shape (R, C), and `out` the shape (C, R):

$$\\text{out}_{c,\\;R-1-r} = a_{r,c}$$

For example,

```
a = 1 2 3    out = 4 1
    4 5 6          5 2
                   6 3
```

Write `quarter_turn(a, out)` from the decorator down. Blocks have 32 × 8 threads, and the grid has one block per tile
of 32 × 32 of `a`, its x along the columns. So a thread moves four elements. As in a transpose, warps should load along
the rows of `a` and store along the rows of `out`, and the tile should have no bank conflicts.
"""

HINTS = ("Begin with the lesson's padded transpose. Which part of it does not change at all?",
         "Only where an element is stored changes. A warp stores row col0 + i of out, and its lane x holds the element "
         "that came from row row0 + x of a. Which column of out is that?",
         "out[col0 + i, a.shape[0] - 1 - (row0 + x)] = tile[x, i], with the guards col0 + i < a.shape[1] and row0 + x "
         "< a.shape[0], and rows of 33 elements in the tile.")
POINTS = 3
NEEDS = ("predict_banks",)

from numba import float32

from labkit import cuda

# %%
quarter_turn = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def quarter_turn(a, out):
    tile = cuda.shared.array((32, 33), float32)  # 33: a column of the tile visits all banks
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    col0, row0 = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for i in range(y, 32, 8):
        if row0 + i < a.shape[0] and col0 + x < a.shape[1]:
            tile[i, x] = a[row0 + i, col0 + x]
    cuda.syncthreads()
    for i in range(y, 32, 8):
        if col0 + i < a.shape[1] and row0 + x < a.shape[0]:
            out[col0 + i, a.shape[0] - 1 - (row0 + x)] = tile[x, i]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import MOVED, Edit, KernelExercise, asks, of, uniform


@asks("Each warp loads and stores neighbouring elements, and no access to shared memory has a bank conflict.")
def _coalesced_without_conflicts(report) -> str | None:
    if report.coalescing <= 0.5:
        return (f"Of the bytes in the {report.counts['sectors']:,} sectors that your warps move, "
                f"{report.coalescing:.0%} are used. Load along the rows of `a` and store along the rows of `out`: then "
                "it is more than half.")
    conflicts = report.counts["bank_conflicts"]
    if conflicts:
        return (f"The accesses to the tile spend {conflicts:,} extra steps in bank conflicts. With rows of 33 elements "
                "a column of the tile visits all 32 banks.")
    return None


@cuda.jit
def turn_without_tile(a, out):
    col = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    for i in range(cuda.threadIdx.y, 32, 8):
        row = cuda.blockIdx.y * 32 + i
        if row < a.shape[0] and col < a.shape[1]:
            out[col, a.shape[0] - 1 - row] = a[row, col]


EXERCISE = KernelExercise(
    name="quarter_turn",
    reference=lambda a: np.rot90(a, -1),
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (C, R),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 3), (5, 40), (33, 32), (40, 50), (64, 33))),
    launch=lambda R, C: ((-(-C // 32), -(-R // 32)), (32, 8)),
    observe_sizes=({"R": 33, "C": 32}, {"R": 40, "C": 50}),
    demand=_coalesced_without_conflicts,
    benign_races=False,
    domain=of(0, MOVED),
    wrong={
        "a transpose: the columns of `out` are not reversed":
            Edit("a.shape[0] - 1 - (row0 + x)] =", "row0 + x] ="),
        "a turn in the other direction":
            Edit("out[col0 + i, a.shape[0] - 1 - (row0 + x)]", "out[a.shape[1] - 1 - (col0 + i), row0 + x]"),
        "each tile is turned, but the order of the tiles is not reversed":
            Edit("a.shape[0] - 1 - (row0 + x)] =", "row0 + min(32, a.shape[0] - row0) - 1 - x] ="),
        "no barrier between writing the tile and reading it": Edit("cuda.syncthreads()", ""),
        "the store uses the guard of the load":
            Edit("if col0 + i < a.shape[1] and row0 + x < a.shape[0]:",
                 "if row0 + i < a.shape[0] and col0 + x < a.shape[1]:"),
        "rows of 32 in the tile: bank conflicts":
            Edit("cuda.shared.array((32, 33), float32)", "cuda.shared.array((32, 32), float32)"),
        "no shared memory: a warp stores along a column": turn_without_tile,
    },
)
