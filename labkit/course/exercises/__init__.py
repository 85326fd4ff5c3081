"""The exercises as data: what is asked, which inputs, how right is right, and which wrong answers are known.

labkit/course/exercises/chNN.py holds EXERCISES, a tuple, for chapter NN. What a learner reads of an exercise (title,
points, hints) stands in course.toml, the text and the answers in solutions/NN_topic.py; labkit.course.check checks.

A teacher's own exercises: LABKIT_EXERCISES names a directory (or several, as in PATH) with files chNN.py of the same
kind.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

KINDS = ("kernel", "function", "predict")


@dataclass(frozen=True)
class Exercise:
    """One exercise. A size is a dictionary of axis lengths, such as {"n": 33}: inputs, shape and launch take it.

    kind="kernel": the learner writes a `@cuda.jit` kernel. check launches it as launch(**size) says, on
        arguments(inputs, out, size), by default (*inputs, out), and compares out with reference(*inputs).
    kind="function", with shape: a launcher. It is called with the same arguments, arrays on the device.
    kind="function", without shape: called with inputs as they are; what it returns is compared with reference(*inputs).
    kind="predict": the learner gives numbers, check(name, idle=24, sectors=4); truth() gives the true ones.
    """

    name: str
    kind: str = "kernel"
    reference: Callable | None = None  # NumPy, float64 where that is the truth
    inputs: Callable | None = None  # (rng, **size) -> tuple of host arrays and scalars
    shape: Callable | None = None  # (**size) -> shape of the output
    dtype: type = np.float32  # of the output
    sizes: tuple[dict, ...] = ()  # awkward ones, smallest first
    random_size: Callable | None = None  # (rng) -> a size; left out, one near a random one of `sizes` is taken
    launch: Callable | None = None  # (**size) -> (grid, block[, stream, shared_bytes])
    arguments: Callable | None = None  # (inputs, out, size) -> the kernel's arguments
    start: Callable | None = None  # (*inputs) -> what the output holds before the launch, instead of NaN
    tolerance: Callable | None = None  # (*inputs in float64) -> largest error allowed; None: equal to the last bit
    wrong: Mapping[str, object] = field(default_factory=dict)  # what is wrong, in a few words -> a kernel with it
    demand: Callable | None = None  # (Report of observe, at the largest observed size) -> a sentence, or None if met
    observe_sizes: tuple[dict, ...] | None = None  # default: the small ones of `sizes`
    observe: bool = True  # False: races are wanted here, or observe does not apply
    truth: Callable | None = None  # predict: () -> {"idle": 24, "sectors": 4}
    how: Mapping[str, str] = field(default_factory=dict)  # predict: name -> how to count it
    timed_gpu: dict | None = None  # a large size to be timed at on a GPU
    baseline: Callable | None = None  # (xp, *inputs, out): the same in NumPy, CuPy or PyTorch

    def __post_init__(self):
        def demand(condition, message: str):
            if not condition:
                raise ValueError(f"exercise {self.name!r}: {message}")

        demand(self.kind in KINDS, f"kind is {self.kind!r}; allowed are {', '.join(KINDS)}")
        needed = {"kernel": ("reference", "inputs", "shape", "sizes", "launch"),
                  "function": ("reference", "inputs", "sizes"), "predict": ("truth",)}[self.kind]
        for field_name in needed:
            demand(getattr(self, field_name), f"{field_name} is missing; kind={self.kind!r} needs it")
        demand(len(self.wrong) >= 2, "`wrong` needs two known wrong answers at least, so that check can be tested")


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
    import difflib

    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    told = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(names) or 'none'}"
    raise KeyError(f"there is no exercise {name!r}; {told}")


def _all(own: bool = True) -> Iterator[Exercise]:
    """One by one, so that a fault in a later chapter does not stop an earlier one's exercises."""
    for path in sorted(Path(__file__).parent.glob("ch[0-9][0-9].py")) if own else ():
        yield from importlib.import_module(f"{__name__}.{path.stem}").EXERCISES
    for folder in filter(None, os.environ.get("LABKIT_EXERCISES", "").split(os.pathsep)):
        for path in sorted(Path(folder).glob("ch[0-9][0-9].py")):
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
