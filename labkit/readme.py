"""README's generated parts: the chapter map from course.toml, the measured table from data/measurements/*.json.

Each stands between `<!-- NAME: made by labkit build -->` and `<!-- end of NAME -->`.
"""

import json
import re
from pathlib import Path

from labkit.course import Course, CourseError, write_text


def chapters(course: Course) -> str:
    rows = [f"| {c.number} | [{c.title}](notebooks/{c.name}.ipynb) | {c.summary} |" for c in course.chapters]
    return "\n".join(["| | Lesson | What happens in it |", "|---|---|---|", *rows])


def measured(course: Course) -> str:
    """For each recorded GPU a table: every operation's first rung, its fastest, and the libraries, as measured."""
    files = sorted((course.root / "data" / "measurements").glob("*.json"))
    tables = [_table(path) for path in files]
    return "\n\n".join(table for table in tables if table) or "No GPU measurements are recorded yet."


def _table(path: Path) -> str:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        ladders = [recorded[0] for recorded in data["ops"].values() if recorded]
        if not ladders:
            return ""
        rows = [line for ladder in ladders for line in _lines(ladder)]
        machine = ladders[0]["machine"]
    except (ValueError, KeyError, TypeError) as error:
        raise CourseError(f"data/measurements/{path.name} is not what labkit bench writes: {error!r}") from None
    named = ("driver", "driver"), ("CUDA", "cuda_driver"), ("numba-cuda", "numba-cuda"), ("PyTorch", "torch")
    versions = [f"{label} {machine[key]}" for label, key in named if machine.get(key)]
    heading = f"**{machine['device']}**, {', '.join([machine['date'], *versions])}. Times are medians."
    head = ["| Operation | Kernel | ms | Rate | Of the hardware's limit |", "|:--|:--|--:|--:|--:|"]
    source = f"All rungs, with their spread: [{path.name}](data/measurements/{path.name})."
    return "\n".join([heading, "", *head, *rows, "", source])


def _lines(ladder: dict) -> list[str]:
    """The rows of one operation. A library is there only where it ran on the GPU."""
    rungs = [row for row in ladder["rows"] if row["kind"] == "rung"]
    fastest = min(rungs, key=lambda row: row["timing"]["p50"])
    rivals = [row for row in ladder["rows"] if row["kind"] == "rival"]
    shown = [rungs[0], *([fastest] if fastest is not rungs[0] else []), *rivals]
    lines = []
    for position, row in enumerate(shown):
        size = ", ".join(f"{axis}={length:,}" for axis, length in ladder["size"].items())
        operation = f"{ladder['title']}, {size}" if position == 0 else ""
        rate = row["gbs"] if ladder["unit"] == "GB/s" else row["tflops"]
        lines.append(
            f"| {operation} | {row['name']} | {row['timing']['p50']:.3g} "
            f"| {'–' if rate is None else f'{rate:,.3g}' if rate < 1000 else f'{rate:,.0f}'} {ladder['unit']} "
            f"| {'–' if row['fraction'] is None else format(row['fraction'], '.0%')} |"
        )
    return lines


PARTS = {"chapters": chapters, "measured": measured}


def generate(course: Course) -> str:
    """README.md with its generated parts as they should be."""
    path = course.root / "README.md"
    if not path.is_file():
        raise CourseError("README.md is missing")
    text = path.read_text(encoding="utf-8")
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


def write(course: Course) -> bool:
    """Bring README.md up to date. True when something changed."""
    text = generate(course)
    path = course.root / "README.md"
    if path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def stale(course: Course) -> list[str]:
    """What is wrong with README's generated parts, for `labkit build --check`."""
    try:
        text = generate(course)
    except CourseError as error:
        return [str(error)]
    if (course.root / "README.md").read_text(encoding="utf-8") != text:
        return ["README.md is stale: its generated parts have changed; run labkit build --readme"]
    return []
