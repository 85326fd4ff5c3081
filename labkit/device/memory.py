"""Memory of the device that begins as zeros, without a copy from the host; and large copies from the host."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from labkit import cuda, device
from labkit._common.chunks import made_ahead
from labkit.device import gpu_kernels

PIECE = 1 << 24  # bytes, of a copy: large beside what Python takes for one, small to pin
THREADS = 8


def zeros(shape, dtype):
    """A device array of zeros. On a GPU the driver writes them: a KV cache may be larger than the host's memory."""
    if not device.on_gpu():
        return cuda.to_device(np.zeros(shape, dtype))
    array = cuda.device_array(shape, dtype)
    gpu_kernels.memset(array, 0)
    return array


def copy_pieces(array, makers: Iterable[Callable[[], tuple[int, np.ndarray]]]) -> None:
    """Copy to a device array of bytes what each maker returns, an offset and at most PIECE bytes. The makers run in
    THREADS threads, which on a GPU copy through pinned memory: the driver copies pageable memory in a single thread,
    slower than the bus."""
    staging = queue.SimpleQueue()

    def copy(make: Callable[[], tuple[int, np.ndarray]]) -> None:
        offset, piece = make()
        if not device.on_gpu():
            array[offset : offset + piece.size].copy_to_device(piece)
            return
        pinned = staging.get()
        try:
            pinned[: piece.size] = piece
            _copy_bytes(pinned[: piece.size], array, offset)
        finally:
            staging.put(pinned)

    def copies() -> Iterator[Callable]:
        for index, make in enumerate(makers):
            if device.on_gpu() and index < THREADS and index * PIECE < array.size:
                staging.put(cuda.pinned_array(min(PIECE, array.size), np.uint8))
            yield functools.partial(copy, make)

    for _ in made_ahead(copies(), THREADS):
        pass


def _copy_bytes(host: np.ndarray, array, offset: int) -> None:
    """Copy to a device array's bytes from `offset` on, as several threads may at once. They must not take slices of the
    array: the compilers count who refers to its memory without a lock."""
    from cuda.bindings import driver

    cuda.current_context()  # makes it the thread's, too
    (error,) = driver.cuMemcpyHtoD(array.device_ctypes_pointer.value + offset, host.ctypes.data, host.nbytes)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{host.nbytes:,} bytes could not be copied to the device: {error.name}")
