"""A product that reads codes

`out[r]` (R,) float32 should be the dot product of row r of quantised weights with `x` (8 W,), float32. The weights are
in `words` (R, W), uint32: word w of a row holds the codes of columns 8 w to 8 w + 7, the first one in the lowest 4
bits. A code c means the weight (c - 8) * `scales[r, group]`, where `scales` (R, W / 8) has one float32 for every 64
columns, which are eight words. W is a multiple of 8. A warp computes a row: blocks have `(32, 4)` threads, and each
warp has row `4 * blockIdx.x + threadIdx.y`. Unpack the weights in registers: they must not be written to memory.
"""

HINTS = ("Let lane l take words l, l + 32, and so on. What does it need for a word: eight elements of x, and how many "
         "scales?",
         "Add up (code - 8) * x over the eight columns of a word first, and multiply that by the scale once: all eight "
         "are in the group w // 8.",
         "For each word: part = float32(0.0); for i in range(8): part += float32(int32(word >> 4 * i & 15) - 8) * "
         "x[8 * w + i]; acc += part * scales[r, w // 8]. Then the shuffles.")
POINTS = 2
NEEDS = ("unpack_awq", "group_scales")

from numba import float32, int32

from labkit import cuda

# %%
dot_codes = None  # write the kernel here: def dot_codes(words, scales, x, out)
### BEGIN SOLUTION
@cuda.jit
def dot_codes(words, scales, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < words.shape[0]:
        acc = float32(0.0)
        for w in range(lane, words.shape[1], 32):
            word, part = words[r, w], float32(0.0)
            for i in range(8):
                part += float32(int32(word >> 4 * i & 15) - 8) * x[8 * w + i]
            acc += part * scales[r, w // 8]
        for distance in (16, 8, 4, 2, 1):
            acc += cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)
        if lane == 0:
            out[r] = acc


### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, shuffles, uniform
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, NEGATIVE, POSITIVE, ZEROS, of


def _weights(words, scales):
    codes = np.stack([words >> np.uint32(4 * i) & np.uint32(15) for i in range(8)], axis=2).reshape(words.shape[0], -1)
    return (codes.astype(np.float64) - 8) * np.repeat(scales.astype(np.float64), 64, axis=1)


def _product(words, scales, x):
    return _weights(words.astype(np.uint32), scales) @ x.astype(np.float64)


def _tolerance(words, scales, x):
    """That of a float32 sum in any order."""
    return 2 * x.size * EPS32 * (np.abs(_weights(words.astype(np.uint32), scales)) @ np.abs(x)) + 1e-30


def _inputs(rng, R, W):
    return (rng.integers(0, 2**32, (R, W), np.uint32), (0.1 + rng.random((R, W // 8))).astype(np.float32),
            uniform(rng, 8 * W))


@cuda.jit
def dot_codes_alone(words, scales, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < words.shape[0] and lane == 0:
        acc = float32(0.0)
        for w in range(words.shape[1]):
            word, part = words[r, w], float32(0.0)
            for i in range(8):
                part += float32(int32(word >> 4 * i & 15) - 8) * x[8 * w + i]
            acc += part * scales[r, w // 8]
        out[r] = acc


EXERCISE = KernelExercise(
    name="dot_codes",
    reference=_product,
    inputs=_inputs,
    shape=lambda R, W: (R,),
    sizes=tuple({"R": R, "W": W} for R, W in ((1, 8), (3, 8), (4, 32), (5, 40), (2, 72), (9, 16))),
    random_size=lambda rng: {"R": int(rng.integers(2, 12)), "W": 8 * int(rng.integers(1, 12))},
    launch=lambda R, W: (-(-R // 4), (32, 4)),
    tolerance=_tolerance,
    observe_sizes=({"R": 4, "W": 32}, {"R": 5, "W": 40}),
    demand=shuffles,
    domain=(Reach("all codes are 15, the highest",
                  lambda rng, words, scales, x: (np.full_like(words, 2**32 - 1), scales, x)),
            Reach("all codes are 0, the lowest",
                  lambda rng, words, scales, x: (np.zeros_like(words), scales, x)),
            *of(1, HUGE_AND_TINY), *of(2, ZEROS, POSITIVE, NEGATIVE, EQUAL)),
    wrong={
        "the zero, 8, is not subtracted": Edit(" - 8", ""),
        "7 is subtracted": Edit(" - 8", " - 7"),
        "the codes of a word are read from the highest bits down": Edit("word >> 4 * i", "word >> 28 - 4 * i"),
        "the codes are in AWQ's order": Edit("x[8 * w + i]", "x[8 * w + (2 * i if i < 4 else 2 * i - 7)]"),
        "every group has the scale of the first": Edit("scales[r, w // 8]", "scales[r, 0]"),
        "there is one scale for every 32 columns": Edit("w // 8", "min(w // 4, scales.shape[1] - 1)"),
        "the scales of the block's first row are used": Edit("scales[r, w // 8]",
                                                              "scales[cuda.blockIdx.x * 4, w // 8]"),
        "the scale is left out": Edit("part * scales[r, w // 8]", "part"),
        "each lane multiplies only its first word": Edit("range(lane, words.shape[1], 32)",
                                                 "range(lane, min(32, words.shape[1]), 32)"),
        "a round of the shuffles is missing": Edit("(16, 8, 4, 2, 1)", "(16, 8, 4, 2)"),
        "the codes are subtracted as unsigned numbers": Edit("float32(int32(word >> 4 * i & 15) - 8)",
                                                             "float32(uint32(uint32(word >> 4 * i & 15) - uint32(8)))"),
        "one lane computes the whole row": dot_codes_alone,
    },
)
