"""Code that the commands share: consoles, errors as sentences, a progress bar, and the option --device."""

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from labkit._common.errors import UserError, refusal
from labkit._common.paths import PACKAGE

Device = Annotated[
    str | None,
    typer.Option("--device", metavar="DEVICE",
                 help="auto, gpu or cpu. You can also set the environment variable LABKIT_DEVICE."),
]

Dtype = Annotated[
    str,
    typer.Option("--dtype", metavar="TYPE",
                 help="The model's data type: auto, float16, float32 or, for a Llama or Qwen3, bfloat16. auto is "
                      "bfloat16 for these (float16 on a GPU with compute capability below 8.0), float32 for a GPT-2, "
                      "and for a sentence encoder float16 on a GPU, else float32."),
]


def guarded(app) -> None:
    """Run the whole command. Turn errors of the machine in any command into a sentence and exit code 2: a full or
    read-only disk, a closed output, a missing directory. Replace characters that the encoding lacks."""
    reopen_closed()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a stand-in of a test may not have it
            stream.reconfigure(errors="replace")
    try:
        os.getcwd()
    except OSError:
        _exit_with("the current directory no longer exists or is not accessible; change to another, such as: cd ~")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        sentence = refusal(error)
        if sentence is None:
            raise
        _exit_with(sentence)


def reopen_closed() -> None:
    """Open the null device wherever a standard stream was closed, for example by `>&-`: otherwise the next file opened
    would reuse its descriptor and receive the printed output."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this one
            os.set_inheritable(fd, True)  # child processes need it as well
            setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


class Progress:
    """A stream for output that a command does not depend on: if writing fails, as on a full disk, discard the rest."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name: str):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self.discarding():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self.discarding():
            self.stream.flush()

    @contextlib.contextmanager
    def discarding(self):
        try:
            yield
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


def _exit_with(sentence: str) -> None:
    """Exit with a one-sentence message. Discard the output buffered for stdout: writing it may have failed."""
    with contextlib.suppress(OSError):  # the same disk
        print(f"labkit: {sentence}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(2)


def friendly(command):
    """Show errors that the user can fix as a sentence, without a traceback."""

    @functools.wraps(command)
    def wrapper(*args, **kwargs):
        try:
            with warnings.catch_warnings():
                warnings.showwarning = functools.partial(show_warning, warnings.showwarning)
                return command(*args, **kwargs)
        except Exception as error:
            simt = sys.modules.get("labkit.simt.errors")  # imported, if the error is the CPU device's own
            if not isinstance(error, UserError) and not (simt and isinstance(error, simt.SettingError)):
                raise
            fail(str(error), code=2)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                sys.stderr.write("\r\033[K")  # overwrite the terminal's ^C and a status line
            fail("Stopped.", code=130)

    return wrapper


def show_warning(default, message, category, filename, *location, **options):
    """Show labkit's own warnings as sentences, too."""
    if category in (UserWarning, RuntimeWarning) and Path(filename).is_relative_to(PACKAGE):
        consoles()[1].print(f"labkit: {message}", style="yellow", markup=False, soft_wrap=True)
    else:
        default(message, category, filename, *location, **options)


def consoles(*, progress: bool = False):
    """Return consoles for standard output and standard error. progress: the output is not a result of the command,
    which continues even if it cannot be written."""
    from rich.console import Console

    return Console(file=Progress(sys.stdout) if progress else None, highlight=False), Console(stderr=True,
                                                                                              highlight=False)


def fail(message: str, code: int):
    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    from rich.markup import escape

    consoles()[1].print(f"[bold red]labkit:[/] {escape(message)}")


def learners_course(console):
    """Load the course and put the learner's copies where they belong, saying what changed."""
    from labkit.course import copies
    from labkit.course import registry as courses

    course = courses.load()
    say(console, copies.arrange(course))
    return course


def say(console, sentences) -> None:
    for sentence in sentences:
        console.print(sentence, style="yellow", markup=False, soft_wrap=True)


def say_next(console, sentence: str) -> None:
    """Print the one next step, from labkit.course.next_step."""
    from rich.text import Text

    console.print(Text.assemble(("Next: ", "bold"), sentence), soft_wrap=True)


def choose_device(device: str | None):
    """Apply --device and return labkit.device, or raise an error in a sentence if the device cannot be used."""
    from labkit.course.execution import DEVICES

    if device is not None:
        if device not in DEVICES:
            raise UserError(f"--device {device} is not known; allowed are {', '.join(DEVICES)}")
        os.environ["LABKIT_DEVICE"] = device
    from labkit import device as chosen

    try:
        chosen.kind()
    except Exception as error:
        raise UserError(str(error)) from None
    return chosen


def progress_bar(console, unit: str = "cells"):
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
