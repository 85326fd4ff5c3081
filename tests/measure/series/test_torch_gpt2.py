"""The GPT-2 of PyTorch's functions, on the CPU: it computes what the reference does, in each of its ways."""

import json
import math
import shutil

import numpy as np
import pytest

from labkit.measure import Timing
from labkit.measure.series import beside_torch, generation
from labkit.measure.series.generation import random_tensors
from labkit.measure.series.torch_gpt2 import AUTOTUNED, MIN_COSINE, WAYS, TorchGPT2, Way, sdpa, unfused
from labkit.models.configs import HEAD
from labkit.models.gpt2 import GPT2, Config
from labkit.models.gpt2_reference import activations, allowed_error
from tests.models.test_gpt2 import launches_of

SMALL = Config(vocab_size=97, n_positions=32, n_embd=48, n_layer=2, n_head=3, n_inner=80)
IDS = np.random.default_rng(3).integers(0, 97, 21)
ON_CPU = pytest.mark.cpu_device


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def truth():
    """Weights, and the activations of all tokens in float64."""
    tensors = random_tensors(SMALL)
    return tensors, activations(SMALL, tensors, IDS)


def poisoned_cache(one, seen):
    """The keys and values of all tokens before the last, whose own row is NaN."""
    cache = one.cache(np.full((len(IDS), 2 * SMALL.n_embd), np.nan, np.float32))
    for layer, own in enumerate(cache):
        qkv = seen[f"h.{layer}.attn.c_attn"].reshape(len(IDS), 3, 3, 16).transpose(1, 2, 0, 3)  # (3, H, N, D)
        own[:, 0, :, :-1] = one.tensor(qkv[1:, :, :-1])
    return cache


def check(one, seen, step, cache, allowed):
    """Decode the last token: the logits, the next token and the row of the cache agree, and no other row changed."""
    before = [own.clone() for own in cache]
    one.token.fill_(int(IDS[-1]))
    logits = step().double().numpy()
    expected = seen["logits"][-1:]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=allowed)
    assert one.token.tolist() == [expected.argmax()]
    for layer, (own, old) in enumerate(zip(cache, before, strict=True)):
        row = seen[f"h.{layer}.attn.c_attn"][-1].reshape(3, 3, 16)[1:]
        np.testing.assert_allclose(own[:, 0, :, -1].double().numpy(), row, rtol=0, atol=allowed)
        assert own[:, :, :, :-1].equal(old[:, :, :, :-1])


@pytest.mark.parametrize("attend", [sdpa, unfused])
def test_an_eager_step_agrees_with_the_reference(torch, truth, attend):
    tensors, seen = truth
    one = TorchGPT2(torch, SMALL, tensors, device="cpu")
    cache = poisoned_cache(one, seen)
    allowed = allowed_error(SMALL, seen["logits"], launches_of(SMALL))
    check(one, seen, lambda: one.step(cache, attend), cache, allowed)


@pytest.mark.parametrize("attend", [sdpa, unfused])
def test_a_step_in_float16_is_near_the_reference(torch, truth, attend):
    tensors, seen = truth
    one = TorchGPT2(torch, SMALL, tensors, np.float16, "cpu")
    assert {each.dtype for w in one.layers for each in w.values()} == {torch.float16}
    cache = poisoned_cache(one, seen)
    assert cache[0].dtype == torch.float16 and cache[0].is_contiguous()
    check(one, seen, lambda: one.step(cache, attend), cache, 0.02 * np.abs(seen["logits"]).max())


def test_each_step_embeds_the_token_of_the_step_before(torch, truth):
    """Greedy text from an empty cache, which grows by a row a step, as the reference writes it."""
    tensors, _ = truth
    one = TorchGPT2(torch, SMALL, tensors, device="cpu")
    one.token.fill_(5)
    cache, ids = one.cache(np.full((1, 96), np.nan, np.float32)), [5]
    for _ in range(6):
        one.step(cache)
        ids.append(activations(SMALL, tensors, ids)["logits"][-1].argmax())
        assert int(one.token) == ids[-1]
        cache = [torch.nn.functional.pad(own, (0, 0, 0, 1), value=math.nan) for own in cache]


def test_a_head_of_its_own_is_used(torch, truth):
    tensors, seen = truth
    head = np.random.default_rng(1).standard_normal((97, 48)).astype(np.float32)
    one = TorchGPT2(torch, SMALL, {**tensors, HEAD: head}, device="cpu")
    one.token.fill_(int(IDS[-1]))
    logits = one.step(poisoned_cache(one, seen)).numpy()
    np.testing.assert_allclose(logits, seen["ln_f"][-1:] @ head.T.astype(np.float64), atol=1e-4)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("way", [way for way in WAYS if way.mode], ids=lambda way: way.name)
def test_what_dynamo_traces_agrees_with_the_reference(torch, truth, way, monkeypatch):
    """Without the compiler behind it. The whole graph is one, or this fails."""
    tensors, seen = truth
    real, asked = torch.compile, []

    def compiled(function, *, mode, **options):
        asked.append((mode, options))
        return real(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", compiled)
    one = TorchGPT2(torch, SMALL, tensors, device="cpu")
    cache = poisoned_cache(one, seen)
    allowed = allowed_error(SMALL, seen["logits"], launches_of(SMALL))
    check(one, seen, one.call(cache, way), cache, allowed)
    assert asked == (1 if way.whole else 2) * [(way.mode, {"dynamic": False, "fullgraph": True})]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.parametrize("way", [Way("", sdpa, "default"), Way("", unfused, "default"),
                                 Way("", unfused, "default", whole=True), Way("", unfused, AUTOTUNED)])
def test_a_compiled_step_agrees_with_the_reference(torch, truth, way):
    tensors, seen = truth
    one = TorchGPT2(torch, SMALL, tensors, device="cpu")
    cache = poisoned_cache(one, seen)
    allowed = allowed_error(SMALL, seen["logits"], launches_of(SMALL))
    check(one, seen, one.call(cache, way), cache, allowed)


@pytest.mark.sweep(every=True)
def test_a_row_says_why_it_has_no_time(torch, truth, monkeypatch):
    tensors, seen = truth
    one = TorchGPT2(torch, SMALL, tensors, device="cpu")
    eager, compiled = WAYS[0], next(way for way in WAYS if way.mode)

    def row(way, ours, compile_until=0.0):
        return one.row(way, poisoned_cache(one, seen), int(IDS[-1]), ours, compile_until)

    ours = seen["logits"][-1:]
    assert "not be captured" in row(eager, ours)["why"], "the CPU has no graph"
    assert "used up" in row(compiled, ours)["why"]
    monkeypatch.setattr(beside_torch, "time_torch_graph", lambda call, launches: Timing(0.1, 0.2, 0.3, 5, "x"))
    unlike = row(eager, -ours)
    assert "unlike ours" in unlike["why"] and unlike["us"] is None and unlike["cosine"] is None
    found = row(eager, ours)
    assert found.keys() == {"way", "us", "cosine"} and found["us"] == pytest.approx(200) and found["cosine"] > 0.999999

    def fails(*_, **options):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", fails)
    assert "no compiler here" in row(compiled, ours, math.inf)["why"]


@ON_CPU
@pytest.mark.sweep
def test_its_rows_stand_beside_ours(torch, monkeypatch):
    """The models of token_times, on the CPU device, with a clock that always says 0.2 ms and no time to compile."""
    config = Config(vocab_size=97, n_positions=128, n_embd=48, n_layer=2, n_head=3)
    monkeypatch.setattr(beside_torch, "time_torch_graph", lambda call, launches: Timing(0.1, 0.2, 0.3, 5, "x"))
    monkeypatch.setattr(generation, "COMPILING_S", -1.0)
    monkeypatch.setattr(generation, "torch_models", lambda config, tensors: {
        dtype: TorchGPT2(torch, config, tensors, dtype, "cpu") for dtype in ("float32", "float16")})
    series = generation.token_times(GPT2(config, random_tensors(config)), (5, 17))
    json.dumps(series, allow_nan=False)
    assert [(row["position"], row["way"], row["dtype"]) for row in series["torch"]] == [
        (17, way.name, dtype) for way in WAYS for dtype in ("float32", "float16")]  # PyTorch's: the last position alone
    for row in series["torch"]:
        if row["way"].startswith("eager"):
            assert row["us"] == pytest.approx(200) and row["cosine"] > MIN_COSINE and "why" not in row
        else:
            assert row["us"] is None and "used up" in row["why"]
    assert series["torch_check"]["float32"] > 0.999999 and 0.999 < series["torch_check"]["float16"] <= 1
