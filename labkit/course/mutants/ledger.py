"""data/mutants.toml: how many mutants of each answer were tried, and the holes: those that check lets pass.

    [tried]
    30 = ["row_range", "saxpy"]

    [holes]
    row_range = ["number: 16 -> 8"]

`labkit exercises mutate` writes it. A mutant that no check can tell from the right answer is no hole: the exercise's
file says why under EQUIVALENT.
"""

from __future__ import annotations

import json
import textwrap
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
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    tried = {name: int(count) for count, names in content.get("tried", {}).items() for name in names}
    return {"tried": tried, "holes": content.get("holes", {})}


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
    for count in sorted(set(content["tried"].values())):
        names = ", ".join(f'"{name}"' for name, tried in sorted(content["tried"].items()) if tried == count)
        lines.append(textwrap.fill(f"{count} = [{names}]", 120, subsequent_indent=" " * 6))
    holes = [f"{name} = {json.dumps(mutants, ensure_ascii=False)}"
             for name, mutants in sorted(content["holes"].items()) if mutants]
    if holes:
        lines += ["", "[holes]", *holes]
    return "\n".join(lines) + "\n"
