"""Adding up the partial sums that the blocks of another launch left in memory, always in the same order.

Shapes  partials (S, P, C) float32; outs: P arrays (C,), float32 or of 16 bits. P is 1 or 2. C-contiguous
Work    S*P*C elements read, P*C written
Source  llm.c, `reduce_add_sum_kernel`, https://github.com/karpathy/llm.c
"""

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import ELEMENTS, FLOAT32, Element
from labkit.kernels.reduce import ZERO, warp_sum

BLOCK = 256
MANY = 32  # from so many partial sums on, warps share those of a column


@kernel_factory
def make_sum_by_threads(element: Element, accumulate: bool, vectorized: bool):
    (load, _), (load_out, store) = ACCESS[FLOAT32].neighbours(vectorized), ACCESS[element].neighbours(vectorized)

    @cuda.jit
    def sum_by_threads_kernel(partials, first, second):
        """A thread adds up eight neighbouring columns. partials is flat."""
        columns, which, parts = u32.size(first), u32.blockIdx.y, u32.gridDim.y
        col = 8 * u32.grid(1)
        remaining = int32(columns) - int32(col)
        if remaining > int32(0):
            out = first if which == 0 else second
            total, part = cuda.local.array(8, float32), cuda.local.array(8, float32)
            for e in range(8):
                total[e] = ZERO
            for row in u32.range(which, u32.size(partials) // columns, parts):
                load(part, 0, partials, row * columns + col, remaining)
                for e in range(8):
                    total[e] += part[e]
            if accumulate:
                load_out(part, 0, out, col, remaining)
                for e in range(8):
                    total[e] += part[e]
            store(out, col, remaining, total, 0)

    return sum_by_threads_kernel


@kernel_factory
def make_sum_by_warps(element: Element, accumulate: bool):
    load, store = ACCESS[element].load, ACCESS[element].store

    @cuda.jit
    def sum_by_warps_kernel(partials, first, second):
        """A block adds up 32 columns, with a warp for every 32nd partial sum."""
        sums = cuda.shared.array((32, 33), float32)  # 33: its columns are in different banks
        lane, warp = u32.threadIdx.x, u32.threadIdx.y
        splits, which, columns = partials.shape[0], u32.blockIdx.y, u32.size(first)
        col, total = 32 * u32.blockIdx.x + lane, ZERO
        if col < columns:
            for split in u32.range(warp, splits, 32):
                total += partials[split, which, col]
        sums[warp, lane] = total
        cuda.syncthreads()
        total, col = warp_sum(sums[lane, warp]), 32 * u32.blockIdx.x + warp
        if lane == 0 and col < columns:
            out = first if which == 0 else second
            if accumulate:
                total += load(out, col)
            store(out, col, total)

    return sum_by_warps_kernel


def sum_partials(partials, outs: tuple, accumulate: bool, stream=0) -> None:
    """outs[p] = the sum of partials[:, p], added to what is in outs[p] if `accumulate`."""
    splits, parts, columns = partials.shape
    element, first, second = ELEMENTS[np.dtype(outs[0].dtype)], outs[0], outs[-1]
    if splits >= MANY:
        kernel = make_sum_by_warps(element, accumulate)
        kernel[(-(-columns // 32), parts), (32, 32), stream](partials, first, second)
    else:
        kernel = make_sum_by_threads(element, accumulate, in_eights(columns, partials, first, second))
        kernel[(-(-columns // (8 * BLOCK)), parts), BLOCK, stream](partials.reshape(partials.size), first, second)
