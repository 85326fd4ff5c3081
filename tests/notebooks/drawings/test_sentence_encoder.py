"""The figures of the lesson "A sentence encoder": what they say, and what they refuse."""

import numpy as np

from labkit.course.drawings import sentence_encoder as pictures
from labkit.models.minilm import Config


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
