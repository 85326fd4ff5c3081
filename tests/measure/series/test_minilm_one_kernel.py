"""MiniLM's one-kernel series with a tiny model, and the phases of made-up times."""

import json

import numpy as np
import pytest

from labkit.measure.series import minilm_one_kernel as series


def test_phases_of_made_up_times():
    """Two layers, in which phase n takes n + 1 us and the wait behind it half a microsecond; a second block takes 1 us
    more in its first phase, and a third one has nothing to do."""
    phases = series.PHASES_OF_ONE_TILE
    times = np.zeros((3, 2 * (len(phases) * 2 + 1) + 5), np.uint64)
    for block in range(2):
        now = 5000
        for mark in range(2 * (len(phases) * 2 + 1)):
            times[block, mark] = now
            phase = mark // 2 % len(phases)
            now += 500 if mark % 2 else 1000 * (phase + 1) + 1000 * (block == 1 and phase == 0)
    found = series.phase_times(times, 2, phases)
    assert [row["phase"] for row in found] == list(phases)
    assert [(row["work_us"], row["slowest_us"], row["wait_us"], row["least_wait_us"]) for row in found] == [
        (1.5, 2, 0.5, 0.5), (2, 2, 0.5, 0.5), (3, 3, 0.5, 0.5), (4, 4, 0.5, 0.5)]


def test_more_tokens_than_the_kernel_takes():
    with pytest.raises(ValueError, match=r"tokens are .129.; at most 128 are allowed"):
        series.minilm_one_kernel((129,))


@pytest.mark.cpu_device
@pytest.mark.sweep(every=True)
def test_the_series_with_a_tiny_model():
    found = json.loads(json.dumps(series.minilm_one_kernel(), allow_nan=False))
    (row,) = found["rows"]
    assert row["tokens"] == 3 and row["torch"] is None and found["weights"] == "random, tiny"
    for form in ("launches", "one_kernel"):
        assert row["cosine"][form] > 0.9999 and row["us"][form]["p50"] > 0 and row["copies_too_us"][form] > 0
    assert [each["phase"] for each in row["phases"]] == list(series.PHASES_OF_ONE_TILE)
    assert all(each["work_us"] > 0 for each in row["phases"])
