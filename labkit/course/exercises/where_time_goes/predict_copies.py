"""Predict: many small copies

A copy to the device takes 10 µs to start, and then moves 50,000 bytes per microsecond (50 GB/s). How many microseconds
do these take, rounded to a whole number?

- a copy of 4 bytes
- a copy of 2,000,000 bytes
- 1,000 copies of 2,000 bytes, one after the other
- one copy of the same 1,000 arrays, packed into one

And how large is a copy, in bytes, if moving the bytes takes exactly as long as the start?
"""

HINTS = ("Which part of a copy's time depends on its bytes, and which does not?",
         "Every copy takes 10 us, and one more for every 50,000 of its bytes. A thousand copies take a thousand times "
         "the 10 us.",
         "10; 10 + 40; 1000 * (10 + 0.04); 10 + 40; and in 10 us, 10 * 50,000 bytes are copied.")
POINTS = 1

# %%
tiny_us = None  # 4 bytes
large_us = None  # 2,000,000 bytes
apart_us = None  # 1,000 copies of 2,000 bytes
together_us = None  # the same in one copy
even_bytes = None  # as much time for the bytes as for the start
### BEGIN SOLUTION
tiny_us = 10
large_us = 10 + 2_000_000 // 50_000  # 50
apart_us = round(1000 * (10 + 2000 / 50_000))  # 10,040
together_us = 10 + 1000 * 2000 // 50_000  # 50
even_bytes = 10 * 50_000
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

START_US, BYTES_PER_US = 10, 50_000


def copy_us(nbytes: int) -> float:
    """Microseconds of one copy."""
    return START_US + nbytes / BYTES_PER_US


def copies_truth() -> dict[str, int]:
    return {
        "tiny_us": round(copy_us(4)),
        "large_us": round(copy_us(2_000_000)),
        "even_bytes": START_US * BYTES_PER_US,
        "apart_us": round(1000 * copy_us(2000)),
        "together_us": round(copy_us(1000 * 2000)),
    }


EXERCISE = PredictionExercise(
    name="predict_copies",
    truth=copies_truth,
    how={
        "tiny_us": "the copy has to start, and then there are four bytes. How long do four bytes take?",
        "large_us": "the start, and 2,000,000 bytes at 50,000 bytes per microsecond.",
        "even_bytes": "how many bytes could have been copied during a start?",
        "apart_us": "first one of them: its start, and its 2,000 bytes. Then a thousand times that.",
        "together_us": "one start, and the bytes of all of them.",
    },
    wrong={
        "the start was left out, and only the bytes were counted": {"large_us": 40, "tiny_us": 0},
        "only the start was counted, but the bytes take time as well": {"large_us": 10},
        "these are the bytes of one microsecond, but a start takes ten": {"even_bytes": 50_000},
        "one start was counted for all copies, but each has its own": {"apart_us": 50},
        "a start was counted for each array in a single copy": {"together_us": 10_040},
        "the bytes of small copies were taken to cost nothing at all": {"apart_us": 10_000},
    },
)
