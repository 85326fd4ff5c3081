"""The figures of products in more lessons than one."""

import re

import pytest

from labkit import measure
from labkit.measure.plots import matmul as pictures


def half():
    return measure.recorded_ladder("matmul_half", gpu="NVIDIA H200")


def test_climb_compares_with_the_last_rung_that_did_not_fail():
    figure = pictures.climb(half(), "double_buffered")
    rate = {row.name.removeprefix("matmul_half_"): row.tflops for row in half().rows}
    factor = rate["double_buffered"] / rate["large_tiles"]
    assert figure.summary.startswith(f"double_buffered: {factor:.3g} times as fast as large_tiles. naive ")
    assert "three_stage" not in figure.summary
    assert "as fast as double_buffered" in pictures.climb(half(), "f16_accumulators", "double_buffered").summary
    assert figure.png().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="rung is 'fastest'"):
        pictures.climb(half(), "fastest")


def test_more_pairs_of_tiles_wait_less():
    one, two, three = (float(end) for end in re.findall(r"(\d+\.\d)(?=[,.])", pictures.overlap().summary)[-3:])
    assert one > two > three
