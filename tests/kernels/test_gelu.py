"""GELU in both forms and the residual addition: every rung, the ends of the range, in place, misaligned views."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.gelu import (
    gelu_erf_reference,
    gelu_erf_vectorized,
    gelu_sigmoid_form,
    gelu_tanh_reference,
    gelu_vectorized,
)
from labkit.kernels.ops.gelu import GELU, GELU_ERF
from labkit.kernels.ops.residual_add import RESIDUAL_ADD
from labkit.kernels.residual_add import residual_add_vectorized


@pytest.mark.parametrize("op", [GELU, GELU_ERF, RESIDUAL_ADD], ids=lambda op: op.name)
def test_every_rung_agrees(op):
    assert agree(op, seed=1).passed


def test_the_references_are_the_papers():
    """Its constants, 0.044715 and sqrt(2 / pi), written out once more."""
    x = np.array([-2.0, -0.5, 1.0, 3.0])
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    np.testing.assert_allclose(gelu_tanh_reference(x), x / 2 * (1 + np.tanh(inner)), rtol=1e-13)
    np.testing.assert_allclose(gelu_tanh_reference(x)[2], 0.8411919906082768, rtol=1e-13)
    np.testing.assert_allclose(gelu_erf_reference(x)[2], 0.8413447460685429, rtol=1e-13)


def test_the_references_are_pytorchs():
    torch = pytest.importorskip("torch")
    x = np.linspace(-8, 8, 1001)
    gelu = torch.nn.functional.gelu
    np.testing.assert_allclose(gelu_erf_reference(x), gelu(torch.as_tensor(x)).numpy(), atol=1e-13)
    expected = gelu(torch.as_tensor(x), approximate="tanh").numpy()
    np.testing.assert_allclose(gelu_tanh_reference(x), expected, atol=1e-13)


def test_the_forms_differ_by_less_than_half_a_thousandth():
    x = np.linspace(-10, 10, 200_001)
    apart = np.abs(gelu_tanh_reference(x) - gelu_erf_reference(x))
    assert 4e-4 < apart.max() < 5e-4
    assert 1.5 < abs(x[apart.argmax()]) < 3


@pytest.mark.parametrize("launch", [gelu_vectorized, gelu_sigmoid_form, gelu_erf_vectorized], ids=lambda f: f.__name__)
def test_far_out_it_is_zero_or_the_identity(launch):
    x = np.array([-3e38, -100, -20, -0.0, 0.0, 20, 100, 3e38], np.float32)
    out = cuda.device_array(x.size, np.float32)
    launch(cuda.to_device(x), out)
    np.testing.assert_allclose(out.copy_to_host(), np.where(x > 0, x, 0), atol=1e-30)


def test_in_place_and_misaligned():
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    d_x = cuda.to_device(x)
    gelu_vectorized(d_x, d_x)
    np.testing.assert_allclose(d_x.copy_to_host(), gelu_tanh_reference(x), atol=1e-6)

    view, out = cuda.to_device(x)[1:], cuda.device_array(100, np.float32)
    for launch, reference in ((gelu_vectorized, gelu_tanh_reference), (gelu_erf_vectorized, gelu_erf_reference)):
        launch(view, out)
        np.testing.assert_allclose(out.copy_to_host(), reference(x[1:]), atol=1e-6)


def test_residual_in_place_and_misaligned():
    rng = np.random.default_rng(2)
    x, residual = (rng.standard_normal(101).astype(np.float32) for _ in range(2))
    d_x, d_residual = cuda.to_device(x), cuda.to_device(residual)
    residual_add_vectorized(d_x, d_residual, d_x)
    np.testing.assert_array_equal(d_x.copy_to_host(), x + residual)
    d_x = cuda.to_device(x)
    residual_add_vectorized(d_x[1:], d_residual[1:], d_x[1:])
    np.testing.assert_array_equal(d_x.copy_to_host()[1:], (x + residual)[1:])


def test_errors_name_the_argument():
    ones = cuda.to_device(np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"out has shape \(4,\); it must be \(5,\)"):
        gelu_vectorized(cuda.to_device(np.ones(5, np.float32)), ones)
    with pytest.raises(TypeError, match="x has dtype float64"):
        gelu_vectorized(cuda.to_device(np.ones(4)), ones)
