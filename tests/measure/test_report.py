"""The page of the comparison: every figure and table of the article is answered, and the page needs no other file."""

import json
import re

import pytest
from typer.testing import CliRunner

from labkit import measure
from labkit.cli import app
from labkit.measure import page, report
from labkit.measure.plots import CourseFigure
from labkit.measure.series import generation as generation_experiment
from labkit.models.gpt2 import GPT2, Config

SMALL = Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=4)


@pytest.fixture(scope="module")
def here():
    model = GPT2(SMALL, generation_experiment.random_tensors(SMALL))
    one = generation_experiment.experiment(model, {text: [1, 2, 3] for text in generation_experiment.PROMPTS},
                                           name="small & sound", log="made", weights="random", length=6, runs=1)
    return {"generation": {"models": [one], "where": measure.where(), "date": "2026-11-21"}}


@pytest.mark.sweep
def test_every_figure_and_table_of_the_source_is_answered(here):
    found = report.sections(here)
    summary = " ".join(section.eyebrow for section in found)
    figures = {int(n) for part in re.findall(r"Figures? ([\d, and]+)", summary) for n in re.findall(r"\d+", part)}
    assert figures == {1, 2, 3, 4, 5, 6, 7, 8, 10, 11}  # the article has no figure 9
    assert {int(n) for n in re.findall(r"Table (\d)", summary)} == {1, 2, 3, 4}
    assert len({section.anchor for section in found}) == len(found)
    assert all(section.parts for section in found)


def test_the_page_is_one_file(here, tmp_path):
    text = page.write(tmp_path / "deep" / "report.html", lambda: report.page_of(here)).read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert not re.search(r'(?:src|href)="(?!data:|#)', text) and "<script" not in text
    assert text.count('src="data:image/svg+xml;base64,') >= 3
    assert "small &amp; sound" in text
    for theirs in ("7,342,080", "2,097,152", "29,364,224", "8,388,608", "71.4%", "2.99", "353 MB", "179.92", "5.492",
                   "0.527", "1,536"):
        assert theirs in text, theirs


def test_the_sources_numbers_hold_together():
    for (B, S), (unfused, fused) in report.TRAFFIC.items():
        assert unfused == 7 * 4 * B * S * S + 4 * B * S and fused == 2 * 4 * B * S * S
    ratios = [case[3] for case in report.MICROBENCHMARK.values()]
    assert sum(ratios) / 4 == pytest.approx(2.99, abs=0.005)
    for (S, _), ((slow, *_), (fast, *_), rates, ratio, _) in report.MICROBENCHMARK.items():
        assert slow / fast == pytest.approx(ratio, rel=0.04)  # the times are rounded to a microsecond
        assert report.TRAFFIC[1, S][0] / slow / 1e3 == pytest.approx(rates[0], rel=0.2)
    for prompt, (baseline, fused) in generation_experiment.SOURCE.items():
        assert baseline[0] / fused[0] == pytest.approx(generation_experiment.SOURCE_RATIO[prompt], abs=0.006)


def test_the_command_writes_it(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert path.is_file()
    done = CliRunner().invoke(app, ["report", "--prompts", str(tmp_path / "none.txt"), "--out", str(path)])
    assert done.exit_code == 2 and "is missing" in " ".join(done.output.split())  # wrapped where the path ends


def test_prompts_from_a_file_are_written_on(tmp_path, monkeypatch):
    taken = {}
    monkeypatch.setattr(generation_experiment, "generation",
                        lambda models, prompts: taken.update(models=models, prompts=prompts) or {"models": []})
    path = tmp_path / "wiki.txt"
    path.write_text(" = Title = \n one two three\n")
    assert report.measure_here(None, generation_experiment.prompts_from(path)) == {"generation": {"models": []}}
    assert taken == {"models": ["tiny"], "prompts": ["one two three"]}
    json.dumps(taken)


def test_what_is_long_is_folded_and_figures_come_first():
    found = {section.title: section for section in report.sections()}
    assert next(iter(found)) == "The question and the answer"
    parts = found["Text is generated"].parts
    assert isinstance(parts[0], CourseFigure) and parts[1].title.startswith("Generated text: distilgpt2's shape")
    assert isinstance(parts[2], page.Folded) and len(parts) == 3
    assert "<details><summary>" in page.html_of(parts[2])


def test_the_headline_compares_like_with_like():
    """A kernel in a graph stands beside a library in a graph, and one called from Python beside one called so."""
    series = measure.recorded_series("masked_softmax_sizes", gpu="NVIDIA H200")
    both = {name: [measure.recorded_series(name, gpu="NVIDIA H200")] for name in report.SERIES}
    cases = [row for row in series["rows"] if row["B"] == 1 and row["S"] in (512, 1024) and row["mask"] != "padding"]
    assert len(cases) == 4
    called, graph = (sum(row[f"unfused{key}"]["p50"] / row[f"fused{key}"]["p50"] for row in cases) / 4
                     for key in ("", "_graph"))
    texts = [part for part in report.summary(both).parts if isinstance(part, str)]
    (python,), (graphed,) = ([text for text in texts if f"{words} on both sides" in text]
                             for words in ("launched from Python", "in a graph"))
    assert f"our fused kernel is {called:.2f} times as fast" in python
    ladders = [measure.recorded_ladder(f"masked_softmax_{row['mask']}", {"B": 1, "S": row["S"]}, gpu="NVIDIA H200")
               for row in cases]
    fastest = sum(min(row.ms for row in one.rows if row.kind == "baseline") / min(row.ms for row in one.rungs)
                  for one in ladders) / 4
    assert f"our fused kernel is {fastest:.2f} times as fast as the fastest baseline (PyTorch, compiled" in graphed
    assert f"and {graph:.2f} times as fast as PyTorch's separate steps" in graphed
    assert {f"{fastest:.2f}"} == {row[3] for row in report.summary(both).parts[-1].rows if "in a graph" in row[1]}
    assert not any(f"{value:.2f} times as fast as PyTorch's separate steps" in text for text in texts
                   for value in (called, graph) if text not in (python, graphed))


def test_no_figure_calls_random_weights_by_a_models_name():
    recorded = measure.recorded_series("generation", gpu="NVIDIA H200")
    figures = [report.generation_pictures.rates(recorded), report.generation_pictures.gains(recorded)]
    figures += [part for part in report.summary({name: [measure.recorded_series(name)] for name in report.SERIES}).parts
                if isinstance(part, CourseFigure)]
    for figure in figures:
        summary = " ".join(figure.summary.split())
        assert "shape of distilgpt2, random weights" in summary
        ours = summary.replace("distilgpt2, NVIDIA L4", "").replace("shape of distilgpt2, random weights", "")
        assert "distilgpt2" not in ours
