"""Products in TF32: every rung at awkward shapes; the rounding of factors that the rungs do themselves."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.device import ptx
from labkit.kernels.agree import agree
from labkit.kernels.arguments import unsigned
from labkit.kernels.matmul.tf32 import matmul_tf32_pipelined, matmul_tf32_tensor_core
from labkit.kernels.matmul.wgmma_tf32 import DEPTH, SHARED_BYTES, TILE, WGMMA_TF32, matmul_tf32_wgmma
from labkit.kernels.ops.matmul_tf32 import MATMUL_TF32
from tests.compiled import HOPPER, ptx_of, resources_of
from tests.launching import run


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launcher", MATMUL_TF32.rungs, ids=lambda launcher: launcher.__name__)
def test_rung_agrees(launcher):
    assert agree(MATMUL_TF32, [launcher], seed=1).passed


def test_tolerance_knows_the_format():
    """Wide enough for factors rounded to 10 bits after the point, too narrow for ones cut to bfloat16's 7."""
    a, b = MATMUL_TF32.inputs(np.random.default_rng(0), M=64, N=64, K=256)
    allowed = MATMUL_TF32.tolerance(a.astype(np.float64), b.astype(np.float64))
    cut = [(m.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64) for m in (a, b)]
    assert (np.abs(cut[0] @ cut[1] - MATMUL_TF32.reference(a, b)) > allowed).any()


@pytest.mark.sweep(every=True)
@pytest.mark.skipif(bool(matmul_tf32_pipelined.missing), reason=matmul_tf32_pipelined.missing)
def test_the_rungs_with_mma_sync_round_alike():
    """Ties go away from zero, infinity stays; the last bit that TF32 keeps is 2**-10 of one."""
    values = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, 1 + 2.0**-10, 3.0e38, np.inf, 0.0, -(2.0**-130)],
                      np.float32)
    expected = np.array([1 + 2.0**-10, -1 - 2.0**-10, 1.0, 1 + 2.0**-10, 3.0e38, np.inf, 0.0, -(2.0**-130)])
    a = np.zeros((8, 8), np.float32)
    a[:, 0] = values
    b = np.zeros((8, 8), np.float32)
    b[0, :] = 1.0
    for launcher in (matmul_tf32_tensor_core, matmul_tf32_pipelined):
        out = cuda.device_array((8, 8), np.float32)
        launcher(cuda.to_device(a), cuda.to_device(b), out)
        np.testing.assert_allclose(out.copy_to_host()[:, 0], expected, rtol=2.0**-11, atol=2.0**-126)
        np.testing.assert_array_equal(out.copy_to_host()[:4, 0], expected[:4])


@pytest.mark.sweep(every=True)
@pytest.mark.skipif(bool(matmul_tf32_wgmma.missing), reason=matmul_tf32_wgmma.missing)
def test_wgmma_gets_either_factor_rounded_to_the_nearest():
    """Cut off below the last bit that TF32 keeps, the first value would be off by three quarters of that bit."""
    values = np.array([1 + 2.0**-11 + 2.0**-12, -1 - 2.0**-11 - 2.0**-12, 1 + 2.0**-12, 3.0e38, np.inf, 0.0, 1.0, -2.0])
    exact, ones = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
    exact[:, 0], ones[0] = values, 1.0
    for out in (run(matmul_tf32_wgmma, (8, 8), np.float32, exact, ones)[:, 3],
                run(matmul_tf32_wgmma, (8, 8), np.float32, np.ascontiguousarray(ones.T),
                    np.ascontiguousarray(exact.T))[3]):
        np.testing.assert_allclose(out, values, rtol=2.0**-11, atol=0)


@pytest.mark.sweep  # seconds for each tile on the CPU device
@pytest.mark.skipif(bool(matmul_tf32_wgmma.missing), reason=matmul_tf32_wgmma.missing)
def test_a_block_takes_one_tile_after_the_other():
    """Four tiles for two blocks on the CPU device, and more steps of K than stages."""
    a, b = MATMUL_TF32.inputs(np.random.default_rng(2), M=300, N=260, K=168)
    allowed = MATMUL_TF32.tolerance(a.astype(np.float64), b.astype(np.float64))
    assert (np.abs(run(matmul_tf32_wgmma, (300, 260), np.float32, a, b) - MATMUL_TF32.reference(a, b)) <= allowed).all()


@pytest.mark.cpu_device
def test_fragments_come_without_bank_conflicts_and_stores_fill_sectors():
    a, b, out = (cuda.to_device(np.ones(shape, np.float32)) for shape in ((8, 4), (4, 8), 64))
    maps = (ptx.tensor_map_2d(matrix, *box, tf32=True) for matrix, box in ((a, (TILE.rows, DEPTH)), (b, (DEPTH, 32))))
    report = observe(WGMMA_TF32[1, 384, 0, SHARED_BYTES], *maps, out, *unsigned(8, 8, 4))
    assert report.ok and report.counts["shared_requests"] == 8 * 32 and report.counts["bank_conflicts"] == 0
    assert report.counts["sectors"] == out.nbytes // 32


@pytest.mark.sweep(every=True)
def test_the_accumulators_of_wgmma_stay_in_registers():
    text = ptx_of(WGMMA_TF32, *["uint64 1"] * 2, "float32 1", *["uint32"] * 3, cc=HOPPER)
    assert text.count("wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32") == 8  # four for each set of fragments
    assert resources_of(text)["registers"] <= 168


def test_refusals_say_what_is_allowed():
    a = cuda.to_device(np.ones((4, 6), np.float32))
    b = cuda.to_device(np.ones((6, 8), np.float32))
    for launcher in (matmul_tf32_pipelined, matmul_tf32_wgmma):
        with pytest.raises(ValueError, match="K is 6; it must be a multiple of 4"):
            launcher(a, b, cuda.device_array((4, 8), np.float32))
