"""reduce_sum: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.reduce."""

import numpy as np

from labkit.kernels.baselines import numpy_cupy_torch
from labkit.kernels.op import Op, Work, uniform
from labkit.kernels.reduce import (
    reduce_sum_reference,
    reduce_sum_sequential,
    reduce_sum_tree,
    reduce_sum_two_level,
    reduce_sum_vectorized,
    reduce_sum_warp,
)
from labkit.kernels.tolerance import dot_products


def _sum(xp, x, out):
    xp.sum(x, **{"dim" if xp.__name__ == "torch" else "axis": 1}, out=out)


REDUCE_SUM = Op(
    "reduce_sum",
    title="Sum of each row",
    formula="out[row] = sum over col of x[row, col]",
    reference=reduce_sum_reference,
    rungs=(reduce_sum_sequential, reduce_sum_tree, reduce_sum_warp, reduce_sum_two_level, reduce_sum_vectorized),
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (R,),
    awkward=tuple({"R": R, "C": C} for R, C in
                  ((1, 1), (3, 5), (33, 31), (9, 32), (1, 257), (7, 1000), (2, 4099), (5, 8192))),
    tolerance=dot_products(lambda x: np.abs(x).sum(axis=1), length=lambda x: x.shape[1]),
    by_row=(0,),
    work=Work(
        flops=lambda R, C: R * C,
        bytes=lambda R, C: 4 * R * C + 4 * R,
        timed_gpu={"R": 8192, "C": 8192},
        timed_cpu={"R": 256, "C": 1024},
    ),
    baselines=numpy_cupy_torch(_sum),
)
