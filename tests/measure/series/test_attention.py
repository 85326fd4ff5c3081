import numpy as np
import pytest

from labkit import cuda, device
from labkit.kernels.attention.heads import keys_and_values
from labkit.kernels.op import uniform
from labkit.measure.series import attention as attention_series


@pytest.mark.sweep(every=True)
def test_lengths_have_a_time_for_each_line_and_mask():
    series = attention_series.attention_sizes((4, 20), heads=2)
    assert series["S"] == [4, 20]
    names = {line["name"] for line in series["lines"]}
    assert {"three passes", "whole matrix", "flash"} <= names
    assert device.on_gpu() == ("flash, f16" in names)
    assert len(series["lines"]) == 2 * len(names)
    for line in series["lines"]:
        assert line["mask"] in ("none", "causal")
        assert len(line["us"]) == 2
        assert min(line["us"]) > 0


@pytest.mark.sweep(every=True)
def test_the_whole_matrix_has_no_time_where_it_does_not_fit():
    series = attention_series.attention_sizes((242,), heads=1)
    for line in series["lines"]:
        assert (line["us"] == [None]) == (line["name"] == "whole matrix")


@pytest.mark.sweep
def test_caches_have_a_time_for_each_line():
    series = attention_series.attention_keys((3, 140), heads=2)
    for line in series["lines"]:
        assert len(line["us"]) == 2
        assert min(line["us"]) > 0


@pytest.mark.sweep
def test_passes_are_timed():
    us = attention_series.attention_passes(S=9, heads=2)["us"]
    assert len(us) == 5
    assert min(us.values()) > 0


@pytest.mark.sweep
def test_each_launch_of_attention_in_steps_is_timed():
    rows = attention_series.attention_steps(S=9, heads=2)["rows"]
    assert [row["step"] for row in rows] == ["scores", "scale", "softmax", "values", "scores", "softmax", "values"]
    assert min(row["us"] for row in rows) > 0


def test_the_third_pass_alone_adds_up_the_values():
    S, heads, size = 7, 2, attention_series.SIZE
    qkv = uniform(np.random.default_rng(0), S, 3 * heads * size)
    d_qkv = cuda.to_device(qkv)
    expected = qkv[:, 2 * heads * size :].astype(np.float64).sum(axis=0)
    for all_threads in (False, True):
        out = cuda.device_array((S, heads * size), np.float32)
        keys_values, start, first = keys_and_values(d_qkv, out, None, None)
        attention_series.make_values_only(all_threads)[(S, heads), 256, 0, 4 * S](
            d_qkv, keys_values, start, out, first, np.uint32(size), np.float32(1.0), np.uint32(0))
        np.testing.assert_allclose(out.copy_to_host(), np.tile(expected, (S, 1)), atol=1e-4)


@pytest.mark.sweep(every=True)
def test_linear_attention_has_a_time_for_each_line(monkeypatch):
    monkeypatch.setattr(attention_series, "MOST_PAIRS", 4)
    series = attention_series.linear_attention_lengths((4, 40), heads=1)
    assert series["S"] == [4, 40] and series["size"] == 64
    lines = {line["name"]: line["us"] for line in series["lines"]}
    assert {"linear, quadratic", "linear, running", "linear, chunked", "flash"} <= set(lines)
    assert lines.pop("linear, quadratic")[1] is None
    assert all(len(us) == 2 and min(us) > 0 for us in lines.values())
