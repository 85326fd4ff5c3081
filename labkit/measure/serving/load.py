"""The load on a server: the number of requests, their lengths and arrival times, and the goals for their answers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from labkit._common.errors import UserError
from labkit._common.tables import number

# Ids that stand for ordinary tokens in every vocabulary: the first few are often marks.
FIRST_ID, VOCABULARY = 3, 256
TERMS = ("ttft", "tpot", "itl", "e2el")


class Work(NamedTuple):
    """A request: its prompt's token ids, and how many tokens are asked for."""

    prompt: list[int]
    output: int


def random_work(count: int, prompts: tuple[int, int], outputs: tuple[int, int], vocabulary: int = VOCABULARY,
                seed: int = 0) -> list[Work]:
    """Prompts of random ids below `vocabulary`; lengths drawn uniformly from the ranges, both ends included."""
    rng = np.random.default_rng(seed)
    lengths = zip(rng.integers(prompts[0], prompts[1] + 1, count), rng.integers(outputs[0], outputs[1] + 1, count),
                  strict=True)
    return [Work(rng.integers(min(FIRST_ID, vocabulary - 1), vocabulary, prompt).tolist(), int(output))
            for prompt, output in lengths]


def poisson(count: int, rate: float, seed: int = 0) -> list[float | None]:
    """When each request arrives, in seconds after the first: a Poisson process of `rate` a second; at an infinite rate
    all at once."""
    if math.isinf(rate):
        return [0.0] * count
    gaps = np.random.default_rng([seed, 1]).exponential(1 / rate, max(0, count - 1))
    return [0.0, *np.cumsum(gaps).tolist()][:count]


@dataclass(frozen=True)
class Slo:
    """A service level objective: milliseconds that a good request may take at most, by the names of TERMS."""

    limits_ms: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> Slo:
        """From "ttft=200,itl=50"."""
        limits: dict[str, float] = {}
        for part in text.split(",") if text else ():
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in TERMS or name in limits:
                raise UserError(f"--slo {text!r}: {part.strip()!r} must be one of {', '.join(TERMS)}, each once, with "
                                f"its milliseconds: ttft=200,itl=50")
            limits[name] = positive("--slo", value, f"the milliseconds of {name}")
        return cls(limits)

    def met(self, milliseconds: dict[str, float | None]) -> bool:
        """milliseconds: by the names of TERMS; None where there is none, as between the tokens of a single one."""
        return all(milliseconds[name] is None or milliseconds[name] <= limit
                   for name, limit in self.limits_ms.items())


@dataclass(frozen=True)
class Load:
    """Requests and the way in which they come. rate: of arrivals a second, inf for all at once; None: as many as
    `concurrency` at a time, each as soon as another one has ended. With both, requests that arrive wait until fewer
    than `concurrency` are in flight."""

    work: Sequence[Work]
    rate: float | None = None
    concurrency: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        limit = f"{self.concurrency} at a time"
        if self.rate is None:
            return limit
        arrivals = "all at once" if math.isinf(self.rate) else f"{number(self.rate)} a second"
        return f"{arrivals}, {limit} at most" if self.concurrency else arrivals

    def arrivals(self) -> list[float | None]:
        return [None] * len(self.work) if self.rate is None else poisson(len(self.work), self.rate, self.seed)


def positive(option: str, text: str, name: str = "it") -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise UserError(f"{option}: {name} must be a number above 0; it is {text!r}")
    return value


def span(option: str, text: str) -> tuple[int, int]:
    """From "100-1024", or from "128" for a single length."""
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise UserError(f"{option} {text!r} must be a length in tokens, or a range of lengths such as 100-1024")
    return low, high


def rates(text: str) -> list[float]:
    """From "4", "1,2,4" or "inf"."""
    return [positive("--rate", part, "each rate, in requests a second,") for part in text.split(",")]
