"""Which tests the README's command runs: everything but the rest of long sweeps, which `.ci/run` runs after it.

    @pytest.mark.sampled(6)                 of a parametrised test, six cases stay; the others are a sweep
    @pytest.mark.sampled(1, by="op")        the same for each value of a parameter: one case of each op
    @pytest.mark.sampled(6, sweep=100)      of the others, a hundred are in the sweep and the rest are slow

Cases that are marked `sweep` themselves, because they are expensive, are not among those that stay.

The choice is made by a hash of the case's id, so it is the same in every run and every process; another word in
LABKIT_SAMPLE draws another sample. pytest -m sweep runs the sweep, pytest -m slow the remaining cases, and
pytest -m '' everything.
"""

import hashlib
import math
import os
from collections import defaultdict

import pytest


def _order(item) -> str:
    """By the case, not by the test: two tests of one file that share cases, and what is compiled for them, keep the
    same ones."""
    seed = os.environ.get("LABKIT_SAMPLE", "1")
    return hashlib.sha256(f"{seed} {item.callspec.id}".encode()).hexdigest()


def _name(value) -> str:
    return getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)


def mark_sweeps(items) -> None:
    """Gives the marker `sweep` to every case of a sampled test that was not chosen."""
    groups = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep"):
            continue
        for marker in item.iter_markers("sampled"):
            by = marker.kwargs.get("by")
            names = (by,) if isinstance(by, str) else by or ()
            values = tuple(_name(item.callspec.params[name]) for name in names)
            chosen = marker.args[0], marker.kwargs.get("sweep", math.inf)
            groups[item.path, item.originalname, values].append((item, *chosen))
    for members in groups.values():
        members.sort(key=lambda member: _order(member[0]))
        for number, (item, count, more) in enumerate(members):
            if number >= count + more:
                item.add_marker(pytest.mark.slow)
            elif number >= count:
                item.add_marker(pytest.mark.sweep)
