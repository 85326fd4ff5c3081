"""Cross entropy: every rung, losses, the reference by finite differences, in place, edges, ignored rows, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, poisoned, to_device
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16
from labkit.kernels.loss.cross_entropy import (
    cross_entropy,
    cross_entropy_online,
    cross_entropy_passes,
    cross_entropy_reference,
)
from labkit.kernels.ops.cross_entropy import CROSS_ENTROPY, CROSS_ENTROPY_BF16, cross_entropy_op
from tests.launching import check_gradient, every_rung, ones

LAUNCHERS = pytest.mark.parametrize("launch", [cross_entropy_passes, cross_entropy_online, cross_entropy],
                                    ids=lambda launch: launch.__name__)


@pytest.mark.sweep(every=True)
@every_rung(CROSS_ENTROPY, CROSS_ENTROPY_BF16, cross_entropy_op("cross_entropy_f16", FLOAT16))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def test_the_reference_is_the_gradient_of_the_loss():
    logits, targets = np.random.default_rng(2).uniform(-4, 4, (4, 9)), np.array([3, 8, -100, 0])
    scale = np.array([0.25])
    losses, dlogits = cross_entropy_reference(logits, targets, scale)
    check_gradient(lambda x: 0.25 * cross_entropy_reference(x, targets, scale)[0].sum(), logits, dlogits)
    for row in (0, 1, 3):
        np.testing.assert_allclose(losses[row], np.log(np.exp(logits[row]).sum()) - logits[row, targets[row]])
    assert losses[2] == 0


@pytest.mark.sweep(every=True)
@LAUNCHERS
def test_losses_and_the_gradient_in_place(launch):
    """Rows of 1,003 elements begin at every offset from a multiple of eight."""
    logits, targets, scale = CROSS_ENTROPY_BF16.inputs(np.random.default_rng(3), R=9, V=1003)
    targets[2:5] = 0, 1002, 1001
    losses, dlogits = cross_entropy_reference(logits, targets, scale)
    in_place, out = cuda.to_device(logits), poisoned((9,))
    launch(in_place, *to_device((targets, scale)), out.array, in_place)
    found, outside = out.read()
    assert not outside.size
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    np.testing.assert_allclose(float64_of(in_place.copy_to_host()), dlogits, rtol=2**-8, atol=1e-9)
    assert found[1] == 0
    assert not in_place.copy_to_host()[1].any()


@pytest.mark.sweep(every=True)
@LAUNCHERS
def test_masked_logits_and_targets_outside_the_vocabulary(launch):
    logits = np.full((3, 40), -np.inf, np.float32)
    logits[:, ::2] = 1e4
    dlogits, losses = ones(3, 40), ones(3)
    launch(*to_device((logits, np.int32([2, 40, -1]), np.float32([20]))), losses, dlogits)
    expected = np.where(np.arange(40) % 2, 0, 1)
    expected[2] = -19
    np.testing.assert_allclose(dlogits.copy_to_host()[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses.copy_to_host()[0], np.log(20), rtol=1e-5)
    assert np.isnan(losses.copy_to_host()[1:]).all()
    assert np.isnan(dlogits.copy_to_host()[1:]).any(axis=1).all()


@pytest.mark.sweep(every=True)
def test_a_row_that_does_not_fit_into_shared_memory(monkeypatch):
    """The octets beyond are read again; those of the edges are not."""
    logits, targets, scale = CROSS_ENTROPY.inputs(np.random.default_rng(4), R=3, V=4099)
    results = []
    for static in (1024, 232_448 - 40 * 32):
        monkeypatch.setattr("labkit.kernels.loss.cross_entropy.STATIC_BYTES", static)
        losses, dlogits = ones(3), cuda.to_device(logits)
        cross_entropy(dlogits, *to_device((targets, scale)), losses, dlogits)
        results.append(dlogits.copy_to_host())
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-9)


@pytest.mark.sweep(every=True)
def test_a_view_at_an_odd_address():
    logits, targets, scale = CROSS_ENTROPY.inputs(np.random.default_rng(5), R=3, V=100)
    whole = cuda.to_device(np.concatenate([np.ones(1, np.float32), logits.reshape(-1)]))
    dlogits, losses = ones(3, 100), ones(3)
    cross_entropy(whole[1:].reshape(3, 100), *to_device((targets, scale)), losses, dlogits)
    np.testing.assert_allclose(dlogits.copy_to_host(), cross_entropy_reference(logits, targets, scale)[1], rtol=1e-5,
                               atol=1e-9)


def test_errors_name_the_argument():
    logits, targets, one, losses = ones(2, 8), ones(2, dtype=np.int32), ones(1), ones(2)
    with pytest.raises(TypeError, match="logits has dtype float64; float32, float16, and uint16"):
        cross_entropy(ones(2, 8, dtype=np.float64), targets, one, losses, logits)
    with pytest.raises(TypeError, match="targets has dtype float32; only int32"):
        cross_entropy(logits, losses, one, losses, logits)
    with pytest.raises(ValueError, match=r"scale has shape \(2,\); it must be \(1,\)"):
        cross_entropy(logits, targets, losses, losses, logits)
    with pytest.raises(ValueError, match=r"losses has shape \(1,\); it must be \(2,\)"):
        cross_entropy(logits, targets, one, one, logits)
    with pytest.raises(TypeError, match="dlogits has dtype uint16; only float32"):
        cross_entropy(logits, targets, one, losses, ones(2, 8, dtype=BFLOAT16.dtype))
