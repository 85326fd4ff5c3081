"""Layer normalisation, alone and with a residual: every rung, odd and misaligned rows, large means, in place; BERT's
epsilon."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.norm import layernorm as norm
from labkit.kernels.norm.rows import tolerance
from labkit.kernels.op import rung, uniform
from labkit.kernels.ops.layernorm import ADD_LAYERNORM, LAYERNORM, RESIDUAL_LAYERNORM
from tests.launching import ones

every_rung = pytest.mark.parametrize("launcher", LAYERNORM.rungs, ids=lambda rung: rung.__name__)


@pytest.mark.sampled(0, sweep=4)
@every_rung
def test_every_rung_agrees(launcher):
    """A warp's kernel is another for each width: the usual run has one of whole vectors and one that is not."""
    assert agree(LAYERNORM, [launcher], seed=1, sizes=({"R": 3, "C": 5}, {"R": 6, "C": 768})).passed


@pytest.mark.sweep
@every_rung
def test_every_rung_agrees_at_every_awkward_size(launcher):
    assert agree(LAYERNORM, [launcher], seed=1).passed


@pytest.mark.sweep
@pytest.mark.parametrize("op", [RESIDUAL_LAYERNORM, ADD_LAYERNORM], ids=lambda op: op.name)
def test_with_a_residual(op):
    assert agree(op, seed=1, sizes=({"R": 3, "C": 5}, {"R": 6, "C": 768})).passed


@pytest.mark.sweep
@pytest.mark.parametrize("op", [RESIDUAL_LAYERNORM, ADD_LAYERNORM], ids=lambda op: op.name)
def test_with_a_residual_at_every_awkward_size(op):
    assert agree(op, seed=2).passed


def test_reference_is_pytorchs():
    torch = pytest.importorskip("torch")
    x, weight, bias = LAYERNORM.inputs(np.random.default_rng(3), R=5, C=768)
    as_torch = [torch.as_tensor(array.astype(np.float64)) for array in (x, weight, bias)]
    expected = torch.nn.functional.layer_norm(as_torch[0], (768,), *as_torch[1:], 1e-5).numpy()
    np.testing.assert_allclose(norm.layernorm_reference(x, weight, bias), expected, rtol=1e-12, atol=1e-12)


def on_device(*arrays):
    return [cuda.to_device(np.ascontiguousarray(array, np.float32)) for array in arrays]


@pytest.mark.sampled(1, sweep=3, quick="layernorm_naive")
@every_rung
def test_a_row_of_one_value_becomes_the_bias(launcher):
    x, weight, bias = on_device(np.full((2, 768), 3.0), np.ones(768), np.arange(768))
    out = cuda.device_array((2, 768), np.float32)
    launcher(x, weight, bias, out)
    np.testing.assert_allclose(out.copy_to_host(), np.tile(np.arange(768), (2, 1)), atol=1e-3)


@pytest.mark.sampled(0, sweep=4)
@pytest.mark.parametrize("launcher", [rung for rung in LAYERNORM.rungs if rung is not norm.layernorm_one_pass],
                         ids=lambda rung: rung.__name__)  # that one fails at this: lesson 21 shows how
def test_a_large_mean_costs_digits_of_the_input_only(launcher):
    """Ten thousand times the spread: the difference from the mean is what the float32 input has left."""
    rng = np.random.default_rng(4)
    x = (10_000 + rng.standard_normal((4, 768))).astype(np.float32)
    weight, bias = np.ones(768, np.float32), np.zeros(768, np.float32)
    expected = norm.layernorm_reference(x, weight, bias)
    allowed = 10_000 * np.sqrt(768) * np.finfo(np.float32).eps / 2  # of the mean: 768 roundings, as a random walk
    out = cuda.device_array(x.shape, np.float32)
    launcher(*on_device(x, weight, bias), out)
    assert np.abs(out.copy_to_host() - expected).max() < allowed


def test_the_rung_that_a_large_mean_breaks_says_that_it_failed():
    assert norm.layernorm_one_pass in LAYERNORM.rungs and norm.layernorm_one_pass.failed


@pytest.mark.sweep(every=True)
def test_in_place_and_misaligned():
    rng = np.random.default_rng(5)
    x, weight, bias = LAYERNORM.inputs(rng, R=3, C=768)
    expected = norm.layernorm_reference(x, weight, bias)
    d_x, d_weight, d_bias = on_device(x, weight, bias)
    norm.layernorm(d_x, d_weight, d_bias, d_x)
    np.testing.assert_allclose(d_x.copy_to_host(), expected, atol=1e-4)

    whole = cuda.to_device(np.concatenate([[np.float32(7)], x.reshape(-1)]))
    view = whole[1:].reshape(3, 768)  # begins four bytes after a multiple of sixteen
    out = cuda.device_array((3, 768), np.float32)
    norm.layernorm(view, d_weight, d_bias, out)
    np.testing.assert_allclose(out.copy_to_host(), expected, atol=1e-4)


@pytest.mark.sweep(every=True)
def test_the_residual_stream_is_updated_in_place():
    rng = np.random.default_rng(6)
    x, residual, weight, bias = RESIDUAL_LAYERNORM.inputs(rng, R=3, C=768)
    d_x, d_residual, d_weight, d_bias = on_device(x, residual, weight, bias)
    out = cuda.device_array(x.shape, np.float32)
    norm.residual_layernorm(d_x, d_residual, d_weight, d_bias, d_x, out)
    np.testing.assert_array_equal(d_x.copy_to_host(), x + residual)
    np.testing.assert_allclose(out.copy_to_host(), norm.layernorm_reference(x + residual, weight, bias), atol=1e-4)


@pytest.mark.sweep(every=True)
def test_the_fused_kernel_does_what_the_two_do():
    """To the last bit: the same sums in the same order."""
    arrays = on_device(*RESIDUAL_LAYERNORM.inputs(np.random.default_rng(7), R=6, C=768))
    two, one = (cuda.device_array((2, 6, 768), np.float32) for _ in range(2))
    norm.residual_layernorm_unfused(*arrays, two)
    norm.residual_layernorm_fused(*arrays, one)
    np.testing.assert_array_equal(one.copy_to_host(), two.copy_to_host())


# --- Another epsilon --------------------------------------------------------------------------------------------------


def of_small_spread(rng, R, C):
    """Rows whose variance is about 1e-10: ten times less than 1e-5 adds, a hundred times more than 1e-12 does."""
    return (uniform(rng, R, C) * np.float32(1e-5), uniform(rng, C), uniform(rng, C))


def with_epsilon(launcher, epsilon):
    bound = functools.update_wrapper(functools.partial(launcher, epsilon=epsilon), launcher)
    return rung(kernel=launcher.kernel, idea=launcher.idea)(bound)


def op_with_epsilon(epsilon, *launchers):
    return replace(LAYERNORM, reference=functools.partial(norm.layernorm_reference, epsilon=epsilon),
                   tolerance=functools.partial(tolerance, epsilon=epsilon), inputs=of_small_spread,
                   rungs=tuple(with_epsilon(launcher, epsilon) for launcher in launchers))


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("launcher", [*LAYERNORM.rungs, norm.layernorm], ids=lambda launcher: launcher.__name__)
def test_every_rung_takes_the_epsilon_of_bert(launcher):
    launcher = launcher if launcher in LAYERNORM.rungs else rung(kernel=(), idea="picks a rung")(launcher)
    assert agree(op_with_epsilon(1e-12, launcher), seed=8, sizes=({"R": 3, "C": 384},)).passed


@pytest.mark.sweep(every=True)
def test_another_epsilon_is_another_kernel():
    """Side by side: neither takes the other's from the cache. At this spread one is three hundred times the other."""
    inputs = of_small_spread(np.random.default_rng(9), 2, 384)
    d_inputs, found = on_device(*inputs), {}
    for epsilon in (1e-5, 1e-12, 1e-5):
        out = cuda.device_array(inputs[0].shape, np.float32)
        norm.layernorm_warp_per_row(*d_inputs, out, epsilon=epsilon)
        expected = norm.layernorm_reference(*inputs, epsilon)
        allowed = tolerance(*inputs, epsilon)
        assert (np.abs(out.copy_to_host() - expected) <= allowed).all()
        found[epsilon] = np.abs(out.copy_to_host() - inputs[2]).max()
    assert found[1e-12] > 100 * found[1e-5]


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("launch", [norm.add_layernorm_unfused, norm.add_layernorm_fused,
                                    norm.residual_layernorm_unfused, norm.residual_layernorm_fused],
                         ids=lambda launch: launch.__name__)
def test_the_epsilon_of_bert_with_a_residual(launch):
    rng = np.random.default_rng(10)
    x, weight, bias = of_small_spread(rng, 3, 384)
    residual = of_small_spread(rng, 3, 384)[0]
    kept = launch.__name__.startswith("residual")
    out = cuda.device_array((2, 3, 384) if kept else (3, 384), np.float32)
    launch(*on_device(x, residual, weight, bias), out, epsilon=1e-12)
    got = out.copy_to_host()[0] if kept else out.copy_to_host()
    total = x + residual
    assert (np.abs(got - norm.layernorm_reference(total, weight, bias, 1e-12))
            <= tolerance(total.astype(np.float64), weight, bias, 1e-12)).all()


@pytest.mark.parametrize("epsilon", [0.0, -1e-5, 1e-50, float("nan"), float("inf")])
def test_an_epsilon_that_is_no_positive_float32_is_refused(epsilon):
    x, weight, bias = on_device(np.ones((2, 4)), np.ones(4), np.ones(4))
    for launch in (norm.layernorm_naive, norm.layernorm):
        with pytest.raises(ValueError, match=f"epsilon is {epsilon}; in float32 it must be above 0 and finite"):
            launch(x, weight, bias, x, epsilon=epsilon)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"weight has shape \(3,\); it must be \(4,\)"):
        norm.layernorm_naive(ones(2, 4), ones(3), ones(4), ones(2, 4))
    with pytest.raises(ValueError, match="x has 5,000 columns; a warp keeps at most 4,096 in registers"):
        norm.layernorm_warp_per_row(ones(1, 5000), ones(5000), ones(5000), ones(1, 5000))
    with pytest.raises(ValueError, match=r"residual has shape \(2, 3\); it must be \(2, 4\)"):
        norm.residual_layernorm(ones(2, 4), ones(2, 3), ones(4), ones(4), ones(2, 4), ones(2, 4))
