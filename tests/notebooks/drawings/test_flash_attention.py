"""The figures of the lesson "Flash attention": what they say, and what they refuse."""

import numpy as np
import pytest

from labkit.course.drawings import attention
from labkit.course.drawings import flash_attention as pictures
from labkit.kernels.attention.flash import make_flash
from labkit.measure import CPU_DEVICE
from tests.measure.plots import layout


@pytest.mark.sweep(every=True)
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


PNG = b"\x89PNG"


@pytest.mark.parametrize(("draw", "says"), [
    (attention.four_steps, "one head with 6 tokens"),
    (pictures.plain_block, "8 threads, each with a query and its accumulators"),
    (pictures.factor_in_place, "Lane 13 holds rows 3 and 11, columns 2, 3, 10 and 11"),
], ids=lambda one: getattr(one, "__name__", ""))
def test_pictures_without_arguments(draw, says):
    figure = draw()
    assert says in figure.summary
    assert figure.png(dpi=50).startswith(PNG)


@pytest.mark.parametrize(("draw", "given"), [
    (attention.four_steps, {"tokens": 2, "size": 2}), (attention.four_steps, {"seed": 7}),
    (pictures.plain_block, {"queries": 10, "keys": 6, "thread": 9, "key": 5}), (pictures.schedules, {"tiles": 2}),
    (pictures.register_tiles, {"thread": 63}), (pictures.factor_in_place, {"lane": 31}),
], ids=lambda one: getattr(one, "__name__", ""))
def test_other_arguments_are_readable_too(draw, given):
    assert layout.faults(draw(**given)) == []


def test_the_maximum_and_its_factors():
    figure = pictures.running_maximum([0, 1, 3, 2, 2, 2, 5, 4], 2)
    assert f"1.00, 3.00, 3.00, 5.00; the factors: 0.000, {np.exp(-2):.3f}, 1.000, {np.exp(-2):.3f}." in figure.summary
    assert figure.png(dpi=50).startswith(PNG)


def test_a_thread_of_flash_has_the_queries_and_keys_of_its_docstring():
    figure = pictures.register_tiles(thread=21)
    assert "4 queries and 8 keys" in figure.summary
    assert "x = 5, y = 2" in " ".join(text.get_text() for text in figure.axes[0].texts)
    assert make_flash(64, 4).rows == 64


def test_one_group_of_warps_in_time():
    """Four tiles of 2 * 256 + 912 clocks; beside each other only the last tile's values are left over."""
    assert "5,696 clocks" in pictures.schedules().summary
    assert f"{4 * (256 + 912) + 256:,}" in pictures.schedules().summary
    assert pictures.schedules(10, 5, 5, tiles=1).summary.count("30") == 2  # nothing to overlap


@pytest.mark.parametrize(("draw", "given"), [
    (attention.four_steps, {"tokens": 9}), (pictures.running_maximum, {"scores": [1.0], "tile": 1}),
    (pictures.plain_block, {"key": 7}), (pictures.register_tiles, {"thread": 64}),
    (pictures.factor_in_place, {"lane": 32}),
], ids=lambda one: getattr(one, "__name__", ""))
def test_what_cannot_be_drawn_is_refused(draw, given):
    with pytest.raises(ValueError):
        draw(**given)
