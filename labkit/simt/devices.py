"""What the CPU device says of itself: numba.cuda's names for devices, contexts and versions.

Source  CUDA C++ Programming Guide, "Compute Capabilities"
"""

import os

import numpy as np

from labkit.simt.allocation import MemoryInfo, gigabytes, machine_memory
from labkit.simt.array_interface import array_at
from labkit.simt.arrays import MappedNDArray, defer_cleanup, managed_array, mapped_array, pinned_array
from labkit.simt.device_memory import MemoryPointer, allocated
from labkit.simt.settings import LIMITS
from labkit.simt.streams import (
    default_stream,
    event,
    external_stream,
    legacy_default_stream,
    per_thread_default_stream,
    stream,
)

__all__ = [
    "Context", "Device", "MemoryInfo", "close", "cuda_error", "current_context", "detect", "get_current_device", "gpus",
    "is_available", "is_bfloat16_supported", "is_float16_supported", "is_fp8_supported", "is_supported_version",
    "list_devices", "require_context", "runtime", "select_device",
]  # fmt: skip


_ATTRIBUTES = {
    "WARP_SIZE": LIMITS.warp_size,
    "MAX_THREADS_PER_BLOCK": LIMITS.max_threads_per_block,
    "MAX_SHARED_MEMORY_PER_BLOCK": LIMITS.shared_per_block,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": LIMITS.shared_per_block_optin,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 * 1024,
    "MAX_REGISTERS_PER_BLOCK": 64 * 1024,
    "MAX_THREADS_PER_MULTI_PROCESSOR": 2048,
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": os.cpu_count(),  # blocks run on the cores
    "TOTAL_CONSTANT_MEMORY": 64 * 1024,
    "UNIFIED_ADDRESSING": 1,
    "MANAGED_MEMORY": 1,
    "CAN_MAP_HOST_MEMORY": 1,
    "ASYNC_ENGINE_COUNT": 1,  # copies end before the call returns
    "CONCURRENT_KERNELS": 0,
    "INTEGRATED": 0,
    "COOPERATIVE_LAUNCH": 1,
    "KERNEL_EXEC_TIMEOUT": 0,
    "PCI_DOMAIN_ID": 0,
    "PCI_BUS_ID": 0,
    "PCI_DEVICE_ID": 0,
}
for _axis, _threads, _blocks in zip("XYZ", LIMITS.max_block_dim, LIMITS.max_grid_dim, strict=True):
    _ATTRIBUTES |= {f"MAX_BLOCK_DIM_{_axis}": _threads, f"MAX_GRID_DIM_{_axis}": _blocks}


# What contexts have on a GPU alone -> why.
OF_GPU_CONTEXTS = {
    "create_module_image": "it loads GPU code", "create_module_ptx": "it loads GPU code",
    "unload_module": "it unloads GPU code", "enable_peer_access": "the CPU device is the only one",
    "get_ipc_handle": "other processes cannot reach the memory of the CPU device",
    "open_ipc_handle": "other processes cannot reach the memory of the CPU device",
    "memory_manager": "Python frees memory of the CPU device as soon as nothing refers to it",
    "get_active_blocks_per_multiprocessor": "it counts the registers of GPU code",
    "get_max_potential_block_size": "it counts the registers of GPU code",
}  # fmt: skip


class Device:
    """The CPU device, described as a GPU describes itself. It is number 0 and the only one."""

    id = 0
    name = "labkit CPU device"
    compute_capability = (9, 0)
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    supports_float16 = True
    supports_bfloat16 = False
    supports_fp8 = False

    def __init__(self, number: int = 0):
        if number != 0:
            raise IndexError(f"there is no device {number}: the CPU device is number 0 and the only one")

    def __getattr__(self, attribute):
        if attribute in _ATTRIBUTES:
            return _ATTRIBUTES[attribute]
        raise AttributeError(f"the CPU device has no attribute {attribute!r}; it has {', '.join(sorted(_ATTRIBUTES))}")

    def __repr__(self):
        return f"<CUDA device 0 '{self.name}'>"

    def __enter__(self):
        return None  # as numba.cuda.gpus[0]

    def __exit__(self, *exception):
        pass

    def get_primary_context(self) -> "Context":
        return _CONTEXT

    def reset(self) -> None:
        pass

    def get_device_identity(self) -> dict[str, int]:
        return {"pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": 0}

    @classmethod
    def from_identity(cls, identity) -> "Device":
        """The device at these PCI addresses: the one there is."""
        if identity != _DEVICE.get_device_identity():
            raise RuntimeError(f"No device at {identity}: the CPU device has the PCI addresses 0, 0, 0")
        return _DEVICE

    def release_primary_context(self) -> None:
        pass


class Deallocations:
    """`Context.deallocations`: memory that waits to be freed. Here none does: Python frees an array at once."""

    is_disabled = False
    memory_capacity = 0  # bytes that may wait

    def __len__(self):
        return 0

    def clear(self) -> None:
        """Free what waits."""

    disable = staticmethod(defer_cleanup)

    def add_item(self, dtor, handle, size=0) -> None:
        """Free something now: dtor(handle)."""
        dtor(handle)


class Context:
    """What a process holds on the device."""

    def __init__(self, device: Device):
        self.device, self.deallocations = device, Deallocations()

    def get_memory_info(self) -> MemoryInfo:
        """Memory of this machine that is free and that there is."""
        return machine_memory()

    def synchronize(self) -> None:
        pass

    def reset(self) -> None:
        """Forget all work; device arrays stay, as ordinary Python objects."""

    def memalloc(self, bytesize: int) -> MemoryPointer:
        """Device memory without a type."""
        return allocated(bytesize, self)

    def memhostalloc(self, bytesize: int, mapped=False, portable=False, wc=False):
        """Host memory that stays in place, as an array of bytes; with `mapped` kernels can use it too."""
        return mapped_array(bytesize, np.uint8) if mapped else pinned_array(bytesize, np.uint8)

    def memallocmanaged(self, bytesize: int, attach_global=True):
        """Memory that host and kernels address, as an array of bytes."""
        return managed_array(bytesize, np.uint8)

    def mempin(self, owner, pointer: int, size: int, mapped=False):
        """`size` bytes of host memory at an address that `owner` keeps alive, as memhostalloc gives them."""
        described = {"shape": (size,), "typestr": "|u1", "data": (pointer, False)}
        memory = array_at(described, owner)
        return memory.view(MappedNDArray) if mapped else memory

    def prepare_for_use(self) -> None:
        pass

    def can_access_peer(self, peer_context) -> bool:
        """Return whether this device can access the memory of another. There is no other."""
        return False

    def __getattr__(self, name):
        if name in OF_GPU_CONTEXTS:
            raise AttributeError(f"Context.{name} is not supported by the CPU device: {OF_GPU_CONTEXTS[name]}")
        raise AttributeError(f"a context has no attribute {name!r}")

    def push(self) -> None:
        pass

    def pop(self) -> None:
        pass

    defer_cleanup = staticmethod(defer_cleanup)
    create_stream = staticmethod(stream)
    create_event = staticmethod(event)
    create_external_stream = staticmethod(external_stream)
    get_default_stream = staticmethod(default_stream)
    get_legacy_default_stream = staticmethod(legacy_default_stream)
    get_per_thread_default_stream = staticmethod(per_thread_default_stream)


_DEVICE = Device()
_CONTEXT = Context(_DEVICE)


class DeviceList:
    """`cuda.gpus`: one device; `with cuda.gpus[0]:` selects it."""

    lst = (_DEVICE,)
    current = _DEVICE

    def __getitem__(self, index: int) -> Device:
        return self.lst[_device_index(index)]

    def __iter__(self):
        return iter(self.lst)

    def __len__(self):
        return len(self.lst)

    def __str__(self):
        return "<Managed Device 0>"


gpus = DeviceList()


def _device_index(device_id: int) -> int:
    if device_id != 0:
        raise IndexError(f"device {device_id} does not exist: the CPU device is the only one and has number 0")
    return 0


def list_devices() -> DeviceList:
    return gpus


def select_device(device_id: int) -> Device:
    return gpus[device_id]


def get_current_device() -> Device:
    return _DEVICE


def current_context(devnum: int | None = None) -> Context:
    _device_index(devnum or 0)
    return _CONTEXT


def require_context(fn):
    """A context is always there."""
    return fn


def close() -> None:
    """End the use of the device; the next call starts it again."""


def is_available() -> bool:
    """Whether kernels can run: they can, on the CPU."""
    return True


def is_supported_version() -> bool:
    return True


def is_float16_supported() -> bool:
    return True


def is_bfloat16_supported() -> bool:
    return False


def is_fp8_supported() -> bool:
    return False


def cuda_error() -> str | None:
    """The reason why the device could not be started: none."""
    return None


def detect() -> bool:
    """Print which device runs the kernels; True, since one does."""
    print("Found 1 CUDA devices")
    print(f"id 0    {_DEVICE.name:>20} {'[SUPPORTED: no GPU, kernels run on the CPU]':>40}")
    print(f"{'Compute Capability':>40}: {'.'.join(map(str, _DEVICE.compute_capability))}, its limits and its rules")
    print(f"{'Multiprocessors':>40}: {_DEVICE.MULTIPROCESSOR_COUNT} (CPU cores)")
    print(f"{'Memory':>40}: {gigabytes(machine_memory().total)} (of this machine)")
    print(f"{'FP16 Support':>40}: Yes")
    print("Summary:\n\t1/1 devices are supported")
    return True


class Runtime:
    """`cuda.runtime`: the version of the CUDA toolkit, of which the CPU device uses none."""

    def get_version(self) -> tuple[int, int]:
        return (0, 0)

    def is_supported_version(self) -> bool:
        return True


runtime = Runtime()
