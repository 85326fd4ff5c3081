"""GELU on the way out of the two-stage kernels: a step of MiniLM's ladder."""

import numpy as np
import pytest

from labkit import cuda
from labkit.device.lazy import built
from labkit.kernels.agree import to_device
from labkit.kernels.linear import layers
from labkit.kernels.linear.layers import f16_accumulators_error
from labkit.kernels.ops.linear import LINEAR_GELU, gelu_tolerance
from tests.compiled import ptx_of, resources_of


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize(("launch", "allowed"), [
    (layers.linear_gelu_double_buffered, gelu_tolerance),
    (layers.linear_gelu_f16_accumulators, lambda *args: gelu_tolerance(*args) + 1.13 * f16_accumulators_error(*args))])
@pytest.mark.parametrize("size", [{"M": 37, "N": 24, "K": 40}, {"M": 130, "N": 264, "K": 200}])
def test_agrees(launch, allowed, size):
    inputs = LINEAR_GELU.inputs(np.random.default_rng(0), **size)
    out = cuda.to_device(np.full((size["M"], size["N"]), np.nan, np.float16))
    launch(*to_device(inputs), out)
    error = np.abs(out.copy_to_host().astype(np.float64) - LINEAR_GELU.reference(*inputs))
    assert (error <= allowed(*(array.astype(np.float64) for array in inputs))).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kernel", [layers.GELU_DOUBLE_BUFFERED, layers.GELU_F16_ACCUMULATORS])
def test_accumulators_stay_in_registers(kernel):
    """A loop over them with GELU in it is not unrolled, and would put them on the stack."""
    matrix = "float16 2"
    resources_of(ptx_of(built(kernel), matrix, matrix, "float16 1", matrix, matrix))
