"""data/mutants.toml: how many mutants of each answer were tried, and the holes: those that check lets pass.

    [tried]
    row_range = 30

    [holes]
    row_range = ["number: 16 -> 8"]

`labkit exercises mutate` writes it. A mutant that no check can tell from the right answer is no hole: the exercise's
file says why under EQUIVALENT.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from labkit._common.files import write_text
from labkit.course.mutants.trial import Outcome

NAME = "mutants.toml"


def read(path: Path) -> dict:
    """{"tried": {exercise: count}, "holes": {exercise: [mutant, ...]}}; empty where there is no file."""
    if not path.is_file():
        return {"tried": {}, "holes": {}}
    return {"tried": {}, "holes": {}} | tomllib.loads(path.read_text(encoding="utf-8"))


def update(path: Path, exercise: str, outcomes: Iterable[Outcome], equivalent: Mapping[str, str]) -> list[str]:
    """Replace the entries of an exercise by its outcomes, which must be complete. Return the mutants that EQUIVALENT
    names and that did not survive; one that was out of time, as on a busy machine, is none of them."""
    outcomes, content = list(outcomes), read(path)
    content["tried"][exercise] = len(outcomes)
    content["holes"][exercise] = sorted(one.mutant for one in outcomes
                                        if one.survived and one.mutant not in equivalent)
    write_text(path, _toml(content))
    kept = {one.mutant for one in outcomes if one.survived or one.ran_out_of_time}
    return sorted(equivalent.keys() - kept)


def _toml(content: dict) -> str:
    """A list of strings of JSON is one of TOML."""
    lines = ["# Written by `labkit exercises mutate`: how many mutants of each answer were tried.", "", "[tried]"]
    lines += [f"{name} = {count}" for name, count in sorted(content["tried"].items())]
    holes = [f"{name} = {json.dumps(mutants, ensure_ascii=False)}"
             for name, mutants in sorted(content["holes"].items()) if mutants]
    if holes:
        lines += ["", "[holes]", *holes]
    return "\n".join(lines) + "\n"
