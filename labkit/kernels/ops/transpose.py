"""transpose: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.transpose."""

import numpy as np

from labkit.kernels import transpose
from labkit.kernels.baselines import numpy_cupy_torch
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform

TRANSPOSE = Op(
    "transpose",
    title="Transpose",
    formula="out[col, row] = a[row, col]",
    reference=transpose.transpose_reference,
    rungs=rungs_of(transpose),
    inputs=lambda rng, R, C: (uniform(rng, R, C),),
    shape=lambda R, C: (C, R),
    awkward=sizes("R C", (1, 1), (1, 37), (37, 1), (32, 32), (33, 31), (64, 96), (100, 68), (65, 130)),
    tolerance=lambda a: np.zeros(a.shape[::-1]),  # a move: equal to the last bit
    by_row=(),
    work=Work(
        flops=lambda R, C: 0,
        bytes=lambda R, C: 8 * R * C,
        timed_gpu={"R": 8192, "C": 8192},
        timed_cpu={"R": 512, "C": 512},
    ),
    baselines=numpy_cupy_torch(lambda xp, a, out: out.copy_(a.t()) if hasattr(out, "copy_") else xp.copyto(out, a.T)),
)
