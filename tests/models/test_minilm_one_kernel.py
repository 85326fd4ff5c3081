"""A sentence in one launch, against NumPy in float64, of every length; and what it refuses."""

import dataclasses
import functools

import numpy as np
import pytest

from labkit.models.minilm import FEW_ROWS, HALF, Config, MiniLM
from labkit.models.minilm_one_kernel import OneKernel
from labkit.models.minilm_reference import cosines, embeddings, weights_of
from tests.models.test_minilm import random_sentences, random_tensors

SMALL = Config(vocab_size=61, max_position_embeddings=128, type_vocab_size=2, hidden_size=64, num_hidden_layers=2,
               num_attention_heads=2, intermediate_size=128)
ONE_LAYER = dataclasses.replace(SMALL, num_hidden_layers=1)
WIDE_HEADS = dataclasses.replace(SMALL, num_attention_heads=1, num_hidden_layers=1)  # of 64
TWO_GROUPS = dataclasses.replace(SMALL, intermediate_size=256, num_hidden_layers=1)
TWO_DEPTHS = dataclasses.replace(SMALL, hidden_size=128, intermediate_size=256, num_hidden_layers=1,
                                 num_attention_heads=4)


@functools.cache
def one_kernel_model(config=SMALL):
    return MiniLM(config, random_tensors(config), "float16", one_kernel=True)


def poison(one):
    """Fill everything that a launch writes before it reads it."""
    buffers = one.buffers
    for array in (buffers.qkv, buffers.attended, buffers.projected, buffers.inner, buffers.sums, buffers.pooled):
        array.copy_to_device(np.full(array.shape, np.nan, array.dtype))


def check(config, count, normalize=True):
    model, (ids,) = one_kernel_model(config), random_sentences(config, (count,), count)
    poison(model.one_kernel)
    found = model.embed([ids], normalize=normalize)
    expected = embeddings(config, weights_of(model.tensors, config, np.float16), [ids], normalize)
    assert found.shape == expected.shape == (1, config.hidden_size) and found.dtype == np.float32
    assert cosines(found, expected).min() > 0.9999
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 * np.abs(expected).max())
    assert not model.one_kernel.buffers.counters.copy_to_host().any()
    return ids, found


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("config", "count"), [*((SMALL, count) for count in (1, 15, 16, 17, 40)), (ONE_LAYER, 128)])
def test_an_embedding_is_numpys(config, count):
    check(config, count)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("config", [WIDE_HEADS, TWO_GROUPS, TWO_DEPTHS], ids=["one head", "inner 256", "hidden 128"])
@pytest.mark.parametrize("count", [3, 20])
def test_other_sizes(config, count):
    check(config, count)


@pytest.mark.sweep(every=True)
def test_means_that_are_not_normalised_and_a_second_launch():
    """From the second one on, a graph is launched: the bits are the same."""
    ids, first = check(SMALL, 17, normalize=False)
    model = one_kernel_model(SMALL)
    assert set(model.one_kernel.graphs) >= {False}
    poison(model.one_kernel)
    np.testing.assert_array_equal(model.embed([ids], normalize=False), first)
    assert abs(np.linalg.norm(model.embed([ids])) - 1) < 1e-5


def test_which_sentences_it_takes():
    assert OneKernel.takes([[1] * 128]) and OneKernel.takes([np.ones(1, np.int32)])
    for sentences in ([[1] * 129], [[]], [[1], [2]]):
        assert not OneKernel.takes(sentences)


@pytest.mark.sweep(every=True)
def test_what_it_does_not_take_runs_launch_by_launch(monkeypatch):
    model = one_kernel_model(SMALL)
    monkeypatch.setattr(model.one_kernel, "embed", None)  # a call would fail
    sentences = random_sentences(SMALL, (3, 5))
    expected = embeddings(SMALL, weights_of(model.tensors, SMALL, np.float16), sentences)
    for found in (model.embed(sentences), model.embed(sentences[:1], "padded")):
        assert cosines(found, expected[: len(found)]).min() > 0.9999
    assert model.with_kernels(HALF).one_kernel is None


@pytest.mark.parametrize(("change", "dtype", "message"), [
    ({}, "float32", "one_kernel: the weights are float32; only float16 is allowed"),
    ({"hidden_size": 96, "num_attention_heads": 3}, "float16", "one_kernel: hidden is 96; it must be a multiple of 64"),
    ({"num_attention_heads": 4}, "float16", "heads 4; the heads must have 32 or 64 numbers each"),
    ({"intermediate_size": 192}, "float16", "one_kernel: inner is 192; it must be a multiple of 128"),
])
def test_a_model_that_it_cannot_compute(change, dtype, message):
    config = dataclasses.replace(SMALL, **change)
    with pytest.raises(ValueError, match=message):
        MiniLM(config, random_tensors(config), dtype, one_kernel=True)


def test_kernels_of_ones_own():
    with pytest.raises(ValueError, match="one_kernel: the model has kernels of its own, and they would not be used"):
        MiniLM(SMALL, random_tensors(SMALL), "float16", HALF, one_kernel=True)
    with pytest.raises(ValueError, match=r"one_kernel: the model's kernels take weights as .in, out."):
        OneKernel(MiniLM(SMALL, random_tensors(SMALL), "float16", FEW_ROWS))


def test_an_invalid_token_is_named():
    with pytest.raises(ValueError, match="sentence 0"):
        one_kernel_model(SMALL).embed([[SMALL.vocab_size]])
