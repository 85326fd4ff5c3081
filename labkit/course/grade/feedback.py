"""What a graded class is given: scores.csv, scores.json, a page for each student, one for the class, a gradebook.

Pages hold text of students. All of it is escaped, a page runs no script, and its Content-Security-Policy says so.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import html
import io
import json
import os
import re
import statistics
import sys
import warnings
from collections import Counter
from pathlib import Path

from labkit._common.errors import UserError
from labkit._common.files import write_text
from labkit.course.grade import similar
from labkit.course.grade.batch import Row

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em}}
table{{border-collapse:collapse}}th,td{{padding:.2em 1em .2em 0;text-align:left;vertical-align:top}}
code{{font-family:monospace}}h2{{margin-top:2em}}.quiet{{opacity:.7}}</style></head>
<body><h1>{title}</h1>
{body}
</body></html>
"""
COLUMNS = ("student", "name", "exercise", "points", "of_points", "passed", "verdict", "headline", "why", "mistake",
           "seconds", "file")


def page_name(student: str) -> str:
    """A file's name for a student, safe on every system and different for different students."""
    plain = re.sub(r"[^A-Za-z0-9-]+", "_", student).strip("_")[:60]
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain}.html" if plain == student and plain.lower() != "index" else f"{plain or 'student'}-{digest}.html"


def record(row: Row) -> dict:
    """A row as scores.json holds it."""
    result = row.result
    return {"student": row.student.id, "name": row.student.name, "exercise": row.entry.name, "points": row.points,
            "of_points": row.entry.points, "passed": row.passed, "verdict": result["verdict"],
            "headline": result["headline"], "why": row.why, "mistake": result["mistake"],
            "seconds": result["seconds"], "file": row.file}


def write_scores(out: Path, rows: list[Row], about: dict) -> None:
    records = [record(row) for row in rows]
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows({key: _cell(value) for key, value in each.items()} for each in records)
    write_text(out / "scores.csv", _plain(text.getvalue()))
    write_text(out / "scores.json", json.dumps({**about, "scores": records}, indent=1) + "\n")


def _cell(value):
    """A spreadsheet runs what begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _plain(text: str) -> str:
    """Text that can be written: without lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _page(path: Path, title: str, body: str) -> None:
    write_text(path, _plain(PAGE.format(title=html.escape(title), body=body)))


def write_pages(out: Path, rows: list[Row], title: str, isolation: str, notes: list[str]) -> None:
    students: dict[str, list[Row]] = {}
    for row in rows:
        students.setdefault(row.student.id, []).append(row)
    for own in students.values():
        _page(out / "feedback" / page_name(own[0].student.id), f"{title}: {own[0].student.shown}", student_body(own))
    _page(out / "index.html", title, class_body(students, isolation, notes))


def write_similar(out: Path, pairs: list[similar.Pair]) -> None:
    _page(out / "similar.html", "Answers that are alike", similar.as_html(pairs))
    write_text(out / "similar.txt", _plain(similar.as_text(pairs)))


def student_body(rows: list[Row]) -> str:
    from labkit.course.check.verdict import Verdict

    points, total = sum(row.points for row in rows), sum(row.entry.points for row in rows)
    parts = [f"<p>{points} of {total} points.</p>"]
    for row in rows:
        fields = Verdict.__dataclass_fields__.keys() | {"verdict"}
        result = {key: value for key, value in row.result.items() if key in fields and key != "kind"}
        verdict = Verdict.from_result({**result, "title": row.entry.title})
        parts.append(f"<h2>{html.escape(row.entry.title)} <span class=quiet>{row.points} of {row.entry.points}</span>"
                     f"</h2>{verdict._repr_mimebundle_()['text/html']}")
        if row.file:
            parts.append(f"<p class=quiet>{html.escape(row.file)}</p>")
    return "\n".join(parts)


def class_body(students: dict[str, list[Row]], isolation: str, notes: list[str]) -> str:
    """Return each student's points, and for each exercise the number of passes and the mistakes of the others."""
    rows = [row for own in students.values() for row in own]
    by_exercise: dict[str, list[Row]] = {}
    for row in rows:
        by_exercise.setdefault(row.entry.name, []).append(row)
    lines = []
    for own in by_exercise.values():
        tried = [row for row in own if row.result["verdict"] not in ("missing", "unreadable")]
        passed = sum(row.passed for row in own)
        wrong = Counter(row.result["mistake"] or row.result["headline"] for row in tried if not row.passed)
        seconds = [row.result["seconds"] for row in tried]
        mistakes = "<br>".join(f"{count} &times; {html.escape(text)}" for text, count in wrong.most_common(6))
        rate = f"{passed / len(tried):.0%}" if tried else "-"
        lines.append(f"<tr><td>{html.escape(own[0].entry.title)}<br><code>{html.escape(own[0].entry.name)}</code></td>"
                     f"<td>{len(tried)}</td><td>{passed}</td><td>{rate}</td>"
                     f"<td>{statistics.median(seconds):.1f} s</td><td>{mistakes}</td></tr>" if tried else
                     f"<tr><td>{html.escape(own[0].entry.title)}</td><td>0</td><td>0</td><td>-</td><td></td><td></td>"
                     "</tr>")
    people = []
    for own in students.values():
        points, total = sum(row.points for row in own), sum(row.entry.points for row in own)
        is_missing = all(row.result["verdict"] == "missing" for row in own)
        people.append(f'<tr><td><a href="feedback/{page_name(own[0].student.id)}">'
                      f"{html.escape(own[0].student.shown)}</a></td><td>{points} of {total}</td>"
                      f"<td>{'nothing handed in' if is_missing else ''}</td></tr>")
    return "\n".join([
        f"<p>{html.escape(isolation)}</p>",
        "<h2>Exercises</h2><table><tr><th>exercise<th>handed in<th>passed<th>rate<th>graded in (median)"
        "<th>what was wrong, how often</tr>", *lines, "</table>",
        "<h2>Students</h2><table><tr><th>student<th>points<th></tr>", *people, "</table>",
        *(["<h2>Notes</h2><ul>", *(f"<li>{html.escape(note)}</li>" for note in notes), "</ul>"] if notes else []),
    ])


def gradebook_class():
    """nbgrader's Gradebook; UserError where nbgrader is not installed."""
    try:
        from nbgrader.api import Gradebook
    except ImportError:
        raise UserError("--gradebook needs nbgrader; install it with: pip install -e '.[classroom]'") from None
    return Gradebook


def write_gradebook(path: Path, rows: list[Row]) -> None:
    """An nbgrader gradebook with each chapter as an assignment, and each check cell graded. Written whole."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    gradebook = gradebook_class()
    # nbgrader runs alembic, which lies beside Python, whether that environment is activated or not.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    with contextlib.closing(gradebook(f"sqlite:///{temporary.resolve()}")) as book, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy's, about nbgrader's own use of it
        chapters = {row.entry.chapter.name: row.entry.chapter for row in rows}
        for name in chapters:
            book.update_or_create_assignment(name)
            book.update_or_create_notebook(name, name)
        for entry in {row.entry.name: row.entry for row in rows}.values():
            chapter = entry.chapter.name
            book.update_or_create_grade_cell(entry.name, chapter, chapter, max_score=entry.points, cell_type="code")
        for row in rows:
            first, _, last = row.student.name.rpartition(" ")
            student, chapter = row.student.id, row.entry.chapter.name
            book.update_or_create_student(student, first_name=first or None, last_name=last or None,
                                          email=row.student.email or None)
            if row.result["verdict"] == "missing":
                continue
            book.update_or_create_submission(chapter, student)
        for row in rows:
            if row.result["verdict"] != "missing":
                chapter = row.entry.chapter.name
                grade = book.find_grade(row.entry.name, chapter, chapter, row.student.id)
                grade.auto_score, grade.needs_manual_grade = float(row.points), False
        book.db.commit()
    os.replace(temporary, path)
