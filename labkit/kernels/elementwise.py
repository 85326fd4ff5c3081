"""Add two arrays, element by element. One rung for each idea, slowest first.

Shapes  vector_add: a, b, out (n,).  volume_add: a, b, out (nz, ny, nx).  float32, C-contiguous
Work    n additions; 12*n bytes: read a, read b, write out. The limit is memory
Source  CUDA C++ Programming Guide, "Thread Hierarchy"

Indices are unsigned, in 32 bits (labkit.u32). Numba's own may be negative, and each access then tests for that.
"""

import numpy as np

from labkit import cuda, u32
from labkit.kernels.arguments import blocks_for, check_array, check_block, unsigned
from labkit.kernels.op import rung

BLOCK = 256


def vector_add_reference(a, b):
    return a.astype(np.float64) + b.astype(np.float64)


@cuda.jit
def vector_add_per_thread_kernel(a, b, out):
    i = u32.grid(1)
    if i < out.size:  # the last block may reach past the end
        out[i] = a[i] + b[i]


@rung(kernel=vector_add_per_thread_kernel, idea="one thread for each element")
def vector_add_per_thread(a, b, out, stream=0, block=BLOCK):
    """One thread adds one element, so the grid grows with the vector."""
    _check_vectors(a, b, out)
    vector_add_per_thread_kernel[blocks_for((out.size,), (block,)), block, stream](a, b, out)


@cuda.jit
def vector_add_grid_stride_kernel(a, b, out):
    stride = u32.gridsize(1)
    n = u32.size(out)
    for i in u32.range(u32.grid(1), n, stride):
        out[i] = a[i] + b[i]


@rung(kernel=vector_add_grid_stride_kernel, idea="a fixed grid walks the vector")
def vector_add_grid_stride(a, b, out, stream=0, block=BLOCK, max_blocks=1024):
    """As per_thread, but the grid stops growing at `max_blocks`: each thread strides by the size of the grid."""
    _check_vectors(a, b, out)
    (blocks,) = blocks_for((out.size,), (block,))
    vector_add_grid_stride_kernel[min(blocks, max_blocks), block, stream](a, b, out)


@cuda.jit
def vector_add_four_loads_kernel(a, b, out):
    width = u32.blockDim.x
    i = u32.blockIdx.x * width * 4 + u32.threadIdx.x
    n = u32.size(out)
    last = i + 3 * width
    if last < n:
        # All eight loads come before the first store. The compiler may not reorder them: out could be a or b.
        first = a[i] + b[i]
        second = a[i + width] + b[i + width]
        third = a[i + 2 * width] + b[i + 2 * width]
        fourth = a[last] + b[last]
        out[i] = first
        out[i + width] = second
        out[i + 2 * width] = third
        out[last] = fourth
    else:
        while i < n:
            out[i] = a[i] + b[i]
            i += width


@rung(kernel=vector_add_four_loads_kernel, idea="four elements a thread, loads first")
def vector_add_four_loads(a, b, out, stream=0, block=BLOCK):
    """As per_thread, but each thread issues the loads of four elements before it waits: more bytes are in flight."""
    _check_vectors(a, b, out)
    vector_add_four_loads_kernel[blocks_for((out.size,), (4 * block,)), block, stream](a, b, out)


def _check_vectors(a, b, out):
    check_array("a", a, ndim=1)
    check_array("b", b, shape=a.shape)
    check_array("out", out, shape=a.shape)


# --- The same addition over a volume: a thread's three coordinates and memory --------------------------------------


@cuda.jit
def volume_add_3d_kernel(a, b, out, nx, ny, nz):
    x, y, z = u32.grid(3)
    if x < nx and y < ny and z < nz:  # a block can reach past the end on each axis
        i = x + y * nx + z * nx * ny
        out[i] = a[i] + b[i]


@rung(kernel=volume_add_3d_kernel, idea="three coordinates: 16 x 8 x 8 threads")
def volume_add_3d(a, b, out, stream=0, block=(16, 8, 8)):
    """A thread has coordinates (x, y, z), and a block of 1,024 threads covers a box of the volume."""
    _check_volumes(a, b, out)
    check_block("block", block)
    nz, ny, nx = out.shape
    grid = blocks_for((nx, ny, nz), block)
    flat = (array.reshape(array.size) for array in (a, b, out))
    volume_add_3d_kernel[grid, block, stream](*flat, *unsigned(nx, ny, nz))


@rung(kernel=vector_add_per_thread_kernel, idea="flat: 1,024 threads in a row")
def volume_add_1d(a, b, out, stream=0, block=1024):
    """As 3d, but the volume is one long vector. The threads of a block follow x, which runs fastest."""
    _check_volumes(a, b, out)
    grid = blocks_for((out.size,), (block,))
    flat = (array.reshape(array.size) for array in (a, b, out))
    vector_add_per_thread_kernel[grid, block, stream](*flat)


def _check_volumes(a, b, out):
    check_array("a", a, ndim=3)
    check_array("b", b, shape=a.shape)
    check_array("out", out, shape=a.shape)
