"""From a blank page: normalised and rotated

Qwen3 is built like Llama, but normalises each head of queries and keys before it rotates it. `x` (T, heads, 64) holds
the heads of T tokens. Divide each head by the root of the mean of its squares plus `epsilon`, multiply it by `weight`
(64,), which all heads share, and then rotate it as in exercise 2: a row of `table` (P, 64) holds the cosines of a
position and then its sines, `positions` (T,) int32 holds the position of each token, and pair d is (d, d + 32). The
result goes to `out` (T, heads, 64), which may be `x`. Everything but the positions is float32.

The grid is `(heads, T)`, with 32 threads in a block, so one warp computes a head. The lanes add up the squares by
shuffles.

Write `rotate_normed(x, weight, epsilon, table, positions, out)` from the decorator down.
"""

HINTS = ("A head has 64 elements and a warp has 32 lanes. Which two elements should a lane hold, so that it can rotate "
         "them by itself?",
         "Lane d loads elements d and d + 32. The squares of both go into the sum, which five shuffles bring to every "
         "lane. Then both get the factor and their weights, and only after that the rotation.",
         "head, t, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x; squares = a * a + b * b, five shuffles "
         "by shfl_xor_sync; scale = cuda.rsqrt(squares / float32(64.0) + epsilon); a and b times scale times "
         "weight[lane] and weight[lane + 32]; then as in rope_heads.")
POINTS = 3
NEEDS = ("rmsnorm_block", "rope_heads")

from numba import float32

from labkit import cuda

# %%
rotate_normed = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def rotate_normed(x, weight, epsilon, table, positions, out):
    head, t, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    a, b = x[t, head, lane], x[t, head, lane + 32]
    squares = a * a + b * b
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)
    scale = cuda.rsqrt(squares / float32(64.0) + epsilon)
    a, b = a * scale * weight[lane], b * scale * weight[lane + 32]
    p = positions[t]
    cos, sin = table[p, lane], table[p, lane + 32]
    out[t, head, lane] = a * cos - b * sin
    out[t, head, lane + 32] = b * cos + a * sin


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, Reach, asks, shuffles, uniform
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_ABOVE_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    ZEROS,
    any_angles,
    in_place,
    of,
    parameter,
)
from labkit.course.exercises.llama_by_hand import ALL_LANES, POSITIONS, normed
from labkit.kernels.rope import rope_table, rotated_reference

NORMED_HEAD = 64
NORMED_ROTATED = {"T": 3, "H": 2}


def _normed_heads(x, weight, epsilon):
    return normed(x.reshape(-1, NORMED_HEAD), weight, epsilon).reshape(x.shape)


def _normed_rotated(x, weight, epsilon, table, positions):
    return rotated_reference(_normed_heads(x, weight, epsilon), table, positions)


def _normed_rotated_inputs(rng, T, H):
    """Every second head is small, so that epsilon counts there; epsilon differs from case to case."""
    scale = np.where(np.arange(T * H).reshape(T, H, 1) % 2, 1e-3, 1.0).astype(np.float32)
    return (uniform(rng, T, H, NORMED_HEAD) * scale, 1 + uniform(rng, NORMED_HEAD) / 2,
            np.float32(rng.choice([1e-6, 1e-5, 1e-4])), rope_table(POSITIONS, NORMED_HEAD, 10_000.0),
            rng.integers(1, POSITIONS, T).astype(np.int32))


def _normed_rotated_tolerance(x, weight, epsilon, table, positions):
    """Relative to the length of a pair: the roundings of the norm, and of two products and their sum."""
    normed = _normed_heads(x, weight, epsilon)
    a, b = np.split(normed, 2, axis=2)
    return EPS32 * (np.sqrt(NORMED_HEAD) + 10) * np.tile(np.hypot(a, b), 2)


@asks("Everything is loaded once.", shuffles)
def _head_once(report) -> str | None:
    heads = NORMED_ROTATED["T"] * NORMED_ROTATED["H"]
    loads, enough = report.counts["global_loads"], heads * (3 * NORMED_HEAD + 32)
    if loads > enough:
        return (f"For {heads} heads it loads {loads:,} elements, and {enough:,} are enough: a lane loads both elements "
                f"of its pair, their weights, their cosine and sine, and a position, and each of these once.")
    return None


def _standing(words, choose):
    return Reach(words, lambda rng, x, weight, epsilon, table, positions: (
        x, weight, epsilon, table, choose(positions).astype(np.int32)), {"T": 4, "H": 3})


@cuda.jit
def rotate_normed_loaded_again(x, weight, epsilon, table, positions, out):
    head, t, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    squares = float32(0.0)
    for d in range(lane, 64, 32):
        squares += x[t, head, d] * x[t, head, d]
    for distance in (16, 8, 4, 2, 1):
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
    scale = cuda.rsqrt(squares / float32(64.0) + epsilon)
    a, b = x[t, head, lane] * scale * weight[lane], x[t, head, lane + 32] * scale * weight[lane + 32]
    p = positions[t]
    cos, sin = table[p, lane], table[p, lane + 32]
    out[t, head, lane] = a * cos - b * sin
    out[t, head, lane + 32] = b * cos + a * sin


EXERCISE = KernelExercise(
    name="rotate_normed",
    reference=_normed_rotated,
    inputs=_normed_rotated_inputs,
    shape=lambda T, H: (T, H, NORMED_HEAD),
    sizes=tuple({"T": T, "H": H} for T, H in ((1, 1), (3, 2), (2, 5), (7, 3))),
    random_size=lambda rng: {"T": int(rng.integers(2, 7)), "H": int(rng.integers(2, 7))},
    launch=lambda T, H: ((H, T), 32),
    tolerance=_normed_rotated_tolerance,
    observe_sizes=(NORMED_ROTATED,),
    demand=_head_once,
    domain=(in_place(0),
            _standing("all tokens are at position 0", lambda positions: 0 * positions),
            _standing("all tokens are at the last position of the table",
                      lambda positions: 0 * positions + POSITIONS - 1),
            _standing("the positions are in reverse order", lambda positions: 17 - np.arange(len(positions))),
            any_angles(3, {"T": 4, "H": 3}), *parameter(2, "epsilon", 0, 0.5),
            *of(0, ZEROS, HUGE_AND_TINY, EQUAL, FAR_ABOVE_ZERO, ONE_FAR_ABOVE), *of(1, NEGATIVE)),
    wrong={
        "the weights are applied after the rotation":
            Edit("a, b = a * scale * weight[lane], b * scale * weight[lane + 32]",
                 "",
                 "a * cos - b * sin",
                 "(a * cos - b * sin) * scale * weight[lane]",
                 "b * cos + a * sin",
                 "(b * cos + a * sin) * scale * weight[lane + 32]"),
        "both elements of a pair get the weight of the first": Edit("weight[lane + 32]", "weight[lane]"),
        "the weights are left out": Edit(" * weight[lane],", ",", " * weight[lane + 32]", ""),
        "the squares of the second half of the head are left out": Edit("squares = a * a + b * b", "squares = a * a"),
        "the sum of the squares is divided by the number of lanes": Edit("float32(64.0)", "float32(32.0)"),
        "the sum of the squares, not their mean": Edit("squares / float32(64.0)", "squares"),
        "epsilon is left out: a head of zeros is divided by 0": Edit(" + epsilon", ""),
        "each lane uses only the squares of its own pair": Edit(
            "for distance in (16, 8, 4, 2, 1):\n    squares += cuda.shfl_xor_sync(0xFFFFFFFF, squares, distance)",
            "squares *= float32(32.0)"),
        "shfl_down: only lane 0 has the sum of all": Edit("shfl_xor_sync", "shfl_down_sync"),
        "rotated the other way": Edit("a * cos - b * sin", "a * cos + b * sin", "b * cos + a * sin",
                                      "b * cos - a * sin"),
        "neighbours are taken as pairs": Edit(
            "x[t, head, lane], x[t, head, lane + 32]", "x[t, head, 2 * lane], x[t, head, 2 * lane + 1]",
            "weight[lane],", "weight[2 * lane],", "weight[lane + 32]", "weight[2 * lane + 1]",
            "out[t, head, lane] =", "out[t, head, 2 * lane] =", "out[t, head, lane + 32] =",
            "out[t, head, 2 * lane + 1] ="),
        "the token's index is taken for its position": Edit("p = positions[t]", "p = t"),
        "`positions` is indexed by the head, not the token": Edit("positions[t]",
                                                                  "positions[head % x.shape[0]]"),
        "the elements are loaded again after the sum": rotate_normed_loaded_again,
    },
)

EQUIVALENT = {
    "arithmetic: lane + 32 -> lane - 32 (3)":
        "A negative index counts from the end of the axis, which has 64 elements: it is the same one.",
    "number: 4 -> 5":
        "16, 8, 5, 2 and 1 reach each of the 32 lanes by xor in exactly one way, as 16, 8, 4, 2 and 1 do.",
}

AFTER = """
Last, the model of the lesson with your norm and your rotation, and the beginning of its answer. (The engine
that later lessons build takes such a model, too.)

# %%
from labkit.models.llama import SingleSequence
from labkit.models.load import load

loaded = load("tiny-llama", dtype="float32")
mine = yours.answers(rmsnorm_block=rmsnorm_block, rope_heads=rope_heads)
alone = SingleSequence(yours.with_kernels(loaded.model, mine), context=64)
tokens, step = [], loaded.tokenizer.chat([{"role": "user", "content": "What is a hacker?"}])
for _ in range(20):
    tokens.append(int(alone(step).copy_to_host()[0].argmax()))
    step = tokens[-1:]
print(loaded.tokenizer.decode(tokens))
"""
