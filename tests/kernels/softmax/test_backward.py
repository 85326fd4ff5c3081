"""The gradient of the softmax: every rung, the reference by finite differences, in place, views, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, poisoned
from labkit.kernels.ops.softmax_backward import SOFTMAX_BACKWARD
from labkit.kernels.softmax.backward import softmax_backward, softmax_backward_reference
from labkit.kernels.softmax.rows import softmax_reference
from tests.launching import check_gradient, every_rung, ones, run


@pytest.mark.sweep(every=True)
@every_rung(SOFTMAX_BACKWARD)
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def test_the_reference_is_the_gradient_of_softmax():
    x, dout = np.random.default_rng(2).uniform(-2, 2, (2, 3, 7))
    check_gradient(lambda x: (softmax_reference(x) * dout).sum(), x,
                   softmax_backward_reference(softmax_reference(x), dout))


@pytest.mark.sweep(every=True)
def test_in_place():
    inputs = SOFTMAX_BACKWARD.inputs(np.random.default_rng(3), R=3, C=520)
    expected = run(softmax_backward, (3, 520), np.float32, *inputs)
    for index in range(2):
        arrays = [cuda.to_device(one) for one in inputs]
        softmax_backward(*arrays, arrays[index])
        np.testing.assert_array_equal(arrays[index].copy_to_host(), expected)


@pytest.mark.sweep(every=True)
def test_a_view_at_an_odd_address():
    y, dout = SOFTMAX_BACKWARD.inputs(np.random.default_rng(4), R=3, C=264)
    whole = cuda.to_device(np.concatenate([np.ones(1, np.float32), y.reshape(-1)]))
    dx = poisoned((3, 264))
    softmax_backward(whole[1:].reshape(3, 264), cuda.to_device(dout), dx.array)
    np.testing.assert_array_equal(dx.read()[0], run(softmax_backward, (3, 264), np.float32, y, dout))


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match="y has dtype float64; only float32 is allowed"):
        softmax_backward(ones(2, 8, dtype=np.float64), ones(2, 8), ones(2, 8))
    with pytest.raises(ValueError, match=r"dout has shape \(2, 7\); it must be \(2, 8\)"):
        softmax_backward(ones(2, 8), ones(2, 7), ones(2, 8))
    with pytest.raises(ValueError, match="y has 16,385 columns; a block keeps at most 16,384 in registers"):
        softmax_backward(ones(1, 16385), ones(1, 16385), ones(1, 16385))
