"""Threads that wait for one another in loops make progress, as on a GPU; those that wait for ever are named."""

import ast

import numpy as np
import pytest
from numba import int32

from labkit.simt import api as cuda
from labkit.simt import observe
from labkit.simt.errors import DeadlockError
from labkit.simt.spins import gives_up, is_counted, is_spin
from tests.simt.helpers import lines_of

pytestmark = pytest.mark.cpu_device


@cuda.jit(device=True)
def lock(mutex):
    while cuda.atomic.cas(mutex, 0, 0, 1) != 0:
        cuda.nanosleep(20)
    cuda.threadfence()


@cuda.jit(device=True)
def unlock(mutex):
    cuda.threadfence()
    cuda.atomic.exch(mutex, 0, 0)


@cuda.jit
def waiting(which, flags, out):
    """which: 0, a warp waits for a later one, in shared memory; 1, a block waits for the next; 2, a lock for each
    thread; 3, a warp waits for a barrier's other side, for ever; 4, a block waits for the one before."""
    flag = cuda.shared.array(1, int32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        flag[0] = 0
    cuda.syncthreads()
    if which == 0:
        cuda.atomic.add(flags, b, 1)
        if t < 32:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
            out[b, t] = out[b, t + 32] + 1
        else:
            out[b, t] = t
            cuda.threadfence_block()
            cuda.syncwarp()
            if t == 32:
                cuda.atomic.exch(flag, 0, 1)
    elif which == 1:
        if t == 0:
            if b < cuda.gridDim.x - 1:
                while cuda.atomic.add(flags, b + 1, 0) == 0:
                    pass
                cuda.threadfence()
                out[b, 0] = out[b + 1, 0] + 1
            else:
                out[b, 0] = 1
            cuda.threadfence()
            cuda.atomic.exch(flags, b, 1)
    elif which == 2:
        lock(flags)
        out[0, 0] += 1
        unlock(flags)
    elif which == 3:
        if t < 32:
            while cuda.atomic.add(flag, 0, 0) == 0:  # spins
                pass
        cuda.syncthreads()  # waits
        cuda.atomic.exch(flag, 0, 1)
    elif t == 0:
        before = b - 1
        total = t + 1
        while before >= 0:  # a look-back
            state = cuda.atomic.add(flags, before, 0)
            if state > 0:
                total += state
                before = -1
        out[b, 0] = total
        cuda.atomic.exch(flags, b, total)


BLOCKS = 3
EVERY = slice(None)
RIGHT = {0: (EVERY, 0, 33), 1: (EVERY, 0, [3, 2, 1]), 2: (0, 0, BLOCKS * 64), 4: (EVERY, 0, [1, 2, 3])}


def buffers():
    return np.zeros(BLOCKS, np.int32), np.zeros((BLOCKS, 64), np.int32)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("which", RIGHT)
def test_threads_that_wait_for_others_make_progress(which):
    *place, right = RIGHT[which]
    flags, out = buffers()
    waiting[BLOCKS, 64](which, flags, out)
    np.testing.assert_array_equal(out[tuple(place)], right)
    if which == 0:  # what ran before the wait ran once
        np.testing.assert_array_equal(flags, 64)
    flags, out = map(cuda.to_device, buffers())
    report = observe(waiting[BLOCKS, 64], which, flags, out)
    assert report.ok, str(report)  # fences and atomics order what the flags stand for
    np.testing.assert_array_equal(out.copy_to_host()[tuple(place)], right)


@cuda.jit
def bounded(which, flag, out):
    """Waits that end by themselves, too. which: 0, a while loop that counts; 1, a for loop; 2, a for loop with a vote;
    3, a for loop of a block, with barriers; 4, the same without an end."""
    found = cuda.shared.array(1, int32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if b == 0 and which == 0:
        tries = 0
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0 and tries < 1000:
                tries += 1
    elif b == 0 and which == 1:
        if t == 0:
            for _ in range(1000):
                if cuda.atomic.add(flag, 0, int32(0)) == 1:
                    break
    elif which == 2:
        if t < 32:
            for _ in range(1000):
                if cuda.any_sync(0xFFFFFFFF, cuda.atomic.cas(flag, 0, 2, 2) == 1):
                    break
    elif b == 0 and which == 3:
        for _ in range(1000):
            if t == 0:
                found[0] = cuda.atomic.add(flag, 0, 0)
            cuda.syncthreads()
            if found[0] == 1:
                break
            cuda.syncthreads()
    elif b == 0:
        while True:
            if t == 0:
                found[0] = cuda.atomic.add(flag, 0, 0)
            cuda.syncthreads()
            if found[0] == 1:
                break
            cuda.syncthreads()
    if b == 0 and t == 0:
        out[0] = cuda.atomic.add(flag, 0, 0)
    if b == cuda.gridDim.x - 1 and t == 32:
        cuda.atomic.exch(flag, 0, 1)


@pytest.mark.sampled(0, sweep=7)
@pytest.mark.parametrize("blocks, which", [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 3), (2, 4)])
def test_what_a_loop_waits_for_comes_before_the_loop_gives_up(blocks, which):
    flag, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    bounded[blocks, 64](which, flag, out)
    assert out[0] == 1
    flag[0] = out[0] = 0
    report = observe(bounded[blocks, 64], which, flag, out)
    assert report.ok and out[0] == 1, str(report)


def test_a_wait_that_never_ends_is_a_deadlock_that_names_the_lines():
    spin, wait = lines_of(waiting, "spins", "waits")
    words = f"threads 0 to 31 spin at line {spin}", f"threads 32 to 63 wait in cuda.syncthreads() at line {wait}"
    with pytest.raises(DeadlockError) as caught:
        waiting[1, 64](3, *buffers())
    assert all(text in str(caught.value) for text in words) and caught.value.line == spin
    [finding] = observe(waiting[1, 64], 3, *buffers()).divergent_barriers
    assert all(text in str(finding) for text in words)


SPINS = [
    (True, False, "while flag[0] == 0: pass"),
    (True, False, "while cuda.atomic.cas(m, i, 0, 1) != 0: pass"),
    (True, True, "while flag[0] == 0 and tries < 9: tries += 1"),
    (True, False, "while True:\n  s = flag[b - 1]\n  if s: break"),
    (True, False, "while True:\n  s = state[p]\n  if s == 2: break\n  if s == 1: p -= 1"),
    (False, True, "while lo < hi:\n  mid = (lo + hi) // 2\n  if a[mid] < x: lo = mid + 1\n  else: hi = mid"),
    (False, True, "while True:\n  if keys[k] == x: break\n  k = (k + 1) % n"),
    (False, True, "while i < n:\n  total += a[i]\n  i += 32"),
    (False, True, "while x > 1: x = x // 2"),
    (False, True, "for k in range(n):\n  if k >= lengths[row]: break"),
    (True, True, "for k in range(n):\n  if cuda.atomic.add(flag, 0, 0): break"),
    (False, True, "for k in range(n):\n  if cuda.atomic.add(flag, k, 0): break"),
    (False, True, "for k in range(n):\n  if cuda.atomic.add(count, 0, 1) >= 100: break"),
    (False, True, "for k in range(n):\n  while True:\n    if cuda.atomic.add(flag, 0, 0): break"),
    (False, True, "for k in range(n):\n  if cuda.atomic.cas(keys, i, 0, x) == x: break\n  else: i = (i + 1) % n"),
]  # fmt: skip


@pytest.mark.parametrize("spin, counted, source", SPINS)
def test_loops_that_look_at_one_place_until_it_changes(spin, counted, source):
    loop = ast.parse(source).body[0]
    assert is_spin(loop) == spin
    assert is_spin(loop) is False or is_counted(loop) == counted


@pytest.mark.parametrize("expected, source", [
    (True, "while cuda.atomic.add(flag, 0, 0) == 0 and tries < 9: tries += 1"),
    (False, "while cuda.atomic.add(flag, 0, 0) == 0: pass"),
    (False, "while j < ends[row]: j += 1"),
    (False, "while True:\n  if cuda.atomic.add(count, 0, 1) >= tiles or k > 99: break\n  k += 1"),
])  # fmt: skip
def test_loops_that_give_up_waiting(expected, source):
    assert gives_up(ast.parse(source).body[0]) == expected
