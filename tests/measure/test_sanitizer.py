"""What compute-sanitizer says, read; and what was recorded on a GPU: nothing found but the controls."""

import json

import pytest

from labkit._common.paths import MEASUREMENTS
from labkit.measure import sanitizer
from labkit.measure.ops import HOMES, UNRECORDED

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at add_one_kernel+0x90
WORKLOAD {"size": {"n": 3}}
========= ERROR SUMMARY: 256 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""


@pytest.mark.parametrize(("output", "errors"), [(MEMCHECK, 256), (RACECHECK, 2),
                                                ("========= ERROR SUMMARY: 0 errors\n", 0)])
def test_the_summary_is_read(output, errors):
    found, lines = sanitizer.summary(output)
    assert found == errors
    assert all(line.startswith("=========") for line in lines)


def test_no_summary_is_no_success():
    with pytest.raises(ValueError, match="Device not supported"):
        sanitizer.summary("========= Error: Device not supported\n")


def test_a_fault_a_problem_and_a_blind_tool_are_named():
    clean = {"errors": 0, "rungs": ["a"], "size": {}, "seconds": 1.0}
    recorded = {tool: {name: clean for name in HOMES if name not in UNRECORDED} for tool in sanitizer.TOOLS}
    recorded["controls"] = {name: {"errors": 3} for name in sanitizer.CONTROLS}
    assert sanitizer.problems(recorded) == []
    first, second, *_ = HOMES
    recorded["memcheck"] = {**recorded["memcheck"], first: {**clean, "errors": 7}}
    recorded["racecheck"] = {**recorded["racecheck"], second: {"problem": "not done after 240 s", "seconds": 240.0}}
    del recorded["racecheck"][first]
    recorded["controls"] = {**recorded["controls"], "no last barrier": {"errors": 0}}
    assert sanitizer.problems(recorded) == [
        f"{first}, memcheck: 7", f"{second}, racecheck: not done after 240 s",
        f"{first} was not run under racecheck, and is not in UNRECORDED in labkit/measure/ops.py",
        "racecheck does not see the control 'no last barrier'"]


@pytest.mark.parametrize("path", sorted((MEASUREMENTS / "sanitizer").glob("*.json")), ids=lambda path: path.stem)
def test_what_was_recorded(path):
    assert sanitizer.problems(json.loads(path.read_text(encoding="utf-8"))) == []
    assert path.with_suffix(".log").is_file()


def test_the_log_of_what_is_not_run_again_is_kept(tmp_path):
    path = tmp_path / "x.log"
    assert sanitizer._kept_log(path) == {}
    path.write_text("# gelu, memcheck\n========= one\n========= two\n\n# softmax, racecheck\n\n# softmax, memcheck\n"
                    "========= three\n")
    assert sanitizer._kept_log(path) == {"gelu, memcheck": "========= one\n========= two", "softmax, racecheck": "",
                                         "softmax, memcheck": "========= three"}
