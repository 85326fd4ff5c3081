"""Predict: which warps split?

A kernel for 250 elements runs in four blocks of 64 threads, which makes eight warps. Each thread computes
`i = cuda.grid(1)`. First comes the guard, `if i < 250:`, and inside it a second condition, one of three: `i % 2 == 0`,
`i // 32 % 2 == 0` and `i < 48`.

For each of the four conditions, how many warps have lanes on both sides? Threads that the guard stops never reach the
second condition. Then answer the same question for `i // 32 % 2 == 0` in six blocks of 48 threads.
"""

HINTS = ("Which values of i do the 32 lanes of the first warp have? And those of the last one?",
         "A warp splits if its lanes disagree. Go through the warps one by one, write down the first and the last i of "
         "each, and look for a change of the condition between them.",
         "In blocks of 64 a warp holds i = 32 w to 32 w + 31. In blocks of 48 block b has a warp with 48 b to 48 b + "
         "31 and one with 48 b + 32 to 48 b + 47; multiples of 32 inside them are where i // 32 changes.")
POINTS = 1

# %%
guard = None  # warps that `i < 250` splits
by_lane = None  # warps that `i % 2 == 0` splits
by_warp = None  # warps that `i // 32 % 2 == 0` splits
first_48 = None  # warps that `i < 48` splits
blocks_of_48 = None  # warps that `i // 32 % 2 == 0` splits, in blocks of 48
### BEGIN SOLUTION
guard = 1  # the last warp holds i = 224 to 255
by_lane = 8  # each holds even and odd numbers
by_warp = 0  # i // 32 is the number of the warp
first_48 = 1  # the warp with i = 32 to 63
blocks_of_48 = 2  # i = 48 to 79, and i = 144 to 175
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise


def split_warps(condition, n: int = 250, threads: int = 64, guarded: bool = True) -> int:
    """How many warps have lanes on both sides of a condition on i; guarded: only lanes with i < n come to it."""
    split = 0
    for block in range(-(-n // threads)):
        for first in range(0, threads, 32):
            i = block * threads + np.arange(first, min(first + 32, threads))
            i = i[i < n] if guarded else i
            split += len(set(condition(i).tolist())) == 2
    return split


EXERCISE = PredictionExercise(
    name="predict_branches",
    truth=lambda: {
        "guard": split_warps(lambda i: i < 250, guarded=False),
        "by_lane": split_warps(lambda i: i % 2 == 0),
        "by_warp": split_warps(lambda i: i // 32 % 2 == 0),
        "first_48": split_warps(lambda i: i < 48),
        "blocks_of_48": split_warps(lambda i: i // 32 % 2 == 0, threads=48),
    },
    how={
        "guard": "eight warps hold i = 0 to 31, 32 to 63 and so on. In which of them do some lanes have i < 250, and "
                 "others not?",
        "by_lane": "a warp holds 32 consecutive values of i, even and odd ones.",
        "by_warp": "write down i // 32 for the 32 lanes of one warp.",
        "first_48": "48 is in the middle of one warp. In all other warps the lanes agree.",
        "blocks_of_48": "a warp never has lanes of two blocks: a block of 48 has a warp of 32 and one of 16. Write "
                        "down the first and the last i of each.",
    },
    wrong={
        "both warps of the last block were counted, but all lanes of the first have an element":
            {"guard": 2},
        "only the last warp was counted, but every warp has even and odd elements": {"by_lane": 1},
        "i // 32 is the same for all lanes of a warp, and a warp whose lanes agree does not split":
            {"by_warp": 8},
        "both warps that begin before 48 were counted, but in the first all lanes agree": {"first_48": 2},
        "blocks of 48 were counted as if warps went on from block to block": {"blocks_of_48": 0},
        "every block of 48 was taken to have a warp that splits": {"blocks_of_48": 6},
    },
)

AFTER = """
Now count. `observe` runs a kernel and records every branch: here is the last of the five cases. Change the condition
and the size of the blocks, and compare with your prediction.

# %%
@cuda.jit
def branching(out):
    i = cuda.grid(1)
    if i < out.size:
        if i // 32 % 2 == 0:
            out[i] = 1
        else:
            out[i] = 2


observe(branching[6, 48], cuda.to_device(np.zeros(250, np.int32)))
"""
