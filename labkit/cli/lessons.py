"""The commands for lessons: run, site, build and learn."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from labkit._common import paths
from labkit.cli.shared import Device, choose_device, consoles, fail, learners_course, progress_bar, say, say_next

Lessons = Annotated[
    list[str] | None, typer.Argument(metavar="[NN]...", help="Lessons, such as 01 or 04. All of them when left out.")
]


def run(
    lessons: Lessons = None,
    device: Device = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the site in a browser at the end.")] = False,
):
    """Execute the lessons on this machine and write the site build/site.

    The lessons are those of notebooks/*.py; what you changed in a notebook is yours and is not run. Without a GPU
    several run at a time. A failing lesson does not stop the others. The table at the end says what passed.
    """
    from rich.markup import escape

    from labkit.course import registry as courses
    from labkit.course.execution import at_once
    from labkit.course.lessons import run_lessons

    console, _ = consoles(progress=True)
    course = courses.load()
    chosen = course.pick(lessons or [])
    chosen_device = choose_device(device)
    console.print(f"Device: [bold]{escape(chosen_device.name())}[/]. {escape(chosen_device.choice().reason)}")
    several = at_once(len(chosen), chosen_device.kind())
    if several > 1:
        console.print(f"{several} lessons at a time.")

    ended, tasks = [], {}
    try:
        if chosen_device.kind() == "gpu" and len(chosen) > 1:
            compile_kernels(console)
        with progress_bar(console) as bar:

            def on_cell(chapter, done: int, total: int) -> None:
                if chapter.name not in tasks:
                    tasks[chapter.name] = bar.add_task(f"{chapter.number} {chapter.title}")
                bar.update(tasks[chapter.name], completed=done, total=total)

            def on_end(chapter, result) -> None:
                if chapter.name in tasks:
                    bar.remove_task(tasks[chapter.name])
                ended.append(chapter)
                console.print(line_of(chapter, result))

            results = run_lessons(course, chosen, device, at_once=several, on_cell=on_cell, on_end=on_end)
        from labkit.course import site

        index = site.write(course)
    except KeyboardInterrupt:
        summary = f"{len(ended)} finished {'lesson is' if len(ended) == 1 else 'lessons are'} kept in build/lessons"
        fail(f"Stopped. What ran was shut down; {summary}; the site was left as it was.", code=130)
    results = list(zip(chosen, results, strict=True))

    console.print()
    console.print(results_table(results))
    console.print(f"Site: {escape(paths.shown(index))}")
    if open_:
        import webbrowser

        webbrowser.open(index.resolve().as_uri())
    from labkit.course import next_step

    failed = [chapter for chapter, result in results if not result.passed]
    say_next(console, f"mend lesson {failed[0].number}, then: labkit run {failed[0].number}" if failed
             else next_step.following(course))
    if not all(result.passed for _, result in results):
        raise typer.Exit(1)


def compile_kernels(console) -> None:
    """The kernels that the lessons will launch, side by side: each lesson alone would compile its own one by one."""
    with console.status("Looking for kernels that are not compiled yet") as status:

        def progress(done: int, of: int) -> None:
            status.update(f"Compiling kernels side by side, {done} of {of}")

        try:
            from labkit.measure import ops

            compiled = ops.compile_ahead(progress)
        except Exception as error:  # the lessons compile what they need, one after the other
            console.print(f"Kernels are compiled by each lesson: {type(error).__name__}: {error}", markup=False)
            return
    if compiled:
        console.print(f"Compiled {compiled} kernels, which are kept for the next time.")


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


def site(
    repository: Annotated[
        str | None,
        typer.Option("--repository", metavar="URL", help="The repository's address on GitHub, for links and for "
                     "Colab's badges, if not the one in pyproject.toml."),
    ] = None,
):
    """Write the site build/site from the notebooks as they are built, ready for GitHub Pages. Executes nothing.

    labkit run writes the same site with this machine's results.
    """
    from rich.markup import escape

    from labkit.course import registry as courses
    from labkit.course import site as pages

    console, errors = consoles()
    course = courses.load()
    if repository is not None:
        courses.check_repository(repository, "--repository")
    with progress_bar(console, "lessons") as bar:
        task = bar.add_task("Pages", total=len(course.chapters))
        index = pages.write(course, from_here=False, repository=repository,
                            on_page=lambda done, of: bar.update(task, completed=done))
    without = [chapter.number for chapter in course.chapters if not pages.shipped(chapter)]
    if without:
        errors.print(f"[yellow]-[/] {len(without)} without results, since their notebooks are stale or missing: labkit "
                     f"build {' '.join(without)}", soft_wrap=True)
    broken = pages.broken_links(index.parent)
    for problem in broken:
        errors.print(f"[red]-[/] {escape(problem)}", soft_wrap=True)
    console.print(f"Site: {escape(paths.shown(index))}")
    if broken:
        raise typer.Exit(1)


def build(
    lessons: Lessons = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only look for stale, missing or unlisted files, and for wrong exercises.")
    ] = False,
    readme_only: Annotated[bool, typer.Option("--readme", help="Only README's generated parts.")] = False,
    exercises_only: Annotated[bool, typer.Option("--exercises", help="Only the exercises.")] = False,
    search_only: Annotated[bool, typer.Option("--search", help="Only the index of labkit search.")] = False,
    prose_only: Annotated[bool, typer.Option("--prose", help="Only prose and its numbers: executes nothing.")] = False,
    device: Device = None,
):
    """Make notebooks/NN_topic.ipynb from notebooks/NN_topic.py, executed, the exercises, README's tables, and, where
    the weights of the encoder are, the index of labkit search.

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

    if search_only:
        build_index(console, course, device)
        return

    failed = False
    if prose_only:
        rebuild_prose(console, course, course.pick(lessons or []))
    elif not readme_only:
        chapters = course.pick(lessons or [])
        build_workbooks(console, errors, course, chapters)
        if not exercises_only:
            failed = build_notebooks(console, course, chapters, device)
    for page in readme.write(course) if not exercises_only else ():
        console.print(f"wrote   {page}", markup=False)
    if not exercises_only and not readme_only and not prose_only:
        build_index(console, course, device, optional=True)
    if failed:
        raise typer.Exit(1)


def check_build(console, errors, course, chapters) -> None:
    """List stale or wrong files; exit with code 1 if there are any."""
    from rich.markup import escape

    from labkit.course import build, search
    from labkit.course import workbooks as workbook

    named = set()

    def say(problems):
        for problem in problems:
            if problem not in named:  # an exercise that cannot be read is found twice
                errors.print(f"[red]-[/] {escape(problem)}", soft_wrap=True)
        named.update(problems)
        return bool(problems)

    has_problems = say(build.check(course, chapters))
    if course.exercises:
        unmatched = say(workbook.unmatched(course))
        has_problems |= unmatched
        has_problems |= not unmatched and say(workbook.faults(course, chapters))
        # Where something is stale, the executed cells would only say the same again.
        if not unmatched and not workbook.stale(course, chapters):
            with console.status("Checking the exercises") as status:
                has_problems |= say(
                    workbook.verify(course, chapters, lambda c: status.update(f"Running the exercises of {c.number}"))
                )
    if remark := search.stale(course):  # no fault: to make it takes weights that not everybody has
        errors.print(f"[yellow]-[/] {escape(remark)}", soft_wrap=True)
    if has_problems:
        raise typer.Exit(1)
    of = "" if len(chapters) == len(course.chapters) else f"{' '.join(chapter.number for chapter in chapters)} "
    console.print(f"Everything {'else ' if remark else ''}that labkit build {of}makes is fresh.")


def build_index(console, course, device: str | None, optional: bool = False) -> None:
    """Bring the index of labkit search up to date. optional: a sentence will do where there are no weights."""
    from labkit.course import search
    from labkit.models import weights

    if not weights.is_there(search.MODEL):
        if not optional:
            weights.folder(search.MODEL)  # raises, and says how to get them
        elif remark := search.stale(course):
            console.print(f"left    data/{search.NAME}: {remark}, which takes the weights that `labkit weights "
                          f"{search.MODEL.name}` fetches", markup=False, soft_wrap=True)
        return
    choose_device(device)
    from labkit.models.sentences import Encoder

    def encode(texts: list[str]):
        with progress_bar(console, "passages") as bar:
            task = bar.add_task(f"data/{search.NAME}", total=len(texts))
            return Encoder.from_pretrained(search.MODEL.name).encode(
                texts, progress=lambda done, of: bar.update(task, completed=done))

    count = search.build(course, encode)
    if count is not None:
        console.print(f"wrote   data/{search.NAME}, {count:,} passages encoded")


def build_workbooks(console, errors, course, chapters) -> None:
    from rich.markup import escape

    from labkit.course import workbooks as workbook

    for chapter in workbook.with_exercises(course, chapters):
        backup = workbook.build(course, chapter)
        if backup:
            console.print(f"        your edited {chapter.workbook.name} is kept as {paths.shown(backup, course.root)}")
        console.print(f"wrote   exercises/{chapter.workbook.name}")
    for problem in workbook.misplaced(course):
        errors.print(f"[yellow]-[/] {escape(problem)}", soft_wrap=True)


def rebuild_prose(console, course, chapters) -> None:
    """Bring the prose of these chapters' notebooks up to date; their outputs stay."""
    from labkit.course import build

    for chapter in chapters:
        if build.rebuild_prose(course, chapter):
            console.print(f"wrote   notebooks/{chapter.built.name}")
        else:
            console.print(f"left    notebooks/{chapter.built.name}: its outputs are not those of this source; labkit "
                          f"build {chapter.number} executes it", markup=False, soft_wrap=True)


def build_notebooks(console, course, chapters, device: str | None) -> bool:
    """Build these chapters; True when one of them failed."""
    from rich.markup import escape

    from labkit.course import build, progress
    from labkit.course.lessons import in_words, show_time

    choose_device(device)
    progress.finished(course)  # remember what the learner has run before notebooks are made anew
    failed = False
    with progress_bar(console) as bar:
        for chapter in chapters:
            task = bar.add_task(f"{chapter.number} {chapter.title}", total=None)
            outcome, backup = build.build_chapter(
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
                console.print(f"        your edited {chapter.built.name} is kept as {paths.shown(backup, course.root)}")
            console.print(f"wrote   notebooks/{chapter.built.name}, {show_time(outcome.seconds)}")
    return failed


def learn(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NN|NAME] [JUPYTERLAB'S OPTIONS]",
                       help="The lesson, or the exercise, to open; then what goes to JupyterLab."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show which lessons are finished, and leave.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Begin the lesson with a clean copy; yours is kept in "
                                                        ".labkit/backups.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
):
    """Open JupyterLab at your copy of the first lesson that you have not finished.

    Your copies of the lesson and of its exercises are in work/, where nothing that comes with a newer labkit
    overwrites them. A lesson is finished once you have run all of its cells without an error and saved it. Options
    that are not listed here go to JupyterLab: labkit learn --port 9000
    """
    from labkit.course import copies, next_step, progress, registry

    console, _ = consoles()
    lesson, for_jupyterlab = lesson_among(words or [])
    course = learners_course(console)
    done = progress.finished(course)
    if list_:
        width = 2 + max(len(chapter.title) for chapter in course.chapters)
        for chapter in course.chapters:
            mark = f"[green]finished {done[chapter.name]}[/]" if chapter.name in done else "[dim]to do[/]"
            console.print(f"{chapter.number}  {chapter.title:{width}}{mark}")
        say_next(console, next_step.following(course))
        return

    entry = next((entry for entry in course.exercises if entry.name == lesson), None)
    if entry:
        chapter = entry.chapter
    else:
        chapter = course.pick([lesson], or_exercise=True)[0] if lesson else progress.next_lesson(course)
    if chapter is None:
        console.print("You have finished every lesson. labkit learn NN opens one again.")
        say_next(console, next_step.following(course))
        return
    if entry and clean:
        fail(f"--clean is for a lesson; to put the exercise back as it was given: labkit reset {entry.name}", code=2)
    if importlib.util.find_spec("jupyterlab") is None:
        fail("JupyterLab, which shows the lessons, is not installed. Install it with: pip install jupyterlab", code=2)
    say(console, copies.lesson(course, chapter, clean=clean))
    path = chapter.own_workbook if entry else chapter.own_lesson
    console.print(f"Lesson {chapter.number}, {chapter.title}. {len(done)} of {len(course.chapters)} finished.",
                  soft_wrap=True)
    console.print(f"Your copy: {registry.shown(chapter, chapter.own_lesson)}", soft_wrap=True)
    if course.exercises_of(chapter):
        say(console, copies.workbook(course, chapter))
        console.print(f"Exercises: {registry.shown(chapter, chapter.own_workbook)}", soft_wrap=True)
    say_next(console, next_step.to_do(entry) if entry else next_step.in_lesson(course, chapter))

    code = open_jupyterlab(console, course.root, path, browser, for_jupyterlab)
    if code:
        as_root = hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in for_jupyterlab
        say_next(console, f"labkit learn {lesson or chapter.number} --allow-root, since you are root" if as_root
                 else "mend what JupyterLab says above, then: labkit learn")
        raise typer.Exit(code)
    console.print("JupyterLab has ended. What you saved is in work/.", soft_wrap=True)
    say_next(console, next_step.after_learning(course, chapter))


def open_jupyterlab(console, root: Path, path: Path, browser: bool, options: list[str]) -> int:
    """Run JupyterLab with the file open until it ends, and say its address; Ctrl-C ends it. Returns its exit code, 0
    after Ctrl-C."""
    from rich.markup import escape

    url_path = f"/lab/tree/{path.relative_to(root).as_posix()}"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}",
               # Not a file name: that one JupyterLab opens in a browser only, and leaves out of the address it prints.
               f"--LabApp.default_url={url_path}",
               "--ServerApp.answer_yes=True",  # one Ctrl-C is enough
               "--ServerApp.log_level=WARN", "--LabApp.log_level=WARN"]
    if not browser:
        command.append("--no-browser")
    # assets/jupyter has one setting: JupyterLab does not ask whether it may fetch news, and looks for no updates.
    config = os.pathsep.join(filter(None, [os.environ.get("JUPYTER_CONFIG_PATH"), str(paths.ASSETS / "jupyter")]))
    process = subprocess.Popen([*command, *options], env={**os.environ, "JUPYTER_CONFIG_PATH": config})
    try:
        if server := running_server(process):
            console.print(f"JupyterLab: [bold]{escape(address(server, url_path))}[/]", soft_wrap=True)
            if not browser:
                console.print(f"From another machine, first: ssh -L {server['port']}:localhost:{server['port']} "
                              f"{socket.gethostname()}", markup=False, soft_wrap=True)
            console.print("Ctrl-C here ends it.")
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        end(process)


def running_server(process) -> dict | None:
    """What JupyterLab notes about itself once it answers: its url, port and token. None if it ends, or does not note
    it within a minute: it then says its address itself."""
    from jupyter_core.paths import jupyter_runtime_dir

    path = Path(jupyter_runtime_dir()) / f"jpserver-{process.pid}.json"
    for _ in range(600):
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there yet, or half of it
            if process.poll() is not None:
                return None
            time.sleep(0.1)
    return None


def address(server: dict, url_path: str) -> str:
    token = server.get("token", "")
    return f"{server['url'].rstrip('/')}{url_path}{f'?token={token}' if token else ''}"


def end(process) -> None:
    """Wait for a server that Ctrl-C has reached, too; else end it, its kernels first."""
    for stop, timeout_s in ((lambda: None, 3), (process.terminate, 15), (process.kill, None)):
        try:
            stop()
            process.wait(timeout_s)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # Ctrl-C once more: do not wait as long
            continue


def lesson_among(words: list[str]) -> tuple[str | None, list[str]]:
    """The lesson, or None, and the words left: a lesson is neither an option nor the value that may follow one."""
    for index, word in enumerate(words):
        previous = words[index - 1] if index else ""
        if not word.startswith("-") and (not previous.startswith("-") or "=" in previous):
            return word, words[:index] + words[index + 1 :]
    return None, words
