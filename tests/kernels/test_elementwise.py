"""Vector and volume addition: every rung, its launcher's limits, its errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.elementwise import vector_add_grid_stride, vector_add_per_thread, volume_add_1d, volume_add_3d
from labkit.kernels.op import rung
from labkit.kernels.ops.elementwise import VECTOR_ADD, VOLUME_ADD


@pytest.mark.parametrize("op", [VECTOR_ADD, VOLUME_ADD], ids=lambda op: op.name)
def test_every_rung_agrees(op):
    assert agree(op, seed=1).passed


def test_awkward_sizes_are_awkward():
    ns = [size["n"] for size in VECTOR_ADD.awkward]
    assert 1 in ns
    assert any(n % 2 for n in ns)
    assert any(n % 256 for n in ns)
    assert max(ns) > 1024 * 256, "larger than the grid of the grid-stride rung"


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_grid_stride_works_with_any_grid(blocks):
    @rung(kernel=vector_add_grid_stride.kernel, idea="small grid")
    def small_grid(a, b, out, stream=0):
        vector_add_grid_stride(a, b, out, stream=stream, block=32, max_blocks=blocks)

    assert agree(VECTOR_ADD, [small_grid], sizes=({"n": 1}, {"n": 33}, {"n": 1_001})).passed


@pytest.mark.parametrize("block", [(16, 8, 8), (1, 1, 1), (4, 4, 4), (1, 16, 64), (1024, 1, 1)])
def test_volume_add_takes_any_block(block):
    @rung(kernel=volume_add_3d.kernel, idea="another block")
    def shaped(a, b, out, stream=0):
        volume_add_3d(a, b, out, stream=stream, block=block)

    assert agree(VOLUME_ADD, [shaped], sizes=({"nx": 5, "ny": 7, "nz": 3}, {"nx": 33, "ny": 2, "nz": 9})).passed


def test_stream_is_used():
    a = np.arange(1000, dtype=np.float32)
    stream = cuda.stream()
    d_a, d_out = cuda.to_device(a), cuda.device_array(1000, np.float32)
    vector_add_per_thread(d_a, d_a, d_out, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(d_out.copy_to_host(), 2 * a)


def vectors(n=8, dtype=np.float32):
    return [cuda.to_device(np.ones(n, dtype)) for _ in range(3)]


def test_errors_name_the_argument():
    a, b, out = vectors()
    with pytest.raises(TypeError, match="a is a NumPy array on the host"):
        vector_add_per_thread(np.ones(8, np.float32), b, out)
    with pytest.raises(TypeError, match="b is a list"):
        vector_add_per_thread(a, [1.0], out)
    with pytest.raises(TypeError, match="b has dtype float64; only float32 is allowed"):
        vector_add_per_thread(a, cuda.to_device(np.ones(8)), out)
    with pytest.raises(ValueError, match=r"out has shape \(9,\); it must be \(8,\)"):
        vector_add_per_thread(a, b, cuda.to_device(np.ones(9, np.float32)))
    with pytest.raises(ValueError, match="a has 2 dimensions"):
        vector_add_per_thread(cuda.to_device(np.ones((2, 4), np.float32)), b, out)
    with pytest.raises(ValueError, match="a is not C-contiguous"):
        vector_add_per_thread(cuda.to_device(np.ones(16, np.float32))[::2], b, out)


def test_an_empty_vector_is_refused():
    empty = cuda.device_array(0, np.float32)
    with pytest.raises(ValueError, match="a has shape .* no elements"):
        vector_add_per_thread(empty, empty, empty)


def test_block_limits_are_named():
    volume = [cuda.to_device(np.ones((2, 3, 4), np.float32)) for _ in range(3)]
    with pytest.raises(ValueError, match="block is .* 2048 threads"):
        volume_add_3d(*volume, block=(16, 16, 8))
    with pytest.raises(ValueError, match="at most 64 along the third axis"):
        volume_add_3d(*volume, block=(1, 1, 128))


def test_volume_index_is_x_fastest():
    """The flat and the coordinate form write the same element for the same (x, y, z)."""
    nz, ny, nx = 3, 5, 7
    a = np.arange(nz * ny * nx, dtype=np.float32).reshape(nz, ny, nx)
    zero = cuda.to_device(np.zeros_like(a))
    for launch in (volume_add_1d, volume_add_3d):
        out = cuda.to_device(np.full_like(a, np.nan))
        launch(cuda.to_device(a), zero, out)
        np.testing.assert_array_equal(out.copy_to_host(), a)
