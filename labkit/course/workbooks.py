"""The exercises' notebooks: built from the files of the exercises with the answers cut, run, checked, reset.

An answer stands between nbgrader's markers, ### BEGIN SOLUTION and ### END SOLUTION. Two ways to cut it:
- a region that is indented (the inside of a function) becomes "# Your code here" and `pass`. The markers stay in
  exercises/, so that nbgrader's generate_assignment takes the notebook as it is; a learner's copy has none;
- a region at column 0 goes altogether: the code above it in its cell is what the learner starts from. So for a kernel
  with a bug to find, a prediction (`idle = None`) and a blank page (`my_kernel = None`).
A cell that calls check("name", ...) is the exercise's test cell, locked and worth its points; the last code cell with a
region above it is its answer cell.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError
from labkit._common.files import read_json, read_text, temporary_space, write_text
from labkit.course import colab, exercise_files
from labkit.course.answer_cells import BEGIN, END, checked_name, ended_after, unmarked
from labkit.course.notebooks import (
    back_up,
    cells_sha256,
    edited,
    label,
    name_cells,
    parse,
    read_notebook,
    sha256,
    write_notebook,
)
from labkit.course.registry import Chapter, Course, CourseError, Entry, not_listed, shown
from labkit.course.sources import sources_of

STUB = ("# Your code here", "pass")
CELL_LIMIT_S = 120  # check stops what it runs much earlier; this is for the cells around it


def cut(source: str, name: str) -> tuple[str, bool, bool]:
    """A cell without its answers: (source, was something cut, is a region left for nbgrader to find)."""
    lines: list[str] = []
    inside, was_cut, is_left = False, False, False
    for line in source.split("\n"):
        if BEGIN in line:
            if inside:
                raise CourseError(f"{name}: {BEGIN} stands inside another one")
            inside = was_cut = True
            indent = line[: len(line) - len(line.lstrip())]
            if indent:
                is_left = True
                lines += [line, *(indent + stub for stub in STUB)]
            elif not any(text.strip() and not text.lstrip().startswith("#") for text in lines):
                raise CourseError(
                    f"{name}: {BEGIN} at column 0 with no code above it in its cell. Put there what the learner starts "
                    "from, such as `my_kernel = None  # write the kernel`"
                )
        elif END in line:
            if not inside:
                raise CourseError(f"{name}: {END} without {BEGIN}")
            inside = False
            if indent:
                lines.append(line)
        elif not inside:
            lines.append(line)
    if inside:
        raise CourseError(f"{name}: {BEGIN} without {END}")
    return "\n".join(lines).rstrip(), was_cut, is_left


# ---------------------------------------------------------------------------------------------------------------
# Building


def source_text(course: Course, chapter: Chapter) -> str:
    """The exercises of a chapter with their answers, as solutions/NN_topic.py has them."""
    files = [entry.file for entry in course.exercises_of(chapter)]
    return exercise_files.notebook_source(f"{chapter.number} · {chapter.title}: exercises", files)


def digest(course: Course, chapter: Chapter) -> str:
    """Return the hash of all inputs of a workbook: the source, the points, and the requirements."""
    points = [(entry.name, entry.points) for entry in course.exercises_of(chapter)]
    return sha256(f"{source_text(course, chapter)}\0{points}\0{asked(course, chapter)}")


def asked(course: Course, chapter: Chapter) -> dict[str, str]:
    """{exercise: what check asks for besides a right result}, of those that ask for something. The sentence stands with
    the demand, and nowhere else."""
    from labkit.course import exercises  # imports Numba

    sentences = {entry.name: exercises.find(entry.name).asked for entry in course.exercises_of(chapter)}
    return {name: sentence for name, sentence in sentences.items() if sentence}


def to_notebook(course: Course, chapter: Chapter, *, answers: bool = False, markers: bool = True):
    """The chapter's exercises as a notebook; with answers=True uncut, as a teacher keeps it. markers=False leaves
    nbgrader's out: it needs them to release a notebook, not to grade one."""
    name = f"solutions/{chapter.name}.py"
    for entry in course.exercises_of(chapter):
        for cell in entry.file.cells:
            cut(cell, paths.shown(entry.file.path))  # so that a missing marker is named with the file it belongs in
    notebook = parse(source_text(course, chapter), name)
    points = {entry.name: entry.points for entry in course.exercises_of(chapter)}
    answer, text, also_asked = None, None, asked(course, chapter)
    for cell in notebook.cells:
        cell["metadata"].clear()
        if cell.cell_type != "code":
            text = cell
            continue
        exercise = checked_name(cell.source)
        if exercise is None:
            cut_source, was_cut, is_left = cut(cell.source, name)
            if was_cut:
                answer = (cell, is_left)
            if not answers:
                cell["source"] = cut_source if markers else unmarked(cut_source)
            continue
        if answer is None:
            path = course.exercise(exercise).file.path
            raise CourseError(f"{paths.shown(path)}: {BEGIN} is missing in the learner's cell")
        if exercise in also_asked:
            text["source"] = f"{text.source.rstrip()}\n\n**Also checked.** {also_asked[exercise]}"
        _mark(cell, exercise, "check", grade=True, points=points[exercise])
        _mark(answer[0], exercise, "answer", solution=answer[1] or answers)
        answer = None
    name_cells(notebook)
    colab.add_setup(notebook, course.repository)
    label(notebook, name, digest(course, chapter))
    return notebook


def _mark(cell, exercise: str, role: str, *, grade: bool = False, solution: bool = False, points: int = 0) -> None:
    """nbgrader's metadata (schema 3), and ours. Without a region left, a cell is no solution cell to nbgrader: it would
    replace all of it."""
    cell["metadata"]["labkit"] = {"exercise": exercise, "role": role}
    if not (grade or solution):
        return
    cell["metadata"]["nbgrader"] = {
        "grade": grade,
        "grade_id": exercise if grade else f"{exercise}_answer",
        "locked": grade,
        "schema_version": 3,
        "solution": solution,
        "task": False,
        **({"points": points} if grade else {}),
    }
    if grade:
        cell["metadata"]["deletable"] = False


def build(course: Course, chapter: Chapter) -> Path | None:
    """Write solutions/NN_topic.py and exercises/NN_topic.ipynb. Returns the copy made of a notebook that somebody has
    worked in, if any."""
    notebook = to_notebook(course, chapter)
    chapter.solutions.parent.mkdir(parents=True, exist_ok=True)
    write_text(chapter.solutions, source_text(course, chapter))
    path = chapter.workbook
    backup = None
    if path.exists() and edited(path):
        backup = back_up(course, path)
    write_notebook(notebook, path)
    return backup


def with_exercises(course: Course, chapters) -> list[Chapter]:
    """Those of the chapters that have exercises."""
    return [chapter for chapter in chapters if course.exercises_of(chapter)]


# ---------------------------------------------------------------------------------------------------------------
# Looking for stale or wrong workbooks


def stale(course: Course, chapters: Collection[Chapter] | None = None) -> list[str]:
    """What `labkit build --exercises` would have to rebuild of these chapters, or of all, one sentence each. Executes
    nothing."""
    problems = []
    for chapter in with_exercises(course, course.chapters if chapters is None else chapters):
        name, command = shown(course, chapter.workbook), f"labkit build --exercises {chapter.number}"
        try:
            fresh = to_notebook(course, chapter)
        except UserError as error:
            problems.append(str(error))
            continue
        solutions = shown(course, chapter.solutions)
        if not chapter.solutions.is_file():
            problems.append(f"{solutions} is missing: run {command}")
        elif read_text(chapter.solutions) != source_text(course, chapter):
            problems.append(f"{solutions} is stale: run {command}, which writes it from the files of its exercises")
        notebook = read_notebook(chapter.workbook)
        if notebook is None:
            state = "cannot be read" if chapter.workbook.is_file() else "is missing"
            problems.append(f"{name} {state}: run {command}")
            continue
        about = notebook.metadata.get("labkit", {})
        if about.get("source_sha256") != fresh.metadata["labkit"]["source_sha256"]:
            problems.append(f"{name} is stale: an exercise in it has changed; run {command}")
        elif cells_sha256(notebook) != cells_sha256(fresh):
            problems.append(f"{name} was edited by hand: {command} makes it afresh and keeps the edited one in "
                            ".labkit/backups/exercises")
    listed = {chapter.name for chapter in with_exercises(course, course.chapters)}
    for folder, suffix in (("solutions", ".py"), ("exercises", ".ipynb")):
        for path in sorted((course.root / folder).glob("*")):
            if path.suffix == suffix and path.stem not in listed:
                problems.append(f"{shown(course, path)} belongs to no chapter with exercises in course.toml")
    return problems


def misplaced(course: Course) -> list[str]:
    """Files of exercises that course.toml does not list, or not in the chapter of their folder."""
    problems = []
    listed = {entry.name: entry for entry in course.exercises}
    for name, path in exercise_files.by_name(own=course.root == paths.REPOSITORY).items():
        if name not in listed:
            problems.append(not_listed(path))
        elif course.root == paths.REPOSITORY and path.parent.name != listed[name].chapter.topic:
            problems.append(f"{paths.shown(path)}: course.toml lists it in the chapter {listed[name].chapter.name}, so "
                            f"it belongs in the folder {listed[name].chapter.topic}")
    return problems


def unmatched(course: Course) -> list[str]:
    """Files of exercises that are misplaced, or that cannot be used. Imports Numba."""
    from labkit.course import exercises

    problems = misplaced(course)
    for entry in course.exercises:
        try:
            exercises.find(entry.name)
        except UserError as error:
            problems.append(str(error))
    return problems


def faults(course: Course, chapters: Collection[Chapter]) -> list[str]:
    """Return the faults of these chapters' exercises, a teacher's own included: edits that do not apply to the answer,
    and parameters that do not vary; a sentence each."""
    from labkit.course import exercises
    from labkit.course.exercises import parameters

    of_others = {entry.name for entry in course.exercises if entry.chapter not in chapters}
    return [fault for name, exercise in exercises.load(own=course.root == paths.REPOSITORY).items()
            if name not in of_others for fault in (*exercise.wrong.faults(), *parameters.faults(exercise))]


def verify(course: Course, chapters, on_chapter: Callable | None = None) -> list[str]:
    """Executes solutions, which must pass, and workbooks, which must not. What passes is remembered until a file of
    it changes."""
    path = course.state_dir / "verified.json"
    try:
        known = read_json(path)
    except (OSError, ValueError):
        known = {}
    problems = []
    for chapter in with_exercises(course, chapters):
        state = _state(course, chapter)
        if known.get(chapter.topic) == state:
            continue
        if on_chapter:
            on_chapter(chapter)
        faults = verify_chapter(course, chapter)
        problems += faults
        if not faults:
            known[chapter.topic] = state
            write_text(path, json.dumps(known, indent=2) + "\n")
    return problems


def _state(course: Course, chapter: Chapter) -> str:
    """The hash of all that decides whether a chapter's solutions pass: the exercises, and each file of labkit that
    these import, check and the CPU device among them."""
    sources = [path for entry in course.exercises_of(chapter)
               for path in (entry.file.path, entry.file.path.parent / "__init__.py")]
    files = {*sources, *(file for each in (*sources, source_text(course, chapter)) for file in sources_of(each))}
    parts = [digest(course, chapter), *(file.read_text(encoding="utf-8") for file in sorted(files))]
    return sha256("\0".join(parts))


def verify_chapter(course: Course, chapter: Chapter) -> list[str]:
    """Every solution must pass and every skeleton must run and fail, for a chapter."""
    problems = []
    quiet = {"LABKIT_PROGRESS": "0"}
    for result in run_cells(course, chapter, to_notebook(course, chapter, answers=True), env=quiet):
        if not result.passed:
            problems.append(f"the solution of {result.exercise} fails: {result.message}")
    for result in run_cells(course, chapter, to_notebook(course, chapter), env=quiet):
        if result.passed:
            problems.append(f"the exercise {result.exercise} passes before anything is done")
        elif result.problem:
            problems.append(f"the skeleton of {result.exercise} does not run: {result.problem}")
    return problems


# ---------------------------------------------------------------------------------------------------------------
# Running a workbook


@dataclass
class Result:
    """What became of one exercise in a notebook. `verdict` is what check returned (as JSON), or None with a problem."""

    exercise: str
    verdict: dict | None = None
    problem: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.verdict and self.verdict["passed"])

    @property
    def message(self) -> str:
        if self.problem:
            return self.problem
        return " ".join([self.verdict["headline"], *self.verdict["details"]])


@dataclass
class _Events:
    """Lines that the running process writes, and whether it still does."""

    lines: list = field(default_factory=list)
    woken: threading.Event = field(default_factory=threading.Event)


def run_cells(
    course: Course,
    chapter: Chapter,
    notebook,
    only: Collection[str] | None = None,
    env: dict | None = None,
    on_check: Callable | None = None,
) -> list[Result]:
    """Run a notebook's cells in a process of its own, whatever fails, and collect what check returned, for each
    exercise.

    only: the names of the exercises whose test cells are run; None for all. on_check(result) is called after each.
    A cell that takes longer than CELL_LIMIT_S ends the run.
    """
    cells, owners = [], []
    for cell in notebook.cells:
        name = checked_name(cell.source) if cell.cell_type == "code" else None
        if cell.cell_type == "code" and (name is None or only is None or name in only):
            cells.append(cell.source)
            owners.append(name)
    names = [entry.name for entry in course.exercises_of(chapter) if only is None or entry.name in only]
    with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as folder:
        job = Path(folder) / "cells.json"
        job.write_text(json.dumps(cells), encoding="utf-8")
        environment = {**os.environ, "MPLBACKEND": "Agg", "IPYTHONDIR": folder, "NBGRADER_EXECUTION": "",
                       "LABKIT_COURSE": str(course.root), **(env or {})}
        folders = (chapter.own_workbook.parent, chapter.workbook.parent, course.root)
        directory = next(folder for folder in folders if folder.is_dir())
        process = subprocess.Popen(
            [sys.executable, "-m", "labkit.course.run_cells", str(job)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8", env=environment,
            cwd=directory,
        )
        try:
            return _collect(process, owners, names, on_check)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _collect(process, owners: list, names: list[str], on_check: Callable | None) -> list[Result]:
    events = _Events()

    def listen():
        try:
            for line in process.stdout:
                events.lines.append(line)
                events.woken.set()
        except ValueError:  # closed while it was read
            pass
        events.lines.append(None)
        events.woken.set()

    threading.Thread(target=listen, daemon=True).start()
    results: dict[str, Result] = {}
    broken = ""  # what went wrong in a cell since the last test cell
    position = consumed = 0

    def record(result: Result):
        results[result.exercise] = result
        if on_check:
            on_check(result)

    while True:
        if consumed == len(events.lines):
            events.woken.clear()
            if consumed == len(events.lines) and not events.woken.wait(CELL_LIMIT_S):
                broken = f"a cell did not end within {CELL_LIMIT_S} s and was stopped"
                break
            continue
        line = events.lines[consumed]
        consumed += 1
        if line is None:
            if position < len(owners):
                broken = f"the Python process ended; {temporary_space()}"
            break
        event = json.loads(line)
        owner = owners[event["cell"]]
        position = event["cell"] + 1
        if owner is None:
            broken = event["error"] or broken
            continue
        if event["verdict"]:
            verdict = event["verdict"]
            if broken:  # after the definition, which was checked all the same
                verdict = {**verdict, "details": [*verdict["details"], ended_after(broken)]}
            record(Result(owner, verdict))
        else:
            problem = broken or event["error"] or "its test cell does not end with check(...)"
            record(Result(owner, problem=("in the cell above: " if broken else "") + problem))
        broken = ""
    for name in names:
        if name not in results:
            missing = "its test cell, check(...), is not in the notebook: labkit reset puts it back"
            record(Result(name, problem=broken if name in owners else missing))
    return [results[name] for name in names]


# ---------------------------------------------------------------------------------------------------------------
# Reset, solution


def reset(course: Course, chapter: Chapter, entry: Entry | None = None) -> Path | None:
    """Put an exercise (or a whole chapter) back as it was given, in the learner's copy. Returns the copy of what was
    there, if any."""
    fresh = to_notebook(course, chapter, markers=False)
    path = chapter.own_workbook
    backup = back_up(course, path) if path.is_file() else None
    mine = read_notebook(path)
    if entry is None or mine is None:
        write_notebook(fresh, path)
        return backup
    for cell in fresh.cells:
        if cell.metadata.get("labkit", {}).get("exercise") != entry.name:
            continue
        role = cell.metadata["labkit"]["role"]
        positions = [k for k, old in enumerate(mine.cells) if _is_part(old, entry.name, role)]
        if positions:
            mine.cells[positions[0]] = cell
        else:
            mine.cells.append(cell)
    ids: set[str] = set()
    for cell in mine.cells:  # a cell copied by hand may carry the same id
        base, suffix = cell.get("id", "cell"), 1
        while cell.get("id") in ids or "id" not in cell:
            suffix += 1
            cell["id"] = f"{base}-{suffix}"
        ids.add(cell["id"])
    mine.nbformat, mine.nbformat_minor = 4, 5
    write_notebook(mine, path)
    return backup


def _is_part(cell, exercise: str, role: str) -> bool:
    about = cell.metadata.get("labkit", {})
    return about.get("exercise") == exercise and about.get("role") == role
