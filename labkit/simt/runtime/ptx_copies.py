"""cp.async: copies that a thread starts and waits for.

The fault record says in err[ASYNC] where the queues begin: one for each thread, QUEUE_BYTES long, of copies that were
started. Copies move at the cp_async_wait that covers them, not before; a thread with CAPACITY copies in flight
completes its oldest one when it starts another.
"""

import numpy as np
from numba.extending import register_jitable

from labkit.simt.runtime.fault_record import ASYNC, COPY_SIZE, fail
from labkit.simt.runtime.ptx_memory import checked_address, clear_bytes, move_bytes, peek64, poke64
from labkit.simt.runtime.shared_function import called_function

CAPACITY = 64
_ENTRY = 32  # bytes: target, source, sizes, group
QUEUE_BYTES = 24 + CAPACITY * _ENTRY  # head, end, committed groups; entries


@called_function
def complete_oldest(queue):
    head = peek64(queue)
    entry = queue + 24 + head % CAPACITY * _ENTRY
    target, sizes = peek64(entry), peek64(entry + 16)
    size, valid = sizes >> 8, sizes & 255
    if valid:
        move_bytes(target, peek64(entry + 8), valid)
    if valid < size:
        clear_bytes(target + valid, size - valid)
    poke64(queue, head + 1)


@called_function
def start_copy(queue, target, source, size, valid):
    end = peek64(queue + 8)
    if end - peek64(queue) == CAPACITY:
        complete_oldest(queue)
    entry = queue + 24 + end % CAPACITY * _ENTRY
    poke64(entry, target)
    poke64(entry + 8, source)
    poke64(entry + 16, size << 8 | valid)
    poke64(entry + 24, peek64(queue + 16))
    poke64(queue + 8, end + 1)


@called_function
def wait_copies(queue, newest):
    reached = peek64(queue + 16) - newest
    end = peek64(queue + 8)
    while peek64(queue) < end:
        if peek64(queue + 24 + peek64(queue) % CAPACITY * _ENTRY + 24) >= reached:
            break
        complete_oldest(queue)


@called_function
def clear_queues(err, threads):
    """Reset the queues to no copies in flight: the state at the start of a block."""
    for t in range(threads):
        queue = err[ASYNC] + t * QUEUE_BYTES
        poke64(queue, 0)
        poke64(queue + 8, 0)
        poke64(queue + 16, 0)


def _cp_async(nbytes):
    @register_jitable
    def start(shared, i, array, j, valid, err, t, b, site, other):
        size = np.int64(valid)
        if size < 0 or size > nbytes:
            fail(COPY_SIZE, err, t, b, other, size, nbytes, 0)
        target = checked_address(shared, i, nbytes, nbytes, err, t, b, site)
        source = np.int64(0)
        if size > 0:
            source = checked_address(array, j, size, nbytes, err, t, b, other)
        start_copy(err[ASYNC] + t * QUEUE_BYTES, target, source, nbytes, size)

    return start


cp_async_16, cp_async_4 = _cp_async(16), _cp_async(4)


@register_jitable
def cp_async_commit(err, t, b, site):
    queue = err[ASYNC] + t * QUEUE_BYTES
    poke64(queue + 16, peek64(queue + 16) + 1)


@register_jitable
def cp_async_wait(n, err, t, b, site):
    wait_copies(err[ASYNC] + t * QUEUE_BYTES, n)
