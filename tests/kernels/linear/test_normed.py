"""A norm and the product after it in one launch: the bits of the two kernels apart."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import poisoned
from labkit.kernels.elements import BFLOAT16, FLOAT16
from labkit.kernels.linear import streamed
from labkit.kernels.linear.bf16 import arrange_gate_up
from labkit.kernels.linear.normed import fits_normed, linear_normed
from labkit.kernels.norm.rmsnorm import add_rmsnorm


@pytest.mark.sweep
@pytest.mark.parametrize("element", [BFLOAT16, FLOAT16], ids=lambda element: element.name)
@pytest.mark.parametrize(("T", "C", "N", "swiglu"), [(1, 256, 24, False), (3, 512, 16, True), (8, 2048, 40, False),
                                                     (5, 768, 20, True)])
def test_the_bits_are_those_of_two_kernels(T, C, N, swiglu, element):
    rng = np.random.default_rng(T)
    x, residual, norm = (element.array_of(rng.standard_normal(shape, np.float32)) for shape in ((T, C), (T, C), C))
    weight = element.array_of(rng.standard_normal((N, C), np.float32) / np.float32(np.sqrt(C)))
    weight = cuda.to_device(arrange_gate_up(weight, weight[::-1].copy()) if swiglu else weight)
    x, before, norm = (cuda.to_device(array) for array in (x, residual, norm))
    out, summed = poisoned((T, N), element.dtype), poisoned((T, C), element.dtype)
    linear_normed(x, before, norm, summed.array, weight, out.array, 1e-5, swiglu=swiglu)
    (found, outside), (total, beyond) = out.read(), summed.read()
    assert not outside.size and not beyond.size, "wrote outside the output"
    np.testing.assert_array_equal(before.copy_to_host(), residual)  # other blocks may still read it

    normed, expected = (cuda.to_device(np.zeros(shape, element.dtype)) for shape in ((T, C), (T, N)))
    add_rmsnorm(x, before, norm, normed, 1e-5)
    elements = streamed.check_linear(normed, weight, None, expected, swiglu=swiglu)
    streamed.by_tensor_cores(normed, weight, None, expected, elements, swiglu=swiglu)
    np.testing.assert_array_equal(total, before.copy_to_host())
    np.testing.assert_array_equal(found, expected.copy_to_host())


def test_which_sizes_it_takes():
    assert fits_normed(1, 2048) and fits_normed(8, 256)
    assert not fits_normed(9, 2048) and not fits_normed(1, 2304) and not fits_normed(1, 2040)


def test_refusals_name_the_argument():
    def ones(*shape, dtype=np.uint16):
        return cuda.to_device(np.ones(shape, dtype))

    good = {"x": ones(2, 256), "residual": ones(2, 256), "norm_weight": ones(256), "summed": ones(2, 256),
            "weight": ones(8, 256), "out": ones(2, 8)}
    for name, wrong, message in (
            ("x", ones(2, 260), "x has shape .* at most 8 rows are allowed, of a multiple of 256 columns"),
            ("residual", ones(1, 256), "residual has shape"), ("summed", ones(2, 128), "summed has shape"),
            ("norm_weight", ones(255), "norm_weight has shape"), ("weight", ones(9, 256), "weight has shape"),
            ("out", ones(3, 8), "out has shape")):
        with pytest.raises(ValueError, match=message):
            linear_normed(*(good | {name: wrong}).values(), 1e-5)
    with pytest.raises(TypeError, match="weight has dtype float32"):
        linear_normed(*(good | {"weight": ones(8, 256, dtype=np.float32)}).values(), 1e-5)
    with pytest.raises(TypeError, match="x has dtype float32; uint16, which holds bfloat16, and float16 are allowed"):
        linear_normed(*(good | {"x": ones(2, 256, dtype=np.float32)}).values(), 1e-5)
    shifted = ones(2 * 256 + 1)[1:].reshape(2, 256)
    with pytest.raises(ValueError, match="must begin at multiples of 16 bytes"):
        linear_normed(*(good | {"x": shifted}).values(), 1e-5)
