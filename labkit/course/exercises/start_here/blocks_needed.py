"""How many blocks?

In the lesson every thread had one element. A thread may just as well have several: in lesson 01, four elements per
thread turn out to be faster on a GPU than one. How many blocks of `threads` threads do `n` elements need if each thread
handles up to `each` of them? Do not start a block that would have nothing to do.

This is an ordinary function on the host; no kernel is needed.
"""

HINTS = ("How many elements does one whole block handle?",
         "Divide n by that and round up: a block that is only partly used is still needed. Where the division comes "
         "out even, no further block is needed.",
         "-(-a // b) is a / b rounded up. Here b is each * threads.")
POINTS = 1

# %%
def blocks_needed(n, each, threads):
    ### BEGIN SOLUTION
    in_a_block = each * threads
    return -(-n // in_a_block)
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import FunctionExercise, whole_number

EXERCISE = FunctionExercise(
    name="blocks_needed",
    reference=lambda n, each, threads: -(-n // (each * threads)),
    inputs=lambda rng, n, each, threads: (n, each, threads),
    sizes=(
        {"n": 1, "each": 4, "threads": 32},
        {"n": 128, "each": 4, "threads": 32},
        {"n": 129, "each": 4, "threads": 32},
        {"n": 1000, "each": 3, "threads": 64},
        {"n": 1536, "each": 3, "threads": 64},
        {"n": 1537, "each": 3, "threads": 64},
        {"n": 10_000_003, "each": 8, "threads": 256},
    ),
    domain="Its inputs are three lengths, and `sizes` has the awkward ones.",
    demand=whole_number,
    wrong={
        "the division rounds down, and the remaining elements get no block":
            lambda n, each, threads: n // (each * threads),
        "it adds a block even where the division comes out even": lambda n, each, threads: n // (each * threads) + 1,
        "each thread is given one element, not several": lambda n, each, threads: -(-n // threads),
        "the number of threads is rounded down before the blocks are counted":
            lambda n, each, threads: -(-(n // each) // threads),
        "the result is rounded up as a float, and stays a float":
            lambda n, each, threads: np.ceil(n / (each * threads)),
    },
)
