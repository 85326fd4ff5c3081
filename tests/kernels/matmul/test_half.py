"""Products in float16 and bfloat16: every rung at awkward shapes, the cost of sums in float16, clear refusals."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.matmul.half import (
    matmul_half_double_buffered,
    matmul_half_f16_accumulators,
    matmul_half_hand_blocked,
    matmul_half_naive,
    matmul_half_pipelined,
    matmul_half_tensor_core,
    matmul_half_tiled,
    random_float16,
)
from labkit.kernels.ops.matmul_half import MATMUL_BF16, MATMUL_HALF

ANY_SIZE = (matmul_half_naive, matmul_half_tiled, matmul_half_tensor_core, matmul_half_hand_blocked)


COMPILED = (matmul_half_double_buffered, matmul_half_f16_accumulators)  # in the usual run, for what accumulators cost


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launcher", [
    pytest.param(launcher, id=launcher.__name__, marks=[] if launcher in COMPILED else pytest.mark.sweep)
    for launcher in MATMUL_HALF.rungs])
def test_rung_agrees(launcher):
    (row,) = agree(MATMUL_HALF, [launcher], seed=1).rows
    assert row.refused == (0 if launcher in ANY_SIZE else 4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("launcher", MATMUL_BF16.rungs, ids=lambda launcher: launcher.__name__)
def test_bf16_rung_agrees(launcher):
    assert agree(MATMUL_BF16, [launcher], seed=1).passed


@pytest.mark.sweep
def test_random_shapes_agree():
    rng = np.random.default_rng(7)
    sizes = tuple({"M": int(rng.integers(1, 300)), "N": 8 * int(rng.integers(1, 40)), "K": 8 * int(rng.integers(1, 30))}
                  for _ in range(6))
    assert agree(MATMUL_HALF, [matmul_half_double_buffered, matmul_half_pipelined], sizes=sizes, seed=2).passed


def test_zeros_are_no_answer():
    """The tolerances, that of sums in float16 too, tell a product from zeros and from one without its last element."""
    rng = np.random.default_rng(3)
    a, b = (m.astype(np.float64) for m in MATMUL_HALF.inputs(rng, M=64, N=64, K=4096))
    for tolerance in (MATMUL_HALF.tolerance, matmul_half_f16_accumulators.tolerance):
        assert (np.abs(a @ b) > tolerance(a, b)).mean() > 0.8


def relative_error(launcher, a, b):
    out = cuda.device_array((a.shape[0], b.shape[1]), np.float16)
    launcher(cuda.to_device(a), cuda.to_device(b), out)
    expected = MATMUL_HALF.reference(a, b)
    return np.linalg.norm(out.copy_to_host().astype(np.float64) - expected) / np.linalg.norm(expected)


@pytest.mark.sweep(every=True)
def test_float16_accumulators_lose_digits_as_k_grows():
    """What float16 accumulators cost. On an H200 1,024 x 1,024 x 4,096 gives 2.4e-3 against 2.1e-4."""
    rng = np.random.default_rng(4)
    short, long = ([relative_error(launcher, random_float16(rng, 32, K), random_float16(rng, K, 32))
                    for launcher in (matmul_half_double_buffered, matmul_half_f16_accumulators)] for K in (384, 1536))
    assert short[0] == pytest.approx(2.1e-4, rel=0.2) and long[0] == pytest.approx(2.1e-4, rel=0.2)
    assert short[1] > 3 * short[0] and long[1] > 1.5 * short[1]


def test_refusals_say_what_is_allowed():
    def ones(*shape, dtype=np.float16):
        return cuda.to_device(np.ones(shape, dtype))

    with pytest.raises(ValueError, match="K is 12; it must be a multiple of 8"):
        matmul_half_pipelined(ones(4, 12), ones(12, 8), ones(4, 8))
    with pytest.raises(ValueError, match="N is 9; it must be a multiple of 8"):
        matmul_half_double_buffered(ones(4, 8), ones(8, 9), ones(4, 9))
    with pytest.raises(ValueError, match=r"columns of a \(8\) must equal the rows of b \(16\)"):
        matmul_half_naive(ones(4, 8), ones(16, 8), ones(4, 8))
    with pytest.raises(TypeError, match="out has dtype float32; only float16 is allowed"):
        matmul_half_pipelined(ones(4, 8), ones(8, 8), ones(4, 8, dtype=np.float32))
    whole = ones(100)
    with pytest.raises(ValueError, match="must begin at a multiple of 16 bytes"):
        matmul_half_pipelined(whole[1:33].reshape((4, 8)), ones(8, 8), ones(4, 8))
