"""Joins: points that a block passes when all blocks of the grid have arrived there.

counters[0] counts arrivals and is compared with a target that rises by the number of blocks at each join; counters[1]
counts the blocks that have ended, the last of which sets both to zero for the next launch. All blocks must be resident:
a launch has at most one for each SM (blocks_here). Between the joins lie phases.
"""

from labkit import cuda, device, u32
from labkit.device import gpus, ptx

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


def blocks_here(cpu: int = 2) -> int:
    """Return how many blocks a launch has: one for each SM, so that all are resident; on the CPU device `cpu`."""
    if not gpus.chosen_on_gpu():
        return cpu
    if gpus.planned_for() is not None:
        return gpus.sm_count()
    return min(gpus.sm_count(), device.gpu_cuda().get_current_device().MULTIPROCESSOR_COUNT)  # one may be pretended


@cuda.jit(device=True)
def mark(timers, index, marks):
    ptx.store_timer(timers, u32.blockIdx.x * marks + index)


def make_phases(threads: int, timed: bool):
    """Make the device functions begin_phase, end_phase and resume, for the `threads` of a block that compute. timed:
    record when each block begins and ends each phase. at_join, in shared memory: whether the block is at a join."""
    THREADS, TIMED = threads, timed

    @cuda.jit(device=True)
    def begin_phase(counters, timers, number, marks, thread):
        wait(counters, number * u32.gridDim.x, thread, THREADS)
        if TIMED and thread == 0:
            mark(timers, 2 * number, marks)

    @cuda.jit(device=True)
    def end_phase(at_join, counters, timers, number, marks, thread):
        """End phase `number`, counted from 0. What follows until the next one begins depends on no other block."""
        if thread == 0:
            cuda.atomic.exch(at_join, 0, 1)
            if TIMED:
                mark(timers, 2 * number + 1, marks)
        arrive(counters, thread, THREADS)

    @cuda.jit(device=True)
    def resume(at_join, thread):
        """Let the copying warp have more in flight again, once this block has read what it waited for."""
        if thread == 0:
            cuda.atomic.exch(at_join, 0, 0)

    return begin_phase, end_phase, resume
