"""Weights in 4 and 8 bits: the numbers that codes stand for, the packed layout, and every kernel that reads it."""

import numpy as np
import pytest

from labkit import cuda
from labkit.device import gpus
from labkit.kernels.agree import agree, poisoned, same_bits
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32
from labkit.kernels.linear import quantized_linear
from labkit.kernels.linear.quantized import E4M3, INT4, INT8, Quantized, e4m3_value, unpack
from labkit.kernels.linear.quantized_linear import (
    FEW,
    SOME,
    by_dequantized,
    by_tensor_cores,
    by_thread,
    by_warp,
    check_quantized,
    dequantize,
    tile_for,
)
from labkit.kernels.ops.linear_bf16 import sum_error
from labkit.kernels.ops.quantized_linear import LINEAR_FP8_WEIGHTS, LINEAR_INT4, LINEAR_INT8

RUNGS = [(op, rung) for op in (LINEAR_INT4, LINEAR_INT8, LINEAR_FP8_WEIGHTS) for rung in op.rungs]


@pytest.mark.sampled(1, sweep=4, quick="-linear_int8_picked")
@pytest.mark.parametrize(("op", "rung"), RUNGS, ids=lambda one: getattr(one, "__name__", ""))
def test_rung_agrees(op, rung):
    assert agree(op, [rung]).passed


def weights(format=INT4, rows=37, columns=192, group=64, zeros=True, scale_element=FLOAT16, seed=0) -> Quantized:
    """Random ones, scaled so that sums have the magnitude of x."""
    rng = np.random.default_rng(seed)
    if format != INT4:
        codes = rng.integers(0, 0x7F, (rows, columns), np.uint8) | rng.integers(0, 2, (rows, columns), np.uint8) << 7
        scales = rng.uniform(0.5, 2, (rows, 1)).astype(np.float32) / np.float32(200 * np.sqrt(columns))
        return Quantized(format, 0, codes if format == E4M3 else codes.view(np.int8), scales)
    shape = rows, columns // group
    scales = scale_element.array_of(rng.uniform(0.5, 2, shape).astype(np.float32) / (8 * np.sqrt(columns)))
    return Quantized(INT4, group, rng.integers(0, 16, (rows, columns), np.uint8), scales,
                     rng.integers(0, 16, shape, np.uint8) if zeros else None)


def numbers(tokens, columns, element=BFLOAT16):
    return element.array_of(np.random.default_rng(1).uniform(-1.5, 1.5, (tokens, columns)).astype(np.float32))


def run(launch, x, quantized, bias=None, out_element=FLOAT32, **options):
    """The output, which was poisoned before."""
    out = poisoned((x.shape[0], quantized.rows), out_element.dtype)
    x, bias = (None if array is None else cuda.to_device(array) for array in (x, bias))
    packed = quantized.pack().to_device()
    launch(x, packed, bias, out.array, check_quantized(x, packed, bias, out.array), **options)
    found, outside = out.read()
    assert not outside.size, "wrote outside the output"
    return found


def check(launch, x, quantized, **options):
    """Compare sums that are not rounded."""
    found, weight = run(launch, x, quantized, **options), quantized.dequantize()
    x = float64_of(x)
    assert (np.abs(found - x @ weight.T) <= sum_error(x, weight)).all()


# --- On the host ------------------------------------------------------------------------------------------------------


def test_all_256_numbers_of_e4m3():
    for code in range(256):
        sign, exponent, fraction = -1 if code >> 7 else 1, code >> 3 & 15, code & 7
        if code & 0x7F == 0x7F:
            assert np.isnan(e4m3_value(code))
            continue
        expected = 2.0 ** (exponent - 7) * (1 + fraction / 8) if exponent else 2.0**-6 * fraction / 8
        assert e4m3_value(code) == sign * expected
    assert e4m3_value(0x7E) == 448 and e4m3_value(0x38) == 1 and np.signbit(e4m3_value(0x80))


@pytest.mark.parametrize("quantized", [
    weights(), weights(columns=96, group=32, zeros=False, scale_element=BFLOAT16),
    weights(rows=16, columns=128, group=128), weights(INT8, columns=40), weights(E4M3, rows=5, columns=8),
], ids=lambda one: f"{one.format}, {one.group}")
def test_unpack_returns_what_pack_was_given(quantized):
    again = unpack(quantized.pack())
    assert (again.format, again.group) == (quantized.format, quantized.group)
    np.testing.assert_array_equal(again.codes, quantized.codes)
    np.testing.assert_array_equal(again.scales, quantized.scales)
    assert again.scales.dtype == quantized.scales.dtype
    if quantized.zeros is not None:
        np.testing.assert_array_equal(again.zeros, quantized.zeros)


def test_the_packed_layout_is_the_one_that_the_docstring_describes():
    quantized = weights(rows=32, columns=128)
    words = quantized.pack().words
    for row, column in ((0, 0), (7, 13), (8, 38), (21, 127), (31, 64)):
        within = column % 64
        product, pair, second = within % 8 // 4, within % 4 // 2, within % 2
        register = 2 * pair + row % 16 // 8
        word = words[row // 16, column // 64, row % 8 * 4 + within % 32 // 8, within // 32 * 2 + product]
        assert int(word) >> 4 * (register + 4 * second) & 15 == quantized.codes[row, column]
    quantized = weights(INT8, rows=32, columns=64)
    words = quantized.pack().words
    for row, column in ((0, 0), (7, 13), (8, 38), (21, 63), (31, 32)):
        product, pair, second = column % 8 // 4, column % 4 // 2, column % 2
        word = words[row // 16, column // 32, row % 8 * 4 + column % 32 // 8, 2 * product + pair]
        code = int(word) >> 8 * (2 * second + row % 16 // 8) & 255
        assert code == int(quantized.codes[row, column]) & 255


def test_dequantize_subtracts_the_zero_and_scales():
    codes = np.array([[0, 15, 8, 3] * 8], np.uint8)
    scale = np.array([[0.5]], np.float16)
    np.testing.assert_array_equal(Quantized(INT4, 32, codes, scale).dequantize()[0, :4], [-4, 3.5, 0, -2.5])
    zeros = np.array([[3]], np.uint8)
    np.testing.assert_array_equal(Quantized(INT4, 32, codes, scale, zeros).dequantize()[0, :4], [-1.5, 6, 2.5, 0])


@pytest.mark.parametrize(("changes", "error", "message"), [
    ({"format": "int3"}, ValueError, "format is 'int3'; 'int4', 'int8', 'e4m3' are allowed"),
    ({"group": 48}, ValueError, "group is 48; 32, 64 and 128 allowed for int4"),
    ({"group": 128}, ValueError, "codes has 192 columns; it must be a multiple of group, 128"),
    ({"codes": np.zeros((4, 192), np.int8)}, TypeError, "codes must be a NumPy array of uint8, not int8"),
    ({"codes": np.full((37, 192), 16, np.uint8)}, ValueError, "codes has 16; codes of int4 are 0 to 15"),
    ({"scales": np.zeros((37, 3), np.float32)}, TypeError, "scales must be a NumPy array of float16 or uint16"),
    ({"scales": np.zeros((37, 2), np.float16)}, ValueError, r"scales has shape \(37, 2\); it must be \(37, 3\)"),
    ({"zeros": np.full((37, 3), 16, np.uint8)}, ValueError, "zeros has 16; zeros are 0 to 15"),
    ({"format": E4M3, "group": 0, "codes": np.full((37, 192), 0xFF, np.uint8), "scales": np.ones((37, 1), np.float32),
      "zeros": None}, ValueError, "codes has NaN"),
])
def test_what_weights_may_be(changes, error, message):
    good = weights()
    fields = {name: getattr(good, name) for name in ("format", "group", "codes", "scales", "zeros")}
    with pytest.raises(error, match=message):
        Quantized(**fields | changes)


# --- Kernels ----------------------------------------------------------------------------------------------------------

LAUNCHES = [by_thread, by_warp, by_tensor_cores]


@pytest.mark.sampled(1, sweep=11, quick="('int4', 32, True)-by_thread-float16")
@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16], ids=lambda element: element.name)
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("kind", [(INT4, 32, True), (INT4, 64, False), (INT4, 128, True), (INT8, 0, False),
                                  (E4M3, 0, False)], ids=str)
def test_every_format_in_every_form(launch, kind, element):
    format, group, zeros = kind
    scale_element = FLOAT16 if element is BFLOAT16 else BFLOAT16
    check(launch, numbers(3, 640, element), weights(format, 37, 640, group, zeros, scale_element))


@pytest.mark.sampled(0, sweep=7)
@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16], ids=lambda element: element.name)
@pytest.mark.parametrize("format", [INT4, INT8, E4M3])
def test_every_code_is_exact_on_tensor_cores(format, element):
    codes = np.arange(256, dtype=np.uint8)
    if format == E4M3:
        codes[[0x7F, 0xFF]] = 0
    codes = (codes % 16 if format == INT4 else codes).reshape(4, 64)
    group, scales = (64, np.ones((4, 1), np.float16)) if format == INT4 else (0, np.ones((4, 1), np.float32))
    quantized = Quantized(format, group, codes.view(np.int8) if format == INT8 else codes, scales)
    out = run(by_tensor_cores, element.array_of(np.eye(64, dtype=np.float32)), quantized)
    np.testing.assert_array_equal(out, quantized.dequantize().T)


@pytest.mark.sweep(every=True)
def test_bias_is_added_before_the_one_rounding():
    quantized, x = weights(), numbers(3, 192)
    bias = numbers(1, 37)[0]
    exact = float64_of(x) @ quantized.dequantize().T + float64_of(bias)
    sums = sum_error(float64_of(x), quantized.dequantize()) + 1e-6
    for launch in LAUNCHES:
        found = float64_of(run(launch, x, quantized, bias, BFLOAT16))
        assert (np.abs(found - exact) <= BFLOAT16.rounding_error(exact) / 2 + sums).all(), launch.__name__


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("rows", "columns", "cases"), [
    pytest.param(20, 2112, slice(1), id="two tiles"),
    pytest.param(20, 2112, slice(None), marks=pytest.mark.sweep, id="every tile"),
    pytest.param(40, 8768, slice(None), marks=pytest.mark.sweep, id="more slices"),
])
def test_an_output_has_the_same_bits_for_any_number_of_rows_and_any_tile(rows, columns, cases):
    """Of 2,112 columns the fifth slice is short; 8,768 are more than 16 slices. Compiling a tile takes seconds."""
    quantized, x = weights(rows=rows, columns=columns, zeros=False), numbers(17, columns)
    parts = -(-columns // 2048)
    whole = run(by_tensor_cores, x, quantized, tile=SOME[4][1], parts=parts)
    others = (FEW[0], 1, 1), (FEW[2], 8, 1), (SOME[2][0], 9, 1), (SOME[2][2], 17, parts)
    for tile, tokens, split in others[cases]:
        found = run(by_tensor_cores, x[:tokens], quantized, tile=tile, parts=split)
        assert same_bits(found, whole[:tokens]), (tile, split)
    again = run(by_tensor_cores, x, quantized, tile=SOME[4][1], parts=parts)
    assert same_bits(again, whole), "the counts of blocks that have arrived begin at 0 again"


def test_the_tile_follows_the_shape():
    llama = weights(rows=16, columns=128, group=128, zeros=False).pack()._replace
    few = [tile_for(1, llama(rows=2048, columns=K)) for K in (704, 2048, 4096, 8192, 14336)]
    assert [(tile.slices, parts) for tile, parts in few] == [(4, 1), (4, 1), (8, 1), (16, 1), (16, 1)]
    assert tile_for(32, llama(rows=16384, columns=2048)) == (SOME[4][0], 1)
    assert tile_for(32, llama(rows=2048, columns=8192)) == (SOME[4][1], 4)
    assert tile_for(16, llama(rows=2048, columns=2048)) == (SOME[2][2], 1)
    assert tile_for(32, llama(rows=16384, columns=2048, zeros=0)) == (SOME[4][1], 1)


@pytest.mark.sampled(1, sweep=99, quick="e4m3")
@pytest.mark.parametrize("format", [INT4, INT8, E4M3])
def test_dequantize_rounds_once(format):
    quantized = weights(format, 21, 192)
    for element in (BFLOAT16, FLOAT16):
        out = poisoned((21, 192), element.dtype)
        dequantize(quantized.pack().to_device(), out.array)
        found, outside = out.read()
        assert not outside.size
        error = np.abs(float64_of(found) - quantized.dequantize())
        assert (error <= element.rounding_error(quantized.dequantize()) * 0.501).all()


def test_many_rows_multiply_dequantised_weights():
    quantized, x = weights(), numbers(5, 192)
    found, weight = run(by_dequantized, x, quantized), quantized.dequantize()
    allowed = sum_error(float64_of(x), weight) + BFLOAT16.eps / 2 * (np.abs(float64_of(x)) @ np.abs(weight).T)
    assert (np.abs(found - float64_of(x) @ weight.T) <= allowed).all()


@pytest.mark.parametrize(("capability", "tokens", "expected"), [
    ("7.5", 1, "by_warp"), ("8.0", 256, "by_tensor_cores"), ("9.0", 1, "by_tensor_cores"),
    ("9.0", 257, "by_dequantized"),
])
def test_which_form_runs_where(monkeypatch, capability, tokens, expected):
    called = []
    for name in ("by_thread", "by_warp", "by_tensor_cores", "by_dequantized"):
        monkeypatch.setattr(quantized_linear, name, lambda *args, name=name: called.append(name))
    packed = weights().pack().to_device()
    x, out = cuda.device_array((tokens, 192), np.uint16), cuda.device_array((tokens, 37), np.uint16)
    with gpus.plan_for(gpus.named(capability)):
        quantized_linear.quantized_linear(x, packed, out)
    assert called == [expected]


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"x": ((3, 184), np.uint16)}, ValueError, "x has 184 columns and weights 192; they must have as many"),
    ({"x": ((3, 192), np.float32)}, TypeError, "x has dtype float32; float16, and uint16"),
    ({"out": ((3, 36), np.uint16)}, ValueError, r"out has shape \(3, 36\); it must be \(3, 37\)"),
    ({"out": ((3, 37), np.float16)}, TypeError, "out has dtype float16; uint16 as x, or float32, is allowed"),
    ({"bias": ((36,), np.uint16)}, ValueError, r"bias has shape \(36,\); it must be \(37,\)"),
])
def test_what_is_refused(change, error, message):
    shapes = {"x": ((3, 192), np.uint16), "out": ((3, 37), np.uint16)} | change
    arrays = {name: cuda.device_array(*shape) for name, shape in shapes.items()}
    with pytest.raises(error, match=message):
        quantized_linear.quantized_linear(arrays["x"], weights().pack().to_device(), arrays["out"], arrays.get("bias"))


def test_weights_on_the_host_are_refused():
    x, out = cuda.device_array((3, 192), np.uint16), cuda.device_array((3, 37), np.uint16)
    with pytest.raises(TypeError, match="words is a NumPy array on the host"):
        quantized_linear.quantized_linear(x, weights().pack(), out)
    with pytest.raises(TypeError, match="weights is a Quantized; pass what Quantized.pack"):
        quantized_linear.quantized_linear(x, weights(), out)
