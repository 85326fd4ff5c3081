"""The sizes of batch for which graphs are captured."""

import numpy as np
import pytest

from labkit.engine.runner import bucket, buckets, padded, row_bucket
from labkit.models.step import Shape


def test_every_count_has_a_bucket_that_holds_it_and_is_not_much_larger():
    assert buckets(100) == [1, 2, 4, 8, 16, 32, 64, 96, 100]
    assert buckets(1) == [1] and buckets(33) == [1, 2, 4, 8, 16, 32, 33]
    for count in range(1, 257):
        size = bucket(count, 256)
        assert count <= size < max(2 * count, count + 32) and size in buckets(256)
    for wrong in (0, 101):
        with pytest.raises(ValueError, match=f"count is {wrong}; it must be from 1 to 100"):
            bucket(wrong, 100)


def test_rows_with_parts_of_prompts_have_few_sizes_and_little_padding():
    sizes = sorted({row_bucket(rows, 8000) for rows in range(1, 8001)})
    assert sizes == [16, 32, 64, *range(128, 1025, 128), *range(1280, 2049, 256), *range(3072, 7169, 1024), 8000]
    for rows in range(129, 8001):
        assert rows <= row_bucket(rows, 8000) < min(rows + 1024, 2 * rows)
    for wrong in (0, 101):
        with pytest.raises(ValueError, match=f"rows is {wrong}; it must be from 1 to 100"):
            row_bucket(wrong, 100)


def random_shape(rng, rows: int, seats: int) -> Shape:
    """What a step may need: each sequence has a row, and forks of others none."""
    decoding, others = (int(rng.integers(0, most + 1)) for most in (min(seats, rows - 1), 8))
    others = min(others, seats - decoding)
    if not decoding + others:
        return Shape(1, 1, 0, 1)
    longest = int(rng.integers(1, rows - decoding + 1)) if others else 0
    T = int(rng.integers(decoding + longest, rows + 1)) if others else decoding
    return Shape(T, decoding + others, decoding, longest)


def test_a_padded_shape_holds_the_step_and_there_are_few_of_them():
    rng, kinds = np.random.default_rng(0), set()
    for _ in range(3000):
        needed = random_shape(rng, rows := 2048, seats := 128)
        found = padded(needed, rows, seats + 16, seats)
        kinds.add(found)
        assert needed.rows <= found.rows <= rows and needed.longest <= found.longest <= found.rows
        assert needed.decoding <= found.decoding <= min(found.rows, seats)
        others = found.sequences - found.decoding
        assert needed.sequences - needed.decoding <= others and found.sequences <= seats + 16
        assert (others > 0) == (found.longest > 0) == (needed.longest > 0)
    assert len(kinds) < 250
    # Where memory has no place for empty sequences there are none.
    assert padded(Shape(200, 10, 7, 150), 256, 10, 10) == Shape(256, 10, 7, 150)
