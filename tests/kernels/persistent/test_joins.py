"""Blocks that wait for one another at counters, and a wait that no block can end."""

import inspect

import numpy as np
import pytest

from labkit import cuda, u32
from labkit.kernels.persistent.joins import arrive, leave, wait
from labkit.simt.errors import DeadlockError

BLOCKS, THREADS, ROUNDS = 3, 64, 4


@cuda.jit
def pass_on(values, counters):
    """Each round, every block takes what its neighbour had in the round before, and adds one."""
    block, blocks, thread = u32.blockIdx.x, u32.gridDim.x, u32.threadIdx.x
    for n in u32.range(ROUNDS):
        if thread == THREADS - 1:
            values[n + 1, block] = values[n, (block + 1) % blocks] + 1
        arrive(counters, thread, THREADS)
        wait(counters, (n + 1) * blocks, thread, THREADS)
    if thread == 0:
        leave(counters)


def test_every_block_sees_what_the_others_wrote_before_a_join():
    values = np.zeros((ROUNDS + 1, BLOCKS), np.int32)
    values[0] = 100, 200, 300
    out, counters = cuda.to_device(values), cuda.to_device(np.zeros(2, np.uint32))
    for _ in range(2):  # the second launch finds the counters at zero
        pass_on[BLOCKS, THREADS](out, counters)
        np.testing.assert_array_equal(out.copy_to_host()[-1], np.roll(values[0], -ROUNDS) + ROUNDS)
        assert not counters.copy_to_host().any()


@cuda.jit
def one_too_many(counters):
    arrive(counters, u32.threadIdx.x, THREADS)
    wait(counters, u32.gridDim.x + 1, u32.threadIdx.x, THREADS)


@pytest.mark.cpu_device
def test_a_wait_that_no_block_can_end_is_a_deadlock_with_its_line():
    with pytest.raises(DeadlockError, match=r"thread 0 spins at line \d+.*No thread is left") as caught:
        one_too_many[BLOCKS, THREADS](cuda.to_device(np.zeros(2, np.uint32)))
    lines, first = inspect.getsourcelines(wait.py_func)
    assert "load_acquire" in lines[caught.value.line - first]
