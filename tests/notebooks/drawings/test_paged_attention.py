"""The figures of the lesson "Paged attention": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import paged_attention as pictures
from tests.measure.plots.layout import drawn


@pytest.mark.parametrize(("size", "keys"), [(16, 16), (64, 4), (128, 2)])
def test_which_lane_reads_what(size, keys):
    figure = pictures.page_reads(size, pages=6)
    assert f"a warp reads {keys} keys at a time" in figure.summary
    texts = drawn(figure)
    numbers = [int(text) for text in texts if text.isdigit()]
    assert len(numbers) == 16 * size // 8 + 6 and numbers[-6:] == [0, 1, 2, 3, 0, 1]
    assert numbers[:32] == list(range(32))  # a warp's first request
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match="size is 80"):
        pictures.page_reads(80)


def test_rates_over_the_number_of_sequences():
    figure = pictures.rates((1, 256), {"mma": (380.0, 4170.0), "SDPA": (382.0, 4398.0)}, 4497.0)
    assert figure.summary == ("mma: 380, 4,170; SDPA: 382, 4,398 GB/s for 1, 256 sequences; a kernel that only reads: "
                              "4,497.")
    assert {"mma", "SDPA", "only reading"} <= set(drawn(figure))
    assert figure.svg().startswith("<svg")


def test_rows_and_the_keys_that_they_see():
    figure = pictures.rows_and_keys((4, 2), (4, 10))
    assert figure.summary == ("4 rows of a sequence of 4 tokens, 10 scores; "
                              "2 rows of a sequence of 10 tokens, 19 scores.")
    assert {"sequence 0", "4 of 4", "2 of 10"} <= set(drawn(figure))
    assert figure.svg().startswith("<svg")
    for lengths, contexts in (((0,), (3,)), ((4,), (3,)), ((1, 2), (3,)), ((1,) * 6, (3,) * 6)):
        with pytest.raises(ValueError, match="lengths and contexts"):
            pictures.rows_and_keys(lengths, contexts)
