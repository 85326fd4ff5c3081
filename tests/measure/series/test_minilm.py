"""MiniLM's measurements, at sizes small enough to run in a moment: every key is there, and it is JSON."""

import json

import numpy as np
import pytest

from labkit.measure import sense, targets
from labkit.measure.series import minilm as series
from labkit.models.minilm import HALF, MiniLM
from labkit.models.minilm_reference import embeddings, weights_of
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
    assert found["torch"] == [] and ("why_not" in found["text"] or found["text"]["ours_seconds_256"] > 0)


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


def test_lengths_of_a_corpus_are_sorted_and_short():
    lengths = series.corpus_lengths(2000, 128)
    assert (np.diff(lengths) >= 0).all() and abs(lengths.mean() - series.MEAN_TOKENS) < 0.5
    assert lengths[0] >= 3 and 35 < lengths[-1] <= 128


@pytest.mark.sweep
def test_every_launch_of_a_pass_is_recorded_and_none_runs():
    model = MiniLM(SMALL, random_tensors(SMALL), np.float16)  # with the kernels that test_minilm.py has compiled
    forward, shape = series.ready(model, series.sentences_of((70, 3), 61), "packed")
    forward.batch.pooled.copy_to_device(np.full((2, 64), 7, np.float32))
    names = [name for name, _ in series.launches_of(model, forward.batch)]
    layer = ["qkv", "attended", "attention.projected", "attention.normed", "gelu", "projected", "out"]
    assert names == ["embedding", *layer, *layer, "pooled"]
    assert (forward.batch.pooled.copy_to_host() == 7).all() and shape == (80, 2, 80)


@pytest.mark.parametrize("lengths", [(5, 16, 3), (16, 16)])
def test_what_runs_beside_it_computes_the_same(lengths):
    """PyTorch's own functions in each form, and transformers' model, on the host."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = MiniLM(series.TINY, series.random_tensors(series.TINY), np.float16, HALF)
    sentences = series.sentences_of(lengths, 61)
    expected = embeddings(series.TINY, weights_of(model.tensors, series.TINY), sentences)
    with torch.no_grad():
        bert = series.TorchBert(torch, model, "cpu")
        inputs = bert.inputs(sentences, 16)
        assert (inputs[1] is None) == (lengths == (16, 16))
        calls = [lambda sdpa=sdpa: bert.forward(*inputs, sdpa=sdpa) for sdpa in (True, False)]
        for call in (*calls, series.transformers_call(bert, *inputs, compiled=False)):
            assert series.smallest_cosine(expected, call()) > 0.9999


def test_ways_to_run_torch_that_fail_say_why(monkeypatch):
    """On the host, with the clock of the wall in place of CUDA's: each way has a time, or the reason why not."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no compiler here")))
    model = MiniLM(series.TINY, series.random_tensors(series.TINY), np.float16, HALF)
    with torch.no_grad():
        bert = series.TorchBert(torch, model, "cpu")
        found = is_json(series.torch_rows(bert, series.sentences_of((16,), 61), 16))
        late = series.torch_rows(bert, series.sentences_of((16,), 61), 16, compile_until=0.0)
    assert all(found[way] > 0 for way in ("eager", "SDPA", "transformers"))
    assert found["compiled"] is None and "no compiler here" in found["compiled: why not"]
    assert late["three lines"] is None and "used up" in late["three lines: why not"]


@pytest.mark.sweep
@ON_CPU
def test_a_recording_of_all_of_it_is_accepted(monkeypatch):
    """What bench refuses, it refuses at the end of a long run."""
    monkeypatch.setattr(series, "text_in", lambda count: {"ours_seconds_256": 1.0, "library_seconds_32": 2.0})
    recording = {"machine": {"device": "x", "date": "2026-01-02"}, "limits": {}, "ops": {},
                 "series": {take.__name__: take() for take in (
                     series.minilm, series.minilm_corpus, series.minilm_ladder, series.minilm_profile,
                     series.minilm_lengths)}}
    assert sense.problems(recording) == []
    rows = {row.work: row for row in targets.evaluate(recording, targets.SERIES_TARGETS)}
    assert rows["MiniLM, f16, 1 sentence of 16 tokens"].value > 0
    assert rows["MiniLM, f16, 2,000 sentences by length, packed"].value > 0
