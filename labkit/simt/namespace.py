"""numba.cuda's names, on the CPU device. `labkit.cuda` is this module on a machine with no GPU.

A name of numba.cuda that is missing here raises AttributeError with the reason.
"""

from numba.core import sigutils, types

from labkit.simt import errors
from labkit.simt.arrays import *  # noqa: F403
from labkit.simt.arrays import default_stream, legacy_default_stream, per_thread_default_stream
from labkit.simt.launch import JIT_OPTIONS, DeviceFunction, Kernel
from labkit.simt.reduction import Reduce
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

reduce = Reduce
# numba.cuda carries the types as attributes: cuda.float32
boolean, int8, int16, int32, int64 = types.boolean, types.int8, types.int16, types.int32, types.int64
uint8, uint16, uint32, uint64 = types.uint8, types.uint16, types.uint32, types.uint64
float32, float64, complex64, complex128 = types.float32, types.float64, types.complex64, types.complex128
void = types.void
KernelRuntimeError = errors.KernelError
is_simulator = False


def jit(func_or_sig=None, device=False, **options):
    """Compile a Python function for the device, as numba.cuda.jit does.

    Takes a function, a signature or a list of signatures, or nothing: `@cuda.jit`, `@cuda.jit("void(float32[:])")`,
    `@cuda.jit(device=True)`. Every option of numba.cuda.jit is accepted; those that steer a GPU's code (max_registers,
    fastmath, lineinfo, ...) change nothing here.
    Returns a kernel, or a device function, or a decorator. Raises UnsupportedError for what device code may not hold.
    """
    unknown = set(options) - JIT_OPTIONS
    if unknown:
        raise errors.UnsupportedError(f"cuda.jit has no option {', '.join(sorted(unknown))}")
    if options.get("link"):
        raise errors.UnsupportedError("cuda.jit(link=...) links GPU code: it needs a GPU")
    if callable(func_or_sig) and not isinstance(func_or_sig, types.Type):
        return DeviceFunction(func_or_sig) if device else Kernel(func_or_sig, options=options)
    signatures = [] if device else _signatures(func_or_sig)  # a device function is compiled with each caller

    def decorate(function):
        return DeviceFunction(function) if device else Kernel(function, signatures, options)

    if device:
        return decorate
    return decorate


def _signatures(given):
    """Argument types from a signature, a list of them, or None."""
    if given is None:
        return []
    found = []
    for signature in given if isinstance(given, list) else [given]:
        arguments, returned = sigutils.normalize_signature(signature)
        if returned not in (None, types.void, types.none):
            raise errors.UnsupportedError(f"a kernel cannot return a value: its signature returns {returned}")
        found.append(arguments)
    return found


def declare_device(name, signature, link=None, use_cooperative=False, abi="numba"):
    """External device functions are GPU code; the CPU device has none."""
    raise errors.UnsupportedError(f"cuda.declare_device({name!r}) links GPU code: it needs a GPU")


_NEEDS_GPU = {
    "compile", "compile_ptx", "compile_all", "compile_for_current_device", "compile_ptx_for_current_device", "CUSource",
    "PTXSource", "Cubin", "Fatbin", "Archive", "Object", "LTOIR", "open_ipc_handle", "set_memory_manager", "libdevice",
    "nvvm", "driver", "cudadrv", "vectorize", "guvectorize",
}  # fmt: skip


from labkit.simt import random  # noqa: E402 (its device functions are made with jit)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _NEEDS_GPU:
        raise AttributeError(f"cuda.{name} needs numba.cuda: the CPU device has no counterpart")
    raise AttributeError(f"cuda.{name} does not exist on the CPU device")


__all__ = [name for name in globals() if not name.startswith("_")]
