"""The one-kernel series with a tiny model, and the phases of made-up times."""

import json

import numpy as np
import pytest

from labkit.kernels.persistent.decoder import JOINS
from labkit.measure.series import one_kernel as series


def test_phases_of_made_up_times():
    """Two layers, in which phase n takes n + 1 us and the wait behind it half a microsecond; a second block takes 1 us
    more in attention."""
    times = np.zeros((2, 2 * (JOINS * 2 + 1)), np.uint64)
    for block in range(2):
        now = 5000
        for mark in range(times.shape[1]):
            times[block, mark] = now
            phase = mark // 2 % JOINS
            now += 500 if mark % 2 else 1000 * (phase + 1) + 1000 * (block == 1 and phase == 1)
    found = series.phase_times(times, 2)
    assert [(row["work_us"], row["slowest_us"], row["wait_us"]) for row in found["phases"]] == [
        (1, 1, 0.5), (2.5, 3, 0.5), (3, 3, 0.5), (4, 4, 0.5), (5, 5, 0.5)]
    assert found["head_us"] == 1 and found["from_first_to_last_us"] == 2 * (15 + 2.5 + 1) + 1
    assert np.shape(found["middle_layer_ns"]) == (2, 2 * JOINS + 1)
    assert found["middle_layer_ns"][0][:2] == [17500, 18500]


def test_more_sequences_than_the_kernel_takes():
    with pytest.raises(ValueError, match=r"sequences are .9.; at most 8 are allowed"):
        series.llama_one_kernel((9,))


@pytest.mark.cpu_device
@pytest.mark.sweep
def test_the_series_with_a_tiny_model():
    found = json.loads(json.dumps(series.llama_one_kernel(), allow_nan=False))
    (row,), (timeline,) = found["rows"], found["timelines"]
    assert row["sequences"] == 1 and row["cosine"] > 0.9999 and row["same_tokens"] == 1 and row["kernels_tokens"]
    assert row["one_kernel_nodes"] < row["launches_nodes"] and row["one_kernel_ms"]["p50"] > 0
    assert found["roundings_from_float64"] < 8 and [one["phase"] for one in timeline["phases"]] == list(series.PHASES)
