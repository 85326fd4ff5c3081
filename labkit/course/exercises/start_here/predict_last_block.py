"""Predict: the last block

A thousand elements, blocks of 96 threads, one thread per element. Without running anything: how many blocks are
started? How many threads find no element? And which thread has the last element, the one with index 999? Give the index
of its block and its own index within that block.
"""

HINTS = ("A launch starts whole blocks. How many elements do 10 blocks of 96 cover, and is that enough?",
         "Element i belongs to block i // 96, and within it to thread i % 96. Everything counts from 0.",
         "11 blocks, and 11 * 96 - 1000 threads too many. Element 999 is in block 999 // 96, thread 999 - 10 * 96.")
POINTS = 1

# %%
blocks = None  # how many blocks are started
idle = None  # how many threads have no element
last_block = None  # the number of the block that has element 999
last_thread = None  # the number, in its block, of the thread that has element 999
### BEGIN SOLUTION
blocks = 11  # ten cover 960 elements
idle = 11 * 96 - 1000  # 56
last_block = 10  # the eleventh
last_thread = 999 - 10 * 96  # 39
### END SOLUTION

# %% [check]
import numpy as np

from labkit import cuda
from labkit.course.exercises import PredictionExercise
from labkit.kernels.positions import positions


def who_is_last(n: int = 1000, threads: int = 96) -> dict[str, int]:
    """Not worked out: read from what the threads of a launch wrote down."""
    block, thread = (cuda.to_device(np.full(n, -1, np.int32)) for _ in range(2))
    positions(block, thread, threads)
    last_block, last_thread = int(block.copy_to_host()[-1]), int(thread.copy_to_host()[-1])
    blocks = last_block + 1
    return {"blocks": blocks, "idle": blocks * threads - n, "last_block": last_block, "last_thread": last_thread}


EXERCISE = PredictionExercise(
    name="predict_last_block",
    truth=who_is_last,
    how={
        "blocks": "how many blocks of 96 does it take until 1,000 elements are covered? Whole blocks only.",
        "idle": "multiply the blocks by the threads in a block; how many are left over when each element has its "
                "thread?",
        "last_block": "element 999 is the last one. Skip whole blocks of 96 until you reach the one that contains it; "
                      "the first block has index 0.",
        "last_thread": "subtract from 999 the elements of all earlier blocks. The first thread of a block has index 0.",
    },
    wrong={
        "the division rounds down, and 40 elements are left without a thread": {"blocks": 10},
        "these are the busy threads of the last block, not the idle ones": {"idle": 40},
        "blocks are counted from 1 here, but CUDA counts them from 0": {"last_block": 11},
        "threads are counted from 1 here, but CUDA counts them from 0": {"last_thread": 40},
    },
)

AFTER = """
Now observe. The lesson's kernel records which thread handled which element; look at the last one. The picture shows the
same at a size that fits on a page. Where are the idle threads, and could they ever be in any block but the last?

# %%
block, thread = (cuda.to_device(np.full(1000, -1, dtype=np.int32)) for _ in range(2))
positions(block, thread, 96)
print(f"element 999: block {block.copy_to_host()[-1]}, thread {thread.copy_to_host()[-1]}")

pictures.launch_map(21, 6)
"""
