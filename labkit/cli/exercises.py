"""The commands for exercises: check, watch, hint, reset, progress and solution."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from labkit._common import paths
from labkit._common.errors import UserError
from labkit.cli.shared import Device, choose_device, complain, consoles, fail, learners_course, say, say_next

Which = Annotated[
    str | None, typer.Argument(metavar="[NN|NAME]", help="A chapter or an exercise. By default, all of them.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="An exercise, such as count_down.")]


def find_exercises(course, name: str | None):
    """Return (chapters, the exercise or None) for None, a chapter's number or name, or an exercise's name."""
    from labkit.course.registry import CourseError

    if not course.exercises:
        raise CourseError("there are no exercises in course.toml")
    if name is None:
        return tuple(c for c in course.chapters if course.exercises_of(c)), None
    entry = next((entry for entry in course.exercises if entry.name == name), None)
    if entry:
        return (entry.chapter,), entry
    chapters = course.pick([name], or_exercise=True)  # an earlier name can match several
    with_exercises = tuple(chapter for chapter in chapters if course.exercises_of(chapter))
    if not with_exercises:
        raise CourseError(f"chapter {chapters[0].number} has no exercises")
    return with_exercises, None


def check(
    which: Annotated[
        str | None, typer.Argument(metavar="[NN|NAME]", help="A chapter or an exercise. By default, the ones you "
                                                             "have started.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Check every exercise, started or not.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
    play: Annotated[
        bool, typer.Option("--play", help="Also write a page that steps through a failing kernel, and open it.")
    ] = False,
    device: Device = None,
):
    """Run your exercises (work/exercises/NN_topic.ipynb, as saved) and explain what is right and what is wrong.

    Exits with 0 if every exercise it ran is passed, with 1 if one is not or there was nothing to run, and with 2 if a
    notebook cannot be read.
    """
    from labkit.course import next_step
    from labkit.course.registry import CourseError

    if everything and which is not None:
        raise UserError(f"use either --all or {which!r}, not both")
    console, errors = consoles()
    course = learners_course(errors if as_json else console)
    chapters, entry = find_exercises(course, which)
    if device is not None:
        choose_device(device)
    results, damaged = [], False
    for chapter in chapters:
        try:
            names = begun(course, chapter) if which is None and not everything else entry and (entry.name,)
            if names != ():
                results += check_chapter(console, course, chapter, names, as_json, play)
        except CourseError as error:  # check the other chapters anyway
            complain(str(error))
            damaged = True
            continue
        if names == () and not as_json:
            console.print(f"{chapter.number}  {chapter.title}: not started", style="dim", markup=False, soft_wrap=True)
    if as_json:
        import json

        verdicts = [
            result.verdict or {"exercise": result.exercise, "passed": False, "verdict": "not_run",
                               "headline": result.problem} for result in results
        ]
        print(json.dumps(verdicts, indent=2))
    else:
        if len(results) > 1:
            right = sum(result.passed for result in results)
            console.print(f"{right} of {len(results)} passed.")
        if play:
            show_players(console, [result.verdict["player"] for result in results if result.verdict])
        if not damaged:
            say_next(console, next_step.after_check(course, results))
    if damaged:
        raise typer.Exit(2)
    if not results or not all(result.passed for result in results):
        raise typer.Exit(1)


def begun(course, chapter) -> tuple[str, ...]:
    """Return the exercises of a chapter that the learner has written something for."""
    from labkit.course import copies
    from labkit.course.notebooks import edited

    if not chapter.own_workbook.is_file() and not edited(chapter.workbook):
        return ()
    answered = copies.written(copies.learners(course, chapter))
    return tuple(entry.name for entry in course.exercises_of(chapter) if entry.name in answered)


def show_players(console, players):
    """Open the page of the exercise that failed; if there are several, the verdicts name them."""
    written = [path for path in players if path]
    if not written:
        console.print("There is nothing to play: no failing kernel has threads that can be watched.")
    elif len(written) == 1 and console.is_terminal:
        import webbrowser
        webbrowser.open(Path(written[0]).resolve().as_uri())


def check_chapter(console, course, chapter, only, quiet: bool, play: bool = False):
    """Run the learner's copy of a notebook, showing each verdict as it comes. only: the names of the exercises to
    check, None for all. play: write pages for failing kernels to .labkit/play."""
    from labkit.course import copies, progress, registry
    from labkit.course import workbooks as workbook

    def show(result):
        if result.passed:
            progress.passed(course, result.exercise)
        if quiet:
            return
        console.print(result_text(course, result))

    messages = copies.workbook(course, chapter)
    if not quiet:
        say(console, messages)
        console.print(f"[bold]{chapter.number}  {chapter.title}[/]  [dim]"
                      f"{registry.shown(chapter, chapter.own_workbook)}[/]")
    notebook = copies.learners(course, chapter)
    return workbook.run_cells(course, chapter, notebook, only=only, on_check=show,
                              env={"LABKIT_PLAY": str(course.state_dir / "play")} if play else None)


def result_text(course, result):
    """Return a verdict as the terminal shows it."""
    from rich.text import Text

    from labkit.course.check.verdict import Verdict

    if result.verdict:
        verdict = Verdict.from_result(result.verdict)
        return replace(verdict, player=verdict.player and paths.shown(verdict.player, course.root))
    title = course.exercise(result.exercise).title
    return Text.assemble(("Not yet", "bold red"), f"  {title}\n  ", (result.problem, "bold"))


def watch(which: Which = None, device: Device = None):
    """Check your exercises again each time you save their notebook. Ctrl-C stops it."""
    import time

    from labkit.course import copies, next_step
    from labkit.course import registry as courses

    console, _ = consoles()
    course = learners_course(console)
    chapters, entry = find_exercises(course, which)
    if device is not None:
        choose_device(device)

    def saved(chapter):
        try:
            states = [path.stat() for path in (chapter.own_workbook, chapter.workbook) if path.is_file()]
        except FileNotFoundError:  # between the two halves of a save
            return None
        return [(stat.st_mtime_ns, stat.st_size) for stat in states]

    for chapter in chapters:
        say(console, copies.workbook(course, chapter))
    last_saved = {chapter: saved(chapter) for chapter in chapters}
    console.print(f"Watching {', '.join(courses.shown(c, c.own_workbook) for c in chapters)}. Ctrl-C ends it.",
                  soft_wrap=True)
    say_next(console, next_step.to_do(entry) if entry else next_step.following(course, chapters[0]))
    pending = {}
    while True:
        for chapter in chapters:
            snapshot = saved(chapter)
            if snapshot is None or snapshot == last_saved[chapter]:
                continue
            if pending.get(chapter) != snapshot:  # it may be half written: check again
                pending[chapter] = snapshot
                continue
            last_saved[chapter] = snapshot
            try:
                say(console, [*copies.arrange(course), *copies.workbook(course, chapter)])
                last_saved[chapter] = saved(chapter)  # before the check: a save while it runs is seen
                results = check_chapter(console, course, chapter, entry and (entry.name,), quiet=False)
                say_next(console, next_step.after_check(course, results))
            except courses.CourseError as error:
                console.print(f"[red]{error}[/]")
            console.print(f"[dim]{time.strftime('%H:%M:%S')}, waiting for the next save.[/]")
        time.sleep(0.3)


def hint(
    name: Name,
    tier: Annotated[
        int | None, typer.Option("--tier", help="1, 2 or 3. By default, the next one you have not seen.")
    ] = None,
):
    """Show a hint. Each further hint gives away more."""
    from rich.text import Text

    from labkit.course import next_step, progress

    console, _ = consoles()
    course = learners_course(console)
    console.print(Text(progress.hint(course, name, tier)))
    say_next(console, next_step.to_do(course.exercise(name)))


def reset(
    which: Annotated[str | None, typer.Argument(metavar="[NAME|NN]", help="An exercise, or a chapter.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every exercise.")] = False,
):
    """Restore the original version of an exercise. Your version moves to .labkit/backups; your progress stays."""
    from labkit.course import next_step, registry
    from labkit.course import workbooks as workbook

    if (which is None) != all_:
        fail("name an exercise or a chapter, or use --all", code=2)
    console, _ = consoles()
    course = learners_course(console)
    chapters, entry = find_exercises(course, which)
    for chapter in chapters:
        backup = workbook.reset(course, chapter, entry)
        description = registry.shown(chapter, chapter.own_workbook)
        if entry:
            description = f"{entry.name} in {description}"
        console.print(f"reset   {description}")
        if backup:
            console.print(f"        your version is kept as {paths.shown(backup, course.root)}")
    console.print("If the notebook is open in JupyterLab, reload it from disk (File menu) before you continue.")
    say_next(console, next_step.to_do(entry or course.exercises_of(chapters[0])[0]))


def progress(as_json: Annotated[bool, typer.Option("--json", help="Print the progress as JSON.")] = False):
    """Show which exercises you have passed, chapter by chapter."""
    from labkit.course import next_step
    from labkit.course import progress as memory

    console, errors = consoles()
    course = learners_course(errors if as_json else console)
    lessons = memory.finished(course)
    tables = memory.read(course)
    rows = []
    for chapter in course.chapters:
        entries = course.exercises_of(chapter)
        passed = [entry for entry in entries if entry.name in tables["passed"]]
        rows.append({
            "chapter": chapter.name, "title": chapter.title, "lesson_finished": chapter.name in lessons,
            "passed": [entry.name for entry in passed], "open": [e.name for e in entries if e not in passed],
            "points": sum(entry.points for entry in passed), "of_points": sum(entry.points for entry in entries),
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
    say_next(console, next_step.following(course))


def solution(
    name: Name,
    give_up: Annotated[bool, typer.Option("--give-up", help="Show it although you have not passed it.")] = False,
):
    """Show the answer to an exercise that you have passed."""
    from rich.syntax import Syntax

    from labkit.course import next_step
    from labkit.course import progress as memory

    console, errors = consoles()
    course = learners_course(errors)
    entry = course.exercise(name)
    if entry.file.solution is None:
        fail(f"The answer to {name} is not included in this copy.", code=1)
    if name not in memory.read(course)["passed"]:
        if not give_up:
            fail(f"You have not passed {name} yet. Try: labkit hint {name}. To see the answer anyway: "
                 f"labkit solution {name} --give-up", code=1)
        memory.shown(course, name)
    code = entry.file.solution.answer
    console.print(Syntax(code, "python", background_color="default") if console.is_terminal else code, markup=False)
    say_next(errors, next_step.following(course, entry.chapter))
