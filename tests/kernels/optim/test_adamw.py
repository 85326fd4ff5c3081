"""AdamW: every rung, steps in place against PyTorch's rule, copies, decay by segment, the schedule, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, to_device
from labkit.kernels.elements import BFLOAT16, FLOAT16
from labkit.kernels.ops.adamw import ADAMW, ADAMW_BF16, adamw_op
from labkit.kernels.optim.adamw import adamw, adamw_per_thread, adamw_reference, advance
from tests.launching import every_rung, ones


@pytest.mark.sweep(every=True)
@every_rung(ADAMW, ADAMW_BF16, adamw_op("adamw_f16", FLOAT16))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


@pytest.mark.sampled(1, sweep=99, quick="adamw_per_thread")
@pytest.mark.parametrize("launch", [adamw, adamw_per_thread], ids=lambda launch: launch.__name__)
def test_steps_in_place_with_the_step_and_the_rate_on_the_device(launch):
    """1,003 parameters, float32 gradients, bfloat16 copies; of four segments the second and the last do not decay."""
    rng = np.random.default_rng(2)
    expected = (rng.uniform(-1, 1, 1003).astype(np.float32), np.zeros(1003, np.float32), np.zeros(1003, np.float32))
    decayed, clip = np.array([1, 0, 1, 0], np.uint8), np.array([0.5], np.float32)
    rates, parameters = np.float32([0.1, 0.2, 0.05]), ones(1003, dtype=np.uint16)
    state, (d_decayed, d_clip, d_rates) = to_device(expected), to_device((decayed, clip, rates))
    step, rate = to_device((np.zeros(1, np.int32), np.zeros(1, np.float32)))
    for count in (1, 2, 3):
        gradients = rng.uniform(-1, 1, 1003).astype(np.float32)
        advance(step, d_rates, rate)
        launch(*state, cuda.to_device(gradients), parameters, d_decayed, rate, step, d_clip)
        expected = adamw_reference(*expected, gradients, decayed, rates[count - 1 : count], [count], clip)
    for got, wanted in zip(state, expected, strict=True):
        np.testing.assert_allclose(got.copy_to_host(), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(parameters.copy_to_host(), BFLOAT16.array_of(state[0].copy_to_host()))
    advance(step, d_rates, rate)
    assert (step.copy_to_host()[0], rate.copy_to_host()[0]) == (4, rates[2]), "after its end the last rate"


@pytest.mark.sweep(every=True)
def test_the_first_step_moves_each_parameter_by_the_rate():
    """Both corrections are exact to a few roundings at step 1: the update is the gradient's sign."""
    master, zeros, gradients = np.zeros(64), np.zeros((2, 64)), np.linspace(-3, 3, 64)
    arguments = (np.zeros(1), np.array([0.25]), [1], np.ones(1))
    new, _, _ = adamw_reference(master, *zeros, gradients, *arguments)
    np.testing.assert_allclose(new, -0.25 * np.sign(gradients), rtol=1e-6)
    state = [cuda.to_device(np.zeros(64, np.float32)) for _ in range(3)]
    adamw(*state, cuda.to_device(gradients.astype(np.float32)), ones(64), *to_device((
        np.zeros(1, np.uint8), np.float32([0.25]), np.int32([1]), np.float32([1]))))
    np.testing.assert_allclose(state[0].copy_to_host(), new, rtol=1e-6)


def test_errors_name_the_argument():
    x, one, step, flags = ones(300), ones(1), ones(1, dtype=np.int32), ones(2, dtype=np.uint8)
    with pytest.raises(ValueError, match=r"v has shape \(8,\); it must be \(300,\)"):
        adamw(x, x, ones(8), x, x, flags, one, step, one)
    with pytest.raises(TypeError, match="gradients has dtype int32"):
        adamw(x, x, x, ones(300, dtype=np.int32), x, flags, one, step, one)
    with pytest.raises(ValueError, match=r"decayed has shape \(1,\); it must be \(2,\)"):
        adamw(x, x, x, x, x, ones(1, dtype=np.uint8), one, step, one)
    with pytest.raises(TypeError, match="step has dtype float32; only int32"):
        adamw(x, x, x, x, x, flags, one, one, one)
    with pytest.raises(ValueError, match=r"betas is \(0.9, 1\); each must be above 0 and below 1"):
        adamw(x, x, x, x, x, flags, one, step, one, betas=(0.9, 1))
    with pytest.raises(ValueError, match="eps is 0; it must be above 0"):
        adamw(x, x, x, x, x, flags, one, step, one, eps=0)
    with pytest.raises(TypeError, match="rates has dtype int32; only float32"):
        advance(step, step, one)
