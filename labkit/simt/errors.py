"""What can go wrong with a kernel, in CUDA's words. Messages name the kernel and, where there is one, the line."""

import builtins
import functools
import os


def file_label(filename):
    """A file as a message names it: relative where that is shorter; a notebook's cells have no file worth showing."""
    if "ipykernel_" in filename or filename.startswith("<ipython"):
        return "this notebook"
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return relative if not relative.startswith("..") else filename


def coordinates(linear, shape):
    """(x, y, z) of a thread of a block, or of a block of a grid."""
    x, y, _ = shape
    return (int(linear % x), int(linear // x % y), int(linear // (x * y)))


def short_position(position, shape):
    """x alone for a one-dimensional block or grid, else the tuple."""
    if shape[1] == shape[2] == 1:
        return str(position[0])
    return str(tuple(position[:2] if shape[2] == 1 else position))


def shown_index(parts):
    """Return an index as source code: (2, slice(None, 5)) -> "2, :5"."""
    parts = parts if isinstance(parts, tuple) else (parts,)
    return ", ".join(_shown_part(part) for part in parts)


def _shown_part(part):
    if part is Ellipsis:
        return "..."
    if isinstance(part, slice):
        bounds = ["" if bound is None else str(bound) for bound in (part.start, part.stop)]
        return ":".join(bounds if part.step is None else [*bounds, str(part.step)])
    return str(part)


class KernelError(Exception):
    """Base of every error that a kernel raises on the CPU device."""


def end_at_launch(error):
    """Let the traceback of a KernelError end at the program's line that launched the kernel."""
    folder, last, entry = os.path.dirname(__file__) + os.sep, None, error.__traceback__
    while isinstance(error, KernelError) and entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(folder):
            last = entry
        entry = entry.tb_next
    if last is not None:
        last.tb_next = None


PROBLEMS = {  # what keeps a kernel from being compiled -> the facts that a CompileError names, and their types
    "unknown name": {"name": str},
    "unknown member": {"base": str, "name": str, "elsewhere": bool},  # elsewhere: numba.cuda has it on a GPU
    "unknown attribute": {"type": str, "name": str},
    "unknown method": {"name": str},
    "construct": {"name": str},  # "a list"
    "call": {"name": str},  # of what is not callable in a kernel
    "host function": {"name": str},
    "ufunc": {"name": str, "better": str},
    "arguments": {"name": str, "parameters": tuple, "count": int},
    "unset": {"name": str},
    "several types": {"name": str, "type": str, "other": str},
    "operands": {"name": str, "types": tuple},  # name: of the operator, such as "add"
    "indices": {"axes": int, "count": int},
    "index type": {},
    "unpacked number": {},
    "unpacked": {"count": int},  # a tuple of so many
    "whole array": {},
    "stored": {"type": str},
}


class CompileError(KernelError, TypeError):
    """A kernel does not compile.

    Attributes: kernel (name) and line, "" and 0 where they are not known; sentence: the message without kernel, line
    and file; problem, one of PROBLEMS or "", and facts: the same as data, such as "unknown name" and {"name": "indx"}.
    """

    @classmethod
    def at(cls, kernel, filename, line, sentence, problem="", **facts):
        """The error at a line of a kernel."""
        return cls(f"{kernel}, line {line}: {sentence} ({file_label(filename)})", kernel=kernel, line=line,
                   sentence=sentence, problem=problem, **facts)  # fmt: skip

    def __init__(self, message, *, kernel="", line=0, sentence="", problem="", **facts):
        super().__init__(message)
        self.kernel, self.line, self.sentence = kernel, line, sentence or message
        self.problem, self.facts = problem, facts


class UnsupportedError(CompileError):
    """The kernel's source uses something that a GPU, or this device, does not have."""


class KernelTypeError(CompileError):
    """The kernel does not compile for the types of its arguments."""


class ArgumentError(KernelError, TypeError):
    """A launch passed the wrong number of arguments, or one that a kernel cannot take."""


class SettingError(KernelError, ValueError):
    """An environment variable has a value that it cannot have."""


class LaunchError(KernelError, ValueError):
    """The launch configuration breaks a limit of the device: grid, block or shared memory."""


class LaunchTypeError(LaunchError, TypeError):
    """A dimension of the launch configuration is not an integer."""


class LaunchFormError(LaunchError):
    """The launch is not written as kernel[grid, block](...)."""


class DeviceFault(KernelError):
    """A running kernel was stopped. Says where: kernel, line, block and thread.

    Attributes: kernel (name), filename, line, block and thread ((x, y, z) each); sentence: the message without kernel,
    line and file.
    """

    def __init__(self, message, *, kernel, filename, line, block, thread, sentence=""):
        super().__init__(message)
        self.sentence = sentence or message
        self.kernel, self.filename, self.line, self.block, self.thread = kernel, filename, line, block, thread


class OutOfBoundsError(DeviceFault, IndexError):
    """A thread touched an element that its array does not have. Adds: array (its name), index, shape."""

    array: str
    index: tuple
    shape: tuple


class MisalignedError(DeviceFault):
    """An address is not a multiple of what a wide access needs. Adds: array (its name), index."""

    array: str
    index: tuple


class BarrierError(DeviceFault):
    """A barrier was reached by some threads of a block and not by others."""


class BarrierWarning(UserWarning):
    """A barrier of the grid was passed that some threads never reach: GPUs let it pass, CUDA does not promise it."""


class WarpError(DeviceFault):
    """A warp collective was called where not all the lanes that its mask names take part."""


class DeadlockError(DeviceFault):
    """The threads of a block wait for one another: at mbarriers or named barriers that can never complete."""


class KernelAssertionError(DeviceFault, AssertionError):
    """An assert in a kernel was false, or the kernel raised."""


def class_raised(name, exceptions):
    """The class of an exception by the name in a fault record: of the kernel's own, or of Python's; None if empty."""
    return exceptions.get(name) or getattr(builtins, name or "None", None)


@functools.cache
def raised_error(original):
    """The class of error for the class of an exception that a kernel raised; None for an assert.

    It is that exception too, so that `except ValueError` around a launch does here what it does on a GPU.
    """
    if original in (None, Exception, AssertionError):
        return KernelAssertionError
    try:
        return type(f"Raised{original.__name__}", (KernelAssertionError, original), {"__module__": __name__})
    except TypeError:  # an exception with a layout of its own, such as OSError
        return KernelAssertionError


def numba_message(text, *, kernel, filename, line, block, thread):
    """What numba-cuda says of an exception that a kernel raised."""
    where = f"In function {kernel!r}, file {os.path.abspath(filename)}, line {line}, "
    return f"{where}tid={list(thread)} ctaid={list(block)}" + (f": {text}" if text else "")


def failure_sentence(spot, kind, text):
    """What an assert or a raise of a kernel says."""
    event = f"{spot} raised {kind}" if kind else f"an assertion failed in {spot}"
    return f"{event}: {text}" if text else event


class KernelValueError(DeviceFault, ValueError):
    """An operation of a kernel has no result: a range whose step is 0, a reshape to another size."""


class KernelTimeout(DeviceFault):
    """A block ran for longer than the time limit: an endless loop, most likely."""
