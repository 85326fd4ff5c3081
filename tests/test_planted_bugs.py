"""scripts/planted_bugs.py: each bug that the record says is found is found, on its line; mended, it is faultless."""

import json

import pytest

from labkit._common.paths import REPOSITORY
from tests.scripts import loaded

pytestmark = pytest.mark.cpu_device

RECORD = {entry["name"]: entry for entry in json.loads((REPOSITORY / "data" / "planted_bugs.json").read_text())["bugs"]}


@pytest.fixture(scope="module")
def script():
    with loaded("planted_bugs") as module:
        yield module


@pytest.mark.parametrize("name", RECORD)
def test_found_on_its_line(script, name):
    recorded, found = RECORD[name]["simt"], script.observed(name)
    number, text = script.line_of(script.BUGS[name][1])
    assert (found["as"], found["says"].partition(" ")[0]) == (recorded["as"], recorded["says"].partition(" ")[0])
    refused = found["as"] in ("LaunchError", "ArgumentError")  # before a line runs
    assert (number in found["lines"]) == recorded["line_named"] == (not refused)
    assert text == RECORD[name]["line"]


@pytest.mark.parametrize("name", RECORD)
def test_mended_it_is_faultless(script, name):
    assert script.observed(name, mended=True) is None


def test_the_record_is_complete(script):
    assert list(RECORD) == list(script.BUGS) and len(RECORD) >= 20
    for entry in RECORD.values():
        tools = entry["compute_sanitizer"]
        assert tools == "not run" or list(tools) == list(script.TOOLS)
    assert str(REPOSITORY) not in (REPOSITORY / "data" / "planted_bugs.json").read_text()
    assert len(script.table(list(RECORD.values())).splitlines()) == len(RECORD) + 1
