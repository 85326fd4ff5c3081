"""The ledger keeps what a person wrote, forgets what is gone, and is written whole."""

from labkit.course.mutants import ledger
from labkit.course.mutants.trial import Outcome


def outcome(exercise, mutant, verdict="passed"):
    return Outcome(exercise, mutant, verdict)


def test_survivors_are_listed_and_reasons_kept(tmp_path):
    path = tmp_path / "mutants.toml"
    ledger.update(path, [outcome("a", 'x["i"] -> x[i]'), outcome("a", "two"), outcome("a", "three", "race")])
    assert ledger.read(path)["tried"] == {"a": 3}
    assert ledger.survivors(path) == {("a", 'x["i"] -> x[i]'): "", ("a", "two"): ""}

    path.write_text(path.read_text().replace('mutant = "two"', 'mutant = "two"\nequivalent = "reads it twice"'))
    ledger.update(path, [outcome("b", "one")])
    assert ledger.survivors(path)["a", "two"] == "reads it twice"
    ledger.update(path, [outcome("a", "two"), outcome("a", "three", "race")])  # the first one is rejected now
    assert ledger.survivors(path) == {("a", "two"): "reads it twice", ("b", "one"): ""}
    assert ledger.read(path)["tried"] == {"a": 2, "b": 1}


def test_a_run_out_of_time_removes_no_reason(tmp_path):
    path = tmp_path / "mutants.toml"
    ledger.update(path, [outcome("a", "one"), outcome("a", "two")])
    path.write_text(path.read_text().replace('mutant = "one"', 'mutant = "one"\nequivalent = "twice is once"'))
    ledger.update(path, [outcome("a", "one", "process_ended"), outcome("a", "two", "process_ended")])
    assert ledger.survivors(path) == {("a", "one"): "twice is once"}
    ledger.update(path, [Outcome("a", "one", "stopped", "KernelTimeout: after 1 s")])
    assert ledger.survivors(path) == {("a", "one"): "twice is once"}
    ledger.update(path, [outcome("a", "one", "wrong_result")])
    assert ledger.survivors(path) == {}


def test_nothing_is_known_where_there_is_no_file(tmp_path):
    assert ledger.read(tmp_path / "none.toml") == {"tried": {}, "survivor": []}
