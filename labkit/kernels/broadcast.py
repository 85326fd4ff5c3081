"""Add arrays of three ranks with broadcasting, out[x, y, z] = a[x, y, z] + b[x, y] + c[x]. Slowest rung first.

Shapes  a, out (X, Y, Z), b (X, Y), c (X,); float32, C-contiguous: z runs fastest in memory
Work    2*X*Y*Z additions; 8*X*Y*Z + 4*X*Y + 4*X bytes: b and c are small and stay in cache
Source  NumPy, "Broadcasting"; CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"

The arrays are passed flat, and each rank has its own index: x*(Y*Z) + y*Z + z, x*Y + y, and x.
"""

import numpy as np
from numba import uint32

from labkit import cuda, u32
from labkit.kernels.arguments import blocks_for, check_array, check_block, unsigned
from labkit.kernels.op import rung


def broadcast_add_reference(a, b, c):
    a, b, c = (array.astype(np.float64) for array in (a, b, c))
    return a + b[:, :, None] + c[:, None, None]


@cuda.jit
def broadcast_add_strided_kernel(a, b, c, out, nx, ny, nz):
    x, y, z = u32.grid(3)  # neighbouring threads differ in x: their elements lie Y*Z apart
    if x < nx and y < ny and z < nz:
        pair = x * ny + y
        i = pair * nz + z
        out[i] = a[i] + b[pair] + c[x]


@rung(kernel=broadcast_add_strided_kernel, idea="threadIdx.x walks X, the slowest axis; blocks of 4 x 4 x 4")
def broadcast_add_strided(a, b, c, out, stream=0, block=(4, 4, 4)):
    """One thread an element, coordinates in the order in which the axes are written."""
    sizes = _check(a, b, c, out, block)
    grid = blocks_for(a.shape, block)
    broadcast_add_strided_kernel[grid, block, stream](*_flat(a, b, c, out), *sizes)


@cuda.jit
def broadcast_add_coalesced_kernel(a, b, c, out, nx, ny, nz):
    z, y, x = cuda.grid(3)  # neighbouring threads differ in z: their elements are neighbours in memory
    x, y, z = uint32(x), uint32(y), uint32(z)
    if x < nx and y < ny and z < nz:
        pair = x * ny + y
        i = pair * nz + z
        out[i] = a[i] + b[pair] + c[x]


@rung(kernel=broadcast_add_coalesced_kernel, idea="threadIdx.x walks Z, the contiguous axis; blocks of 4 x 4 x 4")
def broadcast_add_coalesced(a, b, c, out, stream=0, block=(4, 4, 4)):
    """As strided, but threadIdx.x walks Z. Four threads in a row still use only 16 bytes of a 32-byte sector."""
    sizes = _check(a, b, c, out, block)
    grid = blocks_for(a.shape[::-1], block)
    broadcast_add_coalesced_kernel[grid, block, stream](*_flat(a, b, c, out), *sizes)


@rung(kernel=broadcast_add_coalesced_kernel, idea="the same kernel in blocks of 64 x 4 x 1: a warp reads 128 bytes")
def broadcast_add_long_rows(a, b, c, out, stream=0, block=(64, 4, 1)):
    """As coalesced, but the block is long along Z: the 32 threads of a warp read 128 bytes in one piece."""
    broadcast_add_coalesced(a, b, c, out, stream=stream, block=block)


def _check(a, b, c, out, block):
    check_array("a", a, ndim=3)
    check_array("b", b, shape=a.shape[:2])
    check_array("c", c, shape=a.shape[:1])
    check_array("out", out, shape=a.shape)
    check_block("block", block)
    return unsigned(*a.shape)


def _flat(*arrays):
    return tuple(array.reshape(array.size) for array in arrays)
