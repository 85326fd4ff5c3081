"""Compiled kernels of a GPU, alike for both compilers: their type, what they were compiled for, what the driver has.

    compiled(kernel, argument_types)               # compiles it, if it is not
    function(kernel, argument_types)               # what the driver launches
    allow_shared(kernel, argument_types, nbytes)   # dynamic shared memory above 48 KB
    attributes(kernel, argument_types)             # registers and the like
"""

from __future__ import annotations

import functools

from labkit.device import compiler


@functools.cache
def dispatcher_type() -> type:
    """The type of what @cuda.jit makes."""
    if compiler.is_mlir():
        from numba_cuda_mlir.descriptor import MLIRDispatcher

        return MLIRDispatcher
    from numba.cuda.dispatcher import CUDADispatcher

    return CUDADispatcher


@functools.cache
def array_type() -> type:
    """The type of a device array."""
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda.cudadrv.devicearray import DeviceNDArray
    else:
        from numba.cuda.cudadrv.devicearray import DeviceNDArray
    return DeviceNDArray


@functools.cache
def types():
    """The module of the compiler's types."""
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda import types
    else:
        from numba.cuda import types
    return types


def argument_types(kernel, args) -> tuple:
    return tuple(kernel.typeof_pyval(value) for value in args)


def compiled(kernel, argument_types: tuple):
    """The kernel as compiled for these types."""
    if argument_types not in kernel.overloads:
        kernel.compile(argument_types)
    return kernel.overloads[argument_types]


def function(kernel, argument_types: tuple):
    """What the driver launches, a CUfunction; loaded, if it is not."""
    from cuda.bindings import driver

    return driver.CUfunction(int(compiled(kernel, argument_types)._codelibrary.get_cufunc().handle))


def allow_shared(kernel, argument_types: tuple, nbytes: int):
    """Allow a block this much dynamic shared memory; return the driver's error."""
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    handle = compiled(kernel, argument_types)._codelibrary.get_cufunc().handle
    if compiler.is_mlir():
        (error,) = driver.cuFuncSetAttribute(handle, attribute, nbytes)
    else:
        from numba import cuda

        (error,) = driver.cuKernelSetAttribute(attribute, nbytes, handle, cuda.get_current_device().id)
    return error


def memset(array, value: int) -> None:
    """Fill a device array with this byte."""
    if compiler.is_mlir():
        from numba_cuda_mlir.numba_cuda.cudadrv import driver
    else:
        from numba.cuda.cudadrv import driver
    driver.device_memset(array, value, array.nbytes)


def attributes(kernel, argument_types: tuple) -> dict:
    """{"registers", "local_bytes" (of a thread), "shared_bytes" (static)} of a kernel that is compiled for these types;
    of the last that it was compiled for, if for others."""
    known = argument_types if argument_types in kernel.overloads else next(reversed(kernel.overloads))
    library = kernel.overloads[known]
    if compiler.is_mlir():
        found = library._codelibrary.get_kernel_attributes()
        return {"registers": found["regs_per_thread"], "local_bytes": found["local_mem_per_thread"],
                "shared_bytes": found["shared_mem_per_block"]}
    return {"registers": library.regs_per_thread, "local_bytes": library.local_mem_per_thread,
            "shared_bytes": library.shared_mem_per_block}


def blocks_per_sm(kernel, argument_types: tuple, threads: int, shared_bytes: int) -> int:
    """How many blocks of `threads` and this much dynamic shared memory an SM holds at once, by the driver."""
    if not compiler.is_mlir():
        cufunc = compiled(kernel, argument_types)._codelibrary.get_cufunc()
        return int(cufunc.kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes))
    from cuda.bindings import driver

    error, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function(kernel, argument_types), threads,
                                                                       shared_bytes)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{kernel.__name__}: {error.name}")
    return int(blocks)
