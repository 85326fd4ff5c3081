"""Attention for training, forward and backward: every rung, references against finite differences, the log-sum-exp,
packed sequences that each give the same bits anywhere, views of the rows of a product, and what is refused."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, is_poison, poison, same_bits
from labkit.kernels.attention.backward import (
    attention_backward,
    attention_backward_mma,
    attention_backward_plain,
    attention_backward_reference,
)
from labkit.kernels.attention.training import (
    attention_training,
    attention_training_mma,
    attention_training_plain,
    attention_training_reference,
)
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32
from labkit.kernels.ops.attention_training import backward_errors, inputs_backward, inputs_forward, tolerance_forward
from labkit.measure.ops import op
from tests.launching import ones

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

OPS = [f"attention_{which}{suffix}" for which in ("training", "backward") for suffix in ("", "_bf16")]
FORMS = [(FLOAT32, attention_training_plain, attention_backward_plain),
         (FLOAT16, attention_training_mma, attention_backward_mma),
         (BFLOAT16, attention_training_mma, attention_backward_mma)]
every_form = pytest.mark.parametrize(("element", "forward", "backward"), [
    pytest.param(*form, id=form[0].name, marks=pytest.mark.sweep if form[0] is FLOAT16 else []) for form in FORMS])


# Its kernels take minutes to compile; the suite has them at one size, in the tests below.
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name == "attention_training" else pytest.mark.sweep(every=True)) for name in OPS])
def test_every_rung_agrees(name):
    assert agree(op(name), seed=1).passed


def test_references_are_the_derivatives():
    """Of sum(grad_out * out), by central differences, with two query heads for each key-value head."""
    rng = np.random.default_rng(0)
    cu_seqlens = np.array([0, 3, 7], np.int32)
    arrays = [rng.standard_normal((7, heads, 4)) for heads in (4, 2, 2)]
    grad_out = rng.standard_normal((7, 4, 4))
    gradients = attention_backward_reference(*arrays, grad_out, cu_seqlens)
    for which, gradient in enumerate(gradients):
        for index in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [array.copy() for array in arrays]
                moved[which][index] += step
                ends.append((grad_out * attention_training_reference(*moved, cu_seqlens)[0]).sum())
            assert gradient[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


def run_forward(launch, q, k, v, cu_seqlens, longest):
    """(out, lse), which were poisoned."""
    results = cuda.to_device(poison(q.shape, q.dtype)), cuda.to_device(poison((q.shape[1], len(q))))
    launch(*map(cuda.to_device, (q, k, v, cu_seqlens)), longest, *results)
    return [result.copy_to_host() for result in results]


def run_backward(launch, q, k, v, out, lse, grad_out, cu_seqlens, longest):
    """The three gradients, which were poisoned, as was delta."""
    gradients = [cuda.to_device(poison(array.shape, array.dtype)) for array in (q, k, v)]
    launch(*map(cuda.to_device, (q, k, v, out, lse, grad_out, cu_seqlens)), longest, *gradients,
           delta=cuda.to_device(poison(lse.shape)))
    return [gradient.copy_to_host() for gradient in gradients]


@every_form
def test_log_sum_exp(element, forward, backward):
    inputs = inputs_forward(np.random.default_rng(0), 2, 70, 33, 4, 2, 64, element)
    out, lse = run_forward(forward, *inputs)
    expected_out, expected = attention_training_reference(*inputs)
    allowed = tolerance_forward(*map(float64_of, inputs), element=element)
    assert (np.abs(float64_of(out) - expected_out) <= allowed).all()
    np.testing.assert_allclose(lse, expected, rtol=2e-5, atol=2e-5)


@every_form
def test_a_sequence_has_the_same_bits_anywhere(element, forward, backward):
    """Alone, and packed behind another one; tokens of no sequence are neither read nor written."""
    alone = inputs_backward(np.random.default_rng(0), 1, 45, 45, 2, 1, 32, element)
    q, k, v, out, lse, grad_out, _, _ = alone

    def packed(array, axis=0):
        before, after = 21, 5
        filler = np.full((*array.shape[:axis], before, *array.shape[axis + 1 :]), 0.5, np.float32)
        hole = np.full((*array.shape[:axis], after, *array.shape[axis + 1 :]), np.nan, np.float32)
        filler, hole = (part if array.dtype == np.float32 else element.array_of(part) for part in (filler, hole))
        return np.concatenate([filler, array, hole], axis=axis)

    cu_seqlens = np.array([0, 21, 21, 66], np.int32)
    several = *map(packed, (q, k, v, out)), packed(lse, 1), packed(grad_out), cu_seqlens, 60
    for one, many in zip(run_forward(forward, q, k, v, alone[6], 45),
                         run_forward(forward, *several[:3], cu_seqlens, 60), strict=True):
        rows = many[21:66] if one.ndim == 3 else many[:, 21:66]
        assert same_bits(np.ascontiguousarray(rows), one)
    for one, many in zip(run_backward(backward, *alone), run_backward(backward, *several), strict=True):
        assert same_bits(many[21:66], one)
        assert same_bits(many[66:], poison(many[66:].shape, many.dtype))


@every_form
def test_views_of_the_rows_of_a_product(element, forward, backward):
    """q, k and v beside each other, and their gradients: the bits of contiguous arrays, and nothing else is read or
    written."""
    arrays = inputs_backward(np.random.default_rng(4), 2, 45, 20, 2, 1, 32, element)
    q, k, v, out, lse, grad_out, cu_seqlens, longest = arrays
    heads = slice(0, 2), slice(2, 3), slice(3, 4)  # of five; nobody has the last
    product = cuda.to_device(np.concatenate([q, k, v, poison(k.shape, k.dtype)], axis=1))
    views = [product[:, part] for part in heads]
    lengths = cuda.to_device(cu_seqlens)

    found = cuda.to_device(poison(out.shape, out.dtype)), cuda.to_device(poison(lse.shape))
    forward(*views, lengths, longest, *found)
    for one, alone in zip(found, run_forward(forward, q, k, v, cu_seqlens, longest), strict=True):
        assert same_bits(one.copy_to_host(), alone)

    gradients = [cuda.to_device(poison(product.shape, q.dtype)) for _ in heads]
    backward(*views, *map(cuda.to_device, (out, lse, grad_out)), lengths, longest,
             *(gradient[:, part] for gradient, part in zip(gradients, heads, strict=True)),
             delta=cuda.to_device(poison(lse.shape)))
    for gradient, part, alone in zip(gradients, heads, run_backward(backward, *arrays), strict=True):
        rows = gradient.copy_to_host()
        assert same_bits(np.ascontiguousarray(rows[:, part]), alone)
        assert is_poison(np.delete(rows, part, axis=1)).all()


@pytest.mark.parametrize("element", [FLOAT32, BFLOAT16])
def test_the_picked_forms(element):
    inputs = inputs_backward(np.random.default_rng(3), 2, 19, 7, 2, 2, 32, element)
    run_forward(attention_training, *inputs[:3], *inputs[6:])
    gradients = run_backward(attention_backward, *inputs)
    expected = attention_backward_reference(*inputs[:3], inputs[5], inputs[6])
    for got, right, allowed in zip(gradients, expected, backward_errors(*map(float64_of, inputs), element=element),
                                   strict=True):
        assert (np.abs(float64_of(got) - right) <= allowed).all()


@every_form
def test_a_sequence_that_is_too_long_is_not_a_number(element, forward, backward):
    inputs = inputs_forward(np.random.default_rng(0), 1, 40, 40, 1, 1, 32, element)
    out, lse = run_forward(forward, *inputs[:4], 33)
    assert np.isnan(float64_of(out[:33])).all()
    assert np.isnan(lse[:, :33]).all()


def test_errors_name_the_argument():
    q, k, cu_seqlens, lse = ones(5, 4, 32), ones(5, 2, 32), cuda.to_device(np.array([0, 5], np.int32)), ones(4, 5)
    with pytest.raises(ValueError, match="q has heads of 48 elements; 32, 64, 128 are allowed"):
        attention_training(ones(5, 4, 48), k, k, cu_seqlens, 5, q, lse)
    with pytest.raises(ValueError, match="q has 4 heads and k 3"):
        attention_training(q, ones(5, 3, 32), ones(5, 3, 32), cu_seqlens, 5, q, lse)
    with pytest.raises(ValueError, match=r"v has shape \(4, 2, 32\); it must be \(5, 2, 32\)"):
        attention_training(q, k, ones(4, 2, 32), cu_seqlens, 5, q, lse)
    with pytest.raises(ValueError, match="longest is 6"):
        attention_training(q, k, k, cu_seqlens, 6, q, lse)
    with pytest.raises(ValueError, match=r"lse has shape \(5, 4\); it must be \(4, 5\)"):
        attention_training(q, k, k, cu_seqlens, 5, q, ones(5, 4))
    with pytest.raises(TypeError, match="q has dtype float32; this form allows uint16 and float16 only"):
        attention_training_mma(q, k, k, cu_seqlens, 5, q, lse)
    with pytest.raises(ValueError, match=r"grad_k has shape \(5, 4, 32\); it must be \(5, 2, 32\)"):
        attention_backward(q, k, k, q, lse, q, cu_seqlens, 5, q, q, k, delta=lse)
    with pytest.raises(TypeError, match="cu_seqlens has dtype float32"):
        attention_training(q, k, k, ones(2), 5, q, lse)


def test_errors_about_views_name_the_argument():
    q, k, cu_seqlens, lse = ones(5, 4, 32), ones(5, 2, 32), cuda.to_device(np.array([0, 5], np.int32)), ones(4, 5)
    product = ones(5, 8, 32)
    view = product[:, :4], product[:, 4:6], product[:, 6:]
    with pytest.raises(ValueError, match="v has rows 64 elements apart; they must be 256 apart, as those of k"):
        attention_training(q, view[1], k, cu_seqlens, 5, q, lse)
    with pytest.raises(ValueError, match="out is not C-contiguous"):
        attention_training(*view, cu_seqlens, 5, view[0], lse)
    with pytest.raises(ValueError, match="grad_q has rows 128 elements apart; they must be 256 apart, as those of q"):
        attention_backward(*view, q, lse, q, cu_seqlens, 5, q, *view[1:], delta=lse)
    with pytest.raises(ValueError, match="grad_v has rows 64 elements apart; they must be 256 apart, as those of k"):
        attention_backward(*view, q, lse, q, cu_seqlens, 5, *view[:2], k, delta=lse)
    with pytest.raises(ValueError, match=r"q has shape \(5, 4, 32\) and strides of \(1024, 256, 4\) bytes; its rows "
                                         r"must be contiguous, 512 bytes each, and a multiple of 16 bytes apart"):
        attention_training(ones(5, 4, 64)[:, :, :32], k, k, cu_seqlens, 5, q, lse)
