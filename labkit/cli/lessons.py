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
from urllib.parse import urlsplit

import typer

from labkit._common import paths
from labkit.cli.shared import Device, choose_device, consoles, fail, learners_course, progress_bar, say, say_next

Lessons = Annotated[
    list[str] | None, typer.Argument(metavar="[NN]...", help="Lessons, such as 01 or 04. All of them by default.")
]


def run(
    lessons: Lessons = None,
    device: Device = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the site in a browser when done.")] = False,
):
    """Execute the lessons on this machine and write the site to build/site.

    This runs the lessons in notebooks/*.py; it does not run changes that you made in a notebook. Without a GPU, several
    run in parallel. A failing lesson does not stop the others. The table at the end shows what passed.
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
        fail(f"Stopped. Running lessons were shut down; {summary}; the site is unchanged.", code=130)
    results = list(zip(chosen, results, strict=True))

    console.print()
    console.print(results_table(results))
    console.print(f"Site: {escape(paths.shown(index))}")
    if open_:
        import webbrowser

        webbrowser.open(index.resolve().as_uri())
    from labkit.course import next_step

    failed = [chapter for chapter, result in results if not result.passed]
    say_next(console, f"fix lesson {failed[0].number}, then: labkit run {failed[0].number}" if failed
             else next_step.following(course))
    if not all(result.passed for _, result in results):
        raise typer.Exit(1)


def compile_kernels(console) -> None:
    """Compile the kernels of the lessons in parallel: each lesson by itself would compile its own one by one."""
    with console.status("Looking for kernels that are not compiled yet") as status:

        def progress(done: int, of: int) -> None:
            status.update(f"Compiling kernels in parallel, {done} of {of}")

        try:
            from labkit.measure import ops

            compiled = ops.compile_ahead(progress)
        except Exception as error:  # the lessons compile what they need, one by one
            console.print(f"Kernels are compiled by each lesson: {type(error).__name__}: {error}", markup=False)
            return
    if compiled:
        console.print(f"Compiled {compiled} kernels, which are cached for next time.")


def line_of(chapter, result):
    """Return a line for a finished lesson."""
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
        typer.Option("--repository", metavar="URL", help="The repository's address on GitHub, for links and "
                     "Colab badges; by default the one in pyproject.toml."),
    ] = None,
):
    """Write the site to build/site from the built notebooks, ready for GitHub Pages, without executing anything.

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
        errors.print(f"[yellow]-[/] {len(without)} have no results, because their notebooks are stale or missing: "
                     f"labkit build {' '.join(without)}", soft_wrap=True)
    broken = pages.broken_links(index.parent)
    for problem in broken:
        errors.print(f"[red]-[/] {escape(problem)}", soft_wrap=True)
    console.print(f"Site: {escape(paths.shown(index))}")
    if broken:
        raise typer.Exit(1)


def build(
    lessons: Lessons = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only look for stale, missing or unlisted files and faulty exercises.")
    ] = False,
    readme_only: Annotated[
        bool, typer.Option("--readme", help="Only update the generated parts of README and of the pages in data/.")
    ] = False,
    exercises_only: Annotated[bool, typer.Option("--exercises", help="Only build the exercises.")] = False,
    search_only: Annotated[bool, typer.Option("--search", help="Only build the index for labkit search.")] = False,
    prose_only: Annotated[bool, typer.Option("--prose", help="Only update prose; execute nothing.")] = False,
    gpus_only: Annotated[bool, typer.Option("--gpus", help="Only find out what runs on which GPU: minutes of "
                                                           "compiling, without a GPU.")] = False,
    device: Device = None,
):
    """Execute notebooks/NN_topic.py into notebooks/NN_topic.ipynb, and make the exercises, README's tables and, if the
    encoder's weights are installed, the index for labkit search.

    A notebook that somebody has edited is first copied to .labkit/backups. --check executes the solutions, which must
    pass, and the exercises as handed out, which must not; it skips those that succeeded before and have not changed.
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
    if gpus_only:
        survey_gpus(console)
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
            if problem not in named:  # an unreadable exercise is found twice
                errors.print(f"[red]-[/] {escape(problem)}", soft_wrap=True)
        named.update(problems)
        return bool(problems)

    has_problems = say(build.check(course, chapters))
    if course.exercises:
        unmatched = say(workbook.unmatched(course))
        has_problems |= unmatched
        has_problems |= not unmatched and say(workbook.faults(course, chapters))
        # If something is stale, executing the cells would only report the same again.
        if not unmatched and not workbook.stale(course, chapters):
            with console.status("Checking the exercises") as status:
                has_problems |= say(
                    workbook.verify(course, chapters, lambda c: status.update(f"Running the exercises of {c.number}"))
                )
    if remark := search.stale(course):  # not a fault: making it needs weights that not everybody has
        errors.print(f"[yellow]-[/] {escape(remark)}", soft_wrap=True)
    if has_problems:
        raise typer.Exit(1)
    of = "" if len(chapters) == len(course.chapters) else f"{' '.join(chapter.number for chapter in chapters)} "
    console.print(f"Everything {'else ' if remark else ''}that labkit build {of}makes is fresh.")


def build_index(console, course, device: str | None, optional: bool = False) -> None:
    """Update the index for labkit search. optional: without the weights, print a sentence instead of failing."""
    from labkit.course import search
    from labkit.models import weights

    if not weights.is_there(search.MODEL):
        if not optional:
            weights.folder(search.MODEL)  # raises, and says how to get them
        elif remark := search.stale(course):
            console.print(f"left    data/{search.NAME}: {remark}, which needs the weights; get them with `labkit "
                          f"weights {search.MODEL.name}`", markup=False, soft_wrap=True)
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


def survey_gpus(console) -> None:
    """Compile every kernel for every supported GPU, and record what runs where. What has not changed since the record
    was made is not compiled again."""
    choose_device("cpu")
    from labkit.device.compiling import NoCompiler
    from labkit.measure import gpu_matrix, gpu_survey

    with progress_bar(console, "") as bar:
        task = bar.add_task("Planning", total=None)
        try:
            found = gpu_matrix.survey(gpu_survey.read(), progress=lambda what, done, of: bar.update(
                task, description=what, completed=done, total=of))
        except NoCompiler as error:
            fail(str(error), code=2)
    gpu_survey.write(found)
    console.print(f"wrote   {paths.shown(gpu_survey.RECORD)}, {len(found.kernels)} kernels for "
                  f"{len(gpu_matrix.TARGETS)} kinds of GPU")


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
    """Update the prose in these chapters' notebooks and keep their outputs."""
    from labkit.course import build

    for chapter in chapters:
        if build.rebuild_prose(course, chapter):
            console.print(f"wrote   notebooks/{chapter.built.name}")
        else:
            console.print(f"left    notebooks/{chapter.built.name}: its outputs are not from this source; to execute "
                          f"it: labkit build {chapter.number}", markup=False, soft_wrap=True)


def build_notebooks(console, course, chapters, device: str | None) -> bool:
    """Build these chapters; return True if any failed."""
    from rich.markup import escape

    from labkit.course import build, progress
    from labkit.course.lessons import in_words, show_time

    choose_device(device)
    progress.finished(course)  # remember what the learner has run before rebuilding notebooks
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
                       help="The lesson or exercise to open, then any options for JupyterLab."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show which lessons are finished, and exit.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Restart the lesson with a clean copy; yours is kept in "
                                                        ".labkit/backups.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
):
    """Open JupyterLab at your copy of the first lesson that you have not finished.

    Your copies of the lesson and its exercises are in work/, where updates of labkit do not overwrite them. A lesson is
    finished once you have run all of its cells without an error and saved it. Options that are not listed here go to
    JupyterLab: labkit learn --port 9000
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
        console.print("You have finished every lesson. To open one again: labkit learn NN")
        say_next(console, next_step.following(course))
        return
    if entry and clean:
        fail(f"--clean is for a lesson; to restore the original exercise: labkit reset {entry.name}", code=2)
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
        say_next(console, f"labkit learn {lesson or chapter.number} --allow-root, because you are root" if as_root
                 else "fix the problem that JupyterLab reports above, then: labkit learn")
        raise typer.Exit(code)
    console.print("JupyterLab has stopped. Your saved work is in work/.", soft_wrap=True)
    say_next(console, next_step.after_learning(course, chapter))


def open_jupyterlab(console, root: Path, path: Path, browser: bool, options: list[str]) -> int:
    """Run JupyterLab with the file open, print its address, and wait until it ends or Ctrl-C stops it. Return its exit
    code, or 0 after Ctrl-C."""
    from rich.markup import escape

    url_path = f"/lab/tree/{path.relative_to(root).as_posix()}"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}",
               # Not a file name: JupyterLab would open it only in a browser and leave it out of the printed address.
               f"--LabApp.default_url={url_path}",
               "--ServerApp.answer_yes=True",  # one Ctrl-C is enough
               "--ServerApp.log_level=WARN", "--LabApp.log_level=WARN"]
    if not browser:
        command.append("--no-browser")
    # The setting in assets/jupyter stops JupyterLab from asking about news and looking for updates.
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
    """Return the url, port and token of JupyterLab's record once the server answers. None if it ends or does not answer
    within a minute: it then prints its address itself."""
    from jupyter_core.paths import jupyter_runtime_dir

    path = Path(jupyter_runtime_dir()) / f"jpserver-{process.pid}.json"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            server = json.loads(path.read_text(encoding="utf-8"))
            if not server.get("sock"):  # the record is written before the server listens
                socket.create_connection((urlsplit(server["url"]).hostname, server["port"]), timeout=5).close()
            return server
        except (OSError, ValueError):  # not there yet, half of it, or not listening
            if process.poll() is not None:
                return None
            time.sleep(0.1)
    return None


def address(server: dict, url_path: str) -> str:
    token = server.get("token", "")
    return f"{server['url'].rstrip('/')}{url_path}{f'?token={token}' if token else ''}"


def end(process) -> None:
    """Wait for a server that Ctrl-C has also reached, or end it, starting with its kernels."""
    for stop, timeout_s in ((lambda: None, 3), (process.terminate, 15), (process.kill, None)):
        try:
            stop()
            process.wait(timeout_s)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # Ctrl-C once more: do not wait as long
            continue


def lesson_among(words: list[str]) -> tuple[str | None, list[str]]:
    """Return the lesson, or None, and the other words: a lesson is neither an option nor a value that follows one."""
    for index, word in enumerate(words):
        previous = words[index - 1] if index else ""
        if not word.startswith("-") and (not previous.startswith("-") or "=" in previous):
            return word, words[:index] + words[index + 1 :]
    return None, words
