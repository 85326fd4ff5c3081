"""The gradient of SwiGLU: every rung, the reference by finite differences, large gates, in place, views, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, poisoned
from labkit.kernels.elements import FLOAT16
from labkit.kernels.ops.swiglu_backward import SWIGLU_BACKWARD, SWIGLU_BACKWARD_BF16, swiglu_backward_op
from labkit.kernels.swiglu import swiglu_reference
from labkit.kernels.swiglu_backward import swiglu_backward, swiglu_backward_reference
from tests.launching import check_gradient, every_rung, ones, run


@pytest.mark.sweep(every=True)
@every_rung(SWIGLU_BACKWARD, SWIGLU_BACKWARD_BF16, swiglu_backward_op("swiglu_backward_f16", FLOAT16))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def test_the_reference_is_the_gradient_of_swiglu():
    rng = np.random.default_rng(2)
    gate_up, dout = rng.uniform(-4, 4, (3, 10)), rng.uniform(-1, 1, (3, 5))
    check_gradient(lambda x: (swiglu_reference(x) * dout).sum(), gate_up, swiglu_backward_reference(gate_up, dout))


def test_gates_far_from_zero():
    gate_up = np.float32([[-1e30, -200, 200, 1e30, 2, 2, 2, 2]])
    np.testing.assert_allclose(
        run(swiglu_backward, (1, 8), np.float32, gate_up, np.full((1, 4), 3, np.float32)),
        [[0, 0, 6, 6, 0, 0, 600, 3e30]], rtol=1e-6)


def test_in_place():
    gate_up, dout = SWIGLU_BACKWARD_BF16.inputs(np.random.default_rng(3), T=3, F=40)
    expected = run(swiglu_backward, gate_up.shape, gate_up.dtype, gate_up, dout)
    array = cuda.to_device(gate_up)
    swiglu_backward(array, cuda.to_device(dout), array)
    np.testing.assert_array_equal(array.copy_to_host(), expected)


def test_a_view_at_an_odd_address():
    gate_up, dout = SWIGLU_BACKWARD.inputs(np.random.default_rng(4), T=3, F=40)
    whole = cuda.to_device(np.concatenate([np.ones(1, np.float32), gate_up.reshape(-1)]))
    out = poisoned(gate_up.shape)
    swiglu_backward(whole[1:].reshape(gate_up.shape), cuda.to_device(dout), out.array)
    np.testing.assert_array_equal(out.read()[0], run(swiglu_backward, gate_up.shape, np.float32, gate_up, dout))


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="gate_up has 15 columns; gates and ups are as many"):
        swiglu_backward(ones(2, 15), ones(2, 8), ones(2, 15))
    with pytest.raises(ValueError, match=r"dout has shape \(2, 16\); it must be \(2, 8\)"):
        swiglu_backward(ones(2, 16), ones(2, 16), ones(2, 16))
    with pytest.raises(TypeError, match="dgate_up has dtype float32; only uint16"):
        swiglu_backward(ones(2, 16, dtype=np.uint16), ones(2, 8, dtype=np.uint16), ones(2, 16))
