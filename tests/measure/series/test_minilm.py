"""MiniLM's measurements, at sizes small enough to run in a moment: every key is there, and it is JSON."""

import json

import numpy as np
import pytest

from labkit.measure import comparisons, corpus, validate
from labkit.measure.series import minilm as series
from labkit.models import weights
from labkit.models.minilm import MiniLM
from tests import made_up
from tests.models.test_minilm import SMALL, random_tensors

ON_CPU = pytest.mark.cpu_device


def is_json(found) -> dict:
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.sweep
@ON_CPU
def test_the_table():
    found = is_json(series.minilm(((2, 16),)))
    (row,) = found["rows"]
    assert set(row["ours"]) == {"packed", "padded", "few rows"} and row["torch"] is None
    for one in row["ours"].values():
        assert one["us_a_sentence"] > 0 and one["rows"] == 32
    assert found["weights"] == "random, tiny" and found["date"] and found["where"]


@pytest.mark.sweep
@ON_CPU
def test_the_corpus():
    found = is_json(series.minilm_corpus(6, (4,)))
    packed, padded = found["ours"]
    assert (packed["form"], padded["form"]) == ("packed", "padded") and packed["rows"] <= padded["rows"]
    assert packed["sentences_per_second"] > 0 and packed["embed_sentences_per_second"] > 0
    assert min(packed["cosine"], padded["cosine"]) > 0.999 and found["corpus"] == "random tokens"
    assert found["torch"] == []
    text = found["text"]
    assert "why_not" in text or (text["ours_seconds_256"] > 0 and ("torch_way" in text or "torch_why_not" in text))


@pytest.mark.sweep
@ON_CPU
def test_the_ladder_the_profile_and_the_lengths():
    ladder = is_json(series.minilm_ladder())
    assert [row["name"] for row in ladder["steps"]] == ["simple", "packed"]
    assert ladder["steps"][0]["launches"] > ladder["steps"][1]["launches"] == 9
    assert ladder["attention"][0]["us_a_layer"] > 0 and ladder["failures"][0]["beside_us"] > 0
    (one,) = is_json(series.minilm_profile())["passes"]
    assert one["launches"] == 9 == sum(row["count"] for row in one["rows"])
    lengths = is_json(series.minilm_lengths())
    assert len(lengths["ours_us"]) == len(lengths["tokens"]) and lengths["torch_us"] is None


@pytest.mark.sweep
@ON_CPU
def test_one_sentence_by_each_product():
    found = is_json(series.minilm_single())
    assert [row["name"] for row in found["rows"]] == ["naive", "tiled", "tensor cores"]
    assert all(row["us"] > 0 and row["called_us"] > 0 and row["cosine"] > 0.999 for row in found["rows"])


def test_lengths_of_a_corpus_are_sorted_and_short():
    lengths = series.corpus_lengths(2000, 128)
    assert (np.diff(lengths) >= 0).all() and abs(lengths.mean() - series.MEAN_TOKENS) < 0.5
    assert lengths[0] >= 3 and 35 < lengths[-1] <= 128


def test_the_corpus_is_cut_by_the_models_own_tokenizer():
    if not weights.is_there(weights.MINILM):
        pytest.skip("the weights of MiniLM are not in the cache: `labkit weights minilm` fetches them")
    texts, ids, where = series.corpus_of(None, "real", 300)
    lengths = [len(one) for one in ids]
    assert texts == corpus.sentences(300) and where.endswith(corpus.digest(texts))
    assert lengths == sorted(lengths) and lengths[0] > 3 and lengths[-1] <= 128
    assert {(one[0], one[-1]) for one in ids} == {(101, 102)}  # [CLS] and [SEP]


@pytest.mark.sweep
def test_every_launch_of_a_pass_is_recorded_and_none_runs():
    model = MiniLM(SMALL, random_tensors(SMALL), np.float16)  # with the kernels that test_minilm.py has compiled
    forward, shape = series.ready(model, series.sentences_of((70, 3), 61), "packed")
    forward.batch.pooled.copy_to_device(np.full((2, 64), 7, np.float32))
    names = [name for name, _ in series.launches_of(model, forward.batch)]
    layer = ["qkv", "attended", "attention.projected", "attention.normed", "gelu", "projected", "out"]
    assert names == ["embedding", *layer, *layer, "pooled"]
    assert (forward.batch.pooled.copy_to_host() == 7).all() and shape == (80, 2, 80)


@pytest.mark.slow
@ON_CPU
def test_a_recording_of_all_of_it_is_accepted(monkeypatch):
    """What bench refuses, it refuses at the end of a long run."""
    monkeypatch.setattr(series, "text_in", lambda texts: {"ours_seconds_256": 1.0, "library_seconds_32": 2.0})
    recording = made_up.recording(**{take.__name__: take() for take in (
        series.minilm, series.minilm_corpus, series.minilm_ladder, series.minilm_profile, series.minilm_lengths)})
    assert validate.problems(recording) == []
    found = {one.source: one for one in comparisons.compare(recording)}
    assert found.keys() == {"minilm", "minilm_corpus"} and all(one.ours[1] > 0 for one in found.values())
