"""Every public name of numba-cuda is here, or its absence says why; objects of its API have what programs use."""

import importlib
import re
import types as python_types

import numba
import numpy as np
import pytest

from labkit.simt import api as cuda
from labkit.simt.arrays import ManagedNDArray, MappedNDArray
from labkit.simt.errors import ArgumentError
from labkit.simt.launch import ConfiguredKernel
from labkit.simt.stand_in import modules

pytestmark = pytest.mark.cpu_device
REASON = re.compile(r"needs a GPU|not supported (by|on) the CPU device|cannot reach the memory of the CPU device")
# Names that numba.cuda's __init__ binds while it is imported, of no use to a program.
LEFT_OVERS = {"HAS_NUMBA", "cext", "implementation", "alias", "locks", "reduction"}


@cuda.jit
def double(x):
    x[cuda.grid(1)] *= 2


@cuda.jit("void(float32[::1])")
def with_signature(x):
    staged = cuda.shared.array(32, numba.float32)
    staged[cuda.threadIdx.x] = x[cuda.grid(1)]
    cuda.syncthreads()
    x[cuda.grid(1)] = staged[31 - cuda.threadIdx.x]


def test_names_of_the_module():
    original = pytest.importorskip("numba_cuda") and importlib.import_module("numba.cuda")
    for name in dir(original):
        value = getattr(original, name)
        outside = isinstance(value, python_types.ModuleType) and not value.__name__.startswith("numba")
        if name.startswith("_") or outside or name in {*LEFT_OVERS, "devices"} or modules.exists(name):
            continue  # of the stand-in
        if not hasattr(cuda, name):
            with pytest.raises(AttributeError, match=REASON):
                getattr(cuda, name)


def _instances():
    array = cuda.to_device(np.arange(4.0))
    record = cuda.to_device(np.zeros(1, np.dtype([("x", np.int32)])))[0]
    return {
        "devicearray.DeviceNDArray": array, "devicearray.DeviceRecord": record,
        "devicearray.MappedNDArray": cuda.mapped_array(3), "devicearray.ManagedNDArray": cuda.managed_array(3),
        "driver.Stream": cuda.stream(), "driver.Event": cuda.event(), "driver.Context": cuda.current_context(),
        "driver.Device": cuda.get_current_device(), "driver.MemoryPointer": array.gpu_data,
        "driver._PendingDeallocs": cuda.current_context().deallocations, "runtime.Runtime": cuda.runtime,
        "dispatcher.CUDADispatcher": double, "dispatcher._Kernel": next(iter(with_signature.overloads.values())),
        "dispatcher._LaunchConfiguration": double[1, 1],
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(_instances()))
def test_names_of_objects(kind):
    pytest.importorskip("numba_cuda")
    module, name = kind.split(".")
    module = importlib.import_module("numba.cuda." + ("" if module == "dispatcher" else "cudadrv.") + module)
    ours = _instances()[kind]
    protocols = {"__cuda_array_interface__", "__cuda_memory__", "__cuda_ndarray__", "__cuda_stream__", "__array__"}
    internal = {"device_setup", "args"}  # device_setup: called by numba.cuda; args: set during a launch alone
    for attribute in dir(getattr(module, name)):
        if attribute in internal or (attribute.startswith("_") and attribute not in protocols):
            continue
        if not hasattr(type(ours), attribute) and not hasattr(ours, attribute):
            with pytest.raises((AttributeError, NotImplementedError), match=REASON):
                getattr(ours, attribute)


def test_configuration_variables_of_numba_cuda():
    pytest.importorskip("numba_cuda")
    theirs = importlib.import_module("numba.cuda.core.config")
    config = modules._config()
    assert [name for name in dir(theirs) if name.startswith("CUDA_") and not hasattr(config, name)] == []


def test_specializations():
    first = double.specialize(cuda.to_device(np.zeros(3, np.float32)))
    assert first is double.specialize(numba.float32[::1]) and first is not double.specialize(numba.float64[::1])
    assert first.specialized and not double.specialized and len(double.specializations) == 2
    with pytest.raises(RuntimeError, match="already specialized"):
        first.specialize(numba.float32[::1])


def test_what_is_known_of_overloads():
    assert with_signature.get_shared_mem_per_block() == 128
    assert with_signature.get_shared_mem_per_block("void(float32[::1])") == 128
    assert with_signature.get_max_threads_per_block() == 1024
    double[1, 4](np.zeros(4))
    assert double.get_shared_mem_per_block()[(numba.float64[::1],)] == 0
    overload = next(iter(with_signature.overloads.values()))
    assert not overload.cooperative and overload.shared_mem_per_block == 128
    configured = double[2, (4, 2)]
    assert isinstance(configured, ConfiguredKernel) and configured.dispatcher is double
    assert (configured.griddim, configured.blockdim, configured.stream) == ((2, 1, 1), (4, 2, 1), 0)


def test_no_signature_fits_and_two_fit():
    with pytest.raises(ArgumentError, match="No matching definition for argument type.*complex64.*is compiled for"):
        with_signature[1, 32](np.zeros(32, np.complex64))

    @cuda.jit(["(float64[::1], float32, float64)", "(float64[::1], float64, float32)"])
    def add(out, a, b):
        out[0] = a + b

    with pytest.raises(ArgumentError, match=r"Ambiguous overloading for .*add.*\n.*float32, float64\) -> none"):
        add[1, 1](np.zeros(1), 1.0, 2.0)


def test_extensions_prepare_arguments():
    class Wrapped:
        def __init__(self, array):
            self.array = array

    class Unwrap:
        def prepare_args(self, ty, value, **_):
            return ty, cuda.InOut(value.array) if isinstance(value, Wrapped) else value

    kernel = cuda.jit(double.py_func, extensions=[Unwrap()])
    host = np.arange(4.0)
    kernel[1, 4](Wrapped(host))
    np.testing.assert_array_equal(host, [0, 2, 4, 6])


def test_arrays_of_other_libraries_are_globals_of_kernels():
    class Foreign:
        def __init__(self, array):
            self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

    foreign = Foreign(cuda.to_device(np.arange(4.0)))

    @cuda.jit(device=True)
    def read(i):
        return foreign[i]

    @cuda.jit
    def add(out):
        i = cuda.grid(1)
        out[i] = read(i) + foreign.size
        foreign[i] = 7

    out = np.zeros(4)
    add[1, 4](out)
    np.testing.assert_array_equal(out, [4, 5, 6, 7])
    np.testing.assert_array_equal(foreign.array.copy_to_host(), 7)


def test_mapped_and_managed_kinds():
    stream = cuda.stream()
    assert isinstance(cuda.mapped_array(2, stream=stream).bind(stream), MappedNDArray)
    assert isinstance(cuda.managed_array(2).bind(stream), ManagedNDArray)


def test_a_kernel_that_names_its_grid_is_cooperative():
    @cuda.jit
    def kernel(x):
        cuda.cg.this_grid()
        x[cuda.grid(1)] = cuda.gridDim.x

    x = np.zeros(6)
    kernel[3, 2](x)
    assert (x == 3).all() and next(iter(kernel.overloads.values())).cooperative
