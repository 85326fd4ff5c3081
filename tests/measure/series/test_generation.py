"""The end-to-end experiment, on a model small enough to run in a moment."""

import json

import numpy as np
import pytest

from labkit import device
from labkit._common.errors import UserError
from labkit.measure.series import generation as generation_experiment
from labkit.measure.series.generation import (
    ATTENTIONS,
    PROMPTS,
    SOFTMAX,
    experiment,
    launches_of,
    prompts_from,
    random_tensors,
)
from labkit.models.gpt2 import GPT2, Config, Kernels, Workspace

SMALL = Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=4)


@pytest.fixture(scope="module")
def model():
    return GPT2(SMALL, random_tensors(SMALL))


@pytest.fixture(scope="module")
def series(model):
    one = experiment(model, {text: [1, 2, 3 + n] for n, text in enumerate(PROMPTS)}, name="small", log="made",
                     weights="random", length=9, runs=2, hows=("called", "graph"))
    return {"models": [one], "where": "here", "date": "today"}


@pytest.mark.sweep
def test_the_texts_are_the_same_with_every_attention(series):
    for prompt in series["models"][0]["prompts"]:
        assert (prompt["prompt_tokens"], prompt["new_tokens"]) == (3, 6)
        assert [(row["attention"], row["how"]) for row in prompt["rows"]] == [
            (name, how) for how in ("called", "graph") for name in ATTENTIONS]
        for row in prompt["rows"]:
            assert row["same_tokens"] and row["seconds"]["p5"] <= row["seconds"]["p50"] <= row["seconds"]["p95"]
            assert row["tokens_per_second"] * row["seconds"]["p50"] == pytest.approx(6)


def test_graph_and_calls_write_the_same(model):
    ws = Workspace(SMALL)
    called = generation_experiment.write_called(model, ws, [5, 6, 7], 8)
    decoder = generation_experiment.Decoder(model, ws)
    assert generation_experiment.write_graphed(model, ws, [5, 6, 7], 8, decoder) == called


def test_the_launches_of_a_step_are_all_there(model):
    ws = Workspace(SMALL)
    names = [name for name, _ in launches_of(model.with_kernels(Kernels(attention=ATTENTIONS["unfused"])), ws)]
    layer = ["ln_1", "attn.c_attn", "attn.cache", "attn.scores", "attn.scale", "attn.mask", "attn.softmax",
             "attn.values", "attn.added", "ln_2", "mlp.gelu", "out"]
    assert names == ["embedding", *layer, *layer, "ln_f", "logits"]
    assert [name for name in layer if name in SOFTMAX] == ["attn.scale", "attn.mask", "attn.softmax"]
    fused = [name for name, _ in launches_of(model.with_kernels(Kernels(attention=ATTENTIONS["fused"])), ws)]
    assert len(fused) == len(names) - 2 * 2


def test_run_one_by_one_they_are_the_model(model):
    ws = Workspace(SMALL)
    expected = model.prefill([1, 2, 3], ws).copy_to_host()
    ws = Workspace(SMALL)
    ws.rows(3).ids.copy_to_device(np.array([1, 2, 3], np.int32))
    for _, launch in launches_of(model, ws, 3):
        launch(0)
    np.testing.assert_array_equal(ws.logits.copy_to_host(), expected)


def test_prompts_from_a_file(tmp_path):
    path = tmp_path / "wiki.txt"
    path.write_text(" \n = Robert Boulter = \n \n Robert Boulter is an English film , television and theatre actor .\n"
                    " = = Career = = \n In 2006 he starred\n\n three\n four\n", encoding="utf-8")
    assert prompts_from(path) == ["Robert Boulter is an English film , television", "In 2006 he starred", "three"]
    path.write_text(" = only = \n")
    with pytest.raises(UserError, match="no line"):
        prompts_from(path)
    with pytest.raises(UserError, match="is missing"):
        prompts_from(tmp_path / "missing")


@pytest.mark.sweep
def test_steps_and_cache_have_a_row_for_each():
    curve = generation_experiment.cache_curve("tiny", (1, 5))
    assert curve["position"] == [1, 5] and len(curve["with_us"]) == len(curve["without_us"]) == 2
    found = generation_experiment.step_launches("tiny", (7,))
    (step,) = found["steps"]
    assert {row["name"] for row in step["rows"]} > {"embedding", "attn.c_attn", "attn", "logits", "argmax"}
    assert sum(row["bytes"] or 0 for row in step["rows"]) == step["bytes"]


@pytest.mark.sweep
def test_a_token_in_launches_and_in_one_kernel():
    """The model of tests/models/test_gpt2_one_kernel.py."""
    config = Config(vocab_size=13, n_positions=16, n_embd=72, n_layer=2, n_head=3, n_inner=144)
    series = json.loads(json.dumps(generation_experiment.gpt2_one_kernel((3,), GPT2(config, random_tensors(config))),
                                   allow_nan=False))
    wide, half = series["rows"]
    assert (wide["dtype"], half["dtype"]) == ("float32", "float16") and wide["bytes"] == 2 * half["bytes"]
    assert wide["launches"] == {"launches": 3 + 5 * 2, "one_kernel": 1} and min(wide["us"].values()) > 0
    assert 0 <= wide["largest_difference"] < 1e-5 and 0 <= half["largest_difference"] < 1e-3
    for found in series["phases"].values():
        assert [phase["phase"] for phase in found["phases"]] == list(generation_experiment.PHASES)


@pytest.mark.sweep
def test_a_token_in_three_forms():
    """A model whose kernels tests/models/test_gpt2_step.py compiles, too."""
    config = Config(vocab_size=97, n_positions=128, n_embd=48, n_layer=2, n_head=3)
    series = generation_experiment.token_times(GPT2(config, random_tensors(config)), (5,))
    assert [(row["form"], row["launches"]) for row in series["rows"]] == [
        ("a launch for each operation, float32", 5 + 8 * 2), ("five a layer, float32", 3 + 5 * 2),
        ("five a layer, float16", 3 + 5 * 2)]
    wide, _, half = (row["bytes"] for row in series["rows"])
    assert wide == 2 * half == 4 * (2 * (config.block.size + 2 * 48 * 6) + 97 * 48)
    assert series["same_tokens"] and json.dumps(series)
    if not device.on_gpu():
        assert series["torch"] is series["torch_check"] is None
