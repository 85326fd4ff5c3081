"""How the time of a first call grows with the kernel: the series, small."""

import json

import pytest

from labkit.measure.series.simt import compile_lengths

pytestmark = pytest.mark.cpu_device


@pytest.mark.slow
def test_compile_lengths():
    series = compile_lengths((4, 8), ("straight",))
    assert series["lines"] == [4, 8] and json.dumps(series)
    assert all(seconds > 0 for seconds in series["seconds"]["straight"]) and len(series["seconds"]["straight"]) == 2
