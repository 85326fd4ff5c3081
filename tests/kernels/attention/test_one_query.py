"""Attention of one query in parts: what a share without keys gives, and what is refused. test_one_row.py has the
operation."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.attention.one_query import Parts, one_query, splits_of
from labkit.kernels.op import uniform

HEADS, SIZE = 3, 16
WIDTH = HEADS * SIZE


def found_for(start, cache):
    parts = Parts(HEADS, SIZE)
    parts.found.copy_to_device(np.full(parts.found.size, np.nan, np.float32))
    parts.statistics.copy_to_device(np.full(parts.statistics.size, np.nan, np.float32))
    q = uniform(np.random.default_rng(0), 1, WIDTH)
    one_query(cuda.to_device(q), cuda.to_device(cache), cuda.to_device(np.array([start], np.int32)), HEADS, parts)
    maxima, sums = parts.statistics.copy_to_host().reshape(2, HEADS, parts.splits)
    return maxima, sums, parts.found.copy_to_host().reshape(HEADS, parts.splits, SIZE)


@pytest.mark.sweep
def test_a_share_without_keys_weighs_nothing_and_keys_to_come_are_not_read():
    cache = uniform(np.random.default_rng(1), 40, 2 * WIDTH)
    cache[4:] = np.nan  # not written yet
    maxima, sums, found = found_for(3, cache)
    assert splits_of(HEADS) == found.shape[1] == 32
    assert (sums[:, :4] == 1).all() and not sums[:, 4:].any() and not found[:, 4:].any()
    assert np.isfinite(maxima).all() and (maxima[:, 4:] < -1e38).all()
    values = cache[:4, WIDTH:].reshape(4, HEADS, SIZE)
    np.testing.assert_array_equal(found[:, :4], values.swapaxes(0, 1))


@pytest.mark.sweep
def test_a_start_beyond_the_cache_sees_the_whole_cache():
    cache = uniform(np.random.default_rng(1), 40, 2 * WIDTH)
    for one, other in zip(found_for(39, cache), found_for(4000, cache), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("heads", "message"), [(5, "heads is 5; it must be a whole number that divides q's 48"),
                                                (48, "heads of 1; allowed are one row, and heads of a multiple of 8")])
def test_what_is_refused(heads, message):
    q, cache = cuda.device_array((1, WIDTH), np.float32), cuda.device_array((4, 2 * WIDTH), np.float32)
    with pytest.raises(ValueError, match=message):
        one_query(q, cache, cuda.to_device(np.zeros(1, np.int32)), heads, Parts(HEADS, SIZE))
