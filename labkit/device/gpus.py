"""The GPUs of the course: what their data sheets say, and which one kernels are chosen for.

    target()                    the present GPU; on the CPU device an H200
    GPUS["t4"].shared_per_block # 65,536 bytes

LABKIT_PRETEND=7.5, or the name of a GPU below (t4), makes labkit choose and compile kernels as on that GPU. PTX for an
older GPU runs on a newer one, so the choices for a T4 can be tested on any later GPU, and on the CPU device.

Source  NVIDIA's data sheets; CUDA C++ Programming Guide, "Compute Capabilities", technical specifications
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass

from labkit import device
from labkit.device import compile_target

SUPPORTED = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))  # compute capabilities


@dataclass(frozen=True)
class GPU:
    """What one SM has (threads, blocks, registers, shared_bytes), and the whole GPU.

    shared_per_block: the most a block can be allowed. tf32_tflops, f16_tflops: of the tensor cores, dense, accumulating
    in float32; None where they have no such type. Rates are the data sheet's; None where none is known.
    """

    name: str
    multiprocessors: int
    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    capability: tuple[int, int] = (9, 0)
    shared_per_block: int = 49_152
    memory_gb: float | None = None
    bandwidth_gbs: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    f16_tflops: float | None = None

    @property
    def fp8_tflops(self) -> float | None:
        """Twice f16's, from compute capability 8.9 on."""
        return 2 * self.f16_tflops if self.f16_tflops is not None and self.capability >= (8, 9) else None

    @property
    def warps(self) -> int:
        """How many an SM holds at once."""
        return self.threads // 32

    @property
    def arch(self) -> tuple:
        """What its kernels are compiled for: (9, 0, "a") where a variant has features of its own."""
        return (*self.capability, "a") if self.capability >= (9, 0) else self.capability


# By compute capability: threads, blocks, registers and bytes of shared memory of an SM, and the bytes a block can have.
_SM = {
    (7, 5): (1024, 16, 65_536, 65_536, 65_536),
    (8, 0): (2048, 32, 65_536, 167_936, 166_912),
    (8, 6): (1536, 16, 65_536, 102_400, 101_376),
    (8, 9): (1536, 24, 65_536, 102_400, 101_376),
    (9, 0): (2048, 32, 65_536, 233_472, 232_448),
    (10, 0): (2048, 32, 65_536, 233_472, 232_448),
    (12, 0): (1536, 24, 65_536, 102_400, 101_376),
}


def _gpu(name: str, capability: tuple[int, int], multiprocessors: int, *sheet) -> GPU:
    """sheet: memory in GB, GB/s, then TFLOP/s in float32, TF32 and float16."""
    *of_sm, shared_per_block = _SM[capability]
    return GPU(name, multiprocessors, *of_sm, capability, shared_per_block, *sheet)


GPUS = {
    "t4": _gpu("Tesla T4", (7, 5), 40, 16, 320, 8.1, None, 65),
    "rtx2060": _gpu("NVIDIA GeForce RTX 2060", (7, 5), 30, 6, 336, 6.5, None, 25.8),
    "rtx2080ti": _gpu("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 11, 616, 13.4, None, 53.8),
    "a100": _gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80, 2039, 19.5, 156, 312),
    "rtx3060": _gpu("NVIDIA GeForce RTX 3060", (8, 6), 28, 12, 360, 12.7, 12.7, 25.5),
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090", (8, 6), 82, 24, 936, 35.6, 35.6, 71),
    "a10": _gpu("NVIDIA A10", (8, 6), 72, 24, 600, 31.2, 62.5, 125),
    "rtx4060": _gpu("NVIDIA GeForce RTX 4060", (8, 9), 24, 8, 272, 15.1, 15.1, 30.2),
    "l4": _gpu("NVIDIA L4", (8, 9), 58, 24, 300, 30.3, 60, 121),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 24, 1008, 82.6, 82.6, 165.2),
    "h100": _gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 80, 3350, 67, 494, 989),
    "h200": _gpu("NVIDIA H200", (9, 0), 132, 141, 4800, 67, 494, 989),
    "b200": _gpu("NVIDIA B200", (10, 0), 148, 180, 8000, 75, 1100, 2250),
    "rtx5060": _gpu("NVIDIA GeForce RTX 5060", (12, 0), 30, 8, 448, 19.2, 19.2, 38.4),
    "rtx5090": _gpu("NVIDIA GeForce RTX 5090", (12, 0), 170, 32, 1792, 104.8, 104.8, 209.5),
}

# The GPU that stands for each compute capability where none is named.
OF_CAPABILITY = dict(zip(SUPPORTED, ("t4", "a100", "rtx3060", "l4", "h200", "b200", "rtx5090"), strict=True))


def named(text: str) -> GPU:
    """The GPU of a short name ("t4") or of a compute capability ("7.5"). Raises ValueError for any other."""
    key = text.strip().lower().removeprefix("sm_").replace(" ", "")
    by_capability = {f"{major}.{minor}": name for (major, minor), name in OF_CAPABILITY.items()}
    key = by_capability.get(key, key)
    if key not in GPUS:
        raise ValueError(f"{text!r} is no GPU known here; allowed are {', '.join(GPUS)}, and the compute capabilities "
                         f"{', '.join(by_capability)}")
    return GPUS[key]


def sheet_of(name: str) -> GPU | None:
    """The data sheet of the GPU that the driver calls so; None where there is none here."""
    return next((gpu for gpu in GPUS.values() if gpu.name == name), None)


@functools.cache
def pretended() -> GPU | None:
    """The GPU that LABKIT_PRETEND names; None where it is not set.

    Raises ValueError for an unknown one, and on a GPU for one of a later compute capability, whose code it cannot run.
    """
    text = os.environ.get("LABKIT_PRETEND", "").strip()
    if not text:
        return None
    try:
        gpu = named(text)
    except ValueError as error:
        raise ValueError(f"LABKIT_PRETEND: {error}") from None
    if device.on_gpu() and gpu.capability > _present().capability:
        raise ValueError(f"LABKIT_PRETEND is {text}: this GPU, of compute capability "
                         f"{'.'.join(map(str, _present().capability))}, cannot run code for a later one")
    return gpu


@functools.cache  # Numba looks up the context on each call; all GPUs of a machine are assumed to be alike
def _present() -> GPU:
    raw = device.gpu_cuda().get_current_device()
    name = device.gpu_name()
    sheet = sheet_of(name)
    if sheet is None:
        rates = (None, _bandwidth_of(raw), None, None, None)
    else:
        rates = sheet.memory_gb, sheet.bandwidth_gbs, sheet.fp32_tflops, sheet.tf32_tflops, sheet.f16_tflops
    return GPU(name, raw.MULTIPROCESSOR_COUNT, raw.MAX_THREADS_PER_MULTIPROCESSOR,
               raw.MAX_BLOCKS_PER_MULTIPROCESSOR, raw.MAX_REGISTERS_PER_MULTIPROCESSOR,
               raw.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, tuple(raw.compute_capability)[:2],
               raw.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, *rates)


def _bandwidth_of(raw) -> float | None:
    """GB/s by the driver's attributes, the memory's clock in kHz and the width of its bus in bits: two transfers a
    clock. None where the driver does not give them."""
    try:
        return 2 * raw.MEMORY_CLOCK_RATE * raw.GLOBAL_MEMORY_BUS_WIDTH / 8 / 1e6 or None
    except AttributeError:
        return None


_planned: GPU | None = None


@contextlib.contextmanager
def plan_for(gpu: GPU):
    """Within the block kernels are chosen as on this GPU, without one, too: for labkit.device.launches.planned, which
    runs none."""
    global _planned
    before, _planned = _planned, gpu
    try:
        yield
    finally:
        _planned = before


def planned_for() -> GPU | None:
    """The GPU of plan_for; None outside of it."""
    return _planned


def target() -> GPU:
    """The GPU that kernels are chosen and compiled for: the planned or pretended one, else the present one. On the CPU
    device an H200, so that kernels are chosen as they are there."""
    return _planned or pretended() or (_present() if device.on_gpu() else GPUS["h200"])


def lacks_shared(nbytes: int) -> str:
    """Why a block of the target cannot have so many bytes of shared memory; empty if it can."""
    allowed = target().shared_per_block
    return f"needs {nbytes:,} bytes of shared memory a block; this GPU allows {allowed:,}" if nbytes > allowed else ""


def chosen_on_gpu() -> bool:
    """Whether kernels are chosen as on a GPU: on one, and where one is planned for."""
    return _planned is not None or device.on_gpu()


def limited() -> bool:
    """Whether kernels are chosen for what `target` has; the CPU device has everything, unless a GPU is pretended."""
    return chosen_on_gpu() or pretended() is not None


def sm_count() -> int:
    """How many streaming multiprocessors (SMs) the target has."""
    return target().multiprocessors


# Launchers choose by times that were measured on an H200, which these scale to the target. Results can depend on such a
# choice, so it is made from data sheets and the driver's attributes alone: a measured rate would vary from run to run.


def of_an_h200(rate: str, per_sm: bool = False) -> float:
    """The target's rate as a multiple of an H200's, by their data sheets; 1 where one is not known. rate: the name of a
    field, "bandwidth_gbs" or "fp32_tflops". per_sm: of one SM."""
    gpu, h200 = target(), GPUS["h200"]
    known = getattr(gpu, rate)
    if known is None:
        return 1.0
    return known / getattr(h200, rate) * (h200.multiprocessors / gpu.multiprocessors if per_sm else 1.0)


def for_sms(count: int) -> int:
    """A number of rows or blocks that was found for an H200's SMs, for those of the target."""
    return count * sm_count() // GPUS["h200"].multiprocessors


def cached_by_target(function: Callable) -> Callable:
    """Decorate a function whose result depends on the target besides its arguments: functools.cache for each target."""
    cached = functools.cache(lambda gpu, *args: function(*args))

    @functools.wraps(function)
    def of_target(*args):
        return cached(target(), *args)

    of_target.cache_clear = cached.cache_clear
    return of_target


def pretend() -> None:
    """On a GPU, compile from now on for the one that LABKIT_PRETEND names, if it is set, and assemble for the present
    one. Raises ValueError for an unknown name."""
    if pretended() is not None and device.on_gpu():
        compile_target.answer_with((*pretended().capability, *_present().capability))
