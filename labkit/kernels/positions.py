"""The first kernel of the course: every thread writes its position in the grid.

Shapes  block, thread (n,); int32, C-contiguous
Work    8*n bytes written, and nothing computed but an index
Source  CUDA C++ Programming Guide, "Thread Hierarchy"
"""

import numpy as np

from labkit import cuda
from labkit.kernels.arguments import blocks_for, check_array


@cuda.jit
def positions_kernel(block, thread):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x  # cuda.grid(1) is short for this
    if i < block.size:  # the last block may reach past the end
        block[i] = cuda.blockIdx.x
        thread[i] = cuda.threadIdx.x


def positions(block, thread, threads_per_block, stream=0):
    """Launch one thread for each element of `block` and `thread`, in blocks of `threads_per_block`.

    Takes two int32 device arrays of one shape (n,); each thread writes its block's index and its own.
    """
    check_array("block", block, ndim=1, dtype=np.int32)
    check_array("thread", thread, shape=block.shape, dtype=np.int32)
    grid = blocks_for((block.size,), (threads_per_block,))
    positions_kernel[grid, threads_per_block, stream](block, thread)
