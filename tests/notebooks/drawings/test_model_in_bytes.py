"""The figures of the lesson "A model in bytes": what they say, and what they refuse."""

import numpy as np

from labkit.course.drawings import model_in_bytes as pictures
from labkit.models.blob import layout
from labkit.models.safetensors import Entry


def test_every_tensor_is_drawn_in_its_file_and_in_the_buffer():
    files = {"one": {"model.norm.weight": Entry("model.norm.weight", "BF16", (3,), 0, 6),
                     "mlp.up": Entry("mlp.up", "BF16", (5, 7), 6, 76)},
             "two": {"embed_tokens": Entry("embed_tokens", "BF16", (40,), 0, 80)}}
    shapes = {"embed_tokens": (40,), "mlp.up": (5, 7), "model.norm.weight": (3,)}
    places, nbytes = layout(shapes, dict.fromkeys(shapes, np.dtype(np.uint16)))
    figure = pictures.shards_and_blob(files, places, nbytes)
    assert figure.summary == ("3 tensors of 2 files lie in one buffer of 166 bytes, in the order of a forward "
                              "pass: embed_tokens, mlp.up, model.norm.weight.")
    assert len(figure.axes[0].patches) == 3 * 3 + 4  # a box above, one below and a band each; the legend
    assert figure.svg().startswith("<svg")


def test_the_bytes_of_a_token_and_their_time():
    figure = pictures.bytes_of_a_token({"weights": 2_000_000_000, "a row": 4096}, 4000.0)
    assert figure.summary == "2.000 GB: weights 2,000.0 MB, 500.0 \u00b5s; a row 4.1 KB."
    assert "Together 2.000 GB, 500 \u00b5s at 4,000 GB/s." in [text.get_text() for text in figure.axes[0].texts]
    assert figure.svg().startswith("<svg")
