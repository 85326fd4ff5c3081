"""A token of GPT-2 in one launch, against transformers and NumPy in float64; which models take it."""

import functools

import numpy as np
import pytest

from labkit import device
from labkit.device import gpus
from labkit.models import gpt2_one_kernel
from labkit.models.gpt2 import GPT2, Config, Kernels, Workspace
from labkit.models.gpt2_one_kernel import OneKernel, problem
from labkit.models.gpt2_reference import activations, allowed_error, weights_of
from labkit.models.safetensors import read
from tests.models.test_gpt2 import GOLDEN, PROMPT, launches_of, random_tensors

# More splits than tokens at first, keys of two splits, a head of 24 numbers, and rows that fill no warp.
ODD = Config(vocab_size=13, n_positions=16, n_embd=72, n_layer=2, n_head=3, n_inner=144)
IDS = [3, 1, 12, 12, 0]


@functools.cache
def odd_model(dtype):
    return GPT2(ODD, random_tensors(ODD), dtype=dtype, one_row=True, one_kernel=True)


@pytest.mark.sampled(0, sweep=10)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_logits_and_greedy_tokens_are_numpys(dtype):
    model = odd_model(dtype)
    weights = weights_of(random_tensors(ODD), ODD, dtype)
    ws = Workspace(ODD, context=8, tokens=1, dtype=model.dtype)
    ws.logits.copy_to_device(np.full((1, 13), np.nan, np.float32))
    ids = list(IDS[:2])
    for token in ids:
        logits = model.decode(token, ws).copy_to_host()
    expected = activations(ODD, weights, ids)["logits"][-1]
    error = 4 * 2.0**-10 * np.abs(expected).max() if dtype == "float16" else allowed_error(ODD, expected, launches_of(
        ODD))
    np.testing.assert_allclose(logits[0], expected, rtol=0, atol=error)
    model.one_kernel.forward(Workspace(ODD, context=8, tokens=1, dtype=model.dtype))  # another text, in between
    ws.ids.copy_to_device(np.array([IDS[2]], np.int32))
    model.step(ws)
    expected = activations(ODD, weights, IDS[:3])["logits"][-1]
    np.testing.assert_allclose(ws.logits.copy_to_host()[0], expected, rtol=0, atol=error)
    assert ws.ids.copy_to_host().tolist() == [expected.argmax()] and ws.start.copy_to_host().tolist() == [3]
    assert model.one_kernel.buffers.counters.copy_to_host()[:2].tolist() == [0, 0]


@pytest.mark.sweep(every=True)
def test_blocks_that_share_rows_unevenly(monkeypatch):
    """Five blocks have 29 of 144 rows each, the last one 28; a head has more numbers than the CPU device's threads."""
    config = Config(vocab_size=13, n_positions=16, n_embd=144, n_layer=1, n_head=2, n_inner=152)
    monkeypatch.setattr(gpt2_one_kernel, "blocks_here", lambda: 5)
    model = GPT2(config, random_tensors(config), one_row=True, one_kernel=True)
    ws = Workspace(config, context=4, tokens=1)
    logits = [model.decode(token, ws).copy_to_host()[0] for token in IDS[:2]]
    expected = activations(config, weights_of(random_tensors(config), config), IDS[:2])["logits"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=allowed_error(config, expected, launches_of(config)))


@pytest.mark.sweep(every=True)
def test_a_token_that_does_not_exist_and_a_full_cache():
    model, ws = odd_model("float16"), Workspace(ODD, context=4, tokens=1, dtype=np.float16)
    for token, start in ((13, 2), (-1, 2), (3, 16)):
        ws.ids.copy_to_device(np.array([token], np.int32))
        ws.start.copy_to_device(np.array([start], np.int32))
        model.one_kernel.forward(ws)
        assert np.isnan(ws.logits.copy_to_host()).all()
    before = ws.cache.copy_to_host()
    ws.ids.copy_to_device(np.array([5], np.int32))
    ws.start.copy_to_device(np.array([4], np.int32))
    model.one_kernel.forward(ws)
    np.testing.assert_array_equal(ws.cache.copy_to_host(), before)


@pytest.mark.sweep
def test_logits_are_transformers():
    config = Config.read(GOLDEN / "config.json")
    model = GPT2(config, read(GOLDEN / "model.safetensors"), one_row=True, one_kernel=True)
    expected = np.load(GOLDEN / "logits.npy")[:4]
    ws = Workspace(config, context=8, tokens=1)
    logits = np.array([model.decode(token, ws).copy_to_host()[0] for token in PROMPT[:4]])
    assert np.abs(logits - expected).max() <= allowed_error(config, expected, launches_of(config))


def test_which_models_take_it():
    tensors = random_tensors(ODD)
    has_kernel = device.on_gpu() and gpus.target().capability >= (9, 0)
    assert bool(GPT2(ODD, tensors, dtype="float16").one_kernel) == has_kernel
    assert GPT2(ODD, tensors).one_kernel is GPT2(ODD, tensors, dtype="float16", one_kernel=False).one_kernel is None
    assert odd_model("float32").with_kernels(Kernels()).one_kernel is None
    with pytest.raises(ValueError, match="one_kernel: the model has kernels of its own"):
        GPT2(ODD, tensors, Kernels(), one_kernel=True)
    wide = Config(vocab_size=13, n_positions=16, n_embd=1288, n_layer=1, n_head=23, n_inner=8)
    with pytest.raises(ValueError, match="one_kernel: n_embd is 1288; multiples of 8 up to 1,280 are allowed"):
        GPT2(wide, random_tensors(wide), one_kernel=True)


@pytest.mark.parametrize(("name", "why"), [("t4", "9.0"), ("a100", "9.0"), ("h200", "")])
def test_on_which_gpus(name, why):
    model = GPT2(ODD, random_tensors(ODD), one_kernel=False)
    with gpus.plan_for(gpus.GPUS[name]):
        assert why in problem(model) and bool(problem(model)) == bool(why)


def test_weights_lie_in_rows_with_their_biases():
    model = odd_model("float32")
    one, layer = model.one_kernel, model.layers[1]
    assert isinstance(one, OneKernel)
    sizes, end = one.sizes, one.sizes.layer["end"]
    host = one.weights.copy_to_host()[end : 2 * end]
    rows = host[sizes.layer["fc"] :][: sizes.inner * sizes.pitch].reshape(sizes.inner, sizes.pitch)
    np.testing.assert_array_equal(rows[:, : sizes.hidden], layer["mlp.c_fc.weight"].copy_to_host().T)
    np.testing.assert_array_equal(rows[:, sizes.hidden], layer["mlp.c_fc.bias"].copy_to_host())
