import pytest

from labkit.course import passages
from labkit.course import registry as courses


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """The search of these sites has lessons and terms: to read the docstrings of all kernels takes a second."""
    monkeypatch.setattr(passages, "of_kernels", lambda path: [])


@pytest.fixture
def course(course_dir):
    return courses.load(course_dir)
