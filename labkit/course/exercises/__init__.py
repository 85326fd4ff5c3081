"""The exercises as data: the task, inputs, tolerance and known wrong answers.

labkit/course/exercises/chNN.py holds EXERCISES, a tuple, for chapter NN. An exercise's title, points
and hints are in course.toml, its text and answers in solutions/NN_topic.py; labkit.course.check checks answers.
A wrong answer that differs from the right one by a few lines is stated as an Edit of it.

A teacher's own exercises: LABKIT_EXERCISES names a directory (or several, as in PATH) with files chNN.py of the same
kind.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from labkit._common.errors import UserError, did_you_mean, names_like
from labkit._common.paths import PACKAGE
from labkit.course.exercises.domains import Reach
from labkit.course.exercises.edits import Edit
from labkit.course.exercises.kinds import Exercise, FunctionExercise, KernelExercise, PredictionExercise

__all__ = ["Edit", "Exercise", "FunctionExercise", "KernelExercise", "PredictionExercise", "Reach", "find", "load"]


def load(own: bool = True) -> dict[str, Exercise]:
    """Every exercise by name, in the order of the chapters. own=False: only those that LABKIT_EXERCISES names."""
    found: dict[str, Exercise] = {}
    for exercise in _all(own):
        if exercise.name in found:
            raise ValueError(f"two exercises are named {exercise.name!r}")
        found[exercise.name] = exercise
    return found


def find(name: str) -> Exercise:
    """The exercise of this name; KeyError with the near ones where there is none."""
    names = []
    for exercise in _all():
        if exercise.name == name:
            return exercise
        names.append(exercise.name)
    hint = did_you_mean([*map(repr, names_like(str(name), names))]) or "there are none"
    raise KeyError(f"there is no exercise {name!r}; {hint} (labkit imported from {PACKAGE})")


def of_chapter(number: str) -> list[Exercise]:
    """Those of one chapter, "05", without a look at the others."""
    return list(_all(chapter=number))


def _all(own: bool = True, chapter: str = "[0-9][0-9]") -> Iterator[Exercise]:
    """One by one, so that a fault in a later chapter does not stop an earlier one's exercises."""
    for path in sorted(Path(__file__).parent.glob(f"ch{chapter}.py")) if own else ():
        yield from importlib.import_module(f"{__name__}.{path.stem}").EXERCISES
    for folder in filter(None, os.environ.get("LABKIT_EXERCISES", "").split(os.pathsep)):
        if not os.path.isdir(folder):
            raise UserError(f"LABKIT_EXERCISES names {folder!r}; it must name a directory with files chNN.py, or "
                            f"several, with {os.pathsep!r} between them")
        for path in sorted(Path(folder).glob(f"ch{chapter}.py")):
            yield from _module(path.resolve()).EXERCISES


def _module(path: Path):
    name = f"labkit_exercises_{path.stem}_{abs(hash(str(path.parent)))}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
