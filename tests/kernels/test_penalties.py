"""Penalties: against the reference, in place, row by row, and the table as tokens are drawn."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.ops.penalties import PENALISE
from labkit.kernels.penalties import IN_PROMPT, count_tokens, penalise, penalise_reference, prompt_row
from labkit.measure.ops import op


def on_device(*arrays):
    return [cuda.to_device(array) for array in arrays]


def test_it_agrees():
    assert agree(PENALISE, seed=1).passed
    assert op("penalise") is PENALISE


def test_the_reference_by_hand():
    table = np.array([[0, 2, IN_PROMPT, IN_PROMPT | np.uint32(1)]], np.uint32)
    logits = np.array([[3, 3, -3, 3]], np.float32)
    found = penalise_reference(logits, table, np.array([0]), *(np.array([v], np.float32) for v in (1.5, 0.25, 0.5)))
    np.testing.assert_array_equal(found, [[3, 2 - 0.5 - 0.5, -4.5, 2 - 0.25 - 0.5]])


@pytest.mark.parametrize("V", [300, 301])
def test_in_place_it_does_the_same_and_leaves_the_others(V):
    inputs = PENALISE.inputs(np.random.default_rng(3), R=7, V=V)
    logits, *others = on_device(*inputs)
    out = cuda.device_array((7, V), np.float32)
    penalise(logits, *others, out)
    penalise(logits, *others, logits)
    np.testing.assert_array_equal(logits.copy_to_host(), out.copy_to_host())
    off = inputs[2] < 0
    assert off.any() and (inputs[2] >= 0).any()
    np.testing.assert_array_equal(out.copy_to_host()[off], inputs[0][off])


@pytest.mark.parametrize("which", range(3))
def test_each_penalty_alone(which):
    """Off is 1, 0, 0; tokens that only the prompt has know of repetition alone."""
    values = [np.ones(1, np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)]
    values[which] += np.float32(0.5)
    table = np.zeros((1, 4), np.uint32)
    table[0] = 0, 3, IN_PROMPT, IN_PROMPT | np.uint32(2)
    logits = np.array([[1, 1, 1, -1]], np.float32)
    arguments = (logits, table, np.zeros(1, np.int32), *values)
    out = cuda.device_array((1, 4), np.float32)
    penalise(*on_device(*arguments), out)
    expected = ([1, 1 / 1.5, 1 / 1.5, -1.5], [1, 1 - 1.5, 1, -1 - 1.0], [1, 0.5, 1, -1.5])[which]
    np.testing.assert_allclose(out.copy_to_host()[0], expected, rtol=1e-6)


def test_tokens_are_counted_where_a_row_has_a_slot():
    table = np.stack([prompt_row([1, 1, 4], 6), prompt_row([], 6)])
    on, slots, tokens = on_device(table, np.array([1, -1, 0], np.int32), np.array([5, 2, 1], np.int32))
    count_tokens(on, slots, tokens)
    count_tokens(on, slots, tokens)
    count_tokens(on, slots, cuda.to_device(np.full(3, -1, np.int32)))  # rows without a token
    found = on.copy_to_host()
    np.testing.assert_array_equal(found[0], [0, IN_PROMPT | np.uint32(2), 0, 0, IN_PROMPT, 0])
    np.testing.assert_array_equal(found[1], [0, 0, 0, 0, 0, 2])


def test_wrong_arguments_are_named():
    logits, table, slots, *penalties = on_device(*PENALISE.inputs(np.random.default_rng(0), R=2, V=5))
    out = cuda.device_array((2, 5), np.float32)
    with pytest.raises(ValueError, match="table has rows of 4 tokens"):
        penalise(logits, cuda.device_array((2, 4), np.uint32), slots, *penalties, out)
    with pytest.raises(ValueError, match="slots has shape"):
        penalise(logits, table, cuda.device_array(3, np.int32), *penalties, out)
    with pytest.raises(TypeError, match="tokens has dtype float32"):
        count_tokens(table, slots, penalties[0])
