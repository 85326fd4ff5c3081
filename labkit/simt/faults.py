"""A fault record -> the error, in sentences that name the kernel, the line, the block and the thread.

ERRORS is the table: a fault code, the class of its error, and the function of its sentence (of the error itself where
there is no class).
"""

import numpy as np

from labkit.simt import advice
from labkit.simt.errors import (
    BarrierError,
    BarrierWarning,
    KernelAssertionError,
    KernelTimeout,
    KernelValueError,
    MisalignedError,
    OutOfBoundsError,
    WarpError,
    class_raised,
    coordinates,
    failure_sentence,
    file_label,
    numba_message,
    raised_error,
    short_position,
    shown_index,
)
from labkit.simt.runtime import fault_record
from labkit.simt.runtime.fault_record import BLOCK, CODE, COUNT, INDEX, SHAPE, SITE, THREAD, WARNED


def describe(record, compiled, grid, block, limit):
    """The error for a fault record. limit: seconds, if the launch was stopped by its time limit, else None."""
    kind, make = ERRORS[int(record[CODE])]
    program = compiled.program
    fault = Fault(record, program.name, compiled.sites, grid, block, limit, program.exceptions)
    return make(fault) if kind is None else fault.error(kind, make(fault))


def unforeseen(error, function):
    """The error for an exception from Numba's own code: it has no line, so name the kernel at least."""
    name, filename, line = function.__name__, function.__code__.co_filename, function.__code__.co_firstlineno
    text = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
    sentence = f"a thread was stopped by {text}. Run observe on the launch to see the line and the thread"
    return KernelValueError(
        f"{name}: {sentence} ({file_label(filename)}:{line})", kernel=name, filename=filename, line=line, block=None,
        thread=None, sentence=sentence,
    )  # fmt: skip


class Fault:
    """A decoded fault record.

    location, spot, tail: "kernel, line 7", "block 0, thread 3", " (file.py)": parts of every message
    attrs: the attributes of a DeviceFault
    text: the construct at the source line: an array, a collective, or "intrinsic|array"
    exceptions: the classes of what the kernel raises, by name
    details: three numbers, whose meaning depends on the code
    """

    def __init__(self, record, kernel_name, sites, grid, block, limit, exceptions=None):
        _, filename, line, self.text = sites[int(record[SITE])]
        self.record, self.limit, self.exceptions = record, limit, exceptions
        self.details = tuple(int(record[k]) for k in (COUNT, INDEX, INDEX + 1))
        padded = -(-(block[0] * block[1] * block[2]) // 32) * 32
        thread_index = coordinates(int(record[THREAD]) % padded, block)
        block_index = coordinates(int(record[BLOCK]), grid)
        self.lane = int(record[THREAD]) & 31
        self.thread, self.block = short_position(thread_index, block), short_position(block_index, grid)
        self.attrs = {
            "kernel": kernel_name, "filename": filename, "line": line, "block": block_index, "thread": thread_index,
        }  # fmt: skip
        self.location, self.tail = f"{kernel_name}, line {line}", f" ({file_label(filename)})"
        self.spot = f"block {self.block}, thread {self.thread}"

    def shape(self, axes):
        return tuple(int(n) for n in self.record[SHAPE : SHAPE + axes])

    def error(self, kind, sentence):
        return kind(f"{self.location}: {sentence}{self.tail}", sentence=sentence, **self.attrs)


# ---------------------------------------------------------------- memory


def _out_of_bounds(fault):
    dims, axes = divmod(fault.details[0], 16)
    index, shape = tuple(int(n) for n in fault.record[INDEX : INDEX + axes]), fault.shape(dims)
    array, _, form = fault.text.partition("|")  # form: "#, 2:5" where the index has slices too
    shown = shown_index(index)
    shown = form.replace("#", shown) if form else shown
    error = fault.error(OutOfBoundsError, f"{fault.spot} uses {array}[{shown}], outside its shape {shape}")
    error.array, error.index, error.shape = array, index, shape
    return error


def _wide_bounds(fault):
    intrinsic, _, array = fault.text.partition("|")
    dims, count = divmod(fault.details[0], 256)
    shape = fault.shape(dims)
    element = intrinsic, array, fault.details[1], count, shape
    return out_of_row(fault.location, fault.spot, *element, fault.tail, fault.attrs)


def _misaligned(fault):
    intrinsic, _, array = fault.text.partition("|")
    alignment, index, _ = fault.details
    return misaligned(fault.location, fault.spot, intrinsic, array, index, alignment, fault.tail, fault.attrs)


def _copy_size(fault):
    intrinsic, _, _ = fault.text.partition("|")
    valid, max_bytes, _ = fault.details
    return f"{fault.spot} passes valid = {valid} to {intrinsic}; it must be 0 to {max_bytes} bytes"


def out_of_row(location, spot, intrinsic, array, index, count, shape, tail, attrs):
    """The error for elements index to index + count - 1, counted flat, of an array of this shape."""
    size = int(np.prod(shape))
    span = f"element {index}" if count == 1 else f"elements {index} to {index + count - 1}"
    sentence = f"{spot} uses {span} of {array} with {intrinsic}, but its shape {shape} has {size:,} elements"
    error = OutOfBoundsError(f"{location}: {sentence}{tail}", sentence=sentence, **attrs)
    error.array, error.index, error.shape = array, (index,), shape
    return error


def misaligned(location, spot, intrinsic, array, index, alignment, tail, attrs):
    """The error for an address that is not a multiple of what the intrinsic needs."""
    sentence = (f"{spot} uses {array} from element {index} on with {intrinsic}, but that address is not a "
                f"multiple of {alignment} bytes")
    error = MisalignedError(f"{location}: {sentence}{tail}", sentence=sentence, **attrs)
    error.array, error.index = array, (index,)
    return error


# ---------------------------------------------------------------- barriers and warps


def _barrier(fault):
    arrived, threads, is_live = fault.details
    why = "is elsewhere in the kernel" if is_live else "has returned"
    if fault.text == "grid_sync":
        return (f"cg.this_grid().sync() was reached by {arrived} of the {threads} threads of the grid; thread "
                f"{fault.thread} of block {fault.block} {why}. Every thread of the grid must reach it")
    return (f"cuda.{fault.text}() was reached by {arrived} of the {threads} threads of block {fault.block}; thread "
            f"{fault.thread} {why}. Every thread of a block must reach a barrier")


def barrier_warning(record, kernel_name, sites, grid, block):
    """The warning for a barrier that was passed though some threads never reach it."""
    site, thread, block_index, arrived, threads = (int(n) for n in record[WARNED : WARNED + 5])
    written = np.zeros_like(record)
    written[[SITE, THREAD, BLOCK]] = site - 1, thread, block_index
    fault = Fault(written, kernel_name, sites, grid, block, None)
    if fault.text != "grid_sync":
        return fault.error(_as_warning, passed_without_returned(
            f"cuda.{fault.text}()", arrived, threads, fault.block, fault.thread))
    return fault.error(
        _as_warning,
        f"cg.this_grid().sync() was reached by {arrived} of the {threads} threads of the grid; thread {fault.thread} "
        f"of block {fault.block} ends without it. GPUs let this pass as long as thread 0 of every block arrives, but "
        "CUDA does not guarantee it: let every thread of the grid reach it",
    )


def passed_without_returned(name, arrived, threads, block, thread):
    """The sentence for a block's barrier that was passed without threads that have returned."""
    return (f"{name} was reached by {arrived} of the {threads} threads of block {block}; thread {thread} has returned. "
            "GPUs since Volta do not wait for such threads, but CUDA does not guarantee it: let every thread of the "
            "block reach it")


def _as_warning(text, **_):
    return BarrierWarning(text)


def _warp_mask(fault):
    mask, _, absent = fault.details
    absent = [lane for lane in range(32) if absent >> lane & 1]
    return (f"cuda.{fault.text} under divergence: {fault.spot} calls it with the mask {mask & 0xFFFFFFFF:#010x}, and "
            f"{_lanes(absent)} of its warp, which the mask names, {'does' if len(absent) == 1 else 'do'} not call it")


def _warp_source(fault):
    return (f"{fault.spot} reads lane {fault.details[0]} with cuda.{fault.text}, but that lane does not take part: it "
            "has returned, or does not exist")


def _warp_self(fault):
    return (f"{fault.spot} calls cuda.{fault.text} with the mask {fault.details[0] & 0xFFFFFFFF:#010x}, which leaves "
            f"out its own lane, {fault.lane}")


def _warp_part(fault):
    absent = [lane for lane in range(32) if not fault.details[0] >> lane & 1]
    return (f"{fault.text} under divergence: {fault.spot} calls it, and {_lanes(absent)} of its warp "
            f"{'does' if len(absent) == 1 else 'do'} not; all 32 lanes must")


# ---------------------------------------------------------------- the rest


def _assertion(fault):
    kind, _, text = fault.text.partition("|")
    error = fault.error(raised_error(class_raised(kind, fault.exceptions)), failure_sentence(fault.spot, kind, text))
    if kind and advice.is_on:
        error.args = (numba_message(text, **fault.attrs),)
    return error


def _no_step(fault):
    return f"{fault.spot} loops over a range whose step is 0"


def _reshape(fault):
    have, want, _ = fault.details
    return f"{fault.spot} reshapes {fault.text}, which has {have:,} elements, to a shape of {want:,}"


def _timeout(fault):
    seconds = f"{fault.limit:g} s" if fault.limit else "the time limit"
    return (f"stopped after {seconds} in which no block ended, while {fault.spot} was running: a loop that never ends? "
            "LABKIT_TIME_LIMIT sets the limit in seconds")


ERRORS = {
    fault_record.OUT_OF_BOUNDS: (None, _out_of_bounds),
    fault_record.WIDE_BOUNDS: (None, _wide_bounds),
    fault_record.MISALIGNED: (None, _misaligned),
    fault_record.COPY_SIZE: (KernelAssertionError, _copy_size),
    fault_record.BARRIER: (BarrierError, _barrier),
    fault_record.WARP_MASK: (WarpError, _warp_mask),
    fault_record.WARP_SOURCE: (WarpError, _warp_source),
    fault_record.WARP_SELF: (WarpError, _warp_self),
    fault_record.WARP_PART: (WarpError, _warp_part),
    fault_record.ASSERTION: (None, _assertion),
    fault_record.ABORTED: (KernelTimeout, _timeout),
    fault_record.NO_STEP: (KernelValueError, _no_step),
    fault_record.RESHAPE: (KernelValueError, _reshape),
}


# ---------------------------------------------------------------- words


def _lanes(lanes):
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"lanes {lanes[0]} to {lanes[-1]}"
    return f"lanes {', '.join(map(str, lanes))}"
