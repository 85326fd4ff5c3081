"""How long one load takes: a chain of addresses, each of which is known when the load before it has come back.

Shapes  chain (n,), uint32: chain[i] is where to look next; out (1,), the last one, so that the loads are not left out
Work    `steps` loads by a single thread, none of which can begin before the one before it has ended
Source  X. Mei and X. Chu, "Dissecting GPU Memory Hierarchy through Microbenchmarking" (2017)
"""

import numpy as np
from numba import uint32

from labkit import cuda, u32
from labkit.kernels.arguments import check_array

LINE = 32  # elements of a line of 128 bytes: the chain visits each line once
SHARED = 4096  # elements: 16 KB


@cuda.jit
def chase_global_kernel(chain, steps, out):
    place = 0
    for _ in u32.range(steps):
        place = chain[place]
    out[0] = place


@cuda.jit
def chase_shared_kernel(chain, steps, out):
    copy = cuda.shared.array(SHARED, uint32)
    for i in u32.range(u32.threadIdx.x, SHARED, u32.blockDim.x):
        copy[i] = chain[i]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        place = 0
        for _ in u32.range(steps):
            place = copy[place]
        out[0] = place


def chase(chain, steps, out, shared=False, stream=0):
    """Follows the chain for `steps` steps from element 0: in global memory, or in a copy in shared memory."""
    check_array("chain", chain, ndim=1, dtype=np.uint32)
    check_array("out", out, shape=(1,), dtype=np.uint32)
    if shared and chain.size != SHARED:
        raise ValueError(f"chain has {chain.size:,} elements; in shared memory it must have {SHARED:,}")
    if shared:
        chase_shared_kernel[1, 256, stream](chain, np.uint32(steps), out)
    else:
        chase_global_kernel[1, 1, stream](chain, np.uint32(steps), out)


def random_cycle(count: int, spacing: int = LINE, seed: int = 0) -> np.ndarray:
    """A chain through every `spacing`-th of `count` elements, in random order and one cycle."""
    order = np.random.default_rng(seed).permutation(count // spacing).astype(np.uint32) * np.uint32(spacing)
    order = np.roll(order, -int(np.argmin(order)))  # element 0 comes first
    chain = np.zeros(count, np.uint32)
    chain[order] = np.roll(order, -1)
    return chain
