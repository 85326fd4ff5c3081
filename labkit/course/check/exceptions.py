"""An exception of the answer, in words."""

from __future__ import annotations

import re

from labkit import device
from labkit._common.tables import size_text
from labkit.course.check.cases import Attempt, Case, threads_of
from labkit.course.check.limits import KERNEL_LIMIT_S, HostTimeout
from labkit.course.check.verdict import coordinates, counted, frame_in, place, show_index, split_line, without_file
from labkit.course.exercises import Exercise


def guard_question(exercise: Exercise, case: Case) -> tuple[str, ...]:
    if exercise.kind != "kernel":
        return ()
    grid, block = exercise.launch(**case.size)[:2]
    threads, elements = threads_of(exercise, case), case.expected.size
    if threads <= elements:
        return ()
    return (f"The launch [{_plain(grid)}, {_plain(block)}] starts {threads:,} threads for "
            f"{counted(elements, 'element')} of the output. Is there a guard, and does it stop exactly the threads "
            "beyond the end?",)


def _plain(dimensions) -> str:
    if isinstance(dimensions, (tuple, list)):
        parts = [str(int(v)) for v in dimensions]
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    return str(int(dimensions))


def explained(exercise: Exercise, answer, case: Case, error: Exception) -> Attempt:
    """What an exception of the answer says, in words."""
    function = getattr(answer, "py_func", answer)
    own_file = getattr(getattr(function, "__code__", None), "co_filename", "")
    at = f"At {size_text(case.size)}: "
    name = type(error).__name__
    if isinstance(error, HostTimeout):
        line = frame_in(error, own_file)
        return Attempt("never_ends", f"It never ends{f': line {line}' if line else ''}.",
                       (*((place(own_file, line),) if line else ()), "It was stopped after some seconds. Does the loop "
                        "come nearer to its end at each turn?", *_gpu_hangs()))
    filename, line = getattr(error, "filename", own_file), getattr(error, "line", 0)
    message = without_file(str(error))
    text, text_line = split_line(message)
    its_line = (place(own_file, text_line),) if text_line else ()
    if name == "OutOfBoundsError":
        last = ", ".join(str(n - 1) for n in error.shape)
        index = show_index(tuple(error.index)).strip("[]")
        reached = (f"{at}thread {coordinates(error.thread)} of block {coordinates(error.block)} uses "
                f"`{error.array}[{index}]`, and `{error.array}` has the shape {error.shape}: its last index is {last}.")
        guard = guard_question(exercise, case)
        if min(error.index) < 0:
            guard = ("A negative index: is something subtracted before the guard?",)
        elif not any((*error.thread, *error.block)):
            guard = ("This is the very first thread, which no guard would stop: is the index right?",)
        return Attempt("out_of_bounds", f"A thread reaches outside `{error.array}`.", (reached, place(filename, line),
                       *guard), trace=(error.shape,), exact=(error.index,))
    if name == "KernelTimeout":
        who = f"thread {coordinates(error.thread)}" if error.thread else "a thread"
        if error.block:  # observe does not say which
            who += f" of block {coordinates(error.block)}"
        return Attempt("never_ends", f"It never ends: line {line}.",
                       (place(filename, line), f"{at}{who} was stopped there after {KERNEL_LIMIT_S:g} s. Does the loop "
                        "come nearer to its end at each turn?"))
    if name == "BarrierError":
        return Attempt("barrier", "Some threads of a block never reach a barrier that others wait at.",
                       (f"{at}{text}.", place(filename, line), "Move the barrier out of the `if`, and let "
                        "no thread return before it: guard the loads and stores instead."))
    if name == "WarpError":
        return Attempt("warp", "A warp collective is called where not all its lanes take part.",
                       (f"{at}{text}.", place(filename, line)))
    if name in ("KernelAssertionError", "KernelValueError") or name.startswith("Raised"):
        return Attempt("raised", "The kernel raised an error.", (f"{at}{text}.", place(filename, line)))
    if name == "UnsupportedError":
        return Attempt("unsupported", "A kernel cannot do this.", (_sentence(text), *its_line))
    if name in ("KernelTypeError", "TypingError", "LoweringError", "UnsupportedBytecodeError", "NumbaValueError"):
        return Attempt("wrong_types", "The kernel does not compile.", (_sentence(_short(text)), *its_line))
    if name == "ArgumentError":
        return Attempt("wrong_arguments", "The kernel was launched with arguments that it does not take.", (message,))
    if name == "LaunchError":
        return Attempt("launch", "The launch breaks a limit of the device.", (at + message,))
    if name.startswith("Cuda") or "CUDA_ERROR" in message:
        return Attempt("gpu_fault", "The GPU stopped the kernel.",
                       (_short(message), "Most likely a thread reached outside an array. The GPU takes no more launches"
                        " from this process: restart the notebook's kernel."))
    line = frame_in(error, own_file)
    where = (place(own_file, line),) if line else ()
    return Attempt("raised", f"It raised {name}.", (f"{at}{message}" if message else at.rstrip(": ") + ".", *where),
                   trace=(name,))


def _gpu_hangs() -> tuple[str, ...]:
    return ("The GPU still runs it: restart the notebook's kernel.",) if device.on_gpu() else ()


def _sentence(text: str) -> str:
    text = text.removeprefix("does not compile for these argument types: ")
    first = text[:1] if "." in text.split(" ")[0] else text[:1].upper()  # cuda.grid is a name
    return f"{first}{text[1:]}{'' if text.endswith('.') else '.'}"


def _short(message: str, lines: int = 6) -> str:
    """The part of a compiler's message that a learner needs."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    kept = [line.rstrip() for line in plain.splitlines() if line.strip()]
    return "\n".join(kept[:lines])
