"""Two in a word

`bits` (n,) uint32 holds the bits of float32 numbers, and n is even. Round each number to the nearest bfloat16, a tie to
the one whose last bit is 0, and pack two neighbours into one word of `words` (n / 2,) uint32, the first of them in the
low half. A number that rounds to more than the largest bfloat16 becomes infinity, and a NaN of either sign becomes
0x7FC0. Integer operations are enough: shifts, masks and additions.

(In Numba a literal is an int64, and adding one to a uint32 gives an int64, so nothing overflows here. But shifting a
uint32 gives a uint64, and a variable that is assigned both a uint64 and an int64 becomes a float64. If the check
complains about a float64, begin with `np.int64(bits[...])`.)
"""

HINTS = ("Which 16 bits of a float32 are dropped, and for which of their values is the bfloat16 above closer than the "
         "one below?",
         "A shift by 16 truncates. Adding 0x7FFF before it rounds up everything above the middle; one more, where the "
         "last kept bit is 1, makes a tie go to the even number. NaN needs a separate test: with the sign masked "
         "off, its bits are greater than those of infinity.",
         "rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16, or 0x7FC0 where u & 0x7FFFFFFF > 0x7F800000; words[i] "
         "combines, with |, what bits[2 * i] rounds to and what bits[2 * i + 1] rounds to, shifted left by 16.")
POINTS = 2

from labkit import cuda


# %%
@cuda.jit
def pack_bfloat16(bits, words):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < words.size:
        word = 0
        for k in range(2):
            u = bits[2 * i + k]
            rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16
            if u & 0x7FFFFFFF > 0x7F800000:
                rounded = 0x7FC0
            word |= rounded << 16 * k
        words[i] = word
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, uniform
from labkit.kernels.dtypes import bfloat16_of

NAN = 0x7FC0  # of bfloat16


def _packed(bits):
    values = bits.view(np.float32)
    return np.where(np.isnan(values), np.uint16(NAN), bfloat16_of(values)).view(np.uint32)


def _patterns(*patterns):
    return lambda rng, bits: (np.resize(rng.permutation(np.array(patterns, np.uint32)), bits.shape),)


def _lower_half(low):
    """Any upper half of a finite number, of either sign, and this lower half."""
    def turn(rng, bits):
        upper = rng.integers(0, 0x7F80, bits.size) | rng.integers(0, 2, bits.size) << 15
        return ((upper << 16 | low).astype(np.uint32),)

    return turn


@asks("Each element is loaded once.")
def _loads_each_once(report):
    loads, numbers = report.counts["global_loads"], PACKED["n"]
    if loads <= numbers:
        return None
    return f"It makes {loads:,} loads for {numbers:,} elements. Load each element once, into a variable."


PACKED = {"n": 200}

EXERCISE = KernelExercise(
    name="pack_bfloat16",
    reference=_packed,
    inputs=lambda rng, n: uniform(rng, n).view(np.uint32),
    shape=lambda n: (n // 2,),
    dtype=np.uint32,
    sizes=({"n": 2}, {"n": 6}, {"n": 64}, PACKED, {"n": 514}),
    random_size=lambda rng: {"n": 2 * int(rng.integers(10, 200))},
    launch=lambda n: (-(-n // 256), 128),
    observe_sizes=(PACKED,),
    demand=_loads_each_once,
    domain=(Reach("the bits are random", lambda rng, bits: (
                rng.integers(0, 2**32, bits.size, dtype=np.uint32),), PACKED),
            Reach("each number is halfway between two bfloat16 numbers", _lower_half(0x8000)),
            Reach("each number is just above the middle", _lower_half(0x8001)),
            Reach("each number is just below the middle", _lower_half(0x7FFF)),
            Reach("each number is a bfloat16 already", _lower_half(0)),
            Reach("numbers are infinite, 0, -0 or beyond the largest bfloat16", _patterns(
                0x7F800000, 0xFF800000, 0, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF)),
            Reach("numbers are NaN, some with a fraction in the lower half only", _patterns(
                0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F80FFFF, 0x7F808000)),
            Reach("numbers are subnormal", lambda rng, bits: (
                rng.integers(1, 1 << 23, bits.size, dtype=np.uint32),))),
    wrong={
        "truncated: the lower half is cut off": Edit("(u + 0x7FFF + (u >> 16 & 1)) >> 16", "(u + 0) >> 16"),
        "a tie is always rounded up in magnitude": Edit("0x7FFF + (u >> 16 & 1)", "0x8000"),
        "a tie is always rounded down in magnitude": Edit("0x7FFF + (u >> 16 & 1)", "0x7FFF"),
        "NaN is rounded like a number, and some become infinite or 0": Edit("rounded = 0x7FC0", "pass"),
        "infinity counts as NaN": Edit("> 0x7F800000", ">= 0x7F800000"),
        "a negative NaN is missed: the sign was not masked": Edit("u & 0x7FFFFFFF > 0x7F800000",
                                                                    "u > 0x7F800000 and u < 0x80000000"),
        "negative numbers count as NaN: the sign was not masked": Edit("u & 0x7FFFFFFF", "u"),
        "the first number of a pair is in the high half": Edit("16 * k", "16 * (1 - k)"),
        "numbers half an array apart share a word": Edit("bits[2 * i + k]", "bits[i + k * words.size]"),
    },
)

EQUIVALENT = {
    "type: word |= rounded << 16 * k -> word |= int32(rounded << 16 * k)":
        "A word keeps the low 32 bits, and these are the same: only bits above them change with the sign.",
}
