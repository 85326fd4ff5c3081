"""The figures of lessons 23 and 24: what they say, and that they draw."""

import numpy as np
import pytest

from labkit.measure.plots import sentences as pictures
from labkit.models.minilm import Config


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


def test_the_launches_of_a_layer_with_what_each_writes():
    figure = pictures.layer_launches(Config(hidden_size=64, num_attention_heads=2, intermediate_size=96), 48)
    assert "product: Q, K, V (qkv, 48 x 192), attention (attended, 48 x 64), product (attention.projected, 48 x 64), " \
           "add, LayerNorm (attention.normed, 48 x 64), product, GELU (gelu, 48 x 96), product (projected, 48 x 64), " \
           "add, LayerNorm (out, 48 x 64)" in figure.summary
    assert figure.svg().startswith("<svg")


def test_layouts_count_rows_and_draw_each_token_once():
    lengths = [5, 0, 33, 16]
    figure = pictures.layouts(lengths)
    assert figure.summary == (
        "4 sentences of 54 tokens: padded to 128, 512 rows, 89% of them padding; padded to the longest, rounded up to "
        "16, 192 rows, 72% of them padding; packed, 64 rows, 16% of them padding.")
    for image in figure.axes[0].images:
        owners = np.nan_to_num(np.ma.filled(image.get_array(), np.nan))
        assert [(owners == sentence).sum() for sentence in (1, 2, 3, 4)] == lengths
    assert figure.svg().startswith("<svg")
