"""The norm of all gradients: every rung, clipping, views, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.elements import FLOAT16
from labkit.kernels.ops.global_norm import GLOBAL_NORM, GLOBAL_NORM_BF16, global_norm_op
from labkit.kernels.optim import global_norm as home
from labkit.kernels.optim.global_norm import global_norm, global_norm_per_thread
from tests.launching import every_rung, ones, run


@pytest.mark.sweep(every=True)
@every_rung(GLOBAL_NORM, GLOBAL_NORM_BF16, global_norm_op("global_norm_f16", FLOAT16))
def test_every_rung_agrees(op, launcher, monkeypatch):
    monkeypatch.setattr(home, "BLOCKS", 4)  # so that threads have several elements
    assert agree(op, [launcher], seed=1, sizes=(*op.awkward, {"n": 40_003})).passed


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launch", [global_norm, global_norm_per_thread], ids=lambda launch: launch.__name__)
def test_only_a_norm_above_the_limit_is_clipped(launch):
    gradients = np.zeros(100, np.float32)
    gradients[[3, 99]] = 3, -4
    for max_norm, factor in ((10.0, 1), (5.0, 1), (1.0, 0.2), (np.inf, 1)):
        np.testing.assert_allclose(run(launch, (2,), np.float32, gradients, max_norm), [5, factor], rtol=1e-6)
    np.testing.assert_array_equal(run(launch, (2,), np.float32, 0 * gradients, 1.0), [0, 1])


@pytest.mark.sweep(every=True)
def test_a_view_at_an_odd_address():
    gradients, result = cuda.to_device(np.float32([100, 3, 4])), ones(2)
    global_norm(gradients[1:], 1.0, result)
    np.testing.assert_allclose(result.copy_to_host(), [5, 0.2], rtol=1e-6)


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match="gradients is a NumPy array on the host"):
        global_norm(np.ones(8, np.float32), 1.0, ones(2))
    with pytest.raises(ValueError, match=r"result has shape \(1,\); it must be \(2,\)"):
        global_norm(ones(8), 1.0, ones(1))
    with pytest.raises(ValueError, match="max_norm is 0; it must be above 0"):
        global_norm(ones(8), 0, ones(2))
