r"""Three kernels made one

$$\text{out} = \max(x + b,\, 0) + r$$

A layer's bias, its activation, and the residual. Three kernels take three launches, and the intermediate results go to
memory and back twice. Write one kernel that does it all, with one thread per element, in blocks of 128. `x`, `r` and
`out` are matrices stored row by row and passed as flat arrays. `bias` has one element per column, so a row is as long
as `bias`.
"""

HINTS = ("For a width of 5: which element of bias belongs to elements 0, 4, 5 and 12 of x?",
         "The remainder i % bias.size is the column. Addition, maximum and second addition fit in one expression, "
         "under the guard.",
         "out[i] = max(x[i] + bias[...], float32(0.0)) + residual[i]")
POINTS = 2

from numba import float32

from labkit import cuda

# %%
fused_tail = None  # write the kernel here: def fused_tail(x, bias, residual, out)
### BEGIN SOLUTION
@cuda.jit
def fused_tail(x, bias, residual, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i] + bias[i % bias.size], float32(0.0)) + residual[i]


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, asks, elements_of_argument, of, relative_to, uniform
from labkit.course.exercises.graphs_and_streams import BLOCK, blocks_of


@asks("Each thread loads three values and stores one.")
def _each_array_once(report):
    elements = elements_of_argument(report, 3)
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if stores > elements:
        return (f"{stores:,} values are stored for {elements:,} elements: intermediate results go to memory. "
                "Each thread should store one value, and keep what comes before it in a variable.")
    if loads > 3 * elements:
        return (f"{loads:,} values are loaded for {elements:,} elements: each thread should load three, each of "
                "them once. Keep a value that is used a second time in a variable.")
    return None


EXERCISE = KernelExercise(
    name="fused_tail",
    reference=lambda x, bias, residual: np.maximum(
        x.astype(np.float64) + np.resize(bias, x.size), 0) + residual,
    inputs=lambda rng, rows, width: (uniform(rng, rows * width), uniform(rng, width), uniform(rng, rows * width)),
    shape=lambda rows, width: (rows * width,),
    sizes=tuple({"rows": rows, "width": width} for rows, width in ((1, 1), (3, 5), (2, 64), (7, 33), (40, 50))),
    launch=lambda rows, width: (blocks_of(rows * width), BLOCK),
    tolerance=relative_to(lambda x, bias, residual: np.abs(x) + np.abs(np.resize(bias, x.size)) + np.abs(residual),
                          roundings=2),
    demand=_each_array_once,
    domain=of((0, 1, 2), *SUMMED),
    wrong={
        "the result so far is kept in out, and goes to memory and back between the steps":
            Edit("out[i] = max(x[i] + bias[i % bias.size], float32(0.0)) + residual[i]",
                 "out[i] = x[i] + bias[i % bias.size]\n"
                 "out[i] = max(out[i], float32(0.0))\n"
                 "out[i] += residual[i]"),
        "the residual is added before the maximum, not after it":
            Edit("out[i] = max(x[i] + bias[i % bias.size], float32(0.0)) + residual[i]",
                 "out[i] = max(x[i] + bias[i % bias.size] + residual[i], float32(0.0))"),
        "the bias is indexed by row, but there is one for each column":
            Edit("i % bias.size", "(i // bias.size) % bias.size"),
        "the bias is added after the maximum":
            Edit("(x[i] + bias[i % bias.size], float32(0.0))", "(x[i], float32(0.0)) + bias[i % bias.size]"),
        "there is no guard": Edit("if i < out.size:", "if True:"),
    },
)

AFTER = """
The three kernels read and write 7 arrays (the bias, which is small, not counted): the first reads one and writes one,
and so does the second; the third reads two and writes one. The fused kernel reads two and writes one.
"""
