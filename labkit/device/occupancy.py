"""How many blocks of a kernel an SM holds at once, and which of its resources sets the limit.

    blocks(L4, threads=256, registers=32, shared_bytes=256)         # 6
    of_device()                                                     # the present GPU's SM

Source  CUDA C++ Programming Guide, "Compute Capabilities", the table of technical specifications
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit import cuda, device

REGISTERS_AT_ONCE = 256  # a warp is given registers in pieces of this many
SHARED_AT_ONCE = 128  # bytes
SHARED_OF_SYSTEM = 1024  # bytes that every block takes for itself, from compute capability 8.0 on


@dataclass(frozen=True)
class GPU:
    """What one SM has, and how many SMs there are."""

    name: str
    multiprocessors: int
    threads: int
    blocks: int
    registers: int
    shared_bytes: int

    @property
    def warps(self) -> int:
        return self.threads // 32


L4 = GPU("NVIDIA L4", 58, 1536, 24, 65_536, 102_400)
H200 = GPU("NVIDIA H200", 132, 2048, 32, 65_536, 233_472)


def of_device() -> GPU | None:
    """The present GPU; None on the CPU device, which has no SMs."""
    if not device.on_gpu():
        return None
    gpu = cuda.get_current_device()
    return GPU(device.name(), gpu.MULTIPROCESSOR_COUNT, gpu.MAX_THREADS_PER_MULTIPROCESSOR,
               gpu.MAX_BLOCKS_PER_MULTIPROCESSOR, gpu.MAX_REGISTERS_PER_MULTIPROCESSOR,
               gpu.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)


def limits(gpu: GPU, threads: int, registers: int, shared_bytes: int = 0) -> dict[str, int]:
    """How many blocks each resource of an SM allows."""
    warps = -(-threads // 32)
    per_warp = -(-32 * registers // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    shared = -(-(shared_bytes + SHARED_OF_SYSTEM) // SHARED_AT_ONCE) * SHARED_AT_ONCE
    resident_warps = gpu.registers // per_warp // 4 * 4  # four schedulers, each with a quarter of the registers
    return {"threads": gpu.warps // warps, "blocks": gpu.blocks, "registers": resident_warps // warps,
            "shared memory": gpu.shared_bytes // shared}


def blocks(gpu: GPU, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """How many blocks fit: as many as the scarcest resource allows."""
    return min(limits(gpu, threads, registers, shared_bytes).values())


def occupancy(gpu: GPU, threads: int, registers: int, shared_bytes: int = 0) -> float:
    """The warps that fit, over the most that an SM can hold."""
    return blocks(gpu, threads, registers, shared_bytes) * -(-threads // 32) / gpu.warps
