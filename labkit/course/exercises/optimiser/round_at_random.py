"""Rounding at random

Without a float32 master, small updates survive if weights are rounded at random (*stochastic rounding*): up with a
probability equal to the fraction that would be cut off. Then an update of a hundredth of the distance between
neighbours moves one weight in a hundred, and the mean is right. The upper 16 bits of a float32 are a bfloat16. To round
at random, add a random number from 0 to 65,535 to the 32 bits, and keep the upper 16 bits of the sum.

`values` (n,) uint32 holds the bits of float32 numbers, and `random` (n,) uint32 holds random words; use their lower 16
bits. Store the bits of the bfloat16 results in `out` (n,) uint16. No value is infinite or NaN, or becomes so. The
launch may have fewer threads than values: use a grid-stride loop. Blocks have 64 threads.
"""

HINTS = ("If the lower 16 bits of a number are 0x4000, a quarter of the distance, for how many of the 65,536 random "
         "numbers does the sum carry into the upper half?",
         "Mask the random word with 0xFFFF, add it to the bits of the number, and shift the sum right by 16.",
         "out[i] = values[i] + (random[i] & 0xFFFF) >> 16, for i from cuda.grid(1) in steps of cuda.gridsize(1).")
POINTS = 1
NEEDS = ("predict_vanished",)

from labkit import cuda


# %%
@cuda.jit
def round_at_random(values, random, out):
    ### BEGIN SOLUTION
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        out[i] = values[i] + (random[i] & 0xFFFF) >> 16
    ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, uniform, whole_grid


def _rounded(values, random):
    return ((values.astype(np.uint64) + (random & np.uint32(0xFFFF))) >> np.uint64(16)).astype(np.uint16)


def _inputs(rng, n):
    return uniform(rng, n).view(np.uint32), rng.integers(0, 2**32, n, np.uint32)


def _words(pattern: int):
    return lambda rng, values, random: (values, np.full_like(random, pattern))


def _lower_half(low: int):
    """Any upper half of a number that stays finite, of either sign, and this lower half."""
    def turn(rng, values, random):
        upper = rng.integers(0, 0x7F7F, values.size) | rng.integers(0, 2, values.size) << 15
        return (upper << 16 | low).astype(np.uint32), random

    return turn


def _just_above(rng, values, random):
    """1 + 0xFFFF carries, and 1 + 0xFFFE would not."""
    return (values & np.uint32(0xFFFF0000)) | np.uint32(1), np.full_like(random, 2**32 - 1)


EXERCISE = KernelExercise(
    name="round_at_random",
    reference=_rounded,
    inputs=_inputs,
    shape=lambda n: (n,),
    dtype=np.uint16,
    sizes=({"n": 1}, {"n": 7}, {"n": 64}, {"n": 300}, {"n": 1000}),
    random_size=lambda rng: {"n": int(rng.integers(30, 900))},
    launch=lambda n: (min(3, -(-n // 64)), 64),
    observe_sizes=({"n": 300},),
    demand=whole_grid,
    domain=(Reach("the random words are 0", _words(0)), Reach("all bits of the random words are 1", _words(2**32 - 1)),
            Reach("each number is already a bfloat16 value", _lower_half(0)),
            Reach("all numbers are just above a bfloat16 value, and all random bits are 1", _just_above),
            Reach("each number is halfway between two bfloat16 values", _lower_half(0x8000)),
            Reach("each number is just below a bfloat16 value", _lower_half(0xFFFF)),
            Reach("numbers are subnormal, and of either sign", lambda rng, values, random: (
                (rng.integers(1, 1 << 23, values.size) | rng.integers(0, 2, values.size) << 31).astype(np.uint32),
                random))),
    wrong={
        "truncated: the random word is not added": Edit("values[i] + (random[i] & 0xFFFF) >> 16", "values[i] >> 16"),
        "rounded to nearest, ties upwards": Edit("(random[i] & 0xFFFF)", "0x8000"),
        "the random word is not masked": Edit("(random[i] & 0xFFFF)", "random[i]"),
        "the upper half of the random word is used": Edit("random[i] & 0xFFFF", "random[i] >> 16"),
        "15 bits of the random word are used": Edit("0xFFFF", "0x7FFF"),
        "1 or 0 is added, by the lowest random bit": Edit("values[i] + (random[i] & 0xFFFF) >> 16",
                                                               "(values[i] >> 16) + (random[i] & 1)"),
        "the lower half of the sum is kept": Edit(">> 16", "& 0xFFFF"),
        "all numbers are rounded by the first random word": Edit("random[i]", "random[0]"),
        "each thread rounds only one value": Edit("values.size, cuda.gridsize(1)",
                                                   "min(values.size, cuda.gridsize(1)), cuda.gridsize(1)"),
        "the stride is a block, not the grid": Edit("cuda.grid(1), values.size, cuda.gridsize(1)",
                                            "cuda.grid(1), min(values.size, cuda.grid(1) + 1), cuda.blockDim.x"),
    },
)

EQUIVALENT = {
    "loop: for i in range(cuda.grid(1), values.size, cuda.gridsize(1)): ... -> for i in range(cuda.grid(1), "
    "values.size, cuda.gridsize(1) - 1)":
        "With a smaller stride two threads round some of the values, to the same result.",
}

AFTER = """
With stochastic rounding a model needs no masters, which saves 4 of the 18 bytes per parameter, but each step needs one
random word per weight. `labkit.kernels.philox` computes these from a counter and a seed.
"""
