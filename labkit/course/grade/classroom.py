"""What GitHub Classroom shows of graded answers: `python -m labkit.course.grade.classroom grades`, as the last step of
.github/workflows/classroom.yml. Points go to Classroom by two notices, as its own reporter sends them; the verdicts, to
the summary of the run."""

from __future__ import annotations

import html
import json
import os
import sys
from pathlib import Path

from labkit._common.errors import UserError
from labkit._common.files import read_json

EXPECTED = "a folder that labkit grade has written"


def points(scores: list[dict]) -> tuple[int, int]:
    """(points, of how many) of what was set."""
    return sum(each["points"] for each in scores), sum(each["of_points"] for each in scores)


def notices(scores: list[dict]) -> list[str]:
    """The workflow commands that Classroom reads the points from, and one for each answer that did not pass."""
    got, total = points(scores)
    payload = json.dumps({"totalPoints": got, "maxPoints": total})
    failed = [f"::warning title={_plain(each['exercise'])}::"
              f"{_plain(' '.join(filter(None, (each['headline'], each['why']))))}" for each in scores
              if not each["passed"] and each["verdict"] != "missing"]
    return [*failed, f"::notice title=Autograding complete::Points {got}/{total}",
            f"::notice title=Autograding report::{_plain(payload)}"]


def summary(scores: list[dict]) -> str:
    """The verdicts as a table in Markdown."""
    got, total = points(scores)
    rows = [f"| {_cell(each['exercise'])} | {each['points']} of {each['of_points']} | "
            f"{'<br>'.join(_cell(each[key]) for key in ('headline', 'why', 'mistake') if each[key])} |"
            for each in scores]
    return "\n".join([f"## {got} of {total} points", "", "| exercise | points | verdict |", "| --- | --- | --- |",
                      *rows, ""])


def _plain(text: str) -> str:
    """Text in a workflow command, in which line breaks end it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split())).replace("|", "&#124;").replace("`", "&#96;")


def main(arguments: list[str]) -> int:
    """0 if all that was handed in passed, else 1."""
    if len(arguments) != 1:
        raise UserError(f"give {EXPECTED}: python -m labkit.course.grade.classroom grades")
    try:
        scores = read_json(Path(arguments[0]) / "scores.json")["scores"]
    except (FileNotFoundError, KeyError):
        raise UserError(f"{arguments[0]} is not {EXPECTED}: it has no scores.json with scores") from None
    print("\n".join(notices(scores)))
    if summary_path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary_path, "a", encoding="utf-8") as file:
            file.write(summary(scores))
    return int(any(not each["passed"] and each["verdict"] != "missing" for each in scores))


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except UserError as error:
        raise SystemExit(str(error)) from None
