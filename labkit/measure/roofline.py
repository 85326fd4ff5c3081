"""What the hardware allows: the bytes it can move and the flops it can do in a second, and so the least time an
operation can take.

    limits()                      the present GPU's, measured once a day; without one, those recorded on a GPU
    bound(MATMUL, size)           the least time, and whether bytes or flops set it
    predict(MATMUL, M=4096, N=4096, K=4096)    the same as a table, to read before running

Bandwidth is that of a copy inside the GPU's memory, bytes read plus bytes written. Peak flops are those of kernels that
do nothing else: multiply-adds in registers for float32, products of tiles that stay in shared memory for the tensor
cores. Two flops a multiply-add. The tensor cores' peak is that of wgmma where the GPU has it; the peak of
mma.sync, an instruction made for earlier GPUs, is given beside it.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numba import float32, uint32, uint64
from numba.types import float16

from labkit import cuda, device
from labkit._common.files import read_json, write_text
from labkit._common.tables import ResultTable, number, size_text
from labkit._common.version import __version__
from labkit.device import gpus, kernel_cache, ptx
from labkit.kernels.op import Op
from labkit.measure.machine import machine
from labkit.measure.recorded import recorded
from labkit.measure.timing import time_kernel

PEAK_NAMES = {"fp32": "float32 peak", "tf32": "TF32 peak of the tensor cores", "f16": "f16 peak of the tensor cores",
              "fp8": "FP8 peak of the tensor cores"}


@dataclass(frozen=True)
class Limits:
    """bandwidth in GB/s, flops in TFLOP/s: float32 without tensor cores, tensor cores in TF32 and f16, float32
    accumulators.

    mma_*: what mma.sync reaches by itself. None where it is not known.
    """

    gpu: str
    bandwidth_gbs: float
    fp32_tflops: float
    source: str  # "measured", "recorded on ..." or "data sheet"
    tf32_tflops: float | None = None
    f16_tflops: float | None = None
    mma_tf32_tflops: float | None = None
    mma_f16_tflops: float | None = None

    @property
    def ridge(self) -> float:
        """flop per byte at which both limits bind, in float32."""
        return self.ridge_of("fp32")

    @property
    def fp8_tflops(self) -> float | None:
        """Twice f16's, where the tensor cores have FP8 at all."""
        return None if self.f16_tflops is None else 2 * self.f16_tflops

    def ridge_of(self, peak: str) -> float:
        return 1000 * self.peak(peak) / self.bandwidth_gbs

    def peak(self, name: str) -> float:
        """TFLOP/s of "fp32", "tf32", "f16" or "fp8"; of a data sheet where they were not measured."""
        value = getattr(self, f"{name}_tflops")
        if value is not None:
            return value
        sheet = gpus.sheet_of(self.gpu)
        if sheet is not None and getattr(sheet, f"{name}_tflops") is not None:
            return getattr(sheet, f"{name}_tflops")
        raise ValueError(f"the {PEAK_NAMES[name]} of {self.gpu} is not known")

    def peak_source(self, name: str) -> str:
        return self.source if getattr(self, f"{name}_tflops") is not None else "data sheet, not measured"


def of_data_sheet(gpu: gpus.GPU) -> Limits:
    """What the data sheet of a GPU says; until a GPU is measured, this is what is known of it."""
    return Limits(gpu.name, gpu.bandwidth_gbs, gpu.fp32_tflops, "data sheet, not measured", gpu.tf32_tflops,
                  gpu.f16_tflops)


@dataclass(frozen=True)
class Bound:
    """The least time an operation can take, and which limit sets it."""

    time_ms: float
    binds: str  # "bytes" or "flops"
    bytes: int
    flops: int
    limits: Limits
    peak: str = "fp32"

    @property
    def intensity(self) -> float:
        """flop per byte."""
        return self.flops / self.bytes

    def rate(self, unit: str) -> float:
        """What the hardware reaches at the bound, in GB/s or TFLOP/s."""
        return self.bytes / self.time_ms / 1e6 if unit == "GB/s" else self.flops / self.time_ms / 1e9

    @property
    def label(self) -> str:
        limit_name = "copy bandwidth" if self.binds == "bytes" else PEAK_NAMES[self.peak]
        source = self.limits.source if self.binds == "bytes" else self.limits.peak_source(self.peak)
        if source.startswith("data sheet"):
            return f"{limit_name} of {self.limits.gpu}, {source}"
        return f"{limit_name}, measured on {self.limits.gpu}"


def bound(op: Op, size: dict, limits: Limits | None = None) -> Bound:
    """The larger of the time its bytes need and the time its flops need."""
    return bound_of(op.work.bytes(**size), op.work.flops(**size), op.work.peak, limits or _limits())


def bound_of(nbytes: int, flops: int, peak: str, limits: Limits) -> Bound:
    """The same from the bytes and the flops, and the units that compute these: one of PEAKS."""
    bytes_ms = nbytes / limits.bandwidth_gbs / 1e6
    flops_ms = flops / limits.peak(peak) / 1e9
    return Bound(max(bytes_ms, flops_ms), "bytes" if bytes_ms >= flops_ms else "flops", nbytes, flops, limits, peak)


@dataclass(frozen=True, repr=False)
class Prediction(ResultTable):
    op: str
    size: dict
    bound: Bound

    def table(self) -> dict:
        b = self.bound
        limits = b.limits
        peak = limits.peak(b.peak)
        units = {"fp32": "in float32", "tf32": "in TF32 on tensor cores", "f16": "in f16 on tensor cores",
                 "fp8": "in FP8 on tensor cores"}[b.peak]
        binding = f"{b.binds}: the kernel waits for {'memory' if b.binds == 'bytes' else 'arithmetic'}"
        return {
            "title": f"{self.op} at {size_text(self.size)}: what the hardware allows",
            "columns": ["", "amount", "unit"],
            "rows": [
                ["bytes moved at least", f"{b.bytes / 1e6:,.1f}", "MB"],
                ["flops", f"{b.flops / 1e9:,.3f}", "GFLOP"],
                ["intensity", number(b.intensity), "flop per byte"],
                ["intensity at which both limits bind", number(limits.ridge_of(b.peak)), "flop per byte"],
                ["time for the bytes", number(b.bytes / limits.bandwidth_gbs / 1e6), "ms"],
                ["time for the flops", number(b.flops / peak / 1e9), "ms"],
                ["bound: the larger of the two", number(b.time_ms), "ms"],
            ],
            "notes": [f"Set by the {binding}.",
                      f"For {limits.gpu}: {limits.bandwidth_gbs:,.0f} GB/s, {peak:.1f} TFLOP/s {units} "
                      f"({limits.peak_source(b.peak)})."],
        }

    def result(self) -> dict:
        return {"kind": "prediction", "op": self.op, "size": self.size, "bound_ms": self.bound.time_ms,
                "binds": self.bound.binds, "gpu": self.bound.limits.gpu}


def predict(op: Op, limits: Limits | None = None, **size: int) -> Prediction:
    """The bound of `op` on a GPU at a size, as a table. At the size it is timed at on a GPU if none is given."""
    size = size or dict(op.work.timed_gpu)
    return Prediction(op.name, size, bound(op, size, limits))


def limits(*, anew: bool = False) -> Limits:
    """Return the limits of this GPU; without a GPU, of a recorded one, and `source` says so.

    A GPU's limits take seconds to measure, so they are cached for the day beside the compiled kernels. anew: measure
    now, ignoring the cache.
    """
    if anew:
        if device.on_gpu():
            _keep(_measured(), _kept_file())
        _limits.cache_clear()
    return _limits()


@functools.cache
def _limits() -> Limits:
    if device.on_gpu():
        file = _kept_file()
        return _kept(file) or _keep(_measured(), file)
    data = recorded()
    if data is None or "limits" not in data:
        return of_data_sheet(gpus.GPUS["h200"])
    found = data["limits"]
    return Limits(**{**found, "source": f"recorded on {found['gpu']}, {data['machine']['date']}"})


def _measured() -> Limits:
    return Limits(device.name(), copy_bandwidth_gbs(), peak_fp32_tflops(), "measured", **tensor_peaks())


def _kept_file() -> tuple[Path, str] | None:
    """The file of this GPU, and what its content must be of to count; None where nothing is to be kept."""
    folder = kernel_cache.directory()
    if folder is None:
        return None
    gpu = str(cuda.get_current_device().uuid)
    return (folder / f"limits-{hashlib.sha256(gpu.encode()).hexdigest()[:16]}.json",
            f"{gpu}, driver {machine()['driver']}, labkit {__version__}, {datetime.date.today()}")


def _kept(file: tuple[Path, str] | None) -> Limits | None:
    if file is None:
        return None
    path, of = file
    try:
        content = read_json(path)
        return Limits(**content["limits"]) if content["of"] == of else None
    except (OSError, ValueError, TypeError, KeyError):  # never measured, or not as this version keeps them
        return None


def _keep(limits: Limits, file: tuple[Path, str] | None) -> Limits:
    if file is not None:
        path, of = file
        with contextlib.suppress(OSError):  # the next process measures again
            write_text(path, json.dumps({"of": of, "limits": asdict(limits)}))
    return limits


def copy_bandwidth_gbs(nbytes: int = 2**30) -> float:
    """Copies one buffer to another inside the GPU's memory: bytes read plus bytes written, over the time."""
    source = cuda.to_device(np.ones(nbytes // 4, np.float32))
    target = cuda.device_array(nbytes // 4, np.float32)
    timing = time_kernel(lambda: target.copy_to_device(source))
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
    threads = 256
    blocks = 16 * cuda.get_current_device().MULTIPROCESSOR_COUNT
    out = cuda.device_array(threads * blocks, np.float32)
    timing = time_kernel(lambda: fma_kernel[blocks, threads](out, np.float32(0.5), np.float32(0.25)))
    return 2 * CHAINS * FMA_STEPS * threads * blocks / timing.p50 / 1e9


# --- The tensor cores -----------------------------------------------------------------------------------------------

MMA_CHAINS = 8
MMA_STEPS = 2048
WGMMA_ROUNDS = 256


@cuda.jit(device=True)
def f16_operands(x):
    """Two words of a and two of b, with two float16 values each."""
    return (ptx.pack_half2(x, -x), ptx.pack_half2(x * x, x), ptx.pack_half2(float32(0.5) - x, x),
            ptx.pack_half2(-x, x * x))


@cuda.jit(device=True)
def tf32_operands(x):
    return ptx.to_tf32(x), ptx.to_tf32(-x), ptx.to_tf32(float32(0.5) - x), ptx.to_tf32(x * x)


def make_mma_peak(multiply, operands):
    """16 x 8 products from registers, MMA_CHAINS independent accumulators a warp."""

    @cuda.jit
    def mma_peak_kernel(out):
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        a0, a1, b0, b1 = operands(float32(lane) * float32(1 / 64) - float32(0.25))
        acc = cuda.local.array(32, float32)
        for i in range(32):
            acc[i] = float32(i)  # no two sums alike, or a compiler would keep one of them
        step = uint32(0)
        while step < uint32(MMA_STEPS):
            for c in range(8):
                acc[4 * c], acc[4 * c + 1], acc[4 * c + 2], acc[4 * c + 3] = multiply(
                    a0, a1, a1, a0, b0, b1, acc[4 * c], acc[4 * c + 1], acc[4 * c + 2], acc[4 * c + 3])
            step += uint32(1)
        total = float32(0.0)
        for i in range(32):
            total += acc[i]
        out[cuda.grid(1)] = total

    return mma_peak_kernel


mma_f16_peak_kernel = make_mma_peak(ptx.mma_m16n8k16_f32_f16, f16_operands)
mma_tf32_peak_kernel = make_mma_peak(ptx.mma_m16n8k8_f32_tf32, tf32_operands)


@cuda.jit
def wgmma_f16_peak_kernel(out):
    """64 x 256 x 16 products of two tiles in shared memory, 64 deep, over and over; two warpgroups a block."""
    a_tile = cuda.shared.array(64 * 64, float16, alignment=1024)
    b_tile = cuda.shared.array(256 * 64, float16, alignment=1024)
    thread = uint32(cuda.threadIdx.x)
    i = thread
    while i < uint32(256 * 64):  # numbers such as a product has: zeros would draw less power, and run faster
        value = float16(float32((i * uint32(2_654_435_761)) >> uint32(20)) * float32(1 / 4096) - float32(0.5))
        b_tile[i] = value
        if i < uint32(64 * 64):
            a_tile[i] = value
        i += uint32(256)
    acc = cuda.local.array(128, float32)
    for i in range(128):
        acc[i] = float32(0.0)
    ptx.fence_proxy_async()
    cuda.syncthreads()
    a = ptx.wgmma_descriptor(a_tile, uint32(0), 16, 1024, 128)
    b = ptx.wgmma_descriptor(b_tile, uint32(0), 16, 1024, 128)
    step = uint32(0)
    while step < uint32(WGMMA_ROUNDS):
        ptx.wgmma_fence()
        for _ in range(4):
            for k in range(4):
                ptx.wgmma_m64n256k16_f32_f16(acc, a + uint64(2 * k), b + uint64(2 * k), uint32(1))
        ptx.wgmma_commit()
        ptx.wgmma_wait(0)
        step += uint32(1)
    total = float32(0.0)
    for i in range(128):
        total += acc[i]
    out[cuda.grid(1)] = total


def tensor_peaks() -> dict:
    """The present GPU's tensor cores in TFLOP/s, as Limits names them; empty for what it cannot run.

    TF32 runs at half the speed of f16 on every GPU that has both; with wgmma that half is given, without it mma.sync's.
    """
    capability = tuple(cuda.get_current_device().compute_capability)
    peaks = {}
    if capability >= (8, 0):
        per_warp = MMA_CHAINS * MMA_STEPS * 2 * 16 * 8
        peaks["mma_f16_tflops"] = _tensor_tflops("mma_f16_peak", mma_f16_peak_kernel, per_warp * 16 // 32)
        peaks["mma_tf32_tflops"] = _tensor_tflops("mma_tf32_peak", mma_tf32_peak_kernel, per_warp * 8 // 32)
        peaks["f16_tflops"], peaks["tf32_tflops"] = peaks["mma_f16_tflops"], peaks["mma_tf32_tflops"]
    if capability[0] == 9:
        f16 = _tensor_tflops("wgmma_f16_peak", wgmma_f16_peak_kernel, WGMMA_ROUNDS * 16 * 2 * 64 * 256 * 16 // 128)
        if f16 is not None:
            peaks["f16_tflops"], peaks["tf32_tflops"] = f16, f16 / 2
    return {name: value for name, value in peaks.items() if value is not None}


def _tensor_tflops(name: str, kernel, flops_per_thread: int) -> float | None:
    threads, blocks = 256, 8 * cuda.get_current_device().MULTIPROCESSOR_COUNT
    out = cuda.device_array(threads * blocks, np.float32)
    try:
        timing = time_kernel(lambda: kernel[blocks, threads](out), budget_s=0.3)
    except Exception as error:  # a compiler without the instruction: the data sheet's figure is used
        print(f"{name} was not measured: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return flops_per_thread * threads * blocks / timing.p50 / 1e9
