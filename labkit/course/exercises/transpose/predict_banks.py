"""Predict: the banks of a padded tile

The 32 lanes of a warp read a column of a tile in shared memory: lane L reads `tile[L, 5]`. Each row of the tile is
`pitch` elements long, of which it uses 32. Shared memory has 32 banks, and element i is in bank i % 32. How many steps
does the warp need to read its column?
"""

HINTS = ("For a pitch of 34, compute the bank of lanes 0, 1, 2, 3 and of lane 16. When does the first bank come up "
         "again?",
         "Lane L reads from bank (pitch * L + 5) % 32. The number of steps is the number of lanes that share a bank.",
         "The number of steps is the greatest common divisor of the pitch and 32.")
POINTS = 2

# %%
pitch_32 = None  # steps, with rows of 32
pitch_33 = None
pitch_34 = None
pitch_40 = None
pitch_47 = None
### BEGIN SOLUTION
pitch_32 = 32  # every lane in bank 5
pitch_33 = 1  # bank L + 5: all different
pitch_34 = 2  # bank 2 L + 5: 16 banks, two lanes each
pitch_40 = 8  # bank 8 L + 5: four banks, eight lanes each
pitch_47 = 1  # 15 L + 5: 15 and 32 have no common factor
### END SOLUTION

# %% [check]
import numpy as np
from numba import float32

from labkit import cuda, observe
from labkit.course.exercises import PredictionExercise


def _steps(pitch: int) -> int:
    """In how many steps a warp reads a column of a tile whose rows are `pitch` elements long, by observe."""

    @cuda.jit
    def read_a_column(out):
        tile = cuda.shared.array((32, pitch), float32)
        lane = cuda.threadIdx.x
        for row in range(32):
            tile[row, lane] = float32(row)
        cuda.syncthreads()
        out[lane] = tile[lane, 5]

    return 1 + observe(read_a_column[1, 32], np.zeros(32, np.float32)).counts["bank_conflicts"]


EXERCISE = PredictionExercise(
    name="predict_banks",
    truth=lambda: {f"pitch_{pitch}": _steps(pitch) for pitch in (32, 33, 34, 40, 47)},
    how={f"pitch_{pitch}": f"lane L reads element {pitch} * L + 5; count how many lanes share a bank, and take the "
                           f"most crowded one" for pitch in (32, 33, 34, 40, 47)},
    wrong={"counts the crowded banks, not the lanes in one": {"pitch_32": 1, "pitch_33": 32, "pitch_34": 16,
                                                             "pitch_40": 4, "pitch_47": 32},
           "takes any padding to be a cure": {"pitch_32": 32, "pitch_33": 1, "pitch_34": 1, "pitch_40": 1,
                                              "pitch_47": 1},
           "takes the padding itself to be the number of steps": {"pitch_32": 32, "pitch_33": 1, "pitch_34": 2,
                                                                  "pitch_40": 8, "pitch_47": 15}},
)
