"""__cuda_array_interface__: what a device array says of itself, and what is taken from others."""

import gc

import numpy as np
import pytest

from labkit import cuda
from labkit.simt import array_interface

pytestmark = [pytest.mark.cpu_device,
              pytest.mark.skipif(array_interface.driver_is_here(), reason="nothing is described beside a GPU's driver")]


class Foreign:
    """Another library's array, known by its interface alone."""

    def __init__(self, array, **changed):
        self.held = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__ | changed


@cuda.jit
def increased(ary):
    i = cuda.grid(1)
    if i < ary.size:
        ary[i] += 1


def test_what_a_device_array_says():
    device = cuda.to_device(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    whole = device.__cuda_array_interface__
    assert (whole["shape"], whole["typestr"], whole["strides"], whole["version"]) == ((2, 3, 4), "<f4", None, 3)
    part = device[:, 1, ::2].__cuda_array_interface__
    assert part["strides"] == (48, 8) and part["data"][0] == whole["data"][0] + 16
    assert cuda.device_array(0).__cuda_array_interface__["data"][0] == 0
    assert cuda.mapped_array(3).__cuda_array_interface__["stream"] is None
    stream = cuda.stream()
    assert cuda.device_array(3, stream=stream).__cuda_array_interface__["stream"] == int(stream)


def test_a_foreign_array_on_memory_of_the_device_is_that_memory():
    device = cuda.to_device(np.arange(10))
    for part in (device, device[2:7], device[::-3], device[1::2]):
        view = cuda.as_cuda_array(Foreign(part))
        assert view._array.tolist() == part._array.tolist() and np.shares_memory(view._array, device._array)
    increased[1, 16](Foreign(device))  # as an argument of a kernel
    assert device.copy_to_host().tolist() == list(range(1, 11))
    copy = cuda.from_cuda_array_interface(device.__cuda_array_interface__)
    copy[0] = 50
    assert device[0] == 50
    assert cuda.is_cuda_array(Foreign(device)) and not cuda.is_cuda_array(np.arange(3))


@pytest.mark.sweep(every=True)
def test_a_foreign_array_keeps_the_memory():
    view = cuda.as_cuda_array(Foreign(cuda.to_device(np.arange(5))))
    gc.collect()
    assert view.copy_to_host().tolist() == [0, 1, 2, 3, 4]


def test_other_memory_is_refused():
    device = cuda.to_device(np.arange(10))
    address = device.__cuda_array_interface__["data"][0]
    for changed in ({"data": (0x7F00_0000_0000, False)}, {"shape": (11,)}, {"data": (address - 8, False)}):
        with pytest.raises(TypeError, match="not memory of the CPU device"):
            cuda.as_cuda_array(Foreign(device, **changed))
    with pytest.raises(TypeError, match="not memory of the CPU device"):
        increased[1, 1](Foreign(device, data=(64, False)))
    with pytest.raises(NotImplementedError, match="Masked"):
        cuda.as_cuda_array(Foreign(device, mask=device))
