"""Bias, GELU, residual: agreement, and what the launchers refuse."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, compare
from labkit.kernels.bias_gelu_add import bias_gelu_add_fused
from labkit.kernels.dtypes import float64_of
from labkit.kernels.ops.bias_gelu_add import BIAS_GELU_ADD


def test_every_rung_agrees():
    assert agree(BIAS_GELU_ADD).passed


def test_the_tolerance_rejects_a_step_left_out():
    x, bias, residual = BIAS_GELU_ADD.inputs(np.random.default_rng(0), R=8, C=16)
    truth = BIAS_GELU_ADD.reference(x, bias, residual)
    allowed = BIAS_GELU_ADD.tolerance(*map(float64_of, (x, bias, residual)))
    for wrong in (truth - residual, BIAS_GELU_ADD.reference(x, 0 * bias, residual), x + bias + residual):
        assert compare(wrong.astype(np.float32), truth, allowed).problem
    assert not compare(truth.astype(np.float32), truth, allowed).problem


def test_shapes_are_checked():
    x, out = (cuda.to_device(np.ones((4, 6), np.float32)) for _ in range(2))
    with pytest.raises(ValueError, match=r"bias has shape \(4,\); it must be \(6,\)"):
        bias_gelu_add_fused(x, cuda.to_device(np.ones(4, np.float32)), x, out)
