"""What describes a matrix to the copy engine of a GPU: the tensor maps of labkit.ptx."""

from __future__ import annotations

import functools

import numpy as np

from labkit import cuda
from labkit.device.quick_launch import kept
from labkit.simt import ptx as cpu_ptx


def tensor_map_2d(array, box_rows, box_cols, swizzle=128, tf32=False):
    """Describes a matrix for TMA: boxes of box_rows x box_cols elements, written to shared memory with this swizzle.

    array: a C-contiguous device array of rank 2, float16, uint16 (bf16 bits), float32 or uint8 (FP8). tf32: loads
    round float32 values to TF32. Returns a device array of 128 bytes to pass to a kernel, the same one for the same
    matrix: it holds the address of `array` and nothing else of it. Raises ValueError for what TMA cannot describe.
    """
    cache, key = kept(array), ("tensor map", box_rows, box_cols, swizzle, tf32)
    if key not in cache:
        cpu_ptx.check_tensor_map(array, box_rows, box_cols, swizzle, tf32)
        cache[key] = _encode(int(array.device_ctypes_pointer.value), tuple(array.shape), str(array.dtype), box_rows,
                             box_cols, swizzle, tf32)
    return cache[key]


@functools.lru_cache(maxsize=4096)  # a launch must not pay for a copy to the device, nor may a captured graph hold one
def _encode(address, shape, dtype, box_rows, box_cols, swizzle, tf32):
    from cuda.bindings import driver

    kind = "TFLOAT32" if tf32 else dtype.upper()
    (rows, cols), itemsize = shape, np.dtype(dtype).itemsize
    error, encoded = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"), 2, address,
        [driver.cuuint64_t(cols), driver.cuuint64_t(rows)], [driver.cuuint64_t(cols * itemsize)],
        [driver.cuuint32_t(box_cols), driver.cuuint32_t(box_rows)], [driver.cuuint32_t(1)] * 2,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"array of shape {shape} with boxes of ({box_rows}, {box_cols}), swizzle {swizzle}: "
                         f"cuTensorMapEncodeTiled says {error.name}")
    return cuda.to_device(np.array([int(word) for word in encoded.opaque], np.uint64))
