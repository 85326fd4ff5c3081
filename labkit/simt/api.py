"""numba.cuda's names, on the CPU device. `labkit.cuda` is this module on a machine with no GPU.

A name of numba.cuda that is missing here raises AttributeError with the reason.
"""

import importlib

from numba.core import config, types
from numba.core.types import deferred_type, ffi, ffi_forced_object, literal, none, optional

from labkit.simt import errors, random
from labkit.simt.arguments import *  # noqa: F403
from labkit.simt.arrays import *  # noqa: F403
from labkit.simt.device_memory import MemoryPointer
from labkit.simt.devices import *  # noqa: F403
from labkit.simt.jit import jit
from labkit.simt.libraries import VECTOR_TYPES, fp16, libdevice
from labkit.simt.reduction import Reduce
from labkit.simt.streams import *  # noqa: F403
from labkit.simt.stubs import *  # noqa: F403
from labkit.simt.vectorize import guvectorize, vectorize

reduce = Reduce
globals().update(VECTOR_TYPES)  # cuda.float32x4, cuda.float4, ...
# numba.cuda carries the types as attributes: cuda.float32
_TYPES = (
    "b1 bool_ boolean byte c16 c8 char complex128 complex64 double f4 f8 float32 float64 i1 i2 i4 i8 int16 int32 int64 "
    "int8 int_ intc intp long_ longlong short size_t ssize_t u1 u2 u4 u8 uchar uint uint16 uint32 uint64 uint8 uintc "
    "uintp ulong ulonglong ushort void"
)
globals().update({name: getattr(types, name) for name in _TYPES.split()} | {"bool": types.boolean})
KernelRuntimeError = errors.KernelError
is_simulator = False
reset = close  # noqa: F405


class CudaSupportError(ImportError):
    """Never raised: the CPU device is always there."""


def declare_device(name, sig, link=None, use_cooperative=False, abi="numba"):
    """External device functions are GPU code; the CPU device has none."""
    raise errors.UnsupportedError(f"cuda.declare_device({name!r}) links GPU code: it needs a GPU")


_MAKES_CODE = "it makes GPU code, and the CPU device makes none"
_LINKS_CODE = "it links GPU code, and the CPU device has none"
_OF_MEMORY = "memory of the CPU device is NumPy's, and no other library can manage it"
_OF_PROCESSES = "other processes cannot reach the memory of the CPU device"
_OF_COMPILER = "it is a part of numba.cuda's compiler, which the CPU device does not use"
_OF_DRIVER = "it is a part of the CUDA driver's interface; labkit.simt.stand_in has what the CPU device can give of it"
# What numba.cuda has on a GPU alone -> why.
NEEDS_GPU = (
    dict.fromkeys(("compile", "compile_ptx", "compile_all", "compile_for_current_device",
                   "compile_ptx_for_current_device", "numba_cuda_default_ptx_cc", "config_default_cc"), _MAKES_CODE)
    | dict.fromkeys(("CUSource", "PTXSource", "Cubin", "Fatbin", "Archive", "Object", "LTOIR", "LinkableCode"),
                    _LINKS_CODE)
    | dict.fromkeys(("set_memory_manager", "BaseCUDAMemoryManager", "HostOnlyCUDAMemoryManager", "MappedMemory",
                     "PinnedMemory"), _OF_MEMORY)
    | dict.fromkeys(("open_ipc_handle", "open_ipc_array", "IpcHandle", "GetIpcHandleMixin"), _OF_PROCESSES)
    | dict.fromkeys(("Dim3", "GridGroup", "dim3", "grid_group", "prepare_shape_strides_dtype",
                     "literal_unroll"),
                    _OF_COMPILER)
    | dict.fromkeys(("nvvm", "driver", "cudadrv", "devicearray"), _OF_DRIVER)
    | dict.fromkeys(("bf16", "fp8", "bfloat16"), "numba.cuda compiles it from CUDA's headers")
)  # fmt: skip


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "extending":
        return importlib.import_module("labkit.simt.extending")
    if name in NEEDS_GPU:
        raise AttributeError(f"cuda.{name} needs a GPU: {NEEDS_GPU[name]}")
    raise AttributeError(f"cuda.{name} is not supported by the CPU device")


__all__ = [name for name in globals() if not name.startswith("_")
           and name not in ("NEEDS_GPU", "VECTOR_TYPES", "importlib")]  # fmt: skip
