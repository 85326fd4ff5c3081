"""The command for teachers: grade."""

from pathlib import Path
from typing import Annotated

import typer

from labkit._common.errors import UserError
from labkit.cli.shared import consoles


def grade(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The submissions: a folder or a .zip, as exported by "
                                           "nbgrader, Moodle, Canvas or GitHub Classroom.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write the results.")] = Path("grades"),
    chapter: Annotated[list[str] | None, typer.Option("--chapter", metavar="NN", help="Grade only this chapter's "
                                                      "exercises; can be repeated.")] = None,
    roster: Annotated[Path | None, typer.Option("--roster", metavar="FILE", help="A CSV with the columns id, name, "
                                                "email; it matches files to students and lists missing ones.")] = None,
    similar: Annotated[bool, typer.Option("--similar", help="Also write similar.html and similar.txt: pairs of "
                                          "answers that differ only in names, order and constants. Scores do not "
                                          "change.")] = False,
    gradebook: Annotated[bool, typer.Option("--gradebook", help="Also write nbgrader's gradebook.db.")] = False,
    scheduler: Annotated[str | None, typer.Option("--scheduler", metavar="ADDRESS", help="Use this dask cluster, such "
                                                  "as tcp://host:8786.")] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Answers to grade in parallel; by default one "
                                         "per core.")] = 0,
    secret: Annotated[Path | None, typer.Option("--secret", "--seed-file", metavar="FILE", help="The secret from which "
                                                "inputs are drawn; created on first use.")] = None,
    isolation: Annotated[str, typer.Option("--isolation", help="auto, namespaces, bwrap or limits.")] = "auto",
):
    """Grade a class: every exercise of every submission, each in an isolated process.

    Only the names at the top of FOLDER decide whose file is whose; names inside a student's folder do not. Launches
    made by a function are observed like kernels; anything that cannot be observed gets no points, and the page says
    why. The class's page ends with notes, one line per kind and student. If interrupted, the same command resumes.
    Exits with code 1 if an answer could not be graded.
    """
    import functools
    import importlib.util
    import os
    import time

    from labkit._common.cores import cores
    from labkit.course import registry as courses
    from labkit.course.grade import batch, feedback, sandbox
    from labkit.course.grade import similar as similarity
    from labkit.course.grade.collect import collect
    from labkit.course.grade.journal import Lock
    from labkit.course.grade.judge import Settings, read_secret
    from labkit.course.grade.notes import lines
    from labkit.course.grade.tasks import plan
    from labkit.course.grade.workers import judge_locally, judge_with_dask

    console, errors = consoles()
    os.environ["LABKIT_DEVICE"] = "cpu"  # the same verdicts on every machine
    course = courses.load()
    if workers < 0:
        raise UserError(f"--workers is {workers}; it must be 1 or more, or 0 for one per core")
    allowed = ("auto", *sandbox.ISOLATIONS)
    if isolation not in allowed:
        raise UserError(f"--isolation {isolation} is not known; allowed are {', '.join(allowed)}")
    if gradebook:
        feedback.gradebook_class()
    if scheduler and importlib.util.find_spec("distributed") is None:
        raise UserError("--scheduler needs dask; install it with: pip install -e '.[grade]'")
    workers = workers or cores()
    secret = secret or course.state_dir / "grading-secret"
    out.mkdir(parents=True, exist_ok=True)
    secret.parent.mkdir(parents=True, exist_ok=True)
    work = out.resolve() / ".work"
    lock = Lock(work / "lock")

    begin = time.monotonic()
    collected = collect(folder, roster)
    names = {item.name for item in course.pick(chapter)} if chapter else None
    key = read_secret(secret)
    tasks = plan(course, collected, key, names)
    if not tasks.entries:
        raise UserError(f"no file in {folder} answers an exercise of this course: none calls check(\"name\", ...)")
    if isolation == "auto":
        isolation = sandbox.best_isolation()
        if isolation == "limits":
            raise UserError("this system offers no namespaces, so an answer could read the references and anything you "
                            "can read. Install bubblewrap (bwrap), or accept that with --isolation limits")
    elif not sandbox.works(isolation):
        raise UserError(f"--isolation {isolation} does not work on this system; use "
                        f"{sandbox.best_isolation()}")
    isolation_text = sandbox.describe(isolation, os.geteuid() == 0 and isolation != "bwrap")
    if isolation == "limits":
        errors.print(f"[yellow]{isolation_text}[/]")
    settings = Settings(work, key, isolation, (folder.resolve(), secret.resolve()))
    if scheduler:
        judge = functools.partial(judge_with_dask, address=scheduler)
    else:
        judge = functools.partial(judge_locally, workers=workers)

    people = f"{len(collected.files)} student{'' if len(collected.files) == 1 else 's'}"
    console.print(f"{people}, {len(tasks.tasks)} answers to {len(tasks.entries)} exercises.")
    with _progress(errors) as bar:
        step = bar.add_task("", total=len(tasks.tasks))

        def show(task, result, was_cached):
            bar.update(step, advance=1, description=f"{task.student[:24]}  {task.exercise}")

        verdicts = batch.run(settings, tasks, judge, show)

    rows = batch.rows(collected, tasks, verdicts)
    failed = [row for row in rows if row.result["verdict"] == "not_graded"]
    notes = lines([*tasks.notes, *batch.notes_of(rows)])
    about = {"graded_on": "the CPU device", "isolation": isolation, "isolation_says": isolation_text,
             "notes": notes, "missing": [student.id for student in collected.missing]}
    feedback.write_scores(out, rows, about)
    feedback.write_pages(out, rows, course.title, isolation_text, notes)
    if similar:
        pairs = similarity.pairs_of_class(course, collected, tasks)
        feedback.write_similar(out, pairs)
        console.print(f"{len(pairs)} pair{'' if len(pairs) == 1 else 's'} of similar answers: {out}/similar.html",
                      markup=False)
    if gradebook:
        feedback.write_gradebook(out / "gradebook.db", rows)
    passed = sum(row.passed for row in rows)
    console.print(f"{passed} of {len(rows)} passed, in {time.monotonic() - begin:.0f} s. "
                  f"{len(collected.missing)} students handed in nothing, {len(notes)} notes.")
    console.print(isolation_text, style="dim")
    console.print(f"{out}/scores.csv, {out}/scores.json, {out}/index.html", markup=False)
    lock.release()
    if failed:
        for row in failed:
            errors.print(f"Not graded: {row.student.shown}, {row.entry.name}", markup=False)
        raise typer.Exit(1)


def _progress(console):
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                    TextColumn("{task.description}", markup=False), console=console, transient=True)
