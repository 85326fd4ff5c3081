r"""Bias and GELU, for GPT-2

In lesson 23 you may have written a bias and a GELU in one kernel, in the exact form. GPT-2 was trained with the other
form. In the lesson's block it is part of a product's epilogue; as a separate kernel it can be yours. With
$v = x_{r,c} + \text{bias}_c$:

$$\text{out}_{r,c} = \frac{v}{2} \left(1 + \tanh\left(\sqrt{2/\pi}\,(v + 0.044715\,v^3)\right)\right)$$

Blocks are 32 × 8, with the grid's x along the columns. `ROOT` and `CUBIC` are given, in float32, and `math.tanh` works
in a kernel. Watch out for large values if you write it with exponentials: `exp(90)` is infinite in float32, and
infinity over infinity is NaN.
"""

HINTS = ("Which element of bias belongs to this thread? And how many times does v occur in the formula?",
         "Guard row and column. Then v = x[row, col] + bias[col], once, and everything else is written with v.",
         "out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(ROOT * (v + CUBIC * v * v * v))).")
POINTS = 2

import math

from numba import float32

from labkit import cuda

# %%
ROOT = float32(math.sqrt(2 / math.pi))
CUBIC = float32(0.044715)


@cuda.jit
def bias_gelu_tanh(x, bias, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < x.shape[0] and col < x.shape[1]:
        v = x[row, col] + bias[col]
        out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(ROOT * (v + CUBIC * v * v * v)))
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, relative_to, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS, in_place, of
from labkit.kernels.gelu import gelu_tanh_reference


def _some_large(rng, R, C):
    """Every fifth number is so large that the exponential of its cube does not fit into a float32."""
    scale = np.where(np.arange(R * C) % 5 == 4, 20, 2).astype(np.float32)
    return uniform(rng, R, C) * scale.reshape(R, C)


EXERCISE = KernelExercise(
    name="bias_gelu_tanh",
    reference=lambda x, bias: gelu_tanh_reference(x.astype(np.float64) + bias.astype(np.float64)),
    inputs=lambda rng, R, C: (_some_large(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 5), (8, 32), (5, 33), (17, 40))),
    launch=lambda R, C: ((-(-C // 32), -(-R // 8)), (32, 8)),
    tolerance=relative_to(lambda x, bias: np.abs(x) + np.abs(bias), roundings=8),
    domain=(*of(0, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS), in_place(0)),
    wrong={
        "the exact form, with the error function: close, but not what GPT-2 was trained with":
            Edit("math.tanh(ROOT * (v + CUBIC * v * v * v))", "math.erf(v * float32(0.70710678))"),
        "the bias is added after GELU":
            Edit("v = x[row, col] + bias[col]", "v = x[row, col]",
                 "CUBIC * v * v * v)))", "CUBIC * v * v * v))) + bias[col]"),
        "the bias is indexed by row": Edit("v = x[row, col] + bias[col]", "v = x[row, col] + bias[row % bias.size]"),
        "the small term has the square instead of the cube": Edit("CUBIC * v * v * v", "CUBIC * v * v"),
        "the small term is missing": Edit("(v + CUBIC * v * v * v)", "v"),
        "the root belongs to both terms: ROOT * (v + ...)": Edit("(v + CUBIC * v * v * v)", "v + CUBIC * v * v * v"),
        "the half is missing": Edit("float32(0.5) * v", "v"),
        "the grid's x runs along the columns: `col` comes first":
            Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
        "the quotient of two exponentials, which are infinite for large values":
            Edit("out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(ROOT * (v + CUBIC * v * v * v)))",
                 "power = math.exp(float32(2.0) * ROOT * (v + CUBIC * v * v * v))\n"
                 "out[row, col] = v * (power / (power + float32(1.0)))"),
        "no guard": Edit("if row < x.shape[0] and col < x.shape[1]:", "if True:"),
    },
)

AFTER = """
This one goes into the model, between the two layers of the MLP. The next cell runs a block with your kernel, and
compares each step with NumPy in float64. There `out` may be `x`. Is your kernel right when it overwrites its input?

# %%
yours.block_parity(yours.answers(bias_gelu_tanh=bias_gelu_tanh))
"""
