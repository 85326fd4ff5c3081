"""Memory of the device that begins as zeros, without a copy from the host; and large copies from the host."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable

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
    THREADS threads, each with pinned memory of its own: what is pageable, a GPU's driver copies in a single thread, at
    a tenth of the bus's rate."""
    own = threading.local()

    def copy(make: Callable[[], tuple[int, np.ndarray]]) -> None:
        offset, piece = make()
        target = array[offset : offset + piece.size]
        if device.on_gpu():
            if not hasattr(own, "pinned"):
                own.pinned = cuda.pinned_array(PIECE, np.uint8)
            own.pinned[: piece.size] = piece
            piece = own.pinned[: piece.size]
        target.copy_to_device(piece)

    for _ in made_ahead((functools.partial(copy, make) for make in makers), THREADS):
        pass
