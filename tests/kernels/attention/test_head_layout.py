"""Heads apart and together again, and the refusals."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.attention.head_layout import merge_heads, split_heads


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_split_is_the_transposition_and_merge_undoes_it(dtype):
    B, S, H, D = 3, 5, 2, 7
    q, k, v = np.random.default_rng(0).standard_normal((3, B * S, H * D)).astype(dtype)
    apart = cuda.to_device(np.full((B * S * H, 3 * D), np.nan, dtype))
    lengths = cuda.to_device(np.array([5, 0, 3], np.int32))
    begins, head_lengths = (cuda.to_device(np.full(B * H, -1, np.int32)) for _ in range(2))
    for which, part in enumerate((q, k, v)):
        split_heads(cuda.to_device(part), which, lengths, H, apart, begins, head_lengths)
    assert begins.copy_to_host().tolist() == [0, 5, 10, 15, 20, 25]
    assert head_lengths.copy_to_host().tolist() == [5, 5, 0, 0, 3, 3]
    expected = [part.reshape(B, S, H, D).transpose(0, 2, 1, 3).reshape(-1, D) for part in (q, k, v)]
    np.testing.assert_array_equal(apart.copy_to_host(), np.concatenate(expected, axis=1))
    merged = cuda.to_device(np.full((B * S, H * D), np.nan, dtype))
    merge_heads(cuda.to_device(np.ascontiguousarray(expected[1])), B, H, merged)
    np.testing.assert_array_equal(merged.copy_to_host(), k)


def test_refusals_say_what_is_allowed():
    part, apart = cuda.to_device(np.zeros((6, 8), np.float32)), cuda.to_device(np.zeros((12, 12), np.float32))
    lengths = {count: cuda.to_device(np.zeros(count, np.int32)) for count in (2, 4)}
    with pytest.raises(ValueError, match="6 rows are no whole number for each of 4 sentences"):
        split_heads(part, 0, lengths[4], 2, apart, lengths[4], lengths[4])
    with pytest.raises(ValueError, match="heads is 3; it must divide the width, 8"):
        split_heads(part, 0, lengths[2], 3, apart, lengths[4], lengths[4])
    with pytest.raises(ValueError, match="which is 3; 0 for queries"):
        split_heads(part, 3, lengths[2], 2, apart, lengths[4], lengths[4])
    with pytest.raises(ValueError, match=r"head_begins has shape \(2,\); it must be \(4,\)"):
        split_heads(part, 0, lengths[2], 2, apart, lengths[2], lengths[4])
    with pytest.raises(ValueError, match=r"apart has shape \(12, 12\); it must be \(12, 4\)"):
        merge_heads(apart, 2, 2, part)
