"""softmax: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.softmax.rows."""

import numpy as np

from labkit.kernels.baselines import Baseline, numpy_cupy_torch
from labkit.kernels.libraries import triton_softmax
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.softmax import rows
from labkit.kernels.softmax.rows import softmax_reference
from labkit.kernels.tolerance import EPS32


def softmax_tolerance(x):
    """The exponent x - max is rounded: a relative error of eps/2 * |x - max|. Added to that are the exponential (2
    roundings and a half ulp), the quotient (2), and a sum of C positive numbers, whose roundings grow like sqrt(C).
    Allowed is twice that. Below 2^-126 a float32 may be flushed to zero.
    """
    exponents = x.max(axis=-1, keepdims=True) - x
    roundings = 6 + exponents + np.sqrt(x.shape[-1])
    return EPS32 * roundings * softmax_reference(x) + float(np.finfo(np.float32).tiny)


def _by_library(xp, x, out):
    if xp.__name__ == "torch":
        xp.softmax(x, dim=1, out=out)
        return
    xp.subtract(x, x.max(axis=1, keepdims=True), out=out)
    xp.exp(out, out=out)
    xp.divide(out, out.sum(axis=1, keepdims=True), out=out)


SOFTMAX = Op(
    "softmax",
    title="Softmax of each row",
    formula="out[row, col] = exp(x[row, col] - max) / sum over c of exp(x[row, c] - max), max of the row",
    reference=softmax_reference,
    rungs=rungs_of(rows),
    inputs=lambda rng, R, C: (8 * uniform(rng, R, C),),  # from -12 to 12: the exponentials differ
    shape=lambda R, C: (R, C),
    awkward=sizes("R C", (1, 1), (3, 5), (33, 31), (9, 32), (1, 257), (7, 1000), (2, 4099), (3, 8192)),
    tolerance=softmax_tolerance,
    by_row=(0,),
    work=Work(
        flops=lambda R, C: 5 * R * C,  # maximum, difference, exponential, sum, product
        bytes=lambda R, C: 8 * R * C,
        timed_gpu={"R": 8192, "C": 8192},
        timed_cpu={"R": 128, "C": 1024},
    ),
    baselines=(*numpy_cupy_torch(_by_library), Baseline("Triton", "triton", triton_softmax)),
)
