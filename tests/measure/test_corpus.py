"""The corpus: the sentences that the recording was measured with."""

import json

import pytest

from labkit._common.errors import UserError
from labkit._common.paths import MEASUREMENTS
from labkit.measure import corpus


def test_the_sentences_are_those_of_the_recording():
    texts = corpus.sentences(2000)
    recorded = json.loads((MEASUREMENTS / "nvidia-h200.json").read_text())["series"]["minilm_corpus"]
    assert recorded["sentences"] == 2000 and recorded["corpus"].endswith(f", {corpus.digest(texts)}")
    assert corpus.digest(texts) != corpus.digest(texts[::-1])


def test_the_sentences_differ_and_are_of_the_length_of_sentences():
    texts = corpus.sentences(2000)
    assert len(set(texts)) == len(texts) == 2000
    assert all(4 <= len(text.split()) <= 60 for text in texts)


def test_fewer_sentences_are_spread_over_all():
    texts = corpus.sentences(2000)
    assert corpus.sentences(4) == texts[::500]
    with pytest.raises(UserError, match="sentences.txt has 2,000 sentences; 2,001 are needed"):
        corpus.sentences(2001)
