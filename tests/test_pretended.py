"""What labkit did on a GPU that it took for an older one: recorded, and all of it right."""

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


def test_the_record_has_every_target_and_no_failure(pretended):
    record = json.loads((REPOSITORY / "data" / "pretended.json").read_text())
    for target in pretended.TARGETS:
        parts = (*pretended.SUITES, *(("lessons",) if target in pretended.WITH_LESSONS else ()))
        for part in parts:
            found = record[target][part]
            assert found["failed"] == 0, (target, part, found["failures"])
            assert found["passed"] > 40 and found["gpu"].startswith("NVIDIA") and found["date"] >= "2026-11-28"
