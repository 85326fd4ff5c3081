"""README's generated parts: the chapter map from course.toml, the measured tables from data/measurements/*.json.

Beside them data/cpu-device.md, all of which is made by labkit.simt.supported. A part of README stands between
`<!-- NAME: made by labkit build -->` and `<!-- end of NAME -->`.
"""

import importlib
import re

from labkit._common.files import read_json, read_text, write_text
from labkit.course.registry import Course, CourseError, shown


def chapters(course: Course) -> str:
    rows = []
    for part in course.parts:
        if len(course.parts) > 1:
            rows.append(f"| | **{part.name}** | |")
        rows += [f"| {c.number} | [{c.title}](notebooks/{c.name}.ipynb) | {c.summary} |" for c in part.chapters]
    return "\n".join(["| | Lesson | What happens in it |", "|---|---|---|", *rows])


def measured(course: Course) -> str:
    """The table of each GPU that `labkit bench` has recorded, as labkit.measure.bench words it."""
    table = _of_each_gpu(course, "readme_table")
    if not table:
        return "No GPU measurements are recorded yet."
    return f"<details>\n<summary>Every rung of every operation</summary>\n\n{table}\n\n</details>"


def targets(course: Course) -> str:
    """Beside the libraries: what was asked and what was measured, for each GPU recorded."""
    return _of_each_gpu(course, "targets_table") or "No GPU measurements of these are recorded yet."


def _of_each_gpu(course: Course, maker: str) -> str:
    tables = []  # (minus the number of operations, table): the fullest recording comes first
    for path in sorted((course.root / "data" / "measurements").glob("*.json")):
        bench = importlib.import_module("labkit.measure.bench")  # imports Numba: only where there is something to show
        try:
            data = read_json(path)
            tables.append((-len(data.get("ops", ())), getattr(bench, maker)(data)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CourseError(f"data/measurements/{path.name} is not what labkit bench writes: {error!r}") from None
    return "\n\n".join(table for _, table in sorted(tables, key=lambda one: one[0]) if table)


def grading(course: Course) -> str:
    """How long a class takes, and how the hand-out to workers scales: from data/grading.json, which
    scripts/grading_scale.py writes."""
    path = course.root / "data" / "grading.json"
    if not path.is_file():
        return "No class has been timed yet."
    try:
        return _grading_of(read_json(path))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CourseError(f"data/grading.json is not what scripts/grading_scale.py writes: {error!r}") from None


def _grading_of(data: dict) -> str:
    lines = []
    for name, one in data.get("classes", {}).items():
        cold, warm = one["cold"], one.get("warm")
        busy = max(run["load_before"] for run in (cold, warm or cold)) > one["cores"]
        lines.append(
            f"- Chapter {name}, {one['students']:,} made-up submissions with {one['answers']:,} answers, of which "
            f"{one['programs']:,} differ, on {one['cores']} cores: {_minutes(cold)} with empty caches"
            + (f", {_minutes(warm)} with warm ones" if warm else "")
            + (", while the machine did other work, too" if busy else "") + f" ({one['date']}).")
    for name, one in data.get("killed", {}).items():
        same = "the scores of a run that nothing stopped" if one["same_scores"] else "other scores than without"
        lines.append(
            f"- Chapter {name}, {one['students']:,} submissions: killed (`kill -9`) with {one['kept_when_killed']:,} "
            f"of {one['answers']:,} verdicts kept; the same command went on, judged {one['judged_again']} of those "
            f"again, and gave {same}.")
    for one in data.get("simulated", {}).values():
        rates = ", ".join(f"{point['answers_per_s']:.1f} with {point['workers']}" for point in one["points"])
        lines.append(
            f"- Simulated, nothing graded: up to {one['answers']:,} answers on workers of a dask cluster; for each a "
            f"worker sleeps, {one['mean_s']:.2f} s on average, which is what real answers took divided by "
            f"{one['faster']:g}. Answers a second: {rates} workers.")
        lines.append("\n![Answers a second over the number of workers, simulated](data/grading.png)")
    return "\n".join(lines) or "No class has been timed yet."


def _minutes(run: dict) -> str:
    return f"{run['wall_s'] / 60:.1f} min ({run['cpu_s'] / 60:.1f} min of CPU)"


PARTS = {"chapters": chapters, "grading": grading, "targets": targets, "measured": measured}


def generate(course: Course) -> str:
    """README.md with its generated parts as they should be."""
    path = course.root / "README.md"
    if not path.is_file():
        raise CourseError("README.md is missing")
    text = read_text(path)
    for name, make in PARTS.items():
        marked = re.compile(rf"(<!-- {name}: made by labkit build -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        if not marked.search(text):
            raise CourseError(
                f"README.md lacks the markers of {name!r}: <!-- {name}: made by labkit build --> and "
                f"<!-- end of {name} -->"
            )
        body = make(course)
        text = marked.sub(lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}", text)
    return text


def _pages(course: Course) -> dict:
    """Return {path: text} of the generated pages: README.md, and data/cpu-device.md where there is one."""
    pages = {course.root / "README.md": generate(course)}
    cpu_device = course.root / "data" / "cpu-device.md"
    if cpu_device.is_file():
        pages[cpu_device] = importlib.import_module("labkit.simt.supported").page()
    return pages


def write(course: Course) -> bool:
    """Bring README.md and data/cpu-device.md up to date. True when something changed."""
    changed = {p: text for p, text in _pages(course).items() if p.read_text(encoding="utf-8") != text}
    for path, text in changed.items():
        write_text(path, text)
    return bool(changed)


def stale(course: Course) -> list[str]:
    """Return the problems of README's generated parts, for `labkit build --check`."""
    try:
        pages = _pages(course)
    except CourseError as error:
        return [str(error)]
    return [
        f"{shown(course, path)} is stale: its generated parts have changed; "
        "run labkit build --readme"
        for path, text in pages.items()
        if path.read_text(encoding="utf-8") != text
    ]
