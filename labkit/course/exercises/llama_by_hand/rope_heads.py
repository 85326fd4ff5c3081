"""Rotated by position

`x` (T, heads, D) float32 holds the heads of T tokens, and `positions` (T,) int32 their positions. Row p of `table`
(P, D) belongs to position p: first the cosines of the D / 2 angles, then their sines. Pair d of a head is
(d, d + D / 2). Rotate (a, b) to (a cos − b sin, b cos + a sin), and write it to the same elements of `out`.

For example, with D = 4 the head (1, 2, 3, 4) has the pairs (1, 3) and (2, 4). At a position where both angles are 90°,
it becomes (−3, −4, 1, 2).

There is one thread per pair of each head of each token, in a one-dimensional grid with some threads to spare. `out` may
be `x`.
"""

HINTS = ("Thread i has one pair. How many pairs does a head have, and how many does a token have? Work out d, the head "
         "and the token of i, with // and %.",
         "d is i % half, the head i // half % heads, and the token is what is left. Load both elements of the pair "
         "into variables before you store anything: out may be x.",
         "cos, sin = table[p, d], table[p, d + half] with p = positions[t]; a, b = x[t, head, d], x[t, head, d + "
         "half]; then out[t, head, d] = a * cos - b * sin and out[t, head, d + half] = b * cos + a * sin.")
POINTS = 2

from labkit import cuda


# %%
@cuda.jit
def rope_heads(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        p = positions[t]
        cos, sin = table[p, d], table[p, d + half]
        a, b = x[t, head, d], x[t, head, d + half]
        out[t, head, d] = a * cos - b * sin
        out[t, head, d + half] = b * cos + a * sin
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EQUAL, SUMMED, Edit, KernelExercise, Reach, any_angles, asks, in_place, of, uniform
from labkit.course.exercises.llama_by_hand import POSITIONS
from labkit.kernels.elements import FLOAT32
from labkit.kernels.ops.rope import head_tolerance
from labkit.kernels.rope import rope_table, rotated_reference

ROTATED = {"T": 3, "H": 2, "D": 6}


def _rope_inputs(rng, T, H, D):
    return (uniform(rng, T, H, D), rope_table(POSITIONS, D, 10_000.0), rng.integers(0, POSITIONS, T).astype(np.int32))


def _rope_tolerance(x, table, positions):
    return head_tolerance(x, None, FLOAT32)


@asks("Everything is loaded once: both elements of a pair, their cosine and sine, and the position.")
def _pairs_once(report) -> str | None:
    tokens, heads, size = ROTATED["T"], ROTATED["H"], ROTATED["D"]
    numbers = tokens * heads * size
    enough = 2 * numbers + numbers // 2  # x; cosines and sines of each pair; a position for each thread
    loads = report.counts["global_loads"]
    if loads > enough:
        return (f"At {tokens} tokens of {heads} heads of {size} it loads {loads:,} elements, and {enough:,} are "
                f"enough: a thread loads both elements of its pair, their cosine and sine, and a position, each once.")
    return None


def _at_positions(words, choose):
    return Reach(words, lambda rng, x, table, positions: (x, table, choose(positions).astype(np.int32)),
                 {"T": 4, "H": 3, "D": 8})


@cuda.jit
def rope_heads_number_by_number(x, table, positions, out):
    tokens, heads, size = x.shape
    half = size // 2
    i = cuda.grid(1)
    if i < tokens * heads * half:
        d, head, t = i % half, i // half % heads, i // half // heads
        a, b = x[t, head, d], x[t, head, d + half]
        first = a * table[positions[t], d] - b * table[positions[t], d + half]
        out[t, head, d + half] = b * table[positions[t], d] + a * table[positions[t], d + half]
        out[t, head, d] = first


EXERCISE = KernelExercise(
    name="rope_heads",
    reference=rotated_reference,
    inputs=_rope_inputs,
    shape=lambda T, H, D: (T, H, D),
    sizes=tuple({"T": T, "H": H, "D": D} for T, H, D in ((1, 1, 2), (3, 2, 6), (4, 3, 8), (2, 5, 34), (7, 3, 64))),
    random_size=lambda rng: {"T": int(rng.integers(2, 6)), "H": int(rng.integers(2, 6)),
                             "D": 2 * int(rng.integers(2, 20))},
    launch=lambda T, H, D: (-(-T * H * D // 128), 64),
    tolerance=_rope_tolerance,
    observe_sizes=(ROTATED,),
    demand=_pairs_once,
    domain=(in_place(0),
            _at_positions("all tokens are at position 0", lambda positions: 0 * positions),
            _at_positions("all tokens are at the last position of the table",
                          lambda positions: 0 * positions + POSITIONS - 1),
            _at_positions("the positions are in reverse order", lambda positions: 17 - np.arange(len(positions))),
            _at_positions("the positions are far apart", lambda positions: 13 * np.arange(len(positions))),
            any_angles(1), *of(0, *SUMMED, EQUAL)),
    wrong={
        "neighbours are taken as pairs": Edit("a, b = x[t, head, d], x[t, head, d + half]",
                                              "a, b = x[t, head, 2 * d], x[t, head, 2 * d + 1]",
                                              "out[t, head, d] =", "out[t, head, 2 * d] =",
                                              "out[t, head, d + half] =", "out[t, head, 2 * d + 1] ="),
        "rotated the other way": Edit("a * cos - b * sin", "a * cos + b * sin", "b * cos + a * sin",
                                      "b * cos - a * sin"),
        "both signs are plus": Edit("a * cos - b * sin", "a * cos + b * sin"),
        "the token's index is taken for its position": Edit("p = positions[t]", "p = t"),
        "cosines and sines are taken to alternate": Edit("table[p, d], table[p, d + half]",
                                                         "table[p, 2 * d], table[p, 2 * d + 1]"),
        "the sine is that of the first angle, for all pairs": Edit("table[p, d + half]", "table[p, half]"),
        "every head gets the angles of another token: heads and tokens are swapped": Edit(
            "d, head, t = i % half, i // half % heads, i // half // heads",
            "d, t, head = i % half, i // half % tokens, i // half // tokens", "p = positions[t]",
            "p = positions[i // half // heads]"),
        "no guard: the last block has threads without a pair": Edit("if i < tokens * heads * half:", "if True:"),
        "in place, the second element is computed from the rotated first one":
            Edit("b * cos + a * sin", "b * cos + x[t, head, d] * sin"),
        "the position is loaded again for each use": rope_heads_number_by_number,
    },
)

EQUIVALENT = {
    "arithmetic: d + half -> d - half":
        "A negative index counts from the end of the axis, and a head has twice as many elements as pairs: it is the "
        "same element.",
}

AFTER = """
Both can run in a Llama: your norm before attention and before the MLP, your rotation on queries and keys. The model
below computes in float32, as your kernels do.

# %%
llama = yours.small_llama()
prompts = [[3, 1, 4, 1, 5], [9, 2]]
yours.one_by_one(yours.answers(rmsnorm_block=rmsnorm_block, rope_heads=rope_heads), llama, prompts)
"""
