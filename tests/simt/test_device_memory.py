"""Untyped device memory, and copies between addresses."""

import ctypes
import gc

import numpy as np
import pytest

from labkit.simt import api as cuda
from labkit.simt import device_memory as driver


def test_copies_and_fills():
    host = np.arange(100, dtype=np.uint32)
    first = cuda.current_context().memalloc(host.nbytes)
    second = cuda.current_context().memalloc(host.nbytes)
    driver.host_to_device(first, host, host.nbytes)
    driver.device_to_device(second, first, host.nbytes)
    back = np.zeros_like(host)
    driver.device_to_host(back, second, host.nbytes)
    np.testing.assert_array_equal(back, host)
    driver.device_memset(second.view(0, 8), 0xAB, 8)
    driver.device_to_host(back, second, host.nbytes)
    assert back[0] == back[1] == 0xABABABAB and back[2] == 2


@pytest.mark.parametrize("copy", [
    lambda device, host: driver.host_to_device(device, host, 17),
    lambda device, host: driver.device_to_host(host, device, 17),
    lambda device, host: driver.device_memset(device, 0, 17),
    lambda device, host: driver.device_to_device(device, device.view(8), 9),
])  # fmt: skip
def test_a_copy_stays_within_its_memory(copy):
    with pytest.raises(ValueError, match="size is"):
        copy(cuda.current_context().memalloc(16), np.zeros(64, np.uint8))


@pytest.mark.sweep(every=True)
def test_views_keep_memory_alive():
    ended = []
    memory = driver.MemoryPointer(None, ctypes.c_void_p(0x1000), 40, finalizer=lambda: ended.append(1))
    view = memory.view(8)
    inner = view.view(8, 16)
    assert (view.device_pointer, inner.device_pointer, inner.size) == (0x1008, 0x1010, 8)
    assert inner.owner is memory and memory.refct == 3
    del memory, view
    gc.collect()
    assert not ended
    del inner
    gc.collect()
    assert ended == [1]


def test_host_memory_of_a_context():
    context = cuda.current_context()
    mapped = context.memhostalloc(32, mapped=True)
    driver.device_memset(mapped, 7, 32)
    assert (np.ndarray(8, np.int32, buffer=mapped) == 0x07070707).all()
    owner = np.arange(10)
    pinned = context.mempin(owner, owner.ctypes.data, owner.nbytes, mapped=True)
    assert driver.is_device_memory(pinned) and driver.device_memory_size(pinned) == owner.nbytes
    pinned[0] = 5
    assert owner[0] == 5
    assert driver.host_memory_size(owner[::2]) == 9 * 8 and driver.host_memory_size(ctypes.c_double()) == 8
    with pytest.raises(TypeError, match="Not a CUDA memory object: ndarray"):
        driver.require_device_memory(owner)
    with pytest.raises(AttributeError, match="get_ipc_handle is not supported .*: other processes cannot reach"):
        context.get_ipc_handle(mapped)


def test_the_device_is_number_0():
    assert cuda.Device(0).name == cuda.Device().name
    with pytest.raises(IndexError, match="there is no device 1: the CPU device is number 0 and the only one"):
        cuda.Device(1)
