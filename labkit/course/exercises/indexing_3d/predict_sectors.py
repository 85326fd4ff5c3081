"""Predict: the sectors of a warp

In blocks of 1,024 threads, each thread loads the float at its own coordinates, from a volume that begins at a sector
boundary. How many sectors of 32 bytes does one warp touch?

- the first warp of a block of 8 × 32 × 4, in a volume of 512 × 512 × 512
- the first warp of a block of 2 × 128 × 4, in the same volume
- the *second* warp of a block of 32 × 8 × 4, in a volume of 513 × 512 × 512

The last one is in row y = 1.
"""

HINTS = ("32 lanes, x fastest: how many rows of the block does the warp cover, and how many bytes does each have?",
         "Rows of the block are one row of the volume apart, 2,048 bytes, so no two of them share a sector. For the "
         "last block, look where the row begins: is its address a multiple of eight floats?",
         "8 wide: 4 rows of exactly one sector. 2 wide: 16 rows, one sector each, a quarter used. nx = 513: floats 513 "
         "to 544, from sector 513 // 8 to sector 544 // 8, both included.")
POINTS = 2

# %%
rows_of_8 = None  # sectors, 8 × 32 × 4
rows_of_2 = None  # sectors, 2 × 128 × 4
second_warp = None  # sectors, second warp of 32 × 8 × 4, nx = 513
### BEGIN SOLUTION
rows_of_8 = 4  # four rows of 32 bytes, each a whole sector
rows_of_2 = 16  # sixteen rows of 8 bytes, each in a sector of its own
second_warp = 5  # floats 513 to 544: sectors 64 to 68
### END SOLUTION

# %% [check]
import numpy as np

from labkit import cuda
from labkit.course.exercises import PredictionExercise


@cuda.jit
def touched_kernel(touched, warp, nx, ny):
    x, y, z = cuda.grid(3)
    row = cuda.threadIdx.y + cuda.threadIdx.z * cuda.blockDim.y
    lane = cuda.threadIdx.x + row * cuda.blockDim.x - 32 * warp
    if 0 <= lane < 32:
        touched[lane] = x + y * nx + z * nx * ny


def _sectors(block: tuple, warp: int = 0, nx: int = 512, ny: int = 512) -> int:
    touched = cuda.to_device(np.full(32, -1, np.int64))
    touched_kernel[1, block](touched, warp, nx, ny)
    return len(np.unique(touched.copy_to_host() * 4 // 32))


EXERCISE = PredictionExercise(
    name="predict_sectors",
    truth=lambda: {"rows_of_8": _sectors((8, 32, 4)), "rows_of_2": _sectors((2, 128, 4)),
                   "second_warp": _sectors((32, 8, 4), warp=1, nx=513)},
    how={
        "rows_of_8": "a warp covers four rows of this block. How many bytes does a row of the block have, and does it "
                     "fill the sectors that it touches?",
        "rows_of_2": "a warp covers sixteen rows of this block, each somewhere else in memory. A sector is the least "
                     "that can be delivered for each.",
        "second_warp": "write down the first and the last address of the warp, in floats: it is at y = 1, and a row of "
                       "the volume has 513. Divide both by eight.",
    },
    wrong={
        "each row of the block is counted as two sectors, but eight floats fill exactly one": {"rows_of_8": 8},
        "these are the bytes in use divided by 32, but each row of the block needs its own sector":
            {"rows_of_2": 4},
        "this would be right if each element needed its own sector, but two lanes share one here": {"rows_of_2": 32},
        "this holds for a row that begins at a sector boundary, but rows of 513 shift all that follow":
            {"second_warp": 4},
    },
)

AFTER = """
Now observe: the threads of those warps record their addresses.

# %%
@cuda.jit
def touched_kernel(touched, warp, nx, ny):
    x, y, z = cuda.grid(3)
    row = cuda.threadIdx.y + cuda.threadIdx.z * cuda.blockDim.y
    lane = cuda.threadIdx.x + row * cuda.blockDim.x - 32 * warp
    if 0 <= lane < 32:
        touched[lane] = x + y * nx + z * nx * ny


def touched_by(block, warp=0, nx=512, ny=512):
    touched = cuda.to_device(np.full(32, -1, np.int64))
    touched_kernel[1, block](touched, warp, nx, ny)
    return touched.copy_to_host()


plots.warp_addresses({
    "8 × 32 × 4": touched_by((8, 32, 4)),
    "2 × 128 × 4": touched_by((2, 128, 4)),
    "second warp, nx = 513": touched_by((32, 8, 4), warp=1, nx=513),
})

# %% [markdown]
A row of 513 floats costs the warp a fifth sector. That is why arrays are often *padded*: their rows are made a little
longer than needed, so that each begins at a sector boundary.
"""
