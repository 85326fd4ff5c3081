"""scan and scan_f32: inputs, sizes, tolerance, work and baselines of the rungs in labkit.kernels.scan."""

import numpy as np

from labkit.kernels import scan, scan_blocks
from labkit.kernels.baselines import Baseline
from labkit.kernels.op import Op, Work, rungs_of, uniform
from labkit.kernels.tolerance import dot_products


def _cumsum(xp, x, out):
    if xp.__name__ == "torch":
        xp.cumsum(x, dim=0, dtype=x.dtype, out=out)
    else:
        xp.cumsum(x, dtype=x.dtype, out=out)


SHARED = {
    "formula": "out[i] = x[0] + ... + x[i]",
    "reference": scan.scan_reference,
    "rungs": (*rungs_of(scan_blocks), *rungs_of(scan)),
    "shape": lambda N: (N,),
    "awkward": tuple({"N": N} for N in (1, 31, 512, 1025, 4099, 20_481, 262_147)),
    "by_row": (),
    "work": Work(
        flops=lambda N: N - 1,
        bytes=lambda N: 8 * N,
        timed_gpu={"N": 2**27},
        also_gpu=({"N": 2**20},),
        timed_cpu={"N": 2**16},
    ),
    "baselines": (Baseline("NumPy, on the host", "numpy", _cumsum),
                  Baseline("CuPy", "cupy", _cumsum, "a copy, then CUB"), Baseline("PyTorch", "torch", _cumsum, "CUB")),
}

SCAN = Op(
    "scan",
    title="Scan of int32",
    inputs=lambda rng, N: (rng.integers(-(2**31), 2**31, N, dtype=np.int32),),
    tolerance=lambda x: np.zeros(x.size),  # sums of integers are exact, also where they wrap around
    dtype=np.int32,
    **SHARED,
)

SCAN_F32 = Op(
    "scan_f32",
    title="Scan of float32",
    inputs=lambda rng, N: (uniform(rng, N),),
    tolerance=dot_products(lambda x: np.cumsum(np.abs(x)), length=lambda x: np.arange(1, x.size + 1)),
    **SHARED,
)
