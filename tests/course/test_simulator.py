"""The tables of labkit/simt/README.md, from made-up records."""

import json
from types import SimpleNamespace

import pytest

from labkit.course import simulator


@pytest.fixture
def course(tmp_path):
    (tmp_path / "data" / "measurements" / "simt").mkdir(parents=True)
    return SimpleNamespace(root=tmp_path)


def write(course, name, record):
    (course.root / "data" / name).write_text(json.dumps(record))


def test_without_records_the_page_says_so(course):
    assert simulator.programs(course) == simulator.speed(course) == simulator.bugs(course) == simulator.NO_RECORD


def test_programs_with_what_did_not_pass(course):
    write(course, "peer_suite.json", {"versions": {"numba-cuda": "0.30.4"}, "counts": {
        "passed": 7, "refused": 2, "gpu": 4, "accepted": 1, "wrong": 0, "timeout": 0, "skipped": 3}})
    write(course, "simt_programs.json", {"date": "2026-11-28", "programs": [
        {"name": "waves", "what": "its tests", "run": 9, "counts": {"passed": 6, "gpu": 2, "wrong": 1},
         "simulator": {"items": 2, "simt_second": 0.5, "simulator": 7.25}},
        {"name": "tides", "what": "a script", "run": 1, "counts": {"passed": 1}, "simulator": {"items": 0}}]})
    text = simulator.programs(course)
    assert "| waves: its tests | 6 of 9 | 2 for want of a GPU's library; 1 wrong or unexplained | 0.5 and 7.2 s" in text
    assert "| tides: a script | 1 of 1 |  |  |" in text
    assert "7 of 10 pass" in text and "4 more test GPU code" in text and "Recorded on 2026-11-28" in text


def spread(median):
    return {"median": median, "p25": median / 2, "p75": median * 2}


def test_speed_says_how_busy_the_machine_was(course):
    record = {"machine": {"host": "x86_64, 2 cores", "date": "2026-11-28", "load": 9.4},
              "ratios": [{"threads": 4096, "kernels": 25, "how": "cold", "wall": spread(1.84)},
                         {"threads": 64, "kernels": 200, "how": "warm", "wall": spread(3600)}],
              "loops": [{"barriers": barriers, "cpu": spread(1 + barriers), "launch_us": spread(15 + barriers)}
                        for barriers in (False, True)]}
    write(course, "measurements/simt/speed.json", record)
    text = simulator.speed(course)
    assert "| 4,096 | 25 | the first launch | 1.8 (0.92 to 3.7) |" in text
    assert "| 64 | 200 | later launches | 3,600 (1,800 to 7,200) |" in text
    assert "1.0 to 1.0 times as long for 1 kernels without a barrier, and 2.0 to 2.0 for 1 with" in text
    assert "(a load of 9)" in text and "15 to 16 us" in text
    record["machine"]["load"] = 0.3
    write(course, "measurements/simt/speed.json", record)
    assert "a load of" not in simulator.speed(course)


def test_bugs_with_and_without_the_line(course):
    write(course, "planted_bugs.json", {"date": "2026-11-28", "bugs": [
        {"bug": "no guard", "simt": {"as": "out_of_bounds", "line_named": True}, "compute_sanitizer": "not run"},
        {"bug": "odd address", "simt": None, "compute_sanitizer": {
            "memcheck": {"errors": 3, "line_named": True}, "racecheck": {"errors": 0, "line_named": False}}},
        {"bug": "a wait for ever", "simt": None, "compute_sanitizer": {"memcheck": {"problem": "not done after 9 s"}}},
        {"bug": "too large", "simt": {"as": "LaunchError", "line_named": False}, "compute_sanitizer": {
            "memcheck": {"errors": 0, "line_named": False}}}]})
    text = simulator.bugs(course)
    assert "| no guard | out of bounds, with its line | not run |" in text
    assert "| odd address | no | memcheck, with its line |" in text
    assert "| a wait for ever | no | the program does not end |" in text
    assert "| too large | refused at the launch | no |" in text
