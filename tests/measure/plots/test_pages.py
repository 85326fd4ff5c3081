"""The figures of lessons 39 and 40: what they say, and that they draw."""

from types import SimpleNamespace

import pytest

from labkit.engine.block_manager import BlockManager
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.sequence import Request
from labkit.measure.plots import pages as pictures
from tests.measure.plots.layout import drawn


def begun(blocks, name, prompt):
    """A sequence whose prompt is computed, from pages of the prefix cache as far as there are some."""
    sequence = Request(name, prompt, SamplingParams(max_tokens=8), max_length=200).sequences[0]
    blocks.take(sequence, blocks.cached_prefix(sequence))
    blocks.grow(sequence, len(prompt) - sequence.computed)
    sequence.computed = len(prompt)
    blocks.register(sequence)
    return sequence


def test_the_page_table_says_who_holds_what():
    blocks = BlockManager(10)
    prompt = list(range(20))
    served = {"a": begun(blocks, "a", [*prompt, 1]), "b": begun(blocks, "b", [*prompt, 2]),
              "c": begun(blocks, "c", list(range(40, 80)))}
    blocks.release(served["c"])
    figure = pictures.page_table(blocks, served)
    assert figure.summary == ("a: 21 tokens in pages 0, 1; b: 21 tokens in pages 0, 2. Of 10 pages 3 are held, 1 of "
                              "them by several; 2 are free and still hold a prompt's tokens.")
    texts = drawn(figure)
    assert {"a", "b", "21 tokens"} <= set(texts) and "c" not in texts
    assert texts.count("0") == 3 and texts.count("1") == texts.count("2") == 2 and texts.count("9") == 1
    assert figure.svg().startswith("<svg")
    framed = [box for box in figure.axes[0].patches if box.get_linewidth() > 1]
    assert len(framed) == 3  # the shared page, in two rows and in memory


def test_what_cannot_be_drawn_is_refused():
    empty = SimpleNamespace(pages=[], computed=0)
    with pytest.raises(ValueError, match="none of the sequences holds a page"):
        pictures.page_table(BlockManager(4), {"a": empty})
    with pytest.raises(ValueError, match="there are 9 sequences"):
        pictures.page_table(BlockManager(4), {str(number): empty for number in range(9)})
    with pytest.raises(ValueError, match="97 pages"):
        pictures.page_table(BlockManager(97), {"a": empty})
