"""argmax: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.argmax."""

import numpy as np

from labkit.kernels import argmax
from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, rungs_of, sizes


def with_ties(rng, R, C):
    """Few different values, so that the largest comes several times; zeros of both signs."""
    x = rng.integers(-6, 1, (R, C)).astype(np.float32)
    x[rng.random((R, C)) < 0.1] = -0.0
    return (x,)


ARGMAX = Op(
    "argmax",
    title="Index of the largest element of each row",
    formula="out[row] = the first col at which x[row, col] is largest",
    reference=argmax.argmax_reference,
    rungs=rungs_of(argmax),
    inputs=with_ties,
    shape=lambda R, C: (R,),
    awkward=sizes("R C", (1, 1), (3, 5), (33, 31), (9, 32), (1, 257), (7, 1000), (2, 4099)),
    tolerance=lambda x: np.zeros(x.shape[0]),
    by_row=(0,),
    dtype=np.int32,
    work=Work(
        flops=lambda R, C: R * C,
        bytes=lambda R, C: 4 * R * C + 4 * R,
        timed_gpu={"R": 64, "C": 50257},
        timed_cpu={"R": 16, "C": 2048},
        also_gpu=({"R": 1, "C": 50257},),
    ),
    baselines=(Baseline("PyTorch", "torch", lambda torch, x, out: torch.argmax(x, dim=1)),),
)
