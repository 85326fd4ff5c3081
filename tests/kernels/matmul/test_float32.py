"""Matrix product: every rung at awkward and random shapes, any tile, errors that name the argument."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.kernels.agree import agree
from labkit.kernels.arguments import blocks_for
from labkit.kernels.matmul.float32 import (
    make_matmul_register_blocked,
    make_matmul_tiled,
    matmul_async_copies,
    matmul_double_buffered,
    matmul_naive,
    matmul_pipelined,
    matmul_reads_ahead,
    matmul_tiled,
    matmul_tiled_32,
    matmul_tiled_grouped,
    matmul_vectorized,
    matmul_warp_tiles,
    place_in_groups,
)
from labkit.kernels.matmul.float32_tiles import RING
from labkit.kernels.op import rung, uniform
from labkit.kernels.ops.matmul import MATMUL
from tests.compiled import ptx_of
from tests.launching import ones

every_rung = pytest.mark.parametrize("launch", MATMUL.rungs, ids=lambda launch: launch.__name__)


@pytest.mark.sampled(1, sweep=4, quick="matmul_naive")
@every_rung
def test_every_rung_agrees(launch):
    assert agree(MATMUL, [launch], seed=1).passed


@pytest.mark.sampled(0, sweep=7)
@every_rung
def test_random_shapes_agree(launch):
    rng = np.random.default_rng(7)
    sizes = tuple({axis: int(rng.integers(1, 70)) for axis in "MNK"} for _ in range(12))
    assert agree(MATMUL, [launch], sizes=sizes, seed=2).passed


@pytest.mark.sampled(0, sweep=3, quick="4")
@pytest.mark.parametrize("tile", [1, 4, 8])
def test_any_tile(tile):
    kernel = make_matmul_tiled(tile)

    @rung(kernel=kernel, idea="another tile")
    def tiled(a, b, out, stream=0):
        kernel[blocks_for(out.shape[::-1], (tile, tile)), (tile, tile), stream](a, b, out)

    assert agree(MATMUL, [tiled], sizes=({"M": 5, "N": 9, "K": 7}, {"M": 8, "N": 8, "K": 8})).passed


@pytest.mark.sampled(1, sweep=5)
@every_rung
def test_identity(launch):
    a = np.arange(35, dtype=np.float32).reshape(5, 7)
    out = cuda.device_array((5, 7), np.float32)
    launch(cuda.to_device(a), cuda.to_device(np.eye(7, dtype=np.float32)), out)
    np.testing.assert_array_equal(out.copy_to_host(), a)


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("launch", (matmul_vectorized, matmul_double_buffered, matmul_async_copies, matmul_pipelined),
                         ids=lambda launch: launch.__name__)
def test_misaligned_views_agree(launch):
    """A view that begins between two multiples of 16 bytes: no access of 128 bits may touch it."""
    M, N, K = 132, 128, 16
    rng = np.random.default_rng(5)
    a, b = (np.ascontiguousarray(rng.random(shape, dtype=np.float32)) for shape in ((M, K), (K, N)))

    def shifted(array):
        return cuda.to_device(np.concatenate([[np.float32(0)], array.reshape(-1)]))[1:].reshape(array.shape)

    aligned = cuda.to_device(a), cuda.to_device(b), cuda.device_array((M, N), np.float32)
    moved = shifted(a), shifted(b), shifted(np.full((M, N), np.nan, np.float32))
    for which in range(3):
        arrays = tuple(moved[n] if n == which else aligned[n] for n in range(3))
        launch(*arrays)
        np.testing.assert_allclose(arrays[2].copy_to_host(), a.astype(np.float64) @ b, rtol=1e-5)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("K", [1, 15, 16, 17, 32, 33, 48, 80, 100])
@pytest.mark.parametrize("launch", [
    *(pytest.param(launch, id=launch.__name__, marks=pytest.mark.sweep)
      for launch in (matmul_double_buffered, matmul_async_copies, matmul_reads_ahead)),
    pytest.param(matmul_pipelined, id="matmul_pipelined")])
def test_the_ring_of_tiles_is_right_at_every_depth(launch, K):
    """Fewer tiles than the ring has places, as many, and more; whole ones and a last one that is not."""
    sizes = ({"M": 128, "N": 128, "K": K}, {"M": 5, "N": 3, "K": K})
    assert agree(MATMUL, [launch], sizes=sizes, seed=K).passed


@pytest.mark.parametrize(("rows_of_blocks", "blocks_in_row"), [(1, 1), (32, 3), (33, 2), (70, 5), (5, 70)])
def test_every_tile_has_one_block_of_its_group(rows_of_blocks, blocks_in_row):
    places = [place_in_groups.py_func(block, rows_of_blocks, blocks_in_row)
              for block in range(rows_of_blocks * blocks_in_row)]
    assert sorted(places) == [(row, col) for row in range(rows_of_blocks) for col in range(blocks_in_row)]
    assert places[:2] == [(0, 0), (1, 0) if rows_of_blocks > 1 else (0, 1)][: len(places)]
    assert [row // 32 for row, _ in places] == sorted(row // 32 for row, _ in places)


@pytest.mark.sweep(every=True)
def test_groups_agree_beyond_one_group():
    sizes = ({"M": 530, "N": 37, "K": 5}, {"M": 1030, "N": 70, "K": 17})
    assert agree(MATMUL, [matmul_tiled_grouped], sizes=sizes).passed


@pytest.mark.sweep
def test_no_race_in_the_pipelined_kernels():
    a, b = np.ones((3, 40), np.float32), np.ones((40, 5), np.float32)
    for launch in (matmul_vectorized, matmul_double_buffered, matmul_async_copies, matmul_warp_tiles,
                   matmul_reads_ahead, matmul_pipelined):
        kernel = launch.kernel[1]
        report = observe(kernel[1, 256, 0, 4 * RING], a, b, np.zeros((3, 5), np.float32))
        assert report.ok, (launch.__name__, [str(finding) for finding in report.races])


@pytest.mark.sweep
def test_what_feeds_a_multiply_add():
    """The counts that docstrings and lesson state: numbers read from shared memory for the products of one step."""
    for thread_tile, numbers in ((4, 8), (8, 16)):
        kernel = make_matmul_register_blocked(thread_tile)
        tile = 16 * thread_tile
        a, b = np.ones((tile, 8), np.float32), np.ones((8, tile), np.float32)
        report = observe(kernel[1, (16, 16)], a, b, np.zeros((tile, tile), np.float32))
        assert report.ok
        assert report.counts["shared_loads"] == 256 * 8 * numbers


def test_ladder_goes_by_one_change():
    names = [r.__name__.removeprefix("matmul_") for r in MATMUL.rungs]
    assert names == ["naive", "coalesced", "tiled", "tiled_grouped", "tiled_32", "register_blocked_4",
                     "register_blocked", "register_blocked_16", "vectorized", "double_buffered", "async_copies",
                     "warp_tiles", "reads_ahead", "pipelined", "split"]
    assert [r.__name__ for r in MATMUL.rungs if r.failed] == ["matmul_register_blocked_16"]
    naive, coalesced = (r.kernel.py_func for r in MATMUL.rungs[:2])
    # Only the axis that threadIdx.x walks differs: what the kernels compute from row and col is the same.
    assert naive.__code__.co_consts == coalesced.__code__.co_consts
    assert set(naive.__code__.co_names) == set(coalesced.__code__.co_names)


@pytest.mark.sweep(every=True)
def test_fused_and_unrolled():
    """The fastest kernel has its 16 steps written out: 64 fused multiply-adds and 4 loads each."""
    text = ptx_of(matmul_pipelined.kernel[0], *["float32 2"] * 3)
    assert text.count("fma.rn.f32") == 1024
    assert text.count("ld.shared.v4.f32") == 4 * 17
    assert ".local" not in text


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"columns of a \(3\) must equal the rows of b \(4\)"):
        matmul_naive(ones(2, 3), ones(4, 5), ones(2, 5))
    with pytest.raises(ValueError, match=r"out has shape \(5, 2\); it must be \(2, 5\)"):
        matmul_tiled(ones(2, 3), ones(3, 5), ones(5, 2))
    with pytest.raises(ValueError, match="a has 1 dimensions"):
        matmul_tiled(ones(3), ones(3, 5), ones(1, 5))
    with pytest.raises(ValueError, match="b is not C-contiguous"):
        matmul_tiled(ones(2, 3), cuda.to_device(np.asfortranarray(np.ones((3, 5), np.float32))), ones(2, 5))


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launch", [matmul_naive, matmul_tiled, matmul_tiled_32], ids=lambda f: f.__name__)
def test_an_infinity_in_the_last_column_stays_one(launch):
    """Beyond the edge a tile holds zeros on both sides: infinity times zero would be NaN."""
    a, b = np.ones((3, 19), np.float32), np.ones((19, 5), np.float32)
    a[1, -1] = np.inf
    out = cuda.to_device(np.zeros((3, 5), np.float32))
    launch(cuda.to_device(a), cuda.to_device(b), out)
    np.testing.assert_array_equal(out.copy_to_host(), np.repeat([[19.0], [np.inf], [19.0]], 5, axis=1))


@pytest.mark.cpu_device
def test_a_tile_is_not_overwritten_while_others_read_it():
    a, b = (uniform(np.random.default_rng(0), *shape) for shape in ((8, 19), (19, 8)))
    out = np.zeros((8, 8), np.float32)
    assert observe(make_matmul_tiled(8)[(1, 1), (8, 8)], a, b, out).findings == []
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)
