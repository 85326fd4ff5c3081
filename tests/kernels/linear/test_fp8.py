"""Linear layers in FP8 and the quantisation of rows: every code, every size on this device, tiles of wgmma."""

import numpy as np
import pytest

from labkit import cuda, device, observe
from labkit.device import gpus, ptx
from labkit.device.gpus import GPUS
from labkit.kernels.agree import agree
from labkit.kernels.arguments import unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32
from labkit.kernels.linear import fp8
from labkit.kernels.linear.fp8 import (
    STEP,
    linear_fp8,
    linear_fp8_reference,
    linear_fp8_thread,
    linear_fp8_tolerance,
    linear_fp8_wgmma,
    make_linear_fp8_wgmma,
    multiply_wgmma,
    quantize_rows,
    quantize_rows_fp8_block,
    quantize_rows_reference,
    wgmma_tolerance,
)
from labkit.kernels.linear.quantized import e4m3_codes, e4m3_value
from labkit.kernels.matmul.wgmma import TILES
from labkit.kernels.ops.fp8 import LINEAR_FP8, QUANTIZE_ROWS_FP8, codes_tolerance, layer_in_fp8
from tests.compiled import HOPPER, ptx_of, resources_of
from tests.launching import every_rung, ones, run

needs_wgmma = pytest.mark.skipif(bool(linear_fp8_wgmma.missing), reason=linear_fp8_wgmma.missing)
ELEMENT = pytest.mark.parametrize("element", [BFLOAT16, FLOAT16, FLOAT32], ids=lambda element: element.name)
NUMBERS = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)


@pytest.mark.sweep(every=True)
@every_rung(QUANTIZE_ROWS_FP8, LINEAR_FP8)
def test_rung_agrees(op, launcher):
    assert agree(op, [launcher]).passed


# --- Quantise ---------------------------------------------------------------------------------------------------------


def quantized(x) -> tuple:
    """(codes, scales) of x."""
    scales = cuda.to_device(np.full(x.shape[0], np.nan, np.float32))
    codes = run(lambda x, codes: quantize_rows(x, codes, scales), x.shape, np.uint8, x)
    return codes, scales.copy_to_host()


@pytest.mark.sweep(every=True)
@ELEMENT
@pytest.mark.parametrize("columns", [1, 37, 256, 2056])
def test_rows_of_any_element(columns, element):
    x = element.array_of(np.random.default_rng(columns).standard_normal((3, columns)).astype(np.float32))
    x[1] = 0
    codes, scales = quantized(x)
    expected, expected_scales = quantize_rows_reference(x)
    np.testing.assert_allclose(scales, expected_scales, rtol=1e-6)
    assert (np.abs(codes.astype(int) - expected) <= codes_tolerance(float64_of(x))).all()
    assert (codes[1] == 0).all() and (codes[::2].max(axis=1) & 0x7F).max() == 0x7E


@pytest.mark.sampled(1, sweep=99, quick="by a thread")
@pytest.mark.parametrize("columns", [257, 264], ids=["by a thread", "by a block"])
def test_every_code_and_the_middles_between_them(columns):
    """With a largest of 448 the scale is 1: numbers are kept, and their middles go to the even code."""
    values = e4m3_value(NUMBERS)
    row = np.zeros(columns, np.float32)
    row[: len(values)] = values
    positive = np.sort(values[values >= 0])[1:]
    middles = np.full(columns, 448, np.float32)
    middles[: len(positive) - 1] = (positive[1:] + positive[:-1]) / 2
    codes, scales = quantized(np.stack([row, middles]))
    assert (scales == 1).all()
    np.testing.assert_array_equal(codes[0, : len(values)], NUMBERS)
    assert (codes[1] % 2 == 0).all()
    np.testing.assert_array_equal(codes[1], e4m3_codes(middles))


@pytest.mark.sweep(every=True)
def test_what_is_no_number_becomes_nan():
    x = np.ones((3, 8), np.float32)
    x[0, 3], x[1, 4] = np.nan, -np.inf
    codes, scales = quantized(x)
    assert (codes[0] == [0x7E] * 3 + [0x7F] + [0x7E] * 4).all()
    assert codes[1, 4] & 0x7F == 0x7F and (np.delete(codes[1], 4) == 0).all() and scales[1] == np.inf
    assert (codes[2] == 0x7E).all() and scales[2] == np.float32(1 / 448)


def test_tiny_and_huge_rows():
    x = np.float32([[2.0**-101] * 8, [1e-30] * 8, [3e38] * 8])
    codes, scales = quantized(x)
    np.testing.assert_allclose(e4m3_value(codes) * scales[:, None].astype(np.float64), x, rtol=1e-6)
    assert (codes[0] == e4m3_codes(224.0)).all() and (codes[1:] == 0x7E).all()


def test_refusals_of_rows():
    with pytest.raises(TypeError, match="x has dtype int32; float32, float16, and uint16"):
        quantize_rows(ones(2, 8, dtype=np.int32), ones(2, 8, dtype=np.uint8), ones(2))
    with pytest.raises(TypeError, match="codes has dtype int8; only uint8"):
        quantize_rows(ones(2, 8), ones(2, 8, dtype=np.int8), ones(2))
    with pytest.raises(ValueError, match=r"scales has shape \(8,\); it must be \(2,\)"):
        quantize_rows(ones(2, 8), ones(2, 8, dtype=np.uint8), ones(8))
    with pytest.raises(ValueError, match="C is 12; it must be a multiple of 8"):
        quantize_rows_fp8_block(ones(2, 12), ones(2, 12, dtype=np.uint8))


# --- Multiply ---------------------------------------------------------------------------------------------------------


def strict(*inputs):
    """What float32 allows, which the CPU device adds in."""
    return (wgmma_tolerance if device.on_gpu() else linear_fp8_tolerance)(*inputs)


def check(launch, inputs, **options):
    out = run(launch, (len(inputs[2]), len(inputs[3])), np.uint16, *inputs, **options)
    assert (np.abs(float64_of(out) - linear_fp8_reference(*inputs)) <= strict(*inputs)).all()
    return out


@needs_wgmma
@pytest.mark.sampled(0, sweep=4)
@pytest.mark.parametrize("size", [(1, 8, 16), (66, 264, 272), (129, 72, 656)], ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_of_any_size(tile, size):
    check(multiply_wgmma, layer_in_fp8(np.random.default_rng(1), *size), tile=tile)


@pytest.mark.sweep(every=True)
@needs_wgmma
def test_a_block_computes_one_tile_after_the_other():
    """Four tiles for two blocks on the CPU device, and more steps of K than stages."""
    check(multiply_wgmma, layer_in_fp8(np.random.default_rng(2), 130, 136, 400), tile=TILES[2])


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launch", [linear_fp8_thread, pytest.param(linear_fp8_wgmma, marks=needs_wgmma)])
def test_every_product_of_two_numbers(launch):
    """Each number by each, at a k where all others are zero; and NaN stays in its row."""
    x, weight = np.zeros((256, 16), np.uint8), np.zeros((256, 16), np.uint8)
    x[:, 5] = weight[:, 5] = np.arange(256)
    out = float64_of(run(launch, (256, 256), np.uint16, x, weight, np.ones(256, np.float32), np.ones(256, np.float32)))
    values = e4m3_value(np.arange(256))
    expected = np.outer(values, values)  # of 8 significant bits, as a bfloat16
    np.testing.assert_array_equal(out, expected)
    assert np.isnan(out[[0x7F, 0xFF]]).all()


@pytest.mark.parametrize("launch", [linear_fp8_thread, pytest.param(linear_fp8_wgmma, marks=needs_wgmma)])
def test_each_row_has_its_scale(launch):
    """Powers of two: the output is exact."""
    x, weight = (np.full((rows, 32), 0x38, np.uint8) for rows in (70, 88))  # ones
    x_scales, weight_scales = (np.ldexp(np.float32(1), np.arange(rows) % 23 - 11) for rows in (70, 88))
    out = run(launch, (70, 88), np.uint16, x, weight, x_scales, weight_scales)
    np.testing.assert_array_equal(float64_of(out), 32.0 * np.outer(x_scales, weight_scales))


def test_quantised_and_multiplied_it_is_nearly_the_product():
    """Each factor's error is at most a sixteenth; in the sum they partly cancel."""
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((24, 512)).astype(np.float32), rng.standard_normal((40, 512)).astype(np.float32)
    (x_codes, x_scales), (weight_codes, weight_scales) = quantized(x), quantized(weight)
    out = float64_of(run(linear_fp8, (24, 40), np.uint16, x_codes, weight_codes, x_scales, weight_scales))
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    relative = np.sqrt(np.mean((out - expected) ** 2) / np.mean(expected**2))
    assert 0.01 < relative < 0.06


@needs_wgmma
@pytest.mark.sweep
def test_the_same_bits_for_any_number_of_rows():
    x, weight, x_scales, weight_scales = layer_in_fp8(np.random.default_rng(4), 130, 264, 400)
    whole = check(linear_fp8_wgmma, (x, weight, x_scales, weight_scales))
    for tile in TILES:
        few = run(multiply_wgmma, (33, 264), np.uint16, x[:33], weight, x_scales[:33], weight_scales, tile=tile)
        np.testing.assert_array_equal(few, whole[:33])


def test_sizes_and_views_that_tma_does_not_take():
    """They are computed by threads; the rung that needs TMA says why it refuses."""
    for M, N, K, reason in ((3, 8, 24, "K is 24; it must be a multiple of 16"),
                            (3, 12, 16, "N is 12; it must be a multiple of 8")):
        inputs = layer_in_fp8(np.random.default_rng(5), M, N, K)
        check(linear_fp8, inputs)
        with pytest.raises(ValueError, match=reason):
            run(linear_fp8_wgmma, (M, N), np.uint16, *inputs)
    x, weight, *scales = layer_in_fp8(np.random.default_rng(6), 2, 8, 16)
    shifted = cuda.to_device(np.concatenate([x[0, :1], x.reshape(-1)]))[1:].reshape(x.shape)
    check(lambda _, *rest: linear_fp8(shifted, *rest), (x, weight, *scales))
    with pytest.raises(ValueError, match="must begin at multiples of 16 bytes"):
        run(lambda _, *rest: linear_fp8_wgmma(shifted, *rest), (2, 8), np.uint16, x, weight, *scales)


@pytest.mark.parametrize(("gpu", "K", "expected"), [
    ("h200", 16, "multiply_wgmma"), ("h200", 24, "multiply_by_thread"),
    *((gpu, 16, "multiply_by_thread") for gpu in ("t4", "a100", "l4", "b200", "rtx5090")),
])
def test_which_form_runs_where(monkeypatch, gpu, K, expected):
    called = []
    for name in ("multiply_wgmma", "multiply_by_thread"):
        monkeypatch.setattr(fp8, name, lambda *args, name=name, stream: called.append(name))
    arguments = (ones(3, K, dtype=np.uint8), ones(8, K, dtype=np.uint8), ones(3), ones(8), ones(3, 8, dtype=np.uint16))
    with gpus.plan_for(GPUS[gpu]):
        linear_fp8(*arguments)
        assert called == [expected]
        assert bool(linear_fp8_wgmma.missing) == (gpu != "h200") and not linear_fp8_thread.missing


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"x": ones(3, 16, dtype=np.int8)}, TypeError, "x has dtype int8; only uint8"),
    ({"weight": ones(8, 32, dtype=np.uint8)}, ValueError, r"the columns of x \(16\) must equal the columns of weight"),
    ({"x_scales": ones(8)}, ValueError, r"x_scales has shape \(8,\); it must be \(3,\)"),
    ({"weight_scales": ones(8, dtype=np.float16)}, TypeError, "weight_scales has dtype float16; only float32"),
    ({"out": ones(3, 8)}, TypeError, "out has dtype float32; only uint16"),
    ({"out": ones(3, 16, dtype=np.uint16)}, ValueError, r"out has shape \(3, 16\); it must be \(3, 8\)"),
])
@pytest.mark.parametrize("launch", [linear_fp8, linear_fp8_thread, linear_fp8_wgmma])
def test_refusals_name_the_argument(launch, changes, error, message):
    good = {"x": ones(3, 16, dtype=np.uint8), "weight": ones(8, 16, dtype=np.uint8), "x_scales": ones(3),
            "weight_scales": ones(8), "out": ones(3, 8, dtype=np.uint16)}
    with pytest.raises(error, match=message):
        launch(**good | changes)


@pytest.mark.sweep(every=True)
@pytest.mark.cpu_device
def test_the_tensor_cores_kernel_has_no_race_and_no_conflict():
    tile, x, weight = TILES[3], ones(8, 48, dtype=np.uint8), ones(72, 48, dtype=np.uint8)
    out = cuda.device_array((8, 72), np.uint16)
    kernel = make_linear_fp8_wgmma(tile)
    kernel.allow_dynamic_shared(tile.shared_bytes())
    maps = (ptx.tensor_map_2d(x, tile.rows, STEP), ptx.tensor_map_2d(weight, tile.cols, STEP),
            ptx.tensor_map_2d(out, 64, 64))
    report = observe(kernel[1, 384, 0, tile.shared_bytes()], *maps, ones(8), ones(72), *unsigned(8, 72, 48))
    assert report.ok and report.counts["bank_conflicts"] == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_accumulators_stay_in_registers(tile):
    text = ptx_of(make_linear_fp8_wgmma(tile), *["uint64 1"] * 3, *["float32 1"] * 2, *["uint32"] * 3, cc=HOPPER)
    assert text.count(f"wgmma.mma_async.sync.aligned.m64n{tile.cols}k32.f32.e4m3.e4m3") == 4
    taken = resources_of(text)
    assert taken["registers"] <= 168
    assert taken["shared_bytes"] + tile.shared_bytes() <= GPUS["h200"].shared_per_block
