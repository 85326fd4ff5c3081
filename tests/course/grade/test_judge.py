"""The course's own answers, graded as if students had handed them in."""

from pathlib import Path

import nbformat
import pytest

from labkit.course import registry, workbooks
from labkit.course.grade import remote, sandbox
from labkit.course.grade.answers import answers_in
from labkit.course.grade.judge import Judge, Settings
from tests.course.grade.made_up import FIRST, RIGHT_FUNCTION
from tests.course.grade.test_attacks import judged
from tests.course.grade.test_device_server import ABOVE, LAUNCHED

COURSE = registry.load()
CHAPTERS = [chapter for chapter in COURSE.chapters if COURSE.exercises_of(chapter)]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    if not sandbox.works("namespaces"):
        pytest.skip("this system offers no namespaces")
    folder: Path = tmp_path_factory.mktemp("grade")
    made = Judge(Settings(folder, b"a secret of the tests", "namespaces", wall_s=300))
    yield made
    made.close()


@pytest.mark.cpu_device
@pytest.mark.sampled(0, sweep=4)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_every_answer_passes_and_no_exercise_does_as_it_is_given(chapter, judge):
    wrong = []
    for given in (True, False):
        notebook = workbooks.to_notebook(COURSE, chapter, answers=given)
        answers = answers_in([cell.source for cell in notebook.cells if cell.cell_type == "code"])
        assert answers.keys() == {entry.name for entry in COURSE.exercises_of(chapter)}
        for name, answer in answers.items():
            result = judge.judge(name, answer)
            if result["passed"] != given or result["verdict"] == "refused":
                wrong.append((name, given, result["headline"], result["details"]))
    assert not wrong


# A cell above, the answer's cell, does it pass, and the note.
ENDED = {
    "an error after the definition": (FIRST, f"{RIGHT_FUNCTION}\n1/0", True,
                                      "ZeroDivisionError: division by zero, line 3"),
    "an exit after the definition": (FIRST, f"{RIGHT_FUNCTION}\nraise SystemExit", True, "SystemExit, line 3"),
    "an error above": (f"{FIRST}\ntried = int('x')", f"{RIGHT_FUNCTION}\nlambda: tried", True,
                       "ValueError: invalid literal"),
    "a wrong answer and an error": (FIRST, f"{RIGHT_FUNCTION} + 1\n1/0", False, "ZeroDivisionError"),
    "an error before the definition": (FIRST, f"1/0\n{RIGHT_FUNCTION}", False, ""),
}


@pytest.mark.sampled(0, sweep=5)
@pytest.mark.cpu_device
@pytest.mark.parametrize("case", ENDED)
def test_an_error_around_the_definition_is_judged_as_check_judges_it(case, judge):
    above, answer, passes, note = ENDED[case]
    result = judged(judge, "blocks_needed", answer, above)
    cells = [nbformat.v4.new_code_cell(cell) for cell in (above, answer, 'check("blocks_needed", blocks_needed)')]
    entry = COURSE.exercise("blocks_needed")
    (checked,) = workbooks.run_cells(COURSE, entry.chapter, nbformat.v4.new_notebook(cells=cells),
                                     only={entry.name})
    assert result["passed"] == checked.passed == passes, result
    if note:
        (theirs,), (ours,) = ([text for text in verdict["details"] if "after what it defines" in text]
                              for verdict in (checked.verdict, result))
        assert note in ours and note.split(",")[0] in theirs
    else:
        assert "ZeroDivisionError" in result["details"][0] and "ZeroDivisionError" in checked.problem


@pytest.mark.sweep(every=True)
@pytest.mark.cpu_device
def test_what_the_cell_tries_out_after_the_definition_is_not_the_answer(judge):
    """The grader's device does not observe mapped arrays."""
    for function, passes in ((LAUNCHED, True), (LAUNCHED.replace(", 64]", ", 32]"), False)):
        result = judged(judge, "row_starts", f"{function}\ncuda.mapped_array(3)", ABOVE)
        assert result["passed"] == passes and result["verdict"] != "refused", result
        assert "after what it defines: NotGraded: the grader does not observe" in result["details"][-1], result


def test_the_facts_of_an_error_of_compiling_are_those_that_are_known():
    """What the other process says of an error is data that a rule of check reads."""
    def facts(**described):
        return remote._facts({"sentence": "s", "kernel": "k", "line": 3, **described}, "<answer>")

    unknown = {"kernel": "k", "line": 3, "sentence": "s", "problem": "", "facts": {}}
    assert facts(problem="unknown name", facts={"name": "indx"}) == unknown | {
        "problem": "unknown name", "facts": {"name": "indx"}}
    assert facts(problem="operands", facts={"name": "add", "types": ["a", "b"]})["facts"]["types"] == ("a", "b")
    for problem, given in (("unknown name", {}), ("unknown name", {"name": 3}), ("no such", {}), ([], {}),
                          ("operands", {"name": "add", "types": [1]}), ("indices", {"axes": True, "count": 2})):
        assert facts(problem=problem, facts=given) == unknown
