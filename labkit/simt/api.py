"""numba.cuda's names, on the CPU device. `labkit.cuda` is this module on a machine with no GPU.

A name of numba.cuda that is missing here raises AttributeError with the reason.
"""

from numba.core import types

from labkit.simt import errors, random
from labkit.simt.arguments import *  # noqa: F403
from labkit.simt.arrays import *  # noqa: F403
from labkit.simt.devices import *  # noqa: F403
from labkit.simt.jit import jit
from labkit.simt.libraries import VECTOR_TYPES, fp16, libdevice
from labkit.simt.reduction import Reduce
from labkit.simt.streams import *  # noqa: F403
from labkit.simt.stubs import (
    activemask,
    all_sync,
    any_sync,
    atomic,
    ballot_sync,
    blockDim,
    blockIdx,
    brev,
    cbrt,
    cg,
    clz,
    const,
    eq_sync,
    ffs,
    fma,
    grid,
    gridDim,
    gridsize,
    laneid,
    lanemask_lt,
    local,
    match_all_sync,
    match_any_sync,
    nanosleep,
    popc,
    rsqrt,
    selp,
    shared,
    shfl_down_sync,
    shfl_sync,
    shfl_up_sync,
    shfl_xor_sync,
    syncthreads,
    syncthreads_and,
    syncthreads_count,
    syncthreads_or,
    syncwarp,
    threadfence,
    threadfence_block,
    threadfence_system,
    threadIdx,
    warpsize,
)
from labkit.simt.vectorize import guvectorize, vectorize

reduce = Reduce
globals().update(VECTOR_TYPES)  # cuda.float32x4, cuda.float4, ...
# numba.cuda carries the types as attributes: cuda.float32
boolean, int8, int16, int32, int64 = types.boolean, types.int8, types.int16, types.int32, types.int64
uint8, uint16, uint32, uint64 = types.uint8, types.uint16, types.uint32, types.uint64
float32, float64, complex64, complex128 = types.float32, types.float64, types.complex64, types.complex128
void = types.void
KernelRuntimeError = errors.KernelError
is_simulator = False


def declare_device(name, signature, link=None, use_cooperative=False, abi="numba"):
    """External device functions are GPU code; the CPU device has none."""
    raise errors.UnsupportedError(f"cuda.declare_device({name!r}) links GPU code: it needs a GPU")


_NEEDS_GPU = {
    "compile", "compile_ptx", "compile_all", "compile_for_current_device", "compile_ptx_for_current_device", "CUSource",
    "PTXSource", "Cubin", "Fatbin", "Archive", "Object", "LTOIR", "open_ipc_handle", "set_memory_manager",
    "nvvm", "driver", "cudadrv", "extending", "bf16", "fp8", "devicearray",
}  # fmt: skip


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _NEEDS_GPU:
        raise AttributeError(f"cuda.{name} needs a GPU: it is not supported by the CPU device")
    raise AttributeError(f"cuda.{name} is not supported by the CPU device")


__all__ = [name for name in globals() if not name.startswith("_")]
