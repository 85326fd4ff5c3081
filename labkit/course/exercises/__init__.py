"""The exercises as data: the task, inputs, tolerance and known wrong answers.

labkit/course/exercises/broadcast/add_row.py is one exercise, whole: its text, the learner's cell with the answer,
and below # %% [check] its EXERCISE; labkit.course.check checks answers by it. A wrong answer that differs from the
right one by a few lines is stated as an Edit of it. What a lesson's exercises share is in __init__.py beside them, and
what most exercises need can be imported from here.

A teacher's own exercises: LABKIT_EXERCISES names a directory (or several, as in PATH) with folders of the same kind.
"""

from __future__ import annotations

import importlib
import sys
import traceback
import types
from pathlib import Path

from labkit._common.errors import UserError, did_you_mean, names_like
from labkit._common.paths import PACKAGE, shown
from labkit.course import exercise_files
from labkit.course.exercises.demands import (
    Demand,
    asks,
    elements_of_argument,
    elements_of_warps,
    on_the_device,
    one_reads_for_all,
    shuffles,
    times_used,
    whole_grid,
    whole_number,
)
from labkit.course.exercises.domains import (
    EQUAL,
    EXPONENTIALS,
    FAR,
    FAR_ABOVE_ZERO,
    HUGE_AND_TINY,
    MOVED,
    NEGATIVE,
    ODD_INTEGERS,
    ODD_SUMS,
    ONE_FAR_ABOVE,
    POSITIVE,
    SUMMED,
    ZEROS,
    Reach,
    any_angles,
    at,
    in_place,
    largest_at,
    of,
    parameter,
)
from labkit.course.exercises.edits import Edit
from labkit.course.exercises.kinds import Exercise, FunctionExercise, KernelExercise, PredictionExercise
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32, dot_products, relative_to


def load(own: bool = True) -> dict[str, Exercise]:
    """Every exercise by name, in the order of the chapters. own=False: only those that LABKIT_EXERCISES names."""
    return {name: _exercise(path) for name, path in exercise_files.by_name(own).items()}


def find(name: str) -> Exercise:
    """The exercise of this name; KeyError with the near ones where there is none."""
    files = exercise_files.by_name()
    if name not in files:
        hint = did_you_mean([*map(repr, names_like(str(name), files))]) or "there are none"
        raise KeyError(f"there is no exercise {name!r}; {hint} (labkit imported from {PACKAGE})")
    return _exercise(files[name])


def equivalent(name: str) -> dict[str, str]:
    """Mutant of the answer -> why no check can tell it from the answer. Empty where its file names none."""
    return getattr(_module(exercise_files.by_name()[name]), "EQUIVALENT", {})


def known_mistakes(exercise: Exercise) -> dict[str, tuple[tuple[str, str], ...]]:
    """Mistake -> the lines that it changes in the right answer, as (right, wrong); () where it is another answer."""
    declared = exercise.wrong.declared
    return {mistake: wrong.pairs if isinstance(wrong := declared[mistake], Edit) else () for mistake in exercise.wrong}


def _exercise(path: Path) -> Exercise:
    exercise = getattr(_module(path), "EXERCISE", None)
    if not isinstance(exercise, Exercise):
        raise UserError(f"{shown(path)}: EXERCISE is missing below {exercise_files.CHECK}: a KernelExercise, a "
                        "FunctionExercise or a PredictionExercise")
    if exercise.name != path.stem:
        raise UserError(f"{shown(path)}: EXERCISE is named {exercise.name!r}; it must have the name of its file")
    return exercise


def _module(path: Path):
    """The exercise's file, imported. UserError for whatever it raises."""
    folder = path.parents[1]
    package = __name__
    if folder != exercise_files.OWN:
        package = f"labkit_exercises_{abs(hash(str(folder)))}"
        if package not in sys.modules:  # so that the modules in it can import from one another
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [str(folder)]
        importlib.invalidate_caches()  # the file may be new
    try:
        return importlib.import_module(f"{package}.{path.parent.name}.{path.stem}")
    except UserError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        at = f", line {lines[-1]}" if lines else ""
        raise UserError(f"{shown(path)}{at} cannot be imported: {type(error).__name__}: {error}") from error
