"""`labkit run`: executes the lessons, keeps each result, writes the site and the table.

Each lesson that ran is kept as build/lessons/NN_topic.ipynb, with its result in the metadata. The site shows every
lesson kept for the present source, so a run of one lesson does not lose the others.
"""

import asyncio
import collections
import functools
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from labkit._common.cores import cores
from labkit._common.version import __version__
from labkit.course import execution
from labkit.course.execution import Problem
from labkit.course.notebooks import read_notebook, sha256, write_notebook
from labkit.course.prose import to_notebook
from labkit.course.registry import Chapter, Course, CourseError


@dataclass(frozen=True)
class LessonResult:
    name: str
    kernels: tuple[str, ...]
    max_error: float | None  # the largest against NumPy, None where no agreement was shown
    seconds: float
    passed: bool
    problem: str  # why not, in a sentence; empty when passed
    device: str
    device_kind: str  # "gpu" or "cpu"
    date: str  # ISO, to the minute
    source_sha256: str
    versions: dict[str, str]


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    result = {"labkit": __version__, "Python": platform.python_version()}
    for package in ("numba", "numba-cuda", "numpy"):
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            result[package] = "not installed"
    return result


def summarise(shown: list[dict], problem: str) -> dict:
    """The part of a LessonResult that the displayed results decide.

    Passed means: every cell ran, at least one agreement was shown, and all of them passed. A model whose steps all
    agree is one, too; a lesson may also show one that does not, to say how a mistake looks.
    """
    agreements = [result for result in shown if result.get("kind") == "agreement"]
    kernels = tuple(dict.fromkeys(kernel for result in shown for kernel in result.get("kernels", ())))
    errors = [float(a["max_error"]) for a in agreements if a.get("max_error") is not None]
    # A NaN must not hide behind a comparison: it is the largest error there is.
    largest = math.nan if any(math.isnan(e) for e in errors) else max(errors, default=None)
    models = [result for result in shown if result.get("kind") == "parity" and result.get("passed")]
    if not problem and not agreements and not models:
        problem = "the lesson shows no agreement with NumPy"
    wrong = [str(a.get("op", "?")) for a in agreements if not a.get("passed")]
    if not problem and wrong:
        problem = f"disagrees with NumPy: {', '.join(wrong)}"
    return {"kernels": kernels, "max_error": largest, "passed": not problem, "problem": problem}


def in_words(problem: Problem, chapter: Chapter) -> str:
    code = f" `{problem.code}`" if problem.code else ""
    return f"{problem.where(chapter)}:{code} gave {problem.error}"


def run_lessons(
    course: Course, chapters: Sequence[Chapter], device: str | None = None, *, at_once: int = 1,
    on_cell: Callable | None = None, on_end: Callable | None = None,
) -> list[LessonResult]:
    """Execute lessons from their sources and keep each. A failing lesson is kept too: its page shows the error.

    at_once: how many run concurrently. on_cell(chapter, done, total) is called when a lesson begins and after each
    cell, on_end(chapter, result) when it has ended. Return the results in the order of `chapters`. Ctrl-C ends running
    lessons, keeps finished ones, and raises KeyboardInterrupt.
    """
    # Lessons that follow one another launch the same kernels: run at the same time, each would compile them. So each
    # lane has a stretch of the course, every second one from its end, and takes another's last lessons in the end.
    length = -(-len(chapters) // at_once)
    stretches = [collections.deque(chapters[k * length : (k + 1) * length][:: -1 if k % 2 else 1])
                 for k in range(at_once)]
    results = {}
    env = {"LABKIT_WORKERS": str(max(1, cores() // at_once))} if at_once > 1 and "LABKIT_WORKERS" not in os.environ \
        else None

    async def run_stretch(stretch: collections.deque[Chapter]) -> None:
        async with execution.Kernels(device, lessons=len(chapters) if at_once == 1 else 1, env=env) as kernels:
            while any(stretches):
                chapter = stretch.popleft() if stretch else max(stretches, key=len).pop()
                report = functools.partial(on_cell, chapter) if on_cell else None
                results[chapter.name] = await _run_lesson(course, chapter, kernels, report)
                if on_end:
                    on_end(chapter, results[chapter.name])

    async def run_all() -> None:
        lanes = [asyncio.create_task(run_stretch(stretch)) for stretch in stretches]
        try:
            await asyncio.gather(*lanes)
        finally:  # after a failure, cancel the other lanes: the first error is the one to report
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    asyncio.run(run_all())
    return [results[chapter.name] for chapter in chapters]


async def _run_lesson(course: Course, chapter: Chapter, kernels: execution.Kernels, on_cell) -> LessonResult:
    from labkit import device as chosen

    about = {
        "name": chapter.name,
        "device": chosen.name(),
        "device_kind": chosen.kind(),
        "date": datetime.now().isoformat(sep=" ", timespec="minutes"),
        "versions": versions(),
    }
    try:
        notebook = to_notebook(chapter)
    except CourseError as error:  # one lesson that cannot be read does not stop the others
        return LessonResult(**about, **summarise([], str(error)), seconds=0.0, source_sha256="")
    if on_cell:
        on_cell(0, len(notebook.cells))
    outcome = await kernels.run(notebook, chapter, on_cell=on_cell)
    problem = in_words(outcome.problem, chapter) if outcome.problem else ""
    result = LessonResult(
        **about,
        **summarise(execution.results(notebook), problem),
        seconds=outcome.seconds,
        source_sha256=notebook.metadata["labkit"]["source_sha256"],
    )
    notebook.metadata["labkit_result"] = asdict(result)
    write_notebook(notebook, kept_path(course, chapter))
    return result


def kept_path(course: Course, chapter: Chapter):
    return course.root / "build" / "lessons" / f"{chapter.name}.ipynb"


def kept(course: Course, chapter: Chapter) -> tuple[LessonResult, object] | None:
    """The kept result and executed notebook of a chapter, or None: never run, or run from an older source."""
    notebook = read_notebook(kept_path(course, chapter))
    if notebook is None or not chapter.source.is_file():
        return None
    stored = notebook.metadata.get("labkit_result", {})
    if stored.get("source_sha256") != sha256(chapter.source_text()):
        return None
    try:
        return LessonResult(**{**stored, "kernels": tuple(stored["kernels"])}), notebook
    except (KeyError, TypeError):  # written by another version of labkit
        return None


def show_error(value: float | None) -> str:
    """An error for a table: "0", "1.2e-07", "NaN", or a dash where nothing was compared."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    return "0" if value == 0 else f"{value:.1e}"


def show_time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
