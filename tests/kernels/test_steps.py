"""What happens around a model's step on the device."""

from types import SimpleNamespace

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels import steps
from labkit.kernels.steps import ban_tokens, copy_pages, fill_ids, keep_tokens


def ints(*values):
    return cuda.to_device(np.array(values, np.int32))


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


def test_a_banned_token_can_never_be_drawn():
    host = np.random.default_rng(0).standard_normal((3, 400)).astype(np.float32)
    logits = cuda.to_device(host)
    ban_tokens(logits, ints((0, 399), (2, 0), (2, 17)))
    host[[0, 2, 2], [399, 0, 17]] = -np.inf
    np.testing.assert_array_equal(logits.copy_to_host(), host)


def test_other_types_are_refused():
    wrong = cuda.to_device(np.zeros(4, np.int64))
    for call in (lambda: fill_ids(wrong, ints(1)), lambda: keep_tokens(wrong, ints(1), ints(1)),
                 lambda: keep_tokens(ints(1, 2), ints(1), ints(1)), lambda: copy_pages(ints(1), ints((0, 1))),
                 lambda: ban_tokens(cuda.to_device(np.zeros((2, 2))), ints((0, 1)))):
        with pytest.raises((ValueError, TypeError)):
            call()
