"""The command fits: would a kernel run on the GPUs that learners have?"""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit.cli.shared import consoles


def fits(
    what: Annotated[
        str | None,
        typer.Argument(metavar="LESSON | KERNEL | FILE.py:NAME",
                       help="A lesson (07, or its name); an operation, a rung or a kernel of the course (matmul, "
                            "softmax_online); or a kernel in your file or notebook. By default, list the known GPUs.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="GPU[,GPU...]",
                     help="Names, such as t4,rtx3060, or compute capabilities, such as 7.5. By default t4, rtx3060, "
                          "rtx4090, rtx5090, l4, a100, h100, b200.")
    ] = None,
    types: Annotated[
        str | None,
        typer.Option("--types", metavar="TYPES",
                     help='The types of your kernel\'s parameters: "float32, float32[::1]". By default those of its '
                          "signature or, without one, float32 arrays and scalars if that compiles.")
    ] = None,
    block: Annotated[
        str | None,
        typer.Option("--block", metavar="N[,N[,N]]",
                     help="The block size that your kernel is launched with: 256, or 16,16. By default 256 threads.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE",
                     help='For the bound. For an operation: "M=4096,N=4096,K=4096", by default the size it is timed '
                          'at. For your kernel, the shapes of its arrays: "a=4096x64,out=4096".')
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="For a lesson or an operation: one table per rung.")
    ] = False,
):
    """Compile a kernel for GPUs that you may not have, and say whether it would run there.

    Shown per GPU: registers, spills, shared memory, occupancy and what limits it, refused instructions with their line
    of Python, and the shortest time that the data sheet allows.

    For example: labkit fits mine.py:blur --gpu t4,rtx3060 --types "float32[:, ::1], float32[:, ::1]" --block 16,16
    """
    os.environ["LABKIT_DEVICE"] = "cpu"  # launches are planned, and kernels compiled, without a GPU everywhere
    from labkit.measure import fits as measure

    console, notes = consoles()
    if what is None:
        given = {"--types": types, "--block": block, "--size": size, "--gpu": gpu}
        if unused := [name for name, value in given.items() if value is not None]:
            raise UserError(f"{unused[0]} needs a kernel, a lesson or a file: labkit fits softmax_online")
        console.print(measure.known_gpus())
        return
    targets, sizes = measure.gpus_named(gpu), read_size(size)
    if file := re.match(r"(?P<path>.+\.(?:py|ipynb))(?::(?P<name>\w*))?$", what):
        from labkit.course import kernel_files

        own = kernel_files.kernel(Path(file["path"]), file["name"] or "")
        with notes.status(f"Compiling {own.__name__}"):
            result = measure.of_kernel(own, targets, types=types, block=read_block(block), sizes=sizes)
        console.print(result)
        return
    for option, value in (("--types", types), ("--block", block)):
        if value is not None:
            raise UserError(f"{option} is for a kernel in a file of yours: labkit fits FILE.py:NAME; the course's "
                            "launchers choose their own")
    with notes.status("Compiling") as status:
        tables = found(what, targets, sizes, verbose, lambda name: status.update(f"Compiling {name}"))
    for table in tables:
        console.print(table)


def found(what: str, targets: dict, sizes: dict | None, verbose: bool, progress) -> list:
    """Return the tables of a lesson, an operation, a rung or a kernel."""
    from labkit.measure import fits as measure

    operations = of_lesson(what)
    if operations is None:
        named = measure.Named.of(what)
        if named.rung is not None:
            return [measure.of_rung(named.op, named.rung, targets, sizes, named.kernel)]
        operations = [named.op]
    elif sizes is not None:
        raise UserError("--size is for an operation, a rung or a kernel; a lesson has several")
    tables = []
    for op in operations:
        rungs = measure.of_op(op, targets, sizes, progress)
        tables += [*rungs.values()] if verbose else [measure.Matrix(op.title, rungs, targets)]
    return tables


def of_lesson(what: str) -> list | None:
    """Return a lesson's operations, or None if `what` is not a lesson. Raise UserError if the lesson has none."""
    from labkit.course import abilities, registry
    from labkit.measure import ops

    course = registry.load()
    if not (what[:1].isdigit() or course.called(what)) or what in ops.HOMES:
        return None
    (chapter,) = course.pick([what])
    names, _ = abilities.uses(chapter)
    if not names:
        raise UserError(f"lesson {chapter.number} has no operations of the course; for a kernel in it: "
                        f"labkit fits {chapter.source.name}:NAME")
    return [ops.op(name) for name in names]


def read_block(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(length) for length in text.split(","))
    except ValueError:
        raise UserError(f"--block {text!r} is no block; write 256, or 16,16") from None


def read_size(text: str | None) -> dict | None:
    """Return {"M": 4096} for "M=4096", {"a": (64, 8)} for "a=64x8"."""
    if text is None:
        return None
    sizes = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([1-9]\d*(?:x[1-9]\d*)*)\s*", part)
        if match is None:
            raise UserError(f'--size: {part.strip()!r} is no length; write "M=4096,N=4096", or the shapes of arrays, '
                            '"a=4096x64"')
        lengths = tuple(map(int, match[2].split("x")))
        sizes[match[1]] = lengths if len(lengths) > 1 else lengths[0]
    return sizes
