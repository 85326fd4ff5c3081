"""Predict: what a ring covers, and which launches hang

On paper: a GPU has 100 SMs, and its memory delivers 3,000 bytes in a nanosecond, shared evenly among them. A persistent
kernel has one block for each SM, and a ring of 45,000 bytes in each block. At a join a block waits for 2 microseconds.
How many bytes must a ring hold to keep the memory busy for the whole wait? How many stages of 16,384 bytes are that, at
least? For how many nanoseconds of the join is the memory idle with the ring of 45,000 bytes? And in a model of 20
layers with 5 joins each, for how many microseconds in all?

A block of another kernel takes 90,000 bytes of shared memory, and an SM of this GPU has 230,000. All of its blocks wait
for one another at a join. It is launched with 100, 150, 200, 201 and 300 blocks: how many of these five launches hang?
"""

HINTS = ("How many bytes does one SM get in a nanosecond? For how many nanoseconds can it read until the ring is full?",
         "An SM gets 30 bytes in a nanosecond, so 2,000 nanoseconds are 60,000 bytes. A ring of 45,000 bytes is full "
         "after 1,500. And two blocks of the other kernel fit on an SM.",
         "Four stages hold 65,536 bytes. 500 nanoseconds are idle at each of 100 joins. At most 200 blocks are "
         "resident.")
POINTS = 1

# %%
ring_bytes = None  # that keep the memory busy for 2 microseconds
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
    how={"ring_bytes": "Each SM gets 3,000 / 100 bytes in a nanosecond, for 2,000 of them.",
         "stages": "60,000 / 16,384, rounded up.",
         "idle_ns": "The ring of 45,000 bytes is full after 45,000 / 30 of the 2,000 nanoseconds.",
         "idle_us": "That at each of 20 times 5 joins.",
         "hang": "Two blocks of 90,000 bytes fit on an SM, so 200 can be resident. With more, some never start."},
    wrong={
        "the whole memory's rate was taken for one SM": {"ring_bytes": 6_000_000, "stages": 367, "idle_ns": 1985},
        "the stages were rounded down": {"stages": 3},
        "the time that the ring covers was given, not the rest": {"idle_ns": 1500, "idle_us": 150},
        "one join for each layer was counted": {"idle_us": 10},
        "one block for each SM was counted, though two fit": {"hang": 4},
        "three blocks were counted for an SM": {"hang": 0},
        "a launch that just fits was counted as one that hangs": {"hang": 3},
    },
)
