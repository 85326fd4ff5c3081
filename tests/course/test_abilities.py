"""What runs on which GPU, lesson by lesson: from the record of what was assembled."""

import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import abilities
from labkit.course import registry as courses
from labkit.device import gpus
from labkit.measure import gpu_survey
from labkit.measure.gpu_plans import TARGETS
from labkit.measure.gpu_survey import Outcome, Survey


@pytest.fixture(scope="module")
def course():
    return courses.load(REPOSITORY)


def of(course, number: str):
    return abilities.uses(course.pick([number])[0])


def test_what_a_lesson_uses_is_what_its_code_imports_and_loads(course):
    assert of(course, "08") == (("matmul_half",), ())
    assert of(course, "17") == (("vector_add", "softmax"), ())
    assert of(course, "26") == (("gpt2_block",), ())
    assert of(course, "28")[1] == (abilities.MODELS["tiny"],)
    assert of(course, "34")[1] == (abilities.LLAMAS,)
    assert of(course, "36")[1] == (("Llama in bfloat16",),)
    assert of(course, "38") == ((), (("Llama in float32",),))


def made_up(**outcomes) -> Survey:
    """Every target runs everything, but for 7.5, which has these outcomes, by rung or model."""
    def targets(name):
        return {target: outcomes.get(name, Outcome()) if target == "7.5" else Outcome() for target in TARGETS}

    return Survey({}, "2026-11-28", {}, {"matmul_half": {name: targets(name) for name in ("naive", "wgmma", "tiled")}},
                  {name: targets(name) for name in (*abilities.LLAMAS, *abilities.MODELS["tiny"])})


def test_a_lesson_says_how_much_of_it_runs(course):
    survey = made_up(wgmma=Outcome("needs compute capability 9.0 exactly"), tiled=Outcome(spills=8))
    found = abilities.ability(course.pick(["08"])[0], survey)
    assert [found.cells[target].words for target in TARGETS] == ["2 of 3"] + ["all"] * 6
    assert found.reasons == [("needs compute capability 9.0 exactly", ["wgmma"], ["7.5"])]
    assert found.spills == [("tiled", ["8 bytes on 7.5"])]
    assert [found.cells[target].state for target in ("7.5", "8.0")] == ["some", "all"]


def test_a_model_runs_if_one_of_its_types_does(course):
    chapter = course.pick(["34"])[0]
    lacks = Outcome("needs compute capability 8.0")
    survey = made_up(**{"Llama in bfloat16": lacks})
    assert abilities.ability(chapter, survey).cells["7.5"].words == "all"
    survey = made_up(**dict.fromkeys(abilities.LLAMAS, lacks))
    assert abilities.ability(chapter, survey).cells["7.5"].words == "none"
    assert abilities.ability(chapter, survey).reasons == [("needs compute capability 8.0", ["Llama"], ["7.5"])]


def test_a_family_says_how_many_rungs_are_left_out_for_what():
    survey = made_up(wgmma=Outcome("needs compute capability 9.0 exactly"),
                     naive=Outcome("needs compute capability 8.0"),
                     tiled=Outcome("kernel needs 98,304 bytes of shared memory; a block can have 65,536"))
    family = abilities.families(survey)[0]
    assert (family.name, family.rungs, family.of, family.of_models) == ("T4, RTX 20", 0, 3, 5)
    assert dict(family.left_out) == {"need compute capability 9.0 exactly": 1,
                                     "need compute capability 8.0 or later": 1,
                                     "need more shared memory than a block can have": 1}


def test_every_gpu_that_is_known_belongs_to_a_family():
    assert list(abilities.FAMILIES) == list(TARGETS)
    for gpu in gpus.GPUS.values():
        named = abilities.FAMILIES[".".join(map(str, gpu.capability))].split(", ")
        assert any(name in gpu.name.replace("Ti", "") for name in named), gpu.name


def test_the_page_has_every_lesson_that_uses_operations_or_models(course):
    found = abilities.abilities(course)
    assert {each.chapter.number for each in found} >= {"01", "08", "26", "31", "42", "45"}
    record = gpu_survey.read()
    for each in found:
        for target, cell in each.cells.items():
            rungs = sum(len(record.rungs[name]) for name in each.operations)
            assert cell.of == rungs + len(each.models), (each.chapter.name, target)
    assert all(cell.words == "all" for each in found for cell in [each.cells["9.0"]])
