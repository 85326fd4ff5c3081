"""Which cases of a sampled test stay in the usual run."""

from types import SimpleNamespace

import pytest

from tests.sampling import SWEPT, mark_sweeps

pytestmark = pytest.mark.sweep(every=True)  # about the repository: .ci/run runs it


class Item:
    """What mark_sweeps asks of a case of a parametrised test."""

    def __init__(self, op: str, size: int, *marks: pytest.Mark):
        self.path, self.originalname, self.marks = "test_made_up.py", "test_made_up", list(marks)
        self.callspec = SimpleNamespace(id=f"{op}-{size}", params={"op": op, "size": size})

    def iter_markers(self, name):
        return iter([mark for mark in self.marks if mark.name == name])

    def get_closest_marker(self, name):
        return next(self.iter_markers(name), None)

    def add_marker(self, mark):
        self.marks.append(mark.mark)


def staying(items) -> list[tuple]:
    mark_sweeps(items)
    return [(item.callspec.params["op"], item.callspec.params["size"])
            for item in items if not markers(item)]


def markers(item) -> list[str]:
    return [name for name in ("sweep", "slow") if item.get_closest_marker(name)]


def cases(count, **by):
    return [Item(op, size, pytest.mark.sampled(count, **by).mark) for op in ("add", "scale") for size in range(8)]


def test_so_many_stay_of_all_or_of_each_value_the_same_ones_each_time(monkeypatch):
    assert len(staying(cases(5))) == 5 and staying(cases(5)) == staying(cases(5)[::-1])[::-1]
    assert [op for op, _ in staying(cases(2, by="op"))] == ["add", "add", "scale", "scale"]
    before = staying(cases(5))
    monkeypatch.setenv("LABKIT_SAMPLE", "another word")
    assert staying(cases(5)) != before


def test_of_a_long_sweep_a_part_is_slow():
    for items, swept in ((cases(5, sweep=4), 4), (cases(5), SWEPT)):
        assert len(staying(items)) == 5
        assert sorted(map(markers, items)) == [*[[]] * 5, *[["slow"]] * (11 - swept), *[["sweep"]] * swept]


def test_in_a_file_that_is_a_sweep_those_that_would_stay_are_swept_too():
    items = [Item("add", size, pytest.mark.sampled(3, sweep=2).mark, pytest.mark.sweep(every=True).mark)
             for size in range(8)]
    assert staying(items) == []
    assert sorted(map(markers, items)) == [*[["sweep"]] * 5, *[["sweep", "slow"]] * 3]


def test_of_a_test_that_is_a_sweep_some_cases_are_slow_too():
    items = [Item("add", size, pytest.mark.sweep.mark) for size in range(8)]
    assert staying(items) == []
    assert sorted(map(markers, items)) == [*[["sweep"]] * SWEPT, *[["sweep", "slow"]] * (8 - SWEPT)]


def test_the_quick_case_stays_first(monkeypatch):
    for word in ("1", "another word"):
        monkeypatch.setenv("LABKIT_SAMPLE", word)
        assert staying(cases(1, quick="scale-3")) == [("scale", 3)]
        assert ("scale", 3) in staying(cases(2, by="op", quick="scale-3"))


def test_of_a_sweep_of_every_case_none_is_slow():
    items = [Item("add", size, pytest.mark.sweep(every=True).mark) for size in range(8)]
    assert staying(items) == [] and sorted(map(markers, items)) == [["sweep"]] * 8


def test_a_case_that_is_a_sweep_by_itself_takes_no_place_of_another():
    items = cases(5)
    chosen = set(staying(cases(5)))
    for item in items:
        if (item.callspec.params["op"], item.callspec.params["size"]) in chosen:
            item.marks.append(pytest.mark.sweep.mark)
    assert len(staying(items)) == 5 and not chosen & set(staying(items))
