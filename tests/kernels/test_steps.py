"""What happens around a model's step on the device."""

from types import SimpleNamespace

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels import steps
from labkit.kernels.steps import add_biases, ban_tokens, ban_tokens_after, copy_pages, fill_ids, keep_tokens


def ints(*values):
    return cuda.to_device(np.array(values, np.int32))


def floats(*shape):
    return cuda.to_device(np.zeros(shape, np.float32))


def test_tokens_go_from_step_to_step_by_their_seats():
    last = ints(*range(100, 400))
    keep_tokens(ints(7, 9, -1), ints(2, 0, 299), last)
    ids = ints(*([5, -3, -1, -300] * 100), -2)
    fill_ids(ids, last)
    assert ids.copy_to_host().tolist() == [5, 7, 9, 0] * 100 + [101]


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_pages_are_copied_in_order(dtype):
    host = np.arange(3 * 5 * 300).reshape(3, 5, 300).astype(dtype)
    copies = [(0, 3), (3, 1), (2, 0), (4, 2)]
    memory = cuda.to_device(host)
    copy_pages(memory, ints(*copies))
    for source, target in copies:
        host[:, target] = host[:, source]
    np.testing.assert_array_equal(memory.copy_to_host(), host)


def test_a_large_cache_is_taken(monkeypatch):
    """Of Llama 3.2 1B's shape on a GPU with 141 GB; only what is launched is looked at."""
    launched = []
    monkeypatch.setattr(steps, "copy_pages_kernel", {((2, 32), 256, 0): lambda *arrays: launched.append(arrays)})
    memory = SimpleNamespace(shape=(32, 264_192, 512), size=32 * 264_192 * 512, dtype=np.dtype(np.uint16),
                             is_c_contiguous=lambda: True)
    copies = ints((0, 3))
    copy_pages(memory, copies)
    assert launched == [(memory, copies)] and memory.size > 2**31


def logits_among_nan(rows, vocabulary):
    """(logits on the host, the same on the device, the memory around them): a row of NaN before and one behind."""
    around = np.full((rows + 2, vocabulary), np.nan, np.float32)
    around[1:-1] = np.random.default_rng(0).standard_normal((rows, vocabulary))
    memory = cuda.to_device(around)
    return around[1:-1], memory[1:-1], memory


def same_among_nan(memory, expected):
    found = memory.copy_to_host()
    np.testing.assert_array_equal(found[1:-1], expected)
    assert np.isnan(found[[0, -1]]).all()


NOT_THERE = (-1, 401, 802, 2**31 - 1, -(2**31))  # of 401 tokens; 401 would be the next row's first


def test_a_banned_token_can_never_be_drawn():
    host, logits, memory = logits_among_nan(3, 401)
    ban_tokens(logits, ints((0, 400), (2, 0), (2, 17), *((row, token) for row in range(3) for token in NOT_THERE)))
    host[[0, 2, 2], [400, 0, 17]] = -np.inf
    same_among_nan(memory, host)


def test_a_token_is_banned_after_the_one_that_its_seat_sampled_last():
    """More conditions than a block has threads: of each row, one holds for every third token."""
    host, logits, memory = logits_among_nan(3, 401)
    last = ints(7, -1, 8, 7, 5)
    seats = (4, 0, 2)  # of the rows
    conditions = [(row, seats[row], before, token) for row, before in ((0, 5), (1, 7), (2, 8))
                  for token in range(row, 401, 3)]
    others = [(0, 4, 7, 1), (1, 0, 5, 0), (2, 2, 7, 0), (2, 2, -1, 3)]  # what other seats sampled last
    absent = [(row, seat, before, token) for row, seat, before in ((0, 4, 5), (2, 2, 8)) for token in NOT_THERE]
    ban_tokens_after(logits, ints(*others, *absent, *conditions), last)
    for row in range(3):
        host[row, row::3] = -np.inf
    same_among_nan(memory, host)


@pytest.mark.parametrize("vocabulary", [1, 256, 401])
def test_biases_are_those_of_a_rows_slot(vocabulary):
    host, logits, memory = logits_among_nan(5, vocabulary)
    biases = np.random.default_rng(1).uniform(-100, 100, (3, vocabulary)).astype(np.float32)
    biases[1, ::2] = -np.inf
    poisoned = np.full((5, vocabulary), np.nan, np.float32)  # no slot's: before the first, and behind the last
    poisoned[1:-1] = biases
    slots = [2, -1, 1, 3, 2]  # there is no slot 3
    add_biases(logits, cuda.to_device(poisoned)[1:-1], ints(*slots))
    for row in (0, 2, 4):
        host[row] += biases[slots[row]]
    same_among_nan(memory, host)


def test_other_types_are_refused():
    wrong = cuda.to_device(np.zeros(4, np.int64))
    for call in (lambda: fill_ids(wrong, ints(1)), lambda: keep_tokens(wrong, ints(1), ints(1)),
                 lambda: keep_tokens(ints(1, 2), ints(1), ints(1)), lambda: copy_pages(ints(1), ints((0, 1))),
                 lambda: ban_tokens(cuda.to_device(np.zeros((2, 2))), ints((0, 1))),
                 lambda: ban_tokens(floats(2, 2), ints((0, 0, 1, 1))),
                 lambda: ban_tokens_after(floats(2, 2), ints((0, 1)), ints(1)),
                 lambda: ban_tokens_after(floats(2, 2), ints((0, 0, 1, 1)), wrong),
                 lambda: add_biases(floats(2, 3), floats(2, 2), ints(0, 1)),
                 lambda: add_biases(floats(2, 2), floats(2, 2), ints(0))):
        with pytest.raises((ValueError, TypeError)):
            call()
