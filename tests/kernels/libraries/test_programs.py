"""Triton's programs and cuTile's: on a GPU where they run, else through Triton's interpreter and a model of cuTile."""

import numpy as np
import pytest

from labkit import cuda, device, show_source
from labkit.kernels.libraries import cutile as tile_kernels
from labkit.kernels.libraries import cutile_model as ct
from labkit.kernels.libraries import cutile_model as tile_model
from labkit.kernels.libraries import triton as triton_kernels
from labkit.kernels.op import uniform

LENGTHS = (1, 15, 16, 17, 1000, 4096)
SHAPES = ((1, 1), (3, 5), (2, 128), (4, 781), (3, 1025))
needs_triton = pytest.mark.skipif(bool(triton_kernels.why_not()), reason=triton_kernels.why_not() or "-")
needs_cutile = pytest.mark.skipif(bool(tile_kernels.why_not()), reason=tile_kernels.why_not() or "-")
needs_cutile_installed = pytest.mark.skipif(tile_kernels.ct is tile_model, reason="cuda-tile is not installed")


def arrays_for(*shapes):
    """Inputs, and an output of the first one's shape full of NaN."""
    rng = np.random.default_rng(0)
    inputs = [uniform(rng, *shape) for shape in shapes]
    return inputs, np.full(shapes[0], np.nan, np.float32)


def run_triton(launcher, inputs, out):
    d_out = cuda.to_device(out)
    launcher(*(cuda.to_device(array) for array in inputs), d_out)
    cuda.synchronize()
    return d_out.copy_to_host()


def run_tile(launcher, inputs, out, **options):
    d_out = cuda.to_device(out)
    launcher(*(cuda.to_device(array) for array in inputs), d_out, **options)
    cuda.synchronize()
    return d_out.copy_to_host()


def softmax_truth(x):
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# --- Triton ----------------------------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize("n", LENGTHS)
def test_triton_vector_add_is_exact(n):
    (a, b), out = arrays_for((n,), (n,))
    assert np.array_equal(run_triton(triton_kernels.vector_add_triton, (a, b), out), a + b)


@needs_triton
@pytest.mark.cpu_device
def test_the_interpreter_takes_numpy_arrays_too():
    (a, b), out = arrays_for((20,), (20,))
    triton_kernels.vector_add_triton(a, b, out, block=8)
    assert np.array_equal(out, a + b)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
def test_triton_softmax_with_columns_that_are_no_power_of_two(shape):
    (x,), out = arrays_for(shape)
    x = 50 * x - 100  # all negative: a zero in the padding would be the maximum
    got = run_triton(triton_kernels.softmax_triton, (x,), out)
    np.testing.assert_allclose(got, softmax_truth(x), rtol=3e-5, atol=1e-30)
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-5)


def test_rows_too_long_for_a_program_are_refused_with_the_limit():
    wide = np.zeros((1, 70_000), np.float32)
    with pytest.raises(ValueError, match="65,536"):
        triton_kernels.softmax_triton(wide, wide)


@pytest.mark.skipif(not triton_kernels.why_not(), reason="Triton runs here")
def test_without_triton_a_launch_says_how_to_install_it():
    with pytest.raises(ImportError, match="Triton"):
        triton_kernels.softmax_triton(np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32))


def test_the_sources_can_be_shown_without_triton():
    assert "tl.load" in str(show_source(triton_kernels.add_kernel))
    assert "@triton.jit" in str(show_source(triton_kernels.softmax_kernel))


# --- cuTile, or its model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("tile", (16, 1024))
def test_tile_vector_add_is_exact(n, tile):
    (a, b), out = arrays_for((n,), (n,))
    assert np.array_equal(run_tile(tile_kernels.vector_add_cutile, (a, b), out, tile=tile), a + b)


@pytest.mark.parametrize("shape", SHAPES)
def test_tile_softmax(shape):
    (x,), out = arrays_for(shape)
    x = 50 * x - 100
    got = run_tile(tile_kernels.softmax_cutile, (x,), out)
    np.testing.assert_allclose(got, softmax_truth(x), rtol=3e-5, atol=1e-30)


def test_the_sources_size():
    (a, b), out = arrays_for((2**12,), (2**12,))
    assert np.array_equal(run_tile(tile_kernels.vector_add_cutile, (a, b), out, tile=2**4), a + b)


def test_a_tile_that_is_no_power_of_two_is_rejected():
    (a, b), out = arrays_for((48,), (48,))
    with pytest.raises(Exception, match="not a power of two"):
        run_tile(tile_kernels.vector_add_cutile, (a, b), out, tile=12)


@needs_cutile
def test_cutile_itself_runs_here():
    assert tile_kernels.where() == device.name()


@needs_cutile_installed
def test_cutile_translates_without_a_gpu_and_rejects_a_tile_of_twelve():
    from cuda.tile import TileError

    assert len(tile_kernels.translate(tile_kernels.vector_add_tiles, tile=16)) > 100
    with pytest.raises(TileError, match="not a power of two"):
        tile_kernels.translate(tile_kernels.vector_add_tiles, tile=12)


def test_translate_says_what_is_missing():
    if tile_kernels.ct is tile_model:
        with pytest.raises(ImportError, match="pip install cuda-tile"):
            tile_kernels.translate(tile_kernels.vector_add_tiles, tile=16)


# --- The model itself ------------------------------------------------------------------------------------------------


def run_model(function, grid, *args):
    tile_model.launch(None, grid, function, args)


def test_an_index_counts_tiles_and_a_store_drops_what_lies_beyond():
    def reverse_tiles(x, out, tile: ct.Constant[int]):
        i = ct.bid(0)
        ct.store(out, (ct.num_blocks(0) - 1 - i,), ct.load(x, (i,), (tile,), padding_mode=ct.PaddingMode.ZERO))

    x, out = np.arange(1, 8, dtype=np.float32), np.full(7, np.nan, np.float32)
    run_model(reverse_tiles, (2,), x, out, 4)
    assert list(out) == [5, 6, 7, 0, 1, 2, 3]


def test_what_a_load_has_beyond_the_array_is_undetermined():
    seen = []

    def look(x, tile: ct.Constant[int]):
        seen.append(ct.load(x, (0,), (tile,)))
        seen.append(ct.load(x, (0,), (tile,), padding_mode=ct.PaddingMode.NEG_INF))

    run_model(look, (1,), np.ones(3, np.float32), 4)
    assert np.isnan(seen[0][3])
    assert seen[1][3] == -np.inf


def test_a_tile_cannot_be_written_to():
    def scribble(x):
        tile = ct.load(x, (0,), (4,))
        tile[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        run_model(scribble, (1,), np.ones(4, np.float32))


def test_a_product_by_tiles():
    def product(a, b, out, tile: ct.Constant[int], steps: ct.Constant[int]):
        row, col = ct.bid(0), ct.bid(1)
        total = ct.full((tile, tile), 0, np.float32)
        for k in range(steps):
            left = ct.load(a, (row, k), (tile, tile), padding_mode=ct.PaddingMode.ZERO)
            total = ct.mma(left, ct.load(b, (k, col), (tile, tile), padding_mode=ct.PaddingMode.ZERO), total)
        ct.store(out, (row, col), total)

    rng = np.random.default_rng(0)
    a, b, out = uniform(rng, 19, 33), uniform(rng, 33, 10), np.full((19, 10), np.nan, np.float32)
    run_model(product, (2, 1), a, b, out, 16, 3)
    np.testing.assert_allclose(out, a @ b, atol=1e-4)


@pytest.mark.parametrize("program, sentence", [
    (lambda x: ct.load(x, (9,), (4,)), "lies outside"),
    (lambda x: ct.load(x, (0, 0), (4, 4)), "index has 2 axes"),
    (lambda x: ct.store(x, (0,), np.ones(3, np.float32)), "not a power of two"),
])
def test_what_a_program_may_not_do(program, sentence):
    with pytest.raises(tile_model.TileError, match=sentence):
        run_model(program, (1,), np.ones(8, np.float32))


def test_outside_of_a_launch_there_is_no_block():
    with pytest.raises(tile_model.TileError, match="launch has started"):
        tile_model.bid(0)
