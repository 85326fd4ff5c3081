r"""A bias and a GELU in one kernel

The end of the first half of a feed-forward layer, in one kernel. With $v = x_{r,c} + \text{bias}_c$:

$$\text{out}_{r,c} = \frac{v}{2} \left(1 + \text{erf}\left(\frac{v}{\sqrt{2}}\right)\right)$$

This is the exact form. `math.erf` works in a kernel, and `ROOT_HALF` is one over the root of 2, in float32. Blocks
are 32 × 8, with the grid's x along the columns.
"""

HINTS = ("How often does v occur in the formula, and what does that tell you about where to add the bias?",
         "Compute v once, in a variable: x[row, col] + bias[col]. Then the formula, with every constant a float32.",
         "out[row, col] = float32(0.5) * v * (float32(1.0) + math.erf(v * ROOT_HALF)), inside a guard for both "
         "axes.")
POINTS = 1

import math

from numba import float32

from labkit import cuda

# %%
ROOT_HALF = float32(math.sqrt(0.5))


@cuda.jit
def bias_gelu(x, bias, out):
    col, row = cuda.grid(2)
    ### BEGIN SOLUTION
    if row < x.shape[0] and col < x.shape[1]:
        v = x[row, col] + bias[col]
        out[row, col] = float32(0.5) * v * (float32(1.0) + math.erf(v * ROOT_HALF))
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, relative_to, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS, of
from labkit.course.exercises.layernorm import rows_and_columns
from labkit.kernels.gelu import gelu_erf_reference

EXERCISE = KernelExercise(
    name="bias_gelu",
    reference=lambda x, bias: gelu_erf_reference(x.astype(np.float64) + bias),
    inputs=lambda rng, R, C: (2 * uniform(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=rows_and_columns((1, 1), (2, 3), (8, 32), (5, 33), (17, 40)),
    launch=lambda R, C: ((-(-C // 32), -(-R // 8)), (32, 8)),
    tolerance=relative_to(lambda x, bias: np.abs(x) + np.abs(bias), roundings=8),
    domain=of(0, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS),
    wrong={
        "the bias is added after GELU":
            Edit("v = x[row, col] + bias[col]", "v = x[row, col]",
                 "(float32(1.0) + math.erf(v * ROOT_HALF))", "(float32(1.0) + math.erf(v * ROOT_HALF)) + bias[col]"),
        "the bias is indexed by row": Edit("v = x[row, col] + bias[col]", "v = x[row, col] + bias[row % bias.size]"),
        "the tanh form: close, but not the exact one":
            Edit("out[row, col] = float32(0.5) * v * (float32(1.0) + math.erf(v * ROOT_HALF))",
                 "inner = float32(0.7978845608) * (v + float32(0.044715) * v * v * v)\n"
                 "out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(inner))"),
        "the argument of erf is not divided by the root of 2": Edit("v * ROOT_HALF", "v"),
        "the bias is missing from the factor in front": Edit("float32(0.5) * v", "float32(0.5) * x[row, col]"),
        "no guard": Edit("if row < x.shape[0] and col < x.shape[1]:", "if True:"),
    },
)
