"""The reference of Llama and Qwen3 against what transformers computed (golden files)."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from labkit._common.files import read_json
from labkit._common.paths import REPOSITORY
from labkit.kernels.rope import frequencies
from labkit.models import llama, qwen3
from labkit.models.llama_reference import activations, bfloat16, weights_of
from labkit.models.load import ARCHITECTURES, tensors

GOLDEN = REPOSITORY / "tests" / "golden" / "llama"
SHAPES = ("llama2", "llama3", "smollm2", "qwen3")


def golden(name: str) -> SimpleNamespace:
    """A model's files and what transformers computed with it."""
    folder = GOLDEN / name
    model_type = read_json(folder / "config.json")["model_type"]
    kind = {"llama": llama, "qwen3": qwen3}[model_type]
    with np.load(folder / "expected.npz") as arrays:
        config = ARCHITECTURES[model_type][0].read(folder / "config.json")
        return SimpleNamespace(folder=folder, kind=kind, config=config, tensors=tensors(folder),
                               **json.loads((folder / "expected.json").read_text()), **arrays)


@pytest.fixture(params=SHAPES)
def model(request):
    return golden(request.param)


def test_the_frequencies_are_transformers(model):
    config = model.config
    found = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(found, model.frequencies, rtol=1e-6)  # theirs are float32


def test_logits_are_transformers(model):
    found = activations(model.config, weights_of(model.tensors, model.config), model.prompt)
    np.testing.assert_allclose(found["logits"], model.logits, rtol=0, atol=1e-4)  # their angles are float32


def test_layers_are_transformers(model):
    found = activations(model.config, weights_of(model.tensors, model.config), model.prompt)
    for layer, expected in enumerate(model.layers):
        np.testing.assert_allclose(found[f"layers.{layer}.out"][model.at], expected, rtol=0, atol=2e-4)


def test_far_positions_are_transformers(model):
    """Their angles are off by up to 0.0005 there; positions that are off by one change the logits by whole numbers."""
    w = weights_of(model.tensors, model.config)
    found = activations(model.config, w, model.prompt, positions=model.far_positions)["logits"]
    np.testing.assert_allclose(found, model.far_logits, rtol=0, atol=2e-2)
    shifted = [position + (position > 7000) for position in model.far_positions]
    assert np.abs(activations(model.config, w, model.prompt, positions=shifted)["logits"] - found).max() > 0.1


def test_far_greedy_tokens_are_transformers(model):
    w, ids, positions = weights_of(model.tensors, model.config), list(model.prompt), list(model.far_positions)
    for _ in range(16):
        ids.append(int(np.argmax(activations(model.config, w, ids, positions=positions)["logits"][-1])))
        positions.append(positions[-1] + 1)
    assert ids[len(model.prompt) :] == model.far_greedy[:16]


def test_rounded_as_transformers_rounds(model):
    """In bfloat16 theirs and ours differ from each other less than from float64."""
    w = weights_of(model.tensors, model.config)
    exact, rounded = (activations(model.config, w, model.prompt, **how) for how in ({}, {"rounded": bfloat16}))
    for layer, expected in enumerate(model.layers_bfloat16):
        name = f"layers.{layer}.out"
        apart, from_exact = (np.abs(found[name][model.at] - expected).mean() for found in (rounded, exact))
        assert apart < from_exact < 0.02 * np.abs(expected).max()


def test_an_activation_can_be_computed_from_a_models_own(model):
    """An error in one launch is an error of that launch alone."""
    w = weights_of(model.tensors, model.config)
    truth = activations(model.config, w, model.prompt)
    given = truth | {"layers.1.attended": truth["layers.1.attended"] + 0.1}
    found = activations(model.config, w, model.prompt, given=given)
    assert [name for name in found if np.abs(found[name] - given[name]).max() > 1e-12] == \
        ["layers.1.attended", "layers.1.projected"]


def test_keys_and_values_of_tokens_before(model):
    w = weights_of(model.tensors, model.config)
    truth = activations(model.config, w, model.prompt)
    cached = {name: value for name, value in truth.items() if name.endswith((".keys", ".values"))}
    found = activations(model.config, w, model.prompt[20:], positions=range(20, 24), given=cached)
    np.testing.assert_allclose(found["logits"], truth["logits"][20:], rtol=0, atol=1e-12)
