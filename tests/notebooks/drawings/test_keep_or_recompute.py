"""The figures of the lesson "Keep or recompute": what they say."""

from labkit.course.drawings import keep_or_recompute as pictures


def test_each_block_goes_through_the_tiles_that_the_mask_leaves():
    figure = pictures.strips(tiles=5, block=1)
    assert "block of queries 1 goes through 2 tiles of keys" in figure.summary
    assert "block of keys 1 through 4 of queries" in figure.summary
    numbered = sorted(text.get_text() for text in figure.axes[0].texts if text.get_text().isdigit())
    assert numbered == sorted(["1", "2", "1", "2", "3", "4"])
