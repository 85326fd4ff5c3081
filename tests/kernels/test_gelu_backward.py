"""The gradient of GELU: every rung, the reference by finite differences, large inputs, in place, views, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, poisoned
from labkit.kernels.elements import FLOAT16
from labkit.kernels.gelu import gelu_tanh_reference
from labkit.kernels.gelu_backward import gelu_backward, gelu_backward_per_thread, gelu_backward_reference
from labkit.kernels.ops.gelu_backward import GELU_BACKWARD, GELU_BACKWARD_BF16, gelu_backward_op
from tests.launching import check_gradient, every_rung, ones, run


@pytest.mark.sampled(1, sweep=99)
@every_rung(GELU_BACKWARD, GELU_BACKWARD_BF16, gelu_backward_op("gelu_backward_f16", FLOAT16))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def test_the_reference_is_the_gradient_of_gelu():
    x, dout = np.random.default_rng(2).uniform(-4, 4, (2, 50))
    check_gradient(lambda x: (gelu_tanh_reference(x) * dout).sum(), x, gelu_backward_reference(x, dout))


@pytest.mark.parametrize("launch", [gelu_backward, gelu_backward_per_thread], ids=lambda launch: launch.__name__)
def test_far_from_zero_the_slope_is_0_or_1(launch):
    x = np.float32([-1e30, -1e5, -100, 100, 1e5, 1e30, 0, 0])
    np.testing.assert_allclose(run(launch, (8,), np.float32, x, np.full(8, 3, np.float32)),
                               [0, 0, 0, 3, 3, 3, 1.5, 1.5], atol=1e-30)


def test_in_place():
    x, dout = GELU_BACKWARD_BF16.inputs(np.random.default_rng(3), n=1003)
    expected = run(gelu_backward, (1003,), x.dtype, x, dout)
    for index in range(2):
        arrays = [cuda.to_device(x), cuda.to_device(dout)]
        gelu_backward(*arrays, arrays[index])
        np.testing.assert_array_equal(arrays[index].copy_to_host(), expected)


def test_a_view_at_an_odd_address():
    x, dout = GELU_BACKWARD.inputs(np.random.default_rng(4), n=101)
    dx = poisoned((100,))
    gelu_backward(cuda.to_device(x)[1:], cuda.to_device(dout)[1:], dx.array)
    np.testing.assert_array_equal(dx.read()[0], run(gelu_backward_per_thread, (100,), np.float32, x[1:], dout[1:]))


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match="x has dtype float64; float32, float16, and uint16"):
        gelu_backward(ones(8, dtype=np.float64), ones(8), ones(8))
    with pytest.raises(ValueError, match=r"dout has shape \(7,\); it must be \(8,\)"):
        gelu_backward(ones(8), ones(7), ones(8))
    with pytest.raises(TypeError, match="dx has dtype float32; only uint16"):
        gelu_backward(ones(8, dtype=np.uint16), ones(8, dtype=np.uint16), ones(8))
