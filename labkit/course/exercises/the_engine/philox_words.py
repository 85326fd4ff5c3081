"""From a blank page: Philox

Philox4x32-10 makes four random words of 32 bits from a counter of four words (a, b, c, d) and a key of two. Each of ten
rounds begins with two 64-bit products:

`first = 0xD2511F53 * a` and `second = 0xCD9E8D57 * c`

The new a, b, c and d are, in order:

1. the upper half of `second` ^ b ^ the first word of the key
2. the lower half of `second`
3. the upper half of `first` ^ d ^ the second word of the key
4. the lower half of `first`

`^` is XOR, and b and d are the old ones. After each round, 0x9E3779B9 is added to the key's first word and 0xBB67AE85
to its second, both modulo 2³². The four words after the tenth round are the result. With counter and key 0 it is
0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8.

`counters` (n, 4), `keys` (n, 2) and `out` (n, 4) are uint32, and each thread computes one row; blocks have 64 threads.
Keep everything in variables. In a kernel, `uint64(x) >> uint64(32)` is the upper half of x, and `uint32(x)` is the
lower half.

Write `philox_words(counters, keys, out)` from the decorator down.
"""

HINTS = ("Which of the four new words come from `first`, and which from `second`? Which old words are still needed "
         "after a has been assigned?",
         "Compute both products before any word changes. The key changes after the round, and a sum of two uint32 must "
         "be cut back to 32 bits by uint32(...).",
         "first, second = uint64(0xD2511F53) * uint64(a), uint64(0xCD9E8D57) * uint64(c); a, b, c, d = "
         "uint32(uint32(second >> uint64(32)) ^ b ^ key_0), uint32(second), uint32(uint32(first >> uint64(32)) ^ d ^ "
         "key_1), uint32(first); key_0 = uint32(key_0 + uint32(0x9E3779B9)).")
POINTS = 3
NEEDS = ("draw_tokens",)

from numba import uint32, uint64

from labkit import cuda

# %%
philox_words = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def philox_words(counters, keys, out):
    i = cuda.grid(1)
    if i < counters.shape[0]:
        a, b, c, d = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]
        key_0, key_1 = keys[i, 0], keys[i, 1]
        for _ in range(10):
            first = uint64(0xD2511F53) * uint64(a)
            second = uint64(0xCD9E8D57) * uint64(c)
            a = uint32(uint32(second >> uint64(32)) ^ b ^ key_0)
            b = uint32(second)
            c = uint32(uint32(first >> uint64(32)) ^ d ^ key_1)
            d = uint32(first)
            key_0 = uint32(key_0 + uint32(0x9E3779B9))
            key_1 = uint32(key_1 + uint32(0xBB67AE85))
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = a, b, c, d


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach, asks, elements_of_argument
from labkit.kernels.philox import philox_reference


def _words(counters, keys):
    return np.array([philox_reference(counter, key) for counter, key in zip(counters, keys, strict=True)], np.uint32)


def _counter_inputs(rng, n):
    return rng.integers(0, 2**32, (n, 4), np.uint32), rng.integers(0, 2**32, (n, 2), np.uint32)


def _counters(words, counters, key):
    """counters: (40, 4), or what can be made so; key: two words, the same for all."""
    def turn(rng, *_):
        return np.broadcast_to(np.uint32(counters), (40, 4)).copy(), np.broadcast_to(np.uint32(key), (40, 2)).copy()

    return Reach(words, turn, {"n": 40})


POSITIONS = np.stack([np.arange(40), *np.zeros((3, 40), np.int64)], axis=1)


@asks("The counter and the key are loaded once, and the result is stored once.")
def _in_registers(report) -> str | None:
    n = elements_of_argument(report, 0) // 4
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= 6 * n and stores <= 4 * n:
        return None
    return (f"For {n} counters it makes {loads:,} loads and {stores:,} stores in global memory; {6 * n:,} and "
            f"{4 * n:,} are enough. Keep the four words and the key in variables during the ten rounds.")


EXERCISE = KernelExercise(
    name="philox_words",
    reference=_words,
    inputs=_counter_inputs,
    shape=lambda n: (n, 4),
    dtype=np.uint32,
    sizes=tuple({"n": n} for n in (1, 5, 64, 100, 257)),
    random_size=lambda rng: {"n": int(rng.integers(30, 200))},
    launch=lambda n: (-(-n // 64), 64),
    observe_sizes=({"n": 100},),
    demand=_in_registers,
    domain=(_counters("counter and key are 0", (0, 0, 0, 0), (0, 0)),
            _counters("all bits of counter and key are 1", (2**32 - 1,) * 4, (2**32 - 1,) * 2),
            _counters("counters are positions, and the key is a small seed", POSITIONS, (1, 0))),
    wrong={
        "nine rounds": Edit("range(10)", "range(9)"),
        "the key stays the same in all rounds": Edit("key_0 = uint32(key_0 + uint32(0x9E3779B9))", "",
                                                     "key_1 = uint32(key_1 + uint32(0xBB67AE85))", ""),
        "the key is bumped before the first round": Edit(
            "key_0 = uint32(key_0 + uint32(0x9E3779B9))\nkey_1 = uint32(key_1 + uint32(0xBB67AE85))", "",
            "first = uint64(0xD2511F53) * uint64(a)",
            "key_0 = uint32(key_0 + uint32(0x9E3779B9))\nkey_1 = uint32(key_1 + uint32(0xBB67AE85))\n"
            "first = uint64(0xD2511F53) * uint64(a)"),
        "the two products are swapped": Edit("uint32(second >> uint64(32)) ^ b ^ key_0",
                                               "uint32(first >> uint64(32)) ^ b ^ key_0",
                                               "uint32(first >> uint64(32)) ^ d ^ key_1",
                                               "uint32(second >> uint64(32)) ^ d ^ key_1"),
        "the lower 32 bits are mixed with the key, not the upper ones": Edit(
            "uint32(second >> uint64(32)) ^ b ^ key_0", "uint32(second) ^ b ^ key_0"),
        "the second word of the key is not used": Edit("^ d ^ key_1", "^ d ^ key_0"),
        "the words of the counter are used in reverse order": Edit(
            "a, b, c, d = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]",
            "d, c, b, a = counters[i, 0], counters[i, 1], counters[i, 2], counters[i, 3]"),
        "32-bit products: the upper 32 bits are lost": Edit(
            "uint64(0xD2511F53) * uint64(a)", "uint64(uint32(uint32(0xD2511F53) * uint32(a)))",
            "uint64(0xCD9E8D57) * uint64(c)", "uint64(uint32(uint32(0xCD9E8D57) * uint32(c)))"),
        "no guard: the last block has threads without a counter": Edit("if i < counters.shape[0]:", "if True:"),
    },
)

EQUIVALENT = {
    "index: out[i, 0] -> out[i, -0]": "-0 is 0.",
}

AFTER = """
With Philox, sampling a token needs no state from earlier samples: the counter is the position, and the key is the seed.
`labkit.kernels.philox` has the function that the engine's kernels call; compare yours with it.
"""
