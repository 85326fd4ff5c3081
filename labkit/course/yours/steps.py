"""A block or a whole GPT-2 with learners' kernels in it, compared step by step with NumPy in float64."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit import cuda
from labkit._common.tables import ResultTable
from labkit.course.yours.places import PARTS, Place
from labkit.course.yours.written import Answers, _in_a_line
from labkit.models import gpt2_block as block
from labkit.models.gpt2 import GPT2, Kernels
from labkit.models.gpt2_block import Shape
from labkit.models.gpt2_reference import Difference, Parity, parity

SMALL = Shape(width=128, heads=2, inner=512)  # a sixth of GPT-2 small, with heads of the same size


def with_kernels(model: GPT2, mine: Answers | Kernels) -> GPT2:
    """The model, on the same weights, with other kernels."""
    other = copy.copy(model)
    other.kernels = mine.fitting(model.config.block).kernels() if isinstance(mine, Answers) else mine
    return other


@dataclass(frozen=True, repr=False)
class Steps(Parity):
    """Parity, with the exercises whose kernels computed each step, and where it stopped if one of them failed."""

    by: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""

    def table(self) -> dict:
        spec = super().table()
        spec["title"] = "Step by step against NumPy in float64"
        spec["columns"][0] = "step"
        if self.by:
            spec["columns"].insert(1, "computed with")
            spec["rows"] = [[name, self.by.get(_step(name), "the model's own"), *rest] for name, *rest in spec["rows"]]
        spec["notes"] = ([f"{self.first.name} could not be computed: {self.stopped}"] if self.stopped else
                         [] if self.passed else [f"The first that differs is {self.first.name}. What comes after it is "
                                                 "computed from it, and has to differ, too."])
        return spec


def _step(name: str) -> str:
    """ "h.3.mlp.gelu" -> "mlp.gelu"."""
    return name.split(".", 2)[2] if name.startswith("h.") else name


def block_parity(mine: Answers | Kernels | None = None, *, shape: Shape = SMALL, tokens: int = 9, causal: bool = True,
                 post_ln: bool = False, seed: int = 0) -> Steps:
    """Runs one block with these kernels on random weights and compares what each launch wrote with float64."""
    mine = mine.fitting(shape) if isinstance(mine, Answers) else mine
    rng = np.random.default_rng(seed)
    x, weights = rng.standard_normal((tokens, shape.width), np.float32), shape.random(rng)
    truth = block.block_steps(x, {name: part.astype(np.float64) for name, part in shape.split(weights).items()},
                              shape.heads, causal=causal, post_ln=post_ln)
    rows: list[Difference] = []

    def compare(name, got):
        expected = truth[name]
        error = np.inf if got is None else np.nan_to_num(np.abs(got - expected).max(), nan=np.inf)
        rows.append(Difference(name, float(error), block.allowed_error(shape, expected, len(rows) + 1)))

    out = cuda.to_device(np.full(x.shape, np.nan, np.float32))
    stopped = ""
    try:
        block.solve(cuda.to_device(x), out, cuda.to_device(weights), tokens, shape=shape, causal=causal,
                    post_ln=post_ln, kernels=mine.kernels() if isinstance(mine, Answers) else mine,
                    watch=lambda name, array: compare(name, array.copy_to_host()))
    except Exception as error:  # a learner's kernel may do anything
        stopped = _in_a_line(error)
        compare(list(truth)[len(rows)], None)
    return Steps(tuple(rows), mine.by() if isinstance(mine, Answers) else {}, stopped)


def model_parity(model: GPT2, ids: Sequence[int], mine: Answers | Kernels | None = None) -> Steps:
    """The same for a whole GPT-2: a prompt, all layers, to the logits."""
    mine = mine.fitting(model.config.block) if isinstance(mine, Answers) else mine
    other = model if mine is None else with_kernels(model, mine)
    by = mine.by() if isinstance(mine, Answers) else {}
    try:
        return Steps(parity(other, ids).rows, by)
    except Exception as error:
        return Steps((Difference("the model", np.inf, 0.0),), by, _in_a_line(error))


@dataclass(frozen=True, repr=False)
class OneByOne(ResultTable):
    """Each answer alone in the model, and all of them together: (exercise, its place or None, Steps)."""

    runs: tuple[tuple[str, Place | None, Steps], ...]
    answers: Answers
    model: str
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(steps.passed for _, _, steps in self.runs)

    def first(self, exercise: str) -> Difference | None:
        """The first step that differs with this exercise's kernel alone in the model; None if none does."""
        return next(steps.first for name, _, steps in self.runs if name == exercise)

    def table(self) -> dict:
        rows = []
        for name, place, steps in self.runs:
            worst = max(row.error / row.allowed if row.allowed else np.inf for row in steps.rows)
            rows.append([name, PARTS[place.part][0] if place else "all their parts", f"{worst:.2f}",
                         "none" if steps.passed else steps.first.name])
        stopped = [f"{name}: {steps.first.name} could not be computed: {steps.stopped}"
                   for name, _, steps in self.runs if steps.stopped]
        return {"title": f"One by one in {self.model}, against float64",
                "columns": ["exercise", "does", "largest error, of the allowed", "first step that differs"],
                "rows": rows or [["none yet", "", "", ""]],
                "notes": [*stopped, *self.left_out, *self.answers.notes()]}

    def result(self) -> dict:
        return {"kind": "one_by_one", "passed": self.passed,
                "first": {name: None if steps.passed else steps.first.name for name, _, steps in self.runs}}


def one_by_one(mine: Answers, model: GPT2 | None = None, ids: Sequence[int] = (), **options) -> OneByOne:
    """Puts each answer into the model alone, then all together. model: left out, it is one block (options as for
    block_parity); else a GPT-2 that gets the prompt `ids`."""

    def run(these: Answers) -> Steps:
        return block_parity(these, **options) if model is None else model_parity(model, ids, these)

    elsewhere = {"argmax"} if model is not None else {"embedding", "append_to_cache", "logits", "argmax"}
    shape = options.get("shape", SMALL) if model is None else model.config.block
    fitting = [row for row in mine.fitting(shape).usable if row.place.part not in elsewhere]
    runs = [(row.exercise, row.place, run(Answers((row,)))) for row in fitting]
    if len(fitting) > 1:
        runs.append(("all together", None, run(Answers(tuple(fitting)))))
    left_out = [f"{row.exercise} is left out: it is for heads of {row.place.head} numbers, and here a head has "
                f"{shape.width // shape.heads}." for row in mine.usable if row not in mine.fitting(shape).rows]
    outside = [row.exercise for row in mine.usable if model is None and row.place.part in elsewhere]
    if outside:
        verb = "has its place" if len(outside) == 1 else "have their places"
        left_out.append(f"{', '.join(outside)} {verb} outside a block, in a whole model.")
    return OneByOne(tuple(runs), mine, "a block" if model is None else "the model", tuple(left_out))
