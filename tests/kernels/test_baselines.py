"""Baselines: each call to PyTorch computes the operation, as it is and as one graph of torch.compile's."""

import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest

from labkit._common import paths
from labkit.kernels import baselines
from labkit.kernels.agree import Sample
from labkit.kernels.baselines import Baseline, forms, is_eager
from labkit.kernels.ops.sampling import searched_by_torch, sorted_by_torch
from labkit.measure.ops import HOMES, op

WITH_PYTORCH = [name for name in HOMES if any(one.library == "torch" for one in op(name).baselines)]
# By kernels that PyTorch has for GPUs alone.
ON_A_GPU = ("CUDA C++", "CUB (Dev", "cuDNN", "flash", "memory-efficient", "bias and GELU fused", "tinygemm")
OPS_ON_A_GPU = ("matmul_bf16", "lm_head", "histogram_int32")
# A backward pass of SDPA alone is autograd's call of a graph that was made outside: nothing that torch.compile takes.
NOT_COMPILED = ("attention_backward", "attention_backward_bf16")


def test_forms_add_what_is_compiled():
    plain = Baseline("PyTorch", "torch", None, "two calls")
    assert [one.title for one in forms(plain)] == ["PyTorch (two calls)", "PyTorch, compiled"]
    assert [one.title for one in forms(Baseline("PyTorch", "torch", None, autotune=True, eager=False))] == [
        "PyTorch, compiled", "PyTorch, compiled and autotuned"]
    for alone in (Baseline("CuPy", "cupy", None), Baseline("PyTorch", "torch", None, compile=False)):
        assert forms(alone) == (alone,)
    assert [is_eager(one) for one in ("PyTorch (SDPA)", "PyTorch, fused, compiled", "Triton")] == [True, False, False]


def test_a_compiled_baseline_is_compiled_once_and_writes_into_an_array_of_its_own():
    compiled = []
    torch = SimpleNamespace(empty_like=np.empty_like, _dynamo=SimpleNamespace(reset=lambda: None),
                            compile=lambda function, **options: compiled.append(options) or function)
    (form,) = forms(Baseline("PyTorch", "torch", lambda torch, x, out: np.add(x, 1, out=out), eager=False))
    given = np.full(3, np.nan)
    for _ in range(2):
        np.testing.assert_array_equal(form.call(torch, np.arange(3.0), given), [1, 2, 3])
    assert np.isnan(given).all() and len(compiled) == 1
    assert compiled[0] == {"fullgraph": True, "dynamic": False, "mode": None}
    in_place = Baseline("PyTorch", "torch", None, compile=lambda torch, x, out: np.add(x, 2, out=out), eager=False)
    np.testing.assert_array_equal(forms(in_place)[0].call(torch, np.arange(3.0), given), [2, 3, 4])
    np.testing.assert_array_equal(given, [2, 3, 4])


@pytest.mark.parametrize("name", HOMES)
def test_every_operation_has_a_compiled_baseline(name):
    found = [form.title for one in op(name).baselines for form in forms(one)]
    assert any(baselines.COMPILED in title for title in found) or name in NOT_COMPILED, "no PyTorch to compile"
    assert len(found) == len(set(found)), "two rows of one name"


def test_the_measurements_readme_says_which_operations_are_autotuned():
    autotuned = {name for name in HOMES if any(one.autotune for one in op(name).baselines)}
    text = (paths.MEASUREMENTS / "README.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^- `max-autotune-no-cudagraphs`, (.*?)^- ", text, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", listed)) == autotuned


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    with torch.no_grad():
        yield torch


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("name", [name for name in WITH_PYTORCH if name not in OPS_ON_A_GPU])
def test_pytorch_computes_the_operation(name, monkeypatch, torch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    one = op(name)
    size = one.work.timed_cpu
    inputs = one.inputs(np.random.default_rng(0), **size)
    sample = Sample(one, inputs, seed=0, shape=tuple(one.shape(**size)))
    for baseline in (form for each in one.baselines if each.library == "torch" for form in forms(each)):
        if any(part in baseline.title for part in ON_A_GPU):
            continue
        out = np.full(one.shape(**size), 99, one.dtype)
        arguments = [_tensor(torch, value) for value in (*inputs, out)]
        call = baseline.bound(torch, *arguments)
        with baseline.within(torch):
            result = call()
        result = _array(torch, arguments[-1] if result is None else result).reshape(out.shape).astype(one.dtype)
        verdict = sample.check(result, baseline)
        assert not verdict.problem, f"{baseline.title}: {verdict.problem}"


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("name", "by_sdpa"), [("PyTorch", True), ("PyTorch, unfused", False)])
def test_the_unfused_form_stays_unfused_when_it_is_compiled(name, by_sdpa, torch):
    """Of two products and a softmax Inductor makes SDPA where it recognises them."""
    from torch._dynamo.utils import counters
    from torch._inductor.compile_fx import compile_fx

    one = op("attention_sentences_half")
    (baseline,) = (each for each in one.baselines if each.name == name)
    inputs = one.inputs(np.random.default_rng(0), B=4, S=16, shortest=16, H=12, D=32)
    arguments = [_tensor(torch, value) for value in (*inputs, np.zeros((64, 384), np.float16))]
    torch._dynamo.reset()
    counters.clear()
    graphs_alone = functools.partial(compile_fx, inner_compile=lambda graph, *rest, **options: graph.forward)
    compiled = torch.compile(functools.partial(baseline.call, torch), fullgraph=True, backend=graphs_alone)
    compiled(*arguments)
    assert (counters["inductor"]["fuse_attention"] == 1) == by_sdpa
    assert counters["inductor"]["fuse_attention"] <= 1


@pytest.mark.parametrize("name", ["paged_decode", "paged_prefill"])
def test_keys_that_heads_share_are_not_copied_for_each(name, torch):
    one = op(name)
    size = one.work.timed_cpu
    inputs = one.inputs(np.random.default_rng(0), **size)
    arguments = [_tensor(torch, value) for value in (*inputs, np.zeros(one.shape(**size), one.dtype))]
    for baseline in one.baselines:
        _, *keys_and_values, _, _ = baseline.prepare(torch, *arguments)
        for each in keys_and_values:
            assert each.untyped_storage().nbytes() == 4 * size["B"] * size["S"] * size["KV"] * size["D"]


def _tensor(torch, value):
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint16:
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(value.copy())


def _array(torch, result) -> np.ndarray:
    if isinstance(result, tuple):
        result = torch.cat([part.reshape(-1) for part in result])
    if result.dtype == torch.bfloat16:
        return result.contiguous().view(torch.int16).numpy().view(np.uint16)
    return result.numpy()


@pytest.mark.sampled(1, sweep=99, quick="0-0.92-0.0-6-searched_by_torch")
@pytest.mark.parametrize("draw", [sorted_by_torch, searched_by_torch])
@pytest.mark.parametrize(("top_k", "top_p", "min_p", "kept"), [
    (0, 1.0, 0.0, 8), (0, 0.92, 0.0, 6), (3, 1.0, 0.0, 3), (0, 1.0, 0.3, 5), (5, 0.6, 0.05, 3), (0, 0.01, 0.0, 1)])
def test_libraries_draw_from_the_same_tokens(draw, top_k, top_p, min_p, kept):
    """Their draws are other draws than ours: the tokens that may come, and how often each does, are the same."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    torch.manual_seed(0)
    count, logits = 20_000, np.log(np.array([5, 24, 2, 16, 11, 3, 20, 19], np.float32))
    of_all = [torch.from_numpy(np.full(count, value, dtype)) for value, dtype in
              ((1, np.float32), (top_k, np.int32), (top_p, np.float32), (min_p, np.float32))]
    drawn = draw(torch, torch.from_numpy(np.tile(logits, (count, 1))), *of_all).numpy()
    weights = np.exp(logits.astype(np.float64))
    weights[np.argsort(-weights)[kept:]] = 0
    rates = np.bincount(drawn, minlength=8) / count
    np.testing.assert_allclose(rates, weights / weights.sum(), atol=5 * 0.5 / np.sqrt(count))
    assert (rates[weights == 0] == 0).all()
