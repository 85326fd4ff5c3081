"""The ledger counts what was tried, lists the holes, and is written whole."""

from labkit.course.mutants import ledger
from labkit.course.mutants.trial import Outcome


def outcome(mutant, verdict="passed"):
    return Outcome("a", mutant, verdict)


def test_survivors_without_a_reason_are_holes(tmp_path):
    path = tmp_path / "mutants.toml"
    outcomes = [outcome('x["i"] -> x[i]'), outcome("two"), outcome("three", "race")]
    assert ledger.update(path, "a", outcomes, {"two": "It reads it twice."}) == []
    assert ledger.read(path) == {"tried": {"a": 3}, "holes": {"a": ['x["i"] -> x[i]']}}
    assert ledger.update(path, "b", outcomes[1:], {}) == []
    assert ledger.read(path)["holes"]["b"] == ["two"]
    ledger.update(path, "a", outcomes[1:], {"two": "It reads it twice."})  # the first one is rejected now
    assert ledger.read(path) == {"tried": {"a": 2, "b": 2}, "holes": {"b": ["two"]}}


def test_a_reason_for_a_mutant_that_is_rejected_is_named_but_not_after_a_run_out_of_time(tmp_path):
    path, reasons = tmp_path / "mutants.toml", {"one": "Twice is once."}
    assert ledger.update(path, "a", [outcome("one", "process_ended")], reasons) == []
    assert ledger.update(path, "a", [Outcome("a", "one", "stopped", "KernelTimeout: after 1 s")], reasons) == []
    assert ledger.update(path, "a", [outcome("one", "wrong_result")], reasons) == ["one"]
    assert ledger.update(path, "a", [outcome("two", "wrong_result")], reasons) == ["one"]


def test_nothing_is_known_where_there_is_no_file(tmp_path):
    assert ledger.read(tmp_path / "none.toml") == {"tried": {}, "holes": {}}
