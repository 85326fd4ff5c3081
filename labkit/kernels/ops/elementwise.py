"""vector_add and volume_add: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.elementwise."""

import numpy as np

from labkit.kernels import elementwise
from labkit.kernels.baselines import Baseline, numpy_cupy_torch
from labkit.kernels.libraries import triton_vector_add
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import relative_to

VECTOR_ADD = Op(
    "vector_add",
    title="Vector addition",
    formula="out[i] = a[i] + b[i]",
    reference=elementwise.vector_add_reference,
    rungs=rungs_of(elementwise, "vector_add"),
    inputs=lambda rng, n: (uniform(rng, n), uniform(rng, n)),
    shape=lambda n: (n,),
    # 1,024 blocks of 256 threads are 262,144: the last size is larger than the grid-stride rung's grid.
    awkward=tuple({"n": n} for n in (1, 31, 255, 256, 257, 1_000, 4_099, 263_000)),
    tolerance=relative_to(lambda a, b: np.abs(a) + np.abs(b), roundings=1),
    by_row=(0, 1),
    work=Work(
        flops=lambda n: n,
        bytes=lambda n: 12 * n,
        timed_gpu={"n": 2**28},
        timed_cpu={"n": 2**22},
        also_gpu=({"n": 10_000_000},),  # lesson 01's
    ),
    baselines=(*numpy_cupy_torch(lambda xp, a, b, out: xp.add(a, b, out=out)),
               Baseline("Triton", "triton", triton_vector_add)),
)

VOLUME_ADD = Op(
    "volume_add",
    title="Addition of two volumes",
    formula="out[z, y, x] = a[z, y, x] + b[z, y, x]",
    reference=elementwise.vector_add_reference,
    rungs=rungs_of(elementwise, "volume_add"),
    inputs=lambda rng, nx, ny, nz: (uniform(rng, nz, ny, nx), uniform(rng, nz, ny, nx)),
    shape=lambda nx, ny, nz: (nz, ny, nx),
    awkward=sizes("nx ny nz", (1, 1, 1), (16, 8, 8), (17, 9, 11), (33, 1, 5), (1, 37, 3), (5, 7, 131)),
    tolerance=relative_to(lambda a, b: np.abs(a) + np.abs(b), roundings=1),
    by_row=(0, 1),
    work=Work(
        flops=lambda nx, ny, nz: nx * ny * nz,
        bytes=lambda nx, ny, nz: 12 * nx * ny * nz,
        timed_gpu={"nx": 512, "ny": 512, "nz": 512},
        timed_cpu={"nx": 128, "ny": 128, "nz": 128},
    ),
    baselines=numpy_cupy_torch(lambda xp, a, b, out: xp.add(a, b, out=out)),
)
