"""A token of GPT-2 in five launches a layer: the same text as with a launch for each operation, in float32 and
float16."""

import numpy as np
import pytest

from labkit import device
from labkit.models import gpt2_step
from labkit.models.gpt2 import GPT2, Config, Decoder, Kernels, Workspace
from labkit.models.gpt2_reference import allowed_error
from labkit.models.safetensors import read
from tests.models.test_gpt2 import EXPECTED, GOLDEN, PROMPT, all_logits, launches_of


@pytest.fixture(scope="module")
def config():
    return Config.read(GOLDEN / "config.json")


@pytest.fixture(scope="module")
def tensors():
    return read(GOLDEN / "model.safetensors")


def written(model, count):
    """The first tokens after the prompt, which a graph writes."""
    ws = Workspace(model.config, context=len(PROMPT) + count, dtype=model.dtype)
    first = int(np.argmax(model.prefill(PROMPT, ws).copy_to_host()))
    decoder = Decoder(model, ws)
    decoder(first)
    found = [first, decoder.likeliest()]
    while len(found) < count:
        decoder()
        found.append(decoder.likeliest())
    return found, decoder


@pytest.mark.sweep
def test_logits_and_64_greedy_tokens_are_transformers(config, tensors):
    model = GPT2(config, tensors, one_row=True)
    expected = np.load(GOLDEN / "logits.npy")  # float64
    assert np.abs(all_logits(model, PROMPT) - expected).max() <= allowed_error(config, expected, launches_of(config))
    tokens, decoder = written(model, 64)
    assert tokens == EXPECTED["greedy"] and decoder.graph.nodes == 3 + 5 * config.n_layer


@pytest.mark.sweep
def test_in_float16_only_roundings_are_apart(config, tensors):
    model = GPT2(config, tensors, dtype=np.float16)
    rounded = {name: np.asarray(tensors[name]).astype(np.float16) for name in tensors}
    logits, expected = all_logits(model, PROMPT), all_logits(GPT2(config, rounded), PROMPT)  # the same weights in both
    assert 0 < np.abs(logits - expected).max() <= 4 * 2.0**-10 * np.sqrt(2 * config.n_layer) * np.abs(expected).max()
    tokens, _ = written(model, 16)
    assert tokens == EXPECTED["greedy"][:16]


def test_which_models_take_it(config, tensors):
    assert GPT2(config, tensors).one_row == device.on_gpu()
    assert not GPT2(config, tensors, Kernels()).one_row and not GPT2(config, tensors, one_row=False).one_row
    assert not GPT2(config, tensors, one_row=True).with_kernels(Kernels()).one_row
    with pytest.raises(ValueError, match="kernels are given"):
        GPT2(config, tensors, Kernels(), one_row=True)
    with pytest.raises(TypeError, match="dtype is .*float64"):
        GPT2(config, tensors, dtype=np.float64)
    with pytest.raises(ValueError, match="leave kernels and one_row out"):
        GPT2(config, tensors, Kernels(), dtype=np.float16)
    for shape, message in (({"n_embd": 20, "n_head": 2}, "20 and 80 wide"), ({"n_head": 12}, "heads of 4 numbers"),
                           ({"n_embd": 2056, "n_head": 1, "n_inner": 64}, "n_embd is 2056")):
        assert message in gpt2_step.problem(Config(**{"n_embd": 48} | shape), np.float32)


def test_a_workspace_is_for_one_type(config, tensors):
    model = GPT2(config, tensors, dtype=np.float16)
    with pytest.raises(ValueError, match="the workspace is for float32; this model is in float16"):
        model.prefill(PROMPT, Workspace(config))
    with pytest.raises(ValueError, match="tokens is 4; with float16 a pass takes 1 token"):
        Workspace(config, tokens=4, dtype=np.float16)
    with pytest.raises(ValueError, match="kernels are for float32; this model is in float16"):
        model.with_kernels(Kernels())
    with pytest.raises(ValueError, match="watch sees the launches of a model in float32"):
        model.decode(1, Workspace(config, context=4, dtype=np.float16), watch=print)
