"""The corpus: sentences of the lessons, and nothing else of them."""

import pytest

from labkit._common.errors import UserError
from labkit.measure import corpus

LESSON = """\
# %% [markdown]
# # 07 \u00b7 A title of a lesson with five words.
#
# *Lab notebook, 23 November 2026, is no sentence.*
#
# You will learn
#
# - a line of a list which ends with a full stop.
#   Its second line is no sentence of the text.
#
# A *warp* has 32 lanes, see [the guide](https://example.org). (It has been so for years.)
# Which lane reads `x[0]` here? Too short. And this one has
# several lines in the source.
#
# $$a = b$$
#
# With $x = 1$ there is a formula in it.
#
# ```
# A line of code in a fence, with a full stop.
# ```
#
# 1. Numbered lines are left out as well.

# %%
# A comment of the code is no sentence of it.
x = "Neither is a text in the code."

# %% [markdown]
# The last cell has a sentence, too.
"""


def test_sentences_of_a_lesson():
    assert corpus.of_lesson(LESSON) == [
        "A warp has 32 lanes, see the guide.", "(It has been so for years.)", "Which lane reads x[0] here?",
        "And this one has several lines in the source.", "The last cell has a sentence, too."]


def test_the_courses_sentences():
    texts = corpus.sentences(2000)
    assert len(set(texts)) == len(texts) == 2000 and texts == corpus.sentences(2000)
    assert all(corpus.FEWEST <= len(text.split()) <= corpus.MOST and "$" not in text for text in texts)
    assert 10 < sum(len(text.split()) for text in texts) / 2000 < 25
    assert corpus.digest(texts) != corpus.digest(texts[::-1])


def test_too_few_are_named(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "07_title.py").write_text(LESSON)
    assert corpus.sentences(2, tmp_path) == ["A warp has 32 lanes, see the guide.", "Which lane reads x[0] here?"]
    with pytest.raises(UserError, match="have 5 sentences; 6 are needed"):
        corpus.sentences(6, tmp_path)
