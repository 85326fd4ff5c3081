"""Predict: additions, bytes, rounds

On paper:

- `hillis_additions`: a block scans 512 elements as Hillis and Steele do. How many additions does it make?
- `blelloch_additions`: and with Blelloch's tree, up and down together?
- `look_back_mb`: how many MB (10⁶ bytes) does a single pass with look-back read and write to scan 1,000,000 int32,
  leaving aside the states of its tiles?
- `reduce_first_mb`: and the scan that reduces first, leaving aside the totals?
- `rounds`: a warp looks back at 32 tiles at a time. The nearest tile whose whole sum is known is 70 tiles before its
  own, and all tiles in between have published their totals. How many times does the warp look?
"""

HINTS = ("In the lesson's pictures there are 8 elements. How many additions does each picture show?",
         "In the step with distance d, 512 - d threads add, for d = 1, 2, 4, ..., 256. A tree over 512 elements has "
         "511 inner nodes.",
         "9 * 512 - 511, and two times 511. 1,000,000 int32 are 4 MB, moved twice or three times. Three "
         "times 32 tiles reach 70 tiles back.")
POINTS = 2

# %%
hillis_additions = None
blelloch_additions = None
look_back_mb = None
reduce_first_mb = None
rounds = None
### BEGIN SOLUTION
hillis_additions = 9 * 512 - 511  # in the step with distance d, 512 - d threads add: 1 + 2 + ... + 256 = 511 do not
blelloch_additions = 2 * 511  # one for each inner node of the tree, twice
look_back_mb = 8  # read once, write once
reduce_first_mb = 12  # read twice, write once
rounds = 3  # tiles 1 to 32 before it, 33 to 64, 65 to 96
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise


def _counted() -> dict:
    """What can be counted is counted from the kernels of the lesson, run by observe."""
    from numba import float32

    from labkit import observe
    from labkit.kernels.scan_blocks import make_scan_hillis_steele

    n, false = 512, np.bool_(False)
    x, out, total = np.ones(n, np.float32), np.zeros(n, np.float32), np.zeros(1, np.float32)
    counts = observe(make_scan_hillis_steele(float32)[1, n, 0, 4 * n], x, out, total, false).counts
    return {"hillis_additions": counts["shared_loads"], "blelloch_additions": 2 * (n - 1),
            "look_back_mb": 8, "reduce_first_mb": 12, "rounds": -(-70 // 32)}


EXERCISE = PredictionExercise(
    name="predict_scan",
    truth=_counted,
    how={"hillis_additions": "Nine steps; in the step with distance d, all threads but the first d add.",
         "blelloch_additions": "A tree over n elements has n - 1 inner nodes, with one addition each on the way up "
                               "and one on the way down.",
         "look_back_mb": "Each element is read once and written once, 4 bytes each.",
         "reduce_first_mb": "The first kernel reads, the last one reads again and writes.",
         "rounds": "The first look covers the 32 tiles just before its own, the next one the 32 before those."},
    wrong={"all threads add in every step": {"hillis_additions": 9 * 512},
           "only the way up is counted": {"blelloch_additions": 511},
           "a scan by levels, which writes twice": {"reduce_first_mb": 16},
           "70 is taken as two times 32, and the rest is left out": {"rounds": 2}},
)
