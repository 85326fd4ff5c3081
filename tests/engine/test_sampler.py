"""Sampling: which tokens may be drawn, how often, and the same ones with the same seed."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from labkit._common.paths import REPOSITORY
from labkit.engine.sampler import GREEDY, Sampler, generate, likeliest
from labkit.models.gpt2 import GPT2, Config, Workspace
from labkit.models.safetensors import read

GOLDEN = REPOSITORY / "tests" / "golden" / "gpt2-random"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
PROMPT = EXPECTED["prompt"]
LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15]))


def test_probabilities_written_out():
    np.testing.assert_allclose(Sampler().probabilities(LOGITS), [0.1, 0.4, 0.05, 0.3, 0.15])
    np.testing.assert_allclose(Sampler(top_k=2).probabilities(LOGITS), np.array([0, 4, 0, 3, 0]) / 7)
    np.testing.assert_allclose(Sampler(top_p=0.75).probabilities(LOGITS), np.array([0, 0.4, 0, 0.3, 0.15]) / 0.85)
    np.testing.assert_allclose(Sampler(top_p=0.01).probabilities(LOGITS), [0, 1, 0, 0, 0])
    np.testing.assert_allclose(Sampler(temperature=0.5).probabilities(LOGITS), np.exp(2 * LOGITS) / 0.285)
    np.testing.assert_allclose(GREEDY.probabilities(LOGITS), [0, 1, 0, 0, 0])
    np.testing.assert_allclose(Sampler(top_p=1.0, top_k=99).probabilities(LOGITS), np.exp(LOGITS))


@pytest.mark.parametrize("distinct", [3, 10**6])
def test_top_k_takes_as_many_as_asked_for_and_of_equal_ones_the_first(distinct):
    rng = np.random.default_rng(distinct)
    for size in (1, 2, 17, 400):
        logits = rng.integers(0, distinct, size).astype(np.float64)
        for count in {1, 2, size // 2, size - 1, size, size + 1} - {0}:
            expected = np.sort(np.argsort(-logits, kind="stable")[:count])
            np.testing.assert_array_equal(likeliest(logits, count), expected)


def test_ties_and_the_ends_of_the_range():
    assert GREEDY.choose(np.array([1.0, 3, 3, 2]), None) == 1
    np.testing.assert_allclose(Sampler(top_k=1).probabilities(np.zeros(4)), [1, 0, 0, 0])
    np.testing.assert_allclose(Sampler(temperature=1e-30).probabilities(LOGITS), [0, 1, 0, 0, 0])
    np.testing.assert_allclose(Sampler().probabilities(np.array([-np.inf, 0, 0])), [0, 0.5, 0.5])
    for sampler in (Sampler(), GREEDY):
        with pytest.raises(ValueError, match="logits of 1 tokens are NaN"):
            sampler.choose(np.array([0, np.nan]), np.random.default_rng(0))


def test_tokens_come_as_often_as_their_probability_says():
    rng, sampler = np.random.default_rng(0), Sampler(temperature=0.7, top_k=4)
    count = 20_000
    counts = np.bincount([sampler.choose(LOGITS, rng) for _ in range(count)], minlength=5)
    shares = sampler.probabilities(LOGITS)
    assert counts[2] == 0
    assert (np.abs(counts - count * shares) <= 5 * np.sqrt(count * shares * (1 - shares)) + 1e-9).all()


def test_the_least_and_the_largest_number_drawn_give_the_first_and_the_last_token():
    for drawn, token in ((0.0, 0), (0.0999, 0), (0.1001, 1), (0.8499, 3), (0.8501, 4), (np.nextafter(1, 0), 4)):
        assert Sampler().choose(LOGITS, SimpleNamespace(random=lambda drawn=drawn: drawn)) == token
    assert Sampler().choose(np.array([-np.inf, 0, -np.inf]), SimpleNamespace(random=lambda: 0.0)) == 1


@pytest.mark.parametrize(("wrong", "message"), [
    ({"temperature": -1}, "temperature is -1"), ({"temperature": float("nan")}, "temperature is nan"),
    ({"top_k": 0}, "top_k is 0"), ({"top_p": 0}, "top_p is 0"), ({"top_p": 1.5}, "top_p is 1.5"),
])  # fmt: skip
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Sampler(**wrong)


def test_the_tokens_that_may_be_drawn_are_transformers():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    transformers = pytest.importorskip("transformers")
    logits = np.random.default_rng(0).standard_normal(50).astype(np.float32) * 3
    for k, p, temperature in ((None, None, 0.7), (5, None, 1.0), (None, 0.9, 1.0), (20, 0.6, 1.3)):
        scores = torch.tensor(logits)[None] / temperature
        if k:
            scores = transformers.TopKLogitsWarper(k)(None, scores)
        if p:
            scores = transformers.TopPLogitsWarper(p)(None, scores)
        expected = torch.softmax(scores, dim=-1)[0].numpy()
        np.testing.assert_allclose(Sampler(temperature, k, p).probabilities(logits), expected, atol=1e-6)


# --- Generation ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return GPT2(Config.read(GOLDEN / "config.json"), read(GOLDEN / "model.safetensors"))


@pytest.mark.sweep(every=True)
def test_greedy_tokens_are_transformers(model):
    assert list(generate(model, PROMPT, 64)) == EXPECTED["greedy"]


@pytest.mark.sweep(every=True)
def test_the_same_seed_gives_the_same_tokens(model):
    workspace, sampler = Workspace(model.config), Sampler(temperature=3.0)
    first, again, other = (list(generate(model, PROMPT, 30, sampler, seed=seed, workspace=workspace))
                           for seed in (1, 1, 2))
    assert first == again and first != other and len(set(first)) > 10


@pytest.mark.sweep(every=True)
def test_it_stops_where_it_should(model):
    greedy = EXPECTED["greedy"]
    at = greedy.index(81)
    assert list(generate(model, PROMPT, 64, stop={81})) == greedy[: at + 1]
    workspace = Workspace(model.config, context=30)
    assert list(generate(model, PROMPT, 64, workspace=workspace)) == greedy[:7]  # after the 30th comes one more
    assert list(generate(model, PROMPT, 1)) == greedy[:1]
    with pytest.raises(ValueError, match="count is 0"):
        next(generate(model, PROMPT, 0))
