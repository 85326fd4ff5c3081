"""Predict: what a ring covers, and which launches hang

On paper: a GPU has 100 SMs, and its memory delivers 3,000 bytes per nanosecond, shared evenly among them. A persistent
kernel has one block per SM, and a ring of 45,000 bytes in each block. At a join a block waits for 2 microseconds. How
many bytes must a ring hold to keep the memory busy for the whole wait? How many stages of 16,384 bytes does that take,
at least? With the ring of 45,000 bytes, for how many nanoseconds of a join is the memory idle? And for how many
microseconds in all, in a model of 20 layers with 5 joins each?

Each block of another kernel uses 90,000 bytes of shared memory, and an SM of this GPU has 230,000. All blocks wait for
one another at a join. The kernel is launched with 100, 150, 200, 201 and 300 blocks: how many of these five launches
hang?
"""

HINTS = ("How many bytes does one SM get per nanosecond? For how many nanoseconds can it read until the ring is full?",
         "An SM gets 30 bytes per nanosecond, so 2,000 nanoseconds are 60,000 bytes. A ring of 45,000 bytes is full "
         "after 1,500. And two blocks of the other kernel fit on an SM.",
         "Four stages hold 65,536 bytes. 500 nanoseconds are idle at each of 100 joins. At most 200 blocks are "
         "resident.")
POINTS = 1

# %%
ring_bytes = None  # needed to keep the memory busy for 2 microseconds
stages = None  # of 16,384 bytes
idle_ns = None  # at each join, with a ring of 45,000 bytes
idle_us = None  # at all joins of the model
hang = None  # of the five launches
### BEGIN SOLUTION
ring_bytes = 60_000
stages = 4
idle_ns = 500
idle_us = 50
hang = 2
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _truth() -> dict:
    rate, wait = 3000 // 100, 2000
    idle, resident = wait - 45_000 // rate, 100 * (230_000 // 90_000)
    return {"ring_bytes": rate * wait, "stages": -(-rate * wait // 16_384), "idle_ns": idle,
            "idle_us": 20 * 5 * idle // 1000, "hang": sum(blocks > resident for blocks in (100, 150, 200, 201, 300))}


EXERCISE = PredictionExercise(
    name="predict_joins",
    truth=_truth,
    how={"ring_bytes": "Each SM gets 3,000 / 100 bytes per nanosecond, for 2,000 nanoseconds.",
         "stages": "60,000 / 16,384, rounded up.",
         "idle_ns": "The ring of 45,000 bytes is full after 45,000 / 30 of the 2,000 nanoseconds.",
         "idle_us": "500 nanoseconds at each of 20 times 5 joins.",
         "hang": "Two blocks of 90,000 bytes fit on an SM, so 200 can be resident. With more, some never start."},
    wrong={
        "the whole memory's rate was taken for one SM": {"ring_bytes": 6_000_000, "stages": 367, "idle_ns": 1985},
        "the stages were rounded down": {"stages": 3},
        "the time that the ring covers was counted, not the rest": {"idle_ns": 1500, "idle_us": 150},
        "one join per layer was counted": {"idle_us": 10},
        "one block per SM was counted, though two fit": {"hang": 4},
        "three blocks per SM were counted": {"hang": 0},
        "a launch that just fits was counted as one that hangs": {"hang": 3},
    },
)
