"""numba.cuda's names, on the CPU device. `labkit.cuda` is this module on a machine with no GPU.

A name of numba.cuda that is missing here raises AttributeError with the reason.
"""

import importlib

from numba.core import types

from labkit.simt import errors, random
from labkit.simt.arguments import *  # noqa: F403
from labkit.simt.arrays import *  # noqa: F403
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
globals().update({name: getattr(types, name) for name in _TYPES.split()})
KernelRuntimeError = errors.KernelError
is_simulator = False


def declare_device(name, sig, link=None, use_cooperative=False, abi="numba"):
    """External device functions are GPU code; the CPU device has none."""
    raise errors.UnsupportedError(f"cuda.declare_device({name!r}) links GPU code: it needs a GPU")


NEEDS_GPU = {
    "compile", "compile_ptx", "compile_all", "compile_for_current_device", "compile_ptx_for_current_device", "CUSource",
    "PTXSource", "Cubin", "Fatbin", "Archive", "Object", "LTOIR", "open_ipc_handle", "set_memory_manager",
    "nvvm", "driver", "cudadrv", "bf16", "fp8", "devicearray",
}  # fmt: skip


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "extending":
        return importlib.import_module("labkit.simt.extending")
    if name in NEEDS_GPU:
        raise AttributeError(f"cuda.{name} needs a GPU: it is not supported by the CPU device")
    raise AttributeError(f"cuda.{name} is not supported by the CPU device")


__all__ = [name for name in globals() if not name.startswith("_")
           and name not in ("NEEDS_GPU", "VECTOR_TYPES", "importlib")]  # fmt: skip
