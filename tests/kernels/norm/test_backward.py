"""The gradients of the norms: every rung, the references by finite differences, accumulation, bits, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.dtypes import float32_of, float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32
from labkit.kernels.norm.backward import (
    layernorm_backward,
    norm_backward_reference,
    rmsnorm_backward,
)
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.norm.rmsnorm import rmsnorm_reference
from labkit.kernels.ops.norm_backward import (
    LAYERNORM_BACKWARD,
    RMSNORM_BACKWARD,
    RMSNORM_BACKWARD_BF16,
    norm_backward_op,
)
from tests.launching import check_gradient, every_rung, ones

SIZE = {"R": 8, "C": 8}


@pytest.mark.sampled(1, sweep=4, quick="rmsnorm_backward_f16-rmsnorm_backward_naive")
@every_rung(LAYERNORM_BACKWARD, RMSNORM_BACKWARD, RMSNORM_BACKWARD_BF16,
            norm_backward_op("layernorm_backward_bf16", BFLOAT16, True, SIZE),
            norm_backward_op("layernorm_backward_f16", FLOAT16, True, SIZE),
            norm_backward_op("rmsnorm_backward_f16", FLOAT16, False, SIZE))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1, sizes=op.awkward if op.dtype != np.float16 else op.awkward[2:4]).passed


@pytest.mark.parametrize("centred", [True, False], ids=["layernorm", "rmsnorm"])
def test_the_reference_is_the_gradient(centred):
    rng = np.random.default_rng(2)
    x, dout = rng.normal(1, 2, (3, 7)), rng.uniform(-1, 1, (3, 7))
    weight, bias = rng.uniform(-1, 1, (2, 7))

    def loss(x, weight, bias):
        rows = layernorm_reference(x, weight, bias) if centred else rmsnorm_reference(x, weight)
        return (rows * dout).sum()

    dx, dweight, dbias = norm_backward_reference(x, weight, dout, centred=centred)
    check_gradient(lambda x: loss(x, weight, bias), x, dx)
    check_gradient(lambda weight: loss(x, weight, bias), weight, dweight)
    if centred:
        check_gradient(lambda bias: loss(x, weight, bias), bias, dbias)


@pytest.mark.sweep(every=True)
def test_gradients_are_accumulated_in_float32_beside_bfloat16_rows():
    """dx in place of dout; what dweight and dbias held is added."""
    x, weight, dout = (BFLOAT16.array_of(one) for one in LAYERNORM_BACKWARD.inputs(np.random.default_rng(3), R=30,
                                                                                  C=264))
    dx, expected_weight, expected_bias = norm_backward_reference(x, weight, dout, centred=True)
    in_place, dweight, dbias = cuda.to_device(dout), ones(264), ones(264)
    layernorm_backward(cuda.to_device(x), cuda.to_device(weight), in_place, in_place, dweight, dbias,
                       accumulate=True)
    np.testing.assert_allclose(float32_of(in_place.copy_to_host()), dx, rtol=2**-7, atol=1e-5)
    np.testing.assert_allclose(dweight.copy_to_host(), 1 + expected_weight, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(dbias.copy_to_host(), 1 + expected_bias, rtol=1e-5, atol=1e-4)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("element", "columns"), [(BFLOAT16, 264), (BFLOAT16, 1021), (FLOAT32, 2048)],
                         ids=["a warp, bfloat16", "singles", "a block, float32"])
@pytest.mark.parametrize("into", ["an array of its own", "residual", "dout"])
def test_a_residual_is_added_and_rounded_once(element, columns, into):
    """dx may be the residual, or dout; the other arguments stay as they are."""
    rng = np.random.default_rng(5)
    x, weight, dout = (element.array_of(one) for one in RMSNORM_BACKWARD.inputs(rng, R=19, C=columns))
    residual = element.array_of(rng.uniform(-4, 4, x.shape).astype(np.float32))
    gradient, expected_weight, _ = norm_backward_reference(x, weight, dout, centred=False)
    expected = gradient + float64_of(residual)
    arrays = {name: cuda.to_device(array) for name, array in (("x", x), ("dout", dout), ("residual", residual))}
    dx, dweight = arrays.get(into, cuda.to_device(np.full_like(x, 7))), ones(columns)
    rmsnorm_backward(arrays["x"], cuda.to_device(weight), arrays["dout"], dx, dweight, residual=arrays["residual"])
    allowed = element.rounding_error(expected) + 1e-5 * (1 + np.abs(gradient))
    assert (np.abs(float64_of(dx.copy_to_host()) - expected) <= allowed).all()
    np.testing.assert_allclose(dweight.copy_to_host(), expected_weight, rtol=1e-5, atol=1e-4)
    for name, before in (("x", x), ("dout", dout), ("residual", residual)):
        if name != into:
            np.testing.assert_array_equal(arrays[name].copy_to_host(), before)


@pytest.mark.sweep(every=True)
def test_layernorm_adds_its_residual_in_place_of_both():
    x, weight, dout = LAYERNORM_BACKWARD.inputs(np.random.default_rng(6), R=33, C=768)
    both, sums = cuda.to_device(dout), (ones(768), ones(768))
    layernorm_backward(cuda.to_device(x), cuda.to_device(weight), both, both, *sums, residual=both)
    dx, *expected = norm_backward_reference(x, weight, dout, centred=True)
    np.testing.assert_allclose(both.copy_to_host(), dx + dout, rtol=1e-5, atol=1e-5)
    for mine, right in zip(sums, expected, strict=True):
        np.testing.assert_allclose(mine.copy_to_host(), right, rtol=1e-5, atol=1e-4)


@pytest.mark.sweep(every=True)
def test_a_view_at_an_odd_address_gives_the_same_bits():
    x, weight, dout = RMSNORM_BACKWARD.inputs(np.random.default_rng(4), R=5, C=264)
    results = []
    for skip in (0, 1):
        whole = cuda.to_device(np.concatenate([np.ones(skip, np.float32), x.reshape(-1)]))
        dx, dweight = ones(5, 264), ones(264)
        rmsnorm_backward(whole[skip:].reshape(5, 264), cuda.to_device(weight), cuda.to_device(dout), dx, dweight)
        results.append(np.concatenate([dx.copy_to_host(), dweight.copy_to_host()[None]]))
    np.testing.assert_array_equal(*results)


def test_errors_name_the_argument():
    x, row = ones(2, 16), ones(16)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 16\); it must be \(16,\)"):
        layernorm_backward(x, x, x, x, row, row)
    with pytest.raises(TypeError, match="dweight has dtype float16; float32 and x's float32 are allowed"):
        rmsnorm_backward(x, row, x, x, ones(16, dtype=FLOAT16.dtype))
    with pytest.raises(TypeError, match="dbias has dtype float16; only float32"):
        layernorm_backward(x, row, x, x, row, ones(16, dtype=FLOAT16.dtype))
    with pytest.raises(ValueError, match=r"residual has shape \(1, 16\); it must be \(2, 16\)"):
        rmsnorm_backward(x, row, x, x, row, residual=ones(1, 16))
    with pytest.raises(ValueError, match="x has 8,193 columns; a block keeps at most 8,192 in registers"):
        rmsnorm_backward(ones(1, 8193), ones(8193), ones(1, 8193), ones(1, 8193), ones(8193))
    with pytest.raises(ValueError, match="epsilon is 0; in float32 it must be above 0"):
        rmsnorm_backward(x, row, x, x, row, eps=0)
