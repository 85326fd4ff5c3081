"""The script that runs suites and lessons on a GPU taken for an older one."""

import json

import pytest

from labkit._common.paths import REPOSITORY
from tests.scripts import loaded


@pytest.fixture(scope="module")
def pretended():
    with loaded("pretended") as module:
        yield module


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><failure message="x"/></testcase>
<testcase classname="tests.a" name="three"><skipped/></testcase>
<testcase classname="tests.a" name="four"><error message="x"/></testcase>
</testsuite></testsuites>"""


def test_failures_errors_and_skipped_tests_are_counted_apart(pretended, tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert pretended.counts(report) == {"passed": 1, "failed": 2, "skipped": 1,
                                        "failures": ["tests.a::two", "tests.a::four"]}


def test_what_was_mended_is_counted_as_what_it_now_is(pretended, monkeypatch):
    asked = []
    monkeypatch.setattr(pretended, "run_tests", lambda tests, environment: asked.extend(tests) or {
        "passed": 1, "failed": 0, "skipped": 1, "failures": []})
    before = {"passed": 8, "failed": 2, "skipped": 1, "failures": ["tests.kernels.test_a::one[2.0]", "tests.b::two"]}
    assert pretended.once_more(before, {}) == {"passed": 9, "failed": 0, "skipped": 2, "failures": []}
    assert asked == ["tests/kernels/test_a.py::one[2.0]", "tests/b.py::two"]


def test_only_lessons_that_failed_run_again(pretended, monkeypatch):
    asked = []
    monkeypatch.setattr(pretended, "run_lessons", lambda names, environment: asked.extend(names) or {
        "passed": 1, "failed": 1, "skipped": 0, "failures": ["44_serving: no port"]})
    before = {"passed": 44, "failed": 2, "skipped": 0, "failures": ["17_other_ways: cell 3", "44_serving: no port"]}
    assert pretended.lessons_once_more(before, {}) == {"passed": 45, "failed": 1, "skipped": 0,
                                                       "failures": ["44_serving: no port"]}
    assert asked == ["17", "44"]


def test_the_record_has_every_target_and_no_failure(pretended):
    record = json.loads((REPOSITORY / "data" / "pretended.json").read_text())
    for target in pretended.TARGETS:
        for part in pretended.SUITES:
            found = record[target][part]
            assert found["failed"] == 0, (target, part, found["failures"])
            assert found["passed"] > 400 and found["gpu"].startswith("NVIDIA") and found["date"] >= "2026-11-28"
    for target in pretended.WITH_LESSONS:
        found = record[target]["lessons"]
        assert found["failed"] == 0 and found["passed"] >= 46, (target, found["failures"])
