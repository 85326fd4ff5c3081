"""Matrix product: every rung at awkward and random shapes, any tile, errors that name the argument."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.launching import blocks_for
from labkit.kernels.matmul import MATMUL, make_matmul_tiled, matmul_naive, matmul_tiled
from labkit.op import agree, rung


def test_every_rung_agrees():
    assert agree(MATMUL, seed=1).passed


def test_random_shapes_agree():
    rng = np.random.default_rng(7)
    sizes = tuple({axis: int(rng.integers(1, 70)) for axis in "MNK"} for _ in range(12))
    assert agree(MATMUL, sizes=sizes, seed=2).passed


@pytest.mark.parametrize("tile", [1, 4, 8])
def test_any_tile(tile):
    kernel = make_matmul_tiled(tile)

    @rung(kernel=kernel, idea="another tile")
    def tiled(a, b, out, stream=0):
        kernel[blocks_for(out.shape[::-1], (tile, tile)), (tile, tile), stream](a, b, out)

    assert agree(MATMUL, [tiled], sizes=({"M": 5, "N": 9, "K": 7}, {"M": 8, "N": 8, "K": 8})).passed


def test_identity():
    a = np.arange(35, dtype=np.float32).reshape(5, 7)
    out = cuda.device_array((5, 7), np.float32)
    for launch in MATMUL.rungs:
        launch(cuda.to_device(a), cuda.to_device(np.eye(7, dtype=np.float32)), out)
        np.testing.assert_array_equal(out.copy_to_host(), a)


def test_ladder_goes_slowest_first_by_one_change():
    assert [r.__name__ for r in MATMUL.rungs] == ["matmul_naive", "matmul_coalesced", "matmul_tiled", "matmul_tiled_32"]
    naive, coalesced = (r.kernel.py_func for r in MATMUL.rungs[:2])
    # Only the axis that threadIdx.x walks differs: what the kernels compute from row and col is the same.
    assert naive.__code__.co_consts == coalesced.__code__.co_consts
    assert set(naive.__code__.co_names) == set(coalesced.__code__.co_names)


def test_errors_name_the_argument():
    def ones(*shape):
        return cuda.to_device(np.ones(shape, np.float32))

    with pytest.raises(ValueError, match=r"columns of a \(3\) must equal the rows of b \(4\)"):
        matmul_naive(ones(2, 3), ones(4, 5), ones(2, 5))
    with pytest.raises(ValueError, match=r"out has shape \(5, 2\); it must be \(2, 5\)"):
        matmul_tiled(ones(2, 3), ones(3, 5), ones(5, 2))
    with pytest.raises(ValueError, match="a has 1 dimensions"):
        matmul_tiled(ones(3), ones(3, 5), ones(1, 5))
    with pytest.raises(ValueError, match="b is not C-contiguous"):
        matmul_tiled(ones(2, 3), cuda.to_device(np.asfortranarray(np.ones((3, 5), np.float32))), ones(2, 5))
