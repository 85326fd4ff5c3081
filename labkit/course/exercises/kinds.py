"""The three kinds of exercise: write a kernel, write a function of the host, predict numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import numpy as np

from labkit.course.exercises.demands import Demand, several_threads
from labkit.course.exercises.domains import Reach
from labkit.course.exercises.edits import WrongAnswers


@dataclass(frozen=True)
class Exercise:
    """What every exercise has. `wrong` maps a mistake, in a few words, to an answer that makes it or to an Edit of the
    right answer."""

    kind: ClassVar[str]
    asked: ClassVar[str] = ""  # besides a right result, in sentences
    name: str
    _: KW_ONLY
    wrong: Mapping[str, object]

    def __post_init__(self):
        declared = getattr(self.wrong, "declared", self.wrong)  # a copy's were wrapped before
        self._demand(len(declared) >= 2, "`wrong` needs two known wrong answers at least, so that check can be tested")
        object.__setattr__(self, "wrong", WrongAnswers(self.name, declared))

    def _demand(self, condition, message: str) -> None:
        if not condition:
            raise ValueError(f"exercise {self.name!r}: {message}")

    def _demand_callable(self, *fields: str) -> None:
        for name in fields:
            self._demand(getattr(self, name) is not None, f"{name} is missing")
            self._demand(callable(getattr(self, name)), f"{name} must be a function, not {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class ComputedExercise(Exercise):
    """An answer that computes an array, compared with a reference at several sizes. A size is a dictionary of axis
    lengths, such as {"n": 33}: inputs, shape and launch take it. `domain` says what else inputs may be like or, in a
    sentence, why no property applies.
    """

    reference: Callable  # (*inputs) in NumPy, float64 where that is the truth
    inputs: Callable  # (rng, **size) -> tuple of host arrays and scalars
    sizes: tuple[dict, ...]  # awkward ones, smallest first
    domain: tuple[Reach, ...] | str | None = None  # must be given: see labkit.course.exercises.domains
    random_size: Callable | None = None  # (rng) -> a size; left out, one near a random one of `sizes` is taken
    tolerance: Callable | None = None  # (*inputs in float64) -> largest error allowed; None: equal to the last bit
    shape: Callable | None = None  # (**size) -> shape of the output
    dtype: type = np.float32  # of the output
    arguments: Callable | None = None  # (inputs, out, size) -> the answer's arguments; left out, (*inputs, out)
    start: Callable | None = None  # (*inputs) -> what the output holds before the launch, instead of NaN
    demand: ClassVar[Demand | None] = None

    @property
    def asked(self) -> str:
        return self.demand.asked if self.demand is not None else ""

    def __post_init__(self):
        super().__post_init__()
        self._demand(self.demand is None or isinstance(self.demand, Demand), "demand must be a Demand: put "
                     '@asks("what is asked for") of labkit.course.exercises.demands above its function')
        self._demand_callable("reference", "inputs")
        self._demand(self.sizes and all(isinstance(size, dict) for size in self.sizes),
                     'sizes is missing; it is a tuple of dictionaries, such as ({"n": 1}, {"n": 33})')
        self._demand_domain()

    def _demand_domain(self) -> None:
        excused = isinstance(self.domain, str) and len(self.domain.split()) >= 3
        named = isinstance(self.domain, tuple) and self.domain and all(isinstance(r, Reach) for r in self.domain)
        self._demand(excused or named, "domain names the properties that inputs may have, such as of(0, EQUAL, ZEROS), "
                     f"or says in a sentence why there are none; it is {self.domain!r}")


@dataclass(frozen=True, kw_only=True)
class KernelExercise(ComputedExercise):
    """The learner writes a `@cuda.jit` kernel. check launches it as launch(**size) says and compares `out`."""

    kind = "kernel"
    shape: Callable
    launch: Callable  # (**size) -> (grid, block[, stream, shared_bytes])
    demand: Demand | None = None  # given the Report of observe, at each observed size
    benign_races: bool = True  # False: threads that store the same value to one element fail the answer
    in_float32: bool = False  # float64 arithmetic is refused, since the text says so; elsewhere it gets a remark
    observe_sizes: tuple[dict, ...] | None = None  # left out, the small ones of `sizes`
    timed_gpu: dict | None = None  # a large size to be timed at on a GPU
    baseline: Callable | None = None  # (xp, *inputs, out): the same in NumPy, CuPy or PyTorch

    def __post_init__(self):
        super().__post_init__()
        self._demand_callable("shape", "launch")
        for size in self.observe_sizes or ():
            self._demand(size in self.sizes, f"observe_sizes has {size}, which is not one of sizes")

    @property
    def asked(self) -> str:
        return " ".join([super().asked, *(["All arithmetic is in float32."] if self.in_float32 else [])]).strip()

    def missing(self, report) -> str | None:
        """Return the unmet requirement besides a right result, in a sentence, or None."""
        return several_threads(report) or (self.demand(report) if self.demand is not None else None)


@dataclass(frozen=True, kw_only=True)
class FunctionExercise(ComputedExercise):
    """The learner writes a function of the host.

    With shape it is a launcher, called as a kernel is, with arrays on the device. Without shape it gets the inputs as
    they are, and what it returns is compared. demand is asked on the CPU device, where every launch is seen. With judge
    the answer is part of something larger, such as a simulation: judge calls it as often as it likes.
    """

    kind = "function"
    demand: Demand | None = None  # given the HostRun of check.host_runs, at each size
    alike: Callable | None = None  # (result, *inputs) -> an array that is equal for results that are as good
    judge: Callable | None = None  # (answer, expected, *inputs) -> the fault, in a sentence, or None; not compared

    def __post_init__(self):
        super().__post_init__()
        for name in ("alike", "judge"):
            self._demand(self.shape is None or getattr(self, name) is None,
                         f"{name} is for a function that returns its result")
        for name in ("arguments", "start"):
            self._demand(self.shape or getattr(self, name) is None, f"{name} is for a launcher, which has a shape")


@dataclass(frozen=True, kw_only=True)
class PredictionExercise(Exercise):
    """The learner gives numbers: check(name, idle=24, sectors=4). A wrong answer is a dictionary of wrong numbers."""

    kind = "predict"
    truth: Callable  # () -> {"idle": 24, "sectors": 4}
    how: Mapping[str, str] = field(default_factory=dict)  # name -> how to count it

    def __post_init__(self):
        super().__post_init__()
        self._demand_callable("truth")
        for mistake, numbers in self.wrong.items():
            self._demand(isinstance(numbers, Mapping) and numbers,
                         f"wrong[{mistake!r}] must be a dictionary of numbers, not {numbers!r}")
