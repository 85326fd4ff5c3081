"""Predictions that are given are judged though others are missing."""

from labkit.course.check.predict import diagnose_prediction
from labkit.course.exercises import PredictionExercise

ASKED = PredictionExercise(name="asked", truth=lambda: {"idle": 24, "moved": 96}, how={"idle": "count them"},
                           wrong={"the others": {"idle": 8}, "half": {"moved": 48}})


def test_a_wrong_number_is_named_though_another_is_missing():
    found = diagnose_prediction(ASKED, None, {"idle": 8})
    assert found.kind == "wrong_result"
    assert found.headline == "1 of 2 predictions is wrong. No prediction yet for `moved`."
    assert [row[1:] for row in found.table["rows"]] == [["8", "no"], ["none yet", ""]]
    assert (found.mistake, found.mistake_is_exact) == ("the others", True)


def test_right_numbers_alone_do_not_pass_where_one_is_missing():
    found = diagnose_prediction(ASKED, None, {"idle": 24, "moved": ...})
    assert found.kind == "unchanged"
    assert "`moved`" in found.headline
    assert diagnose_prediction(ASKED, None, {"idle": 24, "moved": 96}).kind == "passed"


def test_what_is_missing_is_not_given_away():
    found = diagnose_prediction(ASKED, None, {"idle": 8})
    assert "96" not in repr((found.headline, found.details, found.table))
