"""Which tests the README's command runs: everything but the rest of long sweeps, which `.ci/run` runs after it.

    @pytest.mark.sampled(6)                 of a parametrised test, six cases stay; the others are a sweep
    @pytest.mark.sampled(1, by="op")        the same for each value of a parameter: one case of each op
    @pytest.mark.sampled(6, sweep=100)      of the others, a hundred are swept; without `sweep`, SWEPT of them
    @pytest.mark.sampled(1, quick="5-add")  the case with this id is the first that stays
    @pytest.mark.sweep                      expensive: no case stays, SWEPT of them are swept
    @pytest.mark.sweep(every=True)          no case stays, all of them are swept
    pytestmark = pytest.mark.sweep(every=True)   of a file: of its sampled tests, those that would stay are swept, too

The remaining cases are slow: only pytest -m slow runs them, and pytest -m '' runs everything.

The choice is made by a hash of the case's id, so it is the same in every run and every process; another word in
LABKIT_SAMPLE draws another sample. Cases that are marked `sweep` one by one are not among those that stay.
"""

import hashlib
import os
from collections import defaultdict

import pytest

# With one, .ci/run takes about 50 minutes on two cores.
SWEPT = 1


def _order(item) -> str:
    """By the case, not by the test: two tests of one file that share cases, and what is compiled for them, keep the
    same ones."""
    seed = os.environ.get("LABKIT_SAMPLE", "1")
    return hashlib.sha256(f"{seed} {item.callspec.id}".encode()).hexdigest()


def _is_quick(item) -> bool:
    return any(item.callspec.id == marker.kwargs.get("quick") for marker in item.iter_markers("sampled"))


def _name(value) -> str:
    return getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)


def mark_sweeps(items) -> None:
    """Gives the marker `sweep` to the cases of a sampled test that were not chosen, and `slow` to most of a sweep."""
    groups = defaultdict(list)
    for item in items:
        if not hasattr(item, "callspec"):
            continue
        sweep = item.get_closest_marker("sweep")
        if sweep and not sweep.kwargs.get("every"):
            groups[item.path, item.originalname, None].append((item, 0, SWEPT))
            continue
        for marker in item.iter_markers("sampled"):
            by = marker.kwargs.get("by")
            names = (by,) if isinstance(by, str) else by or ()
            values = tuple(_name(item.callspec.params[name]) for name in names)
            stay, swept = marker.args[0], marker.kwargs.get("sweep", SWEPT)
            groups[item.path, item.originalname, values].append(
                (item, 0, stay + swept) if sweep else (item, stay, swept))
    for members in groups.values():
        members.sort(key=lambda member: (not _is_quick(member[0]), _order(member[0])))
        for number, (item, stay, swept) in enumerate(members):
            if number >= stay:
                item.add_marker(pytest.mark.sweep if number < stay + swept else pytest.mark.slow)
