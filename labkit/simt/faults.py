"""A fault record -> the error, in sentences that name the kernel, the line, the block and the thread."""

import numpy as np

from labkit.simt.errors import (
    BarrierError,
    KernelAssertionError,
    KernelTimeout,
    MisalignedError,
    OutOfBoundsError,
    WarpError,
    place,
)
from labkit.simt.runtime import fault_record


def _describe(kernel, compiled, run, record, limit):
    """The error for a fault record."""
    _, filename, line, text = compiled.sites[int(record[fault_record.SITE])]
    padded = -(-run.threads // 32) * 32
    thread = _coordinates(int(record[fault_record.THREAD]) % padded, run.block)
    block = _coordinates(int(record[fault_record.BLOCK]), run.grid)
    name = kernel.__name__
    where = {"kernel": name, "filename": filename, "line": line, "block": block, "thread": thread}
    spot = f"block {_short(block, run.grid)}, thread {_short(thread, run.block)}"
    at = f"{name}, line {line}"
    tail = f" ({place(filename)})"
    code = int(record[fault_record.CODE])
    n0, n1, n2 = (int(record[k]) for k in (fault_record.COUNT, fault_record.INDEX, fault_record.INDEX + 1))
    if code == fault_record.OUT_OF_BOUNDS:
        dims, axes = divmod(n0, 16)
        index = tuple(int(v) for v in record[fault_record.INDEX : fault_record.INDEX + axes])
        shape = tuple(int(v) for v in record[fault_record.SHAPE : fault_record.SHAPE + dims])
        shown = index[0] if len(index) == 1 else index
        told = f"{at}: {spot} uses {text}[{_plain(shown)}], outside its shape {shape}{tail}"
        error = OutOfBoundsError(told, **where)
        error.array, error.index, error.shape = text, index, shape
        return error
    if code in (fault_record.WIDE_BOUNDS, fault_record.MISALIGNED, fault_record.COPY_SIZE):
        intrinsic, _, array = text.partition("|")
        if code == fault_record.COPY_SIZE:
            return KernelAssertionError(
                f"{at}: {spot} passes valid = {n0} to {intrinsic}; it must be 0 to {n1} bytes{tail}", **where
            )
        if code == fault_record.MISALIGNED:
            return misaligned(at, spot, intrinsic, array, n1, n0, tail, where)
        dims, count = divmod(n0, 256)
        shape = tuple(int(v) for v in record[fault_record.SHAPE : fault_record.SHAPE + dims])
        return out_of_row(at, spot, intrinsic, array, n1, count, shape, tail, where)
    if code == fault_record.WARP_PART:
        absent = [lane for lane in range(32) if not n0 >> lane & 1]
        return WarpError(
            f"{at}: {text} under divergence: {spot} calls it, and {_lanes(absent)} of its warp "
            f"{'does' if len(absent) == 1 else 'do'} not; all 32 lanes must{tail}",
            **where,
        )
    if code == fault_record.BARRIER:
        if text == "grid_sync":
            spot = f"thread {_short(thread, run.block)} of block {_short(block, run.grid)}"
            why = "is elsewhere in the kernel" if n2 else "has returned"
            return BarrierError(
                f"{at}: cg.this_grid().sync() was reached by {n0} of the {n1} threads of the grid; {spot} {why}. Every "
                f"thread of the grid must reach it{tail}",
                **where,
            )
        why = "is elsewhere in the kernel" if n2 else "has returned"
        return BarrierError(
            f"{at}: cuda.{text}() was reached by {n0} of the {n1} threads of block {_short(block, run.grid)}; "
            f"thread {_short(thread, run.block)} {why}. Every thread of a block must reach a barrier{tail}",
            **where,
        )
    if code == fault_record.WARP_MASK:
        absent = [lane for lane in range(32) if n2 >> lane & 1]
        return WarpError(
            f"{at}: cuda.{text} under divergence: {spot} calls it with the mask {n0 & 0xFFFFFFFF:#010x}, and "
            f"{_lanes(absent)} of its warp, named by the mask, {'is' if len(absent) == 1 else 'are'} not there{tail}",
            **where,
        )
    if code == fault_record.WARP_SELF:
        lane = int(record[fault_record.THREAD]) & 31
        return WarpError(
            f"{at}: {spot} calls cuda.{text} with the mask {n0 & 0xFFFFFFFF:#010x}, which leaves out its own lane, "
            f"{lane}{tail}",
            **where,
        )
    if code == fault_record.WARP_SOURCE:
        return WarpError(
            f"{at}: {spot} reads lane {n0} with cuda.{text}, and that lane takes no part in it: it has returned, does "
            f"not exist, or is not in the mask{tail}",
            **where,
        )
    if code == fault_record.ASSERTION:
        return KernelAssertionError(f"{at}: an assertion failed in {spot}{tail}", **where)
    seconds = f"{limit:g} s" if limit else "the time limit"
    return KernelTimeout(
        f"{at}: stopped after {seconds} in which no block ended: a loop that never ends? It was {spot} "
        f"that ran. LABKIT_TIME_LIMIT sets the limit in seconds{tail}",
        **where,
    )


def out_of_row(at, spot, intrinsic, array, index, count, shape, tail, where):
    """The error for elements index to index + count - 1, counted flat, of an array of this shape."""
    size = int(np.prod(shape))
    span = f"element {index}" if count == 1 else f"elements {index} to {index + count - 1}"
    error = OutOfBoundsError(
        f"{at}: {spot} uses {span} of {array} with {intrinsic}, and its shape {shape} has {size:,} elements{tail}",
        **where,
    )
    error.array, error.index, error.shape = array, (index,), shape
    return error


def misaligned(at, spot, intrinsic, array, index, alignment, tail, where):
    """The error for an address that is not a multiple of what the intrinsic needs."""
    error = MisalignedError(
        f"{at}: {spot} uses {array} from element {index} on with {intrinsic}, and that address is not a multiple of "
        f"{alignment} bytes{tail}",
        **where,
    )
    error.array, error.index = array, (index,)
    return error


def _coordinates(linear, shape):
    x, y, _ = shape
    return (int(linear % x), int(linear // x % y), int(linear // (x * y)))


def _lanes(lanes):
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"lanes {lanes[0]} to {lanes[-1]}"
    return f"lanes {', '.join(map(str, lanes))}"


def _plain(index):
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _short(position, shape):
    """x alone for a one-dimensional block or grid, else the tuple."""
    if shape[1] == shape[2] == 1:
        return str(position[0])
    return str(position[:2] if shape[2] == 1 else position)
