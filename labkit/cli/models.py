"""The commands for models: generate and compare."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit._common.files import read_text
from labkit.cli.shared import Device, Dtype, choose_device, consoles, progress_bar


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="The text to continue, or a question, in quotes. For tiny, '' starts a "
                                                "new text.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="tiny (or tiny-gpt2) or tiny-llama, from the repository; a folder; or the "
                                          "name of a GPT-2, Llama or Qwen3 on the Hugging Face hub.")
    ] = "tiny",
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="FILE", help="Llama or Qwen3: a file with one prompt per line, run in one "
                                                        "batch."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Llama or Qwen3: continue the prompt itself, without the chat template.")
    ] = False,
    tokens: Annotated[int, typer.Option("--tokens", "--max-tokens", help="Maximum number of tokens.", min=1)] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1, likely tokens become likelier; 0 means --greedy.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option("--top-k", help="Sample from the k likeliest tokens; 0 for all.", min=0)] = 40,
    top_p: Annotated[float, typer.Option("--top-p", help="Of those, keep the likeliest that together reach p.")] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", help="Llama or Qwen3: exclude tokens less likely than this times the likeliest.")
    ] = 0.0,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="Llama or Qwen3: stop before this text. Can be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same text.", min=0)] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always choose the likeliest token.")] = False,
    yours: Annotated[
        bool, typer.Option("--yours", help="GPT-2 in float32: use the kernels from your exercises.")
    ] = False,
    dtype: Dtype = "auto",
    device: Device = None,
):
    """Write text with a model that runs entirely on kernels from this course. Ctrl-C stops it.

    A Llama or a Qwen3 runs in the engine, and answers if the model has a chat template.

    For example: labkit generate "What is a hacker?" --model tiny-llama
    """
    if (prompt is None) == (prompts is None):
        raise UserError("give one prompt, or a file of them with --prompts" if prompt is None else
                        "use either a prompt or --prompts, not both; put the prompt into the file")
    named = {"the prompt": prompt} if prompts is None else prompts_in(prompts)
    choose_device(device)
    from labkit.engine.sampling_params import SamplingParams
    from labkit.models.gpt2 import GPT2
    from labkit.models.load import folder, load
    from labkit.simt.errors import SettingError

    try:
        params = SamplingParams(temperature=0.0 if greedy else temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                                stop=stop, seed=seed, max_tokens=tokens)
    except ValueError as error:
        raise UserError(str(error)) from None
    _, notes = consoles()  # the text alone goes to standard output
    path = folder(model)  # a download shows its own progress
    with notes.status(f"Loading {model}"):
        loaded = load(model, path=path, dtype=dtype)
    notes.print(loaded.log, style="dim", markup=False, soft_wrap=True)
    of_gpt2 = isinstance(loaded.model, GPT2)
    unsupported = ({"--prompts": prompts, "--raw": raw, "--min-p": min_p, "--stop": stop} if of_gpt2
                   else {"--yours": yours})
    for option, value in unsupported.items():
        if value:
            raise UserError(f"{option} is not for {loaded.name}, which is a {type(loaded.model).__name__}; see --help")
    if yours and loaded.model.dtype != "float32":
        raise UserError(f"--yours needs --dtype float32, not {dtype}")
    if yours:
        loaded = with_your_kernels(loaded, notes)
    try:
        if of_gpt2:
            write_one(loaded, prompt, params, notes)
        elif prompts is None:
            answer_one(loaded, prompt, params, raw, notes)
        else:
            answer_all(loaded, named, params, raw, notes)
    except SettingError:  # of the environment, not of the model
        raise
    except ValueError as error:  # the model is of a shape that a kernel refuses, or its numbers overflow
        raise error if isinstance(error, UserError) else UserError(f"{loaded.name}: {error}") from None


def prompts_in(path: str) -> dict[str, str]:
    """Return the non-empty lines of a file, by their names for messages."""
    try:
        lines = read_text(path).removeprefix("\ufeff").splitlines()
    except FileNotFoundError:
        raise UserError(f"--prompts {path} does not exist") from None
    prompts = {f"{path}: line {line_number}": line.strip() for line_number, line in enumerate(lines, 1) if line.strip()}
    if not prompts:
        raise UserError(f"{path} contains no prompts")
    return prompts


class Terminal:
    """Streams text to standard output, replacing the status line."""

    def __init__(self, notes, prefix: str):
        self.prefix, self.begun = prefix, False
        self.waiting = notes.status("Reading the prompt (the first time, compiling kernels needs a few seconds)")

    def compiling(self, done: int, of: int) -> None:
        self.waiting.update(f"Compiling kernels, {done} of {of}; they are cached for next time")

    def show(self, piece: str) -> None:
        if not self.begun:
            self.waiting.stop()
            sys.stdout.write(self.prefix)
            self.begun = True
        sys.stdout.write(piece)
        sys.stdout.flush()

    def end(self) -> None:
        if self.begun:
            sys.stdout.write("\n")
            sys.stdout.flush()


def write_one(loaded, prompt: str, params, notes) -> None:
    """Continue a prompt with a GPT-2."""
    from labkit.engine.sampler import GREEDY, Sampler
    from labkit.engine.text import write

    sampler = GREEDY if params.greedy else Sampler(params.temperature, params.top_k or None, params.top_p)
    terminal, continuation = Terminal(notes, prompt), None
    try:
        with terminal.waiting:
            continuation = write(loaded, prompt, terminal.show, tokens=params.max_tokens, sampler=sampler,
                                 seed=params.seed, compiling=terminal.compiling)
        if not continuation.text:
            terminal.show("")  # the model ended its text immediately: show just the prompt
    except KeyboardInterrupt as interrupt:
        continuation = getattr(interrupt, "continuation", None)
        raise
    finally:
        terminal.end()
        if continuation is not None and continuation.tokens:
            notes.print(str(continuation), style="dim", markup=False, soft_wrap=True)


def answer_one(loaded, prompt: str, params, raw: bool, notes) -> None:
    """Answer with a Llama, or continue the prompt if it has no template."""
    from labkit.engine.texts import Texts

    terminal = Terminal(notes, "")
    texts = Texts(loaded, [prompt], params, raw=raw, compiling=terminal.compiling)
    terminal.prefix = "" if texts.chat else prompt
    try:
        with terminal.waiting:
            for piece in texts.pieces():
                if piece:
                    terminal.show(piece)
        terminal.show("")
    finally:
        terminal.end()
        if texts.outputs[0]:
            notes.print(texts.report, style="dim", markup=False, soft_wrap=True)


def answer_all(loaded, named: dict[str, str], params, raw: bool, notes) -> None:
    """Run several prompts in one batch with a progress bar, then print the texts in the order of the file. After
    Ctrl-C, print what there is."""
    from labkit.engine.texts import Texts

    def compiling(done: int, of: int) -> None:
        bar.update(task, description=f"Compiling kernels, {done} of {of}")

    texts = Texts(loaded, list(named.values()), params, raw=raw, names=list(named), compiling=compiling)
    try:
        with progress_bar(notes, "prompts") as bar:
            task, done = bar.add_task("Reading the prompts", total=len(named)), 0
            for _, output in texts.run(every=0.5):
                done += output.finished
                bar.update(task, completed=done, description="Writing")
    finally:
        separator = "\n" if texts.chat else ""
        for prompt, output in zip(named.values(), texts.outputs, strict=True):
            if output:
                sys.stdout.write(f"{prompt}{separator}{output.outputs[0].text}\n\n")
        sys.stdout.flush()
        if any(texts.outputs):
            notes.print(texts.report, style="dim", markup=False, soft_wrap=True)


def with_your_kernels(loaded, notes):
    """Return the model with the kernels of the finished exercises, and say which these are."""
    from dataclasses import replace

    from labkit.course.yours import places, with_kernels

    done = checked_answers(places.in_model(places.GPT2), notes)
    return replace(loaded, model=with_kernels(loaded.model, done))


def checked_answers(names: list[str], notes):
    """Return the answers to these exercises, and say which can be used."""
    from labkit.course.yours import answers

    with notes.status("Checking your exercises"):
        done = answers(*names)
    for line in done.messages():
        notes.print(line, style="dim", markup=False)
    return done


def compare(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="tiny (or tiny-gpt2), tiny-llama or minilm; a folder; or the name of "
                                                  "a GPT-2, Llama, Qwen3 or sentence encoder on the Hugging Face hub.")
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to run through the model, in quotes.")],
    dtype: Dtype = "auto",
    transformers: Annotated[
        bool, typer.Option("--transformers", help="Also compare each layer with transformers, if it is installed.")
    ] = False,
    dump: Annotated[
        str | None,
        typer.Option("--dump", metavar="DIR", help="Write each launch's result and reference here, as .npz."),
    ] = None,
    device: Device = None,
):
    """Compare the output of each launch of a model with NumPy in float64, and name the first that diverges.

    The prompt is used as it is, without a chat template. Exits with code 1 if a launch diverges.

    For example: labkit compare tiny-llama "What is a hacker?" --dump build/dump
    """
    from labkit import device as used
    from labkit.simt.errors import SettingError

    choose_device(device)
    from labkit.models.compare import compare as launch_by_launch

    console, notes = consoles()
    folder = None if dump is None else Path(dump)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise UserError(f"--dump {dump} is a file; it must be a folder")
    try:
        with notes.status("") as status:
            result = launch_by_launch(model, prompt, dtype=dtype, transformers=transformers, dump=folder,
                                      progress=lambda doing: status.update(doing))
    except SettingError:
        raise
    except OSError as error:
        if folder is None:
            raise
        raise UserError(f"--dump {dump} cannot be written: {error.strerror or error}") from None
    except ValueError as error:  # a shape that a kernel refuses
        raise error if isinstance(error, UserError) else UserError(f"{model}: {error}") from None
    for parity in filter(None, (result.numpy, result.transformers)):
        console.print(parity)
    if folder is not None:
        written = sum(len(parity.rows) for parity in (result.numpy, result.transformers) if parity)
        console.print(f"Wrote {written:,} files to {dump}", markup=False, soft_wrap=True)
    tokens = "1 token" if len(result.ids) == 1 else f"{len(result.ids):,} tokens"
    console.print(f"{len(result.numpy.rows):,} activations of {tokens}: "
                  f"{'all agree' if result.passed else 'not all agree'}. {used.where()}", markup=False, soft_wrap=True)
    if not result.passed:
        raise typer.Exit(1)
