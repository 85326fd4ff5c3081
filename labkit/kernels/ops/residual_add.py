"""residual_add: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.residual_add."""

import numpy as np

from labkit.kernels import residual_add
from labkit.kernels.baselines import numpy_cupy_torch
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform

RESIDUAL_ADD = Op(
    "residual_add",
    title="Residual addition",
    formula="out[row, col] = x[row, col] + residual[row, col]",
    reference=residual_add.residual_add_reference,
    rungs=rungs_of(residual_add),
    inputs=lambda rng, R, C: (uniform(rng, R, C), uniform(rng, R, C)),
    shape=lambda R, C: (R, C),
    awkward=sizes("R C", (1, 1), (1, 3), (5, 13), (16, 64), (33, 131)),
    tolerance=lambda x, residual: np.zeros(x.shape),  # exact
    by_row=(0, 1),
    work=Work(
        flops=lambda R, C: R * C,
        bytes=lambda R, C: 12 * R * C,
        timed_gpu={"R": 65536, "C": 768},
        timed_cpu={"R": 64, "C": 768},
    ),
    baselines=numpy_cupy_torch(lambda xp, x, residual, out: xp.add(x, residual, out=out)),
)
