"""The gradients of a linear layer: every rung, references against finite differences, gradients that are added to,
splits of the tokens, the same bits in every run, and what is refused."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, poison, same_bits
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32
from labkit.kernels.linear import backward
from labkit.kernels.linear.backward import (
    linear_backward_bias,
    linear_backward_input,
    linear_backward_weight,
    linear_backward_workspace,
)
from labkit.kernels.matmul import wgmma
from labkit.kernels.ops.linear_backward import REFERENCES, inputs_of, tolerance
from labkit.measure.ops import op
from tests.launching import ones

OPS = [f"linear_backward_{of}{suffix}" for of in ("input", "weight", "bias") for suffix in ("", "_bf16")]


@pytest.mark.sampled(1, sweep=99, quick="linear_backward_bias")
@pytest.mark.parametrize("name", OPS)
def test_every_rung_agrees(name):
    assert agree(op(name), seed=1).passed


def test_references_are_the_derivatives():
    """Of sum(grad_out * y), by central differences: y is linear in each, so they are exact but for rounding."""
    rng = np.random.default_rng(0)
    x, weight, bias, grad_out = (rng.standard_normal(shape) for shape in ((5, 3), (4, 3), (4,), (5, 4)))

    def loss(x, weight, bias):
        return (grad_out * (x @ weight.T + bias)).sum()

    gradients = (REFERENCES["input"](grad_out, weight), REFERENCES["weight"](grad_out, x), REFERENCES["bias"](grad_out))
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (0.5, -0.5):
                moved = [array.copy() for array in (x, weight, bias)]
                moved[which][index] += step
                ends.append(loss(*moved))
            assert gradient[index] == pytest.approx(ends[0] - ends[1], abs=1e-12)


def gradient(launch, of, T, N, K, element, *, out_element=None, before=None, **options):
    """(result, expected, allowed) of a gradient; before: what is in the array, which is then added to."""
    out_element = out_element or element
    arrays = inputs_of(np.random.default_rng(T), T, N, K, of, element)
    shape = (N, K) if of == "weight" else (N,)
    stored = poison(shape, out_element.dtype) if before is None else out_element.array_of(np.full(shape, before))
    out = cuda.to_device(stored)
    launch(*map(cuda.to_device, arrays), out, accumulate=before is not None, **options)
    exact = [float64_of(array) for array in arrays]
    expected = REFERENCES[of](*exact) + (before or 0.0)
    allowed = tolerance(*exact, of=of, element=out_element) + out_element.rounding_error(expected) + 1e-6
    return out.copy_to_host(), expected, allowed


FORMS = [("naive", FLOAT32, 40), ("tiled", FLOAT32, 300), ("naive", BFLOAT16, 40), ("pipelined", BFLOAT16, 300),
         ("pipelined", BFLOAT16, 20), ("pipelined", FLOAT16, 40), ("wgmma", BFLOAT16, 40)]


@pytest.mark.sampled(1, sweep=99, quick="naive-element2-40-2.0")
@pytest.mark.parametrize("before", [None, 2.0])
@pytest.mark.parametrize(("form", "element", "tokens"), FORMS)
def test_gradients_of_weights_are_stored_or_added(form, element, tokens, before):
    """In float32 and in elements, with few tokens and with so many that they are split among blocks."""
    launch = getattr(backward, f"linear_backward_weight_{form}")
    for out_element in dict.fromkeys((element, FLOAT32)):
        got, expected, allowed = gradient(launch, "weight", tokens, 24, 40, element, out_element=out_element,
                                          before=before)
        assert (np.abs(float64_of(got) - expected) <= allowed).all(), (form, out_element)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("before", [None, 2.0])
@pytest.mark.parametrize("element", [FLOAT32, BFLOAT16, FLOAT16])
def test_gradients_of_biases_are_stored_or_added(element, before):
    for launch in (backward.linear_backward_bias_naive, backward.linear_backward_bias_split):
        for out_element in dict.fromkeys((element, FLOAT32)):
            got, expected, allowed = gradient(launch, "bias", 133, 24, 1, element, out_element=out_element,
                                              before=before)
            assert (np.abs(float64_of(got) - expected) <= allowed).all()


def test_tokens_are_split():
    """The sizes above make these forms split, so that partial sums are tested."""
    tile = (backward.BLOCK_TILE, backward.BLOCK_TILE)
    assert backward.plan_splits(24, 40, 300, tile, 16, backward.TILED_FLOPS)[1] > 1
    assert backward.best_form({backward.TRANSPOSED_TILES[0]: backward.MMA_FLOPS}, 32, 24, 40, 300)[1] > 1

@pytest.mark.parametrize("splits", [1, 2])
def test_partial_sums_by_wgmma(splits):
    tokens, element = 130, BFLOAT16
    arrays = inputs_of(np.random.default_rng(0), tokens, 24, 72, "weight", element)
    exact = [float64_of(array) for array in arrays]
    out = cuda.to_device(poison((splits * 24, 72)))
    wgmma.multiply_transposed(*map(cuda.to_device, arrays), out, tile=wgmma.TILES[-1], splits=splits)
    got = out.copy_to_host().reshape(splits, 24, 72).sum(axis=0, dtype=np.float64)
    assert (np.abs(got - REFERENCES["weight"](*exact)) <= tolerance(*exact, of="weight", element=FLOAT32)).all()



@pytest.mark.sweep(every=True)
def test_the_same_bits_in_every_run():
    """With and without a workspace, one array for both gradients."""
    for form, element, tokens in (("tiled", FLOAT32, 300), ("pipelined", BFLOAT16, 300)):
        launch = getattr(backward, f"linear_backward_weight_{form}")
        workspace = cuda.device_array(linear_backward_workspace(tokens, 24, 40), np.float32)
        results = [gradient(launch, "weight", tokens, 24, 40, element, workspace=memory)[0]
                   for memory in (None, workspace, None)]
        assert same_bits(results[0], results[1])
        assert same_bits(results[0], results[2])
        gradient(backward.linear_backward_bias_split, "bias", tokens, 24, 1, element, workspace=workspace)


@pytest.mark.sweep(every=True)
def test_the_picked_form_takes_any_size():
    for element in (FLOAT32, BFLOAT16):
        for of, launch in (("weight", linear_backward_weight), ("bias", linear_backward_bias)):
            got, expected, allowed = gradient(launch, of, 11, 7, 3, element)
            assert (np.abs(float64_of(got) - expected) <= allowed).all()
        grad_out, weight = inputs_of(np.random.default_rng(0), 11, 7, 3, "input", element)
        out = cuda.to_device(poison((11, 3), element.dtype))
        linear_backward_input(cuda.to_device(grad_out), cuda.to_device(weight), out)
        exact = float64_of(grad_out), float64_of(weight)
        allowed = tolerance(*exact, of="input", element=element)
        assert (np.abs(float64_of(out.copy_to_host()) - REFERENCES["input"](*exact)) <= allowed).all()


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"grad_weight has shape \(3, 2\); it must be \(2, 3\)"):
        linear_backward_weight(ones(4, 2), ones(4, 3), ones(3, 2))
    with pytest.raises(ValueError, match=r"grad_out has shape \(5, 2\); it must be \(4, 2\)"):
        linear_backward_weight(ones(5, 2), ones(4, 3), ones(2, 3))
    with pytest.raises(ValueError, match=r"grad_x has shape \(4, 2\); it must be \(4, 3\)"):
        linear_backward_input(ones(4, 2), ones(2, 3), ones(4, 2))
    with pytest.raises(ValueError, match="columns of grad_out"):
        linear_backward_input(ones(4, 2), ones(3, 3), ones(4, 3))
    with pytest.raises(ValueError, match=r"grad_bias has shape \(3,\); it must be \(2,\)"):
        linear_backward_bias(ones(4, 2), ones(3))
    with pytest.raises(TypeError, match="x has dtype float32; this form allows uint16 and float16"):
        backward.linear_backward_weight_pipelined(ones(4, 8), ones(4, 8), ones(8, 8))
    with pytest.raises(ValueError, match="workspace has 1 elements"):
        backward.linear_backward_bias_split(ones(4, 8), ones(8), workspace=ones(1))
    with pytest.raises(ValueError, match="grad_out has 3 columns; it must be a multiple of 4"):
        backward.linear_backward_bias_split(ones(4, 3), ones(3))
