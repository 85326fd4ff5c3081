"""Logits of one row and the most likely token: as argmax has it, ties and NaN included."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.linear.next_token import blocks_of, pick_next, row_logits
from labkit.kernels.ops.one_row import norm_row

K, V = 48, 97


def picked(table, dtype=np.float32, count=1):
    """(logits, the token, start) for this table."""
    given = norm_row(np.random.default_rng(0), K, dtype)
    logits, best = cuda.device_array((1, len(table)), np.float32), cuda.device_array(blocks_of(), np.int64)
    row_logits(*map(cuda.to_device, (*given, table.astype(dtype))), logits, best)
    ids, start = cuda.to_device(np.array([-5], np.int32)), cuda.to_device(np.array([3], np.int32))
    pick_next(best, ids, start, count)
    return logits.copy_to_host()[0], int(ids.copy_to_host()[0]), int(start.copy_to_host()[0])


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_of_equal_logits_the_first_is_picked(seed):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((3, K))[rng.integers(0, 3, V)]  # rows repeat, and so do logits, to the bit
    logits, token, start = picked(table)
    assert len(np.unique(logits)) <= 3 and token == np.argmax(logits) and start == 4


@pytest.mark.sweep(every=True)
def test_one_row_of_a_table_and_a_nan():
    """The smallest case of the kernels that GPT-2 uses on a GPU."""
    assert picked(np.ones((1, K)), count=0)[1:] == (0, 3)
    table = np.random.default_rng(1).standard_normal((V, K))
    table[[70, 80]] = np.nan
    assert picked(table)[1] == 70


def test_what_is_refused():
    x, best = cuda.device_array((1, 50), np.float32), cuda.device_array(blocks_of(), np.int64)
    with pytest.raises(ValueError, match="table has rows of 50; allowed are K a multiple of 8, at most 2,048"):
        row_logits(x, x, x, cuda.device_array((9, 50), np.float32), x, best)
    with pytest.raises(TypeError, match="table has dtype int32"):
        row_logits(x, x, x, cuda.device_array((9, 48), np.int32), x, best)
