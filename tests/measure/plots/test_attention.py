"""The pictures of lessons 17 and 18: what they say, and that they draw."""

import pytest

from labkit.measure import CPU_DEVICE
from labkit.measure.plots import attention as pictures


def test_where_a_head_lies():
    figure = pictures.qkv_rows(token=1, head=3)
    assert "Token 1 and head 3" in figure.summary
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match="head 12 of 12"):
        pictures.qkv_rows(head=12)


@pytest.mark.parametrize("block", [pytest.param(0, marks=pytest.mark.sweep), 4])
def test_tiles_of_a_block(block):
    figure = pictures.tiles(queries=40, tile=8, block=block)
    assert f"through 5 tiles without a mask, and through {block + 1} with a causal one" in figure.summary
    assert figure.svg().startswith("<svg")


def test_tiles_that_are_not_whole_are_refused():
    with pytest.raises(ValueError, match="41 queries in tiles of 8"):
        pictures.tiles(queries=41)


def made_up(where: str, x: str) -> dict:
    lines = [{"name": name, "mask": mask, "us": [5.0, 9.0, None if name == "whole matrix" else 30.0]}
             for name in ("three passes", "whole matrix", "flash", "SDPA, f16") for mask in ("none", "causal")]
    return {x: [16, 64, 1024], "lines": lines, "where": where, "date": "2026-11-21"}


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_times_over_lengths(mask):
    figure = pictures.over_lengths(made_up(CPU_DEVICE, "S"), mask, recorded=made_up("NVIDIA H200", "S"))
    assert "Measured on NVIDIA H200, 2026-11-21, S from 16 to 1,024" in figure.summary
    assert len(figure.axes) == 1, "the CPU device's times are not drawn"
    assert "On this machine: the CPU device, which shows work, not speed" in figure.summary
    assert len(figure.axes[0].lines) == 4
    assert figure.svg().startswith("<svg")


def test_times_over_caches():
    figure = pictures.over_caches(made_up("NVIDIA H200", "keys"), recorded=None)
    assert len(figure.axes) == 1
    assert len(pictures.over_caches(made_up("NVIDIA L4", "keys"), made_up("NVIDIA H200", "keys")).axes) == 2
    assert figure.svg().startswith("<svg")


def test_linear_attention_beside_softmax():
    series = {"S": [128, 8192], "where": "NVIDIA H200", "date": "2026-11-24",
              "lines": [{"name": "linear, quadratic", "us": [5.0, None]}, {"name": "linear, chunked", "us": [4.0, 9.0]},
                        {"name": "flash", "us": [3.0, 900.0]}]}
    figure = pictures.over_linear(series, recorded=None)
    assert len(figure.axes[0].lines) == 3 and "S from 128 to 8,192" in figure.summary
    assert "No GPU has recorded this yet" in pictures.over_linear(series | {"where": CPU_DEVICE}, recorded=None).summary
    counted = pictures.linear_costs(64, (16, 128))
    assert "softmax 2,113,536 and linear 2,097,152 at 128 tokens" in counted.summary  # 127 tokens: the same
    assert "softmax 16,384 and linear 4,160 at 128 tokens" in counted.summary
    assert counted.svg().startswith("<svg")
