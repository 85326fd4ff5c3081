"""The linear layers of a Llama: every size on this device, which kernel is picked for which, tiles of wgmma."""

import numpy as np
import pytest

from labkit import cuda
from labkit.device import gpus
from labkit.device.gpus import GPUS
from labkit.kernels.agree import agree
from labkit.kernels.dtypes import bfloat16_of, float32_of, float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32
from labkit.kernels.linear import bf16, swap_ab
from labkit.kernels.linear.bf16 import (
    arrange_gate_up,
    linear,
    linear_bf16_reference,
    linear_residual,
    linear_swiglu,
    linear_swiglu_reference,
)
from labkit.kernels.linear.swap_ab import multiply_swap_ab
from labkit.kernels.matmul.wgmma import (
    SWIGLU_TILES,
    TILES,
    make_wgmma_specialised,
    multiply_floats,
    multiply_specialised,
    multiply_swiglu,
)
from labkit.kernels.matmul.wgmma_tiles import unchanged
from labkit.kernels.ops.linear_bf16 import (
    LINEAR_BF16,
    LINEAR_SWIGLU,
    LM_HEAD,
    layer,
    layer_of_two,
    sum_error,
    swiglu_tolerance,
)
from tests import spills
from tests.compiled import HOPPER, ptx_of, resources_of
from tests.launching import every_rung, run

ELEMENT = pytest.mark.parametrize("element", [BFLOAT16, FLOAT16, FLOAT32], ids=lambda element: element.name)
SHORT = pytest.mark.parametrize("element", [BFLOAT16, FLOAT16], ids=lambda element: element.name)  # of 16 bits


@pytest.mark.sampled(1)
@every_rung(LINEAR_BF16, LINEAR_SWIGLU, LM_HEAD)
def test_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=2).passed


@pytest.mark.sampled(1, sweep=99, quick="1-float32")
@ELEMENT
@pytest.mark.parametrize("T", [1, 2, 17, 33, 257])
def test_any_number_of_rows(T, element):
    """Also with columns that 128-bit loads cannot read, with a bias, and as logits."""
    rng = np.random.default_rng(T)
    for N, K in ((3, 260), (24, 264)):
        x, weight = layer(rng, T, N, K, FLOAT16 if element is FLOAT16 else BFLOAT16)
        bias = bfloat16_of(rng.uniform(-1, 1, N))
        expected, sums = linear_bf16_reference(x, weight), sum_error(float64_of(x), float64_of(weight))
        given = [element.array_of(float64_of(array)) for array in (x, weight, bias)]  # exact
        out = float64_of(run(linear, (T, N), given[0].dtype, *given[:2]))
        assert (np.abs(out - expected) <= sums + element.rounding_error(expected) / 2).all()
        with_bias = expected + float64_of(bias)
        out = float64_of(run(linear, (T, N), given[0].dtype, *given[:2], bias=cuda.to_device(given[2])))
        assert (np.abs(out - with_bias) <= sums + 1e-6 + element.rounding_error(with_bias) / 2).all()
        logits = run(linear, (T, N), np.float32, *given[:2])
        assert (np.abs(logits - expected) <= sums).all()


@pytest.mark.sampled(1, sweep=99, quick="1-3-260-float16")
@ELEMENT
@pytest.mark.parametrize(("T", "N", "K"), [(1, 3, 260), (2, 24, 264), (17, 13, 16), (33, 8, 40)])
def test_swiglu_of_any_number_of_rows(T, N, K, element):
    rng = np.random.default_rng(N)
    stored = FLOAT16 if element is FLOAT16 else BFLOAT16
    gate, up = layer(rng, N, N, K, stored)
    x = stored.array_of(rng.uniform(-1.5, 1.5, (T, K)))
    gate_up = arrange_gate_up(gate, up)
    expected = linear_swiglu_reference(x, gate_up)[:, :N]
    product = linear_bf16_reference(x, gate)
    np.testing.assert_allclose(expected, product / (1 + np.exp(-product)) * linear_bf16_reference(x, up), rtol=1e-12)
    if element is FLOAT32:
        x, gate_up = float32_of(x), float32_of(gate_up)
        allowed = 1e-5
    else:
        allowed = swiglu_tolerance(float64_of(x), float64_of(gate_up), element)[:, :N]
    out = run(linear_swiglu, (T, N), x.dtype, x, gate_up)
    assert (np.abs(float64_of(out) - expected) <= allowed).all()


def test_swiglu_rounds_where_a_module_rounds():
    """Gate and up, then SiLU, then the product: the same bits as with four roundings one after the other."""
    rng = np.random.default_rng(7)
    x, gate = layer(rng, 9, 24, 8)
    up = layer(rng, 9, 24, 8)[1]
    rounded_gate, rounded_up = (float64_of(bfloat16_of(linear_bf16_reference(x, one))) for one in (gate, up))
    silu = float64_of(bfloat16_of(rounded_gate / (1 + np.exp(-rounded_gate))))
    expected = bfloat16_of(silu * rounded_up)
    out = run(linear_swiglu, (9, 24), np.uint16, x, arrange_gate_up(gate, up))
    assert np.mean(out != expected) < 0.02, "only where a sum lies next to the middle of two numbers"
    assert np.abs(out.astype(np.int64) - expected).max() <= 1


def test_huge_gates_are_not_lost():
    x = bfloat16_of(np.float32([[1.0] * 8]))
    gate = bfloat16_of(np.float32([[100.0] * 8, [-100.0] * 8, [1e20] * 8, [0.0] * 8]))
    up = bfloat16_of(np.full((4, 8), 1 / 8, np.float32))
    out = float32_of(run(linear_swiglu, (1, 4), np.uint16, x, arrange_gate_up(gate, up)))
    np.testing.assert_allclose(out, [[800.0, 0.0, 8e20, 0.0]], rtol=2.0**-7)


def test_gate_and_up_take_turns_by_eight_rows():
    gate, up = np.arange(33, dtype=np.uint16).reshape(11, 3), np.arange(100, 133, dtype=np.uint16).reshape(11, 3)
    both = arrange_gate_up(gate, up)
    assert both.shape == (32, 3) and both.dtype == np.uint16
    for i in range(11):
        row = i // 8 * 16 + i % 8
        assert (both[row] == gate[i]).all() and (both[row + 8] == up[i]).all()
    assert (both[19:24] == 0).all() and (both[27:] == 0).all()
    with pytest.raises(ValueError, match="they must be alike"):
        arrange_gate_up(gate, up[1:])
    with pytest.raises(TypeError, match="up must be a NumPy array"):
        arrange_gate_up(gate, [1, 2])


def test_views_that_begin_anywhere_are_computed_all_the_same():
    x, weight = layer(np.random.default_rng(8), 2, 5, 24)
    expected = run(linear, (2, 5), np.uint16, x, weight)
    padded = [cuda.to_device(np.concatenate([array[:1, :1].reshape(-1), array.reshape(-1)]))[1:].reshape(array.shape)
              for array in (x, weight)]
    out = cuda.to_device(np.full((2, 5), 0x7FC1, np.uint16))
    linear(*padded, out)
    difference = np.abs(float64_of(out.copy_to_host()) - float64_of(expected))
    assert (difference <= 2.0**-7 * np.abs(float64_of(expected))).all()


# --- Which kernel -----------------------------------------------------------------------------------------------------


class Shape:
    """What _pick asks of an array."""

    def __init__(self, *shape, dtype=np.uint16):
        self.shape, self.dtype, self.size = shape, np.dtype(dtype), int(np.prod(shape))


def test_the_kernel_is_picked_by_shape_and_gpu(monkeypatch):
    def picked(T, N, K, dtype=np.uint16, out_dtype=None, bias=None, **options):
        chosen = bf16._pick(Shape(T, K, dtype=dtype), Shape(N, K, dtype=dtype),
                            Shape(T, N // (2 if options else 1), dtype=out_dtype or dtype), bias, **options)
        return getattr(chosen, "func", chosen)

    monkeypatch.setattr(bf16, "loads_whole", lambda x, weight: x.shape[1] % 8 == 0)
    monkeypatch.setattr(bf16, "aligned", lambda *arrays: True)
    with gpus.plan_for(GPUS["h200"]):
        assert picked(1, 2048, 2048) is picked(8, 16384, 2048) is picked(32, 2048, 2048) is bf16.by_tensor_cores
        assert picked(9, 16384, 2048) is picked(64, 128256, 2048) is picked(128, 2048, 8192) is bf16.swap_ab
        assert picked(17, 16384, 2048, swiglu=True) is picked(256, 128256, 2048, out_dtype=np.float32) is bf16.swap_ab
        assert picked(256, 2048, 8192) is picked(33, 2048, 2048) is picked(256, 3072, 2048) is bf16.swap_ab
        assert picked(17, 16384, 2048, bias=Shape(16384)) is picked(257, 16384, 2048) is bf16.specialised
        assert picked(257, 128256, 2048, out_dtype=np.float32) is bf16.specialised_floats
        assert picked(1024, 16384, 2048, swiglu=True) is bf16.specialised_swiglu
        assert picked(1024, 2048, 2044) is bf16.by_warp and picked(1024, 2044, 2048) is bf16.by_tensor_cores
        assert picked(1024, 2048, 2048, dtype=np.float32) is bf16.by_wide_warp
        assert picked(1024, 2048, 2048, dtype=np.float32, swiglu=True) is bf16.by_warp
        assert picked(1024, 2048, 2048, out_dtype=np.float32, bias=Shape(2048)) is bf16.by_tensor_cores
    for gpu in ("a100", "rtx3060", "l4", "b200", "rtx5090"):  # without wgmma
        with gpus.plan_for(GPUS[gpu]):
            assert picked(1024, 2048, 2048) is bf16.pipelined
            assert picked(1024, 2048, 2048, swiglu=True) is bf16.by_tensor_cores
            assert picked(1024, 2048, 2048, out_dtype=np.float32) is bf16.by_tensor_cores
    with gpus.plan_for(GPUS["t4"]):  # without tensor cores for bfloat16
        assert picked(1, 2048, 2048) is picked(1024, 2048, 2048) is bf16.by_wide_warp
        assert picked(1, 2048, 2048, swiglu=True) is bf16.by_warp
        half = {"dtype": np.float16}
        assert picked(1, 2048, 2048, **half) is picked(4, 2048, 2048, swiglu=True, **half) is bf16.by_tensor_cores
        assert picked(1024, 2048, 2048, **half) is bf16.pipelined


# --- Tiles of wgmma ---------------------------------------------------------------------------------------------------

needs_wgmma = pytest.mark.skipif(bool(bf16.linear_bf16_wgmma.missing), reason=bf16.linear_bf16_wgmma.missing)
SIZES = ((3, 16, 72), (130, 264, 200), (66, 80, 328))  # beyond an edge; two tiles down and across; round the ring


@pytest.mark.sampled(1, sweep=99, quick="None-element3-True")
@pytest.mark.parametrize(("picked", "element", "with_bias"), [
    pytest.param("specialised", BFLOAT16, True, marks=needs_wgmma),
    pytest.param("specialised", FLOAT16, False, marks=needs_wgmma), ("pipelined", BFLOAT16, True),
    (None, BFLOAT16, True), (None, FLOAT32, False)])
def test_a_residual_is_added(picked, element, with_bias, monkeypatch):
    """By one kernel that multiplies tiles, rounded once, or by a second launch. The residual stays as it is."""
    if picked:
        monkeypatch.setattr(bf16, "_pick", lambda *arguments: getattr(bf16, picked))
    rng = np.random.default_rng(8)
    M, N, K = 130, 264, 200
    x, weight = layer(rng, M, N, K, FLOAT16 if element is FLOAT16 else BFLOAT16)
    x, weight = element.array_of(float64_of(x)), element.array_of(float64_of(weight))  # exact
    bias = element.array_of(rng.uniform(-2, 2, N)) if with_bias else None
    residual = element.array_of(rng.uniform(-4, 4, (M, N)))
    product = linear_bf16_reference(x, weight) + (float64_of(bias) if with_bias else 0)
    expected = product + float64_of(residual)
    on_device = cuda.to_device(residual)

    def launch(x, weight, out):
        linear_residual(x, weight, on_device, out, cuda.to_device(bias) if with_bias else None)

    out = float64_of(run(launch, (M, N), element.dtype, x, weight))
    allowed = sum_error(float64_of(x), float64_of(weight)) + element.rounding_error(expected) / 2 + 1e-6
    if not picked:
        allowed = allowed + element.rounding_error(product) / 2
    assert (np.abs(out - expected) <= allowed).all()
    np.testing.assert_array_equal(on_device.copy_to_host(), residual)


def test_a_residual_is_refused():
    x, out = cuda.to_device(np.ones((4, 8), np.float32)), cuda.to_device(np.ones((4, 8), np.float32))
    weight = cuda.to_device(np.ones((8, 8), np.float32))
    with pytest.raises(ValueError, match=r"residual has shape \(8, 8\); it must be \(4, 8\)"):
        linear_residual(x, weight, weight, out)
    with pytest.raises(ValueError, match="residual is out; it must be another array"):
        linear_residual(x, weight, out, out)


@needs_wgmma
@pytest.mark.sampled(1, sweep=4)
@SHORT
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["plain", "bias", "float32"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_products_by_wgmma(tile, kind, size, element):
    rng = np.random.default_rng(9)
    M, N, K = size
    x, weight = layer(rng, M, N, K, element)
    exact_x, exact = float64_of(x), float64_of(weight)
    expected = exact_x @ exact.T
    if kind == "float32":
        out, allowed = run(multiply_floats, (M, N), np.float32, x, weight, tile=tile), sum_error(exact_x, exact)
    else:
        bias = element.array_of(rng.uniform(-2, 2, N)) if kind == "bias" else None
        expected = expected if bias is None else expected + float64_of(bias)

        bias = None if bias is None else cuda.to_device(bias)

        def launch(x, weight, out, bias=bias):
            multiply_specialised(x, weight, bias, out, weights=True, tile=tile)

        out = float64_of(run(launch, (M, N), element.dtype, x, weight))
        allowed = sum_error(exact_x, exact) + element.rounding_error(expected) / 2 + 1e-6
    assert (np.abs(out - expected) <= allowed).all()


@needs_wgmma
@pytest.mark.sampled(0, sweep=2)
@SHORT
@pytest.mark.parametrize("size", [(3, 8, 72), (130, 136, 200), (66, 264, 328)])
@pytest.mark.parametrize("tile", SWIGLU_TILES, ids=str)
def test_swiglu_by_wgmma(tile, size, element):
    x, gate_up = layer_of_two(np.random.default_rng(10), *size, element)
    expected = linear_swiglu_reference(x, gate_up)
    out = run(multiply_swiglu, expected.shape, element.dtype, x, gate_up, tile=tile)
    allowed = swiglu_tolerance(float64_of(x), float64_of(gate_up), element)
    assert (np.abs(float64_of(out) - expected) <= allowed).all()


@needs_wgmma
@pytest.mark.sweep  # four tiles are compiled for the interpreter, and a streamed kernel
def test_from_the_first_wgmma_on_an_output_has_the_same_bits_for_any_number_of_rows():
    x, weight = layer(np.random.default_rng(11), 130, 264, 200)
    whole = run(multiply_floats, (130, 264), np.float32, x, weight, tile=TILES[0])
    for tile in TILES[1:]:
        few = run(multiply_floats, (33, 264), np.float32, x[:33], weight, tile=tile)
        np.testing.assert_array_equal(few, whole[:33])


# --- Weights as the left factor ---------------------------------------------------------------------------------------


@needs_wgmma
@pytest.mark.sampled(0, sweep=6)
@SHORT
@pytest.mark.parametrize("alone", [False, True], ids=["K shared", "K alone"])
@pytest.mark.parametrize("kind", ["plain", "float32", "swiglu"])
@pytest.mark.parametrize(("tile", "size"), [(0, (3, 16, 72)), (0, (64, 136, 520)), (0, (40, 16, 488)),
                                            (1, (66, 264, 200)), (0, (130, 136, 200)), (2, (130, 72, 328))], ids=str)
def test_products_with_the_weights_on_the_left(monkeypatch, tile, size, kind, alone, element):
    if alone or tile > 0:
        alone = True
        monkeypatch.setattr(swap_ab, "HALF_SMS", 1)
    M, N, K = size
    rng = np.random.default_rng(12)
    tile = swap_ab.TILES[tile]
    assert (swap_ab.parts_of(N, K, -(-M // tile.cols))[0] > 1) == (not alone)
    if kind == "swiglu":
        x, weight = layer_of_two(rng, M, N // 2 + 4, K, element)
        expected = linear_swiglu_reference(x, weight)[:, : N // 2 + 4]
        allowed = swiglu_tolerance(float64_of(x), float64_of(weight), element)[:, : N // 2 + 4]
    else:
        x, weight = layer(rng, M, N, K, element)
        expected = float64_of(x) @ float64_of(weight).T
        allowed = sum_error(float64_of(x), float64_of(weight))
        if kind == "plain":
            allowed = allowed + element.rounding_error(expected) / 2 + 1e-6
    dtype = np.float32 if kind == "float32" else element.dtype
    out = run(multiply_swap_ab, expected.shape, dtype, x, weight, swiglu=kind == "swiglu", tile=tile,
              scratch=swap_ab.scratch_for(weight.shape))
    out = out if kind == "float32" else float64_of(out)
    assert (np.abs(out - expected) <= allowed).all()


@needs_wgmma
@pytest.mark.sweep
def test_weights_on_the_left_give_the_same_bits_for_any_number_of_rows():
    x, weight = layer(np.random.default_rng(13), 64, 264, 328)
    whole = run(multiply_swap_ab, (64, 264), np.float32, x, weight)
    for count in (3, 33):
        few = run(multiply_swap_ab, (count, 264), np.float32, x[:count], weight)
        np.testing.assert_array_equal(few, whole[:count])


def test_how_blocks_share_the_k_of_a_tile():
    parts_of = swap_ab.parts_of
    assert parts_of(16384, 2048) == (1, 2048) and parts_of(128256, 2048)[0] == 1
    assert parts_of(2048, 8192) == (8, 1024) and parts_of(2048, 2048) == (8, 256) and parts_of(3072, 2048) == (5, 448)
    assert parts_of(16, 8) == (1, 64)
    assert parts_of(2048, 8192, 2) == (4, 2048) and parts_of(2048, 2048, 4) == (2, 1024)  # with tiles side by side
    assert [swap_ab.loaded_splits(splits) for splits in range(1, swap_ab.MAX_SPLITS + 1)] == [1, 2, 5, 5, 5, 8, 8, 8]
    scratch = swap_ab.scratch_for((2048, 8192), (3072, 2048), (16384, 2048))
    assert scratch.partial.size == 16 * 8 * 128 * 64 and scratch.arrived.size == 4 * 128


def test_a_tile_is_as_wide_as_there_are_tokens_unless_k_is_shared():
    def cols(*sizes):
        return swap_ab.tile_for(*sizes).cols

    assert cols(1, 2048, 2048) == cols(64, 16384, 2048) == 64 and cols(65, 16384, 2048) == 128
    assert cols(129, 16384, 2048) == cols(256, 128256, 2048) == 256
    assert cols(65, 2048, 8192) == cols(256, 2048, 8192) == cols(256, 3072, 2048) == 64


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize(("tile", "options"), [
    (tile, options) for tile in swap_ab.TILES
    for options in (*({"most_splits": splits} for splits in swap_ab.BATCHES), {"most_splits": 1, "swiglu": True},
                    {"most_splits": 1, "floats": True})
    if options["most_splits"] == 1 or tile.cols <= swap_ab.MOST_SHARED], ids=str)
def test_accumulators_of_columns_of_tokens_stay_in_registers(tile, options):
    out = "float32 1" if "floats" in options else "uint16 1"
    taken = resources_of(ptx_of(swap_ab.make_swap_ab(tile, **options), "uint64 1", "uint64 1", out, "float32 1",
                                "uint32 1", *["uint32"] * 6, cc=HOPPER))
    assert taken["registers"] <= 168
    assert taken["shared_bytes"] + 2 * tile.stages * tile.stage_elements <= 232_448, "what a block can have"


@needs_wgmma
def test_refusals_of_wgmma_name_what_is_allowed():
    def ones(*shape, dtype=np.uint16):
        return cuda.to_device(np.ones(shape, dtype))

    with pytest.raises(ValueError, match="N is 24; it must be a multiple of 16"):
        multiply_swiglu(ones(4, 8), ones(24, 8), ones(4, 12))
    with pytest.raises(TypeError, match="out has dtype uint16; only float32"):
        multiply_floats(ones(4, 8), ones(16, 8), ones(4, 16))
    with pytest.raises(TypeError, match="b has dtype float16; only uint16"):
        multiply_specialised(ones(4, 8), ones(16, 8, dtype=np.float16), None, ones(4, 16), weights=True)
    with pytest.raises(TypeError, match="bias has dtype float32; only uint16"):
        multiply_specialised(ones(4, 8), ones(16, 8), ones(16, dtype=np.float32), ones(4, 16), weights=True)


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize(("kind", "tile"), [
    *((kind, tile) for kind in ("plain", "floats") for tile in TILES), *(("swiglu", tile) for tile in SWIGLU_TILES)],
    ids=str)
@SHORT
def test_accumulators_stay_in_registers(kind, tile, element):
    options = {} if kind == "plain" else {kind: True}
    kernel = make_wgmma_specialised(tile, weights=True, bias=False, activation=unchanged, element=element, **options)
    text = ptx_of(kernel, *["uint64 1"] * 3, "float32 1" if kind == "floats" else f"{element.dtype} 1", "uint64 1",
                  *["uint32"] * 4, cc=HOPPER)
    name = {BFLOAT16: "bf16", FLOAT16: "f16"}[element]
    assert text.count(f"wgmma.mma_async.sync.aligned.m64n{tile.cols}k16.f32.{name}.{name}") in (4, 8)
    spilled = kind == "swiglu" and element is FLOAT16 and tile.cols == 256
    taken = resources_of(text, spills.allowed(kernel.__name__, (9, 0)) if spilled else 0)
    assert taken["registers"] <= 168
    assert taken["shared_bytes"] + tile.shared_bytes(kind == "swiglu") <= 232_448, "what a block can have"
