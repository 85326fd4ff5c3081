"""Layer normalisation of float16 rows by a block each: where MiniLM's ladder begins. See half.py for the ones to use.

Shapes  x, out (R, C), weight, bias (C,), all float16; accumulators in float32; any C
Work    4*R*C bytes that have to be moved; this kernel reads a row three times
"""

import functools

from numba import float32, uint32

from labkit import cuda
from labkit.kernels.norm import half
from labkit.kernels.norm.layernorm import EPSILON, ONE, ZERO
from labkit.kernels.reduce import block_reduce_sum

THREADS = 128


@functools.cache
def make_layernorm_half_block(epsilon: float):
    SMALL = float32(epsilon)

    @cuda.jit
    def layernorm_half_block_kernel(x, weight, bias, out):
        shared = cuda.shared.array(THREADS, float32)
        row, thread = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
        columns = uint32(x.shape[1])
        share = ONE / float32(columns)

        total = ZERO
        col = thread
        while col < columns:
            total += float32(x[row, col])
            col += uint32(THREADS)
        mean = block_reduce_sum(total, shared) * share

        squares = ZERO
        col = thread
        while col < columns:
            difference = float32(x[row, col]) - mean
            squares += difference * difference
            col += uint32(THREADS)
        scale = cuda.rsqrt(block_reduce_sum(squares, shared) * share + SMALL)

        col = thread
        while col < columns:
            out[row, col] = (float32(x[row, col]) - mean) * scale * float32(weight[col]) + float32(bias[col])
            col += uint32(THREADS)

    return layernorm_half_block_kernel


def layernorm_half_block(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """128 threads share a row; a tree in shared memory adds up what they found, with a barrier for each of its levels.
    `out` may be `x`."""
    half._check(x, weight, bias, out)
    make_layernorm_half_block(epsilon)[x.shape[0], THREADS, stream](x, weight, bias, out)
