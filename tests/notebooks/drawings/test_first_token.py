"""The figures of the lesson "The first right token": what they say, and what they refuse."""

import numpy as np
import pytest

from labkit.course.drawings import first_token as pictures


def test_weights_of_heads():
    weights = np.zeros((4, 3, 3))
    weights[:, :, 0] = 1
    weights[3, 2] = 0, 0, 1
    figure = pictures.head_weights(("a", "b", "c"), weights, shared=2)
    assert "2 heads in a row share keys and values" in figure.summary
    assert figure.summary.endswith("The last token reads most from 'a', 'a', 'a', 'c'.")
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match=r"weights has shape \(4, 3, 3\) and there are 2 tokens"):
        pictures.head_weights(("a", "b"), weights, shared=2)
