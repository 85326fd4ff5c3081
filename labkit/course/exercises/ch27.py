"""The exercises of lesson 27: two bfloat16 in a word, what survives rounding, accumulators, and eight in a load.

Sizes: n numbers; R rows of C columns.
"""

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, shuffles
from labkit.course.exercises.domains import (
    EQUAL,
    HUGE_AND_TINY,
    MOVED,
    NEGATIVE,
    ONE_FAR_ABOVE,
    POSITIVE,
    ZEROS,
    of_bfloat16,
)
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.elements import bfloat16_number
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32

NAN = 0x7FC0  # of bfloat16

# --- Two in a word ----------------------------------------------------------------------------------------------------


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


@asks("Each number is loaded once.")
def _loads_each_once(report):
    loads, numbers = report.counts["global_loads"], PACKED["n"]
    if loads <= numbers:
        return None
    return f"It makes {loads:,} loads for {numbers:,} numbers. Load each number once, into a variable."


PACKED = {"n": 200}

PACK_BFLOAT16 = KernelExercise(
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
            Reach("each number lies in the middle between two bfloat16", _lower_half(0x8000)),
            Reach("each number lies just above the middle", _lower_half(0x8001)),
            Reach("each number lies just below the middle", _lower_half(0x7FFF)),
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

# --- Predict: what survives rounding ----------------------------------------------------------------------------------


def _as_bfloat16(x):
    return float(float32_of(bfloat16_of([x]))[0])


def _as_float16(x):
    return float(np.float16(x))


def _last_sum(rounded, term: float) -> int:
    """Where 0 + term + term + ... stops growing, rounded after each addition."""
    total = 0.0
    while rounded(total + term) > total:
        total = rounded(total + term)
    return round(total)


PREDICT_ROUNDING = PredictionExercise(
    name="predict_rounding",
    truth=lambda: {"nearest": round(_as_bfloat16(1006)), "by_half": _last_sum(_as_bfloat16, 0.5),
                   "by_three": _last_sum(_as_bfloat16, 3), "float16_by_three": _last_sum(_as_float16, 3),
                   "requests": 4096 // (8 * 32)},
    how={"nearest": "From 512 to 1,024 neighbours are 4 apart. 1,006 is a tie between 251 times 4 and 252 times 4, and "
                    "goes to the even one.",
         "by_half": "From 128 on neighbours are 1 apart, and 128.5 is a tie that goes back to 128.",
         "by_three": "From 512 on neighbours are 4 apart, and adding 3 adds 4. From 1,024 on they are 8 apart, and 3 "
                     "is less than half of that.",
         "float16_by_three": "float16 has 3 significant bits more, so everything happens at numbers 8 times as large.",
         "requests": "A load of a warp moves 32 times 8 numbers."},
    wrong={
        "the tie went to the odd neighbour": {"nearest": 1004},
        "the leading 1, which is not stored, was not counted as a bit": {
            "by_half": 64, "by_three": 512, "float16_by_three": 4096},
        "neighbours further apart than the term were taken to stop the sum: more than half of the distance rounds up": {
            "by_three": 512, "float16_by_three": 4096},
        "float16 was given the 8 significant bits of bfloat16": {"float16_by_three": 1024},
        "a number was counted for each lane, not eight": {"requests": 128},
        "the loads of each lane were counted: a request is the load of a whole warp": {"requests": 512},
    },
)

# --- A sum in float32 -------------------------------------------------------------------------------------------------

ALL_LANES = 0xFFFFFFFF


def _dots(w, x):
    return float32_of(w).astype(np.float64) @ float32_of(x)


def _dot_tolerance(w, x):
    """That of a float32 sum in any order; the constant covers sums that are subnormal."""
    return x.size * EPS32 * (np.abs(float32_of(w)).astype(np.float64) @ np.abs(float32_of(x))) + 1e-40


def _whole_numbers(rng, w, x):
    return bfloat16_of(rng.integers(-3, 4, w.shape)), bfloat16_of(rng.integers(-3, 4, x.shape))


def _ones(rng, w, x):
    return bfloat16_of(np.ones(w.shape)), bfloat16_of(np.ones(x.shape))


@cuda.jit
def dot_rows_alone(w, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < w.shape[0] and lane == 0:
        acc = float32(0.0)
        for col in range(x.size):
            acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])
        out[r] = acc


LONG = {"R": 2, "C": 12_000}

DOT_ROWS = KernelExercise(
    name="dot_rows",
    reference=_dots,
    inputs=lambda rng, R, C: (bfloat16_of(uniform(rng, R, C)), bfloat16_of(uniform(rng, C))),
    shape=lambda R, C: (R,),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 3), (4, 32), (5, 33), (3, 100), (9, 384))),
    random_size=lambda rng: {"R": int(rng.integers(2, 12)), "C": int(rng.integers(30, 400))},
    launch=lambda R, C: (-(-R // 4), (32, 4)),
    tolerance=_dot_tolerance,
    observe_sizes=({"R": 3, "C": 100},),
    demand=shuffles,
    domain=(Reach("all numbers are small whole numbers", _whole_numbers),
            Reach("12,000 ones are added", _ones, LONG),
            *of_bfloat16((0, 1), POSITIVE, NEGATIVE, HUGE_AND_TINY, ZEROS, EQUAL),
            *of_bfloat16((0,), ONE_FAR_ABOVE)),
    wrong={
        "the accumulator is a bfloat16": Edit("acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                              "acc = bfloat16_rounded(acc + bfloat16_number(w[r, col]) * "
                                              "bfloat16_number(x[col]))"),
        "each product is rounded to bfloat16": Edit("acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                                    "acc += bfloat16_rounded(bfloat16_number(w[r, col]) * "
                                                    "bfloat16_number(x[col]))"),
        "the lanes' sums are rounded before they are added": Edit("cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)",
                                                                   "bfloat16_rounded(cuda.shfl_xor_sync(0xFFFFFFFF, "
                                                                   "acc, distance))"),
        "the result is rounded to bfloat16": Edit("out[r] = acc", "out[r] = bfloat16_rounded(acc)"),
        "the bits are multiplied as whole numbers": Edit("bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                                         "float32(w[r, col]) * float32(x[col])"),
        "a round of the shuffles is missing": Edit("(16, 8, 4, 2, 1)", "(16, 8, 4, 2)"),
        "every row gets the result of the block's first row": Edit("cuda.blockIdx.x * 4 + cuda.threadIdx.y",
                                                               "cuda.blockIdx.x * 4"),
        "one lane adds up the whole row": dot_rows_alone,
    },
)

# --- From a blank page: eight in a load ------------------------------------------------------------------------------

EIGHTS = {"n": 1024}


@asks("A thread makes one load of 128 bits and two stores of 128 bits.")
def _wide(report):
    """Three requests for a warp: the load and two stores."""
    warps, requests = EIGHTS["n"] // 256, report.counts["global_requests"]
    if requests <= 3 * warps:
        return None
    return (f"At {EIGHTS['n']:,} numbers the {warps} warps make {requests:,} memory requests, and {3 * warps} are "
            f"enough: each thread makes one load of 128 bits and two stores of 128 bits.")


@cuda.jit
def widen_one_by_one(x, out):
    i = 8 * cuda.grid(1)
    if i < x.size:
        for k in range(8):
            out[i + k] = bfloat16_number(x[i + k])


WIDEN_EIGHT = KernelExercise(
    name="widen_eight",
    reference=float32_of,
    inputs=lambda rng, n: bfloat16_of(uniform(rng, n)),
    shape=lambda n: (n,),
    sizes=({"n": 8}, {"n": 24}, {"n": 520}, EIGHTS),
    random_size=lambda rng: {"n": 8 * int(rng.integers(3, 150))},
    launch=lambda n: (-(-n // 512), 64),
    observe_sizes=(EIGHTS,),
    demand=_wide,
    domain=(Reach("the bits are random", lambda rng, x: (rng.integers(0, 2**16, x.size).astype(np.uint16),)),
            *of_bfloat16((0,), MOVED, HUGE_AND_TINY, NEGATIVE, ZEROS)),
    wrong={
        "the two numbers of each word are exchanged": Edit("a, b = ptx.unpack_bf162(p)", "b, a = ptx.unpack_bf162(p)"),
        "the words of the second half are exchanged": Edit("ptx.unpack_bf162(r)", "ptx.unpack_bf162(s)",
                                                           "c, d = ptx.unpack_bf162(s)", "c, d = ptx.unpack_bf162(r)"),
        "the first four numbers are stored twice": Edit("ptx.unpack_bf162(r)", "ptx.unpack_bf162(p)",
                                                        "ptx.unpack_bf162(s)", "ptx.unpack_bf162(q)"),
        "the second store overwrites the first": Edit("i + 4", "i"),
        "the second store begins eight numbers on, not four": Edit("i + 4", "i + 8"),
        "the guard is too large, and threads beyond the end load": Edit("i < x.size", "i < 8 * x.size"),
        "the words hold bfloat16, and are unpacked as float16": Edit("ptx.unpack_bf162(p)", "ptx.unpack_half2(p)"),
        "one number at a time: eight loads and eight stores": widen_one_by_one,
    },
)

EXERCISES = (PACK_BFLOAT16, PREDICT_ROUNDING, DOT_ROWS, WIDEN_EIGHT)
