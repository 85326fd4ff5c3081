"""A token in one launch, against NumPy in float64, in every batch; and what it refuses."""

import dataclasses
import functools

import numpy as np
import pytest

from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import ELEMENTS
from labkit.models import llama, qwen3
from labkit.models.configs import Qwen3Config
from labkit.models.dtypes import DTYPES
from labkit.models.llama import Cache, Config, Kernels, Llama, Workspace
from labkit.models.llama_reference import activations, weights_of
from labkit.models.one_kernel import OneKernel
from labkit.models.step import Inputs, Piece
from tests.models.test_llama import random_prompts, random_tensors

SMALL = Config(vocab_size=21, hidden_size=64, intermediate_size=320, num_hidden_layers=2, num_attention_heads=2,
               num_key_value_heads=1, head_dim=32, max_position_embeddings=128, rms_norm_eps=1e-5,
               tie_word_embeddings=True)
FOUR_HEADS = dataclasses.replace(SMALL, num_attention_heads=4)  # a GPU's warps have one each, of four pages
LENGTHS = (70, 1, 17)  # with the new token: several splits of pages, no older token, the first token of a page
PAGES = [[3, 7, 1, 8, 0], [9], [2, 5]]


@functools.cache
def one_kernel_model(dtype, config=SMALL):
    return Llama(config, random_tensors(config), dtype, one_kernel=True)


@functools.cache
def decoded(dtype, config, chosen=(0, 1, 2)):
    """(prompts, logits, greedy tokens, cache) of the chosen sequences' last tokens in one launch."""
    model, prompts = one_kernel_model(dtype, config), random_prompts(config, LENGTHS)
    cache, inputs, ws = Cache(config, 10, dtype), Inputs(128, 3, 5), Workspace(config, 128, 3, dtype)
    for prompt, pages in zip(prompts, PAGES, strict=True):
        if len(prompt) > 1:
            model.forward(inputs.step([Piece(prompt[:-1], 0, pages)]), cache, ws)
    ws.logits.copy_to_device(np.full(ws.logits.shape, np.nan, np.float32))
    step = inputs.step([Piece(prompts[n][-1:], LENGTHS[n] - 1, PAGES[n]) for n in chosen])
    logits = model.forward(step, cache, ws).copy_to_host()
    return prompts, logits, model.one_kernel.buffers.tokens.copy_to_host()[: len(chosen)], cache


@pytest.mark.sampled(0, sweep=10)
@pytest.mark.parametrize(("dtype", "config"), [
    ("bfloat16", FOUR_HEADS), ("float16", SMALL), ("float16", dataclasses.replace(SMALL, num_key_value_heads=2))])
def test_logits_tokens_and_cache_are_numpys(dtype, config):
    prompts, logits, tokens, cache = decoded(dtype, config)
    weights = weights_of(one_kernel_model(dtype, config).tensors, config, dtype)
    eps = ELEMENTS[np.dtype(DTYPES[dtype])].eps
    for prompt, row, token, pages in zip(prompts, logits, tokens, PAGES, strict=True):
        truth = activations(config, weights, prompt)
        expected, at = truth["logits"][-1], len(prompt) - 1
        np.testing.assert_allclose(row, expected, rtol=0, atol=8 * eps * np.abs(expected).max())
        assert token == row.argmax()
        for name, layers in (("keys", cache.keys), ("values", cache.values)):
            stored = float64_of(layers[1].copy_to_host())[pages[at // 16], :, at % 16]
            newest = truth[f"layers.1.{name}"][-1]
            np.testing.assert_allclose(stored, newest, rtol=0, atol=8 * eps * np.abs(newest).max())


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("chosen", [(0,), (2, 0)])
def test_the_same_bits_in_every_batch(chosen):
    _, all_logits, *_ = decoded("bfloat16", FOUR_HEADS)
    _, logits, *_ = decoded("bfloat16", FOUR_HEADS, chosen)
    np.testing.assert_array_equal(logits, all_logits[list(chosen)])


@pytest.mark.sweep(every=True)
def test_a_launch_leaves_its_counters_at_zero():
    decoded("bfloat16", FOUR_HEADS)
    buffers = one_kernel_model("bfloat16", FOUR_HEADS).one_kernel.buffers
    assert not buffers.counters.copy_to_host().any() and not buffers.arrived.copy_to_host().any()


def test_it_is_chosen_and_other_steps_and_kernels_run_launch_by_launch():
    model = one_kernel_model("float16")
    assert llama.ONE_KERNEL is False and Llama(SMALL, model.tensors, "float16").one_kernel is None
    assert model.with_kernels(Kernels(rmsnorm=lambda *_, **__: None)).one_kernel is None
    inputs = Inputs(9, 9, 1)
    assert OneKernel.takes(inputs.step([Piece([1], 0, [n]) for n in range(8)]))
    assert not OneKernel.takes(inputs.step([Piece([1], 0, [n]) for n in range(9)]))
    assert not OneKernel.takes(inputs.step([Piece([1], 0, [0]), Piece([1, 2], 0, [1])]))


def test_a_model_that_it_cannot_compute_is_refused():
    tensors = random_tensors(SMALL)
    with pytest.raises(ValueError, match=r"one_kernel: the weights are float32; bfloat16 and float16 are allowed"):
        Llama(SMALL, tensors, "float32", one_kernel=True)
    with pytest.raises(ValueError, match=r"one_kernel: the model has kernels of its own"):
        Llama(SMALL, tensors, "bfloat16", Kernels(rmsnorm=lambda *_, **__: None), one_kernel=True)
    shape = Qwen3Config(**{name: getattr(SMALL, name) for name in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")})
    with pytest.raises(ValueError, match=r"one_kernel: the model has self_attn.k_norm.weight, self_attn.q_norm.weight"):
        qwen3.Qwen3(shape, random_tensors(shape), "bfloat16", one_kernel=True)
