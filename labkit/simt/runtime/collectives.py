"""Barriers and warp collectives: who takes part, and what each thread gets.

live[t], mask[t]: 1 for the threads that have not returned; that are executing this. Threads of a block are padded to
whole warps: thread t of block b stands at b * padded + t. alive[w], active[w]: the same, a bit for each lane of warp w.
None is inlined: a kernel with many collectives would take LLVM a minute.
"""

import numpy as np
from numba import types

from labkit.simt.runtime.fault_record import BARRIER, STRICT, WARNED, WARP_MASK, WARP_SELF, WARP_SOURCE, fail
from labkit.simt.runtime.shared_function import called_function, overloaded


@called_function
def barrier(mask, live, threads, padded, blocks, b, err, site):
    """Fault unless all the threads of each block are here, or none; or, where err[STRICT] is -1, those that have not
    returned."""
    for k in range(blocks):
        start = k * padded
        arrived = 0
        for t in range(start, start + threads):
            arrived += mask[t]
        if arrived != 0 and arrived != threads:
            for t in range(start, start + threads):
                if not mask[t]:
                    if live[t] or err[STRICT] >= 0:
                        fail(BARRIER, err, t - start, b + k, site, arrived, threads, live[t])
                    warn(err, site, t - start, b + k, arrived, threads)


@called_function
def warn(err, site, t, b, arrived, threads):
    """Record that a barrier was passed without this thread, unless one was already."""
    if not err[WARNED]:
        err[WARNED], err[WARNED + 1], err[WARNED + 2] = site + 1, t, b
        err[WARNED + 3], err[WARNED + 4] = arrived, threads


@called_function
def grid_barrier(mask, live, threads, padded, blocks, b, err, site, absent_end):
    """Fault unless all the threads of the grid are here, or none; or, where this is not strict, a GPU lets them pass.

    A GPU waits in each block for the threads that have not ended, and counts the block by its thread 0: threads other
    than that may be absent if they have returned, or do nothing more but return (absent_end).
    """
    arrived = 0
    for k in range(blocks):
        for t in range(k * padded, k * padded + threads):
            arrived += mask[t]
    if arrived != 0 and arrived != threads * blocks:
        for k in range(blocks):
            for t in range(k * padded, k * padded + threads):
                if not mask[t]:
                    ends = absent_end or not live[t]
                    if err[STRICT] == 1 or not ends or t == k * padded:
                        fail(BARRIER, err, t - k * padded, b + k, site, arrived, threads * blocks, live[t])
                    warn(err, site, t - k * padded, b + k, arrived, threads * blocks)


@called_function
def lanes(mask, active):
    """active[w] = a bit for each lane of warp w whose mask is set."""
    for w in range(active.size):
        bits = np.uint32(0)
        for lane in range(32):
            bits |= np.uint32(mask[w * 32 + lane]) << np.uint32(lane)
        active[w] = bits


@called_function
def warps(mask, live, active, alive):
    """The lanes that are here and those that have not returned, of every warp."""
    lanes(mask, active)
    lanes(live, alive)


@called_function
def check_mask(member, t, active, alive, err, tb, b, site):
    """The lanes that a collective acts on. Fault if the mask leaves out the caller or names an absent lane."""
    bits = np.uint32(member)
    w = t >> 5
    if (bits >> np.uint32(t & 31)) & np.uint32(1) == 0:
        fail(WARP_SELF, err, tb, b, site, bits, active[w], 0)
    absent = bits & alive[w] & ~active[w]
    if absent != 0:
        fail(WARP_MASK, err, tb, b, site, bits, active[w], absent)
    return bits & active[w]


@overloaded
def undefined(values):
    """What a shuffle gives of a lane that its mask leaves out, and a GPU leaves undefined: NaN, or -1."""
    kind, value = values.dtype, np.nan if isinstance(values.dtype, types.Float) else -1
    return lambda values: kind(value)


@called_function
def shuffle(values, member, source, t, active, alive, err, tb, b, site):
    """The value of lane `source` of this warp; the thread's own where source is outside the warp, and undefined where
    the mask leaves it out. Fault if the mask names a lane that is not there."""
    present = check_mask(member, t, active, alive, err, tb, b, site)
    lane = t & 31
    if source < 0 or source > 31:
        return values[t]
    if (np.uint32(member) >> np.uint32(source)) & np.uint32(1) == 0:
        return undefined(values)
    if (present >> np.uint32(source)) & np.uint32(1) == 0:
        fail(WARP_SOURCE, err, tb, b, site, source, present, 0)
    return values[t - lane + source]


@called_function
def match_any(values, t, present):
    bits = np.uint32(0)
    start = t - (t & 31)
    for lane in range(32):
        takes_part = (present >> np.uint32(lane)) & np.uint32(1)
        if takes_part != 0 and values[start + lane] == values[t]:
            bits |= np.uint32(1) << np.uint32(lane)
    return np.int32(bits)


@called_function
def match_all(values, t, present):
    if np.uint32(match_any(values, t, present)) == present:
        return np.int32(present), True
    return np.int32(0), False


@called_function
def clear_padding(mask, threads, padded, blocks):
    """Masks have an entry for each lane of whole warps; the lanes that do not exist stay 0."""
    for k in range(blocks):
        for t in range(threads, padded):
            mask[k * padded + t] = 0


@called_function
def any_set(mask):
    for k in range(mask.size):  # noqa: SIM110 (compiled)
        if mask[k]:
            return True
    return False


@called_function
def count_set(values, mask, start, threads):
    """How many of a block's threads that are here have a value that is not 0."""
    count = 0
    for t in range(start, start + threads):
        if mask[t] and values[t]:
            count += 1
    return count


@called_function
def value_bits(values, mask, bits):
    """bits[w] = a bit for each lane of warp w that is here and whose value is not 0."""
    for w in range(bits.size):
        word = np.uint32(0)
        for lane in range(32):
            t = w * 32 + lane
            if mask[t] and values[t]:
                word |= np.uint32(1) << np.uint32(lane)
        bits[w] = word
