"""broadcast_add: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.broadcast."""

import numpy as np

from labkit.kernels import broadcast
from labkit.kernels.baselines import numpy_cupy_torch
from labkit.kernels.op import Op, Work, rungs_of, sizes, uniform
from labkit.kernels.tolerance import relative_to


def _two_calls(xp, a, b, c, out):
    xp.add(a, b[:, :, None], out=out)
    xp.add(out, c[:, None, None], out=out)


BROADCAST_ADD = Op(
    "broadcast_add",
    title="Broadcast addition",
    formula="out[x, y, z] = a[x, y, z] + b[x, y] + c[x]",
    reference=broadcast.broadcast_add_reference,
    rungs=rungs_of(broadcast),
    inputs=lambda rng, X, Y, Z: (uniform(rng, X, Y, Z), uniform(rng, X, Y), uniform(rng, X)),
    shape=lambda X, Y, Z: (X, Y, Z),
    awkward=sizes("X Y Z", (1, 1, 1), (4, 4, 4), (5, 3, 7), (2, 9, 65), (37, 1, 3), (1, 6, 129), (13, 11, 17)),
    tolerance=relative_to(lambda a, b, c: np.abs(a) + np.abs(b)[:, :, None] + np.abs(c)[:, None, None], roundings=2),
    by_row=(0, 1, 2),
    work=Work(
        flops=lambda X, Y, Z: 2 * X * Y * Z,
        bytes=lambda X, Y, Z: 8 * X * Y * Z + 4 * X * Y + 4 * X,
        timed_gpu={"X": 512, "Y": 512, "Z": 512},
        timed_cpu={"X": 128, "Y": 128, "Z": 128},
    ),
    baselines=numpy_cupy_torch(_two_calls, note="two calls"),
)
