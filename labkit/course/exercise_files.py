"""The files of the exercises, read as text and without Numba: what they ask, the answers, the source of a notebook.

labkit/course/exercises/broadcast/add_row.py is one exercise, from its title to the mistakes that its check knows;
__init__.py beside it has what the lesson's exercises share. course.toml lists the names in their order.
A teacher's own exercises: LABKIT_EXERCISES names a directory (or several, as in PATH) with such folders.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labkit._common import paths
from labkit._common.errors import UserError, short
from labkit._common.files import read_text
from labkit.course.answer_cells import BEGIN, END, names_bound, program, run, without_markers

OWN = paths.PACKAGE / "course" / "exercises"
CELL, CHECK = "# %%", "# %% [check]"
# Below it stands what an import should not run.
ONLY_IN_NOTEBOOKS = 'if __name__ == "__main__":'
WIDTH = 120


@dataclass(frozen=True)
class Solution:
    """The answer to an exercise, as text: without markers, and the code above it, from the notebook's first cell on."""

    exercise: str
    answer: str
    above: tuple[str, ...]
    path: Path

    def run(self, answer: str, filename: str):
        """What `answer`, put in the place of this one, defines under the exercise's name."""
        return run(program(self.above, answer), self.exercise, filename)


@dataclass(frozen=True)
class ExerciseFile:
    """An exercise as its file states it. The check's part is Python: see labkit.course.exercises."""

    path: Path
    title: str
    text: str  # Markdown
    hints: tuple[str, str, str]  # each tells more than the one before; the third almost gives it away
    points: int
    needs: tuple[str, ...]  # exercises to do first
    imports: str  # of the answer
    cells: tuple[str, ...]  # the learner's, the last of them with the answer
    check: str

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def after(self) -> str:
        """What the notebook has below the check: Markdown, and cells that begin with # %%."""
        return _constants(self.check, self.path, "AFTER").get("AFTER", "")

    @cached_property
    def solution(self) -> Solution | None:
        """None where a teacher cut the answer before giving the exercise out."""
        *above, cell = self.cells
        before, marker, answer = cell.partition(f"### {BEGIN}")
        if not marker:
            raise UserError(f"{self._where}: no cell with {BEGIN} stands above {CHECK}")
        lines = (line.strip() for line in answer.partition(f"### {END}")[0].split("\n"))
        if all(line in ("", "pass") or line.startswith("#") for line in lines):
            return None
        if not before or before.endswith("\n"):  # at column 0, so that the code above it stays available
            above.append(cell)
        above = (_shared(self.path.parent)[1], self.imports, *above)
        return Solution(self.name, without_markers(cell), tuple(filter(None, above)), self.path)

    @property
    def call(self) -> str:
        """The cell that checks the answer. A prediction passes the numbers that the learner starts from."""
        cell = self.cells[-1]
        if any(self.name in names_bound(node) for node in _tree(cell, self.path).body):
            passed = [self.name]
        else:
            start, marker, _ = cell.partition(f"### {BEGIN}")
            at_margin = not marker or start.endswith("\n")
            names = [node.id for node in ast.walk(_tree(start if at_margin else "", self.path))
                     if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
            if not names:
                raise UserError(f"{self._where}: the learner's cell must define {self.name}, which is the name of the "
                                f"file, or assign the numbers to predict above {BEGIN}")
            passed = [f"{name}={name}" for name in dict.fromkeys(names)]
        return textwrap.fill(f'check("{self.name}", {", ".join(passed)})', WIDTH, subsequent_indent=" " * 6,
                             break_long_words=False, break_on_hyphens=False)

    @property
    def _where(self) -> str:
        return paths.shown(self.path)


# --- Finding and reading ---------------------------------------------------------------------------------------------


def folders(own: bool = True) -> list[Path]:
    """Where folders of exercises lie: in labkit, and where LABKIT_EXERCISES says."""
    found = [OWN] if own else []
    for folder in filter(None, os.environ.get("LABKIT_EXERCISES", "").split(os.pathsep)):
        if not os.path.isdir(folder):
            raise UserError(f"LABKIT_EXERCISES names {folder!r}; it must name a directory with folders such as "
                            f"broadcast, or several, with {os.pathsep!r} between them")
        found.append(Path(folder).resolve())
    return found


def by_name(own: bool = True) -> dict[str, Path]:
    """Exercise -> its file, in the order of the chapters. own=False: only those that LABKIT_EXERCISES names."""
    found: dict[str, Path] = {}
    for folder in folders(own):
        for path in sorted(folder.glob("*/[a-z]*.py")):
            if path.stem in found:
                raise UserError(f"two exercises are named {path.stem!r}: {paths.shown(found[path.stem])} and "
                                f"{paths.shown(path)}")
            found[path.stem] = path
    return found


def solution(exercise: str) -> Solution | None:
    """The answer to this exercise; None where it was cut. KeyError where there is no such exercise."""
    return read(by_name()[exercise]).solution


def read(path: Path) -> ExerciseFile:
    """The exercise in this file. UserError where a part of it is missing."""
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=512)
def _read(path: Path, changed_ns: int) -> ExerciseFile:
    """`read`, remembered until the file changes."""
    where = paths.shown(path)
    text, marker, check = read_text(path).partition(f"\n{CHECK}\n")
    if not marker:
        raise UserError(f"{where}: the line {CHECK} is missing, and below it EXERCISE, which says how it is checked")
    head, *cells = re.split(rf"(?m)^{CELL}\n", text)
    if not cells:
        raise UserError(f"{where}: the line {CELL} is missing, and below it the learner's cell")
    title, _, text = _docstring(head, path).partition("\n")
    if not title.strip():
        raise UserError(f"{where}: the docstring is missing: the title in its first line, then the text")
    given = _constants(head, path, "HINTS", "POINTS", "NEEDS")
    hints, points, needs = given.get("HINTS"), given.get("POINTS"), given.get("NEEDS", ())
    if not isinstance(hints, tuple) or len(hints) != 3 or not all(isinstance(h, str) and h.strip() for h in hints):
        raise UserError(f"{where}: HINTS must be a tuple of three texts, each telling more than the one before, "
                        f"not {short(hints)}")
    if not isinstance(points, int) or isinstance(points, bool) or points < 1:
        raise UserError(f"{where}: POINTS must be a whole number, 1 or more, not {short(points)}")
    if not isinstance(needs, tuple) or not all(isinstance(need, str) for need in needs):
        raise UserError(f'{where}: NEEDS must be a tuple of names, such as ("saxpy",), not {short(needs)}')
    return ExerciseFile(path, title.strip(), text.strip("\n"), hints, points, needs, _imports(head),
                        tuple(cell.strip("\n") for cell in cells), check)


def _shared(folder: Path) -> tuple[str, str]:
    """The text above a chapter's exercises, and the notebook's first cell."""
    path = folder / "__init__.py"
    if not path.is_file():
        raise UserError(f"{paths.shown(path)} is missing: its docstring is the text above the first exercise, and "
                        "FIRST_CELL the code under it")
    return _read_shared(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=128)
def _read_shared(path: Path, changed_ns: int) -> tuple[str, str]:
    """`_shared`, remembered until the file changes."""
    source = read_text(path)
    first = _constants(source, path, "FIRST_CELL").get("FIRST_CELL")
    if not isinstance(first, str):
        raise UserError(f"{paths.shown(path)}: FIRST_CELL is missing, the text of the notebook's first cell")
    return _docstring(source, path).strip("\n"), first.strip("\n")


def _tree(source: str, path: Path) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise UserError(f"{paths.shown(path)} is not valid Python: {error.msg}") from None


def _docstring(source: str, path: Path) -> str:
    return ast.get_docstring(_tree(source, path), clean=False) or ""


def _constants(source: str, path: Path, *names: str) -> dict:
    """The values of these module-level names, which are literals."""
    found = {}
    for node in _tree(source, path).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in names:
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                raise UserError(f"{paths.shown(path)}: {node.targets[0].id} must be written out, since it is read "
                                "without running the file") from None
    return found


def _imports(head: str) -> str:
    return "\n".join(map(ast.unparse, (node for node in ast.parse(head).body
                                       if isinstance(node, ast.Import | ast.ImportFrom))))


# --- The source of a notebook ----------------------------------------------------------------------------------------


def notebook_source(heading: str, files: Iterable[ExerciseFile]) -> str:
    """The exercises of a chapter with their answers, as a py:percent source: solutions/NN_topic.py."""
    files = list(files)
    text, first = _shared(files[0].path.parent)
    cells = [("markdown", f"# {heading}\n\n{text}"), ("code", first)]
    for number, file in enumerate(files, 1):
        text = f"## {number} · {file.title}\n\n{file.text}".rstrip()
        if number > 1 and cells[-1][0] == "markdown":  # what stands after the exercise above
            text = f"{cells.pop()[1]}\n\n{text}"
        cells.append(("markdown", text))
        cells += [("code", in_notebooks(cell)) for cell in file.cells]
        cells.append(("code", file.call))
        cells += cells_of(file.after)
    return _percent(cells)


def cells_of(text: str) -> list[tuple[str, str]]:
    """(kind, source) of each cell of a text that begins as Markdown."""
    parts = re.split(r"(?m)^# %%( \[markdown\])?\n", text)
    kinds = ["markdown", *("markdown" if marked else "code" for marked in parts[1::2])]
    return [(kind, part.strip("\n")) for kind, part in zip(kinds, parts[::2], strict=True) if part.strip()]


def in_notebooks(cell: str) -> str:
    """A cell without `if __name__ == "__main__":`, under which stands what an import should not run."""
    above, guard, below = cell.partition(f"{ONLY_IN_NOTEBOOKS}\n")
    return above + textwrap.dedent(below) if guard else cell


def _percent(cells: list[tuple[str, str]]) -> str:
    """The cells as jupytext and a formatter write them: two blank lines around definitions."""
    lines: list[str] = []
    for kind, source in cells:
        defines = kind == "code" and re.match(r"@|def |class ", source)
        after_definition = lines and lines[-1][:1] == " "
        lines += [""] * (2 if defines or after_definition else 1) if lines else []
        if kind == "markdown":
            lines += [f"{CELL} [markdown]", *(f"# {line}".rstrip() for line in source.split("\n"))]
        else:
            lines += [CELL, *source.split("\n")]
    return "\n".join(lines) + "\n"
