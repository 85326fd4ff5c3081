import numpy as np
import pytest

from labkit import device
from labkit.kernels.softmax.rows import softmax_reference
from labkit.measure.series import softmax as softmax_series


def test_softmax_on_one_core_is_right():
    x = 8 * np.random.default_rng(0).random((5, 37), dtype=np.float32)
    out = np.empty_like(x)
    softmax_series.softmax_on_one_core(x, out)
    np.testing.assert_allclose(out, softmax_reference(x), rtol=1e-5)


@pytest.mark.sweep(every=True)
def test_the_microbenchmark_has_a_row_for_each_size_and_mask():
    series = softmax_series.masked_softmax_sizes(((1, 16), (2, 20)), runs=3, warm_up=1)
    assert [(row["B"], row["S"], row["mask"]) for row in series["rows"]] == [
        (1, 16, "none"), (1, 16, "causal"), (2, 20, "none"), (2, 20, "causal")]
    for row in series["rows"]:
        for key in ("unfused", "fused"):
            assert 0 < row[key]["p5"] <= row[key]["p50"] <= row[key]["p95"]
        assert (row["fused_graph"] is None) == (not device.on_gpu())


def test_a_step_is_timed_again_until_more_of_them_take_longer():
    times, asked = iter([5.0, 4.0, 3.0, 3.0, 2.0, 2.5]), []
    assert softmax_series.ns_a_step(lambda steps: asked.append(steps) or next(times), 1000) == 500
    assert asked == 3 * [1000, 2000]
    with pytest.raises(RuntimeError, match="2 times, 2,000 steps took no longer than 1,000"):
        softmax_series.ns_a_step(lambda steps: 1.0, 1000, tries=2)


def test_latency_is_measured_on_a_gpu_only():
    series = softmax_series.memory_latency()
    assert (series is None) == (not device.on_gpu())
