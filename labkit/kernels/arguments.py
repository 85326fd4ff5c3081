"""The common steps of launchers: check arguments, count blocks, allow shared memory."""

import math

import numpy as np

from labkit import device
from labkit.device import gpu_kernels, gpus, launches
from labkit.device.quick_launch import kept, types_key

MAX_GRID_YZ = 65_535  # CUDA's limit on the second and third axis of a grid; the first allows 2**31 - 1
MAX_ELEMENTS = 2**31  # kernels index with uint32, and a loop's last step must not wrap around


def check_array(name: str, array, *, shape: tuple | None = None, ndim: int | None = None, dtype=np.float32,
                most: int = MAX_ELEMENTS, strided: bool = False) -> None:
    """Raise an error that names the argument unless `array` is a C-contiguous device array of this shape and dtype.
    most: elements, more where no kernel computes a flat index. strided: it may be a view of longer rows."""
    cache, key = kept(array), ("checked", shape and tuple(shape), ndim, dtype, most, strided)
    if key in cache:
        return
    if isinstance(array, np.ndarray):
        raise TypeError(f"{name} is a NumPy array on the host; pass a device array: cuda.to_device({name})")
    if not hasattr(array, "is_c_contiguous"):
        raise TypeError(f"{name} is a {type(array).__name__}; pass a device array, made by cuda.to_device, "
                        f"cuda.device_array or cuda.as_cuda_array")
    if np.dtype(array.dtype) != np.dtype(dtype):
        raise TypeError(f"{name} has dtype {array.dtype}; only {np.dtype(dtype).name} is allowed")
    if ndim is not None and len(array.shape) != ndim:
        raise ValueError(f"{name} has {len(array.shape)} dimensions (shape {tuple(array.shape)}); it must have {ndim}")
    if shape is not None and tuple(array.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}; it must be {tuple(shape)}")
    if not strided and not array.is_c_contiguous():
        raise ValueError(f"{name} is not C-contiguous; copy it, or pass the array it is a view of")
    if array.size == 0:
        raise ValueError(f"{name} has shape {tuple(array.shape)}, no elements; every axis must be at least 1")
    if not array.is_c_contiguous():
        _check_strides(name, array)
    elements = row_stride(array) * array.shape[0] if strided else array.size
    if elements > most:
        raise ValueError(f"{name} has {elements:,} elements; at most {most:,} are allowed")
    cache[key] = True


def _check_strides(name: str, array) -> None:
    """Raise an error unless the rows of an array, what its first index selects, are contiguous and begin at multiples
    of 16 bytes from each other."""
    row_bytes, *inner = (array.dtype.itemsize * math.prod(array.shape[axis:]) for axis in range(1, array.ndim + 1))
    if list(array.strides[1:]) != inner or array.strides[0] < row_bytes or array.strides[0] % 16:
        raise ValueError(f"{name} has shape {tuple(array.shape)} and strides of {tuple(array.strides)} bytes; its rows "
                         f"must be contiguous, {row_bytes} bytes each, and a multiple of 16 bytes apart")


def row_stride(array) -> int:
    """Return the elements from the beginning of a row of an array to that of the next."""
    return array.strides[0] // array.dtype.itemsize


def flat_rows(array):
    """Return an array of contiguous rows as a flat one that ends with its last row. Of a view of longer rows, it has
    what lies between, too."""
    if array.is_c_contiguous():
        return array.reshape(array.size)
    cache = kept(array)
    if "flat" not in cache:
        itemsize = array.dtype.itemsize
        elements = row_stride(array) * (array.shape[0] - 1) + array.size // array.shape[0]
        cache["flat"] = type(array)((elements,), (itemsize,), array.dtype, gpu_data=array.gpu_data)
    return cache["flat"]


def product_sizes(a, b, *, weights: bool = False, names="ab", dtype=np.float32) -> tuple:
    """Return (rows, cols, depth) of a @ b, or with weights of a @ b.T, or raise an error that names the argument."""
    a_name, b_name = names
    check_array(a_name, a, ndim=2, dtype=dtype)
    check_array(b_name, b, ndim=2, dtype=dtype)
    (rows, depth), (b_depth, cols) = a.shape, b.shape[::-1] if weights else b.shape
    if b_depth != depth:
        raise ValueError(f"{a_name} has shape {tuple(a.shape)} and {b_name} {tuple(b.shape)}; the columns of {a_name} "
                         f"({depth}) must equal the {'columns' if weights else 'rows'} of {b_name} ({b_depth})")
    return rows, cols, depth


def aligned(*arrays) -> bool:
    """Whether all begin at a multiple of 16 bytes, as 128-bit accesses need. Only a view of an array may not."""
    return all(map(_aligned, arrays))


def _aligned(array) -> bool:
    cache = kept(array)
    if "aligned" not in cache:
        address = array.device_ctypes_pointer.value if device.on_gpu() else array._array.ctypes.data
        cache["aligned"] = address % 16 == 0
    return cache["aligned"]


def unsigned(*values) -> tuple:
    """Return a launch's sizes as uint32, the type of kernels' indices; a Python int would be an int64."""
    return tuple(map(np.uint32, values))


def check_block(name: str, block: tuple) -> None:
    """A block holds at most 1,024 threads, at most 64 of them along its third axis."""
    threads = int(np.prod(block))
    if min(block) < 1 or threads > 1024 or (len(block) == 3 and block[2] > 64):
        raise ValueError(f"{name} is {tuple(block)}, {threads} threads; a block has 1 to 1024 threads, "
                         f"at most 64 along the third axis")


def blocks_for(extent: tuple, block: tuple) -> tuple:
    """Blocks along each axis so that threads cover `extent`: the last block may reach past the edge."""
    grid = tuple(-(-e // b) for e, b in zip(extent, block, strict=True))
    for axis, count in zip("yz", grid[1:], strict=False):
        if count > MAX_GRID_YZ:
            raise ValueError(f"the grid would need {count:,} blocks along {axis}; CUDA allows {MAX_GRID_YZ:,}. "
                             f"Put the longest axis along x, or use a larger block")
    return grid


def dynamic_shared(kernel, nbytes: int, *args) -> None:
    """Allow `kernel`, as compiled for these arguments, up to `nbytes` of dynamic shared memory a block.

    More than 48 KB must be allowed once, by this call; then kernel[grid, block, stream, nbytes](*args) may be launched.
    """
    if not 0 <= nbytes <= (allowed := gpus.target().shared_per_block):
        raise ValueError(f"nbytes is {nbytes:,}; {kernel.__name__} can have 0 to {allowed:,} bytes of shared memory a "
                         f"block on {gpus.target().name}")
    if not device.on_gpu():
        kernel.allow_dynamic_shared(nbytes)
        return
    types = types_key(args)
    if types is not None and nbytes <= _known.get((kernel, types), -1):
        return
    numba_types = gpu_kernels.argument_types(kernel, args)
    _allow_on_gpu(kernel, nbytes, numba_types)
    if types is not None:
        _known[kernel, types] = _allowed.get((kernel, numba_types), -1)


def fits(tile) -> bool:
    """Whether a block of the GPU that kernels are chosen for can have a tile's `shared_bytes`."""
    return tile.shared_bytes <= gpus.target().shared_per_block


def resident(blocks: int, threads: int, shared_bytes: int = 0) -> int:
    """Return the blocks of an SM for which launch_bounds limits a kernel's registers: `blocks`, as measured on Hopper;
    on other GPUs no more than an SM has threads and shared memory for, as a tighter limit would only cause spills."""
    gpu = gpus.target()
    if gpu.capability == (9, 0):
        return blocks
    reserved = 1024  # bytes that CUDA keeps of each block's shared memory
    return max(1, min(blocks, gpu.threads // threads, gpu.shared_bytes // (shared_bytes + reserved)))


def launch_tiled(kernel, grid, stream, *args) -> None:
    """Launch a kernel that its factory gave `threads` and `shared_bytes`, after dynamic_shared."""
    dynamic_shared(kernel, kernel.shared_bytes, *args)
    kernel[grid, kernel.threads, stream, kernel.shared_bytes](*args)


_allowed: dict[tuple, int] = {}  # (kernel, types of its arguments) -> bytes; never lowered: a launch may need them
_known: dict[tuple, int] = {}  # the same by types_key, which is faster to compute and compare


def _allow_on_gpu(kernel, nbytes: int, argument_types: tuple) -> None:
    if nbytes <= _allowed.get((kernel, argument_types), -1) or launches.imagined():
        return
    error = gpu_kernels.allow_shared(kernel, argument_types, nbytes)
    if int(error) != 0:
        raise ValueError(f"{kernel.__name__}: this GPU allows a block less than {nbytes:,} bytes of shared memory "
                         f"({error.name})")
    _allowed[kernel, argument_types] = nbytes
