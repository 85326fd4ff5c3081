"""GPT-2 in NumPy and float64, the reference; and parity, which compares a model with it, launch by launch.

    parity(model, ids)            a table of all activations; .first names the first that differs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit._common.tables import ResultTable
from labkit.kernels.dtypes import float64_of
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.tolerance import EPS32
from labkit.models.gpt2 import GPT2, HEAD, Config, Workspace
from labkit.models.gpt2_block import block_steps


def activations(config: Config, weights: Mapping[str, np.ndarray], ids: Sequence[int]) -> dict[str, np.ndarray]:
    """What each launch of gpt2.py writes, by the name under which it is watched; "logits" are those of all tokens."""
    w = {name: float64_of(array) for name, array in weights.items()}

    seen = {}
    x = seen["embedding"] = w["wte.weight"][np.asarray(ids)] + w["wpe.weight"][: len(ids)]
    for layer in range(config.n_layer):
        h = f"h.{layer}."
        steps = block_steps(x, {name: w[h + name] for name in config.block.parameters}, config.n_head, causal=True)
        seen |= {h + name: value for name, value in steps.items()}
        x = steps["out"]
    seen["ln_f"] = layernorm_reference(x, w["ln_f.weight"], w["ln_f.bias"])
    seen["logits"] = seen["ln_f"] @ w[HEAD if HEAD in w else "wte.weight"].T
    return seen


def launches_of(config: Config) -> int:
    """How many activations come before the logits, the logits included."""
    return 1 + 7 * config.n_layer + 2


def allowed_error(config: Config, expected: np.ndarray, launches: int) -> float:
    """The error allowed in float32 after so many launches, relative to the largest number of the activation.

    One sum of C products has an error of about sqrt(C) * eps/2 of what it adds up; those of all launches before are
    independent, and grow like the square root of their number. Allowed is twice that.
    """
    return EPS32 * np.sqrt(config.inner * launches) * float(np.abs(expected).max())


@dataclass(frozen=True)
class Difference:
    """How far one activation is from the truth."""

    name: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed  # not for NaN


@dataclass(frozen=True, repr=False)
class Parity(ResultTable):
    """Every activation of a model against NumPy in float64, in the order in which they are computed."""

    rows: tuple[Difference, ...]

    @property
    def first(self) -> Difference | None:
        """The first that differs: its launch is the one to look at. All that comes after has to differ, too."""
        return next((row for row in self.rows if not row.passed), None)

    @property
    def passed(self) -> bool:
        return self.first is None

    def check(self) -> Parity:
        if not self.passed:
            raise AssertionError(f"the first activation that differs is {self.first.name}: the largest error is "
                                 f"{self.first.error:.3g}, allowed is {self.first.allowed:.2g}")
        return self

    def table(self) -> dict:
        return {
            "title": "Layer by layer against NumPy in float64",
            "columns": ["activation", "largest error", "of the allowed", "agrees"],
            "rows": [[row.name, f"{row.error:.1e}", f"{row.error / row.allowed:.2f}" if row.allowed else "-",
                      "yes" if row.passed else "no"] for row in self.rows],
            "notes": [] if self.passed else [f"The first that differs is {self.first.name}."],
        }

    def result(self) -> dict:
        return {"kind": "parity", "passed": self.passed, "first": None if self.passed else self.first.name}


def parity(model: GPT2, ids: Sequence[int]) -> Parity:
    """Runs a prompt through the model, and compares all that its launches write with the truth."""
    weights = {name: model.weights[name].copy_to_host() for name in model.weights}
    truth = activations(model.config, weights, ids)
    rows = []

    def watch(name, array):
        expected = truth[name][-1:] if name in ("ln_f", "logits") else truth[name]  # the last token's only
        error = np.abs(array.copy_to_host() - expected).max()
        rows.append(Difference(name, float(np.nan_to_num(error, nan=np.inf)),
                               allowed_error(model.config, expected, len(rows) + 1)))

    model.prefill(ids, Workspace(model.config, context=len(ids), tokens=len(ids)), watch=watch)
    return Parity(tuple(rows))
