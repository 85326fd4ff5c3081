"""Products by wgmma and TMA: every tile at sizes that are no multiple of it, many tiles for a block, what is refused,
what the kernels compile to."""

import re

import numpy as np
import pytest

from labkit import cuda, device
from labkit.device import launches
from labkit.kernels.agree import poisoned
from labkit.kernels.gelu import gelu_erf, gelu_erf_reference, gelu_sigmoid, gelu_tanh_approx, gelu_tanh_reference
from labkit.kernels.matmul.wgmma import (
    SIMPLE,
    TILES,
    choose_tile,
    linear_wgmma,
    linear_wgmma_specialised,
    make_wgmma,
    make_wgmma_specialised,
    matmul_half_wgmma,
    matmul_half_wgmma_specialised,
    multiply,
    multiply_parts,
    multiply_specialised,
    parts_of,
)
from labkit.kernels.matmul.wgmma_tiles import Tile, bias_index, make_tile_origin, unchanged
from tests import launching
from tests.compiled import HOPPER, ptx_of, resources_of

pytestmark = pytest.mark.skipif(bool(linear_wgmma.missing), reason=linear_wgmma.missing)

SIZES = (  # (M, N, K)
    (1, 8, 8),  # the least
    (3, 16, 72),  # a second step along K, most of it beyond the edge
    (65, 136, 64),  # rows of the second warpgroup, a second column of tiles for 128
    (130, 264, 200),  # two tiles down, two across; 200 = 3 * 64 + 8
    (66, 72, 328),  # six steps: the ring goes round
)
WAYS = {"all the same": lambda *args, **options: multiply(*args, **options)} | {
    f"specialised, {tile.cols} columns": (
        lambda *args, tile=tile, **options: multiply_specialised(*args, tile=tile, **options)) for tile in TILES}


def problem(rng, M, N, K, *, weights, bias=None):
    """a, b, bias and the product in float64, and how far a right result may be from it."""
    a = rng.uniform(-1.5, 1.5, (M, K)).astype(np.float16)
    b = rng.uniform(-1.5, 1.5, (N, K) if weights else (K, N)).astype(np.float16)
    exact_a, exact_b = a.astype(np.float64), b.astype(np.float64)
    exact_b = exact_b.T if weights else exact_b
    offset = None if bias is None else rng.uniform(-2, 2, N).astype(bias)
    expected = exact_a @ exact_b + (0 if offset is None else offset.astype(np.float64))
    # The result is rounded to a half once; the sums in float32 err far less.
    allowed = 2.0**-11 * np.abs(expected) + 1e-5 * (np.abs(exact_a) @ np.abs(exact_b)) + 2.0**-24
    return a, b, offset, expected, allowed


def run(way, a, b, offset, shape, **options):
    return launching.run(way, shape, np.float16, a, b, offset, **options).astype(np.float64)


@pytest.mark.sampled(0, sweep=3)
@pytest.mark.parametrize("weights", [False, True], ids=["a @ b", "x @ w.T"])
@pytest.mark.parametrize("way", WAYS)
def test_agrees_at_awkward_sizes(way, weights):
    rng = np.random.default_rng(3)
    for M, N, K in SIZES:
        a, b, offset, expected, allowed = problem(rng, M, N, K, weights=weights, bias=np.float16 if weights else None)
        out = run(WAYS[way], a, b, offset, (M, N), weights=weights)
        wrong = ~(np.abs(out - expected) <= allowed)
        assert not wrong.any(), f"{wrong.sum()} of {M} x {N} x {K}, the first at {np.argwhere(wrong)[0]}"


@pytest.mark.sampled(0, sweep=4)
@pytest.mark.parametrize("way", WAYS)
def test_every_product_lands_where_it_belongs(way):
    """Row and column numbers as data: a @ b picks row r of the identity; swapped rows or columns would show as such."""
    size = 136
    numbers = (np.arange(size)[:, None] * 8 + np.arange(size) % 8).astype(np.float16)
    identity = np.eye(size, dtype=np.float16)
    for weights, b in ((False, numbers), (True, np.ascontiguousarray(numbers.T))):
        np.testing.assert_array_equal(run(WAYS[way], identity, b, None, (size, size), weights=weights), numbers)


@pytest.mark.sampled(1, sweep=5)
@pytest.mark.parametrize("bias", [np.float16, np.float32])
@pytest.mark.parametrize("way", WAYS)
def test_bias_of_either_type(way, bias):
    a, b, offset, expected, allowed = problem(np.random.default_rng(4), 9, 200, 16, weights=True, bias=bias)
    out = run(WAYS[way], a, b, offset, expected.shape, weights=True)
    assert (np.abs(out - expected) <= allowed).all()


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize(("activation", "reference"), [
    pytest.param(gelu_tanh_approx, gelu_tanh_reference, id="tanh_approx"),
    pytest.param(gelu_sigmoid, gelu_tanh_reference, id="sigmoid"),
    pytest.param(gelu_erf, gelu_erf_reference, id="erf")])
def test_an_activation_is_applied_to_the_accumulators_before_they_are_rounded(activation, reference):
    rng = np.random.default_rng(5)
    a, b, offset, sums, allowed = problem(rng, 70, 200, 40, weights=True, bias=np.float16)
    expected = reference(sums)
    # GELU is nowhere steeper than 1.13. The sums err by what `allowed` has beside the rounding of the result.
    allowed = 2.0**-11 * np.abs(expected) + 1.13 * (allowed - 2.0**-11 * np.abs(sums)) + 1e-5
    if activation is gelu_tanh_approx:
        allowed += 2.0**-11 * np.abs(sums)  # tanh is off by 2^-11 of itself
    for tile in TILES:
        out = run(multiply_specialised, a, b, offset, sums.shape, weights=True, activation=activation, tile=tile)
        assert (np.abs(out - expected) <= allowed).all(), str(tile)


@pytest.mark.sweep  # nine seconds; the awkward sizes run the same kernels
def test_a_block_takes_one_tile_after_the_other():
    """Many tiles for each block: the ring and its parities go on from tile to tile, the store waits its turn."""
    a, b, offset, expected, allowed = problem(np.random.default_rng(6), 400, 520, 72, weights=True, bias=np.float32)
    for tile in TILES:
        with launches.record([make_wgmma_specialised(tile, weights=True, bias=True, activation=unchanged)]) as launched:
            out = run(multiply_specialised, a, b, offset, expected.shape, weights=True, tile=tile)
        if not device.on_gpu():  # a GPU has a block for each of these few tiles
            assert tile.count(*expected.shape) > 2 * np.prod(launched[0].grid)
        assert (np.abs(out - expected) <= allowed).all(), str(tile)


@pytest.mark.parametrize("rows, cols", [(1, 8), (128, 192), (1100, 1000), (3000, 200)])
def test_the_numbers_of_tiles_cover_the_matrix_once(rows, cols):
    tile = Tile(cols=192, stages=4)
    tile_origin = make_tile_origin(tile)
    count = tile.count(rows, cols)

    @cuda.jit
    def places(out):
        number = cuda.grid(1)
        if number < out.shape[0]:
            row, col = tile_origin(np.uint32(number), np.uint32(rows), np.uint32(cols))
            out[number, 0] = row
            out[number, 1] = col

    out = cuda.to_device(np.full((count, 2), -1, np.int64))
    places[(count + 31) // 32, 32](out)
    found = {tuple(int(x) for x in pair) for pair in out.copy_to_host()}
    assert found == {(row, col) for row in range(0, rows, tile.rows) for col in range(0, cols, tile.cols)}


def test_the_bias_of_a_tile_has_a_place_for_each_column():
    index = bias_index.py_func
    indices = [int(index(np.uint32(col))) for col in range(256)]
    assert sorted(indices) == list(range(256))
    quad = 3  # the third thread of four: four columns of the first 16, next to each other
    assert [indices[col] for col in (2 * quad, 2 * quad + 1, 2 * quad + 8, 2 * quad + 9)] == [12, 13, 14, 15]


def test_tiles_are_chosen_so_that_every_block_has_as_much_to_do():
    chosen = {size: choose_tile(*size, 132).cols for size in (
        (4096, 4096, 4096), (8192, 8192, 8192), (8192, 1152, 384), (8192, 384, 384), (8192, 1536, 384),
        (8192, 384, 1536), (1, 8, 8))}
    assert chosen == {(4096, 4096, 4096): 256, (8192, 8192, 8192): 256, (8192, 1152, 384): 192, (8192, 384, 384): 192,
                      (8192, 1536, 384): 192, (8192, 384, 1536): 192, (1, 8, 8): 64}


def test_refuses_what_tma_cannot_copy():
    half = lambda *shape: cuda.to_device(np.zeros(shape, np.float16))  # noqa: E731
    for launch in (matmul_half_wgmma, matmul_half_wgmma_specialised):
        with pytest.raises(ValueError, match="K is 12; it must be a multiple of 8"):
            launch(half(4, 12), half(12, 8), half(4, 8))
        with pytest.raises(ValueError, match="N is 9; it must be a multiple of 8"):
            launch(half(4, 8), half(8, 9), half(4, 9))
        with pytest.raises(ValueError, match=r"the columns of a \(8\) must equal the rows of b \(16\)"):
            launch(half(4, 8), half(16, 8), half(4, 8))
        with pytest.raises(ValueError, match="out has shape"):
            launch(half(4, 8), half(8, 8), half(4, 16))
        with pytest.raises(TypeError, match="a has dtype float32"):
            launch(cuda.to_device(np.zeros((4, 8), np.float32)), half(8, 8), half(4, 8))
        with pytest.raises(ValueError, match="multiples of 16 bytes"):
            launch(half(33)[1:].reshape(4, 8), half(8, 8), half(4, 8))
    for launch in (linear_wgmma, linear_wgmma_specialised):
        with pytest.raises(ValueError, match=r"the columns of a \(8\) must equal the columns of b \(16\)"):
            launch(half(4, 8), half(8, 16), half(8), half(4, 8))
        with pytest.raises(ValueError, match="bias has shape"):
            launch(half(4, 8), half(8, 8), half(16), half(4, 8))


# --- What they compile to ---------------------------------------------------------------------------------------------


def variants():
    for weights in (False, True):
        yield f"all the same, {weights}", SIMPLE, make_wgmma(weights=weights, bias=weights)
        for tile in TILES:
            yield f"{tile}, {weights}", tile, make_wgmma_specialised(tile, weights=weights, bias=weights,
                                                                               activation=unchanged)
    for activation in (gelu_erf, gelu_sigmoid):
        for tile in TILES:
            yield f"{activation.__name__}, {tile}", tile, make_wgmma_specialised(tile, weights=True, bias=True,
                                                                                 activation=activation)


@pytest.mark.sampled(1, sweep=2, quick="128x64x64, 8 stages, False")
@pytest.mark.parametrize(("tile", "kernel"), [pytest.param(tile, kernel, id=name) for name, tile, kernel in variants()])
def test_accumulators_stay_in_registers(tile, kernel):
    """wgmma runs on its own only while its sums stay where they are: the compiler says so when it has to move them."""
    residual_map, sizes = ([], 3) if tile is SIMPLE else (["uint64 1"], 4)
    text = ptx_of(kernel, *["uint64 1"] * 3, "float16 1", *residual_map, *["uint32"] * sizes, cc=HOPPER)
    products = re.findall(rf"wgmma\.mma_async\.sync\.aligned\.m64n{tile.cols}k16", text)
    assert products and len(products) % 4 == 0, "one for each 16 of K in a stage"
    assert not re.search(r"\b(div|rem)\.[su]64", text)
    assert resources_of(text)["registers"] <= (128 if tile is SIMPLE else 168)


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_residual_is_added_on_the_way_out(tile, in_place):
    """Also where a block has several tiles, and the residual of the next one lands where the last one's sums were."""
    rng = np.random.default_rng(5)
    for M, N, K in ((3, 16, 72), (300, 520, 72)):
        a, b, offset, expected, allowed = problem(rng, M, N, K, weights=False, bias=np.float16)
        residual = rng.uniform(-2, 2, (M, N)).astype(np.float16)
        added = cuda.to_device(residual)
        out = added if in_place else cuda.to_device(np.full((M, N), np.nan, np.float16))
        multiply_specialised(*(cuda.to_device(array) for array in (a, b, offset)), out, weights=False, residual=added,
                             tile=tile)
        assert (np.abs(out.copy_to_host() - (expected + residual)) <= allowed + 2.0**-11 * np.abs(residual)).all()


@pytest.mark.sampled(1, sweep=5)
@pytest.mark.parametrize("weights", [False, True], ids=["a @ b", "x @ w.T"])
@pytest.mark.parametrize(("M", "N", "K", "count", "slice_"), [
    (3, 16, 72, 2, 64), (130, 264, 200, 2, 128), (66, 72, 328, 3, 128), (5, 8, 64, 1, 64)])
def test_parts_of_k_add_up(M, N, K, count, slice_, weights):
    """Each part against float64, and nothing written beyond the parts."""
    a, b, _, expected, _ = problem(np.random.default_rng(6), M, N, K, weights=weights)
    parts = poisoned((count * M * N,), np.float32)
    out = cuda.device_array((M, N), np.float16)
    multiply_parts(cuda.to_device(a), cuda.to_device(b), out, parts.array, count, slice_, weights=weights)
    found, outside = parts.read()
    assert not outside.size, "wrote outside the parts"
    found = found.reshape(count, M, N)
    exact_a, exact_b = a.astype(np.float64), (b.T if weights else b).astype(np.float64)
    for part in range(count):
        own = slice(part * slice_, (part + 1) * slice_)
        allowed = 1e-5 * (np.abs(exact_a[:, own]) @ np.abs(exact_b[own])) + 1e-7
        assert (np.abs(found[part] - exact_a[:, own] @ exact_b[own]) <= allowed).all(), f"part {part}"
    np.testing.assert_allclose(found.sum(axis=0, dtype=np.float64), expected, atol=1e-4)


def test_parts_that_do_not_cover_k_are_refused():
    a, b, out = (cuda.device_array(shape, np.float16) for shape in ((4, 200), (200, 8), (4, 8)))
    for count, slice_ in ((2, 64), (4, 128), (2, 100)):
        with pytest.raises(ValueError, match="slice_ is"):
            multiply_parts(a, b, out, cuda.device_array(count * 32, np.float32), count, slice_, weights=False)
    with pytest.raises(ValueError, match="parts has shape"):
        multiply_parts(a, b, out, cuda.device_array(32, np.float32), 2, 128, weights=False)


@pytest.mark.parametrize("rows", [33, 128, 1024, 4096])
def test_k_is_shared_only_where_blocks_would_be_idle(rows):
    for cols, depth in ((2304, 768), (768, 768), (3072, 768), (768, 3072)):
        count, slice_ = parts_of(rows, cols, depth, 132)
        assert slice_ % 64 == 0 and (count - 1) * slice_ < depth <= count * slice_
        assert count == 1 or count * choose_tile(rows, cols, depth, 132).count(rows, cols) <= 132
    assert parts_of(128, 768, 3072, 132)[0] > 1 and parts_of(4096, 768, 3072, 132)[0] == 1
