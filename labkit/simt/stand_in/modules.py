"""The submodules of numba.cuda as the CPU device has them: `MODULES`, `OF_NUMBA`, `OF_GPU`.

Those that kernels and programs use hold labkit.simt's own; copies of Numba's compiler are Numba's; a name that only a
GPU has can be imported from the others, and its use says so.
"""

import importlib
import types
import unittest
from pathlib import Path

import numba
import numba.extending
from numba.core import imputils
from numba.core.datamodel import models as core_models
from numba.core.typing import templates

from labkit.simt import api, arrays, device_memory, errors, libraries, random, streams, stubs
from labkit.simt.arguments import ArgHint
from labkit.simt.errors import UnsupportedError
from labkit.simt.kernel import DeviceFunction, Kernel

NAME = "numba.cuda"
# Submodules that numba-cuda copied from Numba: here they are Numba's.
OF_NUMBA = {
    "cgutils": "numba.core.cgutils", "cloudpickle": "numba.cloudpickle", "core": "numba.core",
    "cpython": "numba.cpython", "datamodel": "numba.core.datamodel", "debuginfo": "numba.core.debuginfo",
    "extending": "labkit.simt.extending", "itanium_mangler": "numba.core.itanium_mangler", "misc": "numba.misc",
    "np": "numba.np", "serialize": "numba.core.serialize", "tests.support": "numba.tests.support",
    "typeconv": "numba.core.typeconv", "types": "numba.core.types", "typing": "numba.core.typing",
    "utils": "numba.core.utils",
}  # fmt: skip
# Submodules about GPU code: any name can be imported from them, and its use says that it needs a GPU.
OF_GPU = {
    "_internal", "bf16", "cache_hints", "codegen", "compiler", "cuda_paths", "cudadrv.driver",
    "cudadrv.drvapi", "cudadrv.enums", "cudadrv.libs", "cudadrv.linkable_code", "cudadrv.mappings", "cudadrv.nvrtc",
    "cudadrv.nvvm", "cudadrv.rtapi", "cudamath", "descriptor", "flags", "fp8", "initialize", "intrinsics",
    "launchconfig", "libdevicedecl", "libdevicefuncs", "libdeviceimpl", "lowering", "mathimpl", "memory_management",
    "memory_management.nrt", "nvvmutils", "printimpl", "target", "ufuncs",
}  # fmt: skip


class CudaDriverError(Exception):
    """Of numba.cuda.cudadrv.error; the CPU device has no driver, so that it is never raised."""


class CudaAPIError(CudaDriverError):
    """Of numba.cuda.cudadrv.driver; never raised."""


class Missing:
    """A name of numba.cuda that only a GPU has: it can be imported, and its use raises UnsupportedError."""

    def __init__(self, name):
        self._name = name

    def _refuse(self, *_, **__):
        raise UnsupportedError(f"{self._name} needs a GPU: the CPU device, which is in its place, does not have it")

    __call__ = __mro_entries__ = __getitem__ = __iter__ = __enter__ = _refuse

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __instancecheck__(self, _):
        return False

    def __repr__(self):
        return f"<{self._name}: needs a GPU>"


def _missing(name):
    """What stands for a name that only a GPU has. An exception is a class, for `except` clauses."""
    short = name.rpartition(".")[2]
    if short.endswith(("Error", "Exception", "Warning")):
        return type(short, (UserWarning if short.endswith("Warning") else Exception,), {"__module__": NAME})
    return Missing(name)


class Submodule(types.ModuleType):
    """A submodule of numba.cuda: its own names, then its submodules, then what only a GPU has."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        inner = f"{self.__name__}.{name}"
        if exists(inner.removeprefix(f"{NAME}.")):
            return importlib.import_module(inner)
        if inner.removeprefix(f"{NAME}.").rpartition(".")[0] in OF_GPU:
            value = _missing(inner)
            setattr(self, name, value)
            return value
        raise AttributeError(f"{inner} does not exist on the CPU device, which is in the place of {NAME}")


class Cuda(Submodule):
    """numba.cuda itself: the names of labkit.simt.api, and submodules."""

    def __getattr__(self, name):
        if name in ("devicearray", "devices", "driver", "nvvm"):
            return importlib.import_module(f"{NAME}.cudadrv.{name}")
        if name.startswith("__") or not exists(name):
            try:
                return getattr(api, name)
            except AttributeError:
                if name not in api.NEEDS_GPU:
                    raise
                return _missing(f"{NAME}.{name}")
        return super().__getattr__(name)

    def __dir__(self):
        return sorted({*vars(self), *api.__all__, *(n for n in (*MODULES, *OF_NUMBA) if "." not in n)})


def _registry(registry, *methods):
    """A registry of Numba's own compiler, which a program's types and functions are added to."""
    return {"registry": registry, **{name: getattr(registry, name) for name in methods}}


def _public(module):
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _of_errors():
    from numba.core import errors as of_numba

    return {
        "KernelRuntimeError": errors.KernelError, "CudaLoweringError": errors.CompileError,
        "LoweringError": of_numba.LoweringError, "UnsupportedBytecodeError": errors.UnsupportedError,
    }  # fmt: skip


def _of_driver():
    return {
        "driver": Driver(), "CudaAPIError": CudaAPIError, "CudaDriverError": CudaDriverError,
        "CudaSupportError": api.CudaSupportError, "Context": api.Context, "Device": api.Device, "Stream": api.Stream,
        "Event": api.Event, "MemoryInfo": api.MemoryInfo, "MappedMemory": api.MappedNDArray,
        "ManagedMemory": api.ManagedNDArray, **_public(device_memory), **_public(streams),
    }  # fmt: skip


class Driver:
    """numba.cuda.cudadrv.driver.driver: there is one device; the driver's own functions need a GPU."""

    is_initialized, initialization_error = True, None

    def ensure_initialized(self):
        pass

    def get_device_count(self):
        return len(api.gpus)

    def get_device(self, devnum=0):
        return api.gpus[devnum]

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{NAME}.cudadrv.driver.driver.{name}")


def _of_error():
    return {"CudaDriverError": CudaDriverError, "CudaSupportError": api.CudaSupportError, **{
        name: _missing(f"{NAME}.cudadrv.error.{name}") for name in (
            "CudaRuntimeError", "NvvmError", "NvvmSupportError", "NvvmWarning", "NvrtcError", "NvrtcCompilationError",
            "NvrtcBuiltinOperationFailure", "NvrtcSupportError", "CCSupportError")}}  # fmt: skip


def _of_devices():
    return {name: getattr(api, name) for name in ("gpus", "require_context")} | {
        "get_context": api.current_context, "reset": api.close}  # fmt: skip


def _of_devicearray():
    return _public(arrays) | {
        "DeviceNDArrayBase": arrays.DeviceNDArray, "auto_device": _auto_device, "array_core": arrays._core,
        "errmsg_contiguous_buffer": arrays.NOT_CONTIGUOUS, "sentry_contiguous": arrays._check_contiguous,
        "check_array_compatibility": arrays._check_same_layout, "is_contiguous": arrays.is_contiguous,
        "is_cuda_ndarray": lambda obj: getattr(obj, "__cuda_ndarray__", False),
        "require_cuda_ndarray": _require_cuda_ndarray, "verify_cuda_ndarray_interface": _require_cuda_ndarray,
        "from_array_like": _from_array_like, "from_record_like": _from_record_like,
    }  # fmt: skip


def _require_cuda_ndarray(obj):
    if not getattr(obj, "__cuda_ndarray__", False):
        raise ValueError(f"require an cuda ndarray object, not {type(obj).__name__}")


def _from_array_like(ary, stream=0, gpu_data=None):
    return arrays.DeviceNDArray(ary.shape, ary.strides, ary.dtype, stream, gpu_data)


def _from_record_like(rec, stream=0, gpu_data=None):
    return arrays.DeviceRecord(rec.dtype, stream, gpu_data)


def _auto_device(obj, stream=0, copy=True, user_explicit=False):
    """(device array, whether it is new) of an array of either side."""
    if api.is_cuda_array(obj):
        return api.as_cuda_array(obj), False
    return api.to_device(obj, stream, copy), True


def _of_testing():
    """What tests ask of the machine. The CPU device is compute capability 9.0, has no toolkit and is no simulator."""
    from numba.tests.support import TestCase

    def always(test):
        return test

    class CUDATestCase(TestCase):
        """A test that is not warned of its small grids and host arrays."""

        def setUp(self):
            for name in ("CUDA_LOW_OCCUPANCY_WARNINGS", "CUDA_WARN_ON_IMPLICIT_COPY"):
                self.addCleanup(setattr, numba.config, name, getattr(numba.config, name))
                setattr(numba.config, name, 0)

    run = {name: lambda reason: always for name in (
        "skip_on_cudasim", "skip_if_external_memmgr", "skip_under_cuda_memcheck", "skip_on_arm", "skip_on_wsl2",
        "skip_on_standalone_numba_cuda", "skip_if_nvjitlink_missing", "skip_on_nvjitlink_13_1_sm_120")}  # fmt: skip
    run |= {f"skip_unless_cc_{version}": always for version in ("50", "53", "60", "70", "75", "80", "86", "89", "90")}
    toolkit = unittest.skip("needs the CUDA toolkit")
    skipped = dict.fromkeys(("skip_unless_cudasim", "skip_without_nvdisasm", "skip_with_nvdisasm",
                             "skip_unless_conda_cudatoolkit"), unittest.skip)
    skipped |= {"skip_if_cuda_includes_missing": toolkit, "skip_if_curand_kernel_missing": toolkit}
    return {
        **run, **skipped, "skip_if_cudadevrt_missing": always, "xfail_unless_cudasim": unittest.expectedFailure,
        "unittest": unittest, "TestCase": TestCase, "CUDATestCase": CUDATestCase,
        "ContextResettingTestCase": type("ContextResettingTestCase", (CUDATestCase,), {}), "ForeignArray": ForeignArray,
        "cc_X_or_above": lambda major, minor: (major, minor) <= (9, 0), "test_data_dir": Path("data"),
    }  # fmt: skip


class ForeignArray:
    """numba.cuda.testing's: an object of another library that describes its memory."""

    def __init__(self, arr):
        self._arr = arr
        self.__cuda_array_interface__ = arr.__cuda_array_interface__


def _config():
    """numba.config, with the variables that numba-cuda adds to it: they steer GPU code, and change nothing here."""
    for name, value in {"CUDA_ENABLE_NRT": False, "CUDA_NRT_STATS": False, "CUDA_NVRTC_EXTRA_SEARCH_PATHS": "",
                        "CUDA_DEBUG_POLY": True, "CUDA_DEBUG_POLY_USE_TYPED_CONST": True}.items():  # fmt: skip
        if not hasattr(numba.config, name):
            setattr(numba.config, name, value)
    return numba.config


def _transpose(a, b=None):
    """numba.cuda.kernels.transpose: the transposed copy of a 2-D device array, in `b` where it is given."""
    if b is None:
        return a.transpose()
    b[:] = a.transpose()
    return b


def _wrap_arg(value, default=api.InOut):
    return value if isinstance(value, ArgHint) else default(value)


def _vectorizer(make):
    """numba.vectorize's builder for target="cuda", with `make` of labkit.simt.vectorize."""

    class Builder:
        def __init__(self, function, *signature, identity=None, cache=False, targetoptions=None, **_):
            self.function, self.signature, self.types = function, signature, []
            self.options = {"cache": cache, **(targetoptions or {})}

        def add(self, sig):
            self.types.append(sig)

        def disable_compile(self):
            pass

        def build_ufunc(self):
            return make(self.types, *self.signature, **self.options)(self.function)

    return Builder


# Submodule: what makes its names, when it is first imported.
MODULES = {
    "": lambda: {"config": _config(), "HAS_NUMBA": True, "implementation": "labkit.simt"},
    "api": lambda: _public(api),
    "api_util": dict,
    "args": lambda: {"ArgHint": ArgHint, "wrap_arg": _wrap_arg, "In": api.In, "Out": api.Out, "InOut": api.InOut},
    "cg": lambda: _public(stubs.cg),
    "cudadecl": lambda: _registry(templates.builtin_registry, "register", "register_attr", "register_global"),
    "cudadrv": dict,
    "cudadrv.devicearray": _of_devicearray,
    "cudadrv.devices": _of_devices,
    "cudadrv.driver": _of_driver,
    "cudadrv.error": _of_error,
    "cudadrv.nvvm": lambda: {"is_available": lambda: False, "NvvmError": _missing("NvvmError"),
                             "NvvmSupportError": _missing("NvvmSupportError"), "get_supported_ccs": tuple},
    "cudadrv.runtime": lambda: {"runtime": api.runtime},
    "cudaimpl": lambda: _registry(imputils.builtin_registry, "lower", "lower_constant") | {
        "lower_attr": imputils.builtin_registry.lower_getattr},
    "decorators": lambda: {"jit": api.jit, "declare_device": api.declare_device},
    "device_init": lambda: _public(api),
    "deviceufunc": dict,
    "dispatcher": lambda: {"CUDADispatcher": Kernel, "_Kernel": Kernel, "DeviceFunction": DeviceFunction},
    "errors": _of_errors,
    "fp16": lambda: _public(libraries.fp16),
    "kernels": dict,
    "kernels.transpose": lambda: {"transpose": _transpose},
    "kernels.reduction": lambda: {"Reduce": api.Reduce},
    "libdevice": lambda: _public(libraries.libdevice),
    "models": lambda: _public(core_models) | {"register_model": numba.extending.register_model},
    "random": lambda: _public(random),
    "simulator": lambda: _public(api),
    "simulator_init": lambda: _public(api),
    "stubs": lambda: _public(stubs) | libraries.VECTOR_TYPES,
    "testing": _of_testing,
    "vector_types": lambda: {"vector_types": libraries.VECTOR_TYPES, **libraries.VECTOR_TYPES},
    "vectorizers": lambda: {"CUDAVectorize": _vectorizer(api.vectorize),
                            "CUDAGUFuncVectorize": _vectorizer(api.guvectorize)},
}  # fmt: skip


def of_mlir():
    """The names of the package numba_cuda_mlir."""
    return {"carray": numba.carray, "farray": numba.farray, "__version__": "0"}


def home(part):
    """The module of Numba that a submodule of numba.cuda is a copy of, or None."""
    copied = max((name for name in OF_NUMBA if part == name or part.startswith(f"{name}.")), key=len, default=None)
    return None if copied is None else OF_NUMBA[copied] + part.removeprefix(copied)


def exists(part):
    return part in MODULES or part in OF_GPU or home(part) is not None
