"""An exercise's page: the task, what the learner starts from, a worked example, and, folded away, hints, the answer and
the mistakes that its check knows. Plain <details>, so that it works without a script."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from html import escape

import numpy as np
from markupsafe import Markup

from labkit._common.markdown import plain
from labkit.course import exercise_files
from labkit.course.answer_cells import without_markers
from labkit.course.exercises import find, known_mistakes
from labkit.course.exercises.kinds import ComputedExercise, Exercise
from labkit.course.registry import Course, Entry
from labkit.course.site import code
from labkit.course.site.markdown import Markdown
from labkit.course.workbooks import cut

FOLDER = "exercises"  # of the site
KINDS = {"kernel": "kernel", "function": "function", "predict": "prediction"}
LARGEST_EXAMPLE = 24  # numbers in the inputs and the output of a worked example
SEED = 1


@dataclass(frozen=True)
class Mistake:
    """A known wrong answer. changes: differences to the right one, where it is that with a few lines changed."""

    what: Markup
    changes: tuple[Markup, ...] = ()


@dataclass(frozen=True)
class ExercisePage:
    entry: Entry
    kind: str
    task: Markup
    starter: Markup
    example: Markup
    hints: tuple[Markup, ...]
    answer: Markup
    after: Markup
    mistakes: tuple[Mistake, ...]
    call: Markup  # the cell of the notebook that checks the answer
    summary: str  # the first sentence of the task

    @property
    def href(self) -> str:
        return href(self.entry)


def href(entry: Entry) -> str:
    """Its address within the site."""
    return f"{FOLDER}/{entry.name}.html"


def page_of(course: Course, entry: Entry) -> ExercisePage:
    file, exercise = entry.file, find(entry.name)
    markdown = Markdown({chapter.name for chapter in course.chapters}, root="../")
    task = f"{file.text}\n\n**Also checked.** {exercise.asked}" if exercise.asked else file.text
    cells = [exercise_files.in_notebooks(cell) for cell in file.cells]
    starters = [without_markers(cut(cell, file.path.name)[0]) for cell in cells]
    solution = file.solution
    return ExercisePage(
        entry, KINDS[exercise.kind], Markup(markdown.html(task)), _code(*starters), example(exercise, entry),
        tuple(Markup(markdown.html(hint)) for hint in file.hints),
        _code(solution.answer) if solution else Markup(), Markup("\n".join(_after(file.after, markdown))),
        tuple(_mistakes(exercise, markdown)), _code(file.call), first_sentence(file.text))


def first_sentence(text: str) -> str:
    """The beginning of a task as a line of text; formulas are left out."""
    for paragraph in plain(text).split("\n\n"):
        words = " ".join(paragraph.split())
        if words and not words.startswith("$$"):
            return words.partition(". ")[0].rstrip(".") + "."
    return ""


def _code(*sources: str) -> Markup:
    return Markup("\n".join(code.python(source.strip("\n")) for source in sources if source.strip()))


def _after(text: str, markdown: Markdown) -> Iterator[str]:
    for kind, source in exercise_files.cells_of(text) if text else ():
        yield markdown.html(source) if kind == "markdown" else code.python(source)


def _mistakes(exercise: Exercise, markdown: Markdown) -> Iterator[Mistake]:
    for what, changes in known_mistakes(exercise).items():
        yield Mistake(Markup(markdown.html(f"{what[0].upper()}{what[1:]}.")),
                      tuple(_difference(old, new) for old, new in changes))


def _difference(right: str, wrong: str) -> Markup:
    """The lines of both, those that go and those that come marked as diff marks them."""
    lines = []
    for line in list(unified_diff(right.splitlines(), wrong.splitlines(), n=len(right), lineterm=""))[3:]:
        tag = {"-": "del", "+": "ins"}.get(line[0], "span")
        lines.append(f"<{tag}>{line[0]} {escape(line[1:])}</{tag}>")
    return Markup("".join(lines))


# --- A worked example ------------------------------------------------------------------------------------------------


def example(exercise: Exercise, entry: Entry) -> Markup:
    """The inputs of the smallest case with more than one element, and what the reference makes of them. Empty where no
    case is small, or the answer's arguments are not the inputs and the output."""
    if not isinstance(exercise, ComputedExercise) or exercise.arguments or exercise.start:
        return Markup()
    names = _parameters(entry)
    for size in sorted(exercise.sizes, key=lambda size: 1 in size.values()):  # an axis of length 1 shows little
        inputs = exercise.inputs(np.random.default_rng(SEED), **size)
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        if (len(inputs) != len(names) - bool(exercise.shape)
                or not all(isinstance(value, np.ndarray | np.generic | int | float) for value in inputs)):
            return Markup()
        if sum(np.size(value) for value in inputs) > LARGEST_EXAMPLE:
            continue
        result = exercise.reference(*inputs)
        if isinstance(result, np.ndarray) and 1 < result.size <= LARGEST_EXAMPLE:
            output = names[-1] if exercise.shape else "result"
            text = _shown([*zip(names, inputs, strict=False), (output, result)])
            return Markup(f'<pre class="example">{escape(text)}</pre>')
    return Markup()


def _parameters(entry: Entry) -> list[str]:
    """The names of the parameters of the function that the answer defines."""
    solution = entry.file.solution
    for node in ast.walk(ast.parse(solution.answer)) if solution else ():
        if isinstance(node, ast.FunctionDef) and node.name == entry.name:
            return [argument.arg for argument in node.args.args]
    return []


def _shown(values: list[tuple[str, object]]) -> str:
    width = max(len(name) for name, _ in values)
    lines = []
    for name, value in values:
        text = np.array2string(np.asarray(value), precision=2, suppress_small=True, max_line_width=72)
        first, *others = text.split("\n")
        lines += [f"{name:{width}} = {first}", *(" " * (width + 3) + line for line in others)]
    return "\n".join(lines)
