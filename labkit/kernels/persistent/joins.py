"""Joins: points that a block passes when all blocks of the grid have arrived there.

counters[0] counts arrivals and is compared with a target that rises by the number of blocks at each join; counters[1]
counts the blocks that have ended, the last of which sets both to zero for the next launch. All blocks must be resident:
a launch has at most one for each SM.
"""

from labkit import cuda, u32
from labkit.device import ptx

MAX_POLLS = 1 << 22  # of a join; at more than half a microsecond each, seconds: the launch is then wrong


@cuda.jit(device=True)
def arrive(counters, thread, threads):
    """Tell the other blocks that the warps that compute have written their results."""
    ptx.named_barrier_sync(1, threads)
    if thread == 0:
        ptx.add_release(counters, 0, 1)


@cuda.jit(device=True)
def wait(counters, target, thread, threads):
    """Wait until the blocks have arrived `target` times, and see what they wrote."""
    if thread == 0:
        polls = 0
        while ptx.load_acquire(counters, 0) < target:
            polls += 1
            if polls == MAX_POLLS:
                ptx.trap()
    ptx.named_barrier_sync(1, threads)


@cuda.jit(device=True)
def leave(counters):
    """Count this block, by one of its threads, as ended."""
    if cuda.atomic.add(counters, 1, 1) == u32.gridDim.x - 1:
        counters[0] = 0
        counters[1] = 0
