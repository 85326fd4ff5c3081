"""From a blank page: eight numbers in a load

`x` (n,) uint16 holds bfloat16 numbers, and n is a multiple of 8. Write the same numbers as float32 to `out` (n,). A
thread converts eight neighbours. `ptx.load_global4(x, i)` returns the eight numbers from `x[i]` on as four words,
`ptx.unpack_bf162(word)` returns the two numbers of a word as float32, the one in the low half first, and
`ptx.store_global4(out, i, a, b, c, d)` stores four float32 numbers from `out[i]` on.

Write the kernel `widen_eight(x, out)`. It is launched with a one-dimensional grid of blocks of 64 threads, with at
least one thread per eight numbers.
"""

HINTS = ("How many words does a 128-bit load return, how many numbers are in each, and how many float32 does one "
         "128-bit store write?",
         "A thread begins at i = 8 * cuda.grid(1), and its four words hold x[i] to x[i + 7] in order. Two unpacked "
         "words make one store of four float32; the other two go four elements further on. Guard with i < x.size.",
         "p, q, r, s = ptx.load_global4(x, i); a, b = ptx.unpack_bf162(p); c, d = ptx.unpack_bf162(q); "
         "ptx.store_global4(out, i, a, b, c, d); then the same with r and s, at i + 4.")
POINTS = 2
NEEDS = ("pack_bfloat16",)

from labkit import cuda, ptx

# %%
widen_eight = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def widen_eight(x, out):
    i = 8 * cuda.grid(1)
    if i < x.size:
        p, q, r, s = ptx.load_global4(x, i)
        a, b = ptx.unpack_bf162(p)
        c, d = ptx.unpack_bf162(q)
        ptx.store_global4(out, i, a, b, c, d)
        a, b = ptx.unpack_bf162(r)
        c, d = ptx.unpack_bf162(s)
        ptx.store_global4(out, i + 4, a, b, c, d)


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, uniform
from labkit.course.exercises.domains import HUGE_AND_TINY, MOVED, NEGATIVE, ZEROS, of_bfloat16
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.elements import bfloat16_number

EIGHTS = {"n": 1024}


@asks("A thread makes one load of 128 bits and two stores of 128 bits.")
def _wide(report):
    """Three requests for a warp: the load and two stores."""
    warps, requests = EIGHTS["n"] // 256, report.counts["global_requests"]
    if requests <= 3 * warps:
        return None
    return (f"At {EIGHTS['n']:,} elements the {warps} warps make {requests:,} memory requests, and {3 * warps} are "
            f"enough: each thread makes one load of 128 bits and two stores of 128 bits.")


@cuda.jit
def widen_one_by_one(x, out):
    i = 8 * cuda.grid(1)
    if i < x.size:
        for k in range(8):
            out[i + k] = bfloat16_number(x[i + k])


EXERCISE = KernelExercise(
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
        "the first word's two numbers are swapped": Edit("a, b = ptx.unpack_bf162(p)", "b, a = ptx.unpack_bf162(p)"),
        "the words of the second half are swapped": Edit("ptx.unpack_bf162(r)", "ptx.unpack_bf162(s)",
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

EQUIVALENT = {
    "guard: i < x.size -> i < x.size - 1": "i and x.size are multiples of 8: i is never x.size - 1.",
}
