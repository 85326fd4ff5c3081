"""The latency of a load: a chain of addresses, each of which is the result of the previous load.

Shapes  chain (n,), uint32: chain[i] is the next index; out (1,), the last one, so that the loads are not optimised away
Work    `steps` loads by a single thread, each of which depends on the previous one
Source  X. Mei and X. Chu, "Dissecting GPU Memory Hierarchy through Microbenchmarking" (2017)
"""

import numpy as np
from numba import uint32

from labkit import cuda, u32
from labkit.kernels.arguments import check_array, unsigned

LINE_ELEMENTS = 32  # of a cache line of 128 bytes: the chain visits each line once
SHARED = 4096  # elements: 16 KB


@cuda.jit
def chase_global_kernel(chain, steps, out):
    i = 0
    for _ in u32.range(steps):
        i = chain[i]
    out[0] = i


@cuda.jit
def chase_shared_kernel(chain, steps, out):
    copy = cuda.shared.array(SHARED, uint32)
    for i in u32.range(u32.threadIdx.x, SHARED, u32.blockDim.x):
        copy[i] = chain[i]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        index = 0
        for _ in u32.range(steps):
            index = copy[index]
        out[0] = index


def chase(chain, steps, out, shared=False, stream=0):
    """Follow the chain for `steps` steps from element 0: in global memory, or in a copy in shared memory."""
    check_array("chain", chain, ndim=1, dtype=np.uint32)
    check_array("out", out, shape=(1,), dtype=np.uint32)
    if shared and chain.size != SHARED:
        raise ValueError(f"chain has {chain.size:,} elements; in shared memory it must have {SHARED:,}")
    if shared:
        chase_shared_kernel[1, 256, stream](chain, *unsigned(steps), out)
    else:
        chase_global_kernel[1, 1, stream](chain, *unsigned(steps), out)


def random_cycle(count: int, spacing: int = LINE_ELEMENTS, seed: int = 0) -> np.ndarray:
    """A chain through every `spacing`-th of `count` elements, in random order and one cycle."""
    order = np.random.default_rng(seed).permutation(count // spacing).astype(np.uint32) * np.uint32(spacing)
    order = np.roll(order, -int(np.argmin(order)))  # element 0 comes first
    chain = np.zeros(count, np.uint32)
    chain[order] = np.roll(order, -1)
    return chain
