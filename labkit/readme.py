"""README's generated parts: the chapter map from course.toml, the measured table from data/measurements/*.json.

Each stands between `<!-- NAME: made by labkit build -->` and `<!-- end of NAME -->`.
"""

import json
import re

from labkit.course import Course, CourseError, write_text


def chapters(course: Course) -> str:
    rows = [f"| {c.number} | [{c.title}](notebooks/{c.name}.ipynb) | {c.summary} |" for c in course.chapters]
    return "\n".join(["| | Lesson | What happens in it |", "|---|---|---|", *rows])


def measured(course: Course) -> str:
    """The table of each GPU that `labkit bench` has recorded, as labkit.bench words it."""
    tables = []
    for path in sorted((course.root / "data" / "measurements").glob("*.json")):
        from labkit.bench import readme_table  # imports Numba, so only where there is something to show

        try:
            tables.append(readme_table(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, KeyError, TypeError) as error:
            raise CourseError(f"data/measurements/{path.name} is not what labkit bench writes: {error!r}") from None
    return "\n\n".join(tables) or "No GPU measurements are recorded yet."


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
