"""The encoder's page: what it says with weights and without, with recordings and without, and that it is one file."""

import json
import re

import numpy as np
import pytest

from labkit import measure
from labkit.measure import page, sts
from labkit.measure import report_minilm as report
from labkit.measure.page import Folded
from labkit.measure.plots import CourseFigure
from labkit.measure.series import minilm as series
from labkit.models import weights

STAMP = {"where": "NVIDIA Imaginary", "date": "2026-01-02", "weights": "random"}
PASS = {"sentences": 64, "tokens": 128, "us": 500.0, "launches": 44, "called_us": 900.0, "us_a_launch": 11.4,
        "called_us_a_launch": 20.5, "torch": None,
        "rows": [{"name": name, "count": count, "us_saved": us} for name, count, us in
                 (("embedding", 1, 3.0), ("qkv", 6, 90.0), ("attended", 6, 70.0), ("pooled", 1, -0.4))]}
TORCH_PASS = {"rows": [{"name": "void at::native::softmax<float, 4>(float*, int)", "count": 6, "us": 60.0},
                       {"name": "nvjet_hsh", "count": 24, "us": 340.0}],
              "launches": 30, "called_us": 2000.0, "called_us_a_launch": 66.7}
WAYS = {"eager": 4000.0, "eager, in a graph": 800.0, "compiled": None, "compiled: why not": "RuntimeError: no compiler"}
RECORDED = {
    "minilm": {**STAMP, "rows": [{"sentences": 64, "tokens": 16, "cosine": 0.99999, "torch": {
        way: us if us is None or isinstance(us, str) else us / 64 for way, us in WAYS.items()}, "ours": {
            "packed": {"us_a_sentence": 1.9, "rows": 1024, "called_us_a_sentence": 9.0},
            "padded": {"us_a_sentence": 2.1, "rows": 1024, "called_us_a_sentence": 9.0}}}]},
    "minilm_corpus": {**STAMP, "sentences": 2000, "mean_tokens": 15.2, "text": {"why_not": "UserError: no <weights>"},
                      "torch": [{"batch": 256, "called_sentences_per_second": 23000.0,
                                 "graph_sentences_per_second": None}],
                      "ours": [{"form": "packed", "batch": 256, "rows": 30400, "sentences_per_second": 410000.0,
                                "embed_sentences_per_second": 300000.0}]},
    "minilm_ladder": {**STAMP, "steps": [
        {"name": "simple", "changes": "the first", "form": "padded_to_128", "control": None, "launches": 130,
         "us": {"64 x 128": 40.0, "64 x 16": 30.0}},
        {"name": "packed", "changes": "no padding", "form": "packed", "control": None, "launches": 44,
         "us": {"64 x 128": 7.0, "64 x 16": 1.9}}],
        "attention": [{"form": "tiles", "sentences": 64, "tokens": 128, "us_a_layer": 7.5}],
        "failures": [{"name": "three stages", "beside": "two stages", "M": 8192, "N": 384, "K": 384, "us": 11.0,
                      "beside_us": 10.0}]},
    "minilm_profile": {**STAMP, "passes": [{**PASS, "torch": TORCH_PASS}]},
    "minilm_lengths": {**STAMP, "sentences": 64, "tokens": [16, 32], "ours_us": [1.9, 3.0], "torch_us": [5.0, None]},
}


def here(**more):
    stamp = {**STAMP, "where": measure.CPU_DEVICE}
    times = [{"sentences": count, "tokens": 16, "work": f"{count} × 16", "form": form, "type": type_name,
              "us": 2e5 * (1 + 7 * (form == "padded to 128")), "called_us": 2e5, "rows": 16 * count}
             for type_name in report.TYPES for count in (1, 4) for form in report.FORMS]
    return {"times": times, "torch": [], "type": "float32", "profile": {**stamp, "passes": [PASS]},
            "lengths": {**stamp, "sentences": 1, "tokens": [16, 32], "ours_us": [2e5, 4e5], "torch_us": None}, **more}


AGREEMENT = report.Agreement(31, (2, 16), (
    ("NumPy, in float64", {"float32": 0.99999999, "float16": 0.99999874}, ""),
    ("transformers, in float64", None, "not here: torch is not installed")), {"float32": True, "float16": False}, True)


@pytest.fixture
def quick(monkeypatch):
    """Nothing is measured; returns what measure_here gives, to change, and the recorded series, of which there are
    none."""
    taken, recorded = here(), {}
    monkeypatch.setattr(report, "measure_here", lambda loaded: taken)
    monkeypatch.setattr(report, "agreement_of", lambda loaded: AGREEMENT)
    monkeypatch.setattr(measure, "recorded_series", lambda name, gpu=None: recorded.get(name))
    monkeypatch.setenv("LABKIT_WEIGHTS", "/nowhere")
    monkeypatch.setattr(report, "MADE_UP", series.TINY)
    return taken, recorded


def words(found) -> str:
    """All that a page says, tables and figures' summaries too."""
    def of(part):
        if isinstance(part, Folded):
            return " ".join([part.title, *map(of, part.parts)])
        return part.summary if isinstance(part, CourseFigure) else str(part)

    return re.sub(r"\s+", " ", " ".join(section.title + " " + " ".join(map(of, section.parts))
                                        for section in found.sections))


def test_without_weights_and_recordings_the_page_says_so(quick, tmp_path):
    loaded = report.load()
    assert loaded.encoder is None and loaded.weights == "random" and not loaded.published
    found = report.page_of(loaded)
    assert len({section.anchor for section in found.sections}) == len(found.sections)
    shown = words(found)
    for part in ("random ones", "say nothing about a GPU's speed", "Not measured: there is no GPU here",
                 "Not recorded on a GPU yet: minilm, minilm_corpus", "torch is not installed",
                 "31 sentences of 2 to 16", "in float16 they are not", "0.9999987", "at most 2 us", "at least 400,000"):
        assert part in shown, part
    assert "Spearman" not in shown and {badge.text for badge in found.badges} >= {"Made-up weights",
                                                                                 "H200: not recorded yet"}
    text = page.write(tmp_path / "page.html", lambda: found).read_text(encoding="utf-8")
    assert text.count('src="data:image/svg+xml;base64,') == 3  # forms, launches, lengths
    assert not re.search(r'(?:src|href)="(?!data:|#)', text) and "<script" not in text


def test_recordings_and_pytorch_stand_beside(quick):
    taken, recorded = quick
    recorded.update(RECORDED)
    taken["torch"] = [{"sentences": 4, "tokens": 16, "ways": WAYS}]
    taken["profile"] = {**taken["profile"], "passes": [{**PASS, "torch": TORCH_PASS}]}
    found = report.page_of(report.load())
    titles = [section.title for section in found.sections]
    assert titles[-4:] == ["Recorded on a GPU", "A corpus", "Step by step", "Where a GPU's time goes"]
    shown = words(found)
    for part in ("compiled was not timed: RuntimeError: no compiler", "NVIDIA Imaginary, 2026-01-02",
                 "not measured: UserError: no <weights>", "no padding", "three stages", "by its profiler", "softmax",
                 "225", "410,000"):
        assert part in shown, part
    assert "Not recorded" not in shown
    goals = next(part for part in found.sections[-4].parts if part.title.startswith("Goals"))
    found = {row[0]: row for row in goals.rows}
    assert found["MiniLM, float16, 64 x 16 tokens"][1:] == ("at most 2 us a sentence", "before",
                                                            "1.9 us a sentence", "yes")
    assert sorted(row[-1] for row in goals.rows) == [*["not measured yet"] * 4, "yes", "yes"]


def test_pairs_are_judged_before_anything_is_measured(quick, monkeypatch):
    """Minutes of measuring must not stand before what was asked for; and the lines left out are on the page."""
    done = []
    monkeypatch.setattr(report, "measure_here", lambda loaded: done.append("measured") or here())
    pairs = sts.Pairs(np.array([5.0, 1.0, 3.0]), (("a", "a"), ("a", "bb"), ("a", "b")),
                      ("line 4: <a sentence> is empty",))
    found = report.page_of(report.load(), pairs, lambda texts: np.array([[len(text), 1.0] for text in texts]),
                           lambda result: done.append(result.spearman))
    assert done[1] == "measured" and done[0] == pytest.approx(0.8660254)
    assert "0.8660" in words(found) and "line 4: <a sentence> is empty" in words(found)
    undefined = report.page_of(report.load(), sts.Pairs(np.ones(2), (("a", "b"), ("a", "c"))),
                               lambda texts: np.ones((len(texts), 2)))
    assert "not defined" in words(undefined)


def test_live_transformers_agree_with_the_reference(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    loaded = report.Loaded("tiny", series.TINY, series.random_tensors(series.TINY))
    ids, golden = report.checked_sentences(loaded)
    theirs = report.transformers_embeddings(loaded, ids)
    ours = report.embeddings(loaded.config, report.weights_of(loaded.tensors, loaded.config), ids)
    np.testing.assert_allclose(theirs, ours, atol=1e-12)
    assert golden is None and max(map(len, ids)) <= report.SHORT


def test_goldens_are_only_for_the_published_weights():
    loaded = report.Loaded("tiny", series.TINY, {}, published=True)
    ids, golden = report.checked_sentences(loaded)
    assert len(ids) == len(golden) >= report.FEW and golden.shape[1] == 384
    known = json.loads((report.GOLDEN / "sentences.json").read_text())["sentences"]
    assert ids[0] == known[0]["ids"]


@pytest.mark.sweep
@pytest.mark.cpu_device
def test_all_of_it_on_the_cpu_device(monkeypatch, tmp_path):
    """Whole, with a tiny model and nothing replaced."""
    monkeypatch.setenv("LABKIT_WEIGHTS", "/nowhere")
    monkeypatch.setattr(report, "MADE_UP", series.TINY)
    loaded = report.load()
    agreement = report.agreement_of(loaded)
    assert agreement.met and all(agreement.same_bits.values()) and agreement.rows[0][1]["float32"] > 0.999999
    text = page.write(tmp_path / "page.html", lambda: report.page_of(loaded)).read_text(encoding="utf-8")
    assert "Where the time goes" in text and "Made-up weights" in text


def test_real_weights_are_recognised_by_each_byte():
    if not weights.is_there(weights.MINILM):
        pytest.skip("the weights of MiniLM are not in the cache: `labkit weights minilm` fetches them")
    loaded = report.load()
    assert loaded.published and loaded.weights == "real" and loaded.encoder.max_seq_length == 256
