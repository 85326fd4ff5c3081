"""RMSNorm: every rung, the bits of transformers' order of roundings, a residual stream in place, the same bits in any
company, views at odd addresses, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, guarded, poisoned, to_device
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.elements import FLOAT16
from labkit.kernels.norm import rmsnorm as norms
from labkit.kernels.norm.rmsnorm import add_rmsnorm, rmsnorm
from labkit.kernels.ops.rmsnorm import (
    ADD_RMSNORM,
    ADD_RMSNORM_BF16,
    RMSNORM,
    RMSNORM_BF16,
    add_rmsnorm_op,
    rmsnorm_op,
)
from tests.launching import ones

RMSNORM_F16, ADD_RMSNORM_F16 = rmsnorm_op("rmsnorm_f16", FLOAT16), add_rmsnorm_op("add_rmsnorm_f16", FLOAT16)
OPS = (RMSNORM, RMSNORM_BF16, RMSNORM_F16, ADD_RMSNORM, ADD_RMSNORM_BF16, ADD_RMSNORM_F16)


def usual(op, launcher):
    """The last rung in 16 bits is what a model runs; the others are a sweep."""
    return op in (ADD_RMSNORM_BF16, ADD_RMSNORM_F16) and launcher is norms.add_rmsnorm_fused


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("op", "launcher"), [
    pytest.param(op, launcher, id=f"{op.name}-{launcher.__name__}",
                 marks=() if usual(op, launcher) else pytest.mark.sweep)
    for op in OPS for launcher in op.rungs])
def test_every_rung_agrees(op, launcher):
    """A kernel is another for each width: the usual run has two of them."""
    assert agree(op, [launcher], sizes=op.awkward[1:] if usual(op, launcher) else None, seed=1).passed


@pytest.mark.sweep
def test_the_usual_rung_agrees_at_every_awkward_size():
    assert agree(ADD_RMSNORM_BF16, [norms.add_rmsnorm_fused], seed=1).passed


def in_transformers_order(total, weight, eps):
    """LlamaRMSNorm in NumPy: float32, rounded to bfloat16 before the weight and after it."""
    x = float32_of(total)
    scaled = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True, dtype=np.float32) + np.float32(eps))
    return bfloat16_of(float32_of(bfloat16_of(scaled)) * float32_of(weight))


@pytest.mark.sweep(every=True)
def test_bfloat16_is_rounded_where_transformers_rounds():
    """Without the rounding before the weight, or that of the sum, a quarter of the numbers would differ. Where float32
    falls on the other side of a middle, one number in some thousand may."""
    x, residual, weight = ADD_RMSNORM_BF16.inputs(np.random.default_rng(2), T=9, C=256)
    sums = bfloat16_of(float32_of(x) + float32_of(residual))
    expected = in_transformers_order(sums, weight, 1e-6)
    d_x, stream, d_weight = (guarded(array) for array in (x, residual, weight))
    out = poisoned(x.shape, np.uint16)
    add_rmsnorm(d_x.array, stream.array, d_weight.array, out.array, eps=1e-6)
    got, outside = out.read()
    np.testing.assert_array_equal(stream.read()[0], sums)
    assert not outside.size and not stream.read()[1].size
    assert np.mean(got != expected) < 0.002
    assert np.abs(got.astype(np.int32) - expected).max() <= 1
    np.testing.assert_array_equal(d_x.read()[0], x)
    add_rmsnorm(d_x.array, guarded(residual).array, d_weight.array, d_x.array, eps=1e-6)  # in place
    np.testing.assert_array_equal(d_x.read()[0], got)


def test_torch_computes_the_same():
    torch = pytest.importorskip("torch")
    x, weight = RMSNORM_BF16.inputs(np.random.default_rng(3), T=7, C=320)
    t_x, t_weight = (torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in (x, weight))
    scaled = t_x.float() * torch.rsqrt(t_x.float().pow(2).mean(-1, keepdim=True) + 1e-5)  # as in LlamaRMSNorm
    theirs = (t_weight * scaled.to(torch.bfloat16)).view(torch.int16).numpy().view(np.uint16)
    assert np.mean(in_transformers_order(x, weight, 1e-5) != theirs) < 0.002


@pytest.mark.sweep(every=True)
def test_a_row_has_the_same_bits_in_any_company():
    x, residual, weight = ADD_RMSNORM_BF16.inputs(np.random.default_rng(4), T=9, C=256)

    def run(rows):
        arrays = to_device((x[rows], residual[rows], weight))
        add_rmsnorm(*arrays, arrays[0], eps=1e-6)
        return arrays[0].copy_to_host(), arrays[1].copy_to_host()

    everything = run(slice(None))
    for rows in (slice(0, 1), slice(5, 6), slice(4, 9)):
        for together, alone in zip(everything, run(rows), strict=True):
            np.testing.assert_array_equal(together[rows], alone)


@pytest.mark.sweep
def test_a_view_at_an_odd_address():
    x, residual, weight = ADD_RMSNORM_BF16.inputs(np.random.default_rng(5), T=3, C=256)
    whole = cuda.to_device(np.concatenate([np.zeros(1, np.uint16), x.reshape(-1)]))
    odd, even = poisoned(x.shape, np.uint16), poisoned(x.shape, np.uint16)
    add_rmsnorm(whole[1:].reshape(x.shape), *to_device((residual, weight)), odd.array, eps=1e-6)
    add_rmsnorm(*to_device((x, residual, weight)), even.array, eps=1e-6)
    np.testing.assert_array_equal(odd.read()[0], even.read()[0])  # the same threads add the same squares
    assert not odd.read()[1].size


@pytest.mark.sweep
@pytest.mark.parametrize("op", [RMSNORM, RMSNORM_BF16, RMSNORM_F16], ids=lambda op: op.name)
@pytest.mark.parametrize("columns", [8, 255, 256, 576, 1023, 2048, 2056, 3072, 5120, 8192, 16384])
def test_every_width(columns, op):
    assert agree(op, [norms.rmsnorm_registers], sizes=({"T": 5, "C": columns},), seed=6).passed


def test_rows_of_zeros_stay_zeros():
    arrays = to_device((np.zeros((2, 256), np.uint16), np.zeros((2, 256), np.uint16),
                        bfloat16_of(np.ones(256, np.float32))))
    out = poisoned((2, 256), np.uint16)
    add_rmsnorm(*arrays, out.array, eps=1e-6)
    assert not out.read()[0].any()


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match="x has dtype float64; float32, float16, and uint16, which holds bfloat16, are"):
        rmsnorm(ones(2, 8, dtype=np.float64), ones(8), ones(2, 8))
    with pytest.raises(TypeError, match="weight has dtype float32; only float16 is allowed"):
        rmsnorm(ones(2, 8, dtype=np.float16), ones(8), ones(2, 8, dtype=np.float16))
    with pytest.raises(TypeError, match="weight has dtype float32; only uint16 is allowed"):
        rmsnorm(ones(2, 8, dtype=np.uint16), ones(8), ones(2, 8, dtype=np.uint16))
    with pytest.raises(ValueError, match=r"weight has shape \(7,\); it must be \(8,\)"):
        rmsnorm(ones(2, 8), ones(7), ones(2, 8))
    with pytest.raises(ValueError, match=r"residual has shape \(1, 8\); it must be \(2, 8\)"):
        add_rmsnorm(ones(2, 8), ones(1, 8), ones(8), ones(2, 8))
    with pytest.raises(ValueError, match="x has 20,000 columns; a block keeps at most 16,384 in registers"):
        rmsnorm(ones(1, 20_000), ones(20_000), ones(1, 20_000))
    with pytest.raises(ValueError, match="epsilon is 0"):
        rmsnorm(ones(2, 8), ones(8), ones(2, 8), eps=0)
    with pytest.raises(TypeError, match="x is a NumPy array on the host"):
        rmsnorm(np.ones((2, 8), np.float32), ones(8), ones(2, 8))
