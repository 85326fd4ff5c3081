"""GPT-2's linear layers with their epilogues: every rung, K in parts, memory for the parts, clear refusals."""

import numpy as np
import pytest

from labkit import cuda
from labkit.device import gpus, graphs
from labkit.kernels.agree import agree, to_device
from labkit.kernels.linear import fused
from labkit.kernels.ops.fused_linear import (
    FUSED_LINEAR,
    FUSED_LINEAR_GELU,
    FUSED_LINEAR_GELU_ERF,
    FUSED_LINEAR_RESIDUAL,
)
from tests.launching import every_rung, ones

OPS = (FUSED_LINEAR, FUSED_LINEAR_GELU, FUSED_LINEAR_GELU_ERF, FUSED_LINEAR_RESIDUAL)


@pytest.mark.sampled(2)
@every_rung(*OPS)
def test_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


@pytest.mark.parametrize("size", [(rows, cols, depth) for rows in (1, 16, 128, 1000, 1024, 4096)
                                  for cols, depth in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (5, 17))])
def test_parts_cover_the_depth(size):
    rows, cols, depth = size
    parts, slice_ = fused.parts_of(*size)
    assert slice_ % 16 == 0
    assert (parts - 1) * slice_ < depth <= parts * slice_  # every part has a step
    assert fused.scratch_size(*size) == (0 if parts == 1 else parts * rows * cols)


def test_parts_fill_the_multiprocessors():
    with gpus.plan_for(gpus.GPUS["h200"]):
        parts, _ = fused.parts_of(128, 768, 3072)
        assert 6 * parts >= 0.9 * gpus.sm_count()
        assert fused.parts_of(4096, 3072, 768)[0] == 1  # there are tiles enough


@pytest.mark.sweep
def test_memory_for_parts_is_used_and_checked():
    inputs = FUSED_LINEAR.inputs(np.random.default_rng(0), M=3, N=128, K=128)
    x, weights, bias = to_device(inputs)
    out = cuda.device_array((3, 128), np.float32)
    needed = fused.scratch_size(3, 128, 128)
    parts = cuda.to_device(np.full(needed + 7, np.nan, np.float32))
    fused.fused_pipelined(x, weights, bias, out, parts=parts)
    np.testing.assert_allclose(out.copy_to_host(), fused.fused_reference(*inputs), atol=1e-5)
    left = parts.copy_to_host()
    assert not np.isnan(left[:needed]).any() and np.isnan(left[needed:]).all()
    with pytest.raises(ValueError, match="parts has 5 numbers"):
        fused.fused_pipelined(x, weights, bias, out, parts=parts[:5])


@pytest.mark.sweep(every=True)
def test_a_residual_may_be_the_output():
    x, weights, bias, residual = inputs = FUSED_LINEAR_RESIDUAL.inputs(np.random.default_rng(0), M=5, N=128, K=64)
    for launch in (fused.fused_tiled, fused.fused_pipelined):
        out = cuda.to_device(residual)
        launch(*to_device((x, weights, bias)), out, residual=out)
        np.testing.assert_allclose(out.copy_to_host(), fused.fused_reference(*inputs), atol=1e-5)


def where_the_two_forms_differ():
    """Sums of products near 2.7, -2.7 and 0.5: at the first two exact GELU and its tanh form are 0.0005 apart."""
    x = np.float32([[2.0, 0.7], [-2.0, -0.7], [0.25, 0.25]])
    return x, np.ones((2, 8), np.float32), np.linspace(-0.05, 0.05, 8, dtype=np.float32)


@pytest.mark.parametrize("launch", [
    pytest.param(launch, id=launch.__name__, marks=[] if launch is fused.fused_naive else pytest.mark.sweep)
    for launch in (fused.fused_naive, fused.fused_tiled, fused.fused_pipelined)])
def test_exact_gelu_is_not_its_tanh_form(launch):
    inputs = where_the_two_forms_differ()
    exact, tanh = (fused.fused_reference(*inputs, gelu=gelu) for gelu in ("erf", True))
    assert np.abs(exact - tanh).max() > 3e-4
    for gelu, expected in (("erf", exact), (True, tanh)):
        out = cuda.device_array(expected.shape, np.float32)
        launch(*to_device(inputs), out, gelu=gelu)
        np.testing.assert_allclose(out.copy_to_host(), expected, atol=1e-6)


@pytest.mark.sweep(every=True)
def test_exact_gelu_before_a_residual():
    x, weights, bias, residual = inputs = FUSED_LINEAR_RESIDUAL.inputs(np.random.default_rng(0), M=5, N=24, K=16)
    out = cuda.device_array((5, 24), np.float32)
    fused.fused_tiled(*to_device((x, weights, bias)), out, residual=cuda.to_device(residual), gelu="erf")
    np.testing.assert_allclose(out.copy_to_host(), fused.fused_reference(*inputs, gelu="erf"), atol=1e-5)


@pytest.mark.sweep
def test_the_epilogue_costs_no_launch():
    x, weights, bias, residual = to_device(FUSED_LINEAR_RESIDUAL.inputs(np.random.default_rng(0), M=5, N=32, K=16))
    out = cuda.device_array((5, 32), np.float32)
    graph = graphs.capture(lambda stream: fused.fused_pipelined(x, weights, bias, out, residual=residual, gelu=True,
                                                                stream=stream))
    assert graph.nodes == 1


def test_refusals_say_what_is_allowed():
    with pytest.raises(ValueError, match=r"columns of x \(8\) must equal the rows of weights \(16\)"):
        fused.fused_tiled(ones(4, 8), ones(16, 8), ones(8), ones(4, 8))
    with pytest.raises(ValueError, match=r"residual has shape \(4, 9\); it must be \(4, 8\)"):
        fused.fused_pipelined(ones(4, 8), ones(8, 8), ones(8), ones(4, 8), residual=ones(4, 9))
    with pytest.raises(TypeError, match="bias has dtype float16; only float32"):
        fused.fused_tiled(ones(4, 8), ones(8, 8), ones(8, dtype=np.float16), ones(4, 8))
    with pytest.raises(ValueError, match="gelu is 'tanh'; False, True .its tanh form. and 'erf'"):
        fused.fused_naive(ones(4, 8), ones(8, 8), ones(8), ones(4, 8), gelu="tanh")
    with pytest.raises(TypeError, match="float64"):
        fused.fused_tiled(*(ones(*shape, dtype=np.float64) for shape in ((4, 8), (8, 8), (8,), (4, 8))))
