"""A gated product

SwiGLU begins with two products of the same rows: out = silu(x gateᵀ) · (x upᵀ), element by element, where silu(v) is v
/ (1 + exp(−v)). `x` is (T, K), `gate` and `up` are (N, K), and `out` is (T, N), all float32. For a row x = (1, 2), a
gate row (1, 0) and an up row (0, 3), the dot products are 1 and 6, and the output is silu(1) · 6, about 4.39.

There is one thread per output, in blocks of `(32, 4)`: columns of `out` in x, rows in y. Compute both dot products
in one loop. They may be as large as several hundred, with either sign.
"""

HINTS = ("A thread needs one row of x and a row of each weight. Which of these three can be loaded once for both sums?",
         "Two sums in one loop over k; after the loop the gate goes through silu and multiplies the other sum. With a "
         "gate of -400, exp(400) is infinite, and dividing by it gives 0, which is right. With exp(gate) in numerator "
         "and denominator, a gate of 400 would give infinity divided by infinity.",
         "value = x[row, k]; g += value * gate[col, k]; u += value * up[col, k]; and last out[row, col] = g / "
         "(float32(1.0) + math.exp(-g)) * u.")
POINTS = 2

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def gated_product(x, gate, up, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < out.shape[0] and col < out.shape[1]:
        g, u = float32(0.0), float32(0.0)
        for k in range(x.shape[1]):
            value = x[row, k]
            g += value * gate[col, k]
            u += value * up[col, k]
        out[row, col] = g / (float32(1.0) + math.exp(-g)) * u
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, EQUAL, HUGE_AND_TINY, ZEROS, Edit, KernelExercise, Reach, asks, of, uniform

GATED = {"T": 3, "N": 5, "K": 7}


def _silu(v):
    with np.errstate(over="ignore"):
        return v / (1 + np.exp(-v))


def _gated(x, gate, up):
    x, gate, up = (np.asarray(each, np.float64) for each in (x, gate, up))
    return _silu(x @ gate.T) * (x @ up.T)


def _gated_tolerance(x, gate, up):
    """The errors of both sums, each times what the other factor may be: silu's slope is at most 1.1."""
    length = 2 * EPS32 * np.sqrt(x.shape[1])
    g, u = x @ gate.T, x @ up.T
    of_gate, of_up = (length * np.abs(x) @ np.abs(each).T for each in (gate, up))
    roundings = EPS32 * (6 + np.minimum(np.abs(g), 90)) * np.abs(_silu(g) * u)
    return 1.1 * of_gate * (np.abs(u) + of_up) + of_up * np.abs(_silu(g)) + roundings + 2e-36 * (1 + np.abs(u))


@asks("Each element of `x` is loaded once for both products, and nothing but the result is stored.")
def _in_one_loop(report) -> str | None:
    T, N, K = (GATED[axis] for axis in "TNK")
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if loads <= 3 * T * N * K and stores <= T * N:
        return None
    return (f"At {T} x {K} and {N} outputs it makes {loads:,} loads and {stores:,} stores; {3 * T * N * K:,} and "
            f"{T * N} suffice. In one loop, each element of x serves both products, and both sums stay in registers.")


def _products_near(gate_sum, up_sum):
    """All products near these numbers."""
    def choose(rng, x, gate, up):
        x = np.ones_like(x)
        return x, *(np.float32(wanted / each.shape[1]) * (1 + np.abs(each) / 8) for each, wanted in
                    ((gate, gate_sum), (up, up_sum)))

    return choose


@cuda.jit
def gated_product_two_loops(x, gate, up, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        g, u = float32(0.0), float32(0.0)
        for k in range(x.shape[1]):
            g += x[row, k] * gate[col, k]
        for k in range(x.shape[1]):
            u += x[row, k] * up[col, k]
        out[row, col] = g / (float32(1.0) + math.exp(-g)) * u


EXERCISE = KernelExercise(
    name="gated_product",
    reference=_gated,
    inputs=lambda rng, T, N, K: (uniform(rng, T, K), uniform(rng, N, K), uniform(rng, N, K)),
    shape=lambda T, N, K: (T, N),
    sizes=tuple({"T": T, "N": N, "K": K} for T, N, K in ((1, 1, 1), (3, 5, 7), (2, 33, 9), (9, 4, 16), (5, 70, 3))),
    launch=lambda T, N, K: ((-(-N // 32), -(-T // 4)), (32, 4)),
    tolerance=_gated_tolerance,
    observe_sizes=(GATED,),
    demand=_in_one_loop,
    domain=(Reach("the products of the gate are near 400", _products_near(400, 3)),
            Reach("the products of the gate are near -400", _products_near(-400, 3)),
            Reach("the products of the gate are near -1, where silu is negative", _products_near(-1, 2)),
            Reach("the products of up are near -50", _products_near(2, -50)),
            *of((0, 1, 2), ZEROS), *of(0, HUGE_AND_TINY, EQUAL)),
    wrong={
        "silu is applied to up, not to the gate": Edit("g / (float32(1.0) + math.exp(-g)) * u",
                                                       "u / (float32(1.0) + math.exp(-u)) * g"),
        "the logistic function alone, without its argument as a factor": Edit("= g / (", "= float32(1.0) / ("),
        "exp of the gate, not of its negative": Edit("math.exp(-g)", "math.exp(g)"),
        "gelu by a logistic function, with 1.702": Edit("math.exp(-g)", "math.exp(float32(-1.702) * g)"),
        "exp(g) / (1 + exp(g)): beyond 88 it is infinity divided by infinity": Edit(
            "g / (float32(1.0) + math.exp(-g))", "g * math.exp(g) / (float32(1.0) + math.exp(g))"),
        "silu of both": Edit("math.exp(-g)) * u", "math.exp(-g)) * u / (float32(1.0) + math.exp(-u))"),
        "the weights are read as (K, N)": Edit("gate[col, k]", "gate[k % gate.shape[0], col % gate.shape[1]]",
                                               "up[col, k]", "up[k % up.shape[0], col % up.shape[1]]"),
        "the guard checks only the columns": Edit("row < out.shape[0] and col < out.shape[1]",
                                                  "col < out.shape[1]"),
        "one loop per product: x is loaded twice": gated_product_two_loops,
        "the gate is kept in `out`, in global memory": Edit("out[row, col] = g / (float32(1.0) + math.exp(-g)) * u",
                                                            "out[row, col] = g / (float32(1.0) + math.exp(-g))\n"
                                                            "out[row, col] *= u"),
    },
)
