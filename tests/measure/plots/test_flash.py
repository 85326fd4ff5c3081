"""The pictures of how attention is computed: what they say, and that they draw."""

import numpy as np
import pytest

from labkit.kernels.attention.flash import make_flash
from labkit.measure.plots import flash as pictures
from tests.measure.plots import layout

PNG = b"\x89PNG"


@pytest.mark.parametrize(("draw", "says"), [
    (pictures.four_steps, "one head with 6 tokens"),
    (pictures.plain_block, "8 threads, each with a query and its accumulators"),
    (pictures.factor_in_place, "Lane 13 holds rows 3 and 11, columns 2, 3, 10 and 11"),
], ids=lambda one: getattr(one, "__name__", ""))
def test_pictures_without_arguments(draw, says):
    figure = draw()
    assert says in figure.summary
    assert figure.png(dpi=50).startswith(PNG)


@pytest.mark.parametrize(("draw", "given"), [
    (pictures.four_steps, {"tokens": 2, "size": 2}), (pictures.four_steps, {"seed": 7}),
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
    (pictures.four_steps, {"tokens": 9}), (pictures.running_maximum, {"scores": [1.0], "tile": 1}),
    (pictures.plain_block, {"key": 7}), (pictures.register_tiles, {"thread": 64}),
    (pictures.factor_in_place, {"lane": 32}),
], ids=lambda one: getattr(one, "__name__", ""))
def test_what_cannot_be_drawn_is_refused(draw, given):
    with pytest.raises(ValueError):
        draw(**given)
