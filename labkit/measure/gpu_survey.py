"""What runs on which GPU, as labkit.measure.gpu_matrix found it by compiling and assembling, and its record.

    read().of("matmul", "matmul_tiled", "7.5").runs

It imports no Numba: the site reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from labkit._common.files import read_text, write_text
from labkit._common.paths import REPOSITORY

RECORD = REPOSITORY / "data" / "fits.json"


@dataclass(frozen=True)
class Outcome:
    """What a GPU makes of a rung or a model. why: the reason if it is left out, empty if it runs. spills: bytes that
    its kernels spill, of the one that spills most. except_at: the first size that is refused there and not on 9.0."""

    why: str = ""
    spills: int = 0
    except_at: str = ""

    @property
    def runs(self) -> bool:
        return not self.why

    def to_json(self):
        """Only what there is to say."""
        return {name: value for name, value in vars(self).items() if value} or "runs"

    @classmethod
    def of_json(cls, value) -> Outcome:
        return cls() if value == "runs" else cls(**value)


@dataclass
class Survey:
    """All outcomes. toolchain: the versions that compiled. kernels: what `assembled` says, by key. rungs: {operation:
    {rung: {target: Outcome}}}. models: {model: {target: Outcome}}. forms: those of the kernels; not in the record."""

    toolchain: dict = field(default_factory=dict)
    date: str = ""
    kernels: dict = field(default_factory=dict)
    rungs: dict = field(default_factory=dict)
    models: dict = field(default_factory=dict)
    forms: list = field(default_factory=list)

    def of(self, operation: str, rung: str, target: str) -> Outcome:
        return self.rungs[operation][rung][target]


def read(path: Path = RECORD) -> Survey:
    """The record; an empty survey where there is none."""
    if not path.is_file():
        return Survey()
    found = json.loads(read_text(path))

    def outcomes(targets):
        return {target: Outcome.of_json(value) for target, value in targets.items()}

    return Survey(found["toolchain"], found["date"], found["kernels"],
                  {name: {rung: outcomes(targets) for rung, targets in rungs.items()}
                   for name, rungs in found["rungs"].items()},
                  {name: outcomes(targets) for name, targets in found["models"].items()})


def write(survey: Survey, path: Path = RECORD) -> None:
    """One kernel, rung or model a line."""
    def line(value) -> str:
        return json.dumps(value, default=Outcome.to_json)

    def block(rows: dict, indent: str) -> str:
        return ",\n".join(f"{indent}{line(name)}: {line(value)}" for name, value in rows.items())

    rungs = ",\n".join(f'  {line(name)}: {{\n{block(rows, "   ")}\n  }}' for name, rows in survey.rungs.items())
    write_text(path, f'{{\n "date": {line(survey.date)},\n "toolchain": {line(survey.toolchain)},\n'
                     f' "rungs": {{\n{rungs}\n }},\n "models": {{\n{block(survey.models, "  ")}\n }},\n'
                     f' "kernels": {{\n{block(dict(sorted(survey.kernels.items())), "  ")}\n }}\n}}\n')
