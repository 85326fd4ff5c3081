"""array_sum: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.array_sum."""

import numpy as np

from labkit.kernels.array_sum import (
    array_sum_divergent,
    array_sum_first_add,
    array_sum_grid_stride,
    array_sum_last_warp,
    array_sum_reference,
    array_sum_sequential,
    array_sum_strided,
    array_sum_wide,
)
from labkit.kernels.baselines import numpy_cupy_torch
from labkit.kernels.op import Op, Work


def _integers(rng, N):
    """Integers from -4 to 4 as float32: every partial sum is exact, so one lost element shows in any array."""
    return (rng.integers(-4, 5, N, dtype=np.int8).astype(np.float32),)


def _sum(xp, x, out):
    if xp.__name__ == "torch":
        xp.sum(x, dim=0, keepdim=True, out=out)
    else:
        xp.sum(x, axis=0, keepdims=True, out=out)


ARRAY_SUM = Op(
    "array_sum",
    title="Sum of one array",
    formula="out[0] = x[0] + ... + x[N - 1]",
    reference=array_sum_reference,
    rungs=(array_sum_divergent, array_sum_strided, array_sum_sequential, array_sum_first_add, array_sum_last_warp,
           array_sum_grid_stride, array_sum_wide),
    inputs=_integers,
    shape=lambda N: (1,),
    awkward=tuple({"N": N} for N in (1, 31, 256, 513, 4099, 131_073, 262_144)),
    tolerance=lambda x: np.zeros(1),
    by_row=(),
    work=Work(
        flops=lambda N: N - 1,
        bytes=lambda N: 4 * N,
        timed_gpu={"N": 2**27},
        timed_cpu={"N": 2**18},
    ),
    baselines=numpy_cupy_torch(_sum),
)
