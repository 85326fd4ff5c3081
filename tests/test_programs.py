"""scripts/programs.py: its list and its record are well formed, and results are put into their kinds."""

import json
import re
import sys

import pytest

from labkit._common.paths import REPOSITORY
from tests.scripts import loaded

RECORD = REPOSITORY / "data" / "simt_programs.json"


@pytest.fixture(scope="module")
def script():
    with loaded("programs") as module:
        yield module


@pytest.mark.parametrize("text, kind", [
    ("E   ModuleNotFoundError: No module named 'cupy'", "gpu"),
    ("labkit.simt.errors.UnsupportedError: cuda.declare_device('f') links GPU code: it needs a GPU", "gpu"),
    ("labkit.simt.errors.UnsupportedError: k, line 3: sorted is not supported", "refused"),
    ("labkit.simt.errors.OutOfBoundsError: k, line 3: block 0, thread 8 uses x[8], outside its shape (8,)", "found"),
    ("AssertionError: 1 != 2", "wrong"),
    ("", "wrong"),
])  # fmt: skip
def test_kinds(script, text, kind):
    assert script.classified(f"Traceback:\n  File '/a/b.py', line 1\n{text}")[0] == kind


def test_a_sentence_names_no_folder(script):
    assert script.classified("ValueError: in /home/someone/project/file.py")[1] == "ValueError: in file.py"


def test_share(script):
    assert script.share({"passed": 3, "wrong": 1, "gpu": 5, "skipped": 2, "program": 4}) == 0.75


def test_a_cause_given_by_hand_replaces_what_did_not_pass(script):
    program = {"because": {"a.py *Error*": "program: an exercise"}}
    assert script._overridden(program, "a.py", "wrong", "ValueError", 1.0) == ("program", "an exercise", 1.0)
    assert script._overridden(program, "b.py", "wrong", "ValueError", 1.0) == ("wrong", "ValueError", 1.0)
    assert script._overridden(program, "a.py", "passed", "", 1.0) == ("passed", "", 1.0)


@pytest.mark.sweep(every=True)
def test_scripts_and_notebooks(script, tmp_path):
    """The whole way but labkit.simt: a script that passes, one that fails, one that hangs, and a notebook."""
    (tmp_path / "passes.py").write_text("import numpy\n")
    (tmp_path / "fails.py").write_text("raise ValueError('no')\n")
    (tmp_path / "hangs.py").write_text("while True: pass\n")
    cells = [{"cell_type": "code", "source": [text]} for text in ("!exit 3\nx = 1", "assert x == 1", "x / 0")]
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["x"]}, *cells]}))
    start = [sys.executable]
    names = ("passes", "fails", "hangs")
    kinds = [script._script(start, tmp_path / f"{name}.py", tmp_path, {}, 5)[0] for name in names]
    assert kinds == ["passed", "wrong", "timeout"]
    pytest.importorskip("IPython")
    found = script._notebook(start, "book.ipynb", tmp_path, {}, 60)
    assert list(found) == [f"book.ipynb, cell {index}" for index in (1, 2, 3)]
    assert [kind for kind, _, _ in found.values()] == ["passed", "passed", "wrong"]


def test_the_list(script):
    every = script.programs()
    names = [program["name"] for program in every]
    assert len(set(names)) == len(names) >= 20 and sum(program.get("fresh", False) for program in every) >= 5
    for program in every:
        assert re.fullmatch(r"pypi:[\w-]+==[\d.]+|github:[\w.-]+/[\w.-]+@[0-9a-f]{40}", program["source"]), program
        assert program["licence"] and program["what"] and program["checked"]
        assert any(program.get(part) for part in ("tests", "scripts", "notebooks", "calls")), program["name"]


def test_the_record(script):
    text = RECORD.read_text(encoding="utf-8")
    assert str(REPOSITORY) not in text and "/tmp/" not in text and "/home/" not in text
    record, listed = json.loads(text), [program["name"] for program in script.programs()]
    names = [entry["name"] for entry in record["programs"]]
    assert names == [name for name in listed if name in names] and len(names) >= 10
    for entry in record["programs"]:
        assert sum(entry["counts"].values()) == entry["run"] > 0 and set(entry["counts"]) <= set(script.KINDS)
        assert entry["share_passed"] == script.share(entry["counts"])
        unpassed = entry["run"] - entry["counts"].get("passed", 0) - entry["counts"].get("skipped", 0)
        assert sum(map(len, entry["causes"].values())) == unpassed
    assert len(script.table(record["programs"]).splitlines()) == len(names) + 1
