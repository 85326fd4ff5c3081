"""The sum of one array: every rung at awkward sizes, what each step changes, views, and the loads in flight."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.device.launches import planned
from labkit.kernels import array_sum
from labkit.kernels.agree import agree
from labkit.kernels.op import uniform
from labkit.kernels.ops.array_sum import ARRAY_SUM

SUMS = ("divergent", "strided", "sequential", "first_add", "last_warp")


def counts(name: str, blocks: int = 1, elements: int = 256) -> dict:
    x, sums = np.ones(elements, np.float32), np.zeros(blocks, np.float32)
    report = observe(getattr(array_sum, f"array_sum_{name}_kernel")[blocks, array_sum.BLOCK], x, sums)
    assert report.races == []
    assert sums.sum() == elements
    return report.counts


@pytest.mark.sweep(every=True)
def test_every_rung_agrees():
    assert agree(ARRAY_SUM, seed=1).passed


@pytest.mark.sampled(1, sweep=99, quick="array_sum_first_add")
@pytest.mark.parametrize("launch", ARRAY_SUM.rungs, ids=lambda f: f.__name__)
def test_a_sum_of_fractions_is_within_its_roundings(launch):
    x = np.abs(uniform(np.random.default_rng(2), 100_003))
    out = cuda.to_device(np.full(1, np.nan, np.float32))
    launch(cuda.to_device(x), out)
    np.testing.assert_allclose(out.copy_to_host(), x.sum(dtype=np.float64), rtol=1e-5)


def test_consecutive_threads_do_not_split_warps_but_meet_in_banks_until_the_addressing_is_sequential():
    divergent, strided, sequential = (counts(name) for name in SUMS[:3])
    assert divergent["divergent_branches"] > 30 > 10 > strided["divergent_branches"] >= 5
    assert divergent["bank_conflicts"] < strided["bank_conflicts"]
    assert sequential["bank_conflicts"] == 0
    assert divergent["barriers"] == strided["barriers"] == sequential["barriers"] == 9


def test_adding_while_loading_halves_the_trees_and_shuffles_replace_six_barriers():
    assert counts("sequential", 2, 512)["shared_stores"] == 2 * counts("first_add", 1, 512)["shared_stores"]
    assert counts("first_add", 1, 512)["barriers"] - counts("last_warp", 1, 512)["barriers"] == 6


@pytest.mark.parametrize(("launch", "elements", "launches"), [
    (array_sum.array_sum_divergent, 256**2 + 1, 3), (array_sum.array_sum_first_add, 512**2, 2),
    (array_sum.array_sum_grid_stride, 1, 2), (array_sum.array_sum_wide, 10_000_000, 2)])
def test_the_sums_of_blocks_are_summed_by_further_launches(launch, elements, launches):
    x, out = cuda.device_array(elements, np.float32), cuda.device_array(1, np.float32)
    assert len(planned(lambda: launch(x, out))) == launches


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("n", [1, 3, 4, 1023, 20_001])
def test_wide_loads_take_views_that_do_not_begin_at_16_bytes(n):
    x = np.random.default_rng(n).integers(-4, 5, n + 1).astype(np.float32)
    for view in (cuda.to_device(x)[1:], cuda.to_device(x)[:n]):
        out = cuda.to_device(np.zeros(1, np.float32))
        array_sum.array_sum_wide(view, out)
        assert out.copy_to_host()[0] == view.copy_to_host().sum(dtype=np.float64)


def test_errors_name_the_argument():
    x, out = cuda.to_device(np.ones(8, np.float32)), cuda.to_device(np.ones(2, np.float32))
    with pytest.raises(ValueError, match=r"out has shape \(2,\); it must be \(1,\)"):
        array_sum.array_sum_wide(x, out)
    with pytest.raises(ValueError, match="x has 2 dimensions"):
        array_sum.array_sum_divergent(x.reshape(2, 4), out[:1])
