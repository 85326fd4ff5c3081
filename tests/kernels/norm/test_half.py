"""Layer normalisation in float16: every rung, a residual in place, views at odd addresses, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.norm import half
from labkit.kernels.ops.layernorm_half import ADD_LAYERNORM_HALF, LAYERNORM_HALF, tolerance

WARPS = (half.layernorm_half_singles, half.layernorm_half_warp)  # another kernel for each width


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("launcher", WARPS, ids=lambda f: f.__name__)
def test_every_rung_agrees(launcher):
    assert agree(LAYERNORM_HALF, [launcher], sizes=({"R": 3, "C": 13}, {"R": 5, "C": 384}), seed=1).passed


@pytest.mark.sweep
@pytest.mark.parametrize("launcher", WARPS, ids=lambda f: f.__name__)
def test_every_rung_agrees_at_every_awkward_size(launcher):
    assert agree(LAYERNORM_HALF, [launcher], seed=1).passed


@pytest.mark.sweep(every=True)
def test_with_a_residual():
    assert agree(ADD_LAYERNORM_HALF, [half.add_layernorm_half_warp], sizes=({"R": 5, "C": 384},), seed=2).passed


@pytest.mark.sweep
def test_with_a_residual_every_rung():
    assert agree(ADD_LAYERNORM_HALF, seed=3).passed


@pytest.mark.sweep(every=True)
def test_the_sum_is_not_rounded_to_a_half():
    """1 + 0.0003 is no half: a sum kept as one would lose the residual, and the row would be all zeros."""
    x = np.ones((2, 384), np.float16)
    residual = np.tile(np.float16([0.0003, -0.0003]), (2, 192))
    one, zero = np.ones(384, np.float16), np.zeros(384, np.float16)
    arrays = [cuda.to_device(array) for array in (x, residual, one, zero)]
    half.add_layernorm_half_warp(*arrays, arrays[0])  # in place
    expected = half.add_layernorm_half_reference(x, residual, one, zero)
    assert expected.std() > 0.05
    np.testing.assert_allclose(arrays[0].copy_to_host(), expected, rtol=2e-3)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("launch", (*LAYERNORM_HALF.rungs, *ADD_LAYERNORM_HALF.rungs),
                         ids=lambda launch: launch.__name__)
def test_the_epsilon_of_bert(launch):
    """The variance is about 1e-9: 1e-5 would hide it, 1e-12 leaves it as it is."""
    rng = np.random.default_rng(5)
    x, weight, bias = LAYERNORM_HALF.inputs(rng, R=3, C=384)
    x = ((x - np.float16(0.75)) * np.float16(6e-5)).astype(np.float16)
    residual, with_residual = x[::-1].copy(), launch.__name__.startswith("add")
    inputs = (x, residual, weight, bias) if with_residual else (x, weight, bias)
    arrays = [cuda.to_device(array) for array in inputs]
    launch(*arrays, arrays[0], epsilon=1e-12)
    total = x.astype(np.float64) + residual if with_residual else x.astype(np.float64)
    expected = half.layernorm_half_reference(total, weight, bias, 1e-12)
    assert np.abs(arrays[0].copy_to_host() - expected).max() <= tolerance(total, weight, bias, 1e-12).max()
    assert np.abs(expected - half.layernorm_half_reference(total, weight, bias)).max() > 1  # what 1e-5 would give


@pytest.mark.sweep(every=True)
def test_a_view_at_an_odd_address():
    rng = np.random.default_rng(4)
    x, weight, bias = LAYERNORM_HALF.inputs(rng, R=3, C=384)
    whole = cuda.to_device(np.concatenate([np.float16([7]), x.reshape(-1)]))
    out = cuda.device_array(x.shape, np.float16)
    half.layernorm_half_warp(whole[1:].reshape(3, 384), cuda.to_device(weight), cuda.to_device(bias), out)
    np.testing.assert_allclose(out.copy_to_host(), half.layernorm_half_reference(x, weight, bias), atol=5e-3)


def test_errors_name_the_argument():
    def ones(*shape, dtype=np.float16):
        return cuda.to_device(np.ones(shape, dtype))

    with pytest.raises(TypeError, match="weight has dtype float32; only float16 is allowed"):
        half.layernorm_half_warp(ones(2, 8), ones(8, dtype=np.float32), ones(8), ones(2, 8))
    with pytest.raises(ValueError, match="x has 3,000 columns; a warp keeps at most 2,048 in registers"):
        half.layernorm_half_warp(ones(1, 3000), ones(3000), ones(3000), ones(1, 3000))
