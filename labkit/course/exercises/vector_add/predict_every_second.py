"""Predict: what every second element costs

Run the kernel above on an `x` of a million floats: 500,000 threads have an element, in blocks of 256. The 32 threads
of a warp load together, and memory delivers pieces of 32 bytes, eight floats each. Both arrays begin where a piece
begins.

Predict the four values below. A vector addition moves exactly the bytes that it needs. Does this kernel?
"""

HINTS = ("Draw the first 16 floats of x, mark the ones that are read, and draw a line after every eighth. Is there a "
         "piece without a mark?",
         "A piece of 32 bytes is moved whole as soon as one of its floats is needed. Half of each piece is needed, and "
         "no piece is skipped.",
         "idle: 1,954 blocks of 256, minus 500,000. deliveries: lanes 0 to 31 span 64 floats, eight to a piece. used: "
         "500,000 floats read, as many written. moved: all of x, and out.")
POINTS = 2
NEEDS = ("every_second",)

# %%
idle = None  # threads without an element
deliveries = None  # pieces of 32 bytes that the load of the first warp needs; 32 floats in a row need 4
bytes_used = None  # bytes that the kernel reads from x and writes to out
bytes_moved = None  # bytes that travel in whole pieces, from x and to out
### BEGIN SOLUTION
idle = 1954 * 256 - 500_000  # 224
deliveries = 64 * 4 // 32  # the warp's elements span 64 floats: 8 pieces
bytes_used = 4 * 500_000 + 4 * 500_000  # 4 MB
bytes_moved = 4 * 1_000_000 + 4 * 500_000  # all of x travels: 6 MB
### END SOLUTION

# %% [check]
import numpy as np

from labkit import cuda
from labkit.course.exercises import PredictionExercise
from labkit.course.exercises.vector_add import blocks_of


@cuda.jit
def touched_kernel(touched, visits, n, step):
    i = cuda.grid(1)
    if i < n:
        touched[i] = step * i
        cuda.atomic.add(visits, 0, 1)


def what_it_moves(n: int = 500_000, block: int = 256) -> dict[str, int]:
    """Counted from the addresses that the threads of a launch wrote down; x and out begin at a multiple of 32 bytes."""
    touched, visits = cuda.to_device(np.full(n, -1, np.int64)), cuda.to_device(np.zeros(1, np.int32))
    touched_kernel[blocks_of(n, block), block](touched, visits, n, 2)
    read = touched.copy_to_host() * 4  # byte addresses in x
    written = np.arange(n) * 4
    return {
        "idle": blocks_of(n, block) * block - int(visits.copy_to_host()[0]),
        "deliveries": len(np.unique(read[:32] // 32)),
        "bytes_used": 4 * len(np.unique(read)) + 4 * len(written),
        "bytes_moved": 32 * (len(np.unique(read // 32)) + len(np.unique(written // 32))),
    }


EXERCISE = PredictionExercise(
    name="predict_every_second",
    truth=what_it_moves,
    how={
        "idle": "count the threads of all blocks, and subtract the elements of out.",
        "deliveries": "write down the first and the last element of x that lanes 0 to 31 load. How many pieces of "
                      "eight floats does that span?",
        "bytes_used": "each element of out is one value read and one value written, four bytes each.",
        "bytes_moved": "memory delivers whole pieces of 32 bytes. Which pieces of x does no thread use? Then add out.",
    },
    wrong={
        "one thread per element of x is counted, but there is one per element of out": {"idle": 192},
        "these are the deliveries for 32 floats in a row": {"deliveries": 4},
        "one delivery per lane would be right only if no two lanes shared one": {"deliveries": 32},
        "only the bytes read are counted": {"bytes_used": 2_000_000},
        "only the bytes that are used are counted, but the other half of each piece is moved too":
            {"bytes_moved": 4_000_000},
    },
)

AFTER = """
Now observe. The first warp's threads write down which element of `x` they load, once with a step of one and once with
a step of two. The picture says *sector* for a piece of 32 bytes, as lesson 04 will.

# %%
@cuda.jit
def touched_kernel(touched, step):
    i = cuda.grid(1)
    if i < touched.size:
        touched[i] = step * i


def first_warp(step):
    touched = cuda.to_device(np.zeros(32, np.int64))
    touched_kernel[1, 32](touched, step)
    return touched.copy_to_host()


plots.warp_addresses({"x[i]": first_warp(1), "x[2 * i]": first_warp(2)})

# %% [markdown]
The output is half as long as that of a copy, but every byte of `x` still had to be moved. In a kernel that waits for
memory, skipping every second element saves nothing on the reads.
"""
