"""The figures of lessons 30 and 31: what they say, and that they draw."""

import numpy as np
import pytest

from labkit.measure.plots import sentences as pictures


def test_cosines_name_the_nearest_two():
    figure = pictures.cosines(["one", "two", "a third\none"], np.array([[1, 0], [0, 1], [0.6, 0.8]]))
    assert figure.summary == "The cosine of each two of 3 sentences. The nearest two, 0.80: 'two' and 'a third\\none'."
    drawn = [text.get_text() for text in figure.axes[0].texts]
    assert drawn.count("1.00") == 3 and drawn.count("0.60") == drawn.count("0.80") == 2
    assert figure.svg().startswith("<svg")


@pytest.mark.parametrize("count", [1, 2, 15])
def test_texts_without_embeddings_and_too_many_are_refused(count):
    with pytest.raises(ValueError, match=f"there are {count} texts and {1 if count < 15 else 15} embeddings"):
        pictures.cosines(["text"] * count, np.ones((1 if count < 15 else 15, 2)))
