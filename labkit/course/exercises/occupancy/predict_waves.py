"""Predict: waves

A GPU has 132 SMs, and each can hold 4 blocks of a kernel at a time. Every block takes 10 µs, however many others run
at the same time. The launch has 1,000 blocks. Fill in the five values.
"""

HINTS = ("How many blocks can run at the same moment on all SMs together?",
         "The first wave begins right away, and the next when it ends. A wave takes 10 microseconds whether it is full "
         "or has a single block.",
         "132 * 4 blocks make a wave. 1,000 divided by that, rounded up, is the number of waves; 1,057 is one more "
         "than two full ones.")
POINTS = 1

# %%
per_wave = None  # blocks that run at the same time
waves = None  # waves that 1,000 blocks need
last = None  # blocks of the last wave
microseconds = None  # how long 1,000 blocks take
one_more = None  # how many microseconds 1,057 blocks take
### BEGIN SOLUTION
per_wave = 132 * 4  # 528
waves = -(-1000 // 528)  # 2
last = 1000 - 528  # 472
microseconds = 2 * 10
one_more = 3 * 10  # 1,056 are two full waves, and one block makes a third
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def what_waves_take(sms: int = 132, resident: int = 4, blocks: int = 1000, us: int = 10) -> dict[str, int]:
    wave = sms * resident
    return {"per_wave": wave, "waves": -(-blocks // wave), "last": blocks - blocks // wave * wave,
            "microseconds": us * -(-blocks // wave), "one_more": us * -(-(2 * wave + 1) // wave)}


EXERCISE = PredictionExercise(
    name="predict_waves",
    truth=what_waves_take,
    how={
        "per_wave": "132 SMs, and each holds 4 blocks at a time.",
        "waves": "all blocks divided by the blocks of a wave, rounded up.",
        "last": "the blocks that are left after the full waves.",
        "microseconds": "all blocks of a wave begin together and take equally long: a wave takes as long as one block.",
        "one_more": "1,056 blocks are two full waves. Where does block number 1,057 run, and when can it begin?",
    },
    wrong={
        "an SM was taken to hold one block at a time": {"per_wave": 132, "waves": 8, "last": 76, "microseconds": 80,
                                                        "one_more": 90},
        "the waves were rounded down, but the remaining blocks run, too": {"waves": 1, "microseconds": 10,
                                                                           "one_more": 20},
        "a wave that is not full was taken to be shorter, but it takes as long as one block": {"microseconds": 19},
        "one more block was taken to cost nothing": {"one_more": 20},
        "these are the slots that stay empty in the last wave": {"last": 56},
    },
)
