"""GitHub Classroom: the workflow that grades on push, and what it reports."""

import json
import re
import subprocess
import sys

import pytest

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.course.grade.classroom import main, notices, summary

WORKFLOW = REPOSITORY / ".github" / "workflows" / "classroom.yml"


def score(exercise="saxpy", passed=True, verdict="passed", headline="Right.", mistake="", of_points=2, why=""):
    return {"exercise": exercise, "points": of_points * passed, "of_points": of_points, "passed": passed,
            "verdict": verdict, "headline": headline, "why": why, "mistake": mistake}


def test_classroom_gets_the_points_and_the_summary_the_verdicts(tmp_path, monkeypatch, capsys):
    wrong = score("fill", False, "race", "Two | race\n::error::`x` <script>", "no barrier", 3)
    refused = score("gram", False, "refused", "It cannot be graded as it stands.", why="`x` is\nunknown", of_points=0)
    scores = [score(), wrong, refused, score("gone", False, "missing", "It was not handed in.")]
    (tmp_path / "scores.json").write_text(json.dumps({"scores": scores}))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == notices(scores) and len(lines) == 4  # a line break in a verdict begins no command
    assert lines[1] == "::warning title=gram::It cannot be graded as it stands. `x` is%0Aunknown"
    assert "It cannot be graded as it stands.<br>&#96;x&#96; is unknown |" in summary(scores)
    assert lines[2] == "::notice title=Autograding complete::Points 2/7"
    assert lines[3] == '::notice title=Autograding report::{"totalPoints": 2, "maxPoints": 7}'
    text = (tmp_path / "summary.md").read_text()
    assert text == summary(scores) and "## 2 of 7 points" in text and "<script" not in text
    assert [row.count("|") for row in text.splitlines()[4:]] == [4, 4, 4, 4]
    (tmp_path / "scores.json").write_text(json.dumps({"scores": [scores[0], scores[3]]}))
    assert main([str(tmp_path)]) == 0
    with pytest.raises(UserError, match="labkit grade has written"):
        main([str(tmp_path / "nowhere")])


def test_the_workflow_runs_commands_that_there_are():
    text = WORKFLOW.read_text()
    assert "python -m labkit.course.grade.classroom grades" in text
    (command,) = re.findall(r"labkit (grade .*)", text.partition("run: |")[2])[:1]
    shown = subprocess.run([sys.executable, "-m", "labkit", "grade", "--help"], capture_output=True, text=True,
                           env={"COLUMNS": "200", "PATH": "", "PYTHONPATH": str(REPOSITORY), "HOME": "/"}).stdout
    assert all(option in shown for option in re.findall(r"--[a-z]+", command)) and "--similar" in shown
    for token in ("secrets.", "pull_request_target", "contents: write"):
        assert token not in text
