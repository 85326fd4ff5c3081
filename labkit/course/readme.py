"""The generated parts of README.md, data/measured.md, data/teaching.md and labkit/simt/README.md, and all of
data/cpu-device.md.

The chapter map comes from course.toml, tables of times and the picture data/ladders.svg from data/measurements/*.json.
A part stands between `<!-- NAME: made by labkit build -->` and `<!-- end of NAME -->`. labkit.course.prose refreshes
the numbers of what people wrote around them.
"""

import hashlib
import importlib
import json
import re

from labkit._common.files import read_json, read_text, write_text
from labkit.course import prose, simulator
from labkit.course.registry import Course, CourseError, shown


def chapters(course: Course) -> str:
    rows = []
    for part in course.parts:
        if len(course.parts) > 1:
            rows.append(f"| | **{part.name}** | |")
        rows += [f"| {c.number} | [{c.title}](notebooks/{c.name}.ipynb) | {prose.render_summary(c)} |"
                 for c in part.chapters]
    return "\n".join(["| | Lesson | What happens in it |", "|---|---|---|", *rows])


def measured(course: Course) -> str:
    """The table of each GPU that `labkit bench` has recorded, as labkit.course.measured words it."""
    tables = _of_each_gpu(course, "readme_table")
    if not tables:
        return "No GPU measurements are recorded yet."
    return "<details>\n<summary>Every rung of every operation</summary>\n\n{}\n\n</details>".format("\n\n".join(tables))


def targets(course: Course) -> str:
    """Beside the libraries: what was asked and what was measured, for each GPU recorded."""
    return "\n\n".join(_of_each_gpu(course, "targets_table")) or "No GPU measurements of these are recorded yet."


def highlights(course: Course) -> str:
    """Return ten rows of the comparison with the libraries, of the GPU with the fullest recording, and the picture."""
    tables = _of_each_gpu(course, "highlights_table")
    if not tables:
        return "No GPU measurements of these are recorded yet."
    return f"{tables[0]}\n\n![The speed of every rung of nine operations beside the fastest library]({PICTURE})"


def _recordings(course: Course) -> list[tuple[str, dict]]:
    """Return (file name, recording) of each GPU, the fullest first."""
    found = [(path.name, read_json(path)) for path in sorted((course.root / "data" / "measurements").glob("*.json"))]
    return sorted(found, key=lambda one: -len(one[1].get("ops", ())))


def _of_each_gpu(course: Course, maker: str) -> list[str]:
    """Return a table of each recording, the fullest first, where there is something to show."""
    tables = []
    for name, data in _recordings(course):
        tables_of = importlib.import_module("labkit.course.measured")  # imports Numba: only where there is something
        try:
            tables.append(getattr(tables_of, maker)(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CourseError(f"data/measurements/{name} is not what labkit bench writes: {error!r}") from None
    return [table for table in tables if table]


PICTURE = "data/ladders.svg"
CLIMBED = ("matmul", "matmul_half", "reduce_sum", "scan", "softmax", "layernorm", "transpose", "attention_causal",
           "paged_decode_bf16")


def picture(course: Course) -> str:
    """Return the SVG of the ladders in README; the one that there is, if it shows the same times: another version of
    matplotlib draws it differently. Empty without a recording of all of them."""
    ops = next((data.get("ops", {}) for _, data in _recordings(course)), {})
    if not set(CLIMBED) <= set(ops):
        return ""
    entries = [ops[name][0] for name in CLIMBED]
    made_from = f"<!-- {hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()[:16]} -->"
    path = course.root / PICTURE
    existing = read_text(path) if path.is_file() else ""
    if made_from in existing:
        return existing
    plots = importlib.import_module("labkit.measure.plots.ladders")
    ladder = importlib.import_module("labkit.measure.ladder").Ladder
    return f"{plots.climbs([ladder.from_json(entry) for entry in entries]).svg()}\n{made_from}\n"


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
        same = "the same scores as" if one["same_scores"] else "other scores than"
        lines.append(
            f"- Chapter {name}, {one['students']:,} submissions: killed (`kill -9`) with {one['kept_when_killed']:,} "
            f"of {one['answers']:,} verdicts kept; the same command resumed, judged {one['judged_again']} of those "
            f"again, and gave {same} an uninterrupted run.")
    for one in data.get("simulated", {}).values():
        rates = ", ".join(f"{point['answers_per_s']:.1f} with {point['workers']}" for point in one["points"])
        lines.append(
            f"- Simulated, nothing graded: up to {one['answers']:,} answers on workers of a dask cluster; for each, a "
            f"worker sleeps {one['mean_s']:.2f} s on average, the time that real answers took divided by "
            f"{one['faster']:g}. Answers per second: {rates} workers.")
        lines.append("\n![Answers per second against the number of workers, simulated](grading.png)")
    return "\n".join(lines) or "No class has been timed yet."


def _minutes(run: dict) -> str:
    return f"{run['wall_s'] / 60:.1f} min ({run['cpu_s'] / 60:.1f} min of CPU)"


PARTS = {"README.md": {"chapters": chapters, "highlights": highlights},
         "data/measured.md": {"targets": targets, "measured": measured},
         "data/teaching.md": {"grading": grading}, "data/README.md": {},
         "labkit/simt/README.md": {"programs": simulator.programs, "speed": simulator.speed, "bugs": simulator.bugs}}


def generate(course: Course, page: str = "README.md") -> str:
    """Return a page with its generated parts, and the numbers in its prose, as they should be."""
    path = course.root / page
    if not path.is_file():
        raise CourseError(f"{page} is missing")
    text = read_text(path)
    for name, make in PARTS[page].items():
        marked = re.compile(rf"(<!-- {name}: made by labkit build -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        if not marked.search(text):
            raise CourseError(
                f"{page} lacks the markers of {name!r}: <!-- {name}: made by labkit build --> and "
                f"<!-- end of {name} -->"
            )
        body = make(course)
        text = marked.sub(lambda match, body=body: f"{match[1]}\n{body}\n\n{match[2]}", text)
    return prose.refreshed(text, page)


def _pages(course: Course) -> dict:
    """Return {path: text} of README.md, its picture, and the generated pages in data/ that there are."""
    pages = {course.root / page: generate(course, page) for page in PARTS
             if page == "README.md" or (course.root / page).is_file()}
    drawn = picture(course)
    if drawn:
        pages[course.root / PICTURE] = drawn
    cpu_device = course.root / "data" / "cpu-device.md"
    if cpu_device.is_file():
        pages[cpu_device] = importlib.import_module("labkit.simt.supported").page()
    return pages


def write(course: Course) -> list[str]:
    """Bring the generated pages up to date. Return those that changed."""
    changed = {path: text for path, text in _pages(course).items() if _differs(path, text)}
    for path, text in changed.items():
        write_text(path, text)
    return [shown(course, path) for path in changed]


def stale(course: Course) -> list[str]:
    """Return the problems of the generated pages, for `labkit build --check`."""
    try:
        pages = _pages(course)
    except CourseError as error:
        return [str(error)]
    return [
        f"{shown(course, path)} is stale: its generated parts have changed; "
        "run labkit build --readme"
        for path, text in pages.items()
        if _differs(path, text)
    ]


def _differs(path, text: str) -> bool:
    return not path.is_file() or path.read_text(encoding="utf-8") != text
