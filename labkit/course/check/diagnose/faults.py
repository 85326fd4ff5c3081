"""What an exception of the answer says, in words."""

from __future__ import annotations

import inspect
import re

import numpy as np

from labkit import device
from labkit._common.tables import size_text
from labkit.course.check.compare import Difference, is_kernel_fault, sentence_of
from labkit.course.check.diagnose.compile_errors import complaint
from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.diagnose.outside import let_through
from labkit.course.check.diagnose.python_errors import in_words, learners_frame, raised_by_labkit
from labkit.course.check.draw import Case, arguments_of, threads_of
from labkit.course.check.limits import KERNEL_LIMIT_S
from labkit.course.check.sources import made_in_kernel
from labkit.course.check.words import coordinates, counted, quote_line, show_index
from labkit.course.exercises import Exercise


def question_outside(exercise: Exercise, answer, case: Case, array: str, shape: tuple = (), thread=None,
                     block=None) -> tuple[str, ...]:
    """What to ask where a thread went outside of `array`: an array that the kernel itself made needs no guard but the
    right size."""
    if array in made_in_kernel(answer):
        block_size = _plain(exercise.launch(**case.size)[1])
        size = f" of the shape {shape}" if shape else ""
        return (f"The kernel itself creates `{array}`{size}, and blocks have {block_size} threads. Is the array too "
                "small, or is the index wrong?",)
    return guard_question(exercise, case, shape, thread, block)


def guard_question(exercise: Exercise, case: Case, array_shape: tuple = (), thread=None, block=None) -> tuple[str, ...]:
    """The question after the guard, where more threads start than there are elements. Where it is known which thread
    went outside of which array, it is asked only if that thread lies beyond the output as well as beyond the array:
    else it is one that the launch needs, and its index is wrong."""
    if exercise.kind != "kernel":
        return ()
    grid, block_size = exercise.launch(**case.size)[:2]
    threads, elements = threads_of(exercise, case), case.expected.size
    if threads <= elements:
        return ()
    if thread is not None and block is not None:
        sizes = tuple(a * b for a, b in zip(_three(grid), _three(block_size), strict=True))
        position = tuple(b * n + t for b, n, t in zip(_three(block, 0), _three(block_size), _three(thread, 0),
                                                      strict=True))
        of_array = _beyond(position, sizes, array_shape) if array_shape else None
        of_output = _beyond(position, sizes, case.expected.shape)
        thread_index = position[0] + sizes[0] * (position[1] + sizes[1] * position[2])
        if not (thread_index >= elements if of_output is None else of_output) or of_array is False:
            return ("This thread has an element of the output, so a guard for the output lets it through. Is the "
                    "index right? If it is, does this access need a separate guard?",)
    return (f"The launch [{_plain(grid)}, {_plain(block_size)}] starts {threads:,} threads for "
            f"{counted(elements, 'element')} of the output. Is there a guard, and does it stop exactly the threads "
            "beyond the end?",)


def _three(value, fill: int = 1) -> tuple[int, int, int]:
    parts = tuple(int(v) for v in value) if isinstance(value, (tuple, list)) else (int(value),)
    return (*parts, fill, fill)[:3]


def _beyond(position: tuple, sizes: tuple, shape: tuple) -> bool | None:
    """Whether a thread at this position has no element, with x along the last axis or along the first; None where the
    launch does not cover the shape so."""
    for axes in (shape[::-1], shape):
        lengths = (*axes, 1, 1, 1)[:3]
        if len(shape) <= 3 and all(size >= length for size, length in zip(sizes, lengths, strict=True)):
            return any(p >= n for p, n in zip(position, lengths, strict=True))
    return None


def _plain(dimensions) -> str:
    if isinstance(dimensions, (tuple, list)):
        parts = [str(int(v)) for v in dimensions]
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    return str(int(dimensions))


BARRIER_ADVICE = ("Move the barrier out of the `if`, and let no thread return (or leave a loop) before it: guard the "
                  "loads and stores instead.")
HEADLINES = {  # of a kernel that was stopped
    "BarrierError": "Some threads of a block never reach a barrier where others are waiting.",
    "WarpError": "Not all lanes take part in a warp collective.",
    "DeadlockError": "The threads of a block wait for one another forever.",
    "MisalignedError": "A wide access does not start at a multiple of its width.",
}


def describe_error(exercise: Exercise, answer, difference: Difference) -> Diagnosis:
    """What an exception of the answer says."""
    error, case, kind = difference.attempt.error, difference.attempt.case, difference.kind
    name = type(error).__name__
    function = getattr(answer, "py_func", answer)
    own_file = getattr(getattr(function, "__code__", None), "co_filename", "")
    prefix = f"At {size_text(case.size)}{f', where {case.where}' if case.where else ''}: "
    learners_file, learners_line = learners_frame(error, own_file)
    call_line = (quote_line(learners_file, learners_line),) if learners_line else ()
    filename, message = getattr(error, "filename", own_file), sentence_of(error)
    if name == "OutOfBoundsError":
        return _outside(exercise, answer, case, error, prefix, filename)
    if name == "KernelTimeout":
        return Diagnosis(kind, f"It never ends: line {error.line}.",
                         (quote_line(filename, error.line),
                          f"{prefix}{_who(error)} was stopped there after {KERNEL_LIMIT_S:g} s. Does each iteration "
                          "bring the loop closer to its end?"))
    if is_kernel_fault(error):
        advice = (BARRIER_ADVICE,) if name == "BarrierError" else ()
        return Diagnosis(kind, HEADLINES.get(name, "The kernel raised an error."),
                         (f"{prefix}{message}.", quote_line(filename, getattr(error, "line", 0)), *advice))
    if kind == "never_ends":
        hangs = ("It is still running on the GPU: restart the notebook's kernel.",) if device.on_gpu() else ()
        return Diagnosis(kind, f"It never ends{f': line {learners_line}' if learners_line else ''}.",
                         (*call_line, "It was stopped after a few seconds. Does each iteration bring the loop closer "
                          "to its end?", *hangs))
    if kind in ("unsupported", "wrong_types"):
        found = complaint(answer, error, _axes(exercise, answer, case))
        return Diagnosis(kind, "A kernel cannot do this." if kind == "unsupported" else "The kernel does not compile.",
                         (found.sentence, *(found.quote_line or call_line)))
    if kind == "wrong_arguments":
        return Diagnosis(kind, "The kernel was launched with arguments that it does not accept.",
                         (f"{message}.", *call_line))
    if kind == "launch":
        headline = ("A kernel must be launched with a grid and a block." if name == "LaunchFormError" else
                    "The launch exceeds a limit of the device.")
        return Diagnosis(kind, headline, (f"{prefix}{message}.", *call_line))
    if kind == "gpu_fault":
        return Diagnosis(kind, "The GPU stopped the kernel.",
                         (_short(message), "Most likely a thread reached outside an array. This process can no longer "
                          "launch kernels: restart the notebook's kernel."))
    if isinstance(error, SystemExit):
        return Diagnosis(kind, "It exits the whole program.",
                         (f"{prefix}`exit` or `quit` was called. End a function with `return`.", *call_line))
    words = f"{message}." if raised_by_labkit(error) else in_words(error)
    return Diagnosis(kind, f"It raised {name}.", (f"{prefix}{words}", *call_line))


def _axes(exercise: Exercise, answer, case: Case) -> dict[str, int]:
    """How many axes each parameter of a kernel has."""
    if exercise.kind != "kernel":
        return {}
    names = inspect.signature(answer.py_func).parameters
    arguments = arguments_of(exercise, case.inputs, case.expected, case.size)
    return {name: np.ndim(value) for name, value in zip(names, arguments, strict=False) if hasattr(value, "shape")}


def _outside(exercise: Exercise, answer, case: Case, error, prefix: str, filename: str) -> Diagnosis:
    """A thread reached outside an array."""
    index, shape = tuple(error.index), tuple(error.shape)
    if not index:
        used = f"`{error.array}`" if error.array else "an element that its array does not have"
        return Diagnosis("out_of_bounds", "A thread reaches outside an array.",
                         (f"{prefix}{_who(error)} uses {used}.", quote_line(filename, error.line)))
    last = ", ".join(str(n - 1) for n in shape)
    reached = (f"{prefix}{_who(error)} uses `{error.array}[{show_index(index).strip('[]')}]`, and `{error.array}` has "
               f"the shape {shape}: its last index is {last}.")
    guard = question_outside(exercise, answer, case, error.array, shape, error.thread, error.block)
    own, found = error.array in made_in_kernel(answer), ()
    if exercise.kind == "kernel" and not own:
        arguments = arguments_of(exercise, case.inputs, case.expected, case.size)
        found = let_through(answer, arguments, *exercise.launch(**case.size)[:2], error)
    if min(index) < 0:
        guard = ("The index is negative: is something subtracted before the guard?",)
    elif not own and not any((*(error.thread or (1,)), *(error.block or ()))):
        guard = ("This is the very first thread. Is the index right, and is it the index that is compared with the "
                 "size?",)
    elif found and "through" in found[-1]:
        guard = ()  # there is one, and it is named
    return Diagnosis("out_of_bounds", f"A thread reaches outside `{error.array}`.",
                     (reached, quote_line(filename, error.line), *found, *guard))


def _who(error) -> str:
    """ "thread 96 of block 0": observe does not say which block it stopped, and a launch may not say which thread."""
    who = f"thread {coordinates(error.thread)}" if error.thread else "a thread"
    return f"{who} of block {coordinates(error.block)}" if error.block else who


def _short(message: str, lines: int = 6) -> str:
    """The part of a compiler's message that a learner needs."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    nonempty = [line.rstrip() for line in plain.splitlines() if line.strip()]
    return "\n".join(nonempty[:lines])
