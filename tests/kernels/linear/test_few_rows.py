"""Linear layers of few rows: every rung, what follows, K in parts, and which kernel is used for which shape."""

import numpy as np
import pytest

from labkit import cuda, device
from labkit.device import gpus
from labkit.device.gpus import GPUS
from labkit.kernels.agree import agree, to_device
from labkit.kernels.linear import few_rows as skinny
from labkit.kernels.linear import fused
from labkit.kernels.linear.fused import fused_reference
from labkit.kernels.ops.fused_linear import FUSED_LINEAR_RESIDUAL
from labkit.kernels.ops.skinny_linear import SKINNY_LINEAR, SKINNY_LINEAR_HALF
from tests.launching import every_rung


@pytest.mark.sampled(0, sweep=2)
@every_rung(SKINNY_LINEAR, SKINNY_LINEAR_HALF)
def test_rung_agrees(op, launcher):
    """As many tiles of rows are another kernel: the usual run has one and two."""
    assert agree(op, [launcher], sizes=tuple(size for size in op.awkward if size["M"] <= 17), seed=1).passed


@pytest.mark.sweep
@every_rung(SKINNY_LINEAR, SKINNY_LINEAR_HALF)
def test_rung_agrees_at_every_awkward_size(op, launcher):
    assert agree(op, [launcher], seed=1).passed


@pytest.mark.sampled(0, sweep=3)
@pytest.mark.parametrize(("launch", "dtype", "atol"), [(skinny.skinny, np.float32, 1e-5),
                                                       (skinny.skinny_half, np.float16, 4e-3)])
@pytest.mark.parametrize("in_parts", [False, True])
def test_what_follows_and_parts(launch, dtype, atol, in_parts, monkeypatch):
    monkeypatch.setattr(fused, "SECOND_LAUNCH", -1.0 if in_parts else 1.0)  # the more parts the better, or none
    skinny.parts_of.cache_clear()
    given = [array.astype(dtype) for array in FUSED_LINEAR_RESIDUAL.inputs(np.random.default_rng(0), M=3, N=24, K=520)]
    *layer, residual = to_device(tuple(given))
    count = skinny.parts_of(3, 24, 520, np.dtype(dtype))[0]
    assert (count > 1) == in_parts
    parts = cuda.to_device(np.full(count * 3 * 24, np.nan, np.float32))
    out = cuda.device_array((3, 24), dtype)
    launch(*layer, out, residual=residual, gelu=True, parts=parts)
    skinny.parts_of.cache_clear()
    np.testing.assert_allclose(out.copy_to_host(), fused_reference(*given, gelu=True), atol=atol)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rows", [1, 16, 64, 128])
def test_parts_cover_the_depth(rows, dtype):
    for cols, depth in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (8, 24)):
        count, slice_ = skinny.parts_of(rows, cols, depth, np.dtype(dtype))
        assert slice_ % 256 == 0
        assert (count - 1) * slice_ < depth <= count * slice_


@pytest.mark.sampled(1, sweep=5, quick="True-size2")
@pytest.mark.parametrize("size", [(3, 24, 40), (65, 72, 40), (130, 16, 8)])
@pytest.mark.parametrize("residual", [False, True])
def test_float16_of_many_rows(size, residual):
    rows, cols, depth = size
    given = [array.astype(np.float16)
             for array in FUSED_LINEAR_RESIDUAL.inputs(np.random.default_rng(0), M=rows, N=cols, K=depth)]
    *layer, added = to_device(tuple(given))
    out = cuda.device_array((rows, cols), np.float16)
    skinny.wide_half(*layer, out, residual=added if residual else None, gelu=not residual)
    expected = fused_reference(*given) if residual else fused_reference(*given[:3], gelu=True)
    np.testing.assert_allclose(out.copy_to_host(), expected, atol=6e-3)


@pytest.mark.sampled(0, sweep=4, quick="skinny_half-40-False")
@pytest.mark.parametrize(("launch", "depth", "in_parts"), [
    (skinny.skinny, 520, False), (skinny.skinny, 520, True), (skinny.skinny_half, 40, False),
    (skinny.wide_half, 40, False), (skinny.linear, 40, False)])
def test_exact_gelu(launch, depth, in_parts, monkeypatch):
    """Of sums near 2.7, where the tanh form is 0.0005 off: float32 shows the difference, float16 is too coarse."""
    monkeypatch.setattr(fused, "SECOND_LAUNCH", -1.0 if in_parts else 1.0)
    skinny.parts_of.cache_clear()
    half = launch in (skinny.skinny_half, skinny.wide_half)
    dtype = np.float16 if half else np.float32
    x, weights = np.full((3, depth), 2.7 / depth, dtype), np.ones((depth, 24), dtype)
    bias = np.linspace(-0.05, 0.05, 24).astype(dtype)
    out = cuda.device_array((3, 24), dtype)
    launch(*to_device((x, weights, bias)), out, gelu="erf")
    skinny.parts_of.cache_clear()
    expected = fused_reference(x, weights, bias, gelu="erf")
    np.testing.assert_allclose(out.copy_to_host(), expected, atol=4e-3 if half else 1e-5)


def test_the_kernel_is_picked_by_shape_and_device():
    if not device.on_gpu():
        assert [skinny._pick(rows, 768, 768, np.float32) for rows in (1, 8)] == [fused.fused_naive, fused.fused_tiled]
    for gpu in GPUS.values():
        with gpus.plan_for(gpu):
            assert skinny._pick(16, 768, 768, np.float32) is skinny.skinny
            assert skinny._pick(1024, 768, 768, np.float32) is fused.fused_pipelined
            assert skinny._pick(16, 768, 768, np.float16) is skinny.skinny_half
            assert skinny._pick(1024, 768, 768, np.float16) is skinny.wide_half
            assert skinny._pick(1024, 769, 768, np.float16) is fused.fused_tiled
    with gpus.plan_for(GPUS["h200"]):
        assert skinny.scratch_size(128, 768, 3072) == fused.scratch_size(128, 768, 3072) > 0
        assert skinny.scratch_size(1024, 768, 3072, np.float16) == 0


def test_refusals_say_what_is_allowed():
    def ones(*shape, dtype=np.float16):
        return cuda.to_device(np.ones(shape, dtype))

    with pytest.raises(ValueError, match="K is 12; it must be a multiple of 8"):
        skinny.skinny_half(ones(4, 12), ones(12, 8), ones(8), ones(4, 8))
    with pytest.raises(TypeError, match="x has dtype float16; only float32"):
        skinny.skinny(ones(4, 8), ones(8, 8), ones(8), ones(4, 8))
