"""The sizes of batch for which graphs are captured."""

import pytest

from labkit.engine.runner import bucket, buckets


def test_every_count_has_a_bucket_that_holds_it_and_is_not_much_larger():
    assert buckets(100) == [1, 2, 4, 8, 16, 32, 64, 96, 100]
    assert buckets(1) == [1] and buckets(33) == [1, 2, 4, 8, 16, 32, 33]
    for count in range(1, 257):
        size = bucket(count, 256)
        assert count <= size < max(2 * count, count + 32) and size in buckets(256)
    for wrong in (0, 101):
        with pytest.raises(ValueError, match=f"count is {wrong}; it must be from 1 to 100"):
            bucket(wrong, 100)
