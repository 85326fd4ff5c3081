"""Wrong answers as edits of the right one."""

from __future__ import annotations

import io
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labkit._common.paths import shown
from labkit.course import exercise_files


@dataclass(frozen=True, init=False)
class Edit:
    """An edit of the exercise's answer: Edit(old, new), or Edit(old, new, old, new, ...).

    `old` is a part of a line, or several whole lines, and must occur in the answer exactly once, comments excluded.
    `new` replaces it; "" deletes. Several lines are written without their common indentation.
    """

    pairs: tuple[tuple[str, str], ...]

    def __init__(self, *texts: str):
        if not texts or len(texts) % 2 or not all(texts[::2]):
            raise ValueError(f"Edit(old, new, ...) takes pairs of lines, none of the old ones empty, not {texts}")
        object.__setattr__(self, "pairs", tuple(zip(texts[::2], texts[1::2], strict=True)))

    def apply(self, source: str) -> str:
        """The edited source, without comments. ValueError where a pair does not apply exactly once."""
        lines = _code_lines(source)
        for old, new in self.pairs:
            lines = _replaced(lines, old, new)
        return "\n".join(lines)


def _code_lines(source: str) -> list[str]:
    """The lines of the source without comments; lines that hold nothing else are left out."""
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, col = token.start
            lines[row - 1] = lines[row - 1][:col]
    return [line.rstrip() for line in lines if line.strip()]


def _replaced(lines: list[str], old: str, new: str) -> list[str]:
    if "\n" not in old + new:
        _demand_once(old, sum(line.count(old) for line in lines))
        return [line for line in (line.replace(old, new) for line in lines) if line.strip()]
    wanted = textwrap.dedent(old).strip("\n").split("\n")
    starts = [start for start in range(len(lines) - len(wanted) + 1)
              if textwrap.dedent("\n".join(lines[start : start + len(wanted)])).split("\n") == wanted]
    _demand_once(old, len(starts))
    (start,) = starts
    indent = lines[start][: len(lines[start]) - len(wanted[0])]
    put = textwrap.indent(textwrap.dedent(new).strip("\n"), indent).split("\n") if new else []
    return [*lines[:start], *put, *lines[start + len(wanted) :]]


def _demand_once(old: str, count: int) -> None:
    if count != 1:
        raise ValueError(f"{old!r} must stand in the answer exactly once, and stands there {count} times")


class WrongAnswers(Mapping):
    """mistake -> an answer that makes it. An Edit is applied to the right answer when it is first asked for.

    Without the answer (a teacher may cut it before giving the exercise out) edits are left out.
    """

    def __init__(self, exercise: str, declared: Mapping[str, object]):
        self.exercise, self.declared, self._made = exercise, dict(declared), {}

    def __getitem__(self, mistake: str):
        wrong = self.declared[mistake]
        if not isinstance(wrong, Edit):
            return wrong
        if mistake not in self._made:
            self._made[mistake] = self._make(mistake, wrong)
        return self._made[mistake]

    def _make(self, mistake: str, edit: Edit):
        solution = exercise_files.solution(self.exercise)
        if solution is None:
            raise KeyError(mistake)
        return solution.run(self._edited(mistake, edit, solution), f"<{self.exercise}: {mistake}>")

    def _edited(self, mistake: str, edit: Edit, solution: exercise_files.Solution) -> str:
        try:
            return edit.apply(solution.answer)
        except ValueError as error:
            at = f"exercise {self.exercise!r}, {mistake!r}, {shown(solution.path)}"
            raise ValueError(f"{at}: {error}") from None

    def faults(self) -> list[str]:
        """What is wrong with edits that do not apply to the answer, a sentence each. Runs nothing."""
        found, solution = [], exercise_files.solution(self.exercise)
        for mistake, wrong in self.declared.items():
            if solution is not None and isinstance(wrong, Edit):
                try:
                    self._edited(mistake, wrong, solution)
                except ValueError as error:
                    found.append(str(error))
        return found

    def __iter__(self) -> Iterator[str]:
        edits = any(isinstance(wrong, Edit) for wrong in self.declared.values())
        without = edits and exercise_files.solution(self.exercise) is None
        return (mistake for mistake, wrong in self.declared.items() if not (without and isinstance(wrong, Edit)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"WrongAnswers({self.exercise!r}, {self.declared!r})"
