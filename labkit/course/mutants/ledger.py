"""data/mutants.toml: how many mutants of each answer were tried, and those that check lets pass.

    [tried]
    row_range = 30

    [[survivor]]
    exercise = "row_range"
    mutant = "number: 16 -> 8"
    equivalent = "why no check can tell it from the right answer"      # left out: a hole in the check

`labkit exercises mutate` writes it. What a person wrote under `equivalent` is kept as long as the mutant is there; a
run that was out of time, as on a busy machine, does not remove it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

from labkit._common.files import write_text
from labkit.course.mutants.trial import Outcome

NAME = "mutants.toml"


def read(path: Path) -> dict:
    """{"tried": {exercise: count}, "survivor": [{"exercise", "mutant", "equivalent"?}]}; empty where there is none."""
    if not path.is_file():
        return {"tried": {}, "survivor": []}
    return {"tried": {}, "survivor": []} | tomllib.loads(path.read_text(encoding="utf-8"))


def survivors(path: Path) -> dict[tuple[str, str], str]:
    """(exercise, mutant) -> why it is equivalent; "" for a hole."""
    return {(one["exercise"], one["mutant"]): one.get("equivalent", "") for one in read(path)["survivor"]}


def update(path: Path, outcomes: Iterable[Outcome]) -> dict:
    """Replace the entries of the exercises among the outcomes, which must be complete; return the new content."""
    known, reasons = read(path), survivors(path)
    tried: dict[str, int] = {}
    survived = []
    for one in outcomes:
        tried[one.exercise] = tried.get(one.exercise, 0) + 1
        key = one.exercise, one.mutant
        if one.survived or (one.ran_out_of_time and reasons.get(key)):
            survived.append(key)
    others = [key for key in reasons if key[0] not in tried]
    content = {"tried": dict(sorted((known["tried"] | tried).items())),
               "survivor": [{"exercise": exercise, "mutant": mutant, "equivalent": reasons.get((exercise, mutant), "")}
                            for exercise, mutant in sorted([*others, *survived])]}
    write_text(path, _toml(content))
    return content


def _toml(content: dict) -> str:
    """A string of JSON is one of TOML."""
    lines = ["# Written by `labkit exercises mutate`; people write what stands under `equivalent`.", "", "[tried]"]
    lines += [f"{name} = {count}" for name, count in content["tried"].items()]
    for one in content["survivor"]:
        lines += ["", "[[survivor]]"]
        lines += [f"{key} = {json.dumps(one[key], ensure_ascii=False)}"
                  for key in ("exercise", "mutant", "equivalent") if one[key]]
    return "\n".join(lines) + "\n"
