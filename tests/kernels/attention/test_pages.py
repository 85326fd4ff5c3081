"""The paged cache on the host: tables, gathering and its opposite, the inputs that tests and measurements share, and
what the launchers refuse."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.attention.pages import (
    PAGE,
    attend_reference,
    cache_shape,
    check_paged,
    gather,
    page_table_of,
    pages_for,
    place,
)
from labkit.kernels.dtypes import float32_of
from labkit.kernels.ops.pages import paged_inputs


def test_tokens_fill_pages():
    assert [pages_for(tokens) for tokens in (0, 1, 15, 16, 17, 32, 1000)] == [0, 1, 1, 1, 2, 2, 63]


def test_a_table_of_lists():
    np.testing.assert_array_equal(page_table_of([[3, 1], [], [7]]), [[3, 1], [-1, -1], [7, -1]])
    assert page_table_of([[3, 1], []], max_pages=5, fill=9).tolist() == [[3, 1, 9, 9, 9], [9] * 5]
    assert page_table_of([]).shape == (0, 1) and page_table_of([[0]]).dtype == np.int32
    with pytest.raises(ValueError, match="max_pages is 1; a sequence has 2 pages"):
        page_table_of([[3, 1]], max_pages=1)


@pytest.mark.parametrize("tokens", [0, 1, 15, 16, 17, 40])
def test_what_is_placed_is_gathered(tokens):
    rng = np.random.default_rng(tokens)
    cache = np.full(cache_shape(9, 2, 4), np.nan)
    row = np.append(rng.permutation(9)[: pages_for(tokens)], -7)
    rows = rng.random((tokens, 2, 4))
    place(cache, row, rows)
    np.testing.assert_array_equal(gather(cache, row, tokens), rows)
    assert np.count_nonzero(~np.isnan(cache)) == rows.size


def test_one_token_lies_where_its_page_and_place_say():
    cache = np.zeros(cache_shape(3, 2, 4))
    cache[2, 1, 1, 3] = 5  # the page of the second 16 tokens, the second head, its second token
    assert gather(cache, np.array([0, 2]), 20)[PAGE + 1, 1, 3] == 5


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.float16])
def test_inputs_hold_numbers_where_tokens_are_and_nothing_to_read_elsewhere(dtype):
    contexts = (0, 5, 16, 33)
    keys, values, table = paged_inputs(np.random.default_rng(0), contexts, 2, 4, dtype)
    used = [table[s, n] for s, tokens in enumerate(contexts) for n in range(pages_for(tokens))]
    assert len(set(used)) == len(used) == 5 and keys.shape == (6, 2, PAGE, 4)
    for cache in (keys, values):
        numbers = float32_of(cache) if dtype == np.uint16 else cache
        assert np.count_nonzero(~np.isnan(numbers)) == sum(contexts) * 2 * 4
        for s, tokens in enumerate(contexts):
            assert not np.isnan(gather(numbers, table[s], tokens)).any()
    behind = [entry for s, tokens in enumerate(contexts) for entry in table[s, pages_for(tokens) :]]
    assert all(not 0 <= entry < len(keys) for entry in behind)


def test_the_reference_is_softmax_over_the_tokens_up_to_a_rows_own():
    rng = np.random.default_rng(0)
    queries, keys, values = rng.random((3, 2, 4)), rng.random((5, 1, 4)), rng.random((5, 1, 4))
    got = attend_reference(queries, keys, values, 2, 0.5)
    for row in range(3):
        for head in range(2):
            weights = np.exp([0.5 * queries[row, head] @ keys[j, 0] for j in range(3 + row)])
            expected = sum(w * values[j, 0] for j, w in enumerate(weights / weights.sum()))
            np.testing.assert_allclose(got[row, head], expected)


def test_what_is_refused():
    def given(q=(3, 4, 32), keys=(5, 2, PAGE, 32), table=(3, 2), dtype=np.float32, scale=0.1):
        cache = cuda.device_array(keys, dtype)
        return (cuda.device_array(q, dtype), cache, cache, cuda.device_array(table, np.int32),
                cuda.device_array(q, dtype), scale)

    assert check_paged(*given()) == 2
    assert check_paged(*given(dtype=np.float16)) == 2
    with pytest.raises(TypeError, match="q has dtype float64; float32, float16, and uint16, which holds bfloat16"):
        check_paged(*given(dtype=np.float64))
    with pytest.raises(ValueError, match="q has 5 heads and keys 2; the first must be a multiple of the second"):
        check_paged(*given(q=(3, 5, 32)))
    with pytest.raises(ValueError, match=r"keys has shape \(5, 2, 8, 32\); it must be \(pages, K, 16, 32\)"):
        check_paged(*given(keys=(5, 2, 8, 32)))
    with pytest.raises(ValueError, match=r"keys has shape \(5, 2, 16, 16\); it must be \(pages, K, 16, 32\)"):
        check_paged(*given(keys=(5, 2, PAGE, 16)))
    for size in (24, 144):
        with pytest.raises(ValueError, match=f"a head has {size} numbers; it must be a multiple of 16, at most 128"):
            check_paged(*given(q=(3, 4, size), keys=(5, 2, PAGE, size)))
        assert check_paged(*given(q=(3, 4, size), keys=(5, 2, PAGE, size)), whole_lines=False) == 2
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="scale is .*; it must be above 0"):
            check_paged(*given(scale=scale))
    q, keys, values, table, out, scale = given()
    odd = cuda.device_array(3 * 4 * 32 + 1, np.float32)[1:].reshape(3, 4, 32)
    with pytest.raises(ValueError, match="must begin at a multiple of 16 bytes"):
        check_paged(odd, keys, values, table, out, scale)
