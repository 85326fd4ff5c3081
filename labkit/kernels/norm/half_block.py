"""Layer normalisation of float16 rows, one block per row: where MiniLM's ladder begins. half.py has the ones to use.

Shapes  x, out (R, C), weight, bias (C,), all float16; accumulators in float32; any C
Work    4*R*C bytes that have to be moved; this kernel reads a row three times
"""

import functools

from numba import float32

from labkit import cuda, u32
from labkit.kernels.norm import half
from labkit.kernels.norm.layernorm import EPSILON, ONE, ZERO
from labkit.kernels.reduce import block_reduce_sum

THREADS = 128


@functools.cache
def make_layernorm_half_block(epsilon: float):
    EPS = float32(epsilon)

    @cuda.jit
    def layernorm_half_block_kernel(x, weight, bias, out):
        shared = cuda.shared.array(THREADS, float32)
        row, thread = u32.blockIdx.x, u32.threadIdx.x
        columns = u32.shape(x)[1]
        inv_cols = ONE / float32(columns)

        total = ZERO
        for col in u32.range(thread, columns, THREADS):
            total += float32(x[row, col])
        mean = block_reduce_sum(total, shared) * inv_cols

        squares = ZERO
        for col in u32.range(thread, columns, THREADS):
            difference = float32(x[row, col]) - mean
            squares += difference * difference
        rstd = cuda.rsqrt(block_reduce_sum(squares, shared) * inv_cols + EPS)

        for col in u32.range(thread, columns, THREADS):
            out[row, col] = (float32(x[row, col]) - mean) * rstd * float32(weight[col]) + float32(bias[col])

    return layernorm_half_block_kernel


def layernorm_half_block(x, weight, bias, out, epsilon=EPSILON, stream=0):
    """128 threads share a row; a tree in shared memory adds up their sums, with a barrier for each of its levels.
    `out` may be `x`."""
    half._check(x, weight, bias, out)
    make_layernorm_half_block(epsilon)[x.shape[0], THREADS, stream](x, weight, bias, out)
