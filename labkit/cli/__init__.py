"""The `labkit` command. Each command imports what it needs when it runs, so `labkit --help` is quick.

Exit codes: 0 all well; 1 a lesson failed, an exercise is not passed, a notebook is stale or a fault was found; 2 wrong
use; 130 stopped by Ctrl-C.
"""

import functools
import os
import subprocess
import sys
from typing import Annotated

import typer

from labkit._common.version import __version__

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
        from labkit._common.errors import UserError

        try:
            return command(*args, **kwargs)
        except UserError as error:
            fail(str(error), code=2)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                sys.stderr.write("\r\033[K")  # over the ^C of the terminal, and a step that was named
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
    from labkit._common.errors import UserError
    from labkit.course.notebooks import DEVICES

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

    from labkit.course import registry as courses
    from labkit.course.lessons import run_lesson

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
        from labkit.course import site

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

    from labkit.course.lessons import show_time

    line = Text()
    line.append("passed  " if result.passed else "FAILED  ", "green" if result.passed else "bold red")
    line.append(f"{chapter.number} {chapter.title}, {show_time(result.seconds)}")
    if result.problem:
        line.append(f"\n        {result.problem}", "red")
    return line


def results_table(results):
    from rich.table import Table

    from labkit.course.lessons import show_error, show_time

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
    check: Annotated[
        bool, typer.Option("--check", help="Only look for stale, missing or unlisted files, and for wrong exercises.")
    ] = False,
    readme_only: Annotated[bool, typer.Option("--readme", help="Only README's generated parts.")] = False,
    exercises_only: Annotated[bool, typer.Option("--exercises", help="Only the exercises.")] = False,
    device: Device = None,
):
    """Make notebooks/NN_topic.ipynb from notebooks/NN_topic.py, executed, the exercises, and README's tables.

    A notebook that somebody has edited is first copied to .labkit/backups. With --check the solutions are executed,
    which must pass, and the exercises as they are given, which must not; what was well is not executed again until it
    changes.
    """
    from labkit.course import readme
    from labkit.course import registry as courses

    console, errors = consoles()
    course = courses.load()
    if check:
        check_build(console, errors, course, course.pick(lessons or []))
        return

    failed = False
    if not readme_only:
        chapters = course.pick(lessons or [])
        build_workbooks(console, course, chapters)
        if not exercises_only:
            failed = build_notebooks(console, course, chapters, device)
    if not exercises_only and readme.write(course):
        console.print("wrote   README.md")
    if failed:
        raise typer.Exit(1)


def check_build(console, errors, course, chapters) -> None:
    """Say what is stale or wrong; leaves with code 1 if anything is."""
    from rich.markup import escape

    from labkit.course import registry as courses
    from labkit.course import workbooks as workbook

    def say(problems):
        for problem in problems:
            errors.print(f"[red]-[/] {escape(problem)}")
        return bool(problems)

    wrong = say(courses.check(course))
    if course.exercises:
        unmatched = say(workbook.unmatched(course))
        wrong |= unmatched
        if not unmatched and not workbook.stale(course):  # else the executed cells would only say the same again
            with console.status("Checking the exercises") as status:
                wrong |= say(
                    workbook.verify(course, chapters, lambda c: status.update(f"Running the exercises of {c.number}"))
                )
    if wrong:
        raise typer.Exit(1)
    console.print("Everything that labkit build makes is fresh.")


def build_workbooks(console, course, chapters) -> None:
    from labkit.course import workbooks as workbook

    for chapter in workbook.with_exercises(course, chapters):
        backup = workbook.build(course, chapter)
        if backup:
            console.print(f"        your edited {chapter.workbook.name} is kept as {backup.relative_to(course.root)}")
        console.print(f"wrote   exercises/{chapter.workbook.name}")


def build_notebooks(console, course, chapters, device: str | None) -> bool:
    """Build these chapters; True when one of them failed."""
    from rich.markup import escape

    from labkit.course import progress
    from labkit.course import registry as courses
    from labkit.course.lessons import in_words, show_time

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
    from labkit.course import progress
    from labkit.course import registry as courses

    console, _ = consoles()
    course = courses.load()
    done = progress.finished(course)
    if list_:
        width = 2 + max(len(chapter.title) for chapter in course.chapters)
        for chapter in course.chapters:
            mark = f"[green]finished {done[chapter.name]}[/]" if chapter.name in done else "[dim]to do[/]"
            console.print(f"{chapter.number}  {chapter.title:{width}}{mark}")
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


# --- Exercises -----------------------------------------------------------------------------------------------------


def find_exercises(course, asked: str | None):
    """(chapters, the one exercise or None) for nothing, a chapter's number or name, or an exercise's name."""
    from labkit.course.registry import CourseError

    if not course.exercises:
        raise CourseError("there are no exercises in course.toml")
    if asked is None:
        return tuple(c for c in course.chapters if course.exercises_of(c)), None
    stem = os.path.splitext(os.path.basename(asked))[0]
    if stem.isdigit() or any(stem == chapter.name for chapter in course.chapters):
        (chapter,) = course.pick([asked])
        if not course.exercises_of(chapter):
            raise CourseError(f"chapter {chapter.number} has no exercises")
        return (chapter,), None
    entry = course.exercise(asked)
    return (entry.chapter,), entry


Which = Annotated[
    str | None, typer.Argument(metavar="[NN|NAME]", help="A chapter, or one exercise. All when left out.")
]


@app.command()
@friendly
def check(
    which: Which = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
    device: Device = None,
):
    """Run your exercises (exercises/NN_topic.ipynb, as saved) and say what is right and what is wrong.

    Leaves with code 0 if every exercise asked for is passed, with 1 if not.
    """
    from labkit.course import registry as courses

    console, _ = consoles()
    course = courses.load()
    chapters, entry = find_exercises(course, which)
    if device is not None:
        choose_device(device)
    results = [result for chapter in chapters for result in check_chapter(console, course, chapter, entry, as_json)]
    if as_json:
        import json

        shown = [
            result.verdict or {"exercise": result.exercise, "passed": False, "verdict": "not_run",
                               "headline": result.problem} for result in results
        ]
        print(json.dumps(shown, indent=2))
    elif len(results) > 1:
        right = sum(result.passed for result in results)
        console.print(f"{right} of {len(results)} passed.")
    if not all(result.passed for result in results):
        raise typer.Exit(1)


def check_chapter(console, course, chapter, entry, quiet: bool):
    """Run one notebook; each verdict is shown as it comes."""
    from labkit.course import progress
    from labkit.course import workbooks as workbook

    def show(result):
        if result.passed:
            progress.passed(course, result.exercise)
        if quiet:
            return
        console.print(result_text(course, result))

    if not quiet:
        console.print(f"[bold]{chapter.number}  {chapter.title}[/]  [dim]exercises/{chapter.workbook.name}[/]")
    notebook = workbook.learners(chapter)
    return workbook.run_cells(course, chapter, notebook, only=entry.name if entry else None, on_check=show)


def result_text(course, result):
    """A verdict as the terminal shows it."""
    from rich.text import Text

    from labkit.course.check.verdict import Verdict

    if result.verdict:
        return Verdict.from_result(result.verdict)
    title = course.exercise(result.exercise).title
    return Text.assemble(("Not yet", "bold red"), f"  {title}\n  ", (result.problem, "bold"))


@app.command()
@friendly
def watch(which: Which = None, device: Device = None):
    """Check your exercises again whenever you save their notebook. Ctrl-C ends it."""
    import time

    from labkit.course import registry as courses

    console, _ = consoles()
    course = courses.load()
    chapters, entry = find_exercises(course, which)
    if device is not None:
        choose_device(device)

    def saved(chapter):
        try:
            state = chapter.workbook.stat()
        except FileNotFoundError:  # between the two halves of a save
            return None
        return state.st_mtime_ns, state.st_size

    seen = {chapter: saved(chapter) for chapter in chapters}
    console.print(f"Watching {', '.join(f'exercises/{c.workbook.name}' for c in chapters)}. Ctrl-C ends it.")
    while True:
        for chapter in chapters:
            now = saved(chapter)
            if now is None or now == seen[chapter]:
                continue
            seen[chapter] = now
            try:
                check_chapter(console, course, chapter, entry, quiet=False)
            except courses.CourseError as error:
                console.print(f"[red]{error}[/]")
            console.print(f"[dim]{time.strftime('%H:%M:%S')}, waiting for the next save.[/]")
        time.sleep(0.3)


@app.command()
@friendly
def hint(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An exercise, such as scale_vector.")],
    tier: Annotated[int | None, typer.Option(help="1, 2 or 3. Left out: the next one that you have not seen.")] = None,
):
    """Show a hint. Each time you ask, it tells more."""
    from rich.text import Text

    from labkit.course import progress
    from labkit.course import registry as courses

    consoles()[0].print(Text(progress.hint(courses.load(), name, tier)))


@app.command()
@friendly
def reset(
    which: Annotated[str | None, typer.Argument(metavar="[NAME|NN]", help="An exercise, or a chapter.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every exercise.")] = False,
):
    """Put an exercise back as it was given. What was there is kept in .labkit/backups. Progress is kept, too."""
    from labkit.course import registry as courses
    from labkit.course import workbooks as workbook

    if (which is None) != all_:
        fail("say which exercise or chapter, or --all", code=2)
    console, _ = consoles()
    course = courses.load()
    chapters, entry = find_exercises(course, which)
    for chapter in chapters:
        backup = workbook.reset(course, chapter, entry)
        what = f"{entry.name} in exercises/{chapter.workbook.name}" if entry else f"exercises/{chapter.workbook.name}"
        console.print(f"reset   {what}")
        if backup:
            console.print(f"        what was there is kept as {backup.relative_to(course.root)}")
    console.print("If the notebook is open in JupyterLab, reload it from disk (File menu) before you go on.")


@app.command()
@friendly
def progress(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False):
    """Show what you have passed, chapter by chapter."""
    from labkit.course import progress as memory
    from labkit.course import registry as courses

    console, _ = consoles()
    course = courses.load()
    lessons = memory.finished(course)
    tables = memory.read(course)
    rows = []
    for chapter in course.chapters:
        entries = course.exercises_of(chapter)
        done = [entry for entry in entries if entry.name in tables["passed"]]
        rows.append({
            "chapter": chapter.name, "title": chapter.title, "lesson_finished": chapter.name in lessons,
            "passed": [entry.name for entry in done], "open": [e.name for e in entries if e not in done],
            "points": sum(entry.points for entry in done), "of_points": sum(entry.points for entry in entries),
        })
    if as_json:
        import json

        print(json.dumps(rows, indent=2))
        return
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("", "left"), ("", "left"), ("lesson", "left"), ("exercises", "left"), ("", "right"),
                          ("points", "right")):
        table.add_column(name, justify=justify, no_wrap=True)
    for row in rows:
        count, total = len(row["passed"]), len(row["passed"]) + len(row["open"])
        table.add_row(
            row["chapter"][:2], row["title"], Text("finished", "green") if row["lesson_finished"] else Text("-", "dim"),
            ProgressBar(total=max(total, 1), completed=count, width=12) if total else Text("-", "dim"),
            f"{count} of {total}" if total else "", f"{row['points']} of {row['of_points']}" if total else "",
        )
    console.print(table)
    following = next((entry for entry in course.exercises if entry.name not in tables["passed"]), None)
    if following:
        console.print(f"Next: {following.title}, [bold]{following.name}[/] in exercises/{following.chapter.name}.ipynb")
    elif course.exercises:
        console.print("You have passed every exercise.")


@app.command()
@friendly
def solution(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An exercise, such as scale_vector.")],
    give_up: Annotated[bool, typer.Option("--give-up", help="Show it before the exercise is passed.")] = False,
):
    """Show the answer to an exercise that you have passed."""
    from rich.syntax import Syntax

    from labkit.course import progress as memory
    from labkit.course import registry as courses
    from labkit.course import workbooks as workbook

    console, _ = consoles()
    course = courses.load()
    entry = course.exercise(name)
    if name not in memory.read(course)["passed"]:
        if not give_up:
            fail(f"{name} is not passed yet. Try: labkit hint {name}. To see the answer all the same: "
                 f"labkit solution {name} --give-up", code=1)
        memory.shown(course, name)
    code = workbook.solution(course, entry)
    console.print(Syntax(code, "python", background_color="default") if console.is_terminal else code, markup=False)


@app.command()
@friendly
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
):
    """Say what this machine has, which device labkit uses and why, and how to mend what is wrong."""
    from labkit.device import doctor as physician

    console, _ = consoles()
    raise typer.Exit(physician.main(console, as_json=as_json))


@app.command()
@friendly
def bench(
    op: Annotated[
        str | None,
        typer.Argument(help="An operation such as matmul, a series such as generation, or simt for the CPU device. "
                            "All operations when left out.")
    ] = None,
    device: Device = None,
    out: Annotated[str | None, typer.Option(help="Write there: a directory, or a file ending in .json.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, few runs: shows that it works.")] = False,
):
    """Time every rung of every operation, beside NumPy and the libraries that are installed."""
    choose_device(device)
    if op == "simt":
        from labkit.measure.series import simt as measure_simt

        raise typer.Exit(measure_simt.main(consoles()[0]) or 0)
    from labkit._common.errors import UserError
    from labkit.measure import bench as measure
    from labkit.measure.ops import HOMES

    if op not in (None, "all", *HOMES, *measure.SERIES):
        raise UserError(f"there is no operation {op!r}; there are {', '.join(HOMES)}, all and simt; and the series "
                        f"{', '.join(measure.SERIES)}")
    try:
        measure.places(out)
    except ValueError as error:
        raise UserError(str(error)) from None
    raise typer.Exit(measure.main(op=op, out=out, quick=quick) or 0)


@app.command()
@friendly
def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to go on from, in quotes. tiny takes '' for a new text.")
    ],
    model: Annotated[
        str, typer.Option(help="tiny, which is in the repository; a folder; or a GPT-2's name on the hub.")
    ] = "tiny",
    tokens: Annotated[int, typer.Option(help="At most so many tokens.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="Below 1 the likely tokens become likelier; 0 is --greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw among the k likeliest; 0 for all.", min=0)] = 40,
    top_p: Annotated[float, typer.Option(help="Of these, among the likeliest that together reach p.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same text.", min=0)] = 0,
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

    def end(told) -> None:
        if begun:
            sys.stdout.write("\n")
            sys.stdout.flush()
        if told is not None and told.tokens:
            notes.print(str(told), style="dim", markup=False, soft_wrap=True)

    try:
        with waiting:
            told = write(loaded, prompt, show, tokens=tokens, sampler=sampler, seed=seed, compiling=compiling)
    except KeyboardInterrupt as stopped:
        end(getattr(stopped, "told", None))
        raise
    if not told.text:
        show("")  # the model ended its text at once: the prompt stands alone
    end(told)


@app.command()
@friendly
def report(
    measure: Annotated[bool, typer.Option("--measure", help="Time it on this machine, too.")] = False,
    prompts: Annotated[
        str | None, typer.Option(help="A text file, such as WikiText-2's validation text: prompts are taken from it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The GPT-2 that writes: tiny, a folder, or a name on the hub such as distilgpt2.")
    ] = None,
    out: Annotated[str, typer.Option(help="Where to write the page.")] = "build/report.html",
    device: Device = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser at the end.")] = False,
):
    """Write the comparison with a fused softmax in GPT-2 as one page: figures and tables, ours beside the source's.

    It shows what a GPU recorded. With --measure, --prompts or --model this machine's own times stand beside it.
    """
    choose_device(device)
    from pathlib import Path

    from labkit.measure import report as page
    from labkit.measure.series.generation import prompts_from

    console, notes = consoles()
    texts = prompts_from(prompts) if prompts else None
    here = None
    if measure or texts or model:
        notes.print("Measuring on this machine.", style="dim")  # the steps are named as they run
        here = page.measure_here(model, texts)
    with notes.status("Making the page"):
        path = page.write(Path(out), here)
    for log in [one["log"] for one in (here or {"generation": {"models": []}})["generation"]["models"]]:
        notes.print(log, style="dim", markup=False, soft_wrap=True)
    console.print(f"Wrote {os.path.relpath(path)}", markup=False, soft_wrap=True)
    if open_:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def with_your_kernels(loaded, notes):
    """The model with the kernels of the exercises that are done; says which these are."""
    from dataclasses import replace

    from labkit.course.yours import answers, with_kernels

    with notes.status("Checking your exercises"):
        mine = answers()
    for line in mine.told():
        notes.print(line, style="dim", markup=False)
    return replace(loaded, model=with_kernels(loaded.model, mine))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
