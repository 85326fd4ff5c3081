"""Memory of the device that begins as zeros, without a copy from the host."""

from __future__ import annotations

import numpy as np

from labkit import cuda, device
from labkit.device import gpu_kernels


def zeros(shape, dtype):
    """A device array of zeros. On a GPU the driver writes them: a KV cache may be larger than the host's memory."""
    if not device.on_gpu():
        return cuda.to_device(np.zeros(shape, dtype))
    array = cuda.device_array(shape, dtype)
    gpu_kernels.memset(array, 0)
    return array
