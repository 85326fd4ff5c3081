"""How many blocks of a kernel an SM holds at once, and which of its resources sets the limit.

    blocks(L4, threads=256, registers=32, shared_bytes=256)         # 6
    of_device()                                                     # the present GPU's SM

Source  CUDA C++ Programming Guide, "Compute Capabilities", the table of technical specifications
"""

from __future__ import annotations

from labkit import device
from labkit.device import gpus
from labkit.device.gpus import GPU, GPUS

REGISTERS_AT_ONCE = 256  # a warp is given registers in pieces of this many
SHARED_AT_ONCE = 128  # bytes
SHARED_OF_SYSTEM = 1024  # bytes that every block takes for itself, from compute capability 8.0 on

L4, H200 = GPUS["l4"], GPUS["h200"]


def of_device() -> GPU | None:
    """The present GPU; None on the CPU device, which has no SMs."""
    return gpus.target() if device.on_gpu() else None


def limits(gpu: GPU, threads: int, registers: int, shared_bytes: int = 0) -> dict[str, int]:
    """How many blocks each resource of an SM allows."""
    warps = -(-threads // 32)
    per_warp = -(-32 * registers // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    of_system, at_once = (SHARED_OF_SYSTEM, SHARED_AT_ONCE) if gpu.capability >= (8, 0) else (0, 2 * SHARED_AT_ONCE)
    shared = -(-(shared_bytes + of_system) // at_once) * at_once
    resident_warps = gpu.registers // per_warp // 4 * 4  # four schedulers, each with a quarter of the registers
    return {"threads": gpu.warps // warps, "blocks": gpu.blocks, "registers": resident_warps // warps,
            "shared memory": gpu.shared_bytes // shared if shared else gpu.blocks}


def blocks(gpu: GPU, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """How many blocks fit: as many as the scarcest resource allows."""
    return min(limits(gpu, threads, registers, shared_bytes).values())


def occupancy(gpu: GPU, threads: int, registers: int, shared_bytes: int = 0) -> float:
    """The warps that fit, over the most that an SM can hold."""
    return blocks(gpu, threads, registers, shared_bytes) * -(-threads // 32) / gpu.warps
