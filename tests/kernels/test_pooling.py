"""Pooling: every rung, the same bits at any padding or packing, rows of no sentence never read, empty sentences."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels import pooling
from labkit.kernels.agree import agree, to_device
from labkit.kernels.op import uniform
from labkit.kernels.ops.pooling import (
    L2_NORMALIZE,
    MEAN_POOL,
    MEAN_POOL_HALF,
    MEAN_POOL_NORMALIZED,
    MEAN_POOL_NORMALIZED_HALF,
    mean_tolerance,
    normalized_tolerance,
)
from tests.launching import every_rung

OPS = (MEAN_POOL, MEAN_POOL_HALF, MEAN_POOL_NORMALIZED, MEAN_POOL_NORMALIZED_HALF)
LAUNCHERS = (pooling.mean_pool_columns, pooling.mean_pool, pooling.mean_pool_then_normalize,
             pooling.mean_pool_normalized)
LENGTHS = (40, 0, 20, 33, 1)  # five rows a warp; none; two or three; one more than four; a single one


@pytest.mark.sweep(every=True)
@every_rung(*OPS, L2_NORMALIZE)
def test_every_rung_agrees(op, launcher):
    """A warp's kernel is another for each width: the usual run has a narrow one and one of whole vectors."""
    assert agree(op, [launcher], sizes=(op.awkward[1], op.awkward[3 if op in OPS else 2]), seed=1).passed


@pytest.mark.sweep
@every_rung(*OPS, L2_NORMALIZE)
def test_every_rung_agrees_at_every_awkward_size(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def sentences(columns, dtype):
    rng = np.random.default_rng(2)
    return [uniform(rng, length, columns).astype(dtype) for length in LENGTHS]


def placed(rows, begins, total):
    """The sentences in a batch of `total` rows, of which those of no sentence are NaN."""
    x = np.full((total, rows[0].shape[1]), np.nan, rows[0].dtype)
    for one, begin in zip(rows, begins, strict=True):
        x[begin : begin + len(one)] = one
    return x, np.array(begins, np.int32), np.array([len(one) for one in rows], np.int32)


def run(launch, x, begins, lengths):
    out = cuda.device_array((len(begins), x.shape[1]), np.float32)
    launch(*to_device((x, begins, lengths)), out)
    return out.copy_to_host()


@pytest.mark.sweep
@pytest.mark.parametrize("launch", LAUNCHERS, ids=lambda launch: launch.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("columns", [24, 37])
def test_the_same_bits_in_any_batch_and_nothing_of_its_neighbours(launch, dtype, columns):
    rows = sentences(columns, dtype)
    packed = run(launch, *placed(rows, [0, 40, 40, 60, 93], 94))
    expected = pooling.mean_pool_reference(*placed(rows, [0, 40, 40, 60, 93], 94))
    if "normalize" in launch.__name__:
        expected = pooling.l2_normalize_reference(expected)
    np.testing.assert_allclose(packed, expected, atol=2e-6)
    assert not packed[1].any()
    np.testing.assert_array_equal(packed, run(launch, *placed(rows, [0, 48, 96, 144, 192], 240)))  # padded to 48
    np.testing.assert_array_equal(packed, run(launch, *placed(rows, [60, 58, 37, 3, 0], 101)))  # in another order
    for row, one in enumerate(rows):
        np.testing.assert_array_equal(packed[row], run(launch, *placed([one], [0], max(1, len(one))))[0])


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launch", LAUNCHERS, ids=lambda launch: launch.__name__)
def test_a_sentence_beyond_the_rows_gives_nan(launch):
    """One that ends a row too late, one that begins before the first, lengths that would wrap around; and one of no
    tokens, wherever it begins."""
    x = np.ones((6, 8), np.float32)
    begins = np.array([3, -1, 2**31 - 1, 1, 2**31 - 1, -7, 0], np.int32)
    lengths = np.array([4, 2, 2**31 - 1, 2**31 - 1, 0, -3, 6], np.int32)
    got = run(launch, x, begins, lengths)
    assert np.isnan(got[:4]).all() and not got[4:6].any()
    np.testing.assert_allclose(got[6], 8**-0.5 if "normalize" in launch.__name__ else 1, rtol=1e-6)


@pytest.mark.sweep(every=True)
def test_wide_rows_take_other_launches():
    inputs = MEAN_POOL.inputs(np.random.default_rng(3), B=2, T=5, C=1030)
    for launch, reference, allowed in (
            (pooling.mean_pool, pooling.mean_pool_reference, mean_tolerance),
            (pooling.mean_pool_normalized, pooling.mean_pool_normalized_reference, normalized_tolerance)):
        assert (np.abs(run(launch, *inputs) - reference(*inputs)) <= allowed(*inputs)).all()
    with pytest.raises(ValueError, match="x has 1,030 columns; a warp keeps at most 1,024 in registers"):
        run(pooling.mean_pool_warps, *inputs)


@pytest.mark.sweep(every=True)
def test_a_view_at_an_odd_address():
    for dtype in (np.float32, np.float16):
        x, begins, lengths = placed(sentences(24, dtype), [0, 40, 40, 60, 93], 94)
        whole = cuda.to_device(np.concatenate([np.array([7], dtype), x.reshape(-1)]))
        out = cuda.device_array((5, 24), np.float32)
        pooling.mean_pool(whole[1:].reshape(x.shape), *to_device((begins, lengths)), out)
        np.testing.assert_array_equal(out.copy_to_host(), run(pooling.mean_pool, x, begins, lengths))


@pytest.mark.parametrize("launch", L2_NORMALIZE.rungs, ids=lambda launch: launch.__name__)
def test_zeros_and_what_is_nearly_zero(launch):
    """As torch.nn.functional.normalize: a row shorter than 1e-12 is divided by that. NaN spreads over its row only."""
    x = np.zeros((4, 40), np.float32)
    x[1, 3], x[2, 5], x[3, 7] = 1e-15, -1e-10, np.nan
    d_x = cuda.to_device(x)
    launch(d_x, d_x)  # in place
    got = d_x.copy_to_host()
    assert not got[0].any() and np.isnan(got[3]).all()
    np.testing.assert_allclose([got[1, 3], got[2, 5]], [1e-3, -1.0], rtol=1e-6)


def test_errors_name_the_argument():
    x, begins, lengths = MEAN_POOL.inputs(np.random.default_rng(4), B=2, T=5, C=8)
    with pytest.raises(TypeError, match="x has dtype float64; float32 and float16 are allowed"):
        run(pooling.mean_pool, x.astype(np.float64), begins, lengths)
    with pytest.raises(TypeError, match="begins has dtype int64; only int32"):
        run(pooling.mean_pool_normalized, x, begins.astype(np.int64), lengths)
    with pytest.raises(ValueError, match=r"lengths has shape \(3,\); it must be \(2,\)"):
        run(pooling.mean_pool, x, begins, np.zeros(3, np.int32))
    with pytest.raises(TypeError, match="out has dtype float16; only float32"):
        pooling.mean_pool(*to_device((x, begins, lengths)), cuda.device_array((2, 8), np.float16))
    with pytest.raises(ValueError, match=r"out has shape \(5, 7\); it must be \(5, 8\)"):
        pooling.l2_normalize(cuda.to_device(x), cuda.device_array((5, 7), np.float32))
