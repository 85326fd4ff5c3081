"""The commands for models: generate and report."""

import os
import sys
from typing import Annotated

import typer

from labkit.cli.shared import Device, choose_device, consoles, progress_bar


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
    subject: Annotated[
        str, typer.Argument(metavar="[gpt2|minilm]", help="Which comparison: a fused softmax in GPT-2, or the sentence "
                                                          "encoder MiniLM beside PyTorch.")
    ] = "gpt2",
    measure: Annotated[
        bool, typer.Option("--measure", help="gpt2: time it on this machine, too. (minilm always is.)")
    ] = False,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", help="gpt2: a text file to take prompts from, such as WikiText-2's validation text."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A folder, or a name on the hub. gpt2: or tiny. minilm: or minilm, the default."),
    ] = None,
    sts: Annotated[
        str | None,
        typer.Option("--sts", metavar="FILE", help="minilm: pairs of sentences with scores, as the STS benchmark has "
                                                   "them; Spearman's correlation is taken."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Where to write the page: build/report.html, or build/report-minilm.html, when left "
                                   "out."),
    ] = None,
    device: Device = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser at the end.")] = False,
):
    """Write a whole comparison as one page: figures and tables, ours beside theirs.

    gpt2 shows what a GPU recorded; with --measure, --prompts or --model this machine's own times stand beside it.
    minilm is measured on this machine, with what a GPU recorded beside it.

    For example: labkit report minilm --sts sts-test.csv
    """
    from pathlib import Path

    from labkit._common.errors import UserError

    subjects = {"gpt2": "build/report.html", "minilm": "build/report-minilm.html"}
    if subject not in subjects:
        raise UserError(f"there is no comparison {subject!r}; there are {' and '.join(subjects)}")
    foreign = {"gpt2": {"--sts": sts}, "minilm": {"--prompts": prompts}}[subject]
    for option, given in foreign.items():
        if given:
            raise UserError(f"{option} is not for {subject}")
    choose_device(device)
    path = Path(out or subjects[subject])
    path = minilm_page(path, model, sts) if subject == "minilm" else gpt2_page(path, measure, model, prompts)
    consoles()[0].print(f"Wrote {os.path.relpath(path)}", markup=False, soft_wrap=True)
    if open_:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def gpt2_page(path, measure: bool, model: str | None, prompts: str | None):
    from labkit.measure import page
    from labkit.measure import report as comparison
    from labkit.measure.series.generation import prompts_from

    notes = consoles()[1]
    texts = prompts_from(prompts) if prompts else None
    here = None
    if measure or texts or model:
        notes.print("Measuring on this machine.", style="dim")  # the steps are named as they run
        here = comparison.measure_here(model, texts)
    with notes.status("Making the page"):
        path = page.write(path, lambda: comparison.page_of(here))
    for log in [one["log"] for one in (here or {"generation": {"models": []}})["generation"]["models"]]:
        notes.print(log, style="dim", markup=False, soft_wrap=True)
    return path


def minilm_page(path, model: str | None, sts_file: str | None):
    from pathlib import Path

    from labkit._common.errors import UserError
    from labkit.measure import page, sts
    from labkit.measure import report_minilm as comparison

    console, notes = consoles()
    pairs = sts.read(Path(sts_file)) if sts_file else None
    for problem in pairs.problems[:10] if pairs else ():
        notes.print(f"{sts_file}: left out: {problem}", style="yellow", markup=False, soft_wrap=True)
    if pairs and len(pairs.problems) > 10:
        notes.print(f"{sts_file}: and {len(pairs.problems) - 10:,} lines more, which the page names.", style="yellow",
                    markup=False)

    def encode(texts):
        with progress_bar(notes, "texts") as bar:
            task = bar.add_task("Embedding (the first time, kernels are compiled)", total=len(texts))
            return loaded.encoder.encode(
                texts, progress=lambda done, of: bar.update(task, completed=done, description="Embedding"))

    def say(result):
        value = "not defined: all scores or all cosines are equal" if result.spearman is None else \
            f"{result.spearman:.4f}"
        console.print(f"Spearman's correlation over {len(pairs.scores):,} pairs: {value}", markup=False)

    def make():
        notes.print("Measuring on this machine.", style="dim")  # the steps are named as they run
        return comparison.page_of(loaded, pairs, encode, say)

    with notes.status("Loading the model"):
        loaded = comparison.load(model)
    if pairs and loaded.encoder is None:
        raise UserError("--sts needs a model with a tokenizer: `labkit weights minilm` fetches MiniLM's weights, or "
                        "name a folder with --model")
    return page.write(path, make)
