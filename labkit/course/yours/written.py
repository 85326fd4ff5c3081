"""What was written in the exercises: which answers have a place in the model, and which can be used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from labkit._common.errors import UserError
from labkit._common.tables import ResultTable
from labkit.course import answer_cells, copies, exercises
from labkit.course import registry as courses
from labkit.course import workbooks as workbook
from labkit.course.check import examine
from labkit.course.yours.launchers import encoder_kernels, kernels, llama_kernels
from labkit.course.yours.places import PARTS, PLACES, Place, place_of
from labkit.course.yours.training import training_kernels
from labkit.models import llama, minilm
from labkit.models.gpt2 import Kernels
from labkit.train.model import Kernels as TrainingKernels

YOURS, GIVEN_ANSWER = "your kernel", "the course's answer"
TO_DO, WRONG, BROKEN = "not done yet", "not right yet", "cannot be used"


@dataclass(frozen=True)
class Answer:
    """An exercise that has a place in the model, and its answer. kernel is None unless it can be used."""

    place: Place
    lesson: str  # "04"
    state: str
    message: str = ""  # why it is not used, in a sentence
    kernel: object = field(default=None, repr=False)

    @property
    def exercise(self) -> str:
        return self.place.exercise

    @property
    def usable(self) -> bool:
        return self.kernel is not None

    def launcher(self) -> Callable:
        """Return a launcher with the signature in PARTS that launches the kernel as check does."""
        place, exercise, kernel = self.place, exercises.find(self.exercise), self.kernel
        if exercise.kind == "function":
            takes_stream = "stream" in inspect.signature(kernel).parameters

            def call(*arguments, stream=0, **options):
                kwargs = {"stream": stream} if takes_stream else {}
                kernel(*place.arguments(*arguments), **options, **kwargs)

            return call

        def launch(*arguments, stream=0):
            grid, blocks, *_, shared = *exercise.launch(**place.size(*arguments)), 0
            kernel[grid, blocks, stream, shared](*place.arguments(*arguments))

        return launch


@dataclass(frozen=True, repr=False)
class Answers(ResultTable):
    """Every exercise that has a place in the model, in the order of the lessons."""

    rows: tuple[Answer, ...]

    @property
    def usable(self) -> tuple[Answer, ...]:
        return tuple(row for row in self.rows if row.usable)

    def only(self, *names: str) -> Answers:
        """Keep only these; the model's own kernels replace all others."""
        for name in names:
            place_of(name)
        return Answers(tuple(row for row in self.rows if row.exercise in names))

    def fitting(self, model: str, head: int) -> Answers:
        """Those for this kind of model, as places.py names it, whose heads have so many numbers."""
        return Answers(tuple(row for row in self.rows if row.place.model == model and row.place.head in (None, head)))

    def _last(self) -> dict[str, Answer]:
        """part -> the answer that does it when all are put in: the latest, and of softmax and heads the larger part."""
        last = {row.place.part: row for row in self.usable}
        if "one_head" in last:
            last.pop("softmax", None)
        return last

    @property
    def parts(self) -> dict[str, Callable]:
        return {part: row.launcher() for part, row in self._last().items()}

    def kernels(self) -> Kernels:
        """The launchers of a GPT-2, these among them."""
        return kernels(self.parts)

    def encoder_kernels(self, base: minilm.Kernels) -> minilm.Kernels:
        """The launchers of an encoder, these among them."""
        return encoder_kernels(self.parts, base)

    def llama_kernels(self, base: llama.Kernels) -> llama.Kernels:
        """The launchers of a Llama, these among them."""
        return llama_kernels(self.parts, base)

    def training_kernels(self) -> TrainingKernels:
        """The launchers of both passes of training, these among them."""
        return training_kernels(self.parts)

    def messages(self) -> list[str]:
        """In sentences: which kernels are used, which are not and why."""
        used = ", ".join(f"{row.exercise} ({PARTS[row.place.part][0]})" for row in self.usable)
        return [f"Your kernels: {used}." if used else "Your kernels: none yet.", *self.notes()]

    def notes(self) -> list[str]:
        return [row.message for row in self.rows if row.message and row.state != TO_DO] + _to_do(self.rows)

    def by(self) -> dict[str, str]:
        """Step -> the exercises whose kernels have a part in it."""
        by_step: dict[str, list[str]] = {}
        for row in self._last().values():
            for step in PARTS[row.place.part][1]:
                by_step.setdefault(step, []).append(row.exercise)
        return {step: ", ".join(names) for step, names in by_step.items()}

    def table(self) -> dict:
        return {
            "title": "Exercises with a place in the model",
            "columns": ["lesson", "exercise", "does", "computed by"],
            "rows": [[row.lesson, row.exercise, PARTS[row.place.part][0],
                      row.state if row.usable else f"the model's own ({row.state})"] for row in self.rows],
            "notes": self.notes(),
        }

    def result(self) -> dict:
        return {"kind": "answers", "usable": [row.exercise for row in self.usable]}


def _to_do(rows) -> list[str]:
    unfinished = [row for row in rows if row.state == TO_DO]
    if not unfinished:
        return []
    names = ", ".join(row.exercise for row in unfinished)
    return [f"Not done yet: {names}. Do one in its notebook under work/exercises/, save it, and run this again."]


def answers(*names: str, solutions: bool = False, checked: bool = True, **given) -> Answers:
    """The answers to these exercises (left out: to all that have a place in the model), each checked.

    solutions=True takes the course's own answers, unchecked. add_row=kernel takes this kernel. checked=False uses
    the answers unchecked: parity then shows at which step they are wrong.
    """
    for name in (*names, *given):
        place_of(name)
    selected = [place for place in PLACES if not names and not given or place.exercise in (*names, *given)]
    course = courses.load()
    return Answers(tuple(_answer(course, place, solutions, checked and not solutions, given) for place in selected))


def _answer(course, place: Place, solutions: bool, checked: bool, given: Mapping) -> Answer:
    entry = course.exercise(place.exercise)
    lesson, name = entry.chapter.number, entry.name
    label = f"{name} ({courses.shown(course, entry.chapter.own_workbook)})"

    def unused(state: str, reason: str) -> Answer:
        return Answer(place, lesson, state, f"{label} {reason}")

    if name in given:
        kernel = given[name]
    else:
        try:
            kernel = read(course, name, solutions=solutions)
        except Exception as error:  # a learner's notebook may hold anything
            return unused(BROKEN, f"cannot be used: {_one_line(error)}")
    if kernel is None:
        return unused(TO_DO, "is not done yet")
    if checked:
        verdict = examine(exercises.find(name), kernel)
        if verdict.kind == "unchanged":
            return unused(TO_DO, "is not done yet")
        if not verdict.passed:
            reason = verdict.headline
            if verdict.kind in ("unsupported", "wrong_types", "raised") and verdict.details:
                reason = f"{reason} {verdict.details[0]}"
            return unused(WRONG, f"is not right yet, so the model's own kernel is used: {reason}")
    return Answer(place, lesson, GIVEN_ANSWER if solutions and name not in given else YOURS, kernel=kernel)


def read(course, name: str, *, solutions: bool = False):
    """The answer to an exercise: what its cell defines under its name, with what the cells above it define. None if it
    is unchanged.

    From the learner's notebook, as saved; with solutions=True from the exercise's file. Test cells are not run, nor
    anything that the answer does not need.
    """
    entry = course.exercise(name)
    if solutions:
        return entry.file.solution and entry.file.solution.run(entry.file.solution.answer, f"<the answer: {name}>")
    cell, preceding = _cell(copies.learners(course, entry.chapter), name)
    if answer_cells.unmarked(cell) == _cell(workbook.to_notebook(course, entry.chapter, markers=False), name)[0]:
        return None
    return answer_cells.run(answer_cells.program(preceding, cell), name, f"<{entry.chapter.workbook.name}: {name}>")


def _cell(notebook, name: str) -> tuple[str, list[str]]:
    """The cell of an exercise's answer, and the code above it without tests."""
    preceding: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        metadata = cell.metadata.get("labkit", {})
        if metadata.get("exercise") == name and metadata.get("role") == "answer":
            return cell.source, preceding
        if answer_cells.checked_name(cell.source) is None:
            preceding.append(cell.source)
    raise courses.CourseError(f"its cell is not in the notebook; labkit reset {name} puts it back")


def _one_line(error: Exception) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"{kind}{error}".split("\n")[0].replace("(<unknown>, line", "(line")  # of a cell, which has no file
