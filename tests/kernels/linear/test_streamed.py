"""Linear layers that stream their weights: every rung, every tile, what is refused, and what they compile to."""

import re

import numpy as np
import pytest

from labkit import cuda
from labkit.device import gpus
from labkit.kernels.agree import agree, poisoned
from labkit.kernels.dtypes import bfloat16_of, float64_of
from labkit.kernels.elements import BFLOAT16, ELEMENTS, FLOAT16, FLOAT32
from labkit.kernels.linear import streamed
from labkit.kernels.linear.bf16 import arrange_gate_up
from labkit.kernels.linear.streamed import by_tensor_cores, by_thread, by_warp, by_wide_warp, check_linear, make_tensor
from labkit.kernels.ops.linear_bf16 import STREAMED_LINEAR, layer, linear_tolerance, sum_error
from tests.compiled import numba_cudas_code, ptx_of, resources_of


@pytest.mark.sampled(2)
@pytest.mark.parametrize("launcher", STREAMED_LINEAR.rungs, ids=lambda rung: rung.__name__)
def test_rung_agrees(launcher):
    assert agree(STREAMED_LINEAR, [launcher], seed=1).passed


def run(launch, x, weight, bias=None, out_dtype=np.uint16, **options):
    """The output, which was poisoned before."""
    out = poisoned((x.shape[0], weight.shape[0]), out_dtype)
    arrays = [None if array is None else cuda.to_device(array) for array in (x, weight, bias)]
    launch(*arrays, out.array, check_linear(*arrays, out.array), **options)
    found, outside = out.read()
    assert not outside.size, "wrote outside the output"
    return found


WAYS = {
    "thread": (by_thread, {"wide": False}), "thread, 128 bits": (by_thread, {"wide": True}), "warp": (by_warp, {}),
    "warp, 128 bits": (by_wide_warp, {"outputs": 1}), "several": (by_wide_warp, {"outputs": 4}),
    "tensor cores": (by_tensor_cores, {}),
}


@pytest.mark.sampled(1, by="dtype")
@pytest.mark.parametrize(("way", "dtype"), [(way, dtype) for way in WAYS for dtype in ("bfloat16", "float16", "float32")
                                            if (way, dtype) != ("tensor cores", "float32")])
def test_bias_is_added_before_the_one_rounding(way, dtype):
    check_bias(way, dtype)


@pytest.mark.sweep(every=True)
def test_one_warp_an_output_of_float32():
    """A GPU's for float32 logits."""
    check_bias("warp", "float32")


def check_bias(way, dtype):
    launch, options = WAYS[way]
    rng = np.random.default_rng(2)
    element = FLOAT16 if dtype == "float16" else BFLOAT16
    x, weight = layer(rng, 3, 13, 40, element)
    bias = element.array_of(rng.uniform(-2, 2, 13))
    exact = float64_of(x) @ float64_of(weight).T
    expected = exact + float64_of(bias)
    sums = sum_error(float64_of(x), float64_of(weight)) + 1e-6
    if dtype == "float32":
        x, weight, bias = (float64_of(array).astype(np.float32) for array in (x, weight, bias))
    out = float64_of(run(launch, x, weight, bias, x.dtype, **options))
    once = ELEMENTS[x.dtype].rounding_error(expected) / 2  # half of the gap between neighbours
    assert (np.abs(out - expected) <= once + sums).all()


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("way", ["thread, 128 bits", "warp, 128 bits",
                                 pytest.param("tensor cores", marks=pytest.mark.sweep)])
def test_zeros_infinities_and_huge_values_stay_in_their_row(way):
    launch, options = WAYS[way]
    x, weight = layer(np.random.default_rng(3), 4, 5, 264)
    infinity, huge = bfloat16_of([np.inf, 3e38])
    x[0], x[1, 7], x[2] = 0, infinity, huge
    weight[3] = 0
    out = float64_of(run(launch, x, weight, **options))
    assert (out[0] == 0).all()
    columns = np.array([0, 1, 2, 4])
    assert np.isnan(out[1, 3]), "infinity times zero"
    np.testing.assert_array_equal(out[1, columns], np.sign(float64_of(weight)[columns, 7]) * np.inf)
    assert not np.isfinite(out[2, columns]).all() and out[2, 3] == 0
    np.testing.assert_array_equal(out[3], float64_of(run(launch, x[3:], weight, **options))[0])


@pytest.mark.sweep  # compiles four kernels
def test_an_output_has_the_same_bits_for_any_number_of_tokens_and_any_tiles(monkeypatch):
    x, weight = layer(np.random.default_rng(4), 33, 40, 2312)
    whole = run(by_tensor_cores, x, weight)
    for tokens in (1, 8, 9, 17):
        np.testing.assert_array_equal(run(by_tensor_cores, x[:tokens], weight), whole[:tokens])
    monkeypatch.setattr(streamed, "MANY_ROWS", 1)  # 32 rows of weights a block for 16 tokens
    np.testing.assert_array_equal(run(by_tensor_cores, x[:9], weight), whole[:9])


@pytest.mark.sampled(0, sweep=3)
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("element", [BFLOAT16, FLOAT16], ids=lambda element: element.name)
@pytest.mark.parametrize("kind", ["rounded", "float32", "swiglu"])
def test_every_tile_at_sizes_that_are_no_multiple_of_it(tokens, rows, kind, element, monkeypatch):
    monkeypatch.setattr(streamed, "tiles_for", lambda *_: (tokens, rows))
    T, N, K = 8 * tokens + 3, 16 * rows + 8, 2120  # the first warp has a second turn, of which 72 steps are there
    x, weight = layer(np.random.default_rng(5), T, N, K, element)
    exact_x, exact = float64_of(x), float64_of(weight)
    if kind == "swiglu":
        gate, up = weight, element.array_of(float64_of(weight)[::-1])
        out = poisoned((T, N), element.dtype)
        arrays = [cuda.to_device(array) for array in (x, arrange_gate_up(gate, up))]
        elements = check_linear(*arrays, None, out.array, swiglu=True)
        by_tensor_cores(*arrays, None, out.array, elements, swiglu=True)
        found, outside = out.read()
        assert not outside.size
        product = exact_x @ exact.T
        silu = product / (1 + np.exp(-product))
        expected, scale = silu * product[:, ::-1], np.abs(product[:, ::-1]) + np.abs(silu)
        allowed = element.eps * (np.abs(expected) * 2 + scale * 0.02 + np.abs(product * product[:, ::-1]))
        assert (np.abs(float64_of(found) - expected) <= allowed + 1e-5).all()
        return
    floats = kind == "float32"
    out = run(by_tensor_cores, x, weight, out_dtype=np.float32 if floats else element.dtype)
    allowed = sum_error(exact_x, exact) if floats else linear_tolerance(exact_x, exact, element)
    assert (np.abs(float64_of(out) - exact_x @ exact.T) <= allowed).all()


@pytest.mark.parametrize(("tokens", "rows", "tiles"), [
    (1, 2048, (1, 1)), (8, 128256, (1, 1)), (9, 2048, (2, 1)), (16, 16384, (2, 2)), (17, 2048, (4, 1)),
    (17, 3072, (4, 2)),     (256, 16384, (4, 2))])
def test_blocks_read_x_no_more_often_than_they_must(tokens, rows, tiles):
    with gpus.plan_for(gpus.GPUS["h200"]):
        assert streamed.tiles_for(tokens, rows) == tiles


def test_refusals_name_the_argument():
    def ones(*shape, dtype=np.uint16):
        return cuda.to_device(np.ones(shape, dtype))

    with pytest.raises(TypeError, match="x has dtype float64; float32, float16, and uint16, which holds bfloat16, are"):
        check_linear(ones(1, 8, dtype=np.float64), ones(3, 8), None, ones(1, 3))
    with pytest.raises(TypeError, match="weight has dtype uint16; only float16"):
        check_linear(ones(1, 8, dtype=np.float16), ones(3, 8), None, ones(1, 3))
    with pytest.raises(TypeError, match="weight has dtype float32; only uint16"):
        check_linear(ones(1, 8), ones(3, 8, dtype=np.float32), None, ones(1, 3))
    with pytest.raises(ValueError, match=r"x has shape \(1, 8\) and weight \(3, 16\)"):
        check_linear(ones(1, 8), ones(3, 16), None, ones(1, 3))
    with pytest.raises(ValueError, match=r"out has shape \(1, 4\); it must be \(1, 3\)"):
        check_linear(ones(1, 8), ones(3, 8), None, ones(1, 4))
    with pytest.raises(TypeError, match="out has dtype uint16; float32"):
        check_linear(ones(1, 8, dtype=np.float32), ones(3, 8, dtype=np.float32), None, ones(1, 3))
    with pytest.raises(ValueError, match=r"bias has shape \(4,\); it must be \(3,\)"):
        check_linear(ones(1, 8), ones(3, 8), ones(4), ones(1, 3))
    with pytest.raises(ValueError, match=r"16 rows for each 8 columns of out"):
        check_linear(ones(1, 8), ones(24, 8), None, ones(1, 12), swiglu=True)
    for launcher in (streamed.streamed_wide, streamed.streamed_several, streamed.streamed_tensor_cores):
        with pytest.raises(ValueError, match="x has 12 columns; a row must be a multiple of 16 bytes"):
            launcher(ones(1, 12), ones(3, 12), ones(1, 3))
        with pytest.raises(ValueError, match="must begin at multiples of 16 bytes"):
            launcher(ones(9)[1:].reshape(1, 8), ones(3, 8), ones(1, 3))


# --- What they compile to ---------------------------------------------------------------------------------------------


@numba_cudas_code
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("tokens", "rows", "most"), [(1, 1, 64), (2, 1, 128), (2, 2, 128), (4, 2, 128)])
def test_eight_loads_of_weights_are_on_their_way_before_the_first_product(tokens, rows, most):
    """What the docstring reckons with: the loads stand one after the other, without a branch, nothing is spilled."""
    text = ptx_of(make_tensor(tokens, rows), *["uint16 2"] * 4)
    loop = text[: text.index("mma.sync")]
    batch = loop[loop.rindex("\n$L") :]
    assert len(re.findall(r"ld\.global\.nc\.v4", batch)) == 8 + tokens * streamed.STEPS // rows
    assert not re.search(r"\bbra\b", batch)
    assert resources_of(text)["registers"] <= most


def test_what_a_warp_has_on_its_way():
    for element, name in ((BFLOAT16, "uint16"), (FLOAT32, "float32")):
        text = ptx_of(streamed.make_wide(element, element, streamed.SEVERAL), *[f"{name} 2"] * 4)
        loads = [found.start() for found in re.finditer(r"ld\.global\.nc\.v4", text)]
        assert len(loads) % (streamed.SEVERAL + 1) == 0 and not re.search(r"\.f64\b", text)
