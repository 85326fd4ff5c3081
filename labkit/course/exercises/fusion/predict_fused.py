"""Predict: a chain of small kernels

Three kernels run one after the other on arrays of n float32 elements, as in the first half of a feed-forward layer
whose input is added at its end:

1. `biased = x + bias`, where `bias` is so short that its bytes do not count
2. `active = gelu(biased)`
3. `out = active + residual`

How many bytes per element of `out` does each of these programs move to and from memory?

- `separate`: the three kernels
- `bias_gelu`: the first two fused into one kernel, then the third
- `one`: all three in one kernel
- `one_kept`: all three in one kernel, which also stores `active`, since another layer needs it

And if the kernels run at the speed of memory:

- `times_faster`: how many times as fast as `separate` is `one`? Two decimals are enough.
"""

HINTS = ("For each kernel, list the arrays of n elements that it reads, then those that it writes.",
         "The first kernel reads x and writes biased; the second reads biased and writes active; the third reads two "
         "arrays and writes one. Each array is four bytes per element.",
         "separate: 2 + 2 + 3 arrays. A fused kernel touches only the arrays that come from outside or go outside.")
POINTS = 2

# %%
separate = None
bias_gelu = None
one = None
one_kept = None
times_faster = None
### BEGIN SOLUTION
separate = 4 * (2 + 2 + 3)
bias_gelu = 4 * (2 + 3)  # biased stays in a register
one = 4 * 3  # x and the residual in, out out
one_kept = 4 * 4
times_faster = 28 / 12
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

PROGRAMS = {  # the kernels of each: arrays of n elements read, written
    "separate": (("x",), ("biased",)), "gelu": (("biased",), ("active",)), "add": (("active", "residual"), ("out",)),
}


def _bytes(*kernels) -> int:
    return 4 * sum(len(read) + len(written) for read, written in kernels)


def _moved() -> dict[str, float]:
    bias, gelu, add = PROGRAMS.values()
    separate, one = _bytes(bias, gelu, add), _bytes((("x", "residual"), ("out",)))
    return {"separate": separate, "bias_gelu": _bytes((("x",), ("active",)), add), "one": one,
            "one_kept": _bytes((("x", "residual"), ("active", "out"))), "times_faster": separate / one}


EXERCISE = PredictionExercise(
    name="predict_fused",
    truth=_moved,
    how={"separate": "the kernels touch 2, 2 and 3 arrays of n elements, at four bytes per element",
         "bias_gelu": "biased is neither written nor read: 2 arrays, then 3",
         "one": "x and the residual are read, out is written",
         "one_kept": "as one, with one more array written",
         "times_faster": "at the speed of memory, the ratio of the times is the ratio of the bytes"},
    wrong={"counts only the reads": {"separate": 16, "bias_gelu": 12, "one": 8, "one_kept": 8, "times_faster": 2},
           "counts elements, not bytes": {"separate": 7, "bias_gelu": 5, "one": 3, "one_kept": 4},
           "counts what a fused kernel keeps in registers as written": {"bias_gelu": 24, "one": 20, "one_kept": 20,
                                                                        "times_faster": 1.4},
           "forgets that the residual has to be read in any case": {"one": 8, "one_kept": 12, "times_faster": 3.5},
           "counts the kept array as free, since it is in a register anyway": {"one_kept": 12}},
)

AFTER = """
From seven arrays to three: no single kernel became faster. The next step is to compute even this last kernel in the
epilogue of the product that makes `x`. Then reading `x` disappears as well.
"""
