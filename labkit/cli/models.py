"""The commands for models: generate and report."""

import os
import sys
from typing import Annotated

import typer

from labkit.cli.shared import Device, choose_device, consoles


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to go on from, in quotes. tiny takes '' for a new text.")
    ],
    model: Annotated[
        str, typer.Option("--model", help="tiny, which is in the repository; a folder; or a GPT-2's name on the hub.")
    ] = "tiny",
    tokens: Annotated[int, typer.Option("--tokens", help="At most so many tokens.", min=1)] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1 the likely tokens become likelier; 0 is --greedy.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option("--top-k", help="Draw among the k likeliest; 0 for all.", min=0)] = 40,
    top_p: Annotated[float, typer.Option("--top-p", help="Of these, among the likeliest that together reach p.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same text.", min=0)] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")] = False,
    yours: Annotated[bool, typer.Option("--yours", help="With the kernels of your exercises in their places.")] = False,
    device: Device = None,
):
    """Write text with a GPT-2 whose every layer is a kernel of this course. Ctrl-C stops it.

    For example: labkit generate "recursion:"
    """
    from labkit._common.errors import UserError

    choose_device(device)
    from labkit.engine.sampler import GREEDY, Sampler
    from labkit.engine.text import write
    from labkit.models.load import folder, load
    from labkit.simt.errors import SettingError

    try:
        sampler = GREEDY if greedy else Sampler(temperature, top_k or None, top_p)
    except ValueError as error:
        raise UserError(str(error)) from None
    _, notes = consoles()  # the text alone goes to standard output
    path = folder(model)  # a download shows its own progress
    with notes.status(f"Loading {model}"):
        loaded = load(model, path=path)
    notes.print(loaded.log, style="dim", markup=False, soft_wrap=True)
    if yours:
        loaded = with_your_kernels(loaded, notes)
    waiting = notes.status("Reading the prompt (the first time, kernels are compiled: some seconds)")
    begun = False

    def compiling(done: int, of: int) -> None:
        waiting.update(f"Compiling kernels, {done} of {of}; they are kept for the next time")

    def show(piece: str) -> None:
        nonlocal begun
        if not begun:
            waiting.stop()
            sys.stdout.write(prompt)
            begun = True
        sys.stdout.write(piece)
        sys.stdout.flush()

    def end(continuation) -> None:
        if begun:
            sys.stdout.write("\n")
            sys.stdout.flush()
        if continuation is not None and continuation.tokens:
            notes.print(str(continuation), style="dim", markup=False, soft_wrap=True)

    try:
        with waiting:
            continuation = write(loaded, prompt, show, tokens=tokens, sampler=sampler, seed=seed, compiling=compiling)
    except KeyboardInterrupt as stopped:
        end(getattr(stopped, "continuation", None))
        raise
    except SettingError:  # of the environment, not of the model
        raise
    except ValueError as error:  # the model is of a shape that a kernel refuses, or its numbers overflow
        end(None)
        raise UserError(f"{loaded.name}: {error}") from None
    if not continuation.text:
        show("")  # the model ended its text at once: the prompt stands alone
    end(continuation)


def with_your_kernels(loaded, notes):
    """The model with the kernels of the exercises that are done; says which these are."""
    from dataclasses import replace

    from labkit.course.yours import answers, with_kernels

    with notes.status("Checking your exercises"):
        mine = answers()
    for line in mine.messages():
        notes.print(line, style="dim", markup=False)
    return replace(loaded, model=with_kernels(loaded.model, mine))


def report(
    measure: Annotated[bool, typer.Option("--measure", help="Time it on this machine, too.")] = False,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", help="A text file, such as WikiText-2's validation text: prompts are taken from it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="The GPT-2 that writes: tiny, a folder, or a name on the hub such as distilgpt2."),
    ] = None,
    out: Annotated[str, typer.Option("--out", help="Where to write the page.")] = "build/report.html",
    device: Device = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser at the end.")] = False,
):
    """Write the comparison with a fused softmax in GPT-2 as one page: figures and tables, ours beside the article's.

    It shows what a GPU recorded. With --measure, --prompts or --model this machine's own times stand beside it.
    """
    choose_device(device)
    from pathlib import Path

    from labkit.measure import page
    from labkit.measure import report as comparison
    from labkit.measure.series.generation import prompts_from

    console, notes = consoles()
    texts = prompts_from(prompts) if prompts else None
    here = None
    if measure or texts or model:
        notes.print("Measuring on this machine.", style="dim")  # the steps are named as they run
        here = comparison.measure_here(model, texts)
    with notes.status("Making the page"):
        path = page.write(Path(out), lambda: comparison.page_of(here))
    for log in [one["log"] for one in (here or {"generation": {"models": []}})["generation"]["models"]]:
        notes.print(log, style="dim", markup=False, soft_wrap=True)
    console.print(f"Wrote {os.path.relpath(path)}", markup=False, soft_wrap=True)
    if open_:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
