"""Random programs give the same compiled and observed as by an oracle: random_programs.py has those of single threads,
for which that is Numba's own compiler, random_blocks.py those of blocks, for which it is a plain interpreter.

A failure prints the seed and the source, as small as it gets. `python -m tests.simt.differential` runs thousands.
"""

import json

import pytest

from labkit._common.paths import REPOSITORY
from tests.simt import differential, random_programs

pytestmark = pytest.mark.cpu_device
TOGETHER = differential.TOGETHER
KEPT = REPOSITORY / "build" / "random_programs"  # from run to run, so that only the first one compiles


def check(compare, programs, folder):
    found = compare(programs, folder)
    assert not found, differential.described(found, folder)


@pytest.mark.sweep
def test_random_programs_are_the_same_in_both_runs():
    """Fourteen, of three statements each; with the block below 15. The sweep has 300."""
    check(differential.of_programs, differential.programs(range(14), length=3), KEPT)


def test_a_random_block_is_the_same_in_both_runs():
    check(differential.of_blocks, differential.blocks([9]), KEPT)


def test_the_condition_of_a_choice_has_to_be_typed_too():
    """A loop may make a float of a name in it: then the choice is no program."""
    choice = ("choose", ("^", ("name", "x"), ("number", 1)), ("name", "x"), ("number", 2.0))
    assert random_programs.type_of(choice, {"x": random_programs.types.int64}) == random_programs.types.float64
    with pytest.raises(random_programs.IllTyped):
        random_programs.type_of(choice, {"x": random_programs.types.float64})


@pytest.mark.sampled(0, sweep=5)
@pytest.mark.parametrize("first", range(0, 300, TOGETHER))
def test_more_random_programs(tmp_path, first):
    check(differential.of_programs, differential.programs(range(first, first + TOGETHER)), tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 30, 5))
def test_more_random_blocks(tmp_path, first):
    check(differential.of_blocks, differential.blocks(range(first, first + 5)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1500, 10))
def test_larger_random_blocks(tmp_path, first):
    check(differential.of_blocks, differential.blocks(range(first, first + 10), size=8), tmp_path)


@pytest.mark.sweep
def test_a_difference_is_found_and_made_small(tmp_path, monkeypatch):
    """By an oracle that computes something else: that takes 1 from what is stored."""
    true = random_programs.oracle_source
    monkeypatch.setattr(random_programs, "oracle_source",
                        lambda programs: true(programs).replace("real[t, 0] = v0", "real[t, 0] = v0 - 1"))  # fmt: skip
    sources = {s: differential.programs([s], 2)[0] for s in range(100)}
    seed = next(s for s, p in sources.items()
                if p.statements[0][:2] == ("let", "v0") and "real[t, 0] = v0" in p.source())  # fmt: skip
    program = differential.programs([seed], 2)[0]
    found = differential.of_programs([program], tmp_path)
    assert {way for _, way in found} == {"compiled", "observed"}
    small = differential.smaller(program, tmp_path)
    assert len(small.statements) == 1 and "real[t, 0] = v0" in small.source()


def test_what_was_recorded_found_no_difference():
    record = json.loads(differential.RECORD.read_text(encoding="utf-8"))
    assert record["differences"] == 0 and record["programs"] >= 10 * record["programs_of_blocks"] > 0
    assert {"numba", "numpy", "python"} <= set(record["versions"])
