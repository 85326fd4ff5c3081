"""The registry of series: every entry leads to a function and to its plot, and every recorded series is listed."""

import importlib
import inspect

import pytest

from labkit._common.files import read_json
from labkit._common.paths import REPOSITORY
from labkit.measure.ops import HOMES
from labkit.measure.series import SERIES


@pytest.mark.parametrize("one", SERIES.values(), ids=SERIES)
def test_an_entry_leads_to_its_function_and_its_plot(one):
    measured = getattr(importlib.import_module(f"labkit.measure.series.{one.home}"), one.name)
    inspect.signature(measured).bind(**(one.quick or {}))
    assert one.op in HOMES
    if one.plot:
        module, _, function = one.plot.partition(".")
        assert callable(getattr(importlib.import_module(f"labkit.measure.plots.{module}"), function))


def test_every_recorded_series_is_listed():
    for path in (REPOSITORY / "data" / "measurements").glob("*.json"):
        assert read_json(path)["series"].keys() <= SERIES.keys(), path.name
