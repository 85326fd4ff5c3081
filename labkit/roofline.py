"""What the hardware allows: the bytes it can move and the flops it can do in a second, and so the least time an
operation can take.

    limits()                      measured on the present GPU; without one, those recorded on a GPU, and labelled so
    bound(MATMUL, size)           the least time, and whether bytes or flops set it
    predict(MATMUL, M=4096, N=4096, K=4096)    the same as a table, to read before running

Bandwidth is that of a copy inside the GPU's memory, bytes read plus bytes written. Peak flops is that of a kernel which
does nothing but multiply-adds in registers, two flops each.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass

import numpy as np
from numba import float32, uint32

from labkit import cuda, device
from labkit.op import Op
from labkit.tables import ResultTable, number, size_text


@dataclass(frozen=True)
class Limits:
    """bandwidth in GB/s, flops in TFLOP/s (float32, no tensor cores)."""

    gpu: str
    bandwidth_gbs: float
    fp32_tflops: float
    source: str  # "measured", "recorded on ..." or "data sheet"

    @property
    def ridge(self) -> float:
        """flop per byte at which both limits bind."""
        return 1000 * self.fp32_tflops / self.bandwidth_gbs


# NVIDIA's data sheet for the H200 SXM, used until a measurement is recorded.
H200_DATA_SHEET = Limits("NVIDIA H200", 4800.0, 67.0, "data sheet, not measured")


@dataclass(frozen=True)
class Bound:
    """The least time an operation can take, and which limit sets it."""

    time_ms: float
    binds: str  # "bytes" or "flops"
    bytes: int
    flops: int
    limits: Limits

    @property
    def intensity(self) -> float:
        """flop per byte."""
        return self.flops / self.bytes

    def rate(self, unit: str) -> float:
        """What the hardware reaches at the bound, in GB/s or TFLOP/s."""
        return self.bytes / self.time_ms / 1e6 if unit == "GB/s" else self.flops / self.time_ms / 1e9

    @property
    def label(self) -> str:
        what = "copy bandwidth" if self.binds == "bytes" else "float32 peak"
        if self.limits.source.startswith("data sheet"):
            return f"{what} of {self.limits.gpu}, {self.limits.source}"
        return f"{what}, measured on {self.limits.gpu}"


def bound(op: Op, size: dict, limits: Limits | None = None) -> Bound:
    """The larger of the time its bytes need and the time its flops need."""
    limits = limits or _limits()
    nbytes, flops = op.bytes(**size), op.flops(**size)
    bytes_ms = nbytes / limits.bandwidth_gbs / 1e6
    flops_ms = flops / limits.fp32_tflops / 1e9
    return Bound(max(bytes_ms, flops_ms), "bytes" if bytes_ms >= flops_ms else "flops", nbytes, flops, limits)


@dataclass(frozen=True, repr=False)
class Prediction(ResultTable):
    op: str
    size: dict
    bound: Bound

    def table(self) -> dict:
        b = self.bound
        limits = b.limits
        binding = f"{b.binds}: the kernel waits for {'memory' if b.binds == 'bytes' else 'arithmetic'}"
        return {
            "title": f"{self.op} at {size_text(self.size)}: what the hardware allows",
            "columns": ["", "amount", "unit"],
            "rows": [
                ["bytes moved at least", f"{b.bytes / 1e6:,.1f}", "MB"],
                ["flops", f"{b.flops / 1e9:,.3f}", "GFLOP"],
                ["intensity", number(b.intensity), "flop per byte"],
                ["intensity at which both limits bind", number(limits.ridge), "flop per byte"],
                ["time for the bytes", number(b.bytes / limits.bandwidth_gbs / 1e6), "ms"],
                ["time for the flops", number(b.flops / limits.fp32_tflops / 1e9), "ms"],
                ["bound: the larger of the two", number(b.time_ms), "ms"],
            ],
            "notes": [f"Set by the {binding}.",
                      f"For {limits.gpu}: {limits.bandwidth_gbs:,.0f} GB/s, {limits.fp32_tflops:.1f} TFLOP/s in "
                      f"float32 ({limits.source})."],
        }

    def result(self) -> dict:
        return {"kind": "prediction", "op": self.op, "size": self.size, "bound_ms": self.bound.time_ms,
                "binds": self.bound.binds, "gpu": self.bound.limits.gpu}


def predict(op: Op, limits: Limits | None = None, **size: int) -> Prediction:
    """The bound of `op` on a GPU at a size, as a table. At the size it is timed at on a GPU if none is given."""
    size = size or dict(op.timed_gpu)
    return Prediction(op.name, size, bound(op, size, limits))


def limits() -> Limits:
    """The present GPU's, measured once in a process; without a GPU a recorded GPU's, and `source` says so."""
    return _limits()


@functools.cache
def _limits() -> Limits:
    from labkit import measure

    if device.on_gpu():
        return Limits(device.name(), copy_bandwidth_gbs(), peak_fp32_tflops(), "measured")
    data = measure.recorded()
    if data is None or "limits" not in data:
        return H200_DATA_SHEET
    found = data["limits"]
    return Limits(found["gpu"], found["bandwidth_gbs"], found["fp32_tflops"],
                  f"recorded on {found['gpu']}, {data['machine']['date']}")


def copy_bandwidth_gbs(nbytes: int = 2**30) -> float:
    """Copies one buffer to another inside the GPU's memory: bytes read plus bytes written, over the time."""
    from labkit import measure

    source = cuda.to_device(np.ones(nbytes // 4, np.float32))
    target = cuda.device_array(nbytes // 4, np.float32)
    timing = measure.time_kernel(lambda: target.copy_to_device(source))
    return 2 * nbytes / timing.p50 / 1e6


CHAINS = 8  # independent sums a thread keeps: enough for the latency of a multiply-add to be hidden
FMA_STEPS = 16_384


@cuda.jit
def fma_kernel(out, scale, shift):
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = float32(cuda.threadIdx.x)
    step = uint32(0)
    while step < uint32(FMA_STEPS):
        s0 = s0 * scale + shift
        s1 = s1 * scale + shift
        s2 = s2 * scale + shift
        s3 = s3 * scale + shift
        s4 = s4 * scale + shift
        s5 = s5 * scale + shift
        s6 = s6 * scale + shift
        s7 = s7 * scale + shift
        step += uint32(1)
    out[cuda.grid(1)] = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7


def peak_fp32_tflops() -> float:
    """Multiply-adds in registers on every core of the present GPU."""
    from labkit import measure

    threads = 256
    blocks = 16 * cuda.get_current_device().MULTIPROCESSOR_COUNT
    out = cuda.device_array(threads * blocks, np.float32)
    timing = measure.time_kernel(lambda: fma_kernel[blocks, threads](out, np.float32(0.5), np.float32(0.25)))
    return 2 * CHAINS * FMA_STEPS * threads * blocks / timing.p50 / 1e9


def to_json(limits: Limits) -> dict:
    return asdict(limits)
