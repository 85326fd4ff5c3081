"""Masked softmax: every rung under every mask, rows that see nothing, heads that share a length."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.op import uniform
from labkit.kernels.ops.masked_softmax import (
    LAUNCHERS,
    MASKED_SOFTMAX_CAUSAL,
    MASKED_SOFTMAX_NONE,
    MASKED_SOFTMAX_PADDING,
)
from labkit.kernels.softmax.masked import masked_softmax_reference, masked_softmax_single_read, masked_softmax_unfused

FUSED = [launch for launch in LAUNCHERS if launch is not masked_softmax_unfused]
EXACT = {"rtol": 3e-6, "atol": 1e-37}


def run(launch, scores, lengths=None, **options):
    out = cuda.to_device(np.full(scores.shape, np.nan, np.float32))
    on_device = None if lengths is None else cuda.to_device(np.asarray(lengths, np.int32))
    launch(cuda.to_device(scores), out, on_device, **options)
    return out.copy_to_host()


@pytest.mark.sampled(0, sweep=4, quick="masked_softmax_none")
@pytest.mark.parametrize("op", [MASKED_SOFTMAX_NONE, MASKED_SOFTMAX_CAUSAL, MASKED_SOFTMAX_PADDING],
                         ids=lambda op: op.name)
def test_every_rung_agrees(op):
    assert agree(op, seed=1).passed


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launch", LAUNCHERS, ids=lambda f: f.__name__)
def test_rows_sum_to_one_on_the_shape_of_the_source(launch):
    """[1, 64, 64] with a scale of 1/sqrt(64), causal."""
    got = run(launch, uniform(np.random.default_rng(0), 1, 64, 64), causal=True, scale=0.125)
    np.testing.assert_allclose(got.sum(axis=-1, dtype=np.float64), 1.0, rtol=1e-6)
    assert (got[:, np.triu(np.ones((64, 64), bool), 1)] == 0).all()


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("scale", [1.0, 0.125, 0.0, -0.3])
@pytest.mark.parametrize("launch", LAUNCHERS, ids=lambda f: f.__name__)
def test_any_scale(launch, scale):
    scores = 5 * uniform(np.random.default_rng(1), 2, 33, 33)
    np.testing.assert_allclose(run(launch, scores, causal=True, scale=scale),
                               masked_softmax_reference(scores, causal=True, scale=scale), **EXACT)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("size", [20, 21])
@pytest.mark.parametrize("launch", FUSED, ids=lambda f: f.__name__)
def test_a_row_that_sees_nothing_is_zero(launch, size):
    scores = uniform(np.random.default_rng(2), 3, size, size)
    lengths = [0, size, 7]
    got = run(launch, scores, lengths)
    assert (got[0] == 0).all()
    np.testing.assert_allclose(got, masked_softmax_reference(scores, lengths), **EXACT)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("size", [20, 21])
@pytest.mark.parametrize("launch", LAUNCHERS, ids=lambda f: f.__name__)
def test_both_masks_at_once_and_heads_that_share_a_length(launch, size):
    scores = 20 * uniform(np.random.default_rng(3), 6, size, size)  # two sequences, three heads each
    lengths = [size, 5]
    np.testing.assert_allclose(run(launch, scores, lengths, causal=True),
                               masked_softmax_reference(scores, lengths, causal=True), **EXACT)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("size", [16, 17])
def test_what_the_mask_hides_is_not_read(size):
    scores = uniform(np.random.default_rng(4), 1, size, size)
    expected = masked_softmax_reference(scores, causal=True)
    scores[:, np.triu(np.ones((size, size), bool), 1)] = np.nan
    np.testing.assert_allclose(run(masked_softmax_single_read, scores, causal=True), expected, **EXACT)


def test_errors_name_the_argument():
    scores = cuda.to_device(np.ones((4, 8, 8), np.float32))
    with pytest.raises(ValueError, match="its last two axes, queries and keys, must be equal"):
        masked_softmax_single_read(cuda.to_device(np.ones((4, 8, 9), np.float32)), scores)
    with pytest.raises(ValueError, match=r"out has shape \(8, 8, 4\)"):
        masked_softmax_single_read(scores, cuda.to_device(np.ones((8, 8, 4), np.float32)))
    with pytest.raises(TypeError, match="lengths has dtype float32; only int32 is allowed"):
        masked_softmax_single_read(scores, scores, cuda.to_device(np.ones(4, np.float32)))
    with pytest.raises(ValueError, match="lengths has 3 elements and scores 4 matrices"):
        masked_softmax_single_read(scores, scores, cuda.to_device(np.ones(3, np.int32)))
