"""Which lesson runs on which GPU: what data/fits.json says about the operations and models that a lesson uses.

    abilities(registry.load())[7].cells["7.5"].left_out

A rung counts as one, and so does a model, which runs if it does in one of the types that the lesson may load it in.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass

from labkit._common.files import read_text
from labkit._common.paths import REPOSITORY
from labkit.course.registry import Chapter, Course
from labkit.measure import gpu_survey
from labkit.measure.gpu_survey import Outcome, Survey

FAMILIES = {"7.5": "T4, RTX 20", "8.0": "A100", "8.6": "RTX 30, A10", "8.9": "RTX 40, L4", "9.0": "H100, H200",
            "10.0": "B200", "12.0": "RTX 50"}  # what people call the GPUs of a compute capability
FREE = "7.5"  # of the T4 that Colab and Kaggle lend
PRETENDED = REPOSITORY / "data" / "pretended.json"
LADDERS = ("recorded_ladder", "op")  # functions whose first argument names an operation
LLAMAS = ("Llama in bfloat16", "Llama in float16", "Llama in float32")
MODELS = {"tiny": ("GPT-2 in float32", "GPT-2 in float16"), "tiny-llama": LLAMAS}  # by the name that load() takes
MODULES = {"labkit.models.gpt2": MODELS["tiny"], "labkit.models.minilm": ("MiniLM in float16", "MiniLM in float32"),
           "labkit.models.llama": LLAMAS}
BLOCK = ("labkit.models.gpt2_block", "gpt2_block")  # a module, and the operation that it is


@dataclass(frozen=True)
class LeftOut:
    """A rung or a model that a GPU does not run."""

    name: str
    why: str


@dataclass(frozen=True)
class Cell:
    """What a GPU runs of a lesson: `runs` of `of`. spills: (rung, bytes) of what runs with too few registers."""

    of: int
    left_out: tuple[LeftOut, ...]
    spills: tuple[tuple[str, int], ...] = ()

    @property
    def runs(self) -> int:
        return self.of - len(self.left_out)

    @property
    def words(self) -> str:
        return "all" if not self.left_out else f"{self.runs} of {self.of}" if self.runs else "none"

    @property
    def state(self) -> str:
        return {"all": "all", "none": "none"}.get(self.words, "some")


@dataclass(frozen=True)
class Ability:
    """A lesson by GPU. operations and models: what it uses; a model with the types it may be loaded in."""

    chapter: Chapter
    operations: tuple[str, ...]
    models: tuple[tuple[str, ...], ...]
    cells: dict[str, Cell]

    @property
    def reasons(self) -> list[tuple[str, list[str], list[str]]]:
        """(why, what is left out, on which targets), a reason once."""
        targets: dict[tuple, list[str]] = {}
        for target, cell in self.cells.items():
            for one in cell.left_out:
                targets.setdefault((one.why, one.name), []).append(target)
        grouped: dict[tuple, list[str]] = {}
        for (why, name), where in targets.items():
            grouped.setdefault((why, tuple(where)), []).append(name)
        return [(why, names, list(where)) for (why, where), names in grouped.items()]

    @property
    def spills(self) -> list[tuple[str, list[str]]]:
        """(rung, "8 bytes on 8.6" and so on)."""
        found: dict[str, list[str]] = {}
        for target, cell in self.cells.items():
            for name, spilled in cell.spills:
                found.setdefault(name, []).append(f"{spilled:,} bytes on {target}")
        return list(found.items())


def uses(chapter: Chapter) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """(operations, models) that a lesson's code imports or names."""
    from labkit.measure.ops import HOMES

    operations, models = {}, {}
    for node in ast.walk(ast.parse(chapter.source_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == BLOCK[0]:
                operations[BLOCK[1]] = None
            for alias in node.names:
                if f"{node.module}.{alias.name}" == BLOCK[0]:
                    operations[BLOCK[1]] = None
                if alias.name.isupper() and alias.name.lower() in HOMES:
                    operations[alias.name.lower()] = None
                for module, forms in MODULES.items():
                    if module in (node.module, f"{node.module}.{alias.name}") and alias.name != "Config":
                        models[forms] = None
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called, first = getattr(node.func, "attr", getattr(node.func, "id", "")), node.args[0].value
            if called in LADDERS and first in HOMES:
                operations[first] = None
            if called in ("load", "LLM") and first in MODELS:
                dtype = next((word.value.value for word in node.keywords if word.arg == "dtype"), "")
                models[tuple(one for one in MODELS[first] if one.endswith(dtype))] = None
    every = dict.fromkeys(HOMES)
    narrow = [forms for forms in models if not any(set(other) < set(forms) for other in models)]
    return tuple(name for name in every if name in operations), tuple(narrow)


def _outcomes(operations, models, survey: Survey, target: str) -> Iterator[tuple[str, Outcome]]:
    for operation in operations:
        for rung, by_target in survey.rungs.get(operation, {}).items():
            yield rung, by_target[target]
    for forms in models:
        found = [survey.models[form][target] for form in forms if form in survey.models]
        if found:
            name = forms[0] if len(forms) == 1 else forms[0].partition(" in ")[0]
            yield name, next((one for one in found if one.runs), found[0])


def ability(chapter: Chapter, survey: Survey) -> Ability:
    operations, models = uses(chapter)
    cells = {}
    for target in FAMILIES:
        found = list(_outcomes(operations, models, survey, target))
        cells[target] = Cell(len(found), tuple(LeftOut(name, one.why) for name, one in found if not one.runs),
                             tuple((name, one.spills) for name, one in found if one.runs and one.spills))
    return Ability(chapter, operations, models, cells)


def abilities(course: Course, survey: Survey | None = None) -> tuple[Ability, ...]:
    """Those of the lessons that use operations or models."""
    survey = survey or gpu_survey.read()
    found = (ability(chapter, survey) for chapter in course.chapters if chapter.source.is_file())
    return tuple(each for each in found if each.cells[FREE].of)


# --- For the page -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """The GPUs of a compute capability: how many rungs and models they run, and how many are left out for what."""

    target: str
    name: str
    rungs: int
    of: int
    models: list[str]
    of_models: int
    left_out: list[tuple[str, int]]


def families(survey: Survey) -> list[Family]:
    found = []
    for target, name in FAMILIES.items():
        rungs = [by_target[target] for rungs in survey.rungs.values() for by_target in rungs.values()]
        reasons: dict[str, int] = {}
        for one in rungs:
            if not one.runs:
                reasons[kind_of(one.why)] = reasons.get(kind_of(one.why), 0) + 1
        runs = [model for model, by_target in survey.models.items() if by_target[target].runs]
        found.append(Family(target, name, sum(one.runs for one in rungs), len(rungs), runs, len(survey.models),
                            sorted(reasons.items(), key=lambda item: -item[1])))
    return found


def kind_of(why: str) -> str:
    """A reason without its numbers: "need compute capability 8.0", "need more shared memory than a block can have"."""
    if why.startswith("needs compute capability"):
        needed = why.removeprefix("needs compute capability ").partition(";")[0]
        return f"need compute capability {needed}{'' if 'exactly' in needed else ' or later'}"
    return ("need more shared memory than a block can have" if "shared memory" in why
            else "need more registers than a block can have" if "registers" in why
            else "are refused by the assembler")


def pretended() -> dict[str, dict[str, dict]]:
    """{target: {part: {"passed", "failed", "skipped", "gpu", "date"}}} of the tests and lessons that a newer GPU ran
    with an older one's code (scripts/pretended.py); empty where nobody has."""
    return json.loads(read_text(PRETENDED)) if PRETENDED.is_file() else {}
