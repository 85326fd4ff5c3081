"""Count the blocks"""

HINTS = ("How many threads are too many?", "Round up.", "-(-a // b) rounds up.")
POINTS = 1
NEEDS = ("scale_vector",)


# %%
def count_blocks(n, threads):
    ### BEGIN SOLUTION
    return -(-n // threads)
    ### END SOLUTION


# %% [check]
from labkit.course.exercises import FunctionExercise

EXERCISE = FunctionExercise(
    name="count_blocks",
    reference=lambda n, threads: -(-n // threads),
    inputs=lambda rng, n: (n, 128),
    sizes=({"n": 1}, {"n": 127}, {"n": 128}, {"n": 129}, {"n": 1000}),
    domain="Its inputs are lengths, and `sizes` has them.",
    wrong={"rounds down": lambda n, threads: n // threads, "always one more": lambda n, threads: n // threads + 1},
)
