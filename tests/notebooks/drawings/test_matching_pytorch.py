"""The figures of the lesson "Matching PyTorch": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import matching_pytorch as pictures
from tests.measure.plots.layout import drawn


def test_score_matrices_count_what_is_needed():
    figure = pictures.score_matrices([5, 20, 16])
    assert figure.summary == ("Sentences of 5, 20, 16 tokens need 681 scores: padded to 128, 49,152; padded to the "
                              "longest, 3,072; packed, 681.")
    assert "Padded to the longest: 3,072 scores, 4.5 times what is needed" in drawn(figure)
    assert "Packed: 681 scores, all of them needed" in drawn(figure)
    assert figure.svg().startswith("<svg")


@pytest.mark.parametrize("lengths", [[], [0, 3], [129], [3] * 13])
def test_what_does_not_fit_is_refused(lengths):
    with pytest.raises(ValueError):
        pictures.score_matrices(lengths)


STAMP = {"where": "NVIDIA H200", "date": "2026-11-30"}


@pytest.mark.parametrize("theirs", [None, [3.0, None, 9.0]])
def test_time_over_length_with_and_without_pytorch(theirs):
    series = {"sentences": 64, "tokens": [16, 64, 128], "ours_us": [1.0, 2.0, 4.0], "torch_us": theirs, **STAMP}
    figure = pictures.over_length(series)
    assert len(figure.axes[0].lines) == (1 if theirs is None else 2)
    assert figure.svg().startswith("<svg")
