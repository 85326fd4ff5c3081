"""Predict: blocks on a multiprocessor

A multiprocessor of the H200 holds 2,048 threads, 32 blocks, 65,536 registers and 228 KB of shared memory. How many
blocks of 256 threads fit

- `few`: with 32 registers per thread and no shared memory,
- `many`: with 64 registers per thread and no shared memory,
- `shared`: with 32 registers per thread and 33 KB of shared memory, to which the system adds 1 KB per block?
"""

HINTS = ("Work out for each resource on its own how many blocks it would allow. Which one is the limit?",
         "Threads allow 2,048 / 256. Registers allow 65,536 / (256 times the registers of a thread). Shared memory "
         "allows 228 / 34, rounded down.",
         "In the first case threads and registers allow the same. In the second registers allow half of that. In the "
         "third shared memory is the scarcest.")
POINTS = 1

# %%
few = None
many = None
shared = None
### BEGIN SOLUTION
few = min(2048 // 256, 65_536 // (32 * 256))
many = min(2048 // 256, 65_536 // (64 * 256))
shared = min(2048 // 256, 228 // (33 + 1))
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _blocks():
    from labkit.device.occupancy import H200, blocks

    return {"few": blocks(H200, 256, 32), "many": blocks(H200, 256, 64), "shared": blocks(H200, 256, 32, 33 * 1024)}


EXERCISE = PredictionExercise(
    name="predict_blocks",
    truth=_blocks,
    how={"few": "2,048 threads fit, and 65,536 registers are enough for as many threads with 32 each.",
         "many": "256 threads with 64 registers each need 16,384 of 65,536.",
         "shared": "228 KB, and each block needs 33 KB and 1 KB for the system."},
    wrong={"registers do not count": {"few": 8, "many": 8, "shared": 6},
           "shared memory does not count": {"few": 8, "many": 4, "shared": 8},
           "one block too many": {"few": 8, "many": 4, "shared": 7}},
)
