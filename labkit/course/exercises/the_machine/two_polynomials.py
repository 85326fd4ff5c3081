r"""From a blank page: a warp that stays together

Evaluate two polynomials: `even` at elements 0, 2, 4, ... of `x`, and `odd` at elements 1, 3, 5, ... Each is given by
its coefficients, with the constant first.

$$\text{out}_i = \sum_k c_k \, x_i^k, \qquad c = \text{even or odd}$$

For `even` = (1, 2), `odd` = (5, 0, 1) and `x` = (3, 3, 4, 4) the result is (7, 14, 9, 21). The two may have different
lengths. The kernel is launched with blocks of 64 threads, and block b computes elements 64 b to 64 b + 63. If each
thread computes the element with its own index, every warp splits. Which 32 elements of the block can the first warp
compute instead, so that all of its lanes agree?

Horner's rule needs the fewest operations: start with 0, and for each coefficient from the last to the first, multiply
by x and add the coefficient.
"""

HINTS = ("A block has two warps and 64 elements, half of them even and half odd. Which warp could compute which?",
         "The index of the warp in its block is cuda.threadIdx.x // 32, and the lane is cuda.threadIdx.x % 32. Warp 0 "
         "computes the even elements of the block, warp 1 the odd ones; lane 0 has the first of them.",
         "i = cuda.blockIdx.x * 64 + 2 * lane + warp, then the guard. Load x[i] into a variable, choose with if warp "
         "== 0, and let k run over even.size or odd.size: value = value * mine + even[even.size - 1 - k].")
POINTS = 3
NEEDS = ("predict_branches",)

import numpy as np

from labkit import cuda

# %%
two_polynomials = None  # write the kernel here: @cuda.jit, then def two_polynomials(x, even, odd, out)
### BEGIN SOLUTION
@cuda.jit
def two_polynomials(x, even, odd, out):
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    i = cuda.blockIdx.x * 64 + 2 * lane + warp  # warp 0 has the even elements, warp 1 the odd ones
    if i < x.size:
        mine = x[i]
        value = np.float32(0.0)
        if warp == 0:
            for k in range(even.size):
                value = value * mine + even[even.size - 1 - k]
        else:
            for k in range(odd.size):
                value = value * mine + odd[odd.size - 1 - k]
        out[i] = value


### END SOLUTION

# %% [check]
from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, of, relative_to, uniform

BLOCK = 64


def _values(x, even, odd):
    rows = x.astype(np.float64)[:, None] ** np.arange(max(len(even), len(odd)))
    at = np.arange(len(x)) % 2
    return np.where(at == 0, rows[:, : len(even)] @ even, rows[:, : len(odd)] @ odd)


@asks("Only the guard may split a warp, in the last block; each thread loads its `x` once, and the coefficients "
      "of one polynomial once.")
def _together(report):
    """No warp may split over which polynomial, and no thread may compute both. report: of observe."""
    (n,), (even,), (odd,) = (shape for _, shape, _ in list(report.arrays.values())[:3])
    allowed, split = 4, report.counts["divergent_branches"]  # a guard, or a loop's bound, in the last block
    if split > allowed:
        return (f"Warps split {split} times. All lanes of a warp should compute the same polynomial; only the guard "
                f"may split one, in the last block.")
    enough, loads = n + (n + 1) // 2 * even + n // 2 * odd, report.counts["global_loads"]
    if loads > enough:
        of_even, of_odd = ({thread for (array, _), cells in report.touched.items() if array == name
                            for thread, _ in cells} for name in list(report.arrays)[1:3])
        why = "threads load the coefficients of both polynomials, and need those of one" if of_even & of_odd else (
            "each thread's x once, into a variable, and each coefficient of its polynomial once")
        return f"{loads:,} values are loaded, and {enough:,} are enough: {why}."
    return None


@cuda.jit
def two_polynomials_both(x, even, odd, out):
    i = cuda.grid(1)
    if i < x.size:
        mine, first, second = x[i], np.float32(0.0), np.float32(0.0)
        for k in range(even.size):
            first = first * mine + even[even.size - 1 - k]
        for k in range(odd.size):
            second = second * mine + odd[odd.size - 1 - k]
        which = np.float32(i % 2)
        out[i] = first * (np.float32(1.0) - which) + second * which


SIZES = tuple({"n": n, "even": even, "odd": odd} for n, even, odd in (
    (1, 1, 1), (2, 3, 1), (63, 5, 4), (64, 3, 6), (65, 4, 4), (320, 2, 7), (1000, 6, 3)))

EXERCISE = KernelExercise(
    name="two_polynomials",
    reference=_values,
    inputs=lambda rng, n, even, odd: (uniform(rng, n), uniform(rng, even), uniform(rng, odd)),
    shape=lambda n, even, odd: (n,),
    sizes=SIZES,
    observe_sizes=SIZES[-3:],
    random_size=lambda rng: {"n": int(rng.integers(1, 500)), "even": int(rng.integers(1, 8)),
                             "odd": int(rng.integers(1, 8))},
    launch=lambda n, even, odd: (-(-n // BLOCK), BLOCK),
    tolerance=relative_to(lambda x, even, odd: _values(np.abs(x), np.abs(even), np.abs(odd)), roundings=14),
    domain=of((0, 1, 2), *SUMMED),
    demand=_together,
    wrong={
        "even and odd elements are neighbours in every warp, so every warp splits":
            Edit("i = cuda.blockIdx.x * 64 + 2 * lane + warp", "i = cuda.grid(1)", "if warp == 0:", "if i % 2 == 0:"),
        "every thread computes both polynomials and keeps one": two_polynomials_both,
        "each warp uses one polynomial for all its elements, but they are still neighbours":
            Edit("i = cuda.blockIdx.x * 64 + 2 * lane + warp", "i = cuda.grid(1)"),
        "the second warp of a block begins at the block's first element, too":
            Edit("2 * lane + warp", "2 * lane"),
        "every block computes the elements of the first block":
            Edit("cuda.blockIdx.x * 64 + ", ""),
        "the coefficients are taken with the highest power first":
            Edit("even[even.size - 1 - k]", "even[k]"),
        "the constant of the odd polynomial is left out":
            Edit("range(odd.size)", "range(odd.size - 1)"),
        "there is no guard": Edit("if i < x.size:", "if True:"),
    },
)

AFTER = """
There is a price. The lanes of a warp now load every second element of `x`, and you know from lesson 01 what that costs:
each load moves twice as many bytes as it needs. The other warp of the block soon needs the rest of those bytes, which
are then likely to be in a cache. Whether the rearrangement pays off depends on the length of the branches: for two
short ones it does not, for a polynomial with hundreds of coefficients it does.
"""
