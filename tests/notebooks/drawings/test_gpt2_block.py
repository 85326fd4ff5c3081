"""The figures of the lesson "The GPT-2 block": what they say, and what they refuse."""

import numpy as np
import pytest

from labkit import cuda
from labkit.course.drawings import gpt2_block as pictures
from labkit.models import gpt2_block as block
from labkit.models.gpt2_block import GPT2_SMALL, Shape


@pytest.mark.parametrize("order", [pictures.PRE_LN, pictures.POST_LN])
def test_both_orders_are_drawn_as_they_are_launched(order):
    shape, seen = Shape(16, 2, 16), []
    x = cuda.to_device(np.ones((2, 16), np.float32))
    weights = cuda.to_device(shape.random(np.random.default_rng(0)))
    block.solve(x, x, weights, 2, shape=shape, post_ln=order is pictures.POST_LN,
                watch=lambda name, array: seen.append(name))
    names = [name for name, *_ in order]
    if order is pictures.POST_LN:  # its second product has a name of its own, and the last norm writes out
        names = ["mlp.added" if name == "out" else "out" if name == "ln_2" else name for name in names]
    assert seen == names


def test_the_pictures_name_their_bytes():
    figure = pictures.two_orders()
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert texts.count("LayerNorm") == 4
    assert "110 MB in all, 28.4 MB of them weights" in texts
    assert texts.count(pictures.megabytes(block.traffic(GPT2_SMALL, 1024)["attn"])) == 2
    assert "Fusing three of them away saves 37.7 MB" in pictures.ten_launches().summary
    assert "104 KB" in pictures.ten_launches(tokens=16).summary
