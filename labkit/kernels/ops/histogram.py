"""histogram and histogram_int32: inputs, sizes, tolerances, work and
baselines of the rungs in labkit.kernels.histogram."""

import ctypes
import functools
from pathlib import Path

import numpy as np

from labkit.kernels import histogram
from labkit.kernels.baselines import Baseline
from labkit.kernels.libraries import nvcc
from labkit.kernels.op import Op, Work, rungs_of, sizes


def _values(rng, N, B, S, dtype):
    x = rng.integers(0, B, N, dtype=dtype)
    if S:
        x[rng.random(N) < S / 100] = rng.integers(0, B)
    return x


def _uint8(rng, N, B, S):
    return _values(rng, N, B, S, np.uint8), B


def _int32(rng, N, B, S):
    """With four or more values, two lie outside the bins: one below 0 and one above B."""
    x = _values(rng, N, B, S, np.int32)
    if N > 3:
        x[1], x[N - 2] = -1, B + 1
    return x, B


def _bincount(xp, x, bins, out):
    return xp.bincount(x, minlength=bins)


CUB = Path(__file__).parent / "libraries" / "cub_histogram.cu"


def _by_cub(torch, x, bins, scratch, out):
    size = ctypes.c_size_t(0 if scratch is None else scratch.numel())
    histogram = getattr(nvcc.library(CUB), f"histogram_{str(x.dtype).removeprefix('torch.')}")
    error = histogram(None if scratch is None else nvcc.pointer(scratch), ctypes.byref(size), nvcc.pointer(x),
                      nvcc.pointer(out), bins, x.numel(), nvcc.current_stream(torch))
    if error:
        raise RuntimeError(f"CUB's histogram failed with CUDA error {error}")
    return size.value if scratch is None else None


def _cub_scratch(torch, x, bins, out):
    """Add the scratch memory that CUB needs to the arguments."""
    return x, bins, torch.empty(_by_cub(torch, x, bins, None, out), dtype=torch.uint8, device=x.device), out


BY_CUB = Baseline("CUB", "torch", _by_cub, "DeviceHistogram, by nvcc", prepare=_cub_scratch, compile=False)


def _histogram_of_edges(cupy, x, bins, out):
    return cupy.histogram(x, cupy.arange(bins + 1))[0]


_sizes = functools.partial(sizes, "N B S")


def _work(itemsize: int, bins: int) -> Work:
    timed = {"N": 2**30 // (4 * itemsize), "B": bins}
    return Work(
        flops=lambda N, B, S: N,
        bytes=lambda N, B, S: itemsize * N + 4 * B,
        timed_gpu={**timed, "S": 0},
        also_gpu=({**timed, "S": 100},),
        timed_cpu={"N": 2**17, "B": bins, "S": 0},
    )


SHARED = {
    "formula": "out[b] = how many elements of x equal b",
    "reference": histogram.histogram_reference,
    "rungs": rungs_of(histogram),
    "shape": lambda N, B, S: (B,),
    "tolerance": lambda x, bins: np.zeros(bins),
    "by_row": (),
    "dtype": np.int32,
}

HISTOGRAM = Op(
    "histogram",
    title="Histogram of uint8",
    inputs=_uint8,
    awkward=_sizes((1, 1, 0), (31, 2, 0), (257, 256, 0), (1000, 33, 100), (5003, 256, 0), (5003, 256, 60),
                   (9001, 200, 100)),
    work=_work(1, 256),
    baselines=(Baseline("NumPy, on the host", "numpy", _bincount), Baseline("CuPy", "cupy", _bincount, "bincount"),
               Baseline("PyTorch", "torch", _bincount, "bincount"), BY_CUB),
    **SHARED,
)

HISTOGRAM_INT32 = Op(
    "histogram_int32",
    title="Histogram of int32",
    inputs=_int32,
    awkward=_sizes((1, 1, 0), (31, 2, 0), (257, 255, 0), (1000, 33, 100), (5003, 1024, 0), (3001, 2500, 60),
                   (2999, 12_289, 0)),
    work=_work(4, 1024),
    # bincount of CuPy and PyTorch refuses negative values. CuPy's histogram calls CUB; its last bin would hold B, too.
    baselines=(Baseline("NumPy, on the host", "numpy", lambda np, x, bins, out: histogram.histogram_reference(x, bins)),
               Baseline("CuPy", "cupy", _histogram_of_edges, "histogram, by CUB"),
               Baseline("PyTorch", "torch", lambda torch, x, bins, out: torch.histc(x, bins, 0, bins - 1), "histc"),
               BY_CUB),
    **SHARED,
)
