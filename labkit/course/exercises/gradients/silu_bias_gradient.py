r"""From a blank page: the gradient of a bias

A layer ends with $\text{out} = \text{silu}(v)$, where $v_{r,c} = x_{r,c} + \text{bias}_c$ and $\text{silu}(v) = v \, s$
with $s = 1 / (1 + e^{-v})$. Its forward pass kept `x`. The derivative of silu is $s \, (1 + v \, (1 - s))$, and each
bias was added to a whole column, so its gradient is

$$\text{out}_c = \sum_r \text{dout}_{r,c} \; s_{r,c} \, \bigl(1 + v_{r,c} (1 - s_{r,c})\bigr)$$

Write `silu_bias_gradient(x, bias, dout, out)` from the decorator down. `x` and `dout` are (R, C), `bias` and `out`
(C,), all float32. A block has 32 x 8 threads and computes 32 columns: the eight threads with the same `threadIdx.x`
divide the rows of a column among them. `math.exp` works in a kernel.
"""

HINTS = ("Thread (x, y) of a block can add up rows y, y + 8, and so on of column 32 * blockIdx.x + x. Then eight "
         "threads have a part of each column's sum. Where can one of them find the other seven?",
         "Each thread stores its part in an array of 8 x 32 float32 in shared memory. After a barrier, the threads "
         "with y == 0 add up the eight parts of their column and store the sum. All threads must reach the barrier, "
         "even those beyond the last column.",
         "v = x[row, col] + bias[col]; s = float32(1.0) / (float32(1.0) + math.exp(-v)); total += dout[row, col] * s * "
         "(float32(1.0) + v * (float32(1.0) - s)). Then partial[y, x] = total, cuda.syncthreads(), and the sum.")
POINTS = 3
NEEDS = ("predict_backward",)

import math

from numba import float32

from labkit import cuda

# %%
silu_bias_gradient = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def silu_bias_gradient(x, bias, dout, out):
    partial = cuda.shared.array((8, 32), float32)
    lane, part = cuda.threadIdx.x, cuda.threadIdx.y
    col = 32 * cuda.blockIdx.x + lane
    total = float32(0.0)
    if col < x.shape[1]:
        for row in range(part, x.shape[0], 8):
            v = x[row, col] + bias[col]
            s = float32(1.0) / (float32(1.0) + math.exp(-v))
            total += dout[row, col] * s * (float32(1.0) + v * (float32(1.0) - s))
    partial[part, lane] = total
    cuda.syncthreads()
    if part == 0 and col < x.shape[1]:
        for other in range(1, 8):
            total += partial[other, lane]
        out[col] = total


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, Edit, KernelExercise, asks, elements_of_argument, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS, of
from labkit.course.exercises.gradients import without_atomics


def _slope(x, bias):
    v = x.astype(np.float64) + bias
    s = 0.5 * (1 + np.tanh(v / 2))
    return s * (1 + v * (1 - s))


def _gradient(x, bias, dout):
    return (dout.astype(np.float64) * _slope(x, bias)).sum(axis=0)


@asks("Each element of `dout` is loaded once, by one thread.", without_atomics)
def _shared(report) -> str | None:
    elements = elements_of_argument(report, 2)
    loads = report.counts["global_loads"]
    if loads <= 4 * elements:  # x, bias and dout for each, with room for another read
        return None
    return (f"It loads {loads:,} elements, and {3 * elements:,} are enough: x, bias and dout for each row and column. "
            "Let each of the eight threads of a column take every eighth row.")


@cuda.jit
def adds_atomically(x, bias, dout, out):
    lane, part = cuda.threadIdx.x, cuda.threadIdx.y
    col = 32 * cuda.blockIdx.x + lane
    if part == 0 and col < x.shape[1]:
        out[col] = float32(0.0)
    cuda.syncthreads()
    if col < x.shape[1]:
        total = float32(0.0)
        for row in range(part, x.shape[0], 8):
            v = x[row, col] + bias[col]
            s = float32(1.0) / (float32(1.0) + math.exp(-v))
            total += dout[row, col] * s * (float32(1.0) + v * (float32(1.0) - s))
        cuda.atomic.add(out, col, total)


@cuda.jit
def every_thread_adds_up_the_column(x, bias, dout, out):
    col = 32 * cuda.blockIdx.x + cuda.threadIdx.x
    if col < x.shape[1]:
        total = float32(0.0)
        for row in range(x.shape[0]):
            v = x[row, col] + bias[col]
            s = float32(1.0) / (float32(1.0) + math.exp(-v))
            total += dout[row, col] * s * (float32(1.0) + v * (float32(1.0) - s))
        out[col] = total


EXERCISE = KernelExercise(
    name="silu_bias_gradient",
    reference=_gradient,
    inputs=lambda rng, R, C: (3 * uniform(rng, R, C), uniform(rng, C), uniform(rng, R, C)),
    shape=lambda R, C: (C,),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (3, 5), (8, 32), (17, 33), (50, 40))),
    random_size=lambda rng: {"R": int(rng.integers(2, 60)), "C": int(rng.integers(2, 70))},
    launch=lambda R, C: (-(-C // 32), (32, 8)),
    tolerance=lambda x, bias, dout: EPS32 * (16 + 2 * np.sqrt(len(x))) * np.abs(dout).sum(axis=0) + 1e-30,
    observe_sizes=({"R": 17, "C": 33},),
    domain=(*of(0, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY), *of(2, NEGATIVE, ZEROS)),
    demand=_shared,
    wrong={
        "only `dout` is summed: the derivative of silu is left out":
            Edit(" * s * (float32(1.0) + v * (float32(1.0) - s))", ""),
        "the derivative is only s, without the second factor":
            Edit(" * (float32(1.0) + v * (float32(1.0) - s))", ""),
        "the bias is not added to x": Edit("v = x[row, col] + bias[col]", "v = x[row, col]"),
        "the bias is indexed by the row": Edit("bias[col]", "bias[row % bias.size]"),
        "the exponent has the wrong sign": Edit("math.exp(-v)", "math.exp(v)"),
        "only one of the eight parts is stored":
            Edit("for other in range(1, 8):\n    total += partial[other, lane]\n", ""),
        "the first part is added twice": Edit("range(1, 8)", "range(8)"),
        "the barrier is missing": Edit("cuda.syncthreads()\n", ""),
        "each thread adds up a single row": Edit("range(part, x.shape[0], 8)", "range(part, min(8, x.shape[0]), 8)"),
        "the guard of the columns is missing before the loop":
            Edit("if col < x.shape[1]:\n    for row in range(part, x.shape[0], 8):",
                 "if True:\n    for row in range(part, x.shape[0], 8):"),
        "the sum is added up atomically": adds_atomically,
        "every thread adds up its whole column": every_thread_adds_up_the_column,
    },
)
