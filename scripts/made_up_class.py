"""A made-up class: the notebooks that students might hand in for one chapter, for trying out and timing `labkit grade`.

    python scripts/made_up_class.py FOLDER --chapter 04 --students 300 --seed 1 --layout nbgrader

Answers come from the exercises and from tests/course/check/wrong_answers.toml. Most right ones are the course's own, as
it stands there or with other names for its variables; wrong ones are the mistakes of that file, a few of which are made
by many; a few answers are hostile, a few files cannot be read. The same seed gives the same class, whatever the layout.
expected.csv beside FOLDER says what each was meant to be.
"""

import argparse
import ast
import csv
import json
import random
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from labkit.course import exercise_files, exercises, registry, workbooks  # noqa: E402, found beside this script

WRONG_ANSWERS = ROOT / "tests" / "course" / "check" / "wrong_answers.toml"
LAYOUTS = ("nbgrader", "moodle", "flat")
FIRST_NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Emmy", "Grace", "Hedy", "John", "Katherine", "Kurt", "Margaret",
               "Niklaus", "Sofia", "Srinivasa")
LAST_NAMES = ("Almeida", "Becker", "Chen", "Dubois", "Eriksen", "Fernandez", "Garcia", "Haddad", "Ivanova", "Jansen",
              "Kowalski", "Lindqvist", "Moreau", "Novak", "Okafor", "Petrov", "Quinn", "Rossi", "Sato", "Tanaka")
# What becomes of an exercise that a student has worked on, in percent.
MIX = {"the solution": 34, "renamed": 22, "unusual": 6, "wrong": 25, "wrong and renamed": 8, "not done": 4.4,
       "hostile": 0.6}
BROKEN = 0.01  # share of files that cannot be read
LEFT_OUT = 0.03  # share of exercises whose cells were deleted
HOSTILE = {
    "kernel": ("import os\nos.kill(os.getppid(), 9)", "while True:\n    pass", "raise SystemExit(0)"),
    "function": ("import os\nos._exit(0)", "import os\nos.kill(os.getppid(), 9)", "x = bytearray(1 << 40)",
                 "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)"),
}
SYNONYMS = ("i", "j", "k", "idx", "index", "pos", "n", "m", "t", "tid", "row", "col", "x", "y", "a", "b", "s", "acc",
            "total", "value", "result", "temp", "size", "count", "step", "start", "end", "g", "lane", "me", "p", "q")


@dataclass(frozen=True)
class Made:
    """One answer. kind: a key of MIX; right: whether it should pass, None where that is open."""

    student: str
    exercise: str
    kind: str
    right: bool | None


def renamed(source: str, draw: random.Random) -> str:
    """The same program with other names for some of the variables of its functions; arguments keep theirs."""
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    outer = {name.id for statement in tree.body if not isinstance(statement, ast.FunctionDef)
             for name in ast.walk(statement) if isinstance(name, ast.Name)}
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        stored = {node.id for node in ast.walk(function)
                  if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} - arguments - outer
        free = [name for name in SYNONYMS if name not in used]
        draw.shuffle(free)
        new = {name: free.pop() for name in sorted(stored) if free and draw.random() < 0.6}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in new:
                node.id = new[node.id]
    return ast.unparse(tree)


def hostile(name: str, kind: str, source: str, draw: random.Random) -> str:
    """An answer that attacks: at its cell's top level, or within the function that is called."""
    attack = draw.choice(HOSTILE["kernel" if kind == "kernel" else "function"])
    if kind == "kernel":
        return f"{attack}\n\n{source}"
    inside = attack.replace("\n", "\n    ")
    return f"def {name}(*arguments):\n    {inside}\n    return arguments[0]"


class Maker:
    """Draws answers to the exercises of a chapter."""

    def __init__(self, chapter: str, seed: int):
        self.course = registry.load()
        (self.chapter,) = self.course.pick([chapter])
        self.draw = random.Random(f"{self.chapter.name} {seed}")
        self.entries = self.course.exercises_of(self.chapter)
        if not self.entries:
            raise SystemExit(f"chapter {self.chapter.name} has no exercises")
        self.known = exercises.load()
        self.written: dict[str, list[dict]] = {}
        for answer in tomllib.loads(WRONG_ANSWERS.read_text(encoding="utf-8"))["answer"]:
            self.written.setdefault(answer["exercise"], []).append(answer)
        notebook = workbooks.to_notebook(self.course, self.chapter)
        self.cells = [(cell.cell_type, cell.source, dict(cell.metadata)) for cell in notebook.cells]

    def answer(self, name: str) -> tuple[str | None, str, bool | None]:
        """(the answer cell's source or None to leave it as it is given, the kind, is it right)."""
        kind = self.draw.choices(list(MIX), MIX.values())[0]
        exercise = self.known[name]
        solution = exercise_files.solution(name).answer
        written = self.written.get(name, [])
        if exercise.kind == "predict":
            return self._prediction(name, kind, solution, written)
        unusual = [answer for answer in written if answer["right"]]
        wrong = [answer for answer in written if not answer["right"] and "open" not in answer]
        if kind == "not done":
            return None, kind, False
        if kind == "hostile":
            # Of a kernel's answer the statements that attack are left out, and what remains is right.
            return hostile(name, exercise.kind, solution, self.draw), kind, exercise.kind == "kernel"
        if kind.startswith("wrong") and wrong:
            # Few mistakes are made by many.
            source = self.draw.choices(wrong, [1 / (k + 1) for k in range(len(wrong))])[0]["source"].strip("\n")
            return (renamed(source, self.draw) if "renamed" in kind else source), kind, False
        if kind == "unusual" and unusual:
            return self.draw.choice(unusual)["source"].strip("\n"), kind, True
        if kind == "the solution":
            return solution, kind, True
        return renamed(solution, self.draw), "renamed", True

    def _prediction(self, name: str, kind: str, solution: str, written: list[dict]):
        wrong = [answer["numbers"] for answer in written if not answer["right"]]
        if kind == "not done":
            return None, kind, False
        if not kind.startswith("wrong") or not wrong:
            return solution, "the solution", True
        numbers = self.known[name].truth() | self.draw.choice(wrong)
        return "\n".join(f"{key} = {value!r}" for key, value in numbers.items()), "wrong", False

    def student(self, student: str) -> tuple[bytes, list[Made]]:
        """A notebook as bytes, and what its answers are."""
        made: dict[str, Made] = {}
        cells, given = [], {}
        for entry in self.entries:
            source, kind, right = self.answer(entry.name)
            given[entry.name] = None if self.draw.random() < LEFT_OUT else source
            if given[entry.name] is None and source is not None:
                kind, right = "not done", False
            made[entry.name] = Made(student, entry.name, kind, right)
        for cell_type, source, metadata in self.cells:
            about = metadata.get("labkit", {})
            if about.get("role") == "answer" and given[about["exercise"]] is not None:
                source = given[about["exercise"]]
            cell = {"cell_type": cell_type, "metadata": metadata, "source": source.splitlines(keepends=True)}
            cells.append(cell | ({"outputs": [], "execution_count": None} if cell_type == "code" else {}))
        notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        data = json.dumps(notebook, indent=1).encode()
        if self.draw.random() < BROKEN:
            data = data[: len(data) // 2]
            made = {name: Made(student, name, "broken file", False) for name in made}
        return data, list(made.values())


def place(layout: str, folder: Path, chapter: str, student: str, name: str) -> Path:
    """Where a learning platform's export puts a student's notebook."""
    if layout == "nbgrader":
        return folder / "submitted" / student / chapter / f"{chapter}.ipynb"
    if layout == "moodle":
        return folder / f"{name}_{re.sub(r'[^0-9]', '', student)}_assignsubmission_file_" / f"{chapter}.ipynb"
    return folder / student / f"{chapter}.ipynb"


def make(folder: Path, chapter: str, students: int, seed: int, layout: str = "nbgrader") -> list[Made]:
    """Write the class below `folder`, which must not be there yet, with roster.csv beside it. What each answer is."""
    if layout not in LAYOUTS:
        raise SystemExit(f"--layout {layout} is not known; allowed are {', '.join(LAYOUTS)}")
    maker = Maker(chapter, seed)
    if folder.exists():
        raise SystemExit(f"{folder} is there already; give a folder that is not, or delete it")
    every, roster = [], []
    for number in range(students):
        student = f"s{number + 10_000}"
        name = f"{maker.draw.choice(FIRST_NAMES)} {maker.draw.choice(LAST_NAMES)}"
        data, made = maker.student(student)
        path = place(layout, folder, maker.chapter.name, student, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        every += made
        roster.append((student if layout != "moodle" else student[1:], name, f"{student}@example.org"))
    for name, columns, rows in (("roster.csv", ("id", "name", "email"), roster),
                                ("expected.csv", ("student", "exercise", "kind", "right"),
                                 [(m.student, m.exercise, m.kind, m.right) for m in every])):
        with open(folder.parent / name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chapter", default="04")
    parser.add_argument("--students", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layout", default="nbgrader", choices=LAYOUTS)
    given = parser.parse_args()
    made = make(given.folder, given.chapter, given.students, given.seed, given.layout)
    right = sum(each.right is True for each in made)
    print(f"{given.students} students, {len(made)} answers, {right} of them right, in {given.folder}")


if __name__ == "__main__":
    main()
