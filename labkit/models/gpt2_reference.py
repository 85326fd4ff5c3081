"""GPT-2 in NumPy and float64, the reference; and parity, which compares a model with it, launch by launch.

    parity(model, ids)            a table of all activations; .first names the first that differs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit._common.tables import ResultTable
from labkit.kernels.dtypes import float64_of
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.models import configs
from labkit.models.blob import converted, is_bfloat16
from labkit.models.configs import HEAD, names_in
from labkit.models.gpt2 import GPT2, Config, Workspace
from labkit.models.gpt2_block import allowed_error, block_steps
from labkit.models.packed import QuantizedTensor, opened
from labkit.models.safetensors import Named


class Converted(Named):
    """Parameters by name, each converted when it is read: in float64 a large model does not fit into memory."""

    def __init__(self, names: Iterable[str], convert: Callable[[str], np.ndarray]):
        self.entries, self._convert = dict.fromkeys(names), convert

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.entries:
            raise KeyError(name)
        return self._convert(name)


def weights_of(tensors: Mapping[str, np.ndarray], config: configs.Config, dtype="float32") -> Converted:
    """The parameters as a file holds them, rounded to `dtype` as the model's are, in float64; quantised ones are what
    their codes stand for."""
    tensors = opened(tensors, getattr(config, "quantization_config", None))
    names, stored = names_in(tensors, config), np.dtype(np.uint16 if dtype == "bfloat16" else dtype)

    def read(param: str) -> np.ndarray:
        tensor = tensors[names[param]]
        if isinstance(tensor, QuantizedTensor):
            return tensor.read().dequantize()
        return float64_of(converted(tensor, stored, is_bfloat16(tensors, names[param])))

    return Converted(names, read)


def activations(config: Config, weights: Mapping[str, np.ndarray], ids: Sequence[int]) -> dict[str, np.ndarray]:
    """The output of each launch of gpt2.py, by the name that it is reported under; "logits" are those of all tokens."""
    w = Converted(weights, lambda name: float64_of(weights[name]))

    result = {}
    x = result["embedding"] = w["wte.weight"][np.asarray(ids)] + w["wpe.weight"][: len(ids)]
    for layer in range(config.n_layer):
        h = f"h.{layer}."
        steps = block_steps(x, {name: w[h + name] for name in config.block.parameters}, config.n_head, causal=True)
        result |= {h + name: value for name, value in steps.items()}
        x = steps["out"]
    result["ln_f"] = layernorm_reference(x, w["ln_f.weight"], w["ln_f.bias"])
    result["logits"] = result["ln_f"] @ w[HEAD if HEAD in w else "wte.weight"].T
    return result


@dataclass(frozen=True)
class Difference:
    """How far one activation is from the truth, and its worst element. outside: how many elements are not within
    `allowed`."""

    name: str
    error: float
    allowed: float
    shape: tuple[int, ...] = ()
    index: tuple[int, ...] | None = None
    ours: float = np.nan
    reference: float = np.nan
    outside: int = 0

    @classmethod
    def between(cls, name: str, ours: np.ndarray, reference: np.ndarray, allowed: float) -> Difference:
        """Compare two arrays of one shape. The error is infinite where ours is not finite."""
        errors = np.nan_to_num(np.abs(np.asarray(ours, np.float64) - reference), nan=np.inf)
        index = tuple(map(int, np.unravel_index(errors.argmax(), errors.shape)))
        return cls(name, float(errors[index]), float(allowed), errors.shape, index, float(ours[index]),
                   float(reference[index]), int(np.count_nonzero(errors > allowed)))

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed  # not for NaN

    @property
    def element(self) -> str:
        """The worst element in words; "" where none is known."""
        if self.index is None:
            return ""
        return (f"{self.outside:,} of {math.prod(self.shape):,} elements are out of tolerance; the worst is "
                f"[{', '.join(map(str, self.index))}] of shape {self.shape}: ours {self.ours:.9g}, reference "
                f"{self.reference:.9g}, difference {self.error:.3g}, allowed {self.allowed:.2g}")


Compared = Callable[[Difference, np.ndarray, np.ndarray], None]  # gets each activation with both arrays


@dataclass(frozen=True, repr=False)
class Parity(ResultTable):
    """Every activation of a model against NumPy in float64, in the order in which they are computed."""

    rows: tuple[Difference, ...]
    title: str = field(default="Layer by layer against NumPy in float64", kw_only=True)

    @property
    def first(self) -> Difference | None:
        """The first that differs: its launch is the one to look at. Everything after it has to differ, too."""
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
            "title": self.title,
            "columns": ["activation", "largest error", "of the allowed", "agrees"],
            "rows": [[row.name, f"{row.error:.1e}", f"{row.error / row.allowed:.2f}" if row.allowed else "-",
                      "yes" if row.passed else "no"] for row in self.rows],
            "notes": [] if self.passed else list(filter(None, (f"The first that differs is {self.first.name}.",
                                                               self.first.element))),
        }

    def result(self) -> dict:
        return {"kind": "parity", "passed": self.passed, "first": None if self.passed else self.first.name}


def parity(model: GPT2, ids: Sequence[int], compared: Compared | None = None) -> Parity:
    """Run a prompt through the model and compare the output of every launch with the reference.

    compared: called after each launch, with the row, the model's array and the reference's."""
    weights = {name: model.weights[name].copy_to_host() for name in model.weights}
    truth = activations(model.config, weights, ids)
    rows = []

    def watch(name, array):
        expected = truth[name][-1:] if name in ("ln_f", "logits") else truth[name]  # the last token's only
        actual = array.copy_to_host()
        rows.append(Difference.between(name, actual, expected, allowed_error(model.config, expected, len(rows) + 1)))
        if compared:
            compared(rows[-1], actual, expected)

    model.prefill(ids, Workspace(model.config, context=len(ids), tokens=len(ids)), watch=watch)
    return Parity(tuple(rows))
