"""Logprobs on the device against NumPy in float64."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.logprobs import COLUMNS, MOST, RANK, TOKENS, TOP, Scratch, logprobs, logprobs_reference
from labkit.kernels.ops.logprobs import LOGPROBS

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more


def found(logits, tokens, wanted):
    """Of one launch, into memory that was never cleared."""
    rows, cols = logits.shape
    out = cuda.to_device(np.full((rows, COLUMNS), np.nan, np.float32))
    logprobs(cuda.to_device(logits), cuda.to_device(np.array(tokens, np.int32)),
             cuda.to_device(np.array(wanted, np.int32)), out, Scratch.allocate(rows, cols))
    return out.copy_to_host()


def test_every_rung_agrees():
    assert agree(LOGPROBS).passed


def test_equal_logits_share_a_rank_and_the_lower_token_is_first():
    logits = np.array([[1, 3, 3, 2, 3, -np.inf], [0, -0.0, 0, 0, 0, 0]], np.float32)
    got = found(logits, [4, 5], [MOST, 2])
    assert got[:, RANK].tolist() == [1, 1]
    assert got[0, TOKENS:].tolist() == [1, 2, 4, 3, 0, 5] + [-1] * (MOST - 6)
    assert got[1, TOKENS:].tolist() == [0, 1] + [-1] * (MOST - 2)
    np.testing.assert_allclose(got[1, [0, TOP, TOP + 1]], -np.log(6), rtol=1e-6)
    assert got[0, TOP + 5] == -np.inf == got[1, TOP + 2]


def test_rows_for_which_nothing_is_wanted_are_not_read():
    logits = np.full((3, 40), np.nan, np.float32)
    logits[1] = np.arange(40)
    got = found(logits, [0, 38, -1], [-1, 0, -1])
    assert got[:, RANK].tolist() == [0, 2, 0] and (got[:, TOKENS:] == -1).all() and (got[[0, 2], 0] == 0).all()


def test_a_row_of_several_chunks_whose_most_likely_tokens_are_all_in_one():
    logits = np.zeros((2, 3 * 8192 + 5), np.float32)
    logits[0, 8192 : 8192 + MOST] = np.arange(MOST) + 1
    logits[1, -1] = 1
    tokens, wanted = [8192, 7], [MOST, 3]
    got, expected = found(logits, tokens, wanted), logprobs_reference(logits, tokens, wanted)
    np.testing.assert_array_equal(got[:, TOKENS:], expected[:, TOKENS:])
    np.testing.assert_array_equal(got[:, RANK], expected[:, RANK])
    np.testing.assert_allclose(got[:, :RANK], expected[:, :RANK], rtol=1e-6)


def test_a_view_that_begins_at_an_odd_address():
    memory = np.random.default_rng(3).standard_normal(2 * 64 + 1).astype(np.float32)
    view = cuda.to_device(memory)[1:].reshape(2, 64)
    out = cuda.to_device(np.full((2, COLUMNS), np.nan, np.float32))
    logprobs(view, cuda.to_device(np.array([1, 2], np.int32)), cuda.to_device(np.array([4, 0], np.int32)), out,
             Scratch.allocate(2, 64))
    expected = logprobs_reference(memory[1:].reshape(2, 64), [1, 2], [4, 0])
    np.testing.assert_allclose(out.copy_to_host(), expected, atol=1e-5)


def test_memory_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="scratch is for 1 rows of 8 logits; these are 2 of 8"):
        logprobs(*(cuda.to_device(np.zeros(shape, dtype)) for shape, dtype in (
            ((2, 8), np.float32), (2, np.int32), (2, np.int32), ((2, COLUMNS), np.float32))), Scratch.allocate(1, 8))
