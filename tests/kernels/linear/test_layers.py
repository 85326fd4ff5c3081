"""Linear layers: every rung and epilogue at awkward shapes, one launch where two were, clear refusals."""

import numpy as np
import pytest

from labkit import cuda
from labkit.device import graphs
from labkit.kernels.agree import agree, to_device
from labkit.kernels.linear import layers as linear
from labkit.kernels.ops.linear import LINEAR, LINEAR_F32, LINEAR_GELU, LINEAR_GELU_TANH, LINEAR_RESIDUAL
from tests.launching import every_rung

OPS = (LINEAR_F32, LINEAR, LINEAR_GELU, LINEAR_GELU_TANH, LINEAR_RESIDUAL)


@pytest.mark.sampled(0, sweep=2)
@every_rung(*OPS)
def test_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("rows", [1, 30, 100])
def test_float32_layer_of_a_sentence_encoder(rows):
    assert agree(LINEAR_F32, sizes=({"M": rows, "N": 77, "K": 50},), seed=2).passed


@pytest.mark.sweep
def test_without_a_bias_the_weights_alone():
    rng = np.random.default_rng(0)
    x, weights, bias = LINEAR.inputs(rng, M=9, N=16, K=24)
    out = cuda.device_array((9, 16), np.float16)
    linear.linear_pipelined(*to_device((x, weights, np.zeros_like(bias))), out)
    np.testing.assert_allclose(out.copy_to_host(), x.astype(np.float64) @ weights.astype(np.float64).T,
                               rtol=1e-3, atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize(("op", "fused"), [(LINEAR_GELU, linear.linear_gelu_fused),
                                           (LINEAR_RESIDUAL, linear.linear_residual_fused)])
def test_fused_is_one_launch_fewer(op, fused):
    inputs = to_device(op.inputs(np.random.default_rng(0), M=33, N=24, K=40))
    out = cuda.device_array((33, 24), np.float16)
    nodes = {}
    for launcher in (op.rungs[0], fused):
        launcher(*inputs, out)  # compiled before the capture
        nodes[launcher.__name__] = graphs.capture(lambda stream, f=launcher: f(*inputs, out, stream=stream)).nodes
    unfused, fused_nodes = nodes.values()
    assert (unfused, fused_nodes) == (2, 1)


def test_the_gelus_differ_by_less_than_half_a_thousandth():
    x, weights, bias = LINEAR.inputs(np.random.default_rng(0), M=64, N=64, K=64)
    exact, tanh = (op.reference(x, weights, bias) for op in (LINEAR_GELU, LINEAR_GELU_TANH))
    assert 1e-5 < np.abs(exact - tanh).max() < 5e-4


def test_refusals_say_what_is_allowed():
    def ones(*shape, dtype=np.float16):
        return cuda.to_device(np.ones(shape, dtype))

    with pytest.raises(ValueError, match=r"columns of x \(8\) must equal the columns of weights \(16\)"):
        linear.linear_pipelined(ones(4, 8), ones(8, 16), ones(8), ones(4, 8))
    with pytest.raises(ValueError, match=r"bias has shape \(9,\); it must be \(8,\)"):
        linear.linear_naive(ones(4, 8), ones(8, 8), ones(9), ones(4, 8))
    with pytest.raises(ValueError, match="K is 12; it must be a multiple of 8"):
        linear.linear_gelu_fused(ones(4, 12), ones(8, 12), ones(8), ones(4, 8))
    with pytest.raises(ValueError, match=r"residual has shape \(4, 9\)"):
        linear.linear_residual_fused(ones(4, 8), ones(8, 8), ones(8), ones(4, 9), ones(4, 8))
