"""SwiGLU: every rung, the bits of transformers' order of roundings, large gates, views at odd addresses, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, poisoned
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.elements import FLOAT16
from labkit.kernels.ops.swiglu import SWIGLU, SWIGLU_BF16, swiglu_op
from labkit.kernels.swiglu import silu, swiglu, swiglu_per_thread, swiglu_reference
from tests.launching import every_rung, ones, run

SWIGLU_F16 = swiglu_op("swiglu_f16", FLOAT16)


@pytest.mark.sampled(1)
@every_rung(SWIGLU, SWIGLU_BF16, SWIGLU_F16)
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def activated(launch, gate_up):
    return run(launch, (gate_up.shape[0], gate_up.shape[1] // 2), gate_up.dtype, gate_up)


def test_bfloat16_is_rounded_where_transformers_rounds():
    (gate_up,) = SWIGLU_BF16.inputs(np.random.default_rng(2), T=9, F=264)
    gate, up = float32_of(gate_up[:, :264]), float32_of(gate_up[:, 264:])
    expected = bfloat16_of(float32_of(bfloat16_of(silu(gate.astype(np.float64)))) * up)
    got = activated(swiglu, gate_up)
    assert np.mean(got != expected) < 0.002
    assert np.abs(got.astype(np.int32) - expected).max() <= 1
    once = bfloat16_of(silu(gate.astype(np.float64)) * up)
    assert np.mean(once != expected) > 0.1  # what a single rounding would give


@pytest.mark.sampled(1)
@pytest.mark.parametrize("launch", [swiglu, swiglu_per_thread], ids=lambda launch: launch.__name__)
def test_gates_far_from_zero(launch):
    """silu(-100) is nothing, silu(100) is 100; an infinite gate is infinite, or no number, as in PyTorch."""
    gate = np.float32([-1e30, -100, -0.0, 0, 100, 1e30, np.inf, -np.inf, np.nan, 1, 1, 1, 1, 1, 1, 1])
    got = activated(launch, np.stack([np.concatenate([gate, np.full(16, 2, np.float32)])]))[0]
    np.testing.assert_allclose(got[:7], [0, 0, 0, 0, 200, 2e30, np.inf], atol=1e-30, rtol=1e-6)
    assert np.isnan(got[7:9]).all()
    np.testing.assert_allclose(got[9:], 2 / (1 + np.exp(-1)), rtol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", [SWIGLU, SWIGLU_BF16, SWIGLU_F16], ids=lambda op: op.name)
def test_a_view_at_an_odd_address(op):
    (gate_up,) = op.inputs(np.random.default_rng(3), T=3, F=40)
    whole = cuda.to_device(np.concatenate([np.ones(1, gate_up.dtype), gate_up.reshape(-1)]))
    out = poisoned((3, 40), op.dtype)
    swiglu(whole[1:].reshape(gate_up.shape), out.array)
    np.testing.assert_array_equal(out.read()[0], activated(swiglu, gate_up))
    assert not out.read()[1].size


def test_the_reference_knows_silu():
    gate = np.linspace(-20, 20, 101)
    np.testing.assert_allclose(swiglu_reference(np.stack([np.concatenate([gate, np.ones(101)])]))[0],
                               gate / 2 * (1 + np.tanh(gate / 2)), atol=1e-12)


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match="gate_up has dtype float64; float32, float16, and uint16"):
        swiglu(ones(2, 16, dtype=np.float64), ones(2, 8))
    with pytest.raises(ValueError, match="gate_up has 15 columns; gates and ups are as many"):
        swiglu(ones(2, 15), ones(2, 8))
    with pytest.raises(ValueError, match=r"out has shape \(2, 16\); it must be \(2, 8\)"):
        swiglu(ones(2, 16), ones(2, 16))
    with pytest.raises(TypeError, match="out has dtype float32; only uint16"):
        swiglu(ones(2, 16, dtype=np.uint16), ones(2, 8))
