"""The `labkit` command. Each command imports what it needs when it runs, so `labkit --help` is quick.

Exit codes: 0 all well; 1 a lesson failed, a notebook is stale or a fault was found; 2 wrong use; 130 stopped by Ctrl-C.
"""

import functools
import os
import subprocess
import sys
from typing import Annotated

import typer

from labkit._version import __version__

app = typer.Typer(
    help="Write GPU kernels in Python. A course and a library that run on an NVIDIA GPU, and without one too.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Lessons = Annotated[
    list[str] | None, typer.Argument(metavar="[NN]...", help="Lessons, such as 01 or 04. All of them when left out.")
]
Device = Annotated[
    str | None,
    typer.Option(help="auto, gpu or cpu. The environment variable LABKIT_DEVICE does the same.", metavar="DEVICE"),
]


def friendly(command):
    """Show what the user can mend as a sentence, without a traceback."""

    @functools.wraps(command)
    def wrapper(*args, **kwargs):
        from labkit.errors import UserError

        try:
            return command(*args, **kwargs)
        except UserError as error:
            fail(str(error), code=2)
        except KeyboardInterrupt:
            fail("Stopped.", code=130)

    return wrapper


def consoles():
    from rich.console import Console

    return Console(highlight=False), Console(stderr=True, highlight=False)


def fail(message: str, code: int):
    from rich.markup import escape

    consoles()[1].print(f"[bold red]labkit:[/] {escape(message)}")
    raise typer.Exit(code)


def choose_device(device: str | None):
    """Apply --device and return labkit.device, with an error in a sentence where the choice cannot be had."""
    from labkit.errors import UserError
    from labkit.execute import DEVICES

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


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False):
    if version:
        print(f"labkit {__version__}")
        raise typer.Exit


@app.command()
@friendly
def run(
    lessons: Lessons = None,
    device: Device = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the site in a browser at the end.")] = False,
):
    """Execute the lessons on this machine and write the site build/site.

    The lessons are those of notebooks/*.py; what you changed in a notebook is yours and is not run. A failing lesson
    does not stop the others. The table at the end says what passed.
    """
    from rich.markup import escape

    from labkit import course as courses
    from labkit.run import run_lesson

    console, _ = consoles()
    course = courses.load()
    chosen = course.pick(lessons or [])
    used = choose_device(device)
    console.print(f"Device: [bold]{escape(used.name())}[/]. {escape(used.choice().reason)}")

    results = []
    try:
        with progress_bar(console) as bar:
            for chapter in chosen:
                task = bar.add_task(f"{chapter.number} {chapter.title}", total=None)
                result = run_lesson(
                    course,
                    chapter,
                    device=device,
                    on_cell=lambda done, total, task=task: bar.update(task, completed=done, total=total),
                )
                bar.remove_task(task)
                results.append((chapter, result))
                console.print(line_of(chapter, result))
        from labkit import site

        index = site.write(course)
    except KeyboardInterrupt:
        kept = f"{len(results)} finished {'lesson is' if len(results) == 1 else 'lessons are'} kept in build/lessons"
        fail(f"Stopped. The kernel was shut down; {kept}; the site was left as it was.", code=130)

    console.print()
    console.print(results_table(results))
    console.print(f"Site: {escape(os.path.relpath(index))}")
    if open_:
        import webbrowser

        webbrowser.open(index.resolve().as_uri())
    if not all(result.passed for _, result in results):
        raise typer.Exit(1)


def progress_bar(console):
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def line_of(chapter, result):
    """One line for a lesson that has ended."""
    from rich.text import Text

    from labkit.run import show_time

    line = Text()
    line.append("passed  " if result.passed else "FAILED  ", "green" if result.passed else "bold red")
    line.append(f"{chapter.number} {chapter.title}, {show_time(result.seconds)}")
    if result.problem:
        line.append(f"\n        {result.problem}", "red")
    return line


def results_table(results):
    from rich.table import Table

    from labkit.run import show_error, show_time

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("Lesson", no_wrap=True)
    table.add_column("Kernels", justify="right")
    table.add_column("Largest error against NumPy", justify="right")
    table.add_column("Time", justify="right", no_wrap=True)
    table.add_column("Passed")
    for chapter, result in results:
        table.add_row(
            f"{chapter.number} {chapter.title}",
            str(len(result.kernels)),
            show_error(result.max_error),
            show_time(result.seconds),
            "[green]yes[/]" if result.passed else "[bold red]no[/]",
        )
    return table


@app.command()
@friendly
def build(
    lessons: Lessons = None,
    check: Annotated[bool, typer.Option("--check", help="Only look for stale, missing or unlisted files.")] = False,
    readme_only: Annotated[bool, typer.Option("--readme", help="Only README's generated parts.")] = False,
    device: Device = None,
):
    """Make notebooks/NN_topic.ipynb from notebooks/NN_topic.py, executed, and README's tables.

    A notebook that somebody has edited is first copied to .labkit/backups.
    """
    from rich.markup import escape

    from labkit import course as courses
    from labkit import readme

    console, errors = consoles()
    course = courses.load()
    if check:
        problems = courses.check(course)
        for problem in problems:
            errors.print(f"[red]-[/] {escape(problem)}")
        if problems:
            raise typer.Exit(1)
        console.print("Everything that labkit build makes is fresh.")
        return

    failed = False
    if not readme_only:
        failed = build_notebooks(console, course, course.pick(lessons or []), device)
    if readme.write(course):
        console.print("wrote   README.md")
    if failed:
        raise typer.Exit(1)


def build_notebooks(console, course, chapters, device: str | None) -> bool:
    """Build these chapters; True when one of them failed."""
    from rich.markup import escape

    from labkit import course as courses
    from labkit import progress
    from labkit.run import in_words, show_time

    choose_device(device)
    progress.finished(course)  # remember what the learner has run before notebooks are made anew
    failed = False
    with progress_bar(console) as bar:
        for chapter in chapters:
            task = bar.add_task(f"{chapter.number} {chapter.title}", total=None)
            outcome, backup = courses.build_chapter(
                course,
                chapter,
                device=device,
                on_cell=lambda done, total, task=task: bar.update(task, completed=done, total=total),
            )
            bar.remove_task(task)
            if outcome.problem:
                failed = True
                console.print(f"[bold red]FAILED[/]  {chapter.name}: {escape(in_words(outcome.problem, chapter))}")
                continue
            if backup:
                console.print(f"        your edited {chapter.built.name} is kept as {backup.relative_to(course.root)}")
            console.print(f"wrote   notebooks/{chapter.built.name}, {show_time(outcome.seconds)}")
    return failed


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@friendly
def learn(
    context: typer.Context,
    lesson: Annotated[str | None, typer.Argument(metavar="[NN]", help="The lesson to open.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show which lessons are finished, and leave.")] = False,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
):
    """Open JupyterLab at the first lesson that you have not finished.

    A lesson is finished once you have run all of its cells without an error and saved it. Options that are not listed
    here go to JupyterLab, such as --port 9000.
    """
    from labkit import course as courses
    from labkit import progress

    console, _ = consoles()
    course = courses.load()
    done = progress.finished(course)
    if list_:
        for chapter in course.chapters:
            mark = f"[green]finished {done[chapter.name]}[/]" if chapter.name in done else "[dim]to do[/]"
            console.print(f"{chapter.number}  {chapter.title:28}{mark}")
        return

    chapter = course.pick([lesson])[0] if lesson else progress.next_lesson(course)
    if chapter is None:
        console.print("You have finished every lesson. labkit learn NN opens one again.")
        return
    if not chapter.built.is_file():
        fail(f"notebooks/{chapter.built.name} is not built yet: run labkit build {chapter.number}", code=2)
    console.print(
        f"Lesson {chapter.number}, {chapter.title}. {len(done)} of {len(course.chapters)} finished. "
        "Ctrl-C here ends JupyterLab."
    )
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={course.root}"]
    # Not a file name: that one JupyterLab opens in a browser only, and leaves out of the address that it prints.
    command.append(f"--LabApp.default_url=/lab/tree/notebooks/{chapter.built.name}")
    if not browser:
        command.append("--no-browser")
    raise typer.Exit(subprocess.call([*command, *context.args]))


@app.command()
@friendly
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
):
    """Say what this machine has, which device labkit uses and why, and how to mend what is wrong."""
    from labkit import doctor as physician

    console, _ = consoles()
    raise typer.Exit(physician.main(console, as_json=as_json))


@app.command()
@friendly
def bench(
    op: Annotated[
        str | None, typer.Argument(help="An operation such as matmul, or simt for the CPU device. All when left out.")
    ] = None,
    device: Device = None,
    out: Annotated[str | None, typer.Option(help="Write there: a directory, or a file ending in .json.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, few runs: shows that it works.")] = False,
):
    """Time every rung of every operation, beside NumPy and the libraries that are installed."""
    choose_device(device)
    if op == "simt":
        from labkit.simt import bench as measure_simt

        raise typer.Exit(measure_simt.main(consoles()[0]) or 0)
    from labkit import bench as measure
    from labkit.errors import UserError
    from labkit.kernels import HOMES

    if op not in (None, "all", *HOMES):
        raise UserError(f"there is no operation {op!r}; there are {', '.join(HOMES)}, all and simt")
    try:
        measure.targets(out)
    except ValueError as error:
        raise UserError(str(error)) from None
    raise typer.Exit(measure.main(op=op, out=out, quick=quick) or 0)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
