"""Predict: what ncu will read

Nsight Compute's *sectors per request* is the quickest way to see whether a kernel wastes memory traffic. A request is
one load by all 32 lanes of a warp. A sector is 32 bytes, eight floats. How many sectors does one request touch, for
each of these loads of float32? All arrays begin at the start of a sector.
"""

HINTS = ("Write down the byte addresses that lanes 0, 1 and 31 load. Which pieces of 32 bytes do all the lanes "
         "together touch?",
         "Lanes that load from the same piece share it. Lanes 64 floats apart cannot. A lane that loads 16 bytes "
         "shares its piece with one neighbour.",
         "128 bytes in a row; 94 floats from first to last, and no piece among them is skipped; 32 pieces for 32 "
         "lanes; one address; 512 bytes in a row.")
POINTS = 2

# %%
row = None  # x[i]
third = None  # x[3 * i]
column = None  # x[64 * i], a column of a matrix with 64 columns
one = None  # x[i // 32]
four = None  # load_global4(x, 4 * i): four floats in a row for each lane, in one load
### BEGIN SOLUTION
row = 32 * 4 // 32  # 4
third = -(-(3 * 31 + 1) // 8)  # lanes span 94 floats and leave out no sector: 12
column = 32  # a sector for each lane
one = 1  # the same address for all
four = 32 * 16 // 32  # 16, and four times the work done
### END SOLUTION

# %% [check]
import numpy as np

from labkit import cuda
from labkit.course.exercises import PredictionExercise
from labkit.device import ptx


@cuda.jit
def read_row_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


@cuda.jit
def read_third_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[3 * i]


@cuda.jit
def read_column_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[64 * i]


@cuda.jit
def read_one_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[i // 32]


@cuda.jit
def read_four_kernel(x, out):
    i = cuda.grid(1)
    a, b, c, d = ptx.load_global4(x, 4 * i)
    out[i] = a + b + c + d


def requests_truth() -> dict[str, int]:
    """Sectors per load, by observe: one warp, so one request."""
    from labkit import observe

    found = {}
    for name, kernel in (("row", read_row_kernel), ("third", read_third_kernel), ("column", read_column_kernel),
                         ("one", read_one_kernel), ("four", read_four_kernel)):
        x, out = cuda.to_device(np.zeros(64 * 32, np.float32)), cuda.to_device(np.zeros(32, np.float32))
        stores = 4  # 32 floats in a row
        found[name] = observe(kernel[1, 32], x, out).counts["sectors"] - stores
    return found


EXERCISE = PredictionExercise(
    name="predict_requests",
    truth=requests_truth,
    how={
        "row": "32 floats in a row are 128 bytes.",
        "third": "the lanes span 3 * 31 + 1 floats. Is there a sector among them from which no lane loads?",
        "column": "two neighbouring lanes are 64 floats apart, and a sector holds eight.",
        "one": "all lanes load from the same address.",
        "four": "a lane loads 16 bytes. How many lanes share a sector, and how many sectors do 32 lanes need?",
    },
    wrong={
        "one request per lane was counted, but a warp makes one request": {"row": 32},
        "only the floats that are used were counted, but a sector is always moved as a whole": {"third": 4},
        "lines of 128 bytes were counted; ncu's sectors have 32": {"row": 1},
        "one sector per lane was counted, but lanes that load the same float share its sector": {"one": 32},
        "a load of four floats moves four times as much as a load of one": {"four": 4},
        "no two lanes share a sector here": {"column": 8},
    },
)

AFTER = """
So the best count depends on how many bytes a lane loads. What matters is the share of the transferred bytes that the
lanes use. For which of the five is it all of them?
"""
