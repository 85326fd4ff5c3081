"""The made-up exercises, for the tests of check's parts."""

import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import exercises
from labkit.course.check import examine


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setenv("LABKIT_EXERCISES", str(REPOSITORY / "tests" / "made_up_exercises"))
    monkeypatch.setenv("LABKIT_PROGRESS", "0")


@pytest.fixture
def examined(made_up):
    """examined(answer, "name"): the verdict on an answer to a made-up exercise."""
    return lambda answer, name="scale_vector", **options: examine(exercises.find(name), answer, seed=5, **options)
